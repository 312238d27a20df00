"""How often each line of a tensor was touched, missed, loaded and stored: a profile's map of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa.chip.storage import Storage
    from tilewright.layout import PagedLayout

Array = np.ndarray[Any, Any]
KINDS = ("touches", "misses", "l2_misses", "loads", "stores")


def new_heat(storages: dict[str, Storage]) -> dict[str, Array]:
    """Nothing seen yet: int64[lines, kinds] for every tensor."""
    return {
        name: np.zeros((s.map.num_pages * s.map.page_elements // s.map.line_elements, len(KINDS)), np.int64)
        for name, s in storages.items()
    }


def line_numbers(storage: Storage, *along: Array) -> Array:
    """The line of every element at the coordinates ``along`` each dim (numpy order), counted through all pages."""
    last = len(along) - 1
    pages, offsets = np.zeros((2,) + (1,) * len(along), np.int64)
    for d, at in enumerate(along):
        where = int(storage.starts[last - d]) + at  # the storage's tables begin with d1, the last dim
        shape = (-1,) + (1,) * (last - d)
        pages = pages + storage.pages_of[where].reshape(shape)
        offsets = offsets + storage.offsets_of[where].reshape(shape)
    return np.asarray((pages * storage.map.page_elements + offsets) // storage.map.line_elements)


@dataclass(frozen=True, eq=False)
class Heat:
    """Accesses to the lines of one tensor during a run.

    ==============  =======================================================================================
    ``lines``       int64[lines, 5], lines counted through all pages, padding included; columns as below
    ``touches``     by the columns of B of ``mm``; ``misses`` of them in L1, ``l2_misses`` of those in L2
    ``loads``       by ``ld``; ``stores`` by ``st``: requests of a thread for a line
    ==============  =======================================================================================

    The five are also arrays of the tensor's shape: each element has its line's count. Sums over ``lines``, taken over
    all tensors, are the run's ``l1_touches``, ``l1_misses``, ``l2_misses``, ``load_lines`` and ``store_lines``.

    >>> from tilewright.isa import MatrixUnitConfig, profile
    >>> program = "segment ur1, $A\\ntid r1\\nmov r0, 0\\nld r2, ur1:rf0:0x00\\nhalt"
    >>> found = profile(program, {"A": np.arange(8, dtype=np.int32).reshape(4, 2)}, MatrixUnitConfig(threads=4))
    >>> found.heat("A").loads.tolist()
    [[1, 1], [1, 1], [1, 1], [1, 1]]
    """

    name: str
    storage: Storage
    lines: Array

    @property
    def layout(self) -> PagedLayout:
        """Where the elements stand: pages of lines."""
        return self.storage.map

    @property
    def totals(self) -> dict[str, int]:
        """All accesses by kind."""
        return dict(zip(KINDS, self.lines.sum(axis=0).tolist(), strict=True))

    @cached_property
    def line_of(self) -> Array:
        """int64, of the tensor's shape: the row of ``lines`` that each element's line has."""
        return line_numbers(self.storage, *(np.arange(n) for n in self.layout.shape))

    def of(self, kind: str) -> Array:
        """One kind, of the tensor's shape; ``accesses`` is touches, loads and stores together."""
        return self.per_line(kind)[self.line_of]

    def per_line(self, kind: str) -> Array:
        """One kind, int64[lines]."""
        if kind == "accesses":
            return np.asarray(self.lines[:, [0, 3, 4]].sum(axis=1))
        if kind not in KINDS:
            raise UsageError(f"no kind of access called {kind!r}", how=f"one of accesses, {', '.join(KINDS)}")
        return self.lines[:, KINDS.index(kind)]

    @property
    def touches(self) -> Array:
        """Touches by mm, of the tensor's shape."""
        return self.of("touches")

    @property
    def misses(self) -> Array:
        """Of the touches, those that L1 did not have."""
        return self.of("misses")

    @property
    def l2_misses(self) -> Array:
        """Of the misses, those that L2 did not have either."""
        return self.of("l2_misses")

    @property
    def loads(self) -> Array:
        """Requests by ld."""
        return self.of("loads")

    @property
    def stores(self) -> Array:
        """Requests by st."""
        return self.of("stores")

    def to_svg(self, kind: str = "accesses") -> str:
        """A picture: the tensor's elements, lines or blocks, the deeper the colour the more accesses."""
        from tilewright.isa.study.heat_picture import draw_heat

        return str(draw_heat(self, kind).svg())

    def __str__(self) -> str:
        """The map as text."""
        from tilewright.isa.study.heat_picture import terminal_heat

        return terminal_heat(self).plain
