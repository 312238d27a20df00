"""Prove a rewrite on values: both programs on the same random inputs, and against a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo._agreement import differing, distance, is_integral, missed, same
from tilewright.hlo._execute import flat_callable
from tilewright.hlo._graph import Block, Value
from tilewright.hlo._ir import parse_module
from tilewright.hlo._program import Program
from tilewright.hlo._read import read_functions
from tilewright.hlo._reference import evaluate, own_dtype
from tilewright.hlo._widen import run_widened
from tilewright.hlo.rewrites.inline import Inline

__all__ = ["Verification", "verify"]


@dataclass(frozen=True)
class Verification:
    """How far two programs are apart on the same inputs.

    ====================  ==========================================================================================
    ``max_difference``    largest difference of two elements, in units of the largest element of that output
    ``bit_equal``         every output is equal bit for bit (NaN equals NaN)
    ``error_before``      the original's largest distance from the float64 reference, in the same units, or None
    ``error_after``       the rewritten program's
    ``reference``         ``numpy``, ``XLA in float64``, or ``none: `` and why
    ``ok``                every element agrees to rounding (integers exactly), is right by the reference, or has an
                          error that is rounding in both programs and at most twice the original's
    ``reason``            why it is not ok: the output, and an element that is wrong; "" if it is
    ====================  ==========================================================================================
    """

    max_difference: float
    bit_equal: bool
    error_before: float | None
    error_after: float | None
    reference: str
    ok: bool
    reason: str = ""


def verify(
    original: Program,
    rewritten: Program,
    arguments: Sequence[Any] | None = None,
    seed: int = 0,
    bit_exact: bool = False,
) -> Verification:
    """Run both StableHLO programs on the same arguments (default: random ones) under jit and compare.

    ``arguments`` are the flat arrays the program's ``main`` takes. The two must take and give the same types. Both
    are measured against the original in float64: evaluated by numpy where it knows every operation (elementwise ones,
    reductions, data movement), as XLA's own CPU backend may be wrong under jit; else by XLA.
    """
    import jax

    before, after = _main(original), _main(rewritten)
    types = [[repr(v) for v in (*body.arguments, *body.operations[-1].operands)] for body in (before, after)]
    if types[0] != types[1]:
        raise UsageError("the two programs take or give different types")
    given = [_random(v, np.random.default_rng((seed, k))) for k, v in enumerate(before.arguments)]
    if arguments is not None:
        given = [np.asarray(a) for a in arguments]
    inputs, outputs = ([_struct(v) for v in vs] for vs in (before.arguments, before.operations[-1].operands))
    with (
        jax.ensure_compile_time_eval(),
        jax.enable_x64(True),
    ):  # the programs name their types; this only lets them have 64 bits
        results = [
            [np.asarray(out) for out in jax.jit(flat_callable(p.text, inputs, outputs))(*given)]
            for p in (original, rewritten)
        ]
    reference, kind = _reference(original.text, before, given, outputs)
    return _compare(results[0], results[1], reference, kind, _depth(before))


def _main(program: Program) -> Block:
    module = parse_module(program.text)
    Inline().apply_module(module)
    bodies = {body.name: body for body in read_functions(module)}
    if "main" not in bodies:
        raise UsageError("the module has no function called main")
    values = (*bodies["main"].arguments, *bodies["main"].operations[-1].operands)
    if any(v.shape is None for v in values):
        raise UnsupportedError("main takes or gives something that is not an array of known shape")
    return bodies["main"]


def _struct(value: Value) -> Any:
    import jax

    struct: Any = jax.ShapeDtypeStruct
    return struct(value.shape, own_dtype(value.dtype))


def _random(value: Value, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random elements: normal floats, small integers of both signs, coin tosses."""
    dtype = own_dtype(value.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, value.shape).astype(bool)
    if is_integral(dtype):
        return rng.integers(0 if dtype.name.startswith("u") else -4, 5, value.shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=value.shape) + 1j * rng.normal(size=value.shape)).astype(dtype)
    return rng.normal(size=value.shape).astype(dtype)


def _reference(
    text: str, body: Block, given: Sequence[Any], outputs: Sequence[Any]
) -> tuple[list[np.ndarray[Any, Any]] | None, str]:
    """The original's results in float64, and who computed them."""
    try:
        return evaluate(body, given), "numpy"
    except UnsupportedError as error:
        unknown = str(error)
    try:
        return run_widened(text, given, outputs), "XLA in float64"
    except TilewrightError as error:
        return None, f"none: {unknown}; {error}"


def _compare(before: list[Any], after: list[Any], reference: list[Any] | None, kind: str, depth: int) -> Verification:
    difference = max((distance(a, b) for a, b in zip(before, after)), default=0.0)
    exact = all(same(a, b) for a, b in zip(before, after))
    reason = "" if exact else _reason(before, after, reference, depth)
    errors: list[float | None] = [None, None]
    if reference is not None:
        errors = [max(map(distance, reference, outs), default=0.0) for outs in (before, after)]
    return Verification(difference, exact, errors[0], errors[1], kind, not reason, reason)


def _reason(before: list[Any], after: list[Any], reference: list[Any] | None, depth: int) -> str:
    """Why the first output that may not stand may not, "" if all may."""
    for index, (a, b) in enumerate(zip(before, after)):
        if reference is not None:
            found = missed(a, b, reference[index], depth)
        else:
            count = int(differing(a, b).sum())
            found = f"{count} of {a.size} elements differ beyond rounding, and there is no reference" if count else ""
        if found:
            return f"output {index}: {found}"
    return ""


def _depth(body: Block) -> int:
    """Operations on the longest way through a body, nested bodies counted once."""
    depth: dict[Value, int] = {}
    deepest = 1
    for op in body.operations:
        inside = max(map(_depth, op.blocks), default=1)
        here = inside + max((depth.get(v, 0) for v in op.operands), default=0)
        depth.update(dict.fromkeys(op.results, here))
        deepest = max(deepest, here)
    return deepest
