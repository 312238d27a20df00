"""A click log in memory: labels, 13 numeric and 26 categorical columns, and the published table sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UsageError

NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))

CRITEO_CARDINALITIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        # Display Advertising Challenge (Kaggle): distinct values per column as facebookresearch/dlrm preprocesses it.
        "kaggle": (
            *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
            *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
        ),
        # Terabyte click logs: num_embeddings_per_feature of MLPerf training's DLRM-DCNv2 (mlcommons/training).
        "terabyte": (
            *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10),
            *(2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36),
        ),
    }
)
"""Rows of the 26 embedding tables in the two public Criteo data sets: ``kaggle`` (33,762,577 in all), ``terabyte``."""


@dataclass(frozen=True)
class Clicks:
    """Rows of a click log.

    ===============  ==================================================================================
    ``labels``       f32[rows]: 1 = clicked
    ``numeric``      f32[rows, 13]: log(1 + max(x, 0)), 0 where the value is missing
    ``categorical``  i32[rows, 26]: ids below each column's vocabulary; 0 where the value is missing
    ===============  ==================================================================================
    """

    labels: NDArray[np.float32]
    numeric: NDArray[np.float32]
    categorical: NDArray[np.int32]

    def __len__(self) -> int:
        """Rows."""
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Clicks:
        """A slice of rows, without a copy."""
        return Clicks(self.labels[rows], self.numeric[rows], self.categorical[rows])

    def features(self) -> dict[str, NDArray[Any]]:
        """The 26 one-hot features as ``preprocess`` takes them: {"C1": i32[rows, 1], ...}."""
        return {name: self.categorical[:, i : i + 1] for i, name in enumerate(CATEGORICAL)}

    def batches(self, batch: int) -> Iterator[Clicks]:
        """The whole batches in order; rows of a last, shorter one are left out."""
        for start in range(0, len(self) - batch + 1, batch):
            yield self[start : start + batch]

    @staticmethod
    def join(parts: Sequence[Clicks]) -> Clicks:
        """All rows of ``parts`` in one (at least one part)."""
        return Clicks(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.numeric for part in parts]),
            np.concatenate([part.categorical for part in parts]),
        )


def scale_vocabs(vocabs: Sequence[int], factor: float, smallest: int = 4) -> tuple[int, ...]:
    """Vocabularies times ``factor``, none grown and none cut below ``smallest``.

    >>> scale_vocabs((1460, 3, 10131227), 0.001)
    (4, 3, 10131)
    """
    if not 0 < factor <= 1:
        raise UsageError(f"a vocabulary scale of {factor}", how="give a factor above 0 and at most 1")
    return tuple(min(v, max(smallest, round(v * factor))) for v in vocabs)


def check_vocabs(vocabs: Sequence[int]) -> NDArray[np.int64]:
    """26 vocabularies of 1 to 2^31 - 1 ids as an array; :class:`UsageError` otherwise."""
    if len(vocabs) != len(CATEGORICAL):
        raise UsageError(f"{len(vocabs)} vocabularies for 26 categorical columns", how="give one for each of C1..C26")
    if bad := [v for v in vocabs if not 1 <= v < 2**31]:
        raise UsageError(f"a vocabulary of {bad[0]} ids", how="a vocabulary holds 1 to 2147483647 ids")
    return np.asarray(vocabs, np.int64)


# A seeded click log with Zipf ids and a signal planted in both the ids and the numeric columns.

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
