"""TOML and JSON files as typed values: what is wrong with one is a single error that names file, entry and key."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from tilewright.errors import UsageError

T = TypeVar("T")


def read_file(path: str | Path, kind: Literal["JSON", "TOML"]) -> Any:
    """The value a file holds.

    Raises :class:`UsageError` that names the file: no such file, not UTF-8, not JSON or TOML.
    """
    where = str(path)
    try:
        return parse(Path(path).read_text(encoding="utf-8"), kind, where)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text", where=where) from None


def parse(text: str, kind: Literal["JSON", "TOML"], where: str) -> Any:
    """The value of a text; :class:`UsageError` where it is not JSON or TOML."""
    try:
        return json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not {kind}: {error}", where=where) from None


def table_of(value: Any, where: str, how: str = "") -> Mapping[str, Any]:
    """``value`` where it is a table of keys and values."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{_shown(value)} is not a table of values", where=where, how=how)
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_keys(entry: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """:class:`UsageError` for a key that is not ``known``, with the nearest one that is."""
    names = list(known)
    for key in entry:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            how = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(names)}"
            raise UsageError(f"unknown key {key!r}", where=where, how=how)


def typed(value: Any, kind: type[T], where: str, hints: Mapping[str, str] | None = None) -> T:
    """``value`` as the dataclass ``kind``: its keys are known, none it needs is missing, each value has its type.

    ``hints``: key -> what to write there, for the error.

    >>> from tilewright.embed.model.tables import Limits
    >>> typed({"max_ids_per_partition": 4, "max_unique_ids_per_partition": 2}, Limits, "limits").max_ids_per_partition
    4
    """
    import msgspec  # here: only who reads a file waits for it

    entry = table_of(value, where)
    known: Any = fields(kind)  # type: ignore[arg-type]
    check_keys(entry, [field.name for field in known], where)
    needed = [field.name for field in known if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in entry]:
        raise UsageError(f"{' and '.join(missing)} missing", where=where)
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).rstrip("`").partition(" - at `$.")
        named = f"{place} = {_shown(entry[place])}" if place in entry else place
        key = re.split(r"\W", place)[0]
        raise UsageError(f"{named}: {_plain(problem)}", where=where, how=(hints or {}).get(key, "")) from None


_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _plain(problem: str) -> str:
    """A complaint of the decoder in the words of the file."""

    def named(types: re.Match[str]) -> str:
        return " or ".join(_NAMES.get(name, name) for name in types[1].split(" | ") if name != "null")

    plain = re.sub(r"`([^`]*)`", named, problem).replace("Expected", "expected")
    plain = plain.replace(f" <= {sys.float_info.max}", " that is finite")
    return re.sub(r" >= (\d+)(\.0)?", r" of at least \1", plain)
