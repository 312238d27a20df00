"""What the user configures: tables, the features that look rows up in them, the limits of a stack and their file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.model.optimizers import SGD
from tilewright.errors import UsageError, check_known, placed_at
from tilewright.reading import read_file, typed
from tilewright.targets import Target, target

# Simulated quantisation: what a lookup sees of a row, as if tables held few levels.


@dataclass(frozen=True)
class Quantization:
    """Rows are clipped to ``low .. high`` and rounded to ``num_buckets`` even levels, in lookups only.

    The guide's ``quantization_config_low``, ``_high`` and ``_num_buckets``. Updates see the rows as they are.

    >>> import numpy as np
    >>> Quantization(-1.0, 1.0, 5).apply(np.float32([-3, -0.3, 0.2, 0.8]), np).tolist()
    [-1.0, -0.5, 0.0, 1.0]
    """

    low: float
    high: float
    num_buckets: int

    def __post_init__(self) -> None:
        where = "quantization"
        object.__setattr__(self, "num_buckets", count(self.num_buckets, "num_buckets", where, least=2))
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UsageError(f"{name} = {value!r} is not a finite number", where=where)
            object.__setattr__(self, name, float(value))
        if self.low >= self.high:
            raise UsageError(f"low {self.low} is not below high {self.high}", where=where)

    @property
    def step(self) -> float:
        """From one level to the next."""
        return (self.high - self.low) / (self.num_buckets - 1)

    def level(self, rows: Any, xp: Any) -> Any:
        """The number of each row's nearest level, as a float; ``xp`` is numpy or jax.numpy."""
        return xp.round((xp.clip(rows, self.low, self.high) - self.low) / self.step)

    def apply(self, rows: Any, xp: Any) -> Any:
        """The rows as a lookup sees them."""
        return self.level(rows, xp) * self.step + self.low


COMBINERS = ("sum", "mean", "sqrtn")
_DEFAULT_OPTIMIZER = SGD(0.01)


