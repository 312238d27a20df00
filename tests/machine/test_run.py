"""The main job, whole, on a small scale: what it reports is held against what can be computed apart from it."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from tests.browser import EVERY_LOOK, in_browser
from tests.conftest import ROOT
from tests.render.test_pages_in_browser import walk
from tilewright.machine import run
from tilewright.targets import target

SECTIONS = [
    "findings",
    "summary",
    "step",
    "plan",
    "memory",
    "movement",
    "rewrites",
    "training",
    "matrix-unit",
    "timings",
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run of the example and the folder it wrote."""
    seen = []
    report = run(ROOT / "examples" / "dlrm.py", steps=40, batch=128, scale=0.001, watch=lambda *step: seen.append(step))
    folder = tmp_path_factory.mktemp("out")
    report.write(folder)
    return report, folder, seen


def test_it_learns(written):
    report, _, _ = written
    assert report.loss_after < report.loss_before
    assert report.auc_after > max(0.55, report.auc_before)
    assert len(report.losses) == 40
    assert np.isfinite(report.losses).all()


def test_a_notebook_shows_the_figures(written):
    shown = written[0]._repr_html_()
    assert f"{written[0].auc_after:.4f}" in shown
    assert "HBM a chip" in shown


def test_the_gate_accepts_and_refuses(written):
    report, _, _ = written
    patent, chip = (report.movement.optimized[name] for name in ("vector8x128", "tpu-v5p"))
    assert patent.rewrites
    assert patent.moved_after < patent.moved_before / 2
    assert not chip.rewrites  # XLA:TPU reaches the normal form by itself
    assert chip.refusals
    assert all(verdict.reason for verdict in (*patent.rewrites, *chip.refusals))


def test_the_rewritten_program_is_the_same_function(written):
    report, _, _ = written
    assert report.proof.inputs == 4
    assert 0 < report.proof.worst_share <= report.proof.allowed  # it was taken apart, and by rounding only
    assert report.proof.reference in ("StableHLO's interpreter", "XLA in float64")
    assert report.proof.error_after <= 2 * report.proof.error_before + 64 * 2**-23


def test_the_matrix_unit_agrees(written):
    report, _, _ = written
    assert report.counts_equal
    assert report.values_equal
    macs = sum(product.counts.macs for product in report.matrix if product.ran == 1)
    layers = [(13, 256), (256, 128), (128, 32), (383, 512), (512, 256), (256, 1)]
    forward = sum(a * b for a, b in layers) * 128
    assert macs == 3 * forward - 13 * 256 * 128  # forward, weights' and inputs' gradients; the first input needs none
    assert [product.ran for product in report.matrix if product.ran > 1] == [8, 8, 8]  # the pairwise dots, of 128 each
    assert report.products_left_out == ()


def test_report_json_keeps_its_schema(written):
    report, folder, _ = written
    found = json.loads((folder / "report.json").read_text())
    for key in ("loss_before", "loss_after", "auc_before", "auc_after", "max_difference", "peak_rss_bytes"):
        assert isinstance(found[key], int | float), key
    assert found["schema_version"] == 1
    assert found["counts_equal"] is True
    assert found["stages"] == report.stages
    assert found["memory"]["capacity"] == target(report.target).memory("hbm").usable - report.plan.heap.total
    steps, live = found["memory"]["steps"], found["memory"]["live"]
    assert found["memory"]["need"] == max(live) == live[steps.index(found["memory"]["at"])]
    for rows in found["rewrites"].values():
        for row in rows:
            assert {"name", "moved_before", "moved_after"} <= set(row)
    assert set(found["rewrites"]) == {"tpu-v5p", "vector8x128"}
    assert 100 * 2**20 < found["peak_rss_bytes"] < 4 * 2**30


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections, self.headings, self.fetched, self.open = [], 0, [], None

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "section":
            self.sections.append(found["id"])
        self.headings += tag == "h2"
        self.fetched += [found[key] for key in ("src", "href") if str(found.get(key, "#"))[0] != "#"]


def check_page(html):
    page = _Page()
    page.feed(html)
    assert page.sections == SECTIONS
    assert page.headings == len(SECTIONS)
    assert page.fetched == []


def test_the_page_has_its_sections_and_fetches_nothing(written):
    _, folder, _ = written
    check_page((folder / "report.html").read_text())


@pytest.mark.parametrize(
    ("width", "scheme"),
    [pytest.param(*look, marks=[] if look == (420, "dark") else [pytest.mark.nightly]) for look in EVERY_LOOK],
)
@in_browser
def test_the_page_in_a_browser(visit, written, width, scheme):
    """By day narrow and dark, and then by the keyboard alone, for all pages: they have the same frame."""
    _, folder, _ = written
    seen = visit(folder / "report.html", width=width, scheme=scheme)
    check_page(seen.page.content())
    assert seen.page.locator("svg").count() >= 4
    lead = seen.page.locator("#findings").text_content()
    assert "A pipelined step takes" in lead
    assert "bound by the TensorCore" in lead
    assert seen.page.locator("#summary").text_content().count("vector8x128") == 0
    seen.check()
    walk(seen)


def test_the_trace_parses_back(written):
    report, folder, _ = written
    trace = Trace()
    trace.ParseFromString((folder / "trace.pftrace").read_bytes())
    slices = [p for p in trace.packet if p.HasField("track_event")]
    assert len(slices) >= 2 * 40 * 4
    assert len(report.recorder) >= 40 * 4 + len(report.stages) + len(report.matrix)


def test_progress_is_told(written):
    _, _, seen = written
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == [
        *("model", "data", "plan", "start", "movement", "proof", "evaluate", "train", "evaluate again", "matrix unit")
    ]
    assert ("train", 40, 40) in seen
