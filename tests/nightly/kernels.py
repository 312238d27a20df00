"""Kept kernels never answer for each other: every variant compiled alone by a process of its own, then used together.

``./run python -m tests.nightly.kernels [--orders 20]``: what each job gives from an empty cache. Then two shared caches
are filled: one by each job in a process of its own, one by what people do: `run`, `train --processes 2`, workers of
Ray, tests of the suite. On each, in new processes: all ordered pairs of optimizers, all jobs in one order and in its
reverse, so that each has come before every other, and in random orders. Every value must be the first one. Exits with
1 where one is not. By day: tests/test_kernels.py, with small factories, and no two files of the machine's own cache
share a symbol.
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
from importlib.util import find_spec

import numpy as np

OPTIMIZERS = ("SGD", "Adagrad", "RowwiseAdagrad", "Adam", "AdagradMomentum", "FTRL", "LaProp")
SERVED = {"int8": "row", "int4": "table", "bf16": "row", "levels of 8 bits": "row", "levels of 4 bits": "row"}
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


def _served(dtype: str, scale: str) -> str:
    """The sum of rows of a table in each of the codes that one factory has a sum for."""
    from tilewright import embed

    levels = embed.Quantization(-2.0, 2.0, 256 if "8" in dtype else 16) if "levels" in dtype else None
    table = embed.Table("t", 40, 75, quantization=levels)
    stacking = embed.stack([embed.Feature("f", table)], embed.Topology(1, 4))
    values = {"t": np.random.default_rng(3).standard_normal((40, 75)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        coded = dtype if levels is None else f"int{dtype[10]}"
        embed.export(f"{folder}/t", embed.from_tables(stacking, values), coded, scale=scale)
        ids = np.random.default_rng(0).integers(0, 40, (16, 3)).astype(np.int32)
        return digest(embed.open_export(f"{folder}/t").lookup({"f": ids})["f"])


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
    **{f"served {name}": partial(_served, name, scale) for name, scale in SERVED.items()},
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


FEW = ("examples/dlrm.py", "--steps", "2", "--batch", "64", "--scale", "0.0001")


def _use(folder: str) -> None:
    """Fill a cache as people do; what ends badly is a fault of this script's."""
    with tempfile.TemporaryDirectory() as place:
        programs = {
            "run": ("-m", "tilewright", "run", *FEW, "--out", f"{place}/run"),
            "two processes": ("-m", "tilewright", "embed", "train", *FEW, "--chips", "2", "--processes", "2"),
            "workers of Ray": ("-m", "tests.embed.ray_workers", place),
            "the suite": ("-m", "pytest", "-q", "tests/embed", "tests/layout/test_pack.py", "tests/isa/test_matmul.py"),
        }
        for name, words in programs.items():
            if name == "workers of Ray" and find_spec("ray") is None:
                print("left out: ray is not installed")
                continue
            places = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": os.getcwd()}
            done = subprocess.run([sys.executable, *words], env=places, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name}: exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
            print(f"filled by {name}", flush=True)


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
    assert not [name for name, value in expected.items() if value.startswith("exit")], expected
    draw = random.Random(0)
    together = [list(pair) for pair in itertools.permutations(OPTIMIZERS, 2)]
    together += [names, names[::-1], *(draw.sample(names, len(names)) for _ in range(orders))]
    alone = [[name] for name in draw.sample(names, len(names))]
    for some in (alone, []):
        with tempfile.TemporaryDirectory() as shared:
            if not some:
                _use(shared)
            for each in [*some, *together]:
                runs += 1
                wrong += [(each, name, value) for name, value in _do(each, shared).items() if value != expected[name]]
    for each, name, value in wrong:
        print(f"wrong: {name} gave {value}, alone {expected[name]}; order {each}")
    print(f"{len(names)} jobs alone, {runs} processes on two caches, {len(wrong)} wrong values")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
