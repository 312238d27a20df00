"""The kernels that JAX itself brings for TPUs, in the sizes of a large model: docs/kernels.md has what is said of them.

    tilewright kernel check examples/pallas_of_jax.py:splash --target tpu-v6e --sweep q=512,1024,2048

Nothing here needs a TPU.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash_module
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_module
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

HEADS, LENGTH, DEPTH = 32, 4096, 128


def _bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


EXAMPLES = {
    "flash": (_bf16(1, HEADS, LENGTH, DEPTH),) * 3,
    "splash": (_bf16(HEADS, LENGTH, DEPTH),) * 3,
    "paged": (_bf16(64, HEADS, DEPTH), *(_bf16(8, 2048, 64, DEPTH),) * 2, _i32(64), _i32(64, 64)),
    "ragged": (_bf16(512, HEADS, DEPTH), _bf16(2048, 32, 16, DEPTH), _i32(64), _i32(64, 64), _i32(65), _i32(1)),
    "grouped": (_bf16(8192, 2048), _bf16(16, 2048, 1024), _i32(16)),
}


def flash(q, k, v, bq=512, bk=512):
    """Flash attention, causal."""
    sizes = flash_module.BlockSizes(block_q=bq, block_k_major=bk, block_k=bk, block_b=1)
    return flash_module.flash_attention(q, k, v, causal=True, block_sizes=sizes)


def splash(q, k, v, bq=512, bk=512, compute=512):
    """Splash attention of one sequence under a causal mask: blocks that the mask empties are no steps."""
    sizes = splash_module.BlockSizes(block_q=bq, block_kv=bk, block_kv_compute=compute)
    mask = masks.MultiHeadMask([masks.CausalMask((q.shape[1], k.shape[1])) for _ in range(q.shape[0])])
    return splash_module.make_splash_mha_single_device(mask, block_sizes=sizes)(q, k, v)


def paged(q, k_pages, v_pages, lengths, pages, block=8):
    """Attention of one token a sequence over a cache in pages; ``block``: pages that are brought in at once."""
    return paged_attention(q, k_pages, v_pages, lengths, pages, pages_per_compute_block=block)


def ragged(q, cache, lengths, pages, starts, count, block=8, queries=32):
    """Attention of sequences of different lengths over a cache in pages."""
    return ragged_paged_attention(
        *(q, cache, lengths, pages, starts, count), num_kv_pages_per_block=block, num_queries_per_block=queries
    )


def grouped(x, weights, sizes, bm=512, bk=1024, bn=1024):
    """A product of each group of rows with a matrix of its own (megablox)."""
    return gmm(x, weights, sizes, preferred_element_type=jnp.bfloat16, tiling=(bm, bk, bn))
