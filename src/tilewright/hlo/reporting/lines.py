"""What is shown of a movement report's rows and tensors, each value once, and the report as lines for a terminal.

The page shows all columns, its peaks, a notebook and the terminal some of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tilewright.hlo.program import title
from tilewright.hlo.reporting.types import MovementRow, PaddedTensor, ReportData, Suggestion
from tilewright.hlo.timing.step import exchanges_text
from tilewright.render import Field, bytes_text, count_text, percent_text, seconds_text
from tilewright.render.formats import Kind, counted, format_value, place_text, ratio_text

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
    yield Field("runs", "text", "over all callers and trips; ≥ where a trip count is unknown", runs_text, below=True)
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
    yield Field("name", "code", "", title, below=True)
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
    yield Field("equal ones", "code", of=lambda r: ", ".join(r.also) or None, shown=False)


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
    Field("tensor", "code", "", title, below=True),
    Field("layout", "code", "", lambda t: t.layout, 22),
    Field("memory", "text", "memory space", lambda t: space_text(t.memory_space), below=True, facet=True),
    Field("source", "code", "your line", lambda t: place_text(t.source), 15, tail=True, facet=True),
    Field("path", "code", "the computations from the entry to it", lambda t: t.path, below=True, tail=True),
)
_NAMED = {field.heading: field for field in TENSOR_FIELDS}
PEAK_FIELDS = tuple(_NAMED[name] for name in ("padded", "wasted", "operation", "tensor", "layout", "source"))
"""Of the tensors that live at the peak."""

GLANCE = ("moved", "padding", "operation", "name", "from", "to", "why", "source")
"""Of the columns of a report's rows, those that a notebook shows."""

CHANGE_FIELDS = (
    Field("what pays most", of=lambda change: change.what or change.op),
    Field("how", of=lambda change: change.how),
    Field("source", of=lambda change: place_text(change.source)),
)
"""What a notebook shows of changes that pay."""


INDENT = 9
_SMALL = 4096


def head_lines(report: ReportData) -> Iterator[str]:
    """The program and what it moves; the kinds of operation and of movement, if there are several; the peaks."""
    if report.time is not None and report.time.exchange_us and report.time.device_us:
        exposed = percent_text(report.time.exposed_us / report.time.device_us)
        holds = f"; a device holds {bytes_text(report.peak.padded_bytes)}" if report.peak is not None else ""
        yield f"a step {seconds_text(report.time.device_us / 1e6)}, {exposed} of it exposed communication{holds}"
    layouts = f"predicted for {report.target}" if report.predicted else "its own layouts"
    layouts += ", before optimisation" if report.unoptimized else ""
    yield f"{report.program} ({layouts}): {totals(report)}"
    for moved in (report.moved_by_op, report.moved_by_category):
        parts = [f"{name} {bytes_text(count)}" for name, count in moved.items() if count]
        if len(parts) > 1:
            yield ", ".join(parts)
    for peak in report.peaks:
        if peak.padded_bytes >= _SMALL or not peak.memory_space:
            peak_bytes = f"{space_text(peak.memory_space)} {bytes_text(peak.padded_bytes)}"
            yield f"peak of {peak_bytes}, {peak.shares}, at {peak.at} in {peak.path.rpartition(' > ')[2]}"
    if report.profile is not None:
        yield f"measured step: {seconds_text(report.measured_us / 1e6)}, by the profile's runs of each operation"
    if report.time is not None:
        time = report.time
        call = f", {seconds_text(time.call_us / 1e6)} beside it for the call" if time.call_us else ""
        moving = f", {seconds_text(report.modelled_us / 1e6)} in operations that move" if report.modelled_us else ""
        yield f"modelled step on {report.target}: {seconds_text(time.device_us / 1e6)}{moving}{call}"
        if exchanges := exchanges_text(time.exchange_us / 1e6, time.exposed_us / 1e6, time.device_us / 1e6):
            yield exchanges


def change_lines(report: ReportData, top: int = 3, width: int = 100) -> Iterator[tuple[str, str]]:
    """(style, line) for a terminal: the changes that pay most, and what a dump's step waits for, the most first."""
    for number, change in enumerate(report.suggestions[:top], 1):
        if number == 1:
            yield "bold", "   # " + "saves".rjust(9) + "  what pays most"
        place = f"{place_text(change.source)}  " if change.source else ""
        rule = "" if change.own else f"; {change_number(change)}"
        words = f"{place}{change.what or change.op}{rule}: {change.how}"
        first, *more = textwrap.wrap(words, width - 16, break_long_words=False, break_on_hyphens=False)
        yield "", f"{number:>4} {change.saved:>9}  {first}"
        yield from (("", " " * 16 + line) for line in more)
    if report.time is not None and report.predicted and not any(each.saved_us for each in report.suggestions):
        yield "", "     no change is known that takes a hundredth off the modelled step"
    if report.time is not None and not report.predicted and report.time.device_us > report.time.call_us:
        yield "bold", "     what the step waits for" + ", by the model" * (report.profile is not None)
        for sentence in report.time.advice:
            wrapped = textwrap.wrap(sentence, width - 5, break_long_words=False, break_on_hyphens=False)
            yield from (("", " " * (5 + 2 * (number > 0)) + line) for number, line in enumerate(wrapped))


