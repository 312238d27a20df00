"""What the TPU compiler says a compiled program costs: its own cycle estimates added up, and bytes in HBM.

The compiler writes ``estimated_cycles`` beside fusions, convolutions, reductions and copies; reshapes, slices,
concatenations, pads, gathers and a few others get none. Those are filled with their padded bytes times a rate, which
is measured on one operation that does nothing but stream (f32[4096,4096] x + 1), and the filled share is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.hlo._program import Operation, Program
from tilewright.hlo.reporting._report_context import Context

__all__ = ["TpuEstimate", "cycles_per_byte", "estimate"]

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
#: No time of their own: names for buffers, control flow (its bodies count), the ends of transfers.
_NOTHING = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
    | {"while", "conditional", "call", "opt-barrier", "copy-done", "slice-done", "async-update", "async-done"}
)
#: Transfers between memories run beside the rest: their bytes count, their time does not.
_TRANSFERS = ("copy-start", "slice-start", "async-start")
_BODIES = ("while", "conditional", "call", "async-start")


@dataclass(frozen=True)
class TpuEstimate:
    """One compiled program.

    ==================  ==========================================================================================
    ``cycles``          estimated cycles of all operations, each as often as it runs, filled ones included
    ``filled_cycles``   of these, what was filled in for operations the compiler gives no estimate of
    ``hbm_bytes``       padded bytes of operands and results in HBM, over all operations that have a cost
    ``temp_bytes``      the compiler's own figure for temporary buffers
    ``operations``      operations with a cost, ``filled`` of them filled in
    ``unknown_loops``   loops whose trip count is not known, counted once
    ==================  ==========================================================================================
    """

    cycles: int
    filled_cycles: int
    hbm_bytes: int
    temp_bytes: int
    operations: int
    filled: int
    unknown_loops: int

    @property
    def filled_share(self) -> float:
        """The share of the cycles that is filled in."""
        return self.filled_cycles / self.cycles if self.cycles else 0.0


def cycles_per_byte(streaming: Program) -> float:
    """The rate of a compiled program that only streams."""
    context = Context(streaming, None)
    found = [(_cycles(op), _bytes(context, op)[0]) for op in streaming.entry.operations]
    cycles, moved = (sum(each) for each in zip(*((c, b) for c, b in found if c is not None)))
    return float(cycles / moved)


def estimate(program: Program, rate: float, temp_bytes: int = 0) -> TpuEstimate:
    """Add up a compiled program; ``rate`` is cycles per padded byte for what has no estimate."""
    context = Context(program, None)
    cycles = filled_cycles = hbm = count = filled = 0
    for name in _executed(program):
        runs = context.runs_of(name).count
        for op in context.by_name[name].operations:
            if op.opcode in _NOTHING and _cycles(op) is None:
                continue
            moved, in_hbm = _bytes(context, op)
            known = 0 if op.opcode in _TRANSFERS else _cycles(op)
            here = round(moved * rate) if known is None else known
            count, hbm, cycles = count + 1, hbm + runs * in_hbm, cycles + runs * here
            if known is None:
                filled, filled_cycles = filled + 1, filled_cycles + runs * here
    return TpuEstimate(cycles, filled_cycles, hbm, temp_bytes, count, filled, len(context.unknown_loops))


def _cycles(op: Operation) -> int | None:
    found = _CYCLES.search(op.attributes.get("backend_config", ""))
    return int(found[1]) if found else None


def _bytes(context: Context, op: Operation) -> tuple[int, int]:
    """Padded bytes of an operation's arrays, and of those in HBM; of a transfer's, the two ends."""
    if op.opcode in _TRANSFERS:
        ends = {x.memory_space: x for x in context.layouts(op.shape) if x.shape}
        smallest = min((x.size_bytes for x in ends.values()), default=0)
        return smallest, smallest * (0 in ends)
    layouts = [layout for shape in (*op.operand_shapes, op.shape) for layout in context.layouts(shape)]
    return sum(x.size_bytes for x in layouts), sum(x.size_bytes for x in layouts if not x.memory_space)


def _executed(program: Program) -> list[str]:
    """The computations that run operation by operation: the entry, bodies of loops, branches and calls."""
    by_name = {computation.name: computation for computation in program.computations}
    found = [program.entry.name]
    for name in found:
        for op in by_name[name].operations:
            if op.opcode in _BODIES:
                found += [callee for callee in op.calls if callee not in found]
    return found
