"""Limits as a JSON file: written by a plan, read before training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.model.tables import Limits, Topology, count
from tilewright.errors import UsageError
from tilewright.reading import read_file, typed

LIMITS_KIND = "embedding_limits"
LIMITS_VERSION = 1


def limits_json(limits: Mapping[str, Limits], **facts: Any) -> dict[str, Any]:
    """The file's content; ``facts`` say where the limits come from."""
    stacks = {name: dict(vars(limit.consistent(f"limits of {name!r}"))) for name, limit in limits.items()}
    return {"schema_version": LIMITS_VERSION, "kind": LIMITS_KIND, **facts, "stacks": stacks}


def read_limits(path: str | Path, topology: Topology | None = None) -> dict[str, Limits]:
    """Stack -> limits from a file that ``Plan.write_limits`` wrote; with ``topology``, for those chips only.

    Raises :class:`UsageError` that names the file and the entry: no such file, not JSON, another kind or version of
    file, a count that is missing or no whole number, more distinct ids than ids, limits of another topology.
    """
    value, where = _read(path), str(path)
    if topology is not None and "topology" in value:
        _check_topology(value["topology"], topology, where)
    return {name: limits_of(entry, f"{where}: stack {name!r}") for name, entry in value["stacks"].items()}


def check_packing(path: str | Path, packed: bool) -> None:
    """:class:`UsageError` where a limits file says that its limits are of tables packed otherwise."""
    learnt = _read(path).get("narrow_packing", packed)
    if learnt is not packed:
        tables, option = ("packed", "--narrow-packing") if learnt else ("unpacked", "--no-narrow-packing")
        how = f"give {option}, as the plan was made, or plan again"
        expected = "packed" if packed else "unpacked"
        raise UsageError(f"limits of {tables} tables, not of {expected} ones", where=str(path), how=how)


def read_hot_rows(path: str | Path) -> dict[str, NDArray[np.int64]]:
    """Table -> ids, rising, that a plan holds on every device, from its limits file; none where it says nothing."""
    hot = _read(path).get("hot_rows", {})
    where = f"{path}: hot_rows"
    if not isinstance(hot, dict) or not all(isinstance(ids, list) for ids in hot.values()):
        raise UsageError("not lists of ids by table", where=where, how="write it again: embed plan --hot ... -o")
    return {name: np.array([count(i, "an id", where, least=0) for i in ids], np.int64) for name, ids in hot.items()}


def read_rotation(path: str | Path, stacks: Iterable[str]) -> dict[str, int]:
    """Stack -> the shards by which each next of its tables was turned when a file's limits were learnt; of ``stacks``.

    {} where the file does not say: it is older.
    """
    rotation, where = _read(path).get("rotation", {}), f"{path}: rotation"
    if not isinstance(rotation, dict):
        raise UsageError("not a number by stack", where=where, how="write it again: embed plan ... -o")
    return {name: count(rotation[name], name, where, least=0) for name in stacks if name in rotation}


def learnt_batch(path: str | Path) -> int | None:
    """Samples of the batches that a file's limits were learnt from; None where it does not say."""
    batch = _read(path).get("batch")
    return None if batch is None else count(batch, "batch", str(path))


def limits_of(entry: Any, where: str) -> Limits:
    """Limits of a file's entry, checked: whole numbers, and no more distinct ids than ids."""
    try:
        return typed(entry, Limits, where).consistent(where)
    except UsageError as error:
        raise UsageError(error.what, where=where, how=error.how) from None


def _read(path: str | Path) -> dict[str, Any]:
    """A limits file's content, checked for its kind and version."""
    where, value = str(path), read_file(path, "JSON")
    if not isinstance(value, dict) or value.get("kind") != LIMITS_KIND or not isinstance(value.get("stacks"), dict):
        how = "write one with `tilewright embed plan ... -o limits.json`"
        raise UsageError("not a limits file", where=where, how=how)
    if value.get("schema_version") != LIMITS_VERSION:
        problem = f"schema_version {value.get('schema_version')!r}, this version reads {LIMITS_VERSION}"
        raise UsageError(problem, where=where, how="write it again with this version")
    return value


def _check_topology(written: Any, topology: Topology, where: str) -> None:
    """Limits are of partitions, which are others on other chips."""
    chips = (written.get("chips"), written.get("sparsecores_per_chip")) if isinstance(written, dict) else None
    if chips != (topology.chips, topology.sparsecores_per_chip):
        learnt = f"{_chips(chips[0])} of {chips[1]}" if chips else repr(written)
        expected = f"{_chips(topology.chips)} of {topology.sparsecores_per_chip} SparseCores"
        how = "plan again for these chips, or name those of the file"
        raise UsageError(f"limits for {learnt}, not for {expected}", where=where, how=how)


def _chips(n: Any) -> str:
    return "1 chip" if n == 1 else f"{n} chips"
