"""Is a Pallas kernel compiled for a TPU, what does it take and move, and how long? Without a TPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import permutations
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.hlo.allocation.kernel_errors import explain_kernel
from tilewright.hlo.pallas.page import kernel_sections, kernels_page
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reading.kernel import Kernel, Window, block_bytes, moves_of
from tilewright.hlo.reading.kernels import kernel_in
from tilewright.hlo.reading.loading import load
from tilewright.hlo.reading.python_source import from_jax, names_python, python_call, users_line
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.kernels import FROM_BODY, Pipeline, pipeline
from tilewright.hlo.timing.step import StepTime
from tilewright.layout import TensorLayout, TupleLayout, parse, predict
from tilewright.render.formats import bytes_text, count_text, percent_text, place_text, seconds_text
from tilewright.render.tables import Column, Table
from tilewright.targets import Target
from tilewright.targets import target as find_target

_KINDS = (
    ("block", r"block shape|block spec|blocks? of rank|index map"),
    ("operation", r"Unimplemented primitive|not implemented|NotImplementedError"),
    ("buffers", r"buffering"),
    ("memory space", r"VMEM|SMEM|memory space"),
)
"""Kinds of what JAX refuses, by words of its message."""
_CALL = re.compile(r"in pallas_call (\S+) at (\S+:\d+)")
_PLAIN = bool | int | float | str | tuple[object, ...] | None
_TAKES_CUT_TILES = 0, 11
"""The JAX from which the compiler that comes with it may take blocks that cut tiles of bytes: it came after 0.10.2."""
_DEVICE_KINDS = {"tpu-v4": "TPU v4", "tpu-v5e": "TPU v5 lite", "tpu-v5p": "TPU v5", "tpu-v6e": "TPU v6 lite"}
_DEVICE_KINDS |= {"tpu-7x": "TPU7x"}


@dataclass(frozen=True)
class Problem:
    """Why a kernel is refused: ``kind`` in a word or two, ``line`` of the user's program, ``suggestion`` "" if none."""

    kind: str
    text: str
    line: str = ""
    suggestion: str = ""


@dataclass(frozen=True)
class CheckedWindow:
    """A block: ``bytes`` are all that it moves, ``least`` those of its different blocks, ``held`` its buffers'."""

    array: tuple[int, ...]
    dtype: str
    block: tuple[int, ...]
    space: str
    buffers: int
    fetches: int
    bytes: int
    least: int
    held: int


