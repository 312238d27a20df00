"""Which dims of a reshape belong together: runs of equal product, and what reductions and broadcasts make of them.

A reshape keeps the row-major order of the elements, so its two shapes fall into runs: minimal groups of neighbouring
dims whose products are equal. Dims are matched by these products, never by size:

    [8, 32, 32, 256] -> [8, 32, 32, 32, 8]     runs (8|8) (32|32) (32|32) (256|32 8)
    [4, 4, 4] -> [4, 4, 2, 2]                  runs (4|4) (4|4) (4|2 2): the last 4 splits, whatever the sizes suggest
    [10, 24] -> [5, 48]                        one run: no prefix of 10 24 has the product of one of 5 48

Unit dims belong to no run; a dim of size 0 makes every run ambiguous, so there is no matching at all.

Inside a run a dim of the target may still hold dims of the source whole: at its end, at its front, or in between. The
plans cut it there (:func:`cut`), and what is left of the run is matched anew:

    [32, 64, 64] -> [8, 16384]                 16384 is 4 * 64 * 64: as [8, 4, 64, 64], runs (32|8 4) (64|64) (64|64)
    [16, 16, 256] -> [2048, 32]                2048 is 16 * 16 * 8: as [16, 16, 8, 32], runs (16|16) (16|16) (256|8 32)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import accumulate, chain
from operator import mul
from typing import TypeVar

Shape = tuple[int, ...]
Plan = TypeVar("Plan")


def _remembered(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """The plan of lists of sizes, which a program has few different ones of."""
    of_tuples = lru_cache(maxsize=4096)(plan)
    return wraps(plan)(lambda *sizes: of_tuples(*map(tuple, sizes)))


@dataclass(frozen=True, slots=True)
class Run:
    """Dims of the operand (``source``) and of the result (``target``) of a reshape with the same elements."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@_remembered
def runs(source: Sequence[int], target: Sequence[int]) -> tuple[Run, ...] | None:
    """The runs of a reshape ``source`` -> ``target`` in order; None where dims cannot be matched.

    >>> [(run.source, run.target) for run in runs((8, 1, 6), (2, 4, 6))]
    [((0,), (0, 1)), ((2,), (2,))]
    """
    if math.prod(source) != math.prod(target) or math.prod(source) <= 0:
        return None
    left = [(i, size) for i, size in enumerate(source) if size != 1]
    right = [(j, size) for j, size in enumerate(target) if size != 1]
    matched: list[Run] = []
    i = j = 0
    while i < len(left):
        i0, j0, p, q = i, j, left[i][1], right[j][1]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                p, i = p * left[i][1], i + 1
            else:
                q, j = q * right[j][1], j + 1
        matched.append(Run(tuple(d for d, _ in left[i0:i]), tuple(d for d, _ in right[j0:j])))
    return tuple(matched)


@dataclass(frozen=True, slots=True)
class Cut:
    """``shape`` is a reshape's target with some dims split; ``parts`` says which dims of it each dim became."""

    shape: Shape
    parts: tuple[tuple[int, ...], ...]


