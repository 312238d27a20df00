"""A tiled matrix product as a Pallas kernel for TPUs, from slow to good: docs/kernels.md.

    tilewright kernel check examples/pallas_matmul.py:matmul --target tpu-v6e --sweep bm=128,512,1024

Nothing here needs a TPU: kernels are lowered for one, checked and timed, and never run.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

X = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
EXAMPLES = {"matmul": (X, X), "rows_last": (X, X)}


def matmul(x, y, bm=128, bk=128, bn=128, vmem=None):
    """The product, the steps along its depth innermost; ``vmem``: bytes of vector memory that it asks for."""
    (m, k), n = x.shape, y.shape[1]

    def body(a, b, o, sums):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)

        sums[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o[...] = sums[...].astype(o.dtype)

    return pl.pallas_call(
        body,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem),
    )(x, y)


def rows_last(x, y, bm=256, bn=1024):
    """The same in whole rows and columns of blocks; its grid brings the wider operand in again and again."""
    (m, k), n = x.shape, y.shape[1]

    def body(a, b, o):
        o[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(o.dtype)

    return pl.pallas_call(
        body,
        grid=(m // bm, n // bn),
        in_specs=[pl.BlockSpec((bm, k), lambda i, j: (i, 0)), pl.BlockSpec((k, bn), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, y)