@dataclass(frozen=True)
class KernelCheck:
    """What is known of one kernel on one chip.

    ===================  ========================================================================================
    ``ok``               whether the compiler takes it, as far as is known; if not, ``problems`` say why
    ``vmem_bytes``       of vector memory: windows and scratch exactly, and an estimate of what the body spills
    ``vmem_limit``       what it may take: the kernel's own limit, or the chip's for every kernel; 0 = not known
    ``smem_bytes``       of scalar memory: its tables
    ``hbm_bytes``        moved by its windows and its own copies over the whole grid, in tiles, cut at edges
    ``least_hbm_bytes``  each different block once
    ``seconds``          modelled, of one run: the time that ``estimate`` gives it in its program; 0 = not known
    ``bound``            what it waits for
    ``advice``           what would move less, or fit
    ``notes``            what was assumed of its data
    ``kernel``           what was read of it, and ``pipeline``: its steps with their times; None where it has none
    ===================  ========================================================================================
    """

    name: str
    ok: bool
    problems: tuple[Problem, ...] = ()
    line: str = ""
    grid: tuple[int, ...] = ()
    vmem_bytes: int = 0
    vmem_limit: int = 0
    scratch_bytes: int = 0
    spilled_bytes: int = 0
    smem_bytes: int = 0
    hbm_bytes: int = 0
    least_hbm_bytes: int = 0
    windows: tuple[CheckedWindow, ...] = ()
    seconds: float = 0.0
    bound: str = ""
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kernel: Kernel | None = field(default=None, repr=False, compare=False)
    pipeline: Pipeline | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values; of its pipeline the seconds by what bounds its steps."""
        plain = asdict(replace(self, kernel=None, pipeline=None))
        del plain["kernel"]
        plain["pipeline"] = {name: us / 1e6 for name, us in self.pipeline.by_bound.items()} if self.pipeline else {}
        return plain

    def to_html(self, target: str, beside: Sequence[KernelCheck] = ()) -> str:
        """One page: this kernel, and others ``beside`` it."""
        return kernels_page([self, *beside], target)

    def sections(self, step: int | None = None) -> list[tuple[str, str, list[str]]]:
        """Name, heading and blocks of each section of its page; with ``step``, from 0 on, what that step holds."""
        return list(kernel_sections(self, step))

    def times(self) -> Iterator[str | Table]:
        """What the terminal shows of its time: by what bounds its steps, and the steps that take most of it."""
        if not self.seconds or not self.ok:
            why = "; ".join(self.notes) or "nothing in it takes time"
            yield f"{self.name}: no time: {why if self.ok else 'it does not compile'}"
            return
        yield f"{self.name}: {seconds_text(self.seconds)} by {self.bound} (modelled)"
        if not self.pipeline:
            yield from (f"  - {text}" for text in self.notes)
            return
        bounds = ", ".join(f"{name} {seconds_text(us / 1e6)}" for name, us in self.pipeline.by_bound.items())
        yield f"  its steps by what bounds them: {bounds}"
        units = Column("matrix", "seconds"), Column("vector", "seconds"), Column("HBM", "seconds")
        rows = []
        for step in sorted(self.pipeline.steps, key=lambda step: -step.us * step.moment.times)[:6]:
            matrix, vector, lanes = step.units.values()
            parts = step.us, matrix, max(vector, lanes), step.moved_us
            rows.append((round(step.moment.times), *(us / 1e6 for us in parts), step.bound))
        yield Table((Column("steps", "count"), Column("each", "seconds"), *units, "bound"), rows)
        yield from (f"  - {text}" for text in self.notes)

    def movement(self) -> Iterator[str | Table]:
        """What the terminal explains: what moves and how often, what the time goes to, and what would be better."""
        yield from self.times()
        saved = self.hbm_bytes - self.least_hbm_bytes
        yield f"  HBM {bytes_text(self.hbm_bytes)}; each different block once: {bytes_text(self.least_hbm_bytes)}"
        if saved > 0:
            again = [(number, w.bytes - w.least) for number, w in enumerate(self.windows) if w.bytes > w.least]
            parts = ", ".join(f"window {number} {bytes_text(size)}" for number, size in again)
            yield f"  fetched again: {bytes_text(saved)}" + (f" ({parts})" if parts else "")
        yield from (f"  what to do: {text}" for text in self.advice)

    def lines(self) -> Iterator[str | Table]:
        """What the terminal shows."""
        where = f" ({self.line})" if self.line else ""
        yield f"{self.name}{where}: {'compiles' if self.ok else 'does not compile'}"
        for problem in self.problems:
            place = f" at {problem.line}" if problem.line else ""
            yield f"  {problem.kind}{place}: {problem.text}"
            yield from [f"  mend it: {problem.suggestion}"] if problem.suggestion else []
        if not self.windows:
            return
        grid = " x ".join(map(str, self.grid)) or "1"
        time = f", {seconds_text(self.seconds)} by {self.bound}" if self.seconds else ""
        limit = f" of {bytes_text(self.vmem_limit)}" if self.vmem_limit else ""
        yield f"  grid {grid}; vector memory {bytes_text(self.vmem_bytes)}{limit}{time} (modelled)"
        moved = f"  HBM {bytes_text(self.hbm_bytes)}, at least {bytes_text(self.least_hbm_bytes)}"
        yield f"{moved}; scratch {bytes_text(self.scratch_bytes)}, spilled about {bytes_text(self.spilled_bytes)}"
        figures = attrgetter("space", "buffers", "fetches", "bytes", "held")
        arrays = [f"{w.dtype}[{','.join(map(str, w.array))}]" for w in self.windows]
        rows = [(a, " x ".join(map(str, w.block)), *figures(w)) for a, w in zip(arrays, self.windows)]
        counts = Column("buffers", "count"), Column("fetches", "count"), Column("moved", "bytes")
        yield Table(("array", "block", "in", *counts, Column("held", "bytes")), rows)
        yield from (f"  - {text}" for text in (*self.advice, *self.notes))


def kernels(program: Program) -> list[Kernel]:
    """The Pallas kernels of a program, in its order: of a dump, of StableHLO for a TPU or of ``from_jax``.

    One that cannot be read (a text without its body, a damaged one) is left out; ``check_kernels`` says why.

    >>> from tilewright.hlo import load
    >>> kernels(load("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"))
    []
    """
    found = []
    for op in _calls(program):
        try:
            found.append(_kernel_of(op))
        except TilewrightError:
            continue
    return found


def check_kernels(
    fn: Callable[..., Any] | Program | str, *args: Any, target: Target | str, **kwargs: Any
) -> list[KernelCheck]:
    """Every Pallas kernel of a function, called with ``args`` (arrays, or anything with shape and dtype), on a target.

    ``fn`` may be a program that was read, or a text that names a dump or ``model.py:function``, whose ``args`` are
    texts such as ``f32[8,128]`` as for :func:`from_python`. Numbers, words and the like among ``kwargs`` are given to
    the function as they are: block sizes. What JAX says while it lowers the function for a TPU is one check that is not
    ok; it ends at the first. Raises what reading the program raises.

    >>> import jax, jax.numpy as jnp
    >>> from jax.experimental import pallas as pl
    >>> def double(x_ref, o_ref): o_ref[...] = x_ref[...] * 2
    >>> x = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    >>> def call(x, rows=64):
    ...     block = pl.BlockSpec((rows, 1024), lambda i: (i, 0))
    ...     return pl.pallas_call(double, grid=(512 // rows,), in_specs=[block], out_specs=block, out_shape=x)(x)
    >>> (check,) = check_kernels(call, x, target="tpu-v5e")
    >>> check.ok, check.vmem_bytes == 2 * 2 * 64 * 1024 * 4, check.hbm_bytes == check.least_hbm_bytes == 2 * 512 * 4096
    (True, True, True)
    >>> (check,) = check_kernels(call, x, target="tpu-v5e", rows=4)
    >>> check.ok, check.problems[0].kind
    (False, 'block')
    """
    chip = find_target(target) if isinstance(target, str) else target
    if isinstance(fn, str) and names_python(fn):
        fn, args, named = python_call(fn, args)
        kwargs = named | kwargs
    if isinstance(fn, Program | str):
        program = load(fn) if isinstance(fn, str) else fn
    else:
        try:
            with lowering_for(chip):
                program = from_jax(*_bound(fn, kwargs, args))
        except TilewrightError:
            raise
        except Exception as error:
            return [refused(error)]
    calls = list(_calls(program))
    try:
        step = estimate(program, chip) if calls else None
    except TilewrightError:
        step = None
    return [_checked(op, program, chip, step) for op in calls]


def _bound(fn: Callable[..., Any], kwargs: dict[str, Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A function of arrays alone, and the arrays: plain values are bound to it."""
    plain = {name: value for name, value in kwargs.items() if isinstance(value, _PLAIN)}
    names = [name for name in kwargs if name not in plain]
    if not kwargs:
        return (fn, *args)

    def call(*arrays: Any) -> Any:
        return fn(*arrays[: len(args)], **plain, **dict(zip(names, arrays[len(args) :])))

    return (call, *args, *(kwargs[name] for name in names))


def refused(error: BaseException) -> KernelCheck:
    """What JAX said while it lowered a kernel, as a check that is not ok."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    known = explain_kernel(text)
    kind = next((kind for kind, words in _KINDS if re.search(words, text, re.I)), "lowering")
    call = _CALL.search(text)
    line = place_text(call[2]) if call else users_line(error)
    suggestion = known[0].how if known else ""
    problem = Problem(kind, known[0].meaning if known else text[:400], line, suggestion)
    return KernelCheck(call[1] if call else "kernel", False, (problem,), line)


def lowering_for(chip: Target) -> Any:
    """A mesh of one such chip: kernels ask while they are lowered which chip it is for."""
    import jax

    kind = _DEVICE_KINDS.get(chip.name)
    if kind is None:
        return nullcontext()
    cores = round(chip_of(chip).kernel["cores"])
    device = jax.sharding.AbstractDevice(kind, cores, "tpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def _calls(program: Program) -> Iterator[Operation]:
    return (op for _, op in program.operations() if op.is_pallas)


def _kernel_of(op: Operation) -> Kernel:
    kernel = kernel_in(op)
    kernel.line = place_text(str(op.source)) if op.source else ""
    return kernel


def _checked(op: Operation, program: Program, chip: Target, step: StepTime | None) -> KernelCheck:
    try:
        kernel = _kernel_of(op)
    except TilewrightError as error:
        line = str(op.source or "")
        return KernelCheck(op.name, False, (Problem("reading", error.what, line),), line)
    near = near_arrays(op, kernel.windows, program.kind, chip)
    memory, limit = memory_of(kernel, chip, near), limit_of(kernel, chip)
    cut = [] if kernel.sparse or program.kind != "stablehlo" else list(_cut_tiles(kernel))
    refuses = tuple(map(int, version("jaxlib").split(".")[:2])) < _TAKES_CUT_TILES
    problems = [*(cut if refuses else ()), *_missing(kernel, chip), *_memory_problems(kernel, memory, limit, chip)]
    windows = tuple(
        CheckedWindow(
            *(w.array, w.dtype, w.block, "vmem, array and all" if there else w.space, 0 if there else w.buffers),
            *(w.fetches, round(w.megabytes * 1e6), round(w.distinct * 1e6)),
            w.block_bytes * w.buffers if w.space == "vmem" and not there else 0,
        )
        for w, there in zip(kernel.windows, near)
    )
    own = round(kernel.copied * 1e6)
    rows = [r for r in step.rows if r.line == op.line or r.name.endswith(op.name)] if step else []
    row = max(rows, key=lambda r: (r.line == op.line != 0, r.name.endswith(op.name)), default=None)
    timed = (row is None or FROM_BODY in row.note) and not (kernel.trips_by_data or kernel.sparse)
    held = {w.operand for w, there in zip(kernel.windows, near) if there}
    whole = pipeline(chip_of(chip), kernel, held) if timed else None
    notes = [*kernel.assumed, *(problem.text for problem in cut if not refuses)]
    if kernel.trips_by_data:
        notes.append("loops whose length its data decides count once")
    if kernel.sparse:
        notes.append("a kernel of the SparseCores: its memory is one subcore's; priced by its rows, if at all")
    return KernelCheck(
        kernel.name,
        not problems,
        tuple(problems),
        kernel.line,
        kernel.grid,
        memory.asked(limit),
        limit,
        memory.scratch,
        memory.spilled,
        memory.scalar,
        own + sum(w.bytes for w, there in zip(windows, near) if not there),
        own + sum(w.least for w, there in zip(windows, near) if not there),
        windows,
        row.seconds / max(1, row.runs) if row else whole.us / 1e6 if whole else 0.0,
        row.bound if row else whole.bound if whole else "",
        tuple(advice(kernel, whole, chip)),
        tuple(notes),
        kernel,
        whole,
    )


def _cut_tiles(kernel: Kernel) -> Iterator[Problem]:
    """Blocks that cut tiles of narrow types, which are taller than the 8 rows that lowering asks for; an older compiler
    refuses them."""
    for number, window in enumerate(kernel.windows):
        if window.space != "vmem" or len(window.block) < 2 or len(window.array) != len(window.block):
            continue
        rows, size = window.block[-2], window.array[-2]
        tile = 32 if window.dtype in _BYTES else 64 if window.dtype in ("i4", "ui4") else 8
        if size % tile == 0 and rows != size and rows % tile:
            fit = min(-(-rows // tile) * tile, size)
            text = f"window {number}: a block of {rows} rows cuts tiles of {tile} rows of {window.dtype}: libtpu 0.0.42"
            text += " (JAX 0.10.2) refuses it (E2002), 0.0.50 takes it"
            block = (*window.block[:-2], fit, window.block[-1])
            yield Problem("tiling", text, kernel.line, f"take {block} as the block, or all {size} rows")


def _missing(kernel: Kernel, chip: Target) -> Iterator[Problem]:
    """What a TPU does not compute: most arithmetic of narrow integers (logic, shifts, changes of type are there), and
    products of bytes where the matrix unit takes neither int8 nor fp8."""
    unit = chip.matrix
    none = unit and not unit.int8_ops_per_second and not unit.fp8_ops_per_second
    if none and any(kind in _BYTES for *_, kind in kernel.products):
        text = f"the matrix unit of {chip.name} takes no bytes (E2001)"
        yield Problem("operation", text, kernel.line, "change the operands to bf16 before the product")
    for name, kind in sorted({key for part in kernel.parts for key in part.elements}):
        if name in _NOT_NARROW.get(kind, ()):
            text = f"{name} of {kind} vectors is not implemented"
            yield Problem("operation", text, kernel.line, "change the type to i32 before it, and back after it")


_EXTREMES = ("maxsi", "minsi", "maxui", "minui", "divsi")
_NOT_NARROW = {"i16": _EXTREMES, "i8": ("addi", "subi", "muli", "absi", *_EXTREMES)}
_BYTES = ("i8", "ui8", "s8", "u8", "f8E4M3FN", "f8E5M2")


def _memory_problems(kernel: Kernel, memory: Memory, limit: int, chip: Target) -> Iterator[Problem]:
    if limit and memory.windows + memory.scratch + memory.spilled > limit:
        whole = chip.memory("vmem")
        need, have = bytes_text(memory.vector), bytes_text(limit)
        asked = -(-memory.vector // (1 << 20)) + 1
        how = _smaller(kernel, memory.vector - limit)
        if whole and memory.vector < whole.bytes * 0.9 and not kernel.sparse:
            how = f"pltpu.CompilerParams(vmem_limit_bytes={asked} << 20), or {how}"
        yield Problem("vector memory", f"it takes about {need} of vector memory and may take {have}", kernel.line, how)
    scalar = chip.memory("smem")
    if scalar and memory.scalar > scalar.bytes:
        text = f"its tables take {bytes_text(memory.scalar)} of {bytes_text(scalar.bytes)} of scalar memory"
        yield Problem("scalar memory", text, kernel.line, "prefetch smaller tables: a part of them for each call")


def _smaller(kernel: Kernel, over: int) -> str:
    """A block that leaves so many bytes."""
    windows = [w for w in kernel.windows if w.space == "vmem" and len(w.block) > 1]
    if not windows:
        return "smaller scratch"
    largest = max(windows, key=lambda w: w.block_bytes * w.buffers)
    block = list(largest.block)
    while largest.block_bytes * largest.buffers - block_bytes(block, largest.dtype) * largest.buffers < over:
        wide = max(range(len(block)), key=lambda d: block[d] / (128 if d == len(block) - 1 else 8))
        if block[wide] % 2 or block[wide] // 2 < 8:
            return f"smaller blocks, the window of {largest.block} first"
        block[wide] //= 2
    return f"a block of {tuple(block)} where now it is {largest.block}"


# The vector and scalar memory that a kernel takes, and the limits of both.

_KEPT_IN_REGISTERS = 36 * 4096
"""Bytes of what waits that stay in the 64 registers; found on 40 kernels that normalise rows."""
_DEEP = 1024
"""Products at least so deep are added up in several passes: a left block in an array's tiling, which a window has, is
kept in the unit's beside it; the kernel's own buffers have that from the start."""
_OF_DEEP = 80 << 10
"""Bytes that such a product spills in any case; both found on 40 products."""
_ALL_REGISTERS = 64 * 4096
_LARGE = 128 << 20


@dataclass(frozen=True)
class Memory:
    """Bytes of vector memory by what takes them, and of scalar memory."""

    windows: int
    scratch: int
    spilled: int  # an estimate; the other two are exact
    scalar: int

    @property
    def vector(self) -> int:
        """All of it."""
        return self.windows + self.scratch + self.spilled

    def asked(self, limit: int) -> int:
        """What the compiler asks for: where windows and scratch alone are too much, it does not get to the body."""
        exact = self.windows + self.scratch
        return exact if limit and exact > limit else self.vector


def memory_of(kernel: Kernel, target: Target, near: Sequence[bool] = ()) -> Memory:
    """What a kernel takes; ``near``: which of its windows' arrays lie in vector memory already and need no buffers."""
    held = [w for k, w in enumerate(kernel.windows) if w.space == "vmem" and not (k < len(near) and near[k])]
    windows = sum(window.block_bytes * window.buffers for window in held)
    scratch = sum(block_bytes(sizes, kind) for sizes, kind, space in kernel.scratch if space == "vmem")
    scalars = [sizes for sizes, _, space in (*kernel.scratch, *kernel.tables) if space == "smem"]
    scalars += [window.block for window in kernel.windows if window.space == "smem"]
    # In scalar memory everything is a word, the last of several dims in lines of 128 of them.
    words = (prod((*sizes[:-1], -(-sizes[-1] // 128) * 128) if len(sizes) > 1 else sizes) for sizes in scalars)
    spilled = max(0, kernel.held_bytes - _KEPT_IN_REGISTERS) + _spilled_by_products(kernel, target)
    return Memory(windows, scratch, spilled, 4 * sum(words))


def _spilled_by_products(kernel: Kernel, target: Target) -> int:
    width = target.matrix.columns if target.matrix else 128
    spilled = 0
    for product in kernel.products:
        _, rows, columns, depth, kind = product
        if depth >= _DEEP and rows >= 64:
            left = block_bytes((rows, depth), kind)
            narrow = product not in kernel.from_own and (kind == "bf16" or kind.startswith("f8"))
            again = narrow and columns > width and left > _ALL_REGISTERS
            spilled = max(spilled, _OF_DEEP + left * again)
    return spilled


def limit_of(kernel: Kernel, target: Target) -> int:
    """Bytes of vector memory that the kernel may take, on SparseCores those of one subcore; 0 where nothing says it."""
    if kernel.sparse:
        return target.sparse.tile_spmem_bytes if target.sparse else 0
    memory = target.memory("vmem")
    return kernel.vmem_limit or (memory.kernel_bytes if memory else 0)


def near_arrays(op: Operation, windows: Sequence[Window], program_kind: str, target: Target) -> list[bool]:
    """Which windows' arrays lie in vector memory when the kernel runs.

    A dump says it. Of StableHLO, arguments and results come in the layout with the least padding; where that is not
    the kernel's own order, rows last, a copy stands between, and where vector memory is large (v5e, v6e) what the copy
    makes stays there. A block that reaches beyond its array has buffers all the same.
    """
    layouts = [*(layout for text in op.operand_shapes for layout in _layouts(text)), *_layouts(op.shape)]
    memory = target.memory("vmem")
    room = (memory.bytes - memory.kernel_bytes) / 2 if memory and memory.bytes >= _LARGE else 0.0
    found = []
    for window in windows:
        layout = layouts[window.operand] if window.operand < len(layouts) else None
        if layout is None or len(window.block) != layout.rank or layout.rank < 2:
            found.append(layout is not None and layout.memory_space == 1)
            continue
        even = all(size % max(1, cut) == 0 for size, cut in zip(layout.shape, window.block))
        if program_kind != "stablehlo":
            found.append(even and layout.memory_space == 1)
            continue
        chosen = predict("tpu", layout.shape, layout.dtype, boundary=True)
        copied = tuple(chosen.minor_to_major) != tuple(reversed(range(layout.rank)))
        found.append(even and copied and chosen.size_bytes <= room)
    return found


def _layouts(text: str) -> list[TensorLayout]:
    layout = parse(text)
    if isinstance(layout, TupleLayout):
        return [part for part in layout.elements if isinstance(part, TensorLayout)]
    return [layout]


# What would make a kernel quicker or smaller: movement that another order saves, short steps, unfilled units.

_SAID = 0.1
"""Share of a kernel's time from which something is worth a sentence."""
_MOST_DIMS, _MOST_STEPS = 4, 1 << 20
"""Of grids whose other orders are counted."""


def advice(kernel: Kernel, whole: Pipeline | None, chip: Target) -> Iterator[str]:
    """Sentences, those that can save most first; ``whole``: its time, None where there is none.

    "saves up to": what the named unit, transfers or starts take now; what then bounds the steps may come sooner.
    """
    if whole is None or not whole.us:
        yield from (words for _, words in _movement(kernel, 0.0))
        return
    bounds, times = whole.by_bound, [step.moment.times for step in whole.steps]
    waits = bounds.get("hbm", 0.0) / whole.us
    found = list(_movement(kernel, waits * sum(step.moved_us * n for step, n in zip(whole.steps, times))))
    latency, steps = bounds.get("latency", 0.0), sum(n for step, n in zip(whole.steps, times) if not step.moment.alone)
    if latency > 2 * _SAID * whole.us and steps > 1:
        busy = sum(max([step.moved_us, *step.units.values()]) * n for step, n in zip(whole.steps, times))
        share = percent_text(latency / whole.us)
        words = f"larger blocks: beginning its {count_text(round(steps))} steps takes {share} of the time"
        found.append((min(latency, whole.us - busy), words))
    if waits > 0.5:
        found.append((0.0, "it waits for HBM: blocks that are kept for more steps, or a narrower type"))
    if (lanes := whole.us_of("lanes")) > _SAID * whole.us:
        found.append((lanes, "fewer transposes, concatenations and gathers: they turn data across lanes"))
    matrix = whole.us_of("matrix") * bounds.get("matrix", 0.0) / whole.us
    found += [((1 - filled) * matrix, words) for filled, words in _products(kernel, chip)]
    cores = round(chip.time["kernel"]["cores"]) if "kernel" in chip.time else 1
    if cores > 1 and not any(word == "parallel" for word in kernel.semantics):
        words = f'dimension_semantics with "parallel" for a dim of the grid: one of {cores} cores works now'
        found.append((whole.us * (1 - 1 / cores), words))
    for saved, words in sorted(found, key=lambda each: -each[0]):
        yield f"saves up to {seconds_text(saved / 1e6)}: {words}" if saved > 0.01 * whole.us else words


def _movement(kernel: Kernel, transfers: float) -> Iterator[tuple[float, str]]:
    """What is moved again, and its part of the microseconds that the kernel waits for ``transfers``."""
    moved = sum(w.megabytes for w in kernel.windows) * 1e6
    if order := best_order(kernel):
        dims, saved = ", ".join(map(str, order.dims)), moved - order.bytes
        yield (
            transfers * saved / moved,
            f"another order of the grid moves {bytes_text(round(saved))} less ({saved / moved:.0%}): "
            f"its dims as they are now numbered, the outermost first: {dims}",
        )
    for number, window in enumerate(kernel.windows):
        if window.distinct and window.megabytes > 1.5 * window.distinct:
            again = window.megabytes - window.distinct
            sizes = [np.shape(place) for place in window.places]
            follows = {d for size in sizes for d, places in enumerate(size) if places > 1}  # its block is another there
            passed = [d for d, size in enumerate(kernel.grid) if size > 1 and sizes and d not in follows]
            along = f" along dim {' or '.join(map(str, passed))} of the grid" if passed else ""
            yield (
                transfers * again * 1e6 / moved,
                f"larger blocks{along}: window {number}, {window.block}, is moved "
                f"{window.megabytes / window.distinct:.0f} times, {bytes_text(round(again * 1e6))} more than once",
            )


def _products(kernel: Kernel, chip: Target) -> Iterator[tuple[float, str]]:
    """The largest product, where it leaves much of the matrix unit empty, and the share that it fills."""
    if chip.matrix is None or not kernel.products:
        return
    side = chip.matrix.rows
    (_, rows, columns, depth, kind), _ = max(kernel.products.items(), key=lambda item: prod(item[0][:4]) * item[1])
    filled = columns * depth / (-(-columns // side) * -(-depth // side) * side * side)
    if filled < 0.75:
        yield (
            filled,
            f"blocks that are multiples of {side} along what is multiplied: products of {rows} x {depth} by "
            f"{depth} x {columns} ({kind}) fill {percent_text(filled)} of the matrix unit",
        )


@dataclass(frozen=True)
class Order:
    """An order of the grid's dims, the outermost first, and the bytes that all windows move in it."""

    dims: tuple[int, ...]
    bytes: int


def best_order(kernel: Kernel) -> Order | None:
    """The order that moves least, where it moves less than the kernel's own; None where none does, or nobody knows.

    Of orders that would fetch a block of a result again, or write it in parts, none is taken.
    """
    windows = [window for window in kernel.windows if window.space == "vmem"]
    if len(kernel.grid) > _MOST_DIMS or kernel.steps > _MOST_STEPS or not all(window.places for window in windows):
        return None
    own = sum(window.megabytes for window in windows)
    best = min(_orders(kernel), key=lambda order: order.bytes, default=None)
    return best if best and best.bytes < own * 1e6 * 0.98 else None


def _orders(kernel: Kernel) -> Iterator[Order]:
    rank = len(kernel.grid)
    for dims in permutations(range(rank)):
        grid, moved = tuple(kernel.grid[d] for d in dims), 0.0
        for window in kernel.windows:
            if window.space != "vmem":
                continue
            places = [
                np.transpose(place.reshape((1,) * (rank - place.ndim) + place.shape), dims) for place in window.places
            ]
            known = window.array if len(window.array) == len(window.block) else ()
            moves = moves_of(places, grid, window.block, known, window.dtype)
            if window.result and moves.fetches > window.fetches:
                break
            moved += moves.megabytes
        else:
            yield Order(dims, round(moved * 1e6))
