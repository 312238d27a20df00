"""From operations to vector instructions: what each one becomes, and which registers its values live in.

A value is a run of registers of every thread (its part of a row), or one register (what is the same along a row). In
registers there are only float32 and 32-bit integers: narrower types are unpacked, and after each operation rounded, or
wrapped, to what they can hold. A register is given back with the last use of its value, and the operation that uses it
last may put its result there, since sources are read first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.isa.execute.operands import ends_of
from tilewright.isa.execute.vector import IDENTITIES
from tilewright.isa.vector.spec import COMPARISONS, Op, Output, Value, VectorSpec, is_float, machine_type, size_of

_ROUND = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f8e4m3fn": ml_dtypes.float8_e4m3fn}
_ROUND |= {"f8e5m2": ml_dtypes.float8_e5m2}
_COMMUTATIVE = frozenset(("add", "mul", "max", "min", "and", "or", "xor", "minu", "maxu"))
_EXACT = 8388608.0
"""From here on every float32 is a whole number."""
# erf(x) = x P(x^2) / Q(x^2) for |x| up to _ERF_END, where it is 1 (the coefficients that XLA takes).
_ERF_END = 3.832506856900711
_ERF_P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
_ERF_Q = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)


def literal(value: Any, dtype: str) -> str:
    """A constant as the text of an operand."""
    if not is_float(dtype):
        return str((int(value) + 2**31) % 2**32 - 2**31)
    with np.errstate(over="ignore"):
        rounded = np.float32(_ROUND[dtype](value)) if dtype in _ROUND else np.float32(value)
    bits = 0x7FC00000 if np.isnan(rounded) else int(rounded.view(np.uint32))
    return f"0f{bits:08x}"


@dataclass(eq=False)
class Reg:
    """Registers of a value: ``slot`` counts runs, or single registers; ``one``: it is a single one.

    ``uses``: how often it is still wanted; ``packed``: it is as it will be stored.
    """

    slot: int
    one: bool
    uses: float = 1
    packed: bool = False


@dataclass(frozen=True)
class Layout:
    """Where registers are: run ``slot`` begins at ``first + slot * run``, single ones count down from ``last``."""

    first: int
    run: int
    last: int

    def number(self, reg: Reg) -> int:
        """The first register of a value."""
        return self.last - reg.slot if reg.one else self.first + reg.slot * self.run


@dataclass
class Emitter:
    """Instructions in the making; ``lines`` are templates, and the registers they name.

    ``group``: threads of a row; ``count``: N of a run, as it is written. ``stored``: values of narrow types that are of
    no use but to be stored, so that they need not be unpacked again. ``slots``: runs and single registers needed so
    far. ``mask``: 1 where a thread's part of the row is there, if any is not.
    """

    spec: VectorSpec
    group: int = 1
    count: str = "{n}"
    lines: list[tuple[str, tuple[Reg, ...]]] = field(default_factory=list)
    values: dict[int, Reg] = field(default_factory=dict)
    stored: frozenset[int] = frozenset()
    slots: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    free: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    mask: Reg | None = None
    first_column: Reg | None = None
    row_number: Reg | None = None

    # Registers.

    def allocate(self, one: bool, uses: float = 1) -> Reg:
        """Free registers: a run, or ``one``."""
        if not self.free[one]:
            self.free[one].append(self.slots[one])
            self.slots[one] += 1
        return Reg(self.free[one].pop(), one, uses)

    def release(self, *regs: Reg) -> None:
        """Each has one use less; registers without any are free."""
        for reg in regs:
            reg.uses -= 1
            if reg.uses <= 0:
                self.free[reg.one].append(reg.slot)

    def append(self, text: str, *regs: Reg) -> None:
        """One instruction; ``{}`` for each of the registers, ``#`` for N of the first."""
        self.lines.append((text.replace("#", "1" if regs and regs[0].one else self.count), regs))

    # Operands: registers, or a constant as it is written.

    def operand(self, value: Value) -> Reg | str:
        """The registers of a value, or the text of a constant."""
        return literal(value[1], value[2]) if isinstance(value, tuple) else self.values[value]

    def line(self, name: str, out: Reg, *operands: Reg | str) -> Reg:
        """One instruction into ``out``, which it returns; only the last operand may be one register for a run."""
        last = operands[-1]
        one = ".y1" if isinstance(last, Reg) and last.one and not out.one else ""
        texts = ", ".join("r{}" if isinstance(o, Reg) else o for o in operands)
        self.append(f"{name}{one} r{{}}, {texts}, #", out, *(o for o in operands if isinstance(o, Reg)))
        return out

    def do(self, name: str, *operands: Reg | str, into: Reg | None = None) -> Reg:
        """One instruction, such as ``vf.add`` or ``vsel``, into registers of its own; the caller releases operands.

        Only the last operand may be one register of a run's operation: another is swapped with it, or made a run.
        """
        out = into or self.allocate(all(o.one for o in operands if isinstance(o, Reg)))
        spread = [o for o in operands[:-1] if isinstance(o, Reg) and o.one and not out.one]
        if spread and name.partition(".")[2] in _COMMUTATIVE:
            return self.line(name, out, *reversed(operands))
        runs: dict[Reg | str, Reg] = {o: self.broadcast(o) for o in spread}
        self.line(name, out, *(runs.get(o, o) for o in operands[:-1]), operands[-1])
        self.release(*runs.values())
        return out

    def broadcast(self, x: Reg) -> Reg:
        """A run of registers, each with the value of a single one."""
        return self.line("vi.or", self.allocate(one=False), "0", x)

    # Temporary results: everything below returns registers that the caller drops.

    def in_place(self, operands: list[Reg | str]) -> Reg | None:
        """The registers of an operand that is not used after this, if they are as many as the result takes."""
        regs = [o for o in operands if isinstance(o, Reg)]
        one = all(r.one for r in regs)
        return next((r for r in regs if r.one == one and r.uses == 1), None)

    def convert(self, to: str, of: str, x: Reg, into: Reg | None = None, how: str = "") -> Reg:
        """Convert packed elements ``of`` one type ``to`` another."""
        name = f"vcvt.to_{machine_type(to)}.from_{machine_type(of)}{how}"
        return self.do(name, x, into=into)

    def in_register(self, x: Reg | str, one: bool = True) -> Reg:
        """A value in registers, a constant too; the caller releases it."""
        if isinstance(x, Reg):
            x.uses += 1
            return x
        word = str((int(x[2:], 16) + 2**31) % 2**32 - 2**31) if x.startswith("0f") else x
        return self.line("vi.or", self.allocate(one), word, "0")

    # Element types.

    def round_to(self, reg: Reg, dtype: str) -> None:
        """Round a result to what its type can hold, or wrap it."""
        if dtype not in ("f32", "s32", "u32", "pred"):
            self.pack(reg, dtype, reg)
            self.unpack(reg, dtype, reg)

    def pack(self, reg: Reg, dtype: str, into: Reg | None = None) -> Reg:
        """Elements of a narrow type, packed as they are stored: rounded, or modulo."""
        floats = is_float(dtype)
        return self.convert(dtype, "f32" if floats else "s32", reg, into, "" if floats else ".wrap")

    def packed(self, out: Output) -> Reg:
        """What is stored of a value that is asked for; the caller releases it where it is not the value's own."""
        value = source = self.values[out.value]
        if source.one and out.form == "full":
            source = self.broadcast(value)
        if size_of(out.dtype) < 4 and not value.packed:
            made = self.pack(source, out.dtype)
            if source is not value:
                self.release(source)
            return made
        return source

    def unpack(self, reg: Reg, dtype: str, into: Reg) -> None:
        """Packed elements, as they come from memory, one to a register."""
        self.convert("f32" if is_float(dtype) else "s32", dtype, reg, into)


