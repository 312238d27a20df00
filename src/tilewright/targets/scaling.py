"""Time constants that follow a chip's peaks: those of the measured chip most like it, and of a chip with other figures.

Bandwidths follow HBM's peak, work and memories beside the core the matrix peak (which has the clock in it); latencies
stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tilewright.errors import UsageError
from tilewright.targets.chips import LINK_RATES, Target, TimeConstants, target

_NEAREST = {"tpu-v5e": "tpu-v6e", "tpu-v5p": "tpu-v4", "tpu-7x": "tpu-v6e", "tpu-8t": "tpu-v6e", "tpu-8i": "tpu-v6e"}
"""Chips without measurements, and the measured one most like each: one core, or two that share memory, as a device."""
_KEPT_NEAR = ("resident_mb", "between_calls_mb", "near_result_mb")
"""The largest arguments and results that are kept near the core: no larger than the memory there."""
_SCALED = {
    "scale.hbm": ("mb_per_us", "stream_mb_per_us", "read_mb_per_us", "write_mb_per_us", "result_mb_per_us"),
    "scale.matrix": ("efficiency",),
    "scale.vector": ("vector_ns", "transcendental_ns", "rotation_ns"),
    "scale.vmem": ("near_mb_per_us",),
    "scale.latency": ("launch_us", "hbm_us", "near_launch_us", "scalar_us"),
}
"""Factors on the time of a unit or memory, and the constants that hold it."""
_Tables = Mapping[str, dict[str, float]]


def time_of(machine: Target) -> tuple[Mapping[str, TimeConstants], Target | None]:
    """Mechanism -> constants: the chip's own; where it has hardly any, over those of the one it is like, given too."""
    own, nearest = machine.time, _NEAREST.get(machine.name)
    if nearest is None or len(own) > 1:
        return own, None
    measured = target(nearest)
    theirs, ours = measured.memory("hbm"), machine.memory("hbm")
    bandwidth = ours.bytes_per_second / theirs.bytes_per_second if ours and theirs else 1.0
    clock = machine.matrix.clock / measured.matrix.clock if machine.matrix and measured.matrix else 1.0
    tables = {name: dict(constants.values) for name, constants in measured.time.items()}
    _scale(tables, bandwidth, _of_hbm)
    _scale(tables, clock, lambda name: name == "ghz" or (name.endswith("mb_per_us") and not _of_hbm(name)))
    _scale(tables, 1 / clock, lambda name: name.endswith("_ns"))
    if "sparse" in tables:  # rows that SparseCores gather take as long as their bytes
        tables["sparse"]["row_ns"] = measured.time["sparse"]["row_ns"] / bandwidth
    for values in tables.values():
        values |= {name: min(values[name], machine.near_bytes / 1e6) for name in values.keys() & {*_KEPT_NEAR}}
        values |= machine.matrix.figures(values["ghz"]) if "ghz" in values and machine.matrix else {}
    scaled = {name: TimeConstants(values, seen=measured.time[name].seen) for name, values in tables.items()}
    return MappingProxyType({**scaled, **own}), measured


def what_if(machine: Target, changes: Mapping[str, float], fitted_on: str = "") -> Target:
    """A chip with other figures: ``hbm_bandwidth`` (bytes per second), ``matrix_peak`` (bf16 operations per second),
    ``link_bandwidth``, ``host_bandwidth`` and ``network_bandwidth`` (between slices), or a constant of the time model,
    ``MECHANISM.CONSTANT`` such as ``kernel.launch_us``; ``scale.hbm`` and others: factors on the time of a unit.
    ``fitted_on``: what the changes were fitted on, if they were.

    A bandwidth or peak scales every constant that depends on it. Raises :class:`UsageError` for an unknown key.

    >>> what_if(target("tpu-v6e"), {"hbm_bandwidth": 2e12}).memory("hbm").bytes_per_second
    2000000000000
    """
    known, _ = time_of(machine)
    tables = {name: dict(constants.values) for name, constants in known.items()}
    matrix, links, hbm = machine.matrix, machine.links, machine.memory("hbm")
    for key, value in changes.items():
        mechanism, _, constant = key.partition(".")
        if not 0 < value < float("inf"):
            raise UsageError(f"{key} = {value:g} is not above 0", where=machine.name)
        if key == "hbm_bandwidth" and hbm is not None:
            _scale(tables, value / hbm.bytes_per_second, _of_hbm)
            hbm = replace(hbm, bytes_per_second=int(value))
        elif key == "matrix_peak" and matrix is not None:
            _scale(tables, value / matrix.bf16_ops_per_second, "ghz".__eq__)
            matrix = replace(matrix, bf16_ops_per_second=int(value))
        elif key in LINK_RATES and links is not None:
            rates: dict[str, Any] = {LINK_RATES[key]: int(value)}
            links = replace(links, **rates)
        elif key in _SCALED:
            for name in _SCALED[key]:
                own = 1 / value if name.endswith("per_us") or name == "efficiency" else value
                _scale(tables, min(own, 1 / tables["kernel"][name]) if name == "efficiency" else own, name.__eq__)
        elif mechanism in tables and constant in tables[mechanism]:
            tables[mechanism][constant] = value
        else:
            how = f"hbm_bandwidth, matrix_peak, {', '.join(LINK_RATES)}, or MECHANISM.CONSTANT such as kernel.launch_us"
            raise UsageError(f"no figure called {key!r}", where=machine.name, how=how)
    time = {
        name: TimeConstants(values, fitted_on, seen=known[name].seen if fitted_on else None)
        for name, values in tables.items()
    }
    memories = tuple(hbm if hbm is not None and m.name == "hbm" else m for m in machine.memories)
    errors = machine.errors if fitted_on else {}
    return replace(machine, memories=memories, matrix=matrix, links=links, time=MappingProxyType(time), errors=errors)


def _of_hbm(name: str) -> bool:
    """Whether a constant is a rate of HBM, and not of a memory beside the core."""
    return name.endswith("mb_per_us") and not name.startswith(("near_", "common_"))


def _scale(tables: _Tables, share: float, of: Callable[[str], bool]) -> None:
    for values in tables.values():
        values.update({name: value * share for name, value in values.items() if of(name)})
