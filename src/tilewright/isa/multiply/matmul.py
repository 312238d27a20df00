"""matmul: numpy arrays in, a real program run on the machine, value and counts out.

The program computes C = A B with one thread group per row of C and one loader per column of B. C is at r0, A at r256,
offsets at r290 (B), r294 (A) and r298 (C), as in the source's examples; r280 to r289 hold what each thread knows of its
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError, check_known
from tilewright.isa.chip.segments import Part, TensorMemory, by_dim
from tilewright.isa.chip.state import Shown
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.run import RunResult, run_on, start_state, timeline
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.errors import Array, ErrorRecord, array_of, whole
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.vector.epilogue import check_epilogue, epilogue_lines
from tilewright.isa.vector.spec import VectorSpec, tensor_of, zeros_of
from tilewright.layout.index.types import dtype_name
from tilewright.trace import Event

ACCUMULATORS, A_REGISTER, PLACES = 256, 256, 280
"""Registers of products; the first of A, and the first of what each thread knows of its place."""
SECOND_A = 304
"""Where a second block of A has its registers, and one that the first has no room for."""


@dataclass(frozen=True)
class MatmulPlan:
    """One matrix multiplication: sizes, types as written after ``mm``, and how the threads share the work.

    ``epilogue``: what is done to the products before they are stored. ``tail_kb``: kb of the last rows, where they are
    fewer than a block.
    """

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
    block_a: int = 1
    buffers: int = 1
    epilogue: VectorSpec | None = None
    tail_kb: int | None = None

    @property
    def fit(self) -> int:
        """Rows of C one instruction can work on."""
        return self.config.compute_threads // (self.ka * self.kb)

    @property
    def depth(self) -> int:
        """Elements of k one instruction covers."""
        return self.config.depth(self.element_bytes, self.kb)

    @property
    def chunk(self) -> int:
        """Elements of A one thread has for one instruction."""
        return self.config.chunk(self.element_bytes, self.kb)

    @property
    def held(self) -> int:
        """Registers in which it has them."""
        return self.config.a_registers_read(self.element_bytes, self.kb)

    @property
    def parts(self) -> tuple[tuple[MatmulPlan, int], ...]:
        """(a plan up to its last row, its first row): all whole blocks, and the rows left over, or all of it."""
        rest = self.m % self.fit if self.tail_kb else 0
        if not rest or not self.tail_kb:
            return ((replace(self, tail_kb=None), 0),)
        whole_blocks = replace(self, m=self.m - rest, tail_kb=None)
        last = replace(self, kb=self.tail_kb, block_a=1, tail_kb=None)
        return ((whole_blocks, 0), (last, self.m - rest))[whole_blocks.m == 0 :]


def check(plan: MatmulPlan) -> None:
    """Refuse what the kernel cannot write, before anything runs."""
    c = plan.config
    if plan.block_a > 1 and plan.kb > 1:
        block = plan.depth * plan.block_a
        uneven = plan.chunk * plan.element_bytes % 4 or plan.chunk * plan.kb % plan.depth
        if plan.k % block or plan.tail_kb or uneven:
            problem = f"block_a = {plan.block_a} with kb = {plan.kb}: k is reordered in blocks of {block}"
            raise UnsupportedError(
                problem, how="blocks that divide k, whole registers a thread and no tail_kb; or kb=1"
            )
    if plan.tail_kb:
        check(replace(plan, kb=plan.tail_kb, block_a=1, tail_kb=None))
    if plan.order not in ("k_outer", "column_outer"):
        raise UsageError(f"order {plan.order!r}", how="k_outer or column_outer")
    if plan.fit == 0:
        problem = f"ka = {plan.ka}, kb = {plan.kb}: a group of {plan.ka * plan.kb} threads out of {c.compute_threads}"
        raise UsageError(problem, how="ka * kb may be as large as the threads")
    if plan.columns > c.loader_threads:
        raise UsageError(f"columns = {plan.columns} is not within 1..{c.loader_threads} (threads)")
    if c.registers < 300 or c.predicates < 4 or c.uniform_registers < 16 or A_REGISTER + c.a_registers > 280:
        raise UsageError("the kernel needs 300 registers, 4 predicates and 16 uniform registers", where="config")
    if c.offset_mode != "registers":
        raise UnsupportedError("the kernel gives offsets one register per dim", how="offset_mode='registers'")
    if plan.buffers > 1 and SECOND_A + plan.held * plan.block_a > c.registers:
        raise UsageError(f"two buffers of {plan.block_a} rounds of A", how="fewer rounds, or more registers")
    # Column by column A stays, and may have all registers behind the offsets.
    room = max(PLACES - A_REGISTER, c.registers - SECOND_A if plan.order == "column_outer" else 0)
    if plan.block_a > (most := room // plan.held):
        raise UsageError(f"block_a = {plan.block_a} rounds of A", how=f"registers for at most {most}")
    if plan.epilogue is not None:
        check_epilogue(plan.epilogue, bool(plan.signs), c.registers, c.uniform_registers)
    if plan.order == "column_outer" and (c.pred_scope != "loader" or c.column_numbering != "gap"):
        problem = "column_outer selects columns by the loaders' predicates, one register a column"
        raise UnsupportedError(problem, how="pred_scope='loader' and column_numbering='gap', or order='k_outer'")


@lru_cache(maxsize=64)
def matmul_program(plan: MatmulPlan) -> MachineProgram:
    """The program; it expects segments ``$A`` (m x k), ``$B`` (n x k, or k x n for t1) and ``$C`` (m x n).

    ur0 first row, ur1 first column, ur2 first k, ur6 the column of a column-outer round, ur10 rows, ur11 columns and
    ur12 columns per thread of the block.
    """
    check(plan)
    if 0 in (plan.m, plan.n, plan.k):
        return assemble("halt", plan.config)
    return assemble("\n".join([*places(plan), *_rows(plan), "halt"]), plan.config)


def a_bases(plan: MatmulPlan) -> tuple[int, ...]:
    """The first register of A, of every buffer."""
    return (A_REGISTER, SECOND_A)[: plan.buffers]


def _rows(plan: MatmulPlan, tag: str = "", first: int = 0) -> list[str]:
    """:func:`blocks` of every part of the rows; the threads find their places anew for the last."""
    lines: list[str] = []
    for part, begin in plan.parts:
        again = [] if part.kb == plan.kb else places(part)[3:]
        lines += [*again, *blocks(part, f"{tag}_last" if begin else tag, first, begin)]
    return lines


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
        f"mul r286, r284, {plan.chunk * (plan.block_a if plan.kb > 1 else 1)}",
        f"cmp.{less} p0, {own}, {plan.fit * group}    # threads that belong to a group",
        f"cmp.eq p3, r284, {plan.kb - 1 if plan.config.kb_acc == 'last' else 0}    # threads that keep products",
    ]


def blocks(plan: MatmulPlan, tag: str = "", first: int = 0, begin: int = 0) -> list[str]:
    """C from row ``begin`` on, block by block.

    ``tag`` tells labels apart, ``first``: the column of C that B's first one makes.
    """
    by_column = plan.order == "column_outer" and plan.block_a == 1
    walk = _each_column(_walk_depth(plan, tag), tag) if by_column else _walk_depth(plan, tag)
    shifted = [f"add ur15, ur1, {first}"] if first else []
    own = f"add {'r290' if plan.transpose_b else 'r291'}, r280, ur1    # every loader's own column"
    product = [own, *walk, *shifted, *store(plan, "ur15" if first else "ur1", tag)]
    return over_blocks(plan, tag, begin, (0, plan.n), [f"add r{row}, r281, ur0" for row in (295, 299)], product)


def over_blocks(
    plan: MatmulPlan, tag: str, row: int, columns: tuple[int, int], of_rows: list[str], product: list[str]
) -> list[str]:
    """The loops over blocks of rows from ``row`` on and of columns (first, end); what is done for each, ``product``."""
    return [
        f"mov ur0, {row}",
        f"rows{tag}:",
        f"sub ur10, {plan.m}, ur0",
        f"min ur10, ur10, {plan.fit}",
        "cmp.lt p2, r281, ur10",
        "pand p2, p2, p0    # threads with a row",
        *of_rows,
        f"mov ur1, {columns[0]}",
        f"columns{tag}:",
        f"sub ur11, {columns[1]}, ur1",
        f"min ur11, ur11, {plan.columns}",
        f"add ur12, ur11, {plan.ka - 1}",
        f"div ur12, ur12, {plan.ka}",
        f"min ur13, ur12, {ACCUMULATORS}",
        "setmm ur11, ur10",
        "clr r0, ur13",
        *product,
        "add ur1, ur1, ur11",
        f"br.lt ur1, {columns[1]}, columns{tag}",
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
        lines += places(plan)[3:] if s and len(plan.parts) > 1 else []
        lines += _rows(replace(plan, n=width), f"_{s}", first)
        lines += ["dmaout ur4", *([] if double else more)]
        first += width
    return assemble("\n".join([*lines, "halt"]), plan.config)


def _each_column(walk: list[str], tag: str) -> list[str]:
    """What is done for one column after the other: p1 is true in its loader alone."""
    first, again = ["mov ur6, 0", f"column{tag}:"], ["add ur6, ur6, 1", f"br.lt ur6, ur11, column{tag}"]
    return [*first, "cmp.eq p1, r280, ur6    # one column on", *walk, *again]


def _walk_depth(plan: MatmulPlan, tag: str) -> list[str]:
    """All K rounds, ``block_a`` of them with A loaded at once; the rounds that are left come at the end."""
    rounds, step = -(-plan.k // plan.depth), plan.block_a * plan.depth
    whole_blocks = rounds // plan.block_a * step
    lines = ["mov ur2, 0"]
    if whole_blocks:
        again = [f"add ur2, ur2, {step}", f"br.lt ur2, {whole_blocks}, depth{tag}"]
        lines += [f"depth{tag}:", *_rounds(plan, plan.block_a, tag), *again]
    return [*lines, *_rounds(plan, rounds % plan.block_a, f"_rest{tag}")]


def _rounds(plan: MatmulPlan, count: int, tag: str) -> list[str]:
    """``count`` rounds from k = ur2 on: A of all of them, then their ``mm``, for one column after the other if so."""
    if not count:
        return []
    by_column = plan.order == "column_outer"
    first = A_REGISTER if A_REGISTER + plan.held * plan.block_a <= PLACES else SECOND_A
    elements = own_elements(plan) if plan.block_a == 1 else ""
    load = ["add r294, r286, ur2", f"@p2, ld{elements} r{first}, ur3:rf294:0x00, {plan.held * count}"]
    walk = _round_by_round(plan, count, first, "@p1, " if by_column else "")
    return [*load, *(_each_column(walk, tag) if by_column and plan.block_a > 1 else walk)]


def _round_by_round(plan: MatmulPlan, count: int, first: int, guard: str) -> list[str]:
    """The ``mm`` of ``count`` rounds whose A begins at register ``first``."""
    walked, suffixes = int(plan.transpose_b), f".ka{plan.ka}.kb{plan.kb}.t{int(plan.transpose_b)}{plan.signs}"
    lines = [f"mov {'r291' if walked else 'r290'}, ur2"]
    for n in range(count):
        along = 0 if walked else n * plan.depth  # an immediate goes along d1, which a t1 walk does not
        lines += [f"add r291, r291, {plan.depth}"] if walked and n else []
        a = first + n * plan.held
        lines += [f"{guard}mm{plan.type}{suffixes} r0, ur4:rf290:0x{along:02x}, r{a}"]
    return lines


def own_elements(plan: MatmulPlan) -> str:
    """The suffix of an ``ld`` of one round of A: how many elements a thread has, where its registers hold more."""
    return f".n{plan.chunk}" if plan.chunk * plan.element_bytes % 4 else ""


def store(plan: MatmulPlan, column: str, tag: str = "") -> list[str]:
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
        *_done(plan, stride, tag),
    ]


def _done(plan: MatmulPlan, stride: str, tag: str) -> list[str]:
    """The products as they are, or what becomes of them, to C."""
    if plan.epilogue is None:
        return [f"@p1, st{stride} r0, ur5:rf298:0x00, r285"]
    most = min(ACCUMULATORS, -(-min(plan.columns, plan.n) // plan.ka))
    broadcasts = plan.ka == 1 and not plan.config.disjoint_sets
    return epilogue_lines(plan.epilogue, most, plan.config.registers, broadcasts, stride, tag)


@dataclass(eq=False, repr=False)
class KernelResult(Shown):
    """``value`` (int32 modulo 2^32, or float32) and what the run counted; ``program`` can be listed and run again.

    With several processing elements ``counts`` and ``traffic`` are all elements' together, cycles and accounts those of
    the last one done; ``pes`` and ``programs`` are every element's own. ``dma_bytes``: brought to L2 page by page;
    ``buffering``: how segments of B came, "double" or "serial". ``bytes``: through each level, by operand; ``values``:
    all there are, by name; ``energy_pj`` is modelled; ``math_utilisation``: products made, of those all
    threads could make in these cycles.
    """

    value: Array
    counts: Counts
    cycles: int
    math_cycles: int
    stalls: dict[str, int]
    queue: dict[str, int]
    traffic: Traffic
    moved: Moved
    energy_pj: float
    math_utilisation: float
    errors: tuple[ErrorRecord, ...]
    program: MachineProgram
    executed: int
    trace: tuple[Event, ...]
    pes: tuple[RunResult, ...] = ()
    programs: tuple[MachineProgram, ...] = ()
    dma_bytes: int = 0
    buffering: str = ""
    values: dict[str, Array] = field(default_factory=dict)


def element_type(array: Array, name: str) -> str:
    """The machine's name of an array's element type; ``name`` is the array's own, for the error."""
    dtype = dtype_name(array.dtype)
    check_known(dtype, ELEMENT_TYPES, f"{name} has elements of type {array.dtype}")
    return dtype


