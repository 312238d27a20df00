"""The text form of a pipeline: ``inline,reduce-of-reshape{allow_reassociation=false}``; it prints and parses back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tilewright.errors import ParseError
from tilewright.hlo.rewrites._base import Rewrite
from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.common_subexpressions import CommonSubexpressions
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.reduce_of_reshape import ReduceOfReshape
from tilewright.hlo.rewrites.reduce_of_transpose import ReduceOfTranspose
from tilewright.hlo.rewrites.reduces_of_reshapes import ReducesOfReshapes
from tilewright.hlo.rewrites.reshape_of_branch import ReshapeOfBranch
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_dynamic_slice import ReshapeOfDynamicSlice
from tilewright.hlo.rewrites.reshape_of_elementwise import ReshapeOfElementwise
from tilewright.hlo.rewrites.reshape_of_loop import ReshapeOfLoop
from tilewright.hlo.rewrites.transpose_of_elementwise import TransposeOfElementwise

__all__ = ["DEFAULT_PIPELINE", "REWRITES", "PassOption", "Step", "format_pipeline", "options", "parse_pipeline"]

Step = Rewrite | Inline

#: Every rewrite, in the order of the default pipeline.
REWRITES: dict[str, type[Rewrite] | type[Inline]] = {
    each.name: each
    for each in (
        Inline, Canonicalize, TransposeOfElementwise, ReduceOfTranspose, ReduceOfReshape, ReducesOfReshapes,
        ReshapeOfElementwise, ReshapeOfBroadcast, ReshapeOfDynamicSlice, ReshapeOfBranch, ReshapeOfLoop,
        CommonSubexpressions, DeadCode,
    )
}  # fmt: skip
DEFAULT_PIPELINE = ",".join(REWRITES)

_STEP = re.compile(r"\s*([a-z-]+)\s*(?:\{([^}]*)\})?\s*(,|$)")
_OPTION = re.compile(r"[^\s,]+")


@dataclass(frozen=True)
class PassOption:
    """An option of a rewrite: its name, ``true or false`` or ``a number``, its default, and what it does."""

    name: str
    kind: str
    default: str
    summary: str


def options(rewrite: type[Step]) -> tuple[PassOption, ...]:
    """The options of a rewrite, which are the fields of its dataclass.

    >>> [(option.name, option.default) for option in options(REWRITES["reduce-of-reshape"])]
    [('allow_reassociation', 'true')]
    """
    return tuple(
        PassOption(
            name=field.name,
            kind="true or false" if isinstance(field.default, bool) else "a number",
            default=str(field.default).lower(),
            summary=field.metadata.get("summary", ""),
        )
        for field in fields(rewrite)
    )


def format_pipeline(steps: Sequence[Step]) -> str:
    """The text :func:`parse_pipeline` reads back."""
    return ",".join(map(str, steps))


def parse_pipeline(text: str) -> tuple[Step, ...]:
    """The rewrites a text names, with options in braces. Raises ParseError at the column of the first mistake.

    >>> [str(step) for step in parse_pipeline("inline, reduce-of-reshape{allow_reassociation=false}")]
    ['inline', 'reduce-of-reshape{allow_reassociation=false}']
    """
    steps: list[Step] = []
    at = 0
    while at < len(text) or not steps:
        found = _STEP.match(text, at)
        if not found:
            raise ParseError("expected the name of a rewrite", text=text, column=at)
        if found[1] not in REWRITES:
            raise ParseError(
                f"no rewrite called '{found[1]}'", text=text, column=found.start(1), how=f"known: {DEFAULT_PIPELINE}"
            )
        steps.append(_with_options(REWRITES[found[1]], found, text))
        at = found.end()
        if found[3] == "," and at >= len(text):
            raise ParseError("expected a rewrite after the comma", text=text, column=at)
    return tuple(steps)


def _with_options(cls: type[Any], found: re.Match[str], text: str) -> Step:
    """The rewrite with the options of ``found[2]``: ``key=value``, separated by spaces or commas."""
    values: dict[str, Any] = {}
    for word in _OPTION.finditer(found[2] or ""):
        column = found.start(2) + word.start()
        key, _, value = word[0].partition("=")
        if key in values:
            raise ParseError(f"option '{key}' is given twice", text=text, column=column)
        values[key] = _value(cls, key, value, text, column)
    made: Step = cls(**values)
    return made


def _value(cls: type[Any], key: str, value: str, text: str, column: int) -> bool | int:
    known = {option.name: option for option in options(cls)}
    if key not in known:
        how = f"options of {cls.name}: {', '.join(known) or 'none'}"
        raise ParseError(f"no option called '{key}'", text=text, column=column, how=how)
    if known[key].kind == "true or false" and value in ("true", "false"):
        return value == "true"
    if known[key].kind == "a number" and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise ParseError(f"'{value}' is no value of {key}", text=text, column=column, how=f"it takes {known[key].kind}")
