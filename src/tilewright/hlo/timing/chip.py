"""A chip's time constants: its own where they were fitted, else those of a measured chip scaled by published peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from tilewright.errors import UnsupportedError
from tilewright.hlo.timing.products import matrix_us
from tilewright.targets import Target, TimeConstants, target

_NEAREST = {"tpu-v5e": "tpu-v6e", "tpu-v5p": "tpu-v4", "tpu-7x": "tpu-v6e"}
"""Chips without measurements, and the measured one most like each: one core, or two with a memory in common."""


@dataclass(frozen=True)
class Chip:
    """Constants by mechanism for one chip.

    ``measured``: they were fitted on this chip. ``note`` says where they are from, in a sentence.
    """

    name: str
    mechanisms: Mapping[str, TimeConstants]
    measured: bool
    note: str
    matrix_peak: float
    hbm_peak: float
    link_bytes_per_second: float

    def __getitem__(self, mechanism: str) -> TimeConstants:
        """The constants of one mechanism."""
        return self.mechanisms[mechanism]

    @property
    def kernel(self) -> TimeConstants:
        """The constants of fused kernels."""
        return self.mechanisms["kernel"]

    def matrix_us(self, rows: int, columns: int, depth: int) -> float:
        """Microseconds of one product on the matrix unit."""
        return matrix_us(self.kernel, rows, columns, depth) / self.kernel["efficiency"]


@lru_cache(maxsize=256)
def chip_of(machine: Target) -> Chip:
    """The time constants of a target.

    Raises :class:`UnsupportedError` for a target that has none and is like no chip that has.
    """
    hbm, matrix, links = machine.memory("hbm"), machine.matrix, machine.links
    peaks = (
        float(matrix.bf16_ops_per_second) if matrix else 0.0,
        float(hbm.bytes_per_second) if hbm else 0.0,
        float(links.bytes_per_second) if links else 0.0,
    )
    if machine.time:
        note = f"constants of {machine.name} fitted on measurements of single operations"
        return Chip(machine.name, machine.time, True, note, *peaks)
    nearest = _NEAREST.get(machine.name)
    if nearest is None or hbm is None:
        raise UnsupportedError(f"target {machine.name} has no time constants", how="name a tpu target, such as tpu-v6e")
    measured = target(nearest)
    scaled = _scaled(measured, machine)
    note = f"{machine.name} was not measured: constants of {nearest}, scaled by published peaks; not calibrated"
    return Chip(machine.name, scaled, False, note, *peaks)


def _scaled(measured: Target, machine: Target) -> Mapping[str, TimeConstants]:
    """Bandwidths by HBM's peak, work by the matrix peak (which has the clock in it), latencies as they are."""
    theirs, ours = measured.memory("hbm"), machine.memory("hbm")
    bandwidth = ours.bytes_per_second / theirs.bytes_per_second if ours and theirs else 1.0
    speed = 1.0
    if machine.matrix and measured.matrix and measured.matrix.bf16_ops_per_second:
        speed = machine.matrix.bf16_ops_per_second / measured.matrix.bf16_ops_per_second
    clock = speed * _multipliers(measured) / _multipliers(machine)

    def factor(name: str) -> float:
        if name.endswith("mb_per_us"):
            return bandwidth
        return 1 / clock if name.endswith("_ns") else 1.0

    scaled = {}
    for mechanism, constants in measured.time.items():
        values = {name: value * factor(name) for name, value in constants.values.items()}
        if "ghz" in values and machine.matrix:
            values |= {"ghz": values["ghz"] * clock, "side": float(machine.matrix.rows)}
            values["units"] = float(machine.matrix.units)
        scaled[mechanism] = TimeConstants(MappingProxyType(values))
    return MappingProxyType(scaled)


def _multipliers(machine: Target) -> float:
    """Multipliers of all matrix units."""
    matrix = machine.matrix
    return float(matrix.units * matrix.rows * matrix.columns) if matrix else 1.0
