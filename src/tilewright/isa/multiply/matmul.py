"""matmul: numpy arrays in, a real program run on the machine, value and counts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.chip.parts import Part, by_dim
from tilewright.isa.chip.segments import ELEMENT_TYPES, TensorMemory
from tilewright.isa.chip.state import same_state, show_run
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.run import MatrixUnit, RunResult, timeline
from tilewright.isa.language.checks import array_of, whole
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts, Traffic
from tilewright.isa.language.errors import ErrorRecord
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.multiply.matmul_program import ACCUMULATORS, MatmulPlan, matmul_program, streamed_program
from tilewright.layout import dtype_name
from tilewright.trace import Event

Array = np.ndarray[Any, Any]


@dataclass(eq=False, repr=False)
class KernelResult:
    """``value`` (int32 modulo 2^32, or float32) and what the run counted; ``program`` can be listed and run again.

    With several processing elements ``counts`` and ``traffic`` are all elements' together, cycles and accounts those of
    the last one done; ``pes`` and ``programs`` are every element's own. ``dma_bytes``: brought to L2 page by page;
    ``buffering``: how segments of B came, "double" or "serial".
    """

    value: Array
    counts: Counts
    cycles: int
    math_cycles: int
    stalls: dict[str, int]
    queue: dict[str, int]
    traffic: Traffic
    errors: tuple[ErrorRecord, ...]
    program: MachineProgram
    executed: int
    trace: tuple[Event, ...]
    pes: tuple[RunResult, ...] = ()
    programs: tuple[MachineProgram, ...] = ()
    dma_bytes: int = 0
    buffering: str = ""

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __repr__ = __str__ = show_run


def element_type(array: Array, name: str) -> str:
    """The machine's name of an array's element type; ``name`` is the array's own, for the error."""
    dtype = dtype_name(array.dtype)
    if dtype not in ELEMENT_TYPES:
        raise UsageError(f"{name} has elements of type {array.dtype}", how=f"one of {', '.join(ELEMENT_TYPES)}")
    return dtype


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
) -> KernelResult:
    """a[m, k] @ b[k, n] by the ``mm`` instruction.

    Types and signs follow the arrays: 8, 16 and 32-bit integers (signs may differ, widths not), f16, bf16, f32. The
    value is int32 modulo 2^32 or float32, and is a @ b whichever way B is stored: ``transpose_b`` stores it row-major
    and walks it with ``t1``; otherwise columns are contiguous (``t0``). ``ka`` threads share a row's columns, ``kb``
    every dot product. ``order``: k_outer (all columns a K round) or column_outer (one column over all of K).
    ``columns`` per instruction: default min(loaders, ka * 256); beyond ka * 256 registers run out, which the machine
    records in ``.errors``, and those columns stay 0. ``page``, ``line``: of B's segment, in elements per dim of B as
    it is stored. ``trace`` and ``watch``: as for :meth:`MatrixUnit.run`.

    With ``config.pes`` above 1 C is divided among the elements, by ``split``: rows or columns (None: rows if every
    element gets a block). ``segments``: every element's B comes to L2 in so many segments by DMA, the next one while
    one is worked on if ``double_buffer`` and two fit (``.buffering`` says). Raises :class:`UsageError` for arrays and
    options that do not fit.

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
    per_mm = min(config.default_columns, ka * ACCUMULATORS) if columns is None else whole("columns", columns, 1)
    plan = MatmulPlan(m, n, k, written, signs, a.itemsize, ka, kb, transpose_b, order, per_mm, config)
    program = matmul_program(plan)
    out = np.broadcast_to(np.zeros((), np.int32 if signs else np.float32), (m, n))  # one number: nothing to be packed
    segments = None if segments is None else whole("segments", segments, 1)
    if out.size and k and (config.pes > 1 or segments):
        stored = b if transpose_b else b.T
        return _matmul_on_elements(plan, a, stored, split, segments, double_buffer, page, line, trace, watch)
    memory = TensorMemory()
    if out.size and k:
        memory.add("A", a)
        memory.add("B", b if transpose_b else b.T, page=page, line=line)
        memory.add("C", out)
    run = MatrixUnit(config).run(program, memory, trace=trace, watch=watch)
    result = result_from(run, run.tensor("C") if len(memory) else np.array(out), program)
    run.state.chip.pes.clear()  # they know their chip: a circle would keep its memory until garbage is collected
    return result


def result_of_elements(
    machine: Machine,
    runs: Sequence[RunResult],
    programs: Sequence[MachineProgram],
    dma_bytes: int = 0,
    buffering: str = "",
) -> KernelResult:
    """C of a kernel over several processing elements, and what all their runs counted."""
    last = max(runs, key=lambda run: run.cycles)
    return replace(
        result_from(last, machine.tensor("C"), programs[0]),
        counts=Counts.together(run.counts for run in runs),
        traffic=Traffic.together(run.traffic for run in runs),
        errors=tuple(error for run in runs for error in run.errors),
        executed=sum(run.executed for run in runs),
        trace=timeline(runs),
        pes=tuple(runs),
        programs=tuple(programs),
        dma_bytes=dma_bytes,
        buffering=buffering,
    )


def result_from(run: RunResult, value: Array, program: MachineProgram | None) -> KernelResult:
    """The value of a kernel and what its run counted."""
    return KernelResult(
        value=value,
        counts=run.counts,
        cycles=run.cycles,
        math_cycles=run.math_cycles,
        stalls=run.stalls,
        queue=run.queue,
        traffic=run.traffic,
        errors=run.errors,
        program=program or MachineProgram(),
        executed=run.executed,
        trace=timeline([run]),
    )


# A matrix product over several processing elements, and over B in segments that L2 can hold.


def _matmul_on_elements(
    plan: MatmulPlan,
    a: Array,
    b: Array,
    split: str | None,
    segments: int | None,
    double: bool,
    page: Sequence[int] | None,
    line: Sequence[int] | None,
    trace: bool,
    watch: Callable[[Counts], None] | None,
) -> KernelResult:
    """``b`` as it is stored. ``split``: rows or columns (None: rows if every element gets a block of them)."""
    split = _split(plan, split, segments)
    machine = Machine(plan.config, trace=trace)
    out = np.zeros((plan.m, plan.n), np.int32 if plan.signs else np.float32)
    machine.system |= {"A": a, "B": b, "C": out}
    machine.page_table("A", mapped=True)
    machine.page_table("C", mapped=True)
    if not segments:
        machine.page_table("B", page=page, line=line, mapped=True)
    shares = by_dim((plan.m, plan.n), 0 if split == "rows" else 1, plan.config.pes)
    parts = {pe: part for pe, (part,) in shares.items()}
    widths = {pe: _widths(part, segments) for pe, part in parts.items()} if segments else {}
    cuts = {pe: _cuts(plan, parts[pe], own) for pe, own in widths.items()}
    page = page if page is not None or not segments else _page(plan, cuts, line)
    for pe, own_cuts in cuts.items():
        for s, cut in enumerate(own_cuts):
            machine.page_table(f"B{pe}_{s}", tensor="B", part=cut, page=page, line=line)
    overlapped = bool(segments) and _overlapped(machine, cuts, double)
    programs = []
    for pe, part in parts.items():
        mine = replace(plan, m=part.size[0], n=part.size[1])
        windows: dict[str, Part | tuple[str, Part]] = {"A": Part((part.base[0], 0), (part.size[0], plan.k)), "C": part}
        if segments:
            windows |= {f"B{s}": (f"B{pe}_{s}", Part((0, 0), cut.size)) for s, cut in enumerate(cuts[pe])}
            programs.append(streamed_program(mine, widths[pe], overlapped))
        else:
            (windows["B"],) = _cuts(plan, part, (part.size[1],))
            programs.append(matmul_program(mine))
        machine.start(programs[-1], pe, segments=windows)
    runs = machine.run(watch)
    buffering = "" if not segments else "double" if overlapped else "serial"
    return result_of_elements(machine, [runs[pe] for pe in parts], programs, machine.chip.dma.bytes("in"), buffering)


def _split(plan: MatmulPlan, split: str | None, segments: int | None) -> str:
    pes = plan.config.pes
    if split is None:
        split = "columns" if segments or -(-plan.m // plan.fit) < pes else "rows"
    if segments and split == "rows" and pes > 1:
        shared = "segments of B shared by elements that do not wait for one another"
        raise UnsupportedError(shared, how="split='columns'")
    return split


def _widths(part: Part, segments: int) -> tuple[int, ...]:
    """Of an element's segments of B, as even as can be."""
    return tuple(piece.size[0] for (piece,) in by_dim((part.size[1],), 0, segments).values())


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
