"""Run a program one operation at a time, as JAX does without jit: what fusion gets wrong is right here.

Each operation is a module of its own, compiled once per distinct text. Loops and branches are one operation.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.execute import array_struct, flat_callable
from tilewright.hlo.graphs.graph import Block, Node, Value, captured
from tilewright.hlo.ir import operation_module, parse_module, print_module
from tilewright.hlo.proving.agreement import is_integral
from tilewright.hlo.proving.reference import own_dtype

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
        """The results of a prepared function body."""
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
    return operation_module(op.handle, [v.handle for v in inputs]), inputs


def struct_of(value: Value) -> Any:
    """The ``jax.ShapeDtypeStruct`` of an array of known shape."""
    return array_struct(value.sizes, own_dtype(value.dtype))


# A StableHLO program in float64: every floating type of its text widened, for a reference by XLA itself.

Array = np.ndarray[Any, Any]


_BITS = re.compile(r"dense<0x([0-9A-F]+)> : (tensor<(?:\d+x)*)(f32|bf16|f16)>")
_BLOB = re.compile(r'dense<"0x[0-9A-F]+"> : tensor<(?:\d+x)*(?:complex<)?b?f\d+')
_NARROW = re.compile(r"(?<=[x<(])(?:f32|bf16|f16)(?=>)")


def widened(text: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[Sequence[Any]], list[Array]]:
    """The program with f32, f16 and bf16 widened to f64 throughout, as a function of its arguments as they are.

    Call it where 64-bit types are enabled. Raises UnsupportedError where a text cannot be widened (constants stored as
    raw bytes, calls of foreign code).
    """
    import jax

    plain = print_module(parse_module(text))
    if _BLOB.search(plain) or "stablehlo.custom_call" in plain or "bitcast_convert" in plain:
        raise UnsupportedError("it has raw constants, bit casts or foreign calls, which cannot be widened")
    wide = _NARROW.sub("f64", _BITS.sub(_widen_bits, plain))
    wide_inputs, wide_outputs = (
        [array_struct(struct.shape, _wide(np.empty(0, struct.dtype)).dtype) for struct in structs]
        for structs in (inputs, outputs)
    )
    jitted = jax.jit(flat_callable(wide, wide_inputs, wide_outputs))
    return lambda arrays: [np.asarray(out) for out in jitted(*(_wide(np.asarray(a)) for a in arrays))]


def _wide(array: Array) -> Array:
    if is_integral(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _widen_bits(constant: re.Match[str]) -> str:
    """A constant written as the bits of a narrow float, as the bits of the same f64 (NaN and infinities mostly)."""
    word = int(constant[1], 16)
    if constant[3] == "f16":
        value = float(np.uint16(word).view(np.float16))
    else:
        value = struct.unpack(">f", struct.pack(">I", word << 16 if constant[3] == "bf16" else word))[0]
    bits = struct.unpack(">Q", struct.pack(">d", value))[0]
    return f"dense<0x{bits:016X}> : {constant[2]}f64>"
