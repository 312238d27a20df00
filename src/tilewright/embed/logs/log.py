"""Logs of any kind as batches of features: Parquet, CSV and TSV with a header, Criteo's own format, numpy archives."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.host.inputs import Ragged, normalise, offsets_of
from tilewright.embed.logs.criteo import CATEGORICAL, NUMERIC
from tilewright.embed.model.tables import Feature, count
from tilewright.errors import UsageError, check_known, placed_at
from tilewright.extras import need
from tilewright.reading import open_bytes

IDS = ("auto", "direct", "hash")
SEPARATOR = "|"
"""Between the ids of one cell."""
_LOOKED_AT = 100
"""Rows of a text that are looked at for what it holds."""


@dataclass(frozen=True)
class LogColumn:
    """Where a feature stands in a log.

    ===========  ==================================================================================================
    ``name``     the column of its ids, "" = the feature's own name
    ``weights``  the column of its weights, "" = none
    ``ids``      ``direct``: integers that are rows of the table; ``hash``: any value, hashed into 1 .. vocab - 1;
                 ``auto``: integers directly, texts hashed (CSV and TSV: all is text)
    ===========  ==================================================================================================
    """

    name: str = ""
    weights: str = ""
    ids: str = "auto"

    def __post_init__(self) -> None:
        check_known(self.ids, IDS, f"ids = {self.ids!r}", where=f"column {self.name!r}")


@dataclass(frozen=True, eq=False)
class LogBatch:
    """``rows`` samples of every feature, as ``preprocess`` takes them; ``values``: columns of numbers, f32[rows];
    ``day``: of the row in the middle, "" where the log is read without its times."""

    rows: int
    features: dict[str, Any]
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    day: str = ""


@dataclass(frozen=True, eq=False)
class Log:
    """A log that is read batch by batch: iterate over it as often as you like. ``rows``: how many, None if unknown."""

    path: str
    features: tuple[Feature, ...]
    batch: int
    columns: tuple[LogColumn, ...]
    rows: int | None = None
    values: tuple[str, ...] = ()
    time: str = ""

    @property
    def kind(self) -> str:
        """``parquet``, ``npz``, ``criteo`` or ``text``."""
        path = Path(self.path)
        if path.suffix == ".parquet" or path.is_dir():
            return "parquet"
        if path.suffix == ".npz":
            return "npz"
        named = tuple(feature.name for feature in self.features) == CATEGORICAL
        plain = all(column in (LogColumn(f.name), LogColumn(f.name, ids="hash")) for f, column in self.pairs)
        return "criteo" if named and plain else "text"

    @property
    def pairs(self) -> list[tuple[Feature, LogColumn]]:
        """Every feature and where it stands."""
        return list(zip(self.features, self.columns))

    def __iter__(self) -> Iterator[LogBatch]:
        """Batches of ``batch`` rows; the last may be shorter."""
        if self.kind == "criteo":
            return _read_criteo(self)
        if self.kind == "npz":
            return _read_arrays(self)
        return _cut_to_batches(self, _rows_of(self))

    def hashed_numbers(self) -> tuple[str, ...]:
        """Features of a CSV or TSV whose first cells are whole numbers of their table, and which are hashed by default.

        () for every other kind of log, and where the configuration says ``ids``. Raises :class:`UsageError` where every
        cell is a list in brackets, as pandas writes them: each would be hashed as one id.
        """
        if self.kind != "text":
            return ()
        try:
            table = next(_text_rows(self)).slice(0, _LOOKED_AT)
        except UsageError:
            return ()  # reading the log will say what is wrong
        found = []
        for feature, column in self.pairs:
            texts = [cell for text in table[column.name].to_pylist() for cell in (text or "").split(SEPARATOR)]
            cells = [cell.strip() for cell in texts if cell.strip()]
            if cells and all(cell[0] + cell[-1] == "[]" for cell in cells):
                problem = f"cells of column {column.name!r} such as {cells[0]!r} would be one id each"
                raise UsageError(problem, where=self.path, how=f"part ids by {SEPARATOR}, or write Parquet")
            numbers = all(cell.isdecimal() and int(cell) < feature.table.vocab for cell in cells)
            if column.ids == "auto" and cells and numbers:
                found.append(feature.name)
        return tuple(found)


def read_log(
    path: str | Path,
    features: Sequence[Feature],
    batch: int,
    columns: Mapping[str, LogColumn] | None = None,
    values: Sequence[str] = (),
    time: str = "",
) -> Log:
    """The batches of a log, one at a time in memory.

    ``path``
        ``.parquet`` (or a folder of them): whole numbers of any type, texts, or lists of them. ``.npz``: arrays ``f``
        [rows, ids], or ``f.values`` and ``f.offsets``. Anything else is text: with a header, one column per feature,
        several ids of a cell parted by ``|``; without one, Criteo's format, whose features are called C1 .. C26. "-" is
        Criteo's format on stdin. What is missing or an empty text is no id, its sample is empty; only in Criteo's
        format, as in :func:`read_criteo`, missing values have an id of their own, 0.
    ``batch``
        rows of a batch (of all SparseCores).
    ``columns``
        feature -> :class:`LogColumn` where it is not simply the column of the feature's name.
    ``values``
        columns of numbers to read beside them, 0 where one is missing. Criteo's format gives ``label`` and ``I1`` ..
        ``I13``, these as log(1 + max(x, 0)).
    ``time``
        the column of the rows' times, from which every batch has its day (of the row in its middle): timestamps or
        dates, texts that begin like 2026-11-24, seconds (milli-, micro-, nanoseconds) since 1970 in UTC, or numbers of
        days. Not in Criteo's format, which has none.

    Raises :class:`UsageError` that names the file, the column and the batch: here for a missing file or column and
    a file that is not what its name says; while reading for a value of a wrong type or a file that breaks off.
    """
    where = str(path)
    batch = count(batch, "batch", where)
    named = dict(columns or {})
    if unknown := sorted(set(named) - {f.name for f in features}):
        raise UsageError(f"a column for {unknown[0]!r}, which is no feature", where=where)
    filled = [(named.get(feature.name, LogColumn()), feature) for feature in features]
    chosen = tuple(column if column.name else replace(column, name=feature.name) for column, feature in filled)
    log = Log(where, tuple(features), batch, chosen, values=tuple(values), time=time)
    if where != "-" and not Path(where).exists():
        raise UsageError("cannot read it: No such file or directory", where=where)
    return replace(log, rows=_count_parquet(log)) if log.kind == "parquet" else log


def _read_criteo(log: Log) -> Iterator[LogBatch]:
    from tilewright.embed.logs.criteo import read_criteo

    vocabs = [feature.table.vocab for feature in log.features]
    if log.time:
        raise UsageError(f"no column {log.time}", where=log.path, how="Criteo's format has no times")
    known = ("label", *NUMERIC)
    if unknown := [name for name in log.values if name not in known]:
        raise UsageError(f"no column {unknown[0]}", where=log.path, how="Criteo's format has label and I1 .. I13")
    for clicks in read_criteo(log.path, vocabs, log.batch, ids_only=not log.values):
        values = {}
        if log.values:
            columns = dict(zip(known, (clicks.labels, *clicks.numeric.T)))
            values = {name: columns[name] for name in log.values}
        yield LogBatch(len(clicks), dict(clicks.features()), values)


# The day of a time, however a log writes times.

_DAY_NUMBERS = 10**8
"""Numbers below are of days (also 20261124); above, of seconds since 1970, of which a thousand times as many are
milliseconds, and so on."""


def day_of(value: Any, where: str) -> str:
    """The day of a log's time as text: a date such as 2026-11-24, or the number that a day number was.

    Numbers count seconds since 1970 or, where larger, milliseconds, microseconds or nanoseconds, all in UTC; below
    10^8 they are day numbers. A time without a zone keeps its own day. ``where`` names the place in an error.

    >>> day_of(1_795_478_400, ""), day_of("2026-11-24 23:59", ""), day_of(17, "")
    ('2026-11-24', '2026-11-24', '17')
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = int(value) if value.strip().isdecimal() else value
    if isinstance(value, datetime):
        value = value.astimezone(UTC).date() if value.tzinfo else value.date()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | float) and 0 <= value < 2**63:
        while value >= _DAY_NUMBERS * 1000:
            value //= 1000
        if value < _DAY_NUMBERS:
            return str(int(value))
        return datetime.fromtimestamp(value, UTC).date().isoformat()
    how = "timestamps, dates, texts such as 2026-11-24, seconds since 1970, or numbers of days"
    raise UsageError(f"{value!r} is no time", where=where, how=how)


