"""Verdicts and vector memory of small Pallas kernels against the TPU's own compiler, on four chips and more.

    python benchmarks/kernel_verdicts.py judge benchmarks/data/kernel_verdicts.jsonl   # needs jax[tpu], no TPU
    ./run python benchmarks/kernel_verdicts.py   # compares what was judged

Kernels are drawn by a seed from the families below. Two rules of the checks were found on these rows, that arithmetic
of narrow integers is missing and that v4 multiplies no bytes; memory was not fitted on them. A row has the family, its
parameters, the chip, whether the compiler takes it, and the bytes of vector memory that it says. The rows kept are of
libtpu 0.0.42.1, which comes with jax 0.10.2: compare them under that jax, whose compiler's rules the checks follow.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = Path(__file__).parent / "data" / "kernel_verdicts.jsonl"
KINDS = {"bf16": jnp.bfloat16, "f32": jnp.float32, "s8": jnp.int8, "s32": jnp.int32}
CHIPS = {"tpu-v4": ("v4:2x2x1", "TPU v4", 2), "tpu-v5e": ("v5e:2x2", "TPU v5 lite", 1)}
CHIPS |= {"tpu-v5p": ("v5p:2x2x1", "TPU v5p", 2), "tpu-v6e": ("v6e:2x2", "TPU v6 lite", 1)}
CHIPS |= {"tpu-7x": ("tpu7x:2x2x1", "TPU7x", 1)}


def array(kind, *shape):
    return jax.ShapeDtypeStruct(shape, KINDS[kind])


def product(bm, bk, bn, kind, m=2048, k=4096, n=2048):
    def body(a, b, o, sums):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)

        wide = jnp.int32 if kind == "s8" else jnp.float32
        sums[...] += jnp.dot(a[...], b[...], preferred_element_type=wide).astype(sums.dtype)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o[...] = sums[...].astype(o.dtype)

    call = pl.pallas_call(
        body,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=array("bf16", m, n),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )
    return call, [array(kind, m, k), array(kind, k, n)]


def rowwise(rows, columns, kind, what, m=4096):
    def body(x, o):
        wide = x[...].astype(jnp.float32)
        if what == "softmax":
            e = jnp.exp(wide - wide.max(-1, keepdims=True))
            o[...] = (e / e.sum(-1, keepdims=True)).astype(o.dtype)
        elif what == "norm":
            o[...] = (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(o.dtype)
        elif what == "cumsum":
            o[...] = jnp.cumsum(wide, -1).astype(o.dtype)
        else:
            o[...] = (jnp.tanh(wide) * wide + 1).astype(o.dtype)

    block = pl.BlockSpec((rows, columns), lambda i: (i, 0))
    x = array(kind, m, columns)
    return pl.pallas_call(body, grid=(pl.cdiv(m, rows),), in_specs=[block], out_specs=block, out_shape=x), [x]


def tiled(rows, columns, kind, m=2048, n=4096):
    def body(x, y, o):
        o[...] = x[...] + y[...]

    block, x = pl.BlockSpec((rows, columns), lambda i, j: (i, j)), array(kind, m, n)
    grid = pl.cdiv(m, rows), pl.cdiv(n, columns)
    return pl.pallas_call(body, grid=grid, in_specs=[block, block], out_specs=block, out_shape=x), [x, x]


def turned(rows, columns, kind, m=2048, n=2048):
    def body(x, o):
        o[...] = x[...].T

    there, back = pl.BlockSpec((rows, columns), lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    call = pl.pallas_call(
        body, grid=(m // rows, n // columns), in_specs=[there], out_specs=back, out_shape=array(kind, n, m)
    )
    return call, [array(kind, m, n)]


def attention(queries, keys, depth, unroll, kind="bf16", length=4096, heads=4):
    """One block of queries against all keys, ``unroll`` blocks of keys in one round of the loop."""

    def body(q, k, v, o):
        def one(i, carry):
            top, total, sums = carry
            here = pl.ds(i * keys, keys)
            s = lax.dot_general(q[...], k[here, :], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
            new = jnp.maximum(top, s.max(-1, keepdims=True))
            p, shrink = jnp.exp(s - new), jnp.exp(top - new)
            out = jnp.dot(p.astype(v.dtype), v[here, :], preferred_element_type=jnp.float32)
            return new, total * shrink + p.sum(-1, keepdims=True), sums * shrink + out

        begin = jnp.full((queries, 1), -1e30), jnp.zeros((queries, 1)), jnp.zeros((queries, depth))
        _, total, sums = lax.fori_loop(0, length // keys, one, begin, unroll=unroll)
        o[...] = (sums / total).astype(o.dtype)

    x = array(kind, heads, length, depth)
    some = pl.BlockSpec((None, queries, depth), lambda h, i: (h, i, 0))
    every = pl.BlockSpec((None, length, depth), lambda h, i: (h, 0, 0))
    grid = heads, length // queries
    return pl.pallas_call(body, grid=grid, in_specs=[some, every, every], out_specs=some, out_shape=x), [x, x, x]


def gathered(rows, columns, kind, scratch_rows, m=4096):
    def body(table, x, o, kept):
        kept[...] += 1.0
        o[...] = (x[...].astype(jnp.float32) + kept[0:1, 0:1]).astype(o.dtype)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(64,),
        in_specs=[pl.BlockSpec((rows, columns), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((rows, columns), lambda i, table: (i, 0)),
        scratch_shapes=[pltpu.VMEM((scratch_rows, 512), jnp.float32)],
    )
    out = array(kind, 64 * rows, columns)
    return pl.pallas_call(body, grid_spec=spec, out_shape=out), [array("s32", 64), array(kind, m, columns)]


def copied(rows, columns, kind, m=4096):
    """Windows that the kernel's own pipeline brings in from HBM."""

    def inner(x, o):
        o[...] = x[...] * 3

    def body(x, o):
        block = pl.BlockSpec((rows, columns), lambda i: (i, 0))
        pltpu.emit_pipeline(inner, grid=(m // rows,), in_specs=[block], out_specs=[block])(x, o)

    far, x = pl.BlockSpec(memory_space=pl.ANY), array(kind, m, columns)
    return pl.pallas_call(body, in_specs=[far], out_specs=far, out_shape=x), [x]


def drawn(seed: int, count: int):
    """Families and parameters, one after another."""
    some = random.Random(seed)
    sides = [8, 16, 32, 64, 96, 128, 256, 384, 512, 1024, 2048]
    while count > 0:
        rows, columns = some.choice(sides), some.choice([128, 256, 512, 1024, 2048, 4096])
        kind = some.choice(["bf16", "bf16", "f32", "s8"])
        what = some.choice(["softmax", "norm", "gelu", "cumsum"])
        products = {"bm": some.choice(sides[3:]), "bk": some.choice([128, 256, 512, 1024, 2048, 4096])}
        products |= {"bn": some.choice([64, 128, 256, 512, 1024, 2048]), "kind": kind}
        yield some.choice(
            [
                ("product", products),
                ("product", products),
                ("rowwise", {"rows": min(rows, (1 << 20) // columns), "columns": columns * some.choice([1, 2, 4]),
                             "kind": kind, "what": what}),
                ("tiled", {"rows": rows, "columns": some.choice([64, 128, 200, 512, 1024, 4096]), "kind": kind}),
                ("turned", {"rows": max(128, rows), "columns": min(2048, columns), "kind": kind}),
                ("attention", {"queries": max(8, rows), "keys": some.choice([128, 256, 512, 1024]),
                                   "depth": some.choice([64, 128, 256]), "unroll": some.choice([1, 1, 2, 4])}),
                ("gathered", {"rows": rows, "columns": columns, "kind": kind,
                              "scratch_rows": some.choice([8, 512, 4096])}),
                ("copied", {"rows": rows, "columns": columns, "kind": kind}),
            ]
        )  # fmt: skip
        count -= 1


def made(family, given):
    return globals()[family](**given)


def judge(path: str, seed: int = 7, count: int = 75) -> None:
    """What the compiler says, ahead of time."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    from jax.experimental import topologies

    known = Path(path).read_text().splitlines() if Path(path).exists() else []  # it goes on where it ended
    there_are = {json.dumps({**json.loads(line), "ok": 0, "vmem": 0, "text": 0}) for line in known}
    with open(path, "a") as file:
        for number, (family, given) in enumerate(drawn(seed, count)):
            names = list(CHIPS) if number % 4 == 0 else [name for name in CHIPS if name != "tpu-7x"]
            for chip in names:
                topology, kind, cores = CHIPS[chip]
                place = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
                there = jax.sharding.SingleDeviceSharding(place)
                device = jax.sharding.AbstractDevice(kind, cores, "tpu")
                row = {"family": family, "params": given, "chip": chip, "ok": True, "vmem": 0, "text": ""}
                if json.dumps({**row, "ok": 0, "vmem": 0, "text": 0}) in there_are:
                    continue
                try:
                    call, arrays = made(family, given)
                    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
                        traced = jax.jit(call, in_shardings=there, out_shardings=there).trace(*arrays)
                        text = traced.lower(lowering_platforms=("tpu",)).compile().as_text()
                    line = next(line for line in text.splitlines() if '"tpu_custom_call"' in line)
                    sizes = re.findall(r'used_scoped_memory_configs":\[\{"memory_space":"1"[^}]*"size":"(\d+)"', line)
                    row["vmem"] = int(sizes[0]) if sizes else 0
                except Exception as error:
                    text = " ".join(str(error).split())
                    asked = re.search(r"size ([\d.]+)([KMG]) and limit|Used ([\d.]+)([KMG]) of", text)
                    row |= {"ok": False, "text": text[:160]}
                    if asked:
                        size, unit = asked[1] or asked[3], asked[2] or asked[4]
                        row["vmem"] = round(float(size) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit])
                file.write(json.dumps(row) + "\n")
                file.flush()


def compare(path: str | Path) -> None:
    """Our verdicts beside the compiler's."""
    from tilewright.hlo import check_kernels

    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    agree = refused = near = below = sized = taken = 0
    for row in rows:
        call, arrays = made(row["family"], row["params"])
        (check, *_) = check_kernels(call, *arrays, target=row["chip"])
        agree += check.ok == row["ok"]
        taken += row["ok"]
        refused += row["ok"] and not check.ok
        if check.ok != row["ok"]:
            why = check.problems[0].text if check.problems else row["text"]
            print(f"{'refused' if row['ok'] else 'taken'}: {row['chip']} {row['family']} {row['params']}: {why[:110]}")
        if row["vmem"] and check.vmem_bytes:
            sized += 1
            off = check.vmem_bytes / row["vmem"] - 1
            near += abs(off) <= 0.15
            exact = check.scratch_bytes + sum(w.held for w in check.windows)
            below += check.vmem_bytes < exact
            if abs(off) > 0.15:
                print(f"  memory {off:+.0%} of {row['vmem']:,}: {row['chip']} {row['family']} {row['params']}")
    print(f"{agree} of {len(rows)} verdicts agree ({agree / len(rows):.1%})")
    print(f"{refused} of {taken} that compile are refused ({refused / max(1, taken):.1%})")
    print(f"vector memory within 15 % in {near} of {sized}; below windows and scratch in {below}")


if __name__ == "__main__":
    judge(*sys.argv[2:3]) if sys.argv[1:2] == ["judge"] else compare(sys.argv[1] if sys.argv[1:] else ROWS)
