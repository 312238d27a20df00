"""Where every row is made: no time below its bytes and flops at the chip's peaks, no claim beyond what was seen.

The walkers (``estimate``, ``fusing``, ``scheduled``) say what one run of an operation asks of the chip; only this file
turns that into a ``TimeRow``, so that no walker can forget a law.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import PRODUCTS
from tilewright.hlo.program import Operation
from tilewright.hlo.reading.kernels import said_of
from tilewright.hlo.semantics.dims import product_flops
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.hlo.timing.chip import Chip, Claim
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.work import HBM, SORTS, Work
from tilewright.render import bytes_text

NOT_HIDDEN = 0.2
"""Share of the second busiest unit's time that is not hidden behind the busiest (seen in fused kernels)."""
_AT_PEAK = {
    "hbm": "raised to its bytes at HBM's published peak",
    "matrix": "raised to its flops at the matrix unit's published peak",
}
_INDICES = frozenset({"pred", "s32", "u32"})
_DIGITS = re.compile(r"\d+|$")
_ELEMENTS = re.compile(r"\b([a-z]\w*)\[\d")


@dataclass
class Run:
    """What one run of an operation asks of the chip, and how long a mechanism thinks it takes."""

    us: float  # microseconds that the step waits for it
    bound: str  # the unit that needs the longest
    megabytes: float = 0.0  # through HBM, without ``resident``
    flops: Mapping[str, int] = field(default_factory=dict)  # type on the matrix unit -> multiplications and additions
    resident: float = 0.0  # megabytes of arguments that an earlier step may have left in vector memory
    depth: int = 0  # of one product: how many products each sum has; 0 where that says nothing
    lane: str = ""  # where it runs; "": on the matrix unit if it has flops there, else on the vector unit
    notes: str = ""  # what to know of its time beside that
    kind: str = ""  # of kernel: product, reduction ...; ``alone`` in a program; "" of what nobody has timed
    section: str = "kernel"  # of the chip's constants
    begun: float = 0.0  # of a transfer beside other work: when it began, and
    beside: float | None = None  # how many microseconds it takes; then the bytes are passed in these, not in ``us``


def busy(parts: Mapping[str, float], latency: float) -> tuple[float, str]:
    """Microseconds of a kernel whose units work side by side, and the unit that it waits for.

    ``parts``: bound -> microseconds that the unit alone needs.
    """
    busiest, second = sorted(parts.values())[:-3:-1]
    bound = max(parts, key=lambda unit: parts[unit]) if busiest > latency else "latency"
    return latency + busiest + NOT_HIDDEN * second, bound


def run_of(chip: Chip, kind: str, work: Work) -> Run:
    """One run of a kernel that asks for so much."""
    constants = chip.kernel
    parts = work.parts(constants, chip.stream_us)
    us, bound = busy(parts, work.latency(constants, parts["hbm"]))
    if work.apart_us:
        bound = "hbm"
    elif work.rotations and bound == "vector" and kind in ("copy", "transpose", "reshape"):
        bound = "relayout"
    run = Run(us, bound, work.moved[HBM], work.products, work.resident, lane="matrix" if work.matrix_us else "vector")
    kinds = {"product": work.products, "gather": work.rows or work.elements or work.apart_us}
    kinds |= {"sort": kind in SORTS, "reduction": work.summed, "elementwise": True}
    run.kind = next(name for name, holds in kinds.items() if holds)
    return run


