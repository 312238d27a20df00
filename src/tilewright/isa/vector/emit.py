"""From operations to vector instructions: what each one becomes, and which registers its values live in.

A value is a run of registers of every thread (its part of a row), or one register (what is the same along a row). In
registers there are only float32 and 32-bit integers: narrower types are unpacked, and after each operation rounded, or
wrapped, to what they can hold. A register is given back with the last use of its value, and the operation that uses it
last may put its result there, since sources are read first.
"""

from __future__ import annotations

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

    def binary(self, name: str, x: Reg | str, y: Reg | str, into: Reg | None = None) -> Reg:
        """X op Y, by an instruction such as ``vf.add``, in registers that the caller releases.

        Only Y may be one register of a run's operation: an X is swapped with it, or made a run.
        """
        out = into or self.allocate_for(x, y)
        if isinstance(x, Reg) and x.one and not out.one and name.partition(".")[2] in _COMMUTATIVE:
            x, y = y, x
        return self._of_runs(name, out, (x,), y)

    def _of_runs(self, name: str, out: Reg, first: tuple[Reg | str, ...], last: Reg | str) -> Reg:
        """One instruction, where operands before the last are made runs if they must."""
        single = [o for o in first if isinstance(o, Reg) and o.one and not out.one]
        runs = {o: self.broadcast(o) for o in single}
        self.line(name, out, *(runs.get(o, o) if isinstance(o, Reg) else o for o in first), last)
        self.release(*runs.values())
        return out

    def broadcast(self, x: Reg) -> Reg:
        """A run of registers, each with the value of a single one."""
        return self.line("vi.or", self.allocate(one=False), "0", x)

    # Temporary results: everything below returns registers that the caller drops.

    def allocate_for(self, *operands: Reg | str) -> Reg:
        """Registers for a result of these operands: one where all of them are."""
        return self.allocate(all(o.one for o in operands if isinstance(o, Reg)))

    def in_place(self, operands: list[Reg | str]) -> Reg | None:
        """The registers of an operand that is not used after this, if they are as many as the result takes."""
        regs = [o for o in operands if isinstance(o, Reg)]
        one = all(r.one for r in regs)
        return next((r for r in regs if r.one == one and r.uses == 1), None)

    def function(self, op: str, x: Reg, into: Reg | None = None) -> Reg:
        return self.line(f"vfun.{op}", into or self.allocate(x.one), x)

    def choose(self, mask: Reg, x: Reg | str, y: Reg | str, into: Reg | None = None) -> Reg:
        """x where the mask is not 0, else y."""
        return self._of_runs("vsel", into or self.allocate_for(mask, x, y), (mask, x), y)

    def convert(self, to: str, of: str, x: Reg, into: Reg | None = None, how: str = "") -> Reg:
        """Convert packed elements ``of`` one type ``to`` another."""
        name = f"vcvt.to_{machine_type(to)}.from_{machine_type(of)}{how}"
        return self.line(name, into or self.allocate(x.one), x)

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
_MINUS_ONE, _ONE, _SIGN = literal(-1.0, "f32"), literal(1.0, "f32"), str(-(2**31))


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
            x = e.binary("vf.max", x, literal(least, "f32"), out)
        if most < high:
            x = e.binary("vf.min", x, literal(most, "f32"), out)
        e.convert(target, "f32", x, out)
    if target != "s32" and not stored:
        e.convert("s32", target, out, out)
    out.packed = stored and target != "s32"
    return out


def _result(e: Emitter, op: Op, x: list[Reg | str]) -> Reg:
    name, floats = op.name, is_float(op.dtype)
    source = e.spec.dtype(op.operands[0]) if op.operands else op.dtype
    if floats and name in _FLOAT:
        return e.binary(f"vf.{_FLOAT[name]}", x[0], x[1], e.in_place(x))
    if not floats and name in _WHOLE:
        if name.startswith("shift_"):
            return _shifted(e, op, x)
        unsigned = {"max": "maxu", "min": "minu"} if op.dtype == "u32" else {}
        if op.dtype == "u32" and name in ("divide", "remainder"):
            raise UnsupportedError("division of unsigned 32-bit integers on the vector unit")
        return e.binary(f"vi.{unsigned.get(_WHOLE[name], _WHOLE[name])}", x[0], x[1], e.in_place(x))
    if name.startswith("reduce_"):
        return _reduced(e, op, e.in_register(x[0], one=False), floats)
    if name == "compare":
        kind = "vfcmp" if is_float(source) else "vcmp"
        condition = COMPARISONS[op.attributes[0]]
        tail = "u" if source == "u32" and condition not in ("eq", "ne") else ""
        return e.binary(f"{kind}.{condition}{tail}", x[0], x[1])
    if name == "select":
        mask = e.in_register(x[0])
        out = e.choose(mask, x[1], x[2])
        e.release(mask)
        return out
    if name == "clamp":
        low, high = ("max", "min") if floats or op.dtype != "u32" else ("maxu", "minu")
        low, high = (f"{'vf' if floats else 'vi'}.{extreme}" for extreme in (low, high))
        out = e.binary(low, x[1], x[0])
        if not (isinstance(x[2], Reg) and not x[2].one and out.one):
            return e.binary(high, out, x[2], out)
        wide = e.binary(high, x[2], out)
        e.release(out)
        return wide
    if name.startswith("iota_"):
        columns = name == "iota_cols"
        start, out = e.first_column if columns else e.row_number, e.allocate(one=not columns)
        assert start is not None
        e.append("viota r{}, r{}, #" if columns else f"vi.add r{{}}, r{{}}, {e.spec.first}, #", out, start)
        return e.convert("f32", "s32", out, out) if floats else out
    if name in _FUNCTIONS and isinstance(x[0], Reg):
        return e.function(_FUNCTIONS[name], x[0], e.in_place(x))
    own = e.in_register(x[0])
    out = _unary(e, name, own, floats, op, x)
    e.release(own)
    return out


