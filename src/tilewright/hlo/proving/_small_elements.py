"""Are small elements still right? The largest element of an output sets no scale here: each is its own measure.

A column a million times smaller than its neighbour may be wrong in every digit and still differ from the original by
less than the rounding of the whole. Yet one small element says nothing: a sum that cancels is wrong in both programs,
and which of the two is luckier is chance. So elements are asked in crowds, and the other way round as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.hlo.proving._agreement import is_integral, tolerance

__all__ = ["nudged", "spoiled"]

Array = np.ndarray[Any, Any]

#: A crowd is at least so many elements on which the original is right.
CROWD = 16
#: Far worse: so many times the tolerance, in units of the element itself.
FAR = 16.0
#: Of the elements known, the original must be right on this share, else it is luck.
MOSTLY = 0.75
#: The share that may be far worse: of the whole output, and of one row, column or other slice of it.
SHARES = {"whole": 1 / 16, "slice": 1 / 2}


def nudged(arguments: Sequence[Array], seed: int) -> list[Array]:
    """Floating arguments one unit in the last place up or down at random: what no result may depend on much."""
    rng = np.random.default_rng(seed)
    finfo: Any = ml_dtypes.finfo
    found = []
    with np.errstate(all="ignore"):
        for each in map(np.asarray, arguments):
            if is_integral(each.dtype):
                found.append(each)
                continue
            wide = each.astype(np.complex128 if each.dtype.kind == "c" else np.float64)
            step = float(finfo(each.real.dtype).eps) * rng.choice([-1.0, 1.0], each.shape)
            found.append(np.asarray(wide * (1 + step)).astype(each.dtype))
    return found


def spoiled(before: Array, after: Array, reference: Array, moved: Callable[[], Sequence[Array]]) -> str:
    """Why ``after`` loses elements that ``before`` has right by their own measure, "" if it does not.

    An element is right within :func:`tolerance` of its reference, relative to itself, and far worse beyond
    :data:`FAR` times that. The whole output and every slice of it are asked: of at least :data:`CROWD` elements the
    original has right (and :data:`MOSTLY` all that are known), no more than the share in :data:`SHARES` may be far
    worse in the result, unless a quarter as many are far worse in the original where the result is right: then both
    are rounding. ``moved`` gives the reference for :func:`nudged` arguments: where that alone makes an element wrong,
    terms have cancelled, and nothing is asked of it. Integers, zeros, what is not finite or not normal, and float64,
    whose reference is no better, are left to the other test.
    """
    allowed = tolerance(before.dtype)
    if before.size < CROWD or is_integral(before.dtype) or before.dtype in (np.float64, np.complex128):
        return ""
    known, right, worse = _sides(before, after, reference, allowed)
    if not (right[0] & worse[1]).any():
        return ""
    for other in moved():
        with np.errstate(invalid="ignore", over="ignore"):
            known = known & (np.abs(other - reference) <= allowed * np.abs(reference))
    right = (right[0] & known, right[1] & known)
    lost, gained = right[0] & worse[1], right[1] & worse[0]
    for axis in (*range(before.ndim), -1):
        share = SHARES["whole" if axis < 0 else "slice"]
        others = tuple(k for k in range(before.ndim) if k != axis)
        many, had, asked, mirrored = (np.atleast_1d(m.sum(others)) for m in (lost, right[0], known, gained))
        failed = (many > share * had) & (had >= np.maximum(CROWD, MOSTLY * asked)) & (many > 4 * mirrored)
        if failed.any():
            index = int(np.argmax(failed))
            view = (slice(None),) * axis + (index,) if axis >= 0 else ()
            return _told(axis, index, lost, right[0], view, (before, after, reference))
    return ""


def _sides(
    before: Array, after: Array, reference: Array, allowed: float
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    """Elements that can be asked; where each program is right; where each is far worse."""
    finfo: Any = ml_dtypes.finfo
    part = before.real.dtype
    least = float(finfo(part).smallest_normal) / float(finfo(part).eps)
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    x, y, r = (each.astype(wide) for each in (before, after, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        known = np.isfinite(r) & np.isfinite(x) & np.isfinite(y) & (np.abs(r) >= least)
        size = np.where(known, np.abs(r), 1.0)
        errors = [np.where(known, np.abs(each - r), 0.0) / size for each in (x, y)]
    right = tuple(known & (error <= allowed) for error in errors)
    worse = tuple(known & (error > FAR * allowed) for error in errors)
    return known, (right[0], right[1]), (worse[0], worse[1])


def _told(
    axis: int, index: int, lost: Array, right: Array, view: tuple[Any, ...], sides: tuple[Array, Array, Array]
) -> str:
    inside = np.zeros(lost.shape, bool)
    inside[view] = lost[view]
    at = tuple(int(k) for k in np.argwhere(inside)[0])
    where = f" with index {index} in dim {axis}" if axis >= 0 else ""
    before, after, reference = (each[at] for each in sides)
    return (
        f"of {right[view].sum()} elements{where} that the original has right, {lost[view].sum()} are far worse, "
        f"measured by themselves: at {at} original {before}, result {after}, float64 reference {reference}"
    )
