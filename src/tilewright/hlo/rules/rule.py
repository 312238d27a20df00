"""What a rule is, and its examples as programs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import indent
from typing import Any, Generic, TypeVar

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.program import Program
from tilewright.hlo.reading.python_source import from_jax
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_static
from tilewright.hlo.rules.matching import is_finite
from tilewright.reading import typed

#: The phases in their order. A rule never touches what a rule of this run has made, so none undoes another; an earlier
#: phase has the first choice. ``work``: fewer operations or bytes whatever the layout. ``shape``: the same work on
#: arrays that fill the tiles. ``movement``: data moves another way. ``advice``: only the user can change it.
PHASES = ("work", "shape", "movement", "advice")

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Rule(LocalRewrite, Generic[Found]):
    """One rule of the catalogue; in a pipeline (``--passes grouped-query-attention``) it acts wherever it is legal.

    ``find`` looks at a root and returns what the rule needs to know of the program there, its finding: any value, or
    None where the rewrite would not keep the value. The finding is handed to ``pays`` and ``build``.

    ==============  ================================================================================================
    ``name``        as users write it: ``grouped-query-attention``
    ``phase``       one of ``PHASES``
    ``summary``     what it does, in one line
    ``finding``     the sentence for the user's finding: what the program does now and why that costs
    ``change``      the sentence that says what to write instead
    ``source``      where the gain was seen (the compiler's estimate, a measurement), and on whose program
    ``roots``       names of the operations that can end what the rule replaces
    ``find``        legality: the finding for a root, None where the rule must leave it
    ``pays``        whether a TPU's compiler confirmed a gain at the finding's shapes
    ``build``       makes the value that takes the place of the root's result; None for an advice, which builds nothing
    ``finite``      of a finding, the values that must be finite: a NaN or an infinity would spread
    ``exact``       the result has the same bits; a rule that is not needs ``allow_reassociation``
    ``families``    families of targets whose compilers the gain depends on, where it is not of the layouts alone
    ``example``     the programs that it is for, from ``examples.toml``
    ==============  ================================================================================================
    """

    name: str  # type: ignore[misc]
    phase: str
    summary: str  # type: ignore[misc]
    finding: str
    change: str
    source: str
    roots: tuple[str, ...]  # type: ignore[assignment, misc]
    find: Callable[[Node], Found | None]
    build: Callable[[Found, Maker], Value | None] | None
    pays: Callable[[Found], bool] = lambda found: True
    finite: Callable[[Found], Sequence[Value]] | None = None
    exact: bool = True
    families: tuple[str, ...] = ()

    @cached_property
    def example(self) -> Example:
        """The programs that it is for."""
        return _examples()[self.name]

    @property
    def guard(self) -> str:
        """What must hold before it may act: ``none``, or ``finite``, ``rounding``, ``advice``."""
        guards = {"advice": self.build is None, "finite": self.finite is not None, "rounding": not self.exact}
        return ", ".join(name for name, holds in guards.items() if holds) or "none"

    @property
    def instead(self) -> list[str]:
        """What to write, as lines of Python to paste: the example's, below the shapes that its letters stand for."""
        arguments = ", ".join(f"{name}[{dims}]" for name, _, dims in _ARGUMENT.findall(self.example.shapes))
        return [f"# {arguments}", *self.example.after.splitlines()]

    def match(self, root: Node) -> Found | None:
        """The finding at a place that ends in ``root``, or None where the rule must not touch it."""
        if root.name not in self.roots or not root.plain or not is_static(*root.results, *root.operands):
            return None
        return self.find(root) if len(root.results) == 1 else None

    def unknown(self, found: Found) -> list[Value]:
        """The values of a finding that must be finite and are not known to be."""
        return [value for value in (self.finite(found) if self.finite is not None else ()) if not is_finite(value)]

    def made(self, root: Node, found: Found, make: Maker) -> Value | None:
        """The value that takes the place of the root's result; None where the rule leaves it after all."""
        value = self.build(found, make) if self.build is not None else None
        assert value is None or repr(value) == repr(root.result), f"{self.name} built {value} for {root}"
        return value

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The rule's value; nothing for what a rewrite has made."""
        found = self.match(op) if op.handle is not None else None
        return self.made(op, found, make) if found is not None else None

    def __str__(self) -> str:
        return self.name


# Examples as programs: what tests run, benchmarks compile and pages show.


@dataclass(frozen=True)
class Example:
    """Programs of a rule; :func:`program_of` makes one of them.

    ===============  ===============================================================================================
    ``before``       what the rule is for, ``after`` what to write instead, as users would write both: bodies of
                     Python functions with ``jnp``, ``jax`` and ``lax`` at hand, which may use the letters of ``sizes``
    ``away``         what looks alike and the rule must leave alone
    ``shapes``       their arguments, one a line, with the sizes as letters or products (``q: T[b,8*g,d]``)
    ``sizes``        the letters (``b=8 g=8 d=64``) at which the gain is confirmed, with the first of the types
    ``small``        those for tests, each with what hypothesis draws others from (``b=2(1..3) d=4``)
    ``types``        what ``T`` is in turn
    ``away_shapes``  the arguments of ``away`` where they differ
    ===============  ===============================================================================================
    """

    before: str
    after: str
    away: str
    shapes: str
    sizes: str
    small: str
    types: tuple[str, ...] = ("bf16", "f32")
    away_shapes: str = ""


@cache
def _examples() -> dict[str, Example]:
    read = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))
    return {name: typed(example, Example, name) for name, example in read.items()}


_ARGUMENT = re.compile(r"(\w+): (\w+)\[([^\]]*)\]")
_TYPES = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i8": "int8", "i32": "int32",
    "ui8": "uint8", "i1": "bool",
}  # fmt: skip


def bindings(text: str) -> dict[str, int]:
    """The numbers by letter, without what may be drawn instead.

    >>> bindings("b=8 g=4(2..5)")
    {'b': 8, 'g': 4}
    """
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def arguments(rule: Rule[Any], sizes: Mapping[str, int], dtype: str, shapes: str = "") -> dict[str, Any]:
    """The arguments of an example as ``jax.ShapeDtypeStruct`` by name."""
    import jax

    struct: Any = jax.ShapeDtypeStruct
    structs = {}
    for name, kind, dims in _ARGUMENT.findall(shapes or rule.example.shapes):
        shape = tuple(int(eval(part, {}, dict(sizes))) for part in dims.split(",") if part.strip())
        structs[name] = struct(shape, _TYPES[dtype if kind == "T" else kind])
    return structs


def function_of(body: str, names: list[str], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """A body of an example as a function of arguments of these names."""
    import jax
    import jax.numpy as jnp

    source = f"def example({', '.join(names)}):\n{indent(body.strip(), '    ')}\n"
    scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": jax.lax, **sizes}
    exec(compile(source, "example.py", "exec"), scope)
    function: Callable[..., Any] = scope["example"]
    return function


def program_of(rule: Rule[Any], part: str, sizes: Mapping[str, int], dtype: str | None = None) -> Program:
    """``before``, ``after`` or ``away`` of an example as a program, at the given sizes."""
    structs = arguments(rule, sizes, dtype or rule.example.types[0], rule.example.away_shapes if part == "away" else "")
    return from_jax(function_of(getattr(rule.example, part), list(structs), sizes), *structs.values())