def _shifted(e: Emitter, op: Op, x: list[Reg | str]) -> Reg:
    """Narrow integers have their sign in all 32 bits; by as many bits as there are, or more, nothing is left."""
    bits, by, own = size_of(op.dtype) * 8, op.operands[1], e.in_register(x[0], one=False)
    known = int(by[1]) if isinstance(by, tuple) else None
    if op.name == "shift_right_arithmetic":
        if op.dtype[0] == "u" and bits < 32:  # the highest bit is the sign
            signed = e.binary("vi.shl", own, str(32 - bits))
            e.release(own)
            own = e.binary("vi.shr", signed, str(32 - bits), signed)
        least = e.binary("vi.minu", x[1], "31") if known is None else None
        out = e.binary("vi.shr", own, least or str(known if known is not None and 0 <= known < 32 else 31))
        if least is not None:
            e.release(least)
    else:
        whole = e.binary("vi.and", own, str(2**bits - 1)) if op.name == "shift_right_logical" and bits < 32 else None
        out = e.binary(f"vi.{_WHOLE[op.name]}", whole or own, x[1])
        if whole is not None:
            e.release(whole)
        if known is None:
            fits = e.binary("vcmp.ltu", x[1], str(bits))
            kept = e.choose(fits, out, "0")
            e.release(fits, out)
            out = kept
        elif not 0 <= known < bits:
            out = e.binary("vi.and", out, "0", out)
    e.release(own)
    return out


def _reduced(e: Emitter, op: Op, x: Reg, floats: bool) -> Reg:
    operation, kind = op.name.removeprefix("reduce_"), "f32" if floats else "s32"
    how = f"{operation}.{kind}"
    if op.dtype == "u32" and op.name != "reduce_add":
        raise UnsupportedError(f"{op.name} of unsigned 32-bit integers on the vector unit")
    if x.one:
        x = e.broadcast(x)
    whole, out = x, e.allocate(one=True)
    if e.mask is not None:
        whole = e.choose(e.mask, x, literal(IDENTITIES[operation, kind], kind))
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
        e.binary("vfcmp.ne" if floats[0] else "vcmp.ne", own, "0f00000000" if floats[0] else "0", out)
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


def _unary(e: Emitter, name: str, x: Reg, floats: bool, op: Op, all_: list[Reg | str]) -> Reg:
    if name in _FUNCTIONS:
        return e.function(_FUNCTIONS[name], x)
    if name == "negate":
        return e.binary("vf.mul", x, _MINUS_ONE) if floats else e.binary("vi.sub", "0", x)
    if name == "abs":
        if floats:
            return e.binary("vi.and", x, str(2**31 - 1))
        negative = e.binary("vi.mul", x, "-1")
        return e.binary("vi.max", x, negative, negative)
    if name == "not":
        return e.binary("vi.xor", x, "1" if op.dtype == "pred" else "-1")
    if name == "is_finite":
        out = e.binary("vi.and", x, str(2**31 - 1))
        e.binary("vcmp.lt", out, str(0x7F800000), out)
        return out
    if name == "logistic":
        out = e.binary("vf.mul", x, _MINUS_ONE)
        e.function("exp", out, out)
        e.binary("vf.add", out, _ONE, out)
        return e.function("recip", out, out)
    if name == "sign" and not floats:
        out = e.binary("vi.max", x, "-1")
        return e.binary("vi.min", out, "1", out)
    if name == "power":
        return _power(e, x, all_[1], op)
    return {
        "erf": _erf,
        "sign": _sign,
        "floor": lambda e, x: _stepped(e, x, "gt", _MINUS_ONE),
        "ceil": lambda e, x: _stepped(e, x, "lt", _ONE),
        "round_nearest_even": lambda e, x: _rounded(e, x, ""),
        "log_plus_one": _log1p,
        "exponential_minus_one": _expm1,
    }[name](e, x)


