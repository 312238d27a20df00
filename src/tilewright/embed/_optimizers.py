"""Optimizers of embedding tables as frozen values: hashable, so that they can be static arguments of a jitted step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["SGD", "Adagrad", "Optimizer", "Schedule"]

Schedule: TypeAlias = Callable[[Any], Any]
"""A learning rate as a function of the step number."""


@dataclass(frozen=True)
class SGD:
    """``w -= learning_rate * g`` on the touched rows. ``learning_rate`` is a number or a schedule of the step."""

    learning_rate: float | Schedule = 0.01


@dataclass(frozen=True)
class Adagrad:
    """``acc += g * g; w -= learning_rate * g / sqrt(acc)`` on the touched rows."""

    learning_rate: float | Schedule = 0.01
    initial_accumulator: float = 0.1


Optimizer: TypeAlias = SGD | Adagrad
