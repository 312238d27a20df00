"""Packing shapes large enough for every kernel, between arrays of every kind, with no byte written beside them."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.layout.oracle import tiled_offset
from tilewright.errors import UsageError
from tilewright.layout import lanes, mod_sharded, paged, parse, tiled, warm
from tilewright.layout.move import JOIN, LINES, RUN, TRANSPOSE, UNZIP, ZIP, calls
from tilewright.layout.move.plan import pack_plan, unpack_plan

TILES = [(), ((8, 128),), ((8, 128), (2, 1)), ((8, 128), (4, 1)), ((8, 128), (8, 1)), ((32, 32), (16, 16))]
TILES += [((512, 16),), ((16, 32),), ((1024,), (128,), (2, 1)), ((7, 33),), ((3, 5, 9), (2, 1))]
GUARD = 4096


def sample(layout, seed=0):
    raw = np.random.default_rng(seed).integers(1, 120, layout.shape)
    return np.asarray(raw).astype(layout.numpy_dtype)


def expected(layout, values, fill=0):
    """The packed buffer by the oracle's formula, on arrays of indices."""
    buffer = np.full(layout.num_slots, fill, values.dtype)
    index = np.indices(values.shape)
    buffer[tiled_offset(index, values.shape, layout.minor_to_major, layout.tiles)[0]] = values
    return buffer


def guarded(count, dtype, shift):
    """(everything, the array in its middle, ``shift`` bytes off a cache line)."""
    whole = np.full(count * dtype.itemsize + 2 * GUARD + 128, 0x5A, np.uint8)
    first = GUARD + -(whole.ctypes.data + GUARD) % 64 + shift
    return whole, whole[first : first + count * dtype.itemsize].view(dtype)


def assert_untouched(whole, inside):
    first = inside.ctypes.data - whole.ctypes.data
    assert (whole[:first] == 0x5A).all()
    assert (whole[first + inside.nbytes :] == 0x5A).all()


def variants(values):
    yield values
    yield np.asfortranarray(values)
    wide = np.zeros((*values.shape[:-1], 3 * values.shape[-1]), values.dtype)
    wide[..., ::3] = values
    yield wide[..., ::3]
    yield np.flip(np.flip(values).copy())


@st.composite
def large_layouts(draw):
    dtype = draw(st.sampled_from(["s8", "u16", "f32", "f64", "c128"]))
    sizes = st.sampled_from([1, 2, 7, 8, 17, 64, 100, 123, 128, 130, 257, 300])
    shape = draw(st.lists(sizes, min_size=1, max_size=3))
    while math.prod(shape) > 60_000:
        shape[shape.index(max(shape))] //= 3
    return tiled(shape, dtype, draw(st.permutations(range(len(shape)))), draw(st.sampled_from(TILES)))


@settings(max_examples=tries(20))
@given(large_layouts(), st.sampled_from([0, 1, 16]), st.sampled_from([0, 3]))
def test_every_kind_of_array(layout, shift, fill):
    if layout.size_bytes > 1 << 24:
        return
    values = sample(layout)
    want = expected(layout, values, fill)
    for array in variants(values):
        whole, out = guarded(layout.num_slots, values.dtype, shift)
        assert layout.pack(array, out=out, fill=fill) is out
        assert np.array_equal(out, want)
        assert_untouched(whole, out)
    _, first = guarded(layout.num_slots, values.dtype, shift)
    first[:] = want
    for back in variants(np.zeros_like(values)):
        layout.unpack(first, out=back)
        assert np.array_equal(back, values)
    whole, flat = guarded(values.size, values.dtype, shift)
    layout.unpack(want, out=flat.reshape(values.shape))
    assert np.array_equal(flat.reshape(values.shape), values)
    assert_untouched(whole, flat)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("tiles", TILES[1:7])
@pytest.mark.parametrize("dtype", ["s8", "f32"])
def test_threads_share_large_moves(monkeypatch, dtype, tiles, threads):
    monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
    monkeypatch.setattr(calls, "_SMALL", 1 << 18)
    layout = tiled((517, 1291), dtype, tiles=tiles)
    values = sample(layout)
    assert np.array_equal(layout.pack(values), expected(layout, values))
    assert np.array_equal(layout.unpack(layout.pack(values)), values)


RAGGED = ["(8,128)", "(8,128)(4,1)", "(32,32)(16,16)", "(64,16)", "(4,512)", "(2,3)"]


