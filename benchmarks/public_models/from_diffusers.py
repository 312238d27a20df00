"""Flax models of Hugging Face's diffusers."""

import jax
import jax.numpy as jnp
from diffusers import FlaxAutoencoderKL, FlaxControlNetModel, FlaxUNet2DConditionModel
from writing import Case, normal, squares

PACKAGE = "diffusers"
_BLOCKS = {"sample_size": 32, "block_out_channels": (128, 256), "layers_per_block": 1, "cross_attention_dim": 256,
           "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "attention_head_dim": 4}  # fmt: skip


def _unet():
    model = FlaxUNet2DConditionModel(up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **_BLOCKS)
    weights = jax.eval_shape(model.init_weights, jax.random.PRNGKey(0))

    def forward(weights, sample, steps, states):
        return model.apply({"params": weights}, sample, steps, states).sample

    return Case(forward, weights, (normal(2, 4, 32, 32), jnp.array([3, 700]), normal(2, 77, 256)), squares(forward))


def _controlnet():
    model = FlaxControlNetModel(**_BLOCKS, conditioning_embedding_out_channels=(16, 32, 96, 128))
    weights = jax.eval_shape(model.init_weights, jax.random.PRNGKey(0))

    def forward(weights, sample, steps, states, picture):
        out = model.apply({"params": weights}, sample, steps, states, picture, 1.0)
        return out.down_block_res_samples, out.mid_block_res_sample

    inputs = (normal(2, 4, 32, 32), jnp.array([3, 700]), normal(2, 77, 256), normal(2, 3, 256, 256))
    return Case(forward, weights, inputs, squares(forward))


def _autoencoder():
    model = FlaxAutoencoderKL(block_out_channels=(128, 256), down_block_types=("DownEncoderBlock2D",) * 2,
                              up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, sample_size=64)  # fmt: skip
    weights = jax.eval_shape(model.init_weights, jax.random.PRNGKey(0))

    def forward(weights, picture):
        return model.apply({"params": weights}, picture).sample

    return Case(forward, weights, (normal(1, 3, 64, 64),), squares(forward))


MODELS = {"unet": _unet, "controlnet": _controlnet, "autoencoder": _autoencoder}
