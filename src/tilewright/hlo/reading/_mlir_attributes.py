"""The few attributes of StableHLO operations that a report reads, from the printed and from the generic form."""

from __future__ import annotations

import re

__all__ = ["WITH_ATTRIBUTES", "attributes_of"]

#: Operations whose attributes a report reads.
WITH_ATTRIBUTES = frozenset({"transpose", "broadcast_in_dim", "concatenate", "slice", "compare", "constant", "pad"})
_DIMENSIONS = re.compile(
    r"(?:\bdims?|\bpermutation|\bbroadcast_dimensions|\bdimension)\s*=\s*(?:array<i64(?::([^<>]*))?>|\[([^\]]*)\]|(\d+))"
)
_DIRECTION = re.compile(r"\bcompare\s+([A-Z]{2})\b|\bcomparison_direction\s+([A-Z]{2})\b")
_SCALAR = re.compile(r"dense<(-?\d{1,18})>\s*:\s*tensor<(?:[us]?i\d+)>")
_PADDING = re.compile(r"\b(low|high|interior)\s*=\s*\[([-\d,\s]*)\]")
_PADDING_KEYS = ("low", "high", "interior")
_SLICE = re.compile(r"\[([\d:,\s]*)\]")
_SLICE_KEYS = ("start_indices", "limit_indices", "strides")
_SLICE_PART = re.compile(r"\b(start_indices|limit_indices|strides)\s*=\s*array<i64(?::([^<>]*))?>")


def attributes_of(opcode: str, text: str) -> dict[str, str]:
    """The attributes a report reads, in HLO's notation.

    >>> attributes_of("transpose", "%1 = stablehlo.transpose %0, dims = [1, 0] : ...")
    {'dimensions': '{1,0}'}
    """
    if opcode in _READERS:
        return _READERS[opcode](text)
    found = _DIMENSIONS.search(text)
    if found is None:
        return {}
    inside = next((group for group in found.groups() if group is not None), "")
    return {"dimensions": "{" + inside.replace(" ", "") + "}"}


def _compare(text: str) -> dict[str, str]:
    found = _DIRECTION.search(text)
    return {"direction": found[1] or found[2]} if found else {}


def _constant(text: str) -> dict[str, str]:
    """The value of an integer scalar; others are not read."""
    found = _SCALAR.search(text)
    return {"literal": found[1]} if found else {}


def _pad(text: str) -> dict[str, str]:
    """``low_high_interior`` for each dim, joined by x."""
    parts = {key: inside.replace(" ", "").split(",") for key, inside in _PADDING.findall(text)}
    if len(parts) < 3 or not all(parts["low"]):
        return {}
    return {"padding": "x".join("_".join(dim) for dim in zip(*(parts[key] for key in _PADDING_KEYS)))}


def _slice(text: str) -> dict[str, str]:
    if found := _SLICE.search(text):
        return {"slice": "{" + ", ".join(f"[{part.strip()}]" for part in found[1].split(",") if part.strip()) + "}"}
    parts = {key: [word.strip() for word in inside.split(",")] for key, inside in _SLICE_PART.findall(text)}
    if len(parts) < 3:
        return {}
    return {"slice": "{" + ", ".join(f"[{':'.join(dim)}]" for dim in zip(*(parts[key] for key in _SLICE_KEYS))) + "}"}


_READERS = {"compare": _compare, "constant": _constant, "pad": _pad, "slice": _slice}
