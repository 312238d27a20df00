"""Users, escaping results, bodies of control flow and calls, JAX's transformations, element types: whole programs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.hlo.norms import field_norm, group_norm_minor, normalised
from tests.hlo.stablehlo_values import big_reshapes
from tilewright.hlo import from_jax, load, optimize, verify

RNG = np.random.default_rng(17)
SHAPE, SPLIT = (16, 9, 32), (16, 9, 4, 8)
SIZE = int(np.prod(SHAPE))


def numbers(*shape, dtype="float32"):
    return (RNG.normal(size=shape) * 2).astype(jnp.dtype(dtype))


X, SCALE, BIAS = numbers(*SHAPE), numbers(32), numbers(32)


def check(fn, arrays, moves, target="vector8x128", **options):
    """What is left of the big moves; the values are right by float64 and by the original, jitted and op by op."""
    program = from_jax(fn, *arrays)
    found = optimize(program, target, **options)
    assert big_reshapes(found.text, SIZE) == moves, found.explain()
    flat = jax.tree.leaves(arrays)
    proof = verify(program, found.program, flat, eager=False)
    assert proof.ok, proof
    if not found.rewrites:
        assert found.text == program.text
    return found


def norm(x):
    return field_norm(x, SCALE, BIAS)


def heavy(x):
    """A pattern whose reshape cannot go: the split of the last dim alone is reduced."""
    y = x.reshape(SPLIT)
    return (y - y.sum(3, keepdims=True)).reshape(SHAPE)


USERS = {
    "one user": (lambda x: x.reshape(SPLIT).sum((1, 3)), 0),
    "all users let it die": (lambda x: (x.reshape(SPLIT).sum((1, 3)), jnp.sin(x.reshape(SPLIT)).max((1, 2))), 0),
    "one user needs it": (lambda x: (x.reshape(SPLIT).sum((1, 3)), jnp.cumsum(x.reshape(SPLIT), 1)), 1),
    "it escapes": (lambda x: (x.reshape(SPLIT), x.reshape(SPLIT).sum((1, 3))), 1),
    "its tree escapes": (lambda x: (jnp.sin(x.reshape(SPLIT)), x.reshape(SPLIT).sum((1, 3))), 1),
    "its tree goes back": (lambda x: (jnp.sin(x.reshape(SPLIT)).reshape(SHAPE), x.reshape(SPLIT).sum((1, 3))), 0),
    "a dot needs it": (lambda x: (x.reshape(SPLIT) @ jnp.ones((8, 2)), x.reshape(SPLIT).max((1, 3))), 1),
    "no run is reduced whole": (heavy, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "moves"),
    [
        pytest.param(*USERS[k], id=k, marks=[pytest.mark.nightly] if k in ("one user", "it escapes") else [])
        for k in USERS
    ],
)
def test_a_reshape_goes_only_if_all_of_its_users_let_it(fn, moves):
    """By day: of one user in the call below; of what escapes, its tree."""
    check(fn, [X], moves)


def steps(body):
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x), x)


def counted(body):
    return lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, body(c[1])), (0, x))[1]


def scanned(body):
    return lambda x: jax.lax.scan(lambda x, w: (body(x * w), w + 1), x, jnp.arange(1.0, 4.0))


def chosen(body):
    return lambda x: jax.lax.cond(x[0, 0, 0] > 0, body, jnp.sin, x)


def switched(body):
    return lambda x: jax.lax.switch(jnp.int32(x[0, 0, 0]), [jnp.cos, body, lambda x: body(2 * x)], x)


def nested(body):
    return lambda x: jax.lax.fori_loop(0, 2, lambda k, x: jax.lax.cond(k > 0, body, body, x), x)


BODIES = {
    "for": steps, "while": counted, "scan": scanned, "cond": chosen, "switch": switched, "nested": nested,
    "remat": jax.checkpoint, "called": lambda body: lambda x: jax.jit(body)(x) + jax.jit(body)(x + 1),
    "vmap": lambda body: lambda x: jax.vmap(body)(jnp.stack([x, x + 1])),
}  # fmt: skip
LATE_BODIES = {"while", "scan", "cond", "nested", "remat", "vmap"}


@pytest.mark.parametrize(
    "wrap",
    [pytest.param(BODIES[k], id=k, marks=[pytest.mark.nightly] if k in LATE_BODIES else []) for k in BODIES],
)
def test_bodies_are_rewritten_where_legal_and_left_alone_where_not(wrap):
    """By day: while, scan and cond in test_optimize_function.py; remat and vmap of norms below; nested as switch is."""
    check(wrap(norm), [X], 0)
    left = optimize(from_jax(wrap(heavy), X), "vector8x128")
    assert not left.rewrites
    assert big_reshapes(left.text, SIZE) == big_reshapes(left.original.text, SIZE) > 0


def largest(x):
    return jnp.max(jnp.sin(x).reshape(SPLIT), (1, 3))[:, None, :1] * x


@pytest.mark.parametrize(
    ("wrap", "fn"),
    [
        pytest.param(steps, norm, id="for a norm"),
        pytest.param(steps, largest, id="for a maximum", marks=pytest.mark.nightly),
        pytest.param(chosen, norm, id="cond of a norm", marks=pytest.mark.nightly),
        pytest.param(chosen, largest, id="cond of a maximum", marks=pytest.mark.nightly),
        pytest.param(jax.checkpoint, norm, id="remat of a norm"),
        pytest.param(jax.checkpoint, largest, id="remat of a maximum", marks=pytest.mark.nightly),
    ],
)
def test_gradients_of_bodies(wrap, fn):
    """Forward and backward in one program: residuals are stacked and handed on as they were before the reshape.

    By day: a loop and a remat of a norm; a cond forward in test_optimize_function.py.
    """
    found = optimize(from_jax(jax.grad(lambda x: (wrap(fn)(x) ** 3).sum()), X), "vector8x128")
    assert found.moved_after < found.moved_before
    assert bool(found.carried) == (wrap is not jax.checkpoint)
    assert not re.search(r"reshape .*(x|<)16x9x4x8xf32", found.text), found.explain()
    assert verify(found.original, found.program, [X], eager=False).ok


def test_residuals_that_must_stay_reshaped_stay_where_they_are():
    """The way back needs the split shape for itself: changing what the loop carries would gain nothing."""

    def heavier(x):  # its gradient has no unit dims that could go
        y = x.reshape(SPLIT)
        return (y - jax.lax.broadcast_in_dim(y.sum(3), SPLIT, (0, 1, 2))).reshape(SHAPE)

    program = from_jax(jax.grad(lambda x: (steps(heavier)(jnp.sin(x)) ** 3).sum()), X)
    found = optimize(program, "vector8x128")
    assert not found.carried
    assert found.text == program.text


def test_a_variance_arrives_as_a_call():
    def variance(x):
        return jnp.var(x.reshape(SPLIT), (1, 3))

    program = from_jax(variance, X)
    assert "call @" in program.text
    check(variance, [X], 0)


TRANSFORMED = {
    "forward": lambda f: f,
    "gradient": lambda f: jax.grad(lambda *a: (f(*a) ** 3).sum(), argnums=(0, 1, 2)),
    "value and gradient": lambda f: jax.value_and_grad(lambda *a: (f(*a) ** 3).sum()),
    "batched": lambda f: jax.vmap(f, in_axes=(1, None, None)),
    "batched gradient": lambda f: jax.vmap(jax.grad(lambda *a: (f(*a) ** 3).sum()), in_axes=(0, None, None)),
    "jvp": lambda f: lambda x, s, b: jax.jvp(f, (x, s, b), (x * 2, s, b)),
}  # fmt: skip


BY_DAY = {
    (field_norm, "gradient"), (field_norm, "batched"), (field_norm, "jvp"),
    (group_norm_minor, "forward"), (group_norm_minor, "batched gradient"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "transform"),
    [
        pytest.param(norm, TRANSFORMED[k], id=f"{k}-{norm.__name__}",
                     marks=[] if (norm, k) in BY_DAY else [pytest.mark.nightly])
        for norm in (field_norm, group_norm_minor) for k in TRANSFORMED
    ],
)  # fmt: skip
def test_norms_under_transformations(norm, transform):
    """By day: every transformation of one of the norms; a value and gradient as the gradient."""
    width = 32 if norm is field_norm else 64
    shape = (4, 9, width) if norm is field_norm else (4, 3, 5, width)
    batched = "in_axes" in transform.__code__.co_names or "vmap" in transform.__code__.co_names
    x = numbers(*((2, *shape) if batched else shape))
    if transform is TRANSFORMED["batched"]:
        x = np.moveaxis(x, 0, 1)
    arrays = [x, numbers(width), numbers(width)]
    program = from_jax(transform(norm), *arrays)
    found = optimize(program, "vector8x128")
    moves = int(transform is TRANSFORMED["batched"])  # the batch moves from axis 1 to the front
    assert big_reshapes(found.text, x.size) == moves, found.explain()
    proof = verify(program, found.program, arrays, eager=False)
    assert proof.ok, proof


@pytest.mark.parametrize(
    "dtype",
    [pytest.param("float32", marks=pytest.mark.nightly), "bfloat16", pytest.param("float16", marks=pytest.mark.nightly),
     "int32", "complex64"],
)  # fmt: skip
def test_element_types(dtype):
    """By day: float32 in the tests above, float16 as bfloat16."""

    def centred(x):
        y = x.reshape(SPLIT)
        return (y * 2 - y.sum((1, 3), keepdims=True).astype(x.dtype)).reshape(SHAPE)

    x = numbers(*SHAPE, dtype=dtype)
    if dtype == "complex64":
        x = x + 1j * x[::-1]
    check(centred, [x], 0)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)])
def test_the_error_of_narrow_accumulators_does_not_grow(dtype):
    """Sums of many terms of one sign, accumulated as the program says and as the rewritten one does.

    By day: float16 among the narrow floats of test_legality_reductions.py.
    """
    x = RNG.uniform(0.5, 1, (8, 64, 32)).astype(jnp.dtype(dtype))

    def sums(x):
        return jax.lax.reduce(x.reshape(8, 64, 4, 8), jnp.zeros((), x.dtype), jax.lax.add, (1, 3))

    program = from_jax(sums, x)
    proof = verify(program, optimize(program, "vector8x128").program, [x], eager=False)
    assert proof.reference == "StableHLO's interpreter"
    assert proof.error_after <= proof.error_before + float(jnp.finfo(dtype).eps) / 2


def test_bit_exact_programs_are_bit_exact():
    def mixed(x):
        y = x.reshape(SPLIT)
        top, total = y.max((1, 3), keepdims=True), y.sum((1, 3), keepdims=True)
        return (y - top).reshape(SHAPE), (jnp.round(y).astype(jnp.int32)).sum((1, 3)), total

    program = from_jax(mixed, X)
    free, bound = (optimize(program, "vector8x128", allow_reassociation=flag) for flag in (True, False))
    assert big_reshapes(free.text, SIZE) == 0
    assert verify(program, bound.program, [X], eager=False).bit_equal
    tops = from_jax(lambda x: mixed(x)[:2], X)
    found = optimize(tops, "vector8x128", allow_reassociation=False)
    assert big_reshapes(found.text, SIZE) == 0
    assert verify(tops, found.program, [X], eager=False).bit_equal


def test_symbolic_dims_are_left_alone():
    exported = jax.export.export(jax.jit(lambda x: normalised(x.reshape(x.shape[0], 9, 4, 8), (1, 3))))
    text = exported(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 9, 32"), jnp.float32)).mlir_module()
    program = load(text)
    found = optimize(program, "vector8x128")
    assert not found.rewrites
    assert found.text == program.text


def test_a_norm_written_with_transposes():
    """Groups first, as many write it: the transposes around the statistics go, forward and backward."""

    def turned(x):
        y = x.reshape(16, 9, 4, 8).transpose(0, 2, 1, 3)
        return normalised(y, (2, 3)).transpose(0, 2, 1, 3).reshape(x.shape)

    check(turned, [X], 0)
    check(jax.grad(lambda x: (turned(x) ** 3).sum()), [X], 0)


def test_a_transpose_with_several_users_stays_where_it_is():
    """Sunk, it would be there twice; the reshape before it goes all the same."""

    def normed(x):
        z = normalised(x.reshape(SPLIT), (1, 3))
        t = z.transpose(0, 2, 1, 3)
        return z.reshape(SHAPE), jnp.sin(t), jnp.cos(t)

    found = check(normed, [X], 2)
    assert "transpose-of-elementwise" not in found.rewrites[0].name
    assert found.text.count("stablehlo.transpose") == 1


def carried(change, trips=3):
    """A loop that carries the split shape all the way."""
    return lambda x: jax.lax.fori_loop(0, trips, lambda _, y: change(y), x.reshape(*x.shape[:2], 4, 8)).reshape(x.shape)


def test_a_loop_may_carry_an_array_as_it_was_before_a_reshape():
    """Where the body only acts on elements and takes statistics, small beside the array; not if it sorts."""
    x = numbers(16, 160, 32)
    found = optimize(from_jax(carried(lambda y: normalised(y, (1, 3))), x), "vector8x128")
    assert found.carried == 1
    assert big_reshapes(found.text, x.size) == 0
    assert verify(found.original, found.program, [x]).ok
    small = from_jax(carried(lambda y: normalised(y, (1, 3)), 30), X)  # its statistics' reshapes cost more, 30 times
    assert optimize(small, "vector8x128").text == small.text
    sort = from_jax(carried(lambda y: jnp.sort(y, 1) * 2), x)
    assert optimize(sort, "vector8x128").text == sort.text
