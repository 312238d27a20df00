"""Keras Hub's backbones and language models on Keras with the jax backend."""

import jax.numpy as jnp
import keras
import keras_hub.models as hub
from writing import Case, normal, squares, tokens

PACKAGE = "keras-hub"


def stateless(model, inputs, loss=None, training=False):
    """A Keras model as a function of its variables."""
    weights = [x.value for x in model.trainable_variables]
    others = [x.value for x in model.non_trainable_variables]
    names = sorted(inputs) if isinstance(inputs, dict) else None

    def call(training):
        def forward(weights, others, *arrays):
            given = dict(zip(names, arrays)) if names else arrays[0]
            return model.stateless_call(weights, others, given, training=training)[0]

        return forward

    arrays = [inputs[name] for name in names] if names else [inputs]
    return Case(call(False), weights, (others, *arrays), (loss or squares)(call(training)))


def _keras_next_token(forward):
    """Keras' own sparse cross entropy."""

    def loss(weights, others, mask, ids):
        logits = forward(weights, others, mask, ids)
        return keras.losses.sparse_categorical_crossentropy(ids[:, 1:], logits[:, :-1], from_logits=True).mean()

    return loss


def _language(kind, task, length=256, batch=2, cache=2048, **config):
    """A causal language model: the gradient on a batch of texts, and forward as one step of ``generate``."""

    def make():
        model = task(backbone=kind(vocabulary_size=4096, num_layers=2, **config), preprocessor=None)
        ids = tokens(batch, length, 4096)
        ones = jnp.ones_like(ids)
        case = stateless(model, {"padding_mask": ones, "token_ids": ids}, _keras_next_token)
        queries = next(
            config[name] for name in ("num_query_heads", "num_heads", "num_attention_heads") if name in config
        )
        groups = config.get("num_key_value_heads", queries)
        past = normal(2 * batch, 2, 2, cache, groups, config.get("head_dim", config["hidden_dim"] // queries))
        here = jnp.int32(cache // 2)

        def decode(weights, others, padding_mask, ids, past, here):
            with keras.StatelessScope(
                [*zip(model.trainable_variables, weights), *zip(model.non_trainable_variables, others)]
            ):
                logits, _, past = model.call_with_cache(jnp.concatenate([ids, ids])[:, :1], past, here)
            return logits, past

        def loss(weights, others, padding_mask, ids, past, here):
            return case.loss(weights, others, padding_mask, ids)

        return Case(decode, case.weights, (*case.inputs, past, here), loss, "decode")

    return make


def _images(make_model, size, batch=2):
    return lambda: stateless(make_model(), normal(batch, size, size, 3))


def _fnet():
    model = hub.FNetBackbone(vocabulary_size=4096, num_layers=2, hidden_dim=768, intermediate_dim=3072)
    ids = tokens(2, 256, 4096)
    return stateless(model, {"segment_ids": jnp.zeros_like(ids), "token_ids": ids})


def _moonshine():
    model = hub.MoonshineBackbone(
        vocabulary_size=4096,
        filter_dim=288,
        encoder_num_layers=2,
        decoder_num_layers=2,
        hidden_dim=288,
        intermediate_dim=1152,
        encoder_num_heads=8,
        decoder_num_heads=8,
    )
    ids = tokens(2, 64, 4096)
    sound = normal(2, 16000, 1)
    inputs = {"decoder_padding_mask": jnp.ones_like(ids), "decoder_token_ids": ids, "encoder_input_values": sound,
              "encoder_padding_mask": jnp.ones((2, 16000), "int32")}  # fmt: skip
    return stateless(model, inputs)


def _diffusion():
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    model = MMDiT(patch_size=2, hidden_dim=768, num_layers=2, num_heads=12, position_size=64, latent_shape=(32, 32, 16),
                  context_shape=(77, 1024), pooled_projection_shape=(512,), qk_norm=None)  # fmt: skip
    inputs = {"latent": normal(2, 32, 32, 16), "context": normal(2, 77, 1024), "pooled_projection": normal(2, 512),
              "timestep": jnp.array([[3.0], [700.0]])}  # fmt: skip
    return stateless(model, inputs)


_LLAMA = {"num_query_heads": 16, "num_key_value_heads": 4, "hidden_dim": 1024}
MODELS = {
    "llama": _language(hub.LlamaBackbone, hub.LlamaCausalLM, intermediate_dim=2816, **_LLAMA),
    "mistral": _language(hub.MistralBackbone, hub.MistralCausalLM, intermediate_dim=3584, sliding_window=128, **_LLAMA),
    "gemma": _language(hub.GemmaBackbone, hub.GemmaCausalLM, num_query_heads=8, num_key_value_heads=1, hidden_dim=1024,
                       intermediate_dim=4096, head_dim=128, final_logit_soft_cap=30.0),
    "mixtral": _language(hub.MixtralBackbone, hub.MixtralCausalLM, intermediate_dim=1024, num_experts=8, **_LLAMA),
    "qwen3_moe": _language(hub.Qwen3MoeBackbone, hub.Qwen3MoeCausalLM, intermediate_dim=1024, moe_intermediate_dim=512,
                           num_experts=8, head_dim=64, **_LLAMA),
    "gpt_neox": _language(hub.GPTNeoXBackbone, hub.GPTNeoXCausalLM, num_heads=16, hidden_dim=1024,
                          intermediate_dim=4096),
    "phi3": _language(hub.Phi3Backbone, hub.Phi3CausalLM, intermediate_dim=2816, **_LLAMA),
    "qwen": _language(hub.QwenBackbone, hub.QwenCausalLM, intermediate_dim=2816, **_LLAMA),
    "qwen3": _language(hub.Qwen3Backbone, hub.Qwen3CausalLM, intermediate_dim=3072, head_dim=128, **_LLAMA),
    "qwen_moe": _language(hub.QwenMoeBackbone, hub.QwenMoeCausalLM, intermediate_dim=2816, moe_intermediate_dim=512,
                          shared_expert_intermediate_dim=2048, num_experts=8, **_LLAMA),
    "gpt_oss": _language(hub.GptOssBackbone, hub.GptOssCausalLM, intermediate_dim=1024, num_experts=8, head_dim=64,
                         sliding_window=128, **_LLAMA),
    "smollm3": _language(
        hub.SmolLM3Backbone, hub.SmolLM3CausalLM, hidden_dim=1024, intermediate_dim=2816, num_attention_heads=16,
        num_key_value_heads=4, attention_bias=False, attention_dropout=0.0, rope_layer_enabled_list=[True, True],
        layer_types=["full_attention"] * 2, mlp_bias=False, layer_norm_epsilon=1e-6, max_position_embeddings=2048,
        rope_theta=10000.0, partial_rotary_factor=1.0),
    "fnet": _fnet,
    "moonshine": _moonshine,
    "sd3": _diffusion,
    "swin": _images(lambda: hub.SwinTransformerBackbone(
        image_shape=(224, 224, 3), embed_dim=96, depths=(2, 2), num_heads=(3, 6), window_size=7, drop_path=0.0), 224),
    "segformer": _images(lambda: hub.MiTBackbone(
        layerwise_depths=[1, 1, 1, 1], num_layers=4, layerwise_num_heads=[1, 2, 5, 8],
        layerwise_sr_ratios=[8, 4, 2, 1], max_drop_path_rate=0.0, layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2], image_shape=(224, 224, 3), hidden_dims=[32, 64, 160, 256]), 224),
    "vitdet": _images(lambda: hub.ViTDetBackbone(
        hidden_size=384, num_layers=2, intermediate_dim=1536, num_heads=6, global_attention_layer_indices=[1],
        image_shape=(448, 448, 3)), 448, 1),
    "vae": _images(lambda: hub.VAEBackbone(
        encoder_num_filters=[128, 256], encoder_num_blocks=[1, 1], decoder_num_filters=[256, 128],
        decoder_num_blocks=[1, 1], sampler_method="mode", sample_channels=32, image_shape=(64, 64, 3)), 64, 1),
    "densenet": _images(lambda: hub.DenseNetBackbone([2, 2, 2, 2], image_shape=(224, 224, 3)), 224),
}  # fmt: skip
