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
from tilewright.isa.vector.spec import COMPARISONS, Op, Value, VectorSpec, is_float, machine_type, size_of

_ROUND = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f8e4m3fn": ml_dtypes.float8_e4m3fn}
_ROUND |= {"f8e5m2": ml_dtypes.float8_e5m2}
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
    """A constant as an operand."""
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

    def take(self, one: bool, uses: float = 1) -> Reg:
        """Registers that nobody has now."""
        if not self.free[one]:
            self.free[one].append(self.slots[one])
            self.slots[one] += 1
        return Reg(self.free[one].pop(), one, uses)

    def drop(self, reg: Reg, by: float = 1) -> None:
        """One use less."""
        reg.uses -= by
        if reg.uses <= 0:
            self.free[reg.one].append(reg.slot)

    def say(self, text: str, *regs: Reg) -> None:
        """One instruction; ``{}`` for each of the registers, ``#`` for N of the first."""
        self.lines.append((text.replace("#", "1" if regs and regs[0].one else self.count), regs))

    def render(self, layout: Layout, n: int) -> list[str]:
        """The text, once it is known where registers are."""
        return [text.format(*(layout.number(r) for r in regs), n=n) for text, regs in self.lines]

    # Operands: registers, or a constant as it is written.

    def operand(self, value: Value) -> Reg | str:
        """Where a value is."""
        if isinstance(value, tuple):
            return literal(value[1], value[2])
        return self.values[value]

    def two(self, name: str, x: Reg | str, y: Reg | str, out: Reg, swaps: bool = False) -> None:
        """out = x op y. Only Y may be one register of a run's operation: an X is swapped with it, or spread."""
        spread = None
        if isinstance(x, Reg) and x.one and not out.one:
            if swaps:
                x, y = y, x
            if isinstance(x, Reg) and x.one:
                x = spread = self.spread(x)
        one = ".y1" if isinstance(y, Reg) and y.one and not out.one else ""
        texts = [("r{}" if isinstance(o, Reg) else o) for o in (x, y)]
        regs = [o for o in (x, y) if isinstance(o, Reg)]
        self.say(f"{name}{one} r{{}}, {texts[0]}, {texts[1]}, #", out, *regs)
        if spread is not None:
            self.drop(spread)

    def spread(self, x: Reg) -> Reg:
        """A run of one register's value."""
        run = self.take(one=False)
        self.say("vi.or.y1 r{}, 0, r{}, #", run, x)
        return run

    # Temporary results: everything below returns registers that the caller drops.

    def made(self, *operands: Reg | str) -> Reg:
        """Registers for a result of these operands."""
        return self.take(all(o.one for o in operands if isinstance(o, Reg)))

    def in_place(self, operands: list[Reg | str]) -> Reg | None:
        """The registers of an operand that nobody wants after this, if the result has room there."""
        regs = [o for o in operands if isinstance(o, Reg)]
        one = all(r.one for r in regs)
        return next((r for r in regs if r.one == one and r.uses == 1), None)

    def f(self, op: str, x: Reg | str, y: Reg | str, into: Reg | None = None) -> Reg:
        """float32 x op y."""
        out = into or self.made(x, y)
        self.two(f"vf.{op}", x, y, out, swaps=op in ("add", "mul", "max", "min"))
        return out

    def i(self, op: str, x: Reg | str, y: Reg | str, into: Reg | None = None) -> Reg:
        """Integers x op y."""
        out = into or self.made(x, y)
        self.two(f"vi.{op}", x, y, out, swaps=op in ("add", "mul", "max", "min", "and", "or", "xor", "minu", "maxu"))
        return out

    def fun(self, op: str, x: Reg, into: Reg | None = None) -> Reg:
        """A function of float32."""
        out = into or self.take(x.one)
        self.say(f"vfun.{op} r{{}}, r{{}}, #", out, x)
        return out

    def choose(self, mask: Reg, x: Reg | str, y: Reg | str, into: Reg | None = None) -> Reg:
        """x where the mask is not 0, else y."""
        out = into or self.made(mask, x, y)
        spread = [self.spread(o) for o in (mask, x) if isinstance(o, Reg) and o.one and not out.one]
        if isinstance(mask, Reg) and mask.one and not out.one:
            mask = spread[0]
        if isinstance(x, Reg) and x.one and not out.one:
            x = spread[-1]
        one = ".y1" if isinstance(y, Reg) and y.one and not out.one else ""
        texts = [("r{}" if isinstance(o, Reg) else o) for o in (x, y)]
        regs = [o for o in (x, y) if isinstance(o, Reg)]
        self.say(f"vsel{one} r{{}}, r{{}}, {texts[0]}, {texts[1]}, #", out, mask, *regs)
        for each in spread:
            self.drop(each)
        return out

    def cvt(self, to: str, of: str, x: Reg, into: Reg | None = None, how: str = "") -> Reg:
        """A conversion of packed elements."""
        out = into or self.take(x.one)
        self.say(f"vcvt.to_{machine_type(to)}.from_{machine_type(of)}{how} r{{}}, r{{}}, #", out, x)
        return out

    def reg(self, x: Reg | str, one: bool = True) -> Reg:
        """A value in registers, also of a constant: the caller drops it."""
        if isinstance(x, Reg):
            x.uses += 1
            return x
        out = self.take(one)
        word = str((int(x[2:], 16) + 2**31) % 2**32 - 2**31) if x.startswith("0f") else x
        self.say(f"vi.or r{{}}, {word}, 0, #", out)
        return out

    # Element types.

    def hold(self, reg: Reg, dtype: str) -> None:
        """Round a result to what its type can hold, or wrap it."""
        if dtype in ("f32", "s32", "u32", "pred"):
            return
        wide = "f32" if is_float(dtype) else "s32"
        self.cvt(dtype, wide, reg, reg, "" if is_float(dtype) else ".wrap")
        self.cvt(wide, dtype, reg, reg)

    def widen(self, reg: Reg, dtype: str, into: Reg) -> None:
        """Packed elements as they come from memory, in registers of their own."""
        self.cvt("f32" if is_float(dtype) else "s32", dtype, reg, into)


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
    """convert(clamp(round(x * scale))) to integers as one thing, or None."""
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
    if inner is not None and inner.name == "multiply" and inner.dtype == "f32" and _fits((least, most), op.dtype):
        for first, scale in (inner.operands, inner.operands[::-1]):
            source = _op(spec, first)
            if source is None or source.name != "convert" or source.dtype != "f32":
                continue
            (whole,) = source.operands
            if isinstance(whole, int) and spec.dtype(whole) == "s32":
                return Quantised((whole, scale), "s32", (least, most))
    return Quantised((x,), "f32", (least, most))


