"""What a vector program computes: inputs, operations one after the other, and outputs, over a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError, check_known
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.errors import Array, array_of

FORMS = ("full", "row", "col", "one", "rows")
"""How a tensor lies over the matrix: every element; one for each row; one for each column; one; some rows, repeated."""
FLOATS = ("f32", "bf16", "f16", "f8e4m3fn", "f8e5m2")
INTEGERS = ("s32", "u32", "s16", "u16", "s8", "u8", "s4", "u4", "pred")
DTYPES = (*FLOATS, *INTEGERS)
OPERATIONS: dict[str, int] = {
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power"), 2),
    **dict.fromkeys(("and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"), 2),
    **dict.fromkeys(("negate", "abs", "sign", "floor", "ceil", "round_nearest_even", "not", "is_finite"), 1),
    **dict.fromkeys(("exponential", "exponential_minus_one", "log", "log_plus_one", "sqrt", "rsqrt"), 1),
    **dict.fromkeys(("tanh", "logistic", "erf", "convert", "reduce_add", "reduce_max", "reduce_min"), 1),
    "compare": 2,
    "select": 3,
    "clamp": 3,
    "iota_rows": 0,
    "iota_cols": 0,
}
"""StableHLO's names, and how many operands each takes; reductions go along the columns and leave one for each row."""
_SIZES = {"s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
COMPARISONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def size_of(dtype: str) -> int:
    return _SIZES.get(dtype, 1)


def machine_type(dtype: str) -> str:
    """The machine's own name: a truth value is a byte."""
    return "u8" if dtype == "pred" else dtype


def is_float(dtype: str) -> bool:
    """Whether values of this type are float32 in registers (else 32-bit integers)."""
    return dtype in FLOATS


Value = int | tuple[str, Any, str]
"""An input (they are counted first) or an operation, by its number; or ("const", number, dtype)."""


@dataclass(frozen=True)
class Input:
    """A tensor: ``form`` full [rows, cols], row [rows, 1], col [1, cols], one [1, 1], or rows [period, cols]."""

    name: str
    dtype: str
    form: str = "full"
    period: int = 0


@dataclass(frozen=True)
class Op:
    """One operation; its result has ``dtype`` and is rounded to it. ``attributes``: of compare its direction."""

    name: str
    operands: tuple[Value, ...]
    dtype: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """A value that is stored, in elements of ``dtype``: full [rows, cols], or row [rows, 1]."""

    name: str
    value: int
    dtype: str
    form: str = "full"


@dataclass(frozen=True)
class VectorSpec:
    """Work over a matrix of ``rows`` and ``cols``; ``first``: the number of its first row, for ``rows`` and iota_rows.

    >>> body = (Op("reduce_max", (0,), "f32"), Op("subtract", (0, 1), "f32"), Op("exponential", (2,), "f32"))
    >>> spec = VectorSpec(4, 8, (Input("x", "f32"),), body, (Output("y", 3, "f32"),))
    >>> spec.forms
    ('full', 'row', 'full', 'full')
    """

    rows: int
    cols: int
    inputs: tuple[Input, ...]
    body: tuple[Op, ...]
    outputs: tuple[Output, ...]
    first: int = 0

    def __post_init__(self) -> None:
        tensors: list[Any] = [*self.inputs, *self.outputs]
        names = [one.name for one in tensors]
        if len(set(names)) < len(names) or not self.outputs:
            raise UsageError(f"inputs and outputs {names}", how="one output or more, and each its own name")
        for each in self.inputs:
            if each.form not in FORMS or (each.form == "rows") != (each.period > 0):
                raise UsageError(f"input {each.name} has form {each.form!r}", how=f"one of {', '.join(FORMS)}")
        for one in [*tensors, *self.body]:
            check_known(one.dtype, DTYPES, f"{one.name} has elements of type {one.dtype}", kind=UnsupportedError)
        for number, op in enumerate(self.body):
            check_known(op.name, OPERATIONS, f"no operation {op.name!r}", say="there are", kind=UnsupportedError)
            if len(op.operands) != OPERATIONS[op.name]:
                raise UsageError(f"{op.name} takes {OPERATIONS[op.name]} operands, not {len(op.operands)}")
            if any(isinstance(o, int) and not 0 <= o < len(self.inputs) + number for o in op.operands):
                raise UsageError(f"{op.name} takes {op.operands}", how="numbers of values before it")
        for out in self.outputs:
            if not 0 <= out.value < len(self.inputs) + len(self.body):
                raise UsageError(f"output {out.name} is value {out.value}, which is not there")
            if out.form not in ("full", "row") or (out.form == "row" and self.forms[out.value] not in ("row", "one")):
                raise UsageError(f"output {out.name} of form {out.form!r}", how="full, or row where there is one a row")

    @property
    def forms(self) -> tuple[str, ...]:
        """Of every value: full or row (one for each row), col, one; inputs that repeat rows are full."""
        forms = ["full" if each.form == "rows" else each.form for each in self.inputs]
        for op in self.body:
            own = {forms[o] for o in op.operands if isinstance(o, int)}
            if op.name.startswith("reduce_") or op.name == "iota_rows":
                forms.append("row")
            elif op.name == "iota_cols":
                forms.append("col")
            elif "full" in own or {"row", "col"} <= own:
                forms.append("full")
            else:
                forms.append("row" if "row" in own else "col" if "col" in own else "one")
        return tuple(forms)

    def dtype(self, value: Value) -> str:
        if isinstance(value, tuple):
            return value[2]
        count = len(self.inputs)
        return self.inputs[value].dtype if value < count else self.body[value - count].dtype

    @property
    def reduces(self) -> bool:
        return any(op.name.startswith("reduce_") for op in self.body)


def _shape(spec: VectorSpec, form: str, period: int = 0) -> tuple[int, int]:
    rows = {"full": spec.rows, "row": spec.rows, "rows": period}.get(form, 1)
    return rows, spec.cols if form in ("full", "col", "rows") else 1


def tensor_of(spec: VectorSpec, each: Input, tensors: Mapping[str, Any]) -> Array:
    """The array for an input in its two-dim shape, truth values as bytes, or one clear error."""
    check_known(each.name, tensors, f"no tensor {each.name!r}", say="there are")
    array, wanted = array_of(each.name, tensors[each.name]), _shape(spec, each.form, each.period)
    if array.dtype == bool:
        array = array.view(np.uint8)
    if array.dtype != numpy_type(machine_type(each.dtype)) or array.size != wanted[0] * wanted[1]:
        raise UsageError(f"{each.name} is {array.dtype}{list(array.shape)}", how=f"{each.dtype}{list(wanted)}")
    return array.reshape(wanted)


def zeros_of(spec: VectorSpec, out: Output) -> Array:
    """Zeros in the shape of an output, as a broadcast view."""
    return np.broadcast_to(np.zeros((), numpy_type(machine_type(out.dtype))), _shape(spec, out.form))
