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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.embed import Feature
from tilewright.errors import TilewrightError, UsageError

__all__ = ["Model", "load_model"]

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
