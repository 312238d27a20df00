"""Limits as a JSON file: written by a plan, read before training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.embed.model.tables import Limits, Topology, count
from tilewright.errors import UsageError

LIMITS_KIND = "embedding_limits"
LIMITS_VERSION = 1


def limits_json(limits: Mapping[str, Limits], **facts: Any) -> dict[str, Any]:
    """The file's content; ``facts`` say where the limits come from."""
    stacks = {
        name: {
            "max_ids_per_partition": limit.max_ids_per_partition,
            "max_unique_ids_per_partition": limit.max_unique_ids_per_partition,
        }
        for name, limit in limits.items()
        if limit.consistent(f"limits of {name!r}")
    }
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
    """:class:`UsageError` where the file says that its limits are of tables packed otherwise."""
    learnt = _read(path).get("narrow_packing", packed)
    if learnt is not packed:
        made, option = ("of packed tables", "--narrow-packing") if learnt else ("unpacked", "--no-narrow-packing")
        how = f"give {option}, as the plan was made, or plan again"
        raise UsageError(
            f"limits {made}, asked for {'packed' if packed else 'unpacked'} ones", where=str(path), how=how
        )


def learnt_batch(path: str | Path) -> int | None:
    """Samples of the batches that a file's limits were learnt from; None where it does not say."""
    found = _read(path).get("batch")
    return None if found is None else count(found, "batch", str(path))


def _read(path: str | Path) -> dict[str, Any]:
    """A limits file's content, checked for its kind and version."""
    where = str(path)
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=where) from None
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", where=where) from None
    if not isinstance(value, dict) or value.get("kind") != LIMITS_KIND or not isinstance(value.get("stacks"), dict):
        raise UsageError(
            "not a limits file", where=where, how="write one with `tilewright embed plan ... -o limits.json`"
        )
    if value.get("schema_version") != LIMITS_VERSION:
        what = f"schema_version {value.get('schema_version')!r}, this version reads {LIMITS_VERSION}"
        raise UsageError(what, where=where, how="write it again with this version")
    return value


def _check_topology(written: Any, topology: Topology, where: str) -> None:
    """Limits are of partitions, which are others on other chips."""
    keys = ("chips", "sparsecores_per_chip")
    if not isinstance(written, dict) or [written.get(key) for key in keys] != [getattr(topology, key) for key in keys]:
        asked = f"{_chips(topology.chips)} of {topology.sparsecores_per_chip} SparseCores"
        made = (
            f"{_chips(written.get(keys[0]))} of {written.get(keys[1])}" if isinstance(written, dict) else repr(written)
        )
        how = "plan again for these chips, or name those of the file"
        raise UsageError(f"limits for {made}, asked for {asked}", where=where, how=how)


def _chips(n: Any) -> str:
    return "1 chip" if n == 1 else f"{n} chips"


def limits_of(entry: Any, where: str) -> Limits:
    """Limits of a file's entry, checked: whole numbers, and no more distinct ids than ids."""
    keys = ("max_ids_per_partition", "max_unique_ids_per_partition")
    if not isinstance(entry, dict) or not all(type(entry.get(key)) is int for key in keys):
        raise UsageError(f"needs {' and '.join(keys)} as whole numbers", where=where)
    try:
        return Limits(entry[keys[0]], entry[keys[1]]).consistent()
    except UsageError as error:
        raise UsageError(error.what, where=where, how=error.how) from None
