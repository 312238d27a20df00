"""What a running kernel sees of memory: references, parts of them, the windows of its grid, and copies under way.

A copy moves its numbers when it is started, and counts as under way until its semaphore has been waited for as often as
copies were started on it: what ends first of several copies with one semaphore is not known. Until then its destination
must not be touched, and its source not be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import UnsupportedError

Array: TypeAlias = np.ndarray[Any, Any]
Fault: TypeAlias = Callable[..., None]
"""Told of a kind of fault, in words of what happens, and of the line where it is not the one that is evaluated."""
_FILLS = {"f": (7.0, np.nan), "b": (True, False), "i": (7, 2)}
"""What memory holds that no one wrote, by kind of type; a result that depends on it differs between the two."""


@dataclass(eq=False)
class Ref:
    """Memory: its numbers, which of them someone wrote, and the parallel step that wrote each last (-1: none).

    ``writer`` is None where steps cannot meet. ``far``: it lies in HBM, where only copies reach it. ``edge``: what no
    one wrote of it lies beyond the edge of an array.
    """

    name: str
    values: Array
    written: Array = field(repr=False)
    writer: Array | None = field(default=None, repr=False)
    far: bool = False
    edge: bool = False

    @classmethod
    def whole(cls, name: str, value: Any) -> Ref:
        """An array that is there, all of it written."""
        values = np.array(value)
        return cls(name, values, np.ones(values.shape, bool))

    def shared(self) -> None:
        """Put it into HBM, which parallel steps and cores share."""
        self.far = True
        self.writer = np.full(self.values.shape, -1) if self.writer is None else self.writer


def filled(shape: Sequence[int], dtype: Any, which: int) -> Array:
    """An array of one of the two numbers that mean nothing."""
    from jax import numpy as jnp

    kind = "f" if jnp.issubdtype(dtype, np.floating) else "b" if np.dtype(dtype).kind == "b" else "i"
    return np.full(shape, _FILLS[kind][which]).astype(np.dtype(dtype))


def in_hbm(aval: Any) -> bool:
    """Whether memory lies where only copies reach it."""
    return str(getattr(aval, "memory_space", "")).rpartition(".")[2].lower() in ("any", "hbm")


@dataclass(eq=False)
class Part:
    """A part of a memory, by indices, reshapes, transposes and casts one after the other; its numbers are ``dtype``.

    The ``steps`` take and give arrays in which the bytes of each number stand last, or what else belongs to it.
    """

    ref: Ref
    steps: list[Callable[[Array], Array]]
    dtype: np.dtype[Any]
    casts: bool = False  # among the steps is a cast to another size

    def _followed(self, array: Array) -> Array:
        for step in self.steps:
            array = step(array)
        return array

    @property
    def numbers(self) -> Array:
        """What is there; a view where numpy has one."""
        values = self.ref.values
        if not self.casts:
            return self._followed(values.view(self.dtype)[..., None])[..., 0]
        return values.reshape(-1).view(np.uint8)[self.places].view(self.dtype)[..., 0]

    @cached_property
    def plain(self) -> bool:
        """Whether numpy has a view of it, of the memory's own numbers."""
        shared = np.may_share_memory(self.numbers, self.ref.values) or not self.ref.values.size
        return shared and self.dtype == self.ref.values.dtype

    @cached_property
    def places(self) -> Array:
        """Where the bytes of its numbers lie in the memory: those of each stand last."""
        values = self.ref.values
        return self._followed(np.arange(values.nbytes).reshape(*values.shape, values.itemsize))

    def of(self, array: Array) -> Array:
        """The same part of a mask of the memory, or of who wrote it; the least of what a wide number covers."""
        if self.plain:
            return self._followed(array[..., None])[..., 0]
        return np.asarray(array.reshape(-1)[self.places // self.ref.values.itemsize].min(axis=-1))

    def put(self, array: Array, numbers: Any) -> None:
        """Write to this part of one of the memory's arrays."""
        values = self.ref.values
        if self.plain:
            (self.numbers if array is values else self.of(array))[...] = numbers
            return
        one = np.broadcast_to(np.asarray(numbers), self.places.shape[:-1])
        if array is values:
            new = np.ascontiguousarray(one.astype(self.dtype))
            values.reshape(-1).view(np.uint8)[self.places] = new.view(np.uint8).reshape(self.places.shape)
        else:
            array.reshape(-1)[self.places // values.itemsize] = one[..., None]

    def meets(self, other: Part) -> bool:
        """Whether an element is in both."""
        if self.ref is not other.ref:
            return False
        if self.plain and other.plain:
            return np.shares_memory(self.numbers, other.numbers)
        return bool(np.isin(self.places, other.places).any())


def part_of(ref: Ref, transforms: Iterable[Any], outside: Callable[[str], None]) -> Part:
    """What JAX's transforms of a reference lead to; an index beyond an edge is told, and held to the edge."""
    part = Part(ref, [], ref.values.dtype)
    for one in transforms:
        kind = type(one).__name__
        if hasattr(one, "indices"):
            step: Callable[[Array], Array] = partial(_at, place=_index(ref, one.indices, part.numbers.shape, outside))
        elif kind == "ReshapeTransform":
            step = partial(_reshaped, sizes=tuple(one.shape))
        elif kind == "TransposeTransform":
            step = partial(np.transpose, axes=(*one.permutation, len(one.permutation)))
        elif kind == "BitcastTransform":
            new, same = np.dtype(one.dtype), np.dtype(one.dtype).itemsize == part.dtype.itemsize
            part, step = replace(part, dtype=new, casts=part.casts or not same), partial(_cast, size=new.itemsize)
            if same:  # every number stays where it is
                continue
        else:
            raise UnsupportedError(f"{kind} of a reference is not followed by the simulation")
        part = replace(part, steps=[*part.steps, step])
    return part


def _at(array: Array, place: tuple[Any, ...]) -> Array:
    return np.asarray(array[place])


def _reshaped(array: Array, sizes: tuple[int, ...]) -> Array:
    return array.reshape(*sizes, array.shape[-1])


def _index(ref: Ref, indices: Sequence[Any], shape: Sequence[int], outside: Callable[[str], None]) -> tuple[Any, ...]:
    place: list[Any] = []
    for size, index in zip(shape, indices):
        if hasattr(index, "start"):
            start, count, stride = int(index.start), int(index.size), int(index.stride)
            last = start + (count - 1) * stride
            if count and (start < 0 or last >= size):
                outside(f"{ref.name}: {start} to {last} of {size}")
                start = min(max(start, 0), max(0, size - 1 - (count - 1) * stride))
            place.append(slice(start, start + (count - 1) * stride + 1 if count else start, stride))
            continue
        at = np.asarray(index)
        if np.any((at < 0) | (at >= size)):
            outside(f"{ref.name}: {at.tolist()} of {size}")
        place.append(np.clip(at, 0, size - 1) if at.ndim else int(np.clip(at, 0, size - 1)))
    return (*place, ...)


def _cast(at: Array, size: int) -> Array:
    """Bytes of numbers as those of numbers of another size, which are packed along rows, as a TPU's memory has them."""
    *outer, rows, columns, old = at.shape
    if size > old:
        packed = at.reshape(*outer, rows // (size // old), size // old, columns, old).swapaxes(-2, -3)
        return packed.reshape(*outer, rows * old // size, columns, size)
    return at.reshape(*outer, rows, columns, old // size, size).swapaxes(-2, -3).reshape(*outer, -1, columns, size)


@dataclass(eq=False)
class Copy:
    """A copy that was started: from where to where, at which line, and in which parallel step."""

    source: Part
    dest: Part
    line: str
    lane: int


@dataclass
class Semaphore:
    """One cell of semaphores: what it counts (bytes, or signals), and the copies that count on it."""

    name: str
    count: int = 0
    copies: list[Copy] = field(default_factory=list)


@dataclass
class Transfers:
    """The semaphores of a kernel and the copies under way, and what is wrong with how they are used."""

    fault: Fault
    cells: dict[tuple[Ref, int], Semaphore] = field(default_factory=dict)

    @property
    def under_way(self) -> list[Copy]:
        """Copies that may not have ended."""
        return [copy for cell in self.cells.values() for copy in cell.copies]

    def cell(self, part: Part) -> Semaphore:
        """The one semaphore that a part of a reference is."""
        at = int(part.of(np.arange(part.ref.values.size).reshape(part.ref.values.shape)))
        name = f"{part.ref.name}[{at}]" if part.ref.values.size > 1 else part.ref.name
        return self.cells.setdefault((part.ref, at), Semaphore(name))

    def start(self, copy: Copy, on: Semaphore, *, add: bool) -> None:
        """Begin a copy, and move its numbers."""
        source, dest = copy.source, copy.dest
        numbers, before = source.numbers, dest.numbers
        on.count += before.nbytes
        if numbers.shape != before.shape:  # beyond an edge, where one of them is held to it
            self.fault("copy out of bounds", f"from a part of {numbers.shape} to one of {before.shape}")
            return
        for other in self.under_way:
            if dest.meets(other.dest):
                self.fault("copies overlap", f"into {dest.ref.name} goes already a copy {_begun(other)}")
            elif dest.meets(other.source):
                text = f"a copy into {dest.ref.name}, from where a copy {_begun(other)} reads"
                self.fault("write under a copy", text)
            if source.meets(other.dest):
                text = f"a copy from {source.ref.name}, into which a copy {_begun(other)} writes"
                self.fault("read under a copy", text)
        self.race(source, copy.lane, "read")
        if dest.ref.far:
            self.race(dest, copy.lane, "written")
        dest.put(dest.ref.values, numbers + before if add else numbers.copy())
        dest.put(dest.ref.written, source.of(source.ref.written).copy())
        if dest.ref.writer is not None:
            dest.put(dest.ref.writer, copy.lane)
        on.copies.append(copy)

    def race(self, part: Part, lane: int, what: str) -> None:
        """A fault where a parallel step reads, or writes in HBM, what another one wrote."""
        if part.ref.writer is not None:
            writers = part.of(part.ref.writer)
            if np.any((writers >= 0) & (writers != lane)):
                self.fault("race", f"{part.ref.name} is {what} in a parallel step and was written in another one")

    def wait(self, on: Semaphore, count: int, what: str, lane: int, *, taken: bool = True) -> None:
        """Wait until a semaphore counts so much, and take it from it."""
        if on.count < count:
            self.fault("waits for ever", f"for {count} {what} on {on.name}, which never counts more than {on.count}")
        if any(copy.lane != lane for copy in on.copies):
            self.fault("race", f"a copy {_begun(on.copies[0])} is waited for in another parallel step")
        on.count = max(0, on.count - count) if taken else on.count
        if not on.count:
            on.copies.clear()

    def touched(self, part: Part, *, write: bool) -> None:
        """A fault where a part is read or written while a copy is under way."""
        for copy in self.under_way:
            if part.meets(copy.dest):
                kind = "write under a copy" if write else "read under a copy"
                self.fault(kind, f"{part.ref.name}, into which a copy {_begun(copy)} may still write")
            elif write and part.meets(copy.source):
                self.fault("write under a copy", f"{part.ref.name}, from which a copy {_begun(copy)} may still read")

    def leave(self, refs: Sequence[Ref], where: str) -> None:
        """Memory goes: semaphores among it must count nothing, and no copy may be under way from or to it."""
        for key in [key for key in self.cells if key[0] in refs]:
            cell = self.cells.pop(key)
            for copy in cell.copies:
                text = f"the copy into {copy.dest.ref.name} that {cell.name} counts, at {where}"
                self.fault("never waited for", text, copy.line or None)
            if cell.count and not cell.copies:
                self.fault("never waited for", f"{cell.name} still counts {cell.count} at {where}")
        for copy in self.under_way:
            for part in (copy.source, copy.dest):
                if part.ref in refs:
                    text = f"{part.ref.name} goes at {where}, and a copy from or to it is under way"
                    self.fault("left under a copy", text, copy.line or None)


def _begun(copy: Copy) -> str:
    return f"started at {copy.line}" if copy.line else f"into {copy.dest.ref.name}"


class Window:
    """The block of an array that a step sees, and where it lies; ``result``: it is written back, maybe to an input."""

    def __init__(self, array: Ref, mapping: Any, result: bool, aliased: bool) -> None:
        self.array, self.mapping, self.result, self.aliased = array, mapping, result, aliased
        self.index: tuple[int, ...] = ()
        self.seen: set[tuple[int, ...]] = set()
        self.block: Ref | None = None
        self.whole = in_hbm(mapping.transformed_block_aval)
        dims = [_dim(one) for one in mapping.block_shape]
        self.sizes, self.strides = [size for size, _ in dims], [stride for _, stride in dims]
        if self.whole and self.sizes != list(array.values.shape):
            how = "TPUs take none either: leave out the vmap, or copy a part"
            raise UnsupportedError(f"{array.name}: a window in HBM that is not the whole array", how=how)
        if self.whole:
            array.shared()

    def at(self, program: Any, tables: Sequence[Ref]) -> Ref:
        """Its block in the step at hand: kept where the step before had it, else brought in or begun anew."""
        if self.whole:
            return self.array
        closed = self.mapping.index_map_jaxpr
        ids = [np.int32(k) for k in program.ids]
        found = program.evaluate(closed.jaxpr, closed.consts, [*ids, *tables][: len(closed.jaxpr.invars)])
        index = tuple(int(np.asarray(one)) for one in found)
        if self.block is not None and index == self.index:
            return self.block
        self.back(program)
        self.index = index
        if self.result and index in self.seen and not self.aliased:
            text = f"block {index} of {self.array.name} comes back in step {program.ids}"
            program.fault("revisited output", text, "")
        self.seen.add(index)
        shape, whole = [size or 1 for size in self.sizes], self.array.values.shape
        wanted = [k * stride for k, stride in zip(index, self.strides)]
        self.starts = [min(max(start, 0), max(0, size - 1)) for start, size in zip(wanted, whole)]
        if any(start < 0 or start >= size for start, size in zip(wanted, whole)):
            program.fault("out of array", f"block {index} of {self.array.name} in step {program.ids}", "")
        self.ends = [min(start + size, end) for start, size, end in zip(self.starts, shape, whole)]
        block = filled(shape, self.array.values.dtype, program.unwritten if self.result else program.padding)
        written = np.zeros(shape, bool)
        self.inside = tuple(slice(0, end - start) for start, end in zip(self.starts, self.ends))
        if not self.result:
            block[self.inside] = self.array.values[self._part()]
            written[self.inside] = True
        squeezed = tuple(d for d, size in enumerate(self.sizes) if not size)
        self.full = block, written
        self.block = Ref(self.array.name, block.squeeze(squeezed), written.squeeze(squeezed), edge=not self.result)
        return self.block

    def unread(self, tables: Sequence[Any]) -> int:
        """How many blocks of its array were in no step, where tables do not choose them."""
        if self.whole or tables or [size or 1 for size in self.sizes] != self.strides:
            return 0
        every = int(prod(-(-whole // stride) for whole, stride in zip(self.array.values.shape, self.strides)))
        return max(0, every - len(self.seen))

    def _part(self) -> tuple[slice, ...]:
        return tuple(slice(start, end) for start, end in zip(self.starts, self.ends))

    def back(self, program: Any) -> None:
        """Its block leaves, a result's to its array: all of it, as the chip does."""
        if self.block is None:
            return
        program.transfers.leave([self.block], f"the end of its block {self.index}")
        if self.result:
            values, written = self.full
            self.array.values[self._part()] = values[self.inside]
            self.array.written[self._part()] = written[self.inside]


def _dim(block: Any) -> tuple[int, int]:
    """Elements along a dim of a block, 0 for a dim that the kernel does not see, and from one index to the next."""
    kind = type(block).__name__
    if kind == "Squeezed" or block is None:
        return 0, 1
    if kind == "Element" and not any(block.padding):
        return int(block.block_size), 1
    if kind not in ("Blocked", "int"):
        raise UnsupportedError(f"windows by {kind} are not run", how="blocks, or elements without padding")
    size = int(getattr(block, "block_size", block))
    return size, size
