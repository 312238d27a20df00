"""The program of a matrix multiplication C = A B, as the kernel writes it for the machine.

One thread group per row of C, one loader per column of B. C at r0, A at r256, offsets at r290 (B), r294 (A) and
r298 (C), as in the source's examples; r280 to r289 hold what each thread knows of its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.program import MachineProgram

ACCUMULATORS, A_REGISTER = 256, 256


@dataclass(frozen=True)
class MatmulPlan:
    """One matrix multiplication: sizes, types as written after ``mm``, and how the threads share the work."""

    m: int
    n: int
    k: int
    type: str
    signs: str
    element_bytes: int
    ka: int
    kb: int
    transpose_b: bool
    order: str
    columns: int
    config: MatrixUnitConfig

    @property
    def fit(self) -> int:
        """Rows of C one instruction can work on."""
        return self.config.compute_threads // (self.ka * self.kb)

    @property
    def depth(self) -> int:
        """Elements of k one instruction covers."""
        return self.config.depth(self.element_bytes, self.kb)


def check(plan: MatmulPlan) -> None:
    """Refuse what the kernel cannot write, before anything runs."""
    c = plan.config
    if plan.order not in ("k_outer", "column_outer"):
        raise UsageError(f"order {plan.order!r}", how="k_outer or column_outer")
    if plan.fit == 0:
        problem = f"ka = {plan.ka}, kb = {plan.kb}: a group of {plan.ka * plan.kb} threads out of {c.compute_threads}"
        raise UsageError(problem, how="ka * kb may be as large as the threads")
    if plan.columns > c.loader_threads:
        raise UsageError(f"columns = {plan.columns} is not within 1..{c.loader_threads} (threads)")
    if c.kb_mode == "split" and c.chunk(plan.element_bytes) % plan.kb:
        problem = f"kb_mode = 'split' with kb = {plan.kb}: a chunk of {c.chunk(plan.element_bytes)} elements"
        raise UnsupportedError(problem, how="the kernel splits chunks evenly; the instruction splits them anyhow")
    if c.registers < 300 or c.predicates < 4 or c.uniform_registers < 16 or A_REGISTER + c.a_registers > 280:
        raise UsageError("the kernel needs 300 registers, 4 predicates and 16 uniform registers", where="config")
    if c.offset_mode != "registers":
        raise UnsupportedError("the kernel gives offsets one register per dim", how="offset_mode='registers'")
    if plan.order == "column_outer" and (c.pred_scope != "loader" or c.column_numbering != "gap"):
        problem = "column_outer selects columns by the loaders' predicates, one register a column"
        raise UnsupportedError(problem, how="pred_scope='loader' and column_numbering='gap', or order='k_outer'")


def matmul_program(plan: MatmulPlan) -> MachineProgram:
    """The program; it expects segments ``$A`` (m x k), ``$B`` (n x k, or k x n for t1) and ``$C`` (m x n).

    ur0 first row, ur1 first column, ur2 first k, ur6 the column of a column-outer round, ur10 rows, ur11 columns and
    ur12 columns per thread of the block.
    """
    check(plan)
    return _matmul_program(plan)


@lru_cache(maxsize=64)
def _matmul_program(plan: MatmulPlan) -> MachineProgram:
    if 0 in (plan.m, plan.n, plan.k):
        return assemble("halt", plan.config)
    lines = [*places(plan), *blocks(plan), "halt"]
    return assemble("\n".join(lines), plan.config)


def places(plan: MatmulPlan) -> list[str]:
    """Segments, and every thread's row (r281), qa (r283), qb (r284) and first k (r286)."""
    group = plan.ka * plan.kb
    strided = plan.config.group_order == "strided"
    row, place, unit = ("rem", "div", plan.fit) if strided else ("div", "rem", group)
    own, less = ("r288", "ltu") if plan.config.disjoint_sets else ("r280", "lt")
    compute = [f"sub r288, r280, {plan.config.first_compute}    # the other threads only load"]
    return [
        "segment ur3, $A",
        "segment ur4, $B",
        "segment ur5, $C",
        "tid r280",
        *compute[: plan.config.disjoint_sets],
        f"{row} r281, {own}, {unit}",
        f"{place} r282, {own}, {unit}",
        f"div r283, r282, {plan.kb}",
        f"rem r284, r282, {plan.kb}",
        f"mul r286, r284, {plan.config.chunk(plan.element_bytes, plan.kb)}",
        f"cmp.{less} p0, {own}, {plan.fit * group}    # threads that belong to a group",
        f"cmp.eq p3, r284, {plan.kb - 1 if plan.config.kb_acc == 'last' else 0}    # threads that keep products",
    ]


