"""Every view of an index map against the others and against the formulas written down plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices, lane_address, paged_address, shard_address, tiled_offset
from tests.layout.strategies import (
    any_layouts,
    lane_layouts,
    paged_layouts,
    shard_layouts,
    starred_layouts,
    tiled_layouts,
)
from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.layout import IndexRangeError, lanes, mod_sharded, paged, parse


def logical(layout):
    first = layout.origin or (0,) * layout.rank
    return [tuple(i + o for i, o in zip(index, first, strict=True)) for index in all_indices(layout.shape)]


@given(tiled_layouts())
def test_tiles_follow_the_document(layout):
    for index in all_indices(layout.shape):
        offset, slots = tiled_offset(index, layout.shape, layout.minor_to_major, layout.tiles)
        assert layout.offset(*index) == offset
        assert layout.num_slots == slots


@given(starred_layouts())
def test_stars_and_wide_tiles_follow_the_document(layout):
    values = np.arange(1, layout.num_elements + 1, dtype=np.int32).reshape(layout.shape)
    memory = np.zeros(layout.num_slots, np.int32)
    for index in all_indices(layout.shape):
        offset, slots = tiled_offset(index, layout.shape, layout.minor_to_major, layout.tiles)
        assert (layout.offset(*index), layout.num_slots) == (offset, slots)
        assert layout.index(offset) == index
        memory[offset] = values[index]
    assert parse(str(layout)) == layout
    assert np.array_equal(layout.pack(values), memory)
    assert np.array_equal(layout.unpack(memory), values)
    holes = np.flatnonzero(memory == 0)[:200]
    assert (layout.indices(holes) == -1).all()


@given(lane_layouts())
def test_lanes_follow_the_formula(layout):
    for index in all_indices(layout.shape):
        expected = lane_address(index, layout.shape, layout.lane_count, layout.start, layout.strides)
        assert tuple(layout.address(*index).values()) == expected


@given(paged_layouts())
def test_pages_follow_the_patent(layout):
    slowest_first = tuple(reversed(layout.order))
    shape, page, line = ([v[d] for d in slowest_first] for v in (layout.shape, layout.page, layout.line))
    for index in all_indices(layout.shape):
        moved = [i + o for i, o in zip(index, layout.origin or (0,) * layout.rank, strict=True)]
        expected = paged_address([index[d] for d in slowest_first], shape, page, line)
        assert tuple(layout.address(*moved).values()) == expected


@given(shard_layouts())
def test_shards_follow_the_guide(layout):
    for row, column in all_indices(layout.shape):
        expected = shard_address(row, column, layout.shards, layout.rotation, layout.row_offset)
        assert tuple(layout.address(row, column).values()) == expected


@given(any_layouts())
def test_views_agree(layout):
    indices = logical(layout)
    places = [tuple(layout.address(*index).values()) for index in indices]
    many = layout.addresses(np.array(indices, np.int64).reshape(len(indices), layout.rank))
    assert many.tolist() == [list(p) for p in places]
    assert layout.injective == (len(set(places)) == len(places))
    if not layout.injective:
        with pytest.raises(TilewrightError):
            layout.index(*places[0])
        return
    owner = dict(zip(places, indices, strict=True))
    everywhere = list(np.ndindex(*(axis.extent for axis in layout.axis_terms)))
    assert [layout.index(*place) for place in everywhere] == [owner.get(place) for place in everywhere]
    found = layout.indices(np.array(everywhere, np.int64))
    expected = [owner.get(place, (-1,) * layout.rank) for place in everywhere]
    assert found.tolist() == [list(e) for e in expected]


@given(any_layouts())
def test_digits_are_the_map(layout):
    if layout.digits is None:
        return
    for index in logical(layout):
        e = [i - o for i, o in zip(index, layout.origin or (0,) * layout.rank, strict=True)]
        for axis, line in layout.digits.items():
            value = line.base
            for d in line.digits:
                digit = (e[d.dim] + d.shift) // d.div
                value += d.weight * (digit % d.mod if d.mod else digit)
            assert value == layout.address(*index)[axis]


@given(tiled_layouts(combine=False))
def test_tiles_without_combine_have_digits(layout):
    dividing = all(
        a % b == 0 or b % a == 0
        for one, other in zip(layout.tiles, layout.tiles[1:], strict=False)
        for a in one
        for b in other
    )
    if dividing and len(layout.tiles) < 2:
        assert layout.digits is not None


@given(any_layouts(), st.data())
def test_out_of_range_is_refused(layout, data):
    if not layout.rank:
        return
    index = list(logical(layout)[-1])
    index[data.draw(st.integers(0, layout.rank - 1))] += 1 + data.draw(st.integers(0, 3))
    with pytest.raises(IndexRangeError):
        layout.address(*index)
    with pytest.raises(IndexRangeError):
        layout.addresses([index])


def test_free_strides_may_overlap():
    overlapping = lanes((1, 2, 3, 4), "f32", lanes=2, eu_bytes=16, mode=(0, 0, 3, 1))
    assert not overlapping.injective
    interleaved = lanes((1, 2, 3, 2), "f32", lanes=2, eu_bytes=16, mode=(0, 0, 2, 3))
    assert interleaved.injective
    assert interleaved.index(0, 5) == (0, 0, 1, 1)
    assert interleaved.index(0, 1) is None


def test_rotated_shards_still_have_digits():
    table = mod_sharded(100, 16, 4, rotation=3, row_offset=8)
    assert table.digits is not None
    assert table.size_bytes == 4 * (8 + 32) * 16 * 4


def test_segment_of_a_tensor():
    segment = paged((4, 4), "s8", page=(2, 2), line=(1, 2), start=(4, 8))
    assert segment.address(4, 8) == {"page": 0, "offset": 0}
    assert segment.index(3, 3) == (7, 11)
    with pytest.raises(IndexRangeError):
        segment.address(0, 0)


def test_default_pages_and_lines():
    segment = paged((3, 100), "s8")
    assert (segment.page, segment.line, segment.num_pages) == ((3, 128), (1, 64), 1)
    assert paged((3, 100), "f32").line == (1, 16)


def test_unbounded_dims_have_no_addresses():
    layout = parse("f32[?,784]")
    assert str(layout) == "f32[?,784]{1,0}"
    with pytest.raises(UnsupportedError):
        layout.offset(0, 0)
    assert parse("f32[<=8,4]").size_bytes == 128


def test_sizes():
    layout = parse("f32[3,5]{1,0:T(2,2)L(32)}")
    assert (layout.num_slots, layout.size_bytes, layout.data_bytes) == (32, 128, 60)
    assert parse("s4[3,5]{1,0:E(4)}").size_bytes == 8
    assert parse("s4[3,5]{1,0}").size_bytes == 15
    assert parse("pred[8,8,8]{0,2,1:E(32)}").size_bytes == 2048
    assert parse("f32[0,5]{1,0:T(8,128)}").padding_ratio == 1.0
    assert parse("(f32[2], s32[])").size_bytes == 16


def test_large_maps_stay_small():
    table = mod_sharded(1_000_000_000, 128, 128)
    rows = np.array([[999_999_999, 127], [128, 0]])
    assert table.addresses(rows).tolist() == [[999_999_999 % 128, 999_999_999 // 128, 127], [0, 1, 0]]
