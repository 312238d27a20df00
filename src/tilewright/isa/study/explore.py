"""explore: a whole network on many machines, each at its best: cycles, energy, area, and who is beaten by nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import ELEMENT_TYPES
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.errors import whole
from tilewright.isa.study.choices import choices
from tilewright.isa.study.machines import machines
from tilewright.isa.study.networks import NETWORKS, LayerShape, read_network
from tilewright.isa.study.tune import Tuned, Tuning, search
from tilewright.isa.study.tune_conv import ConvProblem, conv_choices
from tilewright.layout import paged

AREA_SOURCE = (
    "cells and multipliers only, 45 nm: a 6T SRAM cell of 0.346 um2 (Mistry et al., A 45nm Logic Technology, IEDM "
    "2007); multipliers and adders as in Dally, High-Performance Hardware for Machine Learning, NIPS 2015: 8 bits 282 "
    "um2 and 137 for the 32-bit addition, 16 bits 1640 and f32 7700, with 4184 for the f32 addition"
)
_CELL = 0.346
_MULTIPLY = {1: (282.0, 137.0), 2: (1640.0, 4184.0), 4: (7700.0, 4184.0)}
"""um2 of a multiplier and of the adder behind it, by the bytes of a factor."""
FAMILY: dict[str, tuple[Any, ...]] = {"threads": (128, 256, 512), "line_bytes": (64, 128), "l1_bytes": (32768, 65536)}
"""The machines that are explored where none are named."""


def area_mm2(config: MatrixUnitConfig, element_bytes: int = 1) -> float:
    """A proxy of the area in mm2: memory cells and multipliers, nothing else (:data:`AREA_SOURCE`).

    No wires, ports, decoders or control: bandwidths cost nothing in it, so they should not be explored by it.

    >>> round(area_mm2(MatrixUnitConfig()), 1), round(area_mm2(MatrixUnitConfig(threads=512)), 1)
    (14.1, 16.4)
    """
    c = config
    bits = 8 * c.l2_bytes + c.pes * (8 * c.l1_bytes + c.threads * (32 * c.registers + c.predicates))
    rate = c.macs_per_thread_cycle or c.chunk(element_bytes)
    units = c.pes * c.compute_threads * rate * c.columns_per_step
    return (bits * _CELL + units * sum(_MULTIPLY[element_bytes])) / 1e6


@dataclass(frozen=True)
class LayerCost:
    """One layer on one machine: its best choice among those timed."""

    layer: LayerShape
    best: Tuned

    @property
    def cycles(self) -> int:
        """Of all of its kind."""
        return self.layer.count * (self.best.cycles or 0)

    @property
    def energy_pj(self) -> float:
        """Of all of its kind, modelled."""
        return self.layer.count * self.best.energy_pj


@dataclass(frozen=True)
class Point:
    """One machine: the fields it differs in and what the network costs, or why it cannot be (``refused``)."""

    settings: dict[str, Any]
    config: MatrixUnitConfig | None
    area_mm2: float = 0.0
    layers: tuple[LayerCost, ...] = ()
    utilisation: float = 0.0
    refused: str = ""

    @property
    def cycles(self) -> int:
        """Of the whole network, a layer after the other."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def energy_pj(self) -> float:
        """Of the whole network, modelled."""
        return sum(layer.energy_pj for layer in self.layers)

    @property
    def costs(self) -> tuple[float, float, float]:
        """Cycles, energy, area."""
        return self.cycles, self.energy_pj, self.area_mm2

    @property
    def name(self) -> str:
        """Its fields in a line."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "as it is"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        if self.refused:
            return {"settings": self.settings, "refused": self.refused}
        plain: dict[str, Any] = {"settings": self.settings, "cycles": self.cycles, "energy_pj": self.energy_pj}
        plain |= {"area_mm2": self.area_mm2, "utilisation": self.utilisation}
        layers = [
            {"layer": str(each.layer), "choice": str(each.best.choice), "cycles": each.cycles}
            | {"energy_pj": each.energy_pj, "limit": each.best.limit}
            for each in self.layers
        ]
        return plain | {"layers": layers}


@dataclass(frozen=True)
class Exploration:
    """Every machine in ``points``, in the order asked; ``front``: those that no other beats in all three costs."""

    network: str
    dtype: str
    base: MatrixUnitConfig
    points: tuple[Point, ...]

    @property
    def built(self) -> tuple[Point, ...]:
        """The machines that can be."""
        return tuple(point for point in self.points if not point.refused)

    @property
    def front(self) -> tuple[Point, ...]:
        """No other machine costs less in one way and not more in the others; the fastest first."""
        kept = [point for point in self.built if not any(_beats(other, point) for other in self.built)]
        return tuple(sorted(kept, key=lambda point: point.costs))

    @property
    def fastest(self) -> Point:
        """Of those on the front."""
        return self.front[0]

    @property
    def balanced(self) -> Point:
        """The least product of cycles, energy and area."""
        return min(self.front, key=lambda point: point.cycles * point.energy_pj * point.area_mm2)

    def beaten_by(self, point: Point) -> tuple[Point, ...]:
        """Machines that cost no more in any way and less in one."""
        return tuple(other for other in self.front if _beats(other, point))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        front = {id(point) for point in self.front}
        points = [point.to_dict() | {"on_front": id(point) in front} for point in self.points]
        return {"network": self.network, "dtype": self.dtype, "area": AREA_SOURCE, "points": points}


def _beats(one: Point, other: Point) -> bool:
    return one.costs != other.costs and all(a <= b for a, b in zip(one.costs, other.costs, strict=True))


def explore(
    network: str | Sequence[LayerShape] = "resnet50",
    over: Mapping[str, Sequence[Any]] | None = None,
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    most: int = 4,
    watch: Callable[[int, int], None] | None = None,
) -> Exploration:
    """A network on every combination of values of the machine's fields, each layer by the fastest way found.

    ``network``: a name (resnet50), a text of one layer a line (``fc 1 gemm 1x1000x2048``), or layers. ``most``: ways
    timed for each layer and machine, best bound first, so that every figure is a run's. Layers run one after the other
    and keep nothing from one to the next. ``watch(done, all)`` is told. Raises :class:`UsageError` for what it does
    not know.

    >>> found = explore("fc 1 gemm 8x32x64", {"threads": (32, 64)})
    >>> [(point.settings["threads"], point.cycles) for point in found.front]
    [(32, 843)]
    """
    base, name, layers = checked_config(config), "layers", network
    if isinstance(network, str):
        name = network if network in NETWORKS else "shapes"
        layers = NETWORKS[network]() if network in NETWORKS else read_network(network)
    if dtype not in ELEMENT_TYPES:
        raise UsageError(f"no element type called {dtype!r}", how=f"one of {', '.join(ELEMENT_TYPES)}")
    family, most = machines(FAMILY if over is None else over), whole("most", most, 1)
    e, points, done = paged((1,), dtype).numpy_dtype.itemsize, [], 0
    for settings in family:
        try:
            machine = replace(base, **settings)
        except UsageError as error:
            points.append(Point(settings, None, refused=str(error)))
            continue
        costs = []
        for layer in layers:
            assert isinstance(layer, LayerShape)
            costs.append(LayerCost(layer, tuned(layer, dtype, e, machine, most).best))
            done += 1
            if watch is not None:
                watch(done, len(family) * len(layers))
        points.append(_point(settings, machine, e, tuple(costs)))
    if all(point.refused for point in points):
        raise UsageError(f"no machine can be: {points[0].refused}", how="give other values")
    return Exploration(name, dtype, base, tuple(points))


def tuned(layer: LayerShape, dtype: str, element_bytes: int, config: MatrixUnitConfig, most: int) -> Tuning:
    """A layer's ways, ranked."""
    problem = layer.problem(element_bytes, config)
    space: Sequence[Any]
    space = conv_choices(problem, {}) if isinstance(problem, ConvProblem) else choices(problem, {})
    return search(problem, dtype, space, most, 0.0, None)


def _point(settings: dict[str, Any], config: MatrixUnitConfig, e: int, costs: tuple[LayerCost, ...]) -> Point:
    macs = sum(cost.layer.count * cost.layer.problem(e, config).macs for cost in costs)
    rate = (config.macs_per_thread_cycle or config.chunk(e)) * config.compute_threads * config.pes
    cycles = sum(cost.cycles for cost in costs)
    return Point(settings, config, area_mm2(config, e), costs, macs / max(1, cycles * rate))
