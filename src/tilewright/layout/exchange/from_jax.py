"""What JAX says of an array's memory, as a layout; by what the objects have, without jax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.types import UNBOUNDED, dtype_name, to_ints
from tilewright.layout.kinds.tiled import TensorLayout, from_text, parse
from tilewright.layout.text.neighbours import SPACES
from tilewright.layout.text.notation import ArrayText, combine_mark, format_shape, read_shape


def from_jax(
    x: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, per_device: bool = False
) -> TensorLayout:
    """The layout of a JAX array, of its ``.format``, or of a ``ShapeDtypeStruct``, aval or ``Layout``.

    A format and a layout know no sizes: give ``shape`` and ``dtype``, or they are unknown (``?``, and a type of the
    width that the tiles pack). ``per_device``: of a sharded array the part that one device holds, whose edges its
    tiles pad. Where JAX says no layout (an aval, ``Layout.AUTO``) it is the default one, rows behind each other
    without tiles. jax is not imported.

    >>> class Layout:  # what jax.experimental.layout.Layout has
    ...     major_to_minor, tiling, sub_byte_element_size_in_bits = (0, 1), ((8, 128), (2, 1)), 0
    >>> str(from_jax(Layout(), (9, 300), "bf16"))
    'bf16[9,300]{1,0:T(8,128)(2,1)}'
    """
    if isinstance(x, str | TensorLayout):
        read = parse(x) if isinstance(x, str) else x
        if not isinstance(read, TensorLayout):
            raise UsageError(f"{read} is a tuple", how="from_jax reads one array")
        return read
    layout, sharding = _parts(x)
    sizes = _shape(x) if shape is None else to_ints(shape, "a size")
    if layout is None and sizes is None:
        how = "from_array reads arrays of other libraries"
        raise UsageError(f"a {type(x).__name__} says neither a shape nor a layout of JAX", how=how)
    if per_device and sizes is not None and callable(getattr(sharding, "shard_shape", None)):
        sizes = tuple(sharding.shard_shape(tuple(sizes)))
    name = _dtype(x) if dtype is None else dtype_name(dtype)
    return _layout_of(layout, sizes, name, _space(x, sharding))


def _parts(x: Any) -> tuple[Any, Any]:
    """(layout, sharding) of whatever it is, None where it says none."""
    format_ = x if hasattr(x, "layout") and hasattr(x, "sharding") and not hasattr(x, "shape") else None
    if format_ is None:
        try:
            format_ = getattr(x, "format", None)
        except Exception:  # a deleted array, a traced value: JAX has errors of its own for each
            format_ = None
    layout = x if hasattr(x, "major_to_minor") else getattr(format_, "layout", None)
    sharding = getattr(format_, "sharding", None)
    if sharding is None and format_ is not x:
        sharding = getattr(x, "sharding", None)
    return (layout if hasattr(layout, "major_to_minor") else None), sharding


def _shape(x: Any) -> tuple[int, ...] | None:
    sizes = getattr(x, "shape", None)
    if not isinstance(sizes, tuple | list):
        sizes = getattr(getattr(x, "aval", None), "shape", None)
    if not isinstance(sizes, tuple | list):
        return None
    return tuple(size if isinstance(size, int) else _size(size) for size in sizes)


def _size(size: Any) -> int:
    """A size that is no Python integer: one of numpy's, or a symbol, which has no value."""
    try:
        return int(size.__index__())
    except Exception:  # JAX's symbols raise errors of their own
        return UNBOUNDED


def _dtype(x: Any) -> str:
    dtype = getattr(x, "dtype", None)
    dtype = getattr(getattr(x, "aval", None), "dtype", None) if dtype is None else dtype
    if dtype is None:
        return ""
    if str(dtype).startswith("key<"):
        raise UnsupportedError(f"{dtype} is a random key", how="jax.random.key_data(x) gives its numbers")
    return dtype_name(dtype)


def _space(x: Any, sharding: Any) -> int:
    kind = getattr(sharding, "memory_kind", None)
    if not kind:
        try:
            kind = getattr(getattr(x, "aval", x), "memory_space", None)
        except Exception:  # newer JAX says it of a traced value's type alone, by an error of its own
            kind = None
    kind = str(kind or "")
    return SPACES.get(kind.rpartition(".")[2].lower(), 0) if "host" in kind.lower() else 0


def _layout_of(layout: Any, sizes: tuple[int, ...] | None, name: str, space: int) -> TensorLayout:
    tiles: tuple[tuple[int, ...], ...] = ()
    if layout is None:
        order, bits = tuple(range(len(sizes or ()))), 0
    else:
        order = to_ints(layout.major_to_minor, "a dim")
        tiles = tuple(to_ints(map(combine_mark, tile), "a tile dim") for tile in getattr(layout, "tiling", None) or ())
        bits = int(getattr(layout, "sub_byte_element_size_in_bits", 0) or 0)
    dims = (UNBOUNDED,) * len(order) if sizes is None else sizes
    if sorted(order) != list(range(len(dims))):
        raise UsageError(f"a layout of {len(order)} dims, {order}, for the shape {dims}")
    packed = [tile[0] for tile in tiles if len(tile) == 2 and tile[1] == 1 and tile[0] in (2, 4, 8)]
    name = name or {2: "bf16", 4: "s8", 8: "s4"}.get(packed[-1] if packed else 1, "f32")
    tiles, minor_first = tuple(tile for tile in tiles if tile), tuple(reversed(order))
    fixed = (False,) * len(dims)
    shape = ArrayText(name, dims, fixed, minor_first, tiles, element_bits=bits, memory_space=space)
    read, _ = read_shape(format_shape(shape))  # which checks it
    assert isinstance(read, ArrayText)  # a type and a bracket begin nothing else
    return from_text(read)
