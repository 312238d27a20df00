"""What one call of a Pallas kernel does: its grid, its windows, and the steps that are alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.hlo.reading.kernel_tree import Block, block_bytes, integers

Array = np.ndarray[Any, Any]
_REDUCED = re.compile(r"reduction_dims = array<i64: ([\d, ]+)>")
_FREE = ("vector.shape_cast", "arith.constant", "scf.", "memref.", "tpu.memref", "vector.extract_strided_slice")
"""Vector operations that cost nothing by themselves."""
Product = tuple[int, int, int, int, str]
"""(batch, rows, columns, depth, element type of the left operand)."""


@dataclass(frozen=True, slots=True)
class Window:
    """A block of an array that the pipeline brings in or takes out: ``operand`` counts operands, then results.

    ``megabytes``: 1e6 bytes of all that is moved over the whole grid, in tiles, cut at the array's edges; ``fetches``:
    how often its block changes, the first included. Both are 0 outside vector memory (``space``), where the kernel
    itself moves what it wants. ``block`` has 1 for dims that the kernel does not see; ``array`` is () where nothing
    says it; ``places``: the index of its block along every dim, arrays that broadcast over the grid, () where data
    decides.
    """

    operand: int
    megabytes: float
    fetches: int
    block: tuple[int, ...] = ()
    array: tuple[int, ...] = ()
    dtype: str = ""
    space: str = "vmem"
    buffers: int = 2
    result: bool = False  # the kernel writes it
    distinct: float = 0.0  # megabytes of the blocks that differ: the least that it can move
    places: tuple[Array, ...] = field(default=(), repr=False, compare=False)

    @property
    def block_bytes(self) -> int:
        """Of one buffer of it."""
        return block_bytes(self.block, self.dtype)


@dataclass
class Part:
    """What the operations of one block ask for, each time that it runs.

    ``products``: product -> how often; ``elements``: (operation, element type) -> elements of its vectors; ``turned``:
    elements turned across lanes.
    """

    products: Counter[Product] = field(default_factory=Counter)
    elements: Counter[tuple[str, str]] = field(default_factory=Counter)
    turned: float = 0.0

    @classmethod
    def of(cls, block: Block, unread: Collection[str], forwarded: Collection[str] = ()) -> Part:
        """What the vector operations of a block ask for, those of blocks inside left out.

        Nothing for loads that nothing reads, which every store of a kernel in JAX has before it, nor for loads and
        stores of buffers that take no memory.
        """
        part = cls()
        multiplied = {
            name for n in block.nodes if n.name in ("tpu.matmul", "vector.contract") for name in n.operands[:2]
        }
        for node in block.nodes:
            if not node.vector or node.blocks or node.name.startswith(_FREE) or node.result in unread:
                continue
            if node.name.endswith(("load", "store")) and not set(forwarded).isdisjoint(node.operands):
                continue
            shapes = node.shapes
            if node.name in ("tpu.matmul", "vector.contract") and len(shapes) >= 3:
                part.products[node.product] += 1
            elif shapes:
                dims, kind = max(shapes, key=lambda shape: max(0, prod(shape[0])))
                if node.name == "vector.broadcast" and len(shapes) < 2:
                    continue  # one number stands in a register as it is
                if "load" in node.name or "store" in node.name:
                    vectors = re.findall(r"vector<((?:\d+x)*)(\w+)", node.signature)
                    dims = tuple(int(d) for d in vectors[0][0].split("x")[:-1]) if vectors else ()
                    kind = vectors[0][1] if vectors else kind
                elements = max(0, prod(dims))
                if node.name == "tpu.strided_load" and min(shapes[0][0], default=-1) >= 0:
                    elements = min(
                        elements, prod(shapes[0][0])
                    )  # what is loaded again and again is spread out by the load
                if node.name in ("tpu.transpose", "vector.transpose"):
                    part.turned += 0 if node.result in multiplied else elements  # the unit takes a side as it stands
                    continue
                part.elements[node.name.partition(".")[2], kind] += elements
                reduced = _REDUCED.search(node.rest)
                if reduced and len(shapes[0][0]) - 1 in integers(reduced[1]):
                    part.turned += elements / max(shapes[0][0][-1], 128) / 8
        return part


@dataclass(frozen=True)
class Moment:
    """Steps that are alike: of the grid, or of a loop that brings in blocks by itself.

    While it computes ``parts`` (its number in the kernel, how often in one step), ``moved`` passes: (the array's number
    among operands and results, -1 where nobody knows; megabytes; how many transfers). ``alone``: nothing is computed
    beside it: the first block, and the last result.
    """

    times: float
    parts: tuple[tuple[int, float], ...] = ()
    moved: tuple[tuple[int, float, float], ...] = ()
    alone: bool = False


@dataclass
class Kernel:
    """What one call of a kernel does.

    ``parts`` and ``moments``: what its blocks compute, and which of them run in how many steps beside which transfers;
    ``first``: the places in ``moments`` of its first steps, one after another; ``uneven``: trips of the
    step of the grid that has most of them, against all steps' average; ``copied``: megabytes of its own
    transfers to and from HBM; ``assumed``: what was taken for granted of the data, in words; ``trips_by_data``: loops
    whose length its data decides were counted as one trip; ``passing``: of one that was taken to pass once
    over its arrays, the trips that each array would take; ``scratch``: (sizes, type, memory space) of each buffer of
    its own that takes memory, ``tables`` the same of what is prefetched into scalar memory; ``from_own``: products with
    a left side that stands in a buffer of its own; ``held_bytes``: the most of the body's vectors that wait for a
    reduction at one time; ``semantics``: a word for each dim of the grid; ``vmem_limit``: bytes of vector memory that
    it asks for, 0 where it asks for no limit of its own; ``line``: of the user's program; ``again``:
    how often a tile of rows in groups is computed, once for each group that has rows in it.
    """

    name: str
    steps: int = 1
    line: str = ""
    grid: tuple[int, ...] = ()
    semantics: tuple[str, ...] = ()
    vmem_limit: int = 0
    scratch: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)
    tables: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)
    held_bytes: int = 0
    from_own: set[Product] = field(default_factory=set)
    again: float = 1.0
    windows: list[Window] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    uneven: float = 1.0
    copied: float = 0.0
    assumed: list[str] = field(default_factory=list)
    trips_by_data: bool = False
    passing: dict[int, int] = field(default_factory=dict)
    sparse: bool = False

    def _summed(self, what: str) -> Counter[Any]:
        sums: Counter[Any] = Counter()
        for moment in self.moments:
            for number, runs in moment.parts:
                for key, count in getattr(self.parts[number], what).items():
                    sums[key] += count * runs * moment.times
        return sums

    @cached_property
    def products(self) -> Counter[Product]:
        """Product -> how often over the whole grid."""
        return self._summed("products")

    @property
    def elements(self) -> Counter[str]:
        """Operation -> elements of the vectors that it makes, over the whole grid."""
        sums: Counter[str] = Counter()
        for (name, _), count in self._summed("elements").items():
            sums[name] += count
        return sums

    @property
    def turned(self) -> float:
        """Elements turned across lanes."""
        return sum(m.times * n * self.parts[number].turned for m in self.moments for number, n in m.parts)

    @property
    def flops(self) -> int:
        """Multiplications and additions of its products."""
        return round(sum(2 * prod(sizes[:4]) * count for sizes, count in self.products.items()))


@dataclass(frozen=True)
class Moves:
    """A window over a grid, step by step: ``changed`` where another block is wanted, ``each`` the bytes of its block.

    ``distinct``: megabytes of the blocks that differ.
    """

    changed: Array
    each: Array
    distinct: float

    @property
    def fetches(self) -> int:
        """How often a block is moved."""
        return int(np.count_nonzero(self.changed))

    @property
    def megabytes(self) -> float:
        """Of all that is moved."""
        return int(self.each[self.changed].sum()) / 1e6


def moves_of(
    places: Sequence[Array], grid: Sequence[int], block: Sequence[int], array: Sequence[int], kind: str
) -> Moves:
    """What a window moves: where its place differs from the step before; at the array's edges only what is inside.

    Without ``places`` it is taken as moved in every step.

    >>> rows, columns = np.arange(2).reshape(2, 1, 1), np.arange(3).reshape(1, 1, 3)
    >>> moves = moves_of((rows, columns), (2, 4, 3), (8, 128), (16, 384), "f32")
    >>> moves.fetches, round(moves.megabytes * 1e6), round(moves.distinct * 1e6)
    (24, 98304, 24576)
    """
    steps, whole = max(0, prod(grid)), block_bytes(block, kind)
    if not steps or len(places) != len(block):
        distinct = min(steps * whole, block_bytes(array, kind)) if array else steps * whole
        return Moves(np.ones(steps, bool), np.broadcast_to(whole, steps), distinct / 1e6)
    at, different = np.zeros((), np.int64), 1
    inside = []  # of its block, in each dim
    for d, place in enumerate(places):
        low, high = int(place.min()), int(place.max())
        at, different = at * (high - low + 1) + (place - low), different * (high - low + 1)
        cut = array and block[d] and array[d] % block[d]
        sizes = np.clip(array[d] - place * block[d], 0, block[d]) if cut else np.asarray(block[d])
        seen, number = np.unique(sizes, return_inverse=True)
        inside.append((seen.tolist(), number.reshape(sizes.shape)))
    table = np.asarray([block_bytes(sizes, kind) for sizes in product(*(seen for seen, _ in inside))])
    each = table.reshape([len(seen) for seen, _ in inside])[tuple(number for _, number in inside)]
    each = np.broadcast_to(each, grid).reshape(-1) if each.ndim else np.broadcast_to(each, steps)
    flat = np.broadcast_to(at, grid).reshape(-1)
    changed = np.ones(steps, bool)
    np.not_equal(flat[1:], flat[:-1], out=changed[1:])
    return Moves(changed, each, int(each[_one_of_each(flat, different)].sum()) / 1e6)


def _one_of_each(numbers: Array, most: int) -> Array:
    """Where each of the numbers, from 0 to ``most``, stands once."""
    if most > 4 * len(numbers) + 1024:
        return np.unique(numbers, return_index=True)[1]
    place = np.full(most, -1)
    place[numbers] = np.arange(len(numbers))
    return place[place >= 0]