def uses_of(spec: VectorSpec) -> dict[int, int]:
    """How often each value is used, outputs among the uses; those that are of no use are not in it."""
    count, uses = len(spec.inputs), dict[int, int]()
    for out in spec.outputs:
        uses[out.value] = uses.get(out.value, 0) + 1
    for number in range(len(spec.body) - 1, -1, -1):
        if count + number in uses:
            for operand in operands_of(spec, number):
                if isinstance(operand, int):
                    uses[operand] = uses.get(operand, 0) + 1
    return uses


def stored_as_it_is(spec: VectorSpec, uses: dict[int, int]) -> frozenset[int]:
    """The values of narrow types that are of no other use than to be stored as they are."""
    return frozenset(
        out.value
        for out in spec.outputs
        if out.dtype == spec.dtype(out.value) and size_of(out.dtype) < 4 and uses[out.value] == 1
        if (out.form == "row") == (spec.forms[out.value] in ("row", "one"))
    )


@dataclass(eq=False)
class Step:
    """One instruction of a recipe, and its result."""

    name: str
    operands: tuple[Reg | str | Step, ...]


@dataclass
class Recipe:
    """Instructions noted down by calling it: each takes the registers of a result of no use after it, or others.

    Operands that are no results of the recipe stay the caller's.
    """

    steps: list[Step] = field(default_factory=list)

    def __call__(self, name: str, *operands: Reg | str | Step) -> Step:
        self.steps.append(Step(name, operands))
        return self.steps[-1]

    def made(self, e: Emitter, into: Reg | None = None) -> Reg:
        """The registers of the last result (``into``, if it is the only one), with all instructions appended."""
        uses = Counter(o for step in self.steps for o in step.operands if isinstance(o, Step))
        regs: dict[Step, Reg] = {}
        for step in self.steps:
            operands = [regs[o] if isinstance(o, Step) else o for o in step.operands]
            results = [o for o in step.operands if isinstance(o, Step)]
            uses.subtract(results)
            dead = [regs[o] for o in dict.fromkeys(results) if not uses[o]]
            one = all(o.one for o in operands if isinstance(o, Reg))
            place = next((reg for reg in dead if reg.one == one), into if len(self.steps) == 1 else None)
            regs[step] = e.do(step.name, *operands, into=place)
            e.release(*(reg for reg in dead if reg is not place))
        return regs[self.steps[-1]]


