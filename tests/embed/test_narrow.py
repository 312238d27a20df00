"""Rows that share lines: lookups and updates as those of lines of their own, in less memory."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tilewright.embed import (
    SGD,
    Adagrad,
    Feature,
    Table,
    Topology,
    from_tables,
    lookup,
    pack_narrow,
    preprocess,
    stack,
    tables,
    update,
)
from tilewright.errors import UsageError

TOPOLOGY = Topology(1, 4)


def model(combiner, optimizer):
    wide = [Table(f"w{w}", 37, w, combiner=combiner, optimizer=optimizer) for w in (1, 2, 3, 4, 5)]
    return [Feature(f"f{t.width}", t) for t in wide]


@pytest.mark.parametrize(("combiner", "optimizer"), [("mean", SGD(0.5)), ("sqrtn", Adagrad(0.5, 0.1))])
def test_packed_tables_train_as_the_others(combiner, optimizer):
    features = model(combiner, optimizer)
    rng = np.random.default_rng(3)
    value = {f.table.name: rng.normal(size=(37, f.table.width)).astype(np.float32) for f in features}
    batch, grads = {}, {}
    for f in features:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, 16))])
        ids = rng.integers(0, 37, offsets[-1])
        batch[f.name] = (ids, offsets, rng.uniform(0.5, 2, ids.size).astype(np.float32))
        grads[f.name] = rng.normal(size=(16, f.table.width)).astype(np.float32)
    narrow = pack_narrow(features)
    plain, packed = stack(features, TOPOLOGY), stack(narrow.features, TOPOLOGY)
    one, other = from_tables(plain, value), from_tables(packed, narrow.pack(value))
    host, host_packed = preprocess(batch, plain), preprocess(narrow.batch(batch), packed)
    found = narrow.activations(lookup(other, host_packed))
    for name, expected in lookup(one, host).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)
    after = narrow.unpack(tables(update(other, host_packed, narrow.gradients(grads, jnp))))
    for name, expected in tables(update(one, host, grads)).items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-5)
    assert [f.table.vocab for f in narrow.features] == [5, 10, 19, 19, 37]
    assert narrow.saved_bytes == 32 * (4 * 37 - 5 - 10 - 19 - 19)


def test_wrong_ids_and_initializers():
    narrow = pack_narrow([Feature("f", Table("t", 9, 2))])
    with pytest.raises(UsageError, match="id 9 of sample 1 is not in"):
        narrow.batch({"f": np.array([[0], [9]])})
    with pytest.raises(UsageError, match="no input for feature 'f'"):
        narrow.batch({})
    with pytest.raises(UsageError, match="initializer"):
        pack_narrow([Feature("f", Table("t", 9, 2, initializer=lambda key, shape, dtype: None))])
    mean = pack_narrow([Feature("f", Table("t", 9, 2, combiner="mean"))])
    with pytest.raises(UsageError, match="sample 0 have no mean"):
        mean.batch({"f": (np.array([1]), np.array([0, 1]), np.array([0.0]))})