# One column of a log as a feature's input: integers, lists and texts of Arrow arrays.


def _feature_input(table: Any, feature: Feature, column: LogColumn, place: str) -> Any:
    """[rows, 1], (values, offsets) or (values, offsets, weights) of one feature, as ``preprocess`` takes it."""
    from pyarrow import compute

    where = f"{place}, column {column.name!r}"
    ids = _one_array(table[column.name])
    if str(ids.type) in ("float", "double"):  # pandas writes whole numbers so where one is missing
        ids = compute.if_else(compute.is_nan(ids), None, ids)
    values, lengths = _flattened(ids)
    numbers = _ids(values, feature.table.vocab, column.ids, where)
    if not column.weights:
        return numbers.reshape(-1, 1) if lengths is None else (numbers, offsets_of(lengths))
    lengths = np.ones(len(numbers), np.int64) if lengths is None else lengths
    return numbers, offsets_of(lengths), _weights(_one_array(table[column.weights]), lengths, place, column.weights)


def _numbers(array: Any, where: str) -> NDArray[np.float32]:
    """A column of numbers, one a row; missing ones are 0."""
    from pyarrow import compute

    if _kind_of(array.type) == "text":
        array = compute.if_else(compute.equal(compute.utf8_trim_whitespace(array), ""), None, array)
    return np.asarray(_cast(array, "float", where).fill_null(0), np.float32)


