"""A layout as JAX's ``Format``."""

from __future__ import annotations

from typing import Any

from tilewright.errors import UnsupportedError
from tilewright.extras import need
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.text.notation import COMBINE, XLA_COMBINE, ArrayText

_HOST = 5


def to_jax(layout: AddressMap, text: ArrayText, sharding: Any = None) -> Any:
    """A layout and its text as ``jax.experimental.layout.Format``, for jit's ``in_shardings`` and ``device_put``.

    ``sharding`` says on which devices; by default it is the first one. S(5) becomes JAX's ``pinned_host``. Raises
    :class:`UnsupportedError` for what JAX's layouts have no word for: L, SC and M, other memory spaces, sparse arrays.
    """
    need("jax", what="to_jax")
    import jax
    from jax.experimental.layout import Format, Layout

    strange = {
        "L(n)": text.tail_alignment != 1,
        "SC(..)": bool(text.splits),
        "M(n)": bool(text.metadata_prefix),
        "D(..)": bool(text.sparse_levels),
        f"S({text.memory_space})": text.memory_space not in (0, _HOST),
        f"E({text.element_bits})": text.element_bits >= 8,
    }
    if words := [word for word, there in strange.items() if there]:
        raise UnsupportedError(f"{layout}: JAX's layouts have no {words[0]}")
    tiling = tuple(tuple(XLA_COMBINE if t == COMBINE else t for t in tile) for tile in text.tiles)
    inside = Layout(tuple(reversed(text.minor_to_major)), tiling, text.element_bits)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if text.memory_space == _HOST:
        sharding = sharding.with_memory_kind("pinned_host")
    return Format(inside, sharding)
