"""Rules in context: whole blocks of models as people write them, before and after, by the TPU compiler's estimate.

    python benchmarks/rules_in_context.py [--chip v5e] [-o docs/rules_in_context.md]

Needs an installed TPU compiler (libtpu). Inputs are taken to be finite, as weights and activations are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from tilewright.errors import UnsupportedError
from tilewright.hlo import from_jax, judge_on_tpu, optimize, verify

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32


def array(dtype, *shape):
    """An argument."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _rotated(x, sin, cos):
    """Rotary embedding of interleaved pairs."""
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def attention_block(x, keys, values, wq, wk, wv, wo, sin, cos, scale):
    """One decoding step: norm, rotary embedding, grouped queries over a cache of keys and values, projection."""
    batch, length, groups, width = keys.shape
    heads = wq.shape[1] // width
    h = x * lax.rsqrt(jnp.mean(jnp.square(x.astype(F32)), -1, keepdims=True) + 1e-6).astype(x.dtype) * scale
    q = _rotated((h @ wq).reshape(batch, heads, width), sin, cos)
    k = _rotated((h @ wk).reshape(batch, 1, groups, width), sin, cos)
    keys = lax.dynamic_update_slice(keys, k, (0, length - 1, 0, 0))
    values = lax.dynamic_update_slice(values, (h @ wv).reshape(batch, 1, groups, width), (0, length - 1, 0, 0))
    keys, values = (jnp.repeat(each, heads // groups, axis=2) for each in (keys, values))
    scores = jnp.einsum("bhd,bkhd->bhk", q, keys).astype(F32) / math.sqrt(width)
    picked = jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(scores).astype(x.dtype), values)
    return x + picked.reshape(batch, -1) @ wo


def resnet_stage(x, stem, scale, bias, w1, w2):
    """A DenseNet's way down: two convolutions, batch norm, ReLU, a 1x1 convolution and average pooling by reshape."""

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    h = jax.nn.relu(conv(x, stem) * scale + bias)
    h = conv(jax.nn.relu(conv(h, w1) * scale + bias), w2)
    n, height, width, channels = h.shape
    return h.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def vit_block(pictures, patch, position, wqkv, wo, up, down):
    """Patches by reshape and transpose, one transformer block."""
    n, size, _, channels = pictures.shape
    side = size // 16
    x = pictures.reshape(n, side, 16, side, 16, channels).transpose(0, 1, 3, 2, 4, 5).reshape(n, side * side, -1)
    x = x @ patch + position
    width = x.shape[-1]
    q, k, v = jnp.split(x @ wqkv, 3, axis=-1)
    q, k, v = (each.reshape(n, -1, width // 64, 64) for each in (q, k, v))
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ wo
    return x + jax.nn.gelu(x @ up) @ down


def mixture_of_experts(x, router, up, down):
    """The best expert of each token, places by a running count of the one-hot choices, a gated unit interleaved."""
    experts, capacity = router.shape[1], 2 * x.shape[0] // router.shape[1]
    gates = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(gates.argmax(-1), experts, dtype=F32)
    place = (jnp.cumsum(chosen, axis=0) - 1) * chosen
    there = jax.nn.one_hot(place.sum(-1).astype(I32), capacity, dtype=F32)
    dispatch = (chosen[:, :, None] * there[:, None]).astype(x.dtype)
    h = jnp.einsum("tec,td->ecd", dispatch, x)
    h = jnp.einsum("ecd,edf->ecf", h, up)
    h = jax.nn.silu(h[..., ::2]) * h[..., 1::2]
    out = jnp.einsum("ecf,efd->ecd", h, down)
    return jnp.einsum("tec,ecd->td", dispatch, out) * gates.max(-1, keepdims=True)


def quantised_linear(x, weights, scales):
    """int8 weights with a scale for every 128 of a row, dequantised where they are used."""
    wide = jnp.repeat(scales, weights.shape[0] // scales.shape[0], axis=0)
    return x @ (weights.astype(BF16) * wide)


def dlrm(dense, rows, bottom, top):
    """26 embeddings and dense features: all pairs of inner products, the upper triangle, and the top layer."""
    x = jax.nn.relu(dense @ bottom)
    features = jnp.concatenate([x[:, None], rows], axis=1)
    count = features.shape[1]
    products = jnp.einsum("bid,bjd->bij", features, features)
    above, beside = jnp.triu_indices(count, 1)
    return jnp.concatenate([x, products[:, above, beside]], axis=1) @ top


PROGRAMS = {
    "attention block": (attention_block, (
        array(BF16, 8, 4096), array(BF16, 8, 2048, 8, 64), array(BF16, 8, 2048, 8, 64), array(BF16, 4096, 4096),
        array(BF16, 4096, 512), array(BF16, 4096, 512), array(BF16, 4096, 4096), array(BF16, 32), array(BF16, 32),
        array(BF16, 4096))),
    "ResNet stage": (resnet_stage, (
        array(BF16, 32, 56, 56, 256), array(BF16, 1, 1, 256, 128), array(BF16, 128), array(BF16, 128),
        array(BF16, 3, 3, 128, 128), array(BF16, 1, 1, 128, 128))),
    "ViT block": (vit_block, (
        array(BF16, 32, 224, 224, 3), array(BF16, 768, 768), array(BF16, 196, 768), array(BF16, 768, 2304),
        array(BF16, 768, 768), array(BF16, 768, 3072), array(BF16, 3072, 768))),
    "mixture of experts": (mixture_of_experts, (
        array(F32, 4096, 512), array(F32, 512, 16), array(F32, 16, 512, 2048), array(F32, 16, 1024, 512))),
    "quantised linear": (quantised_linear, (array(BF16, 16, 4096), array(jnp.int8, 4096, 4096), array(BF16, 32, 4096))),
    "DLRM": (dlrm, (
        array(F32, 4096, 13), array(F32, 4096, 26, 64), array(F32, 13, 64), array(F32, 64 + 27 * 26 // 2, 512))),
}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", default="v5e")
    parser.add_argument("--values", action="store_true", help="compare values too, which takes minutes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    target = f"tpu-{options.chip}"
    before = {name: from_jax(function, *arguments) for name, (function, arguments) in PROGRAMS.items()}
    done = {name: optimize(program, target, assume_finite=True) for name, program in before.items()}
    judged = judge_on_tpu([(before[name], done[name].program) for name in PROGRAMS], options.chip)
    rows = []
    for name, found in zip(PROGRAMS, judged):
        rules = Counter(verdict.rule or verdict.name for verdict in done[name].rewrites)
        row = {"program": name, "rules": dict(rules)}
        if isinstance(found, UnsupportedError):
            row["error"] = str(found)
        else:
            row |= {"ratio": found.ratio, "before": found.before.cycles, "after": found.after.cycles,
                    "filled": found.after.filled_share, "compiler": found.compiler}  # fmt: skip
        if options.values:
            proof = verify(before[name], done[name].program, inputs=("normal",), eager=False, assume_finite=True)
            row["values"] = "agree" if proof.ok else proof.reason
        rows.append(row)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    text = json.dumps({"rows": rows, "geometric_mean": mean}, indent=1) if options.json else page(rows, mean, target)
    print(text)
    if options.output:
        options.output.write_text(text)


def page(rows, mean, target):
    """The table as Markdown."""
    compiler = next((row["compiler"] for row in rows if "compiler" in row), "no compiler")
    lines = [
        "# Rules in context", "",
        f"Made by `python benchmarks/rules_in_context.py`: whole blocks, rewritten for `{target}` with finite inputs",
        f"assumed, and estimated by the TPU compiler itself ({compiler}): cycles, no run times.", "",
        f"Geometric mean {mean:.2f}.", "", "| block | rules | cycles before | after | ratio |", "|---|---|--:|--:|--:|",
    ]  # fmt: skip
    for row in rows:
        rules = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in sorted(row["rules"].items())) or "-"
        figures = (
            f"{row['before']:,} | {row['after']:,} | {row['ratio']:.2f}" if "ratio" in row else f"{row['error']} | |"
        )
        lines.append(f"| {row['program']} | {rules} | {figures} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
