"""Gemma by its authors (Flax), in bfloat16."""

import jax
from gemma import gm
from gemma.gm.nn import config as configs
from writing import Case, next_token, tokens

PACKAGE = "gemma"


def _gemma():
    local, everywhere = configs.AttentionType.LOCAL_SLIDING, configs.AttentionType.GLOBAL
    config = configs.TransformerConfig(
        num_embed=8192, embed_dim=1152, hidden_dim=4096, num_heads=4, head_dim=256, num_kv_heads=1,
        final_logit_softcap=None, use_post_attn_norm=True, use_post_ffw_norm=True, attention_types=(local, everywhere),
        sliding_window_size=128, use_qk_norm=True)  # fmt: skip
    model = gm.nn.Transformer(config=config, tokens="tokens")
    ids = tokens(2, 256, 8192)
    weights = jax.eval_shape(model.init, jax.random.PRNGKey(0), ids)

    def forward(weights, ids):
        return model.apply(weights, ids).logits

    return Case(forward, weights, (ids,), next_token(forward))


MODELS = {"gemma3": _gemma}
