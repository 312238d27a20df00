"""The page of a whole run, and its layers as a table. A report is a ``MachineReport``, which imports this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.render import (
    Bar,
    Card,
    Column,
    Html,
    Page,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    percent_text,
    table,
)
from tilewright.render.page import note

_LONGEST = 24
_UNITS = {"matrix": "products", "vector": "work on elements", "copy": "copies", "host": "on the host, by XLA"}


def report_html(report: Any) -> str:
    """Figures, where the cycles go, what moved, every layer."""
    machine = report.config
    facts = [("machine", f"{machine.pes} x {machine.threads} threads"), ("times", "modelled")]
    page = Page("A model on the matrix unit", f"{report.cycles:,} cycles, {len(report.layers)} layers", facts=facts)
    page.section("summary", "What it takes", _cards(report))
    page.section("cycles", "Where the cycles go", *_bars(report))
    page.section("bytes", "What moved", _moved(report))
    page.section("layers", "Layer by layer", table(*layer_table(report.layers)))
    page.data("machine", report.to_json())
    return page.html()


def _cards(report: Any) -> Html:
    moved = {level: sum(each.values()) for level, each in report.bytes.items()}
    left = [layer for layer in report.layers if layer.fallback]
    return cards(
        [
            Card("cycles", count_text(report.cycles, compact=True), "by the model"),
            Card("math units", percent_text(report.math_utilisation), "of all products they could make"),
            Card("device memory", bytes_text(moved["dram"]), f"L2 {bytes_text(moved['l2'])}"),
            Card("energy", f"{report.energy_pj / 1e6:,.0f} uJ", "modelled"),
            Card(
                "left to XLA",
                percent_text(report.fallback_share),
                f"{len(left)} layer{'s' * (len(left) != 1)}",
                "plain" if not left else "warn",
            ),
        ]
    )


def _bars(report: Any) -> list[Html]:
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


def _moved(report: Any) -> Html:
    columns = [Column("level"), *(Column(name, "bytes") for name in ("A", "B", "C", "DMA"))]
    return table(columns, [(level.upper(), *each.values()) for level, each in report.bytes.items()])


def layer_table(layers: Sequence[Any]) -> tuple[list[Column], list[tuple[object, ...]]]:
    """Every layer as a row: for pages and terminals."""
    columns = [
        Column("layer"),
        Column("unit"),
        Column("cycles", "count"),
        Column("math", "percent"),
        Column("macs", "count"),
        Column("L2", "bytes"),
        Column("DRAM", "bytes"),
        Column("why not here"),
    ]
    rows: list[tuple[object, ...]] = [
        (
            layer.name,
            layer.unit,
            layer.cycles,
            layer.math_utilisation,
            layer.counts.macs,
            sum(layer.bytes["l2"].values()),
            sum(layer.bytes["dram"].values()),
            layer.fallback,
        )
        for layer in layers
    ]
    return columns, rows
