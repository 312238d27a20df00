"""The monoids of a reduction: their identities, when regrouping them is exact, and when it would round."""

from __future__ import annotations

import re

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import Maker, is_static

#: Element types whose sums and products round so coarsely that a first stage must not store them; so do 8-bit floats.
NARROW = frozenset({"bf16", "f16"})
_TINY = re.compile(r"f[468]E")
_INTEGER = re.compile(r"(ui|si|i)(\d+)$")
_INFINITY = {"f64": "0x{}FF0000000000000", "f32": "0x{}F800000", "f16": "0x{}C00", "bf16": "0x{}F80"}


def _integer(dtype: str) -> tuple[bool, int] | None:
    """(signed, bits) of an integer type; MLIR's signless integers are signed in StableHLO."""
    match = _INTEGER.match(dtype)
    return (match[1] != "ui", int(match[2])) if match else None


def identity(monoid: str, dtype: str) -> str | None:
    """The identity as MLIR writes it, None where ``dtype`` has none.

    Floating addition starts from -0.0: adding +0.0 would turn a -0.0 into +0.0.

    >>> identity("add", "f32"), identity("maximum", "i8"), identity("and", "i1"), identity("minimum", "bf16")
    ('-0.0', '-128', 'true', '0x7F80')
    """
    if kind := _integer(dtype):
        signed, bits = kind
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        ones = -1 if signed else high
        if bits == 1 and dtype == "i1":
            return "false" if monoid in ("add", "or", "xor", "maximum") else "true"
        element = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": ones, "or": 0, "xor": 0}[monoid]
        return str(element)
    if monoid in ("and", "or", "xor"):
        return None
    if monoid in ("add", "multiply"):
        if dtype.startswith("complex"):  # 1 + 0i is no identity: infinity times 0i is not a number
            return "(-0.0,-0.0)" if monoid == "add" else None
        return ("-0.0" if monoid == "add" else "1.0") if dtype in _INFINITY else None
    if dtype in _INFINITY:
        return _INFINITY[dtype].format("F" if monoid == "maximum" else "7")
    return None


def _parts(element: str) -> list[str]:
    return [part.strip() for part in element.strip("()").split(",")]


def _number(element: str) -> int | float | None:
    """Integers exactly: in floating point the neighbours of 2**63 are all the same."""
    for read in (int, float):
        try:
            return read(element)
        except ValueError:  # true, false, or the bits of a float
            continue
    return None


def is_identity(monoid: str, init: Value, exact: bool) -> bool:
    """Whether ``init`` is a constant that is the monoid's identity; ``exact`` tells -0.0 from +0.0."""
    op = init.operation
    if op is None or op.name != "constant":
        return False
    element, neutral = op.attributes["literal"].element, identity(monoid, init.dtype)
    if element is None or neutral is None:
        return False
    if element.lower() == neutral.lower():
        return True
    parts = [(_number(a), _number(b), a) for a, b in zip(_parts(element), _parts(neutral))]
    if any(number is None or number != target for number, target, _ in parts):
        return False
    floating_sum = monoid == "add" and _integer(init.dtype) is None
    return not (exact and floating_sum and any(not text.startswith("-") for _, _, text in parts))


def is_exact(monoid: str, dtype: str) -> bool:
    """Whether regrouping and reordering give the same bits: integers, and maximum, minimum, and, or, xor."""
    return _integer(dtype) is not None or monoid in ("maximum", "minimum", "and", "or", "xor")


def regroups(reduce: Node, allow_reassociation: bool) -> bool:
    """Whether a reduction of one static array may take its elements in another order: exactly, or free to round."""
    monoid = reduce.attributes.get("monoid")
    if monoid is None or len(reduce.operands) != 2 or not is_static(*reduce.operands):
        return False
    return allow_reassociation or is_exact(monoid, reduce.operands[0].dtype)


def accumulator(monoid: str, dtype: str) -> str:
    """The element type both stages of a reduction work in: f32 where the first would store coarsely rounded values."""
    return "f32" if monoid in ("add", "multiply") and (dtype in NARROW or _TINY.match(dtype)) else dtype


def starts(monoid: str, init: Value, make: Maker) -> tuple[Value, Value] | None:
    """What the two stages of a reduction start from, in the accumulator's type; None where the first has nothing.

    The first starts from the identity, the second from the user's ``init``, so that it counts once. Where ``init`` is
    the identity both start from it, and where it counts twice like once (maximum, minimum, and, or) too. A product of
    complex numbers has no identity (infinity times 1 + 0i is not a number): both start from 1 + 0i if the user does.
    """
    dtype = accumulator(monoid, init.dtype)
    if init.dtype == dtype and is_identity(monoid, init, exact=False):
        return init, init  # +0.0 for -0.0 too: the second stage adds +0.0 anyway
    if monoid == "multiply" and dtype.startswith("complex"):
        return (init, init) if _is_one(init) else None
    text = identity(monoid, dtype)
    if text is not None:
        return make.constant(text, dtype), make.convert(init, dtype)
    return (init, init) if monoid in ("maximum", "minimum", "and", "or") else None


def _is_one(init: Value) -> bool:
    op = init.operation
    element = op.attributes["literal"].element if op is not None and op.name == "constant" else None
    return element is not None and [_number(part) for part in _parts(element)] == [1.0, 0.0]
