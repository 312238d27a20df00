"""Read an export: lookups in numpy, and its rows for programs of jax."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from tilewright.embed.host.arrays import Bytes, Floats, Longs, recycled
from tilewright.embed.host.inputs import BAD_IDS, Ragged, check_choice, normalise
from tilewright.embed.model.tables import COMBINERS
from tilewright.embed.serving.format import Header, StoredRows, check_sums, read_header
from tilewright.embed.serving.sum_kernels import DESCRIBED, IDS_IN_ALL, KINDS, OUT, STRIDE, serve
from tilewright.errors import UsageError, check_known
from tilewright.kernels.threads import run_all, thread_count
from tilewright.reading import open_bytes

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
_FEW = 1 << 14
"""Ids of a call up to which all are copied into one array."""
_LARGE = 1 << 18
"""Bytes of results from which their memory is used again."""
_PER_THREAD = 1 << 20
"""Bytes of rows below which a second thread costs more than it brings."""


def open_export(path: str | PathLike[str], *, check: bool = True) -> Export:
    """The tables that :func:`export` wrote, mapped into memory.

    ``check`` reads all of the file once and compares its checksums, some two gigabytes a second; without it only the
    header is checked, and a page of rows is read when it is first asked for.

    Raises :class:`UsageError` that names the file: missing, something else, another version, cut short, damaged.
    """
    where = str(path)
    with open_bytes(where) as file:
        header = read_header(file, os.fstat(file.fileno()).st_size, where)
        whole = np.memmap(file, np.uint8, "r")
    rows: dict[str, Bytes] = {t.name: whole[t.offset : t.end].reshape(t.vocab, t.stride) for t in header.tables}
    if check:
        check_sums(rows, header, where)
    return Export(where, header, rows)


@dataclass(frozen=True, eq=False)
class Export:
    """An opened export: ``header`` says what is in it, ``rows`` holds every table's coded rows u8[vocab, stride]."""

    path: str
    header: Header
    rows: Mapping[str, Bytes] = field(repr=False)
    _calls: dict[Any, _Call] = field(default_factory=dict, repr=False, init=False)

    @cached_property
    def stored(self) -> dict[str, StoredRows]:
        """The table of every feature, by the feature's name."""
        tables = {table.name: table for table in self.header.tables}
        return {feature: tables[name] for feature, name in self.header.features.items()}

    def table(self, name: str, begin: int = 0, end: int | None = None) -> Floats:
        """Rows ``begin .. end`` of a table as a lookup sees them, f32[rows, width]."""
        check_known(name, self.rows, f"no table {name!r}", where=self.path)
        coding = next(table for table in self.header.tables if table.name == name)
        decoded: Floats = coding.decode(self.rows[name][begin:end])
        return decoded

    def lookup(self, batch: Mapping[str, Any], bad_ids: str = "error") -> dict[str, Floats]:
        """Activations {feature: f32[batch, width]} of the features in ``batch``, combined as in training.

        ``batch`` is what ``preprocess`` takes, but any features and any number of samples will do: per feature a 2-D
        array of ids, ``(values, offsets)``, ``(values, offsets, weights)``, a list of lists, or a :class:`COO`. Samples
        without ids give zeros. Several threads may call it at the same time.

        ``bad_ids``: an id outside its table is an ``error``, or ``clip``ped into it, or ``drop``ped.

        Raises :class:`UsageError` that names feature, sample and id.
        """
        names, raws = tuple(batch), list(batch.values())
        wide, shapes = _dense(raws)
        keep: Any
        if not wide:
            described, numbers, outs, keep = self._ragged({name: normalise(raw, name) for name, raw in batch.items()})
            moved = int(described[:, IDS_IN_ALL] @ described[:, STRIDE])
        else:
            key = names, wide, shapes
            call = self._calls.get(key) or self._prepared(*key)
            described, numbers, moved = call.described.copy(), call.numbers, call.moved
            if call.joined:
                keep = np.concatenate(raws, axis=None)
                described[:, 0] += keep.ctypes.data
            else:
                keep = raws
                described[:, 0] = [raw.ctypes.data for raw in raws]
            address, outs = _outputs(names, call.shapes)
            described[:, OUT] += address
        wrong = _served(described, numbers, moved)
        del keep  # until here the ids are in use
        return self._mended(batch, bad_ids) if wrong >= 0 else outs

    def _prepared(self, names: tuple[str, ...], wide: int, shapes: tuple[tuple[int, int], ...]) -> _Call:
        """What calls with such inputs have in common; the last few are remembered."""
        tables, numbers = self._tables(names)
        sizes = [samples * hot for samples, hot in shapes]
        joined = sum(sizes) <= _FEW  # copying the ids is then faster than asking where they are
        ids = [wide * at for at in accumulate(sizes, initial=0)]
        outs = [4 * at for at in accumulate((n * t[3] for (n, _), t in zip(shapes, tables)), initial=0)]
        lines = [
            (at, wide, 0, hot, n, 0, n * hot, out, *table)
            for at, (n, hot), out, table in zip(ids, shapes, outs, tables)
        ]
        moved = sum(size * table[1] for size, table in zip(sizes, tables))
        described = np.array(lines, np.int64)
        if len(self._calls) >= _KEPT:
            self._calls.clear()
        made = _Call(described, numbers, [(n, t[3]) for (n, _), t in zip(shapes, tables)], moved, joined)
        self._calls[names, wide, shapes] = made
        return made

    def _ragged(self, inputs: Mapping[str, Ragged]) -> tuple[Longs, Floats, dict[str, Floats], Any]:
        """The kernel's arguments of any inputs, the results, and what must live until then."""
        names = tuple(inputs)
        tables, numbers = self._tables(names)
        shapes = [(ragged.batch_size, table[3]) for ragged, table in zip(inputs.values(), tables)]
        address, outs = _outputs(names, shapes)
        ends = accumulate((4 * n * width for n, width in shapes), initial=address)
        lines = []
        for ragged, out, table in zip(inputs.values(), ends, tables):
            offsets = 0 if ragged.offsets is None else ragged.offsets.ctypes.data
            weights = 0 if ragged.weights is None else ragged.weights.ctypes.data
            values, hot = ragged.values, max(0, ragged.hot)
            line = (values.ctypes.data, values.itemsize, offsets, hot, ragged.batch_size, weights, values.size, out)
            lines.append(line + table)
        return np.array(lines, np.int64).reshape(-1, DESCRIBED), numbers, outs, list(inputs.values())

    def _tables(self, names: tuple[str, ...]) -> tuple[list[tuple[int, ...]], Floats]:
        """The kernel's columns of every feature's table, and f32[features, 2] of scales and lowest numbers."""
        for name in names:
            check_known(name, self.stored, f"no feature called {name!r}", where=self.path)
        used = [self.stored[name] for name in names]
        numbers = np.array([(table.scale, table.low) for table in used], np.float32).reshape(-1, 2)
        return [_table_line(table, self.rows[table.name]) for table in used], numbers

    def _mended(self, batch: Mapping[str, Any], bad_ids: str) -> dict[str, Floats]:
        """The batch again, after its bad ids were dealt with; whatever else is wrong is an error."""
        check_choice("bad_ids", bad_ids, BAD_IDS)
        given = {name: normalise(raw, name) for name, raw in batch.items()}
        how = 'mend the request, or pass bad_ids="clip" or bad_ids="drop"'
        inputs = {n: r.inside(self.stored[n].vocab, bad_ids, f"feature {n!r}", how) for n, r in given.items()}
        if all(inputs[name] is ragged for name, ragged in given.items()):
            problem = "the weights of a sample have no finite sum to divide by, or it is zero"
            raise UsageError(problem, where="lookup", how="leave such a sample empty, or give it other weights")
        return self.lookup(inputs)