def timed(chip: Chip, op: Operation, run: Run, source: str = "", start: float = 0.0, runs: int = 1) -> TimeRow:
    """The row of ``runs`` runs of an operation; the first begins ``start`` microseconds after the step.

    Arguments that do not fit the memory near the core cannot have stayed there: their bytes pass through HBM. A time
    below the bytes at HBM's peak or the flops at the peak of their type is raised to it, and the row says so. The error
    of its kind is claimed only for types, sizes and bounds that were measured.
    """
    resident = run.resident if run.resident * MEGA <= chip.machine.near_bytes else 0.0
    far = round((run.megabytes + run.resident - resident) * MEGA) * runs
    flops = sum(run.flops.values()) * runs
    least = {
        "hbm": far / chip.hbm_peak if chip.hbm_peak else 0.0,
        "matrix": sum(count * runs / chip.matrix_peaks[kind] for kind, count in run.flops.items()),
    }
    slowest = max(least, key=lambda unit: least[unit])
    seconds, bound, beside, notes = run.us * runs / 1e6, run.bound, (run.beside or 0.0) / 1e6, list[str]()
    if run.beside is not None:
        beside = max(beside, least["hbm"] / runs)
    elif seconds < least[slowest]:
        seconds, bound = least[slowest], slowest
        notes.append(_AT_PEAK[slowest])
    lane = run.lane or ("matrix" if run.flops else "vector")
    kind = "transfer" if run.lane == "dma" else f"{run.kind} {type_of(op, run)}".strip() if run.kind else ""
    claim = Claim() if notes else chip.claim(kind, bound, 1e6 * (beside or seconds / runs))
    if run.kind == "alone" and not notes:  # raised to a peak, it is under another law than what was measured
        sizes = {"megabytes": run.megabytes + run.resident, "flops": float(flops / runs), "depth": float(run.depth)}
        claim = chip.claim_alone(run.section, types_of(op), bound, sizes)
    notes += [run.notes] if run.notes else ["not measured there"] if claim.place != "this chip" else []
    if resident:
        notes.append(f"{bytes_text(round(resident * MEGA))} of its arguments may lie in vector memory already")
    return TimeRow(
        *(op.name, op.opcode, seconds, bound, far, flops, source, start / 1e6, lane),
        calibrated=claim.place == "this chip",
        error=claim.error,
        runs=runs,
        begun=run.begun / 1e6,
        beside=beside,
        line=op.line,
        resident=round(resident * MEGA),
        note="; ".join(notes),
        kernel=op.kernel,
        again="rematted_computation" in op.op_name,
        measured_on=claim.place,
        kind=kind,
        seen=claim.of,
    )


def rest_of_transfers(chip: Chip, rows: Sequence[TimeRow], seconds: float) -> TimeRow | None:
    """The row of what HBM still has to pass when all else is done, None where nothing is left.

    Kernels and transfers are priced each by itself: beside each other they may ask more of HBM than its peak.
    """
    total = sum(row.bytes for row in rows) / chip.hbm_peak if chip.hbm_peak else 0.0
    if total <= seconds:
        return None
    run = Run(1e6 * (total - seconds), "hbm", lane="dma")
    return timed(chip, Operation("transfers", "stream", ""), run, start=1e6 * seconds)


def untimed(
    op: Operation, reason: str, source: str, start: float, runs: int, operands: list[Tiles], results: list[Tiles]
) -> TimeRow:
    """The row of an operation that has no time, and why.

    Its bytes are those of its arrays, at least one, so that a step with it is never wholly priced. Its flops are a
    product's, or what a custom call says of itself.
    """
    megabytes = sum(tiles.megabytes for tiles in (*operands, *results))
    return TimeRow(
        *(op.name, op.opcode, 0.0, "", 0, 0, source, start / 1e6, "host"),
        runs=runs,
        unpriced=reason,
        line=op.line,
        untimed_flops=flops_of(op, operands, results) * runs,
        untimed_bytes=max(1, round(megabytes * MEGA)) * runs,
        kernel=op.kernel,
    )


def flops_of(op: Operation, operands: Sequence[Tiles], results: Sequence[Tiles]) -> int:
    """Multiplications and additions of a product, or what a custom call says of itself; 0 for all others."""
    if flops := said_of(op).get("flops"):
        return flops
    if plain_opcode(op.opcode) in PRODUCTS and results:
        with suppress(IndexError, ValueError):  # dims that do not fit the shapes
            return product_flops(op, operands, results[0])
    return 0


def type_of(op: Operation, run: Run) -> str:
    """The narrowest element type of an operation's arrays, without indices and masks where it has others.

    Pallas kernels take masks in bytes: there all integers are such, unless it multiplies them.
    """
    types = types_of(op)
    if run.kind == "pallas" and "int8" not in run.flops:
        types = frozenset(name for name in types if name[0] in "bfc") or types
    return min(types - _INDICES or types, key=lambda name: (int(_DIGITS.findall(name)[0] or 1), name), default="")


def types_of(op: Operation) -> frozenset[str]:
    """The element types of an operation's arrays, scalars left out."""
    return frozenset(_ELEMENTS.findall(" ".join((op.shape, *op.operand_shapes))))
