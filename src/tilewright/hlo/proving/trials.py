"""What programs are tried on, and when two results count as the same.

Inputs are ordinary ones, and the edges where rewrites go wrong. Results are compared element by element, never by an
error that is large anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, captured, operations_in

Array = np.ndarray[Any, Any]

#: Beyond this share of the largest element an error is not put down to rounding, however deep the program.
ROUNDING_LIMIT = 0.1


def is_integral(dtype: np.dtype[Any]) -> bool:
    """Whether elements are integers or booleans, int4 and its like (which numpy only knows as bytes) included."""
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))


def in_float64(array: Array) -> Array:
    """Floating elements as float64, complex ones as complex128; integers as they are."""
    if is_integral(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def finfo(dtype: np.dtype[Any]) -> Any:
    limits: Any = ml_dtypes.finfo
    return limits(dtype)


def unit(dtype: np.dtype[Any]) -> float:
    """One unit in the last place of 1; 0 for integers."""
    return 0.0 if is_integral(dtype) else float(finfo(dtype).eps)


def tolerance(dtype: np.dtype[Any]) -> float:
    """What rounding may do to sums of many terms: 64 units in the last place; 0 for integers.

    8 units of narrow floats, but no more than a tenth, or one unit where that is more: 8 units of a float of 8 bits are
    as large as the elements themselves, and everything would agree.
    """
    eps = unit(dtype)
    return 64.0 * eps if eps < 1e-5 else min(8.0 * eps, max(eps, ROUNDING_LIMIT))


def allowance(before: Array, reference: Array | None, inner: np.dtype[Any] | None) -> float:
    """What rounding may do to an output on whose way values are rounded to ``inner``: :func:`tolerance`, or more.

    Where ``inner`` is coarser than the output itself, its rounding is what the original has: twice the original's own
    largest distance from the reference, but no less than one unit of ``inner`` (the original may be lucky) and no more
    than its tolerance (the original may be far off); that tolerance where there is no reference.
    """
    own = tolerance(before.dtype)
    if not own or inner is None or unit(inner) <= unit(before.dtype):
        return own
    most = tolerance(inner)
    if reference is None:
        return most
    x, r, _ = _pair(before, reference)
    known = np.isfinite(x) & np.isfinite(r)
    error = float(np.abs(x - r)[known].max(initial=0.0)) / _scale(r[known])
    return max(own, min(most, max(unit(inner), 2 * error)))


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


def differing(before: Array, after: Array, allowed: float) -> Array:
    """Where two results are further apart than ``allowed``; NaN agrees with NaN, infinity with itself alone."""
    x, y, equal = _pair(before, after)
    if not allowed:
        return np.asarray(~equal)
    with np.errstate(invalid="ignore"):
        close = np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) <= allowed * _scale(x))
    return np.asarray(~(equal | close))


def missed(
    before: Array, after: Array, reference: Array, depth: int, allowed: float, moved: Callable[[], Sequence[Array]]
) -> str:
    """Why ``after`` cannot stand for ``before``, "" if it can.

    An element may stand if the two programs agree on it to rounding (``allowed``, see :func:`allowance`), if the result
    is right (it agrees with the reference to rounding), or if the original's own error there is rounding (of ``depth``
    operations in a row, and never more than :data:`ROUNDING_LIMIT`) and the result's is at most twice as large. An
    original that is far from the reference thus excuses nothing; where it overflows, the result must overflow likewise
    or be right. In a deep program in float32 the error at one place is chance: a result whose errors, sorted, are each
    at most twice the original's of that rank may stand, too, where the original's largest is rounding: that of so many
    operations, or :data:`FAR` times what :func:`nudged` arguments change, for which ``moved`` gives the reference.
    """
    apart = differing(before, after, allowed)
    if not apart.any():
        return ""
    x, r, _ = _pair(before[apart], reference[apart])
    y, _, right = _pair(after[apart], reference[apart])
    whole, exact, _ = _pair(before, reference)
    known = exact[np.isfinite(whole)]  # what overflows must not set the scale for the rest
    scale = _scale(known)
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = np.abs(x - r), np.abs(y - r)
        if allowed:
            sound = np.isfinite(x) & np.isfinite(r)
            near = min(allowed * depth, max(allowed, ROUNDING_LIMIT)) * scale
            right = right | (np.isfinite(r) & (new <= allowed * np.where(sound, scale, np.abs(r))))
            right = right | (sound & (old <= near) & (new <= 2 * old))
            if allowed < 1e-5 and not right.all() and np.isfinite(whole).all() and np.isfinite(exact).all():
                olds, news = (np.sort(np.abs(each - exact), None) for each in (whole, _pair(after, reference)[0]))
                if (news <= 2 * olds + allowed * scale).all():
                    shaken = () if olds[-1] <= near else moved()
                    most = max((FAR * np.abs(other - exact).max() for other in shaken), default=near)
                    right = right | bool(olds[-1] <= min(most, ROUNDING_LIMIT * scale))
    if right.all():
        return ""
    first = int(np.flatnonzero(~right)[0])
    at = tuple(int(k) for k in np.argwhere(apart)[first])
    place = f"at {at} " if at else ""
    sides = f"original {before[at]}, result {after[at]}, float64 reference {reference[at]}"
    return f"{(~right).sum()} of {right.size or 1} elements that differ are wrong: {place}{sides}"


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


# Are small elements still right? The largest element of an output sets no scale here: each is its own measure.

#: A crowd is at least so many elements on which the original is right.
CROWD = 16
#: Far worse: so many times what is allowed, in units of the element itself.
FAR = 16.0
#: Of the elements known, the original must be right on this share, else it is luck.
MOSTLY = 0.75
#: The share that may be far worse: of the whole output, and of one row, column or other slice of it.
SHARES = {"whole": 1 / 16, "slice": 1 / 2}


def nudged(arguments: Sequence[Array], seed: int, wide: bool = False) -> list[Array]:
    """Floating arguments one unit in the last place up or down at random: what no result may depend on much.

    With ``wide`` they are float64 (complex128), and so is the unit.
    """
    rng = np.random.default_rng(seed)
    moved = []
    with np.errstate(all="ignore"):
        for array in map(np.asarray, arguments):
            if is_integral(array.dtype):
                moved.append(array)
                continue
            widened = in_float64(array)
            eps = float(finfo(widened.real.dtype if wide else array.real.dtype).eps)
            step = eps * rng.choice([-1.0, 1.0], array.shape)
            moved.append(np.asarray(widened * (1 + step)).astype(widened.dtype if wide else array.dtype))
    return moved


#: How much further than its float64 rounding, scaled to its own type, an output may be from zero.
ROUNDING_SPREAD = 16.0
#: Float64 rounding is at most so many units of the largest element around; more is a value that jumps.
ROUNDING_UNITS = 1e4


def is_tiny(reference: Array, largest: float) -> bool:
    """Whether a float64 result may be float64's rounding and nothing else; not where it is not a number."""
    return bool(np.abs(reference).max(initial=0.0) <= ROUNDING_UNITS * np.finfo(np.float64).eps * largest)