def count(value: Any, name: str, where: str, least: int = 1) -> int:
    """``value`` as an int of at least ``least``, or a UsageError that says what and where."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise UsageError(f"{name} = {value!r} is not a whole number of at least {least}", where=where)
    return int(value.__index__())


def _name(value: Any, kind: str) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{kind} name {value!r} is not a non-empty text")


@dataclass(frozen=True)
class Table:
    """One embedding table.

    ===============  ==============================================================================================
    ``name``         unique among the tables of a model
    ``vocab``        rows; an id is valid iff 0 <= id < vocab
    ``width``        floats per row (padded to a multiple of 8, a 32-byte line, in the memory of the SparseCore)
    ``combiner``     how the rows of one sample become one vector: ``sum``, ``mean`` or ``sqrtn``
    ``optimizer``    what an update does with the summed gradient of a row
    ``initializer``  ``(key, shape, dtype) -> array`` for the logical table, or None for the library's default
    ``quantization`` :class:`Quantization` that lookups see the rows through, or None
    ===============  ==============================================================================================

    >>> Table("user", vocab=1000, width=12).padded_width
    16
    """

    name: str
    vocab: int
    width: int
    combiner: str = "sum"
    optimizer: Any = _DEFAULT_OPTIMIZER
    initializer: Any = None
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        _name(self.name, "table")
        where = f"table {self.name!r}"
        object.__setattr__(self, "vocab", count(self.vocab, "vocab", where))
        object.__setattr__(self, "width", count(self.width, "width", where))
        check_known(self.combiner, COMBINERS, f"unknown combiner {self.combiner!r}", where=where)
        if self.quantization is not None and not isinstance(self.quantization, Quantization):
            raise UsageError(f"quantization = {self.quantization!r} is not a Quantization", where=where)

    @property
    def padded_width(self) -> int:
        """``width`` rounded up to 8 floats."""
        return -(-self.width // 8) * 8


@dataclass(frozen=True)
class Feature:
    """A categorical input ``name`` whose ids are rows of ``table``; several features may share one table."""

    name: str
    table: Table

    def __post_init__(self) -> None:
        _name(self.name, "feature")
        if not isinstance(self.table, Table):
            raise UsageError(f"table = {self.table!r} is not a Table", where=f"feature {self.name!r}")


@dataclass(frozen=True)
class Limits:
    """Bounds of a partition: the merged entries, and the distinct ids, that one source SparseCore has for one shard.

    The first also sizes the buffers. A second one above the first never binds, so ``preprocess`` and ``memory`` take
    such limits, as jax-tpu-embedding and the compiler do (its defaults make them where only the first is lowered);
    ``check_batches`` and limits files refuse them (:meth:`consistent`), for there they are a mistake.

    >>> Limits(max_ids_per_partition=100, max_unique_ids_per_partition=60).max_ids_per_partition
    100
    """

    max_ids_per_partition: int
    max_unique_ids_per_partition: int

    def __post_init__(self) -> None:
        for name in ("max_ids_per_partition", "max_unique_ids_per_partition"):
            object.__setattr__(self, name, count(getattr(self, name), name, "limits"))

    @classmethod
    def holding(cls, ids: int, unique: int) -> Limits:
        """The smallest limits for partitions of so many ids and distinct ids: at least 1, and distinct ids among ids.

        >>> Limits.holding(0, 3)
        Limits(max_ids_per_partition=1, max_unique_ids_per_partition=1)
        """
        ids = max(1, int(ids))
        return cls(ids, min(ids, max(1, int(unique))))

    def with_headroom(self, headroom: float) -> Limits:
        """Both limits raised by a share of themselves, rounded up to 8, the slots of a line.

        >>> Limits(23, 20).with_headroom(0.1)
        Limits(max_ids_per_partition=32, max_unique_ids_per_partition=24)
        """
        ids, unique = (-(-math.ceil(n * (1 + headroom)) // 8) * 8 for n in vars(self).values())
        return Limits(ids, unique)

    def consistent(self, where: str = "limits") -> Limits:
        """These limits, or :class:`UsageError` at ``where`` for more distinct ids than ids.

        >>> Limits(4, 4).consistent().max_ids_per_partition
        4
        """
        ids, unique = self.max_ids_per_partition, self.max_unique_ids_per_partition
        if unique > ids:
            problem = f"max_unique_ids_per_partition {unique} is above max_ids_per_partition {ids}"
            how = "no partition has more distinct ids than ids: swap or lower them"
            raise UsageError(problem, where=where, how=how)
        return self


# How many SparseCores there are, and how they are grouped into devices and chips.


def check_batch_divides(size: int, shards: int, where: str) -> None:
    """Samples are split over the source SparseCores in equal slices."""
    if size < 1 or size % shards:
        near = max(shards, round(size / shards) * shards)
        how = f"take a multiple of them, such as {near}"
        raise UsageError(f"a batch of {size} does not divide over {shards} SparseCores", where=where, how=how)


@dataclass(frozen=True)
class Topology:
    """``chips`` with ``sparsecores_per_chip`` each; ``devices`` counts what a program sees (0 = one per chip).

    >>> t = Topology(chips=2, sparsecores_per_chip=4)
    >>> t.sparsecores, t.devices, t.sparsecores_per_device
    (8, 2, 4)
    """

    chips: int
    sparsecores_per_chip: int
    devices: int = 0

    def __post_init__(self) -> None:
        """Every device has the same number of SparseCores, at least one."""
        for name in ("chips", "sparsecores_per_chip"):
            object.__setattr__(self, name, count(getattr(self, name), name, "topology"))
        devices = count(self.devices, "devices", "topology", least=0) or self.chips
        object.__setattr__(self, "devices", devices)
        if self.sparsecores % devices:
            problem = f"{self.sparsecores} SparseCores do not divide over {devices} devices"
            raise UsageError(problem, where="topology", how="give a number of devices that divides them")

    @property
    def sparsecores(self) -> int:
        """S, the number of SparseCores, which is also the number of shards of every table."""
        return self.chips * self.sparsecores_per_chip

    @property
    def sparsecores_per_device(self) -> int:
        """SparseCores behind one device of the program."""
        return self.sparsecores // self.devices

    def check_batch(self, size: int, where: str = "") -> None:
        """Raise UsageError for a batch that the SparseCores cannot read in equal slices."""
        check_batch_divides(size, self.sparsecores, where)

    @classmethod
    def for_target(cls, name: str | Target, chips: int = 1) -> Topology:
        """The topology of ``chips`` chips of a target.

        >>> Topology.for_target("tpu-v5p", chips=4).sparsecores
        16
        """
        chip = target(name)
        if chip.sparse is None:
            how = "take one with SparseCores, such as tpu-v5p, or give a Topology of your own"
            raise UsageError(f"{chip.name} has no SparseCores", where="target", how=how)
        chips = count(chips, "chips", "topology")
        return cls(chips, chip.sparse.per_chip, devices=chips * chip.devices_per_chip)


# Limits as a JSON file: written by a plan, read before training.

LIMITS_KIND = "embedding_limits"
LIMITS_VERSION = 1


def limits_json(limits: Mapping[str, Limits], **facts: Any) -> dict[str, Any]:
    """The file's content; ``facts`` say where the limits come from."""
    stacks = {name: dict(vars(limit.consistent(f"limits of {name!r}"))) for name, limit in limits.items()}
    return {"schema_version": LIMITS_VERSION, "kind": LIMITS_KIND, **facts, "stacks": stacks}


