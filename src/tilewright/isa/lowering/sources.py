"""Where the elements of a value stand, through transposes, reshapes, broadcasts and slices that cost nothing yet.

    value[i, j, ...]  --dims-->  atoms  --coordinates-->  table[x, y, ...]

A dim of a value is a product of atoms, slowest first; every coordinate of the table is a sum of atoms. So an operation
that only names elements otherwise makes another :class:`Source` of the same table; only when the elements are needed in
an order that memory does not have is a copy made.

Below: what a compiled model is made of, tables in memory and steps in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.hlo import Node, Value
from tilewright.isa.chip.segments import Part
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.multiply.matmul import MatmulPlan

Groups = tuple[tuple[int, ...], ...]
"""Which dims of a value each dim of a table folds, slowest first."""


@dataclass(frozen=True)
class Coordinate:
    """``first`` plus each atom times its number in ``steps``."""

    first: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A value's elements in ``table``: ``sizes`` of the atoms, the atoms of every dim, the table's coordinates."""

    table: str
    sizes: tuple[int, ...]
    dims: Groups
    coordinates: tuple[Coordinate, ...]

    @classmethod
    def of(cls, table: str, shape: Sequence[int], groups: Groups) -> Source:
        """A value of ``shape`` that stands in ``table``, each of whose dims folds some of the value's.

        >>> Source.of("t", (2, 3, 4), ((0, 1), (2,))).coordinates[0]
        Coordinate(first=0, steps=(3, 1, 0))
        """
        return cls(table, tuple(shape), tuple((d,) for d in range(len(shape))), ()).folded(groups)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(self.sizes[a] for a in atoms) for atoms in self.dims)

    def folded(self, groups: Groups, origin: Sequence[int] = (), gaps: Sequence[int] = ()) -> Source:
        """In a table whose dims fold the value's so: its first element at ``origin``, the others ``gaps`` apart."""
        coordinates = []
        for i, group in enumerate(groups):
            steps, step = [0] * len(self.sizes), gaps[i] if gaps else 1
            for atom in reversed([atom for d in group for atom in self.dims[d]]):
                steps[atom], step = step, step * self.sizes[atom]
            coordinates.append(Coordinate(origin[i] if origin else 0, tuple(steps)))
        return replace(self, coordinates=tuple(coordinates))

    def transposed(self, permutation: Sequence[int]) -> Source:
        return replace(self, dims=tuple(self.dims[d] for d in permutation))

    def broadcast(self, shape: Sequence[int], dims: Sequence[int]) -> Source:
        """The source of ``broadcast_in_dim(value)``: its dims become ``dims`` of ``shape``."""
        sizes, placed = list(self.sizes), dict(zip(dims, self.dims, strict=True))
        own, made = self.shape, []
        for d, size in enumerate(shape):
            if d in placed and own[list(dims).index(d)] == size:
                made.append(placed[d])
            else:
                made.append((len(sizes),))
                sizes.append(size)
        more = (0,) * (len(sizes) - len(self.sizes))
        coordinates = tuple(Coordinate(c.first, c.steps + more) for c in self.coordinates)
        return Source(self.table, tuple(sizes), tuple(made), coordinates)

    def reshaped(self, shape: Sequence[int]) -> Source | None:
        """Of ``reshape(value)``; None where a dim would end inside an atom that it does not divide."""
        source, waiting = self.merged()
        dims = []
        for size in shape:
            atoms, left = [], size
            while left > 1:
                if not waiting:
                    return None
                atom = waiting.pop(0)
                has = source.sizes[atom]
                if left % has == 0:
                    atoms.append(atom)
                    left //= has
                elif has % left == 0:
                    source, slow, fast = source._split(atom, left)
                    atoms.append(slow)
                    waiting.insert(0, fast)
                    left = 1
                else:
                    return None
            dims.append(tuple(atoms))
        return replace(source, dims=tuple(dims))

    def merged(self) -> tuple[Source, list[int]]:
        """Atoms of more than one element, neighbours made one where every coordinate walks through both evenly."""
        sizes, steps, kept = list(self.sizes), [list(c.steps) for c in self.coordinates], list[int]()
        for atom in (a for atoms in self.dims for a in atoms if self.sizes[a] > 1):
            if kept and all(own[kept[-1]] == own[atom] * sizes[atom] for own in steps):
                sizes[atom] *= sizes[kept.pop()]
            kept.append(atom)
        return replace(self, sizes=tuple(sizes)), kept

    def _split(self, atom: int, slow: int) -> tuple[Source, int, int]:
        """An atom as two, the slower one of size ``slow``; it keeps the number of the faster."""
        fast, new = self.sizes[atom] // slow, len(self.sizes)
        sizes = (*self.sizes[:atom], fast, *self.sizes[atom + 1 :], slow)
        coordinates = tuple(Coordinate(c.first, (*c.steps, c.steps[atom] * fast)) for c in self.coordinates)
        dims = tuple(tuple(x for a in atoms for x in ((new, a) if a == atom else (a,))) for atoms in self.dims)
        return Source(self.table, sizes, dims, coordinates), new, atom

    def sliced(self, start: Sequence[int], limit: Sequence[int], strides: Sequence[int]) -> Source | None:
        """The source of ``slice(value)``; None where a dim of several atoms is cut."""
        sizes, coordinates, own = list(self.sizes), list(self.coordinates), self.shape
        for d, (begin, end, stride) in enumerate(zip(start, limit, strides, strict=True)):
            if (begin, end, stride) == (0, own[d], 1):
                continue
            if len(self.dims[d]) != 1:
                return None
            (atom,) = self.dims[d]
            sizes[atom] = -(-(end - begin) // stride)
            coordinates = [
                Coordinate(
                    c.first + begin * c.steps[atom], (*c.steps[:atom], c.steps[atom] * stride, *c.steps[atom + 1 :])
                )
                for c in coordinates
            ]
        return replace(self, sizes=tuple(sizes), coordinates=tuple(coordinates))

    def reversed(self, dims: Sequence[int]) -> Source:
        """The source of ``reverse(value)``: every atom of these dims counts from its end."""
        atoms = {a for d in dims for a in self.dims[d]}
        coordinates = []
        for c in self.coordinates:
            first = c.first + sum(c.steps[a] * (self.sizes[a] - 1) for a in atoms)
            steps = tuple(-step if a in atoms else step for a, step in enumerate(c.steps))
            coordinates.append(Coordinate(first, steps))
        return replace(self, coordinates=tuple(coordinates))

    def addresses(self, strides: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The first element's address in the table, and what each atom adds to it; ``strides`` of the table's dims."""
        pairs = list(zip(self.coordinates, strides, strict=True))
        first = sum(c.first * s for c, s in pairs)
        return first, tuple(sum(c.steps[a] * s for c, s in pairs) for a in range(len(self.sizes)))


# What a compiled model is made of.


@dataclass(frozen=True)
class Table:
    """A page table: ``shape`` as numpy says it and the machine's element type; ``base``: the table it is a view of.

    A view names the same bytes with other dims, which is possible where rows are padded alike.
    ``held``: the value that the host puts there before the first step, as these groups of its dims; None if a step
    writes it. ``weights``: of a convolution, arranged for the threads of this plan.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: str = ""
    held: tuple[Value, Groups] | None = None
    weights: MatmulPlan | None = None


@dataclass(frozen=True)
class Job:
    """A program for a processing element, and the windows it sees: (its name for it, the table, which part)."""

    pe: int
    program: MachineProgram
    windows: tuple[tuple[str, str, Part], ...]


@dataclass
class Step:
    """One layer: on the machine (``jobs``), or on the host by XLA (``fallback`` says why).

    ``unit``: matrix, vector, copy or host. ``nodes`` compute ``outputs`` of ``inputs``: what XLA is asked to check it.
    ``reads`` and ``writes``: tables, views by their own names. ``operations``: arithmetic, a multiply-add as two.
    """

    name: str
    unit: str
    nodes: tuple[Node, ...] = ()
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    jobs: tuple[Job, ...] = ()
    fallback: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    operations: int = 0
    copied: tuple[Source, str, Groups] | None = None


@dataclass(frozen=True)
class Stay:
    """A table in L2 from byte ``begin`` on, from before step ``first`` until after step ``last``.

    ``comes``: by DMA, as the host had placed it; else a step makes it there. ``leaves``: by DMA, as it is needed
    in device memory; else it is given up.
    """

    table: str
    begin: int
    size: int
    first: int
    last: int
    comes: bool = False
    leaves: bool = False
