"""What the user configures: tables, the features that look rows up in them, and the limits of a stack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.embed.model.optimizers import SGD
from tilewright.errors import UsageError
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
        """At least two levels in a range that is one."""
        where = "quantization"
        buckets = self.num_buckets
        if isinstance(buckets, bool) or not hasattr(buckets, "__index__") or buckets.__index__() < 2:
            raise UsageError(f"num_buckets = {buckets!r} is not a whole number of at least 2", where=where)
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UsageError(f"{name} = {value!r} is not a finite number", where=where)
            object.__setattr__(self, name, float(value))
        if self.low >= self.high:
            raise UsageError(f"low {self.low} is not below high {self.high}", where=where)

    def apply(self, rows: Any, xp: Any) -> Any:
        """The rows as a lookup sees them; ``xp`` is numpy or jax.numpy."""
        step = (self.high - self.low) / (self.num_buckets - 1)
        return xp.round((xp.clip(rows, self.low, self.high) - self.low) / step) * step + self.low


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
        """Refuse what cannot be a table."""
        _name(self.name, "table")
        where = f"table {self.name!r}"
        object.__setattr__(self, "vocab", count(self.vocab, "vocab", where))
        object.__setattr__(self, "width", count(self.width, "width", where))
        if self.combiner not in COMBINERS:
            raise UsageError(f"unknown combiner {self.combiner!r}", where=where, how=f"one of {', '.join(COMBINERS)}")
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
        """Refuse what cannot be a feature."""
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
        """Refuse limits no partition could keep."""
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
        chips = count(self.chips, "chips", "topology")
        object.__setattr__(self, "chips", chips)
        per_chip = count(self.sparsecores_per_chip, "sparsecores_per_chip", "topology")
        object.__setattr__(self, "sparsecores_per_chip", per_chip)
        devices = count(self.devices, "devices", "topology", least=0) or chips
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
        return cls(chips, chip.sparse.per_chip, devices=chips * chip.sparse.devices_per_chip)
