"""tilewright.optimize and the kinds of arguments JAX has: static, donated, keys, weak, narrow, wide, closed over."""

from __future__ import annotations

import functools

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright
from tests.hlo.norms import field_norm
from tests.hlo.test_optimize_transforms import BIAS, PLAIN, SCALE, X, close, optimize, slope, sums


def normed(x, scale, bias, groups=4):
    """field_norm by numpy."""
    y = np.asarray(x).reshape(*x.shape[:2], groups, -1)
    y = (y - y.mean((1, 3), keepdims=True)) / np.sqrt(y.var((1, 3), keepdims=True) + np.float32(1e-5))
    return y.reshape(x.shape) * np.asarray(scale) + np.asarray(bias)


def grouped(x, groups, *, how, factor=1):
    assert isinstance(groups, int)
    assert how in ("sum", "max")
    y = x.reshape(16, 9, groups, -1)
    return (y.sum((1, 3)) if how == "sum" else y.max((1, 3))) * factor


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"static_argnums": 1, "static_argnames": "how"}, lambda f, g, h: f(PLAIN, g, how=h, factor=2.0)),
        ({"static_argnames": ("groups", "how")}, lambda f, g, h: f(PLAIN, g, how=h, factor=2.0)),
        ({"static_argnames": ("groups", "how")}, lambda f, g, h: f(PLAIN, groups=g, how=h, factor=2.0)),
    ],
)
def test_static_arguments(options, call):
    fast = optimize(grouped, **options)
    for groups, how in ((4, "sum"), (4, "max"), (8, "max")):
        close(call(fast, groups, how), call(grouped, groups, how))
        assert call(fast.fallback, groups, how) == ""
        assert f"f32[16,9,{groups},{32 // groups}]" in call(fast.explain, groups, how)


def test_static_arguments_must_be_named():
    with pytest.raises(AssertionError):
        optimize(grouped, static_argnames="how")(X, 4, how="sum")


def test_gradient_with_static_arguments():
    fast = optimize(grouped, static_argnums=1, static_argnames="how")

    def step(f):
        return jax.grad(lambda x: (f(x, 4, how="sum") ** 2).sum())(X)

    close(step(fast), slope(PLAIN))


def test_donated_arguments_are_given_up_and_others_are_not():
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}):
        fast, x = optimize(field_norm, **options), X + 0
        close(fast(x, SCALE, BIAS), normed(PLAIN, SCALE, BIAS))
        assert x.is_deleted()
        assert not SCALE.is_deleted()
    kept = X + 0
    optimize(field_norm)(kept, SCALE, BIAS)
    assert not kept.is_deleted()


def noisy(key, x):
    kept, used = jax.random.split(key)
    return kept, {"sums": sums(x * jax.random.uniform(used))}


@pytest.mark.parametrize("impl", ["threefry2x32", pytest.param("rbg", marks=pytest.mark.nightly)])
def test_typed_random_keys(impl):
    """By day: the kind of keys that JAX makes by itself."""
    key = jax.random.key(3, impl=impl)
    fast = optimize(noisy)
    (found_key, found), (expected_key, expected) = fast(key, X), jax.jit(noisy)(key, X)
    close(found, expected)
    assert found_key.dtype == expected_key.dtype
    assert (jax.random.key_data(found_key) == jax.random.key_data(expected_key)).all()
    assert fast.fallback(key, X) == ""
    assert jax.random.key_impl(found_key) == jax.random.key_impl(key)


@pytest.mark.nightly
def test_keys_under_vmap_and_grad():
    """By day: keys as they are, above; vmap and grad of programs without keys in test_optimize_function.py."""
    key = jax.random.key(7, impl="rbg")
    fast, keys = optimize(noisy), jax.random.split(key, 3)

    def both(f, keys, x):
        mapped = jax.vmap(f, (0, None))(keys, x)[1]
        return mapped, jax.grad(lambda x: (f(key, x)[1]["sums"] ** 2).sum())(x)

    close(both(fast, keys, X), jax.jit(both, static_argnums=0)(noisy, keys, X))


