"""MLIR types as XLA shape text, so that StableHLO and HLO programs speak one notation."""

from __future__ import annotations

import re
from functools import lru_cache

from tilewright.layout.index.types import xla_dtype

__all__ = ["xla_shape", "xla_tuple"]

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,]*)(.*)>$", re.S)
_BOUNDS = re.compile(r"bounds<([^<>]*)>")
_SCALAR = re.compile(r"(?:[su]?i\d+|b?f\d\w*|complex<\w+>)$")


@lru_cache(maxsize=16384)
def xla_shape(text: str) -> str:
    """XLA text of an MLIR type; types that hold no array become ``opaque[]``.

    >>> [xla_shape(t) for t in ("tensor<48x350xf32>", "tensor<i1>", "!stablehlo.token", "tensor<?x4xi8>")]
    ['f32[48,350]', 'pred[]', 'token[]', 's8[?,4]']
    """
    if text == "!stablehlo.token":
        return "token[]"
    if _SCALAR.match(text):
        return f"{xla_dtype(text)}[]"
    found = _TENSOR.match(text)
    if found is None or not _SCALAR.match(found[2].strip()):
        return "opaque[]"
    dims = found[1].split("x")[:-1]
    if bounds := _BOUNDS.search(found[3]):
        limits = [word.strip() for word in bounds[1].split(",")]
        dims = [dim if limit == "?" else f"<={limit}" for dim, limit in zip(dims, limits)]
    return f"{xla_dtype(found[2].strip())}[{','.join(dims)}]"


def xla_tuple(shapes: tuple[str, ...]) -> str:
    """One shape as it is, several as a tuple, none as the empty tuple."""
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
