"""Programs on slices of 8 to 512 chips: what the TPU's compiler makes of them against what is said from their source.

    python benchmarks/slices.py make FOLDER     # with a TPU compiler: pip install "jax[tpu]", no TPU is needed
    python benchmarks/slices.py table FOLDER

``make`` lowers 41 programs over meshes with axes d and m, and has each compiled for a slice ahead of time: beside every
``NAME.stablehlo.mlir.gz`` stands ``NAME.hlo.gz``, the module of one chip, and ``NAME.json`` with the compiler's bytes.
``table`` reads both: the share of the compiled module that has a time; from StableHLO alone the bytes of arguments, the
kinds and counts of collectives and the bytes they send, and seconds of processor time in this process and of the clock.
"""

# ruff: noqa: E501  a program is a line of a table

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

SLICES = {
    "v5e:2x4": (4, 2), "v5e:4x4": (4, 4), "v5e:8x8": (8, 8), "v5e:16x16": (16, 16), "v6e:4x8": (8, 4),
    "v6e:8x16": (16, 8), "v5p:2x4x4": (8, 4), "v5p:4x4x4": (16, 4), "v5p:4x8x8": (32, 8), "v5p:8x8x8": (64, 8),
}  # fmt: skip
"""Slice -> devices along d and m."""


