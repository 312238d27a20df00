"""What other tools write of embedding tables: statistics of jax-tpu-embedding's FDO clients, TorchRec's sharding plans.

An FDO file (NPZ or CSV) holds, for every stack, four arrays under the stack's name and a suffix. One record is [shards]
(or [sources] for buffers, one number for drops), several are [records, shards], one row each. A folder holds files of
several processes, ``fdo_stats_<process>_<time>``; the newest of each counts.

A sharding plan has the form of TorchRec's own Thrift types (``torchrec/distributed/planner/types.thrift``) as JSON:
module -> table -> sharding type, kernel, ranks, and what every shard holds. Ours deals rows out one by one (row modulo
shards); TorchRec's row-wise plan has blocks of rows. A rank stands for a chip.
"""

from __future__ import annotations

import csv
import io
import re
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits, limits_json
from tilewright.errors import UsageError
from tilewright.files import write_whole
from tilewright.reading import check_archive, read_file, read_text

FDO_SUFFIXES = {
    "max_ids_per_partition": "_max_ids",
    "max_unique_ids_per_partition": "_max_unique_ids",
    "required_buffer_size_per_sc": "_required_buffer_size",
    "id_drop_counters": "_id_drop_counters",
}
"""Kind of count -> what follows a stack's name in a file."""
_NAME = re.compile(r"fdo_stats_(\d+)_(\d+)\.(npz|csv)")
_HOW = "give what an FDO client of jax-tpu-embedding wrote: .npz, .csv, or their folder"