def _cast(array: Any, kind: str, where: str) -> Any:
    """A column as numbers: ``int64`` for ids, ``float32`` for weights, ``float`` for values."""
    import pyarrow
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(array) if _kind_of(array.type) == "text" else array
    try:
        return trimmed.cast(kind, safe=kind != "float")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        text = " ".join(str(error).split())[:200]
    if kind == "int64":
        shown = re.sub(r".*'(.*?)'.*|Float value (\S+) .*", r"\1\2", text)
        how = 'hash such values: ids = "hash"' if trimmed.type == "string" else "ids are whole numbers or texts"
        raise UsageError(f"{shown[:40]!r} is not a whole number", where=where, how=how)
    problem = "weights that are not numbers" if kind == "float32" else "not a column of numbers"
    raise UsageError(f"{problem}: {text}", where=where)


def _check_ids_alike(table: Any, log: Log) -> None:
    """UsageError where one table's ids are row numbers in one feature and hashed texts in another, by guess."""
    ways: dict[str, tuple[Feature, LogColumn, str]] = {}
    for feature, column in log.pairs:
        way = _id_kind(table.schema.field(column.name).type, column)
        other, other_column, first = ways.setdefault(feature.table.name, (feature, column, way))
        if way and first and way != first and "auto" in (other_column.ids, column.ids):
            direct, hashed = (other, feature) if first == "direct" else (feature, other)
            raise UsageError(
                f"ids of {direct.name!r} are rows of table {feature.table.name!r}, texts of {hashed.name!r} would be "
                "hashed into it: the same id would be two rows",
                where=log.path,
                how='give both features ids = "direct", or both ids = "hash"',
            )


def _id_kind(kind: Any, column: LogColumn) -> str:
    """``direct``, ``hash``, or "" where a column is empty."""
    from pyarrow import types

    if column.ids != "auto":
        return column.ids
    while _kind_of(kind) == "list":
        kind = kind.value_type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return {"null": "", "integer": "direct", "number": "direct"}.get(_kind_of(kind), "hash")


def _one_array(chunked: Any) -> Any:
    array = chunked.combine_chunks()
    if hasattr(array, "num_chunks"):  # older versions keep it chunked
        array = array.chunk(0)
    return array.dictionary_decode() if str(array.type).startswith("dictionary") else array


def _flattened(array: Any) -> tuple[Any, NDArray[np.int64] | None]:
    """Flat ids of all samples in order, and how many ids each sample has (None: one each).

    What is missing is no id, and so is an empty text: a cell, or what stands between two separators.
    """
    from pyarrow import compute

    kind = _kind_of(array.type)
    if kind == "list":
        lengths = np.asarray(compute.list_value_length(array).fill_null(0), np.int64)
        return _without_empty(array.flatten(), lengths)
    if kind == "text" and compute.any(compute.match_substring(array, SEPARATOR)).as_py():
        return _flattened(compute.split_pattern(array, SEPARATOR))
    there = _present(array)
    return (array, None) if there is None else (array.filter(there), there.astype(np.int64))


