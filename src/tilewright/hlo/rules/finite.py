"""Which values are surely finite, whatever the program's arguments hold."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Value

#: Results that are bounded for every operand that is a number. None of them turns NaN into a number, so their operand
#: must be finite too, unless it is an integer.
_BOUNDED = frozenset({"tanh", "logistic", "sine", "cosine", "sign", "chlo.erf"})
#: Finite for finite operands: no overflow from values that are finite.
_KEEPING = frozenset({
    "reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "concatenate", "negate", "abs", "maximum",
    "minimum", "select", "pad", "dynamic_slice", "gather", "floor", "ceil", "round_nearest_even", "round_nearest_afz",
}) | _BOUNDED  # fmt: skip
_DEPTH = 12


def is_finite(value: Value, depth: int = _DEPTH) -> bool:
    """Whether no element can be NaN or an infinity: integers, constants, and what only moves or bounds such.

    >>> from tilewright.hlo.graphs.graph import Block
    >>> block = Block()
    >>> is_finite(block.add_argument((8,), "i32")), is_finite(block.add_argument((8,), "f32"))
    (True, False)
    """
    if value.dtype.lstrip("us").startswith("i"):
        return True
    node = value.operation
    if node is None or depth == 0:
        return False
    if node.name == "constant":
        element = node.attributes["literal"].element
        return element is not None and not element.startswith("0x") and element not in ("inf", "nan")
    if node.name == "iota":
        return True
    if node.name == "convert":
        return is_finite(node.operands[0], depth - 1) and not _narrows(node.operands[0].dtype, value.dtype)
    if node.name == "multiply":  # a factor of 0 or 1 keeps it; products of others may overflow
        masks = [operand for operand in node.operands if _is_mask(operand)]
        return bool(masks) and all(is_finite(operand, depth - 1) for operand in node.operands)
    if node.name in _KEEPING:
        parts = node.operands[1:] if node.name == "select" else node.operands
        return all(is_finite(operand, depth - 1) for operand in parts)
    return False


def _is_mask(value: Value) -> bool:
    node = value.operation
    return node is not None and node.name == "convert" and node.operands[0].dtype == "i1"


_WIDEST = {"f64": 1023, "f32": 127, "bf16": 127, "f16": 15}


def _narrows(source: str, target: str) -> bool:
    """Whether a conversion may overflow to an infinity."""
    if source not in _WIDEST:  # an integer: f16 ends at 65504
        small = source in ("i1", "i8", "ui8", "i4", "ui4", "i2", "ui2")
        return target not in _WIDEST or (target == "f16" and not small)
    return _WIDEST.get(target, 0) < _WIDEST[source]
