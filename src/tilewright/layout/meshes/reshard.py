"""From one sharding to another: the cheapest sequence of slices, all-to-alls, permutes and all-gathers.

Devices are cut into digits (atoms) that both shardings are made of; a state is the list of atoms, major first, that cut
each dim. Elements that the slowest device receives, S those of its shard:

    slice       an atom that cuts nothing cuts a dim, minor     0
    all-gather  the minor atoms of a dim, n devices, leave it   (n - 1) S
    all-to-all  they leave a dim for the minor end of another   (n - 1) / n S
    permute     devices change shards of one shape              S

One permute in a sequence is enough: two are one, and what may be done before it may be done behind it on other atoms.
So the states that can be reached from the start, and those from which the end can be reached, are searched without
it, and joined by a step that costs S, or by none where they are one state.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, permutations
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.meshes.mesh import Mesh, Piece, Sharding, spread, unused
from tilewright.layout.meshes.shards import MeshLayout, Shards, shard
from tilewright.render import bytes_text

_State = tuple[tuple[int, ...], ...]  # per dim the atoms that cut it, major first
_MOST_STATES = 20_000
_MOST_ATOMS = 6  # beyond, atoms are not cut further than the shardings ask for


@dataclass(frozen=True)
class Step:
    """One step of a resharding.

    ============  =======================================================================================
    ``op``        ``slice``, ``all-gather``, ``all-to-all``, ``collective-permute``, and for shards that do
                  not nest ``ragged-all-to-all``, in which every device sends what others lack
    ``before``    the layout before it
    ``after``     the layout behind it
    ``groups``    the devices that exchange (pairs of source and target of a permute)
    ``bytes``     bytes that the slowest device receives
    ============  =======================================================================================
    """

    op: str
    before: MeshLayout
    after: MeshLayout
    groups: tuple[tuple[int, ...], ...]
    bytes: int

    def __str__(self) -> str:
        size = f", {bytes_text(self.bytes)} a device" if self.bytes else ""
        return f"{self.op} to {dims_text(self.after.sharding)}{size}"

    def run(self, shards: Mapping[int, Any]) -> Shards:
        """The shards behind the step: every device takes what it needs from the devices of its group."""
        of = {device: group for group in self.groups for device in group}
        if self.op == "collective-permute":
            source = {target: origin for origin, target in self.groups}
            return {device: shards[source.get(device, device)] for device in shards}
        made = Shards()
        for device in range(self.after.mesh.size):
            box = self.after.box(device)
            if box is not None:
                made[device] = np.zeros(self.after.shard_shape, self.after.numpy_dtype)
                for origin in (device, *(other for other in of.get(device, ()) if other != device)):
                    self._copy(shards, origin, made[device], box)
        return made

    def _copy(self, shards: Mapping[int, Any], origin: int, target: np.ndarray[Any, Any], box: Any) -> None:
        """What both boxes have, from the shard of ``origin``."""
        held = self.before.box(origin)
        if held is None:
            return
        both = _common(held, box)
        if _elements(both):
            at, there = (
                tuple(slice(s.start - x.start, s.stop - x.start) for s, x in zip(both, of, strict=True))
                for of in (box, held)
            )
            target[at] = shards[origin][there]


@dataclass(frozen=True)
class Reshard:
    """How an array gets from layout ``a`` to ``b``: ``steps`` in their order."""

    a: MeshLayout
    b: MeshLayout
    steps: tuple[Step, ...]

    @property
    def bytes_per_device(self) -> int:
        """Bytes that the slowest device receives, summed over the steps; tiles' padding is not counted."""
        return sum(step.bytes for step in self.steps)

    @cached_property
    def least_bytes(self) -> int:
        """Bytes that any method needs: what a device's new shard has and its old one has not, where it is most."""
        return -(-_lacking(self.a, self.b) * self.a.element_bits // 8)

    def run(self, shards: Mapping[int, Any]) -> Shards:
        """The shards of ``b`` out of those of ``a``, by the steps; numpy arrays or what numpy reads.

        >>> a, b = (shard("s32[4,4]", {"d": 2, "m": 2}, spec) for spec in ("d,m", "-,d"))
        >>> values = np.arange(16, dtype=np.int32).reshape(4, 4)
        >>> bool((b.unpack(reshard(a, b).run(a.pack(values))) == values).all())
        True
        """
        homes = self.a.sharding.homes.tolist()
        held = {device: self.a.shard_of(shards, device) for device, home in enumerate(homes) if home >= 0}
        for step in self.steps:
            held = step.run(held)
        return held

    def __str__(self) -> str:
        lines = [f"{self.a} to {self.b.sharding}"] + [f"  {k}. {step}" for k, step in enumerate(self.steps, 1)]
        least = bytes_text(self.least_bytes)
        return "\n".join([*lines, f"  {bytes_text(self.bytes_per_device)} a device; the least possible is {least}"])


def dims_text(sharding: Sharding) -> str:
    """The dims alone, as the command line takes them: ``d+m,-``."""
    return ",".join("+".join(map(str, dim)).replace('"', "") or "-" for dim in sharding.dims) or "-"


def reshard(a: Any, b: Any) -> Reshard:
    """The cheapest sequence of steps from layout ``a`` to ``b`` of one array on the same devices.

    Fewest bytes on the slowest device, then fewest steps. Raises :class:`UsageError` for different arrays or devices.

    >>> a, b = (shard("bf16[64,512,1024]", {"a": 2, "b": 2, "c": 4}, spec) for spec in ("-,b+c,-", "b,a,-"))
    >>> for step in reshard(a, b).steps:
    ...     print(step)
    slice to a,b+c,-
    collective-permute to b,a+c,-, 4.00 MiB a device
    all-gather to b,a,-, 12.0 MiB a device
    """
    for one in (a, b):
        if not isinstance(one, MeshLayout):
            raise UsageError(f"{one!r} is not a layout over a mesh", how="make it with shard(...)")
    if a.shape != b.shape or a.dtype != b.dtype:
        raise UsageError(f"{a.whole} and {b.whole} are not one array")
    if a.mesh.ids != b.mesh.ids:
        raise UsageError(f"{a.mesh} and {b.mesh} are not the same devices in the same order")
    for one in (a, b):
        if one.sharding.manual or one.sharding.unreduced or one.sharding.kind:
            raise UnsupportedError(f"{one} holds other values on every device, not copies: those are not moved")
    found = _found(a, b)
    divides = not any(size % over.count(dim) for over in (a.sharding, b.sharding) for dim, size in enumerate(a.shape))
    if found is None or (not divides and Reshard(a, b, found).bytes_per_device > 2 * Reshard(a, b, ()).least_bytes):
        found = _exchange(a, b)  # shards that do not nest: a gather of all of them would be the only other way
    return Reshard(a, b, found)


def _lacking(a: MeshLayout, b: MeshLayout) -> int:
    """Elements that the device lacks that lacks most; both number the devices alike."""
    most = 0
    for device in range(b.mesh.size):
        wanted, held = b.box(device), a.box(device)
        if wanted is not None:
            has = 0 if held is None else _elements(_common(wanted, held))
            most = max(most, _elements(wanted) - has)
    return most


def _common(a: Sequence[slice], b: Sequence[slice]) -> tuple[slice, ...]:
    return tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))


