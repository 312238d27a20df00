"""Any program on a target, whole: each figure against what can be computed apart from it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations, product
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.browser import in_browser
from tests.conftest import ROOT
from tests.machine.test_run import _Page
from tilewright import isa
from tilewright.embed import Feature, Table
from tilewright.errors import UnsupportedError
from tilewright.hlo import from_jax
from tilewright.isa import MatrixUnitConfig
from tilewright.machine import Model, run
from tilewright.machine.model import Subject, is_recommender, load_subject
from tilewright.machine.npu import misplaced, moved_bytes, overlapping, planned_layers
from tilewright.machine.operands import layers_of
from tilewright.machine.tpu import study_on_tpu
from tilewright.targets import target

MODEL = """
import jax, jax.numpy as jnp, numpy as np

def step(weights, x):
    hidden = jnp.maximum(x @ weights["up"], 0)
    return jax.nn.softmax(hidden @ weights["down"] + hidden.sum())

def arguments():
    rng = np.random.default_rng(0)
    weights = {"up": rng.normal(size=(32, 64)).astype(np.float32), "down": rng.normal(size=(64, 32)).astype(np.float32)}
    return weights, rng.normal(size=(16, 32)).astype(np.float32)

EXAMPLES = {"step": arguments}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "small.py"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture(scope="module")
def on_machine(model):
    return run(model, "simt")


def test_the_matrix_unit_runs_it_and_agrees(on_machine):
    studied = on_machine.studied
    assert on_machine.failures == ()
    assert [check.ok for check in studied.checks] == [True, True]
    assert studied.step.seconds == pytest.approx(studied.details["machine"]["cycles"] * 1e-9)
    assert f"{studied.details['machine']['cycles']:,} cycles" in studied.headline
    assert {row.lane for row in studied.step.rows} <= {"matrix", "vector", "copy", "dma", "host"}
    assert len(studied.step.events()) == sum(bool(row.seconds or row.beside) for row in studied.step.rows)


def test_files_of_a_run(on_machine, tmp_path):
    written = on_machine.write(tmp_path)
    assert [path.name for path in written] == ["report.html", "report.json", "trace.pftrace"]
    found = json.loads(written[1].read_text())
    assert (found["schema_version"], found["kind"], found["target"]) == (1, "program_run", "simt")
    assert len(found["machine"]["layers"]) == len(found["machine"]["bounds"])
    page = _Page()
    page.feed(written[0].read_text())
    assert page.sections[:2] == ["findings", "summary"]
    assert page.fetched == []