def totals(report: ReportData) -> str:
    """Bytes moved and bytes of padding, with how many operations and tensors, in one line."""
    moved = f"{bytes_text(report.moved_bytes)} moved by {counted(len(report.ranked()), 'operation')}"
    return f"{moved}, {bytes_text(report.wasted_bytes)} of padding in {counted(len(report.wasteful()), 'tensor')}"


def ranking_lines(
    report: ReportData,
    by: str = "moved",
    top: int = 20,
    width: int = 100,
    only: Collection[str] = (),
    transfers: bool = False,
) -> Iterator[tuple[str, str]]:
    """(style, line) for a terminal: a ranking ``by`` moved, padding or time, three or four lines to an entry.

    By time: measured where a profile was joined, else modelled. ``only``: the categories to rank (of rows; tensors have
    none), all if empty; ``transfers``: prefetches and write-backs stand among them, and not in one line behind them.
    """
    if by == "padding":
        tensors = report.alike.wasteful()
        yield "bold", _heads(_TENSOR_COLUMNS, "tensor")
        for number, tensor in enumerate(tensors[:top], 1):
            yield "", f"{_figures(number, _TENSOR_COLUMNS, tensor)}  {operation_text(tensor)}"
            yield "cyan", " " * INDENT + tensor.layout
        wasted = bytes_text(sum(tensor.wasted_bytes for tensor in tensors[top:]))
        yield from _rest(len(tensors), top, wasted, "no tensor has padding")
        return
    ranked = report.alike.slowest() if by == "time" else report.alike.ranked()
    folded = not transfers and "transfer" not in only
    rows = [row for row in ranked if (row.category in only if only else not folded or row.category != "transfer")]
    columns, nothing = tuple(_moved_columns(report, rows, by == "time")), "no operation moves data for layout's sake"
    rest = rows[top:]
    left = bytes_text(sum(row.total_bytes for row in rest))
    if by == "time":
        left = seconds_text(sum(row.modelled_us or 0.0 for row in rest) / 1e6)
        if report.profile is not None:
            columns = tuple(_measured_columns(report, report.profile.total_us))
            left = seconds_text(sum(row.measured_us or 0.0 for row in rest) / 1e6)
            nothing = "no operation that moves data has a measured time"
    yield "bold", _heads(columns, "operation")
    for number, row in enumerate(rows[:top], 1):
        yield from _row(report, _figures(number, columns, row), row, width)
    yield from _rest(len(rows), top, left, nothing)
    if folded and not only and report.transfers:
        yield "dim", f"     {transfers_text(report)} (--transfers lists them)"


_Column = tuple[str, Callable[[Any], str]]
"""Of a ranking: its heading, and a row's text, padded to one width with their distance from the column before."""


def _heads(columns: Sequence[_Column], last: str) -> str:
    return "   # " + "".join(head for head, _ in columns) + f"  {last}"


def _figures(number: int, columns: Sequence[_Column], row: object) -> str:
    return f"{number:>4} " + "".join(text(row) for _, text in columns)


def _rest(count: int, top: int, left: str, nothing: str) -> Iterator[tuple[str, str]]:
    if count > top:
        yield "dim", f"     {count - top} more with {left} (--top {count} shows all)"
    if not count:
        yield "", f"     {nothing}"


def transfers_text(report: ReportData) -> str:
    """How many prefetches and write-backs there are, what they move, and how long they keep others waiting."""
    rows = report.transfers
    words = counted(len(rows), "prefetch or write-back", "prefetches and write-backs")
    words += f" of {bytes_text(sum(row.total_bytes for row in rows))}"
    waits = sum(row.modelled_us or 0.0 for row in rows)
    return f"{words}, {seconds_text(waits / 1e6)} of waiting for them" if report.time is not None else words


def _column(heading: str, width: int, kind: Kind, of: Callable[[Any], object], gap: int = 1) -> _Column:
    """``gap``: blanks before the column of ``width``; None is written as nothing."""

    def text(row: object) -> str:
        value = of(row)
        return " " * gap + ("" if value is None else format_value(value, kind)).rjust(width)

    return heading.rjust(gap + width), text