# Rounding, clamping and scaling on the way to narrow integers are one instruction, or two.


def operands_of(spec: VectorSpec, number: int) -> tuple[Value, ...]:
    """What operation ``number`` reads, where those it takes with it are not made on their own."""
    fused = quantises(spec, number)
    return spec.body[number].operands if fused is None else fused.operands


@dataclass(frozen=True)
class Quantised:
    """A conversion to narrow integers with what it takes along: ``operands`` x, perhaps scale, and least and most."""

    operands: tuple[Value, ...]
    source: str
    ends: tuple[float, float]


def _op(spec: VectorSpec, value: Value) -> Op | None:
    made = isinstance(value, int) and value >= len(spec.inputs)
    return spec.body[value - len(spec.inputs)] if made and isinstance(value, int) else None


def _clamped(op: Op) -> tuple[Value, float, float] | None:
    """(x, least, most) of a clamp, maximum or minimum with whole numbers for ends; rounding may come after it."""
    constants = [o for o in op.operands if isinstance(o, tuple)]
    others = [o for o in op.operands if not isinstance(o, tuple)]
    if op.name not in ("clamp", "maximum", "minimum") or len(others) != 1 or any(c[1] % 1 for c in constants):
        return None
    first, last = float(constants[0][1]), float(constants[-1][1])
    if op.name == "clamp":
        return (others[0], first, last) if op.operands[1] == others[0] else None
    return (others[0], first, inf) if op.name == "maximum" else (others[0], -inf, first)


def quantises(spec: VectorSpec, number: int) -> Quantised | None:
    """The fused convert(clamp(round(x * scale))) to integers that ends in operation ``number``, or None."""
    op = spec.body[number]
    if op.name != "convert" or is_float(op.dtype) or op.dtype in ("pred", "u32"):
        return None
    (x,), least, most = op.operands, -inf, inf
    if spec.dtype(x) != "f32":
        return None
    inner, rounded = _op(spec, x), False
    while inner is not None:
        clamped = _clamped(inner)
        if clamped is not None:
            x, low, high = clamped
            if max(least, low) > min(most, high):
                return None
            least, most = max(least, low), min(most, high)
        elif inner.name == "round_nearest_even" and not rounded:
            (x,), rounded = inner.operands, True
        else:
            break
        inner = _op(spec, x)
    if not rounded or not isinstance(x, int):
        return None
    low, high = ends_of(op.dtype)
    ends_first = least <= low and most >= high
    if inner is not None and inner.name == "multiply" and inner.dtype == "f32" and ends_first:
        for first, scale in (inner.operands, inner.operands[::-1]):
            source = _op(spec, first)
            if source is None or source.name != "convert" or source.dtype != "f32":
                continue
            (whole,) = source.operands
            if isinstance(whole, int) and spec.dtype(whole) == "s32":
                return Quantised((whole, scale), "s32", (least, most))
    return Quantised((x,), "f32", (least, most))


# One function for each kind of operation.

