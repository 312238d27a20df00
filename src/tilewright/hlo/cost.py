"""What an operation costs in bytes moved for layout's sake: the one place where report and gate count them.

Source: the movement rules of the reshape and broadcast rewrites. A reshape or transpose is free iff it is a bitcast
under the layouts on both sides; else it reads its operand and writes its result, padding included. A copy, a broadcast
and a concatenate always read and write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.errors import UnsupportedError
from tilewright.layout import TensorLayout, is_bitcast, parse, predict, preset
from tilewright.targets import Target

#: Operations whose work is to move data, by their HLO names.
MOVEMENT_OPS = frozenset({"bitcast", "broadcast", "concatenate", "copy", "pad", "reshape", "slice", "transpose"})

_REARRANGING = frozenset({"broadcast", "reshape", "transpose"})


@dataclass(frozen=True, slots=True)
class Movement:
    """Bytes one operation reads and writes, padding included; both 0 for a ``bitcast``."""

    bitcast: bool
    bytes_read: int
    bytes_written: int

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


FREE = Movement(True, 0, 0)


def plain_opcode(opcode: str) -> str:
    """HLO's name of an operation: ``stablehlo.broadcast_in_dim`` -> ``broadcast``.

    >>> plain_opcode("stablehlo.dynamic_slice")
    'dynamic-slice'
    """
    name = opcode.rpartition(".")[2]
    return "broadcast" if name == "broadcast_in_dim" else name.replace("_", "-")


def movement(
    opcode: str,
    operands: Sequence[TensorLayout],
    result: TensorLayout,
    dimensions: Sequence[int] | None = None,
) -> Movement:
    """Bytes that ``opcode`` (HLO's or StableHLO's name) moves from ``operands`` to ``result``.

    ``dimensions`` is the operation's attribute: a transpose's permutation (as ``numpy.transpose`` reads it), or the
    dims of the result that a broadcast's operand becomes. A broadcast that repeats nothing is a reshape. Every opcode
    but reshape, transpose and bitcast is taken to read its operands and write its result. Raises UnsupportedError for
    layouts without a size (dynamic dims without a bound).

    >>> from tilewright.layout import parse
    >>> movement("reshape", [parse("f32[64,128]{1,0:T(8,128)}")], parse("f32[8,8,128]{2,1,0:T(8,128)}"))
    Movement(bitcast=True, bytes_read=0, bytes_written=0)
    >>> movement("reshape", [parse("f32[64,128]{1,0:T(8,128)}")], parse("f32[64,2,64]{2,1,0:T(2,128)}")).moved_bytes
    98304
    """
    name = plain_opcode(opcode)
    if name == "bitcast":
        return FREE
    fit = name in _REARRANGING and operands and dimensions_fit(name, operands[0], result, dimensions)
    if fit and bitcasts(operands[0], result, permutation_of(name, dimensions)):
        return FREE
    return Movement(False, sum(each.size_bytes for each in operands), result.size_bytes)


def dimensions_fit(name: str, a: TensorLayout, b: TensorLayout, dimensions: Sequence[int] | None) -> bool:
    """Could this be a bitcast at all? A broadcast that repeats elements is none."""
    if name == "broadcast":
        return dimensions is not None and prod(a.shape) == prod(b.shape) and a.memory_space == b.memory_space
    return a.memory_space == b.memory_space


def permutation_of(name: str, dimensions: Sequence[int] | None) -> tuple[int, ...] | None:
    """The transpose in an operation: its own permutation, or the one hidden in a broadcast's unsorted dims.

    >>> permutation_of("broadcast", (2, 0)), permutation_of("broadcast", (0, 2)), permutation_of("reshape", ())
    ((1, 0), None, None)
    """
    if name == "transpose" and dimensions is not None:
        return tuple(dimensions)
    if name == "broadcast" and dimensions is not None and list(dimensions) != sorted(dimensions):
        return tuple(sorted(range(len(dimensions)), key=dimensions.__getitem__))
    return None


@lru_cache(maxsize=65536)
def bitcasts(a: TensorLayout, b: TensorLayout, permutation: tuple[int, ...] | None) -> bool:
    """is_bitcast, remembered: programs repeat the same pairs of layouts hundreds of times."""
    return is_bitcast(a, b, permutation)


@lru_cache(maxsize=65536)
def array_layout(text: str) -> TensorLayout:
    """The layout a shape's text describes, remembered by text. Raises ParseError, and UnsupportedError for a tuple."""
    layout = parse(text)
    if not isinstance(layout, TensorLayout):
        raise UnsupportedError(f"'{text}' is a tuple, not an array")
    return layout


@lru_cache(maxsize=65536)
def place(shape: tuple[int, ...], dtype: str, target: Target) -> TensorLayout:
    """Where ``target`` puts an array of ``shape`` and XLA ``dtype`` (``f32``, ``bf16``, ``pred``): its layout rule.

    ``tpu`` predicts the compiler's dim order and tiles; ``tpu_default_order`` keeps the dims in order and puts every
    matrix into whole tiles of the vector registers, never smaller ones; ``linear`` is row-major. Raises
    UnsupportedError for a target with another rule.

    >>> from tilewright.targets import target
    >>> str(place((256, 4, 8), "f32", target("vector8x128"))), str(place((256, 4, 8), "f32", target("tpu-v5e")))
    ('f32[256,4,8]{2,1,0:T(8,128)}', 'f32[256,4,8]{0,2,1:T(8,128)}')
    """
    if target.layout_rule == "tpu":
        return predict("tpu", shape, dtype)
    if target.layout_rule == "tpu_default_order":
        return _in_register_tiles(shape, dtype, target)
    if target.layout_rule == "linear":
        return array_layout(f"{dtype}[{','.join(map(str, shape))}]")
    raise UnsupportedError(
        f"target {target.name} lays arrays out by the rule '{target.layout_rule}', which knows no whole programs",
        how="name a tpu, vector or cpu target",
    )


def _in_register_tiles(shape: tuple[int, ...], dtype: str, target: Target) -> TensorLayout:
    """Dims in order under T(sublanes,lanes)(p,1), p values to a word; vectors, scalars and empty arrays as a TPU's."""
    default = preset("tpu", shape, dtype)
    vector = target.vector
    if len(shape) < 2 or 0 in shape or vector is None:
        return default
    text = str(default)
    return array_layout(re.sub(r":T\(\d+,\d+\)", f":T({vector.sublanes},{vector.lanes})", text, count=1))
