"""docs/from_scratch.py, chapter by chapter, against the package."""

from __future__ import annotations

import doctest
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT
from tilewright import embed, hlo, isa, layout

COURSE = ROOT / "docs" / "from_scratch.py"


@pytest.fixture(scope="module")
def course():
    spec = importlib.util.spec_from_file_location("from_scratch", COURSE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_scratch"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["from_scratch"]


def test_it_is_short_and_needs_numpy_alone(course):
    text = COURSE.read_text()
    assert len(text.splitlines()) <= 600
    assert "import tilewright" not in text
    assert "from tilewright" not in text
    assert doctest.testmod(course).failed == 0


def test_it_runs():
    ran = subprocess.run([sys.executable, str(COURSE)], capture_output=True, text=True, timeout=600, check=True)
    assert "10,485,760 bytes move as written, 40,960 after" in ran.stdout


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[7]{0:T(4)}",
        "f32[3,5]{0,1}",
        "f32[3,5]{1,0:T(2,2)}",
        "f32[4,8]{1,0:T(2,4)(2,1)}",
        "bf16[19,300]{1,0:T(8,128)(2,1)}",
        "s8[3,9,130]{0,2,1:T(8,128)(4,1)}",
        "f32[5]{0:T(8,128)}",
        "f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}",
    ],
)
def test_tiles(course, text):
    ours, theirs = course.parse(text), layout.parse(text)
    every = np.array(list(np.ndindex(ours.shape)), int).reshape(ours.offsets.size, len(ours.shape))
    assert ours.offsets.ravel().tolist() == theirs.offsets(every).tolist()
    assert ours.size_bytes == theirs.size_bytes
    values = np.arange(ours.offsets.size).reshape(ours.shape)
    assert np.array_equal(ours.unpack(ours.pack(values)), values)


@pytest.mark.parametrize("mode", ["aligned", "compact", "row_aligned"])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_lanes(course, mode, start):
    shape = (2, 7, 4, 5)
    ours = course.Lanes(shape, lanes=4, unit=32, start=start, mode=mode)
    theirs = layout.lanes(shape, "f16", lanes=4, eu_bytes=64, start=start, mode=mode)
    for index in np.ndindex(shape):
        assert ours.address(*index) == tuple(theirs.address(*index)[axis] for axis in ("npu", "offset"))


@pytest.mark.parametrize(
    ("before", "after"),
    [((8, 16, 256), (128, 256)), ((128, 256), (128, 2, 128)), ((24,), (4, 6)), ((16, 128), (2048,))],
)
def test_free_reshapes(course, before, after):
    ours = [course.row_tiled(shape) for shape in (before, after)]
    assert course.is_free(*ours) == layout.is_bitcast(*map(as_package, ours))


def as_package(one):
    """The package's layout."""
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in one.tiles)
    dims, order = (",".join(map(str, numbers)) for numbers in (one.shape, one.minor_to_major))
    return layout.parse(f"f32[{dims}]{{{order}:T{tiles}}}")


def test_rewrite(course):
    jnp = pytest.importorskip("jax.numpy")
    x = course.Array((8, 16, 16, 256))
    written = course.Sum(course.Reshape(x, (8, 16, 16, 8, 32)), (1, 2, 4))
    program = hlo.from_jax(lambda x: x.reshape(8, 16, 16, 8, 32).sum((1, 2, 4)), jnp.zeros(x.shape))
    theirs = hlo.optimize(program, "vector8x128")
    assert course.movement(written) == theirs.moved_before
    assert course.movement(course.sum_first(written)) == theirs.moved_after


@pytest.mark.parametrize(
    ("shape", "split", "dims"),
    [
        ((4, 6, 8), (4, 6, 2, 4), (0, 3)),
        ((4, 6), (2, 2, 6), (0, 2)),
        ((4, 4, 4), (4, 4, 2, 2), (1, 2)),
        ((6, 8), (8, 6), (0,)),
    ],
)
def test_rewrites_keep_values(course, shape, split, dims):
    program = course.Sum(course.Reshape(course.Array(shape), split), dims)
    values = np.random.default_rng(0).integers(0, 99, shape)
    assert np.array_equal(course.run(program, values), course.run(course.sum_first(program), values))


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_tables(course, shards):
    rng = np.random.default_rng(shards)
    vocab, width, samples = 61, 8, 8 * shards
    batch = [rng.integers(0, vocab, rng.integers(0, 6)).tolist() for _ in range(samples)]
    table, gradient = (rng.normal(size=size).astype(np.float32) for size in ((vocab, width), (samples, width)))
    features = [embed.Feature("f", embed.Table("t", vocab, width, optimizer=embed.SGD(0.1)))]
    stacking = embed.stack(features, embed.Topology(shards, 1))
    host = embed.preprocess({"f": batch}, stacking)
    sources = course.preprocess(batch, shards)
    for source, buffers in enumerate(sources):
        for shard in range(shards):
            theirs = zip(*(part.tolist() for part in host.partition("t", source, shard)), strict=True)
            assert buffers.partition(shard) == list(theirs)
        assert buffers.row_pointers == host.row_pointers["t"].reshape(shards, -1)[source, :shards].tolist()

    state = embed.from_tables(stacking, {"t": table})
    tables = course.shard_table(table, shards)
    assert np.allclose(course.lookup(sources, tables, samples), embed.lookup(state, host)["f"], atol=1e-5)
    course.update(sources, tables, gradient, 0.1)
    changed = np.asarray(embed.tables(embed.update(state, host, {"f": gradient}))["t"])
    assert all(np.allclose(tables[shard], changed[shard::shards], atol=1e-5) for shard in range(shards))


def test_addresses_of_a_segment(course):
    ours = course.Segment((10, 300), (4, 128), (1, 64), tuple(range(0, 9 * 512, 512)))
    theirs = layout.paged((10, 300), "s8", page=(4, 128), line=(1, 64))
    for index in ((0, 0), (3, 127), (4, 0), (7, 200), (9, 299)):
        page, offset = (theirs.address(*index)[axis] for axis in ("page", "offset"))
        assert ours.address(*index) == page * 512 + offset


@pytest.mark.parametrize(("ka", "kb"), [(1, 1), (4, 1), (1, 4), (2, 2), (3, 1)])
@pytest.mark.parametrize("mnk", [(16, 64, 64), (21, 19, 43)])
def test_products(course, mnk, ka, kb):
    m, n, k = mnk
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    value, counts, cache = course.matmul(a, b, threads=24, ka=ka, kb=kb)
    config = isa.MatrixUnitConfig(threads=24, kb_mode="chunk")
    theirs = isa.matmul(a, b, config=config, ka=ka, kb=kb)
    assert np.array_equal(value, theirs.value)
    assert {name: getattr(theirs.counts, name) for name in vars(counts)} == vars(counts)
    assert (cache.touches, cache.misses) == (theirs.counts.l1_touches, theirs.counts.l1_misses)
