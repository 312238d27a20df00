"""The examples of rules as programs: what tests run, benchmarks compile and pages show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from textwrap import dedent, indent
from typing import Any

from tilewright.hlo.program import Program
from tilewright.hlo.reading.python_source import from_jax
from tilewright.hlo.rules.rule import Example

_ARGUMENT = re.compile(r"(\w+): (\w+)\[([^\]]*)\]")
_TYPES = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i8": "int8", "i32": "int32",
    "ui8": "uint8", "i1": "bool",
}  # fmt: skip


def bindings(text: str) -> dict[str, int]:
    """``b=8 g=4`` as numbers by letter.

    >>> bindings("b=8 g=4")
    {'b': 8, 'g': 4}
    """
    return {name: int(value) for name, _, value in (word.partition("=") for word in text.split())}


def arguments(example: Example, sizes: Mapping[str, int], dtype: str, shapes: str = "") -> dict[str, Any]:
    """The arguments of an example as ``jax.ShapeDtypeStruct`` by name."""
    import jax

    struct: Any = jax.ShapeDtypeStruct
    structs = {}
    for name, kind, dims in _ARGUMENT.findall(shapes or example.shapes):
        shape = tuple(int(eval(part, {}, dict(sizes))) for part in dims.split(",") if part.strip())
        structs[name] = struct(shape, _TYPES[dtype if kind == "T" else kind])
    return structs


def function_of(body: str, names: list[str], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """A body of an example as a function of arguments of these names."""
    import jax
    import jax.numpy as jnp

    source = f"def example({', '.join(names)}):\n{indent(dedent(body).strip(), '    ')}\n"
    scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": jax.lax, **sizes}
    exec(compile(source, "example.py", "exec"), scope)
    function: Callable[..., Any] = scope["example"]
    return function


def program_of(example: Example, part: str, sizes: Mapping[str, int], dtype: str | None = None) -> Program:
    """``before``, ``after`` or ``away`` of an example as a program, at the given sizes."""
    shapes = {"away": example.away_shapes, "after": example.after_shapes}.get(part, "")
    structs = arguments(example, sizes, dtype or example.types[0], shapes)
    return from_jax(function_of(getattr(example, part), list(structs), sizes), *structs.values())