def _elements(box: Sequence[slice]) -> int:
    return math.prod(max(0, side.stop - side.start) for side in box)


def _atoms(dims: Sequence[Sequence[Piece]], count: int) -> list[Piece] | None:
    """The digits that all of these are made of, major first; None where they cut the numbers crosswise."""
    marks = sorted({1, count} | {m for dim in dims for p in dim if p.size > 1 for m in (p.stride, p.stride * p.size)})
    if any(high % low for low, high in pairwise(marks)):
        return None
    whole = [Piece(high // low, low) for low, high in pairwise(marks)]
    primes = [Piece(size, stride) for piece in whole for size, stride in _primes(piece)]
    return list(reversed(primes if len(primes) <= _MOST_ATOMS else whole))


def _primes(piece: Piece) -> Iterator[tuple[int, int]]:
    size, stride, factor = piece.size, piece.stride, 2
    while size > 1:
        if size % factor:
            factor = factor + 1 if factor * factor < size else size
            continue
        yield factor, stride
        size, stride = size // factor, stride * factor


@dataclass(frozen=True)
class _Search:
    """States and what it costs to get from one to another, in elements that the slowest device receives."""

    shape: tuple[int, ...]
    atoms: tuple[Piece, ...]

    def state(self, dims: Sequence[Sequence[Piece]]) -> _State:
        """The state of a sharding: its digits as atoms."""
        return tuple(
            tuple(k for p in dim for k, q in enumerate(self.atoms) if p.stride <= q.stride < p.stride * p.size)
            for dim in dims
        )

    def size(self, atoms: Sequence[int]) -> int:
        return math.prod(self.atoms[k].size for k in atoms)

    def counts(self, state: _State) -> tuple[int, ...]:
        """Into how many shards every dim is cut."""
        return tuple(self.size(dim) for dim in state)

    def elements(self, state: _State) -> int:
        """Elements of a shard, rounded up in every dim."""
        return math.prod(-(-n // count) for n, count in zip(self.shape, self.counts(state), strict=True))

    def nests(self, dim: int, outer: Sequence[int], inner: Sequence[int]) -> bool:
        """Whether shards cut by ``outer`` are whole numbers of those that ``inner`` cuts them into."""
        n, count, parts = self.shape[dim], self.size(outer), self.size(inner)
        return count == 1 or -(-n // count) == parts * -(-n // (count * parts))

    def sliced(self, state: _State, target: _State | None) -> Iterator[_State]:
        """The states that more atoms on a dim make: those of the target, or one of every size where there is none."""
        taken = {k for dim in state for k in dim}
        spare = {atom.size: k for k, atom in reversed(list(enumerate(self.atoms))) if k not in taken}
        for dim, cut in enumerate(state):
            if target is None:
                more: list[tuple[int, ...]] = [(k,) for k in spare.values() if self.shape[dim] >= self.size((*cut, k))]
            else:
                rest = target[dim][len(cut) :] if target[dim][: len(cut)] == cut else ()
                more = [(k,) for k in target[dim] if k not in taken] + ([rest] if taken.isdisjoint(rest) else [])
            for atoms in more:
                if atoms and self.nests(dim, cut, atoms):
                    yield _with(state, dim, (*cut, *atoms))

    def gathered(self, state: _State) -> Iterator[_State]:
        """The states without the minor atoms of a dim."""
        for dim, cut in enumerate(state):
            for k in range(len(cut)):
                if self.nests(dim, cut[:k], cut[k:]):
                    yield _with(state, dim, cut[:k])

    def exchanged(self, state: _State, target: _State | None) -> Iterator[_State]:
        """The states in which the minor atoms of a dim are those of another one, where the target has any of them."""
        for dim, cut in enumerate(state):
            for k in range(len(cut)):
                moved = cut[k:]
                if not self.nests(dim, cut[:k], moved):
                    continue
                without = _with(state, dim, cut[:k])
                for other, there in enumerate(state):
                    wanted = target is None or any(atom in target[other] for atom in moved)
                    if other != dim and wanted and self.nests(other, there, moved):
                        for turned in permutations(moved) if target and len(moved) < 4 else (moved,):
                            yield _with(without, other, (*there, *turned))

    def cost(self, before: _State, after: _State) -> int:
        """Elements that a device receives in a slice, an all-to-all or an all-gather: n - 1 pieces, padded."""
        gone = _difference(before, after)
        pieces = tuple(x if out else y for x, y, out in zip(before, after, gone, strict=True))
        return (math.prod(map(self.size, gone)) - 1) * self.elements(pieces)

    def key(self, state: _State) -> Any:
        """What states have in common that a permute makes of each other, and that the same steps lead on from."""
        return tuple(tuple(self.atoms[k].size for k in dim) for dim in state)

    def reach(
        self, start: _State, most: int, target: _State | None = None, back: bool = False
    ) -> dict[Any, tuple[int, int, _State, Any]]:
        """Per state (elements, steps, the state, the key of the one next to it towards the start).

        Towards a target every state counts; without one, those that are alike but for the names of the atoms are one.
        ``back`` follows the steps backwards: a slice becomes a gather that costs nothing.
        """
        found = dict[Any, tuple[int, int, _State, Any]]()
        queue: list[tuple[int, int, _State, Any]] = [(0, 0, start, None)]
        while queue and len(found) < _MOST_STATES:
            cost, steps, state, origin = heapq.heappop(queue)
            key = state if target is not None else self.key(state)
            if key in found:
                continue
            found[key] = (cost, steps, state, origin)
            if state == target:
                break
            for one in chain(self.gathered(state), self.sliced(state, target), self.exchanged(state, target)):
                more = cost + (self.cost(one, state) if back else self.cost(state, one))
                if more <= most and (one if target is not None else self.key(one)) not in found:
                    heapq.heappush(queue, (more, steps + 1, one, key))
        return found

    def path(self, start: _State, end: _State) -> list[_State] | None:
        """The states of the cheapest way; None where there is none."""
        most = math.prod(self.shape) * 2
        ahead, behind = self.reach(start, most), self.reach(end, most, back=True)
        cheapest = dict[tuple[int, ...], tuple[int, int, _State]]()
        for cost, steps, state, _ in ahead.values():
            counts = self.counts(state)
            cheapest[counts] = min(cheapest.get(counts, (most, most, state)), (cost, steps, state))
        ways = list[tuple[int, int, list[_State]]]()
        for cost, steps, state, _ in behind.values():
            if self.counts(state) in cheapest:
                before, first, other = cheapest[self.counts(state)]
                ways.append((before + cost + self.elements(state), first + steps + 1, [other, state]))
        best = min(ways, default=(most, most, []))
        direct = self.reach(start, best[0], end)
        if end in direct and direct[end][:2] <= best[:2]:
            return _trace(direct, end)
        if not best[2]:
            return None
        other, state = best[2]
        return _trace(ahead, self.key(other)) + _trace(behind, self.key(state))[::-1]


def _trace(found: Mapping[Any, tuple[int, int, _State, Any]], key: Any) -> list[_State]:
    """The states from the start of a search to this one."""
    way = list[_State]()
    while key is not None:
        way.insert(0, found[key][2])
        key = found[key][3]
    return way


def _with(state: _State, dim: int, cut: tuple[int, ...]) -> _State:
    return (*state[:dim], cut, *state[dim + 1 :])


def _difference(a: _State, b: _State) -> list[tuple[int, ...]]:
    """Per dim the atoms that cut it in a and not in b."""
    return [tuple(k for k in x if k not in y) for x, y in zip(a, b, strict=True)]


def _found(a: MeshLayout, b: MeshLayout) -> tuple[Step, ...] | None:
    """The steps of the cheapest way; None where the search finds none."""
    overs = a.sharding, b.sharding
    dims = [[over.pieces(dim) for dim in range(a.rank)] for over in overs]
    atoms = _atoms([*dims[0], *dims[1]], a.mesh.size)
    if atoms is None or any(over.order is not None or over.device is not None for over in overs):
        return None
    search = _Search(a.shape, tuple(atoms))
    way = search.path(search.state(dims[0]), search.state(dims[1]))
    if way is None:
        return None
    hops = [(_op(search, one, other), one, other) for one, other in pairwise(way)]
    for k in range(len(hops) - 1, 0, -1):  # slices in a row are one, and so are gathers of one dim
        (op, start, one), (other, _, end) = hops[k - 1 : k + 1]
        if op == other and (op == "slice" or (op == "all-gather" and _dims(start, one) == _dims(one, end))):
            hops[k - 1 : k + 1] = [(op, start, end)]
    steps, layout = list[Step](), a
    for k, (op, before, state) in enumerate(hops):
        after = b if k == len(hops) - 1 else _layout(a, search, state)
        moved = [atoms[j] for gone in _difference(before, state) for j in gone]
        groups: tuple[tuple[int, ...], ...] = ()
        if op.startswith("all"):
            groups = spread(moved, unused(moved, a.mesh.size))
        elements = search.cost(before, state)
        if op == "collective-permute":
            groups, elements = _pairs(layout, after) or (), search.elements(state)
        steps.append(Step(op, layout, after, groups, -(-elements * a.element_bits // 8)))
        layout = after
    return tuple(steps)


def _dims(a: _State, b: _State) -> list[int]:
    """The dims that a step from a to b changes."""
    return [dim for dim, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]


def _op(search: _Search, before: _State, after: _State) -> str:
    came, gone = any(_difference(after, before)), any(_difference(before, after))
    if search.counts(before) == search.counts(after):
        return "collective-permute"
    return "all-to-all" if came and gone else "slice" if came else "all-gather"


def _layout(a: MeshLayout, search: _Search, state: _State) -> MeshLayout:
    """The layout of a state, over a's mesh where its axes say it, else over one of the atoms."""
    dims = [[search.atoms[k] for k in dim] for dim in state]
    for dim in dims:
        for k in range(len(dim) - 1, 0, -1):  # neighbours that count on are one
            if dim[k - 1].stride == dim[k].size * dim[k].stride:
                dim[k - 1 : k + 1] = [Piece(dim[k - 1].size * dim[k].size, dim[k].stride)]
    parts = [[a.mesh.parts(piece) for piece in dim] for dim in dims]
    mesh = a.mesh
    if any(part is None for dim in parts for part in dim):
        mesh = Mesh({f"axis_{k}": atom.size for k, atom in enumerate(search.atoms)}, devices=a.mesh.devices)
        parts = [[mesh.parts(piece) for piece in dim] for dim in dims]
    over = Sharding(mesh, tuple(tuple(p for several in dim for p in several or ()) for dim in parts))
    return shard(a.whole, None, over)


def _pairs(a: MeshLayout, b: MeshLayout) -> tuple[tuple[int, ...], ...] | None:
    """(source, target) of a permute: who has the shard already keeps it; None where one device would send twice."""
    holders, pairs, waiting = dict[Any, list[int]](), list[tuple[int, int]](), list[int]()
    for device in range(a.mesh.size):
        holders.setdefault(a.starts(device), []).append(device)
    for device in range(a.mesh.size):
        if device in holders.get(b.starts(device), ()):
            holders[b.starts(device)].remove(device)
            pairs.append((device, device))
        else:
            waiting.append(device)
    for device in waiting:
        if not holders.get(b.starts(device)):
            return None
        pairs.append((holders[b.starts(device)].pop(0), device))
    return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))


def _exchange(a: MeshLayout, b: MeshLayout) -> tuple[Step, ...]:
    """One step: a permute where shards only change devices, else every device sends what others lack."""
    if not (lacking := _lacking(a, b)):
        return (Step("slice", a, b, (), 0),)
    pairs = _pairs(a, b) if a.shard_shape == b.shard_shape and a.replicas == b.replicas else None
    if pairs is not None:
        return (Step("collective-permute", a, b, pairs, -(-math.prod(a.shard_shape) * a.element_bits // 8)),)
    everyone = (tuple(range(a.mesh.size)),)
    return (Step("ragged-all-to-all", a, b, everyone, -(-lacking * a.element_bits // 8)),)
