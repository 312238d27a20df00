"""A seeded click log with Zipf ids and a signal planted in both the ids and the numeric columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.embed._clicks import Clicks, check_vocabs
from tilewright.errors import UsageError

__all__ = ["synthetic_criteo"]

_SCATTER = 2654435761
"""A prime above every vocabulary: multiplying by it modulo the vocabulary scatters the frequent ids."""

_REFERENCE = 8192
"""Rows drawn to find the bias of a world's click rate."""


def synthetic_criteo(
    seed: int, rows: int, vocabs: Sequence[int], zipf: float = 1.05, click_rate: float = 0.25, signal_seed: int = 0
) -> Clicks:
    """``rows`` rows of a click log that looks like Criteo's and can be learnt.

    Ids follow a Zipf law with exponent ``zipf`` over each vocabulary (frequent ids are scattered over it); numeric
    columns are log-normal counts, some missing. Every id and every numeric column carries a hidden weight fixed by
    ``signal_seed``; the label is drawn with probability sigmoid(sum of weights), about ``click_rate`` on average.
    Two calls with different ``seed`` give training and test rows of the same world.

    >>> log = synthetic_criteo(1, 1000, [100] * 26)
    >>> log.categorical.shape, log.numeric.shape, int(log.categorical.max()) < 100
    ((1000, 26), (1000, 13), True)
    """
    sizes = check_vocabs(vocabs)
    if rows < 1 or zipf <= 0 or not 0 < click_rate < 1:
        raise UsageError(f"{rows} rows, zipf {zipf}, click rate {click_rate}", how="all above 0, the rate below 1")
    world = sizes.tolist(), zipf, signal_seed
    numeric, categorical, score = _draw(seed, rows, *world)
    score += _bias(_draw(signal_seed, _REFERENCE, *world)[2], click_rate)
    coin = np.random.Generator(np.random.PCG64([seed, 1])).random(rows)
    return Clicks((coin < _sigmoid(score)).astype(np.float32), numeric, categorical)


def _draw(
    seed: int, rows: int, vocabs: list[int], zipf: float, signal_seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float64]]:
    """Numeric columns, ids, and the sum of their hidden weights."""
    draw = np.random.Generator(np.random.PCG64(seed))
    numeric, score = _numeric(draw, np.random.Generator(np.random.PCG64([signal_seed, 2])), rows)
    categorical = np.empty((rows, 26), np.int32)
    for column, vocab in enumerate(vocabs):
        ids = _zipf(draw, rows, vocab, zipf)
        categorical[:, column] = ids
        score += 0.35 * _hidden(ids, signal_seed * 26 + column)
    return numeric, categorical, score


def _sigmoid(score: NDArray[np.float64]) -> NDArray[np.float64]:
    chance: NDArray[np.float64] = 1 / (1 + np.exp(-score))
    return chance


def _bias(score: NDArray[np.float64], rate: float) -> float:
    """What to add to the scores of a world's reference rows so that their mean chance is ``rate`` (by bisection)."""
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(score + middle).mean() < rate else (low, middle)
    return low


def _numeric(
    draw: np.random.Generator, world: np.random.Generator, rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The 13 columns, and what they say about the click (standardised columns times hidden weights)."""
    centre, spread = world.uniform(0.5, 4.0, 13), world.uniform(0.5, 1.5, 13)
    weights = world.normal(0.0, 0.5, 13)
    normal = draw.standard_normal((rows, 13))
    missing = draw.random((rows, 13)) < 0.1
    numeric = np.where(missing, 0.0, np.log1p(np.floor(np.exp(centre + spread * normal))))
    return numeric.astype(np.float32), np.where(missing, 0.0, normal) @ weights


def _zipf(draw: np.random.Generator, rows: int, vocab: int, exponent: float) -> NDArray[np.int64]:
    """Ids with P(rank r) close to r^-exponent, by the inverse of the continuous distribution on [1, vocab + 1)."""
    u = draw.random(rows)
    top = np.log(vocab + 1.0)
    if abs(exponent - 1) < 1e-9:
        rank = np.exp(u * top)
    else:
        power = 1 - exponent
        rank = np.exp(np.log1p(u * np.expm1(power * top)) / power)
    ids: NDArray[np.int64] = (np.clip(rank.astype(np.int64), 1, vocab) - 1) * _SCATTER % vocab
    return ids


def _hidden(ids: NDArray[np.int64], stream: int) -> NDArray[np.float64]:
    """A hidden weight per id, uniform with variance one, from a hash: no table of the vocabulary's size."""
    h = ids.astype(np.uint64) + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    weight: NDArray[np.float64] = ((h >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5) * np.sqrt(12.0)
    return weight
