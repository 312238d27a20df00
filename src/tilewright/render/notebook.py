"""What a notebook shows of a result: a heading, sentences and small tables, in the notebook's own looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tilewright.render.formats import count_text, format_value
from tilewright.render.markup import Html, element, escape, join
from tilewright.render.tables import Column

_ROWS = 16


def glance(title: str, *content: str) -> Html:
    """A heading and what stands below it: sentences, and blocks such as :func:`glance_table`.

    >>> glance("a plan", "it fits")
    '<div class="tilewright"><p><strong>a plan</strong></p><p>it fits</p></div>'
    """
    blocks = (block if isinstance(block, Html) else element("p", block) for block in content if block)
    return element("div", element("p", element("strong", title)), *blocks, class_="tilewright")


def glance_table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, caption: str = "", of: int | None = None
) -> Html:
    """The first sixteen rows; ``of``: how many there are, where not all are given. Nothing without rows."""
    waiting = iter(rows)
    first = list(islice(waiting, _ROWS))
    if not first:
        return Html("")
    head = element("tr", *(element("th", c.heading, title=c.note or None, style=_side(c)) for c in columns))
    body = (element("tr", *(_cell(c, v) for c, v in zip(columns, row, strict=True))) for row in first)
    count = len(first) + sum(1 for _ in waiting) if of is None else of
    left = element("p", f"{count_text(count - len(first))} more") if count > len(first) else Html("")
    above = element("caption", caption, style="text-align:left;white-space:nowrap") if caption else Html("")
    return join([element("table", above, element("thead", head), element("tbody", *body)), left])


def _cell(column: Column, value: object) -> Html:
    text = value if isinstance(value, Html) else escape(format_value(value, column.kind))
    if column.kind == "code" and value is not None:
        text = element("code", text)
    return element("td", text, style=_side(column))


def _side(column: Column) -> str:
    return f"text-align:{'right' if column.numeric else 'left'}"
