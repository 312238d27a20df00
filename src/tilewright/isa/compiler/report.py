"""What a whole run counted, layer by layer and together: as values, as a table and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.isa.chip.state import Transfer
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved
from tilewright.render import (
    Bar,
    Card,
    Column,
    Html,
    Page,
    Step,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    percent_text,
    steps,
    table,
)
from tilewright.render.delivery import Line
from tilewright.render.page import note
from tilewright.render.tables import Table


@dataclass(frozen=True)
class Layer:
    """One layer of a compiled model.

    ==================  ====================================================================================
    ``name``            ``conv_3``: what it is, and which of these
    ``unit``            matrix, vector, copy, or host
    ``cycles``          the model's time; 0 on the host, whose time is not modelled
    ``counts``          work of its ``mm`` instructions
    ``fallback``        why XLA computed it on the host; "" where the machine did
    ``moved``           every byte through the memory system
    ``operations``      arithmetic, a multiply-add as two
    ``errors``          what the machine recorded
    ``seconds``         of the simulation
    ==================  ====================================================================================
    """

    name: str
    unit: str
    cycles: int
    counts: Counts
    fallback: str = ""
    moved: Moved = field(default_factory=Moved)
    energy_pj: float = 0.0
    math_utilisation: float = 0.0
    operations: int = 0
    errors: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Bytes that passed each level, by operand."""
        return self.moved.bytes


