"""What a modelled step looks like: the page and what it begins with, lanes, curves of a sweep, a Perfetto trace."""

from __future__ import annotations

import gzip
import itertools
import json
import re

import pytest

from tests.cli.conftest import completed
from tests.conftest import ROOT, VECTORS
from tests.trace.test_perfetto import packets
from tilewright.hlo import estimate, load, report
from tilewright.targets import target

GPT2 = ROOT / "benchmarks/data/tpu_measured/gpt2/tpu-v6e_gpt2_s512_b1.hlo.gz"
LSTM = VECTORS / "upgrades/unrolled_lstm.before.hlo.gz"
OFFLOADED = VECTORS / "upgrades/offloaded_words.after.hlo.gz"


def time(*arguments):
    done = completed("time", *arguments, COLUMNS="100", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def sections(page):
    return re.findall(r'<section id="(\w+)"', page.read_text())


def test_the_page_begins_with_what_to_do(tmp_path):
    page = tmp_path / "page.html"
    time(GPT2, "-t", "tpu-v6e", "-o", page)
    assert sections(page) == ["advice", "summary", "bounds", "operations", "roofline", "lanes"]
    text = page.read_text()
    assert "the call itself, whatever it computes" in text
    assert re.search(r"models\.py:\d+ (waits for HBM for [\d.]+ MiB|computes on the \w+ unit)", text)
    assert "matrix unit" in text
    assert ">DMA<" in text


def test_two_chips_and_a_change_stand_beside_each_other(tmp_path):
    page = tmp_path / "page.html"
    shown = time(GPT2, "-t", "tpu-v6e", "-t", "tpu-v5e", "--set", "tpu-v6e.hbm_bandwidth=2e12", "-o", page)
    assert "tpu-v6e, hbm_bandwidth = 2e+12" in shown
    assert "compare" in sections(page)
    assert page.read_text().count("<h3>") == 3  # lanes of each, at one scale


def test_a_sweep_is_a_table_and_curves(tmp_path):
    (tmp_path / "model.py").write_text("def step(x, w):\n    return x @ w\n")
    page = tmp_path / "page.html"
    arguments = ["--arg", "bf16[batch,1024]", "--arg", "bf16[1024,1024]", "--sweep", "batch=1,8,32"]
    shown = time(f"{tmp_path / 'model.py'}:step", *arguments, "-t", "tpu-v6e", "-o", page)
    assert [line.split(",")[0] for line in shown.splitlines() if line.startswith("batch")] == [
        *("batch 1", "batch 8", "batch 32")
    ]
    text = page.read_text()
    assert "time of a step over batch" in text
    assert "time of a step for each batch" in text


@pytest.mark.parametrize(("dump", "chip"), [(GPT2, "tpu-v6e"), (LSTM, "tpu-v5e"), (OFFLOADED, "tpu-v6e")])
def test_the_trace_opens_and_lanes_do_not_overlap(tmp_path, dump, chip):
    trace = tmp_path / "step.pftrace"
    time(dump, "-t", chip, "-o", trace)
    slices, names = {}, {}
    for packet in packets(trace.read_bytes()):
        if packet.HasField("track_descriptor"):
            names[packet.track_descriptor.uuid] = packet.track_descriptor.name
        if packet.HasField("track_event"):
            slices.setdefault(packet.track_event.track_uuid, []).append((packet.timestamp, packet.track_event.type))
    lanes = {names[track] for track in slices}
    assert "matrix" in lanes
    assert ("sparsecore" in lanes) == (dump is OFFLOADED)
    for events in slices.values():
        ordered = sorted(events, key=lambda event: (event[0], -event[1]))
        assert all(a[1] != b[1] for a, b in itertools.pairwise(ordered))  # begin, end, begin, end


def test_transfers_run_beside_and_end_before_their_wait_does():
    step = estimate(load(gzip.decompress(GPT2.read_bytes()).decode()), "tpu-v6e")
    beside = [row for row in step.rows if row.beside]
    assert len(beside) > 100
    for row in beside:
        assert row.op.endswith("-done")
        assert row.begun + row.beside <= row.start + row.seconds + 1e-12


def test_a_loop_is_drawn_once(tmp_path):
    step = estimate(load(gzip.decompress(LSTM.read_bytes()).decode()), "tpu-v5e")
    ends = max(event.start + event.duration for event in step.events())
    assert ends <= (step.seconds - step.call_seconds) * 1e9 + 1
    plain = json.loads(time(LSTM, "-t", "tpu-v5e", "--json"))
    assert {"begun", "beside", "line"} <= plain["rows"][0].keys()


KERNEL = 'custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/my_kernel/pallas_call" stack_frame_id=0}'


def layers(count):
    """A module of equal layers, as serving steps have them: two operations, the second a kernel of its own."""
    array, lines = "bf16[512,512]{1,0:T(8,128)(2,1)}", []
    for k in range(count):
        meta = 'metadata={op_name="jit(f)/layer" source_file="llama.py" source_line=7}'
        lines.append(f"%fusion.{2 * k} = {array} tanh(%{f'custom-call.{k - 1}' if k else 'a'}), {meta}")
        lines.append(f"%custom-call.{k} = {array} custom-call(%fusion.{2 * k}), {KERNEL}")
    lines[-1] = "ROOT " + lines[-1]
    head = "HloModule jit_f, is_scheduled=true\n\nENTRY %main (a: bf16[512,512]) -> bf16[512,512] {\n"
    return load(head + "\n".join(f"  {line}" for line in [f"%a = {array} parameter(0)", *lines]) + "\n}\n")


def test_equal_layers_are_one_row_and_a_kernel_has_its_own_name():
    step = estimate(layers(64), "tpu-v6e")
    tanh, kernel = step.alike()
    assert [len(row.also) for row in (tanh, kernel)] == [63, 63]
    assert tanh.seconds == pytest.approx(sum(row.seconds for row in step.rows if row.op == "tanh"))
    table = [" ".join(map(str, row)) for row in step.slowest_table(9).rows]
    assert "my_kernel × 64" in "".join(table)
    assert "fusion.0 × 64" in "".join(table)
    assert len(step.to_json()["rows"]) == 128
    assert "fusion.126" in step.to_html()  # opened on demand


def test_a_report_shows_equal_layers_as_one_and_keeps_all_in_its_json():
    found = report(layers(64), target("tpu-v6e"))
    lines = [line for _, line in found.ranking_lines("time")]
    assert any("tanh fusion.0 × 64  llama.py:7" in line for line in lines)
    assert found.alike.moved_bytes == found.moved_bytes
    assert len([row for row in found.to_json()["rows"] if row["op"] == "tanh"]) == 64
    assert sum(row.modelled_us or 0 for row in found.alike.rows) == pytest.approx(
        sum(row.modelled_us or 0 for row in found.rows)
    )
