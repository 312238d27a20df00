"""HBM of one chip: what stays there, and the stack of all tables together, measured where it was measured."""

from __future__ import annotations

import numpy as np

from tilewright.embed._memory import RULE_VERSION, SparseMemory
from tilewright.embed._plan_types import Heap, StackPlan
from tilewright.embed._stacking import Stacking
from tilewright.targets import Target, target

__all__ = ["heap_of", "live_stacks"]

_TOGETHER = {"forward": ((1, 1.0), (2, 1.94), (4, 3.42), (8, 5.54), (16, 10.4)), "backward": ((1, 1.0), (8, 7.5))}
"""Stack bytes of n equal tables in one program, in tables (measured on v5p; backward: SGD)."""
_PROGRAM = {"forward": "lookups", "backward": "updates"}


def heap_of(
    stacking: Stacking,
    stacks: tuple[StackPlan, ...],
    prefetched: int,
    chip: str | Target | None,
    pipelining: bool = True,
    serialized: int = 0,
) -> Heap:
    """Bytes on one chip; all chips hold the same.

    With pipelining the SparseCores run lookup i and update i - 2 while the TensorCore runs step i - 1: two sets of
    activations and of gradients are on their way instead of one, and the inputs of two more batches wait for their
    gradients.
    """
    topology = stacking.topology
    table_bytes = {each.name: each.vocab * each.padded_width * 4 for each in stacking.groups}
    slot_bytes = sum(table_bytes[each.name] * len(each.optimizer.slots) for each in stacking.groups)
    batch = sum(each.buffer_bytes for each in stacks) * topology.devices // topology.chips
    exchange = 2 * topology.sparsecores_per_chip * sum(4 * s.padded_width * s.samples_per_sparsecore for s in stacks)
    per_chip, hbm = topology.sparsecores_per_chip, target(chip).memory("hbm") if chip is not None else None
    name = target(chip).name if chip is not None else ""
    forward, how_forward = _together("forward", [s.forward for s in stacks if s.forward], name, serialized)
    backward, how_backward = _together("backward", [s.backward for s in stacks if s.backward], name, serialized)
    how = [how for how in (how_forward, how_backward) if how]
    return Heap(
        tables=sum(table_bytes.values()) // topology.chips,
        slots=slot_bytes // topology.chips,
        inputs=prefetched * batch,
        exchange=exchange,
        pipelined=exchange + 2 * batch if pipelining else 0,
        forward_stack=forward * per_chip,
        backward_stack=backward * per_chip,
        capacity=hbm.bytes if hbm else 0,
        stack_basis="modelled" if how else "measured",
        stack_note="; ".join(how) or f"rules measured ahead of time against {RULE_VERSION}",
    )


def _together(kind: str, programs: list[SparseMemory], chip: str, serialized: int) -> tuple[int, str]:
    """Stack bytes per SparseCore of all stacks in one program, at least the largest one's; where that is modelled, how
    ("": measured). Of ``serialized`` stacks one is live at a time; which ones they are is not known, so that the
    largest are taken to be live."""
    if not programs:
        return 0, ""
    live = sorted(programs, key=lambda m: -m.stack_bytes)[: live_stacks(len(programs), serialized)]
    points, n = _TOGETHER[kind], len(live)
    sizes, ratios = [size for size, _ in points], [ratio for _, ratio in points]
    ratio = float(np.interp(n, sizes, ratios)) if n <= sizes[-1] else n * ratios[-1] / sizes[-1]
    total = max(live[0].stack_bytes, round(sum(m.stack_bytes for m in live) * ratio / n))
    notes = [_how(kind, live, chip, ratio)]
    if n < len(programs):
        notes.append(f"{n} of {len(programs)} stacks are live at a time, as {serialized} are processed in turn")
    return total, "; ".join(filter(None, notes))


def live_stacks(stacks: int, serialized: int) -> int:
    """How many of a program's stacks are live at a time where ``serialized`` of them are processed in turn.

    >>> live_stacks(8, 0), live_stacks(8, 3), live_stacks(8, 99)
    (8, 6, 1)
    """
    return max(1, stacks - max(0, serialized - 1))


def _how(kind: str, programs: list[SparseMemory], chip: str, ratio: float) -> str:
    notes = [m.note for m in programs if m.basis != "measured"][:1]
    n, sizes = len(programs), [size for size, _ in _TOGETHER[kind]]
    same = len({m.stack_bytes for m in programs}) == 1 and chip == "tpu-v5p"
    if n > 1 and not (n in sizes and same and (kind == "forward" or programs[0].op == "sgd")):
        known = ", ".join(map(str, sizes[1:])) + " equal ones on tpu-v5p" + ("" if kind == "forward" else " with SGD")
        notes.append(
            f"{_PROGRAM[kind]} of {n} stacks are taken as {ratio:.2f} average ones, after those measured of {known}"
        )
    return "; ".join(notes)
