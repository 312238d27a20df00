"""Two JAX primitives: a call of a traced program, and of a derivative, with every rule that JAX's transformations ask.

``custom_vjp`` would refuse forward mode, ``custom_jvp`` cannot give reverse mode a program of its own, and the linear
call that could is neither batched nor differentiated again. So the call is a primitive: lowering asks the program for
its rewritten form on the platform at hand, a derivative is a linear call whose transpose is again a rewritten program,
and a batch is the call of the batched program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from tilewright.errors import TilewrightError
from tilewright.hlo.execute import array_struct, with_module
from tilewright.hlo.optimization import Optimized, optimize
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.targets import Target

CALL, LINEAR = "tilewright_call", "tilewright_linear_call"


def call(program: TracedProgram, *flat: Any) -> list[Any]:
    """The results of a traced program; where JAX lowers the call, its rewritten form is what runs."""
    results: list[Any] = _primitives()[CALL].bind(*flat, program=program)
    return results


def called_programs(jaxpr: Any) -> list[TracedProgram]:
    """The programs that a jaxpr calls at its top level."""
    return [eqn.params["program"] for eqn in jaxpr.eqns if eqn.primitive.name == CALL]


@cache
def _primitives() -> dict[str, Any]:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching

    primitives: dict[str, Any] = {name: Primitive(name) for name in (CALL, LINEAR)}
    for primitive in primitives.values():
        primitive.multiple_results = True
    plain, linear = primitives[CALL], primitives[LINEAR]
    plain.def_abstract_eval(lambda *_, program: program.out_avals)
    plain.def_impl(lambda *flat, program: _run(program, *flat))
    ad.primitive_jvps[plain] = _push
    batching.fancy_primitive_batchers[plain] = _batch
    linear.def_abstract_eval(lambda *_, map_: map_.out_avals)
    linear.def_impl(lambda *flat, map_: _run(map_.forward(), *flat))
    ad.primitive_jvps[linear] = _push_linear
    ad.primitive_transposes[linear] = _transpose
    batching.fancy_primitive_batchers[linear] = _batch_linear
    _register_lowering(plain, lambda program: program)
    _register_lowering(linear, lambda map_: map_.forward())
    return primitives


def _register_lowering(primitive: Any, program_of: Callable[..., TracedProgram]) -> None:
    """Lower to the program's rewritten form; to the original where several platforms share one module."""
    import jax
    from jax.interpreters import mlir

    def lower(ctx: Any, *flat: Any, **params: Any) -> Any:
        program = program_of(**params)
        platforms = ctx.module_context.platforms
        run = program.on(platforms[0]).call if len(platforms) == 1 else program.original
        with jax.enable_x64(program.wide):
            return mlir.lower_fun(run, multiple_results=True)(ctx, *flat)

    mlir.register_lowering(primitive, lower)


def _run(program: TracedProgram, *flat: Any) -> Any:
    """Outside any trace: compiled, even where the user has disabled jit, as a primitive of JAX is."""
    import jax

    with jax.disable_jit(False), jax.enable_x64(program.wide):
        return program.compiled()(*flat)


def _linear(map_: LinearMap, *flat: Any) -> list[Any]:
    results: list[Any] = _primitives()[LINEAR].bind(*flat, map_=map_)
    return results


def _push(primals: Sequence[Any], tangents: Sequence[Any], *, program: TracedProgram) -> tuple[list[Any], list[Any]]:
    outs = call(program, *primals)
    return outs, _tangents(outs, program, primals, tangents)


