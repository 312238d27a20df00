"""Tables, described once by their columns: sortable HTML, the terminal, a notebook, and an explorer of many rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tilewright.render.formats import Kind, count_text, format_value, visible
from tilewright.render.markup import Html, Sortable, element, escape, join, json_for_script

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

Better = Literal["less", "more", "neither"]
_LEFT = ("text", "code")
_NOTEBOOK_ROWS = 16
_STATIC_ROWS = 100
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
        """Whether its values are numbers."""
        return self.kind not in _LEFT


Heading: TypeAlias = str | tuple[str, Kind] | tuple[str, Kind, str] | Column
"""A column, or what it is made of: its heading, the kind of its values (text by default), a note."""


@dataclass(frozen=True)
class Table:
    """A table among the lines that a terminal shows."""

    columns: Sequence[Heading]
    rows: Iterable[Sequence[object]]
    title: str = ""


def _columns(headings: Iterable[Heading]) -> list[Column]:
    return [h if isinstance(h, Column) else Column(h) if isinstance(h, str) else Column(*h) for h in headings]


def table(
    columns: Sequence[Heading],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    limit: int = 2000,
    empty: str = "nothing to show",
) -> Html:
    """A table that sorts on a click and, from twelve rows up, filters. At most ``limit`` rows are written.

    A cell is a value (written by its column's kind, escaped) or :class:`Html`.
    """
    body, made = list(rows), _columns(columns)
    if not body:
        return element("p", empty, class_="empty")
    head = element("tr", *(_head(column) for column in made))
    lines = (element("tr", *(_cell(c, v) for c, v in zip(made, row, strict=True))) for row in body[:limit])
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
    text = _cell_text(column, value)
    if column.kind in _LEFT:
        return element("td", text, class_="short" if len(text) <= _SHORT else None)
    key: Any = value.key if isinstance(value, Sortable) else None if isinstance(value, str) else value
    return element("td", text, class_="number", data_sort="" if key is None else repr(float(key)))


def _cell_text(column: Column, value: object) -> Html:
    text = value if isinstance(value, Html) else escape(format_value(value, column.kind))
    return element("code", text) if column.kind == "code" and value is not None else text


def print_table(
    columns: Sequence[Heading], rows: Iterable[Sequence[object]], *, title: str = "", console: Console | None = None
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
    shown = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    made = _columns(columns)
    for column in made:
        justify = "left" if column.kind in _LEFT else "right"
        shown.add_column(Text(column.heading), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*(Text(visible(format_value(v, c.kind))) for c, v in zip(made, row, strict=True)))
    width = console.width
    if not console.is_terminal:
        wide = console.options.update(max_width=100_000)
        console.width = max(width, Measurement.get(console, wide, shown).maximum)
    for line in console.render_lines(shown, pad=False):
        console.print(Segments([*_without_blanks(line), Segment.line()]), end="")
    console.width = width


def _without_blanks(line: Sequence[Segment]) -> list[Segment]:
    """The line without the blanks that fill its last column."""
    from rich.segment import Segment

    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []


# What a notebook shows of a result, in the notebook's own looks.


def glance(title: str, *content: str) -> Html:
    """A heading and what stands below it: sentences, and blocks such as :func:`glance_table`.

    >>> glance("a plan", "it fits")
    '<div class="tilewright"><p><strong>a plan</strong></p><p>it fits</p></div>'
    """
    blocks = (block if isinstance(block, Html) else element("p", block) for block in content if block)
    return element("div", element("p", element("strong", title)), *blocks, class_="tilewright")


def glance_table(
    columns: Sequence[Heading], rows: Iterable[Sequence[object]], *, caption: str = "", of: int | None = None
) -> Html:
    """The first sixteen rows; ``of``: how many there are, where not all are given. Nothing without rows."""
    waiting = iter(rows)
    first = list(islice(waiting, _NOTEBOOK_ROWS))
    if not first:
        return Html("")
    made = _columns(columns)
    head = element("tr", *(element("th", c.heading, title=c.note or None, style=_side(c)) for c in made))
    pairs = (zip(made, row, strict=True) for row in first)
    body = (element("tr", *(element("td", _cell_text(c, v), style=_side(c)) for c, v in row)) for row in pairs)
    count = len(first) + sum(1 for _ in waiting) if of is None else of
    left = element("p", f"{count_text(count - len(first))} more") if count > len(first) else Html("")
    above = element("caption", caption, style="text-align:left;white-space:nowrap") if caption else Html("")
    return join([element("table", above, element("thead", head), element("tbody", *body)), left])


def _side(column: Column) -> str:
    return f"text-align:{'right' if column.numeric else 'left'}"


# Many rows: a table that sorts, filters, searches, adds up and opens a row.


@dataclass(frozen=True)
class Field(Column):
    """A column and where its values come from.

    ===========  ================================================================================
    ``of``       row -> value: a number for the kinds of numbers, text else, or None
    ``width``    of its column, in rem
    ``below``    stands in the same cell as the field before it, on a second line
    ``tail``     where it is cut, its end is kept: paths
    ``facet``    one of few texts: offered as a choice, and as a split of the totals
    ``total``    its sum over the rows in view is shown; the first such field can be bounded from below
    ``lead``     a sentence that stands above the others in the panel of an opened row
    ``shown``    False: only in the panel of an opened row (and found by the search)
    ``listed``   False: not even there; scripts read it
    ===========  ================================================================================
    """

    of: Callable[[Any], object] = lambda row: row
    width: float = 8.0
    below: bool = False
    tail: bool = False
    facet: bool = False
    total: bool = False
    lead: bool = False
    shown: bool = True
    listed: bool = True

    @property
    def name(self) -> str:
        """What addresses and scripts call it: its heading in lower case, joined by hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.heading.lower()).strip("-")


