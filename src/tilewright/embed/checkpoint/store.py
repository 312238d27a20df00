"""Arrays on disk, column by column: what one shard holds of a table is one column, written and read in chunks.

Also those of jax-tpu-embedding 0.2.0: stacked tables and slots in an Orbax pytree, and their spec as text.
"""

from __future__ import annotations

import ast
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import tensorstore
from numpy.typing import NDArray

from tilewright.embed.checkpoint.folder import TABLES
from tilewright.embed.checkpoint.schema import Checksums, Saved, chunk_file
from tilewright.embed.model.stacking import Stacking, TablePlacement, padded_vocab
from tilewright.embed.model.tables import Table
from tilewright.errors import UsageError

METADATA = "zarr.json"
CHUNK_BYTES = 1 << 23
IN_FLIGHT_BYTES = 3 << 23
"""Bytes of chunks being written or read at a time: what a save or restore needs beside the state."""


# Every file is synced before it counts as written: many small tables wait for the disk side by side.
_CONTEXT = tensorstore.Context({"file_io_concurrency": {"limit": 64}})


class Columns(Protocol):
    """A logical table or slot: id c + shards * j is row j of column c."""

    shards: int
    vocab: int
    width: int

    def chunk_rows(self) -> int:
        """Rows of a column that are best read at a time."""

    def read(self, column: int, first: int, stop: int) -> Any:
        """A future of float32 [stop - first, width]."""


@dataclass(frozen=True)
class Logical:
    """A table of a checkpoint, of whatever form: its rows and slots by column, and its optimizer's name if known."""

    vocab: int
    width: int
    optimizer: str | None
    rows: Columns
    slots: Mapping[str, Columns]


Job: TypeAlias = tuple[int, Callable[[], Any], Callable[[Any], None]]
"""Bytes, what starts it and gives a future, and what takes the future's result."""


def reads(columns: Columns, taking: Callable[[int], Callable[[int, Any], None] | None]) -> Iterator[Job]:
    """A job for every chunk of the columns c that ``taking(c)`` has a use for: it gets first row and values."""
    for column in range(min(columns.shards, columns.vocab)):
        if (take := taking(column)) is None:
            continue
        rows = len(range(column, columns.vocab, columns.shards))
        for first in range(0, rows, step := columns.chunk_rows()):
            stop = min(first + step, rows)
            yield 4 * (stop - first) * columns.width, partial(columns.read, column, first, stop), partial(take, first)


