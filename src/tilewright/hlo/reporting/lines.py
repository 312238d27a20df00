"""A movement report as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tilewright.hlo.reporting.columns import change_number, seconds, space_text
from tilewright.hlo.reporting.types import MovementRow, PaddedTensor, Peak, ReportData
from tilewright.render import bytes_text, count_text, percent_text, seconds_text
from tilewright.render.formats import Kind, format_value, place_text

INDENT = 9
_SMALL = 4096


def head_lines(report: ReportData) -> Iterator[str]:
    """The program and what it moves; the kinds of operation and of movement, if there are several; the peaks."""
    layouts = f"predicted for {report.target}" if report.predicted else "its own layouts"
    layouts += ", before optimisation" if report.unoptimized else ""
    yield f"{report.program} ({layouts}): {totals(report)}"
    for moved in (report.moved_by_op, report.moved_by_category):
        parts = [f"{name} {bytes_text(count)}" for name, count in moved.items() if count]
        if len(parts) > 1:
            yield ", ".join(parts)
    for peak in report.peaks:
        if peak.padded_bytes >= _SMALL or not peak.memory_space:
            yield _peak(peak)
    if report.time is not None:
        time = report.time
        call = f", {seconds_text(time.call_us / 1e6)} of it for the call" if time.call_us else ""
        moving = f", {seconds_text(report.modelled_us / 1e6)} in operations that move" if report.modelled_us else ""
        yield f"modelled step on {report.target}: {seconds_text(time.step_us / 1e6)}{call}{moving}"


def change_lines(report: ReportData, top: int = 3, width: int = 100) -> Iterator[tuple[str, str]]:
    """(style, line) for a terminal: the changes that pay most; nothing where there is none."""
    for number, change in enumerate(report.suggestions[:top], 1):
        if number == 1:
            yield "bold", "   # " + "saves".rjust(9) + "  what pays most"
        saved = seconds_text(change.saved_us / 1e6) if change.saved_us else bytes_text(change.saved_bytes)
        place = f"{place_text(change.source)}  " if change.source else ""
        rule = "" if change.own else f"; {change_number(change)}"
        words = f"{place}{change.what or change.op}{rule}: {change.how}"
        first, *more = textwrap.wrap(words, width - 16, break_long_words=False, break_on_hyphens=False)
        yield "", f"{number:>4} {saved:>9}  {first}"
        yield from (("", " " * 16 + line) for line in more)


def totals(report: ReportData) -> str:
    """What moves and what is padding, in one line."""
    moved = f"{bytes_text(report.moved_bytes)} moved by {_number(len(report.ranked()), 'operation')}"
    return f"{moved}, {bytes_text(report.wasted_bytes)} of padding in {_number(len(report.wasteful()), 'tensor')}"


def _peak(peak: Peak) -> str:
    peak_bytes = f"{space_text(peak.memory_space)} {bytes_text(peak.padded_bytes)}"
    place = f"{peak.at} in {peak.path.rpartition(' > ')[2]}"
    return f"peak of {peak_bytes}, {percent_text(peak.padding_share)} of it padding, at {place}"


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else plural}"


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
        tensors = report.wasteful()
        yield "bold", _heads(_TENSOR_COLUMNS, "tensor")
        for number, tensor in enumerate(tensors[:top], 1):
            yield "", f"{_figures(number, _TENSOR_COLUMNS, tensor)}  {operation_text(tensor)}"
            yield "cyan", " " * INDENT + tensor.layout
        wasted = bytes_text(sum(tensor.wasted_bytes for tensor in tensors[top:]))
        yield from _rest(len(tensors), top, wasted, "no tensor has padding")
        return
    ranked = report.slowest() if by == "time" else report.ranked()
    folded = not transfers and "transfer" not in only
    rows = [row for row in ranked if (row.category in only if only else not folded or row.category != "transfer")]
    columns, nothing = tuple(_moved_columns(report, rows, by == "time")), "no operation moves data for layout's sake"
    rest = rows[top:]
    left = bytes_text(sum(row.total_bytes for row in rest))
    if by == "time":
        left = _time(sum(row.modelled_us or 0.0 for row in rest))
        if report.profile is not None:
            columns = tuple(_measured_columns(report, report.profile.total_us))
            left = _time(sum(row.measured_us or 0.0 for row in rest))
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
    words = f"{_number(len(rows), 'prefetch or write-back' if len(rows) == 1 else 'prefetches and write-backs', '')}"
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
    kernels = (report.time.kernels_us if report.time else 0.0) or 1.0
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
    if any(row.runs != 1 for row in rows):
        yield _column("runs", 7, "text", runs_text)
    if any(row.registers_after is not None for row in rows):
        yield _column("registers", 14, "text", _registers)


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


def _time(microseconds: float | None) -> str:
    return "" if microseconds is None else seconds_text(microseconds / 1e6)


def runs_text(row: MovementRow) -> str:
    """``5×``, ``≥ 5×`` where a trip count is not known."""
    return f"{'' if row.runs_known else '≥ '}{count_text(row.runs)}×"


def _registers(row: MovementRow) -> str:
    if row.registers_before is None or row.registers_after is None:
        return ""
    return f"{count_text(row.registers_before)} → {count_text(row.registers_after)}"


def operation_text(row: MovementRow | PaddedTensor) -> str:
    """What it is, what it is called, and its line."""
    return f"{_name(row)}  {_place(row)}".rstrip()


def _name(row: MovementRow | PaddedTensor) -> str:
    core = f"  on {row.core}" if isinstance(row, MovementRow) and row.core else ""
    return f"{row.op} {row.name}{core}"


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
