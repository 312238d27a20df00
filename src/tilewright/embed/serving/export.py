"""Exports on the side of jax: a state's tables written, quantised, to one file; and lookups of one under jit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.device.state import EmbeddingState, local_pieces, table_parts
from tilewright.embed.host.arrays import Floats
from tilewright.embed.model.stacking import TablePlacement
from tilewright.embed.model.tables import Quantization
from tilewright.embed.serving.format import CHUNK, DTYPES, LINE, SCALES, Header, StoredRows, coding_of
from tilewright.embed.serving.read import Export
from tilewright.errors import UsageError, check_known
from tilewright.files import writing_whole
from tilewright.layout.index.types import round_up


@dataclass(frozen=True)
class ExportedTable:
    """What quantising did to a table: errors are of single numbers, ``relative`` is root mean square over root mean
    square of the table (0 for a table of zeros)."""

    name: str
    vocab: int
    width: int
    encoding: str
    file_bytes: int
    largest_error: float
    mean_square_error: float
    relative_error: float


@dataclass(frozen=True)
class Exported:
    """A file that was written. ``float_bytes``: of the same tables in float32, unpadded."""

    path: str
    dtype: str
    file_bytes: int
    float_bytes: int
    tables: tuple[ExportedTable, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, for JSON."""
        return asdict(self)