def test_what_does_not_fit_in_l2_and_the_change_that_would(model):
    memory = run(model, "simt", config=MatrixUnitConfig(l2_bytes=8192)).studied.memory
    assert not memory.fits
    assert memory.capacity == 8192 * 3 // 4
    assert all(each.bytes > memory.capacity or "no gap" in each.why for each in memory.misfits)
    assert memory.cheapest is not None
    size = next(
        int(change.what.partition("l2_bytes=")[2][:-1]) for change in memory.changes if "l2_bytes" in change.what
    )
    enough, half = isa.compile(load_subject(model).program).l2_plan(size, size // 2)
    assert not enough.left
    assert half.left
    assert all(stay.begin + stay.size <= enough.room for stay in enough.stays)


def test_a_modelled_chip(model):
    report = run(model, "tpu-v5e")
    memory = report.studied.memory
    assert memory.fits
    assert max(memory.live) == memory.need == memory.live[memory.steps.index(memory.at)]
    assert memory.need >= (2 * 32 * 64 + 16 * 32) * 4
    half = next(change for change in memory.changes if change.what == "a batch of 8 instead of 16 (2 runs)")
    assert half.after < half.before == memory.need


def test_what_does_not_fit_in_hbm(model):
    """A chip with little HBM: what is kept across the peak is computed again behind it, and the peak falls by it."""

    def step(x):
        kept, square = x @ x.T, x.T @ x
        total = (square @ square @ square).sum()
        return kept * total, kept - total

    program = from_jax(step, jax.ShapeDtypeStruct((256, 1024), np.float32))
    chip = target("tpu-v5e")
    full = study_on_tpu(Subject("step", program), chip).memory
    small = replace(chip, memories=(replace(chip.memory("hbm"), bytes=full.need - 1, reserved=0),))
    memory = study_on_tpu(Subject("step", program), small).memory
    assert [(each.bytes, each.room) for each in memory.misfits] == [(full.need, full.need - 1)]
    assert memory.cheapest.what.startswith("compute ")
    assert memory.cheapest.after == full.need - 256 * 256 * 4
    assert "The cheapest change that fits: compute " in memory.sentence


def test_sources(model, tmp_path):
    assert is_recommender(str(ROOT / "examples" / "dlrm.py"))
    assert not is_recommender(model)
    assert not is_recommender(f"{model}:step")
    subject = load_subject(model)
    assert subject.example[0][1].shape == (16, 32)
    batches = [(runs, program.entry.operations[2].shape) for _, runs, program in subject.batches()]
    assert batches == [(1 << k, f"f32[{16 >> k},32]") for k in range(1, 5)]
    ((what, runs, narrow),) = subject.types()
    assert (what, runs, narrow.entry.operations[2].shape) == ("bfloat16 instead of float32", 1, "bf16[16,32]")
    with pytest.raises(UnsupportedError, match="no time constants"):
        run(model, "cpu")


# An NPU's local memories.

NPU = replace(target("bm1684x").lanes, npu_num=4, eu_bytes=16, local_bytes=4096, banks=4)
"""A small one: 4 NPUs of 4 KiB."""


def on_npu(function, *arrays, memory=NPU):
    """Every layer of a function in the local memories, and its layers as they are."""
    compiled = isa.compile(function, *arrays)
    layers = list(layers_of(compiled, memory))
    results = {compiled.lowering.reading.root(value) for value in compiled.lowering.reading.results}
    return planned_layers(layers, memory, results), layers


def loaded_and_stored(operands, counts):
    """Bytes of a layer in slices, by walking its loops: what is asked for next is loaded if it is another slice."""
    best = None
    for order in permutations(counts):
        moved, last = 0, {}
        for at in product(*(range(counts[axis]) for axis in order)):
            here = dict(zip(order, at, strict=True))
            for name, axes, size in operands:
                slice_of = tuple(here[axis] for axis in sorted(axes))
                if last.get(name) != slice_of:
                    moved, last[name] = moved + size, slice_of
        best = moved if best is None else min(best, moved)
    return best


def test_a_product_too_large_is_cut_where_that_moves_least():
    a, b = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    (planned,), (layer,) = on_npu(lambda a, b: a @ b, a, b)
    assert planned.need == 3 * 64 * 64 * 4 // 4 > NPU.local_bytes
    cut = planned.cut
    assert planned.plan.bytes_used <= NPU.local_bytes
    best = min(
        loaded_and_stored(
            [("a", "m", m * 256), ("b", "n", 256 * n), ("c", "mn", 4 * m * n)], {"m": 64 // m, "n": 64 // n}
        )
        for m in (4, 8, 16, 32, 64)
        for n in (4, 8, 16, 32, 64)
        if m * 64 + 64 * n + m * n <= NPU.local_bytes
    )
    assert planned.loads + planned.stores == cut.moved <= best
    for sizes in ({"rows": 16, "columns": 64}, {"rows": 32, "columns": 16}, {"rows": 8, "columns": 8}):
        m, n = sizes["rows"], sizes["columns"]
        sides = [("a", "m", m * 256), ("b", "n", 256 * n), ("c", "mn", 4 * m * n)]
        assert moved_bytes(layer, sizes) == loaded_and_stored(sides, {"m": 64 // m, "n": 64 // n})


def test_rows_of_pixels_are_cut_with_what_their_windows_share():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w = np.zeros((1, 32, 32, 4), np.float32), np.zeros((3, 3, 4, 4), np.float32)
    (planned,), (layer,) = on_npu(conv, x, w)
    rows = planned.cut.sizes["h"]
    assert rows < 32
    assert planned.plan.bytes_used <= NPU.local_bytes
    images, _, out = layer.operands
    assert images.place({"h": rows}).shape == (1, 4, rows + 2, 32)  # one row more at either side
    assert out.place({"h": rows}).shape == (1, 4, rows, 32)
    full, rest = divmod(32, rows)
    taken = (full * (rows + 2) + (rest + 2 if rest else 0)) * 32 * 4 * 4
    if planned.cut.sizes.get("c", 4) == 4:
        assert planned.loads == taken + w.nbytes


def test_what_a_layer_made_is_found_by_the_next():
    x, w = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    first, second = on_npu(lambda x, w: (x @ w) @ w, x, w)[0]
    assert (first.loads, first.stores) == (x.nbytes + w.nbytes, 0)
    assert (second.loads, second.stores) == (0, x.nbytes)  # both operands stand there
    assert len(second.found) == 2
    turned = on_npu(lambda x, w: (x @ w).T @ w, x, w)[0]
    assert [each.stores for each in turned] == [x.nbytes, x.nbytes]  # read in another order: by way of global memory
    assert turned[1].loads == x.nbytes
    crowded = on_npu(lambda x, w: (x @ w) @ w + x, x, w, memory=replace(NPU, local_bytes=1024))[0]
    assert sum(each.loads + each.stores for each in crowded) > sum(each.loads + each.stores for each in (first, second))
    for each in (first, second, *turned, *crowded):
        assert each.plan.bytes_used <= each.plan.memory.local_bytes
        assert list(overlapping(each.plan)) == list(misplaced(each.plan, each.plan.memory)) == []


@pytest.mark.parametrize(
    ("function", "axes", "made"),
    [
        (jnp.exp, {"rows": 512}, {"rows"}),
        (jax.nn.softmax, {"rows": 512}, {"rows"}),  # within a row
        (lambda x: x.max((1, 2)), {"n": 8}, {"n"}),  # within an image
        (lambda x: x.max(0), {"n": 8}, set()),  # over images: the slices together make it
        (lambda x: jnp.sort(x, 0), {}, set()),
    ],
)
def test_work_on_elements_is_cut_along_what_it_does_not_sum_up(function, axes, made):
    _, (layer,) = on_npu(function, jax.ShapeDtypeStruct((8, 8, 8, 8), np.float32))
    assert layer.whole == axes
    assert layer.operands[-1].role == "out"
    assert layer.operands[-1].axes == made
    assert layer.operands[-1].bytes(dict.fromkeys(axes, 1)) == layer.operands[-1].bytes({}) // prod(
        axes[a] for a in made
    )


def test_a_recommender_beside_sparse_cores():
    """The machine takes the dense step of a small one, which learns from the gradients that the machine made."""

    def loss(weights, numeric, vectors, labels):
        logits = numeric @ weights + sum(vectors.values()).sum(1)
        return jnp.mean((logits - labels) ** 2), logits

    features = [Feature(f"C{k}", Table(f"t{k}", 16, 8)) for k in range(1, 27)]
    model = Model("tower", lambda scale: features, lambda key: jnp.zeros(13), loss, lambda: optax.sgd(1e-3))
    report = run(model, "simt", steps=1, batch=8)
    assert report.failures == ()
    assert report.left_out == {}
    assert report.sparse.chip == "tpu-v5p"
    assert report.sparse.loss_after < report.sparse.loss_before
    assert "sparsecore" in {row.lane for row in report.studied.step.rows}
    assert report.to_json()["embeddings"]["plan"]["kind"] == "embedding_plan"


def test_a_dump_is_modelled_as_it_is():
    report = run(str(ROOT / "tests/data/hlo_tpu/v5e_patent_rb.after.hlo"), "tpu-v5e")
    assert report.studied.checks == ()
    assert report.studied.moved.before == report.studied.moved.after
    assert "verification" not in report.to_page().html().partition("<main>")[0]
    with pytest.raises(UnsupportedError, match="as XLA compiled it"):
        run(str(ROOT / "tests/data/hlo_tpu/v5e_patent_rb.after.hlo"), "simt")


@in_browser
def test_the_page_in_a_browser(visit, on_machine, tmp_path):
    seen = visit(on_machine.write(tmp_path)[0], width=420, scheme="dark")
    assert "A step takes" in seen.page.locator("#findings").text_content()
    assert seen.page.locator("#step svg").count() == 2
    seen.check()