def columns_of_mm(config: MatrixUnitConfig, ka: int, columns: int | None = None) -> int:
    """Columns per instruction: those that are asked for, else as many as loaders and product registers allow."""
    return min(config.default_columns, ka * ACCUMULATORS) if columns is None else whole("columns", columns, 1)


def type_and_signs(type_a: str, type_b: str) -> tuple[str, str]:
    """What follows ``mm``: ('8', '.sa.ub') for s8 by u8, ('bf16', '') for bf16."""
    integers = type_a[0] in "su" and type_b[0] in "su"
    if not integers and type_a != type_b:
        raise UsageError(f"A is {type_a}, B is {type_b}", how="both of one float type, or integers of one width")
    if not integers:
        return type_a, ""
    if type_a[1:] != type_b[1:]:
        raise UsageError(f"A is {type_a}, B is {type_b}: different widths", how="convert one of them")
    return type_a[1:], f".{type_a[0]}a.{type_b[0]}b"


def matmul(
    a: Any,
    b: Any,
    config: MatrixUnitConfig | None = None,
    ka: int = 1,
    kb: int = 1,
    transpose_b: bool = False,
    order: str = "k_outer",
    columns: int | None = None,
    page: Sequence[int] | None = None,
    line: Sequence[int] | None = None,
    split: str | None = None,
    segments: int | None = None,
    double_buffer: bool = True,
    trace: bool = False,
    watch: Callable[[Counts], None] | None = None,
    block_a: int = 1,
    tail_kb: int | None = None,
    epilogue: VectorSpec | None = None,
    operands: Mapping[str, Any] | None = None,
) -> KernelResult:
    """a[m, k] @ b[k, n] by the ``mm`` instruction.

    Types and signs follow the arrays: 4, 8, 16 and 32-bit integers (signs may differ, widths not), floats. The
    value is int32 modulo 2^32 or float32, and is a @ b whichever way B is stored: ``transpose_b`` stores it row-major
    and walks it with ``t1``; otherwise columns are contiguous (``t0``). ``ka`` threads share a row's columns, ``kb``
    every dot product. ``order``: k_outer (all columns a K round) or column_outer (one column over all of K).
    ``columns`` per instruction: default min(loaders, ka * 256); beyond ka * 256 registers run out, which the machine
    records in ``.errors``, and those columns stay 0. ``block_a``: rounds of A that one ``ld`` brings, in column_outer
    order for all columns of an instruction; with ``kb`` they must divide k, and B lies in memory in the order of k in
    which a group's threads hold it. ``tail_kb``: kb of the last rows where they are fewer than a block, so that more
    threads share them. ``page``, ``line``: of B's segment, in elements per dim of B as it is stored. ``trace`` and
    ``watch``: as for :meth:`MatrixUnit.run`.

    With ``config.pes`` above 1 C is divided among the elements, by ``split``: rows or columns (None: rows if every
    element gets a block). ``segments``: every element's B comes to L2 in so many segments by DMA, the next one while
    one is worked on if ``double_buffer`` and two fit (``.buffering`` says). ``epilogue``: done to the products before
    they are stored; its first input is they ("acc", of m rows and n columns), the others are ``operands`` by name.
    Raises :class:`UsageError` for arrays and options that do not fit.

    >>> result = matmul(np.ones((2, 3), np.int8), np.full((3, 2), 2, np.int8))
    >>> result.value.tolist(), result.counts.instructions
    ([[6, 6], [6, 6]], 1)
    """
    config = checked_config(config)
    a, b = array_of("A", a), array_of("B", b)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    if transpose_b not in (False, True):
        raise UsageError(f"transpose_b = {transpose_b!r}", how="True stores B row-major, False by columns")
    if split not in (None, "rows", "columns"):
        raise UsageError(f"split {split!r}", how="rows or columns")
    for name, array in (("A", a), ("B", b)):
        if array.ndim != 2:
            raise UsageError(f"{name} has shape {list(array.shape)}", how="matmul takes two matrices")
    type_a, type_b = element_type(a, "A"), element_type(b, "B")
    if a.shape[1] != b.shape[0]:
        raise UsageError(f"A is {list(a.shape)} and B is {list(b.shape)}", how="columns of A and rows of B must agree")
    written, signs = type_and_signs(type_a, type_b)
    (m, k), n = a.shape, b.shape[1]
    per_mm = columns_of_mm(config, ka, columns)
    plan = MatmulPlan(
        *(m, n, k, written, signs, a.itemsize, ka, kb, transpose_b, order, per_mm, config),
        block_a=whole("block_a", block_a, 1),
        epilogue=epilogue,
        tail_kb=None if tail_kb is None else whole("tail_kb", tail_kb, 1),
    )
    program, stored = matmul_program(plan), stored_weights(plan, b.T)
    stored = stored.T if transpose_b else stored
    out, more = result_and_operands(plan, operands)
    segments = None if segments is None else min(whole("segments", segments, 1), max(1, n))
    tensors = {"A": a, "B": stored, "C": out, **more}
    if out.size and k and (config.pes > 1 or segments):
        return _matmul_on_elements(plan, tensors, split, segments, double_buffer, page, line, trace, watch)
    return run_alone(config, program, tensors, trace=trace, watch=watch, B={"page": page, "line": line})


