"""The ruler: memory in the order of its bytes, nothing twice, nothing left out, padding counted to the slot."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.strategies import any_layouts
from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout import from_cute, from_strides, lanes, mod_sharded, paged, parse, ruler_svg
from tilewright.layout.draw.scene import make_scene, ruler_scene
from tilewright.layout.draw.terminal import terminal_ruler


def cells(scene):
    """(tip, padding, share) of every cell that is there."""
    (panel,) = scene.everything
    shares = panel.shares if panel.shares is not None else 1 - panel.padding
    rows = zip(panel.tips, panel.padding.tolist(), shares.tolist(), strict=True)
    return [cell for row in rows for cell in zip(*row, strict=True) if cell[0]]


@given(any_layouts())
def test_every_slot_has_its_byte(layout):
    if not layout.injective:
        return
    scene = ruler_scene(layout, unit="element")
    found = cells(scene)
    assert scene.cut or len(found) == layout.num_slots
    for tip, padding, _ in found[:: max(1, len(found) // 30)]:
        group, byte, what = re.fullmatch(r"(?:\w+ (\d+), )?byte (\d+), one slot: (.*)", tip).groups()
        slot = int(byte) * 8 // layout.element_bits
        inner = layout.axis_terms[-1:] if len(layout.axes) == 1 else layout.axis_terms[1:]
        place = []
        for axis in reversed(inner):
            slot, value = divmod(slot, axis.extent)
            place.insert(0, value)
        outer = [int(group or 0)] if len(layout.axes) > 1 else []
        index = layout.index(*outer, *place)
        assert padding == (index is None)
        assert what == ("padding" if index is None else f"({', '.join(map(str, index))})")


@given(any_layouts(), st.sampled_from(["line", "tile"]))
def test_lines_and_tiles_hold_all_elements(layout, unit):
    try:
        scene = ruler_scene(layout, unit=unit) if layout.injective else None
    except UsageError:
        return
    if scene is None or scene.cut:
        return
    held = sum(int(m[1]) for tip, _, _ in cells(scene) if (m := re.search(r": (\d+) elements from", tip)))
    slots = sum(int(re.search(r"(\d+|one) slot", tip)[1].replace("one", "1")) for tip, _, _ in cells(scene))
    alone = sum(": (" in tip for tip, _, _ in cells(scene))  # units of one slot say the index itself
    assert held + alone == layout.num_elements
    assert slots == layout.num_slots


def test_a_row_is_a_cache_line():
    (panel,) = ruler_scene(parse("f32[3,5]{1,0:T(2,2)}")).everything
    assert panel.rows == ("0", "64")
    assert panel.columns[:3] == ("+0", "+4", "+8")
    assert panel.labels[1][:4] == ("2,2", "2,3", "", "")
    assert panel.tips[1][1] == "byte 68, one slot: (2, 3)"


def test_shares_of_lines_are_exact():
    (panel,) = ruler_scene(parse("bf16[20,300]{1,0:T(8,128)(2,1)}")).everything
    assert panel.labels[4][:4] == ("32", "32", "24", "0")
    assert panel.shares[4][:4].tolist() == [1, 1, 0.75, 0]
    assert panel.rows[4] == "4096"


def test_units_by_size():
    assert "one element, 4 B" in ruler_scene(parse("f32[8,8]")).facts
    assert "one line, 64 B" in ruler_scene(parse("f32[64,64]")).facts
    assert "one tile, 4,096 B" in ruler_scene(parse("f32[4096,4096]{1,0:T(8,128)}")).facts
    assert "one element, 4 bits" in ruler_scene(parse("s4[5,9]{1,0:T(2,4)E(4)}")).facts
    assert ruler_scene(parse("s4[5,9]{1,0:T(2,4)E(4)}")).everything[0].columns[:4] == ("+0", "", "+1", "")


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (lanes((2, 10, 4, 5), "f16", "mars3", start=2), "npu"),
        (lanes((4, 300, 28, 28), "f16", "bm1684x"), "npu: byte"),
        (mod_sharded(50, 12, 4), "shard"),
        (paged((9, 20), "s8", (4, 8), (1, 4)), "page"),
        (parse("f32[9]"), "byte"),
    ],
    ids=str,
)
def test_memories_of_several_axes(layout, row):
    (panel,) = ruler_scene(layout).everything
    assert panel.row_name == row
    ElementTree.fromstring(ruler_svg(layout))


def test_large_memories_show_their_beginning():
    for text in ("f32[1000000000,100]{1,0:T(8,128)}", "s8[2000000000]", "c128[40000,40000]{0,1:T(2,128)}"):
        scene = ruler_scene(parse(text))
        assert scene.cut.startswith("one corner: rows 0..")
        assert scene.everything[0].padding.size <= 1024


def test_refusals():
    with pytest.raises(UsageError, match="no tiles of whole elements"):
        ruler_svg(parse("f32[3,5]"), unit="tile")
    with pytest.raises(UsageError, match="no unit called 'byte'"):
        ruler_svg(parse("f32[3,5]"), unit="byte")
    with pytest.raises(UnsupportedError, match="no such memory"):
        ruler_svg(parse("s8[4000000000,2000000000]"))
    with pytest.raises(UnsupportedError, match="unbounded"):
        ruler_svg(parse("f32[?]"))
    assert "no elements" in ruler_svg(parse("f32[0,3]"))


@given(any_layouts())
def test_the_terminal_keeps_to_its_width(layout):
    if layout.injective:
        lines = terminal_ruler(layout, 60).plain.split("\n")
        assert all(len(line) <= 60 for line in lines if "|" in line or "+-" in line)


def test_strides_of_numpy_leave_holes():
    """A map of one axis that is no tiling: the array view shows its elements, the ruler the holes between them."""
    layout = from_strides((3, 4), (48, 8), "f32")
    (array,) = make_scene(layout).everything
    assert array.labels[2] == ("24", "26", "28", "30")
    assert not array.padding.any()
    (memory,) = ruler_scene(layout).everything
    assert memory.labels[0][:4] == ("0,0", "", "0,1", "")
    assert int(memory.padding.sum()) == layout.num_slots - 12
    assert "4,(2,3)" in from_cute("(4,(2,3)):(1,(4,8))", "f32").to_svg()