@dataclass(frozen=True)
class MachineReport:
    """What a run of a whole model counted: ``layers`` in order, ``cycles`` of all, and what the host moved.

    ``transfers``: pages on their way by DMA, which go on beside the layers.
    """

    layers: tuple[Layer, ...]
    config: MatrixUnitConfig
    cycles: int
    host_bytes: int = 0
    transfers: tuple[Transfer, ...] = field(default=(), repr=False)

    @property
    def moved(self) -> Moved:
        """Every byte through the memory system."""
        return Moved.together(layer.moved for layer in self.layers)

    @property
    def counts(self) -> Counts:
        """Work of all ``mm`` instructions."""
        return Counts.together(layer.counts for layer in self.layers)

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Bytes that passed each level ("l1", "l2", "dram"), by operand ("a", "b", "c", "dma")."""
        return self.moved.bytes

    @property
    def energy_pj(self) -> float:
        """Energy in pJ, modelled."""
        return sum(layer.energy_pj for layer in self.layers)

    @property
    def math_utilisation(self) -> float:
        """Products made, of those all threads could make in these cycles."""
        return sum(layer.math_utilisation * layer.cycles for layer in self.layers) / max(1, self.cycles)

    @property
    def fallback_share(self) -> float:
        """The share of the arithmetic that was left to XLA."""
        total = sum(layer.operations for layer in self.layers)
        return sum(layer.operations for layer in self.layers if layer.fallback) / max(1, total)

    def __str__(self) -> str:
        """The figures in a few lines."""
        moved = ", ".join(f"{level} {bytes_text(sum(each.values()))}" for level, each in self.bytes.items())
        lines = [
            f"{len(self.layers)} layers, {self.cycles:,} cycles, math units busy {self.math_utilisation:.1%}",
            f"moved: {moved}; energy {self.energy_pj / 1e6:,.1f} uJ (modelled)",
        ]
        if self.fallback_share or any(layer.fallback for layer in self.layers):
            some = sum(1 for layer in self.layers if layer.fallback)
            lines.append(f"left to XLA: {some} layer{'s' * (some != 1)}, {self.fallback_share:.2%} of the arithmetic")
        return "\n".join([*lines, *([self.config.slow] if self.config.slow else [])])

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        sums = ("cycles", "bytes", "energy_pj", "math_utilisation", "fallback_share")
        own = ("name", "unit", "cycles", "counts", "bytes", "energy_pj", "math_utilisation", "operations", "fallback")
        layers = [
            {name: getattr(layer, name) for name in own} | {"counts": layer.counts.to_dict()} for layer in self.layers
        ]
        return {name: getattr(self, name) for name in sums} | {"layers": layers}

    def table(self) -> tuple[list[Column], list[tuple[object, ...]]]:
        """Columns, and every layer as a row: for pages and terminals."""
        columns = [Column("layer"), Column("unit"), Column("cycles", "count"), Column("math", "percent")]
        columns += [Column("macs", "count"), Column("L2", "bytes"), Column("DRAM", "bytes"), Column("why not here")]
        rows: list[tuple[object, ...]] = []
        for layer in self.layers:
            moved = (sum(layer.bytes[level].values()) for level in ("l2", "dram"))
            head = (layer.name, layer.unit, layer.cycles, layer.math_utilisation, layer.counts.macs)
            rows.append((*head, *moved, layer.fallback))
        return columns, rows

    def lines(self) -> Iterator[Line]:
        """For a terminal: every layer, and the figures."""
        yield from (Table(*self.table()), f"\n{self}")

    @property
    def figures(self) -> tuple[Card, ...]:
        """For pages: how busy it was, what moved, energy, and what was left to XLA."""
        left = sum(1 for layer in self.layers if layer.fallback)
        count = f"{left} of {len(self.layers)} layers"
        return (
            Card("math units", percent_text(self.math_utilisation), "of all products they could make"),
            Card("device memory", bytes_text(sum(self.bytes["dram"].values())), "through it in a step"),
            Card("energy", f"{self.energy_pj / 1e6:,.0f} uJ", "modelled"),
            Card("left to XLA", percent_text(self.fallback_share), count, "warn" if left else "plain"),
        )

    @property
    def levels(self) -> Html:
        """For pages: bytes through every level of memory, by operand."""
        columns = [Column("level"), *(Column(name, "bytes") for name in ("A", "B", "C", "DMA"))]
        return table(columns, [(level.upper(), *each.values()) for level, each in self.bytes.items()])

    def _todo(self, command: str) -> list[Step]:
        """What costs most: layers whose math units wait, and what was left to XLA."""
        todo, rate = list[Step](), self.config.dram_bytes_per_cycle
        for layer in sorted(self.layers, key=lambda layer: (layer.math_utilisation - 1) * layer.cycles)[:3]:
            idle, busy = (1 - layer.math_utilisation) * layer.cycles, sum(layer.bytes["dram"].values()) / rate
            if idle >= 0.02 * self.cycles:
                what = f"math units wait so long; device memory is busy for {busy:,.0f} of {layer.cycles:,} cycles: "
                bound = busy >= 0.5 * layer.cycles
                what += "narrower elements, or more bytes a cycle" if bound else "too small to hide what it waits for"
                again = f"{command} --set dram_bytes_per_cycle={2 * rate}" if bound and command else ""
                todo.append(Step(f"{layer.name}: {what}", again, worth=f"{idle:,.0f} cycles"))
        left = [layer for layer in self.layers if layer.fallback]
        return todo + [Step(f"{each.name} is left to XLA: {each.fallback}") for each in left[:3]]

    def to_html(self, command: str = "") -> str:
        """A page: what to do, figures, where the cycles go, what moved, and every layer as a row; ``command``: what
        makes it again."""
        machine = self.config
        facts = [("machine", f"{machine.pes} x {machine.threads} threads"), ("times", "modelled")]
        page = Page("A model on the matrix unit", f"{self.cycles:,} cycles, {len(self.layers)} layers", facts=facts)
        cycles = Card("cycles", count_text(self.cycles, compact=True), "by the model")
        if todo := self._todo(command):
            page.section("change", "What to do", steps(todo))
        page.section("summary", "What it takes", cards((cycles, *self.figures)))
        page.section("cycles", "Where the cycles go", *_bars(self))
        page.section("bytes", "What moved", self.levels)
        page.section("layers", "Layer by layer", table(*self.table()))
        page.data("machine", self.to_json())
        return page.html()


# The parts of the page.

_LONGEST = 24
_UNITS = {"matrix": "products", "vector": "work on elements", "copy": "copies", "host": "on the host, by XLA"}


def _bars(report: MachineReport) -> list[Html]:
    units: dict[str, int] = {}
    for layer in report.layers:
        units[layer.unit] = units.get(layer.unit, 0) + layer.cycles
    slow = sorted(report.layers, key=lambda layer: -layer.cycles)[:_LONGEST]
    by_unit = [Bar(_UNITS[unit], (cycles,)) for unit, cycles in units.items() if cycles]
    by_layer = [Bar(layer.name, (layer.cycles,)) for layer in slow if layer.cycles]
    parts = [bar_chart(by_unit, title="cycles by kind of layer", kind="count")] if by_unit else []
    if len(by_layer) > 1:
        parts.append(bar_chart(by_layer, title="the layers that take longest, cycles", kind="count"))
    if any(layer.fallback for layer in report.layers):
        parts.append(note("Layers on the host have no cycles: the host's time is not modelled."))
    return parts
