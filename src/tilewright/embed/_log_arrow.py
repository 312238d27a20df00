"""Batches from Parquet, and from text with a header, through pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.embed._log import Log, LogBatch
from tilewright.errors import UsageError

__all__ = ["parquet_rows", "read_parquet", "read_text"]

_BLOCK = 4 << 20
_ROWS = 65536


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        how = "pip install 'tilewright[embed]', or read it yourself and call embed.plan"
        raise UsageError("this kind of log needs pyarrow, which is not installed", how=how) from None
    return pyarrow


@contextmanager
def _refusing(what: str, where: str) -> Iterator[None]:
    """pyarrow's complaints as ours, on one line."""
    try:
        yield
    except (_pyarrow().ArrowException, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: {' '.join(str(error).split())[:300]}", where=where) from None


def _files(log: Log) -> list[str]:
    path = Path(log.path)
    files = sorted(str(p) for p in path.glob("*.parquet")) if path.is_dir() else [log.path]
    if not files:
        raise UsageError("no .parquet file in the folder", where=log.path)
    return files


def _opened(log: Log, file: str) -> Any:
    """The file, its columns checked."""
    from pyarrow import parquet

    with _refusing("not a Parquet file", file):
        opened = parquet.ParquetFile(file)
    _check_columns(log, opened.schema_arrow.names, file)
    return opened


def _check_columns(log: Log, names: list[str], where: str) -> None:
    missing = [name for name in _wanted(log) if name not in names]
    if missing:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UsageError(f"no column {', '.join(missing[:4])}{more}", where=where, how=f"it has {some}")


def _wanted(log: Log) -> list[str]:
    names = [name for column in log.columns for name in (column.name, column.weights) if name]
    return list(dict.fromkeys(names))


def parquet_rows(log: Log) -> int:
    """Rows by the files' own account; refuses files that are not Parquet or lack a column."""
    _pyarrow()
    total = 0
    for file in _files(log):
        with _opened(log, file) as opened:
            total += opened.metadata.num_rows
    return total


def read_parquet(log: Log) -> Iterator[LogBatch]:
    """Row groups are decoded a batch at a time."""
    return _whole_batches(log, _parquet_parts(log))


def _parquet_parts(log: Log) -> Iterator[Any]:
    for file in _files(log):
        with _opened(log, file) as opened:
            parts = opened.iter_batches(min(log.batch, _ROWS), columns=_wanted(log))
            while True:
                with _refusing("it breaks off", file):
                    part = next(parts, None)
                if part is None:
                    break
                yield part


def read_text(log: Log) -> Iterator[LogBatch]:
    """CSV or TSV with a header; cells stay texts here."""
    pyarrow = _pyarrow()
    from pyarrow import csv

    if log.path == "-":
        raise UsageError("stdin is read as Criteo's format only", where="-", how="give a file's name")
    with _refusing("cannot read it", log.path), open(log.path, "rb") as file:
        head = file.readline(_BLOCK)
    if not head.strip():
        raise UsageError("the file is empty", where=log.path)
    separator = "\t" if b"\t" in head else ","
    names = [cell.strip(' \r\n"') for cell in head.decode("utf-8", "replace").split(separator)]
    _check_columns(log, names, log.path)
    types = {name: pyarrow.string() for name in _wanted(log)}
    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(block_size=_BLOCK),
        "parse_options": csv.ParseOptions(delimiter=separator),
        "convert_options": csv.ConvertOptions(include_columns=list(types), column_types=types),
    }
    return _whole_batches(log, _text_parts(log, lambda: csv.open_csv(log.path, **options)))


def _text_parts(log: Log, opened: Callable[[], Any]) -> Iterator[Any]:
    with _refusing("cannot be read as a table", log.path):
        parts = opened()
    while True:
        with _refusing("cannot be read as a table", log.path):
            part = next(parts, None)
        if part is None:
            return
        yield part


def _whole_batches(log: Log, parts: Iterator[Any]) -> Iterator[LogBatch]:
    """Parts of any length joined and cut to the batch; at most one batch and one part are held."""
    from tilewright.embed._log_values import check_one_way, feature_input

    pyarrow = _pyarrow()
    held: list[Any] = []
    rows = done = 0

    def made(table: Any) -> LogBatch:
        place = f"{log.path}: rows {done + 1:,} to {done + table.num_rows:,}"
        if not done:
            check_one_way(table, log.features, log.columns, log.path)
        inputs = {f.name: feature_input(table, f, c, place) for f, c in zip(log.features, log.columns)}
        return LogBatch(table.num_rows, inputs)

    for part in parts:
        held.append(part)
        rows += part.num_rows
        if rows < log.batch:
            continue
        table = pyarrow.Table.from_batches(held)
        at = 0
        for at in range(log.batch, rows + 1, log.batch):
            yield made(table.slice(at - log.batch, log.batch))
            done += log.batch
        held, rows = table.slice(at).to_batches(), rows - at
    if rows:
        yield made(pyarrow.Table.from_batches(held))
    elif not done:
        raise UsageError("no rows in the file", where=log.path)
