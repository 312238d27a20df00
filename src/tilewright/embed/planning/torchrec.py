"""A sharding plan in TorchRec's form beside ours, so that the two can be compared.

The form is that of TorchRec's own Thrift types (``torchrec/distributed/planner/types.thrift``) as JSON: module ->
table -> sharding type, kernel, ranks, and what every shard holds. Ours deals rows out one by one (row modulo shards);
TorchRec's row-wise plan has blocks of rows. A rank stands for a chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.embed.model.formulas import padded_table_bytes
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import UsageError
from tilewright.reading import read_file

MODULE = "embedding_bag_collection"
_BYTES = 4


@dataclass(frozen=True)
class TorchrecShard:
    """What a rank holds of a table: rows from ``first_row`` on, columns from ``first_column`` on."""

    rank: int
    first_row: int
    first_column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class TorchrecTable:
    """A table of a TorchRec plan; without ``shards`` (data parallel) every rank has all of it."""

    name: str
    sharding_type: str
    compute_kernel: str
    ranks: tuple[int, ...]
    shards: tuple[TorchrecShard, ...]


def torchrec_plan(stacking: Stacking, device: str = "cuda", module: str = MODULE) -> dict[str, Any]:
    """The row-wise plan of the same tables over as many ranks as there are chips, as TorchRec's planner writes it.

    >>> from tilewright.embed import Feature, Table, Topology, stack
    >>> model = stack([Feature("f", Table("t", vocab=10, width=8))], Topology(chips=4, sparsecores_per_chip=4))
    >>> table = torchrec_plan(model)["plan"][MODULE]["shardingPlan"]["t"]
    >>> table["shardingType"], [shard["shardSizes"] for shard in table["shardingSpec"]]
    ('row_wise', [[3, 8], [3, 8], [3, 8], [1, 8]])
    """
    ranks = range(stacking.topology.chips)
    tables = {}
    for placement in stacking.placements:
        table, block = placement.table, -(-placement.table.vocab // len(ranks))
        firsts = [min(rank * block, table.vocab) for rank in (*ranks, len(ranks))]
        tables[table.name] = {
            "shardingType": "row_wise",
            "computeKernel": "fused",
            "ranks": list(ranks),
            "shardingSpec": [
                {
                    "shardOffsets": [firsts[rank], 0],
                    "shardSizes": [firsts[rank + 1] - firsts[rank], table.width],
                    "placement": {"device": {"type": device, "index": rank % 8}, "rank": rank},
                }
                for rank in ranks
            ],
        }
    return {"plan": {module: {"shardingPlan": tables}}}


def read_torchrec(path: str | Path) -> dict[str, TorchrecTable]:
    """The tables of a plan's JSON, of all its modules; a module's name goes before a table's where two are alike.

    Raises :class:`UsageError` that names the file and the entry: not such a plan, a shard without place or sizes.
    """
    where, value = str(path), read_file(path, "JSON")
    found: dict[str, TorchrecTable] = {}
    for module, name, entry in _entries(value, where):
        place = f"{where}: table {name!r}"
        try:
            spec = [_shard(shard) for shard in entry.get("shardingSpec") or ()]
            ranks = tuple(int(rank) for rank in entry.get("ranks") or ())
            table = TorchrecTable(name, str(entry["shardingType"]), str(entry["computeKernel"]), ranks, tuple(spec))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UsageError(f"not a table's sharding: {error!r}", where=place, how=_HOW) from None
        found[f"{module}.{name}" if name in found else name] = table
    return found


_HOW = "give TorchRec's ShardingPlan as JSON: plan -> module -> shardingPlan -> table"


def _entries(value: Any, where: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    modules = value.get("plan") if isinstance(value, Mapping) else None
    if not isinstance(modules, Mapping):
        raise UsageError("not a TorchRec plan", where=where, how=_HOW)
    for module, inside in modules.items():
        tables = inside.get("shardingPlan") if isinstance(inside, Mapping) else None
        if not isinstance(tables, Mapping) or not all(isinstance(entry, Mapping) for entry in tables.values()):
            raise UsageError("no shardingPlan", where=f"{where}: module {module!r}", how=_HOW)
        yield from ((module, name, entry) for name, entry in tables.items())


def _shard(entry: Mapping[str, Any]) -> TorchrecShard:
    (row, column), (rows, columns) = entry["shardOffsets"], entry["shardSizes"]
    counts = int(entry["placement"]["rank"]), int(row), int(column), int(rows), int(columns)
    if min(counts) < 0:
        raise ValueError(f"a count below 0 in {counts}")
    return TorchrecShard(*counts)


def rank_bytes(plan: Mapping[str, TorchrecTable]) -> dict[int, int]:
    """rank -> bytes of float32 rows in a TorchRec plan; tables without shards are on every rank and not counted."""
    found: dict[int, int] = {}
    for table in plan.values():
        for shard in table.shards:
            found[shard.rank] = found.get(shard.rank, 0) + _BYTES * shard.rows * shard.columns
    return dict(sorted(found.items()))


def chip_bytes(stacking: Stacking) -> int:
    """Bytes of float32 rows that every chip holds of ours, padding included: all chips hold the same."""
    shards = stacking.topology.sparsecores
    whole = sum(padded_table_bytes(p.table.vocab, p.table.width, shards) for p in stacking.placements)
    return whole // stacking.topology.chips