def _without_empty(flat: Any, lengths: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """The same lists without their empty texts."""
    there = _present(flat) if _kind_of(flat.type) in ("text", "bytes") else None
    if there is None:
        return flat, lengths
    before = offsets_of(there.astype(np.int64))
    ends = np.cumsum(lengths)
    return flat.filter(there), before[ends] - before[ends - lengths]


def _present(array: Any) -> NDArray[np.bool_] | None:
    """Mask of the values that are neither missing nor empty texts; None: all of them."""
    from pyarrow import compute

    if _kind_of(array.type) not in ("text", "bytes"):
        return np.asarray(array.is_valid(), bool) if array.null_count else None
    lengths = compute.binary_length(array)
    if not array.null_count and (not len(array) or compute.min(lengths).as_py() > 0):
        return None
    return np.asarray(lengths.fill_null(0), np.int64) > 0


def _kind_of(kind: Any) -> str:
    """What an Arrow type is to us: text, bytes, list, integer, number, null, "" for anything else."""
    from pyarrow import types

    kinds = {
        "text": (types.is_string, types.is_large_string),
        "bytes": (types.is_binary, types.is_large_binary),
        "list": (types.is_list, types.is_large_list, types.is_fixed_size_list),
        "integer": (types.is_integer,),
        "number": (types.is_floating, types.is_boolean, types.is_decimal),
        "null": (types.is_null,),
    }
    return next((name for name, tests in kinds.items() if any(test(kind) for test in tests)), "")


def _ids(array: Any, vocab: int, ids: str, where: str) -> NDArray[Any]:
    kind = _kind_of(array.type)
    if kind == "number":
        array, kind = _cast(array, "int64", where), "integer"
    if kind == "integer" and array.null_count:
        raise UsageError("a list with a missing id in it", where=where, how="leave it out of the list")
    if kind == "integer":
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        if ids != "hash":
            return values
        from tilewright.embed.logs.criteo_kernels import hash_numbers

        hashed = np.empty(len(values), np.int32)
        hash_numbers(values.astype(np.int64), vocab, hashed)
        return hashed
    if kind == "null":
        return np.zeros(0, np.int64)
    if kind == "text" and ids == "direct":
        return np.asarray(_cast(array, "int64", where), np.int64)
    if kind in ("text", "bytes"):
        from tilewright.embed.logs.criteo import hashed_texts

        return hashed_texts(array, vocab)
    how = "ids are whole numbers or texts, or lists of them"
    raise UsageError(f"values of type {array.type}", where=where, how=how)


def _weights(array: Any, lengths: NDArray[np.int64], place: str, name: str) -> NDArray[np.float32]:
    where = f"{place}, column {name!r}"
    flat, numbers = _flattened(array)
    numbers = np.ones(len(flat), np.int64) if numbers is None else numbers
    if _kind_of(flat.type) == "text":
        flat = _cast(flat, "float32", where)
    elif _kind_of(flat.type) not in ("number", "integer"):
        raise UsageError(f"weights of type {flat.type}", where=where, how="weights are numbers")
    wrong = np.flatnonzero(numbers != lengths) if len(numbers) == len(lengths) else np.zeros(1, np.int64)
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"{numbers[k]} weights for {lengths[k]} ids in row {k + 1} of the batch", where=where)
    return np.asarray(flat.to_numpy(zero_copy_only=False), np.float32)


# Batches from Parquet, and from text with a header, through pyarrow.

_BLOCK = 4 << 20
_ROWS = 65536


def _pyarrow() -> Any:
    need("pyarrow", what="this kind of log", how="read it yourself and call embed.plan")
    import pyarrow

    return pyarrow


