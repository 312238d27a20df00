"""The arguments and results of a JAX function, kept beside its program so that the program can be run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.hlo._ir import kept_arguments

__all__ = ["Signature", "signature_of"]


@dataclass(frozen=True)
class Signature:
    """Trees of arguments ``(args, kwargs)`` and results, with a ``jax.ShapeDtypeStruct`` for every leaf.

    ``kept`` lists the arguments the program takes: JAX drops those the function does not use.
    """

    in_tree: Any
    out_tree: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    kept: tuple[int, ...]


def signature_of(lowered: Any) -> Signature:
    """The signature of ``jax.jit(f).lower(...)``."""
    import jax

    struct: Any = jax.ShapeDtypeStruct
    inputs = tuple(struct(a.shape, a.dtype) for a in jax.tree.leaves(lowered.in_avals))
    outputs = tuple(struct(a.shape, a.dtype) for a in jax.tree.leaves(lowered.out_info))
    return Signature(lowered.in_tree, lowered.out_tree, inputs, outputs, kept_arguments(lowered, len(inputs)))