def export(
    path: str | PathLike[str],
    state: EmbeddingState,
    dtype: str = "int8",
    *,
    scale: str = "row",
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write all tables of ``state`` to one file that :func:`open_export` reads, whole or not at all.

    ``dtype``: ``int8``, ``int4`` or ``bf16``. ``scale``: a float32 scale for every ``row`` of codes, or one for the
    ``table``; a table with a :class:`Quantization` is written in its levels, so that the service computes what training
    simulated. Rows go through in parts: no table is copied whole. ``progress(rows, of rows)`` is called on the way.

    Raises :class:`UsageError` for an unknown dtype, numbers that are not finite, levels that do not fit the codes,
    shards that other processes hold, and a file that cannot be written.

    >>> made = export("model.tables", state)  # doctest: +SKIP
    >>> open_export("model.tables").lookup({"user": [[3, 5], [1]]})["user"].shape  # doctest: +SKIP
    (2, 16)
    """
    for name, value, known in (("dtype", dtype, DTYPES), ("scale", scale, SCALES)):
        check_known(value, known, f"{name} = {value!r}", where="export")
    sources = {name: _Source(state, placement) for name, placement in state.stacking.tables.items()}
    stored = [_stored(source, dtype, scale) for source in sources.values()]
    header = _laid_out(state, dtype, stored)
    total, done, judged = sum(table.vocab for table in stored), 0, []
    with writing_whole(Path(path), durable=True) as file:
        for k, table in enumerate(header.tables):
            file.seek(table.offset)
            of_table = sources[table.name].placement.table
            measured = _Measured(table, of_table.quantization if dtype == "bf16" else None)
            for rows in sources[table.name].parts(table.rows_per_sum):
                measured.write(file, rows)
                done += len(rows)
                if progress is not None:
                    progress(done, total)
            header.tables[k] = replace(table, crc32=measured.sums)
            judged.append(measured.result())
        file.truncate(header.file_bytes)
        file.seek(0)
        file.write(header.data())
    floats = sum(4 * table.vocab * table.width for table in stored)
    return Exported(str(path), dtype, header.file_bytes, floats, tuple(judged))


class _Source:
    """The logical rows of a table, part after part, from the shards this process holds."""

    def __init__(self, state: EmbeddingState, placement: TablePlacement) -> None:
        array = state.stacks[placement.stack]
        where = f"table {placement.table.name!r}"
        if isinstance(array, jax.core.Tracer):
            raise UsageError("a state inside jit", where="export", how="export outside of it")
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            problem, how = "its shards are spread over several processes", "save a checkpoint and export that"
            raise UsageError(problem, where=where, how=how)
        self.placement, self.where = placement, where
        self._shards = list(table_parts(local_pieces(array), placement))

    def parts(self, step: int) -> Iterator[Floats]:
        """The rows in order, f32[step, width] at a time."""
        table, shards = self.placement.table, self.placement.shards
        for begin in range(0, table.vocab, step):
            rows = np.empty((min(step, table.vocab - begin), table.width), np.float32)
            for column, part in self._shards:
                first = (column - begin) % shards
                held, local = rows[first::shards], (begin + first) // shards
                held[:] = part[local : local + len(held), : table.width]
            if not np.isfinite(rows).all():
                wrong = begin + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
                raise UsageError(f"row {wrong} holds a number that is not finite", where=self.where)
            yield rows


def _stored(source: _Source, dtype: str, scale: str) -> StoredRows:
    table, largest = source.placement.table, 0.0
    if scale == "table" and dtype != "bf16" and table.quantization is None:
        largest = max(float(np.abs(rows).max()) for rows in source.parts(CHUNK // table.width + 1))
    coding = coding_of(table, dtype, scale, largest)
    sums = ["00000000"] * -(-table.vocab // coding.rows_per_sum)  # not yet known: the header's length is
    of_table: dict[str, Any] = {"name": table.name, "vocab": table.vocab, "combiner": table.combiner}
    return StoredRows(**vars(coding), **of_table, offset=0, crc32=sums)


def _laid_out(state: EmbeddingState, dtype: str, stored: list[StoredRows]) -> Header:
    """The header, every table behind the one before; what stands in front is as long as the header becomes."""
    features = {feature.name: feature.table.name for feature in state.stacking.features}
    header = Header(dtype, int(state.step), 1 << 62, features, [])
    places = [replace(table, offset=1 << 62) for table in stored]  # no number is longer than these
    at = round_up(len(replace(header, tables=places).data()), LINE)
    for k, table in enumerate(stored):
        places[k] = replace(table, offset=at)
        at = round_up(places[k].end, LINE)
    return replace(header, file_bytes=at, tables=places)


class _Measured:
    """Checksums and errors of a table on its way to the file."""

    def __init__(self, stored: StoredRows, seen: Quantization | None) -> None:
        self.sums: list[str] = []
        self._stored, self._seen = stored, seen
        self._largest, self._squares, self._errors = 0.0, 0.0, 0.0

    def write(self, file: BinaryIO, rows: Floats) -> None:
        """Write the codes of the rows under one checksum."""
        coded = self._stored.encode(rows if self._seen is None else self._seen.apply(rows, np))
        error = rows - self._stored.decode(coded)
        self._largest = max(self._largest, float(np.abs(error).max()))
        self._squares += float(np.einsum("nd,nd->", rows, rows, dtype=np.float64))
        self._errors += float(np.einsum("nd,nd->", error, error, dtype=np.float64))
        data = memoryview(cast(Any, coded)).cast("B")
        self.sums.append(f"{zlib.crc32(data):08x}")
        file.write(data)

    def result(self) -> ExportedTable:
        """The errors of all rows that were written."""
        stored = self._stored
        errors = (
            self._largest,
            self._errors / (stored.vocab * stored.width),
            (self._errors / (self._squares or 1)) ** 0.5,
        )
        size = stored.end - stored.offset
        return ExportedTable(stored.name, stored.vocab, stored.width, stored.encoding, size, *errors)


# Lookups of an export as a function of jax: under jit, on any device, and through jax.export.
#
# The coded rows are gathered as bytes and decoded where they arrive. What a row becomes has the bits of
# ``Export.lookup``; sums of several rows may be rounded otherwise.

Rows = dict[str, jax.Array]
Lookup = Callable[[Rows, Mapping[str, Any]], dict[str, jax.Array]]


def device_lookup(served: Export) -> tuple[Rows, Lookup]:
    """The coded rows of every table {name: u8[vocab, bytes]}, and ``lookup(rows, batch)``, pure.

    ``batch``: feature -> int[samples, ids], ``(values, offsets)`` or ``(values, offsets, weights)``; shapes may be
    symbolic. Nothing can be raised on a device: an id outside its table gives a row of NaN.

    >>> rows, lookup = device_lookup(open_export("model.tables"))  # doctest: +SKIP
    >>> asked = {"user": jax.ShapeDtypeStruct((64, 1), "int32")}  # doctest: +SKIP
    >>> shipped = jax.export.export(jax.jit(lookup))(rows, asked)  # doctest: +SKIP
    """
    stored, path = served.stored, served.path

    def lookup(rows: Rows, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        for name in batch:
            check_known(name, stored, f"no feature called {name!r}", where=path)
        return {name: _looked_up(rows[stored[name].name], stored[name], given) for name, given in batch.items()}

    return {name: jnp.asarray(np.asarray(rows)) for name, rows in served.rows.items()}, lookup


def _looked_up(rows: jax.Array, table: StoredRows, given: Any) -> jax.Array:
    if not isinstance(given, tuple):
        ids = jnp.asarray(given)
        total, count = _vectors(rows, table, ids).sum(axis=1), jnp.full((), ids.shape[1], jnp.float32)
        if table.combiner == "sum":
            return total
        gain = 1 / (jnp.sqrt(count) if table.combiner == "sqrtn" else count)
        return total * gain
    values, offsets = jnp.asarray(given[0]), jnp.asarray(given[1])
    samples = offsets.shape[0] - 1
    owner = jnp.searchsorted(offsets, jnp.arange(values.shape[0], dtype=offsets.dtype), side="right") - 1
    weights = jnp.asarray(given[2], jnp.float32) if len(given) > 2 else jnp.ones(values.shape, jnp.float32)
    powers = weights * weights if table.combiner == "sqrtn" else weights
    if table.combiner != "sum":
        total = jax.ops.segment_sum(powers, owner, samples)
        weights = weights / (jnp.sqrt(total) if table.combiner == "sqrtn" else total)[owner]
    return jax.ops.segment_sum(_vectors(rows, table, values) * weights[:, None], owner, samples)


def _vectors(rows: jax.Array, table: StoredRows, ids: jax.Array) -> jax.Array:
    """The rows of ``ids`` as f32[..., width]; NaN where there is none."""
    inside = (ids >= 0) & (ids < table.vocab)
    found = rows.at[jnp.where(inside, ids, 0)].get(mode="clip")
    return jnp.where(inside[..., None], table.decode(found, jnp), jnp.nan)
