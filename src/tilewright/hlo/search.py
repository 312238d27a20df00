"""Which shardings of a program's arguments are best: candidates are partitioned for real, timed, and held to memory."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import log, prod
from typing import Any

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.program import Program
from tilewright.hlo.reading.sharded import Place, places, sharded
from tilewright.hlo.slices import partition
from tilewright.layout import Mesh
from tilewright.layout.meshes.text import mesh_of
from tilewright.render import bytes_text, seconds_text
from tilewright.render.tables import Table
from tilewright.targets import Target
from tilewright.targets import target as find_target

MOST = 200
"""Candidates that are partitioned."""
_NUMBERS = re.compile(r"(?<=[\[_])\d+")
"""Of layers: ``[3]``, ``['Dense_3']``."""
_PER_ARRAY = 24
"""Ways to cut one array that are tried, those into most parts first."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate: ``shardings`` of its arguments, as ``--shard`` takes them, and what a step of it is.

    ``peak_bytes`` of a device's memory, ``fits`` whether it has them; ``error``: why it cannot be partitioned.
    """

    shardings: Mapping[str, str]
    seconds: float = 0.0
    exposed_seconds: float = 0.0
    peak_bytes: int = 0
    fits: bool = False
    error: str = ""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """What fits first, by its step, and of steps within a hundredth by its memory; what does not by its memory."""
        step = round(100 * log(self.seconds)) if self.fits and self.seconds else 0
        return not self.fits, step, float("inf") if self.error else self.peak_bytes

    def __str__(self) -> str:
        return "  ".join(f"{name}={axes}" for name, axes in self.shardings.items() if axes) or "as the program says"


@dataclass(frozen=True)
class Search:
    """What was tried, in order; the first is what was given. Times and peaks are modelled."""

    program: str
    target: str
    memory: int
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Tried:
        """The shortest step that fits a device's memory."""
        return min(self.tried, key=lambda each: each.rank)

    def options(self) -> list[str]:
        """The best one, for the command line."""
        return [f'--shard "{name}={axes}"' for name, axes in self.best.shardings.items() if axes]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = [{key: getattr(each, key) for key in Tried.__slots__} for each in self.tried]
        head = {"schema": "tilewright.shardings/1", "program": self.program, "target": self.target}
        return {**head, "memory": self.memory, "best": dict(self.best.shardings), "tried": rows}

    def lines(self, top: int = 12) -> Iterator[str | Table]:
        """The best, and a table of the best ones and what was given."""
        best, first = self.best, self.tried[0]
        failed = sum(bool(each.error) for each in self.tried)
        yield f"best of {len(self.tried)} shardings tried for {self.program} on {self.target}: {best}"
        was = f"given {seconds_text(first.seconds)}" if not first.error else "what was given cannot be partitioned"
        yield f"a step {seconds_text(best.seconds)} ({was}), {bytes_text(best.peak_bytes)} of {bytes_text(self.memory)}"
        if not best.fits:
            yield "nothing that was tried fits a device's memory: this one needs least"
        if failed:
            yield f"{failed} could not be partitioned"
        shown = sorted((each for each in self.tried if not each.error), key=lambda each: each.rank)[:top]
        columns = ("", ("step", "seconds"), ("exposed", "seconds"), ("a device", "bytes"), "fits", "shardings")
        rows = list[tuple[object, ...]]()
        for e in ([] if first in shown or first.error else [first]) + shown:
            fits = "yes" if e.fits else "no"
            rows.append(("given" if e is first else "", e.seconds, e.exposed_seconds, e.peak_bytes, fits, str(e)))
        yield ""
        yield Table(columns, rows)  # type: ignore[arg-type]