def only_rounding(before: Array, after: Array, references: Sequence[Array], largest: float, own: float) -> bool:
    """Whether an output is zero but for rounding, in both programs: the gradient of a bias before a norm, say.

    ``references`` are the float64 results for the arguments and for such one float64 unit off (:func:`nudged`). Where
    that alone changes the result by a quarter of itself and more, and all are tiny beside ``largest``, the largest
    element of arguments and outputs, its terms have cancelled and what is left is float64's rounding. The program's
    rounding is as much larger as its unit ``own`` is.
    """
    if is_integral(before.dtype) or before.dtype in (np.float64, np.complex128):
        return False
    first, *others = references
    if not all(is_tiny(each, largest) for each in references):
        return False
    size = max(float(np.abs(each).max(initial=0.0)) for each in references)
    if not all(float(np.abs(other - first).max(initial=0.0)) > size / 4 for other in others):
        return False
    allowed = ROUNDING_SPREAD * size * own / float(np.finfo(np.float64).eps)
    return all(float(np.abs(each.astype(first.dtype)).max(initial=0.0)) <= allowed for each in (before, after))


def spoiled(before: Array, after: Array, reference: Array, moved: Callable[[], Sequence[Array]], allowed: float) -> str:
    """Why ``after`` loses elements that ``before`` has right by their own measure, "" if it does not.

    An element is right within ``allowed`` of its reference, relative to itself, and far worse beyond
    :data:`FAR` times that. The test is made for the whole output and for every slice of it: of at least :data:`CROWD`
    elements the original has right (and :data:`MOSTLY` all that are known), no more than the share in :data:`SHARES`
    may be far worse in the result, unless a quarter as many are far worse in the original where the result is right:
    then both are rounding. ``moved`` gives the reference for :func:`nudged` arguments: where that alone makes an
    element wrong, terms have cancelled, and it is not tested. Integers, zeros, what is not finite or not normal, and
    float64, whose reference is no better, are left to the other test.
    """
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
        many, had, judged, mirrored = (np.atleast_1d(m.sum(others)) for m in (lost, right[0], known, gained))
        failed = (many > share * had) & (had >= np.maximum(CROWD, MOSTLY * judged)) & (many > 4 * mirrored)
        if failed.any():
            index = int(np.argmax(failed))
            view = (slice(None),) * axis + (index,) if axis >= 0 else ()
            return _describe(axis, index, lost, right[0], view, (before, after, reference))
    return ""


