"""Two movement reports compared: rows matched by what they are and where they come from, never by their names.

Compilers renumber operations in every build. So rows are paired by operation, source line and shape; what is left by
operation and source line (its shape changed); then by operation, source file and shape (lines were added above it);
last by operation and shape alone (the file was renamed). Of a source only the file's name counts, not where it lies.
Equal keys pair in the order of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Literal, get_args

from tilewright.hlo.comparing.steps import StepDiff
from tilewright.hlo.reporting.lines import INDENT, folded, operation_text, runs_text
from tilewright.hlo.reporting.types import MovementRow, ReportData
from tilewright.hlo.timing.step import lanes
from tilewright.render import Column, Field, Html, Page, Step, badge, bytes_text, steps, table
from tilewright.render.compare import matched
from tilewright.render.formats import place_text
from tilewright.render.markup import element, escape, join
from tilewright.render.page import Tone, note
from tilewright.render.tables import cells, change_cell, change_text

Status = Literal["new", "gone", "changed", "same"]
#: The quantities a reader is shown, and what they are called.
QUANTITIES = {"moved_bytes": "moved", "wasted_bytes": "padding", "padded_bytes": "all tensors", "peak_bytes": "peak"}
#: How a pair is shown: its sign and style on the terminal, its tone on a page.
_LOOKS: dict[str, tuple[str, str, Tone]] = {
    "new": ("+", "red", "bad"), "gone": ("-", "green", "good"), "changed": ("~", "yellow", "warn"),
}  # fmt: skip
_COMPARED = ("from_layout", "to_layout", "moved_bytes", "hidden_bytes", "bitcast", "runs", "core")


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row before and after; None on the side where it is not."""

    status: Status
    before: MovementRow | None
    after: MovementRow | None

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes moved before and after, over all runs."""
        return self.before.total_bytes if self.before else 0, self.after.total_bytes if self.after else 0

    @property
    def change(self) -> int:
        """Bytes moved after, less bytes moved before."""
        return self.moved[1] - self.moved[0]

    @property
    def sides(self) -> list[MovementRow]:
        """The row as it is now, and as it was, where it is there."""
        return [row for row in (self.after, self.before) if row is not None]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        before, after = (row and row.to_json() for row in (self.before, self.after))
        return {"status": self.status, "change": self.change, "before": before, "after": after}

    @property
    def layouts(self) -> list[str]:
        """From which layout to which: before, and after where that differs."""
        return list(dict.fromkeys(row.layouts for row in reversed(self.sides)))


@dataclass(frozen=True)
class ReportDiff:
    """``rows``: the pairs in the order of the program after, then those that are gone. Rows inside fusions, which move
    nothing, are not compared.
    """

    before: ReportData
    after: ReportData
    rows: tuple[RowChange, ...]

    @cached_property
    def totals(self) -> dict[str, tuple[int, int]]:
        """Quantity -> its value before and after."""
        sides = [_quantities(self.before), _quantities(self.after)]
        return {name: (sides[0][name], sides[1][name]) for name in sides[0]}

    def count(self, status: Status) -> int:
        """How many pairs have this status."""
        return sum(row.status == status for row in self.rows)

    @property
    def counts_text(self) -> str:
        """``1 new, 0 gone, 2 changed, 14 same``."""
        return ", ".join(f"{self.count(status)} {status}" for status in get_args(Status))

    def ranked(self, top: int | None = None) -> list[RowChange]:
        """The pairs that differ and move bytes on a side, largest change first."""
        moving = [row for row in self.rows if row.status != "same" and any(side.moved_bytes for side in row.sides)]
        return sorted(moving, key=lambda row: -abs(row.change))[:top]

    def to_json(self) -> dict[str, Any]:
        """Plain values; rows that are the same are counted, not listed."""
        return {
            "schema_version": 1,
            "kind": "movement_diff",
            "before": _head(self.before),
            "after": _head(self.after),
            "totals": {name: {"before": a, "after": b} for name, (a, b) in self.totals.items()},
            "counts": {status: self.count(status) for status in get_args(Status)},
            "rows": [row.to_json() for row in self.rows if row.status != "same"],
        }

    def regressions(self, allowed: float) -> list[str]:
        """What has grown by more than the share ``allowed`` (0.05 is 5 %): bytes moved, bytes of padding, peak memory.

        Each is judged by itself; from 0 bytes every growth counts. A line for each that failed.
        """
        names = {"moved_bytes": "bytes moved", "wasted_bytes": "bytes of padding", "peak_bytes": "peak memory"}
        failed = []
        for key, words in names.items():
            old, new = self.totals[key]
            if new > old * (1 + allowed):
                growth = f"+{(new - old) / old:.1%}" if old else "from nothing"
                failed.append(f"{words} {growth}: {old} -> {new}")
        return failed

    def to_html(self, upgrade: StepDiff | None = None) -> str:
        """One self-contained page: what got slower and faster, where that is known; totals; every row that differs."""
        sides = (("before", self.before), ("after", self.after))
        facts = [(name, " of ".join(filter(None, (side.program, place_text(side.source))))) for name, side in sides]
        facts += [("rows", self.counts_text), ("written", date.today().isoformat())]
        if upgrade is not None:
            facts.append(("target", upgrade.after.target))
        title = "What changed: time and data movement" if upgrade is not None else "Data movement: what changed"
        page = Page(title, upgrade.lines(0)[0] if upgrade is not None else self.counts_text, facts=facts)
        page.section("look", "What to look at", *_look_at(self))
        if upgrade is not None:
            changes = table(_CHANGES, cells(_CHANGES, upgrade.changes), limit=_MOST_ROWS,
                            empty="no operation takes longer or less")  # fmt: skip
            notes = map(note, upgrade.summary()[1:])  # peaks and units that changed
            page.section("time", "What got slower, what faster", *notes, changes)
            both = ("Lanes before", upgrade.before), ("Lanes after", upgrade.after)
            page.section("lanes", "Lanes before and after", *lanes(both))
        pairs = [(words, *self.totals[key]) for key, words in QUANTITIES.items()]
        totals = [(words, before, after, change_cell(before, after, "bytes")) for words, before, after in pairs]
        page.section("totals", "Totals", table(_TOTALS, totals))
        rows = table(_ROWS, cells(_ROWS, self.ranked()), limit=_MOST_ROWS, empty="nothing differs")
        page.section("rows", "Operations that differ", rows)
        page.data("diff", self.to_json() | ({"time": upgrade.to_json()} if upgrade is not None else {}))
        return page.html()

    def lines(self, top: int = 20, width: int = 100) -> Iterator[tuple[str, str]]:
        """(style, line) for a terminal: the totals of both sides, then the rows that differ, largest change first."""
        yield "bold", " " * 14 + "before".rjust(10) + "after".rjust(12) + "change".rjust(12)
        for key, words in QUANTITIES.items():
            before, after = self.totals[key]
            growth = "=" if before == after else f"{(after - before) / before:+.1%}" if before else "new"
            yield "", f"{words:<14}{bytes_text(before):>10}{bytes_text(after):>12}{growth:>12}"
        yield "dim", f"rows: {self.counts_text}"
        rows = self.ranked()
        if rows:
            yield "", ""
        for row in rows[:top]:
            yield from _change_lines(row, width)
        if len(rows) > top:
            yield "dim", f"     {len(rows) - top} more (--top {len(rows)} shows all)"


def _head(report: ReportData) -> dict[str, Any]:
    return {"name": report.program, "kind": report.kind, "target": report.target, "predicted": report.predicted}


def _quantities(report: ReportData) -> dict[str, int]:
    before, after = report.registers
    return {
        "moved_bytes": report.moved_bytes,
        "wasted_bytes": report.wasted_bytes,
        "padded_bytes": report.padded_bytes,
        "peak_bytes": report.peak.padded_bytes if report.peak else 0,
        "registers": before + after,
    }


def diff_reports(before: ReportData, after: ReportData) -> ReportDiff:
    """Pair the rows of two reports; linear in their number.

    >>> from tilewright.hlo import load, report
    >>> text = "HloModule m\\nENTRY e {\\n p = f32[4,2]{1,0} parameter(0)\\n ROOT c = f32[4,2]{0,1} copy(p)\\n}"
    >>> diff = diff_reports(report(load(text)), report(load(text.replace("{0,1}", "{1,0}"))))
    >>> [(row.status, row.change) for row in diff.rows], diff.totals["moved_bytes"]
    ([('changed', 0)], (64, 64))
    """
    left, right = ([row for row in side.rows if not row.in_fusion and row.category != "compute"]
                   for side in (before, after))  # fmt: skip
    return ReportDiff(before, after, tuple(_change(*pair) for pair in matched(left, right, _KEYS)))


def _shape(row: MovementRow) -> str:
    return row.to_layout.partition("{")[0]


def _source(row: MovementRow) -> str:
    """``train.py:7``: two checkouts of one program lie in two places."""
    return row.source.replace("\\", "/").rpartition("/")[2]


#: What rows are paired by, the surest first; None pairs with nothing.
_KEYS: tuple[Callable[[MovementRow], Hashable], ...] = (
    lambda row: (row.op, _source(row), _shape(row)),
    lambda row: (row.op, _source(row)) if row.source else None,
    lambda row: (row.op, _source(row).rpartition(":")[0], _shape(row)),
    lambda row: (row.op, row.from_layout, row.to_layout),
)


def _change(before: MovementRow | None, after: MovementRow | None) -> RowChange:
    if before is None or after is None:
        return RowChange("new" if before is None else "gone", before, after)
    same = all(getattr(before, name) == getattr(after, name) for name in _COMPARED)
    return RowChange("same" if same else "changed", before, after)


_MOST_ROWS = 2000
_MOST_STEPS = 3

_TOTALS = (Column("quantity"), Column("before", "bytes"), Column("after", "bytes"), Column("change", "bytes"))
_ROWS = (
    Field("change", "bytes", "bytes moved after, less before, over all runs",
          lambda row: change_cell(row.moved[0], row.moved[1], "bytes")),
    Field("status", of=lambda row: badge(row.status, _LOOKS[row.status][2])),
    Field("operation", "text", "what it is and what it is called",
          lambda row: Html(escape(row.sides[0].op) + " " + element("code", row.sides[0].name))),
    Field("layouts", "text", "before, and below it after where that differs",
          lambda row: join([element("code", text) for text in row.layouts], Html("<br>now "))),
    Field("where", "text", "source line, and the path of callers",
          lambda row: join([element("code", text) for text in (place_text(row.sides[0].source), row.sides[0].path)
                            if text], " ")),
)  # fmt: skip
_CHANGES = (
    Field("change", "seconds", "modelled, all runs of a step", lambda c: change_cell(c.before, c.after, "seconds")),
    Field("before", "seconds", of=lambda c: c.before),
    Field("after", "seconds", of=lambda c: c.after),
    Field("cause", of=lambda c: badge(c.cause, "bad" if c.seconds > 0 else "good")),
    Field("what", of=lambda c: c.detail),
    Field("line", "code", of=lambda c: place_text(c.source)),
)


def _look_at(diff: ReportDiff) -> list[Html]:
    """The verdict in a sentence, then the rows that grew most, or those that shrank."""
    before, after = diff.totals["moved_bytes"]
    tone: Tone = "plain" if before == after else "good" if after < before else "bad"
    said = note(f"Bytes moved: {bytes_text(before)} before, {bytes_text(after)} after, "
                f"{change_text(before, after, 'bytes')}.", tone=tone)  # fmt: skip
    worse = [row for row in diff.ranked() if row.change > 0]
    rows = worse or [row for row in diff.ranked() if row.change < 0]
    return [said, steps(_step(row) for row in rows[:_MOST_STEPS])]


def _step(row: RowChange) -> Step:
    operation = row.sides[0]
    where = f", {place_text(operation.source)}" if operation.source else ""
    tone: Tone = "bad" if row.change > 0 else "good"
    worth = f"{'+' if row.change > 0 else ''}{bytes_text(row.change)}"
    why = " now ".join(row.layouts)
    return Step(f"{row.status}: {operation.op} {operation.name}{where}", why=why, worth=worth, tone=tone)


# On the terminal.


def _change_lines(row: RowChange, width: int) -> Iterator[tuple[str, str]]:
    sign, style, _ = _LOOKS[row.status]
    more = "+" if row.change > 0 else "-" if row.change < 0 else " "
    moved, operation = bytes_text(abs(row.change)), operation_text(row.sides[0])
    yield style, f"{sign} {more}{moved:>9}  {row.status:<7}  {operation}"
    for number, text in enumerate(row.layouts):
        for line in folded(text, width - INDENT - 5):
            yield "cyan", " " * INDENT + ("now: " if number else "") + line
    if row.before and row.after and len(row.layouts) == 1:
        yield "dim", " " * INDENT + _why_changed(row.before, row.after)


def _why_changed(a: MovementRow, b: MovementRow) -> str:
    if a.runs != b.runs:
        return f"runs {runs_text(a)}, now {runs_text(b)}"
    if a.bitcast != b.bitcast:
        return "no longer a bitcast" if a.bitcast else "a bitcast now"
    return f"{bytes_text(a.total_bytes)}, now {bytes_text(b.total_bytes)}"
