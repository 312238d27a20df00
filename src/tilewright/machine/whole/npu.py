"""A program on an NPU with lanes: every layer's tensors in the local memories, cut where they are too large.

A layer is planned whole, with what it shares with its neighbours where that stands already; what does not fit is cut
along one or two dims, in the way that moves the fewest bytes to and from the one global memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import ceil, prod
from typing import Any

from tilewright.layout import LocalMemoryError, LocalPlan, LocalTensor, plan_local_memory
from tilewright.machine.whole.operands import NpuLayer, Operand, Sizes
from tilewright.targets import LaneMemory


@dataclass(frozen=True)
class Cut:
    """A layer in slices: ``sizes`` of its axes at once, ``slices`` of them, ``moved`` bytes in and out of all."""

    sizes: dict[str, int]
    slices: int
    moved: int
    plan: LocalPlan
    text: str


@dataclass(frozen=True)
class Planned:
    """A layer in the local memories.

    ==============  ============================================================================================
    ``need``        bytes on every NPU that the layer takes whole
    ``plan``        where its tensors stand, of one slice if it is ``cut``; None where no cut fits
    ``found``       tensors that stand there from layers before; ``beside``: others that stand there for later
    ``loads``, ``stores``  bytes from and to global memory
    ``alone``       both, had it been planned by itself and whole
    ==============  ============================================================================================
    """

    layer: NpuLayer
    need: int
    plan: LocalPlan | None
    cut: Cut | None = None
    found: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    loads: int = 0
    stores: int = 0
    alone: int = 0


def planned_layers(
    layers: Sequence[NpuLayer], memory: LaneMemory, results: set[int], watch: Callable[[int, int], None] | None = None
) -> list[Planned]:
    """All layers in order; ``results``: values that the program returns."""
    walk = _Walk(layers, memory, results)
    for number in range(len(layers)):
        if watch is not None:
            watch(number, len(layers))
        walk.layer(number)
    return walk.done


def need_of(layer: NpuLayer) -> int:
    """Bytes on every NPU that a layer takes whole."""
    return sum(each.place({}).bytes_per_npu for each in layer.operands)


@dataclass
class _Standing:
    """A tensor that stands in the local memories: where, what it is, and whether global memory has it, too."""

    tensor: LocalTensor
    operand: Operand
    written: bool


@dataclass
class _Walk:
    layers: Sequence[NpuLayer]
    memory: LaneMemory
    results: set[int]
    done: list[Planned] = field(default_factory=list)
    standing: dict[tuple[Any, ...], _Standing] = field(default_factory=dict)

    def layer(self, number: int) -> None:
        """Plan one layer: with all that stands, with less of it, alone, or in slices."""
        layer = self.layers[number]
        alone = sum(each.bytes({}) for each in layer.operands if each.role != "work")
        needed = {key for later in self.layers[number:] for each in later.operands if (key := each.key)}
        self.standing = {key: each for key, each in self.standing.items() if key in needed}
        spilled = 0
        while True:
            plan = self._tried(layer)
            if plan is not None or not self.standing:
                break
            own = {each.key for each in layer.operands}
            spilled += self._given_up(max(self.standing, key=lambda k: (k not in own, self._size(k))))
        if plan is None:
            self._cut(layer, alone, spilled)
            return
        found = tuple(each.name for each in layer.operands if each.key in self.standing)
        own = {each.key for each in layer.operands}
        beside = tuple(each.tensor.name for key, each in self.standing.items() if key not in own)
        loads = sum(e.bytes({}) for e in layer.operands if e.role == "in" and e.name not in found)
        stores = spilled
        for each in layer.operands:
            if each.role == "work":
                continue
            written = each.role == "in" or self._wanted_elsewhere(each, number)
            if each.role == "out" and written:
                stores += each.bytes({})
            if each.key is not None and each.key not in self.standing and self._read_later(each.key, number):
                base = plan[each.name].base
                name = f"{layer.name}: {each.name}"
                self.standing[each.key] = _Standing(LocalTensor(name, each.place({}), base), each, written)
        self.done.append(Planned(layer, need_of(layer), plan, None, found, beside, loads, stores, alone))

    def _size(self, key: tuple[Any, ...]) -> int:
        return self.standing[key].tensor.layout.bytes_per_npu

    def _given_up(self, key: tuple[Any, ...]) -> int:
        """Bytes to be stored because a tensor makes room."""
        given = self.standing.pop(key)
        return 0 if given.written else given.operand.bytes({})

    def _read_later(self, key: tuple[Any, ...], number: int) -> bool:
        return any(each.key == key for later in self.layers[number + 1 :] for each in later.operands)

    def _wanted_elsewhere(self, made: Operand, number: int) -> bool:
        """Whether an output must be in global memory: a result, or read turned."""
        if made.root in self.results or made.key is None:
            return True
        later = [each for layer in self.layers[number + 1 :] for each in layer.operands if each.role == "in"]
        return any(each.root == made.root and each.key != made.key for each in later)

    def _tried(self, layer: NpuLayer) -> LocalPlan | None:
        own = {each.key for each in layer.operands}
        tensors = [
            LocalTensor(
                each.name, each.place({}), self.standing[each.key].tensor.base if each.key in self.standing else None
            )
            for each in layer.operands
        ]
        tensors += [each.tensor for key, each in self.standing.items() if key not in own]
        return _plan(tensors, layer, self.memory)

    def _cut(self, layer: NpuLayer, alone: int, spilled: int) -> None:
        """In slices; everything comes from global memory and goes back."""
        best = best_cut(layer, self.memory)
        plan = None if best is None else best.plan
        loads = stores = 0
        if best is not None:
            out = sum(each.bytes({}) for each in layer.operands if each.role == "out")
            loads, stores = best.moved - out, out + spilled
        self.done.append(Planned(layer, need_of(layer), plan, best, (), (), loads, stores, alone))


def _plan(tensors: Sequence[LocalTensor], layer: NpuLayer, memory: LaneMemory) -> LocalPlan | None:
    """Places for all: with operands in banks of their own where that leaves room, else as close as they can stand."""
    if sum(each.layout.bytes_per_npu for each in tensors) > memory.local_bytes:
        return None
    order = sorted(tensors, key=lambda each: (each.base is None, -each.layout.bytes_per_npu))
    for some in (tensors, order):
        try:
            return plan_local_memory(some, memory, layer.instructions)
        except LocalMemoryError:
            continue
    try:
        close = plan_local_memory(order, memory)
    except LocalMemoryError:
        return None
    fixed = [replace(each, base=close[each.name].base) for each in tensors]
    return plan_local_memory(fixed, memory, layer.instructions)


# Slices.


def best_cut(layer: NpuLayer, memory: LaneMemory) -> Cut | None:
    """The slices that fit and move fewest bytes; of those the fewest slices. Tried: along any one or two axes.

    Where a third axis is left (images of a batch, products of a batch), it is tried uncut and one at a time.
    """
    found: list[tuple[int, int, dict[str, int]]] = []
    for sizes in _candidates(layer, memory):
        slices = prod(ceil(axis.size / sizes[axis.name]) for axis in layer.axes)
        found.append((moved_bytes(layer, sizes), slices, sizes))
    for moved, slices, sizes in sorted(found, key=lambda each: each[:2]):
        plan = _plan([LocalTensor(e.name, e.place(sizes), None) for e in layer.operands], layer, memory)
        if plan is not None:
            return Cut(sizes, slices, moved, plan, _cut_text(layer, sizes))
    return None


def _candidates(layer: NpuLayer, memory: LaneMemory) -> Iterator[dict[str, int]]:
    whole = layer.whole
    for axis in whole:
        if (sizes := _largest(layer, whole, axis, memory)) is not None:
            yield sizes
    for first, second, *others in permutations(whole, min(3, len(whole))) if len(whole) > 1 else ():
        for third in others or [""]:
            for kept in ({}, {third: 1}) if third else ({},):
                size = whole[first]
                while size > 1:
                    size = ceil(size / 2)
                    if (sizes := _largest(layer, {**whole, **kept, first: size}, second, memory)) is not None:
                        yield sizes
                        break


def _largest(layer: NpuLayer, sizes: dict[str, int], axis: str, memory: LaneMemory) -> dict[str, int] | None:
    """The sizes with as much of one axis as fits, in slices of about one size; None where not even 1 of it does."""

    def fits(size: int) -> bool:
        some = {**sizes, axis: size}
        return sum(each.place(some).bytes_per_npu for each in layer.operands) <= memory.local_bytes

    low, high = 0, sizes[axis]
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if not low:
        return None
    whole = layer.whole[axis]
    return {**sizes, axis: ceil(whole / ceil(whole / low))}


def moved_bytes(layer: NpuLayer, sizes: dict[str, int]) -> int:
    """Bytes from and to global memory of a layer in slices, taken in the best order of its loops.

    An operand is loaded again whenever the loop it depends on, or one around that, goes on.
    """
    counts = {axis.name: ceil(axis.size / sizes[axis.name]) for axis in layer.axes}
    cut = [name for name, count in counts.items() if count > 1]
    best = None
    own = {each.name: _once(layer, each, sizes) for each in layer.operands if each.role != "work"}
    for order in permutations(cut):
        moved = 0
        for each in layer.operands:
            if each.role == "work":
                continue
            inner = max((k for k, name in enumerate(order) if name in each.axes), default=-1)
            again = prod(counts[name] for name in order[: inner + 1] if name not in each.axes)
            moved += own[each.name] * again
        best = moved if best is None else min(best, moved)
    return best or 0


def _once(layer: NpuLayer, operand: Operand, sizes: Sizes) -> int:
    """Bytes of an operand's slices, each counted once; the rows that neighbours share count for both."""
    axes = [axis for axis in layer.axes if axis.name in operand.axes]
    parts = []
    for axis in axes:
        full, rest = divmod(axis.size, sizes[axis.name])
        parts.append([(sizes[axis.name], full), *([(rest, 1)] if rest else [])])
    total = 0
    for choice in product(*parts):
        some = {axis.name: size for axis, (size, _) in zip(axes, choice, strict=True)}
        total += prod(count for _, count in choice) * operand.bytes(some)
    return total


_SAID = {
    "n": "images",
    "h": "rows of pixels",
    "c": "channels",
    "batch": "products",
    "rows": "rows",
    "columns": "columns",
}


def _cut_text(layer: NpuLayer, sizes: dict[str, int]) -> str:
    said = [f"{sizes[a.name]} of {a.size} {_SAID[a.name]}" for a in layer.axes if sizes[a.name] < a.size]
    return f"{' and '.join(said)} at once"
