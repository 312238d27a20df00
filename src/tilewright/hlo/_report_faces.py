"""A movement report as a page."""

from __future__ import annotations

from tilewright.hlo._report_json import to_json
from tilewright.hlo._report_text import totals
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
    place_text,
    ratio_text,
    table,
)

__all__ = ["report_html", "to_html"]

_MOST_ROWS = 2000


def to_html(report: MovementReport) -> str:
    """One self-contained page: summary, movement, padding."""
    target = report.target or "none named"
    layouts = "predicted" if report.predicted else "its own"
    facts = [("program", report.kind), ("target", target), ("layouts", layouts)]
    page = Page(f"Data movement: {report.program}", totals(report), facts=facts)
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