def programs(mesh: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Name -> a jitted function with shardings over d and m, and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    half, full, array = jnp.bfloat16, jnp.float32, jax.ShapeDtypeStruct
    d = mesh.shape["d"]

    def on(*spec: Any) -> Any:
        return NamedSharding(mesh, P(*spec))

    def layer(x: Any, w: Any) -> Any:
        h = x * jax.lax.rsqrt((x.astype(full) ** 2).mean(-1, keepdims=True) + 1e-6).astype(half)
        q, k, v = (jnp.einsum("bse,ehd->bshd", h, w[name]) for name in "qkv")
        a = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k).astype(full), -1).astype(half)
        x = x + jnp.einsum("bhst,bthd,hde->bse", a, v, w["o"])
        return x + jax.nn.silu(x @ w["up"]) @ w["down"]

    width, heads, batch = 2048, 64, 8 * d
    block = {name: array((width, heads, 32), half) for name in "qkv"}
    block |= {
        "o": array((heads, 32, width), half),
        "up": array((width, 8192), half),
        "down": array((8192, width), half),
    }
    split = {name: on(None, "m", None) for name in "qkv"}
    split |= {"o": on("m", None, None), "up": on(None, "m"), "down": on("m", None)}
    x = array((batch, 512, width), half)
    deep = jax.tree.map(lambda w: array((4, *w.shape), w.dtype), block)
    fsdp = {name: on(None, "d", "m", None) for name in "qkv"}
    fsdp |= {"o": on(None, "m", None, "d"), "up": on(None, "d", "m"), "down": on(None, "m", "d")}

    def loss(w: Any, x: Any) -> Any:
        return (jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, w)[0].astype(full) ** 2).mean()

    def train(w: Any, s: Any, x: Any) -> Any:
        s = jax.tree.map(lambda s, g: 0.9 * s + g.astype(full), s, jax.grad(loss)(w, x))
        return jax.tree.map(lambda w, s: (w.astype(full) - 1e-3 * s).astype(half), w, s), s

    def entropy(h: Any, table: Any, ids: Any) -> Any:
        scores = (h @ table).astype(full)
        return (jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, ids[:, None], -1)[:, 0]).mean()

    def experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
        weights = jax.nn.softmax((x @ gate).astype(full), -1).astype(half)
        return jnp.einsum(
            "te,ted->td",
            weights,
            jnp.einsum("etf,efd->etd", jax.nn.gelu(jnp.einsum("td,edf->etf", x, up)), down).swapaxes(0, 1),
        )

    def ring(q: Any, k: Any) -> Any:
        n = mesh.shape["d"]

        def one(carry: Any, _: Any) -> Any:
            total, k = carry
            k2 = jax.lax.ppermute(k, "d", [(i, (i + 1) % n) for i in range(n)])
            return (total + jnp.tanh(q @ k.T) @ k, k2), None

        return jax.lax.scan(one, (q * 0, k), None, n)[0][0]

    def decode(q: Any, keys: Any, values: Any) -> Any:
        a = jax.nn.softmax(jnp.einsum("bhd,bhsd->bhs", q, keys).astype(full), -1).astype(half)
        return jnp.einsum("bhs,bhsd->bhd", a, values)

    def conv(x: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, var = y.astype(full).mean((0, 1, 2)), y.astype(full).var((0, 1, 2))
        return jax.nn.relu((y - mean) * jax.lax.rsqrt(var + 1e-5)).astype(half)

    one = jnp.int32
    big, vocab = array((8192, 8192), half), array((width, 65536), half)
    flat, ids = array((512 * d, width), half), array((512 * d,), one)
    up, down = array((64, width, 1024), half), array((64, 1024, width), half)
    cache = array((8 * d, heads, 2048, 128), half)
    rows = on("d", None)
    spread = on("d", "m", None, None)
    jit = jax.jit
    return {
        "layer": (jit(layer, in_shardings=(on("d", None, None), split), out_shardings=on("d", None, None)), (x, block)),
        "train_fsdp": (jit(train, in_shardings=(fsdp, fsdp, on("d", None, None)), out_shardings=(fsdp, fsdp), donate_argnums=(0, 1)), (deep, jax.tree.map(lambda w: array(w.shape, full), deep), x)),
        "entropy": (jit(entropy, in_shardings=(rows, on(None, "m"), on("d")), out_shardings=on()), (flat, vocab, ids)),
        "embed": (jit(lambda t, i: t[i], in_shardings=(on("m", None), on("d")), out_shardings=rows), (array((65536, width), half), ids)),
        "experts": (jit(experts, in_shardings=(rows, on(None, "m"), on("m", None, None), on("m", None, None)), out_shardings=rows), (flat, array((width, 64), half), up, down)),
        "ring": (jit(jax.shard_map(ring, mesh=mesh, in_specs=(P("d", None), P("d", None)), out_specs=P("d", None))), (flat, flat)),
        "decode": (jit(decode, in_shardings=(on("d", "m", None), spread, spread), out_shardings=on("d", "m", None)), (array((8 * d, heads, 128), half), cache, cache)),
        "decode_long": (jit(decode, in_shardings=(on("d", None, None), on("d", None, "m", None), on("d", None, "m", None)), out_shardings=on("d", None, None)), (array((8 * d, heads, 128), half), cache, cache)),
        "conv": (jit(conv, in_shardings=(on("d"), on(None, None, None, "m")), out_shardings=on("d", None, None, "m")), (array((4 * d, 28, 28, 128), half), array((3, 3, 128, 512), half))),
        "product_2d": (jit(lambda a, b: a @ b, in_shardings=(on("d", "m"), on("m", "d")), out_shardings=on("d", "m")), (big, big)),
        "product_sum": (jit(lambda a, b: a @ b, in_shardings=(on(None, "m"), on("m", None)), out_shardings=on()), (big, big)),
        "sorted": (jit(lambda x: jnp.sort(x, -1), in_shardings=on("d", "m"), out_shardings=on("d", "m")), (array((1024, 8192), full),)),
        "running_sum": (jit(lambda x: jnp.cumsum(x, 0), in_shardings=rows, out_shardings=rows), (array((8192, 512), full),)),
        "mean_all": (jit(lambda x: x - x.mean(), in_shardings=on("d", "m"), out_shardings=on("d", "m")), (big,)),
        "turned": (jit(lambda x: x.T, in_shardings=on("d", "m"), out_shardings=on("d", "m")), (big,)),
        "psum_two": (jit(jax.shard_map(lambda a: (jax.lax.psum(a, "m"), jax.lax.pmax(a.max(), ("d", "m"))), mesh=mesh, in_specs=P("d", "m"), out_specs=(P("d", None), P()))), (big,)),
    }  # fmt: skip


CHOSEN = {
    "entropy": "v5e:4x4 v6e:4x8 v5p:4x8x8", "embed": "v5e:8x8 v5p:4x4x4", "experts": "v5e:2x4 v6e:8x16 v5p:4x4x4",
    "ring": "v5e:4x4 v5p:2x4x4 v5p:4x8x8", "decode": "v5e:8x8 v5p:8x8x8", "decode_long": "v5e:4x4 v6e:4x8 v5p:4x4x4",
    "conv": "v5e:2x4 v6e:8x16", "product_2d": "v5e:8x8 v5p:4x4x4", "product_sum": "v5e:2x4 v5p:8x8x8", "sorted": "v5e:4x4 v5p:4x8x8",
    "running_sum": "v5e:2x4 v5p:2x4x4", "mean_all": "v5e:16x16 v5p:4x8x8", "turned": "v5e:4x4 v6e:8x16 v5p:4x8x8", "psum_two": "v6e:4x8 v5p:8x8x8 v5e:16x16",
    "layer": "v5e:2x4 v5e:8x8 v6e:8x16 v5p:8x8x8", "train_fsdp": "v5e:4x4 v5p:4x4x4",
}  # fmt: skip
"""Program -> the slices that it is compiled for."""


def make(folder: Path) -> None:
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    import numpy as np
    from jax.experimental import mesh_utils, topologies
    from jax.sharding import Mesh

    for name, slices in CHOSEN.items():
        for text in slices.split():
            chip, dims = text.split(":")
            stem = folder / f"{name}.tpu-{chip}-{dims}"
            if stem.with_name(f"{stem.name}.json").exists():
                continue
            devices = topologies.get_topology_desc(platform="tpu", topology_name=text).devices
            laid = mesh_utils.create_device_mesh(SLICES[text], devices, allow_split_physical_axes=True)
            begin = time.time()
            function, arguments = programs(Mesh(np.array(laid), ("d", "m")))[name]
            lowered = function.trace(*arguments).lower(lowering_platforms=("tpu",))
            try:
                compiled = lowered.compile()
            except Exception as error:
                print(f"{stem.name}: {str(error).splitlines()[0][:150]}", flush=True)
                continue
            memory = compiled.memory_analysis()
            for suffix, made in (
                ("stablehlo.mlir", lowered.as_text("stablehlo", debug_info=True)),
                ("hlo", compiled.as_text()),
            ):
                stem.with_name(f"{stem.name}.{suffix}.gz").write_bytes(gzip.compress(made.encode()))
            facts = {
                "arguments": memory.argument_size_in_bytes,
                "outputs": memory.output_size_in_bytes,
                "mesh": SLICES[text],
            }
            stem.with_name(f"{stem.name}.json").write_text(json.dumps(facts))
            print(f"{stem.name}: {time.time() - begin:.1f} s", flush=True)


def table(folder: Path) -> int:
    """One row a program. Exits 1 where a bound is missed."""
    from tilewright.hlo import collectives, estimate, load, partition

    rows, good = [], Counter[str]()
    for beside in sorted(folder.glob("*.json")):
        stem, facts = beside.name.removesuffix(".json"), json.loads(beside.read_text())
        target = "tpu-" + stem.split(".tpu-")[1].split("-")[0]
        compiled = load(gzip.decompress((folder / f"{stem}.hlo.gz").read_bytes()))
        step = estimate(compiled, target)
        theirs = collectives(compiled, target)
        source = gzip.decompress((folder / f"{stem}.stablehlo.mlir.gz").read_bytes())
        begin = time.time()
        part = partition(load(source), target)
        ours, predicted = part.collectives, part.step
        seconds = time.time() - begin
        counts = [Counter(each.op for each in some) for some in (ours, theirs)]
        sent = [sum(each.bytes for each in some) for some in (ours, theirs)]
        same = counts[0] == counts[1]
        near = abs(sent[0] - sent[1]) <= 0.2 * max(sent[1], 1)
        exact = part.arguments_bytes == facts["arguments"]
        limit = 3 if part.devices <= 64 else 10
        good.update(
            {
                "priced": step.priced > 0.95,
                "exact": exact,
                "same": same,
                "same or near": same or near,
                "fast": seconds < limit,
            }
        )
        good["all"] += 1
        said = [" ".join(f"{op} {n}" for op, n in sorted(count.items())) or "none" for count in counts]
        rows.append((stem, f"{step.priced:.3f}", "exact" if exact else f"{part.arguments_bytes / facts['arguments']:.3f}",
                     said[1], said[0] if not same else "same", f"{sent[0] / sent[1]:.2f}" if sent[1] else "-",
                     f"{predicted.device_seconds / step.device_seconds:.2f}", f"{seconds:.2f}"))  # fmt: skip
    heads = ("program", "priced", "arguments", "collectives", "from source", "bytes", "step", "seconds")
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    whole = good.pop("all")
    print(", ".join(f"{name} {count} of {whole}" for name, count in good.items()))
    return int(good["priced"] < whole or good["exact"] < 0.9 * whole or good["same or near"] < 0.6 * whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("make", "table"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(make(options.folder) if options.what == "make" else table(options.folder))
