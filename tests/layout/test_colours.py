"""What a colour says: every way to colour, on every kind of map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import any_layouts, paged_layouts, tiled_layouts
from tilewright.errors import UsageError
from tilewright.layout import lanes, mod_sharded, paged, parse
from tilewright.layout.draw.panels import COLOURS, colour_numbers, colour_ways
from tilewright.layout.draw.scene import make_scene


def all_places(layout):
    """Address and index of every element."""
    ix = np.array(list(np.ndindex(layout.shape)), np.int64).reshape(layout.num_elements, layout.rank)
    ix = ix + np.array(layout.origin or (0,) * layout.rank, np.int64)
    return layout.addresses(ix), ix


@given(any_layouts(), st.data())
def test_numbers_are_colours(layout, data):
    way = data.draw(st.sampled_from(colour_ways(layout)))
    if way in layout.coloured_dims and not layout.injective:
        return  # no place has one index, and such layouts are not drawn
    places, _ = all_places(layout)
    colours = colour_numbers(layout, places, way)
    assert colours.shape == places.shape[:-1]
    assert ((colours >= 0) & (colours < COLOURS)).all()
    if way in ("npu", "shard"):
        assert (colours == places[:, 0] % COLOURS).all()
    if way == "none":
        assert not colours.any()


@given(any_layouts())
def test_colours_rise_with_the_offset(layout):
    places, _ = all_places(layout)
    inner = places if places.shape[1] == 1 else places[:, 1:]
    order = np.lexsort(inner.T[::-1])
    assert (np.diff(colour_numbers(layout, places, "offset")[order]) >= 0).all()


@given(tiled_layouts() | paged_layouts())
def test_a_block_has_one_colour(layout):
    """Elements of one tile (one page) agree; a colour of a tile is found from its elements' places alone."""
    way = colour_ways(layout)[0]
    if way == "none":
        return
    places, ix = all_places(layout)
    colours = colour_numbers(layout, places, way)
    if way == "page":
        blocks = places[:, 0]
    else:
        order = list(reversed(layout.minor_to_major))
        tile = layout.tiles[0]
        if -1 in tile or len(tile) > layout.rank:
            return
        sizes = [1] * (layout.rank - len(tile)) + list(tile)
        numbers = ix[:, order] // np.array(sizes)
        blocks = np.ravel_multi_index(tuple(numbers.T), tuple(numbers.max(axis=0) + 1)) if layout.rank else ix[:, :0]
    for block in np.unique(blocks):
        assert len(np.unique(colours[blocks == block])) == 1


def test_lines_of_64_bytes():
    layout = parse("f32[4,32]")
    colours = colour_numbers(layout, all_places(layout)[0], "line").reshape(4, 32)
    assert all(len(set(half)) == 1 for row in colours for half in (row[:16], row[16:]))
    assert len({int(v) for v in colours[:, ::16].ravel()}) == 8


@pytest.mark.parametrize(
    ("layout", "ways"),
    [
        (parse("f32[3,5]"), ("none", "line", "offset")),
        (parse("f32[3,5]{1,0:T(2,2)}"), ("tile", "line", "offset", "none")),
        (lanes((1, 5, 2, 3), "f16", "mars3"), ("channel", "batch", "npu", "line", "offset", "none")),
        (paged((4, 4), "s8", (2, 2), (1, 2)), ("page", "line", "offset", "none")),
        (mod_sharded(9, 8, 2), ("shard", "line", "offset", "none")),
    ],
    ids=str,
)
def test_ways_and_refusals(layout, ways):
    assert colour_ways(layout) == ways
    assert make_scene(layout).colour_by == ways[0]
    assert make_scene(layout, colour=ways[-1].upper()).colour_by == ways[-1]
    with pytest.raises(UsageError, match=r"cannot be coloured by 'house'.*choose one of"):
        layout.to_svg(colour="house")


def test_the_legend_says_what_colours_mean():
    layout = parse("f32[3,5]{1,0:T(2,2)}")
    assert "a colour per tile" in layout.to_svg()
    assert "a colour per cache line" in layout.to_svg(colour="line")
    ramp = layout.to_svg(colour="offset")
    assert "offset 0 to 23" in ramp
    assert 'class="cell r0"' in ramp
    assert 'class="cell c0"' not in ramp
    assert "a colour per" not in layout.to_svg(colour="none")
    assert "a colour per channel" in lanes((1, 5, 2, 3), "f16", "mars3").to_svg()
    assert "a colour per NPU" in lanes((1, 5, 2, 3), "f16", "mars3").to_svg(colour="npu")