def _sides(
    before: Array, after: Array, reference: Array, allowed: float
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    """Elements that can be tested; where each program is right; where each is far worse."""
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


def _describe(
    axis: int, index: int, lost: Array, right: Array, view: tuple[Any, ...], sides: tuple[Array, Array, Array]
) -> str:
    inside = np.zeros(lost.shape, bool)
    inside[view] = lost[view]
    at = tuple(int(k) for k in np.argwhere(inside)[0])
    where = f" with index {index} in dim {axis}" if axis >= 0 else ""
    before, after, reference = (side[at] for side in sides)
    return (
        f"of {right[view].sum()} elements{where} that the original has right, {lost[view].sum()} are far worse, "
        f"measured by themselves: at {at} original {before}, result {after}, float64 reference {reference}"
    )


# How finely does a program compute: the coarsest type that values are rounded to on their way to a result.

#: Operations whose results are elements of their operands, or values that every floating type of theirs has exactly.
_EXACT = frozenset(
    {"abs", "broadcast_in_dim", "ceil", "clamp", "compare", "concatenate", "constant", "dynamic_slice"}
    | {"dynamic_update_slice", "floor", "gather", "imag", "iota", "maximum", "minimum", "negate", "pad", "real"}
    | {"optimization_barrier", "reshape", "reverse", "round_nearest_even", "select", "sign", "slice", "transpose"}
)
_EXTREMES = frozenset({"maximum", "minimum"})


def coarsest(body: Block) -> list[np.dtype[Any] | None]:
    """For each result of a function body the coarsest type it was rounded to on its way; None where to none.

    Arguments are what they are, and widening is exact: only operations that round count. All that a loop or a branch
    does counts for each of its results.
    """
    found: dict[Value, np.dtype[Any]] = {}
    for op in body.operations[:-1]:
        before = [found[value] for value in (*op.operands, *captured(op)) if value in found]
        inner = [each for block in op.blocks for each in operations_in(block)]
        types = [*before, *(dtype for each in (op, *inner) for dtype in _rounds_to(each))]
        if types:
            found.update(dict.fromkeys(op.results, max(types, key=unit)))
    return [found.get(value) for value in body.operations[-1].operands]


def _rounds_to(op: Node) -> list[np.dtype[Any]]:
    """The floating types that an operation itself rounds to; what its bodies do is asked of their operations."""
    if op.name in _EXACT or op.blocks or op.attributes.get("monoid") in _EXTREMES or "chooses" in op.attributes:
        return []
    types = [dtype for dtype in map(_floating, op.results) if dtype is not None]
    given = _floating(op.operands[0]) if op.name == "convert" else None
    if types and given is not None and unit(given) >= unit(types[0]):
        return []  # a finer type has every value of a coarser one
    return types


def _floating(value: Value) -> np.dtype[Any] | None:
    """The floating type of an array; None for integers, tokens and what numpy has no type for."""
    try:
        dtype = array_dtype(value) if value.shape is not None else None
    except UnsupportedError:
        return None
    return None if dtype is None or is_integral(dtype) else dtype


# Inputs for trials of programs.

Fill = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Array]


