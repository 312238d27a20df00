"""``tilewright.optimize``: a JAX function with the same meaning whose programs are rewritten for a target.

For every signature (as ``jax.jit`` sees it: shapes, types, structure, static arguments) the function is traced once
and becomes one call in JAX's eyes, whose rewritten form is made once (``calls.py``). Its derivatives and batches are
programs of their own, rewritten likewise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from tilewright.hlo.cost import place
from tilewright.hlo.optimization import Optimized
from tilewright.hlo.running.calls import Rewritten, Settings, TracedProgram, call, called_programs
from tilewright.targets import Target
from tilewright.targets import target as find_target

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
) -> Any:
    """``fn`` with the same meaning, its data movement cut for ``target``; also a decorator.

    Works under jit, grad, jvp, vmap, scan and their compositions, with pytrees, keyword arguments and typed random
    keys; static and donated arguments are named as for ``jax.jit``. Where nothing is gained, or a program cannot be
    rewritten (host callbacks, effects, collectives, symbolic dims), the original is called, and
    :meth:`OptimizedFunction.explain` says why. With ``verify=True`` each program is compared with the original on
    random inputs before it is first used (see :func:`tilewright.hlo.verify`), and the original kept if they differ.

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
    make = partial(OptimizedFunction, settings=Settings(chip, allow_reassociation, verify), options=options)
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
        """The rewritten program lowered, as ``jax.jit(fn).lower``."""
        return self._jitted.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The function traced, as ``jax.jit(fn).trace``."""
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

        for program in called_programs(self._jitted.trace(*args, **kwargs).jaxpr):
            if program.owner is self:
                return program.on(jax.default_backend())
        record: list[Rewritten] = []
        jax.jit(self._run_function(record), **self._options).trace(*args, **kwargs)
        return record[0]

    def _run_function(self, record: list[Rewritten] | None) -> Callable[..., Any]:
        """A new function for ``jax.jit`` with the signature of the user's, by which static arguments are found."""

        @wraps(self._fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(record, *args, **kwargs)

        _show_signature(run, self._fn)
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
                given[k] = _like(raw, leaves[k])
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


def _show_signature(run: Any, fn: Callable[..., Any]) -> None:
    try:
        run.__signature__ = inspect.signature(fn)
    except (ValueError, TypeError):  # some builtins have none: then only positions can name static arguments
        return


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


def _like(raw: Any, original: Any) -> Any:
    return _wrapped(raw, _key_impl(original))
