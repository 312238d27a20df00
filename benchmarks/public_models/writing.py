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
    """``forward(weights, *inputs)``, and ``loss`` of the same arguments, if its gradient by the weights is to be taken.

    ``weights`` may be shapes alone, as making them one by one takes long.

    ``function`` names what forward does, where that is not the whole model on a batch. ``platforms`` are what it is
    lowered for, where that is not this machine: products of experts are one operation on a TPU alone.
    """

    forward: Callable[..., Any]
    weights: Any
    inputs: Sequence[Any]
    loss: Callable[..., Any] | None
    function: str = "forward"
    platforms: tuple[str, ...] | None = None


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


def _write(function, arguments, path: Path, platforms: tuple[str, ...] | None = None) -> None:
    """StableHLO with source lines; of an old jax, whose text is read no more, its portable bytes."""
    jitted = jax.jit(function, keep_unused=True)
    if platforms is None:
        lowered = jitted.lower(*arguments)
    else:
        lowered = jitted.trace(*arguments).lower(lowering_platforms=platforms)
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True, large_elements_limit=None)
    if jax.__version_info__ >= (0, 4, 30):
        path.write_text(text)
    else:
        from jax._src.lib import xla_client

        path.with_suffix(".mlirbc").write_bytes(xla_client._xla.mlir.serialize_portable_artifact(text, "0.9.0"))


def wanted(jaxpr: Any) -> Any:
    """Without what no result needs: compilers leave it out (equimo's mlla has attention that nobody reads)."""
    from jax.interpreters import partial_eval

    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def product_flops(jaxpr: Any) -> float:
    """Multiplications and additions of a jaxpr's products and convolutions, as XLA counts them, loops by their trips.

    Of a convolution XLA itself is asked; of a branch the longest counts, of a while loop one trip.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        kind = equation.primitive.name
        inner = [
            getattr(part, "jaxpr", part)
            for value in equation.params.values()
            for part in (value if isinstance(value, tuple | list) else [value])
            if hasattr(getattr(part, "jaxpr", part), "eqns")
        ]
        given = [variable.aval for variable in equation.invars]
        if kind == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * np.prod(equation.outvars[0].aval.shape) * np.prod([given[0].shape[d] for d in contracted])
        elif kind == "conv_general_dilated":
            shapes = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in given]
            params = {**equation.params, "preferred_element_type": None}
            alone = jax.jit(lambda *x: equation.primitive.bind(*x, **params))  # noqa: B023
            total += alone.lower(*shapes).cost_analysis()["flops"]
        elif kind == "ragged_dot_general":
            left, right, out = given[0].shape, given[1].shape, equation.outvars[0].aval.shape
            total += 2 * np.prod(left) * (out[-1] if len(out) == 2 or len(right) == 2 else 1)
        elif kind == "cond":
            total += max(map(product_flops, inner))
        else:
            total += sum(map(product_flops, inner)) * equation.params.get("length", 1 if kind != "scan" else 0)
    return float(total)


def _described(path: Sequence[Any], array: Any) -> dict[str, Any]:
    """Enough to make an array like it again; of one that was never made, numbers that suit its name and shape."""
    shown: dict[str, Any] = {"shape": list(array.shape), "dtype": np.dtype(array.dtype).name}
    if isinstance(array, jax.ShapeDtypeStruct):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return {**shown, "low": 0, "high": 1}
        if len(array.shape) > 1:
            return {**shown, "mean": 0.0, "std": (max(array.shape) / max(np.prod(array.shape), 1)) ** 0.5}
        ones = any(word in str(path[-1]) for word in ("scale", "gamma", "var", "weight"))
        return {**shown, "mean": float(ones), "std": 0.05}
    values = np.asarray(array)
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
            programs = {case.function: case.forward}
            if case.loss is not None:
                programs["gradient"] = jax.grad(case.loss, allow_int=True)
            functions, flops = {}, {}
            for function, program in programs.items():
                functions[function] = f"{library}.{name}.{function}.mlir"
                _write(program, arguments, folder / functions[function], case.platforms)
                flops[function] = product_flops(wanted(jax.make_jaxpr(program)(*arguments).jaxpr))
        except Exception as error:
            failed += 1
            traceback.print_exc(limit=-6)
            print(f"FAILED {library}.{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        described = [_described(*leaf) for leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]]
        entry = {
            "library": module.PACKAGE, "version": version(module.PACKAGE), "jax": jax.__version__, "model": name,
            "functions": functions, "flops": flops, "inputs": described,
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