def stored_weights(plan: MatmulPlan, weights: Array) -> Array:
    """B [n, k] of a product, or weights [out, kh, kw, c], with the last dim in the order in which threads hold it.

    With blocks of A a thread holds elements of several rounds one behind the other, so those of one round lie a
    thread's share apart.
    """
    if plan.block_a == 1 or plan.kb == 1 or 0 in weights.shape:
        return weights
    split = (*weights.shape[:-1], -1, plan.kb, plan.block_a, plan.chunk)
    return np.ascontiguousarray(weights.reshape(split).swapaxes(-3, -2)).reshape(weights.shape)


def result_and_operands(plan: MatmulPlan, operands: Mapping[str, Any] | None) -> tuple[Array, dict[str, Array]]:
    """Zeros for C, as one number (nothing to be packed), and the other tensors of the epilogue."""
    spec, shape = plan.epilogue, (plan.m, plan.n)
    if spec is None:
        if operands:
            raise UsageError(f"operands {', '.join(operands)} without an epilogue", how="epilogue=")
        return np.broadcast_to(np.zeros((), np.int32 if plan.signs else np.float32), shape), {}
    if (spec.rows, spec.cols) != shape:
        raise UsageError(f"an epilogue of {spec.rows} rows and {spec.cols} columns", how=f"C has {list(shape)}")
    if plan.k == 0:
        raise UnsupportedError("an epilogue of a product without depth", how="run_vector of zeros")
    return zeros_of(spec, spec.outputs[0]), {
        each.name: tensor_of(spec, each, operands or {}) for each in spec.inputs[1:]
    }


