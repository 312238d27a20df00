"""A JAX function to a Program: the function itself, or ``model.py:step``, whose file is imported.

Functions are lowered, never run. jax is imported when one is.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.errors import TilewrightError, UsageError
from tilewright.extras import need
from tilewright.hlo.cost import array_layout
from tilewright.hlo.execute import array_struct, signature_of
from tilewright.hlo.program import Program
from tilewright.hlo.reading.hlo_scan import Scanner
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.reading.sources import is_library
from tilewright.layout.index.types import dtype_name
from tilewright.render.formats import place_text


def from_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Program:
    """The StableHLO program of ``fn`` on arguments like these, with the source line of every operation.

    ``fn`` is a plain or a jitted function; arguments are arrays, pytrees of arrays or ``jax.ShapeDtypeStruct``.
    Nothing is compiled or run. ``Program.text`` is the lowered text, locations included. It is lowered as JAX lowers
    it for a TPU: ``ragged_dot`` stays one operation, where a CPU gets a masked product with every group, and Pallas
    kernels stay calls. What JAX does not lower for a TPU (callbacks) is lowered for the default backend.

    >>> import jax.numpy as jnp
    >>> program = from_jax(lambda x: x.reshape(6), jnp.zeros((2, 3)))
    >>> [op.opcode for op in program.entry.operations]
    ['parameter', 'reshape', 'return']
    """
    import jax

    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    traced = jitted.trace(*args, **kwargs)
    try:
        lowered = traced.lower(lowering_platforms=("tpu",))
    except Exception as refused:  # JAX has many ways to say so
        try:
            lowered = traced.lower()
        except Exception:
            raise refused from None
    program = read_stablehlo(lowered.as_text("stablehlo", debug_info=True))
    return replace(program, signature=signature_of(lowered))


# Example arguments as text: ``f32[8,128]``, ``{"w": bf16[4,4], "b": [f32[4]]}``, ``3``, ``key``, ``mask=pred[8]``.

_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_SHAPE = re.compile(r"([A-Za-z]\w*)\s*\[\s*((?:\d{1,15}\s*(?:,\s*\d{1,15}\s*)*)?)\]")
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?(?!\w)")
_STRING = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None, "null": None}
_DEEPEST = 50


Example = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a function."""


