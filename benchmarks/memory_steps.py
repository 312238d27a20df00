"""Training steps in plain JAX, compiled ahead of time for a TPU: what ``memory_peaks.py`` judges the modelled peaks by.

    pip install "jax[tpu]"                                   # an environment of its own; no TPU is needed
    python benchmarks/memory_steps.py FOLDER [WORD]          # FOLDER/NAME.mlir, NAME.hlo, NAME.mem.json
    ./run python benchmarks/memory_peaks.py FOLDER           # how far the peaks are off
    ./run python benchmarks/memory_peaks.py FOLDER --orders  # and whether the remat policies stand in their order

A name says what the step is: ``v5e.gpt-scan-donated.full`` is a language model whose layers are a scan, whose arguments
are donated, with the remat policy ``full``. Policies: ``none`` (all is kept), ``full`` (nothing is), ``dots`` (products
are), ``dots_no_batch`` (products with weights are), ``offload`` (the layers' inputs go to the host).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import topologies

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
saveable = jax.checkpoint_policies
POLICIES: dict[str, Any] = {
    "full": saveable.nothing_saveable,
    "dots": saveable.dots_saveable,
    "dots_no_batch": saveable.dots_with_no_batch_dims_saveable,
    "offload": saveable.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["input"],
        offload_src="device", offload_dst="pinned_host",
    ),
}  # fmt: skip
shape = jax.ShapeDtypeStruct
Step = Callable[..., Any]


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    kept = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(kept, scores, -1e30), -1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def gpt_layer(w: Any, x: Any, heads: int) -> Any:
    x = checkpoint_name(x, "input")
    w = jax.tree.map(lambda a: a.astype(x.dtype) if a.ndim > 1 else a, w)
    b, s, d = x.shape
    q, k, v = (a.reshape(b, s, heads, d // heads) for a in jnp.split(norm(x, w["n1"]) @ w["qkv"], 3, -1))
    x = x + attention(q, k, v).reshape(b, s, d) @ w["o"]
    return x + jax.nn.gelu(norm(x, w["n2"]) @ w["up"]) @ w["down"]


def rope(x: Any) -> Any:
    s, d = x.shape[1], x.shape[3]
    angle = jnp.arange(s, dtype=jnp.float32)[:, None] * 10000.0 ** (-jnp.arange(d // 2) / (d // 2))
    cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def llama_layer(w: Any, x: Any, heads: int) -> Any:
    x = checkpoint_name(x, "input")
    w = jax.tree.map(lambda a: a.astype(x.dtype) if a.ndim > 1 else a, w)
    b, s, _ = x.shape
    y, few = norm(x, w["n1"]), heads // 4
    q = rope((y @ w["q"]).reshape(b, s, heads, -1))
    k, v = rope((y @ w["k"]).reshape(b, s, few, -1)), (y @ w["v"]).reshape(b, s, few, -1)
    k, v = jnp.repeat(k, 4, 2), jnp.repeat(v, 4, 2)
    x = x + attention(q, k, v).reshape(b, s, -1) @ w["o"]
    y = norm(x, w["n2"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def weights(kind: str, d: int, f: int, layers: int, vocab: int) -> dict[str, Any]:
    sizes = {"n1": (d,), "n2": (d,), "o": (d, d), "up": (d, f), "down": (f, d)}
    sizes |= {"qkv": (d, 3 * d)} if kind == "gpt" else {"q": (d, d), "k": (d, d // 4), "v": (d, d // 4), "gate": (d, f)}
    stacked = {name: shape((layers, *dims), jnp.float32) for name, dims in sizes.items()}
    return {"embed": shape((vocab, d), jnp.float32), "layers": stacked, "n": shape((d,), jnp.float32)}


def loss(w: Any, tokens: Any, *, layer: Step, heads: int, scan: bool, policy: str) -> Any:
    x = w["embed"][tokens[:, :-1]].astype(jnp.bfloat16)
    run = partial(layer, heads=heads)
    if policy != "none":
        run = jax.checkpoint(run, policy=POLICIES[policy])
    if scan:
        x = jax.lax.scan(lambda x, w: (run(w, x), None), x, w["layers"])[0]
    else:
        for number in range(w["layers"]["n1"].shape[0]):
            x = run(jax.tree.map(itemgetter(number), w["layers"]), x)
    scores = (norm(x, w["n"]) @ w["embed"].astype(x.dtype).T).astype(jnp.float32)
    picked = jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, -1) - picked)


def adam(w: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradient)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], gradient)
    new = jax.tree.map(lambda w, m, v: w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), w, m, v)
    return new, {"count": count, "m": m, "v": v}


def decoder(kind: str, policy: str, scan: bool, *, batch: int, length: int, d: int, f: int, layers: int, vocab: int):
    """A step of a language model with Adam, and the shapes of its arguments."""
    layer, w = {"gpt": gpt_layer, "llama": llama_layer}[kind], weights(kind, d, f, layers, vocab)
    of = partial(loss, layer=layer, heads=d // 64, scan=scan, policy=policy)

    def step(w: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        value, gradient = jax.value_and_grad(of)(w, tokens)
        return (*adam(w, state, gradient), value)

    return step, (w, {"count": shape((), jnp.int32), "m": w, "v": w}, shape((batch, length + 1), jnp.int32))


def mlp(batch: int = 4096, d: int = 2048, layers: int = 12):
    """A step of a plain network with momentum."""
    w = [(shape((d, d), jnp.float32), shape((d,), jnp.float32)) for _ in range(layers)]

    def of(w: Any, x: Any, y: Any) -> Any:
        for a, b in w:
            x = jax.nn.relu(x @ a + b)
        return jnp.mean((x - y) ** 2)

    def step(w: Any, m: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
        value, gradient = jax.value_and_grad(of)(w, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, gradient)
        return jax.tree.map(lambda w, m: w - 1e-2 * m, w, m), m, value

    x = shape((batch, d), jnp.float32)
    return step, (w, w, x, x)


def convolutions(batch: int = 256, size: int = 32, width: int = 128, blocks: int = 6):
    """A step of a residual network of convolutions with momentum."""
    kernel = shape((3, 3, width, width), jnp.float32)
    w = {"in": shape((3, 3, 3, width), jnp.float32), "blocks": [(kernel, kernel) for _ in range(blocks)],
         "out": shape((width, 1000), jnp.float32)}  # fmt: skip

    def conv(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w.astype(x.dtype), (1, 1), "SAME", dimension_numbers=dims)

    def of(w: Any, images: Any, labels: Any) -> Any:
        x = conv(images.astype(jnp.bfloat16), w["in"])
        for a, b in w["blocks"]:
            x = x + conv(jax.nn.relu(conv(jax.nn.relu(x), a)), b)
        scores = x.mean((1, 2)).astype(jnp.float32) @ w["out"]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, labels[:, None], -1)[:, 0])

    def step(w: Any, m: Any, images: Any, labels: Any) -> tuple[Any, Any, Any]:
        value, gradient = jax.value_and_grad(of)(w, images, labels)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, gradient)
        return jax.tree.map(lambda w, m: w - 1e-2 * m, w, m), m, value

    return step, (w, w, shape((batch, size, size, 3), jnp.float32), shape((batch,), jnp.int32))


def steps() -> dict[str, tuple[str, bool, tuple[Step, tuple[Any, ...]]]]:
    """Name -> chip, whether its state is donated, the step and its arguments."""
    found = {}
    sizes = {
        "gpt": {"batch": 8, "length": 1024, "d": 1024, "f": 4096, "layers": 8, "vocab": 32768},
        "llama": {"batch": 4, "length": 2048, "d": 1024, "f": 2816, "layers": 6, "vocab": 32768},
    }
    for kind, scan in (("gpt", True), ("gpt", False), ("llama", True), ("llama", False)):
        for donated in (True, False):
            for policy in ("none", *POLICIES):
                how = f"{'scan' if scan else 'unrolled'}-{'donated' if donated else 'kept'}"
                made = decoder(kind, policy, scan, **sizes[kind])
                found[f"v5e.{kind}-{how}.{policy}"] = "v5e", donated, made
    for name, made in (("mlp", mlp()), ("mlp-small", mlp(1024, 512)), ("conv", convolutions())):
        for donated in (True, False):
            found[f"v5e.{name}-{'donated' if donated else 'kept'}.none"] = "v5e", donated, made
    return found


def compiled(
    step: Step, arguments: tuple[Any, ...], chip: str, given: tuple[int, ...]
) -> tuple[str, str, dict[str, int]]:
    """A step's StableHLO, the compiler's module and its memory."""
    os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_LIBRARY_LOCK="0", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    jax.config.update("jax_platforms", "cpu")
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip])
    place = jax.sharding.SingleDeviceSharding(topology.devices[0])
    placed = jax.tree.map(lambda a: shape(a.shape, a.dtype, sharding=place), arguments)
    lowered = jax.jit(step, donate_argnums=given, out_shardings=place).trace(*placed).lower(lowering_platforms=("tpu",))
    done = lowered.compile()
    memory = done.memory_analysis()
    sizes = {name: getattr(memory, name) for name in dir(memory) if name.endswith("_in_bytes")}
    return lowered.as_text(debug_info=True), done.as_text(), sizes


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(exist_ok=True)
    for name, (chip, donated, (step, arguments)) in steps().items():
        if (folder / f"{name}.mem.json").exists() or not all(word in name for word in words):
            continue
        try:
            text, module, sizes = compiled(step, arguments, chip, (0, 1) if donated else ())
        except Exception as error:  # the compiler's: the others are still worth having
            print(name, str(error).splitlines()[0], file=sys.stderr)
            continue
        (folder / f"{name}.mlir").write_text(text)
        (folder / f"{name}.hlo").write_text(module)
        (folder / f"{name}.mem.json").write_text(json.dumps(sizes))
        print(name, sizes["temp_size_in_bytes"] >> 20, "MiB of temporaries", flush=True)


if __name__ == "__main__":
    main()
