"""A StableHLO program in float64: every floating type of its text widened, for a reference by XLA itself."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo._ir import parse_module, print_module
from tilewright.hlo.proving._agreement import is_integral
from tilewright.hlo.running._execute import flat_callable

Array = np.ndarray[Any, Any]

__all__ = ["widened"]

_BITS = re.compile(r"dense<0x([0-9A-F]+)> : (tensor<(?:\d+x)*)(f32|bf16|f16)>")
_BLOB = re.compile(r'dense<"0x[0-9A-F]+"> : tensor<(?:\d+x)*(?:complex<)?b?f\d+')
_NARROW = re.compile(r"(?<=[x<(])(?:f32|bf16|f16)(?=>)")


def widened(text: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[Sequence[Any]], list[Array]]:
    """The program with f32, f16 and bf16 widened to f64 throughout, as a function of its arguments as they are.

    Call it where 64-bit types are enabled. Raises UnsupportedError where a text cannot be widened (constants stored as
    raw bytes, calls of foreign code).
    """
    import jax

    plain = print_module(parse_module(text))
    if _BLOB.search(plain) or "stablehlo.custom_call" in plain or "bitcast_convert" in plain:
        raise UnsupportedError("it has raw constants, bit casts or foreign calls, which cannot be widened")
    wide = _NARROW.sub("f64", _BITS.sub(_widen_bits, plain))
    structs: Any = jax.ShapeDtypeStruct
    given, made = ([structs(o.shape, _wide(np.empty(0, o.dtype)).dtype) for o in each] for each in (inputs, outputs))
    jitted = jax.jit(flat_callable(wide, given, made))
    return lambda arrays: [np.asarray(out) for out in jitted(*(_wide(np.asarray(a)) for a in arrays))]


def _wide(array: Array) -> Array:
    if is_integral(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _widen_bits(found: re.Match[str]) -> str:
    """A constant written as the bits of a narrow float, as the bits of the same f64 (NaN and infinities mostly)."""
    word = int(found[1], 16)
    if found[3] == "f16":
        value = float(np.uint16(word).view(np.float16))
    else:
        value = struct.unpack(">f", struct.pack(">I", word << 16 if found[3] == "bf16" else word))[0]
    bits = struct.unpack(">Q", struct.pack(">d", value))[0]
    return f"dense<0x{bits:016X}> : {found[2]}f64>"
