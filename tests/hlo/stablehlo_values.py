"""Helpers of the rewrite tests: write small modules, evaluate their text with numpy, count what is left in it."""

from __future__ import annotations

import re

import jax
import numpy as np

from tests.hlo.numpy_values import evaluate
from tilewright.hlo import DEFAULT_PIPELINE, parse_pipeline, run_pipeline
from tilewright.hlo.execute import flat_callable
from tilewright.hlo.graphs.graph import array_dtype
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module


def tensor(shape, dtype="f32"):
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def module(arguments, body, results):
    """A module whose main takes ``arguments`` (name -> type) and ends with ``results`` (value -> type)."""
    given = ", ".join(f"%{name}: {kind}" for name, kind in arguments.items())
    kinds = ", ".join(results.values())
    return (
        f"module {{\nfunc.func public @main({given}) -> ({kinds}) {{\n{body}\n"
        f"return {', '.join('%' + name for name in results)} : {kinds}\n}}\n}}"
    )


def reduce_line(result, operand, kind, init, monoid, dims, out):
    scalar = tensor((), re.fullmatch(r"tensor<(?:[\d?]+x)*(.*)>", kind)[1])
    return (
        f"%{result} = stablehlo.reduce(%{operand} init: %{init}) applies stablehlo.{monoid} "
        f"across dimensions = {list(dims)} : ({kind}, {scalar}) -> {out}"
    )


def values(text, *arrays):
    """main's results by the numpy reference."""
    return evaluate(next(b for b in read_functions(parse_module(text)) if b.name == "main"), arrays)


def rewritten(text, passes=DEFAULT_PIPELINE):
    return run_pipeline(text, parse_pipeline(passes))[0]


def big_reshapes(text, elements):
    """How many reshapes and transposes of at least ``elements`` elements a text has."""
    count = 0
    for shape in re.findall(r"stablehlo\.(?:reshape|transpose).*-> tensor<([\dx]*)x?[a-z]", text):
        size = 1
        for n in filter(None, shape.split("x")):
            size *= int(n)
        count += size >= elements
    return count


def executed(text, *arrays):
    """main's results by XLA, under jit, with the types the text names."""
    return executed_together([text], *arrays)[0]


def executed_together(texts, *arrays):
    """The same of several texts with the same arguments and results, compiled as one program: each costs less."""
    body = next(b for b in read_functions(parse_module(texts[0])) if b.name == "main")
    inputs, outputs = (
        [jax.ShapeDtypeStruct(v.shape, array_dtype(v)) for v in vs]
        for vs in (body.arguments, body.operations[-1].operands)
    )
    with jax.enable_x64(True):
        given = [np.asarray(a).astype(struct.dtype) for a, struct in zip(arrays, inputs)]
        calls = [flat_callable(text, inputs, outputs) for text in texts]
        results = jax.jit(lambda *arguments: [call(*arguments) for call in calls])(*given)
        return [[np.asarray(out) for out in each] for each in results]
