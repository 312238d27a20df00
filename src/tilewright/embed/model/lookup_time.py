"""How long SparseCores take to gather rows, and for what a step asks of a stack."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.embed.model.stacking import Stack
from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.types import dtype_name, type_bits
from tilewright.targets import Target, TimeConstants
from tilewright.targets import target as find_target

MEASURED = "tpu-v6e"
"""The chip whose SparseCores were timed in public: [time.sparse] of its file."""


def gather_seconds(*, rows: int, width: int, dtype: str, target: Target | str) -> float:
    """Seconds in which a device's SparseCores gather ``rows`` rows of ``width`` elements from HBM, modelled.

    A launch and its drain, which nothing hides; then each row takes its own time, by count and not by bytes (rows of
    4 KiB in f32 and of 2 KiB in bf16 were timed, these a little slower; narrower ones are taken to cost by bytes), but
    no less than reading and writing it at the share of HBM's peak that the compiler plans with. Constants of tpu-v6e
    (four public times of f32 rows of 4 KiB, met within 2 %); elsewhere not measured: bytes follow that chip's HBM.

    Raises :class:`UsageError` for sizes below 0 or an unknown type, UnsupportedError for a chip without SparseCores.

    >>> round(1e6 * gather_seconds(rows=16384, width=1024, dtype="f32", target="tpu-v6e"), 1)  # measured: 184.84
    184.4
    """
    machine = find_target(target) if isinstance(target, str) else target
    hbm = machine.memory("hbm")
    if machine.sparse is None or hbm is None:
        raise UnsupportedError(f"target {machine.name} has no SparseCores", how="name one that has, such as tpu-v6e")
    if rows < 0 or width < 1:
        raise UsageError(f"{rows} rows of {width} elements", where="gather_seconds", how="rows from 0, width from 1")
    constants = _constants(machine)
    row_bytes = width * type_bits(dtype_name(dtype)) / 8
    each = constants["row_ns"] / 1e9 * (1.0 if row_bytes / width >= 4 else constants["narrow"])
    each *= min(1.0, row_bytes / constants["narrowest_bytes"])
    moved = 2 * row_bytes / hbm.bytes_per_second / constants["hbm_share"]
    return constants["launch_us"] / 1e6 + rows * max(each, moved)


@dataclass(frozen=True)
class StackWork:
    """What one SparseCore does in a step for a stack, lookup and update: ``launch`` once, ``row`` for every distinct
    row it is asked for, ``id`` for every entry, ``sample`` for every sample of its own; seconds, modelled.

    The lookup gathers rows, the update rows with their optimizer slots, as :func:`gather_seconds` has it; a device's
    cores share its rate. For an entry its row, sample and gain are read and a vector goes into a sum, once each way; a
    sample's sum is written, its gradient read: taken to cost these bytes at the share of HBM's rate that gathers
    reach, for nobody has timed it. Without a chip ``row`` and ``id`` are bytes, which say what takes longer than what.
    """

    row: float
    id: float
    launch: float = 0.0
    sample: float = 0.0

    @classmethod
    def of(cls, group: Stack, chip: Target | str | None) -> StackWork:
        """The work for ``group`` on one SparseCore of ``chip``."""
        entry = 2 * 4 * (3 + group.padded_width)
        machine = find_target(chip) if isinstance(chip, str) else chip
        hbm = machine.memory("hbm") if machine is not None else None
        if machine is None or machine.sparse is None or hbm is None:
            return cls(4 * group.step_floats, entry)
        widths = group.padded_width, group.padded_width + group.slot_floats
        per_device = machine.sparse.per_chip // machine.devices_per_chip
        none, one = (sum(gather_seconds(rows=n, width=w, dtype="f32", target=machine) for w in widths) for n in (0, 1))
        byte = per_device / (hbm.bytes_per_second * _constants(machine)["hbm_share"])
        return cls((one - none) * per_device, entry * byte, none, 2 * 4 * group.padded_width * byte)


def _constants(machine: Target) -> TimeConstants:
    return (machine.time if "sparse" in machine.time else find_target(MEASURED).time)["sparse"]