def _fits(ends: tuple[float, float], dtype: str) -> bool:
    """Whether a type ends before them."""
    low, high = _ends(dtype)
    return ends[0] <= low and ends[1] >= high


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
_NOTHING = {
    ("reduce_add", True): literal(-0.0, "f32"),
    ("reduce_max", True): literal(-inf, "f32"),
    ("reduce_min", True): literal(inf, "f32"),
    ("reduce_add", False): "0",
    ("reduce_max", False): str(-(2**31)),
    ("reduce_min", False): str(2**31 - 1),
}


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
            e.hold(out, op.dtype)
    out.uses = uses[value] if out not in held else out.uses + uses[value]
    e.values[value] = out
    for each in held:
        e.drop(each)


def _quantised(e: Emitter, op: Op, fused: Quantised, stored: bool) -> Reg:
    x, *scale = (e.operand(o) for o in fused.operands)
    assert isinstance(x, Reg)
    out, target = e.in_place([x]) or e.take(x.one), op.dtype
    if scale:
        (by,) = scale
        one = ".y1" if isinstance(by, Reg) and by.one and not x.one else ""
        if isinstance(by, Reg) and not by.one and x.one:
            raise UnsupportedError("one number a row, quantised by a scale of each column")
        regs = (by,) if isinstance(by, Reg) else ()
        say = f"vquant.to_{target}.from_{fused.source}{one} r{{}}, r{{}}, {'r{}' if regs else by}, 0, #"
        e.say(say, out, x, *regs)
    else:
        (least, most), (low, high) = fused.ends, _ends(target)
        if least > low:
            x = e.f("max", x, literal(least, "f32"), out)
        if most < high:
            x = e.f("min", x, literal(most, "f32"), out)
        e.cvt(target, "f32", x, out)
    if target != "s32" and not stored:
        e.cvt("s32", target, out, out)
    out.packed = stored and target != "s32"
    return out


