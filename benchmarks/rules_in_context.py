"""Rules in context: whole blocks of models as people write them, before and after, by the TPU compiler's estimate.

    python benchmarks/rules_in_context.py                                  all blocks, all chips
    python benchmarks/rules_in_context.py --blocks "ViT block" --chips v6e
    python benchmarks/rules_in_context.py --docs docs/rules_in_context.md

    python benchmarks/rules_in_context.py --figures figures.json           compiled figures are kept there, run by run

Needs an installed TPU compiler (libtpu; `pip install 'jax[tpu]'`), no TPU. Inputs are taken to be finite, as weights
and activations are. The rules that act at full size also rewrite each block at a small size, where all values are
compared.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tilewright.errors import TilewrightError
from tilewright.hlo import (
    from_jax,
    load,
    optimize,
    parse_pipeline,
    run_pipeline,
    verify,
)
from tilewright.hlo.proving.tpu import judge_on_tpu

F32, BF16, I32, I8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8
CHIPS = ("v5e", "v6e", "v5p")


def array(*shape, dtype=BF16):
    """An argument."""
    return jax.ShapeDtypeStruct(shape, dtype)


# A decoding step of attention: Llama 3's reference code (interleaved rotary embedding, repeated keys and values).


def rms_norm(x, scale):
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rotated(x, sin, cos):
    """Rotary embedding of neighbouring pairs."""
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def attention_block(x, position, keys, values, wq, wk, wv, wo, sin, cos, scale):
    batch, length, groups, width = keys.shape
    heads = wq.shape[1] // width
    h = rms_norm(x, scale)
    q = rotated((h @ wq).reshape(batch, 1, heads, width), sin, cos)
    k = rotated((h @ wk).reshape(batch, 1, groups, width), sin, cos)
    v = (h @ wv).reshape(batch, 1, groups, width)
    keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
    values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
    all_keys, all_values = (jnp.repeat(each, heads // groups, axis=2) for each in (keys, values))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, all_keys).astype(F32) / math.sqrt(width)
    scores = jnp.where(jnp.arange(length) <= position, scores, -1e30)
    picked = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), all_values)
    return x + picked.reshape(batch, 1, -1) @ wo, keys, values


def attention_arguments(batch, length, heads, groups, width):
    d, cache = heads * width, array(batch, length, groups, width)
    return (
        array(batch, 1, d), array(dtype=I32), cache, cache, array(d, d), array(d, groups * width),
        array(d, groups * width), array(d, d), array(width // 2), array(width // 2), array(d),
    )  # fmt: skip


# DenseNet's way in: stem, a dense block, and the transition with its average pool (batch norm folded, as served).


def convolution(x, kernel, strides=(1, 1)):
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def normed(x, norm):
    return jax.nn.relu(x * norm[0] + norm[1])


def dense_stage(pictures, stem, stem_norm, layers, transition_norm, transition):
    x = normed(convolution(pictures, stem, (2, 2)), stem_norm)
    x = lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for norm, narrow, next_norm, grow in layers:
        h = convolution(normed(convolution(normed(x, norm), narrow), next_norm), grow)
        x = jnp.concatenate([x, h], axis=-1)
    x = convolution(normed(x, transition_norm), transition)
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def dense_arguments(batch, size, channels, growth, count):
    norm = [array(2, channels + k * growth) for k in range(count + 1)]
    layers = [
        (norm[k], array(1, 1, channels + k * growth, 4 * growth), array(2, 4 * growth),
         array(3, 3, 4 * growth, growth))
        for k in range(count)
    ]  # fmt: skip
    wide = channels + count * growth
    stem = array(7, 7, 3, channels)
    return array(batch, size, size, 3), stem, norm[0], layers, norm[count], array(1, 1, wide, wide // 2)


# ResNet's way in: stem, the max pool over padded images as its ports write it, and the first stage of bottlenecks.


def bottleneck(x, narrow, middle, wide, norms, project):
    h = normed(convolution(normed(convolution(x, narrow), norms[0]), middle), norms[1])
    h = convolution(h, wide) * norms[2][0] + norms[2][1]
    return jax.nn.relu(h + (x if project is None else convolution(x, project)))


def residual_stage(pictures, stem, stem_norm, layers):
    x = normed(convolution(pictures, stem, (2, 2)), stem_norm)
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    x = lax.reduce_window(x, jnp.array(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
    for layer in layers:
        x = bottleneck(x, *layer)
    return x


def residual_arguments(batch, size, channels, count):
    wide = 4 * channels
    layers = [
        (array(1, 1, wide if k else channels, channels), array(3, 3, channels, channels), array(1, 1, channels, wide),
         (array(2, channels), array(2, channels), array(2, wide)), None if k else array(1, 1, channels, wide))
        for k in range(count)
    ]  # fmt: skip
    return array(batch, size, size, 3), array(7, 7, 3, channels), array(2, channels), layers


# A vision transformer: patches by reshape and transpose, positions, and one block.


def layer_norm(x, norm):
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-6)).astype(x.dtype) * norm[0] + norm[1]


def vit_block(pictures, patch, position, first, wqkv, wo, second, up, down):
    n, size, _, channels = pictures.shape
    step = math.isqrt(patch.shape[0] // channels)
    side, width = size // step, min(64, patch.shape[1] // 2)
    x = pictures.reshape(n, side, step, side, step, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(n, side * side, step * step * channels) @ patch + position
    q, k, v = jnp.split(layer_norm(x, first) @ wqkv, 3, axis=-1)
    q, k, v = (each.reshape(n, side * side, -1, width) for each in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width)
    picked = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + picked @ wo
    return x + jax.nn.gelu(layer_norm(x, second) @ up) @ down


def vit_arguments(batch, size, step, d):
    return (
        array(batch, size, size, 3), array(step * step * 3, d), array((size // step) ** 2, d), array(2, d),
        array(d, 3 * d), array(d, d), array(2, d), array(d, 4 * d), array(4 * d, d),
    )  # fmt: skip


# A mixture of experts: Switch Transformer's places by a running count, gpt-oss's interleaved gated unit.


def mixture_of_experts(x, router, up, down):
    experts, capacity = router.shape[1], 5 * x.shape[0] // (4 * router.shape[1])
    gates = jax.nn.softmax((x @ router).astype(F32))
    best = gates.argmax(-1)
    chosen = jax.nn.one_hot(best, experts, dtype=I32)
    place = ((jnp.cumsum(chosen, axis=0) - 1) * chosen).sum(-1)
    there = jax.nn.one_hot(place, capacity, dtype=x.dtype)  # zeros beyond the capacity
    dispatch = chosen.astype(x.dtype)[:, :, None] * there[:, None]
    h = jnp.einsum("tec,td->ecd", dispatch, x)
    h = jnp.einsum("ecd,edf->ecf", h, up)
    h = jax.nn.silu(h[..., ::2]) * h[..., 1::2]
    out = jnp.einsum("ecf,efd->ecd", h, down)
    return jnp.einsum("tec,ecd->td", dispatch, out) * gates.max(-1, keepdims=True).astype(x.dtype)


def expert_arguments(tokens, d, hidden, experts):
    return array(tokens, d), array(d, experts), array(experts, d, 2 * hidden), array(experts, hidden, d)


# A linear layer with int8 weights, dequantised where it is used.


def quantised_linear(x, weights, scales, bias):
    wide = jnp.repeat(scales, weights.shape[0] // scales.shape[0], axis=0)
    return x @ (weights.astype(x.dtype) * wide) + bias


def quantised_arguments(rows, d, out, group):
    return array(rows, d), array(d, out, dtype=I8), array(d // group, out), array(out)


# DLRM's forward pass and loss: small tables looked up here, rows of the large ones given, pairs by index.


def mlp(x, layers):
    for k, (w, b) in enumerate(layers):
        x = x @ w + b
        x = jax.nn.relu(x) if k + 1 < len(layers) else x
    return x


def dlrm(dense, tables, indices, rows, bottom, top, clicked):
    x = jax.nn.relu(mlp(dense, bottom))
    looked_up = [table[index][:, None] for table, index in zip(tables, indices)]
    features = jnp.concatenate([x[:, None], *looked_up, rows], axis=1)
    products = jnp.einsum("bid,bjd->bij", features, features)
    below, beside = jnp.tril_indices(features.shape[1], -1)
    logits = mlp(jnp.concatenate([x, products[:, below, beside]], axis=1), top)[:, 0].astype(F32)
    return jnp.mean(jnp.maximum(logits, 0) - logits * clicked + jnp.log1p(jnp.exp(-jnp.abs(logits))))


def dlrm_arguments(batch, d, tables, large, bottom, top):
    pairs = (len(tables) + large + 1) * (len(tables) + large) // 2

    def layers(*sizes):
        return [(array(a, b), array(b)) for a, b in pairwise(sizes)]

    return (
        array(batch, 13), [array(rows, d) for rows in tables], [array(batch, dtype=I32) for _ in tables],
        array(batch, large, d), layers(13, *bottom, d), layers(d + pairs, *top, 1), array(batch, dtype=F32),
    )  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A block of a model: what it is, its function, and the sizes of its arguments, full and small."""

    name: str
    of: str
    function: Callable[..., Any]
    full: tuple[Any, ...]
    small: tuple[Any, ...]


