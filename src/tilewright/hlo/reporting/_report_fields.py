"""The columns of the report's page: what each is called, how it is written, and where its value comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilewright.hlo.reporting._report_layouts import first_layout, matching
from tilewright.hlo.reporting._report_text import space_text
from tilewright.hlo.reporting._report_types import MovementReport, MovementRow, PaddedTensor
from tilewright.render import Field, place_text

__all__ = ["PEAK_FIELDS", "TENSOR_FIELDS", "movement_fields", "row_key"]


def movement_fields(report: MovementReport) -> list[Field]:
    """The columns that this report's rows have values for; sums and times count all runs."""
    return list(_fields(report))


def row_key(row: MovementRow | PaddedTensor) -> str:
    """What the page's address calls a row."""
    return row.name


def _fields(report: MovementReport) -> Iterator[Field]:
    rows = report.rows
    yield Field(
        "moved", "bytes", "read and written in all runs, with padding", lambda r: r.total_bytes, 5.4, total=True
    )
    yield Field("runs", "text", "over all callers and trips; ≥ where a trip count is unknown", _runs, below=True)
    if report.profile is not None:
        yield Field("time", "seconds", "measured, all runs", _seconds, 5.4, total=True)
        yield Field("events", "count", "of the profile", lambda r: r.measured_runs or None, below=True)
    yield Field("operation", "text", "", lambda r: r.op, 9.1, facet=True)
    yield Field("name", "code", "", lambda r: r.name, below=True)
    yield Field("from", "code", "shape and layout of the operands", lambda r: r.from_short, 17)
    yield Field("to", "code", "shape and layout of the result", lambda r: r.to_layout, below=True)
    yield Field("padded", "bytes", "the result with its padding", lambda r: r.padded_bytes, 5.2)
    yield Field("padding", "ratio", "padded over logical bytes", lambda r: r.padding_ratio, below=True)
    if any(row.registers_after is not None for row in rows):
        yield Field("registers", "count", "vector registers the operands fill", lambda r: r.registers_before, 5.6)
        yield Field("after", "count", "vector registers the result fills", lambda r: r.registers_after, below=True)
    yield Field("kind", "text", "what kind of movement it is", lambda r: r.category, 6.2, facet=True)
    yield Field("counted", "text", "whether it moves bytes by itself", _counted, below=True, facet=True)
    yield Field("source", "code", "your line", lambda r: place_text(r.source), 12, tail=True, facet=True)
    yield Field("path", "code", "the computations from the entry to it", lambda r: r.path, below=True, tail=True)
    yield Field("why", "text", "why it is, or is not, a bitcast", lambda r: r.reason, lead=True, shown=False)
    yield Field("memory", "text", "memory spaces of operand and result", _spaces, shown=False, facet=True)
    yield Field("core", "text", "where it is offloaded to", lambda r: r.core, shown=False, facet=True)
    yield Field("framework's name", "code", "", lambda r: r.op_name, shown=False)
    yield Field("trips", "text", "of the loops around it, outermost first", _trips, shown=False)
    yield Field("one run", "bytes", "read and written", lambda r: r.moved_bytes, shown=False)
    yield Field("read", "bytes", "in one run", lambda r: r.bytes_read, shown=False)
    yield Field("written", "bytes", "in one run", lambda r: r.bytes_written, shown=False)
    yield Field("hidden", "bytes", "what it would move by itself", lambda r: r.hidden_bytes or None, shown=False)
    yield Field("logical", "bytes", "the result's elements", lambda r: r.logical_bytes, shown=False)
    yield Field("wasted", "bytes", "the result's padding", _wasted, shown=False)
    yield Field("operand", "code", "", _first_of_several, shown=False, listed=False)
    yield Field("matching", "text", "", _remembered(matching), shown=False, listed=False)


def _runs(row: MovementRow) -> str:
    return f"{'' if row.runs_known else '≥ '}{row.runs}×"


def _seconds(row: MovementRow) -> float | None:
    return None if row.measured_us is None else row.measured_us / 1e6


def _counted(row: MovementRow) -> str:
    if row.bitcast:
        return "free"
    return "moves" if row.moved_bytes else "in a fusion" if row.in_fusion else "not counted"


def _spaces(row: MovementRow) -> str:
    before, after = space_text(row.from_space), space_text(row.to_space)
    return before if before == after else f"{before} → {after}"


def _trips(row: MovementRow) -> str:
    return ", ".join("unknown" if count is None else str(count) for count in row.trips)


def _wasted(row: MovementRow) -> int:
    return row.padded_bytes - row.logical_bytes


def _first_of_several(row: MovementRow) -> str | None:
    return first_layout(row) if row.from_layout.startswith("(") else None


def _remembered(find: Callable[[MovementRow], str]) -> Callable[[MovementRow], str]:
    """Rows between the same two layouts are asked once."""
    known: dict[tuple[str, str, str, bool], str] = {}

    def found(row: MovementRow) -> str:
        key = (row.op, row.from_layout, row.to_layout, row.bitcast)
        if key not in known:
            known[key] = find(row)
        return known[key]

    return found


def _space(tensor: Any) -> str:
    return space_text(tensor.memory_space)


TENSOR_FIELDS = (
    Field("wasted", "bytes", "padding", lambda t: t.wasted_bytes, 6, total=True),
    Field("padding", "ratio", "padded over logical bytes", lambda t: t.padding_ratio, below=True),
    Field("padded", "bytes", "with padding", lambda t: t.padded_bytes, 6, total=True),
    Field("logical", "bytes", "its elements", lambda t: t.logical_bytes, below=True),
    Field("operation", "text", "what computes it", lambda t: t.op, 10, facet=True),
    Field("tensor", "code", "", lambda t: t.name, below=True),
    Field("layout", "code", "", lambda t: t.layout, 22),
    Field("memory", "text", "memory space", _space, below=True, facet=True),
    Field("source", "code", "your line", lambda t: place_text(t.source), 15, tail=True, facet=True),
    Field("path", "code", "the computations from the entry to it", lambda t: t.path, below=True, tail=True),
)

#: The tensors that live at the peak.
PEAK_FIELDS = (
    Field("padded", "bytes", "with padding", lambda t: t.padded_bytes),
    Field("wasted", "bytes", "padding", lambda t: t.wasted_bytes),
    Field("operation", "text", "what computes it", lambda t: t.op),
    Field("tensor", "code", "", lambda t: t.name),
    Field("layout", "code", "", lambda t: t.layout),
    Field("source", "code", "your line", lambda t: place_text(t.source)),
)