def _moved_columns(report: ReportData, rows: list[MovementRow], by_time: bool) -> Iterator[_Column]:
    """By bytes, or by modelled time; where there is a model, both stand there, the one that ranks first."""
    kernels = (report.time.device_us if report.time else 0.0) or 1.0
    if by_time and report.time:
        yield _column("time", 9, "seconds", lambda r: seconds(r.modelled_us), 0)
        yield _column("share", 6, "percent", lambda r: None if r.modelled_us is None else r.modelled_us / kernels)
        yield _column("moved", 9, "bytes", lambda r: r.total_bytes, 2)
    else:
        yield _column("time" if by_time else "moved", 9, "bytes", lambda r: r.total_bytes, 0)
        yield _column("share", 6, "percent", lambda r: r.total_bytes / report.moved_bytes)
        if report.time:
            yield _column("time", 9, "seconds", lambda r: seconds(r.modelled_us))
    yield _column("padding", 7, "ratio", lambda r: r.padding_ratio, 2)
    if any(row.runs != 1 + len(row.also) for row in rows):
        yield _column("runs", 7, "text", runs_text)
    if any(row.registers_after is not None for row in rows):
        yield _column("registers", 14, "text", lambda r: "" if None in (r.registers_before, r.registers_after) else
                      f"{count_text(r.registers_before)} → {count_text(r.registers_after)}")  # fmt: skip


def _measured_columns(report: ReportData, total: float) -> Iterator[_Column]:
    """By measured time. Where there is a model, one run as measured and as modelled stand side by side."""
    yield _column("time", 9, "seconds", lambda r: (r.measured_us or 0.0) / 1e6, 0)
    yield _column("share", 6, "percent", lambda r: (r.measured_us or 0.0) / total)
    yield _column("events", 8, "count", lambda r: r.measured_runs)
    if report.time is not None:
        yield _column("one run", 9, "seconds", lambda r: (r.measured_us or 0.0) / (r.measured_runs or 1) / 1e6)
        yield _column(
            "modelled", 9, "seconds", lambda r: None if r.modelled_us is None else r.modelled_us / r.runs / 1e6
        )
    yield _column("moved", 9, "bytes", lambda r: r.total_bytes, 2)


_TENSOR_COLUMNS = (
    _column("wasted", 9, "bytes", lambda tensor: tensor.wasted_bytes, 0),
    ("   size  ", _column("", 8, "bytes", lambda tensor: tensor.padded_bytes)[1]),
    ("padding", _column("", 6, "ratio", lambda tensor: tensor.padding_ratio)[1]),
)


def runs_text(row: MovementRow) -> str:
    """``5×``, ``≥ 5×`` where a trip count is not known."""
    return f"{'' if row.runs_known else '≥ '}{count_text(row.runs)}×"


def operation_text(row: MovementRow | PaddedTensor) -> str:
    """What it is, what it is called, and its line."""
    return f"{_name(row)}  {_place(row)}".rstrip()


def _name(row: MovementRow | PaddedTensor) -> str:
    core = f"  on {row.core}" if isinstance(row, MovementRow) and row.core else ""
    return f"{row.op} {title(row)}{core}"


def _place(row: MovementRow | PaddedTensor) -> str:
    return place_text(row.source) or (f"({row.op_name})" if isinstance(row, MovementRow) and row.op_name else "")


def _row(report: ReportData, figures: str, row: MovementRow, width: int) -> Iterator[tuple[str, str]]:
    first, place = f"{figures}  {_name(row)}", _place(row)
    if place and len(first) + 2 + len(place) <= width:
        yield "", f"{first}  {place}"
    else:
        yield from (("", line) for line in (first, " " * INDENT + place) if line.strip())
    layouts = row.layouts if row.category != "compute" else f"-> {row.to_layout}"
    change = report.suggestion_of(row)
    texts = [("dim", textwrap.wrap(row.reason, width - INDENT, break_long_words=False))]
    if change is not None and not change.own:
        texts.append(("green", textwrap.wrap(f"{change_number(change)}: {change.how}", width - INDENT)))
    if row.trips:
        trips = " × ".join("?" if count is None else count_text(count) for count in row.trips)
        texts.append(("dim", textwrap.wrap(f"in {row.path}; trips {trips}", width - INDENT)))
    for style, lines in (("cyan", folded(layouts, width - INDENT)), *texts):
        yield from ((style, " " * INDENT + line) for line in lines)


def folded(text: str, width: int) -> list[str]:
    """One line if it fits, else the result's layout on a line of its own."""
    if len(text) <= width or " -> " not in text:
        return [text]
    before, _, after = text.partition(" -> ")
    return [before, f"-> {after}"]
