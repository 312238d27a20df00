"""Row updates by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.embed import SGD, Adagrad
from tilewright.embed.model.tables import learning_rate_at
from tilewright.errors import UsageError

numbers = st.floats(-100, 100, width=32)


@given(numbers, numbers, st.floats(0, 1))
def test_sgd(row, gradient, rate):
    assert SGD(rate).apply(row, {}, gradient, rate) == (row - rate * gradient, {})


@given(st.integers(0, 2**32))
def test_adagrad(seed):
    rng = np.random.default_rng(seed)
    row, gradient, start = rng.normal(size=8), rng.normal(size=8), rng.random(8) + 0.01
    new, slots = Adagrad(0.3).apply(row, {"accumulator": start}, gradient, 0.3)
    accumulator = start + gradient**2
    np.testing.assert_allclose(slots["accumulator"], accumulator, rtol=1e-6)
    np.testing.assert_allclose(new, row - 0.3 * gradient / np.sqrt(accumulator), rtol=1e-5, atol=1e-6)


def test_adagrad_from_zero_leaves_elements_without_gradient():
    new, slots = Adagrad(0.5, 0.0).apply(np.ones(2), {"accumulator": np.zeros(2)}, np.array([0.0, 2.0]), 0.5)
    assert new.tolist() == [1.0, 0.5]
    assert slots["accumulator"].tolist() == [0.0, 4.0]


def test_optimizers_are_values():
    assert {SGD(0.1), SGD(0.1), Adagrad(0.1)} == {SGD(0.1), Adagrad(0.1)}
    assert dict(SGD().slots) == {}
    assert dict(Adagrad().slots) == {"accumulator": 0.1}


def test_rates():
    assert learning_rate_at(SGD(0.5), 7) == 0.5
    assert learning_rate_at(Adagrad(lambda step: 1 / step), 4) == 0.25


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), "fast", None, True])
def test_wrong_rates(rate):
    for kind in (SGD, Adagrad):
        with pytest.raises(UsageError, match="learning_rate"):
            kind(rate)


def test_a_wrong_accumulator():
    with pytest.raises(UsageError, match="initial_accumulator"):
        Adagrad(0.1, -0.5)
