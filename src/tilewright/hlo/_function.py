"""``tilewright.optimize``: a JAX function with the same meaning whose programs are rewritten for a target.

For every signature the function is exported once, rewritten, and called from then on inside ``jax.jit``. The gradient
is a program of its own, rewritten likewise: it recomputes what it needs of the forward program, and XLA merges what
both compute when they meet in one ``jit``. A batched call is again a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.hlo._cost import place
from tilewright.hlo._execute import with_module
from tilewright.hlo._mlir_reader import read_stablehlo
from tilewright.hlo._optimize import Optimized, optimize
from tilewright.targets import Target
from tilewright.targets import target as find_target

__all__ = ["OptimizedFunction", "optimize_function"]


def optimize_function(
    fn: Callable[..., Any] | None = None, *, target: str | Target, allow_reassociation: bool = True
) -> Any:
    """``fn`` with the same meaning, its data movement cut for ``target``; also a decorator.

    Works under jit, grad and vmap and with pytrees. Where nothing is gained, or a program cannot be rewritten (host
    callbacks, effects, symbolic dims), the original is called; :meth:`OptimizedFunction.explain` says why.

    >>> import jax.numpy as jnp
    >>> sums = optimize_function(lambda x: x.reshape(64, 9, 4, 8).sum((1, 3)), target="vector8x128")
    >>> x = jnp.ones((64, 9, 32))
    >>> sums(x).shape, sums.optimized(x).moved_after < sums.optimized(x).moved_before
    ((64, 4), True)
    """
    chip = find_target(target)
    place((8, 128), "f32", chip)  # a target without a rule for whole programs says so at once
    if fn is None:
        return lambda each: OptimizedFunction(each, chip, allow_reassociation)
    return OptimizedFunction(fn, chip, allow_reassociation)


class OptimizedFunction:
    """What :func:`optimize_function` returns: call it, or ask it what was done for some arguments."""

    def __init__(self, fn: Callable[..., Any], target: Target, allow_reassociation: bool) -> None:
        import jax

        self.target, self.allow_reassociation = target, allow_reassociation
        self._fn = fn
        self._programs: dict[Any, tuple[_FlatProgram, list[Any]]] = {}
        update_wrapper(self, fn)
        self._jitted = jax.jit(self._trace)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's value; compiled once for each signature."""
        return self._jitted(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was rewritten or left alone for arguments like these, and why."""
        program = self._program(*args, **kwargs)[0]
        return program.optimized.explain() if program.optimized else f"the original is called: {program.fallback}"

    def optimized(self, *args: Any, **kwargs: Any) -> Optimized | None:
        """The rewritten program for arguments like these, None where the original is called for want of one."""
        return self._program(*args, **kwargs)[0].optimized

    def fallback(self, *args: Any, **kwargs: Any) -> str:
        """Why the original is called for arguments like these; "" where the rewritten program is."""
        return self._program(*args, **kwargs)[0].fallback

    def _trace(self, *args: Any, **kwargs: Any) -> Any:
        import jax

        program, out_tree = self._program(*args, **kwargs)
        if program.fallback:
            return self._fn(*args, **kwargs)
        return jax.tree.unflatten(out_tree[0], program.call(*jax.tree.leaves((args, kwargs))))

    def _program(self, *args: Any, **kwargs: Any) -> tuple[_FlatProgram, list[Any]]:
        import jax

        flat, tree = jax.tree.flatten((args, kwargs))
        specs = tuple(_spec(leaf) for leaf in flat)
        key = (tree, *((s.shape, s.dtype, s.weak_type) for s in specs))
        if key not in self._programs:
            out_tree: list[Any] = []

            def flat_fn(*leaves: Any) -> tuple[Any, ...]:
                a, k = jax.tree.unflatten(tree, leaves)
                out, structure = jax.tree.flatten(self._fn(*a, **k))
                out_tree[:] = [structure]
                return tuple(out)

            self._programs[key] = (_FlatProgram(flat_fn, specs, self.target, self.allow_reassociation), out_tree)
        return self._programs[key]


class _FlatProgram:
    """A function of arrays that returns a tuple of arrays, rewritten for one signature.

    ``call`` is what to use; ``fallback`` says why it is the original, "" if it is not.
    """

    def __init__(
        self, fn: Callable[..., tuple[Any, ...]], specs: Sequence[Any], target: Target, allow_reassociation: bool
    ) -> None:
        self.fn, self.specs = fn, tuple(specs)
        self.options = (target, allow_reassociation)
        self.optimized: Optimized | None = None
        self.call: Callable[..., tuple[Any, ...]] = fn
        self._inner: dict[Any, _FlatProgram] = {}
        self.fallback = self._rewrite()

    def _rewrite(self) -> str:
        import jax
        from jax import export

        try:
            exported = export.export(jax.jit(self.fn))(*self.specs)
        except Exception as error:  # the original is called instead: a fault of the user's own shows there
            first = (str(error) or type(error).__name__).splitlines()[0]
            return f"JAX cannot export it ({first})"
        if reason := _unfit(exported):
            return reason
        try:
            optimized = optimize(read_stablehlo(exported.mlir_module()), *self.options)
            rewritten = with_module(exported, optimized.text).call if optimized.rewrites else None
        except TilewrightError as error:
            return f"it cannot be rewritten ({error})"
        except Exception as error:  # a fault of ours or of the bindings must never break the user's function
            return f"it cannot be rewritten ({type(error).__name__}: {error})"
        self.optimized = optimized
        if rewritten is None:
            return f"no region of it gains on {self.options[0].name}"
        self.outputs = exported.out_avals
        self.call = self._differentiable(rewritten)
        return ""

    def _differentiable(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with a batching rule and a gradient of its own."""
        import jax
        from jax.custom_batching import custom_vmap

        batchable = custom_vmap(call)
        batchable.def_vmap(self._batched)
        run = jax.custom_vjp(batchable)
        run.defvjp(lambda *flat: (run(*flat), flat), self._pull_back)
        return run

    def _batched(self, axis_size: int, in_batched: Sequence[bool], *flat: Any) -> tuple[Any, Any]:
        import jax

        axes = tuple(0 if batched else None for batched in in_batched)
        key = ("vmap", axis_size, axes)
        if key not in self._inner:
            self._inner[key] = _FlatProgram(jax.vmap(self.fn, axes), [_spec(x) for x in flat], *self.options)
        return self._inner[key].call(*flat), (True,) * len(self.outputs)

    def _pull_back(self, flat: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """The cotangents of the inputs; None for inputs without any (integers)."""
        smooth = [i for i, spec in enumerate(self.specs) if _is_inexact(spec)]
        given = [c for c, out in zip(cotangents, self.outputs) if _is_inexact(out)]
        if "vjp" not in self._inner:
            specs = [*self.specs, *(_spec(c) for c in given)]
            self._inner["vjp"] = _FlatProgram(self._vjp_function(smooth), specs, *self.options)
        grads = dict(zip(smooth, self._inner["vjp"].call(*flat, *given)))
        return tuple(grads.get(i) for i in range(len(self.specs)))

    def _vjp_function(self, smooth: list[int]) -> Callable[..., tuple[Any, ...]]:
        """(inputs, cotangents of the inexact outputs) -> cotangents of the inexact inputs."""
        import jax

        count = len(self.specs)

        def vjp(*arrays: Any) -> tuple[Any, ...]:
            def smooth_part(*chosen: Any) -> tuple[Any, ...]:
                inputs = list(arrays[:count])
                for index, value in zip(smooth, chosen):
                    inputs[index] = value
                return tuple(out for out in self.fn(*inputs) if _is_inexact(out))

            pull = jax.vjp(smooth_part, *(arrays[i] for i in smooth))[1]
            return tuple(pull(tuple(arrays[count:])))

        return vjp


def _unfit(exported: Any) -> str:
    """Why an exported function cannot run rewritten, "" if it can."""
    if exported.ordered_effects or exported.unordered_effects:
        return "it has side effects (callbacks, prints), which must not be duplicated or dropped"
    if exported.nr_devices != 1:
        return f"it runs on {exported.nr_devices} devices at once; shard outside it"
    if any(not isinstance(size, int) for aval in exported.in_avals for size in aval.shape):
        return "its arguments have symbolic dims"
    return ""


def _spec(value: Any) -> Any:
    import jax

    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    aval = jax.typeof(value)
    struct: Any = jax.ShapeDtypeStruct
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _is_inexact(value: Any) -> bool:
    import jax.numpy as jnp

    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