BLOCKS = (
    Block("attention block", "Llama 3 8B, one decoding step of 8 sequences of 2,048", attention_block,
          attention_arguments(8, 2048, 32, 8, 128), attention_arguments(2, 8, 4, 2, 4)),
    Block("DenseNet stage", "DenseNet-121 on 32 pictures: stem, first dense block of 6 layers, transition", dense_stage,
          dense_arguments(32, 224, 64, 32, 6), dense_arguments(1, 16, 4, 2, 2)),
    Block("ResNet stage", "ResNet-50 on 32 pictures: stem, max pool, first stage of 3 bottlenecks", residual_stage,
          residual_arguments(32, 224, 64, 3), residual_arguments(1, 16, 4, 2)),
    Block("ViT block", "ViT-B/16 on 32 pictures: patches, positions, one block", vit_block,
          vit_arguments(32, 224, 16, 768), vit_arguments(2, 8, 4, 16)),
    Block("mixture of experts", "4,096 tokens of 512, 16 experts of 1,024, capacity factor 1.25", mixture_of_experts,
          expert_arguments(4096, 512, 1024, 16), expert_arguments(512, 8, 6, 4)),
    Block("quantised linear", "16 rows, int8 weights 4096 x 4096, a scale for every 128 of a column", quantised_linear,
          quantised_arguments(16, 4096, 4096, 128), quantised_arguments(4, 64, 16, 32)),
    Block("DLRM", "Criteo Terabyte's configuration: 8 small tables looked up, rows of 18 given; forward and loss", dlrm,
          dlrm_arguments(8192, 64, (3, 61, 10, 122, 4, 14, 101, 36), 18, (512, 256), (512, 512, 256)),
          dlrm_arguments(8, 4, (3, 5), 2, (6,), (5,))),
)  # fmt: skip


