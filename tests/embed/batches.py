"""Random models and batches for the properties."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tilewright.embed import SGD, Adagrad, Feature, Table, Topology, device_batch, stack

COMBINERS = ("sum", "mean", "sqrtn")


@st.composite
def topologies(draw):
    """1 to 9 SparseCores and more, powers of two and not, one or several per device."""
    chips, per_chip = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    divisors = [d for d in range(1, chips * per_chip + 1) if chips * per_chip % d == 0]
    return Topology(chips, per_chip, devices=draw(st.sampled_from(divisors)))


@st.composite
def stackings(draw, combiners=COMBINERS):
    """A few tables, some of them stackable, some with several features."""
    topology = draw(topologies())
    tables = [
        Table(
            f"t{k}",
            vocab=draw(st.integers(1, 150)),
            width=draw(st.sampled_from((1, 8, 12))),
            combiner=draw(st.sampled_from(combiners)),
            optimizer=draw(st.sampled_from((SGD(0.1), Adagrad(0.1)))),
        )
        for k in range(draw(st.integers(1, 4)))
    ]
    chosen = draw(st.lists(st.sampled_from(tables), min_size=1, max_size=5))
    features = [Feature(f"f{k}", table) for k, table in enumerate(chosen)]
    rotation = draw(st.one_of(st.none(), st.integers(0, 5)))
    return stack(features, topology, table_stacking=draw(st.booleans()), rotation=rotation)


def random_batch(stacking, seed, most=4, hot=4, weighted=0.5, bad=0.0):
    """{feature: (list of lists of ids, of weights or None)} with repeats and empty samples."""
    rng = np.random.default_rng(seed)
    batch = {}
    for feature in stacking.features:
        size = stacking.topology.sparsecores * int(rng.integers(1, most + 1))
        few = max(1, int(feature.table.vocab * rng.choice([0.05, 0.3, 1.0])))
        lengths = rng.integers(0, hot + 1, size)
        ids = [rng.integers(0, few, n).tolist() for n in lengths]
        if bad:
            wild = (-1, -(2**40), feature.table.vocab, feature.table.vocab + 7, 2**31, 2**62)
            ids = [[int(rng.choice(wild)) if rng.random() < bad else i for i in row] for row in ids]
        weights = None
        if rng.random() < weighted:
            weights = [rng.uniform(0.1, 3, n).astype(np.float32).tolist() for n in lengths]
        batch[feature.name] = ids, weights
    return batch


def given(batch, seed=0):
    """The same batch in one of the forms ``preprocess`` takes, chosen at random."""
    rng = np.random.default_rng(seed)
    return {name: _form(ids, weights, rng) for name, (ids, weights) in batch.items()}


def _form(ids, weights, rng):
    dtype = np.int64 if any(abs(i) >= 2**31 for row in ids for i in row) or rng.random() < 0.5 else np.int32
    flat = np.array([i for row in ids for i in row], dtype)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    if weights is not None:
        return flat, offsets, np.array([w for row in weights for w in row], np.float32)
    if rng.random() < 0.4:
        return flat, offsets
    if len({len(row) for row in ids}) == 1 and rng.random() < 0.8:
        return np.array(ids, dtype).reshape(len(ids), -1)
    return ids


def alike(hosts):
    """Device batches, all as long as the longest, so that a step compiles once."""
    needed = []
    for host in hosts:
        device_batch(host, lambda lengths: needed.append(lengths) or lengths)
    most = tuple(map(max, zip(*needed)))
    return [device_batch(host, lambda lengths: most) for host in hosts]
