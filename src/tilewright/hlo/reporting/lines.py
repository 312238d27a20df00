"""A movement report, and the difference of two, as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator

from tilewright.hlo.reporting.difference import QUANTITIES, ReportDiff, RowChange
from tilewright.hlo.reporting.types import MovementRow, PaddedTensor, Peak, ReportData, Suggestion
from tilewright.render import bytes_text, count_text, percent_text, ratio_text, seconds_text
from tilewright.render.formats import place_text

_INDENT = 9
_SMALL = 4096
_SPACES = {
    0: "main memory",
    1: "vector memory S(1)",
    2: "sync flags S(2)",
    3: "common memory S(3)",
    5: "host memory S(5)",
    6: "scalar memory S(6)",
}
_SIGNS = {"new": "+", "gone": "-", "changed": "~", "same": " "}


def report_head(report: ReportData) -> Iterator[str]:
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


def change_number(change: Suggestion) -> str:
    """The rule, its factor and what kind of number that is: ``gqa-decode, 57.8x confirmed``."""
    if change.factor is None:
        return change.rule if change.kind != "unpriced" else f"{change.rule}, unpriced"
    return f"{change.rule}, {ratio_text(change.factor)} {change.kind}"


def totals(report: ReportData) -> str:
    """What moves and what is padding, in one line."""
    moved = f"{bytes_text(report.moved_bytes)} moved by {_number(len(report.ranked()), 'operation')}"
    return f"{moved}, {bytes_text(report.wasted_bytes)} of padding in {_number(len(report.wasteful()), 'tensor')}"


def space_text(space: int) -> str:
    """What a memory space is called: ``S(1)`` is vector memory on a TPU."""
    return _SPACES.get(space, f"memory space S({space})")


def _peak(peak: Peak) -> str:
    peak_bytes = f"{space_text(peak.memory_space)} {bytes_text(peak.padded_bytes)}"
    place = f"{peak.at} in {peak.path.rpartition(' > ')[2]}"
    return f"peak of {peak_bytes}, {percent_text(peak.padding_share)} of it padding, at {place}"


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else plural}"


def report_lines(
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
        yield from _by_padding(report, top)
    else:
        ranked = report.slowest() if by == "time" else report.ranked()
        folded = not transfers and "transfer" not in only
        rows = [row for row in ranked if (row.category in only if only else not folded or row.category != "transfer")]
        if by == "time" and report.profile is not None:
            yield from _by_measured(report, rows, top, width)
        else:
            yield from _by_moved(report, rows, top, width, by == "time")
        if folded and not only and report.transfers:
            yield "dim", f"     {transfers_text(report)} (--transfers lists them)"


def transfers_text(report: ReportData) -> str:
    """How many prefetches and write-backs there are, what they move, and how long they keep others waiting."""
    rows = report.transfers
    words = f"{_number(len(rows), 'prefetch or write-back' if len(rows) == 1 else 'prefetches and write-backs', '')}"
    words += f" of {bytes_text(sum(row.total_bytes for row in rows))}"
    waits = sum(row.modelled_us or 0.0 for row in rows)
    return f"{words}, {seconds_text(waits / 1e6)} of waiting for them" if report.time is not None else words


def _by_moved(
    report: ReportData, rows: list[MovementRow], top: int, width: int, by_time: bool
) -> Iterator[tuple[str, str]]:
    """By bytes, or by modelled time; where there is a model, both stand there, the one that ranks first."""
    many, vectors = any(row.runs != 1 for row in rows), any(row.registers_after is not None for row in rows)
    head = "   # " + ("time" if by_time else "moved").rjust(9) + "  share"
    head += ("      moved" if by_time else "      time" if report.time else "") + "  padding"
    yield "bold", head + ("    runs" if many else "") + ("      registers" if vectors else "") + "  operation"
    for number, row in enumerate(rows[:top], 1):
        moved, time = bytes_text(row.total_bytes), _time(row.modelled_us)
        if by_time and report.time:
            share = "" if row.modelled_us is None else percent_text(row.modelled_us / (report.time.kernels_us or 1.0))
            figures = f"{time:>9} {share:>6}  {moved:>9}"
        else:
            figures = f"{moved:>9} {percent_text(row.total_bytes / report.moved_bytes):>6}"
            figures += f" {time:>9}" if report.time else ""
        figures += f"  {ratio_text(row.padding_ratio):>7}"
        figures += f" {_runs(row):>7}" if many else ""
        figures += f" {_registers(row):>14}" if vectors else ""
        yield from _row(report, number, figures, row, width)
    rest = rows[top:]
    left = (
        _time(sum(row.modelled_us or 0.0 for row in rest)) if by_time else bytes_text(sum(r.total_bytes for r in rest))
    )
    yield from _rest(len(rows), top, left, "no operation moves data for layout's sake")


def _time(microseconds: float | None) -> str:
    return "" if microseconds is None else seconds_text(microseconds / 1e6)


def _by_measured(report: ReportData, rows: list[MovementRow], top: int, width: int) -> Iterator[tuple[str, str]]:
    """By measured time. Where there is a model, one run as measured and as modelled stand side by side."""
    total, modelled = report.profile.total_us if report.profile else 0.0, report.time is not None
    beside = "   one run  modelled" if modelled else ""
    yield "bold", "   # " + "time".rjust(9) + f"  share   events{beside}      moved  operation"
    for number, row in enumerate(rows[:top], 1):
        time = row.measured_us or 0.0
        figures = f"{seconds_text(time / 1e6):>9} {percent_text(time / total):>6} {count_text(row.measured_runs):>8}"
        if modelled:
            once = None if row.modelled_us is None else row.modelled_us / row.runs
            figures += f" {_time(time / (row.measured_runs or 1)):>9} {_time(once):>9}"
        yield from _row(report, number, f"{figures}  {bytes_text(row.total_bytes):>9}", row, width)
    left = sum(row.measured_us or 0.0 for row in rows[top:])
    yield from _rest(len(rows), top, seconds_text(left / 1e6), "no operation that moves data has a measured time")


def _by_padding(report: ReportData, top: int) -> Iterator[tuple[str, str]]:
    tensors = report.wasteful()
    yield "bold", "   # " + "wasted".rjust(9) + "   size  padding  tensor"
    for number, tensor in enumerate(tensors[:top], 1):
        figures = f"{bytes_text(tensor.wasted_bytes):>9} {bytes_text(tensor.padded_bytes):>8} "
        figures += f"{ratio_text(tensor.padding_ratio):>6}"
        yield "", f"{number:>4} {figures}  {_operation(tensor)}"
        yield "cyan", " " * _INDENT + tensor.layout
    left = sum(tensor.wasted_bytes for tensor in tensors[top:])
    yield from _rest(len(tensors), top, bytes_text(left), "no tensor has padding")


def _rest(count: int, top: int, left: str, nothing: str) -> Iterator[tuple[str, str]]:
    if count > top:
        yield "dim", f"     {count - top} more with {left} (--top {count} shows all)"
    if not count:
        yield "", f"     {nothing}"


def _runs(row: MovementRow) -> str:
    return f"{'' if row.runs_known else '≥ '}{count_text(row.runs)}×"


def _registers(row: MovementRow) -> str:
    if row.registers_before is None or row.registers_after is None:
        return ""
    return f"{count_text(row.registers_before)} → {count_text(row.registers_after)}"


def _operation(row: MovementRow | PaddedTensor) -> str:
    return f"{_name(row)}  {_place(row)}".rstrip()


def _name(row: MovementRow | PaddedTensor) -> str:
    core = f"  on {row.core}" if isinstance(row, MovementRow) and row.core else ""
    return f"{row.op} {row.name}{core}"


def _place(row: MovementRow | PaddedTensor) -> str:
    return place_text(row.source) or (f"({row.op_name})" if isinstance(row, MovementRow) and row.op_name else "")


def _row(report: ReportData, number: int, figures: str, row: MovementRow, width: int) -> Iterator[tuple[str, str]]:
    first, place = f"{number:>4} {figures}  {_name(row)}", _place(row)
    if place and len(first) + 2 + len(place) <= width:
        yield "", f"{first}  {place}"
    else:
        yield from (("", line) for line in (first, " " * _INDENT + place) if line.strip())
    layouts = row.layouts if row.category != "compute" else f"-> {row.to_layout}"
    for line in _folded(layouts, width - _INDENT):
        yield "cyan", " " * _INDENT + line
    for line in textwrap.wrap(row.reason, width - _INDENT, break_long_words=False):
        yield "dim", " " * _INDENT + line
    change = report.suggestion_of(row)
    if change is not None and not change.own:
        text = f"{change_number(change)}: {change.how}"
        yield from (("green", " " * _INDENT + line) for line in textwrap.wrap(text, width - _INDENT))
    if row.trips:
        trips = " × ".join("?" if count is None else count_text(count) for count in row.trips)
        yield from (("dim", " " * _INDENT + line) for line in textwrap.wrap(f"in {row.path}; trips {trips}", width - 9))


def _folded(text: str, width: int) -> list[str]:
    """One line if it fits, else the result's layout on a line of its own."""
    if len(text) <= width or " -> " not in text:
        return [text]
    before, _, after = text.partition(" -> ")
    return [before, f"-> {after}"]


