"""Counters of a run as a TOML or JSON file, written by hand from a profile or by a training loop."""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from tilewright.embed._diagnose_counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed._knobs import SparseCoreConfig
from tilewright.errors import UsageError
from tilewright.targets import target

__all__ = ["TEMPLATE", "parse_counters", "read_counters"]

T = TypeVar("T")

TEMPLATE = """\
# Counters of a run, for `tilewright embed diagnose`. Keep what you know and delete the rest.
target = "tpu-v5p"
chips = 4
steps = 1000                    # counted below
minibatches = 1000              # of all steps together
compilations = 1

[seconds]                       # of one step, from the loop's clock or XProf's step-time page
step = 0.012
host = 0.009                    # read, preprocess and hand over one batch
wait = 0.0                      # chip idle for want of input
sparsecore = 0.008              # SparseCore lanes busy
tensorcore = 0.011
compile = 40.0                  # of all steps together

[hbm]                           # bytes of one chip: XProf's memory viewer
tables = 20_000_000_000
slots = 20_000_000_000
dense = 1_000_000_000
inputs = 100_000_000
forward_stack = 400_000_000
backward_stack = 600_000_000
# moved = 900_000_000           # HBM traffic of a step

[stack.user_item]               # one for each stack
tables = 2
width = 32
optimizer = "adagrad"
max_ids_per_partition = 512     # the limits compiled with
max_unique_ids_per_partition = 256
observed_ids = 498              # the fullest partition seen
observed_unique_ids = 233
ids = 40_000_000                # entries of all steps
dropped_ids = 0
# shard_ids = [1_000_000, ...]  # entries each shard received

[table.user]
vocab = 1_000_000
width = 32

[sparsecore]                    # the guide's knobs, where they are not its defaults
maximum_parallel_iterations = 2
"""


def read_counters(path: str | Path) -> Counters:
    """Counters from a ``.toml`` or ``.json`` file (:data:`TEMPLATE` shows every section).

    JSON may also be what ``embed plan --json``, ``embed diagnose --json`` or ``run`` (``report.json``) wrote: their
    counters are taken.

    Raises :class:`UsageError` that names the file and the entry: no such file, not TOML or JSON, an unknown key (with
    the nearest one), a value of a wrong type or below 0, an unknown target.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text", where=str(path)) from None
    try:
        value = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        kind = "JSON" if str(path).endswith(".json") else "TOML"
        raise UsageError(f"not {kind}: {error}", where=str(path)) from None
    return parse_counters(value, str(path))


def parse_counters(value: Any, where: str = "counters") -> Counters:
    """The same from values already parsed.

    >>> parse_counters({"target": "tpu-v6e", "chips": 2, "seconds": {"step": 0.02}}).shards
    4
    """
    if not isinstance(value, Mapping):
        raise UsageError("not a table of counters", where=where)
    if isinstance(value.get("table"), list) or isinstance(value.get("feature"), list):
        how = "`tilewright embed diagnose LOG --config MODEL` judges a model; --template prints counters to fill in"
        raise UsageError("a model, not counters", where=where, how=how)
    if value.get("kind") == "run":
        value = value.get("plan") or {}
    if value.get("kind") in ("embedding_plan", "embedding_diagnosis"):
        if "counters" not in value:
            raise UsageError("holds no counters", where=where, how="write it again with this version")
        value = value["counters"]
    if value.get("kind", "embedding_counters") != "embedding_counters":
        what = f"a file of kind {value['kind']!r} holds no counters"
        raise UsageError(what, where=where, how="`tilewright embed diagnose --template` prints one to fill in")
    try:
        return _counters({k: v for k, v in value.items() if k not in ("kind", "schema_version")}, where)
    except UsageError as error:
        inside = error.where if error.where.startswith(where) else ": ".join(filter(None, (where, error.where)))
        raise UsageError(error.what, where=inside, how=error.how) from None


_PARTS: dict[str, type[Any]] = {"seconds": Seconds, "hbm": HbmCounters, "sparsecore": SparseCoreConfig}
_NAMED: dict[str, tuple[str, type[Any]]] = {
    **dict.fromkeys(("stack", "stacks"), ("stacks", StackCounters)),
    **dict.fromkeys(("table", "tables"), ("tables", TableCounters)),
}


def _counters(value: Mapping[str, Any], where: str) -> Counters:
    plain: dict[str, Any] = {}
    for key, entry in value.items():
        if key in _PARTS:
            plain[key] = _build(_PARTS[key], entry, f"{where}: {key}")
        elif key in _NAMED:
            name, kind = _NAMED[key]
            entry = _mapping(entry, f"{where}: {key}", f"write [{key}.NAME] for each")
            plain[name] = {str(n): _build(kind, each, f"{where}: {key} {n!r}") for n, each in entry.items()}
        else:
            plain[key] = entry
    found = _build(Counters, plain, where)
    return _with_capacity(found) if found.target else found


def _with_capacity(found: Counters) -> Counters:
    """HBM figures are of the target's HBM."""
    chip = target(found.target)
    if chip.sparse is None:
        raise UsageError(f"{chip.name} has no SparseCores", where="target", how="take one that has, such as tpu-v5p")
    hbm = chip.memory("hbm")
    if hbm is None or found.hbm == HbmCounters() or found.hbm.capacity is not None:
        return found
    return found.merged(Counters(hbm=HbmCounters(capacity=hbm.bytes)))


