"""``tilewright.optimize``: a JAX function with the same meaning whose programs are rewritten for a target.

For every signature (as ``jax.jit`` sees it: shapes, types, structure, static arguments) the function is traced once
and becomes one call in JAX's eyes, whose rewritten form is made once. Its derivatives and batches are
programs of their own, rewritten likewise.

There is one JAX primitive, a call of a traced program or of a derivative, with every rule that JAX's transformations
ask for. ``custom_vjp`` would refuse forward mode, ``custom_jvp`` cannot give reverse mode a program of its own, and the
linear call that could is neither batched nor differentiated again. So the call is a primitive: lowering asks the
program for its rewritten form on the platform at hand, a derivative is the call of a linear map, whose transpose is
again a rewritten program, and a batch is the call of the batched program.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, ClassVar, TypeVar

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import place
from tilewright.hlo.execute import array_struct, with_module, x64_enabled
from tilewright.hlo.optimization import Optimized, optimize
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.targets import Target
from tilewright.targets import target as find_target

CALL = "tilewright_call"


def call(program: TracedProgram | LinearMap, *flat: Any) -> list[Any]:
    """The results of a traced program; where JAX lowers the call, its rewritten form is what runs."""
    results: list[Any] = _primitive().bind(*flat, program=program)
    return results


_making = threading.Lock()


def _primitive() -> Any:
    """JAX's primitive of ours, made by the first call of the process, whichever thread that is in."""
    with _making:
        return _made_primitive()


@cache
def _made_primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive: Any = Primitive(CALL)
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_, program: program.out_avals)
    primitive.def_impl(lambda *flat, program: _run(program.forward(), *flat))
    ad.primitive_jvps[primitive] = lambda primals, tangents, program: program.push(primals, tangents)
    ad.primitive_transposes[primitive] = _transpose
    batching.fancy_primitive_batchers[primitive] = _batch
    mlir.register_lowering(primitive, _lower)
    return primitive


def _lower(ctx: Any, *flat: Any, program: TracedProgram | LinearMap) -> Any:
    """To the program's rewritten form; to the original where several platforms share one module."""
    import jax
    from jax.interpreters import mlir

    traced, platforms = program.forward(), ctx.module_context.platforms
    run = traced.on(platforms[0]).call if len(platforms) == 1 else traced.original
    with jax.enable_x64(traced.wide):
        return mlir.lower_fun(run, multiple_results=True)(ctx, *flat)


def _run(program: TracedProgram, *flat: Any) -> Any:
    """Outside any trace: compiled, even where the user has disabled jit, as a primitive of JAX is."""
    import jax

    with jax.disable_jit(False), jax.enable_x64(program.wide):
        return program.compiled()(*flat)


