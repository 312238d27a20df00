"""Checkpoints of jax-tpu-embedding 0.2.0: stacked tables and slots in an Orbax pytree, and their spec as text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorstore

from tilewright.embed.checkpoint.store import CHUNK_BYTES, Columns, rows_of
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import UsageError

_SPEC = "proto.pbtxt"
_METADATA = "_METADATA"


@dataclass(frozen=True)
class _Placed:
    """A table in a stack of the peer: where its rows are."""

    name: str
    stack: str
    vocab: int
    width: int
    rotation: int
    row_offset: int
    shards: int


class StackedColumns:
    """Columns of one table inside a stacked array [shards * rows, width] on disk."""

    def __init__(self, table: _Placed, store: Any, width: int) -> None:
        self.shards, self.vocab, self.width = table.shards, table.vocab, width
        self._table, self._store = table, store
        self._per_shard = store.shape[0] // table.shards

    def chunk_rows(self) -> int:
        """A shard's rows of the table where they are few; the file's chunks may hold several shards."""
        return max(1, min(rows_of(self.vocab, self.shards), CHUNK_BYTES // (4 * self.width)))

    def read(self, column: int, first: int, stop: int) -> Any:
        """A future of float32 [stop - first, width]."""
        shard = (column + self._table.rotation) % self.shards
        begin = shard * self._per_shard + self._table.row_offset
        return self._store[begin + first : begin + stop, : self.width].read()


def peer_tables(
    folder: Path, written_with: Stacking | None
) -> dict[str, tuple[int, int, str | None, Columns, dict[str, Columns]]]:
    """Table -> vocab, width, optimizer (unknown), rows, slots of a step the peer has saved.

    Raises :class:`UsageError` where no stacked tables are in the folder, or nothing says how they are stacked.
    """
    placed = _placed(folder, written_with)
    by_stack = _arrays(folder, {table.stack for table in placed})
    found: dict[str, tuple[int, int, str | None, Columns, dict[str, Columns]]] = {}
    for table in placed:
        arrays = by_stack.get(table.stack)
        if arrays is None or "" not in arrays:
            have = ", ".join(by_stack) or "none"
            raise UsageError(f"no stack {table.stack!r} in it (there is {have})", where=str(folder))
        rows = StackedColumns(table, arrays[""], table.width)
        slots: dict[str, Columns] = {
            slot: StackedColumns(table, store, min(table.width, store.shape[1]))
            for slot, store in arrays.items()
            if slot
        }
        found[table.name] = (table.vocab, table.width, None, rows, slots)
    return found


def _placed(folder: Path, written_with: Stacking | None) -> list[_Placed]:
    if written_with is not None:
        shards = written_with.topology.sparsecores
        return [
            _Placed(name, p.stack, p.table.vocab, p.table.width, p.rotation, p.row_offset, shards)
            for name, p in written_with.tables.items()
        ]
    spec = next(iter(sorted(folder.glob(f"*/{_SPEC}"))), None)
    if spec is None:
        how = "give written_with=, the stacking that it was trained with"
        raise UsageError(
            "neither tables of ours nor an embedding_spec of jax-tpu-embedding", where=str(folder), how=how
        )
    return list(_tables_of(text_proto(spec.read_text(encoding="utf-8"))))


def _tables_of(spec: Mapping[str, list[Any]]) -> Iterator[_Placed]:
    """The tables of an EmbeddingSpecProto; text leaves out numbers that are zero."""
    for stack in spec.get("stacked_table_specs", []):
        for table in stack.get("table_specs", []):
            yield _Placed(
                name=table["table_name"][0],
                stack=stack["stack_name"][0],
                vocab=table["vocab_size"][0],
                width=table["embedding_dim"][0],
                rotation=table.get("shard_rotation", [0])[0],
                row_offset=table.get("row_offset_in_shard", [0])[0],
                shards=stack["num_sparsecores"][0],
            )


_TOKEN = re.compile(r'\s*([\w.]+|[{}:]|"(?:[^"\\]|\\.)*"|[-+][\w.+-]+)')


def text_proto(text: str) -> dict[str, list[Any]]:
    """A protocol buffer in text form: field -> its values; a message is such a dict again.

    >>> text_proto('stack { name: "a" rows: 8 } stack { name: "b" }')
    {'stack': [{'name': ['a'], 'rows': [8]}, {'name': ['b']}]}
    """
    open_messages: list[dict[str, list[Any]]] = [{}]
    tokens = iter(_TOKEN.findall(text))
    for token in tokens:
        if token == "}":
            if len(open_messages) == 1:
                raise ValueError("a closing brace too many")
            open_messages.pop()
            continue
        after = next(tokens, "")
        if after == "{":
            message: dict[str, list[Any]] = {}
            open_messages[-1].setdefault(token, []).append(message)
            open_messages.append(message)
        elif after == ":":
            open_messages[-1].setdefault(token, []).append(_scalar(next(tokens, "")))
        else:
            raise ValueError(f"{token!r} is followed by {after!r}")
    if len(open_messages) != 1:
        raise ValueError("the text ends inside a message")
    return open_messages[0]


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
    """One array of Orbax's pytree."""
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
