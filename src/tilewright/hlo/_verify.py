"""Prove a rewrite on values: both programs on the same random inputs, and against a float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
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
    ``ok``                integers agree; floats agree to rounding, and the error has not grown beyond it
    ====================  ==========================================================================================
    """

    max_difference: float
    bit_equal: bool
    error_before: float | None
    error_after: float | None
    reference: str
    ok: bool


def verify(
    original: Program, rewritten: Program, arguments: Sequence[Any] | None = None, seed: int = 0
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
    results = [
        [np.asarray(out) for out in jax.jit(flat_callable(p.text, inputs, outputs))(*given)]
        for p in (original, rewritten)
    ]
    reference, kind = _reference(original.text, before, given, outputs)
    return _compare(results[0], results[1], reference, kind)


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
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -4, 5, value.shape).astype(dtype)
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


def _compare(before: list[Any], after: list[Any], reference: list[Any] | None, kind: str) -> Verification:
    difference = max((_distance(a, b) for a, b in zip(before, after)), default=0.0)
    exact = all(_same(a, b) for a, b in zip(before, after))
    if reference is None:
        sound = all(_distance(a, b) <= _tolerance(a) for a, b in zip(before, after))
        return Verification(difference, exact, None, None, kind, exact or sound)
    errors = [[_distance(r, out) for r, out in zip(reference, outs)] for outs in (before, after)]
    sound = all(new <= max(2 * old, _tolerance(a)) for old, new, a in zip(*errors, before))
    return Verification(
        difference, exact, max(errors[0], default=0.0), max(errors[1], default=0.0), kind, exact or sound
    )


def _same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and (a.tobytes() == b.tobytes() or _distance(a, b) == 0.0)


def _distance(a: Any, b: Any) -> float:
    """Largest difference in units of the largest finite element of ``a``; infinite where only one is not a number."""
    if a.size == 0:
        return 0.0
    wide: Any = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    if equal.all():
        return 0.0
    if not (np.isfinite(x[~equal]).all() and np.isfinite(y[~equal]).all()):
        return float("inf")
    scale = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    return float(np.abs(x[~equal] - y[~equal]).max() / max(scale, np.finfo(np.float64).tiny))


def _tolerance(a: Any) -> float:
    """What rounding may do to sums of many terms: 64 units in the last place (8 of narrow floats); 0 for integers."""
    if a.dtype.kind in "biu":
        return 0.0
    finfo: Any = ml_dtypes.finfo
    eps = float(finfo(a.dtype).eps)
    return (64.0 if eps < 1e-5 else 8.0) * eps
