"""Two JAX primitives: a call of a traced program, and of a derivative, with every rule that JAX's transformations ask.

``custom_vjp`` would refuse forward mode, ``custom_jvp`` cannot give reverse mode a program of its own, and the linear
call that could is neither batched nor differentiated again. So the call is a primitive: lowering asks the program for
its rewritten form on the platform at hand, a derivative is a linear call whose transpose is again a rewritten program,
and a batch is the call of the batched program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.hlo.running._traced import LinearMap, TracedProgram

__all__ = ["call", "called_programs"]

CALL, LINEAR = "tilewright_call", "tilewright_linear_call"


def call(program: TracedProgram, *flat: Any) -> list[Any]:
    """The results of a traced program; where JAX lowers the call, its rewritten form is what runs."""
    found: list[Any] = _primitives()[CALL].bind(*flat, program=program)
    return found


def called_programs(jaxpr: Any) -> list[TracedProgram]:
    """The programs that a jaxpr calls at its top level."""
    return [eqn.params["program"] for eqn in jaxpr.eqns if eqn.primitive.name == CALL]


@cache
def _primitives() -> dict[str, Any]:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching

    made: dict[str, Any] = {name: Primitive(name) for name in (CALL, LINEAR)}
    for primitive in made.values():
        primitive.multiple_results = True
    plain, linear = made[CALL], made[LINEAR]
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
    return made


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
    found: list[Any] = _primitives()[LINEAR].bind(*flat, map_=map_)
    return found


def _push(primals: Sequence[Any], tangents: Sequence[Any], *, program: TracedProgram) -> tuple[list[Any], list[Any]]:
    outs = call(program, *primals)
    return outs, _tangents(outs, program, primals, tangents)


def _tangents(
    outs: Sequence[Any], program: TracedProgram, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """The tangents of a program's results: zero for those that are not inexact, or if nothing is active."""
    from jax.interpreters.ad import Zero

    from tilewright.hlo.running._traced import is_inexact

    active = [i for i, tangent in enumerate(tangents) if type(tangent) is not Zero and is_inexact(primals[i])]
    found = iter(_linear(program.derivative(active), *primals, *(tangents[i] for i in active)) if active else ())
    return [next(found) if active and is_inexact(out) else _zero(out) for out in outs]


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
    given = [type(c) is not Zero for c in cotangents]
    if not any(given):
        return [None] * len(flat)
    backward = map_.transposed(given)
    found = call(backward, *flat[:n], *(c for c, wanted in zip(cotangents, given) if wanted))
    return [None] * n + list(found)


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
