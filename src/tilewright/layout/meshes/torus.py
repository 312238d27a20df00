"""Where the devices of a mesh stand: which chips of a slice's torus a mesh axis runs over, as JAX lays them.

``jax.experimental.mesh_utils.create_device_mesh`` decides it, which ``jax.make_mesh`` and most frameworks ask: the last
axis, which exchanges most, takes dims of the torus first, several whole ones where it can. This is its rule for slices
of any size, with dims that several axes share, and its rings for the smallest slices (a target's ``links.orders``); a
test holds it to JAX's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.errors import UsageError
from tilewright.render import Html, bytes_text
from tilewright.render.drawing import Drawing


def squarest(count: int, dims: int) -> tuple[int, ...]:
    """The slice of ``count`` chips in so many dims, the smallest first: 32 chips in two are 4 x 8.

    The largest prime factors come first, each to the smallest dim.
    """
    sizes, rest, factors, by = [1] * dims, count, list[int](), 2
    while rest > 1 and by * by <= rest:
        by, rest, factors = (by, rest // by, [*factors, by]) if rest % by == 0 else (by + 1, rest, factors)
    for factor in sorted([*factors, rest], reverse=True):
        sizes[sizes.index(min(sizes))] *= factor
    return tuple(sorted(sizes))


def device_places(
    mesh: Sequence[int], torus: Sequence[int], cores: int = 1, orders: Mapping[str, Sequence[int]] | None = None
) -> np.ndarray[Any, Any]:
    """int64[devices, dims]: the chip of the device at every place of a mesh, by its coordinates on the torus.

    ``mesh``: the sizes of the axes, least exchange first; ``cores``: devices of a chip; ``orders``: of the smallest
    slices, ``2x4`` -> the devices in a ring, numbered with x fastest.

    >>> device_places((4, 2), (2, 4)).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2], [0, 3], [1, 3]]
    """
    shape = (*torus, cores) if cores > 1 else tuple(torus)
    numbers = np.arange(prod(shape)).reshape(shape)
    size, order = prod(shape), (orders or {}).get("x".join(map(str, torus)))
    if prod(mesh) != size:
        raise UsageError(f"{size} devices are no mesh of {'x'.join(map(str, mesh))}")
    if order is not None and (len(order) <= 8 or max(mesh, default=1) == size):  # JAX: a ring of 16 for one axis only
        # coordinates with x fastest, then y, then z; of a chip's devices the number is fastest
        turned = numbers.transpose(*reversed(range(len(torus))), *range(len(torus), numbers.ndim)).reshape(-1)
        numbers = turned[np.concatenate([np.array(order) + start for start in range(0, size, len(order))])]
    else:
        numbers = _on_parts(numbers, tuple(mesh))
    return np.stack(np.unravel_index(numbers.reshape(-1), shape), 1)[:, : len(torus)]


def _on_parts(physical: np.ndarray[Any, Any], mesh: tuple[int, ...]) -> np.ndarray[Any, Any]:
    given = np.ones((physical.ndim, len(mesh)), np.int64)  # dim of the torus, axis -> the axis's part of it
    for axis in reversed(range(len(mesh))):
        done = given.prod(1)
        free = [size // int(part) for size, part in zip(physical.shape, done, strict=True)]

        def liked(parts: tuple[int, ...]) -> tuple[Any, ...]:
            whole = [part for part, size in zip(parts, physical.shape, strict=True) if part == size]
            shared = prod(part for part, before in zip(parts, done, strict=True) if before > 1)  # noqa: B023
            return prod(whole), sum(part > 1 for part in whole), shared, parts

        given[:, axis] = max(_splits(mesh[axis], free), key=liked)
    dims = physical.reshape(given.reshape(-1))
    return dims.transpose([dim * len(mesh) + axis for axis in range(len(mesh)) for dim in range(physical.ndim)])


def _splits(size: int, free: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The ways to write a size as a product of one divisor of each."""
    if len(free) == 1:
        yield from [(size,)] if free[0] % size == 0 else []
        return
    for part in (part for part in range(1, min(size, free[0]) + 1) if free[0] % part == 0 == size % part):
        yield from ((part, *rest) for rest in _splits(size // part, free[1:]))


Chip: TypeAlias = tuple[int, ...]
"""A slice's number, and coordinates on its torus."""
Link: TypeAlias = tuple[Chip, int, int]
"""From a chip along a dim, 1 or -1."""


class Extent(NamedTuple):
    """Chips of a group along a dim: how many, whether in a ring, hops to the next, groups that share a link."""

    size: int
    ring: bool = False
    hops: int = 1
    shared: int = 1

    def __str__(self) -> str:
        apart = f" ({self.hops} hops apart)" if self.hops > 1 else ""
        return f"{self.size}{' in a ring' if self.ring else ''}{apart}"


def fullest(kind: str, extents: Sequence[Extent]) -> tuple[float, ...]:
    """Per dim what passes its fullest link one way: of a gathered or summed array, or in an all-to-all of a shard.

    A gather goes dim by dim, each part of it in an order of its own, so that links are busy alike. What the chips along
    some of the dims lack of each other, they send over these dims' links, whatever the order: that can be more.

    >>> fullest("all-gather", [Extent(4, ring=True), Extent(4)])  # 15 of 16 parts, over three ways
    (0.3125, 0.3125)
    >>> fullest("all-gather", [Extent(64), Extent(2, ring=True)])  # 63 of 128 parts over one way, the rest over two
    (0.4921875, 0.25)
    >>> fullest("all-to-all", [Extent(4, ring=True), Extent(4)])
    (0.5, 1.0)
    """
    if "all-to-all" in kind:
        halves = (each.size // 2 * (each.size - each.size // 2) / each.size for each in extents)
        return tuple(half * each.shared / (1 + each.ring) for half, each in zip(halves, extents, strict=True))
    left, done, found = {*range(len(extents))}, 1, dict[int, float]()

    def share(dims: tuple[int, ...]) -> float:
        parts = done * (prod(extents[k].size for k in dims) - 1)
        return parts / sum((1 + extents[k].ring) / extents[k].shared for k in dims)

    while left:
        some = (each for count in range(1, len(left) + 1) for each in combinations(sorted(left), count))
        dims = max(some, key=share)
        found |= dict.fromkeys(dims, share(dims) / prod(each.size for each in extents))
        done, left = done * prod(extents[k].size for k in dims), left - {*dims}
    return tuple(found[k] for k in range(len(extents)))


class Slice:
    """The chips of one or more slices, where a program's devices stand on them, and the links between.

    ``places``: the chip of every device by its coordinates, the slice's number in front; ``torus``: chips along each
    dim; ``rings``: whether the dim's ends are joined; ``mesh``, ``names``: the axes of the devices' mesh.
    """

    def __init__(
        self,
        places: np.ndarray[Any, Any],
        torus: Sequence[int],
        rings: Sequence[bool],
        mesh: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self.torus, self.rings, self.mesh, self.names = tuple(torus), tuple(rings), tuple(mesh), tuple(names)
        self.chips: list[Chip] = list(map(tuple, places.tolist()))
        self._routes = dict[tuple[tuple[int, ...], ...], tuple[int, int, bool]]()
        self._known = dict[tuple[tuple[int, ...], ...], tuple[Extent, ...]]()

    def __str__(self) -> str:
        """The slice, and over which of its chips each axis runs."""
        numbers = np.arange(prod(self.mesh)).reshape(self.mesh)
        slices, said = len({chip[0] for chip in self.chips}), list[str]()
        for axis, (name, size) in enumerate(zip(self.names, self.mesh, strict=True)):
            groups = tuple(map(tuple, np.moveaxis(numbers, axis, -1).reshape(-1, size).tolist()))
            if size > 1:
                across = len({self.chips[device][0] for device in groups[0]})
                lines = [f"{across} slices"] * (across > 1) + [str(extent) for extent in self.extents(groups)]
                said.append(f"{name} over {' by '.join(lines) or 'the devices of a chip'}")
        rings = [f"{size}" for size, ring in zip(self.torus, self.rings, strict=True) if ring]
        torus = "x".join(map(str, self.torus))
        torus += f" (a ring in its dim of {rings[0]})" if len(rings) == 1 else " (rings in all dims)" if rings else ""
        return f"{f'{slices} slices of ' if slices > 1 else ''}{torus} chips, laid as JAX does: {', '.join(said)}"

    def way(self, a: Chip, b: Chip) -> list[Link]:
        """The links from a chip to another, dim by dim, the short way round: (chip, dim, 1 or -1)."""
        links, at = list[Link](), list(a)
        for dim, (size, ring) in enumerate(zip(self.torus, self.rings, strict=True), 1):
            gap = b[dim] - at[dim]
            step = 1 if gap > 0 else -1
            if ring and 2 * abs(gap) > size - (gap < 0):  # both ways as long: on round the ring
                gap, step = size - abs(gap), -step
            for _ in range(abs(gap)):
                links.append((tuple(at), dim, step))
                at[dim] = (at[dim] + step) % size
        return links

    def extents(self, groups: tuple[tuple[int, ...], ...]) -> tuple[Extent, ...]:
        """How the groups of an exchange lie: an extent for each dim of the torus that they spread over.

        Chips in a block, or spread evenly, send along all of its dims at once. Others, such as the rings that JAX makes
        of small slices and meshes turned on the torus, are one ring in the order of the mesh.
        """
        if groups not in self._known:
            self._known[groups] = self._extents(groups)
        return self._known[groups]

    def _extents(self, groups: tuple[tuple[int, ...], ...]) -> tuple[Extent, ...]:
        first = list(dict.fromkeys(self.chips[device] for device in groups[0]))
        values = [sorted({chip[dim] for chip in first}) for dim in range(1, len(self.torus) + 1)]
        slices = {chip[0] for chip in first}
        steps = [{b - a for a, b in pairwise(some)} for some in values]
        if len(slices) * prod(map(len, values)) == len(first) and all(len(step) < 2 for step in steps):
            found = []
            for some, step, size, ring in zip(values, steps, self.torus, self.rings, strict=True):
                apart = min(step, default=1)
                if len(some) > 1:
                    found.append(Extent(len(some), ring and len(some) * apart == size, apart, apart))
            return tuple(found)
        inside = {tuple(dict.fromkeys(self.chips[each] for each in group)) for group in groups}
        pairs = [pair for chips in inside for pair in pairwise(chips) if pair[0][0] == pair[1][0]]
        ends = [(chips[-1], chips[0]) for chips in inside if len(chips) > 2 and chips[0][0] == chips[-1][0]]
        closed = bool(ends) and max(len(self.way(*end)) for end in ends) <= max(len(self.way(*pair)) for pair in pairs)
        hops, shared = self.routed([*pairs, *(ends if closed else ())])
        return (Extent(len(first) // len(slices), closed, max(1, hops), max(1, shared)),)

    def loads(self, kind: str, groups: tuple[tuple[int, ...], ...], size: float) -> Counter[Link]:
        """What passes each link, one way, in an exchange: ``size`` is of the whole array, of a permute a shard.

        Along a dim as :meth:`extents` has it, to both sides; along several as :func:`fullest` has it.
        """
        found = Counter[Link]()
        if kind == "collective-permute":
            for source, target in groups:
                found.update(dict.fromkeys(self.way(self.chips[source], self.chips[target]), size))
            return found
        extents, times = self.extents(groups), 2 if kind == "all-reduce" else 1
        inside = {tuple(dict.fromkeys(self.chips[device] for device in group)) for group in groups}
        passed = defaultdict[tuple[Chip, ...], set[int]](set)  # dims that another extent of the group is along
        for chips, (extent, full) in product(inside, zip(extents, fullest(kind, extents), strict=True)):
            most, n = times * size * full / extent.shared, extent.size
            for line in self._lines(chips, extent, len(extents), passed[chips]):
                for k, (a, b) in enumerate(pairwise([*line, *line[:1]] if extent.ring else line)):
                    right, left = (1.0, 1.0) if extent.ring else ((k + 1) / (n - 1), (n - 1 - k) / (n - 1))
                    if "all-to-all" in kind and not extent.ring:
                        right = left = (k + 1) * (n - 1 - k) / (n // 2 * (n - n // 2))
                    there = self.way(a, b)
                    found.update(dict.fromkeys(there, most * right))
                    for at, dim, step in there:  # and back over the same links
                        far = (at[dim] + step) % self.torus[dim - 1]
                        found.update({((*at[:dim], far, *at[dim + 1 :]), dim, -step): most * left})
        return found

    def _lines(self, chips: Sequence[Chip], extent: Extent, dims: int, passed: set[int]) -> list[list[Chip]]:
        """The lines of a group along an extent: of a block those along its dim, else the group in its order.

        A dim in ``passed`` is another extent's, perhaps of the same size; the one found is put into it.
        """
        for dim in sorted({*range(1, len(self.torus) + 1)} - passed):
            lines = defaultdict[Chip, list[Chip]](list)
            for chip in sorted(chips):
                lines[*chip[:dim], *chip[dim + 1 :]].append(chip)
            steps = {b[dim] - a[dim] for line in lines.values() for a, b in pairwise(line)}
            if {len(line) for line in lines.values()} == {extent.size} and steps == {extent.hops}:
                passed.add(dim)
                return list(lines.values())
        return [list(chips)] if dims == 1 else []

    def to_svg(self, loads: Mapping[Link, float]) -> Html:
        """The first slice with what passes each link in a step, the deeper the more; planes of three dims side by side.

        A ring's closing link stands at both ends.
        """
        across, down, planes = (*self.torus, 1, 1)[:3]
        most, cell, gap = max(loads.values(), default=1.0) or 1.0, 24, 48
        wide = across * gap + gap
        drawing = Drawing(max(planes * wide, 320), down * gap + 84, title=f"{self}: bytes over each link", ground=True)
        drawing.text(12, 20, f"at most {bytes_text(round(most))} over a link, one way, in a step", "small")
        for (chip, dim, step), load in loads.items():
            place = (*chip[1:], 0, 0)[:3]
            x, y = place[2] * wide + 36 + place[0] * gap, 64 + place[1] * gap
            style, tip = (
                f"r{min(7, int(8 * load / most))}",
                f"{chip[1:]} {'xyz'[dim - 1]}{step:+d}: {bytes_text(round(load))}",
            )
            if chip[0] == 0 and dim < 3:
                far = gap - cell
                if dim == 1:
                    drawing.rect(x + cell if step > 0 else x - far, y + (4 if step > 0 else 13), far, 7, style, tip=tip)
                else:
                    drawing.rect(x + (4 if step > 0 else 13), y + cell if step > 0 else y - far, 7, far, style, tip=tip)
            elif chip[0] == 0:  # to the next plane: beside the chip
                drawing.circle(x + (cell if step > 0 else 0), y + (cell if step > 0 else 0), 5, style, tip=tip)
        for device, chip in enumerate(self.chips):
            place = (*chip[1:], 0, 0)[:3]
            x, y = place[2] * wide + 36 + place[0] * gap, 64 + place[1] * gap
            if chip[0] == 0:
                drawing.rect(x, y, cell, cell, "cell c0", tip=f"device {device} of the mesh, chip {chip[1:]}")
                drawing.text(x + cell / 2, y + 16, str(device), "small", anchor="middle")
        return drawing.svg()

    def permuted(self, pairs: tuple[tuple[int, ...], ...]) -> tuple[int, int, bool]:
        """Of a permute's pairs of devices: as :meth:`routed` says, and whether any lies in two slices."""
        if pairs not in self._routes:
            ends = [(self.chips[source], self.chips[target]) for source, target in pairs]
            self._routes[pairs] = (*self.routed(ends), any(a[0] != b[0] for a, b in ends))
        return self._routes[pairs]

    def routed(self, pairs: Sequence[tuple[Chip, Chip]]) -> tuple[int, int]:
        """Of chips that send at once: the most links that one passes, and the most that pass one link."""
        ways = [self.way(a, b) for a, b in pairs if a[0] == b[0]]
        loads = Counter(link for way in ways for link in way)
        return max(map(len, ways), default=0), max(loads.values(), default=0)
