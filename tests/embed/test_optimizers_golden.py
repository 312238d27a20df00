"""Our row updates against jax-tpu-embedding's own over 1,000 steps (tests/data/make_embed_optimizers.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import tries
from tilewright import embed
from tilewright.embed import Clipped
from tilewright.embed.model.optimizers import hyperparameters_at

FILE = np.load(Path(__file__).parents[1] / "data" / "embed_optimizers.npz")
ABOUT = json.loads(str(FILE["about"]))
ROWS, WIDTH, STEPS = ABOUT["rows"], ABOUT["width"], ABOUT["steps"]


@cache
def inputs():
    """Start rows, gradients of all sizes and the touched rows of every step, as the maker draws them."""
    random = np.random.RandomState(ABOUT["seed"])
    rows, gradients, touched = random.standard_normal((ROWS, WIDTH)).astype(np.float32), [], []
    for _ in range(STEPS):
        sizes = 10 ** random.uniform(-3, 1, (ROWS, 1))
        gradient = (random.standard_normal((ROWS, WIDTH)) * sizes).astype(np.float32)
        gradient[random.uniform(size=gradient.shape) < 0.1] = 0
        gradients.append(gradient)
        touched.append(random.uniform(size=ROWS) < 0.7)
    return rows, np.stack(gradients), np.stack(touched)


def optimizer_of(name):
    case = ABOUT["cases"][name]
    rate = 0.05 if name.endswith("constant") else lambda step: 0.2 / (1.0 + 0.01 * step)
    optimizer = getattr(embed, case["optimizer"])(rate, **case["arguments"])
    assert list(optimizer.slots) == case["slots"], "the peer's names in the peer's order"
    return Clipped(optimizer, *case["bounds"]) if case["bounds"] else optimizer


def starting(optimizer):
    slots = {name: jnp.full((ROWS, WIDTH), start, jnp.float32) for name, start in optimizer.slots.items()}
    return jnp.asarray(inputs()[0]), slots


def stepped(optimizer, carry, given, chosen):
    """One step on the touched rows, ``given`` = (step, gradient, touched)."""
    (rows, slots), (step, gradient, touched) = carry, given
    new, after = optimizer.apply(rows, slots, gradient, hyperparameters_at(optimizer, step))
    return chosen(touched, new, rows), {name: chosen(touched, after[name], old) for name, old in slots.items()}


CONSTANT = [name for name in ABOUT["cases"] if name.endswith("constant")]


@pytest.mark.parametrize("name", ABOUT["cases"])
def test_one_operation_at_a_time_the_bits_are_the_peers(name):
    """Operations are rounded one by one, as in the recorded run, so that order and kind of all of them must agree.

    A schedule changes the hyper-parameters only, so a tenth of the steps does. At night all 1,000 of a constant are
    taken; by day test_compiled_they_stay_near takes them.
    """
    optimizer = optimizer_of(name)
    rows, slots = starting(optimizer)
    _, gradients, touched = inputs()
    for step in range(min(STEPS, tries(50)) if name in CONSTANT else 10):
        given = jnp.int32(step), gradients[step], touched[step][:, None]
        rows, slots = stepped(optimizer, (rows, slots), given, np.where)
        if step + 1 in ABOUT["recorded"]:
            np.testing.assert_array_equal(np.stack([rows, *slots.values()]), FILE[f"{name}/{step + 1}"])


@pytest.mark.parametrize(
    "name", [name if name in CONSTANT else pytest.param(name, marks=pytest.mark.nightly) for name in ABOUT["cases"]]
)
def test_compiled_they_stay_near(name):
    """XLA fuses multiply and add, and divides by a scalar as it likes, so each step may differ in the last bit.

    Those bits add up over 1,000 steps, at most to 1e-5 of the largest number of the rows or slot, as it stands.
    Schedules are compiled at night; by day the tests above and below take theirs.
    """
    optimizer = optimizer_of(name)
    _, gradients, touched = inputs()

    @jax.jit
    def all_steps(carry, given):
        def one(carry, given):
            after = stepped(optimizer, carry, given, jnp.where)
            return after, jnp.stack([after[0], *after[1].values()])

        return jax.lax.scan(one, carry, given)[1]

    numbers = jnp.arange(STEPS, dtype=jnp.int32)
    seen = np.asarray(all_steps(starting(optimizer), (numbers, gradients, touched[..., None])))
    for step in ABOUT["recorded"]:
        expected = FILE[f"{name}/{step}"]
        off = np.abs(seen[step - 1] - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
        assert (off <= 1e-5).all(), (step, off)


@pytest.mark.parametrize("name", ABOUT["cases"])
def test_hyperparameters_are_the_specs(name):
    optimizer = optimizer_of(name)
    for step in ABOUT["recorded"]:
        ours = np.atleast_1d(np.asarray(hyperparameters_at(optimizer, jnp.int32(step - 1))))
        theirs = FILE[f"{name}/{step}/hyperparameters"]
        np.testing.assert_array_equal(ours, theirs[: len(ours)])
        assert len(theirs) == len(ours) + ("use_nesterov" in getattr(optimizer, "__dataclass_fields__", ()))
