"""Manual table stacking: the stacks as the user names them, held to what one stack can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.embed._grouping import MAX_STACK_VOCAB, kind_of, padded_vocab
from tilewright.embed._tables import Feature, Table
from tilewright.errors import UnsupportedError, UsageError

__all__ = ["manual_stacks", "others"]


def manual_stacks(features: tuple[Feature, ...], shards: int, stacks: Iterable[Iterable[str]]) -> list[list[Table]]:
    """The tables of every named stack, in the order given.

    Raises :class:`UsageError` for a name that is no table, a table named twice, an empty stack, and tables that differ
    in padded width, optimizer, combiner or quantisation.
    """
    tables = {f.table.name: f.table for f in features}
    seen: set[str] = set()
    found = []
    for names in stacks:
        if isinstance(names, str):
            raise UsageError(f"stacks holds the text {names!r}", where="stack", how='such as [["user", "item"]]')
        found.append([_take(name, tables, seen) for name in names])
        _one_kind(found[-1], shards)
    return found


def others(features: tuple[Feature, ...], taken: list[list[Table]]) -> tuple[Feature, ...]:
    """Features whose tables stand in no named stack."""
    names = {t.name for group in taken for t in group}
    return tuple(f for f in features if f.table.name not in names)


def _take(name: str, tables: Mapping[str, Table], seen: set[str]) -> Table:
    if name not in tables:
        raise UsageError(f"stacks names {name!r}, which is no table", where="stack", how=f"one of {', '.join(tables)}")
    if name in seen:
        raise UsageError(f"stacks names table {name!r} twice", where="stack")
    seen.add(name)
    return tables[name]


def _one_kind(group: list[Table], shards: int) -> None:
    if not group:
        raise UsageError("stacks holds an empty stack", where="stack")
    first = group[0]
    for table in group[1:]:
        for name, a, b in zip(
            ("padded width", "optimizer", "combiner", "quantisation"), kind_of(first), kind_of(table)
        ):
            if a != b:
                what = f"tables {first.name!r} and {table.name!r} cannot share a stack: {name} {a} and {b}"
                raise UsageError(what, where="stack", how="make them alike, or stack them apart")
    rows = sum(padded_vocab(t, shards) for t in group)
    if rows > MAX_STACK_VOCAB:
        what = f"a stack of {rows} rows does not fit 32-bit column ids"
        raise UnsupportedError(what, where=f"stack of {first.name!r}", how="stack fewer tables together")
