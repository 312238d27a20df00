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
from tests.hlo.test_optimize_transforms import BIAS, KEY, SCALE, X, close, optimize, sums


def grouped(x, groups, *, how, factor=1):
    assert isinstance(groups, int)
    assert how in ("sum", "max")
    y = x.reshape(16, 9, groups, -1)
    return (y.sum((1, 3)) if how == "sum" else y.max((1, 3))) * factor


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"static_argnums": 1, "static_argnames": "how"}, lambda f, g, h: f(X, g, how=h, factor=2.0)),
        ({"static_argnames": ("groups", "how")}, lambda f, g, h: f(X, g, how=h, factor=2.0)),
        ({"static_argnames": ("groups", "how")}, lambda f, g, h: f(X, groups=g, how=h, factor=2.0)),
    ],
)
def test_static_arguments(options, call):
    fast = optimize(grouped, **options)
    for groups in (4, 8):
        for how in ("sum", "max"):
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

    close(step(fast), step(grouped))


def test_donated_arguments_are_given_up_and_others_are_not():
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}):
        fast, x = optimize(field_norm, **options), X + 0
        close(fast(x, SCALE, BIAS), field_norm(X, SCALE, BIAS))
        assert x.is_deleted()
        assert not SCALE.is_deleted()
    kept = X + 0
    optimize(field_norm)(kept, SCALE, BIAS)
    assert not kept.is_deleted()


def noisy(key, x):
    kept, used = jax.random.split(key)
    return kept, {"sums": sums(x * jax.random.uniform(used))}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_random_keys(impl):
    key = jax.random.key(3, impl=impl)
    fast = optimize(noisy)
    (found_key, found), (expected_key, expected) = fast(key, X), noisy(key, X)
    close(found, expected)
    assert found_key.dtype == expected_key.dtype
    assert (jax.random.key_data(found_key) == jax.random.key_data(expected_key)).all()
    assert fast.fallback(key, X) == ""
    assert jax.random.key_impl(found_key) == jax.random.key_impl(key)


def test_keys_under_vmap_and_grad():
    fast, keys = optimize(noisy), jax.random.split(KEY, 3)
    close(jax.vmap(fast, (0, None))(keys, X)[1], jax.vmap(noisy, (0, None))(keys, X)[1])

    def step(f):
        return jax.grad(lambda x: (f(KEY, x)[1]["sums"] ** 2).sum())(X)

    close(step(fast), step(noisy))


def test_large_arrays_closed_over_are_arguments_and_small_ones_stay_constants():
    large, small = jax.random.normal(KEY, (64, 9, 32)), jnp.arange(32.0)
    fast = optimize(lambda x: sums((x + large[:16]) * small))
    close(fast(X), sums((X + large[:16]) * small))
    text = fast.optimized(X).original.text
    assert fast.fallback(X) == ""
    assert "tensor<64x9x32xf32>" in text.partition("->")[0]
    assert len(text) < 10_000
    assert "tensor<32xf32>" not in text.partition("->")[0]


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit])
def test_gradients_reach_what_is_closed_over(outer):
    def loss(weight, wrap):
        return (wrap(lambda y: sums(y * weight))(X) ** 2).sum()

    fast = outer(jax.grad(lambda w: loss(w, optimize)))
    expected = jax.grad(lambda w: loss(w, lambda f: f))
    close(fast(SCALE), expected(SCALE), atol=1e-3)
    close(fast(SCALE * 2), expected(SCALE * 2), atol=1e-3)
    weights = jnp.stack([SCALE, SCALE * 3])
    close(jax.vmap(fast)(weights), jax.vmap(expected)(weights), atol=1e-3)


def test_weak_types_stay_weak():
    def scaled(x, by):
        return sums(x) * by, by * 2

    fast = optimize(scaled)
    for x, by in ((X, 2.0), (X.astype(jnp.bfloat16), 3), (np.asarray(X), 2.0)):
        found, expected = fast(x, by), jax.jit(scaled)(x, by)
        close(found, expected, atol=0.1 if x.dtype == jnp.bfloat16 else 1e-4)
        assert [each.weak_type for each in found] == [each.weak_type for each in expected]
        assert fast.fallback(x, by) == ""
    close(jax.grad(lambda a: fast(X, a)[0].sum())(2.0), jax.grad(lambda a: scaled(X, a)[0].sum())(2.0), atol=1e-3)