Windows = dict[str, Part | tuple[str, Part]]
"""What one processing element sees, by its own name: a part of the tensor of that name, or of another."""


def operand_windows(spec: VectorSpec | None, part: Part) -> Windows:
    """What one processing element sees of an epilogue's tensors, whose part of C is ``part``."""
    windows: Windows = {}
    for each in spec.inputs[1:] if spec else ():
        own = each.form in ("full", "row"), each.form in ("full", "col")
        first = tuple(at if mine else 0 for at, mine in zip(part.base, own, strict=True))
        size = tuple(count if mine else 1 for count, mine in zip(part.size, own, strict=True))
        windows[each.name] = Part(first, size)
    return windows


def run_alone(
    config: MatrixUnitConfig,
    program: MachineProgram,
    tensors: Mapping[str, Array],
    outs: Iterable[str] = ("C",),
    trace: bool = False,
    watch: Callable[[Counts], None] | None = None,
    **sides: dict[str, Any],
) -> KernelResult:
    """Run a kernel on one processing element; ``outs``: its values, ``sides``: page, line and order of some tensors.

    Where a tensor is empty there is nothing to be done, and no tensor stands in memory.
    """
    memory, empty = TensorMemory(), any(not array.size for array in tensors.values())
    for name, array in () if empty else tensors.items():
        memory.add(name, array, **sides.get(name, {}))
    pe = start_state(config, memory, trace)
    run = run_on(pe, program, watch)
    pe.chip.pes.clear()  # they know their chip: a circle would keep its memory until garbage is collected
    return result_from(run, {name: np.array(tensors[name]) if empty else run.tensor(name) for name in outs}, program)