def test_large_arrays_closed_over_are_arguments_and_small_ones_stay_constants():
    rows, numbers = np.tile(PLAIN, (4, 1, 1)), np.arange(32, dtype=np.float32)
    large, small = jnp.asarray(rows), jnp.asarray(numbers)
    fast = optimize(lambda x: sums((x + large[:16]) * small))
    close(fast(X), sums((PLAIN + rows[:16]) * numbers))
    text = fast.optimized(X).original.text
    assert fast.fallback(X) == ""
    assert "tensor<64x9x32xf32>" in text.partition("->")[0]
    assert len(text) < 10_000
    assert "tensor<32xf32>" not in text.partition("->")[0]


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit])
def test_gradients_reach_what_is_closed_over(outer):
    def loss(weight, wrap):
        return (wrap(lambda y: sums(y * weight))(X) ** 2).sum()

    def expected(weight):
        return (2 * sums(PLAIN * weight)[:, None, :, None] * PLAIN.reshape(16, 9, 4, 8)).sum((0, 1)).reshape(32)

    fast, scale = outer(jax.grad(lambda w: loss(w, optimize))), np.asarray(SCALE)
    close(fast(scale), expected(scale), atol=1e-3)
    close(fast(scale * 2), expected(scale * 2), atol=1e-3)
    close(jax.vmap(fast)(np.stack([scale, scale * 3])), np.stack([expected(scale), expected(scale * 3)]), atol=1e-3)


def test_weak_types_stay_weak():
    def scaled(x, by):
        return sums(x) * by, by * 2

    fast = optimize(scaled)
    for x, by in ((X, 2.0), (PLAIN.astype(jnp.bfloat16), 3), (PLAIN, 2.0)):
        found, expected = fast(x, by), jax.jit(scaled)(x, by)
        close(found, expected, atol=0.1 if x.dtype == jnp.bfloat16 else 1e-4)
        assert [each.weak_type for each in found] == [each.weak_type for each in expected]
        assert fast.fallback(x, by) == ""
    close(jax.grad(lambda a: fast(X, a)[0].sum())(2.0), sums(PLAIN).sum(), atol=1e-3)


def test_doubles_and_wide_integers():
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=X.shape)
        fast = optimize(sums)
        close(fast(x), sums(x), 1e-13, 1e-13)
        assert fast(x).dtype == jnp.float64
        wide = np.arange(X.size).reshape(X.shape) << 40
        assert (fast(wide) == sums(wide)).all()
        assert fast.fallback(x) == fast.fallback(wide) == ""
    assert fast(X).dtype == jnp.float32


def test_complex_numbers_and_their_gradient():
    z = (PLAIN + 1j * PLAIN[::-1]).astype(np.complex64)

    def step(f):
        return jax.value_and_grad(lambda z: jnp.abs(f(z)).sum())

    fast = optimize(sums)
    close(step(fast)(z), jax.jit(step(sums))(z), atol=1e-3)
    assert fast.fallback(z) == ""


def test_narrow_floats_and_their_gradient():
    narrow = [np.asarray(each).astype(jnp.bfloat16) for each in (X, SCALE, BIAS)]
    fast = optimize(field_norm)
    assert fast(*narrow).dtype == jnp.bfloat16
    assert fast.fallback(*narrow) == ""
    found = jax.grad(lambda x: (fast(x, *narrow[1:]).astype(jnp.float32) ** 3).sum())(narrow[0])
    expected = np.asarray(jax.jit(jax.grad(lambda x: (field_norm(x, SCALE, BIAS) ** 3).sum()))(X))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=0.03 * np.abs(expected).max())


def test_trees_with_nothing_and_scalars_in_them():
    def odd(x, nothing=None):
        return {"sums": sums(x), "nothing": nothing, "three": 3, "shape": x.shape}

    fast = optimize(odd)
    close(fast(X), jax.jit(odd)(X))


