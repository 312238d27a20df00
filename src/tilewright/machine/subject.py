"""What is run: a program, arrays to run it with, and the same function on other arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tilewright.errors import TilewrightError
from tilewright.hlo import Program, from_python, load, names_python, sample_arrays
from tilewright.layout.index.types import dtype_name
from tilewright.machine.model import EXPECTED
from tilewright.machine.results import Change

_MOST_HALVINGS = 4
_LESS = 0.99
"""Of the bytes now, below which a change is worth a line."""
_struct: Any = jax.ShapeDtypeStruct
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """``program``, and ``retrace(args, kwargs)``: the function it is of on other shapes; None where there is none.

    ``example``: the arguments it was traced with. ``source``: what it was read from.
    """

    name: str
    program: Program
    example: Arguments | None = None
    retrace: Callable[[tuple[Any, ...], dict[str, Any]], Program] | None = None
    source: str = ""

    @cached_property
    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Arrays to run the program with: its example's, else random ones."""
        return sample_arrays(self.program)

    def given(self) -> Arguments:
        """The same as the arguments of the function; what it does not use is zero."""
        signature = self.program.signature
        if signature is None:
            return tuple(self.arrays), {}
        leaves = [np.zeros(each.shape, np.int8) for each in signature.inputs]
        for place, array in zip(signature.kept, self.arrays, strict=True):
            leaves[place] = array
        args, kwargs = jax.tree.unflatten(signature.in_tree, leaves)
        return args, kwargs

    def batches(self) -> Iterator[tuple[str, int, Program]]:
        """(what is changed, runs that make up for it, program): half the batch, a quarter, and so on.

        Ends where the function cannot be traced with such a batch.
        """
        batch = 0 if self.example is None else batch_of(self.example)
        for halved in range(1, _MOST_HALVINGS + 1):
            part = batch >> halved
            if not part or part << halved != batch:
                return
            program = self._traced(partial(_with_batch, batch=batch, part=part))
            if program is None:
                return
            yield f"a batch of {part} instead of {batch} ({1 << halved} runs)", 1 << halved, program

    def types(self) -> Iterator[tuple[str, int, Program]]:
        """The same with bfloat16 for float32, where there is any."""
        if self.example is not None and any(_float32(leaf) for leaf in jax.tree.leaves(self.example)):
            program = self._traced(lambda leaf, data: _narrowed(leaf))
            if program is not None:
                yield "bfloat16 instead of float32", 1, program

    def try_changes(self, change: Callable[[str, int, Program], Change]) -> Iterator[Change]:
        """What ``change`` says of smaller batches, down to the first that fits, and of narrower types; what is less."""
        types = self.types()
        for some in (self.batches(), types):
            for what, runs, program in some:
                found = change(what, runs, program)
                if some is types:
                    found = replace(found, asks=3)
                if found.after < _LESS * found.before:
                    yield found
                if found.fits:
                    break

    def _traced(self, change: Callable[[Any, bool], Any]) -> Program | None:
        if self.example is None or self.retrace is None:
            return None
        try:
            return self.retrace(*_changed(self.example, change))
        except (TilewrightError, TypeError, ValueError):
            return None


def is_recommender(source: Any) -> bool:
    """Whether a source is a model file of four functions (or means to be one), not a program."""
    if not isinstance(source, str | Path):
        return not isinstance(source, Program)
    if Path(source).suffix != ".py" or not Path(source).is_file():
        return not names_python(str(source)) and not Path(source).exists() and str(source) != "-"
    try:
        body = ast.parse(Path(source).read_bytes()).body
    except (SyntaxError, ValueError):
        return True
    names = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    return bool(names & set(EXPECTED) - {"init", "loss"}) or not names


def load_subject(source: str | Path | Program, arguments: tuple[str, ...] = ()) -> Subject:
    """A function of a Python file with its example arguments, or a program from a file."""
    if isinstance(source, Program):
        return Subject(source.name, source)
    text = str(source)
    if not names_python(text):
        return Subject(Path(text).stem, load(Path(text)), source=text)
    program = from_python(text, arguments)
    signature = program.signature

    def retrace(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        named = [f"{name}={argument_text(value)}" for name, value in kwargs.items()]
        return from_python(text, [*map(argument_text, args), *named])

    name = Path(text.partition(":")[0]).stem
    return Subject(name, program, None if signature is None else signature.example, retrace, text)


def argument_text(value: Any) -> str:
    """An argument as the command line has it: ``{"w": f32[4,4]}``.

    >>> argument_text(({"w": np.zeros((4, 4), np.float32)}, 3))
    '({"w": f32[4,4]}, 3)'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {argument_text(item)}' for key, item in value.items()) + "}"
    if type(value) in (list, tuple):
        opened, closed = "[]" if isinstance(value, list) else "()"
        return opened + ", ".join(map(argument_text, value)) + closed
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return "key"
        return f"{dtype_name(np.dtype(value.dtype))}[{','.join(map(str, value.shape))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no text")


def batch_of(example: Arguments) -> int:
    """The number of samples: the first size of the first array behind the parameters, which are argument 0.

    An array shaped like one of them is an optimizer's. 0 where there is none.
    """
    args, kwargs = example
    behind = [*args[1:], *kwargs.values()] or list(args)
    arrays = [leaf for leaf in jax.tree.leaves(behind) if getattr(leaf, "ndim", 0)]
    known = {leaf.shape for leaf in jax.tree.leaves(args[:1]) if hasattr(leaf, "shape")} if behind != [*args] else set()
    sizes = [leaf.shape[0] for leaf in arrays if leaf.shape not in known] or [leaf.shape[0] for leaf in arrays]
    return int(sizes[0]) if sizes else 0


def _changed(example: Arguments, change: Callable[[Any, bool], Any]) -> Arguments:
    args, kwargs = example
    alone = len(args) + len(kwargs) == 1
    changed = [jax.tree.map(lambda leaf, k=k: change(leaf, alone or k > 0), each) for k, each in enumerate(args)]
    return tuple(changed), {name: jax.tree.map(lambda leaf: change(leaf, True), v) for name, v in kwargs.items()}


def _with_batch(leaf: Any, data: bool, batch: int, part: int) -> Any:
    if data and np.ndim(leaf) and leaf.shape[0] == batch:
        return _struct((part, *leaf.shape[1:]), leaf.dtype)
    return leaf


def _float32(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == np.float32 and bool(getattr(leaf, "ndim", 0))


def _narrowed(leaf: Any) -> Any:
    return _struct(leaf.shape, jax.numpy.bfloat16) if _float32(leaf) else leaf