def host(config: MatrixUnitConfig, tensors: Mapping[str, Array], trace: bool, **sides: dict[str, Any]) -> Machine:
    """A machine of several processing elements with these tensors; ``sides``: what :meth:`Machine.page_table` takes."""
    machine = Machine(config, trace=trace)
    machine.system |= tensors
    for name in tensors:
        machine.page_table(name, **{"mapped": True} | sides.get(name, {}))
    return machine


def run_on_elements(
    machine: Machine,
    work: Iterable[tuple[int, MachineProgram, Windows]],
    watch: Callable[[Counts], None] | None = None,
    outs: Iterable[str] = ("C",),
    buffering: str = "",
) -> KernelResult:
    """Run a kernel over several processing elements, each its program on its windows; what all their runs counted.

    ``work``: (element, program, windows); ``outs``: the tensors that are its values.
    """
    pes, programs = list[int](), list[MachineProgram]()
    for pe, program, windows in work:
        machine.start(program, pe, segments=windows)
        pes.append(pe)
        programs.append(program)
    every = machine.run(watch)
    runs = [every[pe] for pe in pes]
    last = max(runs, key=lambda run: run.cycles)
    return replace(
        result_from(last, {name: machine.tensor(name) for name in outs}, programs[0]),
        counts=Counts.together(run.counts for run in runs),
        traffic=Traffic.together(run.traffic for run in runs),
        moved=Moved.together(run.moved for run in runs),
        energy_pj=sum(run.energy_pj for run in runs),
        math_utilisation=sum(run.math_utilisation * run.cycles for run in runs)
        / (last.cycles * machine.config.pes or 1),
        errors=tuple(error for run in runs for error in run.errors),
        executed=sum(run.executed for run in runs),
        trace=timeline(runs),
        pes=tuple(runs),
        programs=tuple(programs),
        dma_bytes=machine.chip.dma.bytes("in"),
        buffering=buffering,
    )


