"""A chip's time constants: its own where they were fitted, else those of a measured chip scaled by published peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tilewright.errors import UnsupportedError
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.tiles import MEGA
from tilewright.hlo.timing.links import Torus
from tilewright.targets import Target, TimeConstants, time_of

_LINE_MB = 512 / MEGA
"""Megabytes that HBM gives at a time: what a single element that is gathered costs of it (seen on 7x)."""


class Claim(NamedTuple):
    """Where operations like one were timed, their mean error as a share (0: not known), and what that was seen on."""

    place: str = "nowhere"  # or ``this chip``, ``another chip``
    error: float = 0.0
    of: str = "not measured"


@dataclass(frozen=True)
class Chip:
    """Constants by mechanism for one device of a chip (``machine``); ``note``: where they are from, in a sentence;
    ``measured``: the chip that they were scaled from, if they were.
    """

    machine: Target
    mechanisms: Mapping[str, TimeConstants]
    note: str
    measured: Target | None = None

    @cached_property
    def kernel(self) -> TimeConstants:
        """The constants of fused kernels."""
        return self.mechanisms["kernel"]

    @cached_property
    def hbm_peak(self) -> float:
        """Bytes per second of HBM; 0 where they are not known."""
        hbm = self.machine.memory("hbm")
        return float(hbm.bytes_per_second) if hbm else 0.0

    @cached_property
    def matrix_peaks(self) -> Mapping[str, float]:
        """By type (``matrix_type``); of one whose peak is not stated that of the fastest: no time is below that."""
        return self.machine.matrix.peaks if self.machine.matrix is not None else {}

    @cached_property
    def torus(self) -> Torus | None:
        """Its links, None where they are not known."""
        return Torus.of(self.machine)

    def claim(self, kind: str, bound: str, us: float) -> Claim:
        """What is known of a kernel of this kind (``product bf16``) and bound, one run of which takes ``us``."""
        known, of = self.machine.seen_error(kind, bound, us)
        if known is None:
            there = self.measured is not None and self.measured.seen_error(kind, bound, us)[0] is not None
            return Claim("another chip" if there else "nowhere", of=of)
        if self.kernel.fitted_on.startswith("your "):
            return Claim("this chip", of=f"not known: refitted on {self.kernel.fitted_on}")
        return Claim("this chip", known.error, of)

    def claim_alone(self, section: str, types: frozenset[str], bound: str, sizes: Mapping[str, float]) -> Claim:
        """The same of an operation that is alone in a program, of a section of its kind."""
        constants = self.mechanisms[section]
        if constants.seen is None or not constants.seen.covers(types, bound, sizes):
            return Claim()
        own = Claim("this chip", constants.error, "single operations of this kind that were not fitted")
        return own if constants.fitted_on else Claim("another chip")

    def stream_us(self, megabytes: float, share: float = 1.0) -> float:
        """Microseconds of a transfer at a ``share`` of the rate that HBM reaches, which is never above its peak."""
        rate, peak = self.kernel["mb_per_us"] * share, self.hbm_peak / 1e6 / MEGA
        return megabytes / (min(rate, peak) if peak else rate)

    def sparse_us(self, rows: float, row_mb: float, others_mb: float = 0.0) -> float:
        """Microseconds of gathers by SparseCores: a launch, then rows by their count or by bytes, a line each at least.

        ``row_mb``: megabytes of a row; of narrower ones than were timed as many as fit one of those count as one.
        ``others_mb``: those that are read and written beside the rows.
        """
        sparse, moved = self.mechanisms.get("sparse"), rows * max(row_mb, _LINE_MB) + others_mb
        us = self.stream_us(moved)
        if sparse is None:
            return us
        each = sparse["row_ns"] / 1e3 * min(1.0, row_mb * MEGA / sparse["narrowest_bytes"])
        return sparse["launch_us"] + max(us, rows * each)

    def gathered_us(self, op: Operation, rows: int, taken: float) -> tuple[float, float]:
        """Microseconds of a gather by SparseCores, and its megabytes: rows (``taken``), indices read, rows written."""
        beside = taken + 4e-6 * rows * max(1, len(op.integers("start_index_map")))
        return self.sparse_us(rows, taken / max(1, rows), beside), taken + beside


def chip_of(machine: Target) -> Chip:
    """The time constants of a target.

    Raises :class:`UnsupportedError` for a target that has none and is like no chip that has.
    """
    known, measured = time_of(machine)
    if not known or (measured is not None and machine.memory("hbm") is None):
        raise UnsupportedError(
            f"target {machine.name} has no time constants: no time was measured on such a chip, so none is modelled",
            how="name a tpu target, such as tpu-v6e; tilewright report counts this target's bytes",
        )
    fitted = any(constants.fitted_on for constants in machine.time.values())
    if measured is None:
        note = f"constants of {machine.name} fitted on measurements of single operations"
        note = note if fitted else f"{machine.name} with figures of your own: not calibrated"
        if "kernel" in known and known["kernel"].fitted_on.startswith("your "):
            note = f"constants of {machine.name} refitted on {known['kernel'].fitted_on}"
        return Chip(machine, known, note)
    whose = f"constants of {measured.name}, scaled by published peaks; not calibrated"
    note = f"{machine.caveat or f'{machine.name} was not fitted'}{'; ' if machine.caveat else ': '}{whose}"
    if fitted:
        note = f"constants of kernels fitted on whole functions measured on {machine.name}; "
        note += f"of operations alone in a program {measured.name}'s, scaled by published peaks"
    if machine.devices_per_chip > 1:
        note += f"; a device is one of the chip's {machine.devices_per_chip}"
    return Chip(machine, known, note, measured)
