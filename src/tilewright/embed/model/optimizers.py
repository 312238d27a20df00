"""Optimizers of embedding tables: what an update does with the summed gradient of each touched row.

They are frozen values: hashable, so that they can be static arguments of a jitted step. Formulas, slots and the order
of operations are those of jax-tpu-embedding 0.2.0, but for :class:`RowwiseAdagrad`, which it does not have. Where one
of its formulas divides 0 by 0, because every gradient so far was 0, the element stays as it is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from tilewright.errors import UsageError, true_or_false

Schedule: TypeAlias = Callable[..., Any]
"""A hyper-parameter as a function of the step number, traceable by jax, such as an optax schedule."""

Rate: TypeAlias = float | Schedule


class RowOptimizer(Protocol):
    """What a :class:`Table` takes as its optimizer: one of ours, or a user's own. It must be hashable.

    Two things it may leave out::

        hyperparameters(step) -> (f32[], ...)    what apply gets of one step; without it the learning rate alone
        slot_widths = {slot: 1}                  slots of one number per row instead of one per element

    With ``slot_widths`` the optimizer looks at whole rows: ``apply`` gets them in the table's own width (otherwise
    padded with zeros to a multiple of 8 floats), and only tables of one width share a stack.
    """

    @property
    def learning_rate(self) -> Any:
        """A number, or a function of the step."""

    @property
    def slots(self) -> Mapping[str, float]:
        """What is kept for every element (or row) beside it: slot -> the value it starts from."""

    def apply(self, rows: Any, slots: Any, gradient: Any, rate: Any, /) -> tuple[Any, Any]:
        """New rows [N, width] and slots from the rows, their slots and the summed gradients [N, width].

        ``rate`` is the one hyper-parameter of the step; a tuple of them where ``hyperparameters`` gives several.
        """


Optimizer: TypeAlias = RowOptimizer


def learning_rate_at(optimizer: Optimizer, step: Any) -> Any:
    """The rate of one step: the schedule's value, or the constant."""
    return _at(optimizer.learning_rate, step)


def hyperparameters_at(optimizer: Optimizer, step: Any) -> Any:
    """What ``optimizer.apply`` gets as ``rate``: f32[] where there is one hyper-parameter, else a tuple of them.

    >>> float(hyperparameters_at(SGD(0.5), 7)), len(hyperparameters_at(Adam(0.5), 7))
    (0.5, 4)
    """
    import jax.numpy as jnp

    several = getattr(optimizer, "hyperparameters", None)
    values = (learning_rate_at(optimizer, step),) if several is None else several(step)
    scalars = tuple(jnp.asarray(value, jnp.float32) for value in values)
    return scalars[0] if len(scalars) == 1 else scalars


def by_row(optimizer: Optimizer) -> bool:
    """Whether the optimizer looks at whole rows, so that their padding must be kept from it."""
    return bool(getattr(optimizer, "slot_widths", None))


def slot_width(optimizer: Optimizer, slot: str, width: int) -> int:
    """Floats that ``slot`` takes for a row of ``width``.

    >>> slot_width(Adagrad(0.1), "accumulator", 16), slot_width(RowwiseAdagrad(0.1), "accumulator", 16)
    (16, 1)
    """
    return int(getattr(optimizer, "slot_widths", {}).get(slot, width))


def _at(value: Any, step: Any) -> Any:
    """A number as it is; of a schedule the step's value. One without parameters is asked each time, as a spec's is."""
    if not callable(value):
        return value
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):  # a callable that does not say
        return value(step)
    return value(step) if parameters else value()


def _check(optimizer: Any, name: str, low: float = 0.0, below: float = float("inf"), schedule: bool = True) -> None:
    """Field ``name`` is a number of ``low`` to ``below``, that one left out, or a schedule where one may stand."""
    value = getattr(optimizer, name)
    if schedule and callable(value):
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < below:
        least = "" if low == -float("inf") else f" of at least {low:g}"
        most = "" if below == float("inf") else f", below {below:g}"
        how = f"give a number{least}{most}" + (" or a function of the step" if schedule else "")
        raise UsageError(f"{name} = {value!r}", where=type(optimizer).__name__, how=how)


