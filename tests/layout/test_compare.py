"""Two layouts side by side: what moves is what numpy says moves, and the picture marks just that."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import any_layouts, tiled_layouts
from tilewright.errors import UsageError
from tilewright.layout import compare_svg, is_bitcast, lanes, parse, tiled
from tilewright.layout.draw.comparison import compare, compare_scenes

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def pairs(draw):
    """Two tiled layouts of the same elements, and a permutation."""
    a = draw(tiled_layouts(max_rank=3))
    permutation = draw(st.permutations(range(a.rank)))
    dims = [a.shape[d] for d in permutation]
    if len(dims) > 1 and draw(st.booleans()):
        dims = [dims[0] * dims[1], *dims[2:]]
    b = draw(tiled_layouts(max_rank=3))
    order = draw(st.permutations(range(len(dims))))
    return a, tiled(dims, "s32", order, [t for t in b.tiles if len(t) <= len(dims)]), tuple(permutation)


def offsets_of(layout):
    """The offset of every element, as an array of the layout's shape."""
    ix = np.array(list(np.ndindex(layout.shape)), np.int64).reshape(layout.num_elements, layout.rank)
    return layout.offsets(ix).reshape(layout.shape)


@given(pairs())
def test_moves_are_those_of_numpy(pair):
    a, b, permutation = pair
    found = compare(a, b, permutation)
    before = offsets_of(a).transpose(permutation).reshape(b.shape)
    apart = before != offsets_of(b)
    if not found.move.bitcast:
        assert found.moved_elements == apart.sum()
    else:
        assert not apart.any()
    places = {each.to_index: (each.from_place[0], each.to_place[0]) for each in found.first_moves}
    assert len(places) == min(4, int(apart.sum()))
    for index, (old, new) in places.items():
        assert (before[index], offsets_of(b)[index]) == (old, new)
    for each in found.first_moves:
        assert a.offset(*each.from_index) == each.from_place[0]


@given(pairs())
def test_marked_cells_are_the_elements_that_move(pair):
    a, b, permutation = pair
    found = compare(a, b, permutation)
    left, right = compare_scenes(found)
    for scene in (left, right):
        main = [panel for row in scene.panels for panel in row]
        marked = sum(int(panel.moved.sum()) for panel in main)
        if not scene.cut:
            assert marked == (0 if found.move.bitcast else found.moved_elements)
        for panel in scene.everything:
            assert not (panel.moved & panel.padding).any()
            said = [["to offset" in t or "from offset" in t for t in row] for row in panel.tips]
            assert said == panel.moved.tolist()


@given(pairs())
def test_an_element_keeps_its_colour(pair):
    a, b, permutation = pair
    found = compare(a, b, permutation)
    left, right = compare_scenes(found)
    colours = {}
    for panel in (panel for row in left.panels for panel in row):
        for index, colour in zip(
            panel.indices[panel.elements].tolist(), panel.colours[panel.elements].tolist(), strict=True
        ):
            colours[tuple(index)] = colour
    for panel in (panel for row in right.panels for panel in row):
        here = panel.elements
        for index, colour in zip(found.back(panel.indices[here]).tolist(), panel.colours[here].tolist(), strict=True):
            assert colours.get(tuple(index), colour) == colour


@given(any_layouts(), any_layouts())
def test_onward_and_back_are_inverse(a, b):
    if a.num_elements != b.num_elements:
        b = tiled((a.num_elements,), "s32")
    found = compare(a, b)
    ix = np.array(list(np.ndindex(a.shape)), np.int64).reshape(a.num_elements, a.rank)
    ix = ix + np.array(a.origin or (0,) * a.rank, np.int64)
    assert (found.back(found.onward(ix)) == ix).all()


def test_the_end_of_a_folded_row_is_no_element():
    found = compare(parse("f32[11,7]{0,1}"), parse("f32[77]"))
    for scene in compare_scenes(found):
        assert sum(int(panel.moved.sum()) for row in scene.panels for panel in row) == found.moved_elements


def test_a_bitcast_moves_nothing():
    a, b = parse("f32[2,8,128]{2,1,0:T(8,128)}"), parse("f32[16,128]{1,0:T(8,128)}")
    picture = compare_svg(a, b)
    assert is_bitcast(a, b)
    assert "nothing moves" in picture
    assert 'class="moved"' not in picture


def test_counts_and_marks_in_the_drawing():
    root = ElementTree.fromstring(compare_svg(parse("f32[3,5]{1,0:T(2,2)}"), parse("f32[3,5]{1,0:T(4,2)}")))
    marks = [p for p in root.iter(f"{SVG}polygon") if p.get("class") == "moved"]
    assert len(marks) == 4 * 10 + 1  # both arrays, both strips, the legend
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "10 of 15 elements move; 96 B read, 96 B written" in texts
    assert "a colour per tile of the first layout" in texts


def test_colours_come_from_whichever_side_has_blocks():
    plain, blocks = parse("f32[4,8]"), parse("f32[4,8]{1,0:T(2,4)}")
    assert "a colour per tile of the second layout" in compare_svg(plain, blocks)
    assert "offset 0 to 31" in compare_svg(plain, plain)
    assert "a colour per cache line of the first layout" in compare_svg(plain, blocks, colour="line")
    npus = compare_svg(parse("f16[2,10,4,5]"), lanes((2, 10, 4, 5), "f16", "mars3"))
    assert "a colour per channel of the second layout" in npus
    with pytest.raises(UsageError, match="cannot be coloured by 'npu'"):
        compare_svg(plain, blocks, colour="npu")


def test_other_memories_move_everything():
    a, b = parse("f32[2,3]"), parse("f32[2,3]{1,0:S(1)}")
    assert compare(a, b).moved_elements == 6
    assert compare(parse("f16[1,2,2,3]"), lanes((1, 2, 2, 3), "f16", "mars3")).moved_elements == 12


def test_large_layouts_show_a_corner():
    picture = compare_svg(parse("f32[1000000000,100]{1,0:T(8,128)}"), parse("f32[100000000,1000]{1,0:T(8,128)}"))
    assert len(re.findall("one corner", picture)) == 2
    assert len(picture) < 1_500_000
    found = compare(parse("f32[100000,1000]"), parse("f32[100000,1000]{0,1}"))
    assert found.moved_elements is None
    assert found.first_moves


def test_what_is_no_reshape_is_refused():
    with pytest.raises(UsageError, match="not a reshape"):
        compare_svg(parse("f32[3]"), parse("f32[4]"))
    with pytest.raises(UsageError, match="not an order"):
        compare_svg(parse("f32[2,3]"), parse("f32[2,3]"), (0, 0))