def search_shardings(
    program: Program,
    target: Target | str,
    mesh: Mesh | Mapping[str, int] | str,
    most: int = MOST,
    told: Callable[[int], None] | None = None,
) -> Search:
    """The shardings of a program's arguments over a mesh with the shortest modelled step that fits a device's memory.

    Arguments of one shape and of one place in their trees but for numbers (``params['w']``, ``state[0].mu['w']``, all
    layers) are cut alike. From what the program says and from inputs cut along their first dim, the largest arrays
    first, every way to cut one is partitioned while the others stay, until nothing gets better or ``most`` were tried.
    ``told`` is called with how many are done. Raises UsageError for a chip without HBM.
    """
    machine, over = find_target(target) if isinstance(target, str) else target, mesh_of(mesh)
    hbm = machine.memory("hbm")
    if hbm is None:
        raise UsageError(f"{machine.name} has no HBM", where="--search")
    groups = groups_of([place for place in places(program) if place.argument and place.shape])
    titles = Counter(map(title_of, groups))  # of two groups alike but for shapes, each array is named
    names = {
        several[0].name: [title_of(several)] if titles[title_of(several)] == 1 else [place.name for place in several]
        for several in groups
    }
    done = dict[tuple[str, ...], Tried]()

    def tried(choice: tuple[str, ...]) -> Tried:
        pairs = [(several, axes) for several, axes in zip(groups, choice, strict=True) if axes != "given"]
        shown = {name: axes for several, axes in pairs for name in names[several[0].name]}
        try:
            cut = {place.name: axes for several, axes in pairs for place in several}
            part = partition(sharded(program, over, cut), machine)
            step, peak = part.step, part.peak_bytes
        except TilewrightError as error:
            return Tried(shown, error=error.what)
        return Tried(shown, step.device_seconds, step.exposed_seconds, peak, peak <= hbm.usable)

    def all_of(choices: Sequence[tuple[str, ...]]) -> None:
        new = list(dict.fromkeys(choice for choice in choices if choice not in done))[: most - len(done)]
        for choice, one in zip(new, pool.map(tried, new)):
            done[choice] = one
            if told is not None:
                told(len(done))

    ways = [_ways(several[0].shape, over) for several in groups]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        first = ("given",) * len(groups)
        all_of([first, *_begins(groups, over)])
        best, before = min(done, key=lambda choice: done[choice].rank), None
        while best != before and len(done) < most:
            before = best
            for k, way in enumerate(ways):
                all_of([(*best[:k], axes, *best[k + 1 :]) for axes in way])
                better = min(done, key=lambda choice: done[choice].rank)
                best = better if done[better].rank < done[best].rank else best
    if all(each.error for each in done.values()):
        raise UnsupportedError(f"it cannot be partitioned: {done[first].error}")
    return Search(program.name, machine.name, hbm.usable, tuple(done.values()))


def groups_of(arguments: Sequence[Place]) -> list[list[Place]]:
    """Arguments that are cut alike, the largest arrays first."""
    found = dict[tuple[str, tuple[int, ...]], list[Place]]()
    for place in arguments:
        key = _NUMBERS.sub("0", _inside(place.name) or place.name)
        found.setdefault((key, place.shape), []).append(place)
    return sorted(found.values(), key=lambda several: -prod(several[0].shape) * len(several))


def _inside(name: str) -> str:
    """Where an array is in its tree: ``['w']`` of ``params['w']`` and of an optimizer's ``state[0].mu['w']``."""
    inside = re.search(r"\['.*", name) or re.search(r"[\[.].*", name)
    return inside[0] if inside else ""


def title_of(several: Sequence[Place]) -> str:
    """The name that means all of them: ``*['layers'][*]['w']``."""
    inside = _inside(several[0].name)
    return several[0].name if len(several) == 1 or not inside else "*" + _NUMBERS.sub("*", inside)


def _begins(groups: Sequence[Sequence[Place]], mesh: Mesh) -> list[tuple[str, ...]]:
    """Where the search begins: nothing cut, and for every split of the axes what comes in alone cut along its first dim
    by the one part, what comes in trees (parameters, states, layers) not at all, along its largest by the other, or by
    both."""
    names = [name for name, size in mesh.axes.items() if size > 1]
    found = [("-",) * len(groups)]
    for chosen in product((True, False), repeat=len(names)):
        batch = [name for name, yes in zip(names, chosen) if yes]
        rest = [name for name in names if name not in batch]
        for kept, also in ((rest, []), (rest, batch), ([], [])):
            choice = []
            for place, *_ in groups:
                alone = re.search(r"[\[.]", place.name) is None
                large = max(range(len(place.shape)), key=lambda k: place.shape[k])
                other = next((k for k in range(len(place.shape)) if k != large), large)
                cut = {0: batch} if alone else {other: also, large: kept + (also if other == large else [])}
                way = ",".join("+".join(cut.get(k, [])) or "-" for k in range(len(place.shape)))
                choice.append(way if way in _ways(place.shape, mesh) else "-")
            found.append(tuple(choice))
    return found


def _ways(shape: tuple[int, ...], mesh: Mesh) -> list[str]:
    """The ways to cut an array: every axis over one dim that it divides, or none, as ``data+model,-``."""
    names = [name for name, size in mesh.axes.items() if size > 1]
    found = dict[str, int]()
    for dims in product(range(-1, len(shape)), repeat=len(names)):
        cut = [[name for name, dim in zip(names, dims) if dim == k] for k in range(len(shape))]
        parts = [prod(mesh.axes[name] for name in some) for some in cut]
        if all(size % count == 0 and size >= count for size, count in zip(shape, parts)):
            found[",".join("+".join(some) or "-" for some in cut)] = -prod(parts)
    return sorted(found, key=lambda way: found[way])[:_PER_ARRAY]
