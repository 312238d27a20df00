"""Read a chip's TOML file into a :class:`Target`; every section must say where its constants come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tilewright.errors import UsageError
from tilewright.reading import check_keys, parse, read_file, table_of
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
_PLAIN = [f.name for f in fields(Target) if f.type in ("str", "bool", "int")]
_KINDS: dict[Any, tuple[type, str]] = {"str": (str, "text"), "bool": (bool, "switch, true or false")}
_RULES = ("tpu", "tpu_default_order", "lanes", "linear")


def _sourced(table: Any, where: str, sources: dict[str, str]) -> dict[str, Any]:
    """A section's constants; its ``source``, and those of single constants in ``sources``, move into ``sources``."""
    constants = dict(table_of(table, where))
    source, own = constants.pop("source", ""), table_of(constants.pop("sources", {}), f"{where}.sources")
    if not isinstance(source, str) or not source:
        raise UsageError("a section without a source", where=where, how='add source = "..."')
    if not all(isinstance(text, str) and key in constants for key, text in own.items()):
        raise UsageError("sources of constants that are not there", where=where, how='name = "..." for a constant')
    sources[where] = source
    sources.update({f"{where}.{key}": text for key, text in own.items()})
    return constants


def _checked(cls: type[Any], constants: dict[str, Any], where: str) -> dict[str, Any]:
    """The constants, if ``cls`` has them all and needs no more, each a text, a switch or a count as it says."""
    known = {f.name: f for f in fields(cls)}
    check_keys(constants, known, where)
    for key, value in constants.items():
        kind, noun = _KINDS.get(known[key].type, (int, "count"))
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise UsageError(f"{key} = {value!r} is not a {noun}", where=where)
    needed = [name for name, f in known.items() if f.default is f.default_factory is MISSING]
    if missing := [name for name in needed if name not in constants]:
        raise UsageError(f"missing {', '.join(missing)}", where=where)
    return constants


def _time(tables: Any, sources: dict[str, str]) -> Mapping[str, TimeConstants]:
    """``[time.MECHANISM]``: numbers of at least 0, beside ``source``, ``fitted_on`` and ``error`` where fitted."""
    mechanisms = {}
    for name, table in table_of(tables, "time", "write [time.MECHANISM]").items():
        where = f"time.{name}"
        values = _sourced(table, where, sources)
        fitted_on = values.pop("fitted_on", "")
        if not isinstance(fitted_on, str):
            raise UsageError(f"fitted_on = {fitted_on!r} is not a text", where=where)
        for key, value in values.items():
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise UsageError(f"{key} = {value!r} is not a number of at least 0", where=where)
        error = float(values.pop("error", 0.0))
        mechanisms[name] = TimeConstants(MappingProxyType({k: float(v) for k, v in values.items()}), fitted_on, error)
    return MappingProxyType(mechanisms)


def parse_target(text: str, where: str = "target") -> Target:
    """A :class:`Target` from the text of a TOML file; raises :class:`UsageError` naming section and key."""
    return _target(parse(text, "TOML", where), where)


def _target(value: Any, where: str) -> Target:
    sources: dict[str, str] = {}
    table = _sourced(value, "target", sources)
    plain = _checked(Target, {key: table.pop(key) for key in _PLAIN if key in table}, where)
    if plain["layout_rule"] not in _RULES:
        raise UsageError(f"layout_rule {plain['layout_rule']!r}", where=where, how=f"one of {', '.join(_RULES)}")

    def section(cls: type[T], table: Any, where: str) -> T:
        return cls(**_checked(cls, _sourced(table, where, sources), where))

    memories = tuple(section(Memory, m, f"memory.{m.get('name', i)}") for i, m in enumerate(table.pop("memory", [])))
    units = {key: section(cls, table.pop(key), key) for key, cls in _SECTIONS.items() if key in table}
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
    return _target(read_file(path, "TOML"), str(path))


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