def _wide(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Both signs, magnitudes spread evenly over forty powers of two, as far as the type reaches."""
    reach = min(20.0, 0.4 * float(finfo(dtype).maxexp))
    return np.asarray(rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-reach, reach, shape)))


def _denormal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Below the smallest normal number, one in eight elements, the rest about one."""
    tiny = float(finfo(dtype).smallest_normal) * rng.uniform(-1, 1, shape)
    return np.where(rng.random(shape) < 0.125, tiny, rng.normal(size=shape))


def _large(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Near the largest finite number and of one sign, so that sums overflow in whatever order they are taken."""
    return np.asarray(float(finfo(dtype).max) * rng.uniform(0.25, 0.9, shape))


def _special(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Ordinary elements; in the last quarter of the first dim also NaN, infinities and zeros, one in sixty-four each.

    So some of what is reduced stays ordinary, and a NaN in the wrong place shows.
    """
    array = np.asarray(rng.normal(size=shape))
    part = array[shape[0] * 3 // 4 :] if shape else array
    places, count = rng.permutation(part.size), max(1, part.size // 64)
    flat = part.reshape(-1)  # a view: what is written here stands in the whole
    for lot, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
        flat[places[lot * count : (lot + 1) * count]] = value
    return array


#: Each kind of input: what its floating elements are. Integers are small, and of all sizes in ``wide`` and ``large``.
INPUTS: dict[str, Fill] = {
    "normal": lambda rng, shape, dtype: rng.normal(size=shape),
    "wide": _wide,
    "zeros": lambda rng, shape, dtype: np.asarray(rng.choice([0.0, -0.0], shape)),
    "denormal": _denormal,
    "large": _large,
    "lowest": lambda *given: -_large(*given),  # a maximum that starts from anything but its identity shows
    "special": _special,
}


#: The kinds under which an ordinary program computes no infinity and no NaN.
_TAME = ("normal", "wide", "zeros", "denormal")


def inputs_for(body: Block, kinds: Sequence[str] | None, assume_finite: bool = False) -> list[str]:
    """The kinds to try: all of them (the tame ones), or ``normal`` alone for a program that may never end on others."""
    for kind in kinds or ():
        if kind not in INPUTS:
            raise UsageError(f"no kind of inputs called {kind!r}", how=f"known: {', '.join(INPUTS)}")
    if kinds:
        return list(kinds)
    return ["normal"] if may_never_end(body) else list(_TAME if assume_finite else INPUTS)


def may_never_end(body: Block) -> bool:
    """Whether a loop in it runs until a condition on values holds, instead of a number of times that is known."""
    loops = [op for op in operations_in(body) if op.name == "while"]
    return any(not _is_counted(op.blocks[0]) for op in loops)


def _is_counted(condition: Block) -> bool:
    """Only constants and one comparison of an integer that the loop carries with one of them."""
    working = [op for op in condition.operations if op.name != "constant"]
    if [op.name for op in working[:-1]] != ["compare"]:
        return False
    counter, bound = working[0].operands
    constant = bound.operation is not None and bound.operation.name == "constant"
    return counter in condition.arguments and counter.dtype.lstrip("us").startswith("i") and constant


def trial_inputs(values: Sequence[Value], kind: str, seed: int) -> list[Array]:
    """Arrays for the arguments of a program, the same for the same kind and seed."""
    sizes = [math.prod(v.shape or ()) for v in values]
    kinds = [kind if kind != "special" or size == max(sizes) else "normal" for size in sizes]  # one NaN goes far enough
    arrays = [_array(v, k, np.random.default_rng((seed, n))) for n, (v, k) in enumerate(zip(values, kinds))]
    return arrays if kind == next(iter(INPUTS)) else [_choice(array, list(INPUTS).index(kind)) for array in arrays]


def _choice(array: Array, number: int) -> Array:
    """Another integer or boolean scalar for each kind, as it may say which branch is taken; anything else as it is."""
    if array.shape or not is_integral(array.dtype):
        return array
    if array.dtype == np.bool_:
        return np.asarray(number % 2 == 0)
    low, high = _ends(array.dtype)
    scalar = (0, 1, 2, -1, 3, 4)[(number - 1) % 6]
    return np.asarray(max(low, min(high, scalar))).astype(array.dtype)


def _array(value: Value, kind: str, rng: np.random.Generator) -> Array:
    dtype, shape = array_dtype(value), value.shape or ()
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if is_integral(dtype):
        return _integers(dtype, shape, kind, rng)
    fill = INPUTS[kind]
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.kind != "c":
            return fill(rng, shape, dtype).astype(dtype)
        part, array = np.dtype(f"f{dtype.itemsize // 2}"), np.empty(shape, dtype)
        array.real, array.imag = (fill(rng, shape, part).astype(part) for _ in range(2))
        return array


def _integers(dtype: np.dtype[Any], shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    """Small ones of both signs; at the ends of the type for ``large`` and ``lowest``, of every size for ``wide``.

    Scalars stay small: they are numbers of steps and places more often than data.
    """
    low, high = _ends(dtype)
    if kind == "large" and shape:
        return rng.choice(np.array([low, low + 1, high - 1, high, 0, 1], object), shape).astype(dtype)
    if kind == "lowest" and shape:
        return rng.choice(np.array([low, low + 1], object), shape).astype(dtype)
    if kind == "wide" and shape:
        return rng.integers(low, high, shape, dtype=np.int64 if low < 0 else np.uint64, endpoint=True).astype(dtype)
    return rng.integers(max(low, -4), min(high, 4), shape, endpoint=True).astype(dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    iinfo: Any = ml_dtypes.iinfo
    return int(iinfo(dtype).min), int(iinfo(dtype).max)