_OF_A_RUN = [each.name for each in fields(KernelResult) if each.name in {*dir(RunResult), *RunResult.__annotations__}]


def result_from(run: RunResult, values: dict[str, Array], program: MachineProgram) -> KernelResult:
    """The values of a kernel, the first of which is its value, and what its run counted."""
    taken: dict[str, Any] = {name: getattr(run, name) for name in _OF_A_RUN} | {"trace": timeline([run])}
    return KernelResult(next(iter(values.values())), program=program, values=values, **taken)


# A matrix product over several processing elements, and over B in segments that L2 can hold.


def _matmul_on_elements(
    plan: MatmulPlan,
    tensors: dict[str, Array],
    split: str | None,
    segments: int | None,
    double: bool,
    page: Sequence[int] | None,
    line: Sequence[int] | None,
    trace: bool,
    watch: Callable[[Counts], None] | None,
) -> KernelResult:
    """``tensors``: A, B as it is stored, C and an epilogue's own.

    ``split``: rows or columns (None: rows if every element gets a block of them).
    """
    split = _split(plan, split, segments)
    placed = {name: array for name, array in tensors.items() if name != "B" or not segments}
    machine = host(plan.config, placed, trace, B={"page": page, "line": line})
    machine.system["B"] = tensors["B"]
    shares = by_dim((plan.m, plan.n), 0 if split == "rows" else 1, plan.config.pes)
    parts = {pe: part for pe, (part,) in shares.items()}
    pieces = {pe: by_dim((part.size[1],), 0, segments).values() for pe, part in parts.items()} if segments else {}
    widths = {pe: tuple(piece.size[0] for (piece,) in own) for pe, own in pieces.items()}
    cuts = {pe: _cuts(plan, parts[pe], own) for pe, own in widths.items()}
    page = page if page is not None or not segments else _page(plan, cuts, line)
    for pe, own_cuts in cuts.items():
        for s, cut in enumerate(own_cuts):
            machine.page_table(f"B{pe}_{s}", tensor="B", part=cut, page=page, line=line)
    overlapped = bool(segments) and _overlapped(machine, cuts, double)
    work = []
    for pe, part in parts.items():
        mine = replace(plan, m=part.size[0], n=part.size[1])
        windows: Windows = {"A": Part((part.base[0], 0), (part.size[0], plan.k)), "C": part}
        windows |= operand_windows(plan.epilogue, part)
        if segments:
            windows |= {f"B{s}": (f"B{pe}_{s}", Part((0, 0), cut.size)) for s, cut in enumerate(cuts[pe])}
            work.append((pe, streamed_program(mine, widths[pe], overlapped), windows))
        else:
            (windows["B"],) = _cuts(plan, part, (part.size[1],))
            work.append((pe, matmul_program(mine), windows))
    return run_on_elements(machine, work, watch, buffering="" if not segments else "double" if overlapped else "serial")