_KEPT = 64
"""Shapes of calls that are remembered."""


class _Call(NamedTuple):
    """Calls of one kind of request: the kernel's arguments but for addresses (ids and output count from 0), shapes of
    the results, bytes of rows, and whether the ids are copied into one array."""

    described: Longs
    numbers: Floats
    shapes: list[tuple[int, int]]
    moved: int
    joined: bool


def _table_line(table: StoredRows, rows: Bytes) -> tuple[int, ...]:
    kind = KINDS[table.encoding if table.encoding in ("levels", "bf16") else "signed", table.bits]
    combiner = COMBINERS.index(table.combiner)
    return (rows.ctypes.data, table.stride, table.vocab, table.width, kind, combiner, table.head)


def _dense(raws: list[Any]) -> tuple[int, tuple[Any, ...]]:
    """Bytes of an id and the shapes where all are arrays [samples, ids] of one kind as they can be read; else 0."""
    if {type(raw) for raw in raws} != {np.ndarray} or len({raw.dtype for raw in raws}) > 1:
        return 0, ()
    shapes = tuple([raw.shape for raw in raws])
    whole = raws[0].dtype in _IDS and all(len(shape) == 2 and shape[0] and shape[1] for shape in shapes)
    if not whole or not all(raw.flags.c_contiguous for raw in raws):
        return 0, ()
    return raws[0].itemsize, shapes


def _outputs(names: tuple[str, ...], shapes: list[tuple[int, int]]) -> tuple[int, dict[str, Floats]]:
    """Every feature's array, one behind the other in one piece of memory, and where that begins."""
    ends = list(accumulate(n * width for n, width in shapes))
    total = ends[-1] if ends else 0
    memory: Floats = recycled(total, np.float32) if 4 * total >= _LARGE else np.empty(total, np.float32)
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return memory.ctypes.data, dict(zip(names, memory.reshape(len(shapes), *shapes[0])))
    parts = [memory[end - n * width : end].reshape(n, width) for end, (n, width) in zip(ends, shapes)]
    return memory.ctypes.data, dict(zip(names, parts))


def _served(described: Longs, numbers: Floats, moved: int) -> int:
    """The kernel, in as many threads as ``moved`` bytes of rows are worth."""
    parts = min(thread_count(), 1 + moved // _PER_THREAD)
    if parts == 1:
        return int(serve(described, numbers, 0, 1))
    jobs = [partial(serve, described, numbers, part, parts) for part in range(parts)]
    return int(max(run_all(jobs, parts)))
