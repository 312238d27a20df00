"""What a notebook shows of a movement report."""

from __future__ import annotations

from tilewright.hlo.reporting.lines import report_head
from tilewright.hlo.reporting.types import ReportData
from tilewright.render import Field, glance
from tilewright.render.formats import place_text
from tilewright.render.tables import cells, glance_table

_ROWS = (
    Field("moved", "bytes", of=lambda row: row.total_bytes),
    Field("padding", "ratio", of=lambda row: row.padding_ratio),
    Field("operation", of=lambda row: f"{row.op} {row.name}"),
    Field("from", "code", of=lambda row: row.from_layout),
    Field("to", "code", of=lambda row: row.to_layout),
    Field("why", of=lambda row: row.reason),
    Field("source", of=lambda row: place_text(row.source)),
)
_CHANGES = (
    Field("what pays most", of=lambda change: change.what or change.op),
    Field("how", of=lambda change: change.how),
    Field("source", of=lambda change: place_text(change.source)),
)
_FIRST = 10


def glance_html(report: ReportData) -> str:
    """The totals in sentences, what pays most, and the operations that move most."""
    head, *facts = report_head(report)
    rows = report.ranked()
    changes = glance_table(_CHANGES, cells(_CHANGES, report.suggestions[:3]))
    return glance(head, *facts, changes, glance_table(_ROWS, cells(_ROWS, rows[:_FIRST]), of=len(rows)))
