"""Criteo click logs: in memory, generated, and read (TSV without header, CSV with one) in bounded, hashed batches.

A block of lines goes through pyarrow, which is fast. Where pyarrow is not installed, or refuses a line, the block is
read line by line instead: that is what the format means, and what finds the line to complain of.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UsageError
from tilewright.reading import open_bytes

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))

CRITEO_CARDINALITIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        # Display Advertising Challenge (Kaggle): distinct values per column as facebookresearch/dlrm preprocesses it.
        "kaggle": (
            *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
            *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
        ),
        # Terabyte click logs: num_embeddings_per_feature of MLPerf training's DLRM-DCNv2 (mlcommons/training).
        "terabyte": (
            *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10),
            *(2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36),
        ),
    }
)
"""Rows of the 26 embedding tables in the two public Criteo data sets: ``kaggle`` (33,762,577 in all), ``terabyte``."""


@dataclass(frozen=True)
class Clicks:
    """Rows of a click log.

    ===============  ==================================================================================
    ``labels``       f32[rows]: 1 = clicked
    ``numeric``      f32[rows, 13]: log(1 + max(x, 0)), 0 where the value is missing
    ``categorical``  i32[rows, 26]: ids below each column's vocabulary; 0 where the value is missing
    ===============  ==================================================================================
    """

    labels: NDArray[np.float32]
    numeric: NDArray[np.float32]
    categorical: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Clicks:
        """A slice of rows, without a copy."""
        return Clicks(self.labels[rows], self.numeric[rows], self.categorical[rows])

    def features(self) -> dict[str, NDArray[Any]]:
        """The 26 one-hot features as ``preprocess`` takes them: {"C1": i32[rows, 1], ...}."""
        return {name: self.categorical[:, i : i + 1] for i, name in enumerate(CATEGORICAL)}

    def batches(self, batch: int) -> Iterator[Clicks]:
        """The whole batches in order; rows of a last, shorter one are left out."""
        for start in range(0, len(self) - batch + 1, batch):
            yield self[start : start + batch]

    @staticmethod
    def join(parts: Sequence[Clicks]) -> Clicks:
        """All rows of ``parts`` in one (at least one part)."""
        return Clicks(*map(np.concatenate, zip(*(vars(part).values() for part in parts))))


def scale_vocabs(vocabs: Sequence[int], factor: float, smallest: int = 4) -> tuple[int, ...]:
    """Vocabularies times ``factor``, none grown and none cut below ``smallest``.

    >>> scale_vocabs((1460, 3, 10131227), 0.001)
    (4, 3, 10131)
    """
    if not 0 < factor <= 1:
        raise UsageError(f"a vocabulary scale of {factor}", how="give a factor above 0 and at most 1")
    return tuple(min(v, max(smallest, round(v * factor))) for v in vocabs)


def check_vocabs(vocabs: Sequence[int]) -> NDArray[np.int64]:
    """26 vocabularies of 1 to 2^31 - 1 ids as an array; :class:`UsageError` otherwise."""
    if len(vocabs) != len(CATEGORICAL):
        raise UsageError(f"{len(vocabs)} vocabularies for 26 categorical columns", how="give one for each of C1..C26")
    if bad := [v for v in vocabs if not 1 <= v < 2**31]:
        raise UsageError(f"a vocabulary of {bad[0]} ids", how="a vocabulary holds 1 to 2147483647 ids")
    return np.asarray(vocabs, np.int64)


# A seeded click log with Zipf ids and a signal planted in both the ids and the numeric columns.

_SCATTER = 2654435761
"""A prime above every vocabulary: multiplying by it modulo the vocabulary scatters the frequent ids."""

_REFERENCE = 8192
"""Rows drawn to find the bias of a world's click rate."""


