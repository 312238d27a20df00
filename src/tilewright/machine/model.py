"""What a run is given: rows to learn from, and a model file, in which `run` expects to find these functions.

==============================================================  ======================================================
``features(scale) -> [Feature, ...]``                           C1 to C26, their tables scaled
``init(key) -> params``                                         dense parameters, any pytree
``loss(params, numeric, vectors, labels) -> (loss, logits)``    pure JAX: numeric f32[B, 13], vectors {"C1": f32[B, D]}
``optimizer() -> optax.GradientTransformation``                 how the dense parameters learn
==============================================================  ======================================================

`embed train` takes any features. Constants say which columns of the log are given as ``numeric`` and ``labels``,
``NUMERIC = ["age", ...]`` (Criteo's I1 to I13) and ``LABEL = "rating"`` ("label"), and what ids in a text are:
``IDS = "direct"`` takes them as rows of the table, "hash" hashes them; without it those of CSV and TSV are hashed.
``HASHES = {"user": MultiHash(100_000)}`` gives a table fewer rows than it has ids.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright import embed
from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo import Program, from_python, load, names_python, python_module, sample_arrays
from tilewright.machine.results import Change

EXPECTED = ("features", "init", "loss", "optimizer")


@dataclass(frozen=True)
class Model:
    """The four functions of a model file, its name, and the columns it reads beside its features."""

    name: str
    features: Callable[[float], Sequence[embed.Feature]]
    init: Callable[[Any], Any]
    loss: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    optimizer: Callable[[], Any]
    numeric: tuple[str, ...] = tuple(f"I{i}" for i in range(1, 14))
    label: str = "label"
    ids: str = "auto"
    hashes: Mapping[str, embed.MultiHash] = field(default_factory=dict, hash=False)

    def hashed(self, scale: float) -> embed.HashedTables:
        """The model's features as the log has them, and as they are stacked."""
        return embed.hash_tables(self.features(scale), self.hashes)

    def described(self, scale: float, target: str, chips: int, batch: int) -> embed.EmbedConfig:
        """The tables that the file describes, as a TOML file of them does."""
        hashed = self.hashed(scale)
        columns = {feature.name: embed.LogColumn(ids=self.ids) for feature in hashed.original}
        return embed.EmbedConfig(hashed.features, target, chips, batch, columns, hashed=hashed)


def load_model(source: str | Path | ModuleType | Model, *, tables_elsewhere: bool = False) -> Model:
    """The model in a file, a module or already a :class:`Model`; :class:`UsageError` names what is missing.

    ``tables_elsewhere``: it needs no ``features``, as another file describes the tables.
    """
    if isinstance(source, Model):
        return source
    if not isinstance(source, ModuleType) and not Path(source).is_file():
        raise UsageError("no such model file", where=str(source), how="give a Python file such as examples/dlrm.py")
    module = source if isinstance(source, ModuleType) else python_module(str(source))
    where = str(source) if not isinstance(source, ModuleType) else source.__name__
    given = {name: getattr(module, name, None) for name in EXPECTED}
    if tables_elsewhere and given["features"] is None:
        given["features"] = lambda scale: ()
    missing = [name for name, function in given.items() if not callable(function)]
    if missing:
        how = f"a model file defines {', '.join(EXPECTED)}; see examples/dlrm.py"
        raise UsageError(f"the model file does not define {', '.join(missing)}", where=where, how=how)
    columns = {
        name.lower(): getattr(module, name) for name in ("NUMERIC", "LABEL", "IDS", "HASHES") if hasattr(module, name)
    }
    if not isinstance(columns.get("label", ""), str) or isinstance(columns.get("numeric", ()), str):
        raise UsageError("NUMERIC is a list of columns, LABEL the name of one", where=where)
    if "numeric" in columns:
        columns["numeric"] = tuple(columns["numeric"])
    return Model(Path(where).stem, **given, **columns)  # type: ignore[arg-type]


def check_model(model: Model, widths: Mapping[str, int], batch: int) -> None:
    """Trace init, loss, its gradient and the optimizer on shapes alone; :class:`UsageError` says which one fails."""
    array: Any = jax.ShapeDtypeStruct
    numeric, labels = array((batch, len(model.numeric)), jnp.float32), array((batch,), jnp.float32)
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


# Where a run's rows come from: a click log on disk, or a seeded one with a planted signal.

_EVALUATION_ROWS = 8192
_FEWEST_HELD_OUT = 256
_MOST_ROWS = 1 << 21  # 2 Mi rows of 160 bytes: 320 MiB; a longer log is read up to here


