"""Tilewright: an open virtual tensor accelerator.

It shows where every element of a tensor lives on a tiled accelerator, removes the data movement a program does not
need, and runs the result with real values, real addresses and counted traffic. Each part is a package of its own
(``tilewright.layout``, ``.hlo``, ``.isa``, ``.embed``, ``.machine`` ...); importing this one is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.errors import LimitError, ParseError, TilewrightError, UnsupportedError
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.hlo import optimize_function as optimize

__all__ = ["LimitError", "ParseError", "TilewrightError", "UnsupportedError", "__version__", "optimize"]


def __getattr__(name: str) -> Any:
    """Load ``optimize`` (which needs jax) only when it is asked for."""
    if name == "optimize":
        return import_module("tilewright.hlo").optimize_function
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