def _power(e: Emitter, x: Reg, y: Reg | str, op: Op) -> Reg:
    """Small whole exponents by products; others by the exponential, of numbers that are not negative."""
    exponent = op.operands[1]
    if isinstance(exponent, tuple) and float(exponent[1]) in (1.0, 2.0, 3.0, 4.0):
        out = e.binary("vf.mul", x, _ONE)
        if exponent[1] >= 2:
            e.binary("vf.mul", out, x, out)
        if exponent[1] == 3:
            e.binary("vf.mul", out, x, out)
        if exponent[1] == 4:
            e.binary("vf.mul", out, out, out)
        return out
    if isinstance(exponent, tuple) and float(exponent[1]) in (0.5, -0.5, -1.0):
        return e.function({0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}[float(exponent[1])], x)
    out = e.function("log", x)
    product = e.binary("vf.mul", out, y)
    e.release(out)
    return e.function("exp", product, product)


def _polynomial(e: Emitter, x: Reg, coefficients: tuple[float, ...]) -> Reg:
    out = e.binary("vf.mul", x, literal(coefficients[0], "f32"))
    for coefficient in coefficients[1:-1]:
        e.binary("vf.add", out, literal(coefficient, "f32"), out)
        e.binary("vf.mul", out, x, out)
    return e.binary("vf.add", out, literal(coefficients[-1], "f32"), out)


def _erf(e: Emitter, x: Reg) -> Reg:
    clamped = e.binary("vf.max", x, literal(-_ERF_END, "f32"))
    e.binary("vf.min", clamped, literal(_ERF_END, "f32"), clamped)
    square = e.binary("vf.mul", clamped, clamped)
    over = _polynomial(e, square, _ERF_P)
    e.binary("vf.mul", over, clamped, over)
    e.release(clamped)
    under = _polynomial(e, square, _ERF_Q)
    e.release(square)
    e.binary("vf.div", over, under, over)
    e.release(under)
    return over


def _sign(e: Emitter, x: Reg) -> Reg:
    """1 or -1 with the sign of x; 0, -0 and NaN are themselves."""
    one = e.binary("vi.and", x, _SIGN)
    e.binary("vi.or", one, str(int(np.float32(1).view(np.int32))), one)
    other = e.binary("vfcmp.lt", x, "0f00000000")
    above = e.binary("vfcmp.gt", x, "0f00000000")
    e.binary("vi.or", other, above, other)
    e.release(above)
    out = e.choose(other, one, x, one)
    e.release(other)
    return out


def _rounded(e: Emitter, x: Reg, how: str) -> Reg:
    """The nearest whole number (``.rz``: towards zero), with the sign of x."""
    whole = e.convert("s32", "f32", x, None, how)
    e.convert("f32", "s32", whole, whole)
    sign = e.binary("vi.and", x, _SIGN)
    e.binary("vi.or", whole, sign, whole)
    e.binary("vi.and", x, str(2**31 - 1), sign)
    e.binary("vfcmp.lt", sign, literal(_EXACT, "f32"), sign)
    out = e.choose(sign, whole, x, whole)
    e.release(sign)
    return out


def _stepped(e: Emitter, x: Reg, beyond: str, step: str) -> Reg:
    """Floor and ceiling: towards zero, and one further where that went ``beyond`` x."""
    whole = _rounded(e, x, ".rz")
    other = e.binary(f"vfcmp.{beyond}", whole, x)
    moved = e.binary("vf.add", whole, step)
    out = e.choose(other, moved, whole, moved)
    e.release(other, whole)
    sign = e.binary("vi.and", x, _SIGN)  # the ceiling of -0.5 is -0
    zero = e.binary("vfcmp.eq", out, "0f00000000")
    e.choose(zero, sign, out, out)
    e.release(zero, sign)
    return out


def _log1p(e: Emitter, x: Reg) -> Reg:
    """log(u) x / (u - 1) with u = 1 + x, which makes up for the rounding of u."""
    u = e.binary("vf.add", x, _ONE)
    less = e.binary("vf.sub", u, _ONE)
    same = e.binary("vfcmp.eq", less, "0f00000000")
    ratio = e.binary("vf.div", x, less, less)
    big = e.binary("vi.and", u, str(2**31 - 1))
    e.binary("vfcmp.eq", big, "0f7f800000", big)
    e.choose(big, _ONE, ratio, ratio)
    e.release(big)
    e.function("log", u, u)
    e.binary("vf.mul", u, ratio, u)
    e.release(ratio)
    e.choose(same, x, u, u)
    e.release(same)
    return u


def _expm1(e: Emitter, x: Reg) -> Reg:
    """(u - 1) x / log(u) with u = e^x; x itself where u is 1, u - 1 where x is large."""
    u = e.function("exp", x)
    less = e.binary("vf.sub", u, _ONE)
    log = e.function("log", u)
    ratio = e.binary("vf.div", x, log)
    small = e.binary("vi.and", x, str(2**31 - 1), log)
    e.binary("vfcmp.lt", small, literal(0.5, "f32"), small)
    e.binary("vf.mul", ratio, less, ratio)
    e.choose(small, ratio, less, ratio)
    e.release(small)
    e.binary("vfcmp.eq", less, "0f00000000", less)
    e.choose(less, x, ratio, ratio)
    e.release(less, u)
    return ratio
