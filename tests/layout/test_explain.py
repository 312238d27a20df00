"""Derivations: every line of arithmetic is true, for every kind of map."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import any_layouts, tiled_layouts
from tilewright.layout import IndexRangeError, lanes, mod_sharded, paged, parse
from tilewright.layout.explain import derive, explain_place, summary

FIGURE_1 = """\
f32[3,5]{1,0:T(2,2)}, element (2,3)

dims      (d0,d1) = (2,3) of (3,5), major to minor
T(2,2)    d0: 2 = 1*2 + 0    tile 1 of 2 (ceil 3/2), place 0 of 2
          d1: 3 = 1*2 + 1    tile 1 of 3 (ceil 5/2), place 1 of 2
          tile (1,1), inside (0,1)
together  (1,1,0,1) of (2,3,2,2)
offset    (1*3+1)*4+1 = 17
memory    slot 17 of 24, byte 68 of 96"""


def test_figure_1_of_the_document():
    assert parse("f32[3,5]{1,0:T(2,2)}").explain(2, 3) == FIGURE_1


def an_index(layout, data):
    first = layout.origin or (0,) * layout.rank
    return tuple(data.draw(st.integers(low, low + n - 1)) for low, n in zip(first, layout.shape, strict=True))


@given(any_layouts(), st.data())
def test_the_arithmetic_ends_in_the_address(layout, data):
    index = an_index(layout, data)
    found = derive(layout, index)
    assert found.address == layout.address(*index)
    assert {name: eval(text) for name, text in found.expressions.items()} == found.address


@given(any_layouts(), st.data())
def test_every_equation_in_the_text_holds(layout, data):
    text = layout.explain(*an_index(layout, data))
    equations = re.findall(r"(?<![\w(,])((?:\d+|[ *+()]|mod)+) = ((?:\d+|[ *+])+)", text)
    equations = [(left.replace("mod", "%").strip(), right.strip()) for left, right in equations if left.strip()]
    assert equations or not any(index > 0 for index in layout.shape) or "*" not in text
    for left, right in equations:
        assert eval(left) == eval(right), (left, right, text)


@given(tiled_layouts(), st.data())
def test_coordinates_are_those_of_the_physical_shape(layout, data):
    found = derive(layout, an_index(layout, data))
    assert tuple(c.size for c in found.coordinates) == layout.physical_shape
    assert all(0 <= c.value < c.size for c in found.coordinates)


@given(any_layouts(), st.data())
def test_a_place_is_explained_by_its_element_or_a_broken_bound(layout, data):
    if not layout.injective:
        return
    place = tuple(data.draw(st.integers(0, axis.extent - 1)) for axis in layout.axis_terms)
    text, index = explain_place(layout, *place), layout.index(*place)
    if index is not None:
        assert f"element ({','.join(map(str, index))})" in text
        return
    broken = re.search(r"= (.*) = (-?\d+) would be outside 0\.\.(-?\d+)$", text)
    if broken:
        assert eval(broken[1]) == int(broken[2])
        assert not 0 <= int(broken[2]) <= int(broken[3])
    else:
        assert re.search(
            r"gap between the strides|the last place the array reaches|of size 1 would have the index [1-9]", text
        ), text


def test_other_axes_are_named():
    text = lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2).explain(1, 2, 3, 4)
    assert "c+2: 4 = 1*4 + 0    row 1 of 2 (ceil 5/4), NPU 0 of 4" in text
    assert "offset    1*64 + 1*32 + 3*5 + 4 = 115" in text
    text = paged((8, 8), "s8", page=(4, 4), line=(1, 4), start=(4, 0)).explain(9, 6)
    assert "page      1*2+1 = 3" in text
    assert "begins at (4,0)" in text
    text = mod_sharded(100, 12, shards=4, rotation=1, row_offset=16).explain(6, 3)
    assert "turned by 1, (2 + 1) mod 4 = 3" in text
    assert "shard 3 of 4, row 17 of 48" in text


def test_sub_byte_elements_say_their_bit():
    layout = parse("s4[4,4]{1,0:E(4)}")
    assert "byte 3 of 8" in layout.explain(1, 2)
    assert "bit 4 of byte 3 of 8" in layout.explain(1, 3)


def test_a_scalar_and_a_bad_index():
    assert "none: a single element" in parse("f32[]{:T(128)}").explain()
    with pytest.raises(IndexRangeError, match="outside dim 1"):
        parse("f32[3,5]").explain(0, 5)
    with pytest.raises(IndexRangeError, match="index 1 is outside dim 0, which is empty"):
        parse("f32[0,5]").explain(1, 1)
    with pytest.raises(IndexRangeError, match="outside the memory"):
        explain_place(parse("f32[3,5]"), 15)


def test_summary_of_a_tuple():
    facts = summary(parse("(f32[3,5]{1,0:T(2,2)}, (s32[], bf16[1,8]{1,0:T(2,128)(2,1)S(1)}))"))
    assert facts["size_bytes"] == 16
    assert facts["elements"][0]["padding_slots"] == 9
    assert facts["elements"][1]["elements"][1]["memory_space"] == 1
    assert facts["elements"][1]["elements"][1]["tiles"] == [[2, 128], [2, 1]]


@pytest.mark.parametrize(
    ("layout", "place", "reason"),
    [
        (mod_sharded(100, 12, 4), (0, 30, 0), "row 30 lies behind 24, the last place the array reaches"),
        (parse("f32[3,5]{1,0:T(2,2)L(32)}"), (30,), "offset 30 lies behind 23, the last place the array reaches"),
    ],
)
def test_padding_behind_everything(layout, place, reason):
    assert explain_place(layout, *place).endswith(reason)