def _build(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from plain values, each checked against the type of its field."""
    if isinstance(value, kind):
        return value
    value = _mapping(value, where)
    hints = typing.get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            near = get_close_matches(key, list(known), n=1) or [", ".join(known)]
            raise UsageError(f"unknown key {key!r}", where=where, how=f"did you mean {near[0]}?")
    if missing := [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in value]:
        raise UsageError(f"{' and '.join(missing)} missing", where=where)
    return kind(**{key: _checked(entry, hints[key], key, where) for key, entry in value.items()})


def _mapping(value: Any, where: str, how: str = "") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        raise UsageError(f"{shown} is not a table of values", where=where, how=how)
    return value


def _checked(value: Any, hint: Any, key: str, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(each for each in kinds if each is not type(None))
    origin = typing.get_origin(kind) or kind
    if origin is float or origin is int:
        wanted = (int, float) if origin is float else (int,)
        if isinstance(value, bool) or not isinstance(value, wanted) or not 0 <= value < float("inf"):
            what = "a number" if origin is float else "a whole number"
            raise UsageError(f"{key} = {value!r} is not {what} of at least 0", where=where)
        if key in ("chips", "width", "vocab") and value < 1:
            raise UsageError(f"{key} = {value!r} is below 1", where=where)
        return value
    if key == "hot":
        return _listed(value, key, where, (str, int, float))
    if origin is tuple:
        return _listed(value, key, where, (int,) * len(value) if isinstance(value, list) else ())
    if origin in (str, bool) and not isinstance(value, origin):
        raise UsageError(f"{key} = {value!r} is not {'a text' if origin is str else 'true or false'}", where=where)
    if key == "remedies":
        return {str(k): _listed(v, f"remedies {k!r}", where, (float,) * 3) for k, v in _mapping(value, where).items()}
    return value


def _listed(value: Any, key: str, where: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """A list with one value of each kind, in order."""
    if not isinstance(value, list) or len(value) != len(kinds):
        raise UsageError(f"{key} = {value!r} is not a list of {len(kinds) or 'whole numbers'}", where=where)
    for each, kind in zip(value, kinds):
        if kind is str:
            fine = isinstance(each, str)
        else:
            fine = type(each) is int or (kind is float and isinstance(each, float))
            fine = fine and 0 <= each < float("inf")
        if not fine:
            raise UsageError(f"{each!r} in {key} is not what stands there ({kind.__name__})", where=where)
    return tuple(value)
