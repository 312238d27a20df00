"""Arrays on disk, column by column: what one shard holds of a table is one column, written and read in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import tensorstore
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 24
IN_FLIGHT_BYTES = 1 << 26
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
    """A zarr array [ceil(vocab / shards), shards, width] whose chunks hold rows of one column, each with a checksum."""

    def __init__(self, folder: Path, vocab: int, shards: int, width: int) -> None:
        self.folder, self.vocab, self.shards, self.width = folder, vocab, shards, width
        self._store: Any = None

    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return max(1, min(rows_of(self.vocab, self.shards), CHUNK_BYTES // (4 * self.width)))

    def _spec(self) -> dict[str, Any]:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        chunk = [self.chunk_rows(), 1, self.width]
        metadata = {
            "shape": [rows_of(self.vocab, self.shards), self.shards, self.width],
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": codecs,
        }
        # A chunk that is not there is an error, not zeros.
        whole = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
        kvstore = {"driver": "file", "path": f"{self.folder}/"}
        return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata, **whole}

    def create(self, first: bool) -> None:
        """Open it for writing; the ``first`` process writes the array's metadata, the others know what it says."""
        spec = self._spec()
        opened = (
            tensorstore.open(spec, create=True) if first else tensorstore.open(spec, open=True, assume_metadata=True)
        )
        self._store = opened.result()

    def write(self, column: int, first: int, values: NDArray[Any]) -> Any:
        """A future that is done when rows from ``first`` on are on disk; until then ``values`` must not change."""
        target = self._store[first : first + len(values), column]
        return target.write(values, can_reference_source_data_indefinitely=True).commit

    def read(self, column: int, first: int, stop: int) -> Any:
        """A future of float32 [stop - first, width]."""
        if self._store is None:
            self._store = tensorstore.open(self._spec(), open=True, context=_CONTEXT).result()
        return self._store[first:stop, column].read()


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
