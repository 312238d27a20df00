"""A click log in memory: labels, 13 numeric and 26 categorical columns, and the published table sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UsageError

__all__ = ["CATEGORICAL", "CRITEO_CARDINALITIES", "NUMERIC", "Clicks", "check_vocabs", "scale_vocabs"]

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
