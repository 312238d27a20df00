"""matmul: numpy arrays in, a real program run on the machine, value and counts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._checks import array_of, whole
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._emit import ACCUMULATORS, Plan, matmul_program
from tilewright.isa._errors import ErrorRecord
from tilewright.isa._program import Program
from tilewright.isa._run import RunResult
from tilewright.isa._segments import ELEMENT_TYPES, Memory
from tilewright.isa._show import same_state, show_run
from tilewright.isa._spread import Spread, spread
from tilewright.isa._timeline import timeline
from tilewright.isa._unit import MatrixUnit
from tilewright.layout import dtype_name
from tilewright.trace import Event

__all__ = ["MatmulResult", "element_type", "matmul", "result_from", "spread_result", "type_and_signs"]


@dataclass(eq=False, repr=False)
class MatmulResult:
    """``value`` (int32 modulo 2^32, or float32) and what the run counted; ``program`` can be listed and run again.

    With several processing elements ``counts`` and ``traffic`` are all elements' together, cycles and accounts those of
    the last one done; ``pes`` and ``programs`` are every element's own. ``dma_bytes``: brought to L2 page by page;
    ``buffering``: how segments of B came, "double" or "serial".
    """

    value: np.ndarray[Any, Any]
    counts: Counts
    cycles: int
    math_cycles: int
    stalls: dict[str, int]
    queue: dict[str, int]
    traffic: Traffic
    errors: tuple[ErrorRecord, ...]
    program: Program
    executed: int
    trace: tuple[Event, ...]
    pes: tuple[RunResult, ...] = ()
    programs: tuple[Program, ...] = ()
    dma_bytes: int = 0
    buffering: str = ""

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __repr__ = __str__ = show_run


def element_type(array: np.ndarray[Any, Any], name: str) -> str:
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
) -> MatmulResult:
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
    plan = Plan(m, n, k, written, signs, a.itemsize, ka, kb, transpose_b, order, per_mm, config)
    program = matmul_program(plan)
    out = np.broadcast_to(np.zeros((), np.int32 if signs else np.float32), (m, n))  # one number: nothing to be packed
    segments = None if segments is None else whole("segments", segments, 1)
    if out.size and k and (config.pes > 1 or segments):
        found = spread(plan, a, b if transpose_b else b.T, split, segments, double_buffer, page, line, trace, watch)
        return spread_result(found)
    memory = Memory()
    if out.size and k:
        memory.add("A", a)
        memory.add("B", b if transpose_b else b.T, page=page, line=line)
        memory.add("C", out)
    run = MatrixUnit(config).run(program, memory, trace=trace, watch=watch)
    result = result_from(run, run.tensor("C") if len(memory) else np.array(out), program)
    run.state.chip.pes.clear()  # they know their chip: a circle would keep its memory until garbage is collected
    return result


def spread_result(found: Spread) -> MatmulResult:
    """The value of a kernel over several processing elements, and what all their runs counted."""
    return replace(
        result_from(found.last(), found.value, found.programs[0]),
        counts=found.counts(),
        traffic=found.traffic(),
        errors=tuple(error for run in found.runs for error in run.errors),
        executed=sum(run.executed for run in found.runs),
        trace=timeline(found.runs),
        pes=found.runs,
        programs=found.programs,
        dma_bytes=found.dma_bytes,
        buffering=found.buffering,
    )


def result_from(run: RunResult, value: np.ndarray[Any, Any], program: Program | None) -> MatmulResult:
    """The value of a kernel and what its run counted."""
    return MatmulResult(
        value=value,
        counts=run.counts,
        cycles=run.cycles,
        math_cycles=run.math_cycles,
        stalls=run.stalls,
        queue=run.queue,
        traffic=run.traffic,
        errors=run.errors,
        program=program or Program(),
        executed=run.executed,
        trace=timeline([run]),
    )
