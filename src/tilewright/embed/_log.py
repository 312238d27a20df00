"""Logs of any kind as batches of features: Parquet, CSV and TSV with a header, Criteo's own format, numpy archives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.embed._clicks import CATEGORICAL
from tilewright.embed._tables import Feature, count
from tilewright.errors import UsageError

__all__ = ["Column", "Log", "LogBatch", "read_log"]

IDS = ("auto", "direct", "hash")


@dataclass(frozen=True)
class Column:
    """Where a feature stands in a log.

    ===========  ==================================================================================================
    ``name``     the column of its ids, "" = the feature's own name
    ``weights``  the column of its weights, "" = none
    ``ids``      ``direct``: integers that are rows of the table; ``hash``: any value, hashed into 1 .. vocab - 1
                 (0 where it is missing); ``auto``: integers directly, texts hashed (CSV and TSV: all is text)
    ===========  ==================================================================================================
    """

    name: str = ""
    weights: str = ""
    ids: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown way."""
        if self.ids not in IDS:
            raise UsageError(f"ids = {self.ids!r}", where=f"column {self.name!r}", how=f"one of {', '.join(IDS)}")


@dataclass(frozen=True, eq=False)
class LogBatch:
    """``rows`` samples of every feature, as ``preprocess`` takes them."""

    rows: int
    features: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Log:
    """A log that is read batch by batch: iterate over it as often as you like. ``rows``: how many, None if unknown."""

    path: str
    features: tuple[Feature, ...]
    batch: int
    columns: tuple[Column, ...]
    rows: int | None = None

    @property
    def kind(self) -> str:
        """``parquet``, ``npz``, ``criteo`` or ``text``."""
        return _kind(self)

    def __iter__(self) -> Iterator[LogBatch]:
        """Batches of ``batch`` rows; the last may be shorter."""
        return _reader(self)


def read_log(
    path: str | Path,
    features: Sequence[Feature],
    batch: int,
    columns: Mapping[str, Column] | None = None,
) -> Log:
    """The batches of a log, one at a time in memory.

    ``path``
        ``.parquet`` (or a folder of them): integers, lists of integers, texts, lists of texts; a missing value is an
        empty sample. ``.npz``: arrays ``f`` [rows, ids], or ``f.values`` and ``f.offsets``. Anything else is text: with
        a header, one column per feature, several ids of a cell parted by ``|``; without one, Criteo's format, whose
        features are called C1 .. C26. "-" is Criteo's format on stdin.
    ``batch``
        rows of a batch (of all SparseCores).
    ``columns``
        feature -> :class:`Column` where it is not simply the column of the feature's name.

    Raises :class:`UsageError` that names the file, the column and the batch: here for a missing file or column and
    a file that is not what its name says; while reading for a value of a wrong type or a file that breaks off.
    """
    where = str(path)
    batch = count(batch, "batch", where)
    named = dict(columns or {})
    if unknown := sorted(set(named) - {f.name for f in features}):
        raise UsageError(f"a column for {unknown[0]!r}, which is no feature", where=where)
    chosen = tuple(_filled(named.get(f.name, Column()), f) for f in features)
    log = Log(where, tuple(features), batch, chosen)
    if where != "-" and not Path(where).exists():
        raise UsageError("cannot read it: No such file or directory", where=where)
    if _kind(log) == "parquet":
        from tilewright.embed._log_arrow import parquet_rows

        return Log(where, log.features, batch, chosen, parquet_rows(log))
    return log


def _filled(column: Column, feature: Feature) -> Column:
    return column if column.name else Column(feature.name, column.weights, column.ids)


def _kind(log: Log) -> str:
    path = Path(log.path)
    if path.suffix == ".parquet" or path.is_dir():
        return "parquet"
    if path.suffix == ".npz":
        return "npz"
    if tuple(f.name for f in log.features) == CATEGORICAL and all(
        c == Column(f.name) or c == Column(f.name, ids="hash") for f, c in zip(log.features, log.columns)
    ):
        return "criteo"
    return "text"


def _reader(log: Log) -> Iterator[LogBatch]:
    kind = _kind(log)
    if kind == "criteo":
        return _criteo(log)
    if kind == "npz":
        from tilewright.embed._log_arrays import read_arrays

        return read_arrays(log)
    from tilewright.embed._log_arrow import read_parquet, read_text

    return read_parquet(log) if kind == "parquet" else read_text(log)


def _criteo(log: Log) -> Iterator[LogBatch]:
    from tilewright.embed._criteo import read_criteo

    vocabs = [feature.table.vocab for feature in log.features]
    for clicks in read_criteo(log.path, vocabs, log.batch, ids_only=True):
        yield LogBatch(len(clicks), dict(clicks.features()))
