"""Arrays on disk, column by column: what one shard holds of a table is one column, written and read in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import tensorstore
from numpy.typing import NDArray

from tilewright.embed.checkpoint.checksums import Checksums

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
        self._checksums, self._chunk_rows = checksums, 0
        self._store: Any = None

    def chunk_rows(self) -> int:
        """Rows of a chunk on disk."""
        if self._chunk_rows == 0:
            self._chunk_rows = int(self._opened().chunk_layout.read_chunk.shape[0])
        return self._chunk_rows

    def _new_chunk_rows(self) -> int:
        """A column in equal chunks: the last one is stored as long as the others."""
        rows = rows_of(self.vocab, self.shards)
        chunks = -(-4 * self.width * rows // CHUNK_BYTES)
        return -(-rows // chunks)

    def _spec(self) -> dict[str, Any]:
        # A chunk that is not there is an error, not zeros.
        whole = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{self.folder}/"}, **whole}

    def _shape(self) -> list[int]:
        return [rows_of(self.vocab, self.shards), self.shards, self.width]

    def _opened(self) -> Any:
        if self._store is None:
            if self._checksums is not None:
                self._checksums.check(self.folder / METADATA)
            self._store = tensorstore.open(self._spec(), open=True, context=_CONTEXT).result()
            if list(self._store.shape) != self._shape():
                problem = f"an array {list(self._store.shape)}, the schema says {self._shape()}"
                raise ValueError(f"{self.folder / METADATA}: {problem}")
        return self._store

    def create(self, first: bool) -> None:
        """Open it for writing; the ``first`` process writes the array's metadata, the others know what it says."""
        chunk = [self._new_chunk_rows(), 1, self.width]
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
        future = self._opened()[first:stop, column].read()
        if self._checksums is None:
            return future
        return _Checked(future, partial(self._checksums.check_chunk, self.chunk(column, first)))

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


def in_flight(jobs: Iterable[tuple[int, Callable[[], Any], Callable[[Any], None]]]) -> None:
    """Run jobs (bytes, start, finish): ``start`` gives a future, ``finish`` takes its result, in order.

    So many are under way at a time that their bytes stay below the limit (one at least).
    """
    waiting: deque[tuple[int, Any, Callable[[Any], None]]] = deque()
    under_way = 0
    try:
        for size, start, finish in jobs:
            while waiting and under_way + size > IN_FLIGHT_BYTES:
                under_way -= _finish(waiting)
            waiting.append((size, start(), finish))
            under_way += size
        while waiting:
            _finish(waiting)
    finally:  # after an error nothing goes on behind the caller's back
        for _, future, _ in waiting:
            future.exception()


def _finish(waiting: deque[tuple[int, Any, Callable[[Any], None]]]) -> int:
    size, future, finish = waiting.popleft()
    finish(future.result())
    return size
