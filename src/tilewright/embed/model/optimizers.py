"""Optimizers of embedding tables: what an update does with the summed gradient of each touched row.

They are frozen values: hashable, so that they can be static arguments of a jitted step. Formulas, slots and the order
of operations are those of jax-tpu-embedding 0.2.0, but for :class:`RowwiseAdagrad`, which it does not have. Where one
of its formulas divides 0 by 0, because every gradient so far was 0, the element stays as it is here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

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


def hyperparameters_at(optimizer: Optimizer, step: Any) -> Any:
    """What ``optimizer.apply`` gets as ``rate``: f32[] where there is one hyper-parameter, else a tuple of them.

    >>> float(hyperparameters_at(SGD(0.5), 7)), len(hyperparameters_at(Adam(0.5), 7))
    (0.5, 4)
    """
    import jax.numpy as jnp

    several = getattr(optimizer, "hyperparameters", None)
    values = (_at(optimizer.learning_rate, step),) if several is None else several(step)
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


def _over(numerator: Any, denominator: Any) -> Any:
    """The quotient; the numerator where the denominator is 0."""
    import jax.numpy as jnp

    return numerator / jnp.where(denominator == 0, 1, denominator)


_ANY = -math.inf
_BELOW_1: Mapping[str, tuple[float, float]] = MappingProxyType({"b1": (0.0, 1.0), "b2": (0.0, 1.0)})
"""Decay rates of moments: at 1 the corrections of Adam and LaProp divide by 0."""


class _Rule:
    """What our optimizers share: a subclass is a frozen dataclass of its hyper-parameters, and a formula.

    A field ``initial_SLOT`` is what that slot starts from (0 without one), ``initial_slot`` all of them; of all others
    that are numbers a schedule may stand in place.
    """

    SLOTS: ClassVar[tuple[str, ...]] = ()
    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Field -> (least, bound above, itself left out), where that is not all from 0 on."""

    def __post_init__(self) -> None:
        for part in fields(self):  # type: ignore[arg-type]
            if isinstance(part.default, bool):
                flag = true_or_false(getattr(self, part.name), part.name, type(self).__name__)
                object.__setattr__(self, part.name, flag)
            else:
                low, below = self.RANGES.get(part.name, (0.0, math.inf))
                _check(self, part.name, low, below, schedule=not part.name.startswith("initial_"))

    @property
    def slots(self) -> Mapping[str, float]:
        """What is kept for every element beside it: slot -> the value it starts from."""
        every = getattr(self, "initial_slot", 0.0)
        return MappingProxyType({slot: float(getattr(self, f"initial_{slot}", every)) for slot in self.SLOTS})

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """What ``apply`` gets of one step: numbers in the order of the fields, schedules by their value."""
        given: Any = [f for f in fields(self) if not isinstance(f.default, bool)]  # type: ignore[arg-type]
        return tuple(_at(getattr(self, f.name), step) for f in given if not f.name.startswith("initial_"))

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        """New rows [N, width] and slots from the summed gradients [N, width].

        ``rate`` is what :func:`hyperparameters_at` gives for the step.
        """
        import jax.numpy as jnp

        rates = rate if isinstance(rate, tuple) else (rate,)
        new, *fresh = self._formula(jnp, rows, gradient, *(slots[slot] for slot in self.SLOTS), *rates)
        return new, dict(zip(self.SLOTS, fresh))

    def _formula(self, *operands: Any, **_: Any) -> tuple[Any, ...]:
        """(jax.numpy, rows, gradient, slots, hyper-parameters) -> new rows and slots."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(_Rule):
    """``w -= learning_rate * g`` on the touched rows. ``learning_rate`` is a number or a schedule of the step.

    >>> SGD(0.5).apply(rows=3.0, slots={}, gradient=2.0, rate=0.5)
    (2.0, {})
    """

    learning_rate: Rate = 0.01

    def _formula(self, jnp: Any, w: Any, g: Any, rate: Any) -> tuple[Any, ...]:
        return (w - rate * g,)


@dataclass(frozen=True)
class Adagrad(_Rule):
    """``acc += g * g; w -= learning_rate * g / sqrt(acc)`` on the touched rows, element by element.

    ``acc`` starts at ``initial_accumulator`` (0.1, as in jax-tpu-embedding). Where ``acc`` is still 0, ``g`` has been
    0 all along and the element stays as it is.
    """

    learning_rate: Rate = 0.01
    initial_accumulator: float = 0.1

    SLOTS = ("accumulator",)

    def _formula(self, jnp: Any, w: Any, g: Any, accumulator: Any, rate: Any) -> tuple[Any, ...]:
        accumulator = accumulator + g * g
        return w - rate * g / jnp.sqrt(jnp.where(accumulator > 0, accumulator, 1)), accumulator


@dataclass(frozen=True)
class RowwiseAdagrad(_Rule):
    """Adagrad with one accumulator per row: ``acc += mean(g * g); w -= learning_rate * g / sqrt(acc)``.

    The mean is over the floats of a row, without padding, as in FBGEMM's (whose ``eps`` is 0 here).
    """

    learning_rate: Rate = 0.01
    initial_accumulator: float = 0.1

    SLOTS = ("accumulator",)
    slot_widths: ClassVar[Mapping[str, int]] = MappingProxyType({"accumulator": 1})

    def _formula(self, jnp: Any, w: Any, g: Any, accumulator: Any, rate: Any) -> tuple[Any, ...]:
        accumulator = accumulator + jnp.sum(g * g, axis=-1, keepdims=True) / g.shape[-1]
        return w - _over(rate * g, jnp.sqrt(accumulator)), accumulator


@dataclass(frozen=True)
class AdagradMomentum(_Rule):
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

    SLOTS = ("accumulator", "momentum")
    RANGES: ClassVar = {
        "beta2": (0.0, 1 + 2**-23),
        "exponent": (2**-20, math.inf),
        "initial_momentum": (_ANY, math.inf),
    }

    def _formula(self, jnp: Any, w: Any, g: Any, old: Any, m: Any, *rates: Any) -> tuple[Any, ...]:
        rate, keep, beta2, epsilon, exponent, *others = rates
        (use_nesterov,) = others or (self.use_nesterov,)  # an operand of the peer's primitive
        square = g * g
        accumulator = jnp.where(beta2 == 1, old + square, beta2 * old + (1 - beta2) * square)
        base = accumulator + epsilon
        scaled = jnp.where(base == 0, 0, _power(base, -1 / exponent)) * g
        momentum = keep * m + scaled
        step = jnp.where(use_nesterov, keep * momentum + scaled, momentum)
        return w - rate * step, accumulator, momentum


@dataclass(frozen=True)
class Adam(_Rule):
    """Adam, lazily: moments of rows that a step does not touch stay as they are::

    m += (1 - b1) * (g - m);  v += (1 - b2) * (g * g - v);  c = sqrt(1 - b2 ** t)        t = step + 1
    w -= learning_rate * c / (1 - b1 ** t) * m / (sqrt(v) + epsilon * c)
    """

    learning_rate: Rate = 0.001
    b1: Rate = 0.9
    b2: Rate = 0.999
    epsilon: Rate = 1e-8

    SLOTS = ("momentum", "velocity")
    RANGES = _BELOW_1

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """The learning rate with both corrections, b1, b2, the corrected epsilon."""
        import jax.numpy as jnp

        rate, b1, b2, epsilon = (jnp.asarray(value, jnp.float32) for value in super().hyperparameters(step))
        correction = jnp.sqrt(1.0 - _power(b2, step + 1))
        return rate * correction / (1.0 - _power(b1, step + 1)), b1, b2, epsilon * correction

    def _formula(
        self, jnp: Any, w: Any, g: Any, m: Any, v: Any, rate: Any, b1: Any, b2: Any, epsilon: Any
    ) -> tuple[Any, ...]:
        m, v = m + (1 - b1) * (g - m), v + (1 - b2) * (g * g - v)
        return w - _over(rate * m, jnp.sqrt(v) + epsilon), m, v


@dataclass(frozen=True)
class FTRL(_Rule):
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

    SLOTS = ("accumulator", "linear")
    RANGES: ClassVar = {"learning_rate_power": (_ANY, 2**-126), "initial_linear": (_ANY, math.inf)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.multiply_linear_by_learning_rate:
            _check(self, "learning_rate", low=2.0**-126)

    def _formula(
        self, jnp: Any, w: Any, g: Any, old: Any, linear: Any, rate: Any, power: Any, l1: Any, l2: Any, beta: Any
    ) -> tuple[Any, ...]:
        accumulator = old + g * g
        before, after = _power(old, -power), _power(accumulator, -power)
        if self.multiply_linear_by_learning_rate:
            linear = linear + rate * g - (after - before) * w
            bound = l1 * rate
            denominator = after + 2 * (rate * l2) + beta
        else:
            by = jnp.broadcast_to(rate, w.shape)  # by a scalar XLA would multiply by its reciprocal
            linear = linear + g - (after - before) / by * w
            bound = l1
            denominator = (after + beta) / by + 2 * l2
        numerator = jnp.where(l1 == 0, -linear, jnp.clip(linear, -bound, bound) - linear)
        return jnp.where(denominator == 0, w, _over(numerator, denominator)), accumulator, linear


@dataclass(frozen=True)
class LaProp(_Rule):
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

    SLOTS = ("mu", "nu")
    RANGES = _BELOW_1

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, b1, the decay of this step, epsilon."""
        rate, b1, b2, epsilon = super().hyperparameters(step)
        return rate, b1, b2 * (1.0 - _power(b2, step)) / (1.0 - _power(b2, step + 1)), epsilon

    def _formula(
        self, jnp: Any, w: Any, g: Any, mu: Any, nu: Any, rate: Any, b1: Any, decay: Any, epsilon: Any
    ) -> tuple[Any, ...]:
        nu = nu * decay + (1 - decay) * (g * g + epsilon)
        mu = b1 * mu + _power(1 - _power(b1, 2), 0.5) * _over(g, jnp.sqrt(nu))
        return w - rate * mu, mu, nu


