"""IndexMap: an address map that packs data, explains itself and draws itself.

Packing, words and pictures are made in modules of their own (move, explain, draw), which take an :class:`AddressMap`
and know nothing of this class. They are imported when used: reading a dump should not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import Array, is_traced


class IndexMap(AddressMap):
    """Where every element of an array lives (see :class:`AddressMap`), with its data, words and pictures."""

    def pack(self, array: Any, out: Any = None, fill: Any = 0) -> Array:
        """The array as it lies in memory: 1-D, one slot per place (see :func:`tilewright.layout.move.pack.pack`).

        Under jit a value that JAX traces is packed inside the program: on CPU by our kernels, elsewhere by XLA.
        """
        if is_traced(array):
            from tilewright.layout.exchange.inside_jit import pack_traced

            return pack_traced(self, array, out, fill)  # type: ignore[no-any-return]
        from tilewright.layout.move.pack import pack

        return pack(self, array, out, fill)

    def unpack(self, buffer: Any, out: Any = None) -> Array:
        """The logical array out of a packed buffer, under jit too (see :func:`tilewright.layout.move.pack.unpack`)."""
        if is_traced(buffer):
            from tilewright.layout.exchange.inside_jit import unpack_traced

            return unpack_traced(self, buffer, out)  # type: ignore[no-any-return]
        from tilewright.layout.move.pack import unpack

        return unpack(self, buffer, out)

    def explain(self, *index: int) -> str:
        """A derivation of one element's address (see :func:`tilewright.layout.explain.explain`)."""
        from tilewright.layout.explain import explain

        return explain(self, *index)

    def to_svg(self, *, colour: str = "auto", window: str = "", at: Sequence[int] | None = None) -> str:
        """A picture of the layout, of a window or around an element (:func:`tilewright.layout.draw.picture.to_svg`)."""
        from tilewright.layout.draw.picture import to_svg

        return to_svg(self, colour=colour, window=window, at=at)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows: the picture, and the text where there is none."""
        from tilewright.layout.draw.picture import mimebundle

        return mimebundle(self)

    def __repr__(self) -> str:
        return f"<{self}>"
