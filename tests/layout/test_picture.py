"""Pictures: every slot once, at its element's place, padding hatched and never taken for data."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.layout.strategies import any_layouts, paged_layouts, tiled_layouts
from tilewright.errors import UsageError
from tilewright.layout import lanes, mod_sharded, paged, parse
from tilewright.layout.draw.panels import MAX_CELLS, Bounds
from tilewright.layout.draw.picture import cell_size
from tilewright.layout.draw.scene import make_scene
from tilewright.layout.draw.terminal import terminal_drawing
from tilewright.layout.explain import lineage

SVG = "{http://www.w3.org/2000/svg}"


def cells(svg):
    """(tip, fill) of every cell of a drawing, read from its XML."""
    root = ElementTree.fromstring(svg)
    tipped = [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    return [(r.find(f"{SVG}title").text, r.get("fill") or r.get("class")) for r in tipped]


def all_panels(scene):
    return [panel for row in scene.panels for panel in row]


def grid(text):
    (panel,) = all_panels(make_scene(parse(text)))
    return [list(row) for row in panel.labels], panel.padding.astype(int).tolist()


def test_figure_1_of_the_document():
    labels, padding = grid("f32[3,5]{1,0:T(2,2)}")
    assert labels == [
        ["0", "1", "4", "5", "8", "9"],
        ["2", "3", "6", "7", "10", "11"],
        ["12", "13", "16", "17", "20", "21"],
        ["14", "15", "18", "19", "22", "23"],
    ]
    assert padding == [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1]]
    strip = make_scene(parse("f32[3,5]{1,0:T(2,2)}")).strip
    assert strip.labels[1][4:6] == ("2,2", "2,3")


def test_figure_2_of_the_document():
    labels, padding = grid("f32[4,8]{1,0:T(2,4)(2,1)}")
    assert [int(label) for label in labels[0]] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [int(label) for label in labels[3]] == [17, 19, 21, 23, 25, 27, 29, 31]
    assert not sum(map(sum, padding))
    levels = make_scene(parse("f32[4,8]{1,0:T(2,4)(2,1)}")).levels
    assert [(v.name, v.row_period, v.column_period) for v in levels] == [("T(2,4)", 2, 4), ("T(2,1)", 2, 1)]


@given(any_layouts())
def test_every_slot_is_drawn_once_as_what_it_is(layout):
    if not layout.injective:
        return
    scene = make_scene(layout, most=Bounds(10**6, 10**6))
    tips = [tip for panel in all_panels(scene) for row in panel.tips for tip in row if tip]
    assert len(tips) == len(set(tips))
    if not scene.cut:
        assert len(tips) == layout.num_slots
    for tip in tips[:: max(1, len(tips) // 40)]:
        where, _, what = tip.partition(": ")
        place = [int(n) for n in re.findall(r"\d+", where)]
        index = layout.index(*place)
        assert what == ("padding" if index is None else f"({', '.join(map(str, index))})")


@given(any_layouts())
def test_the_drawing_says_what_the_scene_says(layout):
    if not layout.injective:
        assert set(layout._repr_mimebundle_()) == {"text/plain"}
        return
    scene = make_scene(layout)
    drawn = cells(layout.to_svg())
    insets = (scene.strip, scene.edge, None if cell_size(scene).labelled else scene.beginning)
    panels = [*all_panels(scene), *(panel for panel in insets if panel)]
    assert len(drawn) == sum(bool(tip) for panel in panels for row in panel.tips for tip in row)
    hatched = [tip for tip, fill in drawn if fill.startswith("url(#hatch")]
    assert len(hatched) == sum(int(panel.padding.sum()) for panel in panels)
    assert all(tip.endswith("padding") for tip in hatched)


@given(tiled_layouts() | paged_layouts())
def test_headings_are_indices(layout):
    """An element's row and column headings are its index along the dims drawn there."""
    scene = make_scene(layout)
    column = lineage(layout)[-1] if layout.rank else None
    for panel in all_panels(scene):
        for r, row in enumerate(panel.tips):
            for c, tip in enumerate(row):
                if column is None or column.logical is None or panel.padding[r, c] or not panel.columns:
                    continue
                index = [int(n) for n in re.findall(r"\d+", tip.partition("(")[2])]
                assert panel.columns[c] == str(index[column.logical])