def agreement(block: Block, rules: list[str]) -> str:
    """Whether the rules that act at full size keep the block's values at a small size, in f32."""
    wide = [jax.ShapeDtypeStruct(x.shape, F32 if x.dtype == BF16 else x.dtype) for x in jax.tree.leaves(block.small)]
    before = from_jax(block.function, *jax.tree.unflatten(jax.tree.structure(block.small), wide))
    text, counts = run_pipeline(before.text, parse_pipeline(",".join(["inline", *rules])))
    proof = verify(before, load(text), inputs=("normal",), eager=False, assume_finite=True)
    idle = [rule for rule in rules if not counts[rule]]
    return ("agree" if proof.ok else proof.reason) + (f" (not in the small one: {', '.join(idle)})" if idle else "")


def measured(block: Block, chips: list[str], row: dict[str, Any]) -> dict[str, Any]:
    """A block's row: the rules that act, what becomes of the values, and the compiler's estimates on each chip.

    Estimates in ``row``, of an earlier run, stay where both programs are the same.
    """
    before = from_jax(block.function, *block.full)
    done = optimize(before, "tpu-v5e", assume_finite=True)
    rules = dict(Counter(verdict.rule or verdict.name for verdict in done.rewrites))
    both = re.sub(r"^#loc.*\n| loc\(.*?\)", "", before.text + "\n" + done.program.text, flags=re.MULTILINE)
    programs = hashlib.sha256(both.encode()).hexdigest()[:16]
    kept = row.get("chips", {}) if row.get("programs") == programs else {}
    new = {"block": block.name, "of": block.of, "rules": rules, "programs": programs}
    new |= {"values": agreement(block, [*rules]), "chips": dict(kept)}
    for chip in chips:
        [found] = judge_on_tpu([(before, done.program)], chip)
        if isinstance(found, TilewrightError):
            print(f"{chip} {block.name:20} {found}", flush=True)
            continue
        new["chips"][chip] = {
            "ratio": found.ratio, "cycles": [found.before.cycles, found.after.cycles],
            "filled_in": [found.before.filled_share, found.after.filled_share],
            "temporary_bytes": [found.before.temp_bytes, found.after.temp_bytes],
            "by": found.compiler, "date": datetime.date.today().isoformat(),
        }  # fmt: skip
        shares = " to ".join(f"{share:.0%}" for share in new["chips"][chip]["filled_in"])
        said = f"{', '.join(rules)}; {shares} filled in; values: {new['values']}"
        print(f"{chip} {block.name:20} {found.ratio:6.2f}  {said}", flush=True)
    return new


def ratios_of(rows: list[dict[str, Any]], chip: str) -> list[float]:
    """A chip's ratios."""
    return [row["chips"][chip]["ratio"] for row in rows if chip in row["chips"]]


