"""Sums, maxima and minima of windows: pools, and reductions over dims that are not the last.

Every thread takes a run of neighbouring elements of the result, loads what its window has beside each other, and keeps
one run of results. What lies outside the tensor is not loaded: the register then holds what changes nothing. Where
there are fewer runs than threads, neighbouring threads share a window and put their results together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, product
from math import prod

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import Reading, machine_type, operations
from tilewright.isa.lowering.sources import Groups, Step
from tilewright.isa.lowering.tables import BYTES, Lowering
from tilewright.isa.lowering.vectors import is_identity

OPERATIONS = {"add": "add", "maximum": "max", "minimum": "min"}
_RUN, _IN_FLIGHT, _UNROLLED = 16, 8, 64
"""Elements of a thread, loads before the first is used, and elements of a window that are written out."""
_LEAST = 4
"""Of a window's longest dim, what a thread takes at least where threads share it."""
_FILLS = {
    ("max", "s8"): -0x7F7F7F80, ("max", "s16"): -0x7FFF8000, ("max", "s32"): -(2**31), ("min", "s8"): 0x7F7F7F7F,
    ("min", "s16"): 0x7FFF7FFF, ("min", "s32"): 2**31 - 1, ("max", "f32"): -0x800000, ("min", "f32"): 0x7F800000,
    ("max", "bf16"): -0x7F0080, ("min", "bf16"): 0x7F807F80, ("max", "f16"): -0x3FF0400, ("min", "f16"): 0x7C007C00,
    ("min", "u8"): -1, ("min", "u16"): -1, ("min", "u32"): -1,
}  # fmt: skip
"""A register of elements that change nothing; 0 for the others."""


@dataclass(frozen=True)
class Side:
    """One dim of the table: elements of the result, the window, its stride, what is before, gaps in it."""

    out: int
    window: int = 1
    stride: int = 1
    before: int = 0
    dilation: int = 1