def _tangents(
    outs: Sequence[Any], program: TracedProgram, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """The tangents of a program's results: zero for those that are not inexact, or if nothing is active."""
    from jax.interpreters.ad import Zero

    active = [i for i, tangent in enumerate(tangents) if type(tangent) is not Zero and is_inexact(primals[i])]
    moved = iter(call(program.derivative(active), *primals, *(tangents[i] for i in active)) if active else ())
    return [next(moved) if active and is_inexact(out) else _zero(out) for out in outs]


def _transpose(cotangents: Sequence[Any], *flat: Any, program: LinearMap) -> list[Any]:
    from jax.interpreters.ad import Zero

    n = program.residuals
    present = [type(c) is not Zero for c in cotangents]
    if not any(present):
        return [None] * len(flat)
    backward = program.transposed(present)
    results = call(backward, *flat[:n], *(c for c, is_present in zip(cotangents, present) if is_present))
    return [None] * n + list(results)


def _batch(
    axis: Any, flat: Sequence[Any], dims: Sequence[Any], *, program: TracedProgram | LinearMap
) -> tuple[list[Any], list[int | None]]:
    """Results of the batched program, all along their first axis, and JAX's word for that."""
    axes = _axes(dims)  # JAX asks for this rule even if nothing is batched
    outs = call(program if axes is None else program.batched(axis.size, axes), *flat)
    return outs, [None if axes is None else 0] * len(outs)


def _axes(dims: Sequence[Any]) -> list[int | None] | None:
    """JAX's batch dims as ``in_axes``, None for what is not batched; None where nothing is."""
    axes = [dim if isinstance(dim, int) else None for dim in dims]
    return axes if any(axis is not None for axis in axes) else None


def _zero(primal: Any) -> Any:
    """The tangent of a constant; its type is float0 for integers."""
    import jax
    from jax.interpreters.ad import Zero

    return Zero(jax.typeof(primal).to_tangent_aval())


# A function of arrays, traced once: its rewritten form for each platform, and the programs derived from it.

Flat = Callable[..., Sequence[Any]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Settings:
    """How programs are rewritten; the same for a function and everything derived from it."""

    target: Target
    allow_reassociation: bool = True
    verify: bool = False
    allow_products: bool = False


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
    wide: bool = field(default_factory=x64_enabled)
    _derived: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def trace(cls, fn: Flat, specs: Sequence[Any], settings: Settings) -> TracedProgram:
        import jax

        return cls(jax.make_jaxpr(fn)(*map(struct_of, specs)), settings)

    @property
    def in_avals(self) -> list[Any]:
        return list(self.jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        return list(self.jaxpr.out_avals)

    @property
    def original(self) -> Flat:
        """The program as traced, as a function for ``jax.jit``."""
        from jax.extend.core import jaxpr_as_fun

        call: Flat = jaxpr_as_fun(self.jaxpr)
        return call

    def forward(self) -> TracedProgram:
        """Itself: what a call of it runs."""
        return self

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Its results and their tangents."""
        outs = call(self, *primals)
        return outs, _tangents(outs, self, primals, tangents)

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
            return TracedProgram.trace(jax.vmap(self.original, tuple(axes), axis_size=size), specs, self.settings)

        return self._once(("batched", size, tuple(axes)), derive)

    def pushforward(self, active: Sequence[int]) -> TracedProgram:
        """(arguments, tangents of the active ones) -> tangents of the inexact results."""
        import jax

        count = len(self.in_avals)

        def push(*flat: Any) -> Sequence[Any]:
            smooth = self._smooth_part(flat[:count], active)
            return list(jax.jvp(smooth, tuple(flat[i] for i in active), tuple(flat[count:]))[1])

        specs = [*self.in_avals, *(self.in_avals[i] for i in active)]
        return self._once(("push", tuple(active)), lambda: TracedProgram.trace(push, specs, self.settings))

    def pullback(self, active: Sequence[int], present: Sequence[bool]) -> TracedProgram:
        """(arguments, cotangents of the ``present`` inexact results) -> cotangents of the active arguments."""
        import jax

        count = len(self.in_avals)
        outputs = self.smooth_outputs()

        def pull(*flat: Any) -> Sequence[Any]:
            smooth = self._smooth_part(flat[:count], active, present)
            return jax.vjp(smooth, *(flat[i] for i in active))[1](tuple(flat[count:]))  # type: ignore[no-any-return]

        specs = [*self.in_avals, *(out for out, is_present in zip(outputs, present) if is_present)]
        traced = lambda: TracedProgram.trace(pull, specs, self.settings)  # noqa: E731
        return self._once(("pull", tuple(active), tuple(present)), traced)

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
    owner: ClassVar[None] = None
    _batches: dict[Any, LinearMap] = field(default_factory=dict, repr=False)

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """A linear map is its own derivative by its tangents; by its residuals it is a program like any other."""
        from jax.interpreters.ad import Zero, add_tangents, instantiate_zeros

        n, outs = self.residuals, call(self, *primals)
        result: list[Any] = [_zero(out) for out in outs]
        if any(type(t) is not Zero for t in tangents[n:]):
            result = call(self, *primals[:n], *map(instantiate_zeros, tangents[n:]))
        if any(type(t) is not Zero for t in tangents[:n]):
            still = [_zero(p) for p in primals[n:]]
            moved = _tangents(outs, self.forward(), primals, [*tangents[:n], *still])
            result = list(map(add_tangents, result, moved))
        return outs, result

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
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        return fallback(f"JAX cannot export it ({first})")
    # A text that constrains shardings inside of it, in either of XLA's two notations: in its caller JAX sees them, and
    # then how many devices to compile for.
    text = exported.mlir_module()
    if exported.nr_devices != 1 and ("sdy.sharding_constraint" in text or "@Sharding" in text):
        return fallback(f"it names shardings over {exported.nr_devices} devices (with_sharding_constraint)")
    try:
        optimized = optimize(
            read_stablehlo(text), settings.target, settings.allow_reassociation, settings.verify,
            allow_products=settings.allow_products,
        )  # fmt: skip
        call = with_module(exported, optimized.text).call if optimized.rewrites else None
    except TilewrightError as error:
        return fallback(f"it cannot be rewritten ({error})")
    except Exception as error:  # a fault of ours or of the bindings must never break the user's function
        return fallback(f"it cannot be rewritten ({type(error).__name__}: {error})")
    if call is None:
        return fallback(f"no region of it gains on {settings.target.name}", optimized)
    return Rewritten(call, "", optimized)


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
    import jax.numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


#: Closed-over arrays up to this size stay constants, which rewrites may lay out again; larger ones become arguments.
CONSTANT_BYTES = 1 << 16


def optimize_function(
    fn: Callable[..., Any] | None = None,
    *,
    target: str | Target,
    allow_reassociation: bool = True,
    verify: bool = False,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    allow_products: bool = False,
) -> Any:
    """``fn`` with the same meaning, its data movement cut for ``target``; also a decorator.

    Works under jit, grad, jvp, vmap, scan and their compositions, with pytrees, keyword arguments and typed random
    keys; static and donated arguments are named as for ``jax.jit``. Where nothing is gained, or a program cannot be
    rewritten (host callbacks, effects, collectives, symbolic dims), the original is called, and
    :meth:`OptimizedFunction.explain` says why. With ``verify=True`` each program is compared with the original on
    random inputs before it is first used (see :func:`tilewright.hlo.verify`), and the original kept if they differ.
    ``allow_reassociation`` and ``allow_products`` as for :func:`tilewright.hlo.optimize`.

    >>> import jax.numpy as jnp
    >>> sums = optimize_function(lambda x: x.reshape(64, 9, 4, 8).sum((1, 3)), target="vector8x128")
    >>> x = jnp.ones((64, 9, 32))
    >>> sums(x).shape, sums.optimized(x).moved_after < sums.optimized(x).moved_before
    ((64, 4), True)
    """
    chip = find_target(target)
    place((8, 128), "f32", chip)  # a target without a rule for whole programs says so at once
    options = {
        "static_argnums": static_argnums, "static_argnames": static_argnames,
        "donate_argnums": donate_argnums, "donate_argnames": donate_argnames,
    }  # fmt: skip
    settings = Settings(chip, allow_reassociation, verify, allow_products)
    make = partial(OptimizedFunction, settings=settings, options=options)
    return make if fn is None else make(fn)


class OptimizedFunction:
    """What :func:`optimize_function` returns: call it, or ask it what was done for some arguments."""

    def __init__(self, fn: Callable[..., Any], settings: Settings, options: dict[str, Any] | None = None) -> None:
        import jax

        self._fn, self._settings = fn, settings
        self._options = {name: value for name, value in (options or {}).items() if value is not None}
        wraps(fn, updated=())(self)  # not its __dict__: an object's attributes must not stand in place of our own
        self._jitted = jax.jit(self._run_function(None), **self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's value; compiled once for each signature."""
        return self._jitted(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like a method, as a jitted function does (name ``self`` in ``static_argnums``)."""
        return self if instance is None else partial(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted.trace(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was rewritten or left alone for arguments like these, and why."""
        rewritten = self._found(*args, **kwargs)
        if rewritten.fallback and not rewritten.optimized:
            return f"the original is called: {rewritten.fallback}"
        assert rewritten.optimized is not None
        return rewritten.optimized.explain()

    def optimized(self, *args: Any, **kwargs: Any) -> Optimized | None:
        """The rewritten program for arguments like these, None where the original is called for want of one."""
        return self._found(*args, **kwargs).optimized

    def fallback(self, *args: Any, **kwargs: Any) -> str:
        """Why the original is called for arguments like these; "" where the rewritten program is."""
        return self._found(*args, **kwargs).fallback

    def _found(self, *args: Any, **kwargs: Any) -> Rewritten:
        """What became of the program: read from the trace JAX keeps, or, for an original, found once more."""
        import jax

        for equation in self._jitted.trace(*args, **kwargs).jaxpr.eqns:
            if equation.primitive.name == CALL and equation.params["program"].owner is self:
                found: Rewritten = equation.params["program"].on(jax.default_backend())
                return found
        record: list[Rewritten] = []
        jax.jit(self._run_function(record), **self._options).trace(*args, **kwargs)
        return record[0]

    def _run_function(self, record: list[Rewritten] | None) -> Callable[..., Any]:
        """A new function for ``jax.jit`` with the signature of the user's, by which static arguments are found."""

        @wraps(self._fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(record, *args, **kwargs)

        with suppress(ValueError, TypeError):  # some builtins have none: then only positions can name static arguments
            run.__dict__["__signature__"] = inspect.signature(self._fn)
        return run

    def _run(self, record: list[Rewritten] | None, *args: Any, **kwargs: Any) -> Any:
        """Traced by ``jax.jit``: arrays are what varies, everything else is static."""
        import jax
        from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

        leaves, tree = jax.tree.flatten((args, kwargs))
        varying = [k for k, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]
        out_tree: list[Any] = []

        def flat_fn(*flat: Any) -> list[Any]:
            given = list(leaves)
            for k, raw in zip(varying, flat):
                given[k] = _wrapped(raw, _key_impl(leaves[k]))
            a, k = jax.tree.unflatten(tree, given)
            outs, structure = jax.tree.flatten(self._fn(*a, **k))
            out_tree[:] = [structure, [_key_impl(out) for out in outs]]
            return [_raw(out) for out in outs]

        flat = [_raw(leaves[k]) for k in varying]
        inner = jax.make_jaxpr(flat_fn)(*flat)
        large = [k for k, const in enumerate(inner.consts) if _is_argument(const)]

        def with_large(*flat: Any) -> list[Any]:
            consts = list(inner.consts)
            for k, value in zip(large, flat):
                consts[k] = value
            outs: list[Any] = jaxpr_as_fun(ClosedJaxpr(inner.jaxpr, consts))(*flat[len(large) :])
            return outs

        arguments = [*(inner.consts[k] for k in large), *flat]
        closed = jax.make_jaxpr(with_large)(*arguments) if large else inner
        program = TracedProgram(closed, self._settings, self)
        rewritten = _unfit(program) or program.on(jax.default_backend())
        if record is not None:
            record.append(rewritten)
        outs = program.original(*arguments) if rewritten.fallback else call(program, *arguments)
        structure, impls = out_tree
        return jax.tree.unflatten(structure, [_wrapped(out, impl) for out, impl in zip(outs, impls)])


def _unfit(program: TracedProgram) -> Rewritten | None:
    """Why a program must stay inline in its caller, None if it need not."""
    reason = ""
    if effects := program.jaxpr.effects:
        names = ", ".join(sorted({str(effect) for effect in effects}))
        reason = f"it has effects ({names}: host callbacks, prints, collectives), which must not be doubled or dropped"
    elif any(not isinstance(size, int) for aval in program.in_avals for size in aval.shape):
        reason = "its arguments have symbolic dims"
    elif any(_is_sharded(aval) for aval in program.in_avals):
        reason = "its arguments are sharded over an explicit mesh: optimize what runs inside jax.shard_map"
    elif any(_varies(aval) for aval in program.in_avals):
        reason = "its arguments vary over the axes of a mesh inside jax.shard_map: check_vma=False lets it be rewritten"
    return Rewritten(program.original, reason, None) if reason else None


def _is_sharded(aval: Any) -> bool:
    """Whether the type itself says how an array is cut over devices (meshes with explicit axes)."""
    return any(axis is not None for axis in getattr(getattr(aval, "sharding", None), "spec", None) or ())


def _varies(aval: Any) -> bool:
    """Whether the type says over which axes of ``jax.shard_map`` a value varies; derived programs would lose that."""
    return bool(getattr(getattr(aval, "manual_axis_type", None), "varying", None) or getattr(aval, "vma", None))


def _is_argument(const: Any) -> bool:
    """Whether a closed-over value becomes an argument: tracers (for their gradient) and large arrays."""
    import jax

    return isinstance(const, jax.core.Tracer) or getattr(const, "nbytes", 0) > CONSTANT_BYTES


def _key_impl(value: Any) -> Any:
    """The generator of a typed random key, None for anything else."""
    import jax

    dtype = getattr(value, "dtype", None)
    if dtype is None or not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return None
    return jax.random.key_impl(value)


def _raw(value: Any) -> Any:
    """A typed key as its bits; anything else as it is."""
    import jax

    return value if _key_impl(value) is None else jax.random.key_data(value)


def _wrapped(bits: Any, impl: Any) -> Any:
    import jax

    return bits if impl is None else jax.random.wrap_key_data(bits, impl=impl)
