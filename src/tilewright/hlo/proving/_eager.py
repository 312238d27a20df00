"""Run a program one operation at a time, as JAX does without jit: what fusion gets wrong is right here.

Each operation is a module of its own, compiled once per distinct text. Loops and branches are one operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import UnsupportedError
from tilewright.hlo._ir import operation_module
from tilewright.hlo.graphs._graph import Block, Operation, Value, captured
from tilewright.hlo.proving._reference import own_dtype
from tilewright.hlo.running._execute import flat_callable

__all__ = ["EAGER_LIMIT", "OneByOne"]

#: Distinct operations that are compiled for a run; each takes some hundredths of a second.
EAGER_LIMIT = 300


class OneByOne:
    """Runs programs operation by operation, keeping what it compiled for the next one."""

    def __init__(self, limit: int = EAGER_LIMIT) -> None:
        self.limit = limit
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._texts: dict[Operation, tuple[str, list[Value]]] = {}

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
            found = self._call(text, op, inputs)(*(values[v] for v in inputs))
            values.update(zip(op.results, found))
            for value in inputs:
                uses[value] -= 1
                if not uses[value]:
                    values.pop(value, None)
        return [values[v] for v in body.operations[-1].operands]

    def _call(self, text: str, op: Operation, inputs: list[Value]) -> Callable[..., Any]:
        import jax

        if text not in self._compiled:
            self._compiled[text] = jax.jit(
                flat_callable(text, [_struct(v) for v in inputs], [*map(_struct, op.results)])
            )
        return self._compiled[text]


def _module_of(op: Operation) -> tuple[str, list[Value]]:
    """One operation as a module, and the values it takes: its operands and what its bodies use from outside."""
    if op.name in ("func.call", "call") or op.handle is None or any(v.shape is None for v in op.results):
        raise UnsupportedError(f"{op.name} cannot be run alone")
    inputs = list(dict.fromkeys([*op.operands, *captured(op)]))
    return operation_module(op.handle, [v.handle for v in inputs]), inputs


def _struct(value: Value) -> Any:
    import jax

    struct: Any = jax.ShapeDtypeStruct
    return struct(value.shape, own_dtype(value.dtype))