def _ends(dtype: str) -> tuple[int, int]:
    bits = int(dtype[1:])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _result(e: Emitter, op: Op, x: list[Reg | str]) -> Reg:
    name, floats = op.name, is_float(op.dtype)
    source = e.spec.dtype(op.operands[0]) if op.operands else op.dtype
    if floats and name in _FLOAT:
        return e.f(_FLOAT[name], x[0], x[1], e.in_place(x))
    if not floats and name in _WHOLE:
        if name.startswith("shift_"):
            return _shifted(e, op, x)
        unsigned = {"max": "maxu", "min": "minu"} if op.dtype == "u32" else {}
        if op.dtype == "u32" and name in ("divide", "remainder"):
            raise UnsupportedError("division of unsigned 32-bit integers on the vector unit")
        return e.i(unsigned.get(_WHOLE[name], _WHOLE[name]), x[0], x[1], e.in_place(x))
    if name.startswith("reduce_"):
        return _reduced(e, op, e.reg(x[0], one=False), floats)
    if name == "compare":
        kind = "vfcmp" if is_float(source) else "vcmp"
        condition = COMPARISONS[op.attributes[0]]
        tail = "u" if source == "u32" and condition not in ("eq", "ne") else ""
        out = e.made(*x)
        e.two(f"{kind}.{condition}{tail}", x[0], x[1], out)
        return out
    if name == "select":
        mask = e.reg(x[0])
        out = e.choose(mask, x[1], x[2])
        e.drop(mask)
        return out
    if name == "clamp":
        low, high = ("max", "min") if floats or op.dtype != "u32" else ("maxu", "minu")
        do = e.f if floats else e.i
        out = do(low, x[1], x[0])
        if not (isinstance(x[2], Reg) and not x[2].one and out.one):
            return do(high, out, x[2], out)
        wide = do(high, x[2], out)
        e.drop(out)
        return wide
    if name == "iota_cols":
        assert e.first_column is not None
        out = e.take(one=False)
        e.say("viota r{}, r{}, #", out, e.first_column)
        return _as_type(e, out, op.dtype)
    if name == "iota_rows":
        assert e.row_number is not None
        out = e.take(one=True)
        e.say(f"vi.add r{{}}, r{{}}, {e.spec.first}, #", out, e.row_number)
        return _as_type(e, out, op.dtype)
    if name in _FUNCTIONS and isinstance(x[0], Reg):
        return e.fun(_FUNCTIONS[name], x[0], e.in_place(x))
    own = e.reg(x[0])
    out = _unary(e, name, own, floats, op, x)
    e.drop(own)
    return out


def _shifted(e: Emitter, op: Op, x: list[Reg | str]) -> Reg:
    """Narrow integers have their sign in all 32 bits; by as many bits as there are, or more, nothing is left."""
    bits, by, own = size_of(op.dtype) * 8, op.operands[1], e.reg(x[0], one=False)
    known = int(by[1]) if isinstance(by, tuple) else None
    if op.name == "shift_right_arithmetic":
        if op.dtype[0] == "u" and bits < 32:  # the highest bit is the sign
            signed = e.i("shl", own, str(32 - bits))
            e.drop(own)
            own = e.i("shr", signed, str(32 - bits), signed)
        least = e.i("minu", x[1], "31") if known is None else None
        out = e.i("shr", own, least or str(known if known is not None and 0 <= known < 32 else 31))
        if least is not None:
            e.drop(least)
    else:
        whole = e.i("and", own, str(2**bits - 1)) if op.name == "shift_right_logical" and bits < 32 else None
        out = e.i(_WHOLE[op.name], whole or own, x[1])
        if whole is not None:
            e.drop(whole)
        if known is None:
            fits = e.made(x[1])
            e.two("vcmp.ltu", x[1], str(bits), fits)
            kept = e.choose(fits, out, "0")
            e.drop(fits)
            e.drop(out)
            out = kept
        elif not 0 <= known < bits:
            out = e.i("and", out, "0", out)
    e.drop(own)
    return out


