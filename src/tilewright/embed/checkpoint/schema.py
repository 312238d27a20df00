"""What a step says of itself: a schema and checksums in JSON beside the arrays, read back as checked values."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.embed.checkpoint.folder import CHECKSUMS, SCHEMA, TABLES, run_of
from tilewright.embed.device.state import EmbeddingState, slot_shape
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.errors import UsageError
from tilewright.reading import read_file, table_of, typed

# Checksums: every file that a restore reads, under its name, with the step and the run it belongs to.

_CHECKSUMS_KIND = "embedding_checksums"
_CHECKSUMS_VERSION = 1
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

    def check(self, path: Path, read: Callable[[Path], str] | None = None) -> None:
        """Raises ValueError or OSError where a file of the step is not the one that was written.

        ``read``: :func:`whole_file`, or :func:`chunk_file` of a chunk, whose reader compares its numbers with the
        checksum that it ends in."""
        written = self.files.get(os.fspath(path)[len(os.fspath(self.folder)) + 1 :], "nothing")  # in every chunk's way
        found = (read or whole_file)(path)
        if found != written:
            problem = f"not that of step {self.folder.name}: size and checksum {found}, written was {written}"
            raise ValueError(f"{path}: {problem}")

    def check_under(self, folder: str) -> None:
        """Every file that was written into a folder of the step."""
        paths = [self.folder / name for name in self.files if name.startswith(f"{folder}/")]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.check, paths))


def whole_file(path: Path) -> str:
    """Size and checksum (crc32) of a file, read whole."""
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
    """Note beside the schema what one process wrote of the tables: file -> size and checksum."""
    write_synced(tables / part_name(process), json.dumps(files, indent=0))


def part_name(process: int) -> str:
    """The file of one process beside the schema."""
    return f"checksums.{process}.json"


def write_checksums(folder: Path, step: int, run: str, parts: list[str], names: Iterable[str]) -> None:
    """Look at all that was written of a step, when nobody writes any more; the last file before it gets its name."""
    with ThreadPoolExecutor(_THREADS) as pool:
        names = [*parts, *names]
        files = dict(zip(names, pool.map(lambda name: whole_file(folder / name), names), strict=True))
    written = _Written(_CHECKSUMS_KIND, _CHECKSUMS_VERSION, step, run, parts, files)
    write_synced(folder / CHECKSUMS, json.dumps(asdict(written), indent=1) + "\n")


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
    path = folder / CHECKSUMS
    if not path.exists():
        return None
    value = table_of(read_file(path, "JSON"), str(path))
    if value.get("kind") != _CHECKSUMS_KIND or value.get("schema_version") != _CHECKSUMS_VERSION:
        raise UsageError(f"not checksums that this version reads (version {_CHECKSUMS_VERSION})", where=str(path))
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


# The schema.

KIND = "embedding_checkpoint"
VERSION = 2
_WITHOUT_CHECKSUMS = 1
"""The version before this one, which differs in having no checksums beside it."""
ORDER = "row i of a table or slot is array[i // shards, i % shards]: reshape to [-1, width] and keep `vocab` rows"


@dataclass(frozen=True)
class StoredArray:
    """One zarr array [ceil(vocab / shards), shards, width] of float32, in the folder ``path`` beside the schema."""

    path: str
    width: int


@dataclass(frozen=True)
class StoredTable:
    """A logical table, its optimizer with hyper-parameters and slots, and where it stood in its stack."""

    name: str
    vocab: int
    width: int
    combiner: str
    optimizer: dict[str, Any]
    quantization: dict[str, Any] | None
    stack: str
    rotation: int
    row_offset: int
    rows: StoredArray
    slots: dict[str, StoredArray]


@dataclass(frozen=True)
class Schema:
    """All of a step but the numbers. ``updates`` is the state's own count of steps."""

    kind: str
    schema_version: int
    step: int
    updates: int
    shards: int
    order: str
    topology: dict[str, int]
    features: dict[str, str]
    tables: list[StoredTable]
    limits: dict[str, dict[str, int]]

    @property
    def checked(self) -> bool:
        """Whether checksums of all files were written with it."""
        return self.schema_version != _WITHOUT_CHECKSUMS

    def write(self, folder: Path) -> None:
        """The JSON file of a step's folder of tables."""
        write_synced(folder / SCHEMA, json.dumps(asdict(self), indent=1) + "\n")


