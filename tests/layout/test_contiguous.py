"""Longest runs from boxes alone, against a walk over all elements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import within
from tests.layout.strategies import any_layouts, tile_levels, tiled_layouts
from tilewright.layout import parse, tiled
from tilewright.layout.move.relayout import longest_run


def walked(a, b, order):
    """Element by element: how far does a piece go on in both?"""
    import numpy as np

    def flat(layout, order):
        places = layout.addresses(layout.indices_of(np.arange(layout.num_elements), order))
        return np.ravel_multi_index(tuple(places.T), tuple(axis.extent for axis in layout.axis_terms)).tolist()

    target_of = dict(zip(flat(a, order), flat(b, range(b.rank)), strict=True))
    longest = length = 0
    for source, target in sorted(target_of.items()):
        length = length + 1 if target_of.get(source - 1, -2) == target - 1 else 1
        longest = max(longest, length)
    return longest


@given(st.data())
def test_against_a_walk(data):
    a = data.draw(tiled_layouts(max_rank=3))
    order = data.draw(st.permutations(range(a.rank)))
    dims = st.permutations(range(a.rank))
    b = tiled([a.shape[d] for d in order], "s32", data.draw(dims), data.draw(tile_levels(a.rank)))
    assert longest_run(a, b, order) == walked(a, b, order)


@given(any_layouts())
def test_from_every_memory_to_an_array(a):
    if a.injective:
        b = tiled(a.shape, a.dtype)
        assert longest_run(a, b, range(a.rank)) == walked(a, b, range(a.rank))


@pytest.mark.parametrize(
    ("a", "b", "elements"),
    [
        ("f32[10000,1000]", "f32[10000,1000]{0,1}", 1),
        ("f32[1000000,1000]", "f32[1000000,1000]{0,1:T(8,128)}", 1),
        ("f32[1000000,512]", "f32[1000000,512]{1,0:T(8,128)}", 256),
        ("bf16[999999,1000]{1,0:T(8,128)(2,1)}", "bf16[999999,1000]{0,1}", 2),
    ],
)
def test_large_moves_are_not_enumerated(a, b, elements):
    if elements == 256:  # rows of neighbouring tiles join, so every run is looked at
        a, b = a.replace("1000000", "4096"), b.replace("1000000", "4096")
    with within(1):
        assert longest_run(parse(a), parse(b), (0, 1)) == elements