@dataclass(frozen=True, eq=False)
class FdoStats:
    """Stack -> counts, of one batch or of many; the package's SparseDenseMatmulInputStats has the same four fields.

    >>> stats = FdoStats({"t": np.array([[3, 9], [5, 2]])}, {"t": np.array([2, 4])})
    >>> stats.limits()["t"], stats.stacks
    (Limits(max_ids_per_partition=9, max_unique_ids_per_partition=4), ['t'])
    """

    max_ids_per_partition: Mapping[str, Longs] = field(default_factory=dict)
    max_unique_ids_per_partition: Mapping[str, Longs] = field(default_factory=dict)
    required_buffer_size_per_sc: Mapping[str, Longs] = field(default_factory=dict)
    id_drop_counters: Mapping[str, Longs] = field(default_factory=dict)

    @property
    def stacks(self) -> list[str]:
        """Every stack of which something is known, in order."""
        return list(dict.fromkeys(name for kind in FDO_SUFFIXES for name in getattr(self, kind)))

    def most(self, kind: str, stack: str) -> int | None:
        """The largest count of a kind (one of the four fields), over all records; None where none is known."""
        values = getattr(self, kind).get(stack)
        return None if values is None or not np.size(values) else int(np.max(values))

    def limits(self) -> dict[str, Limits]:
        """The smallest limits that hold everything recorded: what the package sets its specs' limits to."""
        return {
            stack: Limits.holding(ids, self.most("max_unique_ids_per_partition", stack) or ids)
            for stack in self.stacks
            if (ids := self.most("max_ids_per_partition", stack)) is not None
        }

    def limits_json(self, **facts: Any) -> dict[str, Any]:
        """Those limits as a limits file has them, rounded up to 8 as buffers; ``facts`` say where they come from."""
        return limits_json({name: limits.with_headroom(0) for name, limits in self.limits().items()}, **facts)

    @classmethod
    def of_limits(cls, limits: Mapping[str, Limits]) -> FdoStats:
        """One record, as if partitions held just what the limits allow."""
        kinds = ("max_ids_per_partition", "max_unique_ids_per_partition")
        return cls(*({name: np.array([getattr(limit, kind)]) for name, limit in limits.items()} for kind in kinds))

    @classmethod
    def of_batches(cls, batches: Iterable[HostBatch]) -> FdoStats:
        """One record per preprocessed batch, as the package's client records them.

        >>> from tilewright.embed import Feature, Table, Topology, preprocess, stack
        >>> model = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
        >>> stats = FdoStats.of_batches(preprocess({"f": ids}, model) for ids in ([[0, 2], [4]], [[1], [1]]))
        >>> stats.max_ids_per_partition["t"].tolist()
        [[2, 0], [0, 1]]
        """
        records: dict[str, dict[str, list[Any]]] = {kind: {} for kind in FDO_SUFFIXES}
        for batch in batches:
            for name, stats in batch.stats.items():
                counts = stats[0], stats[1], stats[2], [int(stats.dropped_ids.sum())]
                for kind, value in zip(FDO_SUFFIXES, counts):
                    records[kind].setdefault(name, []).append(np.asarray(value, np.int64))
        return cls(**{kind: {name: np.vstack(rows) for name, rows in of.items()} for kind, of in records.items()})

    def summary(self) -> dict[str, dict[str, Any]]:
        """Stack -> how many records, the largest count of each kind, and the imbalance of the largest partitions: the
        fullest shard over the average one, over all records (None where none is known)."""
        found: dict[str, dict[str, Any]] = {}
        for name in self.stacks:
            rows = np.atleast_2d(self.max_ids_per_partition.get(name, np.zeros((0, 1), np.int64)))
            most = rows.max(axis=0, initial=0)
            imbalance = float(most.max() / most.mean()) if most.any() else None
            counts = {kind: self.most(kind, name) for kind in FDO_SUFFIXES}
            found[name] = {"records": len(rows), **counts, "imbalance": imbalance}
        return found

    def merged(self, other: FdoStats) -> FdoStats:
        """The largest of both, place by place: what the package makes of the files of several processes."""
        made: dict[str, dict[str, Longs]] = {}
        for kind in FDO_SUFFIXES:
            mine, theirs = dict(getattr(self, kind)), getattr(other, kind)
            for stack, values in theirs.items():
                mine[stack] = _largest(mine[stack], values, f"{kind} of {stack!r}") if stack in mine else values
            made[kind] = mine
        return FdoStats(**made)

    def write(self, path: str | Path) -> Path:
        """Write ``.npz`` or ``.csv``; into a folder as the client of process 0 does, as NPZ. The file that was written.

        CSV keeps no difference between one record and a row of counts: it reads back as the latter.
        """
        path = Path(path)
        if path.is_dir():
            path = path / f"fdo_stats_0_{time.time_ns()}.npz"
        arrays = {
            f"{stack}{suffix}": np.asarray(values, np.int64)
            for kind, suffix in FDO_SUFFIXES.items()
            for stack, values in getattr(self, kind).items()
        }
        if path.suffix == ".npz":
            data = io.BytesIO()
            np.savez(data, **arrays)  # type: ignore[arg-type]
            write_whole(path, data.getvalue())
        elif path.suffix == ".csv":
            text = io.StringIO(newline="")
            rows = csv.writer(text)
            rows.writerow(["key", "values"])
            for key, values in arrays.items():
                rows.writerows([key, " ".join(map(str, row))] for row in np.atleast_2d(values))
            write_whole(path, text.getvalue())
        else:
            raise UsageError("not a name for FDO statistics", where=str(path), how="end it in .npz or .csv")
        return path


def _largest(one: Longs, two: Longs, what: str) -> Longs:
    rows = np.atleast_2d(one), np.atleast_2d(two)
    if rows[0].shape[1] != rows[1].shape[1]:
        problem = f"{what}: {rows[0].shape[1]} and {rows[1].shape[1]} counts"
        raise UsageError(problem, where="FDO statistics", how="merge statistics of one topology")
    most: Longs = np.vstack(rows).max(axis=0)
    return most


