"""What a program computes in float64, as a reference for others; and what XLA computes, whole or without jit.

XLA's own CPU backend can be wrong under jit, so a check of a rewrite compares with this too. StableHLO's interpreter
(jaxlib's ``stablehlo.eval_module``) shares nothing with it, but takes half a microsecond for every element and every
product, and ends its process where it lacks something: it is asked in a process that may die of it, and only about
programs of operations that it has and that take few steps. The others are computed by XLA in float64.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.execute import array_struct, flat_callable, run_apart
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, inputs_of, numpy_dtype, operations_in
from tilewright.hlo.ir import operations_module, parse_module, print_module
from tilewright.hlo.jaxlib_child import ask, read_arrays
from tilewright.hlo.proving.trials import in_float64

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
    | {f"chlo.{name}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erf_inv", "erfc")}
    | {f"chlo.{name}" for name in ("digamma", "lgamma", "sinh", "square", "tan")}
)
"""Operations that the interpreter has, or that become such; but no loops, and none on bits, which widening changes."""
_EXCHANGED = re.compile(r"u?i(?:1|8|16|32|64)|b?f\w+")
"""Element types of arrays that it takes and gives, floating ones widened."""
_MOST_STEPS = 1 << 19
"""Elements and products that are left to it: a quarter of a second."""
_SECONDS = 30
_STEPS_OF_MANY = 20
"""For every element that is sorted, or put into a function of CHLO."""


class Reference:
    """A program's results in float64.

    ``kind`` says whose the last ones were: ``StableHLO's interpreter``, ``XLA in float64``, or ``none: `` and why.
    """

    def __init__(self, text: str, body: Block, xla: XlaValues) -> None:
        self.text, self.body, self.xla, self.kind = text, body, xla, ""
        self._ways = {"StableHLO's interpreter": self._interpreted, "XLA in float64": self._compiled}
        self._reasons: list[str] = []

    def results(self, arguments: Sequence[Any]) -> list[Array] | None:
        """The results of ``main`` for these arguments, both widened to float64; None where nobody has them."""
        given = [in_float64(np.asarray(array)) for array in arguments]
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

    def by_xla(self, arguments: Sequence[Any]) -> list[Array] | None:
        """The same by XLA, where that can: it sums in parts, where the interpreter adds one by one and rounds more."""
        try:
            return self._compiled([in_float64(np.asarray(array)) for array in arguments])
        except UnsupportedError:
            return self.results(arguments)

    @cached_property
    def _widened(self) -> str:
        return widened(self.text)

    @cached_property
    def _types(self) -> list[list[Type]]:
        """Shapes and element types of the widened program's arguments and results."""
        ends = (self.body.arguments, self.body.operations[-1].operands)
        return [[(shape, in_float64(np.empty(0, dtype)).dtype) for shape, dtype in types_of(values)] for values in ends]

    def _interpreted(self, arguments: Sequence[Array]) -> list[Array]:
        _check_interpreted(self.body)
        return read_arrays(ask(b"v", pickle.dumps((self._widened, list(arguments))), _SECONDS), self._types[1])

    def _compiled(self, arguments: Sequence[Array]) -> list[Array]:
        inputs, outputs = self._types
        return self.xla.run_text(self._widened, inputs, outputs, arguments)


def _check_interpreted(body: Block) -> None:
    """UnsupportedError where the interpreter lacks something of a program, or would take long."""
    for value in (*body.arguments, *body.operations[-1].operands):
        if not _EXCHANGED.fullmatch(value.dtype):
            raise UnsupportedError(f"the float64 reference does not take {value.dtype}")
    steps = 0  # elements that operations read or make, as often as they take them up
    for op in operations_in(body):
        if op.name not in _INTERPRETED:
            raise UnsupportedError(f"the float64 reference does not know {op.name}")
        each = _STEPS_OF_MANY if op.name == "sort" or op.name.startswith("chlo.") else op.terms
        steps += each * max((prod(v.shape or ()) for v in (*op.operands, *op.results)), default=0)
    if steps > _MOST_STEPS:
        raise UnsupportedError(f"{steps:,} steps are too many for StableHLO's interpreter")


# A text with every floating type of it widened.

_NARROW = re.compile(r"(?<=[x<(])(?:f32|bf16|f16|f[468]E\w+)(?=>)")
_BITS = re.compile(r"dense<([^<>]*0x[^<>]*)>(?= : tensor<(?:\d+x)*(?:complex<)?(f32|bf16|f16|f[468]E\w+)>)")
_WORD = re.compile(r'("?)0x([0-9A-F]+)\1')


def widened(text: str) -> str:
    """A StableHLO text with every narrower float widened to f64, constants that are written as bits included.

    Raises UnsupportedError where a text cannot be widened (bit casts, calls of foreign code).
    """
    plain = print_module(parse_module(text))
    if "stablehlo.custom_call" in plain or "bitcast_convert" in plain:
        raise UnsupportedError("it has bit casts or foreign calls, which cannot be widened")
    return _NARROW.sub("f64", _BITS.sub(_widen_bits, plain))