def rows_of(vocab: int, shards: int) -> int:
    """Rows of a column: those of column 0, which has the most.

    >>> rows_of(10, 4)
    3
    """
    return -(-vocab // shards)


class ZarrColumns:
    """A zarr array [ceil(vocab / shards), shards, width] whose chunks hold rows of one column, each with a checksum.

    With ``checksums`` what is read must be what was written for the step.
    """

    def __init__(self, folder: Path, vocab: int, shards: int, width: int, checksums: Checksums | None = None) -> None:
        self.folder, self.vocab, self.shards, self.width = folder, vocab, shards, width
        self._checksums = checksums

    def chunk_rows(self) -> int:
        """Rows of a chunk on disk."""
        return int(self._store.chunk_layout.read_chunk.shape[0])

    def _spec(self) -> dict[str, Any]:
        # A chunk that is not there is an error, not zeros.
        whole = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{self.folder}/"}, **whole}

    def _shape(self) -> list[int]:
        return [rows_of(self.vocab, self.shards), self.shards, self.width]

    @cached_property
    def _store(self) -> Any:
        """The array, opened for reading."""
        if self._checksums is not None:
            self._checksums.check(self.folder / METADATA)
        store = tensorstore.open(self._spec(), open=True, context=_CONTEXT).result()
        if list(store.shape) != self._shape():
            problem = f"an array {list(store.shape)}, the schema says {self._shape()}"
            raise ValueError(f"{self.folder / METADATA}: {problem}")
        return store

    def create(self, first: bool) -> None:
        """Open it for writing; the ``first`` process writes the array's metadata, the others know what it says."""
        rows = rows_of(self.vocab, self.shards)  # in equal chunks: the last one is stored as long as the others
        chunk = [-(-rows // -(-4 * self.width * rows // CHUNK_BYTES)), 1, self.width]
        metadata = {
            "shape": self._shape(),
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        }
        how: dict[str, Any] = {"create": True} if first else {"open": True, "assume_metadata": True}
        self._store = tensorstore.open(self._spec() | {"metadata": metadata}, context=_CONTEXT, **how).result()

    def write(self, column: int, first: int, values: NDArray[Any]) -> Any:
        """A future that is done when rows from ``first`` on are on disk; until then ``values`` must not change."""
        target = self._store[first : first + len(values), column]
        return target.write(values, can_reference_source_data_indefinitely=True).commit

    def read(self, column: int, first: int, stop: int) -> Any:
        """A future of float32 [stop - first, width], rows of one chunk."""
        future = self._store[first:stop, column].read()
        if self._checksums is None:
            return future
        return _Checked(future, partial(self._checksums.check, self.chunk(column, first), chunk_file))

    def chunk(self, column: int, first: int) -> Path:
        """The file that holds rows from ``first`` on."""
        return self.folder / f"c.{first // self.chunk_rows()}.{column}.0"


@dataclass(frozen=True)
class _Checked:
    """A future whose result is looked at before it is given: by then the file is in memory."""

    future: Any
    check: Callable[[], None]

    def result(self) -> Any:
        values = self.future.result()
        self.check()
        return values

    def exception(self) -> Any:
        return self.future.exception()


def in_flight(jobs: Iterable[Job]) -> None:
    """Run jobs in order, so many at a time that their bytes stay below the limit (one at least)."""
    waiting: deque[tuple[int, Any, Callable[[Any], None]]] = deque()
    under_way = 0
    try:
        for size, start, finish in jobs:
            while waiting and under_way + size > IN_FLIGHT_BYTES:
                under_way -= waiting[0][0]
                _finish(waiting)
            waiting.append((size, start(), finish))
            under_way += size
        while waiting:
            _finish(waiting)
    finally:  # after an error nothing goes on behind the caller's back
        for _, future, _ in waiting:
            future.exception()


def _finish(waiting: deque[tuple[int, Any, Callable[[Any], None]]]) -> None:
    _, future, finish = waiting.popleft()
    finish(future.result())


def our_tables(saved: Saved) -> dict[str, Logical]:
    """All tables of a step of ours; none of somebody else's."""
    tables: dict[str, Logical] = {}
    if (schema := saved.schema) is None:
        return tables
    for table in schema.tables:
        stored: dict[str, Columns] = {}
        for slot, array in {"": table.rows, **table.slots}.items():
            folder = saved.path / TABLES / array.path
            stored[slot] = ZarrColumns(folder, table.vocab, schema.shards, array.width, saved.checksums)
        name = str(table.optimizer.get("name"))
        tables[table.name] = Logical(table.vocab, table.width, name, stored.pop(""), stored)
    return tables


# Checkpoints of jax-tpu-embedding.

_SPEC = "proto.pbtxt"
_METADATA = "_METADATA"


class StackedColumns:
    """Columns of one table inside a stacked array [shards * rows, width] on disk."""

    def __init__(self, placement: TablePlacement, store: Any) -> None:
        table, self.shards = placement.table, placement.shards
        self.vocab, self.width = table.vocab, min(table.width, int(store.shape[1]))
        self._placement, self._store = placement, store
        self._per_shard = store.shape[0] // placement.shards

    def chunk_rows(self) -> int:
        """A shard's rows of the table where they are few; the file's chunks may hold several shards."""
        return max(1, min(rows_of(self.vocab, self.shards), CHUNK_BYTES // (4 * self.width)))

    def read(self, column: int, first: int, stop: int) -> Any:
        """A future of float32 [stop - first, width]."""
        shard = (column + self._placement.rotation) % self.shards
        begin = shard * self._per_shard + self._placement.row_offset
        return self._store[begin + first : begin + stop, : self.width].read()


def peer_tables(folder: Path, written_with: Stacking | None) -> dict[str, Logical]:
    """The tables of a step that jax-tpu-embedding has saved; nothing there names an optimizer.

    Raises :class:`UsageError` where no stacked tables are in the folder, or nothing says how they are stacked.
    """
    placed = list(_placed(folder) if written_with is None else written_with.placements)
    by_stack = _arrays(folder, {placement.stack for placement in placed})
    found: dict[str, Logical] = {}
    for placement in placed:
        table, arrays = placement.table, by_stack.get(placement.stack)
        if arrays is None or "" not in arrays:
            have = ", ".join(by_stack) or "none"
            raise UsageError(f"no stack {placement.stack!r} in it (there is {have})", where=str(folder))
        slots = {name: StackedColumns(placement, array) for name, array in arrays.items()}
        found[table.name] = Logical(table.vocab, table.width, None, slots.pop(""), slots)
    return found


def _placed(folder: Path) -> Iterator[TablePlacement]:
    """The tables of the EmbeddingSpecProto in a step; text leaves out numbers that are zero."""
    path = next(iter(sorted(folder.glob(f"*/{_SPEC}"))), None)
    if path is None:
        problem = "neither tables of ours nor an embedding_spec of jax-tpu-embedding"
        how = "give written_with=, the stacking that it was trained with"
        raise UsageError(problem, where=str(folder), how=how)
    for stack in text_proto(path.read_text(encoding="utf-8")).get("stacked_table_specs", []):
        for spec in stack.get("table_specs", []):
            table = Table(spec["table_name"][0], spec["vocab_size"][0], spec["embedding_dim"][0])
            at = spec.get("shard_rotation", [0])[0], spec.get("row_offset_in_shard", [0])[0]
            shards = stack["num_sparsecores"][0]
            yield TablePlacement(table, stack["stack_name"][0], *at, padded_vocab(table, shards), shards)


_TOKEN = re.compile(r'\s*([\w.]+|[{}:]|"(?:[^"\\]|\\.)*"|[-+][\w.+-]+)')


def text_proto(text: str) -> dict[str, list[Any]]:
    """A protocol buffer in text form: field -> its values; a message is such a dict again.

    >>> text_proto('stack { name: "a" rows: 8 } stack { name: "b" }')
    {'stack': [{'name': ['a'], 'rows': [8]}, {'name': ['b']}]}
    """
    tokens = iter([*_TOKEN.findall(text), "}"])
    whole = _message(tokens)
    if next(tokens, None) is not None:
        raise ValueError("a closing brace too many")
    return whole


def _message(tokens: Iterator[str]) -> dict[str, list[Any]]:
    """The fields up to the message's closing brace."""
    found: dict[str, list[Any]] = {}
    for token in tokens:
        if token == "}":
            return found
        after = next(tokens, "")
        if after not in ("{", ":"):
            raise ValueError(f"{token!r} is followed by {after!r}")
        found.setdefault(token, []).append(_message(tokens) if after == "{" else _scalar(next(tokens, "")))
    raise ValueError("the text ends inside a message")


def _scalar(token: str) -> Any:
    """A number or text; names of enumerations stay as they are."""
    try:
        return ast.literal_eval(token)
    except (ValueError, SyntaxError):
        return token


def _arrays(folder: Path, stacks: set[str]) -> dict[str, dict[str, Any]]:
    """Stack -> {"": rows, slot: array}, opened, from whichever part of the step holds them."""
    by_stack: dict[str, dict[str, Any]] = {}
    for metadata in sorted([*folder.glob(_METADATA), *folder.glob(f"*/{_METADATA}")]):
        tree = json.loads(metadata.read_text(encoding="utf-8"))
        for entry in tree["tree_metadata"].values():
            keys = [str(key["key"]) for key in entry["key_metadata"]]
            if len(keys) > 1 and keys[-1] == "table" and keys[-2] in stacks:
                by_stack.setdefault(keys[-2], {})[""] = _open(metadata.parent, keys, tree)
            elif len(keys) > 2 and keys[-2] == "slot" and keys[-3] in stacks:
                by_stack.setdefault(keys[-3], {})[keys[-1]] = _open(metadata.parent, keys, tree)
    return by_stack


def _open(folder: Path, keys: list[str], tree: Mapping[str, Any]) -> Any:
    """Open one array of Orbax's pytree, named by its ``keys``."""
    name = ".".join(keys)
    file: dict[str, Any] = {"driver": "file", "path": f"{folder}/"}
    kvstore = {"driver": "ocdbt", "base": file, "path": f"{name}/"}
    if not tree.get("use_ocdbt", True):
        kvstore = file | {"path": f"{folder / name}/"}
    driver = "zarr3" if tree.get("use_zarr3") else "zarr"
    # Chunks hold the shards of a whole device and are read in parts: the last ones stay in memory.
    context = {"cache_pool": {"total_bytes_limit": 4 * CHUNK_BYTES}}
    spec = {"driver": driver, "kvstore": kvstore, "recheck_cached_data": "open", "fill_missing_data_reads": False}
    return tensorstore.open(spec | {"context": context}, open=True).result()
