"""Is a Pallas kernel compiled for a TPU, what does it take and move, and how long? Without a TPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.hlo.allocation.kernel_errors import explain_kernel
from tilewright.hlo.pallas.advice import advice
from tilewright.hlo.pallas.memory import Memory, limit_of, memory_of, near_arrays
from tilewright.hlo.pallas.page import kernel_sections, kernels_page
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reading.kernel import Kernel
from tilewright.hlo.reading.kernel_tree import block_bytes
from tilewright.hlo.reading.kernels import read_kernel
from tilewright.hlo.reading.loading import load
from tilewright.hlo.reading.python_source import from_jax, names_python, python_call, users_line
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.kernels import FROM_BODY, TARGET, configuration, sizes_of
from tilewright.hlo.timing.pallas import Pipeline, pipeline
from tilewright.hlo.timing.step import StepTime
from tilewright.render.formats import bytes_text, place_text, seconds_text
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
    hbm_bytes: int = 0
    least_hbm_bytes: int = 0
    windows: tuple[CheckedWindow, ...] = ()
    seconds: float = 0.0
    bound: str = ""
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    kernel: Kernel | None = field(default=None, repr=False, compare=False)
    pipeline: Pipeline | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values; of its pipeline the seconds by what bounds its steps."""
        plain = asdict(replace(self, kernel=None, pipeline=None))
        del plain["kernel"]
        plain["pipeline"] = {name: us / 1e6 for name, us in self.pipeline.by_bound().items()} if self.pipeline else {}
        return plain

    def to_html(self, target: str, beside: Sequence[KernelCheck] = ()) -> str:
        """One page: this kernel, and others ``beside`` it."""
        return kernels_page([self, *beside], target)

    def sections(self, step: int | None = None) -> list[tuple[str, str, list[str]]]:
        """Name, heading and blocks of each section of its page; with ``step``, from 0 on, what that step holds."""
        return list(kernel_sections(self, step))

    def times(self) -> Iterator[str | Table]:
        """What the terminal shows of its time: by what bounds its steps, and the steps that take most of it."""
        if not self.seconds:
            why = "; ".join(self.notes) or "nothing in it takes time"
            yield f"{self.name}: no time: {why if self.ok else 'it does not compile'}"
            return
        yield f"{self.name}: {seconds_text(self.seconds)} by {self.bound} (modelled)"
        if not self.pipeline:
            yield from (f"  - {text}" for text in self.notes)
            return
        bounds = ", ".join(f"{name} {seconds_text(us / 1e6)}" for name, us in self.pipeline.by_bound().items())
        yield f"  its steps by what bounds them: {bounds}"
        units = Column("matrix", "seconds"), Column("vector", "seconds"), Column("HBM", "seconds")
        rows = []
        for step in sorted(self.pipeline.steps, key=lambda step: -step.us * step.moment.times)[:6]:
            vector = max((us for unit, us in step.units.items() if unit != "matrix"), default=0.0)
            parts = step.us, step.units.get("matrix", 0.0), vector, step.moved_us
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
        rows = [
            (
                f"{w.dtype}[{','.join(map(str, w.array))}]",
                " x ".join(map(str, w.block)),
                w.space,
                w.buffers,
                w.fetches,
                w.bytes,
                w.held,
            )
            for w in self.windows
        ]
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
    text = " ".join(str(error).split())
    known = explain_kernel(f"{type(error).__name__}: {text}")
    kind = next(
        (kind for kind, words in _KINDS if re.search(words, f"{type(error).__name__} {text}", re.I)), "lowering"
    )
    call = _CALL.search(text)
    line = place_text(call[2]) if call else users_line(error)
    suggestion = known[0].how if known else ""
    problem = Problem(kind, known[0].meaning if known else f"{type(error).__name__}: {text[:400]}", line, suggestion)
    return KernelCheck(call[1] if call else "kernel", False, (problem,), line)


def lowering_for(chip: Target) -> Any:
    """A mesh of one such chip: kernels ask while they are lowered which chip it is for."""
    import jax

    kind = _DEVICE_KINDS.get(chip.name)
    if kind is None:
        return nullcontext()
    cores = round(chip_of(chip)["pallas"]["cores"])
    device = jax.sharding.AbstractDevice(kind, cores, "tpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def _calls(program: Program) -> Iterator[Operation]:
    return (op for _, op in program.operations() if TARGET in op.attributes.get("custom_call_target", ""))


def _kernel_of(op: Operation) -> Kernel:
    kernel = read_kernel(configuration(op), sizes_of(op))
    kernel.line = place_text(str(op.source)) if op.source else ""
    return kernel


def _checked(op: Operation, program: Program, chip: Target, step: StepTime | None) -> KernelCheck:
    try:
        kernel = _kernel_of(op)
    except TilewrightError as error:
        return KernelCheck(
            op.name, False, (Problem("reading", error.what, str(op.source or "")),), str(op.source or "")
        )
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
    whole = (
        pipeline(chip_of(chip), kernel, {w.operand for w, there in zip(kernel.windows, near) if there})
        if timed
        else None
    )
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
