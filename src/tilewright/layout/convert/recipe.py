"""A layout as the pads, reshapes and transposes that pack an array into it, in numpy, JAX or torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import UnsupportedError, check_known
from tilewright.layout.index.address_map import AddressMap, row_major_axis
from tilewright.layout.index.steps import Merge, NewDim, Pad, Permute, Split, Step
from tilewright.layout.index.types import require_layout, type_bits

_PADS = {"numpy": "np.pad", "jax": "jnp.pad", "torch": "torch.nn.functional.pad"}


def to_recipe(layout: AddressMap, library: str = "numpy") -> str:
    """An expression of ``x`` that packs an array as ``layout.pack`` does, padding filled with zeros.

    ``library`` is ``numpy``, ``jax`` or ``torch``; the expression calls ``np``, ``jnp`` or ``torch``. Raises
    :class:`UnsupportedError` where pads, reshapes and transposes do not reach: several axes, strides with gaps, values
    packed below a byte.

    >>> from tilewright.layout import parse
    >>> to_recipe(parse("f32[3,5]{1,0:T(2,2)}"))
    'np.pad(x, ((0, 1), (0, 1))).reshape(2, 2, 3, 2).transpose(0, 2, 1, 3).reshape(-1)'
    >>> to_recipe(parse("f32[3,5]{0,1}"), "torch")
    'x.permute(1, 0).reshape(-1)'
    """
    require_layout(layout)
    check_known(library, _PADS, f"no library called {library!r}")
    layout.require_static()
    reason = f"no pads, reshapes and transposes make {layout}"
    if len(layout.axis_terms) != 1:
        raise UnsupportedError(f"{reason}: it has the axes {', '.join(layout.axes)}")
    if layout.element_bits != type_bits(layout.dtype):
        raise UnsupportedError(f"{reason}: values of {layout.element_bits} bits share bytes")
    sizes, axis = layout.step_sizes[-1], layout.axis_terms[0]
    if axis.terms != row_major_axis("offset", range(len(sizes)), sizes).terms:
        raise UnsupportedError(f"{reason}: its strides leave gaps or another order")
    recipe = _Recipe(layout.shape, library)
    for step in layout.steps:
        if not recipe.add_step(step):
            raise UnsupportedError(f"{reason}: it has a {type(step).__name__}")
    return recipe.flat(axis.extent - math.prod(sizes))


@dataclass
class _Part:
    """A coordinate: its size, and the dim of the expression that holds it alone (None where a reshape is due).

    Those of size 1 that tiles made are left out of the expression: they are not ``real``.
    """

    size: int
    dim: int | None
    real: bool = True


class _Recipe:
    """An expression that grows; pads wait until the next reshape or transpose."""

    def __init__(self, shape: Sequence[int], library: str) -> None:
        self.library, self.text = library, "x"
        self.parts = [_Part(size, dim) for dim, size in enumerate(shape)]
        self.shape = list(shape)
        self.pads = [(0, 0)] * len(shape)

    def add_step(self, step: Step) -> bool:
        """Add what a step does; False where the expression cannot."""
        match step:
            case Permute(order):
                self._transpose(order)
            case NewDim(at):
                self.parts.insert(at, _Part(1, None, real=False))
            case Merge(at):
                major, minor = self.parts[at : at + 2]
                self.parts[at : at + 2] = [_Part(major.size * minor.size, None, major.real or minor.real)]
            case Split(at, tile):
                self._pad(at, 0, -self.parts[at].size % tile)
                count = self.parts[at].size // tile
                alone = self.parts[at].real and count == tile == 1
                self.parts[at : at + 1] = [_Part(count, None, count != 1), _Part(tile, None, tile != 1 or alone)]
            case Pad(at, low, high):
                self._pad(at, low, high)
            case _:
                return False
        return True

    def _pad(self, at: int, low: int, high: int) -> None:
        if not (low or high):
            return
        if self.parts[at].dim is None:
            self.parts[at].real = True
            self._reshape()
        part = self.parts[at]
        assert part.dim is not None
        before = self.pads[part.dim]
        self.pads[part.dim] = (before[0] + low, before[1] + high)
        part.size += low + high

    def _transpose(self, order: Sequence[int]) -> None:
        self._reshape()
        self.parts = [self.parts[k] for k in order]
        real = [part for part in self.parts if part.real]
        dims = [part.dim for part in real if part.dim is not None]
        if dims != sorted(dims):
            name = "permute" if self.library == "torch" else "transpose"
            self.text += f".{name}({', '.join(map(str, dims))})"
        self._settle()

    def _reshape(self) -> None:
        """Pad and reshape, so that every real part is a dim."""
        self._write_pads()
        if [part.size for part in self.parts if part.real] != self.shape:
            self.text += f".reshape({', '.join(str(part.size) for part in self.parts if part.real)})"
        self._settle()

    def _settle(self) -> None:
        real = [part for part in self.parts if part.real]
        for dim, part in enumerate(real):
            part.dim = dim
        self.shape = [part.size for part in real]
        self.pads = [(0, 0)] * len(real)

    def _write_pads(self) -> None:
        if not any(map(any, self.pads)):
            return
        widths = self.pads
        self.shape = [low + size + high for size, (low, high) in zip(self.shape, widths, strict=True)]
        if self.library == "torch":  # the last dim first, and no more dims than needed
            first = next(k for k, pair in enumerate(widths) if any(pair))
            flat = [width for pair in reversed(widths[first:]) for width in pair]
            self.text = f"{_PADS['torch']}({self.text}, ({', '.join(map(str, flat))}))"
        else:
            pairs = ", ".join(f"({low}, {high})" for low, high in widths)
            self.text = f"{_PADS[self.library]}({self.text}, ({pairs}{',' * (len(widths) == 1)}))"
        self.pads = [(0, 0)] * len(widths)

    def flat(self, tail: int) -> str:
        """The whole expression, one-dimensional, with ``tail`` zeros behind it."""
        self._write_pads()
        if len(self.shape) != 1:
            self.text += ".reshape(-1)"
        self.shape, self.pads = [math.prod(self.shape)], [(0, tail)]
        self._write_pads()
        return self.text
