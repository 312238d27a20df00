"""What a program computes in float64, as a reference for others; and a program run as without jit.

XLA's own CPU backend can be wrong under jit, so a check of a rewrite compares with this too. StableHLO's interpreter
(jaxlib's ``stablehlo.eval_module``) shares nothing with it, but takes half a microsecond for every element and every
product, and ends its process where it lacks something: it is asked in a process that may die of it, and only about
programs of operations that it has and that take few steps. The others are computed by XLA in float64.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.execute import array_struct, flat_callable
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, captured, walk
from tilewright.hlo.ir import operations_module, parse_module, print_module
from tilewright.hlo.jaxlib_child import ask, read_arrays
from tilewright.hlo.proving.agreement import is_integral

Array = np.ndarray[Any, Any]

_INTERPRETED = frozenset(
    {"abs", "add", "and", "atan2", "broadcast_in_dim", "case", "cbrt", "ceil", "clamp", "compare", "complex"}
    | {"concatenate", "constant", "convert", "convolution", "cosine", "divide", "dot_general", "dynamic_slice"}
    | {"dynamic_update_slice", "exponential", "exponential_minus_one", "floor", "func.return", "gather", "if", "imag"}
    | {"iota", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"}
    | {"optimization_barrier", "pad", "power", "real", "reduce", "reduce_window", "remainder", "reshape", "return"}
    | {"reverse", "round_nearest_afz", "round_nearest_even", "rsqrt", "scatter", "select", "shift_left", "sign"}
    | {"shift_right_arithmetic", "shift_right_logical", "sine", "slice", "sort", "sqrt", "subtract", "tan", "tanh"}
    | {"transpose", "xor"}
)
"""Operations that StableHLO's interpreter has, but loops, and those on the bits of a type, which widening changes."""
_EXCHANGED = re.compile(r"u?i(?:1|8|16|32|64)|bf16|f16|f32|f64")
"""Element types of arrays that it takes and gives."""
_MOST_STEPS = 1 << 20
"""Elements and products that are left to it: half a second."""
_SECONDS = 30
_STEPS_OF_SORTING = 20


class Reference:
    """A program's results in float64.

    ``kind`` says whose the last ones were: ``StableHLO's interpreter``, ``XLA in float64``, or ``none: `` and why.
    """

    def __init__(self, text: str, body: Block) -> None:
        self.text, self.body, self.kind = text, body, ""
        self._ways = {"StableHLO's interpreter": self._interpreted, "XLA in float64": self._compiled}
        self._reasons: list[str] = []

    def results(self, arguments: Sequence[Any]) -> list[Array] | None:
        """The results of ``main`` for these arguments, both widened to float64; None where nobody has them."""
        given = [_wide(np.asarray(array)) for array in arguments]
        for kind, compute in list(self._ways.items()):
            try:
                results = compute(given)
            except UnsupportedError as error:  # and with other arguments it would be no better
                del self._ways[kind]
                self._reasons.append(str(error))
            else:
                self.kind = kind
                return results
        self.kind = f"none: {'; '.join(dict.fromkeys(self._reasons))}"
        return None

    @cached_property
    def _widened(self) -> str:
        return widened(self.text)

    @cached_property
    def _types(self) -> list[list[tuple[tuple[int, ...], np.dtype[Any]]]]:
        """Shapes and element types of the widened program's arguments and results."""
        ends = (self.body.arguments, self.body.operations[-1].operands)
        return [[(v.sizes, _wide(np.empty(0, array_dtype(v))).dtype) for v in values] for values in ends]

    def _interpreted(self, arguments: Sequence[Array]) -> list[Array]:
        _check_interpreted(self.body)
        return read_arrays(ask(b"v", pickle.dumps((self._widened, list(arguments))), _SECONDS), self._types[1])

    def _compiled(self, arguments: Sequence[Array]) -> list[Array]:
        return [np.asarray(out) for out in self._jitted(*arguments)]

    @cached_property
    def _jitted(self) -> Callable[..., Any]:
        import jax

        inputs, outputs = ([array_struct(*each) for each in types] for types in self._types)
        return jax.jit(flat_callable(self._widened, inputs, outputs))