class LimitsFile:
    """A limits file, read and checked for its kind and version: what ``Plan.write_limits`` wrote.

    Raises :class:`UsageError` that names the file and the entry: no such file, not JSON, another kind or version of
    file; and from each method for what is wrong with the part it reads.
    """

    def __init__(self, path: str | Path) -> None:
        self.where = str(path)
        value = read_file(path, "JSON")
        if not isinstance(value, dict) or value.get("kind") != LIMITS_KIND or not isinstance(value.get("stacks"), dict):
            how = "write one with `tilewright embed plan ... -o limits.json`"
            raise UsageError("not a limits file", where=self.where, how=how)
        if value.get("schema_version") != LIMITS_VERSION:
            problem = f"schema_version {value.get('schema_version')!r}, this version reads {LIMITS_VERSION}"
            raise UsageError(problem, where=self.where, how="write it again with this version")
        self.value: dict[str, Any] = value

    def limits(self, topology: Topology | None = None) -> dict[str, Limits]:
        """Stack -> limits; with ``topology``, for those chips only: limits are of partitions, others on other chips."""
        if topology is not None and "topology" in self.value:
            written = self.value["topology"]
            keys = "chips", "sparsecores_per_chip"
            both = [tuple(map(of.get, keys)) for of in (written if isinstance(written, dict) else {}, vars(topology))]
            if both[0] != both[1]:
                learnt, asked = (f"{n} chip{'s' * (n != 1)} of {each}" for n, each in both)
                how = "plan again for these chips, or name those of the file"
                raise UsageError(f"limits for {learnt}, not for {asked} SparseCores", where=self.where, how=how)
        return {name: limits_of(entry, f"{self.where}: stack {name!r}") for name, entry in self.value["stacks"].items()}

    def hot_rows(self) -> dict[str, NDArray[np.int64]]:
        """Table -> ids, rising, that a plan holds on every device; none where the file says nothing."""
        hot, where = self.value.get("hot_rows", {}), f"{self.where}: hot_rows"
        if not isinstance(hot, dict) or not all(isinstance(ids, list) for ids in hot.values()):
            raise UsageError("not lists of ids by table", where=where, how="write it again: embed plan --hot ... -o")
        return {name: np.array([count(i, "an id", where, least=0) for i in ids], np.int64) for name, ids in hot.items()}

    def rotation(self, stacks: Iterable[str]) -> dict[str, int]:
        """Of ``stacks``: the shards by which each next of its tables was turned; {} where the file is older."""
        rotation, where = self.value.get("rotation", {}), f"{self.where}: rotation"
        if not isinstance(rotation, dict):
            raise UsageError("not a number by stack", where=where, how="write it again: embed plan ... -o")
        return {name: count(rotation[name], name, where, least=0) for name in stacks if name in rotation}

    @property
    def batch(self) -> int | None:
        """Samples of the batches that the limits were learnt from; None where it does not say."""
        batch = self.value.get("batch")
        return None if batch is None else count(batch, "batch", self.where)

    def check_packing(self, packed: bool) -> None:
        """:class:`UsageError` where the limits are of tables packed otherwise."""
        learnt = self.value.get("narrow_packing", packed)
        if learnt is not packed:
            tables, option = ("packed", "--narrow-packing") if learnt else ("unpacked", "--no-narrow-packing")
            how = f"give {option}, as the plan was made, or plan again"
            expected = "packed" if packed else "unpacked"
            raise UsageError(f"limits of {tables} tables, not of {expected} ones", where=self.where, how=how)


def read_limits(path: str | Path, topology: Topology | None = None) -> dict[str, Limits]:
    """Stack -> limits from a file that ``Plan.write_limits`` wrote; with ``topology``, for those chips only.

    Raises :class:`UsageError` that names the file and the entry: no such file, not JSON, another kind or version of
    file, a count that is missing or no whole number, more distinct ids than ids, limits of another topology.
    """
    return LimitsFile(path).limits(topology)


def read_hot_rows(path: str | Path) -> dict[str, NDArray[np.int64]]:
    """Table -> ids, rising, that a plan holds on every device, from its limits file; none where it says nothing."""
    return LimitsFile(path).hot_rows()


def limits_of(entry: Any, where: str) -> Limits:
    """Limits of a file's entry, checked: whole numbers, and no more distinct ids than ids."""
    with placed_at(where):
        return typed(entry, Limits, where).consistent(where)
