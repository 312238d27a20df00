"""How often each line of a tensor was touched, missed, loaded and stored: a profile's map of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.storage import Storage
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.layout import PagedLayout

if TYPE_CHECKING:
    from rich.text import Text

    from tilewright.render import Drawing

Array = np.ndarray[Any, Any]


def new_heat(storages: dict[str, Storage]) -> dict[str, Array]:
    """Nothing seen yet: int64[lines, kinds] for every tensor."""
    return {
        name: np.zeros((s.map.num_pages * s.map.page_elements // s.map.line_elements, len(LINE_ACCESSES)), np.int64)
        for name, s in storages.items()
    }


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
        return dict(zip(LINE_ACCESSES, self.lines.sum(axis=0).tolist(), strict=True))

    @cached_property
    def line_of(self) -> Array:
        """int64, of the tensor's shape: the row of ``lines`` that each element's line has."""
        return self.storage.line_numbers(*(np.arange(n) for n in self.layout.shape))

    def of(self, kind: str) -> Array:
        """One kind, of the tensor's shape; ``accesses`` is touches, loads and stores together."""
        return self.per_line(kind)[self.line_of]

    def per_line(self, kind: str) -> Array:
        """One kind, int64[lines]."""
        if kind == "accesses":
            return np.asarray(self.lines[:, [0, 3, 4]].sum(axis=1))
        if kind not in LINE_ACCESSES:
            raise UsageError(f"no kind of access called {kind!r}", how=f"one of accesses, {', '.join(LINE_ACCESSES)}")
        return self.lines[:, LINE_ACCESSES.index(kind)]

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

    def drawing(self, kind: str = "accesses") -> Drawing:
        """A picture: the tensor's elements, lines or blocks, the deeper the colour the more accesses."""
        from tilewright.isa.study.heat_picture import draw_heat

        return draw_heat(self, kind)

    def to_svg(self, kind: str = "accesses") -> str:
        """The picture as SVG."""
        return str(self.drawing(kind).svg())

    def to_text(self, kind: str = "accesses", width: int = 100) -> Text:
        """The map for a terminal of ``width`` columns: a number per cell, ``·`` where nothing came."""
        from tilewright.isa.study.heat_picture import terminal_heat

        return terminal_heat(self, kind, width)

    def __str__(self) -> str:
        """The map as text."""
        return self.to_text().plain
