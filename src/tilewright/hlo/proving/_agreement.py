"""When do two results of one program count as the same? Element by element, never by an error that is large anyway."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "ROUNDING_LIMIT",
    "differing",
    "distance",
    "identical",
    "is_integral",
    "loses_nan",
    "missed",
    "tolerance",
    "worst",
    "zeros_differ",
]

Array = np.ndarray[Any, Any]

#: Beyond this share of the largest element an error is not put down to rounding, however deep the program.
ROUNDING_LIMIT = 0.1


def is_integral(dtype: np.dtype[Any]) -> bool:
    """Whether elements are integers or booleans, int4 and its like (which numpy only knows as bytes) included."""
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))


def tolerance(dtype: np.dtype[Any]) -> float:
    """What rounding may do to sums of many terms: 64 units in the last place; 0 for integers.

    8 units of narrow floats, but no more than a tenth, or one unit where that is more: 8 units of a float of 8 bits are
    as large as the elements themselves, and everything would agree.
    """
    if is_integral(dtype):
        return 0.0
    finfo: Any = ml_dtypes.finfo
    eps = float(finfo(dtype).eps)
    return 64.0 * eps if eps < 1e-5 else min(8.0 * eps, max(eps, ROUNDING_LIMIT))


def identical(a: Array, b: Array) -> bool:
    """Equal bit for bit, but for what XLA itself leaves open: any NaN equals any NaN, and the two zeros are equal."""
    return a.dtype == b.dtype and a.shape == b.shape and (a.tobytes() == b.tobytes() or bool(_pair(a, b)[2].all()))


def zeros_differ(a: Array, b: Array) -> bool:
    """Whether a zero has another sign in the other: XLA's maximum of the two zeros is either, in jit as it likes."""
    x, y, _ = _pair(a, b)
    return any(
        bool(((p == 0) & (q == 0) & (np.signbit(p) != np.signbit(q))).any())
        for p, q in ((x.real, y.real), (x.imag, y.imag))
    )


def loses_nan(before: Array, reference: Array) -> Array:
    """Where the reference is not a number and the program gives one."""
    x, r, _ = _pair(before, reference)
    return np.asarray(np.isnan(r) & ~np.isnan(x))


def worst(a: Array, b: Array) -> tuple[int, ...]:
    """The index of the elements furthest apart: one that only one side has as a number, else the largest distance."""
    x, y, equal = _pair(a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(equal, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    return tuple(int(k) for k in np.unravel_index(int(np.argmax(apart)), a.shape))


def distance(a: Array, b: Array) -> float:
    """Largest difference in units of the largest finite element of ``a``; infinite where only one is not a number."""
    x, y, equal = _pair(a, b)
    if equal.all():
        return 0.0
    if not (np.isfinite(x[~equal]).all() and np.isfinite(y[~equal]).all()):
        return float("inf")
    apart = float(np.abs(x[~equal] - y[~equal]).max()) / _scale(x)
    return apart or np.finfo(np.float64).tiny  # large integers that only float64 cannot tell apart


def differing(before: Array, after: Array) -> Array:
    """Where two results are further apart than rounding goes; NaN agrees with NaN, infinity with itself alone."""
    x, y, equal = _pair(before, after)
    allowed = tolerance(before.dtype)
    if not allowed:
        return np.asarray(~equal)
    with np.errstate(invalid="ignore"):
        close = np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) <= allowed * _scale(x))
    return np.asarray(~(equal | close))


def missed(before: Array, after: Array, reference: Array, depth: int) -> str:
    """Why ``after`` cannot stand for ``before``, "" if it can.

    An element may stand if the two programs agree on it to rounding, if the result is right (it agrees with the
    reference to rounding), or if the original's own error there is rounding (of ``depth`` operations in a row, and
    never more than :data:`ROUNDING_LIMIT`) and the result's is at most twice as large. An original that is far from
    the reference thus excuses nothing; where it overflows, the result must overflow likewise or be right.
    """
    apart = differing(before, after)
    if not apart.any():
        return ""
    x, r, _ = _pair(before[apart], reference[apart])
    y, _, right = _pair(after[apart], reference[apart])
    whole, exact, _ = _pair(before, reference)
    known = exact[np.isfinite(whole)]  # what overflows must not set the scale for the rest
    allowed, scale = tolerance(before.dtype), _scale(known)
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = np.abs(x - r), np.abs(y - r)
        if allowed:
            sound = np.isfinite(x) & np.isfinite(r)
            near = min(allowed * depth, max(allowed, ROUNDING_LIMIT)) * scale
            right = right | (np.isfinite(r) & (new <= allowed * np.where(sound, scale, np.abs(r))))
            right = right | (sound & (old <= near) & (new <= 2 * old))
    if right.all():
        return ""
    first = int(np.flatnonzero(~right)[0])
    at = tuple(int(k) for k in np.argwhere(apart)[first])
    place = f"at {at} " if at else ""
    told = f"original {before[at]}, result {after[at]}, float64 reference {reference[at]}"
    return f"{(~right).sum()} of {right.size or 1} elements that differ are wrong: {place}{told}"


def _pair(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Both in float64 or complex128, and where they are equal (integers are compared as they are)."""
    wide: Any = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    if a.dtype == b.dtype and is_integral(a.dtype):
        return x, y, np.asarray(a == b)
    return x, y, np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _scale(x: Array) -> float:
    largest = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
    return max(largest, float(np.finfo(np.float64).tiny))