def synthetic_criteo(
    seed: int, rows: int, vocabs: Sequence[int], zipf: float = 1.05, click_rate: float = 0.25, signal_seed: int = 0
) -> Clicks:
    """``rows`` rows of a click log that looks like Criteo's and can be learnt.

    Ids follow a Zipf law with exponent ``zipf`` over each vocabulary (frequent ids are scattered over it); numeric
    columns are log-normal counts, some missing. Every id and every numeric column carries a hidden weight fixed by
    ``signal_seed``; the label is drawn with probability sigmoid(sum of weights), about ``click_rate`` on average.
    Two calls with different ``seed`` give training and test rows of the same world.

    >>> log = synthetic_criteo(1, 1000, [100] * 26)
    >>> log.categorical.shape, log.numeric.shape, int(log.categorical.max()) < 100
    ((1000, 26), (1000, 13), True)
    """
    sizes = check_vocabs(vocabs)
    if rows < 1 or zipf <= 0 or not 0 < click_rate < 1:
        raise UsageError(f"{rows} rows, zipf {zipf}, click rate {click_rate}", how="all above 0, the rate below 1")
    world = sizes.tolist(), zipf, signal_seed
    numeric, categorical, score = _draw(seed, rows, *world)
    score += _bias(_draw(signal_seed, _REFERENCE, *world)[2], click_rate)
    coin = np.random.Generator(np.random.PCG64([seed, 1])).random(rows)
    return Clicks((coin < _sigmoid(score)).astype(np.float32), numeric, categorical)


def _draw(
    seed: int, rows: int, vocabs: list[int], zipf: float, signal_seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float64]]:
    """Numeric columns, ids, and the sum of their hidden weights."""
    draw = np.random.Generator(np.random.PCG64(seed))
    numeric, score = _numeric(draw, np.random.Generator(np.random.PCG64([signal_seed, 2])), rows)
    categorical = np.empty((rows, 26), np.int32)
    for column, vocab in enumerate(vocabs):
        ids = _zipf(draw, rows, vocab, zipf)
        categorical[:, column] = ids
        score += 0.35 * _hidden(ids, signal_seed * 26 + column)
    return numeric, categorical, score


def _sigmoid(score: NDArray[np.float64]) -> NDArray[np.float64]:
    chance: NDArray[np.float64] = 1 / (1 + np.exp(-score))
    return chance


def _bias(score: NDArray[np.float64], rate: float) -> float:
    """What to add to the scores of a world's reference rows so that their mean chance is ``rate`` (by bisection)."""
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(score + middle).mean() < rate else (low, middle)
    return low


