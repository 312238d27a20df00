"""What the report's page needs to draw layouts itself: each one as the digits of its offset, each pair's matching.

A picture as SVG is a hundred kilobytes, its digit form a hundred bytes, and exact: the page evaluates the same normal
form that the core decides by.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import permutations

from tilewright.errors import TilewrightError
from tilewright.hlo._cost import plain_opcode
from tilewright.hlo.reporting._report_types import MovementRow
from tilewright.layout import TensorLayout, parse

__all__ = ["digit_forms", "drawing_module", "first_layout", "matching"]

_MOST_LAYOUTS = 4000
_EXACT = 1 << 53  # offsets in bits that a script's numbers hold exactly
_SAME_ELEMENTS = frozenset({"copy", "copy-start", "reshape", "convert", "bitcast-convert"})


@cache
def drawing_module() -> str:
    """The ES module that draws the two layouts of an opened row."""
    return files("tilewright.hlo.reporting").joinpath("assets", "layouts.js").read_text(encoding="utf-8")


def first_layout(row: MovementRow) -> str:
    """The layout of the row's operand, of the first where it has several."""
    text = row.from_layout
    if not text.startswith("("):
        return text
    end = text.find("}, ")
    return text[1 : end + 1] if end > 0 else text[1:-1]


def digit_forms(texts: Iterable[str]) -> dict[str, list[object]]:
    """Layout text -> shape, element bits, memory space, order, first tile, base, digits (dim, weight, div, mod, ...).

    What has no such form, or offsets that no script holds exactly, is left out.


    >>> digit_forms(["f32[3,5]{1,0:T(2,2)}"])["f32[3,5]{1,0:T(2,2)}"]
    [[3, 5], 32, 0, [1, 0], [2, 2], 0, [1, 1, 1, 2, 0, 2, 1, 2, 1, 4, 2, 0, 0, 12, 2, 0]]
    """
    found: dict[str, list[object]] = {}
    for text in dict.fromkeys(texts):
        form = _digit_form(text)
        if form is not None:
            found[text] = form
        if len(found) == _MOST_LAYOUTS:
            break
    return found


def _digit_form(text: str) -> list[object] | None:
    try:
        layout = parse(text)
        if not isinstance(layout, TensorLayout) or not 0 < layout.size_bytes * 8 < _EXACT or not layout.num_elements:
            return None
        line = layout.digits["offset"] if layout.digits else None
    except TilewrightError:
        return None
    if line is None or any(digit.shift for digit in line.digits):
        return None
    digits = [number for digit in line.digits for number in digit[:4]]
    tile = [0 if size < 0 else size for size in (layout.tiles[0] if layout.tiles else ())]
    shape, order = list(layout.shape), list(layout.minor_to_major)
    return [shape, layout.element_bits, layout.memory_space, order, tile, line.base, digits]


def matching(row: MovementRow) -> str:
    """Which element of the operand is which of the result.

    ``place`` (a bitcast: the one at the same place), ``index`` (the same number in row-major order), the dims of a
    transpose as ``1,0``, or "" where the row does not tell: slices, joins, repetitions, fusions.
    """
    if row.bitcast:
        return "place"
    name = plain_opcode(row.op)
    if name in _SAME_ELEMENTS:
        return "index"
    return _turn(row) if name == "transpose" else ""


def _turn(row: MovementRow) -> str:
    """The dims of a transpose, where sizes leave one way only (it is not the one that changes nothing)."""
    try:
        a, b = parse(first_layout(row)), parse(row.to_layout)
    except TilewrightError:
        return ""
    if not isinstance(a, TensorLayout) or not isinstance(b, TensorLayout) or a.rank > 6:
        return ""
    same = tuple(range(a.rank))
    ways = [way for way in permutations(same) if way != same and tuple(a.shape[dim] for dim in way) == b.shape]
    kept = {tuple(dim for dim in way if a.shape[dim] > 1) for way in ways}
    return ",".join(map(str, ways[0])) if len(kept) == 1 else ""