_FLOAT = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min"}
_WHOLE = {
    **_FLOAT,
    "remainder": "rem",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "shift_left": "shl",
    "shift_right_arithmetic": "shr",
    "shift_right_logical": "shru",
}
_FUNCTIONS = {"exponential": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh"}
_MINUS_ONE, _ZERO, _ONE = (literal(value, "f32") for value in (-1.0, 0.0, 1.0))
_SIGN, _SIZE, _INFINITE = str(-(2**31)), str(2**31 - 1), str(0x7F800000)
"""The bits of a float32 that are its sign, and the others; those of infinity."""


def emit(e: Emitter, number: int, uses: dict[int, int]) -> None:
    """Operation ``number`` of the body; operands that it used last are given back."""
    spec = e.spec
    value, op = len(spec.inputs) + number, spec.body[number]
    if value not in uses:
        return
    operands = operands_of(spec, number)
    fused = quantises(spec, number)
    held = [e.values[o] for o in operands if isinstance(o, int)]
    stored = value in e.stored
    if fused is not None:
        out = _quantised(e, op, fused, stored)
    elif op.name == "convert":
        out = _converted(e, spec.dtype(op.operands[0]), op.dtype, e.operand(op.operands[0]), stored)
    else:
        out = _result(e, op, [e.operand(o) for o in operands])
        if not stored:  # else rounded on its way to memory
            e.round_to(out, op.dtype)
    out.uses = uses[value] if out not in held else out.uses + uses[value]
    e.values[value] = out
    e.release(*held)


def _quantised(e: Emitter, op: Op, fused: Quantised, stored: bool) -> Reg:
    x, *scale = (e.operand(o) for o in fused.operands)
    assert isinstance(x, Reg)
    out, target = e.in_place([x]) or e.allocate(x.one), op.dtype
    if scale:
        (by,) = scale
        one = ".y1" if isinstance(by, Reg) and by.one and not x.one else ""
        if isinstance(by, Reg) and not by.one and x.one:
            raise UnsupportedError("one number a row, quantised by a scale of each column")
        regs = (by,) if isinstance(by, Reg) else ()
        say = f"vquant.to_{target}.from_{fused.source}{one} r{{}}, r{{}}, {'r{}' if regs else by}, 0, #"
        e.append(say, out, x, *regs)
    else:
        (least, most), (low, high) = fused.ends, ends_of(target)
        if least > low:
            x = e.do("vf.max", x, literal(least, "f32"), into=out)
        if most < high:
            x = e.do("vf.min", x, literal(most, "f32"), into=out)
        e.convert(target, "f32", x, out)
    if target != "s32" and not stored:
        e.convert("s32", target, out, out)
    out.packed = stored and target != "s32"
    return out


def _result(e: Emitter, op: Op, x: list[Reg | str]) -> Reg:
    name, floats = op.name, is_float(op.dtype)
    if name.startswith("reduce_"):
        return _reduced(e, op, e.in_register(x[0], one=False), floats)
    if name.startswith("iota_"):
        columns = name == "iota_cols"
        start, out = e.first_column if columns else e.row_number, e.allocate(one=not columns)
        assert start is not None
        e.append("viota r{}, r{}, #" if columns else f"vi.add r{{}}, r{{}}, {e.spec.first}, #", out, start)
        return e.convert("f32", "s32", out, out) if floats else out
    do, place = Recipe(), None
    if name in (_FLOAT if floats else _WHOLE) and not name.startswith("shift_"):
        unsigned = {"max": "maxu", "min": "minu"} if op.dtype == "u32" else {}
        if op.dtype == "u32" and name in ("divide", "remainder"):
            raise UnsupportedError("division of unsigned 32-bit integers on the vector unit")
        do(f"vf.{_FLOAT[name]}" if floats else f"vi.{unsigned.get(_WHOLE[name], _WHOLE[name])}", x[0], x[1])
        return do.made(e, e.in_place(x))
    if name == "compare":
        source, condition = e.spec.dtype(op.operands[0]), COMPARISONS[op.attributes[0]]
        tail = "u" if source == "u32" and condition not in ("eq", "ne") else ""
        do(f"{'vfcmp' if is_float(source) else 'vcmp'}.{condition}{tail}", x[0], x[1])
        return do.made(e)
    if name == "clamp":
        kind, tail = "vf" if floats else "vi", "u" if op.dtype == "u32" else ""
        do(f"{kind}.min{tail}", do(f"{kind}.max{tail}", x[1], x[0]), x[2])
        return do.made(e)
    if name in _FUNCTIONS:
        place = e.in_place(x)
    own = e.in_register(x[0], one=not name.startswith("shift_"))
    if name == "select":
        do("vsel", own, x[1], x[2])
    elif name.startswith("shift_"):
        _shifted(do, op, own, x[1])
    elif name == "power":
        _power(do, op, own, x[1])
    elif name == "not":
        do("vi.xor", own, "1" if op.dtype == "pred" else "-1")
    elif name in _FUNCTIONS:
        do(f"vfun.{_FUNCTIONS[name]}", own)
    else:
        (_OF_FLOATS if floats else _OF_WHOLES)[name](do, own)
    out = do.made(e, place)
    e.release(own)
    return out


def _shifted(do: Recipe, op: Op, x: Reg, by: Reg | str) -> None:
    """Narrow integers have their sign in all 32 bits; by as many bits as there are, or more, nothing is left."""
    own: Reg | Step = x
    bits, known = size_of(op.dtype) * 8, op.operands[1]
    count = int(known[1]) if isinstance(known, tuple) else None
    if op.name == "shift_right_arithmetic":
        if op.dtype[0] == "u" and bits < 32:  # the highest bit is the sign
            own = do("vi.shr", do("vi.shl", x, str(32 - bits)), str(32 - bits))
        do("vi.shr", own, do("vi.minu", by, "31") if count is None else str(count if 0 <= count < 32 else 31))
        return
    if op.name == "shift_right_logical" and bits < 32:
        own = do("vi.and", x, str(2**bits - 1))
    out = do(f"vi.{_WHOLE[op.name]}", own, by)
    if count is None:
        do("vsel", do("vcmp.ltu", by, str(bits)), out, "0")
    elif not 0 <= count < bits:
        do("vi.and", out, "0")


def _reduced(e: Emitter, op: Op, x: Reg, floats: bool) -> Reg:
    operation, kind = op.name.removeprefix("reduce_"), "f32" if floats else "s32"
    how = f"{operation}.{kind}"
    if op.dtype == "u32" and op.name != "reduce_add":
        raise UnsupportedError(f"{op.name} of unsigned 32-bit integers on the vector unit")
    if x.one:
        x = e.broadcast(x)
    whole, out = x, e.allocate(one=True)
    if e.mask is not None:
        whole = e.do("vsel", e.mask, x, literal(IDENTITIES[operation, kind], kind))
    e.append(f"vred.{how} r{{}}, r{{}}, {e.count}", out, whole)
    if whole is not x:
        e.release(whole)
    if e.group > 1:
        e.append(f"vthr.{how}.g{e.group} r{{}}, r{{}}, 1", out, out)
    e.release(x)
    return out


def _converted(e: Emitter, source: str, target: str, x: Reg | str, stored: bool) -> Reg:
    same = is_float(source) == is_float(target) and target != "pred"
    if same and isinstance(x, Reg) and (stored or target in (source, "f32", "s32", "u32")):
        return x  # in registers it is that already, or it is packed so on its way to memory
    out = e.in_place([x])
    own = e.in_register(x)
    out = out or e.allocate(own.one)
    floats = is_float(source), is_float(target)
    narrow = target not in ("f32", "s32", "u32")
    if target == "pred":
        e.do("vfcmp.ne" if floats[0] else "vcmp.ne", own, _ZERO if floats[0] else "0", into=out)
    elif floats[0] == floats[1]:
        e.pack(own, target, out)
        e.unpack(out, target, out)
    else:
        how, wide = (".rz", "f32") if floats[0] else ("", "u32" if source == "u32" else "s32")
        e.convert(target, wide, own, out, how)
        out.packed = stored and narrow
        if narrow and not stored:
            e.convert("f32" if floats[1] else "s32", target, out, out)
    e.release(own)
    return out


def _power(do: Recipe, op: Op, x: Reg, y: Reg | str) -> None:
    """Small whole exponents by products; others by the exponential, of numbers that are not negative."""
    exponent = float(op.operands[1][1]) if isinstance(op.operands[1], tuple) else 0.0
    if exponent in (1.0, 2.0, 3.0, 4.0):
        out = do("vf.mul", x, _ONE)
        out = do("vf.mul", out, x) if exponent >= 2 else out
        if exponent > 2:
            do("vf.mul", out, x if exponent == 3 else out)
    elif name := {0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}.get(exponent):
        do(f"vfun.{name}", x)
    else:
        do("vfun.exp", do("vf.mul", do("vfun.log", x), y))


def _polynomial(do: Recipe, x: Step, coefficients: tuple[float, ...]) -> Step:
    out = do("vf.mul", x, literal(coefficients[0], "f32"))
    for coefficient in coefficients[1:-1]:
        out = do("vf.mul", do("vf.add", out, literal(coefficient, "f32")), x)
    return do("vf.add", out, literal(coefficients[-1], "f32"))


def _erf(do: Recipe, x: Reg) -> None:
    clamped = do("vf.min", do("vf.max", x, literal(-_ERF_END, "f32")), literal(_ERF_END, "f32"))
    square = do("vf.mul", clamped, clamped)
    do("vf.div", do("vf.mul", _polynomial(do, square, _ERF_P), clamped), _polynomial(do, square, _ERF_Q))


def _sign(do: Recipe, x: Reg) -> None:
    """1 or -1 with the sign of x; 0, -0 and NaN are themselves."""
    one = do("vi.or", do("vi.and", x, _SIGN), str(int(np.float32(1).view(np.int32))))
    do("vsel", do("vi.or", do("vfcmp.lt", x, _ZERO), do("vfcmp.gt", x, _ZERO)), one, x)


def _rounded(do: Recipe, x: Reg, how: str = "") -> Step:
    """The nearest whole number (``.rz``: towards zero), with the sign of x."""
    whole = do("vcvt.to_f32.from_s32", do(f"vcvt.to_s32.from_f32{how}", x))
    whole = do("vi.or", whole, do("vi.and", x, _SIGN))
    return do("vsel", do("vfcmp.lt", do("vi.and", x, _SIZE), literal(_EXACT, "f32")), whole, x)


def _stepped(do: Recipe, x: Reg, beyond: str, step: str) -> None:
    """Floor and ceiling: towards zero, and one further where that went ``beyond`` x."""
    whole = _rounded(do, x, ".rz")
    out = do("vsel", do(f"vfcmp.{beyond}", whole, x), do("vf.add", whole, step), whole)
    sign = do("vi.and", x, _SIGN)  # the ceiling of -0.5 is -0
    do("vsel", do("vfcmp.eq", out, _ZERO), sign, out)


def _log1p(do: Recipe, x: Reg) -> None:
    """log(u) x / (u - 1) with u = 1 + x, which makes up for the rounding of u."""
    u = do("vf.add", x, _ONE)
    less = do("vf.sub", u, _ONE)
    same = do("vfcmp.eq", less, _ZERO)
    ratio = do("vf.div", x, less)
    ratio = do("vsel", do("vfcmp.eq", do("vi.and", u, _SIZE), literal(inf, "f32")), _ONE, ratio)
    do("vsel", same, x, do("vf.mul", do("vfun.log", u), ratio))


def _expm1(do: Recipe, x: Reg) -> None:
    """(u - 1) x / log(u) with u = e^x; x itself where u is 1, u - 1 where x is large."""
    u = do("vfun.exp", x)
    less = do("vf.sub", u, _ONE)
    ratio = do("vf.div", x, do("vfun.log", u))
    small = do("vfcmp.lt", do("vi.and", x, _SIZE), literal(0.5, "f32"))
    ratio = do("vsel", small, do("vf.mul", ratio, less), less)
    do("vsel", do("vfcmp.eq", less, _ZERO), x, ratio)


_OF_FLOATS: dict[str, Callable[[Recipe, Reg], object]] = {
    "negate": lambda do, x: do("vf.mul", x, _MINUS_ONE),
    "abs": lambda do, x: do("vi.and", x, _SIZE),
    "sign": _sign,
    "floor": lambda do, x: _stepped(do, x, "gt", _MINUS_ONE),
    "ceil": lambda do, x: _stepped(do, x, "lt", _ONE),
    "round_nearest_even": _rounded,
    "logistic": lambda do, x: do("vfun.recip", do("vf.add", do("vfun.exp", do("vf.mul", x, _MINUS_ONE)), _ONE)),
    "erf": _erf,
    "log_plus_one": _log1p,
    "exponential_minus_one": _expm1,
}
_OF_WHOLES: dict[str, Callable[[Recipe, Reg], object]] = {
    "negate": lambda do, x: do("vi.sub", "0", x),
    "abs": lambda do, x: do("vi.max", x, do("vi.mul", x, "-1")),
    "sign": lambda do, x: do("vi.min", do("vi.max", x, "-1"), "1"),
    "is_finite": lambda do, x: do("vcmp.lt", do("vi.and", x, _SIZE), _INFINITE),
}