@dataclass(frozen=True)
class RunData:
    """Rows to learn from and rows to judge by; ``held_out`` tells whether the two are disjoint."""

    train: embed.Clicks
    evaluate: embed.Clicks
    held_out: bool
    source: str

    def training_batches(self, batch: int, steps: int) -> Iterator[embed.Clicks]:
        """``steps`` whole batches, going through the rows again as often as needed."""
        endless = (rows for _ in itertools.count() for rows in self.train.batches(batch))
        return itertools.islice(endless, steps)


def _whole(rows: embed.Clicks, batch: int) -> embed.Clicks:
    return rows[: len(rows) // batch * batch]


def _from_file(path: str, vocabs: Sequence[int], batch: int) -> RunData:
    parts, count = [], 0
    for part in embed.read_criteo(path, vocabs):
        parts.append(part)
        count += len(part)
        if count >= _MOST_ROWS:
            break
    rows = embed.Clicks.join(parts)
    if len(rows) < batch:
        how = f"use --batch {max(1, len(rows) // 2)} or less, or a longer log"
        raise UsageError(f"{len(rows)} rows are fewer than one batch of {batch}", where=path, how=how)
    kept = min(_EVALUATION_ROWS, len(rows) // 5) // batch * batch
    if kept < _FEWEST_HELD_OUT:  # too few to judge by: take the rows it learns from, and say so
        return RunData(_whole(rows, batch), _whole(rows, batch), held_out=False, source=str(Path(path).name))
    return RunData(rows[: len(rows) - kept], rows[len(rows) - kept :], held_out=True, source=str(Path(path).name))


def load_data(path: str | None, features: Sequence[embed.Feature], batch: int, steps: int, seed: int = 0) -> RunData:
    """Rows for ``steps`` batches of ``batch``; without a path, a seeded log whose ids follow a Zipf law.

    Raises :class:`UsageError` for a missing, empty or malformed file and for one with fewer rows than a batch.
    """
    vocabs = [feature.table.vocab for feature in features]
    if path is not None:
        return _from_file(path, vocabs, batch)
    train = embed.synthetic_criteo(seed, min(steps * batch, _MOST_ROWS // batch * batch), vocabs)
    kept = max(1, _EVALUATION_ROWS // batch) * batch
    return RunData(
        train, embed.synthetic_criteo(seed + 1, kept, vocabs), held_out=True, source=f"generated, seed {seed}"
    )


def auc(labels: Any, scores: Any) -> float:
    """Area under the ROC curve: the chance that a click scores above a non-click, ties counting half.

    ``labels`` [n] of 0 and 1, ``scores`` [n]; nan where only one class occurs.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    clicked = np.asarray(labels) > 0.5
    values = np.asarray(scores, np.float64)
    positive, negative = int(clicked.sum()), int((~clicked).sum())
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1, tied values sharing their mean
    ranks = middle[inverse].sum(where=clicked)
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


# What is run where it is no recommender: a program, arrays to run it with, and the same function on other arguments.


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

            def less(leaf: Any, data: bool, part: int = part) -> Any:
                of_batch = data and np.ndim(leaf) and leaf.shape[0] == batch
                return _struct((part, *leaf.shape[1:]), leaf.dtype) if of_batch else leaf

            program = self._traced(less)
            if program is None:
                return
            yield f"a batch of {part} instead of {batch} ({1 << halved} runs)", 1 << halved, program

    def types(self) -> Iterator[tuple[str, int, Program]]:
        """The same with bfloat16 for float32, where there is any."""
        if self.example is not None and any(_float32(leaf) for leaf in jax.tree.leaves(self.example)):
            half = jax.numpy.bfloat16
            program = self._traced(lambda leaf, data: _struct(leaf.shape, half) if _float32(leaf) else leaf)
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
        args, kwargs = self.example
        alone = len(args) + len(kwargs) == 1
        try:
            changed = [jax.tree.map(lambda x, k=k: change(x, alone or k > 0), each) for k, each in enumerate(args)]
            named = {name: jax.tree.map(lambda x: change(x, True), each) for name, each in kwargs.items()}
            return self.retrace(tuple(changed), named)
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
        return from_python(text, example=(args, kwargs))

    name = Path(text.partition(":")[0]).stem
    return Subject(name, program, None if signature is None else signature.example, retrace, text)


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


def _float32(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == np.float32 and bool(getattr(leaf, "ndim", 0))