def _split(plan: MatmulPlan, split: str | None, segments: int | None) -> str:
    pes = plan.config.pes
    if split is None:
        split = "columns" if segments or -(-plan.m // plan.fit) < pes else "rows"
    if segments and split == "rows" and pes > 1:
        shared = "segments of B shared by elements that do not wait for one another"
        raise UnsupportedError(shared, how="split='columns'")
    return split


def _page(plan: MatmulPlan, cuts: dict[int, list[Part]], line: Sequence[int] | None) -> tuple[int, ...]:
    """One page for the widest segment: all pages are of one size then, and what one leaves in L2 the next one fits."""
    sizes = [max(cut.size[d] for own in cuts.values() for cut in own) for d in range(2)]
    lines = line or (1, max(1, plan.config.line_bytes // plan.element_bytes))
    return tuple(-(-size // side) * side for size, side in zip(sizes, lines, strict=True))


def _overlapped(machine: Machine, cuts: dict[int, list[Part]], double: bool) -> bool:
    """Whether L2 holds two segments of every element that has more than one. Raises where it does not hold one."""
    storages, room = machine.chip.storages, machine.chip.l2_end
    sizes = [[storages[f"B{pe}_{s}"].total_bytes for s in range(len(own))] for pe, own in cuts.items()]
    one = sum(map(max, sizes))
    two = sum(max((a + b for a, b in pairwise(own)), default=own[0]) for own in sizes)
    page = next(iter(storages[f"B{pe}_0"].page_bytes for pe in cuts))
    room -= room % page
    if one > room:
        taken = f"segments of B take {one} bytes of L2 at once, which has room for {room} in pages of {page}"
        raise UsageError(taken, how="more segments=, a larger l2_bytes, smaller page=, or fewer pes")
    return double and two <= room


def _cuts(plan: MatmulPlan, part: Part, widths: tuple[int, ...]) -> list[Part]:
    """Where the columns of each segment lie in B as it is stored."""
    first, cuts = part.base[1], []
    for width in widths:
        along = [(0, plan.k), (first, width)] if plan.transpose_b else [(first, width), (0, plan.k)]
        cuts.append(Part((along[0][0], along[1][0]), (along[0][1], along[1][1])))
        first += width
    return cuts