@settings(max_examples=tries(20))
@given(
    st.integers(1, 70),
    st.integers(2, 900),
    st.sampled_from(["s8", "u16", "f32", "f64"]),
    st.sampled_from(RAGGED),
    st.integers(0, 70),
    st.sampled_from([1 << 10, 1 << 12, 1 << 19]),
)
def test_ragged_rows_end_where_they_end(rows, columns, dtype, tiles, apart, part):
    """Rows unpacked as if they ended with their last tile: nothing between them is touched, wherever parts begin."""
    layout = parse(f"{dtype}[{rows},{columns}]{{1,0:T{tiles}}}")
    values = sample(layout)
    packed = expected(layout, values, 99)
    wide = np.full((rows, columns + apart), 55, values.dtype)
    unpack_plan.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_PART", part)
        layout.unpack(packed, out=wide[:, :columns])
    unpack_plan.cache_clear()
    assert np.array_equal(wide[:, :columns], values)
    assert (wide[:, columns:] == 55).all()


BEYOND = """
import ctypes, mmap, sys
import numpy as np
from tilewright.layout import parse
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.PAGESIZE
for text in sys.argv[1:]:
    layout = parse(text)
    values = np.arange(layout.num_elements).reshape(layout.shape).astype(layout.numpy_dtype)
    packed = layout.pack(values)
    for before in (0, 1):  # memory that may not be read begins where the buffer ends, or ends where it begins
        pages = -(-packed.nbytes // page) + 2
        memory = mmap.mmap(-1, pages * page)
        raw = np.frombuffer(memory, np.uint8)
        first = page if before else (pages - 1) * page - packed.nbytes
        buffer = raw[first : first + packed.nbytes].view(packed.dtype)
        buffer[:] = packed
        forbidden = raw.ctypes.data + (0 if before else (pages - 1) * page)
        assert libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), 0) == 0
        assert np.array_equal(layout.unpack(buffer), values), text
print("read")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_nothing_beyond_the_buffer_is_read():
    texts = [f"{t}[{n},{m}]{{1,0:T{x}}}" for t in ("s8", "f32") for n, m in ((61, 1211), (64, 4093)) for x in RAGGED]
    done = subprocess.run([sys.executable, "-c", BEYOND, *texts], capture_output=True, text=True, timeout=300)
    assert done.stdout == "read\n", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "packing", "unpacking"),
    [
        ("f32[64,256]{1,0:T(8,128)}", {(LINES, 1)}, {(LINES, 1)}),
        ("u16[64,256]{1,0:T(8,128)(2,1)}", {(ZIP, 1)}, {(UNZIP, 1)}),
        ("s8[64,256]{1,0:T(8,128)(4,1)}", {(ZIP, 1)}, {(UNZIP, 1)}),
        ("s8[64,256]{1,0:T(32,32)(16,16)}", {(JOIN, 1)}, {(JOIN, 1)}),
        ("u16[512,256]{1,0:T(512,16)}", {(JOIN, 1)}, {(JOIN, 1)}),
        ("f32[64,256]{0,1}", {(TRANSPOSE, 0)}, {(TRANSPOSE, 0)}),
        ("f32[64,2048]{1,0}", {(LINES, 1)}, {(LINES, 1)}),
        ("f32[3,2049]{1,0}", {(RUN, 1)}, {(RUN, 1)}),
    ],
)
def test_the_digits_choose_the_kernel(text, packing, unpacking):
    layout = parse(text)
    strides = np.empty(layout.shape, layout.numpy_dtype).strides
    size = layout.numpy_dtype.itemsize
    plan, whole = pack_plan(layout, strides, size, True)
    assert {work.numbers[:2] for work in plan.works} == packing
    assert not whole
    assert not len(plan.pads)
    assert {work.numbers[:2] for work in unpack_plan(layout, strides, size, True).works} == unpacking


@pytest.mark.parametrize("fill", [0, 7])
@pytest.mark.parametrize(
    "text", ["f32[61,1211]{1,0:T(8,128)}", "s8[500,1211]{1,0:T(8,128)(4,1)}", "u16[90,91]{1,0:T(90,16)}"]
)
def test_ragged_edges_are_written_together_with_their_padding(text, fill):
    layout = parse(text)
    values = np.ones(layout.shape, layout.numpy_dtype)
    plan, _ = pack_plan(layout, values.strides, values.itemsize, True)
    assert any(work.padded for work in plan.works)
    written = layout.pack(values, fill=fill)
    expected = np.full(layout.num_slots, fill, values.dtype)
    expected[layout.offsets(np.indices(layout.shape).reshape(2, -1).T)] = 1
    assert np.array_equal(written, expected)
    bytes_left, bytes_all = plan.pads[:, 1].sum(), (layout.num_slots - layout.num_elements) * values.itemsize
    assert bytes_left < bytes_all / 2


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 40), st.integers(0, 5))
def test_rotated_shards_are_a_few_boxes(vocab, shards, rotation, row_offset):
    table = mod_sharded(vocab, 5, shards, rotation, row_offset)
    values = sample(table)
    assert pack_plan(table, values.strides, 4, True) is not None
    buffer = table.pack(values).reshape(table.physical_shape)
    for row in range(vocab):
        place = (row % shards + rotation) % shards, row // shards + row_offset
        assert np.array_equal(buffer[place][:5], values[row])
    assert np.count_nonzero(buffer) == values.size


def test_sub_byte_values_beside_a_plain_shift():
    layout = parse("u4[13,70]{1,0:T(8,128)(8,1)E(4)}")
    values = (np.arange(13 * 70) % 16).astype(layout.numpy_dtype).reshape(13, 70)
    packed = layout.pack(values, fill=5)
    slots = expected(layout, values.astype(np.uint8), 5)
    assert np.array_equal(packed, slots[::2] | slots[1::2] << 4)
    assert np.array_equal(layout.unpack(packed), values)


@pytest.mark.parametrize(
    "text", ["f32[0,7]{1,0:T(8,128)}", "f32[]{:T(128)}", "s8[1,1,1]{2,1,0:T(8,128)(4,1)}", "c64[1]"]
)
def test_nothing_and_one_element(text):
    layout = parse(text)
    values = sample(layout)
    packed = layout.pack(values, fill=7)
    assert packed.shape == (layout.num_slots,)
    assert np.array_equal(packed[1:], np.full(max(layout.num_slots - 1, 0), 7, packed.dtype))
    assert np.array_equal(layout.unpack(packed), values)


@pytest.mark.parametrize(
    "layout",
    [
        lanes((2, 70, 9, 11), "f16", "bm1684x", start=5),
        lanes((2, 70, 9, 11), "f32", "bm1684x", mode="compact"),
        lanes((2, 70, 9, 11), "s8", "bm1684x", start=60, mode="row_aligned"),
        paged((40, 90), "f32", (16, 64), (1, 16)),
        paged((40, 90), "s8", (16, 64), (4, 16), order=(0, 1), start=(3, 7)),
        mod_sharded(1000, 37, 16, rotation=5, row_offset=3),
    ],
    ids=str,
)
def test_larger_memories(layout):
    values = sample(layout)
    index = np.stack(np.indices(layout.shape), -1) + np.array(layout.origin or 0)
    want = np.full(layout.physical_shape, -1, values.dtype)
    want[tuple(np.moveaxis(layout.addresses(index), -1, 0))] = values
    packed = layout.pack(values, fill=-1)
    assert np.array_equal(packed, want.reshape(-1))
    assert np.array_equal(layout.unpack(packed), values)


def test_arguments():
    layout = parse("f32[4,6]{1,0:T(4,4)}")
    values = sample(layout)
    locked = layout.pack(values)
    locked.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        layout.pack(values, out=locked)
    with pytest.raises(UsageError, match="read-only"):
        layout.unpack(locked, out=np.broadcast_to(np.float32(0), (4, 6)))
    with pytest.raises(UsageError, match="got list"):
        layout.unpack(locked, out=[])
    apart = np.zeros(64, np.float32)[::2]
    assert np.array_equal(layout.pack(values, out=apart), locked)
    assert np.array_equal(layout.unpack(apart), values)
    shared = np.zeros(32, np.float32)
    shared[:24] = values.reshape(-1)
    assert np.array_equal(layout.pack(shared[:24].reshape(4, 6), out=shared), locked)
    assert np.array_equal(layout.unpack(shared, out=shared[:24].reshape(4, 6)), values)


def test_thread_count_is_checked(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "none")
    layout = parse("f32[1200,1024]{1,0:T(8,128)}")
    with pytest.raises(UsageError, match="TILEWRIGHT_THREADS"):
        layout.pack(sample(layout))


def test_many_offsets_equal_few():
    for layout in (tiled((50, 70), "f32", tiles=((8, 128),)), tiled((5, 6, 7, 8), "s8", tiles=((4, 4), (2, 1)))):
        index = np.stack(np.indices(layout.shape), -1).reshape(-1, layout.rank)
        many = np.resize(index, (9000, layout.rank))
        few = [layout.offset(*i) for i in index.tolist()]
        assert layout.offsets(many).tolist() == np.resize(few, 9000).tolist()
        for bad in (-1, layout.shape[0]):
            many[777, 0] = bad
            with pytest.raises(UsageError, match=f"index {bad} is outside dim 0"):
                layout.offsets(many)
    line, cube = tiled((99,), "f32", tiles=((8,),)), mod_sharded(500, 3, 7, rotation=2)
    assert (line.offsets(np.full((9000, 1), 98)) == line.offset(98)).all()
    assert (cube.addresses(np.full((9000, 2), 2)) == list(cube.address(2, 2).values())).all()


def test_warm_tells_what_it_compiled():
    told = []
    warm(lambda name, seconds: told.append((name, seconds)))
    assert len(told) == 7
    assert all(seconds >= 0 for _, seconds in told)


def test_importing_and_asking_loads_no_compiler():
    code = (
        "import sys; from tilewright.layout import parse, relayout; a = parse('f32[40,300]{1,0:T(8,128)}');"
        "a.offset(3, 5); a.offsets([[3, 5]]); relayout(a, a).longest_run;"
        "assert not {'numba', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