@_remembered
def cut(source: Sequence[int], target: Sequence[int]) -> Cut | None:
    """The target of a reshape, its dims split where they hold whole dims of ``source``; None if none can be matched.

    A dim of the target is split at every bound of the source that its own size and place allow: where the elements
    behind the bound are a multiple of those behind the dim, and the rest of the dim a multiple of them.

    >>> cut((8, 32, 64, 64), (8, 8, 16384))
    Cut(shape=(8, 8, 4, 64, 64), parts=((0,), (1,), (2, 3, 4)))
    >>> cut((2, 6), (6, 2))
    Cut(shape=(2, 3, 2), parts=((0, 1), (2,)))
    """
    matched = runs(source, target)
    if matched is None:
        return None
    sizes = [[size] for size in target]
    for run in matched:
        if len(run.target) == 1:
            continue
        bounds = list(accumulate((source[i] for i in reversed(run.source)), mul))
        behind = 1
        for j in reversed(run.target):
            step, whole = behind, behind * target[j]
            for bound in bounds:
                if step < bound < whole and bound % step == 0 and whole % bound == 0:
                    sizes[j][:1] = [whole // bound, bound // step]
                    step = bound
            behind = whole
    ends = list(accumulate(map(len, sizes)))
    parts = (tuple(range(end - len(part), end)) for end, part in zip(ends, sizes))
    return Cut(tuple(chain.from_iterable(sizes)), tuple(parts))


def only_unit_dims_differ(source: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a reshape only adds or drops dims of size 1."""
    return [n for n in source if n != 1] == [n for n in target if n != 1] and 0 not in source


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """How ``reduce(reshape(X), dims)`` becomes ``reshape(reduce(reshape(reduce(X, first)), second))``.

    ``middle`` is the shape between the two reductions, ``final`` the shape of the original result. ``second`` is empty
    where the first reduction does it all; it then starts from the user's init itself.
    """

    first: tuple[int, ...]
    middle: Shape
    second: tuple[int, ...]
    final: Shape


@_remembered
def plan_reduce(source: Sequence[int], target: Sequence[int], dims: Sequence[int]) -> ReducePlan | None:
    """The plan for reducing ``dims`` of ``target``, a reshape of ``source``; None where no run is reduced whole.

    >>> plan_reduce((8, 32, 32, 256), (8, 32, 32, 32, 8), (1, 2, 4))
    ReducePlan(first=(1, 2), middle=(8, 32, 8), second=(2,), final=(8, 32))
    >>> plan_reduce((32, 64, 64), (8, 16384), (1,))
    ReducePlan(first=(1, 2), middle=(8, 4), second=(1,), final=(8,))
    >>> plan_reduce((2, 6), (6, 2), (0,))
    ReducePlan(first=(0,), middle=(3, 2), second=(0,), final=(2,))
    >>> plan_reduce((2, 6), (6, 2), (1,)) is None
    True
    """
    split = cut(source, target)
    if split is None:
        return None
    final = tuple(size for j, size in enumerate(target) if j not in dims)
    reduced = {part for j in dims for part in split.parts[j]}
    target = split.shape
    matched = runs(source, target) or ()
    whole = [run for run in matched if reduced.issuperset(run.target)]
    if not whole:
        return None
    gone = {j for run in whole for j in run.target} | {j for j in reduced if target[j] == 1}
    kept = [j for j in range(len(target)) if j not in gone]
    return ReducePlan(
        first=tuple(sorted(i for run in whole for i in run.source)),
        middle=tuple(target[j] for j in kept),
        second=tuple(k for k, j in enumerate(kept) if j in reduced),
        final=final,
    )


@dataclass(frozen=True, slots=True)
class BroadcastPlan:
    """How a broadcast of Y at a reshape's result becomes one at its operand: steps on ever larger small arrays.

    Y -reshape-> ``dropped`` -transpose by ``order``- broadcast-> ``expanded`` -reshape-> ``folded`` -broadcast-> source
    """

    dropped: Shape
    order: tuple[int, ...]
    expanded: Shape
    expand_dims: tuple[int, ...]
    folded: Shape
    dims: tuple[int, ...]


@_remembered
def plan_broadcast(
    operand: Sequence[int], dims: Sequence[int], target: Sequence[int], source: Sequence[int]
) -> BroadcastPlan | None:
    """Re-express ``broadcast_in_dim(operand, dims) : target`` at ``source``, a reshape of it; None if that cannot be.

    >>> plan_broadcast((8, 32), (0, 3), (8, 9, 9, 32, 8), (8, 9, 9, 256))
    BroadcastPlan(dropped=(8, 32), order=(0, 1), expanded=(8, 32, 8), expand_dims=(0, 1), folded=(8, 256), dims=(0, 3))
    >>> plan_broadcast((8,), (0,), (8, 16384), (32, 64, 64))
    BroadcastPlan(dropped=(8,), order=(0,), expanded=(8, 4), expand_dims=(0,), folded=(32,), dims=(0,))
    """
    split = cut(source, target)
    if split is None:
        return None
    target = split.shape
    matched = runs(source, target) or ()
    real = [(part, target[part]) for d, size in zip(dims, operand) if size != 1 for part in split.parts[d]]
    order = sorted(range(len(real)), key=lambda k: real[k][0])
    have = [real[k][0] for k in order]
    touched = [run for run in matched if set(run.target) & set(have)]
    wide = [j for run in touched for j in run.target]
    into = [i for run in touched for i in run.source]
    return BroadcastPlan(
        dropped=tuple(size for _, size in real),
        order=tuple(order),
        expanded=tuple(target[j] for j in wide),
        expand_dims=tuple(wide.index(j) for j in have),
        folded=tuple(source[i] for i in into),
        dims=tuple(into),
    )
