"""jax-tpu-embedding on any machine: its own buffers, primitives, statistics and specs."""

from tilewright.embed.tpu_embedding.primitives import install as install
