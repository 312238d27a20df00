"""What the user configures: tables, the features that look rows up in them, and the limits of a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.embed._optimizers import SGD
from tilewright.embed._quantization import Quantization
from tilewright.errors import UsageError

__all__ = ["COMBINERS", "Feature", "Limits", "Table"]

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

    def consistent(self, where: str = "limits") -> Limits:
        """These limits, or :class:`UsageError` at ``where`` for more distinct ids than ids.

        >>> Limits(4, 4).consistent().max_ids_per_partition
        4
        """
        ids, unique = self.max_ids_per_partition, self.max_unique_ids_per_partition
        if unique > ids:
            what = f"max_unique_ids_per_partition {unique} is above max_ids_per_partition {ids}"
            how = "no partition has more distinct ids than ids: swap or lower them"
            raise UsageError(what, where=where, how=how)
        return self
