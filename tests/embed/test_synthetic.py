"""The generated click log: reproducible, Zipf, and learnable."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import within
from tilewright.embed import synthetic_criteo
from tilewright.errors import UsageError

VOCABS = [50, 3, 1, *(200 + i for i in range(23))]


def test_the_seed_decides():
    one, again, other = (synthetic_criteo(seed, 300, VOCABS) for seed in (1, 1, 2))
    assert np.array_equal(one.categorical, again.categorical)
    assert np.array_equal(one.numeric, again.numeric)
    assert np.array_equal(one.labels, again.labels)
    assert not np.array_equal(one.categorical, other.categorical)


def test_shapes_ranges_and_rate():
    log = synthetic_criteo(0, 20_000, VOCABS, click_rate=0.3)
    assert (log.categorical >= 0).all()
    assert (log.categorical < np.array(VOCABS)).all()
    assert np.isfinite(log.numeric).all()
    assert (log.numeric >= 0).all()
    assert set(np.unique(log.labels)) == {0.0, 1.0}
    assert abs(log.labels.mean() - 0.3) < 0.02


def test_ids_follow_zipf():
    """P(rank r) is close to r**-1.05: the counts of the most frequent ids fall along that line."""
    log = synthetic_criteo(0, 200_000, [10_000] * 26)
    counts = np.sort(np.bincount(log.categorical[:, 5], minlength=10_000))[::-1].astype(float)
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts[:100]), 1)[0]
    assert -1.25 < slope < -0.9


def logistic_auc(log, test, use_ids, use_numeric):
    """100 steps of batch 512 of a linear model with Adagrad, then the AUC on rows of another seed."""
    offsets = np.cumsum([0, *VOCABS[:-1]])
    weights, gathered = np.zeros(sum(VOCABS)), np.full(sum(VOCABS), 0.1)
    dense, more = np.zeros(14), np.full(14, 0.1)

    def columns(rows):
        return np.c_[rows.numeric * use_numeric, np.ones(len(rows))]

    def score(rows):
        return use_ids * weights[rows.categorical + offsets].sum(axis=1) + columns(rows) @ dense

    for rows in log.batches(512):
        error = (1 / (1 + np.exp(-score(rows))) - rows.labels) / 512
        gradient = np.bincount((rows.categorical + offsets).ravel(), np.repeat(error, 26), minlength=len(weights))
        gathered += gradient**2
        weights -= 0.1 * gradient / np.sqrt(gathered)
        gradient = columns(rows).T @ error
        more += gradient**2
        dense -= 0.1 * gradient / np.sqrt(more)
    order = np.argsort(score(test), kind="stable")
    rank = np.empty(len(test))
    rank[order] = np.arange(len(test))
    clicked = test.labels > 0
    return (rank[clicked].mean() - (clicked.sum() - 1) / 2) / (~clicked).sum()


def test_a_signal_is_planted_in_ids_and_in_numbers():
    log, test = synthetic_criteo(1, 51_200, VOCABS), synthetic_criteo(2, 5_000, VOCABS)
    assert logistic_auc(log, test, 1, 1) > 0.72
    assert logistic_auc(log, test, 1, 0) > 0.62
    assert logistic_auc(log, test, 0, 1) > 0.6


@pytest.mark.nightly
def test_it_is_fast():
    """What it makes is looked at by the others."""
    with within(4):
        synthetic_criteo(0, 200_000, [100_000] * 26)


@pytest.mark.parametrize("change", [{"rows": 0}, {"zipf": 0.0}, {"click_rate": 1.0}, {"vocabs": [3] * 2}])
def test_wrong_arguments(change):
    with pytest.raises(UsageError):
        synthetic_criteo(**{"seed": 0, "rows": 10, "vocabs": VOCABS, **change})


def test_a_zipf_exponent_of_one():
    assert synthetic_criteo(0, 100, VOCABS, zipf=1.0).categorical.max() < 223
