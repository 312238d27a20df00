"""A layout by its text: what `layout.parse` reads, CuTe's notation, and the words of four commands of `layout`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from tilewright.errors import ParseError, UsageError
from tilewright.explore.worker import known_target
from tilewright.layout import (
    IndexMap,
    TensorLayout,
    TupleLayout,
    from_cute,
    from_onednn_tag,
    lanes,
    parse,
    preset,
)


def read_notation(text: str) -> IndexMap | TupleLayout:
    """The layout a text is about. What ``tilewright layout`` would be told to show may stand there as it is typed.

    >>> str(read_notation("(4,8):(8,1)")), str(read_notation("lanes f16[1,3,2,2] --chip mars3"))
    ('f32[4,8] as (4,8):(8,1)', 'f16[1,3,2,2] over 8 NPUs (aligned, start 0)')
    """
    words = text.removeprefix("tilewright ").strip().removeprefix("layout ").split(maxsplit=1)
    if len(words) == 2 and words[0] in _COMMANDS:
        return _by_command(words[0], words[1])
    try:
        return parse(text)
    except ParseError as refused:
        if "layout of CuTe" not in refused.what:
            raise
        return from_cute(text)


def _by_command(name: str, rest: str) -> IndexMap:
    make, count, options = _COMMANDS[name]
    try:
        words = iter(shlex.split(rest))
    except ValueError:
        raise UsageError("a quotation mark is missing", where=name) from None
    given, chosen = list[str](), dict[str, str]()
    for word in words:
        option, equals, value = word.partition("=")
        if option in options:
            chosen[option] = value if equals else next(words, "")
        else:
            given.append(word)
    if len(given) != count:
        raise UsageError(f"{name} takes {count} word{'s' * (count > 1)} and {' '.join(options) or 'no options'} here")
    return make(given, chosen)


def _sized(text: str) -> TensorLayout:
    array = parse(text)
    if isinstance(array, TupleLayout):
        raise UsageError(f"one array is wanted, {text[:60]} is a tuple")
    array.require_static()
    return array


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= 18):
        raise UsageError(f"{text[:60]!r} is no whole number", where=name)
    return int(text)


def _cute(words: list[str], options: Mapping[str, str]) -> IndexMap:
    return from_cute(words[0], options.get("--dtype"))


def _lanes(words: list[str], options: Mapping[str, str]) -> IndexMap:
    array, chip = _sized(words[0]), options.get("--chip")
    return lanes(
        array.shape,
        array.dtype,
        chip=known_target(chip) if chip else None,
        lanes=_number(options, "--lanes"),
        eu_bytes=_number(options, "--eu-bytes"),
        start=_number(options, "--start") or 0,
        mode=options.get("--mode", "aligned"),
    )


def _onednn(words: list[str], _: Mapping[str, str]) -> IndexMap:
    array = _sized(words[1])
    return from_onednn_tag(words[0], array.shape, array.dtype)


def _preset(words: list[str], _: Mapping[str, str]) -> IndexMap:
    array = _sized(words[1])
    return preset(words[0], array.shape, array.dtype)


_COMMANDS: dict[str, tuple[Callable[[list[str], Mapping[str, str]], IndexMap], int, tuple[str, ...]]] = {
    "cute": (_cute, 1, ("--dtype",)),
    "lanes": (_lanes, 1, ("--chip", "--lanes", "--eu-bytes", "--start", "--mode")),
    "onednn": (_onednn, 2, ()),
    "preset": (_preset, 2, ()),
}
"""Of each command: what makes its layout, how many words it takes, and the options that are read here."""