@dataclass(frozen=True)
class WindowPlan:
    """``sides`` of ``$A`` as numpy has them; ``kept``: those that ``$C`` has; ``runs`` (first, end) are this element's.

    ``shared``: the longest side's window is divided among threads, which it may be where it is the whole of a dim.
    """

    op: str
    dtype: str
    sides: tuple[Side, ...]
    kept: tuple[int, ...]
    shared: bool
    config: MatrixUnitConfig
    runs: tuple[int, int] = (0, 0)

    @property
    def run(self) -> int:
        """Neighbouring elements of the result that a thread computes."""
        last = self.sides[-1]
        if (last.window, last.stride, last.before) != (1, 1, 0):
            return 1
        least = 4 // BYTES[self.dtype]
        return next((n for n in (4, 8) if n >= max(least, last.out)), _RUN)

    @property
    def counts(self) -> tuple[int, ...]:
        """Runs along each dim of the result."""
        return (*(side.out for side in self.sides[:-1]), -(-self.sides[-1].out // self.run))

    @property
    def longest(self) -> int:
        return max(range(len(self.sides)), key=lambda d: self.sides[d].window)

    @property
    def group(self) -> int:
        group, window = 1, self.sides[self.longest].window
        if not self.shared or self.dtype == "u32":
            return 1
        while group * 2 * prod(self.counts) <= self.config.threads and -(-window // (group * 2)) >= _LEAST:
            group *= 2
        return group


@lru_cache(maxsize=256)
def window_program(plan: WindowPlan) -> MachineProgram:
    """The program that reduces windows of ``$A`` into ``$C``."""
    threads, group, run, dtype = plan.config.threads, plan.group, plan.run, plan.dtype
    words = -(-run * BYTES[dtype] // 4)
    limit = ".n1" if run == 1 else ""
    floats = dtype in ("f32", "bf16", "f16")
    wide = "f32" if floats else "s32"
    op = OPERATIONS[plan.op]
    say = f"vf.{op}" if floats else f"vi.{op}{'u' if dtype == 'u32' and op != 'add' else ''}"
    fill = _FILLS.get((op, dtype), 0)
    wide_fill = 0 if op == "add" else _FILLS.get((op, dtype if dtype == "u32" else wide), 0)
    first, end = plan.runs
    block = threads // group
    lines = ["segment ur3, $A", "segment ur5, $C", "tid r279", f"rem r278, r279, {group}", f"div r279, r279, {group}"]
    lines += [f"mov ur0, {first}", "again:", "add r281, r279, ur0", f"cmp.lt p1, r281, {end}"]
    lines += [f"cmp.lt p2, r279, {block}", "pand p1, p1, p2"]
    lines += _place_code(plan)
    lines += [f"vi.or r0, {wide_fill}, 0, {run}"]
    inside = list(product(*map(range, _unrolled(plan))))
    counts = [mine // made for mine, made in zip(_thread_window(plan), _unrolled(plan), strict=True)]
    loops = [(d, count) for d, count in enumerate(counts) if count > 1]
    for n in range(len(loops)):
        lines += [f"mov ur{8 + n}, 0", f"loop{n}:"]
    for begin in range(0, len(inside), _IN_FLIGHT):
        several = inside[begin : begin + _IN_FLIGHT]
        for k, offsets in enumerate(several, 1):
            lines += _address_code(plan, offsets, [d for d, _ in loops])
            lines += [f"vi.or r{run * k}, {fill}, 0, {words}", f"@p1, ld{limit} r{run * k}, ur3:rf294:0x00, {words}"]
        for at in range(run, run * (len(several) + 1), run):
            lines += [f"vcvt.to_{wide}.from_{dtype} r{at}, r{at}, {run}"] if BYTES[dtype] < 4 else []
            lines += [f"{say} r0, r0, r{at}, {run}"]
    for n, (_, count) in reversed(list(enumerate(loops))):
        lines += [f"add ur{8 + n}, ur{8 + n}, 1", f"br.lt ur{8 + n}, {count}, loop{n}"]
    if group > 1:
        lines += [f"vthr.{op}.{wide}.g{group} r0, r0, {run}", "cmp.eq p2, r278, 0", "pand p1, p1, p2"]
    if BYTES[dtype] < 4:
        lines += [f"vcvt.to_{dtype}.from_{wide}{'' if floats else '.wrap'} r0, r0, {run}"]
    lines += [f"@p1, st{limit} r0, ur5:rf298:0x00, {words}"]
    lines += [f"add ur0, ur0, {block}", f"br.lt ur0, {end}, again", "halt"]
    return assemble("\n".join(lines), plan.config)


def _place_code(plan: WindowPlan) -> list[str]:
    """Of a thread's run: coordinates in ``$A`` of its window's first element in r286 on, in ``$C`` in r298 on."""
    lines, counts, last = [], plan.counts, len(plan.sides) - 1
    for d in reversed(range(len(plan.sides))):
        side, at = plan.sides[d], 282
        lines += [f"rem r{at}, r281, {counts[d]}", f"div r281, r281, {counts[d]}"] if d else [f"mov r{at}, r281"]
        if d == last and plan.run > 1:
            lines += [f"mul r{at}, r{at}, {plan.run}"]
        if d in plan.kept:
            lines += [f"mov r{298 + len(plan.kept) - 1 - plan.kept.index(d)}, r{at}"]
        lines += [f"mul r{at}, r{at}, {side.stride}"] if side.stride > 1 else []
        lines += [f"sub r{at}, r{at}, {side.before}"] if side.before else []
        if plan.group > 1 and d == plan.longest:
            lines += [f"mul r283, r278, {_thread_window(plan)[d]}", f"add r{at}, r{at}, r283"]
        lines += [f"mov r{286 + d}, r{at}", f"mov r{294 + last - d}, r{at}"]
    return lines


def _address_code(plan: WindowPlan, offsets: tuple[int, ...], looped: list[int]) -> list[str]:
    """Assembly lines that compute a window element's coordinates into r294 and up, the last dim first.

    ``offsets`` are its window positions, one per dim; ``looped``: the dims with a loop, whose counter adds to them.
    """
    lines = []
    for d, (side, offset) in enumerate(zip(plan.sides, offsets, strict=True)):
        if side.window > 1:
            at = 294 + len(plan.sides) - 1 - d
            lines += [f"add r{at}, r{286 + d}, {offset * side.dilation}"]
            if d in looped:
                step = side.dilation * _unrolled(plan)[d]
                lines += [f"mul ur12, ur{8 + looped.index(d)}, {step}", f"add r{at}, r{at}, ur12"]
    return lines


def _thread_window(plan: WindowPlan) -> list[int]:
    """Elements of a thread's window along each dim; of a shared one some more, which is outside the tensor."""
    mine = [side.window for side in plan.sides]
    if plan.shared:
        part = -(-mine[plan.longest] // plan.group)
        mine[plan.longest] = part if part < _IN_FLIGHT else -(-part // _IN_FLIGHT) * _IN_FLIGHT
    return mine


@lru_cache(maxsize=64)
def _unrolled(plan: WindowPlan) -> tuple[int, ...]:
    """How many of these are written out along each dim; a loop has the rest."""
    mine = _thread_window(plan)
    if prod(mine) <= _UNROLLED:
        return tuple(mine)
    made, left = [1] * len(mine), _IN_FLIGHT
    for d in sorted(range(len(mine)), key=lambda d: mine[d]):
        made[d] = max(n for n in range(1, min(left, mine[d]) + 1) if mine[d] % n == 0)
        left //= made[d]
    return tuple(made)


# Operations as steps.


def starts_neutral(reading: Reading, node: Node) -> bool:
    """Whether a reduction's initial value is the identity of its operation, for elements the machine has."""
    value, start = node.operands[0], reading.number(node.operands[1]) if len(node.operands) == 2 else None
    dtype, op = str(machine_type(value)), OPERATIONS.get(node.attributes.get("monoid", ""))
    if start is None or op is None or ("min", dtype) not in _FILLS or value.dtype == "i1":
        return False
    return is_identity(node.attributes["monoid"], start)


def lower_windows(lowering: Lowering, node: Node) -> None:
    own, x, out = node.attributes, node.operands[0], node.result
    if not starts_neutral(lowering.reading, node) or max(own["base_dilation"], default=1) > 1:
        raise UnsupportedError("the machine has no program for windows of other than a sum or an extreme")
    if any(side < 0 for pair in own["padding"] for side in pair):
        raise UnsupportedError("windows with negative padding")
    several = zip(out.sizes, own["window"], own["strides"], own["padding"], own["window_dilation"], strict=True)
    sides = [Side(n, w, s, low, d) for n, w, s, (low, _), d in several]
    same = [side.window == 1 and own["padding"][d] == (0, 0) and side.out == x.sizes[d] for d, side in enumerate(sides)]
    groups = tuple(tuple(run) for _, run in groupby(range(len(sides)), key=lambda d: -1 if same[d] else d))
    merged = [Side(prod(sides[d].out for d in group)) if same[group[0]] else sides[group[0]] for group in groups]
    _add(lowering, node, groups, groups, merged, tuple(range(len(groups))))


def over_leading(node: Node) -> bool:
    """Whether a ``reduce`` goes over dims before one that it keeps, and not over the last."""
    shape, dims = node.operands[0].sizes, node.attributes["dims"]
    long = [d for d, size in enumerate(shape) if size > 1]
    return bool(long) and long[-1] not in dims and any(d in dims for d in long)


def lower_reduction(lowering: Lowering, node: Node) -> None:
    """A ``reduce`` over dims that are not the last as a step: a window that is the whole of a dim."""
    dims, shape = node.attributes["dims"], node.operands[0].sizes
    if not starts_neutral(lowering.reading, node):
        raise UnsupportedError("the machine has no program for a reduction of other than a sum or an extreme")
    long = [d for d, size in enumerate(shape) if size > 1]
    groups = tuple(tuple(run) for _, run in groupby(long, key=lambda d: d in dims))
    summed = [group[0] in dims for group in groups]
    sizes = [prod(shape[d] for d in group) for group in groups]
    sides = [Side(1, n) if over else Side(n) for n, over in zip(sizes, summed, strict=True)]
    place = {d: n for n, d in enumerate(d for d in range(len(shape)) if d not in dims)}
    made = tuple(tuple(place[d] for d in group) for group, over in zip(groups, summed, strict=True) if not over)
    kept = tuple(n for n, over in enumerate(summed) if not over)
    _add(lowering, node, groups, made, sides, kept)


def _add(
    lowering: Lowering, node: Node, groups: Groups, made: Groups, sides: list[Side], kept: tuple[int, ...]
) -> None:
    if len(groups) > 4:
        raise UnsupportedError(f"windows over {len(groups)} dims")
    x, shared = node.operands[0], node.name == "reduce"
    dtype = machine_type(x)
    assert dtype is not None
    a, c = lowering.table(x, groups), lowering.new_table(node.result, made)
    plan = WindowPlan(node.attributes["monoid"], dtype, tuple(sides), kept, shared, lowering.config)
    jobs = lowering.jobs(prod(plan.counts), lambda runs: window_program(replace(plan, runs=runs)), A=a, C=c)
    name = lowering.name("reduce" if shared else "window")
    lowering.steps.append(
        Step(name, "vector", (node,), (), (node.result,), jobs, "", (a,), (c,), operations=operations(node))
    )
