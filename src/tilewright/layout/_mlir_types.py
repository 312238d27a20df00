"""MLIR's names of element types and XLA's: i8 and s8, ui8 and u8, i1 and pred, complex<f32> and c64."""

from __future__ import annotations

import re

__all__ = ["mlir_type", "xla_dtype"]

_MLIR = {"pred": "i1", "bf16": "bf16", "f16": "f16", "f32": "f32", "f64": "f64", "f4e2m1fn": "f4E2M1FN"}
_XLA = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_INTEGER = re.compile(r"([us]?)i([0-9]+)", re.ASCII)


def mlir_type(dtype: str) -> str:
    """MLIR's name of XLA's element type.

    >>> [mlir_type(name) for name in ("f32", "pred", "s32", "u8", "f8e4m3fn", "c64")]
    ['f32', 'i1', 'i32', 'ui8', 'f8E4M3FN', 'complex<f32>']
    """
    if dtype in _MLIR:
        return _MLIR[dtype]
    if dtype[0] in "su":
        return f"{'u' if dtype[0] == 'u' else ''}i{dtype[1:]}"
    if dtype[0] == "c":
        return f"complex<f{int(dtype[1:]) // 2}>"
    return dtype[0] + dtype[1:].upper()


def xla_dtype(element_type: str) -> str:
    """XLA's name of MLIR's element type; a name that MLIR has not comes back in small letters.

    >>> [xla_dtype(name) for name in ("f32", "i1", "i32", "ui8", "f8E4M3FN", "complex<f32>")]
    ['f32', 'pred', 's32', 'u8', 'f8e4m3fn', 'c64']
    """
    if element_type in _XLA:
        return _XLA[element_type]
    if found := _INTEGER.fullmatch(element_type):
        return f"{'u' if found[1] == 'u' else 's'}{found[2]}"
    return element_type.lower()