def _as_type(e: Emitter, reg: Reg, dtype: str) -> Reg:
    return e.cvt("f32", "s32", reg, reg) if is_float(dtype) else reg


def _reduced(e: Emitter, op: Op, x: Reg, floats: bool) -> Reg:
    how = f"{op.name[7:]}.{'f32' if floats else 's32'}"
    if op.dtype == "u32" and op.name != "reduce_add":
        raise UnsupportedError(f"{op.name} of unsigned 32-bit integers on the vector unit")
    if x.one:
        x = e.spread(x)
    whole, out = x, e.take(one=True)
    if e.mask is not None:
        whole = e.choose(e.mask, x, _NOTHING[op.name, floats])
    e.say(f"vred.{how} r{{}}, r{{}}, {e.count}", out, whole)
    if whole is not x:
        e.drop(whole)
    if e.group > 1:
        e.say(f"vthr.{how}.g{e.group} r{{}}, r{{}}, 1", out, out)
    e.drop(x)
    return out


def _converted(e: Emitter, source: str, target: str, x: Reg | str, stored: bool) -> Reg:
    same = is_float(source) == is_float(target) and target != "pred"
    if same and isinstance(x, Reg) and (stored or target in (source, "f32", "s32", "u32")):
        return x  # in registers it is that already, or it is packed so on its way to memory
    out = e.in_place([x])
    own = e.reg(x)
    out = out or e.take(own.one)
    floats = is_float(source), is_float(target)
    narrow = target not in ("f32", "s32", "u32")
    if target == "pred":
        e.two("vfcmp.ne" if floats[0] else "vcmp.ne", own, "0f00000000" if floats[0] else "0", out)
    elif floats[0] == floats[1]:
        wide = "f32" if floats[0] else "s32"
        e.cvt(target, wide, own, out, "" if floats[0] else ".wrap")
        e.cvt(wide, target, out, out)
    else:
        how, wide = (".rz", "f32") if floats[0] else ("", "u32" if source == "u32" else "s32")
        e.cvt(target, wide, own, out, how)
        out.packed = stored and narrow
        if narrow and not stored:
            e.cvt("f32" if floats[1] else "s32", target, out, out)
    e.drop(own)
    return out


