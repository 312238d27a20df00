"""Many machines, each at its best: one product (:func:`sweep`), or a whole network (:func:`explore`).

Of each: cycles, energy, area, and which machines are beaten by none. Networks are lists of products and
convolutions, by name or from a text of one layer a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any

from tilewright.errors import UsageError, check_known
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.errors import whole
from tilewright.isa.study.choices import ConvProblem, Problem, problem_of
from tilewright.isa.study.tune import Tuned, Tuning, autotune, element_bytes, search
from tilewright.render import Card, Column, Html, Page, Step, cards, steps, table
from tilewright.render.drawing import LogPlane
from tilewright.render.page import paragraph

_MOST_MACHINES = 200

# Networks.


@dataclass(frozen=True)
class LayerShape:
    """One kind of layer, ``count`` of it: a product (m, n, k), or a convolution (shapes of x and w, and ``how``)."""

    name: str
    count: int
    sizes: tuple[Any, ...]
    how: tuple[tuple[str, Any], ...] = ()

    def problem(self, element_bytes: int, config: MatrixUnitConfig) -> Problem | ConvProblem:
        """The layer as a search problem on a machine."""
        return problem_of(self.sizes, dict(self.how), element_bytes, config)

    @property
    def shapes(self) -> list[str]:
        """The product's sizes as 1x1000x2048, or the convolution's two shapes."""
        return ["x".join(map(str, side)) for side in (self.sizes if len(self.sizes) == 2 else (self.sizes,))]

    def __str__(self) -> str:
        kind, options = "conv" if len(self.shapes) == 2 else "gemm", (f"{name}={value}" for name, value in self.how)
        return " ".join([self.name, str(self.count), kind, *self.shapes, *options])


def resnet50() -> list[LayerShape]:
    """The convolutions of ResNet-50 (the stride in the 3x3, as trained networks have it) for one image, and its end.

    >>> sum(layer.count for layer in resnet50()), str(resnet50()[1])
    (54, 'conv2.1x1a 1 conv 1x56x56x64 1x1x64x64')
    """
    layers = [_conv("conv1", 1, 224, 3, 64, 7, 2)]
    side, depth = 56, 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        stride, out = (1 if stage == 2 else 2), 4 * width
        inner = side // stride
        layers += [
            _conv(f"conv{stage}.1x1a", 1, side, depth, width, 1, 1),
            _conv(f"conv{stage}.3x3a", 1, side, width, width, 3, stride),
            _conv(f"conv{stage}.side", 1, side, depth, out, 1, stride),
            _conv(f"conv{stage}.1x1c", blocks, inner, width, out, 1, 1),
            _conv(f"conv{stage}.1x1b", blocks - 1, inner, out, width, 1, 1),
            _conv(f"conv{stage}.3x3b", blocks - 1, inner, width, width, 3, 1),
        ]
        side, depth = inner, out
    return [*layers, LayerShape("fc", 1, (1, 1000, 2048))]


def _conv(name: str, count: int, side: int, depth: int, outs: int, kernel: int, stride: int) -> LayerShape:
    options = [("stride", stride)] * (stride > 1) + [("padding", kernel // 2)] * (kernel > 1)
    return LayerShape(name, count, ((1, side, side, depth), (kernel, kernel, depth, outs)), tuple(options))


NETWORKS = {"resnet50": resnet50}
_SIDES = r"[0-9]{1,9}(?:x[0-9]{1,9})*"
_LINE = re.compile(
    rf"(?P<name>\S+) +(?P<count>[0-9]{{1,6}}) +(?P<kind>gemm|conv) +(?P<x>{_SIDES})(?: +(?P<w>{_SIDES}))?(?P<how>.*)"
)
_HOW = ("stride", "padding", "dilation", "groups")


def read_network(text: str, where: str = "shapes") -> list[LayerShape]:
    """Layers from lines as ``fc 1 gemm 1x1000x2048`` (m, n, k) or ``c 2 conv 1x7x7x512 3x3x512x512 padding=1``.

    Images are n x h x w x c, weights kh x kw x c x out; ``#`` begins a remark.

    >>> read_network("fc 1 gemm 1x1000x2048  # m, n, k")[0].sizes
    (1, 1000, 2048)
    """
    layers = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].strip()
        if plain:
            layers.append(_layer(plain, f"{where}:{number}"))
    if not layers:
        raise UsageError("no layers", where=where, how="a line each, as: fc 1 gemm 1x1000x2048")
    return layers


def _layer(line: str, where: str) -> LayerShape:
    found = _LINE.fullmatch(line)
    how = "fc 1 gemm MxNxK, or c1 2 conv NxHxWxC KHxKWxCxO stride=1 padding=1"
    if found is None:
        raise UsageError(f"{line!r} is no layer", where=where, how=how)
    x = tuple(map(int, found["x"].split("x")))
    w = tuple(map(int, found["w"].split("x"))) if found["w"] else ()
    options = []
    for word in found["how"].split():
        name, _, value = word.partition("=")
        if name not in _HOW or not (value.isdecimal() or value in ("same", "valid")):
            raise UsageError(f"{word!r} is no option of a layer", where=where, how=f"{', '.join(_HOW)} with a number")
        options.append((name, int(value) if value.isdecimal() else value))
    if found["kind"] == "gemm":
        if len(x) != 3 or w or options:
            raise UsageError(f"{line!r} is no product", where=where, how=how)
        return LayerShape(found["name"], int(found["count"]), x)
    if len(x) != 4 or len(w) != 4:
        raise UsageError(f"{line!r} is no convolution", where=where, how=how)
    return LayerShape(found["name"], int(found["count"]), (x, w), tuple(options))


def sweep(
    m: int,
    n: int,
    k: int,
    over: Mapping[str, Sequence[Any]],
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    watch: Callable[[int, int], None] | None = None,
    **how: Any,
) -> tuple[Point, ...]:
    """:func:`autotune` on every combination of values of the machine's fields; ``how``: its other options.

    Each machine is compared at its best, so a field is not blamed for options that suited another machine. In the order
    of ``over``, the last field fastest; ``watch(done, all)`` is told. Machines that cannot be are listed with the
    reason. Raises :class:`UsageError` for a field that does not exist and for more than 200 machines.

    >>> few = {"line": None, "columns": None, "order": "k_outer"}
    >>> for point in sweep(16, 64, 64, {"threads": (32, 64)}, **few):
    ...     print(point.settings, point.tuning.best.choice, point.tuning.best.cycles)
    {'threads': 32} ka2 kb1 k_outer t0 page 64x64 1 segments A by 8 1400
    {'threads': 64} ka2 kb1 k_outer t0 A by 8 1143
    """

    def tune(layer: LayerShape, machine: MatrixUnitConfig) -> Tuning:
        return autotune(m, n, k, dtype, machine, **how)

    return _points([LayerShape("product", 1, (m, n, k))], over, dtype, checked_config(config), tune, watch)


# A network on many machines.

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
    """One layer on one machine, by its best choice among those timed."""

    layer: LayerShape
    tuning: Tuning

    @property
    def best(self) -> Tuned:
        """The choice."""
        return self.tuning.best

    @property
    def cycles(self) -> int:
        """Cycles of all layers of its kind."""
        return self.layer.count * (self.best.cycles or 0)

    @property
    def energy_pj(self) -> float:
        """Energy of all layers of its kind in pJ, modelled."""
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
        """Cycles of the whole network, one layer after the other."""
        return sum(layer.cycles for layer in self.layers)

    @property
    def energy_pj(self) -> float:
        """Energy of the whole network in pJ, modelled."""
        return sum(layer.energy_pj for layer in self.layers)

    @property
    def tuning(self) -> Tuning | None:
        """The tuning of the only layer (:func:`sweep`); None of a machine that cannot be."""
        return self.layers[0].tuning if self.layers else None

    @property
    def costs(self) -> tuple[float, float, float]:
        return self.cycles, self.energy_pj, self.area_mm2

    @property
    def name(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items()) or "as it is"

    def to_dict(self) -> dict[str, Any]:
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
        return tuple(point for point in self.points if not point.refused)

    @property
    def front(self) -> tuple[Point, ...]:
        """No other machine costs less in one way and not more in the others; the fastest first."""
        kept = [point for point in self.built if not any(_beats(other, point) for other in self.built)]
        return tuple(sorted(kept, key=lambda point: point.costs))

    @property
    def fastest(self) -> Point:
        """The machine on the front with the fewest cycles."""
        return self.front[0]

    @property
    def balanced(self) -> Point:
        """The machine on the front with the least product of cycles, energy and area."""
        return min(self.front, key=lambda point: point.cycles * point.energy_pj * point.area_mm2)

    def to_dict(self) -> dict[str, Any]:
        front = self.front
        points = [point.to_dict() | {"on_front": point in front} for point in self.points]
        return {"network": self.network, "dtype": self.dtype, "area": AREA_SOURCE, "points": points}

    def table(self) -> tuple[list[Column], list[tuple[object, ...]]]:
        """Columns, and every machine as a row: for pages and terminals."""
        columns = [Column(name, "code") for name in self.points[0].settings]
        columns += [Column("cycles", "count"), Column("energy, uJ", "count", "Modelled.")]
        columns += [Column("area, mm2", "number", "A proxy."), Column("utilisation", "percent", "Of all threads.")]
        columns.append(Column("on", "text", "front: beaten by none in all three costs."))
        rows, front = list[tuple[object, ...]](), self.front
        for point in self.points:
            figures = (point.cycles, round(point.energy_pj / 1e6), round(point.area_mm2, 2), point.utilisation)
            shown = (*figures, "front" * (point in front)) if point.config else (None, None, None, None, point.refused)
            rows.append((*map(str, point.settings.values()), *shown))
        return columns, rows

    def to_html(self) -> str:
        """A page: what to build, the front, all machines, the layers of the fastest."""
        facts = [("network", self.network), ("elements", self.dtype), ("machines", str(len(self.points)))]
        page = Page(f"Machines for {self.network}", "the matrix unit, every layer at its best", facts=facts, wide=True)
        fast, even = self.fastest, self.balanced
        figures = [
            Card("fastest", f"{fast.cycles:,} cycles", fast.name, "good"),
            Card("balanced", f"{even.cycles:,} cycles", even.name),
            Card("on the front", f"{len(self.front)} of {len(self.built)}", f"beaten by none in {_COSTS}"),
        ]
        page.section("choice", "What to do", steps(_todo(self)), cards(figures))
        page.section("front", "Cycles and energy", _front(self), paragraph(_CAPTION))
        page.section("machines", "Every machine", table(*self.table()))
        page.section(
            "layers", "Layers on the fastest", paragraph(f"{fast.name}, every layer at its best."), _layers(fast)
        )
        text = f"Energy: published figures (ISSCC 2014, 45 nm) times what was counted. Area: {AREA_SOURCE}."
        more = "Bandwidths, ports and wires cost nothing in it. Layers keep nothing in the caches from one to the next."
        page.section("proxies", "What the figures are", paragraph(text), paragraph(more))
        page.data("exploration", {"schema_version": 1, **self.to_dict()})
        return page.html()


def _beats(one: Point, other: Point) -> bool:
    return one.costs != other.costs and all(a <= b for a, b in zip(one.costs, other.costs, strict=True))


def explore(
    network: str | Sequence[LayerShape] = "resnet50",
    over: Mapping[str, Sequence[Any]] | None = None,
    dtype: str = "s8",
    config: MatrixUnitConfig | None = None,
    most: int = 4,
    watch: Callable[[int, int], None] | None = None,
    where: str | None = None,
) -> Exploration:
    """A network on every combination of values of the machine's fields, each layer by the fastest way found.

    ``network``: a name (resnet50), a text of one layer a line (``fc 1 gemm 1x1000x2048``), or layers. ``most``: ways
    timed for each layer and machine, best bound first, so that every figure is a run's. Layers run one after the other
    and keep nothing from one to the next. ``watch(done, all)`` is told. ``where``: the name of the text in an error.
    Raises :class:`UsageError` for what it does not know.

    >>> found = explore("fc 1 gemm 8x32x64", {"threads": (32, 64)})
    >>> [(point.settings["threads"], point.cycles) for point in found.front]
    [(32, 843)]
    """
    base, name, layers = checked_config(config), "layers", network
    if isinstance(network, str) and where is None and network in NETWORKS:
        name, layers = network, NETWORKS[network]()
    elif isinstance(network, str):
        name, layers = "shapes", read_network(network, where or "shapes")
    e, most = element_bytes(dtype), whole("most", most, 1)

    def tune(layer: LayerShape, machine: MatrixUnitConfig) -> Tuning:
        return search(layer.problem(e, machine), dtype, most=most)

    points = _points(layers, FAMILY if over is None else over, dtype, base, tune, watch)
    if all(point.refused for point in points):
        raise UsageError(f"no machine can be: {points[0].refused}", how="give other values")
    return Exploration(name, dtype, base, points)


def _points(
    layers: Sequence[Any],
    over: Mapping[str, Sequence[Any]],
    dtype: str,
    base: MatrixUnitConfig,
    tune: Callable[[LayerShape, MatrixUnitConfig], Tuning],
    watch: Callable[[int, int], None] | None,
) -> tuple[Point, ...]:
    """Every combination of values of fields of ``base``, the last field fastest, with all layers tuned for it."""
    known = sorted(f.name for f in fields(MatrixUnitConfig))
    for name, values in over.items():
        check_known(name, known, f"the machine has no field {name!r}")
        if not values:
            raise UsageError(f"no values for {name}")
    if (count := prod(len(values) for values in over.values())) > _MOST_MACHINES:
        raise UsageError(f"{count} machines", how=f"at most {_MOST_MACHINES}: give fewer values")
    e, points = element_bytes(dtype), list[Point]()
    for number, values in enumerate(product(*over.values())):
        settings, costs = dict(zip(over, values, strict=True)), list[LayerCost]()
        try:
            machine = replace(base, **settings)
        except UsageError as error:
            points.append(Point(settings, None, refused=str(error)))
            continue
        for done, layer in enumerate(layers, 1):
            costs.append(LayerCost(layer, tune(layer, machine)))
            if watch is not None:
                watch(number * len(layers) + done, count * len(layers))
        rate = (machine.macs_per_thread_cycle or machine.chunk(e)) * machine.compute_threads * machine.pes
        macs = sum(cost.layer.count * cost.tuning.problem.macs for cost in costs)
        utilisation = macs / max(1, sum(cost.cycles for cost in costs) * rate)
        points.append(Point(settings, machine, area_mm2(machine, e), tuple(costs), utilisation))
    return tuple(points)


# The page of an exploration.

_COSTS = "cycles, energy and area"


_CAPTION = "Large: no other machine costs less in one way and not more in the others, area included."


def _todo(found: Exploration) -> list[Step]:
    fast, even = found.fastest, found.balanced
    what = f"Build {even.name}: the least product of {_COSTS}."
    beaten = [point for point in found.built if any(_beats(other, point) for other in found.front)]
    todo = [Step(what, "", _costs(even), "balanced", "good")]
    if even.cycles > 1.01 * fast.cycles:
        times = f"{even.cycles / fast.cycles:.3g}× as fast"
        todo.append(Step(f"Where only time counts, build {fast.name}.", "", _costs(fast), times))
    worst = max(fast.layers, key=lambda cost: cost.cycles)
    share = worst.cycles / max(1, fast.cycles)
    what = f"Look at {worst.layer.name} first: {share:.0%} of the fastest machine's cycles, for its {worst.best.limit}."
    todo.append(Step(what, _tuning(worst.layer, fast), f"{worst.layer}, by {worst.best.choice}", f"{share:.0%}"))
    if beaten:
        names = ", ".join(point.name for point in beaten[:3])
        others = f" and {len(beaten) - 3} more" if len(beaten) > 3 else ""
        todo.append(Step(f"Do not build {names}{others}: another machine costs no more in any way.", "", "", "beaten"))
    return todo


def _tuning(layer: LayerShape, point: Point) -> str:
    """The command that looks for more ways to make a layer."""
    sizes = zip("mnk", layer.sizes, strict=True) if len(layer.sizes) == 3 else ()
    words = ["tune", *(f"--{name} {size}" for name, size in sizes)] if sizes else ["tune-conv2d", *layer.shapes]
    words += [f"--{name} {value}" for name, value in layer.how]
    return " ".join(["tilewright isa", *words, *(f"--set {name}={value}" for name, value in point.settings.items())])


def _costs(point: Point) -> str:
    return f"{point.cycles:,} cycles, {point.energy_pj / 1e6:,.0f} uJ, {point.area_mm2:.1f} mm2 (proxy)"


def _front(found: Exploration) -> Html:
    front = found.front
    xs, ys = [point.cycles for point in found.built], [point.energy_pj / 1e6 for point in found.built]
    plane = LogPlane("Cycles and energy of the whole network", xs, ys, ("cycles", "energy, uJ (modelled)"))
    for point in sorted(found.built, key=lambda point: point in front):
        size, style = (5, "dot s0") if point in front else (3, "dot s3")
        tip = f"{point.name}: {_costs(point)}"
        plane.circle(plane.x(point.cycles), plane.y(point.energy_pj / 1e6), size, style, tip=tip)
    return plane.figure()


def _layers(point: Point) -> Html:
    columns = [Column("layer", "code"), Column("times", "count"), Column("best choice", "code")]
    columns += [Column("cycles", "count", "Of all of its kind."), Column("of all", "percent")]
    columns += [Column("utilisation", "percent"), Column("busiest", "text"), Column("energy, uJ", "count")]
    rows = []
    for cost in point.layers:
        best, share = cost.best, cost.cycles / max(1, point.cycles)
        head = (str(cost.layer), cost.layer.count, str(best.choice), cost.cycles, share, best.utilisation)
        rows.append((*head, best.limit, round(cost.energy_pj / 1e6)))
    return table(columns, rows)
