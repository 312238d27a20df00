"""Layouts by name, and the layout a TPU compiler will choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout._tiled import TensorLayout, tiled
from tilewright.layout._types import dtype_name, type_bits

__all__ = ["predict", "preset"]

_LANES, _SUBLANES = 128, 8


def _pow2_ceil(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _tpu_bits(dtype: str) -> int:
    """Bits of a value in a TPU's vector memory; a 4-bit type is packed, E(4)."""
    return 4 if dtype in ("s4", "u4", "f4e2m1fn") else type_bits(dtype)


def _tpu_tiles(sizes: tuple[int, ...], bits: int) -> tuple[tuple[int, ...], ...]:
    """The tiles for physical sizes, major first (observed on v4 to 7x, ahead of time)."""
    packing = max(1, 32 // bits)
    if 0 in sizes:
        return ()
    inner = ((packing, 1),) if packing > 1 else ()
    if not sizes:
        return ((_LANES * packing,),)
    if len(sizes) == 1:
        length = min(max(_pow2_ceil(sizes[0]), _LANES * packing), 1024)
        return ((length,), (_LANES,), *inner) if packing > 1 else ((length,),)
    rows = min(max(_pow2_ceil(sizes[-2]), packing), _SUBLANES)
    return ((rows, _LANES), *inner)


def _padded_slots(sizes: tuple[int, ...], bits: int) -> int:
    rows, lanes = _tpu_tiles(sizes, bits)[0]
    return math.prod(sizes[:-2]) * -(-sizes[-2] // rows) * rows * -(-sizes[-1] // lanes) * lanes


def _tpu(shape: tuple[int, ...], dtype: str, minor_to_major: tuple[int, ...] | None = None) -> TensorLayout:
    bits = _tpu_bits(dtype)
    order = minor_to_major or tuple(range(len(shape) - 1, -1, -1))
    tiles = _tpu_tiles(tuple(shape[d] for d in reversed(order)), bits)
    return tiled(shape, dtype, order, tiles, element_bits=bits if bits < 8 else 0)


_PRESETS: dict[str, Callable[[tuple[int, ...], str], TensorLayout]] = {"tpu": _tpu}


def preset(name: str, shape: Sequence[int], dtype: Any) -> TensorLayout:
    """A layout by name: ``tpu`` is a TPU compiler's default tiles with the dims in order.

    >>> str(preset("tpu", (1, 300), "bf16"))
    'bf16[1,300]{1,0:T(2,128)(2,1)}'
    """
    if name not in _PRESETS:
        raise UsageError(f"no preset called {name!r}", how=f"known presets: {', '.join(sorted(_PRESETS))}")
    return _cached(name, tuple(int(n) for n in shape), dtype_name(dtype))


@lru_cache(maxsize=65536)
def _cached(name: str, shape: tuple[int, ...], dtype: str) -> TensorLayout:
    return _PRESETS[name](shape, dtype)


def predict(name: str, shape: Sequence[int], dtype: Any) -> TensorLayout:
    """The layout a compiler will choose, dim order included; ``name`` is ``tpu`` (or a target's name, ``tpu-...``).

    Over all pairs (minor, second minor) of dims, minor scanned from the last dim down and the second likewise, the
    first with the fewest padded bytes wins; the other dims stay in order.

    >>> str(predict("tpu", (1048576, 1), "f32"))
    'f32[1048576,1]{0,1:T(1,128)}'
    """
    if name != "tpu" and not name.startswith("tpu-"):
        raise UnsupportedError(f"no predictor for {name!r}", how="only 'tpu' is predicted; use preset(...) elsewhere")
    return _predict_tpu(tuple(int(n) for n in shape), dtype_name(dtype))


@lru_cache(maxsize=65536)
def _predict_tpu(shape: tuple[int, ...], dtype: str) -> TensorLayout:
    rank = len(shape)
    if rank < 2 or 0 in shape:
        return _tpu(shape, dtype)
    bits = _tpu_bits(dtype)
    pairs = [(m, s) for m in range(rank - 1, -1, -1) for s in range(rank - 1, -1, -1) if s != m]

    def cost(pair: tuple[int, int]) -> int:
        others = tuple(shape[d] for d in range(rank) if d not in pair)
        return _padded_slots((*others, shape[pair[1]], shape[pair[0]]), bits)

    minor, second = min(pairs, key=cost)
    rest = [d for d in range(rank - 1, -1, -1) if d not in (minor, second)]
    return _tpu(shape, dtype, (minor, second, *rest))
