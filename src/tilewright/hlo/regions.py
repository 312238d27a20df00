"""Programs for other rooms: one list of operations, and XLA's own values of any part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.apart import run_apart
from tilewright.hlo.execute import array_struct, flat_callable
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, captured
from tilewright.hlo.ir import operations_module
from tilewright.hlo.program import Program
from tilewright.hlo.proving.trial_inputs import trial_inputs
from tilewright.hlo.proving.verify import inlined_functions

Array = np.ndarray[Any, Any]
Type = tuple[Sequence[int], np.dtype[Any]]


def operations_of(program: Program) -> Block:
    """The program's main function as one list of operations, calls put in place; the last one names the results."""
    if program.kind != "stablehlo":
        raise UnsupportedError("a program as XLA compiled it", how="give StableHLO, or the function it was made from")
    bodies = inlined_functions(program)
    return bodies["main"] if "main" in bodies else next(iter(bodies.values()))


def inputs_of(nodes: Sequence[Node]) -> list[Value]:
    """What these operations take from others, in the order of first use."""
    made = {id(v) for node in nodes for v in node.results}
    taken = [v for node in nodes for v in (*node.operands, *captured(node)) if id(v) not in made]
    return list(dict.fromkeys(taken))


def sample_arrays(program: Program) -> list[Array]:
    """Arrays to run a program with: those its file has as an example, else random ones."""
    signature = program.signature
    if signature is not None and signature.example is not None:
        given = signature.flat(*signature.example)
        if all(hasattr(array, "__array__") or np.isscalar(array) for array in given):
            return [np.asarray(array, signature.inputs[i].dtype) for array, i in zip(given, signature.kept)]
    return [np.asarray(array) for array in trial_inputs(operations_of(program).arguments, "normal", 0)]


class XlaValues:
    """What XLA computes for parts of a program; what is alike is compiled once.

    ``apart``: in a process of its own, as for every program that is read from a text.
    """

    def __init__(self, apart: bool = False) -> None:
        self.apart = apart
        self._compiled: dict[str, Callable[..., Any]] = {}

    def of(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], arrays: Sequence[Array]
    ) -> list[Array]:
        """The values of ``outputs``; ``nodes`` compute them of ``inputs``, which have the values ``arrays``."""
        taken, made = ([(v.sizes, array_dtype(v)) for v in values] for values in (inputs, outputs))
        return self.run_text(self.text(nodes, inputs, outputs), taken, made, arrays)

    def text(self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
        """The StableHLO of a module whose main is these operations."""
        return operations_module(
            [node.handle for node in nodes], [v.handle for v in inputs], [v.handle for v in outputs]
        )

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
            taken = inputs_of([node])
            try:
                results = self.of([node], taken, node.results, [values[v] for v in taken])
            except UnsupportedError:
                if node.name not in (others or {}):
                    raise
                results = [(others or {})[node.name](node, *(values[v] for v in node.operands))]
            values.update(zip(node.results, results, strict=True))
        return values

    def run_text(
        self, text: str, inputs: Sequence[Type], outputs: Sequence[Type], arrays: Sequence[Array]
    ) -> list[Array]:
        """The results of a module's main, which takes and gives arrays of these shapes and element types."""
        if self.apart:
            return run_apart(text, inputs, outputs, arrays)
        import jax

        if text not in self._compiled:
            taken, made = ([array_struct(*kind) for kind in kinds] for kinds in (inputs, outputs))
            self._compiled[text] = jax.jit(flat_callable(text, taken, made))
        try:
            return [np.asarray(out) for out in self._compiled[text](*arrays)]
        except jax.errors.JaxRuntimeError as error:
            raise UnsupportedError(f"XLA does not compute it on this host: {str(error).splitlines()[0]}") from None
