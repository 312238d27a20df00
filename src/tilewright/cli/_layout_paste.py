"""Shapes as people paste them: XLA's text, a line of an HLO dump, MLIR's ``tensor<...>``.

f32[3,5]{1,0:T(2,2)}                        the shape itself
f32[3,5]{1,0:T(2,2)} %param.1               an operand: the shape before its name
ROOT %copy.5 = f32[3,5]{1,0} copy(%x), ...  an instruction: the shape of its result
tensor<3x5xf32>                             a value of StableHLO, in the default order
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.layout import TensorLayout, TupleLayout

__all__ = ["names_layout", "pasted_layout"]

_NAMED = re.compile(r"\s*(?:ROOT\s+)?%?[A-Za-z_][\w.-]*\s*[=:]\s*")
_NAME_BEHIND = re.compile(r"%[\w.-]+\s*,?\s*")
_MLIR = re.compile(r"\s*tensor<((?:[0-9?]+x)*)([A-Za-z][A-Za-z0-9]*|complex<f(?:32|64)>)>\s*")
_LAYOUT = re.compile(r"\]\s*\{\s*[0-9:]")


def pasted_layout(text: str) -> TensorLayout | TupleLayout:
    """The layout in a text that was copied out of a dump; raises :class:`~tilewright.errors.ParseError`.

    >>> str(pasted_layout("  ROOT %copy.5 = f32[3,5]{0,1} copy(%x), metadata={}"))
    'f32[3,5]{0,1}'
    >>> str(pasted_layout("tensor<3x5xbf16>"))
    'bf16[3,5]{1,0}'
    """
    from tilewright.layout import parse, parse_prefix
    from tilewright.layout.index.types import xla_dtype

    if tensor := _MLIR.fullmatch(text):
        return parse(f"{xla_dtype(tensor[2])}[{tensor[1][:-1].replace('x', ',')}]")
    if named := _NAMED.match(text):
        return parse_prefix(text, named.end())[0]
    value, end = parse_prefix(text)
    return value if _NAME_BEHIND.fullmatch(text, end) else parse(text)


def names_layout(text: str) -> bool:
    """Whether the text gives a layout, not only sizes."""
    return bool(_LAYOUT.search(text))
