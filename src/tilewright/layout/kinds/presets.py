"""Layouts by name, and the layout a TPU compiler will choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.errors import UnsupportedError, UsageError, check_known
from tilewright.layout.index.types import dtype_name, to_ints, type_bits
from tilewright.layout.kinds.tiled import TensorLayout, tiled
from tilewright.targets import target, target_names

_LANES, _SUBLANES = 128, 8
_Pairs = Sequence[tuple[int, ...]]


def _pow2_ceil(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _tpu_bits(dtype: str) -> int:
    """Bits of a value in a TPU's vector memory; a 4-bit type is packed, E(4)."""
    bits = 4 if dtype in ("s4", "u4", "f4e2m1fn") else type_bits(dtype)
    if not bits:
        raise UsageError(f"{dtype} takes no memory, so it has no tiles")
    return bits


def _tpu_tiles(
    sizes: tuple[int, ...], bits: int, boundary: bool = False, sublanes: int = _SUBLANES
) -> tuple[tuple[int, ...], ...]:
    """The tiles for physical sizes, major first (observed on v4 to 7x, ahead of time; assumed for other sublanes).

    At a program's boundary an array of 8 or 4 bits gets whole registers, (32,128) or (64,128), where they fit.
    """
    packing = max(1, 32 // bits)
    if 0 in sizes:
        return ()
    inner = ((packing, 1),) if packing > 1 else ()
    if not sizes:
        return ((_LANES * packing,),)
    if len(sizes) == 1:
        length = min(max(_pow2_ceil(sizes[0]), _LANES * packing), _LANES * sublanes)
        return ((length,), (_LANES,), *inner) if packing > 1 else ((length,),)
    rows = min(max(_pow2_ceil(sizes[-2]), packing), sublanes)
    if boundary and packing > 2 and sizes[-2] % (sublanes * packing) == 0:
        rows = sublanes * packing
    return ((rows, _LANES), *inner)


def _tpu(
    shape: tuple[int, ...],
    dtype: str,
    minor_to_major: tuple[int, ...] | None = None,
    boundary: bool = False,
    sublanes: int = _SUBLANES,
) -> TensorLayout:
    bits = _tpu_bits(dtype)
    order = minor_to_major or tuple(range(len(shape) - 1, -1, -1))
    tiles = _tpu_tiles(tuple(shape[d] for d in reversed(order)), bits, boundary, sublanes)
    return tiled(shape, dtype, order, tiles, element_bits=bits if bits < 8 else 0)


# -- other memories (formulas and their tilings: docs/layout_memories.md) ---------------------------------------------


def _tpu_vmem(shape: tuple[int, ...], dtype: str) -> TensorLayout:
    """Vector memory, S(1): whole registers of 8 x 128 words whatever the sizes, so (16,128)(2,1) for bf16."""
    bits = _tpu_bits(dtype)
    packing = max(1, 32 // bits)
    inner = ((packing, 1),) if packing > 1 else ()
    tiles = ((_SUBLANES * packing, _LANES), *inner) if len(shape) > 1 else _tpu_tiles(shape, bits)
    order = tuple(range(len(shape) - 1, -1, -1))
    return tiled(shape, dtype, order, tiles, element_bits=bits if bits < 8 else 0, memory_space=1)


def _cube_columns(dtype: str) -> int:
    """C0 of an Ascend cube unit: the elements of 32 bytes."""
    bits = type_bits(dtype)
    if bits not in (8, 16, 32):
        raise UsageError(f"C0 is not defined for {dtype}", how="use a type of 8, 16 or 32 bits")
    return 256 // bits


def _fractal_nz(shape: tuple[int, ...], dtype: str) -> TensorLayout:
    rows = max(1, -(-shape[-2] // 16)) * 16
    return tiled(shape, dtype, tiles=[(rows, _cube_columns(dtype))])


def _blocked_channels(shape: tuple[int, ...], dtype: str, block: int) -> TensorLayout:
    """(N, C, H, W) with ``block`` channels side by side: ((n*C1 + c div block)*H + h)*W + w)*block + c mod block."""
    _, _, height, width = shape
    return tiled(shape, dtype, (1, 3, 2, 0), [(max(height, 1), max(width, 1), block)])


def _tenstorrent(
    shape: tuple[int, ...], dtype: str, transpose_within_face: bool = False, transpose_of_faces: bool = False
) -> TensorLayout:
    """32 x 32 tiles of four 16 x 16 faces. A tile of full height puts columns first, which is what transposing is."""
    faces = [(32, 16), (16, 16)] if transpose_of_faces else [(16, 16)]
    inside = [(16, 1)] if transpose_within_face else []
    return tiled(shape, dtype, tiles=[(32, 32), *faces, *inside])


def _hexagon_crouton(shape: tuple[int, ...], dtype: str) -> TensorLayout:
    """(N, H, W, C) in blocks of 2 KiB: 8 x 4 x 32 with two neighbours along W together, or 8 x 8 x 32 bytes."""
    tiles: dict[int, list[tuple[int, ...]]] = {16: [(8, 4, 32), (2, 1)], 8: [(8, 8, 32)]}
    bits = type_bits(dtype)
    if bits not in tiles:
        raise UsageError(f"there is no crouton of {dtype}", how="use a type of 8 or 16 bits")
    return tiled(shape, dtype, tiles=tiles[bits])


@dataclass(frozen=True)
class _Preset:
    make: Callable[..., TensorLayout]
    ranks: range
    options: tuple[str, ...] = ()


_ANY, _MATRIX, _FOUR = range(64), range(2, 64), range(4, 5)
_PRESETS = {
    "ascend_nz": _Preset(_fractal_nz, _MATRIX),
    "ascend_zz": _Preset(lambda shape, dtype: tiled(shape, dtype, tiles=[(16, _cube_columns(dtype))]), _MATRIX),
    "hexagon_crouton": _Preset(_hexagon_crouton, _FOUR),
    "nc1hwc0": _Preset(lambda shape, dtype: _blocked_channels(shape, dtype, _cube_columns(dtype)), _FOUR),
    "nchw16c": _Preset(lambda shape, dtype: _blocked_channels(shape, dtype, 16), _FOUR),
    "tenstorrent": _Preset(_tenstorrent, _ANY, ("transpose_within_face", "transpose_of_faces")),
    "tpu": _Preset(_tpu, _ANY),
    "tpu_vmem": _Preset(_tpu_vmem, _ANY),
}


def preset(name: str, shape: Sequence[int], dtype: Any, **options: bool) -> TensorLayout:
    """A layout by name.

    ===================  ==================================================================================
    ``tpu``              a TPU compiler's default tiles, the dims in order
    ``tpu_vmem``         a TPU's vector memory: tiles of whole registers, S(1)
    ``ascend_nz``        Ascend FRACTAL_NZ of the last two dims (column blocks of 16 rows x 32 bytes)
    ``ascend_zz``        Ascend ZZ of the last two dims
    ``nc1hwc0``          (N, C, H, W) with the channels of 32 bytes side by side
    ``nchw16c``          (N, C, H, W) with 16 channels side by side, as oneDNN's nChw16c
    ``tenstorrent``      32 x 32 tiles of four 16 x 16 faces, a vector as one row; options
                         ``transpose_within_face`` and ``transpose_of_faces``
    ``hexagon_crouton``  (N, H, W, C) in croutons, by the element's width (16 or 8 bits)
    ===================  ==================================================================================

    >>> str(preset("tpu", (1, 300), "bf16"))
    'bf16[1,300]{1,0:T(2,128)(2,1)}'
    >>> str(preset("ascend_nz", (100, 64), "f16"))
    'f16[100,64]{1,0:T(112,16)}'
    """
    check_known(name, sorted(_PRESETS), f"no preset called {name!r}", say="known presets:")
    chosen = _PRESETS[name]
    dims = to_ints(shape, "a size")
    if len(dims) not in chosen.ranks:
        dims_needed = "four dims" if chosen.ranks is _FOUR else f"{chosen.ranks[0]} dims or more"
        raise UsageError(f"the preset {name} needs {dims_needed}, got the shape {dims}")
    if unknown := set(options) - set(chosen.options):
        known = ", ".join(chosen.options) or "none"
        raise UsageError(f"the preset {name} has no option {min(unknown)!r}", how=f"options: {known}")
    return _cached(name, dims, dtype_name(dtype), tuple(sorted(options.items())))


@lru_cache(maxsize=65536)
def _cached(name: str, shape: tuple[int, ...], dtype: str, options: tuple[tuple[str, bool], ...]) -> TensorLayout:
    return _PRESETS[name].make(shape, dtype, **dict(options))


def predict(
    name: str, shape: Sequence[int], dtype: Any, *, boundary: bool = False, sublanes: int = 0, minor: _Pairs = ()
) -> TensorLayout:
    """The layout a compiler will choose, dim order included; ``name`` is ``tpu`` (or a target's name, ``tpu-...``).

    Over all pairs (minor, second minor) of dims, minor scanned from the last dim down and the second likewise, the
    first with the fewest padded bytes wins; the other dims stay in order. ``boundary``: the array is an argument or a
    result of the whole program, where types of 8 and 4 bits get larger tiles if these add no padding. ``sublanes`` of
    the chip's registers; 0: those of the target ``name``, 8 for ``tpu``. ``minor``: only these pairs of dims are tried.

    >>> str(predict("tpu", (1048576, 1), "f32"))
    'f32[1048576,1]{0,1:T(1,128)}'
    >>> str(predict("tpu", (256, 512), "s8")), str(predict("tpu", (256, 512), "s8", boundary=True))
    ('s8[256,512]{1,0:T(8,128)(4,1)}', 's8[256,512]{1,0:T(32,128)(4,1)}')
    """
    if name != "tpu" and not name.startswith("tpu-"):
        raise UnsupportedError(f"no predictor for {name!r}", how="only 'tpu' is predicted; use preset(...) elsewhere")
    if not sublanes and name in target_names() and (unit := target(name).vector) is not None:
        sublanes = unit.sublanes
    return _predict_tpu(to_ints(shape, "a size"), dtype_name(dtype), boundary, sublanes or _SUBLANES, tuple(minor))


@lru_cache(maxsize=65536)
def _predict_tpu(shape: tuple[int, ...], dtype: str, boundary: bool, sublanes: int, pairs: _Pairs) -> TensorLayout:
    rank = len(shape)
    if rank < 2 or 0 in shape:
        return _tpu(shape, dtype, sublanes=sublanes)
    bits = _tpu_bits(dtype)
    pairs = pairs or [(m, s) for m in range(rank - 1, -1, -1) for s in range(rank - 1, -1, -1) if s != m]

    def cost(pair: tuple[int, ...]) -> int:
        sizes = (*(shape[d] for d in range(rank) if d not in pair), shape[pair[1]], shape[pair[0]])
        rows, lanes = _tpu_tiles(sizes, bits, sublanes=sublanes)[0]
        return math.prod(sizes[:-2]) * -(-sizes[-2] // rows) * rows * -(-sizes[-1] // lanes) * lanes

    minor, second = min(pairs, key=cost)
    rest = [d for d in range(rank - 1, -1, -1) if d not in (minor, second)]
    return _tpu(shape, dtype, (minor, second, *rest), boundary, sublanes)
