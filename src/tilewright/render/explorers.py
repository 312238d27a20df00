"""A table of many rows that sorts, filters, searches, adds up and opens a row, described once by its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.render.markup import Html, element, json_for_script
from tilewright.render.tables import Column, table

_STATIC_ROWS = 100


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
    """What is there without scripts."""
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
