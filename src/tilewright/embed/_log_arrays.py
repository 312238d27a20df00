"""Batches from a numpy archive."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.embed._inputs import Ragged, normalise
from tilewright.embed._log import Column, Log, LogBatch
from tilewright.errors import UsageError

__all__ = ["read_arrays"]


def read_arrays(log: Log) -> Iterator[LogBatch]:
    """Arrays ``name`` [rows, ids] or [rows], or ``name.values`` with ``name.offsets``; weights under their own name."""
    whole = _load(log)
    sizes = {name: ragged.batch_size for name, ragged in whole.items()}
    rows = max(sizes.values())
    if short := next((name for name, size in sizes.items() if size != rows), None):
        raise UsageError(f"{sizes[short]} samples of {short!r}, {rows} of others", where=log.path)
    for start in range(0, rows, log.batch):
        stop = min(rows, start + log.batch)
        yield LogBatch(stop - start, {name: _slice(ragged, start, stop) for name, ragged in whole.items()})


def _load(log: Log) -> dict[str, Ragged]:
    try:
        with open(log.path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError("one array, not an archive", where=log.path, how="write it with numpy.savez")
            return {f.name: _feature(archive, log, f.name, c) for f, c in zip(log.features, log.columns)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"not a numpy archive: {error}", where=log.path) from None


def _feature(archive: Mapping[str, Any], log: Log, feature: str, column: Column) -> Ragged:
    values, offsets = f"{column.name}.values", f"{column.name}.offsets"
    weights = _array(archive, log, column.weights) if column.weights else None
    try:
        if column.name in archive:
            dense = _array(archive, log, column.name)
            if weights is None:
                return normalise(dense, feature)
            rows, hot = (*dense.shape, 1)[:2]
            return normalise((dense.reshape(-1), np.arange(rows + 1) * hot, weights.reshape(-1)), feature)
        given = _array(archive, log, values), _array(archive, log, offsets)
        return normalise(given if weights is None else (*given, weights), feature)
    except UsageError as error:
        raise UsageError(error.what, where=_place(log, error), how=error.how) from None


def _place(log: Log, error: UsageError) -> str:
    return error.where if error.where.startswith(log.path) else f"{log.path}: {error.where}"


def _array(archive: Mapping[str, Any], log: Log, name: str) -> Any:
    if name not in archive:
        some = ", ".join(list(archive)[:8])
        raise UsageError(f"no array {name!r}", where=log.path, how=f"it holds {some}")
    return archive[name]


def _slice(ragged: Ragged, start: int, stop: int) -> Any:
    """Samples start to stop, as ``preprocess`` takes them."""
    if ragged.offsets is None:
        return ragged.values[start * ragged.hot : stop * ragged.hot].reshape(stop - start, ragged.hot)
    begin, end = int(ragged.offsets[start]), int(ragged.offsets[stop])
    given = ragged.values[begin:end], ragged.offsets[start : stop + 1] - begin
    return given if ragged.weights is None else (*given, ragged.weights[begin:end])
