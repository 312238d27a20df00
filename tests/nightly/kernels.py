"""Kept kernels never answer for each other: every variant compiled alone by a process of its own, then used together.

``./run python -m tests.nightly.kernels [--orders 20]``: what each job gives from an empty cache; then each job again in
a process of its own, all into one shared cache; then all ordered pairs of optimizers and whole orders of all jobs, each
in a new process on that cache. Every value must be the first one. Exits with 1 where one is not.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np

OPTIMIZERS = ("SGD", "Adagrad", "RowwiseAdagrad", "Adam", "AdagradMomentum", "FTRL", "LaProp")
TEXTS = ("{1,0:T(8,128)}", "{0,1:T(8,128)(2,1)}", "{1,0:T(8,128)(4,1)}", "{1,0:T(3,5)(2,2)}", "{0,1}")


def digest(*arrays: object) -> str:
    """The bytes of arrays, in short."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    return total.hexdigest()[:16]


def _optimizer(name: str) -> str:
    import jax

    from tilewright import embed

    optimizer = getattr(embed, name)(0.05)
    stacking = embed.stack([embed.Feature("f", embed.Table("t", 40, 16, optimizer=optimizer))], embed.Topology(1, 4))
    state = embed.init(stacking, jax.random.key(0))
    ids = np.random.default_rng(0).integers(0, 40, (16, 3)).astype(np.int32)
    gradients = {"f": np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)}
    batch = embed.preprocess({"f": ids}, stacking)
    for _ in range(2):
        seen = embed.lookup(state, batch)["f"]
        state = embed.update(state, batch, gradients)
    return digest(seen, *embed.tables(state).values())


def _layout(dtype: str, text: str) -> str:
    from tilewright.layout import parse, relayout

    layout = parse(f"{dtype}[67,300]{text}")
    array = np.arange(67 * 300).reshape(67, 300).astype(layout.numpy_dtype)
    packed = layout.pack(array)
    plain = relayout(layout, parse(f"{dtype}[67,300]")).apply(packed)
    return digest(packed, layout.unpack(packed), plain)


def _product(dtype: str) -> str:
    from tilewright.isa import matmul

    rng = np.random.default_rng(2)
    a, b = ((8 * rng.standard_normal(shape)).astype(dtype) for shape in ((20, 70), (70, 20)))
    return digest(matmul(a, b).value)


JOBS: dict[str, Callable[[], str]] = {
    **{name: partial(_optimizer, name) for name in OPTIMIZERS},
    **{f"{dtype}{text}": partial(_layout, dtype, text) for dtype in ("u8", "bf16", "f32", "s64") for text in TEXTS},
    **{f"product of {dtype}": partial(_product, dtype) for dtype in ("int8", "int16", "int32", "float32")},
}


def _do(names: list[str], folder: str) -> dict[str, str]:
    """What jobs give, done in this order by a new process on that cache."""
    code = "import json, sys; from tests.nightly.kernels import JOBS\n"
    code += "print(json.dumps({name: JOBS[name]() for name in json.loads(sys.argv[1])}))"
    places = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code, json.dumps(names)], env=places, capture_output=True, text=True)
    if done.returncode or done.stderr:
        return dict.fromkeys(names, f"exit {done.returncode}: {done.stderr[-300:]}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print what was done and what was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--orders", type=int, default=20)
    orders: int = parser.parse_args().orders
    names, wrong, runs = list(JOBS), [], 0
    expected = {}
    for name in names:
        with tempfile.TemporaryDirectory() as empty:
            expected.update(_do([name], empty))
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as shared:
        alone = [[name] for name in draw.sample(names, len(names))]
        pairs = [list(pair) for pair in itertools.permutations(OPTIMIZERS, 2)]
        for some in [*alone, *pairs, *(draw.sample(names, len(names)) for _ in range(orders))]:
            runs += 1
            wrong += [(some, name, value) for name, value in _do(some, shared).items() if value != expected[name]]
    for some, name, value in wrong:
        print(f"wrong: {name} gave {value}, alone {expected[name]}; order {some}")
    print(f"{len(names)} jobs alone, {runs} processes on one cache, {len(wrong)} wrong values")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