def _tangents(
    outs: Sequence[Any], program: TracedProgram, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """The tangents of a program's results: zero for those that are not inexact, or if nothing is active."""
    from jax.interpreters.ad import Zero

    active = [i for i, tangent in enumerate(tangents) if type(tangent) is not Zero and is_inexact(primals[i])]
    moved = iter(_linear(program.derivative(active), *primals, *(tangents[i] for i in active)) if active else ())
    return [next(moved) if active and is_inexact(out) else _zero(out) for out in outs]


def _push_linear(primals: Sequence[Any], tangents: Sequence[Any], *, map_: LinearMap) -> tuple[list[Any], list[Any]]:
    """A linear map is its own derivative by its tangents; by its residuals it is a program like any other."""
    from jax.interpreters.ad import Zero, instantiate_zeros

    n = map_.residuals
    outs = _linear(map_, *primals)
    result: list[Any] = [_zero(out) for out in outs]
    if any(type(t) is not Zero for t in tangents[n:]):
        result = _linear(map_, *primals[:n], *map(instantiate_zeros, tangents[n:]))
    if any(type(t) is not Zero for t in tangents[:n]):
        still = [_zero(p) for p in primals[n:]]
        moved = _tangents(outs, map_.forward(), primals, [*tangents[:n], *still])
        result = [_sum(a, b) for a, b in zip(result, moved)]
    return outs, result


def _transpose(cotangents: Sequence[Any], *flat: Any, map_: LinearMap) -> list[Any]:
    from jax.interpreters.ad import Zero

    n = map_.residuals
    present = [type(c) is not Zero for c in cotangents]
    if not any(present):
        return [None] * len(flat)
    backward = map_.transposed(present)
    results = call(backward, *flat[:n], *(c for c, is_present in zip(cotangents, present) if is_present))
    return [None] * n + list(results)


def _batch(axis: Any, flat: Sequence[Any], dims: Sequence[Any], *, program: TracedProgram) -> tuple[Any, Any]:
    axes = _axes(dims)
    outs = call(program.batched(axis.size, axes) if _any(axes) else program, *flat)
    return outs, [0 if _any(axes) else None] * len(outs)


def _batch_linear(axis: Any, flat: Sequence[Any], dims: Sequence[Any], *, map_: LinearMap) -> tuple[Any, Any]:
    axes = _axes(dims)
    outs = _linear(map_.batched(axis.size, axes) if _any(axes) else map_, *flat)
    return outs, [0 if _any(axes) else None] * len(outs)


def _zero(primal: Any) -> Any:
    """The tangent of a constant; its type is float0 for integers."""
    import jax
    from jax.interpreters.ad import Zero

    return Zero(jax.typeof(primal).to_tangent_aval())


def _sum(a: Any, b: Any) -> Any:
    from jax.interpreters import ad

    add: Any = ad.add_tangents
    return add(a, b)


def _any(axes: Sequence[int | None]) -> bool:
    """Whether anything is batched: JAX asks for this rule even if nothing is."""
    return any(axis is not None for axis in axes)


def _axes(dims: Sequence[Any]) -> list[int | None]:
    """JAX's batch dims as ``in_axes``; None for what is not batched."""
    return [dim if isinstance(dim, int) else None for dim in dims]


# A function of arrays, traced once: its rewritten form for each platform, and the programs derived from it.

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

    def pullback(self, active: Sequence[int], present: Sequence[bool]) -> TracedProgram:
        """(arguments, cotangents of the ``present`` inexact results) -> cotangents of the active arguments."""
        import jax

        count = len(self.in_avals)
        outputs = self.smooth_outputs()

        def pull(*flat: Any) -> Sequence[Any]:
            smooth = self._smooth_part(flat[:count], active, present)
            return jax.vjp(smooth, *(flat[i] for i in active))[1](tuple(flat[count:]))  # type: ignore[no-any-return]

        specs = [*self.in_avals, *(out for out, is_present in zip(outputs, present) if is_present)]
        return self._once(("pull", tuple(active), tuple(present)), lambda: self._derive(pull, specs))

    def derivative(self, active: Sequence[int]) -> LinearMap:
        """The derivative with respect to some arguments, at all of them."""

        def derive() -> LinearMap:
            outs = [aval.to_tangent_aval() for aval in self.smooth_outputs()]
            forward, transposed = lambda: self.pushforward(active), lambda present: self.pullback(active, present)
            return LinearMap(len(self.in_avals), outs, forward, transposed)

        return self._once(("derivative", tuple(active)), derive)

    def smooth_outputs(self) -> list[Any]:
        """The results that have derivatives: floating and complex ones."""
        return [aval for aval in self.out_avals if is_inexact(aval)]

    def _smooth_part(self, inputs: Sequence[Any], active: Sequence[int], present: Sequence[bool] | None = None) -> Flat:
        """The inexact results (those ``present``) as a function of the active arguments."""

        def smooth(*chosen: Any) -> tuple[Any, ...]:
            arguments = list(inputs)
            for index, value in zip(active, chosen):
                arguments[index] = value
            outputs = [out for out, aval in zip(self.original(*arguments), self.out_avals) if is_inexact(aval)]
            return tuple(out for out, is_present in zip(outputs, present or [True] * len(outputs)) if is_present)

        return smooth

    def _derive(self, fn: Flat, specs: Sequence[Any]) -> TracedProgram:
        return TracedProgram.trace(fn, specs, self.settings)

    def _once(self, key: Any, make: Callable[[], Made]) -> Made:
        import jax

        if key not in self._derived:
            with jax.enable_x64(self.wide):
                self._derived[key] = make()
        value: Made = self._derived[key]
        return value


@dataclass(eq=False)
class LinearMap:
    """A linear function of arrays that depends on residuals, and its transpose: both made only when needed.

    ``forward()`` is the program (residuals, tangents) -> results; ``transposed(present)`` the program (residuals,
    cotangents of the results that are present) -> cotangents.
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
                lambda present: _batched_transpose(self.transposed(present), size, axes, self.residuals, sum(present)),
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
        specs = [array_struct(aval.shape, aval.dtype) for aval in program.in_avals]
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
    return array_struct(aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def _with_axis(value: Any, size: int, axis: int | None) -> Any:
    """The shape of a batch of arrays like ``value``, the batch along ``axis``."""
    if axis is None:
        return struct_of(value)
    return array_struct((*value.shape[:axis], size, *value.shape[axis:]), value.dtype)


def is_inexact(value: Any) -> bool:
    """Whether an array has floating or complex elements."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
