"""A specification as a program: which threads hold what of a row, loads, operations, stores; running it; known ones.

Threads stand in groups of ``group``, one group for each row, and every thread of it holds ``run`` neighbouring elements
of each value. What is the same in all rows is loaded once. Where something goes along rows, a row is whole in its
group's registers; else rows are cut into blocks of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.chip.segments import Part, by_dim
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.errors import array_of
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.multiply.matmul import KernelResult, Windows, host, run_alone, run_on_elements
from tilewright.isa.vector.emit import Emitter, Layout, Reg, emit, stored_as_it_is, uses_of
from tilewright.isa.vector.spec import FLOATS, Input, Op, Output, Value, VectorSpec, size_of, tensor_of, zeros_of
from tilewright.layout.index.types import dtype_name

LONGEST, SHORTEST = 128, 8
"""Registers of a run at most, where rows may be cut; and elements of a thread below which more threads are no gain."""
_ROWS = "rows"
"""The line of a body where its rows begin."""
_FIRST_UNIFORM = 8
"""Uniform registers of the segments begin here."""


@dataclass(frozen=True)
class Shape:
    """How work is dealt to threads: ``group`` threads a row, ``run`` elements each, ``rows`` of a block."""

    group: int
    run: int
    rows: int


def vector_program(spec: VectorSpec, config: MatrixUnitConfig | None = None) -> MachineProgram:
    """The program; it expects a segment for every input and output, by its name, of two dims as its form says.

    Raises :class:`UnsupportedError` where a row that something goes along has no room in the registers of all threads.
    """
    return _vector_program(spec, checked_config(config))


@lru_cache(maxsize=256)
def _vector_program(spec: VectorSpec, config: MatrixUnitConfig) -> MachineProgram:
    if 0 in (spec.rows, spec.cols):
        return assemble("halt", config)
    if config.offset_mode != "registers":
        raise UnsupportedError("vector programs give offsets one register per dim", how="offset_mode='registers'")
    tensors = len(spec.inputs) + len(spec.outputs)
    periods = sorted({each.period for each in spec.inputs if each.period})
    if config.uniform_registers < _FIRST_UNIFORM + tensors or config.predicates < 2:
        needs = f"{_FIRST_UNIFORM + tensors} uniform registers and 2 predicates"
        raise UsageError(f"the program needs {needs}", where="config")
    last = config.registers - 11 - 2 * len(periods)  # the registers behind it are addresses
    for masked in (False, True):
        found = _shape(spec, config, _body(spec, 1, masked), last)
        if found is None:
            room = f"{spec.cols} columns in the registers of {config.threads} threads"
            raise UnsupportedError(f"no room for {room}", how="fewer columns, or nothing that goes along a row")
        shape = found
        if not spec.reduces or shape.group * shape.run == spec.cols:
            break
    emitter = _body(spec, shape.group, masked)
    return assemble("\n".join(_text(spec, emitter, shape, last, periods, config)), config)


def _shape(spec: VectorSpec, config: MatrixUnitConfig, e: Emitter, last: int) -> Shape | None:
    """As few threads a row as hold it, more while there are more than rows; None where all together do not."""
    longest = (last + 1 - e.slots[True]) // max(1, e.slots[False]) // 4 * 4
    cols, threads = -(-spec.cols // 4) * 4, config.threads
    if longest < 4:
        return None
    if not spec.reduces:
        run = min(longest, LONGEST, cols)
        group = min(-(-cols // run), max(1, threads // spec.rows))
        return Shape(group, run, threads // group)
    group = -(-cols // longest)
    while group * 2 * spec.rows <= threads and -(-cols // (group * 2)) >= SHORTEST:
        group *= 2
    run = (-(-cols // group) + 3) // 4 * 4
    group = -(-cols // run)
    return Shape(group, run, threads // group) if group <= threads else None


# The program's text: before all rows, for each block of rows, operation by operation.


def _body(spec: VectorSpec, group: int, masked: bool) -> Emitter:
    """Loads, operations and stores of one block; loads and stores as templates with the names of places."""
    e, uses = Emitter(spec, group), uses_of(spec)
    count = len(spec.inputs)
    e.stored = stored_as_it_is(spec, uses)
    e.row_number, e.first_column = Reg(-1, True, inf), Reg(-2, True, inf)
    for number, each in enumerate(spec.inputs):  # what stays
        if number in uses and each.form in ("col", "one"):
            e.values[number] = e.allocate(each.form == "one", inf)
            _load(e, number, each, "ldb" if each.form == "one" or group == 1 else "ld")
    if masked:
        e.mask = e.allocate(one=False, uses=inf)
        e.append("viota r{}, r{}, #", e.mask, e.first_column)
        e.append(f"vcmp.lt r{{}}, r{{}}, {spec.cols}, #", e.mask, e.mask)
    e.lines.append((_ROWS, ()))
    for number, each in enumerate(spec.inputs):
        if number in uses and each.form not in ("col", "one"):
            e.values[number] = e.allocate(each.form == "row", uses[number])
            _load(e, number, each, "ld")
    outs = [count + n for n in range(len(spec.body))]
    for out in spec.outputs:
        if out.value < count:
            _store(e, out)
    for value in outs:
        emit(e, value - count, uses)
        for out in spec.outputs:
            if out.value == value:
                _store(e, out)
    return e


def _load(e: Emitter, number: int, each: Input, how: str) -> None:
    """Load an input, and unpack it where its elements are narrow."""
    reg, size = e.values[number], size_of(each.dtype)
    place = {"rows": f"period{each.period}"}.get(each.form, each.form)
    elements = ".n1" if reg.one else ""
    words = "1" if reg.one else f"{{w{size}}}"
    guard = "" if how == "ldb" else "{guard}"
    e.lines.append((f"{guard}{how}{elements} r{{}}, ur{_FIRST_UNIFORM + number}:rf{{{place}}}:0x00, {words}", (reg,)))
    if size < 4:
        e.unpack(reg, each.dtype, reg)


def _store(e: Emitter, out: Output) -> None:
    """A value that is asked for, packed where its elements are narrow; given back."""
    source, value, size = e.packed(out), e.values[out.value], size_of(out.dtype)
    words, one = ("1", ".n1") if source.one else (f"{{w{size}}}", "")
    guard = "{firsts}" if out.form == "row" else "{guard}"
    handle = _FIRST_UNIFORM + len(e.spec.inputs) + e.spec.outputs.index(out)
    e.lines.append((f"{guard}st{one} r{{}}, ur{handle}:rf{{{out.form}}}:0x00, {words}", (source,)))
    if source is not value:
        e.release(source)
    e.release(value)


def _text(
    spec: VectorSpec, e: Emitter, shape: Shape, last: int, periods: list[int], config: MatrixUnitConfig
) -> list[str]:
    """The program's text. The last registers are pairs of coordinates (column, row), and scratch registers."""
    names = [*(each.name for each in spec.inputs), *(out.name for out in spec.outputs)]
    end = config.registers
    period = {each: end - 12 - 2 * n for n, each in enumerate(periods)}  # (first column, row of the period)
    tid, row, part, first = range(end - 10, end - 6)  # a thread's number, its row, its part of it, its first column
    full, col, one, zero = end - 6, end - 4, end - 3, end - 2  # at (column, row), (column, 0), (0, 0), (0, row)
    layout, special = Layout(0, shape.run, last), {-1: zero + 1, -2: full}
    ragged = shape.rows * shape.group < config.threads
    named: dict[str, Any] = {"full": full, "col": col, "one": one, "row": zero}
    named |= {f"period{each}": register for each, register in period.items()}
    named |= {f"w{size}": shape.run * size // 4 for size in (1, 2, 4)}
    named |= {"n": shape.run, "guard": "@p0, " if ragged else "", "firsts": "@p1, "}
    lines = [f"segment ur{_FIRST_UNIFORM + n}, ${name}" for n, name in enumerate(names)]
    lines += [f"tid r{tid}", f"div r{row}, r{tid}, {shape.group}", f"rem r{part}, r{tid}, {shape.group}"]
    lines += [f"mul r{first}, r{part}, {shape.run}", f"cmp.lt p0, r{row}, {shape.rows}    # threads with a row"]
    lines += [f"cmp.eq p1, r{part}, 0", "pand p1, p1, p0    # the first of each row"]
    lines += [f"mov r{one}, 0", f"mov r{one + 1}, 0", "mov ur0, 0", "columns:"]
    lines += [f"add r{full}, r{first}, ur0", f"mov r{col}, r{full}"]
    lines += [f"mov r{register}, r{full}" for register in period.values()]
    rows = ["mov ur1, 0", "rows:", f"add r{full + 1}, r{row}, ur1", f"mov r{zero + 1}, r{full + 1}"]
    for each, register in period.items():
        at = register + 1
        rows += [f"add r{at}, r{full + 1}, {spec.first}", f"rem r{at}, r{at}, {each}"]
    for text, regs in e.lines:
        numbers = [special[r.slot] if r.slot < 0 else layout.number(r) for r in regs]
        lines += rows if text == _ROWS else [text.format(*numbers, **named)]
    lines += [f"add ur1, ur1, {shape.rows}", f"br.lt ur1, {spec.rows}, rows"]
    if shape.group * shape.run < spec.cols:
        lines += [f"add ur0, ur0, {shape.group * shape.run}", f"br.lt ur0, {spec.cols}, columns"]
    return [*lines, "halt"]


# Running them.


def run_vector(
    spec: VectorSpec, tensors: Mapping[str, Any], config: MatrixUnitConfig | None = None, trace: bool = False
) -> KernelResult:
    """Run a specification on arrays by name; ``.value`` is the first output, ``.values`` has all of them.

    With ``config.pes`` above 1 rows are divided among the elements.

    >>> from tilewright.isa.vector.spec import Op
    >>> spec = VectorSpec(2, 3, (Input("x", "s32"),), (Op("abs", (0,), "s32"),), (Output("y", 1, "s32"),))
    >>> run_vector(spec, {"x": np.array([[1, -2, 3], [-4, 5, -6]], np.int32)}).value.tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    config = checked_config(config)
    given = {each.name: tensor_of(spec, each, tensors) for each in spec.inputs}
    zeros = {out.name: zeros_of(spec, out) for out in spec.outputs}
    if config.pes > 1 and spec.rows and spec.cols:
        machine, work = host(config, {**given, **zeros}, trace), []
        divided = {each.name for each in spec.inputs if each.form in ("full", "row")} | zeros.keys()
        for pe, (part,) in by_dim((spec.rows, spec.cols), 0, config.pes).items():
            (first, _), (rows, _) = part.base, part.size
            program = vector_program(replace(spec, rows=rows, first=spec.first + first), config)
            windows: Windows = {name: Part((first, 0), (rows, machine.system[name].shape[1])) for name in divided}
            work.append((pe, program, windows))
        result = run_on_elements(machine, work, outs=zeros)
    else:
        result = run_alone(config, vector_program(spec, config), {**given, **zeros}, zeros, trace)
    for out in spec.outputs:
        if out.dtype == "pred":
            result.values[out.name] = result.values[out.name].astype(bool)
    return replace(result, value=result.values[spec.outputs[0].name])


# Softmax, layer norm and RMS norm.


class _Body:
    """Operations on float32, one after the other; each call returns the number of its value."""

    def __init__(self, inputs: int) -> None:
        self.inputs, self.operations = inputs, list[Op]()

    def __call__(self, name: str, *operands: Value, dtype: str = "f32") -> int:
        self.operations.append(Op(name, operands, dtype))
        return self.inputs + len(self.operations) - 1


def softmax_spec(rows: int, cols: int, dtype: str = "f32") -> VectorSpec:
    """e^(x - the greatest of its row), over the sum of those; in float32."""
    op = _Body(1)
    x = op("convert", 0)
    powers = op("exponential", op("subtract", x, op("reduce_max", x)))
    out = op("convert", op("divide", powers, op("reduce_add", powers)), dtype=dtype)
    return VectorSpec(rows, cols, (Input("x", dtype),), tuple(op.operations), (Output("y", out, dtype),))


def norm_spec(rows: int, cols: int, dtype: str, eps: float, centred: bool) -> VectorSpec:
    """Layer norm (``centred``), (x - mean) * rsqrt(variance + eps) * gamma + beta, or RMS norm, without mean and beta.

    In float32; gamma and beta are inputs with one number for each column.
    """
    names = ("gamma", "beta")[: 1 + centred]
    inputs = (Input("x", dtype), *(Input(name, dtype, "col") for name in names))
    share: Value = ("const", float(np.float32(1) / np.float32(max(1, cols))), "f32")
    op = _Body(len(inputs))
    x, gamma, *beta = (op("convert", number) for number in range(len(inputs)))
    if centred:
        x = op("subtract", x, op("multiply", op("reduce_add", x), share))
    variance = op("multiply", op("reduce_add", op("multiply", x, x)), share)
    scaled = op("multiply", x, op("rsqrt", op("add", variance, ("const", eps, "f32"))))
    out = op("multiply", scaled, gamma)
    out = op("convert", op("add", out, *beta) if centred else out, dtype=dtype)
    return VectorSpec(rows, cols, inputs, tuple(op.operations), (Output("y", out, dtype),))


def _on_rows(
    x: Any, spec: Callable[[int, int, str], VectorSpec], config: MatrixUnitConfig | None, trace: bool, **others: Any
) -> KernelResult:
    """Run ``spec(rows, columns, dtype)`` on the rows along the last dim of ``x``."""
    array = array_of("x", x)
    if array.ndim == 0 or dtype_name(array.dtype) not in FLOATS:
        raise UsageError(f"x is {array.dtype}{list(array.shape)}", how="floats of one dim or more")
    cols = array.shape[-1]
    own = spec(array.size // max(1, cols), cols, dtype_name(array.dtype))
    result = run_vector(own, {"x": array, **others}, config, trace)
    result.value = result.value.reshape(array.shape)
    return result


def softmax(x: Any, config: MatrixUnitConfig | None = None, trace: bool = False) -> KernelResult:
    """Softmax along the last dim by vector instructions.

    >>> softmax(np.zeros((2, 4), np.float32)).value.tolist()[0]
    [0.25, 0.25, 0.25, 0.25]
    """
    return _on_rows(x, softmax_spec, config, trace)


def layer_norm(
    x: Any, gamma: Any, beta: Any, eps: float = 1e-5, config: MatrixUnitConfig | None = None, trace: bool = False
) -> KernelResult:
    """Layer norm along the last dim by vector instructions; ``gamma``, ``beta``: one for each of its elements."""
    return _on_rows(x, partial(norm_spec, eps=eps, centred=True), config, trace, gamma=gamma, beta=beta)


def rms_norm(
    x: Any, gamma: Any, eps: float = 1e-6, config: MatrixUnitConfig | None = None, trace: bool = False
) -> KernelResult:
    """RMS norm along the last dim by vector instructions; ``gamma``: one for each of its elements."""
    return _on_rows(x, partial(norm_spec, eps=eps, centred=False), config, trace, gamma=gamma)