def _wide(array: Array) -> Array:
    if is_integral(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _check_interpreted(body: Block) -> None:
    """UnsupportedError where the interpreter lacks something of a program, or would take long."""
    for value in (*body.arguments, *body.operations[-1].operands):
        if not _EXCHANGED.fullmatch(value.dtype):
            raise UnsupportedError(f"the float64 reference does not take {value.dtype}")
    steps = 0
    for op in (op for block in walk(body) for op in block.operations):
        if op.name not in _INTERPRETED:
            raise UnsupportedError(f"the float64 reference does not know {op.name}")
        steps += _steps(op)
    if steps > _MOST_STEPS:
        raise UnsupportedError(f"{steps:,} steps are too many for StableHLO's interpreter")


def _steps(op: Node) -> int:
    """Elements that an operation reads or makes, as often as it takes them up."""
    own, elements = op.attributes, max((prod(v.shape or ()) for v in (*op.operands, *op.results)), default=0)
    if op.name == "dot_general":
        return prod(op.result.sizes) * prod(op.operands[0].sizes[dim] for dim in own["lhs_contract"])
    if op.name == "convolution":
        return prod(op.result.sizes) * prod(op.operands[1].sizes) // max(1, min(op.operands[1].sizes))
    return elements * (prod(own["window"]) if op.name == "reduce_window" else _STEPS_OF_SORTING ** (op.name == "sort"))


# A text with every floating type of it widened.

_NARROW = re.compile(r"(?<=[x<(])(?:f32|bf16|f16)(?=>)")
_BITS = re.compile(r"dense<([^<>]*0x[^<>]*)>(?= : tensor<(?:\d+x)*(?:complex<)?(f32|bf16|f16)>)")
_WORD = re.compile(r'("?)0x([0-9A-F]+)\1')
_DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


def widened(text: str) -> str:
    """A StableHLO text with f32, f16 and bf16 widened to f64 throughout, constants that are written as bits included.

    Raises UnsupportedError where a text cannot be widened (bit casts, calls of foreign code).
    """
    plain = print_module(parse_module(text))
    if "stablehlo.custom_call" in plain or "bitcast_convert" in plain:
        raise UnsupportedError("it has bit casts or foreign calls, which cannot be widened")
    return _NARROW.sub("f64", _BITS.sub(_widen_bits, plain))


def _widen_bits(constant: re.Match[str]) -> str:
    """Bits of narrow floats as those of the same f64: all elements as bytes, or words for NaN and infinities."""
    dtype = _DTYPES[constant[2]]

    def widen(word: re.Match[str]) -> str:
        raw = bytes.fromhex(word[2]) if word[1] else int(word[2], 16).to_bytes(dtype.itemsize, "little")
        wide = np.frombuffer(raw, dtype).astype(np.float64).tobytes()
        return f'"0x{wide.hex().upper()}"' if word[1] else f"0x{int.from_bytes(wide, 'little'):016X}"

    return f"dense<{_WORD.sub(widen, constant[1])}>"


# Run a program one operation at a time, as JAX does without jit: what fusion gets wrong is right here.
#
# Each operation is a module of its own, compiled once per distinct text. Loops and branches are one operation.

#: Distinct operations that are compiled for a run; each takes some hundredths of a second.
EAGER_LIMIT = 300


class OneByOne:
    """Runs programs operation by operation, keeping what it compiled for the next one."""

    def __init__(self, limit: int = EAGER_LIMIT) -> None:
        self.limit = limit
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._texts: dict[Node, tuple[str, list[Value]]] = {}

    def prepare(self, body: Block) -> None:
        """Write every operation's module. Raises UnsupportedError where there are too many, or one cannot be alone."""
        for op in body.operations[:-1]:
            self._texts[op] = _module_of(op)
        distinct = len({text for text, _ in self._texts.values()})
        if distinct > self.limit:
            raise UnsupportedError(f"{distinct} distinct operations are more than the {self.limit} compiled one by one")

    def run(self, body: Block, arguments: Sequence[Any]) -> list[Any]:
        values: dict[Value, Any] = dict(zip(body.arguments, arguments))
        uses = Counter(v for op in body.operations[:-1] for v in self._texts[op][1])
        uses.update(body.operations[-1].operands)
        for op in body.operations[:-1]:
            text, inputs = self._texts[op]
            results = self._call(text, op, inputs)(*(values[v] for v in inputs))
            values.update(zip(op.results, results))
            for value in inputs:
                uses[value] -= 1
                if not uses[value]:
                    values.pop(value, None)
        return [values[v] for v in body.operations[-1].operands]

    def _call(self, text: str, op: Node, inputs: list[Value]) -> Callable[..., Any]:
        import jax

        if text not in self._compiled:
            self._compiled[text] = jax.jit(
                flat_callable(text, [*map(struct_of, inputs)], [*map(struct_of, op.results)])
            )
        return self._compiled[text]


def _module_of(op: Node) -> tuple[str, list[Value]]:
    """One operation as a module, and the values it takes: its operands and what its bodies use from outside."""
    if op.name in ("func.call", "call") or op.handle is None or any(v.shape is None for v in op.results):
        raise UnsupportedError(f"{op.name} cannot be run alone")
    inputs = list(dict.fromkeys([*op.operands, *captured(op)]))
    return operations_module([op.handle], [v.handle for v in inputs], list(op.handle.results)), inputs


def struct_of(value: Value) -> Any:
    return array_struct(value.sizes, array_dtype(value))
