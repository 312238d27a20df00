"""What is shown of a movement report's rows and tensors: each value once, with its heading, kind and explanation.

The page shows all columns, its peaks, a notebook and the terminal some of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.hlo.reporting.types import MovementRow, ReportData, Suggestion
from tilewright.render import Field
from tilewright.render.formats import place_text, ratio_text

_SPACES = {
    0: "main memory",
    1: "vector memory S(1)",
    2: "sync flags S(2)",
    3: "common memory S(3)",
    5: "host memory S(5)",
    6: "scalar memory S(6)",
}


def space_text(space: int) -> str:
    """What a memory space is called: ``S(1)`` is vector memory on a TPU."""
    return _SPACES.get(space, f"memory space S({space})")


def change_number(change: Suggestion) -> str:
    """The rule, its factor and what kind of number that is: ``gqa-decode, 57.8x confirmed``."""
    if change.factor is None:
        return change.rule if change.kind != "unpriced" else f"{change.rule}, unpriced"
    return f"{change.rule}, {ratio_text(change.factor)} {change.kind}"


def seconds(microseconds: float | None) -> float | None:
    """Microseconds in seconds, None where they are not known."""
    return None if microseconds is None else microseconds / 1e6


def movement_fields(report: ReportData) -> Iterator[Field]:
    """The columns that this report's rows have values for; sums and times count all runs."""
    rows = report.rows

    def advice(row: MovementRow) -> str | None:
        change = report.suggestion_of(row)
        return None if change is None else f"{change_number(change)}: {change.how}"

    yield Field(
        "moved", "bytes", "read and written in all runs, with padding", lambda r: r.total_bytes, 5.4, total=True
    )
    yield Field("runs", "text", "over all callers and trips; ≥ where a trip count is unknown", below=True,
                of=lambda r: f"{'' if r.runs_known else '≥ '}{r.runs}×")  # fmt: skip
    if report.profile is not None:
        yield Field("time", "seconds", "measured, all runs", lambda r: seconds(r.measured_us), 5.4, total=True)
        yield Field("events", "count", "of the profile", lambda r: r.measured_runs or None, below=True)
    if report.time is not None:
        yield Field("modelled", "seconds", "modelled, all runs of one step", width=6.6, total=True,
                    of=lambda r: None if r.bitcast else seconds(r.modelled_us))  # fmt: skip
        if any(row.inside_us is not None for row in rows):
            yield Field("of the fusion", "seconds", "modelled, what it is inside of", shown=False,
                        of=lambda r: seconds(r.inside_us))  # fmt: skip
        yield Field("bound", "text", "what it waits for, by the model", lambda r: r.bound, below=True, facet=True)
    yield Field("operation", "text", "", lambda r: r.op, 9.1, facet=True)
    yield Field("name", "code", "", lambda r: r.name, below=True)
    yield Field("from", "code", "shape and layout of the operands", lambda r: r.from_short, 15.6)
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
    yield Field("what to do", "text", "the change that pays", advice, lead=True, shown=False)
    yield Field("memory", "text", "memory spaces of operand and result", _spaces, shown=False, facet=True)
    yield Field("core", "text", "where it is offloaded to", lambda r: r.core, shown=False, facet=True)
    yield Field("framework's name", "code", "", lambda r: r.op_name, shown=False)
    yield Field("trips", "text", "of the loops around it, outermost first", shown=False,
                of=lambda r: ", ".join("unknown" if count is None else str(count) for count in r.trips))  # fmt: skip
    yield Field("one run", "bytes", "read and written", lambda r: r.moved_bytes, shown=False)
    yield Field("read", "bytes", "in one run", lambda r: r.bytes_read, shown=False)
    yield Field("written", "bytes", "in one run", lambda r: r.bytes_written, shown=False)
    yield Field("hidden", "bytes", "what it would move by itself", lambda r: r.hidden_bytes or None, shown=False)
    yield Field("logical", "bytes", "the result's elements", lambda r: r.logical_bytes, shown=False)
    yield Field("wasted", "bytes", "the result's padding", lambda r: r.wasted_bytes, shown=False)


def _counted(row: MovementRow) -> str:
    if row.bitcast:
        return "free"
    if row.category == "compute":
        return "computes"
    return "moves" if row.moved_bytes else "in a fusion" if row.in_fusion else "fused"


def _spaces(row: MovementRow) -> str:
    before, after = space_text(row.from_space), space_text(row.to_space)
    return before if before == after else f"{before} → {after}"


TENSOR_FIELDS = (
    Field("wasted", "bytes", "padding", lambda t: t.wasted_bytes, 6, total=True),
    Field("padding", "ratio", "padded over logical bytes", lambda t: t.padding_ratio, below=True),
    Field("padded", "bytes", "with padding", lambda t: t.padded_bytes, 6, total=True),
    Field("logical", "bytes", "its elements", lambda t: t.logical_bytes, below=True),
    Field("operation", "text", "what computes it", lambda t: t.op, 10, facet=True),
    Field("tensor", "code", "", lambda t: t.name, below=True),
    Field("layout", "code", "", lambda t: t.layout, 22),
    Field("memory", "text", "memory space", lambda t: space_text(t.memory_space), below=True, facet=True),
    Field("source", "code", "your line", lambda t: place_text(t.source), 15, tail=True, facet=True),
    Field("path", "code", "the computations from the entry to it", lambda t: t.path, below=True, tail=True),
)
_NAMED = {field.heading: field for field in TENSOR_FIELDS}
PEAK_FIELDS = tuple(_NAMED[name] for name in ("padded", "wasted", "operation", "tensor", "layout", "source"))
"""Of the tensors that live at the peak."""

GLANCE_FIELDS = (
    Field("moved", "bytes", of=lambda row: row.total_bytes),
    Field("padding", "ratio", of=lambda row: row.padding_ratio),
    Field("operation", of=lambda row: f"{row.op} {row.name}"),
    Field("from", "code", of=lambda row: row.from_layout),
    Field("to", "code", of=lambda row: row.to_layout),
    Field("why", of=lambda row: row.reason),
    Field("source", of=lambda row: place_text(row.source)),
)
CHANGE_FIELDS = (
    Field("what pays most", of=lambda change: change.what or change.op),
    Field("how", of=lambda change: change.how),
    Field("source", of=lambda change: place_text(change.source)),
)
"""What a notebook shows of rows and of changes that pay."""