def _numeric(
    draw: np.random.Generator, world: np.random.Generator, rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The 13 columns, and what they say about the click (standardised columns times hidden weights)."""
    centre, spread = world.uniform(0.5, 4.0, 13), world.uniform(0.5, 1.5, 13)
    weights = world.normal(0.0, 0.5, 13)
    normal = draw.standard_normal((rows, 13))
    missing = draw.random((rows, 13)) < 0.1
    numeric = np.where(missing, 0.0, np.log1p(np.floor(np.exp(centre + spread * normal))))
    return numeric.astype(np.float32), np.where(missing, 0.0, normal) @ weights


def _zipf(draw: np.random.Generator, rows: int, vocab: int, exponent: float) -> NDArray[np.int64]:
    """Ids with P(rank r) close to r^-exponent, by the inverse of the continuous distribution on [1, vocab + 1)."""
    u = draw.random(rows)
    top = np.log(vocab + 1.0)
    if abs(exponent - 1) < 1e-9:
        rank = np.exp(u * top)
    else:
        power = 1 - exponent
        rank = np.exp(np.log1p(u * np.expm1(power * top)) / power)
    ids: NDArray[np.int64] = (np.clip(rank.astype(np.int64), 1, vocab) - 1) * _SCATTER % vocab
    return ids


def _hidden(ids: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """A hidden weight per id, uniform with variance one, from a hash: no table of the vocabulary's size."""
    h = ids.astype(np.uint64) + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    weight: NDArray[np.float64] = ((h >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5) * np.sqrt(12.0)
    return weight


_BLOCK = 4 << 20
_COLUMNS = ("label", *NUMERIC, *CATEGORICAL)
_FIRST_TEXT = len(_COLUMNS) - len(CATEGORICAL)
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_criteo(
    path: str | Path, vocabs: Sequence[int], batch: int = 65536, ids_only: bool = False
) -> Iterator[Clicks]:
    """Batches of at most ``batch`` rows of a Criteo file; only one batch and one block of bytes are held at a time.

    Tab-separated (or comma-separated) rows of label, 13 numeric and 26 categorical values; or a header that names
    them ``label``, ``I1`` .. ``I13``, ``C1`` .. ``C26`` in any order, other columns being skipped. ``ids_only`` asks
    for no more than ``C1`` .. ``C26`` of a header. ``path`` "-" is stdin.

    A categorical value becomes ``1 + h % (vocab - 1)``, h = its bytes under 64-bit FNV-1a followed by MurmurHash3's
    64-bit finaliser: the same on every machine. Id 0 is kept for missing values. A numeric value becomes
    log(1 + max(x, 0)), a missing one 0. Blanks and one pair of double quotes around a value do not count.

    Raises :class:`UsageError` that names the file and line: no such file, an empty file, a wrong number of columns, a
    value that is not a number, a label that is not 0 or 1.

    >>> rows = next(read_criteo("clicks.csv", [1000] * 26))  # doctest: +SKIP
    >>> rows.categorical.shape  # doctest: +SKIP
    (200, 26)
    """
    sizes = check_vocabs(vocabs).tolist()
    if batch < 1:
        raise UsageError(f"a batch of {batch} rows", how="read at least one row at a time")
    with _opened(str(path)):  # a missing file is refused here, not where the first batch is taken
        pass
    return _batches(str(path), sizes, batch, ids_only)


def hashed_texts(array: Any, vocab: int, trimmed: bool = False) -> NDArray[np.int32]:
    """Ids of an Arrow array of texts, over its own buffers; a missing text is the empty one, which is id 0."""
    import pyarrow

    filled = array.cast(pyarrow.large_binary()).fill_null(b"")
    _, offsets, data = filled.buffers()
    at = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    return _hashed(data if data is not None and data.size else b"\0", at, vocab, trimmed)


def _hashed(data: Any, offsets: NDArray[np.int64], vocab: int, trimmed: bool) -> NDArray[np.int32]:
    from tilewright.embed.logs.criteo_kernels import hash_texts

    ids = np.empty(len(offsets) - 1, np.int32)
    offsets.flags.writeable = False  # as Arrow's are: the kernel is compiled once for both
    hash_texts(np.frombuffer(data, np.uint8), offsets, vocab, trimmed, ids)
    return ids


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with open_bytes(path) as file:
        yield file


def _blocks(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Whole lines, some megabytes at a time, with the number of the first; a last newline is supplied."""
    line, rest = 1, b""
    while data := file.read(_BLOCK):
        rest += data
        end = rest.rfind(b"\n") + 1
        if end:
            yield line, rest[:end]
            line, rest = line + rest.count(b"\n", 0, end), rest[end:]
        elif len(rest) > 4 * _BLOCK:
            raise UsageError(f"a line of more than {4 * _BLOCK} bytes", where=f"{where}: line {line}")
    if rest:
        yield line, rest + b"\n"


def _batches(where: str, vocabs: list[int], batch: int, ids_only: bool) -> Iterator[Clicks]:
    with _opened(where) as file:
        blocks = _blocks(file, where)
        _, first = next(blocks, (1, b""))
        if not first:
            raise UsageError("the file is empty", where=where)
        layout, header = _layout(first[: first.index(b"\n")], where, vocabs, ids_only)
        first_line = 2 if header else 1
        held: list[Clicks] = []
        rows = 0
        for line, data in chain([(first_line, first[header:])], blocks):
            part = _by_arrow(data, layout)
            held.append(_by_line(data, line, layout) if part is None else part)
            rows += len(held[-1])
            if sum(map(len, held)) >= batch:
                whole = Clicks.join(held)
                yield from whole.batches(batch)
                held = [whole[len(whole) - len(whole) % batch :]]
        if not rows:
            raise UsageError("no rows in the file", where=where)
        if last := sum(map(len, held)):
            yield Clicks.join(held)[:last]


@dataclass(frozen=True)
class _Layout:
    """How a file is laid out: ``roles`` holds the place of every column in ``_COLUMNS``, -1: it is skipped."""

    where: str
    separator: bytes
    roles: list[int]
    vocabs: list[int]


def _layout(head: bytes, where: str, vocabs: list[int], ids_only: bool) -> tuple[_Layout, int]:
    """The layout by a file's first line, and the bytes of a header."""
    separator = b"\t" if b"\t" in head else b","
    names = [cell.decode("utf-8", "replace").strip(' \r"') for cell in head.split(separator)]
    if not {*names} & {*CATEGORICAL}:
        return _Layout(where, separator, list(range(len(_COLUMNS))), vocabs), 0
    needed = CATEGORICAL if ids_only else _COLUMNS
    if missing := [name for name in needed if name not in names]:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        problem = f"the header has no column {', '.join(missing[:4])}{more}"
        raise UsageError(problem, where=f"{where}: line 1")
    roles = [_COLUMNS.index(name) if name in _COLUMNS else -1 for name in names]
    return _Layout(where, separator, roles, vocabs), len(head) + 1


def _empty(rows: int) -> Clicks:
    return Clicks(np.zeros(rows, np.float32), np.zeros((rows, 13), np.float32), np.zeros((rows, 26), np.int32))


def _by_arrow(data: bytes, layout: _Layout) -> Clicks | None:
    """The rows of whole lines; None where pyarrow refuses one, or reads a value that must not be."""
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError:
        return None
    used = {str(k): role for k, role in enumerate(layout.roles) if role >= 0}
    kinds = {name: pyarrow.large_binary() if role >= _FIRST_TEXT else pyarrow.float64() for name, role in used.items()}
    names = [str(k) for k in range(len(layout.roles))]
    try:
        table = csv.read_csv(
            pyarrow.py_buffer(data),
            csv.ReadOptions(column_names=names, use_threads=False),
            csv.ParseOptions(delimiter=layout.separator.decode(), quote_char=False),
            csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), null_values=[""]),
        ).combine_chunks()
    except pyarrow.ArrowInvalid:
        return None
    clicks = _empty(table.num_rows)
    for name, role in used.items() if table.num_rows else ():
        array = table[name].chunk(0)
        if role >= _FIRST_TEXT:
            place = role - _FIRST_TEXT
            clicks.categorical[:, place] = hashed_texts(array, layout.vocabs[place], trimmed=True)
            continue
        if role == 0:
            values = array.fill_null(math.nan).to_numpy(zero_copy_only=False)
            clicks.labels[:] = values
            fits = (values == 0) | (values == 1)
        else:
            values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
            clicks.numeric[:, role - 1] = np.log1p(np.maximum(values, 0.0))
            fits = np.isfinite(values)
        if not fits.all():
            return None
    return clicks


def _by_line(data: bytes, first: int, layout: _Layout) -> Clicks:
    """The same line by line, where ``first`` is the number of the first; raises for the first bad line."""
    lines = [(n, line) for n, line in enumerate(data.split(b"\n")[:-1], first) if line.strip(b" \r")]
    rows = [_row(line, f"{layout.where}: line {n}", layout) for n, line in lines]
    clicks = _empty(len(rows))
    for k, (numbers, _) in enumerate(rows):
        clicks.labels[k] = numbers[0]
        clicks.numeric[k] = np.log1p(np.maximum(numbers[1:], 0.0))
    for place, vocab in enumerate(layout.vocabs):
        texts = [texts[place] for _, texts in rows]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        clicks.categorical[:, place] = _hashed(b"".join(texts) or b"\0", offsets, vocab, trimmed=False)
    return clicks


def _row(line: bytes, where: str, layout: _Layout) -> tuple[list[float], list[bytes]]:
    cells = line.split(layout.separator)
    if len(cells) != len(layout.roles):
        problem = f"{len(cells)} columns where {len(layout.roles)} are expected"
        raise UsageError(problem, where=where, how="label, I1 to I13, C1 to C26")
    numbers, texts = [0.0] * _FIRST_TEXT, [b""] * len(CATEGORICAL)
    for role, cell in zip(layout.roles, cells):
        text = cell.strip(b" \r")
        if len(text) >= 2 and text[:1] == text[-1:] == b'"':
            text = text[1:-1]
        if role >= _FIRST_TEXT:
            texts[role - _FIRST_TEXT] = text
        elif role == 0 or (role > 0 and text):
            numbers[role] = _number(text, role, where)
    return numbers, texts


def _number(text: bytes, role: int, where: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    shown = text.decode("utf-8", "replace")
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    if role == 0 and value not in (0.0, 1.0):
        raise UsageError(f"the label is {shown!r}", where=where, how="a label is 0 or 1")
    if not math.isfinite(value):
        raise UsageError(f"{shown!r} in numeric column {_COLUMNS[role]} is not a number", where=where)
    return value