def test_methods_partials_and_jitted_functions():
    class Model:
        groups = 4

        @tilewright.optimize(target="vector8x128", static_argnums=0)
        def sums(self, x):
            return x.reshape(16, 9, self.groups, -1).sum((1, 3))

    model = Model()
    close(model.sums(X), sums(PLAIN))
    assert "rewritten: f32[16,9,4,8]" in Model.sums.explain(model, X)
    close(optimize(functools.partial(field_norm, groups=8))(X, SCALE, BIAS), normed(PLAIN, SCALE, BIAS, 8))
    assert optimize(jax.jit(sums)).fallback(X) == ""


def test_traced_once_for_each_signature():
    traces = []

    def counted(x):
        traces.append(x.shape)
        return sums(x)

    fast = optimize(counted)
    for _ in range(3):
        fast(X)
    fast.explain(X)
    assert fast.optimized(X) is fast.optimized(X)
    jax.jit(fast)(X)
    jax.grad(lambda x: fast(x).sum())(X)
    jax.vmap(fast)(np.stack([PLAIN, PLAIN]))
    assert traces == [X.shape]
    fast(PLAIN.astype(jnp.bfloat16))
    assert len(traces) == 2


def test_host_callbacks_fall_back():
    def called(x):
        return sums(jax.pure_callback(np.sin, x, x))

    def ordered(x):
        jax.experimental.io_callback(lambda _: None, None, x[0, 0, 0], ordered=True)
        return sums(x)

    for fn, reason, expected in ((called, "host_callbacks", sums(np.sin(PLAIN))), (ordered, "OrderedIO", sums(PLAIN))):
        fast = optimize(fn)
        close(fast(X), expected)
        assert reason in fast.fallback(X)
        assert fast.explain(X) == f"the original is called: {fast.fallback(X)}"
        assert fast.optimized(X) is None


def test_verified_before_it_is_used():
    fast = optimize(sums, verify=True)
    close(jax.jit(fast)(X), sums(PLAIN))
    proof = fast.optimized(X).verification
    assert proof.ok
    assert {trial.inputs for trial in proof.trials} >= {"normal", "zeros", "denormal", "large", "special"}
    assert {trial.run for trial in proof.trials} == {"jit", "op by op"}


def test_a_program_that_verification_finds_wrong_is_not_used(monkeypatch):
    from tilewright.hlo import Verification
    from tilewright.hlo.proving.verify import Trial

    def wrong(*args, **kwargs):
        trial = Trial("normal", "jit", 0, False, False, 1.0, 0.0, 1.0, "output 0: all wrong", None)
        return Verification((trial,), "numpy")

    monkeypatch.setattr("tilewright.hlo.optimization.prove", wrong)
    fast = optimize(sums, verify=True)
    close(fast(X), sums(PLAIN))
    assert fast.fallback(X).endswith("differs from the original: normal inputs, jit: output 0: all wrong)")


def test_an_optimized_function_and_an_object_keep_to_their_own_settings():
    class Scaled:
        def __init__(self):
            self._fn, self._options, self._settings, self.explain = "mine", {"mine": 1}, "mine", "mine"

        def __call__(self, x):
            return 2 * sums(x)

    outer = tilewright.optimize(
        tilewright.optimize(sums, target="cpu"), target="vector8x128", allow_reassociation=False
    )
    assert outer.optimized(X).target.name == "vector8x128"
    assert not outer._settings.allow_reassociation
    close(outer(X), sums(PLAIN))
    close(optimize(Scaled())(X), 2 * sums(PLAIN))
    assert optimize(Scaled()).explain(X)


def test_what_was_traced_with_doubles_runs_where_they_are_off():
    def cubes(fn):
        return lambda x: (fn(x) ** 3).sum()

    with jax.enable_x64(True):
        x, one = jnp.asarray(PLAIN.astype(np.float64)), jnp.ones(())
        fast = optimize(sums)
        back, push = jax.vjp(cubes(fast), x)[1], jax.linearize(cubes(fast), x)[1]
    wide = PLAIN.astype(np.float64)
    slope_of_cubes = np.broadcast_to(3 * sums(wide)[:, None, :, None] ** 2, (16, 9, 4, 8)).reshape(wide.shape)
    for found, wanted in ((back(one)[0], slope_of_cubes), (push(x), (slope_of_cubes * wide).sum())):
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9)