def diff_lines(diff: ReportDiff, top: int = 20, width: int = 100) -> Iterator[tuple[str, str]]:
    """(style, line) for a terminal: the totals of both sides, then the rows that differ, largest change first."""
    yield "bold", " " * 14 + "before".rjust(10) + "after".rjust(12) + "change".rjust(12)
    for key, words in QUANTITIES.items():
        before, after = diff.totals[key]
        yield "", f"{words:<14}{bytes_text(before):>10}{bytes_text(after):>12}{_growth(before, after):>12}"
    yield "dim", f"rows: {diff.counts_text}"
    rows = diff.ranked()
    if rows:
        yield "", ""
    for row in rows[:top]:
        yield from _change(row, width)
    if len(rows) > top:
        yield "dim", f"     {len(rows) - top} more (--top {len(rows)} shows all)"


def _growth(before: int, after: int) -> str:
    if before == after:
        return "="
    return f"{(after - before) / before:+.1%}" if before else "new"


def _change(row: RowChange, width: int) -> Iterator[tuple[str, str]]:
    style = {"new": "red", "gone": "green"}.get(row.status, "yellow")
    sign = "+" if row.change > 0 else "-" if row.change < 0 else " "
    yield (
        style,
        f"{_SIGNS[row.status]} {sign}{bytes_text(abs(row.change)):>9}  {row.status:<7}  {_operation(row.sides[0])}",
    )
    for number, text in enumerate(row.layouts):
        for line in _folded(text, width - _INDENT - 5):
            yield "cyan", " " * _INDENT + ("now: " if number else "") + line
    if row.status == "changed" and len(row.layouts) == 1:
        yield "dim", " " * _INDENT + _why_changed(row)


def _why_changed(row: RowChange) -> str:
    a, b = row.before, row.after
    if a is None or b is None:
        return ""
    if a.runs != b.runs:
        return f"runs {_runs(a)}, now {_runs(b)}"
    if a.bitcast != b.bitcast:
        return "no longer a bitcast" if a.bitcast else "a bitcast now"
    return f"{bytes_text(a.total_bytes)}, now {bytes_text(b.total_bytes)}"
