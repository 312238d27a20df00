"""The few attributes of StableHLO operations that a report reads, from the printed and from the generic form."""

from __future__ import annotations

import re

__all__ = ["WITH_ATTRIBUTES", "attributes_of"]

#: Operations whose attributes a report reads.
WITH_ATTRIBUTES = frozenset({"transpose", "broadcast_in_dim", "concatenate", "slice"})
_DIMENSIONS = re.compile(
    r"(?:\bdims?|\bpermutation|\bbroadcast_dimensions|\bdimension)\s*=\s*(?:array<i64(?::([^<>]*))?>|\[([^\]]*)\]|(\d+))"
)
_SLICE = re.compile(r"\[([\d:,\s]*)\]")
_SLICE_KEYS = ("start_indices", "limit_indices", "strides")
_SLICE_PART = re.compile(r"\b(start_indices|limit_indices|strides)\s*=\s*array<i64(?::([^<>]*))?>")


def attributes_of(opcode: str, text: str) -> dict[str, str]:
    """The attributes a report reads, in HLO's notation.

    >>> attributes_of("transpose", "%1 = stablehlo.transpose %0, dims = [1, 0] : ...")
    {'dimensions': '{1,0}'}
    """
    if opcode == "slice":
        return _slice(text)
    found = _DIMENSIONS.search(text)
    if found is None:
        return {}
    inside = next((group for group in found.groups() if group is not None), "")
    return {"dimensions": "{" + inside.replace(" ", "") + "}"}


def _slice(text: str) -> dict[str, str]:
    if found := _SLICE.search(text):
        return {"slice": "{" + ", ".join(f"[{part.strip()}]" for part in found[1].split(",") if part.strip()) + "}"}
    parts = {key: [word.strip() for word in inside.split(",")] for key, inside in _SLICE_PART.findall(text)}
    if len(parts) < 3:
        return {}
    return {"slice": "{" + ", ".join(f"[{':'.join(dim)}]" for dim in zip(*(parts[key] for key in _SLICE_KEYS))) + "}"}
