"""Ten programs that do not fit a TPU v5e: does the change that is ranked first make them fit, by the compiler's figure?

    ./run python benchmarks/memory_fits.py rank RANKED.json     # what `tilewright run` ranks first, in this environment
    python benchmarks/memory_fits.py judge RANKED.json          # in one with jax[tpu]: compiled as it is, and changed

The compiler's figure is that of ``memory_analysis()``; a program that it refuses has none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from memory_steps import adam, compiled, convolutions, decoder, mlp, shape

CHIP = "v5e"
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def adam_mlp(d: int, layers: int, batch: int) -> Made:
    """A plain network with Adam."""
    w = [shape((d, d), jnp.float32) for _ in range(layers)]

    def of(w: Any, x: Any) -> Any:
        for a in w:
            x = jax.nn.relu(x @ a)
        return jnp.mean(x * x)

    def step(w: Any, state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(of)(w, x)
        return (*adam(w, state, gradient), value)

    return step, (w, {"count": shape((), jnp.int32), "m": w, "v": w}, shape((batch, d), jnp.float32))


def served(d: int, layers: int) -> Made:
    """Weights in float32, multiplied one after the other."""

    def step(w: Any, x: Any) -> Any:
        for a in w:
            x = jnp.tanh(x @ a)
        return x

    return step, ([shape((d, d), jnp.float32)] * layers, shape((256, d), jnp.float32))


def cached(pages: int) -> Made:
    """One token written into a cache and read."""

    def step(w: Any, cache: Any, token: Any, place: Any) -> Any:
        cache = jax.lax.dynamic_update_slice(cache, (token @ w)[None], (place, 0, 0))
        return cache, (cache[place] * token).sum()

    return step, (shape((128, 128), jnp.bfloat16), shape((pages, 64, 128), jnp.bfloat16),
                  shape((64, 128), jnp.bfloat16), shape((), jnp.int32))  # fmt: skip


def scored(batch: int) -> Made:
    """Attention whose scores are kept for the way back."""

    def of(w: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhe->bhse", x, w[n]) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k), -1)
        return jnp.einsum("bhst,bhte->bhse", weights, v).sum()

    w = {name: shape((512, 8, 64), jnp.float32) for name in "qkv"}
    return jax.grad(of), (w, shape((batch, 2048, 512), jnp.float32))


LM = {"length": 1024, "d": 1024, "f": 4096, "layers": 8, "vocab": 32768}
PROGRAMS: dict[str, tuple[Made, tuple[int, ...]]] = {
    "weights and momentum, kept": (mlp(2048, 8192, 18), ()),
    "activations of a plain network": (mlp(163840, 2048, 12), (0, 1)),
    "Adam, kept": (adam_mlp(8192, 14, 2048), ()),
    "moments of Adam": (adam_mlp(8192, 23, 1024), (0, 1)),
    "a language model, everything saved": (decoder("gpt", "none", True, batch=12, **LM), (0, 1)),
    "a language model of layers in full, products saved": (decoder("llama", "dots", False, batch=32, **LM), (0, 1)),
    "images": (convolutions(6144), (0, 1)),
    "weights in float32": (served(16384, 18), ()),
    "a cache, copied": (cached(700000), ()),
    "scores of attention": (scored(96), ()),
}


def lowered(step: Callable[..., Any], given: tuple[int, ...], args: tuple[Any, ...], kwargs: Any) -> Any:
    from tilewright.hlo import load

    text = jax.jit(step, donate_argnums=given).trace(*args, **kwargs).lower(lowering_platforms=("tpu",))
    return load(text.as_text(debug_info=True))


def asked(name: str) -> Any:
    """One of the programs on the chip: what it needs, and the changes that were tried."""
    from tilewright.hlo import estimate
    from tilewright.machine.model import Subject
    from tilewright.machine.tpu import hbm
    from tilewright.targets import target

    (step, args), given = PROGRAMS[name]
    retrace, chip = partial(lowered, step, given), target(f"tpu-{CHIP}")
    program = retrace(args, {})
    return hbm(Subject(name, program, (args, {}), retrace), chip, estimate(program, chip))


def rank(path: Path) -> None:
    found = {}
    for name in PROGRAMS:
        memory = asked(name)
        best = memory.cheapest
        found[name] = [memory.need, best.what if best else memory.sentence, best.after if best else 0]
        print(f"{name}: {memory.need / 2**30:.2f} GiB; {found[name][1]}: {found[name][2] / 2**30:.2f} GiB", flush=True)
    path.write_text(json.dumps(found, indent=1))


def changed(what: str, step: Callable[..., Any], args: tuple[Any, ...], given: tuple[int, ...]) -> tuple[Any, ...]:
    """The step, its arguments and what is given away, with a change made."""
    if "donate" in what:
        results = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(step, *args))}
        leaves = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arg)] for arg in args]
        given = tuple(k for k, each in enumerate(leaves) if results >= {*each})
    if "moments" in what:
        narrow = partial(jax.tree.map, lambda a: a.astype(jnp.bfloat16) if a.ndim else a)
        wide = partial(jax.tree.map, lambda a: a.astype(jnp.float32) if a.ndim else a)
        plain = step

        def step(w: Any, state: Any, *rest: Any) -> Any:
            w, state, *more = plain(w, wide(state), *rest)
            return (w, narrow(state), *more)

        args = (args[0], jax.eval_shape(narrow, args[1]), *args[2:])
    if what.startswith("a batch of"):
        part, whole = (int(word) for word in what.split() if word.isdigit())
        smaller = partial(
            jax.tree.map, lambda a: shape((part, *a.shape[1:]), a.dtype) if a.shape[:1] == (whole,) else a
        )
        args = (args[0], *(smaller(each) for each in args[1:]))
    if what.startswith("bfloat16"):
        args = jax.tree.map(lambda a: shape(a.shape, jnp.bfloat16) if a.dtype == jnp.float32 else a, args)
    return step, args, given


def figure(step: Callable[..., Any], args: tuple[Any, ...], given: tuple[int, ...]) -> float | str:
    """GiB by the compiler, or the first line of why it refuses."""
    try:
        _, _, sizes = compiled(step, args, CHIP, given)
    except Exception as error:  # the compiler's
        return str(error).splitlines()[0][:160]
    total = sum(sizes[f"{name}_size_in_bytes"] for name in ("argument", "output", "temp"))
    return round((total - sizes["alias_size_in_bytes"]) / 2**30, 2)


def judge(path: Path) -> None:
    for name, (need, what, after) in json.loads(path.read_text()).items():
        (step, args), given = PROGRAMS[name]
        print(json.dumps({"program": name, "need": round(need / 2**30, 2), "as it is": figure(step, args, given),
                          "change": what, "then": round(after / 2**30, 2),
                          "compiled": figure(*changed(what, step, args, given))}), flush=True)  # fmt: skip


if __name__ == "__main__":
    {"rank": rank, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
