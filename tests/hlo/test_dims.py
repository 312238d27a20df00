"""Matching dims by prefix products, against numpy: every plan must move the very elements."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.hlo.graphs.dims import cut, only_unit_dims_differ, plan_broadcast, plan_reduce, runs


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((8, 32, 32, 256), (8, 32, 32, 32, 8), [((0,), (0,)), ((1,), (1,)), ((2,), (2,)), ((3,), (3, 4))]),
        ((4, 4, 4), (4, 4, 2, 2), [((0,), (0,)), ((1,), (1,)), ((2,), (2, 3))]),
        ((10, 24), (5, 48), [((0, 1), (0, 1))]),
        ((2, 6), (6, 2), [((0, 1), (0, 1))]),
        ((1, 8, 1), (8,), [((1,), (0,))]),
        ((1, 1), (), []),
        ((), (1,), []),
        ((0, 4), (4, 0), None),
        ((2, 3), (7,), None),
    ],
)
def test_runs(source, target, expected):
    found = runs(source, target)
    assert (found if found is None else [(r.source, r.target) for r in found]) == expected


@st.composite
def reshapes(draw):
    """Two shapes of the same size: products of the same primes, cut at random places, with unit dims strewn in."""
    factors = draw(st.lists(st.sampled_from([2, 2, 3, 4]), max_size=5))

    def shape():
        cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        edges = [0, *cuts, len(factors)]
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise(edges))

    return shape(), shape()


@given(reshapes())
def test_runs_partition_the_dims_and_are_minimal(pair):
    source, target = pair
    found = runs(source, target)
    assert [i for r in found for i in r.source] == [i for i, n in enumerate(source) if n != 1]
    assert [j for r in found for j in r.target] == [j for j, n in enumerate(target) if n != 1]
    for run in found:
        left, right = [source[i] for i in run.source], [target[j] for j in run.target]
        assert math.prod(left) == math.prod(right)
        inner = set(np.cumprod(left)[:-1].tolist()) & set(np.cumprod(right)[:-1].tolist())
        assert not inner  # no shorter prefix of both has the same product


@pytest.mark.parametrize(
    ("source", "target", "shape", "parts"),
    [
        ((8, 32, 9, 9), (8, 4, 648), (8, 4, 8, 9, 9), ((0,), (1,), (2, 3, 4))),
        ((3, 6, 4, 5), (6, 60), (3, 2, 3, 4, 5), ((0, 1), (2, 3, 4))),  # batch and groups in one dim
        ((10, 24), (5, 48), (5, 2, 24), ((0,), (1, 2))),
        ((10, 24, 3), (5, 1, 48, 3), (5, 1, 2, 24, 3), ((0,), (1,), (2, 3), (4,))),
        ((8, 16, 16, 256), (8, 2048, 32), (8, 16, 16, 8, 32), ((0,), (1, 2, 3), (4,))),  # the front of a run
        ((8, 16, 16, 256), (65536 // 4, 32), (8, 16, 16, 8, 32), ((0, 1, 2, 3), (4,))),
        ((4, 2, 3, 5, 4), (8, 15, 4), (8, 15, 4), ((0,), (1,), (2,))),  # merged whole: nothing to cut
        ((6, 5, 7, 4), (2, 105, 4), (2, 3, 5, 7, 4), ((0,), (1, 2, 3), (4,))),
        ((4, 3, 10), (2, 12, 5), (2, 2, 3, 2, 5), ((0,), (1, 2, 3), (4,))),  # in between: 3 is within 12
        ((4, 6, 5), (8, 15), (4, 2, 3, 5), ((0, 1), (2, 3))),  # 8 holds the 4, 15 the 5
        ((2, 6), (6, 2), (2, 3, 2), ((0, 1), (2,))),  # 6 holds the 2, 2 holds no 6
        ((9, 9, 8), (81, 8), (81, 8), ((0,), (1,))),  # merged whole: nothing to cut
        ((8, 256), (8, 32, 8), (8, 32, 8), ((0,), (1,), (2,))),
    ],
)
def test_cuts(source, target, shape, parts):
    found = cut(source, target)
    assert (found.shape, found.parts) == (shape, parts)


def test_no_cut_without_a_match():
    assert cut((0, 4), (4, 0)) is None


@given(reshapes(), st.data())
def test_reduce_plans_give_the_same_sums(pair, data):
    source, target = pair
    dims = data.draw(st.lists(st.integers(0, len(target) - 1), unique=True)) if target else []
    plan = plan_reduce(source, target, dims)
    split = cut(source, target)
    assert [math.prod(split.shape[p] for p in part) for part in split.parts] == list(target)
    reduced = {p for d in dims for p in split.parts[d]}
    whole = [r for r in runs(source, split.shape) if set(r.target) <= reduced]
    assert (plan is None) == (not whole)
    if plan is None:
        return
    x = np.random.default_rng(0).integers(-9, 9, source)
    expected = x.reshape(target).sum(axis=tuple(dims))
    first = x.sum(axis=plan.first)
    assert first.size < x.size
    np.testing.assert_array_equal(first.reshape(plan.middle).sum(axis=plan.second).reshape(plan.final), expected)


@given(reshapes(), st.data())
def test_broadcast_plans_give_the_same_elements(pair, data):
    source, target = pair
    dims = data.draw(st.lists(st.sampled_from(range(len(target))), unique=True)) if target else []
    operand = tuple(data.draw(st.sampled_from([1, target[d]])) for d in dims)
    y = np.arange(math.prod(operand)).reshape(operand)

    def broadcast(array, where, shape):
        order = np.argsort(where, kind="stable")
        wide = [1] * len(shape)
        for k in order:
            wide[where[k]] = array.shape[k]
        return np.broadcast_to(array.transpose(order).reshape(wide), shape)

    plan = plan_broadcast(operand, dims, target, source)
    small = y.reshape(plan.dropped).transpose(plan.order)
    small = broadcast(small, plan.expand_dims, plan.expanded).reshape(plan.folded)
    np.testing.assert_array_equal(broadcast(small, plan.dims, source), broadcast(y, dims, target).reshape(source))


@given(reshapes())
def test_unit_dims(pair):
    source, target = pair
    bare = [[n for n in shape if n != 1] for shape in pair]
    assert only_unit_dims_differ(source, target) == (bare[0] == bare[1])
