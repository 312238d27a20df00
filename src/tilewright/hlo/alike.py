"""Equal rows of a program's unrolled layers, shown as one: a step of 80 layers has its few kernels 80 times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Any)
_FEWEST = 4
"""Equal rows from which they are shown as one."""


def joined(rows: Iterable[Row], same: Sequence[str], sums: Sequence[str]) -> list[Row]:
    """Rows of which four or more agree in the fields ``same`` and in their names but for numbers, as the first of them.

    Its fields ``sums`` are those of all together (None where all are None), its ``also`` names the others.

    >>> from tilewright.hlo.timing.step import TimeRow
    >>> rows = [TimeRow(f"fusion.{k}", "fusion", 1e-6, "hbm", 8, 0, "llama.py:3") for k in (7, 8, 9, 11)]
    >>> [(row.name, row.also, row.seconds, row.runs) for row in joined(rows, ("op", "source"), ("seconds", "runs"))]
    [('fusion.7', ('fusion.8', 'fusion.9', 'fusion.11'), 4e-06, 4)]
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((re.sub(r"\.?\d+", "", row.name), *(getattr(row, name) for name in same)), []).append(row)
    parts = ([_one(group, sums)] if len(group) >= _FEWEST else group for group in groups.values())
    return [row for part in parts for row in part]


def _one(rows: Sequence[Row], sums: Sequence[str]) -> Row:
    values = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in sums}
    whole = {name: sum(numbers) if numbers else None for name, numbers in values.items()}
    one: Row = replace(rows[0], also=tuple(row.name for row in rows[1:]), **whole)
    return one


def title(row: Any) -> str:
    """What a row is called where people read it: a kernel by its own name, equal ones with their number.

    >>> from tilewright.hlo.timing.step import TimeRow
    >>> title(TimeRow("custom-call.3", "custom-call", 1e-6, "hbm", 8, 0, "", kernel="splash", also=("custom-call.4",)))
    'splash × 2'
    """
    name: str = row.kernel or row.name
    return f"{name} × {1 + len(row.also)}" if row.also else name