def example_arguments(texts: Sequence[str]) -> Example:
    """Texts of arguments -> positional arguments and keyword arguments for a JAX function.

    ``f32[8,128]`` (XLA's or numpy's names of types) stands for an array of that shape, ``key`` for a random key;
    ``[...]``, ``(...)`` and ``{"name": ...}`` build trees of them; numbers, ``true``, ``false``, ``none`` and quoted
    strings are Python values, for static arguments. ``name=`` before any of them names a keyword. Raises ParseError
    with the column, UsageError for an unknown type.

    >>> example_arguments(["f32[8,128]", "axis=-1"])
    ((ShapeDtypeStruct(shape=(8, 128), dtype=float32),), {'axis': -1})
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        name = _NAMED.match(text)
        reader = _Reader(text, "argument")
        reader.at = name.end() if name else 0
        value = reader.whole()
        if name is None:
            positional.append(value)
        elif name[1] in named:
            raise UsageError(f"argument {name[1]} is given twice", where=text)
        else:
            named[name[1]] = value
    return tuple(positional), named


class _Reader(Scanner):
    def word(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def next(self) -> str:
        self.blank()
        return self.text[self.at : self.at + 1]

    def whole(self) -> Any:
        value = self.tree(0)
        if self.next() == "{":
            raise self.fail("the arguments of a function have no layout", how="leave the braces out")
        if self.next():
            raise self.fail("expected the end of the argument", how="give one --arg per argument")
        return value

    def tree(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.fail(f"nested deeper than {_DEEPEST}")
        opener = self.next()
        if opener in ("[", "("):
            items = self.items("]" if opener == "[" else ")", depth)
            return items if opener == "[" else tuple(items)
        if opener == "{":
            return dict(self.items("}", depth))
        return self.leaf()

    def items(self, closer: str, depth: int) -> list[Any]:
        """The values up to ``closer``; pairs of key and value for a brace."""
        self.at += 1
        items: list[Any] = []
        while self.next() != closer:
            items.append((self.key(), self.tree(depth + 1)) if closer == "}" else self.tree(depth + 1))
            if self.next() == ",":
                self.at += 1
            elif self.next() != closer:
                raise self.fail(f"expected ',' or '{closer}'")
        self.at += 1
        return items

    def key(self) -> str:
        name = self.word(_STRING) or self.word(_WORD)
        if name is None:
            raise self.fail("expected a name and ':'")
        if self.next() != ":":
            raise self.fail(f"expected ':' after {name[0]}")
        self.at += 1
        return str(next((group for group in name.groups() if group is not None), name[0]))

    def leaf(self) -> Any:
        if shape := self.word(_SHAPE):
            return _array(shape[1], [int(word) for word in shape[2].replace(",", " ").split()], self.text)
        if number := self.word(_NUMBER):
            return int(number[0]) if number.group(1, 2, 3) == (None, None, None) else float(number[0])
        if string := self.word(_STRING):
            return string[1] if string[1] is not None else string[2]
        start = self.at
        word = self.word(_WORD)
        if word and word[0] in _WORDS:
            return _WORDS[word[0]]
        if word and word[0] == "key":
            import jax

            return jax.eval_shape(jax.random.key, 0)
        self.at = start
        raise self.fail("expected an argument such as f32[8,128], 3, key or [f32[4], s32[]]")


def _array(dtype: str, dims: list[int], text: str) -> Any:
    import jax

    if math.prod(dims) >= 2**60:
        raise UsageError("an array of more than 2**60 elements", where=text)
    kind = array_layout(f"{dtype_name(dtype)}[]").numpy_dtype
    if kind.name in ("float64", "int64", "uint64", "complex128") and jax.dtypes.canonicalize_dtype(kind) != kind:
        raise UsageError(f"JAX has no {kind.name} in its 32-bit mode", where=text, how="set JAX_ENABLE_X64=1")
    return array_struct(tuple(dims), kind)


_FILE = re.compile(r"(.+\.py)(?::([A-Za-z_][\w.]*))?")
_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_][\w.]*)")
_OURS = str(Path(__file__).parents[1])


def names_python(source: str) -> bool:
    """Does this name a Python function (``model.py:step``, ``package.module:step``) or a file of functions?"""
    return _FILE.fullmatch(source) is not None or (_MODULE.fullmatch(source) is not None and not Path(source).exists())


def from_python(
    source: str, arguments: Sequence[str] = (), mesh: Mapping[str, int] | None = None, example: Example | None = None
) -> Program:
    """The StableHLO program of a function in a Python file (``model.py:step``) or module (``package.module:step``).

    ``arguments`` are texts such as ``f32[8,128]`` (see ``--arg``). Without any, the module says what its functions are
    called with: ``EXAMPLES = {"step": make_arguments}``, ``step_example_args`` or ``example_args``, each a tuple of
    arguments, a dict of keyword arguments, or a function that returns one of the two. Without a name, the first
    function in ``EXAMPLES`` is taken, or the only one there is. The module is imported and so runs, with its folder on
    the path; the function is traced, not run. What fails in it is one UsageError that names the user's line. ``mesh``:
    sizes by name of the axes that its ``with_sharding_constraint(x, P("data"))`` are about. ``example``: positional and
    keyword arguments themselves, instead of all that.
    """
    function, args, kwargs = python_call(source, arguments, example)
    match = _FILE.fullmatch(source) or _MODULE.fullmatch(source)
    tracing = f"tracing {getattr(function, '__name__', source)}"
    with _users_faults(match[1] if match else source, tracing), _over(mesh):
        program = from_jax(function, *args, **kwargs)
    return replace(program, signature=replace(program.signature, example=(args, kwargs)))


def _over(mesh: Mapping[str, int] | None) -> AbstractContextManager[Any]:
    """JAX's context of a mesh whose devices nobody has."""
    if mesh is None:
        return nullcontext()
    import jax

    kinds = (jax.sharding.AxisType.Auto,) * len(mesh)
    abstract = jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=kinds)
    return jax.sharding.use_abstract_mesh(abstract)


