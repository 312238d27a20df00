"""A kernel that brings in its blocks itself, two buffers in turn: right, and with a copy that is not waited for.

    tilewright kernel run examples/pallas_copies.py:hurried

Nothing here needs a TPU.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS, BLOCKS = 16, 8
EXAMPLES = dict.fromkeys(("doubled", "hurried"), (jax.ShapeDtypeStruct((ROWS * BLOCKS, 256), jnp.float32),))


def doubled(x, waits=1):
    """Each block of rows, doubled, while the next one is on its way; every ``waits``-th block is waited for."""

    def body(x_hbm, out, buffer, arrived):
        def bring(k):
            return pltpu.make_async_copy(x_hbm.at[pl.ds(k * ROWS, ROWS)], buffer.at[k % 2], arrived.at[k % 2])

        step = pl.program_id(0)

        @pl.when(step == 0)
        def _():
            bring(step).start()

        @pl.when(step + 1 < BLOCKS)
        def _():
            bring(step + 1).start()

        @pl.when(step % waits == 0)
        def _():
            bring(step).wait()

        out[...] = buffer[step % 2] * 2

    return pl.pallas_call(
        body,
        grid=(BLOCKS,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((ROWS, 256), lambda k: (k, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((2, ROWS, 256), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def hurried(x):
    """The same, but every second block is read without waiting for it."""
    return doubled(x, waits=2)