def schema_of(state: EmbeddingState, step: int, limits: Mapping[str, Limits]) -> Schema:
    """What there is to say of a state."""
    stacking = state.stacking
    return Schema(
        kind=KIND,
        schema_version=VERSION,
        step=step,
        updates=int(state.step),
        shards=stacking.topology.sparsecores,
        order=ORDER,
        topology=dict(vars(stacking.topology)),
        features={feature.name: feature.table.name for feature in stacking.features},
        tables=_tables(stacking),
        limits={name: dict(vars(limit)) for name, limit in limits.items()},
    )


def _tables(stacking: Stacking) -> list[StoredTable]:
    tables = []
    for k, (name, placement) in enumerate(stacking.tables.items()):
        table, stack = placement.table, stacking.stacks[placement.stack]
        # A folder of the table's name where any file system takes it; no such name begins with @.
        folder = name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name) else f"@{k}"
        slots = {}
        for slot in stack.optimizer.slots:
            width = slot_shape(stack, slot)[2]
            slots[slot] = StoredArray(f"{folder}/slots/{slot}", table.width if width == stack.padded_width else width)
        tables.append(
            StoredTable(
                *(name, table.vocab, table.width, table.combiner),
                optimizer=optimizer_json(table.optimizer),
                quantization=None if table.quantization is None else asdict(table.quantization),
                stack=placement.stack,
                rotation=placement.rotation,
                row_offset=placement.row_offset,
                rows=StoredArray(f"{folder}/rows", table.width),
                slots=slots,
            )
        )
    return tables


def optimizer_json(optimizer: Any) -> dict[str, Any]:
    """Name and hyper-parameters; of a schedule its name, for a function cannot be written down.

    >>> from tilewright.embed.model.tables import SGD
    >>> optimizer_json(SGD(0.5))
    {'name': 'SGD', 'learning_rate': 0.5}
    """
    names = [f.name for f in fields(optimizer)] if is_dataclass(optimizer) else ["learning_rate"]
    return {"name": type(optimizer).__name__} | {name: _plain(getattr(optimizer, name, None)) for name in names}


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON holds it."""
    if callable(value):
        return {"schedule": getattr(value, "__qualname__", type(value).__qualname__)}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def read_schema(folder: Path) -> Schema:
    """The schema in a step's folder of tables.

    Raises :class:`UsageError` that names the file: damaged, of another kind, or of a later version.
    """
    path = folder / SCHEMA
    value = table_of(read_file(path, "JSON"), str(path))
    if value.get("kind") != KIND:
        raise UsageError("not the schema of an embedding checkpoint", where=str(path))
    if value.get("schema_version") not in (VERSION, _WITHOUT_CHECKSUMS):
        problem = f"schema_version {value.get('schema_version')!r}, this version reads up to {VERSION}"
        raise UsageError(problem, where=str(path), how="read it with the version that wrote it")
    return typed(value, Schema, str(path))


class Saved(NamedTuple):
    """What a step says of itself; without a schema it is somebody else's."""

    path: Path
    schema: Schema | None
    checksums: Checksums | None


def read_saved(path: Path) -> Saved:
    """The schema and the checksums of a step's folder, compared with one another.

    Raises what :func:`read_checksums` and :func:`read_schema` raise, and FileNotFoundError where checksums are gone.
    """
    checksums = read_checksums(path)
    if checksums is None and not (path / TABLES).exists():
        return Saved(path, None, None)
    if checksums is not None:
        checksums.check(path / TABLES / SCHEMA)
    schema = read_schema(path / TABLES)
    if checksums is None and schema.checked:
        raise FileNotFoundError(f"No such file: {path / CHECKSUMS}")
    return Saved(path, schema, checksums)
