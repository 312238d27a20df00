"""Rules beside each other: in any order, on programs put together from their examples, the values stay."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import by_night, tries
from tests.hlo.numpy_values import evaluate
from tilewright.hlo import catalogue, from_jax, load, optimize, parse_pipeline, run_pipeline
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.proving.trials import trial_inputs
from tilewright.hlo.rules.rule import arguments, bindings, function_of

NAMES = [name for name, rule in catalogue().items() if rule.build is not None and "f32" in rule.example.types]


@cache
def both(first, second):
    """Two examples one behind the other: a number made from the first's results shifts the second's arguments."""
    examples = [catalogue()[name] for name in (first, second)]
    parts = []
    for example in examples:
        sizes = bindings(example.example.small)
        structs = arguments(example, sizes, "f32")
        parts.append((function_of(example.example.before, list(structs), sizes), list(structs.values())))
    (one, given_one), (two, given_two) = parts

    def program(*args):
        results = jax.tree.leaves(one(*args[: len(given_one)]))
        shift = jnp.tanh(results[0].astype(jnp.float32).mean())
        floating = [x + shift if x.dtype == jnp.float32 else x for x in args[len(given_one) :]]
        return [*results, *jax.tree.leaves(two(*floating))]

    text = run_pipeline(from_jax(program, *given_one, *given_two).text, parse_pipeline("inline"))[0]
    return text, read_functions(parse_module(text))[0].arguments


def values(text, arrays):
    return evaluate(read_functions(parse_module(text))[0], arrays)


def agree(text, result, arrays):
    for left, right in zip(values(text, arrays), values(result, arrays), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=1e-7, atol=1e-7)


@settings(max_examples=tries(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_programs_keep_their_values_under_all_rules_in_any_order(data):
    pool = st.integers(0, 39)  # forty programs, so that each is traced once
    number = data.draw(pool, label="program")
    chooser = np.random.default_rng(number)
    first, second = (NAMES[k] for k in chooser.integers(len(NAMES), size=2))
    text, parameters = both(first, second)
    order = data.draw(st.permutations(NAMES), label="order")
    result, counts = run_pipeline(text, parse_pipeline(",".join(order)))
    assert counts.total() >= 1
    agree(text, result, trial_inputs(parameters, "normal", data.draw(st.integers(0, 9), label="seed")))


def test_no_rule_undoes_another():
    """Every order of four rules (by day every fifth) comes to an end, and each acts once whatever came before."""
    names = ["grouped-query-attention", "one-hot-loss", "padded-max-pool", "take-along-minor"]
    for first, second in (names[:2], names[2:]):
        text, parameters = both(first, second)
        arrays = trial_inputs(parameters, "normal", 0)
        for order in list(permutations(names))[:: 1 if by_night() else 5]:
            result, counts = run_pipeline(text, parse_pipeline(",".join(order)))
            assert counts[first] == counts[second] == 1, order
            agree(text, result, arrays)


@pytest.mark.parametrize("target", ["tpu-v5e", "vector8x128", "cpu"])
def test_what_was_optimised_is_left_alone_by_the_same_rules(target):
    text, _ = both("grouped-query-attention", "average-pool")

    once = optimize(load(text), target, assume_finite=True)
    again = optimize(once.program, target, assume_finite=True)
    assert not {verdict.rule for verdict in again.rewrites} & {verdict.rule for verdict in once.rewrites}
