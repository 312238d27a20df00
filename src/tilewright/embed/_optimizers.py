"""Optimizers of embedding tables as frozen values: hashable, so that they can be static arguments of a jitted step.

An optimizer is also its row update: ``apply`` turns the touched rows, their slots and the gradient summed over all
lookups of a row into new rows and new slots. It sees touched rows only, each exactly once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tilewright.errors import UsageError

__all__ = ["SGD", "Adagrad", "Optimizer", "Schedule", "learning_rate_at"]

Schedule: TypeAlias = Callable[[Any], Any]
"""A learning rate as a function of the step number, traceable by jax, such as an optax schedule."""

_NO_SLOTS: Mapping[str, float] = MappingProxyType({})


def _check_rate(rate: Any, where: str) -> None:
    """A number of at least 0 or a callable."""
    if callable(rate):
        return
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
        how = "give a number of at least 0 or a function of the step"
        raise UsageError(f"learning_rate = {rate!r}", where=where, how=how)


@dataclass(frozen=True)
class SGD:
    """``w -= learning_rate * g`` on the touched rows. ``learning_rate`` is a number or a schedule of the step.

    >>> SGD(0.5).apply(rows=3.0, slots={}, gradient=2.0, rate=0.5)
    (2.0, {})
    """

    learning_rate: float | Schedule = 0.01

    def __post_init__(self) -> None:
        """Refuse a rate that is neither a number nor a schedule."""
        _check_rate(self.learning_rate, "SGD")

    @property
    def slots(self) -> Mapping[str, float]:
        """No state beside the rows."""
        return _NO_SLOTS

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows [N, width] from the summed gradients [N, width]."""
        return rows - rate * gradient, {}


@dataclass(frozen=True)
class Adagrad:
    """``acc += g * g; w -= learning_rate * g / sqrt(acc)`` on the touched rows, element by element.

    ``acc`` starts at ``initial_accumulator`` (0.1, as in jax-tpu-embedding). Where ``acc`` is still 0, ``g`` has been
    0 all along and the element stays as it is.
    """

    learning_rate: float | Schedule = 0.01
    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a wrong rate, and an accumulator below 0."""
        _check_rate(self.learning_rate, "Adagrad")
        if not 0 <= self.initial_accumulator < float("inf"):
            raise UsageError(f"initial_accumulator = {self.initial_accumulator!r} is below 0", where="Adagrad")

    @property
    def slots(self) -> Mapping[str, float]:
        """One accumulator per element, and what it starts from."""
        return MappingProxyType({"accumulator": float(self.initial_accumulator)})

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and accumulators [N, width] from the summed gradients [N, width]."""
        import jax.numpy as jnp

        accumulator = slots["accumulator"] + gradient * gradient
        safe = jnp.where(accumulator > 0, accumulator, 1)
        return rows - rate * gradient / jnp.sqrt(safe), {"accumulator": accumulator}


Optimizer: TypeAlias = SGD | Adagrad


def learning_rate_at(optimizer: Optimizer, step: Any) -> Any:
    """The rate of one step: the schedule's value, or the constant."""
    return optimizer.learning_rate(step) if callable(optimizer.learning_rate) else optimizer.learning_rate
