"""Checksums of a step: every file that a restore reads, under its name, with the step and the run it belongs to."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.embed.checkpoint.owner import run_of
from tilewright.errors import UsageError
from tilewright.reading import read_file, table_of, typed

FILE = "checksums.json"
_KIND = "embedding_checksums"
_VERSION = 1
_PIECE = 1 << 22
_THREADS = 4


@dataclass(frozen=True)
class _Written:
    """The step's own file. ``files``: all but chunks of tables, which every process notes in a file of its own beside
    the schema; ``parts``: the names of these, themselves among the files.
    """

    kind: str
    schema_version: int
    step: int
    run: str
    parts: list[str]
    files: dict[str, str]


@dataclass(frozen=True)
class Checksums:
    """What was written for the step in ``folder``: file -> its size and checksum. Its name says table, slot, column."""

    folder: Path
    run: str
    files: dict[str, str]

    def check(self, path: Path) -> None:
        """Raises ValueError or OSError where a file of the step is not the one that was written."""
        self._compare(path, whole_file(path))

    def check_chunk(self, path: Path) -> None:
        """The same for a chunk, whose reader compares its numbers with the checksum that it ends in."""
        self._compare(path, chunk_file(path))

    def check_under(self, folder: str) -> None:
        """Every file that was written into a folder of the step."""
        paths = [self.folder / name for name in self.files if name.startswith(f"{folder}/")]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.check, paths))

    def _compare(self, path: Path, found: str) -> None:
        written = self.files.get(os.fspath(path)[len(os.fspath(self.folder)) + 1 :], "nothing")  # in every chunk's way
        if found != written:
            problem = f"not that of step {self.folder.name}: size and checksum {found}, written was {written}"
            raise ValueError(f"{path}: {problem}")


def whole_file(path: Path) -> str:
    """Size and checksum of all its bytes."""
    size = checksum = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return f"{size}-{checksum:08x}"


def chunk_file(path: Path) -> str:
    """Size of a chunk and the checksum of its numbers that ends it (crc32c): nothing else is read."""
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        return f"{size}-{os.pread(file, 4, max(0, size - 4)).hex()}"
    finally:
        os.close(file)


def write_part(tables: Path, process: int, files: dict[str, str]) -> None:
    """What one process wrote of the tables."""
    write_synced(tables / part_name(process), json.dumps(files, indent=0))


def part_name(process: int) -> str:
    """The file of one process beside the schema."""
    return f"checksums.{process}.json"


def write_checksums(folder: Path, step: int, run: str, parts: list[str], names: Iterable[str]) -> None:
    """Look at all that was written of a step, when nobody writes any more; the last file before it gets its name."""
    with ThreadPoolExecutor(_THREADS) as pool:
        names = [*parts, *names]
        files = dict(zip(names, pool.map(lambda name: whole_file(folder / name), names), strict=True))
    written = _Written(_KIND, _VERSION, step, run, parts, files)
    write_synced(folder / FILE, json.dumps(asdict(written), indent=1) + "\n")


def write_synced(path: Path, text: str) -> None:
    """A file that is on disk when this returns."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_checksums(folder: Path) -> Checksums | None:
    """Those of a step's folder, which is the step it says and of the run whose folder it is in; None: it has none.

    Raises :class:`UsageError`, ValueError or OSError where it is not.
    """
    path = folder / FILE
    if not path.exists():
        return None
    value = table_of(read_file(path, "JSON"), str(path))
    if value.get("kind") != _KIND or value.get("schema_version") != _VERSION:
        raise UsageError(f"not checksums that this version reads (version {_VERSION})", where=str(path))
    written = typed(value, _Written, str(path))
    if str(written.step) != folder.name:
        raise ValueError(f"{path}: that of step {written.step}")
    run = run_of(folder.parent)
    if run is not None and run != written.run:
        raise ValueError(f"{path}: that of run {written.run}, the folder is that of run {run}")
    whole = Checksums(folder, written.run, dict(written.files))
    for name in written.parts:
        whole.check(folder / name)
        part = table_of(read_file(folder / name, "JSON"), str(folder / name))
        whole.files.update({str(chunk): str(text) for chunk, text in part.items()})
    return whole
