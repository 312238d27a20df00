"""MLIR's text of linalg.pack (tensor.pack in older dumps), read.

    %packed = linalg.pack %source padding_value(%zero : f32) outer_dims_perm = [0, 1] inner_dims_pos = [0, 1]
        inner_tiles = [8, 128] into %empty : tensor<9x129xf32> -> tensor<2x2x8x128xf32>

Everything around the operations is passed over, so a piece of a dump may be pasted as it is.
"""

from __future__ import annotations

import re

from tilewright.errors import ParseError, UnsupportedError
from tilewright.layout._checks import text_of
from tilewright.layout._mlir_types import xla_dtype
from tilewright.layout._types import TYPE_BITS
from tilewright.layout.convert._linalg_pack import LinalgPack, check_pack

__all__ = ["parse_linalg_pack"]

_HEAD = re.compile(r"\b(?:linalg|tensor)\.pack\b")
_NUMBERS = r"\s*=\s*\[([^\[\]]*)\]"
_TENSOR = r"(?:tensor|memref)<([^<>]*(?:<[^<>]*>)?)>"
_TYPES = re.compile(rf":\s*{_TENSOR}\s*->\s*{_TENSOR}")
_SHAPE = re.compile(r"((?:[0-9?]+x)*)(.+)", re.DOTALL)


def _numbers(text: str, name: str, start: int, end: int) -> tuple[int, ...] | None:
    """The list behind ``name =`` between two places of the text; None where it is not there."""
    found = re.compile(rf"\b{name}{_NUMBERS}").search(text, start, end)
    if found is None:
        return None
    parts = found[1].split(",") if found[1].strip() else []
    if not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", part) for part in parts):
        raise ParseError(f"{name} is not a list of whole numbers", text=text, column=found.start(1))
    return tuple(map(int, parts))


def _tensor(text: str, inside: str, at: int) -> tuple[tuple[int, ...], str]:
    """Sizes and element type within ``tensor<...>``, which begins at ``at``."""
    found = _SHAPE.fullmatch(inside.strip())
    sizes, kind = (found[1], found[2].strip()) if found else ("", "")
    if "," in kind:
        raise UnsupportedError(f"<{inside}> says itself how it lies in memory", how="linalg.pack packs plain tensors")
    dtype = xla_dtype(kind)
    if dtype not in TYPE_BITS:
        raise ParseError(f"no element type called {kind!r}", text=text, column=at)
    if "?" in sizes:
        raise UnsupportedError(f"tensor<{inside}> has dims without a size", how="give the sizes the program runs with")
    parts = sizes.split("x")[:-1]
    if any(len(part) > 18 for part in parts):
        raise ParseError("a dim of more than 18 digits", text=text, column=at)
    return tuple(map(int, parts)), dtype


def _operation(text: str, start: int, end: int) -> LinalgPack:
    """The operation whose name ends at ``start``, before the next one at ``end``."""
    types = _TYPES.search(text, start, end)
    if types is None:
        how = "it ends with : tensor<..> -> tensor<..>"
        raise ParseError("expected the types of linalg.pack", text=text, column=start, how=how)
    shape, dtype = _tensor(text, types[1], types.start(1))
    packed, _ = _tensor(text, types[2], types.start(2))
    positions, tiles, perm = (
        _numbers(text, name, start, types.start()) for name in ("inner_dims_pos", "inner_tiles", "outer_dims_perm")
    )
    if positions is None or tiles is None:
        raise ParseError("expected inner_dims_pos = [..] and inner_tiles = [..]", text=text, column=start)
    pack = LinalgPack(dtype, shape, positions, tiles, tuple(range(len(shape))) if perm is None else perm)
    check_pack(pack, len(shape))
    if pack.packed_shape != packed:
        sizes = "x".join(map(str, pack.packed_shape))
        raise ParseError(f"the packed tensor has the sizes {sizes}", text=text, column=types.start(2))
    return pack


def parse_linalg_pack(text: str) -> tuple[LinalgPack, ...]:
    """The linalg.pack operations of a text, in order.

    Raises :class:`ParseError` where there is none or one is not as MLIR has it, and :class:`UnsupportedError` for dims
    or tiles whose sizes the text does not tell.

    >>> (pack,) = parse_linalg_pack(
    ...     "%1 = linalg.pack %0 inner_dims_pos = [1, 0] inner_tiles = [16, 8] into %e "
    ...     ": tensor<128x256xf32> -> tensor<16x16x16x8xf32>")
    >>> pack.source_shape, pack.inner_dims_pos, pack.inner_tiles, pack.outer_dims_perm
    ((128, 256), (1, 0), (16, 8), (0, 1))
    """
    heads = list(_HEAD.finditer(text_of(text, "MLIR")))
    if not heads:
        raise ParseError("expected linalg.pack", text=text, column=0)
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(_operation(text, head.end(), end) for head, end in zip(heads, ends, strict=True))
