"""What callers pass, checked before numpy sees it: whole numbers, texts, arrays, and whether memory is enough."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import UsageError


def whole(value: Any, name: str) -> int:
    """The value as a Python integer; a :class:`UsageError` for a fraction or a text.

    >>> whole(np.uint8(3), "a size")
    3
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {value!r}") from None


def wholes(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """All of them as Python integers; ``name`` names one of them."""
    try:
        items = tuple(values)
    except TypeError:
        raise UsageError(f"expected a list of whole numbers, {name} each, not {values!r}") from None
    return tuple(whole(value, name) for value in items)


def text_of(value: Any, name: str) -> str:
    """The value, if it is a text."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is a str, not {value!r}")
    return value


def require_layout(value: Any) -> None:
    """A :class:`UsageError` unless it is the layout of one array: a text is not, nor is a tuple of layouts."""
    if not hasattr(value, "axis_terms"):
        kind = "a tuple" if hasattr(value, "elements") else f"a {type(value).__name__}"
        raise UsageError(f"{value!s} is {kind}, not the layout of one array", how="parse(...) reads a text")


def array_of(value: Any, name: str) -> np.ndarray[Any, Any]:
    """``numpy.asarray``, with a :class:`UsageError` for what numpy cannot read."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise UsageError(f"{name} of type {type(value).__name__} cannot be read as an array: {reason}") from None


@cache
def _machine_bytes() -> int:
    """Bytes of memory this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return 1 << 46


def require_room(count: int, name: str) -> None:
    """A :class:`UsageError` for ``count`` bytes that this machine cannot hold."""
    if count > _machine_bytes():
        from tilewright.render import bytes_text

        raise UsageError(
            f"{name} takes {bytes_text(count)}, and this machine has {bytes_text(_machine_bytes())}",
            how="take a slice of the array, or pass out=, a numpy.memmap for instance",
        )
