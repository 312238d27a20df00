"""Who does which part: a tensor's logical space divided among processing elements, whatever its storage.

The host deals out parts in logical coordinates. Pages, lines and the order of the processing elements have no say in
it, and nothing keeps two of them from being given the same part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from tilewright.errors import UsageError
from tilewright.isa.language.errors import whole, wholes


@dataclass(frozen=True)
class Part:
    """A box of a tensor: where it begins and how many elements it has, per dim as numpy counts them.

    >>> print(Part((0, 4), (8, 4)))
    [0:8, 4:8]
    """

    base: tuple[int, ...]
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", wholes("base", self.base))
        object.__setattr__(self, "size", wholes("size", self.size))
        if len(self.base) != len(self.size):
            raise UsageError(f"a part with base {self.base} and size {self.size}", how="one number per dim each")

    def __str__(self) -> str:
        return f"[{', '.join(f'{b}:{b + s}' for b, s in zip(self.base, self.size, strict=True))}]"

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(b, b + s) for b, s in zip(self.base, self.size, strict=True))


def by_dim(shape: Sequence[int], dim: int, pes: int) -> dict[int, tuple[Part, ...]]:
    """One slice along ``dim`` for every processing element, as even as can be; those beyond the elements get none.

    >>> {pe: str(part[0]) for pe, part in by_dim((8, 8), 1, 2).items()}
    {0: '[0:8, 0:4]', 1: '[0:8, 4:8]'}
    """
    shape, pes = wholes("shape", shape, 1), whole("pes", pes, 1, most=1 << 20)
    if whole("dim", dim) >= len(shape):
        raise UsageError(f"dim = {dim} of a tensor of {len(shape)} dims")
    ends = [shape[dim] * pe // pes for pe in range(pes + 1)]
    parts: dict[int, tuple[Part, ...]] = {}
    for pe, (begin, end) in enumerate(pairwise(ends)):
        if end > begin:
            base, size = [0] * len(shape), list(shape)
            base[dim], size[dim] = begin, end - begin
            parts[pe] = (Part(tuple(base), tuple(size)),)
    return parts


def by_blocks(shape: Sequence[int], block: Sequence[int], pes: int) -> dict[int, tuple[Part, ...]]:
    """Blocks in row-major order, dealt out in turn; those at the high ends may be smaller.

    >>> {pe: [str(p) for p in parts] for pe, parts in by_blocks((8, 8), (4, 4), 2).items()}
    {0: ['[0:4, 0:4]', '[4:8, 0:4]'], 1: ['[0:4, 4:8]', '[4:8, 4:8]']}
    """
    return _dealt(shape, block, pes, diagonals=False)


def by_diagonals(shape: Sequence[int], block: Sequence[int], pes: int) -> dict[int, tuple[Part, ...]]:
    """Blocks by diagonals: all whose block indices have the same sum go to one processing element.

    >>> {pe: [str(p) for p in parts] for pe, parts in by_diagonals((8, 8), (4, 4), 2).items()}
    {0: ['[0:4, 0:4]', '[4:8, 4:8]'], 1: ['[0:4, 4:8]', '[4:8, 0:4]']}
    """
    return _dealt(shape, block, pes, diagonals=True)


def _dealt(shape: Sequence[int], block: Sequence[int], pes: int, diagonals: bool) -> dict[int, tuple[Part, ...]]:
    shape, pes = wholes("shape", shape, 1), whole("pes", pes, 1, most=1 << 20)
    sides = wholes("block", block, 1)
    if len(sides) != len(shape):
        raise UsageError(f"a block of {len(sides)} dims in a tensor of {len(shape)}")
    parts: dict[int, tuple[Part, ...]] = {}
    indices = product(*(range(-(-n // side)) for n, side in zip(shape, sides, strict=True)))
    for number, index in enumerate(indices):
        base = tuple(i * side for i, side in zip(index, sides, strict=True))
        size = tuple(min(side, n - b) for side, n, b in zip(sides, shape, base, strict=True))
        pe = (sum(index) if diagonals else number) % pes
        parts[pe] = (*parts.get(pe, ()), Part(base, size))
    return dict(sorted(parts.items()))
