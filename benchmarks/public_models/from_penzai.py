"""Transformers of penzai, with named axes."""

import jax
import jax.numpy as jnp
from penzai import pz
from penzai.models.transformer.variants import gpt_neox, llamalike_common
from writing import Case, next_token, tokens

PACKAGE = "penzai"


def _language(build, config):
    def make():
        model = build(config, init_base_rng=jax.random.PRNGKey(0))
        model, weights = pz.unbind_params(model, freeze=True)
        tree = {each.label: each.value.data_array for each in weights}
        axes = {each.label: each for each in weights}

        def forward(tree, ids):
            bound = [pz.ParameterValue(_like(axes[k].value, v), k, axes[k].metadata) for k, v in tree.items()]
            out = pz.bind_variables(model, bound)(pz.nx.wrap(ids).tag("batch", "seq"))
            return out.untag("batch", "seq", "vocabulary").unwrap()

        return Case(forward, tree, (tokens(2, 256, 4096),), next_token(forward))

    return make


def _like(named, array):
    leaves, tree = jax.tree_util.tree_flatten(named)
    assert len(leaves) == 1
    return jax.tree_util.tree_unflatten(tree, [array])


MODELS = {
    "mistral": _language(llamalike_common.build_llamalike_transformer, llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=4, query_head_multiplier=4, embedding_dim=1024, projection_dim=64, mlp_hidden_dim=2816,
        num_decoder_blocks=2, vocab_size=4096, mlp_variant="swiglu", tie_embedder_and_logits=False,
        parameter_dtype=jnp.float32, activation_dtype=jnp.float32)),
    "gpt_neox": _language(gpt_neox.build_gpt_neox_transformer, gpt_neox.GPTNeoXTransformerConfig(
        num_attention_heads=12, embedding_dim=768, projection_dim=64, mlp_hidden_dim=3072, num_decoder_blocks=2,
        vocab_size=4096, activation_fn="gelu_exact", rope_subset_size=16, rope_wavelength=10000.0,
        layernorm_epsilon=1e-5, parameter_dtype=jnp.float32, activation_dtype=jnp.float32)),
}  # fmt: skip
