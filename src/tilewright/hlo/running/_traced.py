"""A function of arrays, traced once: its rewritten form for each platform, and the programs derived from it.

Derivatives and batches are programs of their own, derived from the ORIGINAL trace and rewritten likewise; what is
never lowered is never rewritten. Nothing here changes what JAX caches: a rewritten module is a new module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.errors import TilewrightError
from tilewright.hlo._optimize import Optimized, optimize
from tilewright.hlo.reading._mlir_reader import read_stablehlo
from tilewright.hlo.running._execute import with_module
from tilewright.targets import Target

__all__ = ["LinearMap", "Rewritten", "Settings", "TracedProgram", "is_inexact", "struct_of"]

Flat = Callable[..., Sequence[Any]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Settings:
    """How programs are rewritten; the same for a function and everything derived from it."""

    target: Target
    allow_reassociation: bool = True
    verify: bool = False


@dataclass(frozen=True)
class Rewritten:
    """What became of a program on a platform: ``call`` is the original where ``fallback`` gives a reason."""

    call: Flat
    fallback: str
    optimized: Optimized | None


@dataclass(eq=False)
class TracedProgram:
    """A closed jaxpr, a function of arrays that returns a list of arrays; compared by identity.

    ``owner`` is the function it was traced from, None for a derived one; ``wide`` says whether 64-bit types were on
    then: what is made of it later is made likewise.
    """

    jaxpr: Any
    settings: Settings
    owner: Any = None
    wide: bool = field(default_factory=lambda: _x64_enabled())
    _derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def trace(cls, fn: Flat, specs: Sequence[Any], settings: Settings) -> TracedProgram:
        """Trace ``fn`` on arguments like ``specs`` (anything that has a shape and a dtype)."""
        import jax

        return cls(jax.make_jaxpr(fn)(*map(struct_of, specs)), settings)

    @property
    def in_avals(self) -> list[Any]:
        """Shape and type of every argument."""
        return list(self.jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        """Shape and type of every result."""
        return list(self.jaxpr.out_avals)

    @property
    def original(self) -> Flat:
        """The program as traced, as a function for ``jax.jit``."""
        from jax.extend.core import jaxpr_as_fun

        call: Flat = jaxpr_as_fun(self.jaxpr)
        return call

    def on(self, platform: str) -> Rewritten:
        """The program rewritten for a platform of JAX (``cpu``, ``cuda``, ``tpu``); made once."""
        return self._once(("on", platform), lambda: _rewrite(self, platform))

    def compiled(self) -> Any:
        """A jitted function of the arguments, for calls outside any trace."""
        import jax

        from tilewright.hlo.running._call import call

        return self._once("compiled", lambda: jax.jit(lambda *flat: call(self, *flat)))

    def batched(self, size: int, axes: Sequence[int | None]) -> TracedProgram:
        """The program over ``size`` arguments at once, batched along ``axes``; every result along its first axis."""
        import jax

        def derive() -> TracedProgram:
            specs = [_with_axis(aval, size, axis) for aval, axis in zip(self.in_avals, axes)]
            return self._derive(jax.vmap(self.original, tuple(axes), axis_size=size), specs)

        return self._once(("batched", size, tuple(axes)), derive)

    def pushforward(self, active: Sequence[int]) -> TracedProgram:
        """(arguments, tangents of the active ones) -> tangents of the inexact results."""
        import jax

        count = len(self.in_avals)

        def push(*flat: Any) -> Sequence[Any]:
            smooth = self._smooth_part(flat[:count], active)
            return list(jax.jvp(smooth, tuple(flat[i] for i in active), tuple(flat[count:]))[1])

        specs = [*self.in_avals, *(self.in_avals[i] for i in active)]
        return self._once(("push", tuple(active)), lambda: self._derive(push, specs))

    def pullback(self, active: Sequence[int], given: Sequence[bool]) -> TracedProgram:
        """(arguments, cotangents of the ``given`` inexact results) -> cotangents of the active arguments."""
        import jax

        count = len(self.in_avals)
        outputs = self.smooth_outputs()

        def pull(*flat: Any) -> Sequence[Any]:
            smooth = self._smooth_part(flat[:count], active, given)
            return jax.vjp(smooth, *(flat[i] for i in active))[1](tuple(flat[count:]))  # type: ignore[no-any-return]

        specs = [*self.in_avals, *(out for out, wanted in zip(outputs, given) if wanted)]
        return self._once(("pull", tuple(active), tuple(given)), lambda: self._derive(pull, specs))

    def derivative(self, active: Sequence[int]) -> LinearMap:
        """The derivative with respect to some arguments, at all of them."""

        def derive() -> LinearMap:
            outs = [aval.to_tangent_aval() for aval in self.smooth_outputs()]
            forward, transposed = lambda: self.pushforward(active), lambda given: self.pullback(active, given)
            return LinearMap(len(self.in_avals), outs, forward, transposed)

        return self._once(("derivative", tuple(active)), derive)

    def smooth_outputs(self) -> list[Any]:
        """The results that have derivatives: floating and complex ones."""
        return [aval for aval in self.out_avals if is_inexact(aval)]

    def _smooth_part(self, inputs: Sequence[Any], active: Sequence[int], given: Sequence[bool] | None = None) -> Flat:
        """The inexact results (the given ones among them) as a function of the active arguments."""

        def smooth(*chosen: Any) -> tuple[Any, ...]:
            arguments = list(inputs)
            for index, value in zip(active, chosen):
                arguments[index] = value
            found = [out for out, aval in zip(self.original(*arguments), self.out_avals) if is_inexact(aval)]
            return tuple(out for out, wanted in zip(found, given or [True] * len(found)) if wanted)

        return smooth

    def _derive(self, fn: Flat, specs: Sequence[Any]) -> TracedProgram:
        return TracedProgram.trace(fn, specs, self.settings)

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        import jax

        if key not in self._derived:
            with jax.enable_x64(self.wide):
                self._derived[key] = make()
        found: Made = self._derived[key]
        return found


@dataclass(eq=False)
class LinearMap:
    """A linear function of arrays that depends on residuals, and its transpose: both made only when needed.

    ``forward()`` is the program (residuals, tangents) -> results; ``transposed(given)`` the program (residuals,
    cotangents of the given results) -> cotangents.
    """

    residuals: int
    out_avals: list[Any]
    forward: Callable[[], TracedProgram]
    transposed: Callable[[Sequence[bool]], TracedProgram]
    _batches: dict[Any, LinearMap] = field(default_factory=dict, repr=False)

    def batched(self, size: int, axes: Sequence[int | None]) -> LinearMap:
        """The same over a batch; what the batch shares gets the sum of its cotangents."""
        key = (size, tuple(axes))
        if key not in self._batches:
            outs = [aval.update(shape=(size, *aval.shape), weak_type=False) for aval in self.out_avals]
            self._batches[key] = LinearMap(
                self.residuals,
                outs,
                lambda: self.forward().batched(size, axes),
                lambda given: _batched_transpose(self.transposed(given), size, axes, self.residuals, sum(given)),
            )
        return self._batches[key]


def _batched_transpose(
    base: TracedProgram, size: int, axes: Sequence[int | None], residuals: int, cotangents: int
) -> TracedProgram:
    import jax
    import jax.numpy as jnp

    inner = (*axes[:residuals], *[0] * cotangents)
    specs = [_with_axis(aval, size, axis) for aval, axis in zip(base.in_avals, inner)]

    def summed(*flat: Any) -> list[Any]:
        stacked = jax.vmap(base.original, inner, axis_size=size)(*flat)
        return [
            out.sum(0) if axis is None else jnp.moveaxis(out, 0, axis) for out, axis in zip(stacked, axes[residuals:])
        ]

    with jax.enable_x64(base.wide):
        return TracedProgram.trace(summed, specs, base.settings)


def _rewrite(program: TracedProgram, platform: str) -> Rewritten:
    import jax
    from jax import export

    settings = program.settings

    def fallback(reason: str, optimized: Optimized | None = None) -> Rewritten:
        return Rewritten(program.original, reason, optimized)

    try:
        specs = [_strong(aval.shape, aval.dtype) for aval in program.in_avals]
        exported = export.export(jax.jit(program.original), platforms=(platform,))(*specs)
    except Exception as error:  # the original is called instead: a fault of the user's own shows there
        return fallback(f"JAX cannot export it ({_first_line(error)})")
    if exported.nr_devices != 1 and _constrains(
        exported.mlir_module()
    ):  # in its caller JAX sees the constraints, and then how many devices to compile for
        return fallback(f"it names shardings over {exported.nr_devices} devices (with_sharding_constraint)")
    try:
        optimized = optimize(
            read_stablehlo(exported.mlir_module()), settings.target, settings.allow_reassociation, settings.verify
        )
        call = with_module(exported, optimized.text).call if optimized.rewrites else None
    except TilewrightError as error:
        return fallback(f"it cannot be rewritten ({error})")
    except Exception as error:  # a fault of ours or of the bindings must never break the user's function
        return fallback(f"it cannot be rewritten ({type(error).__name__}: {error})")
    if call is None:
        return fallback(f"no region of it gains on {settings.target.name}", optimized)
    return Rewritten(call, "", optimized)


def _constrains(text: str) -> bool:
    """Whether a module constrains the shardings of values inside of it, in either of XLA's two notations."""
    return "sdy.sharding_constraint" in text or "@Sharding" in text


def _x64_enabled() -> bool:
    """Whether 64-bit types are enabled here."""
    import jax

    config: Any = jax.config
    return bool(config.jax_enable_x64)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def struct_of(value: Any) -> Any:
    """The ``jax.ShapeDtypeStruct`` of an array, a tracer or an abstract value; weak types stay weak."""
    import jax

    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    aval = value if hasattr(value, "to_tangent_aval") else jax.typeof(value)
    struct: Any = jax.ShapeDtypeStruct
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _with_axis(value: Any, size: int, axis: int | None) -> Any:
    """The shape of a batch of arrays like ``value``, the batch along ``axis``."""
    return struct_of(value) if axis is None else _strong((*value.shape[:axis], size, *value.shape[axis:]), value.dtype)


def _strong(shape: Sequence[int], dtype: Any) -> Any:
    import jax

    struct: Any = jax.ShapeDtypeStruct
    return struct(shape, dtype)


def is_inexact(value: Any) -> bool:
    """Whether an array has floating or complex elements."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
