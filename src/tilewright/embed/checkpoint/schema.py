"""What a checkpoint says of itself: a JSON file beside the arrays, read back as checked values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tilewright.embed.checkpoint.checksums import write_synced
from tilewright.embed.device.state import EmbeddingState, slot_shape
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits, limits_of
from tilewright.errors import UsageError
from tilewright.reading import read_file, table_of, typed

KIND = "embedding_checkpoint"
VERSION = 2
_WITHOUT_CHECKSUMS = 1
"""The version before this one, which differs in having no checksums beside it."""
FILE = "schema.json"
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
        write_synced(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")

    def stack_limits(self) -> dict[str, Limits]:
        """Stack -> limits that were saved with the state."""
        return {name: limits_of(entry, f"limits of stack {name!r}") for name, entry in self.limits.items()}


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
                name=name,
                vocab=table.vocab,
                width=table.width,
                combiner=table.combiner,
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
    if callable(value):
        return {"schedule": getattr(value, "__qualname__", type(value).__qualname__)}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def read_schema(folder: Path) -> Schema:
    """The schema in a step's folder of tables.

    Raises :class:`UsageError` that names the file: damaged, of another kind, or of a later version.
    """
    path = folder / FILE
    value = table_of(read_file(path, "JSON"), str(path))
    if value.get("kind") != KIND:
        raise UsageError("not the schema of an embedding checkpoint", where=str(path))
    if value.get("schema_version") not in (VERSION, _WITHOUT_CHECKSUMS):
        problem = f"schema_version {value.get('schema_version')!r}, this version reads up to {VERSION}"
        raise UsageError(problem, where=str(path), how="read it with the version that wrote it")
    return typed(value, Schema, str(path))
