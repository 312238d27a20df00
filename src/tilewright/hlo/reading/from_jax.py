"""A JAX function to a Program. jax is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.hlo.program import Program
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.running.execute import signature_of


def from_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Program:
    """The StableHLO program of ``fn`` on arguments like these, with the source line of every operation.

    ``fn`` is a plain or a jitted function; arguments are arrays, pytrees of arrays or ``jax.ShapeDtypeStruct``.
    Nothing is compiled or run. ``Program.text`` is the lowered text, locations included.

    >>> import jax.numpy as jnp
    >>> program = from_jax(lambda x: x.reshape(6), jnp.zeros((2, 3)))
    >>> [op.opcode for op in program.entry.operations]
    ['parameter', 'reshape', 'return']
    """
    import jax

    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    lowered = jitted.lower(*args, **kwargs)
    program = read_stablehlo(lowered.as_text("stablehlo", debug_info=True))
    return replace(program, signature=signature_of(lowered))
