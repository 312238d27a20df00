"""The monoids of a reduction: their identities, when regrouping them is exact, and when it would round."""

from __future__ import annotations

import re
from typing import Any

from tilewright.hlo._graph import Value

__all__ = ["NARROW", "identity", "is_exact", "is_identity", "regroups"]

#: Element types whose sums and products round so coarsely that a first stage must not store them. Narrower floats
#: have no identity here, so they are never taken apart.
NARROW = frozenset({"bf16", "f16"})
_INTEGER = re.compile(r"(ui|si|i)(\d+)$")
_INFINITY = {"f64": "0x{}FF0000000000000", "f32": "0x{}F800000", "f16": "0x{}C00", "bf16": "0x{}F80"}


def _integer(dtype: str) -> tuple[bool, int] | None:
    """(signed, bits) of an integer type; MLIR's signless integers are signed in StableHLO."""
    found = _INTEGER.match(dtype)
    return (found[1] != "ui", int(found[2])) if found else None


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
        found = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": ones, "or": 0, "xor": 0}[monoid]
        if bits == 1 and dtype == "i1":
            return "false" if monoid in ("add", "or", "xor", "maximum") else "true"
        return str(found)
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
    element, wanted = op.attributes["literal"].element, identity(monoid, init.dtype)
    if element is None or wanted is None:
        return False
    if element.lower() == wanted.lower():
        return True
    parts = [(_number(a), _number(b), a) for a, b in zip(_parts(element), _parts(wanted))]
    if any(number is None or number != target for number, target, _ in parts):
        return False
    floating_sum = monoid == "add" and _integer(init.dtype) is None
    return not (exact and floating_sum and any(not text.startswith("-") for _, _, text in parts))


def is_exact(monoid: str, dtype: str) -> bool:
    """Whether regrouping and reordering give the same bits: integers, and maximum, minimum, and, or, xor."""
    return _integer(dtype) is not None or monoid in ("maximum", "minimum", "and", "or", "xor")


def regroups(attributes: dict[str, Any], value: Value, reassociate: bool) -> bool:
    """Whether a reduction of ``value`` may be taken apart: one monoid with an identity, exact or allowed to round."""
    monoid = attributes.get("monoid")
    if monoid is None or identity(monoid, value.dtype) is None:
        return False
    return reassociate or is_exact(monoid, value.dtype)