def mean_of(rows: list[dict[str, Any]], chip: str) -> float | None:
    """The geometric mean of a chip's ratios, if every block has one."""
    ratios = ratios_of(rows, chip)
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if len(ratios) == len(BLOCKS) else None


def page(rows: list[dict[str, Any]]) -> str:
    """docs/rules_in_context.md."""
    chips = [chip for chip in CHIPS if mean_of(rows, chip) is not None]
    if not chips:
        raise SystemExit("no chip has figures of every block yet: no page")
    first, made = [row["chips"][chips[0]] for row in rows], [row["chips"][chip] for row in rows for chip in chips]

    def ratios(row: dict[str, Any]) -> str:
        return " | ".join(f"{row['chips'][chip]['ratio']:.2f}" for chip in chips)

    def acting(row: dict[str, Any]) -> str:
        return ", ".join(f"`{rule}`" + (f" x{n}" if n > 1 else "") for rule, n in row["rules"].items()) or "none"

    def filled(row: dict[str, Any]) -> str:
        return ", ".join(f"{chip} {two(row['chips'][chip]['filled_in'], '.0%')}" for chip in chips)

    def two(pair: list[float], form: str) -> str:
        return " to ".join(format(each, form) for each in pair)

    return "\n".join([
        "# Rules in context", "",
        "To rewrite a model of your own, run", "",
        "    tilewright optimize model.py:step --target tpu-v5e --assume-finite", "",
        "or call `hlo.optimize(program, \"tpu-v5e\", assume_finite=True)`. Where a TPU compiler is installed, add",
        "`--judge tpu:v5e`: it keeps what that compiler confirms.", "",
        "A rule's own factor ([rules.md](rules.md)) is of the lines that it rewrites. Here the rules meet seven whole",
        "blocks, written as public models write them, with everything around those lines. Each figure is the estimated",
        "cycles of the block as written over those of the block rewritten: **estimated by the compiler, no run time**.",
        "",
        "| block | " + " | ".join(chips) + " | rules that acted |", "|---|" + "--:|" * len(chips) + "---|",
        *(f"| {row['block']} | {ratios(row)} | {acting(row)} |" for row in rows),
        f"| geometric mean | {' | '.join(f'**{mean_of(rows, chip):.2f}**' for chip in chips)} | |",
        f"| median | {' | '.join(f'{median(ratios_of(rows, chip)):.2f}' for chip in chips)} | |", "",
        "Where the median is far below the mean, few blocks carry it: repeated keys, values and scales cost more than",
        "the rest of their blocks, while in the others products and convolutions take most of the time, and stay.", "",
        f"Cycles and temporary bytes are those on {chips[0]}. *Filled in* is the share of the cycles that the compiler",
        "gives no estimate for; bytes over a copy's rate stand for it. *Values* compares every result with float64,",
        "for the block at a small size in f32, rewritten by the same rules.", "",
        "| block | what it is | cycles | filled in | temporary bytes | values |", "|---|---|---|---|---|---|",
        *(f"| {row['block']} | {row['of']} | {two(each['cycles'], ',')} | {filled(row)} | "
          f"{two(each['temporary_bytes'], ',')} | {row['values']} |" for row, each in zip(rows, first)), "",
        "The blocks are bf16, the quantised layer's weights int8. Made by",
        "`python benchmarks/rules_in_context.py --docs docs/rules_in_context.md` with",
        f"{' and '.join(sorted({each['by'] for each in made}))}, {max(each['date'] for each in made)}.", "",
    ])  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="*", default=list(CHIPS), help="of v5e, v6e and v5p; none compiles nothing")
    parser.add_argument("--blocks", nargs="+", help="by name; all of them otherwise")
    parser.add_argument("--figures", type=Path, help="keep the figures there, beside those of earlier runs (JSON)")
    parser.add_argument("--docs", type=Path, help="write the page there")
    asked = parser.parse_args()
    kept = json.loads(asked.figures.read_text()) if asked.figures and asked.figures.exists() else {}
    for block in BLOCKS:
        if not asked.blocks or block.name in asked.blocks:
            kept[block.name] = measured(block, asked.chips, kept.get(block.name, {}))
            if asked.figures:
                asked.figures.write_text(json.dumps(kept, indent=1) + "\n")
    rows = [kept[block.name] for block in BLOCKS if block.name in kept]
    for chip in CHIPS:
        if (mean := mean_of(rows, chip)) is not None:
            print(f"{chip} geometric mean {mean:.2f} of {len(rows)} blocks, estimated by the compiler, no run time")
    if asked.docs:
        asked.docs.write_text(page(rows))


if __name__ == "__main__":
    main()