@dataclass(frozen=True)
class F2A(_Rule):
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

    SLOTS = ("accumulator", "local_step")

    def hyperparameters(self, step: Any) -> tuple[Any, ...]:
        """Learning rate, rho, l1, l2, the largest boost, the step."""
        return *super().hyperparameters(step), step

    def _formula(
        self, jnp: Any, w: Any, g: Any, acc: Any, n: Any, rate: Any, rho: Any, l1: Any, l2: Any, most: Any, step: Any
    ) -> tuple[Any, ...]:
        acc, n = acc + g * g, n + 1
        boost = jnp.minimum(_power(jnp.maximum(step, 1) / n, rho), most)
        scaled = _over(g * boost, jnp.sqrt(acc))
        return w - rate * (scaled + (l1 * jnp.sign(w) + l2 * w)), acc, n


@dataclass(frozen=True)
class Clipped:
    """Another optimizer whose new rows are clipped to ``low .. high``; None leaves a side open. Slots are not clipped.

    The ``embedding_var_limits`` of jax-tpu-embedding, which has no clipping of gradients.

    >>> Clipped(SGD(0.5), low=2.5).apply(3.0, {}, 2.0, 0.5)[0].item()
    2.5
    """

    optimizer: RowOptimizer
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                _check(self, name, low=-float("inf"), schedule=False)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise UsageError(f"low {self.low} is above high {self.high}", where="Clipped")

    def __getattr__(self, name: str) -> Any:
        """All but ``apply`` is the optimizer's own."""
        if name.startswith("__") or name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def apply(self, rows: Any, slots: Mapping[str, Any], gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        import jax.numpy as jnp

        new, after = self.optimizer.apply(rows, slots, gradient, rate)
        return jnp.clip(new, self.low, self.high), after


def _power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` by the power function itself, whatever the exponent."""
    import jax.numpy as jnp
    from jax import lax

    base, exponent = jnp.broadcast_arrays(jnp.asarray(base, jnp.float32), jnp.asarray(exponent, jnp.float32))
    return lax.pow(base, exponent)


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
