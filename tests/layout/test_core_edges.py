"""The edges of the core: sub-byte maps of every kind, empty arrays, segments, huge sizes, what is no index."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.layout.oracle import all_indices
from tests.layout.strategies import any_layouts, tiled_layouts
from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.layout import IndexRangeError, from_cute, lanes, mod_sharded, paged, parse, tiled


def moved(layout, index):
    return [i + o for i, o in zip(index, layout.origin or (0,) * layout.rank, strict=True)]


@given(any_layouts(), st.sampled_from([("s4", 4), ("u2", 2), ("f4e2m1fn", 4), ("s4", 6), ("f6e2m3fn", 6), ("u1", 1)]))
def test_every_map_packs_narrow_elements(layout, kind):
    """E(n) on every map: element k of a place p lies in bits p*n .. p*n + n - 1, low bits first."""
    assume(layout.injective and all(axis.extent for axis in layout.axis_terms))
    narrow = dataclasses.replace(layout, dtype=kind[0], slot_bits=kind[1])
    width = int("".join(c for c in kind[0].split("e")[0] if c.isdigit()))
    raw = np.random.default_rng(1).integers(0, 1 << width, layout.shape).astype(np.uint8)
    if kind[0].startswith("s"):
        values = raw.astype(np.int8)
        values[values >= 1 << width - 1] -= 1 << width
        values = values.astype(narrow.numpy_dtype)
    else:
        values = raw.astype(narrow.numpy_dtype) if kind[0].startswith("u") else raw.view(narrow.numpy_dtype)
    buffer = narrow.pack(values)
    assert (buffer.dtype, buffer.nbytes) == (np.uint8, narrow.size_bytes)
    whole = int.from_bytes(buffer.tobytes(), "little")
    extents = [axis.extent for axis in layout.axis_terms]
    for index in all_indices(layout.shape):
        slot = int(np.ravel_multi_index(tuple(narrow.address(*moved(layout, index)).values()), extents))
        assert (whole >> slot * kind[1] & (1 << width) - 1) == int(raw[index])
    assert narrow.unpack(buffer).tobytes() == values.tobytes()


@given(any_layouts())
def test_sizes_are_what_the_places_span(layout):
    assert layout.num_slots == math.prod(axis.extent for axis in layout.axis_terms)
    assert layout.size_bytes == -(-layout.num_slots * layout.element_bits // 8)
    assert layout.data_bytes <= layout.size_bytes or not layout.injective
    top = np.array([list(layout.address(*moved(layout, i)).values()) for i in all_indices(layout.shape)]).max(axis=0)
    assert all(t < axis.extent for t, axis in zip(top, layout.axis_terms, strict=True))


@given(tiled_layouts(max_rank=3), st.data())
def test_empty_arrays(layout, data):
    assume(layout.rank)
    dims = list(layout.shape)
    dims[data.draw(st.integers(0, layout.rank - 1))] = 0
    empty = tiled(dims, "s32", layout.minor_to_major, layout.tiles)
    assert (empty.size_bytes, empty.padding_ratio, empty.injective) == (0, 1.0, True)
    assert empty.pack(np.zeros(dims, np.int32)).size == 0
    assert empty.unpack(np.zeros(0, np.int32)).shape == tuple(dims)
    assert empty.offsets(np.zeros((0, len(dims)), np.int64)).shape == (0,)
    with pytest.raises(IndexRangeError):
        empty.index(0)
    with pytest.raises(IndexRangeError):
        empty.offset(*[0] * len(dims))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=4))
def test_injective_is_exact_for_any_strides(modes):
    text = f"({','.join(str(n) for n, _ in modes)}):({','.join(str(s) for _, s in modes)})"
    layout = from_cute(text, "s32")
    offsets = [layout.offset(*index) for index in all_indices(layout.shape)]
    assert layout.injective == (len(set(offsets)) == len(offsets))
    if not layout.injective:
        for call in (layout.index, lambda p: layout.indices([p])):
            with pytest.raises(UsageError, match="several elements in one place"):
                call(0)
        return
    owner = dict(zip(offsets, all_indices(layout.shape), strict=True))
    places = range(layout.num_slots)
    assert [layout.index(p) for p in places] == [owner.get(p) for p in places]
    assert [tuple(i) for i in layout.indices(list(places)).tolist()] == [
        owner.get(p, (-1,) * layout.rank) for p in places
    ]


def test_a_segment_keeps_its_first_index_in_every_view():
    segment = paged((5, 7), "s16", page=(2, 4), line=(1, 2), start=(3, 10))
    for index in itertools.product(range(3, 8), range(10, 17)):
        place = tuple(segment.address(*index).values())
        assert segment.index(*place) == index
        assert segment.addresses([index]).tolist() == [list(place)]
        assert segment.indices([place]).tolist() == [list(index)]
    for outside in ((2, 10), (8, 10), (3, 9), (3, 17)):
        with pytest.raises(IndexRangeError):
            segment.address(*outside)
        with pytest.raises(IndexRangeError):
            segment.addresses([outside])


def test_more_places_than_64_bits_count():
    huge = parse("s8[3,5]{1,0:T(4000000000,4000000000)}")
    assert huge.offset(2, 4) == 2 * 4_000_000_000 + 4
    assert huge.index(2 * 4_000_000_000 + 4) == (2, 4)
    assert huge.index(2 * 4_000_000_000 + 5) is None
    for call in (lambda: huge.offsets([[2, 4]]), lambda: huge.indices([5])):
        with pytest.raises(UnsupportedError, match="64 bits"):
            call()
    vast = parse("s8[3000000000,3000000000]{0,1}")
    assert vast.offsets([[2_999_999_999, 2_999_999_999]]).tolist() == [3_000_000_000**2 - 1]
    assert vast.indices([3_000_000_000**2 - 1]).tolist() == [[2_999_999_999, 2_999_999_999]]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.offset(1.0, 2),
        lambda x: x.offset("1", 2),
        lambda x: x.offset(1),
        lambda x: x.index(1.5),
        lambda x: x.index(-1),
        lambda x: x.index(24),
        lambda x: x.index(1, 2),
        lambda x: x.offsets([[0.5, 1]]),
        lambda x: x.offsets([1]),
        lambda x: x.indices([0.5]),
        lambda x: lanes((1, 2, 3, 4), "f16", "bm1684x").offset(0, 0, 0, 0),
        lambda x: mod_sharded(8, 8, 2).offsets([[0, 0]]),
        lambda x: paged((4, 4), "s8", start=(1,)),
        lambda x: paged((4, 4), "s8", start=()),
        lambda x: paged((4, 4), "s8", start=(-1, 0)),
        lambda x: paged((), "s8"),
        lambda x: paged((4, 4), "s8", page=(4, 0)),
        lambda x: paged((4, 4), "s8", page=(4, 3), line=(1, 2)),
        lambda x: paged((4, 4), "s8", order=(0, 0)),
        lambda x: mod_sharded(-1, 8, 2),
        lambda x: mod_sharded(8, 8, 0),
        lambda x: mod_sharded(8, 8, 2, row_offset=-8),
        lambda x: tiled((3,), "f32", element_bits=16),
        lambda x: tiled((3,), "f32", memory_space=128),
        lambda x: tiled((3,), "f32", memory_space=-1),
        lambda x: tiled((3,), "f32", (1,)),
        lambda x: tiled((3,), "f32", tiles=[(2, -1)]),
        lambda x: tiled((3,), "f32", tiles=[()]),
    ],
)
def test_what_is_no_index_and_no_layout(call):
    with pytest.raises(TilewrightError):
        call(parse("f32[3,5]{1,0:T(2,2)}"))


def test_numpy_integers_are_indices():
    layout = parse("f32[3,5]{1,0:T(2,2)}")
    assert layout.offset(np.int8(2), np.uint64(3)) == 17
    assert layout.index(np.int32(17)) == (2, 3)
