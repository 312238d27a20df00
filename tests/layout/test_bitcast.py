"""The bitcast decision against plain enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import tile_levels, tiled_layouts
from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout import is_bitcast, mod_sharded, paged, parse, relayout, tiled


def by_enumeration(a, b, permutation=None):
    """Every element's offset, looked at."""
    if a.size_bytes != b.size_bytes:
        return False
    offsets = a.offsets(np.stack(np.indices(a.shape), -1)) if a.rank else np.array(a.offset())
    moved = offsets.transpose(permutation) if permutation is not None else offsets
    target = b.offsets(np.stack(np.indices(b.shape), -1)) if b.rank else np.array(b.offset())
    return bool((moved.reshape(-1) == target.reshape(-1)).all())


def factorizations(n, most=4):
    found = [[n]] if n > 1 else [[]]
    if most > 1:
        for d in range(2, n + 1):
            if n % d == 0:
                found += [[d, *rest] for rest in factorizations(n // d, most - 1)]
    return found


@st.composite
def reshapes(draw):
    count = draw(st.sampled_from([1, 2, 6, 8, 12, 16, 24, 30, 36, 48, 60, 72]))
    shapes = [draw(st.sampled_from(factorizations(count))) for _ in range(2)]
    for shape in shapes:
        if draw(st.booleans()):
            shape.insert(draw(st.integers(0, len(shape))), 1)
    orders = [draw(st.permutations(range(len(s)))) if draw(st.booleans()) else None for s in shapes]
    tiles = [draw(tile_levels(len(s))) for s in shapes]
    if draw(st.booleans()):
        tiles[1] = tiles[0] if not any(-1 in t or len(t) > len(shapes[1]) + 1 for t in tiles[0]) else []
    layouts = [tiled(s, "s8", o, t) for s, o, t in zip(shapes, orders, tiles, strict=True)]
    permutation = draw(st.none() | st.permutations(range(len(shapes[0]))))
    return (*layouts, permutation)


@given(reshapes())
def test_against_enumeration(case):
    a, b, permutation = case
    free = by_enumeration(a, b, permutation)
    assert is_bitcast(a, b, permutation) == free
    assert relayout(a, b, permutation).bitcast == free
    assert (relayout(a, b, permutation).reason == "") == free


@given(tiled_layouts())
def test_a_layout_is_a_bitcast_of_itself(layout):
    assert is_bitcast(layout, layout)


@given(tiled_layouts(), st.data())
def test_transposes_that_follow_the_order_are_free(layout, data):
    permutation = data.draw(st.permutations(range(layout.rank)))
    turned = [permutation.index(d) for d in layout.minor_to_major]
    moved = tiled([layout.shape[p] for p in permutation], "s32", turned, layout.tiles)
    assert is_bitcast(layout, moved, permutation)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("f32[8,32,32,256]{3,2,1,0:T(8,128)}", "f32[8192,256]{1,0:T(8,128)}", True),
        ("f32[8,32,32,256]{3,2,1,0:T(8,128)}", "f32[8,32,32,32,8]{4,3,2,1,0:T(8,128)}", False),
        ("f32[4,512,1024]{2,1,0:T(8,128)}", "f32[4,512,8,128]{3,2,1,0:T(8,128)}", False),
        ("f32[16,128]{1,0:T(8,128)}", "f32[2,8,128]{2,1,0:T(8,128)}", True),
        ("f32[14,14,256]{2,1,0:T(8,128)}", "f32[196,256]{1,0:T(8,128)}", False),
        ("f32[6,4]{1,0}", "f32[24]{0}", True),
        ("f32[6,4]{0,1}", "f32[24]{0}", False),
        ("f32[3,1,5]{2,1,0}", "f32[3,5]{1,0}", True),
        ("f32[0,8]{1,0:T(8,128)}", "f32[8,0]{0,1}", True),
        ("f32[8,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(8,128)S(1)}", False),
        ("f32[2000000,3,5]{2,1,0:T(2,2)}", "f32[6000000,5]{1,0:T(2,2)}", False),
    ],
)
def test_known_cases(a, b, expected):
    assert is_bitcast(parse(a), parse(b)) is expected


def test_large_cases_need_no_enumeration():
    a = parse("bf16[2,3,4,5,48000,30000]{5,4,3,2,1,0:T(8,128)(2,1)}")
    b = parse("bf16[6,20,1,1,48000,30000]{5,4,3,2,1,0:T(8,128)(2,1)}")
    assert is_bitcast(a, b)


def test_several_axes():
    table = mod_sharded(64, 8, 4, rotation=1)
    assert is_bitcast(table, mod_sharded(64, 8, 4, rotation=1))
    assert not is_bitcast(table, mod_sharded(64, 8, 4, rotation=2))
    assert not is_bitcast(paged((8, 8), "s8", (4, 4), (1, 4)), paged((8, 8), "s8", (4, 4), (2, 2)))


def test_relayout_moves_the_data():
    a, b = parse("s32[6,10]{1,0:T(4,4)}"), parse("s32[5,12]{0,1:T(2,4)}")
    values = np.arange(60, dtype=np.int32).reshape(6, 10)
    move = relayout(a, b, (1, 0))
    assert not move.bitcast
    assert (move.bytes_read, move.bytes_written) == (a.size_bytes, b.size_bytes)
    assert np.array_equal(b.unpack(move.apply(a.pack(values))), values.T.reshape(5, 12))
    same = relayout(a, a)
    assert (same.bitcast, same.bytes_read, same.reason) == (True, 0, "")


def test_large_maps_without_digits_are_decided_or_refused_quickly():
    large = parse("f32[1000003,1000003]{1,0:T(*,4)}")
    assert large.digits is None
    assert is_bitcast(large, parse("f32[1000003,1000003]{1,0:T(*,4)}"))
    assert not is_bitcast(large, large, (1, 0))
    with pytest.raises(UnsupportedError, match="cannot decide"):
        is_bitcast(large, parse("f32[1,1000003,1000003]{2,1,0:T(*,4)}"))


def test_not_a_reshape():
    with pytest.raises(UsageError, match="not a reshape"):
        is_bitcast(parse("f32[3]"), parse("f32[4]"))
    with pytest.raises(UsageError, match="permutation"):
        is_bitcast(parse("f32[3,2]"), parse("f32[6]"), (0, 0))