@given(tiled_layouts())
def test_tiles_have_one_colour_and_neighbours_another(layout):
    scene = make_scene(layout)
    if not scene.levels or scene.levels[0].column_period is None:
        return
    tall, wide = scene.levels[0].row_period or 1, scene.levels[0].column_period
    for panel in all_panels(scene):
        colours, (rows, columns) = panel.colours, panel.colours.shape
        for r in range(rows):
            for c in range(columns - 1):
                assert (colours[r, c] == colours[r, c + 1]) == (c // wide == (c + 1) // wide)
        for r in range(rows - 1):
            assert (colours[r, 0] == colours[r + 1, 0]) == (r // tall == (r + 1) // tall)


@pytest.mark.parametrize(
    "layout",
    [
        parse("f32[1000000000,1000000000]{1,0:T(8,128)}"),
        parse("bf16[2048,1,2048,128]{0,1,3,2:T(4,128)(2,1)}"),
        parse("f32[50,60,70,80]{3,2,1,0:T(*,2,*,3)}"),
        parse("s8[100000]{0:T(1024)(128)(4,1)}"),
        lanes((4, 300, 28, 28), "f16", "bm1684x"),
        paged((4096, 4096), "s8", page=(64, 64), line=(1, 64)),
        mod_sharded(10**6, 64, shards=32),
    ],
    ids=str,
)
def test_large_arrays_show_one_corner(layout):
    scene = make_scene(layout)
    assert scene.cut.startswith("one corner")
    assert sum(panel.padding.size for panel in all_panels(scene)) <= MAX_CELLS
    svg = layout.to_svg()
    assert "one corner" in svg
    assert len(svg) < 2_000_000


def test_a_folded_row_ends_where_the_array_ends():
    tips = [tip for tip, _ in cells(parse("f32[77]").to_svg())]
    assert tips == [f"offset {n}: ({n})" for n in range(77)]
    last = [line for line in terminal_drawing(parse("f32[77]")).plain.split("\n") if "|" in line][-1]
    assert last.rstrip(" |").endswith(" 76")


def test_empty_and_scalar_arrays():
    assert "no elements" in parse("f32[0,3]").to_svg()
    assert [tip for tip, _ in cells(parse("f32[]").to_svg())] == ["offset 0: ()"]
    assert sum("padding" in tip for tip, _ in cells(parse("f32[]{:T(8)}").to_svg())) == 2 * 7


WORDS = parse("bf16[20,300]{1,0:T(8,128)(2,1)}")


def test_the_first_packed_words_and_the_far_edge_are_shown():
    scene = make_scene(WORDS)
    assert [row[:3] for row in scene.beginning.labels[:2]] == [("0", "2", "4"), ("1", "3", "5")]
    assert scene.beginning.heading.startswith("T(2,1) packs 2 elements of 16 bits")
    words = scene.beginning.colours
    assert (words[0] == words[1]).all()
    assert len(set(words[0].tolist())) == 8
    edge = scene.edge
    assert (edge.rows[:3], edge.columns[:5]) == (("17", "18", "19"), ("295", "296", "297", "298", "299"))
    assert edge.labels[2][4] == str(WORDS.offset(19, 299))
    assert edge.padding[3:].all()
    assert edge.padding[:, 5:].all()
    small = make_scene(parse("f32[3,5]{1,0:T(2,2)}"))
    assert small.edge is None


@settings(max_examples=tries(15))
@given(any_layouts(), st.data())
def test_a_window_shows_what_the_whole_shows(layout, data):
    if not layout.injective or not layout.num_slots:
        return
    every = [axis.extent for axis in layout.axis_terms]
    if len(layout.axes) == 1 or layout.axes[0] == "page":
        dims = [dim for dim in lineage(layout) if dim.name]
        dims = sorted(dims, key=lambda d: d.parts) if all(d.logical is not None for d in dims) else dims
        every = [dim.extent for dim in dims]
    starts = [data.draw(st.integers(0, n - 1)) for n in every]
    window = ",".join(f"{a}:{data.draw(st.integers(a + 1, n))}" for a, n in zip(starts, every, strict=True))
    if not every:
        return
    scene = make_scene(layout, window=window, most=Bounds(64, 64, cells=256))
    tips = [tip for panel in all_panels(scene) for row in panel.tips for tip in row if tip]
    assert tips
    assert len(tips) == len(set(tips))
    for tip in tips[:: max(1, len(tips) // 10)]:
        where, _, what = tip.partition(": ")
        index = layout.index(*(int(n) for n in re.findall(r"\d+", where)))
        assert what == ("padding" if index is None else f"({', '.join(map(str, index))})")


@settings(max_examples=tries(15))
@given(any_layouts(), st.data())
def test_an_element_is_found_and_marked_once(layout, data):
    if not layout.injective or not layout.num_elements:
        return
    first = layout.first_index
    index = tuple(data.draw(st.integers(a, a + n - 1)) for a, n in zip(first, layout.shape, strict=True))
    scene = make_scene(layout, at=index)
    found = [(panel.indices == index).all(-1) & panel.elements for panel in all_panels(scene)]
    assert sum(int(cells.sum()) for cells in found) == 1
    assert scene.marked == tuple(layout.address(*index).values())


def test_an_element_in_one_of_many_panels_is_shown():
    layout = parse("s32[1,1,5,5]{0,1,2,3}")
    scene = make_scene(layout, at=(0, 0, 4, 3))
    assert [tuple(panel.indices[panel.elements][0].tolist()) for panel in all_panels(scene)] == [(0, 0, 4, 3)]


def test_windows_that_are_none():
    for window, what in (("0:8", "1 of 2 ranges"), ("8:8,:", "empty"), ("a,b", "no range"), ("0:1,400:500", "empty")):
        with pytest.raises(UsageError, match=what):
            make_scene(WORDS, window=window)
    with pytest.raises(UsageError, match="two pictures"):
        make_scene(WORDS, window=":,:", at=(0, 0))


def test_an_npus_memory_is_folded_at_its_strides():
    layout = lanes((2, 70, 28, 28), "f16", "bm1684x", start=2)
    scene = make_scene(layout)
    headings = [panel.heading for panel in all_panels(scene)]
    assert headings == ["n = 0, c = 0..13", "n = 0, c = 62..69", "n = 1, c = 0..13", "n = 1, c = 62..69"]
    assert [panel.columns[0] for panel in all_panels(scene)] == ["0", "800", "1600", "2400"]
    assert all(panel.rows[:3] == ("0", "1", "start 2") for panel in all_panels(scene))
    narrow = make_scene(lanes((2, 10, 4, 5), "f16", "mars3", start=2))
    assert [(level.name, level.column_period) for level in narrow.levels] == [("C stride, 24", 24)]
    assert len(all_panels(narrow)) == 2
    assert not make_scene(lanes((2, 3, 4, 5), "f16", "mars3", mode=(1, 40, 10, 2))).levels


def test_combined_dims_are_numbered_by_their_parts():
    (panel,) = all_panels(make_scene(parse("f32[2,3,5]{2,1,0:T(*,2,4)}")))
    assert panel.row_name == "d0*d1"
    assert panel.rows == ("0,0", "0,1", "0,2", "1,0", "1,1", "1,2")


def test_pictures_name_the_memory():
    assert "in S(1), vector memory (VMEM) on a TPU" in parse("f32[8,128]{1,0:T(8,128)S(1)}").to_svg()
    assert "in S(5), the host's memory" in make_scene(parse("f32[8]{0:S(5)}")).facts


ORDINARY = (
    WORDS,
    parse("f32[1024,1024]{1,0:T(8,128)}"),
    parse("s8[4,100,200]{2,1,0:T(8,128)(4,1)}"),
    parse("f32[100000]{0:T(1024)}"),
    parse("f32[64,40]"),
    lanes((2, 70, 28, 28), "f16", "bm1684x"),
    paged((9, 20), "s8", (4, 8), (1, 4)),
    mod_sharded(1000, 16, 4),
)


@pytest.mark.parametrize("layout", ORDINARY, ids=str)
def test_a_notebook_holds_less_than_60_kb(layout):
    assert len(layout._repr_mimebundle_()["image/svg+xml"]) < 60_000


def test_a_notebook_sees_the_picture():
    bundle = parse("f32[3,5]{1,0:T(2,2)}")._repr_mimebundle_()
    assert bundle["text/plain"] == "parse('f32[3,5]{1,0:T(2,2)}')"
    assert bundle["image/svg+xml"] == parse("f32[3,5]{1,0:T(2,2)}").to_svg()
    assert set(parse("f32[?]")._repr_mimebundle_()) == {"text/plain"}


@given(any_layouts())
def test_the_terminal_drawing_keeps_to_its_width_and_shows_offsets(layout):
    if not layout.injective:
        return
    lines = terminal_drawing(layout, 60).plain.split("\n")
    drawn = [line for line in lines if "|" in line or "+-" in line]
    assert all(len(line) <= 60 for line in drawn)
    if layout.rank and len(layout.axes) == 1 and layout.shape[0]:
        assert any(re.search(r"[| ]0 ", line) for line in drawn)


def test_the_terminal_marks_padding_without_colours():
    text = terminal_drawing(parse("f32[3,5]{1,0:T(2,2)}")).plain
    assert text.count("·") == 9 + 1  # the padding cells, and the legend
    assert "|  12  13 |  16  17 |  20 ·21 |" in text


@pytest.mark.parametrize("text", ["f32[5,3,4,6]{3,2,1,0:T(2,4)}", "f32[2,2,2,3,4]{4,3,2,1,0:T(2,2)}", "f32[12,2,9]"])
def test_small_arrays_are_shown_whole(text):
    layout = parse(text)
    scene = make_scene(layout)
    assert scene.cut == ""
    shown = {tip for panel in all_panels(scene) for row in panel.tips for tip in row if "padding" not in tip}
    assert len(shown - {""}) == layout.num_elements


def test_the_legend_names_what_is_outlined():
    """Lines two cells apart are not drawn where the cells are small, and then the legend does not promise them."""
    large = parse("bf16[500,500]{1,0:T(8,128)(2,1)}").to_svg(window="0:32,0:128")
    assert ">T(8,128)<" in large
    assert ">T(2,1)<" not in large
    assert "edge l1" not in large.partition("</style>")[2]
    whole = parse("bf16[500,500]{1,0:T(8,128)(2,1)}").to_svg()
    assert ">T(2,1)<" in whole  # in the insets
    assert "edge l1" in whole.partition("</style>")[2]
    faces = parse("bf16[64,64]{1,0:T(32,32)(16,16)}").to_svg()
    assert ">T(32,32)<" in faces
    assert ">T(16,16)<" in faces
    assert ">T(2,1)<" in parse("f32[4,8]{1,0:T(2,4)(2,1)}").to_svg()
