"""NaN at every stage of the device side is named, at once and under jit; without the knob nothing is looked at."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tilewright.embed import (
    Adagrad,
    Feature,
    SparseCoreConfig,
    Table,
    Topology,
    from_tables,
    lookup,
    preprocess,
    stack,
    update,
)
from tilewright.errors import CheckFailed

FEATURES = [Feature("f", Table("t", 16, 8, optimizer=Adagrad(0.1))), Feature("g", Table("u", 8, 3))]
STACKING = stack(FEATURES, Topology(1, 2))
LOOK = SparseCoreConfig(detect_nan=True)
FINE = {"t": np.ones((16, 8), np.float32), "u": np.ones((8, 3), np.float32)}
GRADIENTS = {"f": np.ones((4, 8), np.float32), "g": np.ones((4, 3), np.float32)}
BAD_ROW = {**FINE, "t": np.where(np.arange(16)[:, None] == 3, np.nan, FINE["t"])}
BAD_GRADIENT = {**GRADIENTS, "g": np.where(np.arange(4)[:, None] == 2, np.nan, GRADIENTS["g"])}


@pytest.fixture(scope="module")
def batch():
    return preprocess({"f": [[1], [2, 3], [], [15]], "g": [[0], [1], [2], [3]]}, STACKING)


def test_what_is_fine_passes_and_stays_the_same(batch):
    state = from_tables(STACKING, FINE)
    for name, found in lookup(state, batch, sparsecore=LOOK).items():
        assert jnp.array_equal(found, lookup(state, batch)[name])
    looked, plain = update(state, batch, GRADIENTS, sparsecore=LOOK), update(state, batch, GRADIENTS)
    assert all(map(jnp.array_equal, jax.tree.leaves(looked), jax.tree.leaves(plain)))


def test_a_row_shows_in_the_activations(batch):
    state = from_tables(STACKING, BAD_ROW)
    told = "stage lookup, activations out: feature 'f', table 't': NaN in 1 of 4, first in sample 1"
    with pytest.raises(CheckFailed, match=told):
        lookup(state, batch, sparsecore=LOOK)
    assert jnp.isnan(lookup(state, batch, sparsecore=SparseCoreConfig())["f"][1]).all()


def test_a_gradient_is_named_before_it_reaches_a_row(batch):
    state = from_tables(STACKING, FINE)
    told = "stage update, gradients in: feature 'g', table 'u': NaN in 1 of 4, first in sample 2"
    with pytest.raises(CheckFailed, match=told):
        update(state, batch, BAD_GRADIENT, sparsecore=LOOK)


def test_rows_and_slots_after_an_update(batch):
    huge = {**GRADIENTS, "f": np.full((4, 8), np.inf, np.float32)}  # inf / sqrt(inf) in the optimizer
    with pytest.raises(CheckFailed, match=r"stage update, out: stack 't' \(tables t\): NaN in 4 of 16"):
        update(from_tables(STACKING, FINE), batch, huge, sparsecore=LOOK)


@pytest.mark.filterwarnings("ignore")
def test_under_jit_the_callback_says_so(batch):
    state = from_tables(STACKING, BAD_ROW)
    looked = jax.jit(lambda state, batch: lookup(state, batch, sparsecore=LOOK))

    def run():
        jax.block_until_ready(looked(state, batch))
        jax.effects_barrier()

    with pytest.raises(Exception, match="stage lookup, activations out: feature 'f', table 't'"):
        run()
    assert jnp.isnan(jax.jit(lookup)(state, batch)["f"][1]).all(), "and the process lives on"