def _check_flag(optimizer: Any, name: str) -> None:
    flag = true_or_false(getattr(optimizer, name), name, type(optimizer).__name__)
    object.__setattr__(optimizer, name, flag)


def _over(numerator: Any, denominator: Any) -> Any:
    """The quotient; the numerator where the denominator is 0."""
    import jax.numpy as jnp

    return numerator / jnp.where(denominator == 0, 1, denominator)


def _constant(values: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType({name: float(value) for name, value in values.items()})


_NO_SLOTS: Mapping[str, float] = MappingProxyType({})
_ONE_PER_ROW: Mapping[str, int] = MappingProxyType({"accumulator": 1})


@dataclass(frozen=True)
class SGD:
    """``w -= learning_rate * g`` on the touched rows. ``learning_rate`` is a number or a schedule of the step.

    >>> SGD(0.5).apply(rows=3.0, slots={}, gradient=2.0, rate=0.5)
    (2.0, {})
    """

    learning_rate: Rate = 0.01

    def __post_init__(self) -> None:
        """Refuse a rate that is neither a number nor a schedule."""
        _check(self, "learning_rate")

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

    learning_rate: Rate = 0.01
    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a wrong rate, and an accumulator below 0."""
        _check(self, "learning_rate")
        _check(self, "initial_accumulator", schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """One accumulator per element, and what it starts from."""
        return _constant({"accumulator": self.initial_accumulator})

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and accumulators [N, width] from the summed gradients [N, width]."""
        import jax.numpy as jnp

        accumulator = slots["accumulator"] + gradient * gradient
        safe = jnp.where(accumulator > 0, accumulator, 1)
        return rows - rate * gradient / jnp.sqrt(safe), {"accumulator": accumulator}


@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator per row: ``acc += mean(g * g); w -= learning_rate * g / sqrt(acc)``.

    The mean is over the floats of a row, without padding, as in FBGEMM's (whose ``eps`` is 0 here).
    """

    learning_rate: Rate = 0.01
    initial_accumulator: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a wrong rate, and an accumulator below 0."""
        _check(self, "learning_rate")
        _check(self, "initial_accumulator", schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """One accumulator, and what it starts from."""
        return _constant({"accumulator": self.initial_accumulator})

    @property
    def slot_widths(self) -> Mapping[str, int]:
        """One number per row."""
        return _ONE_PER_ROW

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows [N, width] and accumulators [N, 1] from the summed gradients [N, width]."""
        import jax.numpy as jnp

        squares = jnp.sum(gradient * gradient, axis=-1, keepdims=True) / gradient.shape[-1]
        accumulator = slots["accumulator"] + squares
        return rows - _over(rate * gradient, jnp.sqrt(accumulator)), {"accumulator": accumulator}


@dataclass(frozen=True)
class AdagradMomentum:
    """Adagrad whose scaled gradients gather momentum::

    acc = acc + g * g                                 (beta2 = 1; otherwise beta2 * acc + (1 - beta2) * g * g)
    s   = g * (acc + epsilon) ** (-1 / exponent)
    m   = momentum * m + s
    w   = w - learning_rate * m                       (use_nesterov: momentum * m + s in place of m)
    """

    learning_rate: Rate = 0.001
    momentum: Rate = 0.9
    beta2: Rate = 1.0
    epsilon: Rate = 1e-10
    exponent: Rate = 2.0
    use_nesterov: bool = False
    initial_accumulator: float = 0.1
    initial_momentum: float = 0.0

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range."""
        for name in ("learning_rate", "momentum", "epsilon"):
            _check(self, name)
        _check(self, "beta2", below=1 + 2**-23)
        _check(self, "exponent", low=2**-20)
        _check_flag(self, "use_nesterov")
        _check(self, "initial_accumulator", schedule=False)
        _check(self, "initial_momentum", low=-float("inf"), schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """Two per element."""
        return _constant({"accumulator": self.initial_accumulator, "momentum": self.initial_momentum})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, momentum, beta2, epsilon, exponent."""
        fields = self.learning_rate, self.momentum, self.beta2, self.epsilon, self.exponent
        return tuple(_at(value, step) for value in fields)

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and slots [N, width]."""
        import jax.numpy as jnp

        learning_rate, keep, beta2, epsilon, exponent = rate
        square, old = gradient * gradient, slots["accumulator"]
        accumulator = jnp.where(beta2 == 1, old + square, beta2 * old + (1 - beta2) * square)
        base = accumulator + epsilon
        scaled = jnp.where(base == 0, 0, _power(base, -1 / exponent)) * gradient
        momentum = keep * slots["momentum"] + scaled
        step = keep * momentum + scaled if self.use_nesterov else momentum
        return rows - learning_rate * step, {"accumulator": accumulator, "momentum": momentum}


@dataclass(frozen=True)
class Adam:
    """Adam, lazily: moments of rows that a step does not touch stay as they are::

    m += (1 - b1) * (g - m);  v += (1 - b2) * (g * g - v);  c = sqrt(1 - b2 ** t)        t = step + 1
    w -= learning_rate * c / (1 - b1 ** t) * m / (sqrt(v) + epsilon * c)
    """

    learning_rate: Rate = 0.001
    b1: Rate = 0.9
    b2: Rate = 0.999
    epsilon: Rate = 1e-8

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range."""
        _check_moments(self)

    @property
    def slots(self) -> Mapping[str, float]:
        """Both moments of every element."""
        return _constant({"momentum": 0, "velocity": 0})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """The learning rate with both corrections, b1, b2, the corrected epsilon."""
        import jax.numpy as jnp

        given = self.learning_rate, self.b1, self.b2, self.epsilon
        rate, b1, b2, epsilon = (jnp.asarray(_at(value, step), jnp.float32) for value in given)
        correction = jnp.sqrt(1.0 - _power(b2, step + 1))
        return rate * correction / (1.0 - _power(b1, step + 1)), b1, b2, epsilon * correction

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and moments [N, width]."""
        import jax.numpy as jnp

        learning_rate, b1, b2, epsilon = rate
        momentum = slots["momentum"] + (1 - b1) * (gradient - slots["momentum"])
        velocity = slots["velocity"] + (1 - b2) * (gradient * gradient - slots["velocity"])
        step = _over(learning_rate * momentum, jnp.sqrt(velocity) + epsilon)
        return rows - step, {"momentum": momentum, "velocity": velocity}


@dataclass(frozen=True)
class FTRL:
    """Follow the regularised leader; a row is made anew from its slots, wherever it started::

        p = acc ** -power;  acc += g * g;  q = acc ** -power                            power: learning_rate_power
        z += g - (q - p) / learning_rate * w
        w  = (clip(z, -l1, l1) - z) / ((q + beta) / learning_rate + 2 * l2)

    With ``multiply_linear_by_learning_rate`` z is kept times the learning rate, which may then be 0::

        z += learning_rate * g - (q - p) * w;  l1 = learning_rate * l1_regularization
        w  = (clip(z, -l1, l1) - z) / (q + 2 * learning_rate * l2 + beta)
    """

    learning_rate: Rate = 0.01
    learning_rate_power: Rate = -0.5
    l1_regularization: Rate = 0.0
    l2_regularization: Rate = 0.0
    beta: Rate = 0.0
    initial_accumulator: float = 0.1
    multiply_linear_by_learning_rate: bool = False
    initial_linear: float = 0.0

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range."""
        _check_flag(self, "multiply_linear_by_learning_rate")
        _check(self, "learning_rate", low=0.0 if self.multiply_linear_by_learning_rate else 2.0**-126)
        _check(self, "learning_rate_power", low=-float("inf"), below=2**-126)
        for name in ("l1_regularization", "l2_regularization", "beta"):
            _check(self, name)
        _check(self, "initial_accumulator", schedule=False)
        _check(self, "initial_linear", low=-float("inf"), schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """Two per element."""
        return _constant({"accumulator": self.initial_accumulator, "linear": self.initial_linear})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, its power, l1, l2, beta."""
        strengths = self.l1_regularization, self.l2_regularization, self.beta
        return tuple(_at(value, step) for value in (self.learning_rate, self.learning_rate_power, *strengths))

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and slots [N, width]."""
        import jax.numpy as jnp

        learning_rate, power, l1, l2, beta = rate
        accumulator = slots["accumulator"] + gradient * gradient
        before, after = _power(slots["accumulator"], -power), _power(accumulator, -power)
        if self.multiply_linear_by_learning_rate:
            linear = slots["linear"] + learning_rate * gradient - (after - before) * rows
            bound = l1 * learning_rate
            denominator = after + 2 * (learning_rate * l2) + beta
        else:
            by = jnp.broadcast_to(learning_rate, rows.shape)  # by a scalar XLA would multiply by its reciprocal
            linear = slots["linear"] + gradient - (after - before) / by * rows
            bound = l1
            denominator = (after + beta) / by + 2 * l2
        numerator = jnp.where(l1 == 0, -linear, jnp.clip(linear, -bound, bound) - linear)
        new = jnp.where(denominator == 0, rows, _over(numerator, denominator))
        return new, {"accumulator": accumulator, "linear": linear}


@dataclass(frozen=True)
class LaProp:
    """Adam with momentum behind the scaling, so that b1 and b2 do not disturb one another::

    d   = b2 * (1 - b2 ** t) / (1 - b2 ** (t + 1));  nu = d * nu + (1 - d) * (g * g + epsilon)      t = step
    mu  = b1 * mu + sqrt(1 - b1 ** 2) * g / sqrt(nu)
    w  -= learning_rate * mu
    """

    learning_rate: Rate = 0.001
    b1: Rate = 0.9
    b2: Rate = 0.95
    epsilon: Rate = 1e-30
    initial_slot: float = 0.0

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range."""
        _check_moments(self)
        _check(self, "initial_slot", schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """Two per element."""
        return _constant({"mu": self.initial_slot, "nu": self.initial_slot})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, b1, the decay of this step, epsilon."""
        b2 = _at(self.b2, step)
        decay = b2 * (1.0 - _power(b2, step)) / (1.0 - _power(b2, step + 1))
        return _at(self.learning_rate, step), _at(self.b1, step), decay, _at(self.epsilon, step)

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and slots [N, width]."""
        import jax.numpy as jnp

        learning_rate, b1, decay, epsilon = rate
        nu = slots["nu"] * decay + (1 - decay) * (gradient * gradient + epsilon)
        mu = b1 * slots["mu"] + _power(1 - _power(b1, 2), 0.5) * _over(gradient, jnp.sqrt(nu))
        return rows - learning_rate * mu, {"mu": mu, "nu": nu}


@dataclass(frozen=True)
class F2A:
    """Frequency-aware Adagrad: rows that are seldom seen learn faster; ``n`` counts the steps that touched a row::

    n += 1;  boost = min((max(step, 1) / n) ** rho, max_lr_multiplier);  acc += g * g
    w -= learning_rate * (g * boost / sqrt(acc) + l1 * sign(w) + l2 * w)
    """

    learning_rate: Rate = 0.01
    rho: Rate = 0.5
    l1_regularization: Rate = 0.0
    l2_regularization: Rate = 0.0
    max_lr_multiplier: Rate = 1e6
    initial_accumulator: float = 0.1
    initial_local_step: float = 0.0

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range."""
        for name in ("learning_rate", "rho", "l1_regularization", "l2_regularization", "max_lr_multiplier"):
            _check(self, name)
        _check(self, "initial_accumulator", schedule=False)
        _check(self, "initial_local_step", schedule=False)

    @property
    def slots(self) -> Mapping[str, float]:
        """Two per element; ``local_step`` is the same in all of a row, as the peer keeps it."""
        return _constant({"accumulator": self.initial_accumulator, "local_step": self.initial_local_step})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, rho, l1, l2, the largest boost, the step."""
        strengths = self.l1_regularization, self.l2_regularization, self.max_lr_multiplier
        return *(_at(value, step) for value in (self.learning_rate, self.rho, *strengths)), step

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows and slots [N, width]."""
        import jax.numpy as jnp

        learning_rate, rho, l1, l2, most, step = rate
        seen, accumulator = slots["local_step"] + 1, slots["accumulator"] + gradient * gradient
        boost = jnp.minimum(_power(jnp.maximum(step, 1) / seen, rho), most)
        scaled = _over(gradient * boost, jnp.sqrt(accumulator))
        change = learning_rate * (scaled + (l1 * jnp.sign(rows) + l2 * rows))
        return rows - change, {"accumulator": accumulator, "local_step": seen}


@dataclass(frozen=True)
class Clipped:
    """Another optimizer whose new rows are clipped to ``low .. high``; None leaves a side open. Slots are not clipped.

    The ``embedding_var_limits`` of jax-tpu-embedding, which has no clipping of gradients.

    >>> Clipped(SGD(0.5), low=2.5).apply(3.0, {}, 2.0, 0.5)[0].item()
    2.5
    """

    optimizer: Any
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that are no range."""
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                _check(self, name, low=-float("inf"), schedule=False)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise UsageError(f"low {self.low} is above high {self.high}", where="Clipped")

    @property
    def learning_rate(self) -> Rate:
        """The other's."""
        rate: Rate = self.optimizer.learning_rate
        return rate

    @property
    def slots(self) -> Mapping[str, float]:
        """The other's."""
        slots: Mapping[str, float] = self.optimizer.slots
        return slots

    @property
    def slot_widths(self) -> Mapping[str, int]:
        """The other's."""
        widths: Mapping[str, int] = getattr(self.optimizer, "slot_widths", {})
        return widths

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """The other's."""
        values = hyperparameters_at(self.optimizer, step)
        return values if isinstance(values, tuple) else (values,)

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """The other's new rows, clipped, and its slots."""
        import jax.numpy as jnp

        new, after = self.optimizer.apply(rows, slots, gradient, rate)
        return jnp.clip(new, self.low, self.high), after


def _power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` by the power function itself, whatever the exponent."""
    import jax.numpy as jnp
    from jax import lax

    base, exponent = jnp.broadcast_arrays(jnp.asarray(base, jnp.float32), jnp.asarray(exponent, jnp.float32))
    return lax.pow(base, exponent)


def _check_moments(optimizer: Any) -> None:
    """Decay rates below 1: at 1 the corrections of Adam and LaProp divide by 0."""
    for name in ("learning_rate", "epsilon"):
        _check(optimizer, name)
    for name in ("b1", "b2"):
        _check(optimizer, name, below=1.0)


OPTIMIZERS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "sgd": SGD,
        "adagrad": Adagrad,
        "rowwise_adagrad": RowwiseAdagrad,
        "adagrad_momentum": AdagradMomentum,
        "adam": Adam,
        "ftrl": FTRL,
        "laprop": LaProp,
        "f2a": F2A,
    }
)
"""The optimizers by the short names of jax-tpu-embedding, the command line and TOML files."""


def name_of(optimizer: Optimizer) -> str:
    """Its class, which for :class:`Clipped` is that of the optimizer inside."""
    return name_of(optimizer.optimizer) if isinstance(optimizer, Clipped) else type(optimizer).__name__


def short_name(optimizer: Optimizer) -> str:
    """Its name in :data:`OPTIMIZERS`; of a user's own its class.

    >>> short_name(AdagradMomentum()), short_name(Clipped(SGD(), high=1))
    ('adagrad_momentum', 'sgd')
    """
    name = name_of(optimizer)
    return next((short for short, kind in OPTIMIZERS.items() if kind.__name__ == name), name)
