"""One description of a table, two faces: a sortable HTML table and a terminal table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilewright.render.formats import Kind, count_text, format_value, visible
from tilewright.render.markup import Html, Sortable, element, escape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

Better = Literal["less", "more", "neither"]
_LEFT = ("text", "code")
_SHORT = 24
"""Characters of a cell or heading that stays in one line, so that a narrow page scrolls a table before it folds it."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ===========  ================================================================================
    ``heading``  what stands above it
    ``kind``     how its values are written: text, code, count, bytes, seconds, ratio, percent, number
    ``note``     a longer explanation (shown on hover)
    ===========  ================================================================================

    Numbers are right aligned and sort by value; ``None`` is a dash and sorts last.
    """

    heading: str
    kind: Kind = "text"
    note: str = ""

    @property
    def numeric(self) -> bool:
        """Its values are numbers."""
        return self.kind not in _LEFT


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    limit: int = 2000,
    empty: str = "nothing to show",
) -> Html:
    """A table that sorts on a click and, from twelve rows up, filters. At most ``limit`` rows are written.

    A cell is a value (written by its column's kind, escaped) or :class:`Html`.
    """
    body = list(rows)
    if not body:
        return element("p", empty, class_="empty")
    head = element("tr", *(_head(column) for column in columns))
    lines = (element("tr", *(_cell(c, v) for c, v in zip(columns, row, strict=True))) for row in body[:limit])
    inner = element("table", element("thead", head), element("tbody", *lines), class_="sortable")
    above = element("figcaption", caption) if caption else ""
    tail = f"{count_text(len(body) - limit)} more rows are left out here"
    below = element("p", tail, class_="empty") if len(body) > limit else ""
    filterable = "" if len(body) >= 12 else None
    box = element("div", inner, class_="scroll", tabindex="0")
    return element("figure", above, box, below, class_="table", data_filter=filterable)


def change_text(before: float, after: float, kind: Kind) -> str:
    """The difference with its sign, and as a share of what was before.

    >>> change_text(1024, 512, "bytes"), change_text(0, 3, "count"), change_text(2, 2, "count")
    ('-512 B (-50.0 %)', '+3', 'same')
    """
    if before == after:
        return "same"
    change = after - before
    text = format_value(change, kind)
    share = f" ({change / abs(before):+.1%})".replace("%", " %") if before else ""
    return f"{'+' if change > 0 else ''}{text}{share}"


def change_cell(before: float | None, after: float | None, kind: Kind, *, better: Better = "less") -> Html:
    """A cell with the difference: green where it is for the better, red for the worse; "" where a side is unknown."""
    if before is None or after is None:
        return Sortable(Html(""), None)
    good = (after < before) == (better == "less")
    tone = "" if before == after or better == "neither" else "good" if good else "bad"
    return Sortable(element("span", change_text(before, after, kind), class_=f"change {tone}".strip()), after - before)


def _head(column: Column) -> Html:
    css = " ".join(["number"] * column.numeric + ["short"] * (len(column.heading) <= _SHORT // 2)) or None
    button = element("button", column.heading, type="button", title=column.note or None)
    return element("th", button, class_=css, scope="col", aria_sort="none")


def _cell(column: Column, value: object) -> Html:
    text = value if isinstance(value, Html) else escape(format_value(value, column.kind))
    if column.kind == "code" and value is not None:
        text = element("code", text)
    if column.kind in _LEFT:
        return element("td", text, class_="short" if len(text) <= _SHORT else None)
    return element("td", text, class_="number", data_sort=_sort_key(value))


def _sort_key(value: object) -> str:
    if isinstance(value, Sortable):
        return "" if value.key is None else repr(float(value.key))
    return "" if value is None or isinstance(value, str) else repr(float(value))  # type: ignore[arg-type]


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    console: Console | None = None,
) -> None:
    """The same table on the terminal (stdout unless a rich console is given). NO_COLOR is obeyed; nothing is cut.

    Away from a terminal the table is as wide as it needs to be, so that a pipe sees whole values.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.segment import Segment, Segments
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    face = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        justify = "left" if column.kind in _LEFT else "right"
        face.add_column(Text(column.heading), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        face.add_row(*(Text(visible(format_value(v, c.kind))) for c, v in zip(columns, row, strict=True)))
    width = console.width
    if not console.is_terminal:
        wide = console.options.update(max_width=100_000)
        console.width = max(width, Measurement.get(console, wide, face).maximum)
    for line in console.render_lines(face, pad=False):
        console.print(Segments([*_without_blanks(line), Segment.line()]), end="")
    console.width = width


def _without_blanks(line: Sequence[Segment]) -> list[Segment]:
    """The line without the blanks that fill its last column."""
    from rich.segment import Segment

    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []
