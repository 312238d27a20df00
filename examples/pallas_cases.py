"""Questions that users of Pallas asked in public, cut down to what decides them: docs/kernels.md has the answers.

    tilewright kernel check examples/pallas_cases.py:dequantised --target tpu-7x

Nothing here needs a TPU.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _array(kind, *shape):
    return jax.ShapeDtypeStruct(shape, kind)


BF16 = jnp.bfloat16
EXAMPLES = {
    "dequantised": (_array(BF16, 1024, 8192), _array(jnp.int8, 8192, 8192)),
    "packed": (_array(jnp.uint8, 256, 1024),),
    "short_rows": (_array(BF16, 8, 2048), _array(BF16, 2048, 512)),
    "ragged_blocks": (_array(jnp.float32, 1000, 512),),
}


def dequantised(x, w, bm=512, bn=2048, bk=2048, limit=None):
    """jax 38988: a product with weights that are made bf16 in the kernel; ``limit``: bytes that it asks for."""

    def body(a, b, o, sums):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)

        sums[...] += jnp.dot(a[...], b[...].astype(jnp.float32).astype(BF16), preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o[...] = sums[...].astype(o.dtype)

    return pl.pallas_call(
        body,
        grid=(x.shape[0] // bm, w.shape[1] // bn, x.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=_array(BF16, x.shape[0], w.shape[1]),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
    )(x, w)


def packed(x, rows=8):
    """jax 39058: bytes are packed four to a word, so their tiles have 32 rows."""

    def body(a, o):
        o[...] = a[...] ^ jnp.uint8(255)

    block = pl.BlockSpec((rows, 1024), lambda i: (i, 0))
    return pl.pallas_call(body, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block, out_shape=x)(x)


def short_rows(x, w):
    """jax 24486: a product of eight rows of bf16, half of what a tile of its type holds."""

    def body(a, b, o):
        o[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(body, out_shape=_array(jnp.float32, x.shape[0], w.shape[1]))(x, w)


def ragged_blocks(x, rows=96):
    """helion 3126: 1,000 rows in blocks of 96; the last one reaches beyond, and a sum over all of it is wrong."""

    def body(a, o):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += jnp.sum(a[...], axis=0, keepdims=True)

    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], rows),),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0)),
        out_shape=_array(jnp.float32, 1, x.shape[1]),
    )(x)