def python_call(
    source: str, arguments: Sequence[str] = (), example: Example | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function that ``source`` names, and the arguments that :func:`from_python` traces it with."""
    match = _FILE.fullmatch(source) or _MODULE.fullmatch(source)
    if match is None:
        raise UsageError("not FILE.py:FUNCTION or MODULE:FUNCTION", where=source)
    need("jax", "jaxlib", what="a Python function")
    where = match[1]
    module = python_module(where)
    name = match[2] or _only_function(module, where)
    function = _member(module, name, where)
    with _users_faults(where, f"making the arguments of {name}"):
        given = example or (example_arguments(arguments) if arguments else None)
        args, kwargs = given or _examples(module, name, function, where)
    return function, args, kwargs


def functions_in(source: str, arguments: Sequence[str] = ()) -> dict[str, str]:
    """Every function of ``model.py`` by name, and why it cannot be traced: "" where it has arguments that fit it.

    ``source`` is one that :func:`names_python` and that names no function; the arguments come from where
    :func:`from_python` finds them.

    >>> from pathlib import Path
    >>> _ = Path("two.py").write_text("def step(x):\\n    return x * 2\\n\\ndef loss(x, y):\\n    return x - y\\n")
    >>> functions_in("two.py", ["f32[8]"])
    {'step': '', 'loss': "missing a required argument: 'y'"}
    """
    module, found = python_module(source), {}
    table = getattr(module, "EXAMPLES", None)
    listed = table if isinstance(table, Mapping) else ()
    for name in dict.fromkeys([*listed, *_functions(module)]):
        try:
            function = _member(module, name, source)
            with _users_faults(source, f"making the arguments of {name}"):
                args, kwargs = example_arguments(arguments) if arguments else _examples(module, name, function, source)
            inspect.signature(function).bind(*args, **kwargs)
        except (TilewrightError, TypeError, ValueError) as error:
            found[name] = getattr(error, "what", "") or str(error)
        else:
            found[name] = ""
    return found


def python_module(where: str) -> ModuleType:
    """A user's Python file, or a module by its name, imported; :class:`UsageError` for whatever it does wrong."""
    with _users_faults(where, "importing it"):
        return _import_file(Path(where)) if where.endswith(".py") else _import_module(where)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError("no such Python file", where=str(path))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"tilewright_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as `python model.py` does, and for good: functions import when they are called
        sys.path.insert(0, folder)
    sys.modules[name] = module  # dataclasses and pickles look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


@contextmanager
def _users_faults(where: str, doing: str) -> Iterator[None]:
    """Whatever the user's code raises inside becomes one error at the innermost line that is the user's."""
    try:
        yield
    except TilewrightError:
        raise
    except (Exception, SystemExit) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise UsageError(
            f"{doing} fails: {reason}", where=users_line(error) or where, how="--debug shows the whole traceback"
        ) from error


def users_line(error: BaseException) -> str:
    """``file.py:12`` of the innermost frame outside libraries, "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return place_text(f"{error.filename}:{error.lineno}")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not is_library(f.filename) and not f.filename.startswith((_OURS, sys.base_prefix, "<"))]
    return place_text(f"{own[-1].filename}:{own[-1].lineno}") if own else ""


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not inspect.isclass(value)
        and not name.startswith("_")
        and not name.endswith("example_args")
        and getattr(value, "__module__", None) == module.__name__
    ]


def _only_function(module: ModuleType, where: str) -> str:
    examples = getattr(module, "EXAMPLES", None)
    if isinstance(examples, Mapping) and examples:
        return str(next(iter(examples)))
    names = _functions(module)
    if len(names) != 1:
        how = f"name one: {where}:{names[0]} ({', '.join(names)})" if names else "define a function in it"
        raise UsageError(f"it defines {len(names)} functions", where=where, how=how)
    return names[0]


def _member(module: ModuleType, name: str, where: str) -> Callable[..., Any]:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            names = ", ".join(_functions(module)) or "none"
            raise UsageError(f"it has no {name}", where=where, how=f"its functions: {names}")
        value = getattr(value, part)
    if not callable(value):
        raise UsageError(f"{name} is of type {type(value).__name__}, not a function", where=where)
    function: Callable[..., Any] = value
    return function


def _examples(module: ModuleType, name: str, function: Callable[..., Any], where: str) -> Example:
    """What the module says its function is called with."""
    table = getattr(module, "EXAMPLES", None)
    short = name.replace(".", "_")
    if isinstance(table, Mapping) and name in table:
        return _called_with(table[name])
    for key in (f"{short}_example_args", "example_args"):
        if hasattr(module, key):
            return _called_with(getattr(module, key))
    if needed := _required(function):
        raise UsageError(
            f"{name} needs arguments ({', '.join(needed)}) and there are no examples of them",
            where=where,
            how=f"add --arg f32[8,128] for each, or define {short}_example_args in the file",
        )
    return (), {}


def _called_with(example: Any) -> Example:
    arguments = example() if callable(example) else example
    if isinstance(arguments, Mapping):
        return (), dict(arguments)
    return (tuple(arguments) if isinstance(arguments, tuple | list) else (arguments,)), {}


def _required(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
