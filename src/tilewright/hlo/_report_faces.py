"""A movement report as JSON, as a page, and as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tilewright.hlo._report_types import MovementReport, MovementRow, PaddedTensor
from tilewright.render import (
    Bar,
    Card,
    Column,
    Html,
    Page,
    badge,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    element,
    escape,
    join,
    note,
    percent_text,
    place_text,
    ratio_text,
    table,
)

__all__ = ["by_operation", "report_html", "summary", "to_html", "to_json", "to_lines"]

_INDENT = 9
_MOST_ROWS = 2000


def to_json(report: MovementReport) -> dict[str, Any]:
    """Plain values: totals, every row in the program's order, the tensors with padding by wasted bytes."""
    return {
        "schema_version": 1,
        "kind": "movement_report",
        "program": {"name": report.program, "kind": report.kind},
        "target": report.target,
        "predicted": report.predicted,
        "notes": list(report.notes),
        "totals": {
            "rows": len(report.rows),
            "bitcasts": report.bitcasts,
            "moved_bytes": report.moved_bytes,
            "moved_by_op": report.moved_by_op,
            "tensors": len(report.tensors),
            "logical_bytes": report.logical_bytes,
            "padded_bytes": report.padded_bytes,
            "wasted_bytes": report.wasted_bytes,
        },
        "rows": [{**asdict(row), "padding_ratio": row.padding_ratio} for row in report.rows],
        "padding": [_tensor_json(tensor) for tensor in report.wasteful()],
    }


def _tensor_json(tensor: PaddedTensor) -> dict[str, Any]:
    return {**asdict(tensor), "wasted_bytes": tensor.wasted_bytes, "padding_ratio": tensor.padding_ratio}


def summary(report: MovementReport) -> str:
    """One line: the program, whose layouts, what moves."""
    where = f"predicted for {report.target}" if report.predicted else "its own layouts"
    return f"{report.program} ({where}): {_totals(report)}"


def by_operation(report: MovementReport) -> str:
    """Bytes moved by each kind of operation, "" if only one kind moves any."""
    moved = [f"{op} {bytes_text(count)}" for op, count in report.moved_by_op.items() if count]
    return ", ".join(moved) if len(moved) > 1 else ""


def _totals(report: MovementReport) -> str:
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


def to_html(report: MovementReport) -> str:
    """One self-contained page: summary, movement, padding."""
    target = report.target or "none named"
    layouts = "predicted" if report.predicted else "its own"
    facts = [("program", report.kind), ("target", target), ("layouts", layouts)]
    page = Page(f"Data movement: {report.program}", _totals(report), facts=facts)
    page.section("summary", "Summary", cards(_figures(report)), _by_op(report), *map(note, report.notes))
    page.section("movement", "Operations by bytes moved", _movement_table(report))
    page.section("padding", "Tensors by wasted bytes", _padding_table(report))
    page.data("report", to_json(report))
    return page.html()


def report_html(report: MovementReport) -> Html:
    """The report as blocks for a page of another room: figures, the split by operation, and the movement table."""
    return join([cards(_figures(report)), _by_op(report), _movement_table(report), *map(note, report.notes)], "\n")


def _figures(report: MovementReport) -> list[Card]:
    ratio = report.padded_bytes / report.logical_bytes if report.logical_bytes else 1.0
    return [
        Card("moved", bytes_text(report.moved_bytes), f"by {count_text(len(report.ranked()))} operations"),
        Card("free", count_text(report.bitcasts), f"bitcasts among {count_text(len(report.rows))} operations", "good"),
        Card("padding", bytes_text(report.wasted_bytes), f"in {count_text(len(report.wasteful()))} tensors"),
        Card("memory over data", ratio_text(ratio), f"{bytes_text(report.padded_bytes)} hold the tensors"),
    ]


def _by_op(report: MovementReport) -> Html:
    bars = [Bar(op, (moved,)) for op, moved in report.moved_by_op.items() if moved]
    return bar_chart(bars, title="Bytes moved, by operation", kind="bytes")


_MOVEMENT = (
    Column("moved", "bytes", "read and written together, padding included"),
    Column("operation", "text", "what it is and what it is called"),
    Column("layouts", "text", "of the operand and of the result"),
    Column("padded", "bytes", "the result with its padding"),
    Column("ratio", "ratio", "padded over logical bytes of the result"),
    Column("why", "text", "why it is, or is not, a bitcast"),
    Column("where", "text", "source line, and the path of callers"),
)

_PADDING = (
    Column("wasted", "bytes", "padding"),
    Column("padded", "bytes", "with padding"),
    Column("ratio", "ratio", "padded over logical bytes"),
    Column("tensor", "text", "what computes it and what it is called"),
    Column("layout", "code"),
    Column("where", "text", "source line, and the path of callers"),
)


def _movement_table(report: MovementReport) -> Html:
    rows = sorted(report.rows, key=lambda row: -row.moved_bytes)
    return table(_MOVEMENT, [_movement_cells(row) for row in rows], limit=_MOST_ROWS, empty="nothing moves")


def _movement_cells(row: MovementRow) -> tuple[object, ...]:
    why: object = row.reason
    if row.bitcast:
        why = badge("bitcast", "good") + f" {row.reason}"
    elif row.in_fusion:
        why = badge("in a fusion") + f" {row.reason}"
    layouts = _lines(element("code", row.from_short), escape("→ ") + element("code", row.to_layout))
    return (
        *(row.moved_bytes, _lines(row.op, element("code", row.name)), layouts),
        *(row.padded_bytes, row.padding_ratio, why, _where(row)),
    )


def _where(row: MovementRow | PaddedTensor) -> Html:
    return _lines(*(element("code", text) for text in (place_text(row.source), row.path) if text))


def _lines(*parts: str) -> Html:
    """Parts below each other in one cell."""
    return Html(element("br").join(escape(part) for part in parts))


def _padding_table(report: MovementReport) -> Html:
    cells = [
        (
            *(tensor.wasted_bytes, tensor.padded_bytes, tensor.padding_ratio),
            *(_lines(tensor.op, element("code", tensor.name)), tensor.layout, _where(tensor)),
        )
        for tensor in report.wasteful()
    ]
    return table(_PADDING, cells, limit=_MOST_ROWS, empty="no tensor has padding")
