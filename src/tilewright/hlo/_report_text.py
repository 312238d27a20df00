"""A movement report as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tilewright.hlo._report_types import MovementReport, MovementRow, PaddedTensor
from tilewright.render import bytes_text, count_text, percent_text, place_text, ratio_text

__all__ = ["by_operation", "summary", "to_lines", "totals"]

_INDENT = 9


def summary(report: MovementReport) -> str:
    """One line: the program, whose layouts, what moves."""
    where = f"predicted for {report.target}" if report.predicted else "its own layouts"
    return f"{report.program} ({where}): {totals(report)}"


def by_operation(report: MovementReport) -> str:
    """Bytes moved by each kind of operation, "" if only one kind moves any."""
    moved = [f"{op} {bytes_text(count)}" for op, count in report.moved_by_op.items() if count]
    return ", ".join(moved) if len(moved) > 1 else ""


def totals(report: MovementReport) -> str:
    """What moves and what is padding, in one line."""
    moved = f"{bytes_text(report.moved_bytes)} moved by {_number(len(report.ranked()), 'operation')}"
    return f"{moved}, {bytes_text(report.wasted_bytes)} of padding in {_number(len(report.wasteful()), 'tensor')}"


def _number(count: int, what: str) -> str:
    return f"{count_text(count)} {what}{'' if count == 1 else 's'}"


def to_lines(report: MovementReport, by: str = "moved", top: int = 20, width: int = 100) -> Iterator[tuple[str, str]]:
    """(style, line) for a terminal: a ranking ``by`` moved or padding, three lines to an entry."""
    if by == "moved":
        rows = report.ranked()
        yield "bold", "   # " + "moved".rjust(9) + "  share  padding  operation"
        for number, row in enumerate(rows[:top], 1):
            share = percent_text(row.moved_bytes / report.moved_bytes)
            figures = f"{bytes_text(row.moved_bytes):>9} {share:>6}  {ratio_text(row.padding_ratio):>7}"
            yield from _entry(number, figures, row, f"{row.from_short} -> {row.to_layout}", row.reason, width)
        left, total = len(rows) - top, sum(row.moved_bytes for row in rows[top:])
        nothing = "no operation moves data for layout's sake"
    else:
        tensors = report.wasteful()
        yield "bold", "   # " + "wasted".rjust(9) + "   size  padding  tensor"
        for number, tensor in enumerate(tensors[:top], 1):
            figures = f"{bytes_text(tensor.wasted_bytes):>9} {bytes_text(tensor.padded_bytes):>8} "
            figures += f"{ratio_text(tensor.padding_ratio):>6}"
            yield from _entry(number, figures, tensor, tensor.layout, "", width)
        left, total = len(tensors) - top, sum(tensor.wasted_bytes for tensor in tensors[top:])
        nothing = "no tensor has padding"
    if left > 0:
        yield "dim", f"     {left} more with {bytes_text(total)} (--top {top + left} shows all)"
    if total == 0 and left <= -top:
        yield "", f"     {nothing}"


def _entry(
    number: int, figures: str, row: MovementRow | PaddedTensor, layouts: str, reason: str, width: int
) -> Iterator[tuple[str, str]]:
    place = place_text(row.source) or (f"({row.op_name})" if isinstance(row, MovementRow) and row.op_name else "")
    yield "", f"{number:>4} {figures}  {row.op} {row.name}  {place}".rstrip()
    for line in _folded(layouts, width - _INDENT):
        yield "cyan", " " * _INDENT + line
    for line in textwrap.wrap(reason, width - _INDENT, break_long_words=False):
        yield "dim", " " * _INDENT + line


def _folded(text: str, width: int) -> list[str]:
    """One line if it fits, else the result's layout on a line of its own."""
    if len(text) <= width or " -> " not in text:
        return [text]
    before, _, after = text.partition(" -> ")
    return [before, f"-> {after}"]