def test_doubles_and_wide_integers():
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=X.shape))
        fast = optimize(sums)
        close(fast(x), sums(x), 1e-13, 1e-13)
        assert fast(x).dtype == jnp.float64
        wide = jnp.arange(X.size).reshape(X.shape) << 40
        assert (fast(wide) == sums(wide)).all()
        assert fast.fallback(x) == fast.fallback(wide) == ""
    assert fast(X).dtype == jnp.float32


def test_complex_numbers_and_their_gradient():
    z = X + 1j * X[::-1]

    def step(f):
        return jax.value_and_grad(lambda z: jnp.abs(f(z)).sum())(z)

    fast = optimize(sums)
    close(step(fast), step(sums), atol=1e-3)
    assert fast.fallback(z) == ""


def test_narrow_floats_and_their_gradient():
    narrow = [each.astype(jnp.bfloat16) for each in (X, SCALE, BIAS)]
    fast = optimize(field_norm)
    assert fast(*narrow).dtype == jnp.bfloat16
    assert fast.fallback(*narrow) == ""
    found = jax.grad(lambda x: (fast(x, *narrow[1:]).astype(jnp.float32) ** 3).sum())(narrow[0])
    expected = jax.grad(lambda x: (field_norm(x, SCALE, BIAS) ** 3).sum())(X)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.03 * float(jnp.abs(expected).max()))


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
    close(model.sums(X), sums(X))
    assert "rewritten: f32[16,9,4,8]" in Model.sums.explain(model, X)
    close(optimize(functools.partial(field_norm, groups=8))(X, SCALE, BIAS), field_norm(X, SCALE, BIAS, 8))
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
    jax.vmap(fast)(jnp.stack([X, X]))
    assert traces == [X.shape]
    fast(X.astype(jnp.bfloat16))
    assert len(traces) == 2


def test_host_callbacks_fall_back():
    def called(x):
        return sums(jax.pure_callback(np.sin, x, x))

    def ordered(x):
        jax.experimental.io_callback(lambda _: None, None, x[0, 0, 0], ordered=True)
        return sums(x)

    for fn, reason in ((called, "host_callbacks"), (ordered, "OrderedIO")):
        fast = optimize(fn)
        close(fast(X), fn(X))
        assert reason in fast.fallback(X)
        assert fast.explain(X) == f"the original is called: {fast.fallback(X)}"
        assert fast.optimized(X) is None


def test_verified_before_it_is_used():
    fast = optimize(sums, verify=True)
    close(jax.jit(fast)(X), sums(X))
    proof = fast.optimized(X).verification
    assert proof.ok
    assert {trial.inputs for trial in proof.trials} >= {"normal", "zeros", "denormal", "large", "special"}
    assert {trial.run for trial in proof.trials} == {"jit", "op by op"}


def test_a_program_that_verification_finds_wrong_is_not_used(monkeypatch):
    from tilewright.hlo import Trial, Verification

    def wrong(*args, **kwargs):
        trial = Trial("normal", "jit", 0, False, False, 1.0, 0.0, 1.0, "output 0: all wrong", None)
        return Verification((trial,), "numpy")

    monkeypatch.setattr("tilewright.hlo.optimization.prove", wrong)
    fast = optimize(sums, verify=True)
    close(fast(X), sums(X))
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
    close(outer(X), sums(X))
    close(optimize(Scaled())(X), 2 * sums(X))
    assert optimize(Scaled()).explain(X)


def test_what_was_traced_with_doubles_runs_where_they_are_off():
    def cubes(fn):
        return lambda x: (fn(x) ** 3).sum()

    with jax.enable_x64(True):
        x, one = jnp.asarray(np.asarray(X, np.float64)), jnp.ones(())
        runs = [(jax.vjp(cubes(fn), x)[1], jax.linearize(cubes(fn), x)[1]) for fn in (jax.jit(sums), optimize(sums))]
    (back, push), (fast_back, fast_push) = runs
    for found, wanted in ((fast_back(one)[0], back(one)[0]), (fast_push(x), push(x))):
        assert found.dtype == wanted.dtype == jnp.float64
        np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-9)
