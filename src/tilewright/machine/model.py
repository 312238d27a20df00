"""A model file: what `run` expects to find in it.

==============================================================  ======================================================
``features(scale) -> [Feature, ...]``                           C1 to C26, their tables scaled
``init(key) -> params``                                         dense parameters, any pytree
``loss(params, numeric, vectors, labels) -> (loss, logits)``    pure JAX: numeric f32[B, 13], vectors {"C1": f32[B, D]}
``optimizer() -> optax.GradientTransformation``                 how the dense parameters learn
==============================================================  ======================================================
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.embed import Feature
from tilewright.errors import TilewrightError, UsageError

EXPECTED = ("features", "init", "loss", "optimizer")


@dataclass(frozen=True)
class Model:
    """The four functions of a model file and its name."""

    name: str
    features: Callable[[float], Sequence[Feature]]
    init: Callable[[Any], Any]
    loss: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    optimizer: Callable[[], Any]


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError("no such model file", where=str(path), how="give a Python file such as examples/dlrm.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TilewrightError:
        raise
    except Exception as error:  # whatever the user's file does wrong is the user's to mend
        raise UsageError(f"the model file fails: {type(error).__name__}: {error}", where=str(path)) from error
    return module


def load_model(source: str | Path | ModuleType | Model) -> Model:
    """The model in a file, a module or already a :class:`Model`; :class:`UsageError` names what is missing."""
    if isinstance(source, Model):
        return source
    module = source if isinstance(source, ModuleType) else _import(Path(source))
    where = str(source) if not isinstance(source, ModuleType) else source.__name__
    missing = [name for name in EXPECTED if not callable(getattr(module, name, None))]
    if missing:
        how = f"a model file defines {', '.join(EXPECTED)}; see examples/dlrm.py"
        raise UsageError(f"the model file does not define {', '.join(missing)}", where=where, how=how)
    return Model(Path(where).stem, *(getattr(module, name) for name in EXPECTED))


def check_model(model: Model, widths: Mapping[str, int], batch: int) -> None:
    """Trace init, loss, its gradient and the optimizer on shapes alone; :class:`UsageError` says which one fails."""
    array: Any = jax.ShapeDtypeStruct
    numeric, labels = array((batch, 13), jnp.float32), array((batch,), jnp.float32)
    vectors = {name: array((batch, width), jnp.float32) for name, width in widths.items()}
    params = _try(model, "init", lambda: jax.eval_shape(model.init, jax.random.key(0)))
    result = _try(model, "loss", lambda: jax.eval_shape(model.loss, params, numeric, vectors, labels))
    shapes = [getattr(part, "shape", None) for part in result] if isinstance(result, tuple | list) else []
    if shapes != [(), (batch,)]:
        returned = [str(getattr(part, "shape", part)) for part in jax.tree_util.tree_leaves(result)]
        problem = f"loss returns shapes {', '.join(returned)} where a mean () and logits ({batch},) are expected"
        raise UsageError(problem, where=model.name, how="return (loss, logits)")
    step = jax.value_and_grad(model.loss, argnums=(0, 2), has_aux=True)
    _try(model, "the gradient of loss", lambda: jax.eval_shape(step, params, numeric, vectors, labels))
    _try(model, "optimizer", lambda: jax.eval_shape(model.optimizer().init, params))


def _try(model: Model, name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # whatever the user's function does wrong is the user's to mend
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        problem = f"{name} fails: {type(error).__name__}: {first}"
        raise UsageError(problem, where=model.name, how="--debug shows where") from error