def _unary(e: Emitter, name: str, x: Reg, floats: bool, op: Op, all_: list[Reg | str]) -> Reg:
    if name in _FUNCTIONS:
        return e.fun(_FUNCTIONS[name], x)
    if name == "negate":
        return e.f("mul", x, _MINUS_ONE) if floats else e.i("sub", "0", x)
    if name == "abs":
        if floats:
            return e.i("and", x, str(2**31 - 1))
        negative = e.i("mul", x, "-1")
        return e.i("max", x, negative, negative)
    if name == "not":
        return e.i("xor", x, "1" if op.dtype == "pred" else "-1")
    if name == "is_finite":
        out = e.i("and", x, str(2**31 - 1))
        e.two("vcmp.lt", out, str(0x7F800000), out)
        return out
    if name == "logistic":
        out = e.f("mul", x, _MINUS_ONE)
        e.fun("exp", out, out)
        e.f("add", out, _ONE, out)
        return e.fun("recip", out, out)
    if name == "power":
        return _power(e, x, all_[1], op)
    return {
        "erf": _erf,
        "sign": _sign if floats else _sign_of_integers,
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
        out = e.f("mul", x, _ONE)
        if exponent[1] >= 2:
            e.f("mul", out, x, out)
        if exponent[1] == 3:
            e.f("mul", out, x, out)
        if exponent[1] == 4:
            e.f("mul", out, out, out)
        return out
    if isinstance(exponent, tuple) and float(exponent[1]) in (0.5, -0.5, -1.0):
        return e.fun({0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}[float(exponent[1])], x)
    out = e.fun("log", x)
    product = e.f("mul", out, y)
    e.drop(out)
    return e.fun("exp", product, product)


def _polynomial(e: Emitter, x: Reg, coefficients: tuple[float, ...]) -> Reg:
    out = e.f("mul", x, literal(coefficients[0], "f32"))
    for coefficient in coefficients[1:-1]:
        e.f("add", out, literal(coefficient, "f32"), out)
        e.f("mul", out, x, out)
    return e.f("add", out, literal(coefficients[-1], "f32"), out)


def _erf(e: Emitter, x: Reg) -> Reg:
    clamped = e.f("max", x, literal(-_ERF_END, "f32"))
    e.f("min", clamped, literal(_ERF_END, "f32"), clamped)
    square = e.f("mul", clamped, clamped)
    over = _polynomial(e, square, _ERF_P)
    e.f("mul", over, clamped, over)
    e.drop(clamped)
    under = _polynomial(e, square, _ERF_Q)
    e.drop(square)
    e.f("div", over, under, over)
    e.drop(under)
    return over


def _sign(e: Emitter, x: Reg) -> Reg:
    """1 or -1 with the sign of x; 0, -0 and NaN are themselves."""
    one = e.i("and", x, _SIGN)
    e.i("or", one, str(int(np.float32(1).view(np.int32))), one)
    other = e.take(x.one)
    e.two("vfcmp.lt", x, "0f00000000", other)
    above = e.take(x.one)
    e.two("vfcmp.gt", x, "0f00000000", above)
    e.i("or", other, above, other)
    e.drop(above)
    out = e.choose(other, one, x, one)
    e.drop(other)
    return out


def _sign_of_integers(e: Emitter, x: Reg) -> Reg:
    out = e.i("max", x, "-1")
    return e.i("min", out, "1", out)


def _rounded(e: Emitter, x: Reg, how: str) -> Reg:
    """The nearest whole number (``.rz``: towards zero), with the sign of x."""
    whole = e.cvt("s32", "f32", x, None, how)
    e.cvt("f32", "s32", whole, whole)
    sign = e.i("and", x, _SIGN)
    e.i("or", whole, sign, whole)
    e.i("and", x, str(2**31 - 1), sign)
    e.two("vfcmp.lt", sign, literal(_EXACT, "f32"), sign)
    out = e.choose(sign, whole, x, whole)
    e.drop(sign)
    return out


def _stepped(e: Emitter, x: Reg, beyond: str, step: str) -> Reg:
    """Floor and ceiling: towards zero, and one further where that went ``beyond`` x."""
    whole = _rounded(e, x, ".rz")
    other = e.take(x.one)
    e.two(f"vfcmp.{beyond}", whole, x, other)
    moved = e.f("add", whole, step)
    out = e.choose(other, moved, whole, moved)
    e.drop(other)
    e.drop(whole)
    sign = e.i("and", x, _SIGN)  # the ceiling of -0.5 is -0
    zero = e.take(x.one)
    e.two("vfcmp.eq", out, "0f00000000", zero)
    e.choose(zero, sign, out, out)
    e.drop(zero)
    e.drop(sign)
    return out


def _log1p(e: Emitter, x: Reg) -> Reg:
    """log(u) x / (u - 1) with u = 1 + x, which makes up for the rounding of u."""
    u = e.f("add", x, _ONE)
    less = e.f("sub", u, _ONE)
    same = e.take(x.one)
    e.two("vfcmp.eq", less, "0f00000000", same)
    ratio = e.f("div", x, less, less)
    big = e.i("and", u, str(2**31 - 1))
    e.two("vfcmp.eq", big, "0f7f800000", big)
    e.choose(big, _ONE, ratio, ratio)
    e.drop(big)
    e.fun("log", u, u)
    e.f("mul", u, ratio, u)
    e.drop(ratio)
    e.choose(same, x, u, u)
    e.drop(same)
    return u


def _expm1(e: Emitter, x: Reg) -> Reg:
    """(u - 1) x / log(u) with u = e^x; x itself where u is 1, u - 1 where x is large."""
    u = e.fun("exp", x)
    less = e.f("sub", u, _ONE)
    log = e.fun("log", u)
    ratio = e.f("div", x, log)
    small = e.i("and", x, str(2**31 - 1), log)
    e.two("vfcmp.lt", small, literal(0.5, "f32"), small)
    e.f("mul", ratio, less, ratio)
    e.choose(small, ratio, less, ratio)
    e.drop(small)
    e.two("vfcmp.eq", less, "0f00000000", less)
    e.choose(less, x, ratio, ratio)
    e.drop(less)
    e.drop(u)
    return ratio
