"""The difference of two movement reports as a page."""

from __future__ import annotations

from datetime import date

from tilewright.hlo.reporting._report_diff import ReportDiff, RowChange
from tilewright.render import Column, Html, Page, Tone, badge, element, escape, join, place_text, table

__all__ = ["diff_html"]

_MOST_ROWS = 2000
_TOTALS = (Column("quantity"), Column("before", "bytes"), Column("after", "bytes"), Column("change", "bytes"))
_ROWS = (
    Column("change", "bytes", "bytes moved after, less before, over all runs"),
    Column("status", "text"),
    Column("operation", "text", "what it is and what it is called"),
    Column("layouts", "text", "before, and below it after where that differs"),
    Column("where", "text", "source line, and the path of callers"),
)
_TONES: dict[str, Tone] = {"new": "bad", "gone": "good", "changed": "warn"}
_WORDS = {"moved_bytes": "moved", "wasted_bytes": "padding", "padded_bytes": "all tensors", "peak_bytes": "peak"}


def diff_html(diff: ReportDiff) -> str:
    """One self-contained page: totals, and every row that differs."""
    counts = ", ".join(f"{diff.count(status)} {status}" for status in ("new", "gone", "changed", "same"))
    sides = (("before", diff.before), ("after", diff.after))
    facts = [(name, " of ".join(filter(None, (s.program, place_text(s.source))))) for name, s in sides]
    facts += [("rows", counts), ("written", date.today().isoformat())]
    page = Page("Data movement: what changed", counts, facts=facts)
    totals = [(words, *diff.totals[key], diff.totals[key][1] - diff.totals[key][0]) for key, words in _WORDS.items()]
    page.section("totals", "Totals", table(_TOTALS, totals))
    rows = [_cells(row) for row in diff.ranked()]
    page.section("rows", "Operations that differ", table(_ROWS, rows, limit=_MOST_ROWS, empty="nothing differs"))
    page.data("diff", diff.to_json())
    return page.html()


def _cells(row: RowChange) -> tuple[object, ...]:
    held = row.after or row.before
    if held is None:
        return ()
    sides = {f"{side.from_short} -> {side.to_layout}": None for side in (row.before, row.after) if side}
    layouts = join([element("code", text) for text in sides], Html("<br>now "))
    where = join([element("code", text) for text in (place_text(held.source), held.path) if text], " ")
    what = Html(escape(held.op) + " " + element("code", held.name))
    return (row.change, badge(row.status, _TONES.get(row.status, "plain")), what, layouts, where)
