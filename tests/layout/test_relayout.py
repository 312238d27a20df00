"""Moves from layout to layout, and their costs, against plain enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import any_layouts
from tests.layout.test_bitcast import reshapes
from tilewright.errors import UsageError
from tilewright.layout import lane_matrix, lanes, paged, parse, relayout, tiled


def flat_places(layout):
    """The flat slot of every element, in C order of the array."""
    if not layout.rank:
        return np.array(layout.offset())
    ix = np.stack(np.indices(layout.shape), -1) + np.array(layout.origin or 0)
    places = np.moveaxis(layout.addresses(ix), -1, 0)
    return np.ravel_multi_index(tuple(places), tuple(axis.extent for axis in layout.axis_terms))


def numbered(layout, first=1):
    return (np.arange(first, first + layout.num_elements) % 251).astype(layout.numpy_dtype).reshape(layout.shape)


def longest(a, b, permutation):
    """The longest piece contiguous in both, element by element."""
    source = flat_places(a).transpose(permutation).reshape(-1)
    target = flat_places(b).reshape(-1)
    order = np.argsort(source)
    source, target = source[order], target[order]
    best = length = min(1, len(source))
    for k in range(1, len(source)):
        follows = source[k] == source[k - 1] + 1 and target[k] == target[k - 1] + 1
        length = length + 1 if follows else 1
        best = max(best, length)
    return best


def touched(layout, line_bytes):
    places = flat_places(layout).reshape(-1)
    bits = layout.element_bits
    return len({byte // line_bytes for p in places for byte in range(p * bits // 8, -(-(p + 1) * bits // 8))})


@given(reshapes())
def test_reshapes_and_transposes(case):
    a, b, permutation = case
    order = permutation or range(a.rank)
    values = numbered(a)
    move = relayout(a, b, permutation)
    moved = move.apply(a.pack(values, fill=99))
    assert np.array_equal(moved, b.pack(values.transpose(order).reshape(b.shape)))
    assert move.longest_run == longest(a, b, order) * a.element_bits // 8
    assert (move.lines_read, move.lines_written) == (touched(a, 64), touched(b, 64))


@given(any_layouts(), st.data())
def test_between_memories(a, data):
    order = data.draw(st.permutations(range(a.rank)))
    shape = tuple(a.shape[p] for p in order)
    b = tiled(shape, a.dtype, data.draw(st.permutations(range(a.rank))), data.draw(st.sampled_from([(), ((2, 3),)])))
    values = numbered(a)
    move = relayout(a, b, order)
    if a.injective:
        assert np.array_equal(move.apply(a.pack(values)), b.pack(values.transpose(order)))
        back = relayout(b, a, np.argsort(order))
        assert np.array_equal(back.apply(b.pack(values.transpose(order))), a.pack(values))
    assert move.lines_written == touched(b, 64)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f32[40,300]{1,0:T(8,128)}", "f32[40,300]{0,1:T(8,128)}"),
        ("bf16[100,260]{1,0:T(8,128)(2,1)}", "bf16[100,260]{1,0:T(32,32)(16,16)}"),
        ("s8[14,14,256]{2,1,0:T(8,128)(4,1)}", "s8[196,256]{1,0:T(8,128)(4,1)}"),
        ("f64[129,65]{1,0}", "f64[129,65]{1,0:T(8,128)}"),
        ("c128[33,70]{1,0:T(8,16)}", "c128[33,70]{0,1}"),
        ("s4[33,70]{1,0:T(8,16)E(4)}", "s4[33,70]{0,1:T(4,8)E(4)}"),
        ("s4[33,70]{1,0:T(8,16)E(4)}", "s4[33,70]{0,1:T(4,8)}"),
        ("f32[7,9,11]{2,1,0:T(*,2,4)}", "f32[7,9,11]{0,1,2:T(2,128)}"),
        ("f32[0,9]{1,0:T(8,128)}", "f32[9,0]{1,0}"),
        ("f32[]{:T(128)}", "f32[]"),
    ],
)
def test_larger_moves(a, b):
    a, b = parse(a), parse(b)
    values = numbered(a) if a.element_bits >= 8 else (numbered(a, 0).astype(np.int8) % 8).astype(a.numpy_dtype)
    move = relayout(a, b)
    moved = move.apply(a.pack(values))
    assert np.array_equal(moved, b.pack(values.reshape(b.shape)))
    if a.num_elements:
        assert move.longest_run == -(-longest(a, b, range(a.rank)) * min(a.element_bits, b.element_bits) // 8)


def test_directness_is_told():
    assert relayout(parse("f32[6,10]{1,0:T(4,4)}"), parse("f32[60]{0:T(7)}")).direct
    assert not relayout(parse("f32[3,4,5]{2,1,0:T(*,3,2)}"), parse("f32[60]{0}")).direct


def test_lines_and_tiles_of_large_arrays_are_counted_not_listed():
    wide = parse("f32[8388608,8,4]{2,1,0:T(8,128)}")
    move = relayout(wide, parse("f32[8388608,32]{1,0}"))
    assert move.tiles_read == 8388608
    assert (move.lines_read, move.lines_written) == (8388608 * 8, 8388608 * 2)
    pages = relayout(paged((8, 8), "s8", (4, 4), (1, 4)), parse("s8[8,8]{1,0}"))
    assert (pages.tiles_read, pages.tiles_written) == (4, 1)


def test_arguments():
    a, b = parse("s32[6,10]{1,0:T(4,4)}"), parse("s32[6,10]{0,1:T(2,4)}")
    values = np.arange(60, dtype=np.int32).reshape(6, 10)
    move, packed = relayout(a, b), a.pack(values)
    raw = np.zeros(b.size_bytes + 3, np.uint8)
    for out in (np.zeros(b.num_slots * 2, np.int32)[::2], raw[3:].view(np.int32)):
        assert move.apply(packed, out=out) is out
        assert np.array_equal(out, b.pack(values))
    same = a.pack(values)
    assert np.array_equal(relayout(a, a, (0, 1)).apply(same, out=same), packed)
    with pytest.raises(UsageError, match="buffer must be"):
        move.apply(packed[1:])
    with pytest.raises(UsageError, match="from s32 to f32"):
        relayout(a, parse("f32[6,10]{1,0}")).apply(packed)
    overlapping = lanes((2, 2, 2, 2), "s32", lanes=2, eu_bytes=16, mode=(1, 1, 1, 1))
    with pytest.raises(UsageError, match="several elements"):
        relayout(parse("s32[2,2,2,2]"), overlapping).apply(np.zeros(16, np.int32))


@pytest.mark.parametrize("start", [0, 1, 5, 6])
def test_a_round_of_lanes_that_ends_within_a_tile(start):
    """From the last of 7 lanes on, the second half of the first tile lies in lane 0; later tiles are not cut so."""
    a = lane_matrix(11, 420, "f32", lanes=7, eu_bytes=16, start=start, columns_per_npu=64)
    b = tiled((11, 420), "f32", tiles=((2, 128),))
    values = numbered(a)
    assert np.array_equal(b.unpack(relayout(a, b).apply(a.pack(values))), values)