def read_fdo(path: str | Path) -> FdoStats:
    """Read a file, or of a folder the newest file of every process, merged.

    Raises :class:`UsageError` that names the file: none there, cut off, unknown keys, counts that are none.
    """
    path = Path(path)
    if not path.is_dir():
        return _read(path)
    newest: dict[str, tuple[int, Path]] = {}
    for file in sorted(path.iterdir()):
        if match := _NAME.fullmatch(file.name):
            newest[match[1]] = max(newest.get(match[1], (0, file)), (int(match[2]), file))
    if not newest:
        raise UsageError("no fdo_stats_<process>_<time>.npz or .csv here", where=str(path), how=_HOW)
    first, *others = (_read(file) for _, file in newest.values())
    for other in others:
        first = first.merged(other)
    return first


def _read(path: Path) -> FdoStats:
    where = str(path)
    try:
        arrays = _csv_arrays(path) if path.suffix == ".csv" else _npz_arrays(path)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, KeyError, csv.Error) as error:
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UsageError(f"no FDO statistics can be read: {problem}", where=where, how=_HOW) from None
    found: dict[str, dict[str, Longs]] = {kind: {} for kind in FDO_SUFFIXES}
    for key, values in arrays.items():
        kind = next((kind for kind, suffix in FDO_SUFFIXES.items() if key.endswith(suffix)), None)
        if kind is None:
            problem = f"unknown key {key!r}: none of {', '.join(FDO_SUFFIXES.values())} is its end"
            raise UsageError(problem, where=where, how=_HOW)
        if values.dtype.kind not in "iu" or values.ndim > 2 or (values.size and values.min() < 0):
            raise UsageError(f"{key!r} holds no counts", where=where, how=_HOW)
        found[kind][key.removesuffix(FDO_SUFFIXES[kind])] = values.astype(np.int64, copy=False)
    return FdoStats(**found)


def _npz_arrays(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise ValueError("no archive of arrays, or one that is cut off" if path.stat().st_size else "it is empty")
    with zipfile.ZipFile(path) as archive:
        check_archive(archive, str(path))
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _csv_arrays(path: Path) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {}
    with io.StringIO(read_text(path), newline="") as file:
        reader = csv.reader(file)
        if next(reader, None) != ["key", "values"]:
            raise ValueError("its first line is not key,values")
        for line in filter(None, reader):
            if len(line) != 2:
                raise ValueError(f"line {reader.line_num} has {len(line)} cells")
            rows.setdefault(line[0], []).append(np.array([int(word) for word in line[1].split()], np.int64))
    return {key: np.vstack(values) if len(values) > 1 else values[0] for key, values in rows.items()}


# Sharding plans.

MODULE = "embedding_bag_collection"


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

    @property
    def rank_bytes(self) -> Counter[int]:
        """rank -> bytes of its float32 rows."""
        found = Counter[int]()
        for shard in self.shards:
            found[shard.rank] += 4 * shard.rows * shard.columns
        return found


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
            raise UsageError(f"not a table's sharding: {error!r}", where=place, how=_PLAN_HOW) from None
        found[f"{module}.{name}" if name in found else name] = table
    return found


_PLAN_HOW = "give TorchRec's ShardingPlan as JSON: plan -> module -> shardingPlan -> table"


def _entries(value: Any, where: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    modules = value.get("plan") if isinstance(value, Mapping) else None
    if not isinstance(modules, Mapping):
        raise UsageError("not a TorchRec plan", where=where, how=_PLAN_HOW)
    for module, inside in modules.items():
        tables = inside.get("shardingPlan") if isinstance(inside, Mapping) else None
        if not isinstance(tables, Mapping) or not all(isinstance(entry, Mapping) for entry in tables.values()):
            raise UsageError("no shardingPlan", where=f"{where}: module {module!r}", how=_PLAN_HOW)
        yield from ((module, name, entry) for name, entry in tables.items())


def _shard(entry: Mapping[str, Any]) -> TorchrecShard:
    (row, column), (rows, columns) = entry["shardOffsets"], entry["shardSizes"]
    counts = int(entry["placement"]["rank"]), int(row), int(column), int(rows), int(columns)
    if min(counts) < 0:
        raise ValueError(f"a count below 0 in {counts}")
    return TorchrecShard(*counts)
