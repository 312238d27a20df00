"""Two layouts of the same elements: which elements move, and a picture of both with those marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.layout.draw import panels, picture
from tilewright.layout.draw.scene import make_scene, strip_panel
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import Array
from tilewright.layout.move.relayout import Relayout, relayout
from tilewright.render import bytes_text, count_text
from tilewright.render.drawing import Drawing, text_width

_COUNTED = 1 << 22  # elements up to which every one is looked at
_CHUNK = 1 << 18


@dataclass(frozen=True)
class MovedElement:
    """One element that moves: its index and place in both layouts (places in the order of ``.axes``)."""

    from_index: tuple[int, ...]
    from_place: tuple[int, ...]
    to_index: tuple[int, ...]
    to_place: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """What becomes of every element where b = reshape(transpose(a, permutation))."""

    a: IndexMap
    b: IndexMap
    move: Relayout

    def onward(self, indices: Array) -> Array:
        """Indices of b for indices of a (int64[..., rank])."""
        return self.b.indices_of(self.a.numbers_of(indices, self.move.permutation))

    def back(self, indices: Array) -> Array:
        """Indices of a for indices of b."""
        return self.a.indices_of(self.b.numbers_of(indices), self.move.permutation)

    def moves(self, places_a: Array, places_b: Array) -> Array:
        """Whether elements at these places change theirs: another byte, another NPU (page, shard) or memory."""
        if self.a.axes != self.b.axes or self.a.memory_space != self.b.memory_space:
            return np.ones(places_a.shape[:-1], bool)
        bit_a, bit_b = (
            panels.flat_offsets(m, places) * m.element_bits for m, places in ((self.a, places_a), (self.b, places_b))
        )
        apart: Array = bit_a != bit_b
        return apart if len(self.a.axes) == 1 else apart | (places_a[..., 0] != places_b[..., 0])

    @cached_property
    def _counted_moves(self) -> tuple[int, tuple[MovedElement, ...]]:
        count, first = 0, list[MovedElement]()
        total = min(self.b.num_elements, _COUNTED)
        chunk = _CHUNK if total == self.b.num_elements else _CHUNK >> 6
        for start in range(0, total, chunk):
            index_b = self.b.indices_of(np.arange(start, min(start + chunk, total)))
            index_a = self.back(index_b)
            place_a, place_b = self.a.addresses(index_a), self.b.addresses(index_b)
            moved = np.nonzero(self.moves(place_a, place_b))[0]
            count += len(moved)
            for k in moved[: 4 - len(first)]:
                sides = (index_a[k], place_a[k], index_b[k], place_b[k])
                first.append(MovedElement(*(tuple(values.tolist()) for values in sides)))
            if len(first) == 4 and self.b.num_elements > _COUNTED:
                break  # they are not counted anyway
        return count, tuple(first)

    @property
    def moved_elements(self) -> int | None:
        """How many elements move; None where there are more than four million elements and some move."""
        if self.move.bitcast:
            return 0
        return self._counted_moves[0] if self.b.num_elements <= _COUNTED else None

    @property
    def first_moves(self) -> tuple[MovedElement, ...]:
        """The first few elements (of the first four million) that move, in the order of b."""
        return () if self.move.bitcast else self._counted_moves[1]

    @property
    def verdict(self) -> str:
        """Whether it is a bitcast, and why not, in a line."""
        return self.move.verdict

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What a notebook shows: both layouts side by side where they can be drawn, and the verdict."""
        text = f"{self.a} to {self.b}: {self.verdict}; {self.costs}"
        return picture.shown_in_notebook(text, lambda most: draw_comparison(self, "auto", most.cells // 2, fine=False))

    @property
    def costs(self) -> str:
        """What moving takes, in a line."""
        if self.move.bitcast:
            return "nothing moves"
        moved, every = self.moved_elements, count_text(self.b.num_elements)
        text = f"{count_text(moved)} of {every} elements move" if moved is not None else f"{every} elements"
        return f"{text}; {bytes_text(self.move.bytes_read)} read, {bytes_text(self.move.bytes_written)} written"


def compare(a: IndexMap, b: IndexMap, permutation: Sequence[int] | None = None) -> Comparison:
    """The comparison of two layouts, ``permutation`` as in :func:`tilewright.layout.relayout`.

    >>> from tilewright.layout import parse
    >>> comparison = compare(parse("f32[2,4]{1,0}"), parse("f32[2,4]{1,0:T(2,2)}"))
    >>> comparison.moved_elements, comparison.first_moves[0].from_index, comparison.first_moves[0].to_place
    (4, (0, 2), (4,))
    """
    return Comparison(a, b, relayout(a, b, permutation))


def compare_scenes(pair: Comparison, colour: str = "auto", cells: int = 2048) -> tuple[panels.Scene, panels.Scene]:
    """Scenes of both layouts in the colours of one of them, elements that move marked."""
    key, way = colour_key(pair, colour)
    most = panels.Bounds(rows=32, columns=64, wide=80, cells=cells)
    return _side(pair, pair.a, key, way, most), _side(pair, pair.b, key, way, most)


def colour_key(pair: Comparison, colour: str) -> tuple[IndexMap, str]:
    """Whose blocks give the colours: the first layout's, else the second's, else the first one's offsets."""
    if colour != "auto":
        return pair.a, panels.choose_colour(pair.a, colour)
    for layout in (pair.a, pair.b):
        if panels.colour_ways(layout)[0] != "none":
            return layout, panels.colour_ways(layout)[0]
    return pair.a, "offset"


def _side(pair: Comparison, layout: IndexMap, key: IndexMap, way: str, most: panels.Bounds) -> panels.Scene:
    scene = make_scene(layout, most=most)
    strip = strip_panel(layout, "auto") if len(layout.axes) == 1 and layout.num_slots else None
    drawn = tuple(tuple(_with_moves(pair, layout, panel, key, way) for panel in row) for row in scene.panels)
    marked = _with_moves(pair, layout, strip, key, way) if strip else None
    plain = replace(scene, beginning=None, edge=None, words="")
    return replace(plain, panels=drawn, strip=marked, colour_by=way, last=max(0, key.num_slots - 1))


def _with_moves(pair: Comparison, layout: IndexMap, panel: panels.Panel, key: IndexMap, way: str) -> panels.Panel:
    here = panel.elements
    index = np.where(here[..., None], panel.indices, np.array(layout.first_index, np.int64))
    other = pair.b if layout is pair.a else pair.a
    there = other.addresses(pair.onward(index) if layout is pair.a else pair.back(index))
    moved = pair.moves(*((panel.places, there) if layout is pair.a else (there, panel.places))) & here
    colours = panels.colour_numbers(key, panel.places if layout is key else there, way)

    def tip(text: str, place: list[int], out: bool, moves: bool) -> str:
        if out or not text:
            return text
        return f"{text} {'to' if layout is pair.a else 'from'} {other.place_text(place)}" if moves else f"{text} stays"

    return replace(
        panel, moved=moved, colours=colours, tips=panels.each_cell(tip, panel.tips, there, panel.padding, moved)
    )


_BESIDE, _WIDEST, _GAP = 680.0, 1400.0, 48.0
_TITLE = 44.0  # the room of a layout's text and facts over its panels


@dataclass(frozen=True)
class _Block:
    """One side: its scene and where it stands."""

    scene: panels.Scene
    cell: picture.Cell
    wide: float
    tall: float


def compare_svg(
    a: IndexMap, b: IndexMap, permutation: Sequence[int] | None = None, *, colour: str = "auto", cells: int = 2048
) -> str:
    """Two layouts side by side as an SVG: b = reshape(transpose(a, permutation)), elements that move marked.

    Both sides wear the colours of one layout's tiles (NPUs, pages, shards), the first one's where it has any, so that a
    tile can be found again on the other side; ``colour`` may name another way, as in ``to_svg``. Small arrays are shown
    as memory too, large ones as one corner of at most ``cells`` cells a side (for pages with many pictures).
    Raises :class:`UsageError` where the element counts differ.

    >>> from tilewright.layout import parse
    >>> picture = compare_svg(parse("f32[2,4]{1,0}"), parse("f32[2,4]{1,0:T(2,2)}"))
    >>> "4 of 8 elements move" in picture
    True
    """
    return str(draw_comparison(compare(a, b, permutation), colour, max(1, cells)).svg())


def draw_comparison(pair: Comparison, colour: str = "auto", cells: int = 2048, *, fine: bool = True) -> Drawing:
    """Both layouts, beside each other where they fit, else one below the other; ``fine`` as in ``draw_picture``.

    Where nearly all elements in small cells move, none is marked: marks would hide the colours.
    """
    scenes = _worth_marking(compare_scenes(pair, colour, cells))
    beside = [_block(scene, _BESIDE) for scene in scenes]
    stacked = [_block(scene, _WIDEST) for scene in scenes]
    side_by_side = all(a.cell.labelled == b.cell.labelled for a, b in zip(beside, stacked, strict=True))
    blocks = beside if side_by_side else stacked
    legend = _legend(pair, blocks, colour)
    wide = sum(b.wide for b in blocks) + _GAP if side_by_side else max(b.wide for b in blocks)
    tall = max(b.tall for b in blocks) if side_by_side else sum(b.tall for b in blocks)
    width = (
        max(wide, text_width(pair.verdict, 15) * 1.04, text_width(pair.costs), picture.legend_width(legend))
        + 2 * picture.MARGIN
    )
    drawing = Drawing(width, 62 + tall + 32, title=f"{pair.a} and {pair.b}", description=pair.verdict, ground=True)
    drawing.text(picture.MARGIN, 26, pair.verdict, "strong large")
    drawing.text(picture.MARGIN, 46, pair.costs, "soft")
    x, y = picture.MARGIN, 66.0
    for block in blocks:
        _draw(drawing, block, x, y, fine)
        x, y = (x + block.wide + _GAP, y) if side_by_side else (x, y + block.tall)
    picture.draw_legend(drawing, legend, 62 + tall)
    return drawing


def _worth_marking(scenes: tuple[panels.Scene, panels.Scene]) -> tuple[panels.Scene, ...]:
    """The scenes, without marks where cells are small and fewer than one in sixteen elements stays on both sides."""
    if all(picture.cell_size(scene, _BESIDE).labelled for scene in scenes):
        return scenes
    for scene in scenes:
        found = [(panel.moved, panel.elements) for panel in scene.everything if panel.moved is not None]
        every = sum(int(elements.sum()) for _, elements in found)
        moved = sum(int(marks.sum()) for marks, _ in found)
        if (every - moved) * 16 >= every:
            return scenes
    plain = []
    for scene in scenes:
        rows = tuple(tuple(replace(panel, moved=None) for panel in row) for row in scene.panels)
        plain.append(replace(scene, panels=rows, strip=replace(scene.strip, moved=None) if scene.strip else None))
    return tuple(plain)


def _block(scene: panels.Scene, widest: float) -> _Block:
    cell = picture.cell_size(scene, widest)
    wide, tall = picture.scene_size(scene, cell)
    texts = (picture.title_width(scene.title, 12), text_width(scene.facts) * 0.98, text_width(scene.cut) * 0.98)
    return _Block(scene, cell, max(wide, *texts), _TITLE + tall + (18 if scene.cut else 0))


def _draw(drawing: Drawing, block: _Block, x: float, y: float, fine: bool) -> None:
    drawing.text(x, y + 10, block.scene.title, "strong mono")
    drawing.text(x, y + 28, block.scene.facts, "soft")
    picture.draw_scene(drawing, block.scene, x, y + _TITLE, block.cell, fine)
    if block.scene.cut:
        drawing.text(x, y + block.tall - 10, block.scene.cut, "soft")


def _legend(pair: Comparison, blocks: list[_Block], colour: str) -> list[tuple[str, str]]:
    """The marks of both sides, each once; colours say whose they are."""
    parts = dict.fromkeys(part for block in blocks for part in picture.legend_parts(block.scene, block.cell))
    whose = "first" if colour_key(pair, colour)[0] is pair.a else "second"
    named = [(mark, f"{text} of the {whose} layout" if mark == "colour" else text) for mark, text in parts]
    return [part for part in named if part[0] != "moved"] + [part for part in named if part[0] == "moved"]
