"""How well a click model ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["auc"]


def auc(labels: Any, scores: Any) -> float:
    """Area under the ROC curve: the chance that a click scores above a non-click, ties counting half.

    ``labels`` [n] of 0 and 1, ``scores`` [n]; nan where only one class occurs.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    clicked = np.asarray(labels) > 0.5
    values = np.asarray(scores, np.float64)
    positive, negative = int(clicked.sum()), int((~clicked).sum())
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1, tied values sharing their mean
    ranks = middle[inverse].sum(where=clicked)
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))
