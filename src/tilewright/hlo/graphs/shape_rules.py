"""Do an operation's shapes fit together? A text may parse and still contradict itself; its cost would mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import UsageError
from tilewright.layout import TensorLayout

_Shape = tuple[int, ...]


def check_shapes(name: str, operands: Sequence[TensorLayout], result: TensorLayout, dimensions: _Shape | None) -> None:
    """Raise UsageError where operands, result and ``dimensions`` of a movement operation contradict each other.

    >>> from tilewright.layout import parse
    >>> check_shapes("transpose", [parse("f32[4,6]")], parse("f32[6,4]"), (1, 0))
    >>> check_shapes("transpose", [parse("f32[4,6]")], parse("f32[4,6]"), (1, 0))
    Traceback (most recent call last):
    tilewright.errors.UsageError: dims (1, 0) of [4,6] are [6,4], not [4,6]
    """
    shape = operands[0].shape
    if name == "transpose":
        _transpose(shape, result.shape, dimensions)
    elif name == "broadcast":
        _broadcast(shape, result.shape, dimensions)
    elif name == "concatenate":
        _concatenate([operand.shape for operand in operands], result.shape, dimensions)
    elif name in ("copy", "copy-start", "convert") and shape != result.shape:
        raise UsageError(f"the operand is {_text(shape)}, the result {_text(result.shape)}")
    elif name in ("slice", "pad") and len(shape) != len(result.shape):
        raise UsageError(f"the operand has {len(shape)} dims, the result {len(result.shape)}")


def _text(shape: _Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def _transpose(shape: _Shape, result: _Shape, dimensions: _Shape | None) -> None:
    if dimensions is None or sorted(dimensions) != list(range(len(shape))):
        raise UsageError(f"dimensions {dimensions or '()'} are not an order of the {len(shape)} dims of {_text(shape)}")
    moved = tuple(shape[dim] for dim in dimensions)
    if moved != result:
        raise UsageError(f"dims {dimensions} of {_text(shape)} are {_text(moved)}, not {_text(result)}")


def _broadcast(shape: _Shape, result: _Shape, dimensions: _Shape | None) -> None:
    dims = dimensions or ()
    if len(dims) != len(shape) or len(set(dims)) != len(dims):
        raise UsageError(f"dimensions {dims} do not name one dim of the result for each dim of {_text(shape)}")
    for size, dim in zip(shape, dims):
        if not 0 <= dim < len(result) or size not in (1, result[dim]):
            raise UsageError(f"a dim of size {size} cannot become dim {dim} of {_text(result)}")


def _concatenate(shapes: Sequence[_Shape], result: _Shape, dimensions: _Shape | None) -> None:
    if dimensions is None or len(dimensions) != 1 or not 0 <= dimensions[0] < len(result):
        raise UsageError(f"dimensions {dimensions or '()'} do not name the one dim to join along")
    dim = dimensions[0]
    rest = (*result[:dim], *result[dim + 1 :])
    if any(len(s) != len(result) or (*s[:dim], *s[dim + 1 :]) != rest for s in shapes):
        raise UsageError(f"arrays {', '.join(map(_text, shapes))} do not join to {_text(result)} along dim {dim}")
    if sum(s[dim] for s in shapes) != result[dim]:
        raise UsageError(f"dim {dim} of the arrays adds up to {sum(s[dim] for s in shapes)}, not {result[dim]}")
