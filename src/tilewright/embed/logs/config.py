"""A whole embedding model in one TOML file: tables, features, topology, knobs."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import check_choice
from tilewright.embed.host.tables import HashedTables, MultiHash, NarrowTables, hash_tables, pack_narrow, without_hot
from tilewright.embed.logs.log import LogColumn
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import OPTIMIZERS
from tilewright.embed.model.stacking import ACTIVATION_BYTES, Stacking, manual_stacks, stack, stack_name
from tilewright.embed.model.tables import Feature, Limits, LimitsFile, Quantization, Table, Topology, count, limits_of
from tilewright.errors import UsageError, check_known, placed_at
from tilewright.reading import check_keys, read_file, typed

_GUIDE = SparseCoreConfig()


@dataclass(frozen=True)
class EmbedConfig:
    """What a run needs to know.

    ==============  ==========================================================================================
    ``features``    the model's features with their tables
    ``target``      the chip
    ``chips``       how many of them
    ``batch``       samples of a batch, over all chips
    ``columns``     feature -> :class:`LogColumn` of the log, where it is not the column of its name
    ``limits``      stack -> :class:`Limits`, None: not yet known
    ``sparsecore``  the guide's knobs
    ``time``        the column of the rows' times, from which batches have their days; "" = none
    ``stacks``      tables to stack by hand, as ``stack`` takes them
    ``rotation``    stack -> the shards by which each next of its tables is turned, where it is not the default
    ``hot_rows``    table -> ids, rising, that every device holds beside the table
    ``activation_bytes``  the most activations of a stack on one SparseCore, as ``stack`` takes it
    ``dense_bytes`` dense weights, their optimizer's slots and constants on one chip, which a plan's HBM counts
    ``hashed``      the tables of fewer rows than ids, which ``features`` have already; None: there are none
    ``narrow``      the features, packed where ``narrow_packing`` is set: those to stack, and what makes their batches
    ==============  ==========================================================================================
    """

    features: tuple[Feature, ...]
    target: str = "tpu-v5p"
    chips: int = 1
    batch: int = 4096
    columns: Mapping[str, LogColumn] = field(default_factory=dict, hash=False)
    limits: Mapping[str, Limits] | None = field(default=None, hash=False)
    sparsecore: SparseCoreConfig = _GUIDE
    stacks: tuple[tuple[str, ...], ...] = ()
    narrow_packing: bool = False
    hashed: HashedTables | None = None
    time: str = ""
    rotation: Mapping[str, int] = field(default_factory=dict, hash=False)
    hot_rows: Mapping[str, Longs] = field(default_factory=dict, hash=False)
    activation_bytes: int = ACTIVATION_BYTES
    dense_bytes: int = 0

    @property
    def in_log(self) -> tuple[Feature, ...]:
        """The features as a log has them: hashed tables with all their ids."""
        return self.features if self.hashed is None else self.hashed.original

    def batch_of(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """A log's batch as ``features`` take it."""
        return features if self.hashed is None else self.hashed.batch(features)

    def counted(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """A log's batch as the tables' partitions are asked for it: hashed, and without hot rows."""
        batch = self.batch_of(features)
        return without_hot(batch, self.features, self.hot_rows) if self.hot_rows else batch

    def under(self, limits: LimitsFile) -> EmbedConfig:
        """The model as it was when limits were learnt: stacks turned by the file's rotation, its hot rows apart.

        Raises :class:`UsageError` where the model says otherwise, or packs its tables otherwise.
        """
        limits.check_packing(any(self.narrow.rows_per_line))
        shards, hot = self.topology.sparsecores, limits.hot_rows()
        learnt = limits.rotation(replace(self, rotation={}).stacking().stacks)
        for name, step in self.rotation.items():
            if learnt.get(name, step) % shards != step % shards:
                how = "plan again, or leave rotation out of the model: the limits bring theirs"
                problem = f"limits of {name} rotated by {learnt[name]}, not by {step}"
                raise UsageError(problem, where=limits.where, how=how)
        for name, ids in self.hot_rows.items():
            if not np.array_equal(ids, hot.get(name, [])):
                how = "plan again, or leave hot_rows out of the model: the limits bring theirs"
                raise UsageError(f"limits for other hot rows of {name}", where=limits.where, how=how)
        return replace(self, rotation={**self.rotation, **learnt}, hot_rows=hot).checked(limits.where)

    def changed(self, change: Mapping[str, Any]) -> EmbedConfig:
        """The model with a finding's ``change``: keys and values as the TOML file has them, hot rows beside those it
        has."""
        values: dict[str, Any] = dict(change)
        if "rotation" in change:
            values["rotation"] = {**self.rotation, **change["rotation"]}
        if "hot_rows" in change:
            more = {name: {*self.hot_rows.get(name, ()), *ids} for name, ids in change["hot_rows"].items()}
            values["hot_rows"] = {**self.hot_rows, **{n: np.array(sorted(ids), np.int64) for n, ids in more.items()}}
        if "sparsecore" in change:
            values["sparsecore"] = replace(self.sparsecore, **change["sparsecore"])
        return replace(self, **values).checked("hot_rows")

    @staticmethod
    def changed_text(text: str, change: Mapping[str, Any]) -> str:
        """The text of a model's TOML file with a finding's change: its lines stay, but for those that set the same
        keys.

        Raises :class:`UsageError` with the lines to paste where the file sets them in a way that is not one line each.

        >>> EmbedConfig.changed_text("batch = 64\\n[rotation]\\nother = 2\\n", {"rotation": {"user_item": 9}})
        'batch = 64\\n[rotation]\\nuser_item = 9\\nother = 2\\n'
        """
        wanted, lines = tomllib.loads(text), text.splitlines()
        for path, value in _entries(change):
            holder = wanted if len(path) == 1 else wanted.setdefault(path[0], {})
            if path[0] == "hot_rows":
                value = sorted({*holder.get(path[1], ()), *value})
            holder[path[-1]] = value
            lines = _with_line(lines, path, json.dumps(value))
        changed = "\n".join([*lines, ""])
        try:
            done = tomllib.loads(changed) == wanted
        except tomllib.TOMLDecodeError:
            done = False
        if not done:
            problem = "the file sets some of these keys in more than one line"
            raise UsageError(problem, where="--apply", how=f"write into it: {change_text(change)}")
        return changed

    def checked(self, where: str) -> EmbedConfig:
        """This configuration, or :class:`UsageError` at ``where`` for hot rows that cannot be."""
        tables = {feature.table.name: feature.table for feature in self.features}
        for name, ids in self.hot_rows.items():
            problem = ""
            if name not in tables:
                problem = f"hot rows of {name!r}, which is not a table: they are {', '.join(tables)}"
            elif not len(ids) or ids[0] < 0 or ids[-1] >= tables[name].vocab or (np.diff(ids) <= 0).any():
                problem = f"hot rows of {name!r} that do not rise inside its {tables[name].vocab} rows"
            elif self.narrow.rows_per_line.get(name, 1) > 1:
                problem = f"hot rows of {name!r}, whose rows share lines: leave narrow_packing or them out"
            if problem:
                raise UsageError(problem, where=where)
        return self

    def stacking(self) -> Stacking:
        """The tables in their stacks, as :func:`stack` makes them; where the knobs disable that only those by hand."""
        narrow, rotation, together = self.narrow, dict(self.rotation), not self.sparsecore.disable_table_stacking
        if not together:  # only stacks by hand are left
            rotation = {name: rotation[name] for name in map(stack_name, self.stacks) if name in rotation}
        sizes = narrow.batch_sizes(self.batch)
        shape = {"stacks": self.stacks, "rotation": rotation, "activation_bytes": self.activation_bytes}
        return stack(narrow.features, self.topology, together, sizes, **shape)  # type: ignore[arg-type]

    @property
    def plan_options(self) -> dict[str, Any]:
        """What :func:`plan` and :func:`plan_pod` take beside features, topology and stacks."""
        return {
            "target": self.target,
            "prefetched_batches": self.sparsecore.maximum_parallel_iterations,
            "pipelining": not self.sparsecore.disable_full_embedding_pipelining,
            "serialized_tables": self.sparsecore.num_serialized_tables_to_optimize_hbm,
            "apart": self.hot_rows,
            "dense_bytes": self.dense_bytes,
        }

    @property
    def topology(self) -> Topology:
        return Topology.for_target(self.target, self.chips)

    @property
    def narrow(self) -> NarrowTables:
        """The features to stack: with ``narrow_packing`` tables of at most 4 floats a row share 32-byte lines."""
        return pack_narrow(self.features, self.narrow_packing)


def read_config(path: str | Path) -> EmbedConfig:
    """The configuration of a TOML file::

        target = "tpu-v5p"
        chips = 4
        batch = 4096
        narrow_packing = true    # rows of 1 to 4 floats share 32-byte lines; false where it is not given
        time = "clicked_at"      # the column of the rows' times: later days judge the limits of the days before
        dense_bytes = 500_000_000    # of the dense weights, their optimizer's slots and constants on one chip
        activation_bytes = 2_097_152    # of a stack on one SparseCore, at most; more makes fewer, larger stacks

        [[table]]
        name = "user"
        vocab = 1_000_000
        width = 32
        combiner = "sum"
        optimizer = { kind = "adagrad", learning_rate = 0.05 }    # or any other, by its short name

        hashing = { rows = 100_000, hashes = 2, seed = 0 }        # fewer rows than ids; see MultiHash
        placement = "sharded"    # or "replicated": every device holds all rows, as for hot rows

        [[feature]]
        name = "user"            # table and column are the feature's name where they are not given
        ids = "hash"

        [limits.user]
        max_ids_per_partition = 512
        max_unique_ids_per_partition = 256

        [rotation]               # shards by which each next table of a stack is turned
        user_item = 9

        [hot_rows]               # ids that every device holds beside their table
        user = [5, 77]

        [sparsecore]
        allow_id_dropping = true

    Raises :class:`UsageError` that names the file and the entry: no such file, not TOML, an unknown key, a value that
    cannot be, a feature of a table that is not there, a table that no feature uses.
    """
    where, value = str(path), read_file(path, "TOML")
    with placed_at(where, within=True):
        return _config(typed(value, _File, "", _HINTS))


# What a finding changes in the file.


def change_text(change: Mapping[str, Any]) -> str:
    """A finding's change as lines at the top of a TOML file, with semicolons between.

    >>> change_text({"rotation": {"user_item": 9}, "activation_bytes": 4194304})
    'rotation.user_item = 9; activation_bytes = 4194304'
    """
    return "; ".join(f"{'.'.join(map(_key, path))} = {json.dumps(value)}" for path, value in _entries(change))


def _entries(change: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a change with its path of one or two keys."""
    for key, value in change.items():
        if isinstance(value, Mapping):
            yield from (((key, inner), one) for inner, one in value.items())
        else:
            yield (key,), value


def _key(name: str) -> str:
    """A key of a TOML file, quoted where it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _with_line(lines: list[str], path: tuple[str, ...], value: str) -> list[str]:
    """The lines of a TOML file with one key set: in its section where there is one, else at the top."""
    heads = [k for k, line in enumerate(lines) if line.lstrip().startswith("[")]
    top, head = (heads[0] if heads else len(lines)), rf"\s*\[\s*{re.escape(path[0])}\s*\]\s*(#.*)?"
    at = next((k for k in heads if len(path) == 2 and re.fullmatch(head, lines[k])), None)
    if at is None:
        first, last, key = 0, top, ".".join(map(_key, path))
    else:
        first, last, key = at + 1, next((k for k in heads if k > at), len(lines)), _key(path[1])
    same = re.compile(rf"\s*{re.escape(key)}\s*=")
    kept = [line for line in lines[first:last] if not same.match(line)]
    place = 0 if at is not None else next((k for k in range(len(kept), 0, -1) if kept[k - 1].strip()), 0)
    return [*lines[:first], *kept[:place], f"{key} = {value}", *kept[place:], *lines[last:]]


@dataclass(frozen=True)
class _File:
    """The keys of the file; what stands in its tables is read one by one."""

    target: str = EmbedConfig.target
    chips: int = EmbedConfig.chips
    batch: int = EmbedConfig.batch
    stacks: list[list[str]] = field(default_factory=list)
    narrow_packing: bool = EmbedConfig.narrow_packing
    time: str = EmbedConfig.time
    table: list[dict[str, Any]] = field(default_factory=list)
    feature: list[dict[str, Any]] = field(default_factory=list)
    limits: dict[str, Any] = field(default_factory=dict)
    rotation: dict[str, int] = field(default_factory=dict)
    hot_rows: dict[str, list[int]] = field(default_factory=dict)
    activation_bytes: int = ACTIVATION_BYTES
    dense_bytes: int = 0
    sparsecore: dict[str, Any] = field(default_factory=dict)


_HINTS = {
    **{key: f"write [[{key}]], with two brackets, before each" for key in ("table", "feature")},
    **{key: f"write [{key}]" for key in ("limits", "sparsecore", "rotation", "hot_rows")},
    "stacks": 'write lists of table names: stacks = [["user", "item"]]',
}


@dataclass(frozen=True)
class _TableEntry:
    name: str
    vocab: int
    width: int
    combiner: str = "sum"
    optimizer: str | dict[str, Any] = "sgd"
    hashing: dict[str, int] | None = None
    placement: str = "sharded"
    quantization_config_low: float | None = None
    quantization_config_high: float | None = None
    quantization_config_num_buckets: int | None = None


@dataclass(frozen=True)
class _FeatureEntry:
    name: str
    table: str = ""
    column: str = ""
    weights: str = ""
    ids: str = "auto"


def _config(file: _File) -> EmbedConfig:
    if not file.table:
        raise UsageError("no table", where="table", how="add a [[table]] with name, vocab and width")
    entries = [typed(entry, _TableEntry, _where("table", entry)) for entry in file.table]
    tables, rules = {entry.name: _table(entry) for entry in entries}, dict[str, MultiHash]()
    if len(tables) != len(entries):
        raise UsageError("two tables of one name", where="table")
    for entry in entries:
        check_choice(f"placement of table {entry.name!r}", entry.placement, ("sharded", "replicated"))
        if entry.hashing is not None:
            with placed_at(f"table {entry.name!r}: hashing"):
                rules[entry.name] = typed(entry.hashing, MultiHash, "")
    read = [typed(e, _FeatureEntry, _where("feature", e)) for e in file.feature or [{"name": n} for n in tables]]
    features = tuple(_feature(entry, tables) for entry in read)
    if idle := sorted(set(tables) - {feature.table.name for feature in features}):
        raise UsageError(f"no feature uses table {idle[0]!r}", where="table", how="add a feature or drop the table")
    columns = {entry.name: LogColumn(entry.column, entry.weights, entry.ids) for entry in read}
    check_keys(file.sparsecore, [knob.name for knob in fields(SparseCoreConfig)], "sparsecore")
    hashed = hash_tables(features, rules) if rules else None
    features = features if hashed is None else hashed.features
    manual_stacks(pack_narrow(features, file.narrow_packing).features, 1, file.stacks)
    everywhere = {entry.name for entry in entries if entry.placement == "replicated"}
    return EmbedConfig(
        features,
        target=file.target,
        chips=count(file.chips, "chips", ""),
        batch=count(file.batch, "batch", ""),
        columns={name: column for name, column in columns.items() if column != LogColumn()},
        limits={name: limits_of(entry, f"limits of {name!r}") for name, entry in file.limits.items()} or None,
        sparsecore=SparseCoreConfig(**file.sparsecore),
        stacks=tuple(map(tuple, file.stacks)),
        narrow_packing=file.narrow_packing,
        hashed=hashed,
        time=file.time,
        activation_bytes=count(file.activation_bytes, "activation_bytes", ""),
        dense_bytes=count(file.dense_bytes, "dense_bytes", "", least=0),
        rotation={n: count(step, f"rotation of {n!r}", "", least=0) for n, step in file.rotation.items()},
        hot_rows={
            **{name: np.array(sorted(ids), np.int64) for name, ids in file.hot_rows.items()},
            **{f.table.name: np.arange(f.table.vocab) for f in features if f.table.name in everywhere},
        },
    ).checked("hot_rows")


def _where(noun: str, entry: Mapping[str, Any]) -> str:
    return f"{noun} {entry.get('name', '?')!r}"


def _table(entry: _TableEntry) -> Table:
    where, names = f"table {entry.name!r}", [f"quantization_config_{part.name}" for part in fields(Quantization)]
    values = [getattr(entry, name) for name in names]
    missing = [name for name, value in zip(names, values) if value is None]
    if 0 < len(missing) < len(names):
        raise UsageError(f"{' and '.join(missing)} missing", where=where)
    with placed_at(where):
        quantization = None if missing else Quantization(*values)
    optimizer = optimizer_of(entry.optimizer, where)
    return Table(entry.name, entry.vocab, entry.width, entry.combiner, optimizer, quantization=quantization)


def optimizer_of(entry: str | dict[str, Any], where: str) -> Any:
    """``"adagrad"`` or ``{kind = "adagrad", learning_rate = 0.1}``."""
    arguments = {"kind": entry} if isinstance(entry, str) else dict(entry)
    name = str(arguments.pop("kind", ""))[:40]
    check_known(name.lower(), OPTIMIZERS, f"unknown optimizer {name!r}", where=where, say="known:")
    kind = OPTIMIZERS[name.lower()]
    check_keys(arguments, [argument.name for argument in fields(kind)], f"{where}: optimizer")
    with placed_at(f"{where}: optimizer"):
        return kind(**arguments)


def _feature(entry: _FeatureEntry, tables: Mapping[str, Table]) -> Feature:
    table = entry.table or entry.name
    check_known(table, tables, f"no table called {table!r}", where=f"feature {entry.name!r}", say="tables are")
    return Feature(entry.name, tables[table])
