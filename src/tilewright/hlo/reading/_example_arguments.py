"""Example arguments as text: ``f32[8,128]``, ``{"w": bf16[4,4], "b": [f32[4]]}``, ``3``, ``key``, ``mask=pred[8]``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tilewright.errors import ParseError, UsageError
from tilewright.hlo.proving._reference import own_dtype
from tilewright.layout import dtype_name

__all__ = ["example_arguments"]

_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_SHAPE = re.compile(r"([A-Za-z]\w*)\s*\[\s*((?:\d{1,15}\s*(?:,\s*\d{1,15}\s*)*)?)\]")
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?(?!\w)")
_STRING = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None, "null": None}
_BLANK = re.compile(r"\s*")
_DEEPEST = 50


def example_arguments(texts: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Texts of arguments -> positional arguments and keyword arguments for a JAX function.

    ``f32[8,128]`` (XLA's or numpy's names of types) stands for an array of that shape, ``key`` for a random key;
    ``[...]``, ``(...)`` and ``{"name": ...}`` build trees of them; numbers, ``true``, ``false``, ``none`` and quoted
    strings are Python values, for static arguments. ``name=`` before any of them names a keyword. Raises ParseError
    with the column, UsageError for a type nobody knows.

    >>> example_arguments(["f32[8,128]", "axis=-1"])
    ((ShapeDtypeStruct(shape=(8, 128), dtype=float32),), {'axis': -1})
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        name = _NAMED.match(text)
        value = _Reader(text, name.end() if name else 0).whole()
        if name is None:
            positional.append(value)
        elif name[1] in named:
            raise UsageError(f"argument {name[1]} is given twice", where=text)
        else:
            named[name[1]] = value
    return tuple(positional), named


class _Reader:
    """One argument's text and the position reached in it."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def fail(self, what: str, how: str = "") -> ParseError:
        return ParseError(what, text=self.text, column=self.at, where="argument", how=how)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def peek(self) -> str:
        self.take(_BLANK)
        return self.text[self.at : self.at + 1]

    def whole(self) -> Any:
        value = self.value(0)
        if self.peek() == "{":
            raise self.fail("the arguments of a function have no layout", how="leave the braces out")
        if self.peek():
            raise self.fail("expected the end of the argument", how="give one --arg per argument")
        return value

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.fail(f"nested deeper than {_DEEPEST}")
        opener = self.peek()
        if opener in ("[", "("):
            items = self.items("]" if opener == "[" else ")", depth)
            return items if opener == "[" else tuple(items)
        if opener == "{":
            return dict(self.items("}", depth))
        return self.leaf()

    def items(self, closer: str, depth: int) -> list[Any]:
        """The values up to ``closer``; pairs of key and value for a brace."""
        self.at += 1
        found: list[Any] = []
        while self.peek() != closer:
            found.append((self.key(), self.value(depth + 1)) if closer == "}" else self.value(depth + 1))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != closer:
                raise self.fail(f"expected ',' or '{closer}'")
        self.at += 1
        return found

    def key(self) -> str:
        found = self.take(_STRING) or self.take(_WORD)
        if found is None:
            raise self.fail("expected a name and ':'")
        if self.peek() != ":":
            raise self.fail(f"expected ':' after {found[0]}")
        self.at += 1
        return str(next((group for group in found.groups() if group is not None), found[0]))

    def leaf(self) -> Any:
        if shape := self.take(_SHAPE):
            return _array(shape[1], [int(word) for word in shape[2].replace(",", " ").split()], self.text)
        if number := self.take(_NUMBER):
            return int(number[0]) if number.group(1, 2, 3) == (None, None, None) else float(number[0])
        if string := self.take(_STRING):
            return string[1] if string[1] is not None else string[2]
        start = self.at
        word = self.take(_WORD)
        if word and word[0] in _WORDS:
            return _WORDS[word[0]]
        if word and word[0] == "key":
            return _random_key()
        self.at = start
        raise self.fail("expected an argument such as f32[8,128], 3, key or [f32[4], s32[]]")


def _array(dtype: str, dims: list[int], text: str) -> Any:
    import jax

    if math.prod(dims) >= 2**60:
        raise UsageError("an array of more than 2**60 elements", where=text)
    kind = own_dtype(dtype_name(dtype))
    if kind.name in ("float64", "int64", "uint64", "complex128") and jax.dtypes.canonicalize_dtype(kind) != kind:
        raise UsageError(f"JAX makes no {kind.name} in its 32-bit mode", where=text, how="set JAX_ENABLE_X64=1")
    made: Any = jax.ShapeDtypeStruct
    return made(tuple(dims), kind)


def _random_key() -> Any:
    import jax

    return jax.eval_shape(jax.random.key, 0)
