"""What a shape's text says, as values, and the canonical text of such a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMBINE", "UNBOUNDED", "ArrayText", "ShapeText", "TupleText", "format_shape"]

COMBINE = -1
"""A ``*`` in a tile: this dim is merged with the next more minor one."""
UNBOUNDED = -1
"""The size of a ``?`` dim."""


@dataclass(frozen=True)
class ArrayText:
    """One array shape as written; ``tiles`` use :data:`COMBINE` for ``*``, ``dims`` :data:`UNBOUNDED` for ``?``."""

    dtype: str
    dims: tuple[int, ...]
    dynamic: tuple[bool, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    tail_alignment: int = 1
    index_type: str = ""
    pointer_type: str = ""
    element_bits: int = 0
    memory_space: int = 0
    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    metadata_prefix: int = 0
    buffer: bool = False


@dataclass(frozen=True)
class TupleText:
    """A tuple of shapes."""

    elements: tuple[ShapeText, ...]


ShapeText = ArrayText | TupleText


def _format_dims(shape: ArrayText) -> str:
    def one(size: int, dynamic: bool) -> str:
        return "?" if size == UNBOUNDED else f"<={size}" if dynamic else str(size)

    return ",".join(one(*pair) for pair in zip(shape.dims, shape.dynamic, strict=True))


def _format_tail(shape: ArrayText) -> str:
    parts = []
    if shape.tiles:
        tiles = ("(" + ",".join("*" if t == COMBINE else str(t) for t in tile) + ")" for tile in shape.tiles)
        parts.append("T" + "".join(tiles))
    parts += [f"L({shape.tail_alignment})"] if shape.tail_alignment != 1 else []
    parts += [f"#({shape.index_type})"] if shape.index_type else []
    parts += [f"*({shape.pointer_type})"] if shape.pointer_type else []
    parts += [f"E({shape.element_bits})"] if shape.element_bits else []
    parts += [f"S({shape.memory_space})"] if shape.memory_space else []
    if shape.splits:
        parts.append("SC" + "".join(f"({dim}:{','.join(map(str, cuts))})" for dim, cuts in shape.splits))
    parts += [f"M({shape.metadata_prefix})"] if shape.metadata_prefix else []
    return "".join(parts)


def format_shape(shape: ShapeText) -> str:
    """XLA's canonical text; reading it back gives an equal value."""
    if isinstance(shape, TupleText):
        mark = len(shape.elements) > 5
        texts = (
            (f"/*index={i}*/" if mark and i and i % 5 == 0 else "") + format_shape(e)
            for i, e in enumerate(shape.elements)
        )
        return "(" + ", ".join(texts) + ")"
    text = f"{shape.dtype}[{_format_dims(shape)}]"
    tail = _format_tail(shape)
    if shape.dtype not in ("token", "opaque") and (shape.dims or tail):
        text += "{" + ",".join(map(str, shape.minor_to_major)) + (f":{tail}" if tail else "") + "}"
    return f"b({text})" if shape.buffer else text