def _widen_bits(constant: re.Match[str]) -> str:
    """Bits of narrow floats as those of the same f64: all elements as bytes, or words for NaN and infinities."""
    dtype = numpy_dtype(constant[2])

    def widen(word: re.Match[str]) -> str:
        raw = bytes.fromhex(word[2]) if word[1] else int(word[2], 16).to_bytes(dtype.itemsize, "little")
        wide = np.frombuffer(raw, dtype).astype(np.float64).tobytes()
        return f'"0x{wide.hex().upper()}"' if word[1] else f"0x{int.from_bytes(wide, 'little'):016X}"

    return f"dense<{_WORD.sub(widen, constant[1])}>"


# What XLA computes: of a whole text, or one operation at a time as JAX does without jit: then what fusion gets wrong is
# right. Loops and branches are one operation.

Type = tuple[Sequence[int], np.dtype[Any]]
_MOST_ALONE = 300
"""Distinct operations that are compiled one by one; each takes some hundredths of a second."""


def types_of(values: Sequence[Value]) -> list[Type]:
    return [(v.sizes, array_dtype(v)) for v in values]


class XlaValues:
    """What XLA computes for parts of a program; what is alike is compiled once.

    ``apart``: in a process of its own, as for every program that is read from a text.
    """

    def __init__(self, apart: bool = False) -> None:
        self.apart = apart
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._alone: dict[Node, tuple[str, list[Value]]] = {}

    def of(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], arrays: Sequence[Array]
    ) -> list[Array]:
        """The values of ``outputs``; ``nodes`` compute them of ``inputs``, which have the values ``arrays``."""
        return self.run_text(self.text(nodes, inputs, outputs), types_of(inputs), types_of(outputs), arrays)

    def text(self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
        """The StableHLO of a module whose main is these operations."""
        return operations_module(*([one.handle for one in each] for each in (nodes, inputs, outputs)))

    def alone(self, node: Node) -> tuple[str, list[Value]]:
        """The module of one operation, and the values it takes; UnsupportedError for what cannot be run alone."""
        if node not in self._alone:
            if node.name in ("func.call", "call") or node.handle is None or any(v.shape is None for v in node.results):
                raise UnsupportedError(f"{node.name} cannot be run alone")
            taken = inputs_of([node])
            self._alone[node] = self.text([node], taken, node.results), taken
        return self._alone[node]

    def prepare(self, body: Block, most: int = _MOST_ALONE) -> None:
        """Write every operation's module. Raises UnsupportedError where there are too many, or one cannot be alone."""
        distinct = len({self.alone(node)[0] for node in body.operations[:-1]})
        if distinct > most:
            raise UnsupportedError(f"{distinct} distinct operations are more than the {most} compiled one by one")

    def run(self, body: Block, arguments: Sequence[Array]) -> list[Array]:
        """The results of a function body, one operation at a time; what is used no more is given up on the way."""
        *nodes, last = body.operations
        values = dict(zip(body.arguments, arguments))
        uses = Counter(v for node in nodes for v in self.alone(node)[1])
        uses.update(last.operands)
        for node in nodes:
            taken = self.alone(node)[1]
            values |= self.each([node], taken, [values[v] for v in taken])
            for value in taken:
                uses[value] -= 1
                if not uses[value]:
                    del values[value]
        return [values[v] for v in last.operands]

    def each(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        arrays: Sequence[Array],
        others: Mapping[str, Callable[..., Array]] | None = None,
    ) -> dict[Value, Array]:
        """All that ``nodes`` make, and their inputs: every operation compiled alone, so that each rounds as it says.

        ``others``: by name of an operation, what computes it where XLA does not.
        """
        values = dict(zip(inputs, arrays, strict=True))
        for node in nodes:
            try:
                text, taken = self.alone(node)
                results = self.run_text(text, types_of(taken), types_of(node.results), [values[v] for v in taken])
            except UnsupportedError:
                if node.name not in (others or {}):
                    raise
                results = [(others or {})[node.name](node, *(values[v] for v in node.operands))]
            values.update(zip(node.results, results, strict=True))
        return values

    def run_text(
        self, text: str, inputs: Sequence[Type], outputs: Sequence[Type], arrays: Sequence[Array]
    ) -> list[Array]:
        """The results of a module's main, which takes and gives arrays of these shapes and element types.

        By XLA of the host, whatever else jax has: a GPU multiplies float32 in fewer bits unless it is told not to.
        """
        if self.apart:
            return run_apart(text, inputs, outputs, arrays)
        import jax

        if text not in self._compiled:
            taken, made = ([array_struct(*kind) for kind in kinds] for kinds in (inputs, outputs))
            self._compiled[text] = jax.jit(flat_callable(text, taken, made, "cpu"))
        try:
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                return [np.asarray(out) for out in self._compiled[text](*arrays)]
        except jax.errors.JaxRuntimeError as error:
            raise UnsupportedError(f"XLA does not compute it on this host: {str(error).splitlines()[0]}") from None