def blocks(plan: MatmulPlan, tag: str = "", first: int = 0) -> list[str]:
    """All of C, block by block; ``tag`` tells labels apart, ``first``: the column of C that B's first one makes."""
    walk = _walk_columns if plan.order == "column_outer" else _walk_depth
    shifted = [f"add ur15, ur1, {first}"] if first else []
    return [
        "mov ur0, 0",
        f"rows{tag}:",
        f"sub ur10, {plan.m}, ur0",
        f"min ur10, ur10, {plan.fit}",
        "cmp.lt p2, r281, ur10",
        "pand p2, p2, p0    # threads with a row",
        "add r295, r281, ur0",
        "add r299, r281, ur0",
        "mov ur1, 0",
        f"columns{tag}:",
        f"sub ur11, {plan.n}, ur1",
        f"min ur11, ur11, {plan.columns}",
        f"add ur12, ur11, {plan.ka - 1}",
        f"div ur12, ur12, {plan.ka}",
        f"min ur13, ur12, {ACCUMULATORS}",
        "setmm ur11, ur10",
        "clr r0, ur13",
        f"add {'r290' if plan.transpose_b else 'r291'}, r280, ur1    # every loader's own column",
        *walk(plan, tag),
        *shifted,
        *store(plan, "ur15" if first else "ur1"),
        "add ur1, ur1, ur11",
        f"br.lt ur1, {plan.n}, columns{tag}",
        "add ur0, ur0, ur10",
        f"br.lt ur0, {plan.m}, rows{tag}",
    ]


def streamed_program(plan: MatmulPlan, widths: tuple[int, ...], double: bool) -> MachineProgram:
    """B in segments ``$B0``, ``$B1``, ... of ``widths`` columns, each brought to L2 by DMA and given up after use.

    ``double``: the next one comes in while one is worked on; else after it.
    """
    check(plan)
    lines, first = [line for line in places(plan) if "$B" not in line], 0
    for s, width in enumerate(widths):
        more = [f"segment ur14, $B{s + 1}", "dmain ur14    # the next one"] if s + 1 < len(widths) else []
        lines += [f"segment ur4, $B{s}", *(["dmain ur4"] if s == 0 else []), *(more if double else [])]
        lines += blocks(replace(plan, n=width), f"_{s}", first)
        lines += ["dmaout ur4", *([] if double else more)]
        first += width
    return assemble("\n".join([*lines, "halt"]), plan.config)


def _walk_columns(plan: MatmulPlan, tag: str) -> list[str]:
    return [
        "mov ur6, 0",
        f"column{tag}:",
        "cmp.eq p1, r280, ur6    # one column on",
        *_walk_depth(plan, tag, "@p1, "),
        "add ur6, ur6, 1",
        f"br.lt ur6, ur11, column{tag}",
    ]


def _walk_depth(plan: MatmulPlan, tag: str, guard: str = "") -> list[str]:
    suffixes = f".ka{plan.ka}.kb{plan.kb}.t{int(plan.transpose_b)}{plan.signs}"
    return [
        "mov ur2, 0",
        f"depth{tag}:",
        "add r294, r286, ur2",
        f"@p2, ld{_elements(plan)} r{A_REGISTER}, ur3:rf294:0x00, {plan.config.a_registers}",
        f"mov {'r291' if plan.transpose_b else 'r290'}, ur2",
        f"{guard}mm{plan.type}{suffixes} r0, ur4:rf290:0x00, r{A_REGISTER}",
        f"add ur2, ur2, {plan.depth}",
        f"br.lt ur2, {plan.k}, depth{tag}",
    ]


def _elements(plan: MatmulPlan) -> str:
    """A thread's own elements of A, where they are fewer than its registers hold."""
    own = plan.config.chunk(plan.element_bytes, plan.kb)
    return f".n{own}" if own < plan.config.chunk(plan.element_bytes) else ""


def store(plan: MatmulPlan, column: str) -> list[str]:
    """Every keeping thread stores its part of the row: r285 products, the first in column r298 (from ``column``)."""
    stride = f".s{plan.ka}" if plan.config.ka_split == "interleaved" and plan.ka > 1 else ""
    if stride:
        first = ["mov r287, r283", "sub r285, ur11, r283", f"add r285, r285, {plan.ka - 1}"]
        count = [f"div r285, r285, {plan.ka}"]
    else:
        first = ["mul r287, r283, ur12", "sub r285, ur11, r287"]
        count = ["max r285, r285, 0"]
    return [
        *first,
        *count,
        "min r285, r285, ur13",
        f"add r298, r287, {column}",
        "pand p1, p2, p3",
        f"@p1, st{stride} r0, ur5:rf298:0x00, r285",
    ]