@contextmanager
def _as_usage_error(problem: str, where: str) -> Iterator[None]:
    """Raise pyarrow's errors as UsageError, on one line."""
    try:
        yield
    except (_pyarrow().ArrowException, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{problem}: {' '.join(str(error).split())[:300]}", where=where) from None


def _files(log: Log) -> list[str]:
    path = Path(log.path)
    files = sorted(str(p) for p in path.glob("*.parquet")) if path.is_dir() else [log.path]
    if not files:
        raise UsageError("no .parquet file in the folder", where=log.path)
    return files


def _opened(log: Log, file: str) -> Any:
    from pyarrow import parquet

    with _as_usage_error("not a Parquet file", file):
        opened = parquet.ParquetFile(file)
    _check_columns(log, opened.schema_arrow.names, file)
    return opened


def _check_columns(log: Log, names: list[str], where: str) -> None:
    missing = [name for name in _column_names(log) if name not in names]
    if missing:
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise UsageError(f"no column {', '.join(missing[:4])}{more}", where=where, how=f"it has {some}")


def _column_names(log: Log) -> list[str]:
    names = [name for column in log.columns for name in (column.name, column.weights) if name]
    return list(dict.fromkeys([*names, *log.values, *filter(None, [log.time])]))


def _count_parquet(log: Log) -> int:
    """Rows by the files' metadata; UsageError for files that are not Parquet or lack a column."""
    _pyarrow()
    total = 0
    for file in _files(log):
        with _opened(log, file) as opened:
            total += opened.metadata.num_rows
    return total


def _parquet_rows(log: Log, begin: int = 0, end: float = math.inf) -> Iterator[Any]:
    """The rows ``begin`` .. ``end`` - 1 of all files, decoded a batch at a time, from the row groups they stand in."""
    at = 0
    for file in _files(log):
        with _opened(log, file) as opened:
            sizes = [opened.metadata.row_group(k).num_rows for k in range(opened.metadata.num_row_groups)]
            starts = list(accumulate(sizes, initial=at))
            at = starts[-1]
            groups = [k for k, size in enumerate(sizes) if starts[k] < end and starts[k] + size > begin]
            if not groups:
                continue
            here = starts[groups[0]]
            decoded = opened.iter_batches(min(log.batch, _ROWS), row_groups=groups, columns=_column_names(log))
            for part in _checked_parts(decoded, "it breaks off", file):
                low, high = max(begin - here, 0), int(min(end - here, part.num_rows))
                if low < high:
                    yield part.slice(low, high - low)
                here += part.num_rows


def _text_head(log: Log) -> bytes:
    """The header's line, its columns checked."""
    _pyarrow()
    if log.path == "-":
        raise UsageError("stdin is read as Criteo's format only", where="-", how="give a file's name")
    with _as_usage_error("cannot read it", log.path), open_bytes(log.path) as file:
        head = file.readline(_BLOCK)
    if not head.strip():
        raise UsageError("the file is empty", where=log.path)
    names = [cell.strip(' \r\n"') for cell in head.decode("utf-8-sig", "replace").split(_separator(head))]
    _check_columns(log, names, log.path)
    return head


def _separator(head: bytes) -> str:
    return "\t" if b"\t" in head else ","


def _text_rows(log: Log, begin: int = 0, end: float = math.inf) -> Iterator[Any]:
    """The rows ``begin`` .. ``end`` - 1 of a text, a block at a time; cells stay texts here."""
    pyarrow = _pyarrow()
    from pyarrow import csv

    separator = _separator(_text_head(log))
    types = {name: pyarrow.string() for name in _column_names(log)}
    options: dict[str, Any] = {
        "read_options": csv.ReadOptions(block_size=_BLOCK, skip_rows_after_names=begin),
        "parse_options": csv.ParseOptions(delimiter=separator),
        "convert_options": csv.ConvertOptions(include_columns=list(types), column_types=types),
    }
    with _as_usage_error("cannot be read as a table", log.path):
        reader = csv.open_csv(log.path, **options)
    for part in _checked_parts(reader, "cannot be read as a table", log.path):
        yield part.slice(0, int(min(end - begin, part.num_rows)))
        begin += part.num_rows
        if begin >= end:
            return


# Parts of a log, for several workers: row groups of Parquet, rows of a text.


def _rows_of(log: Log, begin: int = 0, end: float = math.inf) -> Iterator[Any]:
    """The rows ``begin`` .. ``end`` - 1 of a log that is read in parts, in Arrow's batches."""
    readers = {"parquet": _parquet_rows, "text": _text_rows}
    if log.kind not in readers:
        how = "write it as Parquet, CSV or TSV with a header, or count in one process"
        raise UsageError(f"a log of kind {log.kind} is not read in parts", where=log.path, how=how)
    return readers[log.kind](log, begin, end)


def part_rows(log: Log) -> int:
    """Rows of a log that :func:`log_part` reads; :class:`UsageError` for one that it does not."""
    return sum(part.num_rows for part in _rows_of(log)) if log.rows is None else log.rows


def log_part(log: Log, first: int, last: int) -> Iterator[LogBatch]:
    """The batches ``first`` .. ``last`` - 1 of a log, of which no more is decoded than it takes."""
    begin, end = first * log.batch, last * log.batch
    return _cut_to_batches(log, _rows_of(log, begin, end), begin)


def _checked_parts(parts: Iterator[Any], problem: str, where: str) -> Iterator[Any]:
    """The parts; pyarrow's error in reading the next one is raised as UsageError."""
    while True:
        with _as_usage_error(problem, where):
            part = next(parts, None)
        if part is None:
            return
        yield part


def _cut_to_batches(log: Log, parts: Iterator[Any], done: int = 0) -> Iterator[LogBatch]:
    """Batches of ``log.batch`` rows from parts of any length; at most one batch and one part are held.

    ``done``: rows before the first."""
    pyarrow = _pyarrow()
    held: list[Any] = []
    rows = 0

    def to_batch(table: Any) -> LogBatch:
        place = f"{log.path}: rows {done + 1:,} to {done + table.num_rows:,}"
        if not done:
            _check_ids_alike(table, log)
        inputs = {f.name: _feature_input(table, f, c, place) for f, c in log.pairs}
        values = {name: _numbers(_one_array(table[name]), f"{place}, column {name!r}") for name in log.values}
        day = log.time and day_of(table[log.time][table.num_rows // 2].as_py(), f"{place}, column {log.time!r}")
        return LogBatch(table.num_rows, inputs, values, day)

    for part in parts:
        held.append(part)
        rows += part.num_rows
        if rows < log.batch:
            continue
        table = pyarrow.Table.from_batches(held)
        at = 0
        for at in range(log.batch, rows + 1, log.batch):
            yield to_batch(table.slice(at - log.batch, log.batch))
            done += log.batch
        held, rows = table.slice(at).to_batches(), rows - at
    if rows:
        yield to_batch(pyarrow.Table.from_batches(held))
    elif not done:
        raise UsageError("no rows in the file", where=log.path)


# Batches from a numpy archive.


def _read_arrays(log: Log) -> Iterator[LogBatch]:
    """Arrays ``name`` [rows, ids] or [rows], or ``name.values`` with ``name.offsets``; weights under their own name."""
    whole, columns, times = _load(log)
    sizes = {name: ragged.batch_size for name, ragged in whole.items()}
    sizes |= {name: len(column) for name, column in columns.items()} | ({log.time: len(times)} if log.time else {})
    rows = max(sizes.values())
    if short := next((name for name, size in sizes.items() if size != rows), None):
        raise UsageError(f"{sizes[short]} samples of {short!r}, {rows} of others", where=log.path)
    for start in range(0, rows, log.batch):
        stop = min(rows, start + log.batch)
        inputs = {name: ragged.take(np.arange(start, stop)).as_input() for name, ragged in whole.items()}
        day = log.time and day_of(times[(start + stop) // 2].item(), f"{log.path}: array {log.time!r}")
        yield LogBatch(stop - start, inputs, {name: column[start:stop] for name, column in columns.items()}, day)


def _load(log: Log) -> tuple[dict[str, Ragged], dict[str, NDArray[np.float32]], NDArray[Any]]:
    try:
        with open_bytes(log.path) as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError("one array, not an archive", where=log.path, how="write it with numpy.savez")
            columns = {name: _numbers_in(archive, log, name) for name in log.values}
            times = _array(archive, log, log.time) if log.time else np.empty(0)
            return {f.name: _feature(archive, log, f.name, c) for f, c in log.pairs}, columns, times
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"not a numpy archive: {error}", where=log.path) from None


def _feature(archive: Mapping[str, Any], log: Log, feature: str, column: LogColumn) -> Ragged:
    values, offsets = f"{column.name}.values", f"{column.name}.offsets"
    weights = _array(archive, log, column.weights) if column.weights else None
    with placed_at(log.path, within=True):
        if column.name in archive:
            dense = _array(archive, log, column.name)
            if weights is None:
                return normalise(dense, feature)
            rows, hot = (*dense.shape, 1)[:2]
            return normalise((dense.reshape(-1), np.arange(rows + 1) * hot, weights.reshape(-1)), feature)
        flat = _array(archive, log, values), _array(archive, log, offsets)
        return normalise(flat if weights is None else (*flat, weights), feature)


def _numbers_in(archive: Mapping[str, Any], log: Log, name: str) -> NDArray[np.float32]:
    array = _array(archive, log, name)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        problem = f"{array.dtype}{list(array.shape)} where numbers [rows] are expected"
        raise UsageError(problem, where=f"{log.path}: array {name!r}")
    return np.asarray(array, np.float32)


def _array(archive: Mapping[str, Any], log: Log, name: str) -> Any:
    if name not in archive:
        some = ", ".join(list(archive)[:8])
        raise UsageError(f"no array {name!r}", where=log.path, how=f"it holds {some}")
    return archive[name]
