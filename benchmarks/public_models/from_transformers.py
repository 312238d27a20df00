"""Flax models of Hugging Face's transformers: the last versions that have them."""

import jax
import jax.numpy as jnp
import optax
import transformers as hf
from writing import Case, classes, normal, squares, tokens

PACKAGE = "transformers"


def _shapes(model):
    """Its weights, not made."""
    return jax.eval_shape(lambda key: model.init_weights(key, model.input_shape), jax.random.PRNGKey(0))


def _language_loss(forward):
    """As the library's own training scripts have it."""

    def loss(weights, ids, *inputs):
        logits = forward(weights, ids, *inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]).mean()

    return loss


def _language(kind, config, length=256, batch=2, cache=0):
    """A causal language model; with a cache its forward is one decoding step."""

    def make():
        model = kind(config, _do_init=False)
        ids = tokens(batch, length, config.vocab_size)

        def forward(weights, ids):
            return model(ids, params=weights).logits

        if not cache:
            return Case(forward, _shapes(model), (ids,), _language_loss(forward))
        past = jax.tree_util.tree_map(lambda x: normal(*x.shape, dtype=x.dtype) if x.ndim else x + cache // 2,
                                      model.init_cache(batch, cache))  # fmt: skip

        def decode(weights, ids, past):
            here = jnp.full((batch, 1), cache // 2)
            seen = jnp.ones((batch, cache), "i4")
            out = model(ids[:, :1], params=weights, past_key_values=past, attention_mask=seen, position_ids=here)
            return out.logits, out.past_key_values

        def loss(weights, ids, past):
            return _language_loss(forward)(weights, ids)

        return Case(decode, _shapes(model), (ids, past), loss, "decode")

    return make


def _encoder(kind, config, length=128, batch=4):
    def make():
        model = kind(config, _do_init=False)

        def forward(weights, ids, mask):
            return model(ids, attention_mask=mask, params=weights).logits

        ids = tokens(batch, length, config.vocab_size)

        def loss(weights, ids, mask):
            return optax.softmax_cross_entropy_with_integer_labels(forward(weights, ids, mask), ids).mean()

        return Case(forward, _shapes(model), (ids, jnp.ones_like(ids)), loss)

    return make


def _images(kind, config, batch=4):
    def make():
        model = kind(config, input_shape=(1, config.image_size, config.image_size, 3), _do_init=False)

        def forward(weights, pixels):
            return model(pixels, params=weights).logits

        pixels = normal(batch, 3, config.image_size, config.image_size)
        return Case(forward, _shapes(model), (pixels,), classes(forward))

    return make


def _t5():
    config = hf.T5Config(vocab_size=4096, d_model=512, d_kv=64, d_ff=1024, num_layers=2, num_heads=8,
                         feed_forward_proj="gated-gelu", decoder_start_token_id=0)  # fmt: skip
    model = hf.FlaxT5ForConditionalGeneration(config, _do_init=False)

    def forward(weights, ids, out):
        return model(ids, decoder_input_ids=out, params=weights).logits

    def loss(weights, ids, out):
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, ids, out), out).mean()

    return Case(forward, _shapes(model), (tokens(2, 256, 4096), tokens(2, 128, 4096, 1)), loss)


def _whisper():
    config = hf.WhisperConfig(vocab_size=4096, d_model=384, encoder_layers=2, decoder_layers=2,
                              encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536,
                              decoder_ffn_dim=1536,
                              max_source_positions=400, max_target_positions=128, pad_token_id=0, bos_token_id=1,
                              eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
                              begin_suppress_tokens=None)  # fmt: skip
    model = hf.FlaxWhisperForConditionalGeneration(config, input_shape=(1, 80, 800), _do_init=False)

    def forward(weights, sound, out):
        return model(sound, decoder_input_ids=out, params=weights).logits

    def loss(weights, sound, out):
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, sound, out), out).mean()

    return Case(forward, _shapes(model), (normal(2, 80, 800), tokens(2, 64, 4096)), loss)


def _wav2vec2():
    config = hf.Wav2Vec2Config(vocab_size=32, hidden_size=384, num_hidden_layers=2, num_attention_heads=6,
                               intermediate_size=1536, do_stable_layer_norm=True, feat_extract_norm="layer",
                               conv_dim=(256,) * 4, conv_stride=(5, 4, 4, 2), conv_kernel=(10, 8, 8, 4))  # fmt: skip
    model = hf.FlaxWav2Vec2ForCTC(config, input_shape=(1, 16000), _do_init=False)

    def forward(weights, sound):
        return model(sound, params=weights).logits

    return Case(forward, _shapes(model), (normal(2, 16000),), squares(forward))


_GROUPED = {"num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 4096}
_NARROW = {"num_hidden_layers": 2, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072}
MODELS = {
    "gpt2": _language(hf.FlaxGPT2LMHeadModel, hf.GPT2Config(n_layer=2, vocab_size=8192, n_positions=256)),
    "gptj": _language(hf.FlaxGPTJForCausalLM, hf.GPTJConfig(n_layer=2, n_embd=1024, n_head=8, rotary_dim=64,
                                                            vocab_size=4096, n_positions=256)),
    "llama": _language(hf.FlaxLlamaForCausalLM, hf.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, max_position_embeddings=1024, **_GROUPED), cache=1024),
    "mistral": _language(hf.FlaxMistralForCausalLM, hf.MistralConfig(
        hidden_size=1024, intermediate_size=3584, max_position_embeddings=2048, sliding_window=2048, **_GROUPED),
        cache=2048, batch=4),
    "gemma": _language(hf.FlaxGemmaForCausalLM, hf.GemmaConfig(
        hidden_size=1024, intermediate_size=4096, head_dim=128, max_position_embeddings=1024,
        **{**_GROUPED, "num_attention_heads": 8, "num_key_value_heads": 1}), cache=1024),
    "bloom": _language(hf.FlaxBloomForCausalLM, hf.BloomConfig(hidden_size=1024, n_layer=2, n_head=16,
                                                               vocab_size=4096)),
    "bert": _encoder(hf.FlaxBertForMaskedLM, hf.BertConfig(vocab_size=8192, **_NARROW)),
    "t5": _t5,
    "whisper": _whisper,
    "wav2vec2": _wav2vec2,
    "vit": _images(hf.FlaxViTForImageClassification, hf.ViTConfig(image_size=224, num_labels=1000, **_NARROW)),
    "beit": _images(hf.FlaxBeitForImageClassification, hf.BeitConfig(
        image_size=224, num_labels=1000, use_relative_position_bias=True, use_mask_token=False, **_NARROW)),
    "regnet": _images(hf.FlaxRegNetForImageClassification, hf.RegNetConfig(
        image_size=128, embedding_size=32, hidden_sizes=[64, 144, 320, 784], depths=[1, 1, 2, 1], groups_width=16,
        num_labels=1000)),
}  # fmt: skip