def cells(fields: Sequence[Field], rows: Iterable[Any]) -> list[tuple[object, ...]]:
    """The values of fields, row by row: what :func:`table` and :func:`print_table` take.

    >>> cells([Field("name", of=str), Field("length", "count", of=len)], ["ab", "c"])
    [('ab', 2), ('c', 1)]
    """
    return [tuple(field.of(row) for field in fields) for row in rows]


def explorer(
    fields: Sequence[Field],
    rows: Iterable[Any],
    *,
    key: Callable[[Any], str],
    sort: str,
    prefix: str = "",
    empty: str = "nothing to show",
) -> Html:
    """The table. Rows are sent as columns of values, each distinct text once, and drawn as they come into view.

    ``key`` names a row in the page's address (``#row=KEY``; doubles get a number behind them), ``sort`` is the heading
    that sorts at first, largest or first on top, ``prefix`` tells two tables of one page apart. State (search, choices,
    bound, order, open row) is kept in the address. Without scripts the first hundred rows are a plain table.

    >>> fields = [Field("name", "code", of=str), Field("bytes", "bytes", of=len, total=True)]
    >>> '"columns":[["b","aaa"],[1,3]]' in explorer(fields, ["b", "aaa"], key=str, sort="bytes")
    True
    """
    body = list(rows)
    if not body:
        return element("p", empty, class_="empty")
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError(f"two fields of one name: {names}")
    columns = [[field.of(row) for row in body] for field in fields]
    first = next(place for place, field in enumerate(fields) if field.heading == sort)
    keys = _unique(key(row) for row in body)
    data = {
        "fields": [_field_json(field) for field in fields],
        "columns": [_packed(column, field.facet) for field, column in zip(fields, columns, strict=True)],
        "keys": next((name for name, column in zip(names, columns, strict=True) if column == keys), keys),
        "count": len(body),
        "sort": fields[first].name,
    }
    script = element("script", json_for_script(data), type="application/json")
    return element("figure", script, _static(fields, columns, first), class_="explorer", data_prefix=prefix)


def _static(fields: Sequence[Field], columns: Sequence[Sequence[object]], first: int) -> Html:
    """The plain table that shows where scripts do not run."""
    order = list(range(len(columns[0])))
    if fields[first].numeric:
        weights = [float(value) if isinstance(value, (int, float)) else -1.0 for value in columns[first]]
        order = sorted(order, key=lambda row: -weights[row])
    shown = [place for place, field in enumerate(fields) if field.shown]
    cells = [[columns[place][row] for place in shown] for row in order]
    return table([fields[place] for place in shown], cells, limit=_STATIC_ROWS)


def _field_json(field: Field) -> dict[str, object]:
    plain: dict[str, object] = {"name": field.name, "heading": field.heading, "kind": field.kind, "width": field.width}
    marks = ("below", "tail", "facet", "total", "lead")
    plain |= {mark: True for mark in marks if getattr(field, mark)}
    plain |= {mark: False for mark in ("shown", "listed") if not getattr(field, mark)}
    return plain | ({"note": field.note} if field.note else {})


def _packed(column: Sequence[object], coded: bool) -> object:
    """The values, or the distinct ones and a number per row where that is shorter (none where all are one)."""
    distinct: dict[Hashable, int] = {}
    codes = [distinct.setdefault(value, len(distinct)) for value in column]
    if len(distinct) == 1:
        return {"values": list(distinct)}
    if coded or len(distinct) * 2 < len(column):
        return {"values": list(distinct), "codes": codes}
    return list(column)


def _unique(keys: Iterable[str]) -> list[str]:
    seen: dict[str, int] = {}
    names: list[str] = []
    for key in keys:
        seen[key] = number = seen.get(key, 0) + 1
        names.append(key if number == 1 else f"{key}~{number}")
    return names
