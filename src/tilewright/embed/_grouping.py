"""Automatic table stacking: which tables may share a stack, first fit under the activation and vocabulary caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.embed._tables import Feature, Table
from tilewright.errors import UnsupportedError
from tilewright.layout import mod_sharded

__all__ = ["ACTIVATION_BYTES", "MAX_STACK_VOCAB", "group_tables", "kind_of", "padded_vocab"]

ACTIVATION_BYTES = 2 << 20
"""Default cap of padded_width * samples per SparseCore * 4 of one stack, in bytes."""

MAX_STACK_VOCAB = 2**31 - 1
"""Stacked column ids are int32; the largest of them marks padding."""


@dataclass
class _Open:
    """A stack that still takes tables."""

    tables: list[Table] = field(default_factory=list)
    vocab: int = 0
    samples: int = 0


def padded_vocab(table: Table, shards: int) -> int:
    """The vocabulary rounded up to 8 rows on every shard, as the table's layout has it."""
    return mod_sharded(table.vocab, table.width, shards).rows_per_shard * shards


def kind_of(table: Table) -> tuple[Any, ...]:
    """What tables of one stack have in common: padded width, optimizer, combiner, quantisation."""
    return table.padded_width, table.optimizer, table.combiner, table.quantization


def group_tables(
    features: tuple[Feature, ...],
    shards: int,
    table_stacking: bool,
    batch_sizes: Mapping[str, int] | None,
    activation_bytes: int,
) -> list[list[Table]]:
    """The tables of every stack, stacks and tables in order of first use."""
    samples = {f.table.name: 0 for f in features}
    for feature in features:
        samples[feature.table.name] += batch_sizes[feature.name] // shards if batch_sizes else 0
    stacks: list[_Open] = []
    for table in {f.table.name: f.table for f in features}.values():
        vocab = padded_vocab(table, shards)
        if vocab > MAX_STACK_VOCAB:
            what = f"a padded vocabulary of {vocab} rows does not fit a 32-bit column id"
            raise UnsupportedError(what, where=f"table {table.name!r}", how="hash the ids into fewer rows")
        need = samples[table.name]
        home = next(
            (o for o in stacks if table_stacking and _fits(o, table, vocab, need, activation_bytes)),
            None,
        )
        if home is None:
            stacks.append(home := _Open())
        home.tables.append(table)
        home.vocab += vocab
        home.samples += need
    return [o.tables for o in stacks]


def _fits(stack: _Open, table: Table, vocab: int, samples: int, activation_bytes: int) -> bool:
    return (
        kind_of(stack.tables[0]) == kind_of(table)
        and stack.vocab + vocab <= MAX_STACK_VOCAB
        and table.padded_width * (stack.samples + samples) * 4 <= activation_bytes
    )
