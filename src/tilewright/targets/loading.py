"""Read a chip's TOML file into a :class:`Target`; every section must say where its constants come from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tilewright.errors import UsageError
from tilewright.targets.schema import (
    LaneMemory,
    Links,
    MatrixUnits,
    Memory,
    SimtCore,
    SparseCores,
    Target,
    TimeConstants,
    VectorUnit,
)

T = TypeVar("T")
_SECTIONS: dict[str, type[Any]] = {
    "vector": VectorUnit,
    "lanes": LaneMemory,
    "matrix": MatrixUnits,
    "simt": SimtCore,
    "sparse": SparseCores,
    "links": Links,
}
_TEXTS = ("name", "title", "family", "layout_rule")
_COUNTS = ("short_run_bytes", "short_kept_run_bytes")
_PLAIN = (*_TEXTS, "compiler_normalizes", *_COUNTS)
_RULES = ("tpu", "tpu_default_order", "lanes", "linear")


def _section(cls: type[T], table: Mapping[str, Any], where: str, sources: dict[str, str]) -> T:
    """Build one dataclass from a table, moving its ``source`` (and per-key ``sources``) into ``sources``."""
    values = dict(table)
    source = values.pop("source", None)
    if not isinstance(source, str) or not source:
        raise UsageError("a section without a source", where=where, how='add source = "..."')
    sources[where] = source
    for key, text in values.pop("sources", {}).items():
        sources[f"{where}.{key}"] = text
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"unknown key {key!r}", where=where, how=f"known keys: {', '.join(known)}")
        kind: type = str if known[key].type in ("str", str) else int
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise UsageError(f"{key} = {value!r} is not a {'text' if kind is str else 'count'}", where=where)
    missing = [n for n, f in known.items() if f.default is MISSING and n not in values]
    if missing:
        raise UsageError(f"missing {', '.join(missing)}", where=where)
    return cls(**values)


def _time(tables: Any, sources: dict[str, str]) -> Mapping[str, TimeConstants]:
    """``[time.MECHANISM]``: numbers of at least 0, beside ``source``, ``fitted_on`` and ``error`` where fitted.

    ``[time.MECHANISM.sources]`` says of single constants where they are from, as in other sections.
    """
    if not isinstance(tables, dict):
        raise UsageError("time is not a section", where="time", how="write [time.MECHANISM]")
    mechanisms = {}
    for name, table in tables.items():
        where = f"time.{name}"
        values = dict(table) if isinstance(table, dict) else {}
        source, fitted_on = values.pop("source", ""), values.pop("fitted_on", "")
        own = values.pop("sources", {})
        if not isinstance(source, str) or not source or not isinstance(fitted_on, str):
            raise UsageError("a section without a source", where=where, how='add source = "..."')
        for key, value in values.items():
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise UsageError(f"{key} = {value!r} is not a number of at least 0", where=where)
        if not isinstance(own, dict) or not all(isinstance(text, str) and key in values for key, text in own.items()):
            raise UsageError("sources of constants that are not there", where=where, how='name = "..." for a constant')
        sources[where] = source
        sources.update({f"{where}.{key}": text for key, text in own.items()})
        error = float(values.pop("error", 0.0))
        mechanisms[name] = TimeConstants(MappingProxyType({k: float(v) for k, v in values.items()}), fitted_on, error)
    return MappingProxyType(mechanisms)


def parse_target(text: str, where: str = "target") -> Target:
    """A :class:`Target` from the text of a TOML file; raises :class:`UsageError` naming section and key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not TOML: {error}", where=where) from None
    sources: dict[str, str] = {}
    plain = {key: table.pop(key) for key in _PLAIN if key in table}
    for key in _TEXTS:
        if not isinstance(plain.get(key), str):
            raise UsageError(f"missing {key}", where=where)
    for key in _COUNTS:
        value = plain.get(key, 0)
        if type(value) is not int or value < 0:
            raise UsageError(f"{key} = {value!r} is not a count", where=where)
    if type(plain.get("compiler_normalizes", False)) is not bool:
        raise UsageError(f"compiler_normalizes = {plain['compiler_normalizes']!r} is not true or false", where=where)
    if plain["layout_rule"] not in _RULES:
        raise UsageError(f"layout_rule {plain['layout_rule']!r}", where=where, how=f"one of {', '.join(_RULES)}")
    sources["target"] = str(table.pop("source", ""))
    if not sources["target"]:
        raise UsageError("a target without a source", where=where, how='add source = "..." at the top')
    memories = tuple(
        _section(Memory, m, f"memory.{m.get('name', i)}", sources) for i, m in enumerate(table.pop("memory", []))
    )
    units = {key: _section(cls, table.pop(key), key, sources) for key, cls in _SECTIONS.items() if key in table}
    time = _time(table.pop("time", {}), sources)
    if table:
        raise UsageError(f"unknown section {next(iter(table))!r}", where=where)
    return Target(**plain, memories=memories, **units, time=time, sources=MappingProxyType(sources))


@cache
def target_names() -> tuple[str, ...]:
    """The chips that come with Tilewright, sorted."""
    folder = resources.files("tilewright.targets") / "data"
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))


def load_target(path: str | Path) -> Target:
    """A :class:`Target` from a TOML file of your own."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the target file: {error}", where=str(path)) from None
    return parse_target(text, str(path))


@cache
def _builtin(name: str) -> Target:
    text = (resources.files("tilewright.targets") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_target(text, f"{name}.toml")


def target(name: str | Target) -> Target:
    """The chip called ``name``, or the one in the TOML file ``name``; a :class:`Target` is returned as it is.

    >>> target("tpu-v5p").sparse.per_chip
    4
    """
    if isinstance(name, Target):
        return name
    if name in target_names():
        return _builtin(name)
    if name.endswith(".toml"):
        return load_target(name)
    near = get_close_matches(name.lower(), target_names(), n=3, cutoff=0.4)
    how = f"did you mean {' or '.join(near)}?" if near else f"known targets: {', '.join(target_names())}"
    raise UsageError(f"no target called {name!r}", how=how)
