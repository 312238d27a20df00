"""Small random models compiled, run and held against XLA, layer by layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tilewright import isa

DTYPES = (np.float32, np.float32, ml_dtypes.bfloat16, np.int8, np.int32, np.float16)


def array(rng, shape, dtype):
    if np.dtype(dtype).kind == "i":
        return rng.integers(-100, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def floating(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def dims_of(rng, x):
    return tuple(sorted(rng.permutation(x.ndim)[: rng.integers(1, x.ndim + 1)].tolist()))


def product(rng, x):
    """Over any dims, with any of the others as batches."""
    order = rng.permutation(x.ndim).tolist()
    batches = order[: rng.integers(0, min(2, x.ndim - 1) + 1)]
    deep = order[len(batches) :][: rng.integers(1, 3)]
    names = [("own", 5), *(("batch", d) for d in batches), *(("deep", d) for d in deep)]
    names = [names[i] for i in rng.permutation(len(names))]
    other = array(rng, [n if kind == "own" else x.shape[n] for kind, n in names], x.dtype)
    sides = tuple(
        (dims, tuple(names.index((kind, d)) for d in dims)) for kind, dims in (("deep", deep), ("batch", batches))
    )
    sums = jnp.float32 if floating(x) else jnp.int32
    numbers = tuple((tuple(mine), theirs) for mine, theirs in sides)
    return lax.dot_general(x, other, numbers, preferred_element_type=sums if x.dtype != jnp.bfloat16 else None)


def convolution(rng, x):
    groups, dtype = int(rng.choice([1, 2])), x.dtype if x.dtype in (jnp.int8, jnp.bfloat16) else jnp.float32
    image = array(rng, (2, 7, 6, 2 * groups), dtype) + (x.reshape(-1)[0] * 0).astype(dtype)
    weights = array(rng, (rng.integers(1, 4), rng.integers(1, 4), 2, 3 * groups), dtype)
    padding = [tuple(pair) for pair in rng.integers(0, 3, (2, 2)).tolist()]
    return lax.conv_general_dilated(
        image, weights, rng.integers(1, 3, 2).tolist(), padding, None, rng.integers(1, 3, 2).tolist(),
        ("NHWC", "HWIO", "NHWC"), groups, preferred_element_type=jnp.int32 if dtype == jnp.int8 else None,
    )  # fmt: skip


def elements(rng, x):
    if not floating(x):
        return [jnp.abs, lambda v: v * 3, lambda v: v >> 1, lambda v: jnp.clip(v, -5, 50)][rng.integers(0, 4)](x)
    functions = [jnp.tanh, jax.nn.gelu, jax.nn.sigmoid, jnp.round, jnp.sign, lambda v: jnp.log(jnp.abs(v) + 1)]
    return functions[rng.integers(0, 6)](x)


def together(rng, x):
    y = array(rng, [n if rng.random() < 0.5 else 1 for n in x.shape], x.dtype)
    return [jnp.add, jnp.multiply, jnp.maximum, lambda a, b: jnp.where(a < b, a, b)][rng.integers(0, 4)](x, y)


def reduction(rng, x):
    return [jnp.sum, jnp.max, jnp.min][rng.integers(0, 3)](x, dims_of(rng, x), keepdims=True) + x


def norm(rng, x):
    wide, axis = x.astype(jnp.float32), int(rng.integers(0, x.ndim))
    if rng.random() < 0.5:
        return jax.nn.softmax(wide, axis)
    centred = wide - wide.mean(axis, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(axis, keepdims=True) + 1e-5)


def moved(rng, x):
    kind = rng.integers(0, 6)
    if kind == 0:
        return x.transpose(rng.permutation(x.ndim).tolist())
    if kind == 1:
        return x.reshape(-1, x.shape[0])
    if kind == 2:
        return x[tuple(slice(0, None, int(rng.integers(1, 3))) for _ in x.shape)]
    if kind == 3:
        return jnp.flip(jnp.concatenate([x, x], -1), 0)
    if kind == 4:
        return jnp.take(x, rng.integers(0, x.shape[0], 4), axis=0, mode="clip")
    return jnp.pad(x, [(0, 1)] * x.ndim)


def window(rng, x):
    sizes = [min(n, int(rng.integers(1, 4))) for n in x.shape]
    return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, sizes, rng.integers(1, 3, x.ndim).tolist(), "SAME")


PIECES = (product, convolution, elements, together, reduction, norm, moved, window)


@pytest.mark.parametrize("seed", [2, 3])
def test_random_models_have_xlas_values(seed):
    outer = np.random.default_rng(seed)
    x = array(outer, outer.integers(1, 9, outer.integers(2, 4)).tolist(), DTYPES[outer.integers(0, len(DTYPES))])
    config = isa.MatrixUnitConfig(threads=int(outer.choice([4, 16, 64])), pes=int(outer.choice([1, 2])))

    def model(x):
        rng = np.random.default_rng(seed)
        for piece in rng.permutation(len(PIECES))[:4]:
            x = PIECES[piece](rng, x)
        return x

    value, report = isa.compile(model, x, config=config).run(x, verify=True)
    assert value.shape == jax.eval_shape(model, x).shape
    assert not [layer.fallback for layer in report.layers if layer.fallback]
