"""Runs in a scratch environment: one library's models as StableHLO, forward and gradient, weights as arguments.

    python writing.py LIBRARY FOLDER

``from_LIBRARY.py`` beside this file holds ``MODELS``: a function for each name that makes a :class:`Case`.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass
class Case:
    """``forward(weights, *inputs)``, and ``loss`` of the same arguments, whose gradient by the weights is taken.

    ``function`` names what forward does, where that is not the whole model on a batch.
    """

    forward: Callable[..., Any]
    weights: Any
    inputs: Sequence[Any]
    loss: Callable[..., Any]
    function: str = "forward"


def squares(forward):
    """The mean square of every floating output."""

    def loss(weights, *inputs):
        outputs = jax.tree_util.tree_leaves(forward(weights, *inputs))
        return sum(
            jnp.mean(jnp.square(x.astype(jnp.float32))) for x in outputs if jnp.issubdtype(x.dtype, jnp.floating)
        )

    return loss


def cross_entropy(logits, labels):
    """As most JAX code has it."""
    logs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.take_along_axis(logs, labels[..., None], axis=-1).mean()


def classes(forward):
    """Cross entropy of logits [batch, classes]; the labels are counted up."""

    def loss(weights, *inputs):
        logits = forward(weights, *inputs)
        return cross_entropy(logits, jnp.arange(logits.shape[0]) % logits.shape[-1])

    return loss


def next_token(forward):
    """Cross entropy of the next token; tokens are the first input."""

    def loss(weights, tokens, *inputs):
        return cross_entropy(forward(weights, tokens, *inputs)[:, :-1], tokens[:, 1:])

    return loss


def normal(*shape, dtype="float32", seed=0):
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def tokens(batch, length, vocabulary, seed=0):
    """Random token numbers."""
    return jnp.asarray(np.random.default_rng(seed).integers(1, vocabulary, (batch, length)), jnp.int32)


def _text(function, arguments) -> str:
    """StableHLO with source lines."""
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    return lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True, large_elements_limit=None)


def _described(array: Any) -> dict[str, Any]:
    """Enough to make an array like it again."""
    values = np.asarray(array)
    shown: dict[str, Any] = {"shape": list(values.shape), "dtype": values.dtype.name}
    if values.dtype == bool or np.issubdtype(values.dtype, np.integer):
        return {**shown, "low": int(values.min(initial=0)), "high": int(values.max(initial=0))}
    wide = values.astype(np.float64)
    return {**shown, "mean": float(wide.mean()), "std": float(wide.std())}


def write(library: str, folder: Path) -> int:
    """Every model of a library; how many failed."""
    module = importlib.import_module(f"from_{library}")
    failed = 0
    for name, make in module.MODELS.items():
        record = folder / f"{library}.{name}.json"
        if record.exists():
            continue
        start = time.monotonic()
        try:
            case = make()
            arguments = (case.weights, *case.inputs)
            gradient = jax.grad(case.loss, allow_int=True)
            programs = {case.function: _text(case.forward, arguments), "gradient": _text(gradient, arguments)}
        except Exception as error:
            failed += 1
            traceback.print_exc(limit=-6)
            print(f"FAILED {library}.{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        functions = {}
        for function, text in programs.items():
            file = f"{library}.{name}.{function}.mlir"
            (folder / file).write_text(text)
            functions[function] = file
        described = [_described(x) for x in jax.tree_util.tree_leaves(arguments)]
        entry = {
            "library": module.PACKAGE, "version": version(module.PACKAGE), "jax": jax.__version__, "model": name,
            "functions": functions, "inputs": described,
        }  # fmt: skip
        record.write_text(json.dumps(entry, indent=1))
        size = sum(int(np.prod(x["shape"])) for x in described)
        taken = time.monotonic() - start
        print(f"{library}.{name}: {size / 1e6:.1f} million numbers in weights and inputs, {taken:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import writing  # the one that the libraries' files import

    sys.exit(min(writing.write(sys.argv[1], Path(sys.argv[2])), 100))
