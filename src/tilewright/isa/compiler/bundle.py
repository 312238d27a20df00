"""A compiled model as one file: programs, tables, the plan of L2, arguments; and running it without its source.

The file is a zip archive: ``bundle.json`` says all but the arrays, whose bytes stand beside it. What XLA does on the
host is kept as StableHLO.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo import Value, XlaValues, array_dtype
from tilewright.isa.chip.parts import Part
from tilewright.isa.compiler.report import MachineReport
from tilewright.isa.compiler.running import ChipRun, Execution
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Groups, Job, Stay, Step, Table
from tilewright.isa.lowering.tables import BYTES, Lowering, apply_layout, folded_array
from tilewright.isa.multiply.matmul import MatmulPlan, stored_weights
from tilewright.reading import check_archive, open_bytes, parse, text_of, typed

Array = np.ndarray[Any, Any]
VERSION = 2
_MOST_MEMORY = 1 << 30
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Few = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
_Type = tuple[tuple[_Size, ...], str]


def bundle_bytes(execution: Execution) -> bytes:
    """The bytes of the file of a model, with the arguments its run was given."""
    lowering, arrays = execution.lowering, dict[str, Array]()
    writer = _Writer(lowering, arrays)
    programs: dict[MachineProgram, int] = {}
    texts: list[str] = []
    steps = []
    for step in lowering.steps:
        jobs = []
        for job in step.jobs:
            if job.program not in programs:
                programs[job.program] = len(texts)
                texts.append(str(job.program))
            windows = [[name, table, part.base, part.size] for name, table, part in job.windows]
            jobs.append([job.pe, programs[job.program], windows])
        entry = {"name": step.name, "unit": step.unit, "operations": step.operations, "fallback": step.fallback}
        steps.append({**entry, "jobs": jobs, **(writer.host(step) if step.fallback else {})})
    held = [table for table in lowering.tables.values() if table.held is not None]
    for number, value in enumerate(lowering.reading.block.arguments):
        arrays[f"argument {number}"] = execution.values[value]
    data = {
        "version": VERSION,
        "config": asdict(execution.config),
        "tables": [[t.name, t.shape, t.dtype, t.base] for t in lowering.tables.values()],
        "held": {table.name: writer.held(table) for table in held},
        "stays": [asdict(stay) for stay in execution.stays],
        "programs": texts,
        "steps": steps,
        "results": [writer.recipe(value) for value in lowering.reading.results],
    }
    data["arrays"] = {key: [array.dtype.name, array.shape] for key, array in arrays.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("bundle.json", json.dumps(data))
        for key, array in arrays.items():
            archive.writestr(key, np.ascontiguousarray(array).tobytes())
    return file.getvalue()


class _Writer:
    """Values as recipes: an array, a table, or one of these with its elements named otherwise."""

    def __init__(self, lowering: Lowering, arrays: dict[str, Array]) -> None:
        self.lowering, self.arrays = lowering, arrays
        self.kept: dict[Value, str] = {v: f"argument {n}" for n, v in enumerate(lowering.reading.block.arguments)}
        for number, (value, array) in enumerate(lowering.reading.constants.items()):
            self.kept[value] = f"constant {number}"
            arrays[self.kept[value]] = array

    def recipe(self, value: Value) -> dict[str, Any]:
        if value in self.kept:
            return {"array": self.kept[value]}
        node = value.operation
        if node is not None and node.name in LAYOUT:
            plain = {key: own for key, own in node.attributes.items() if isinstance(own, tuple)}
            return {"name": node.name, "attributes": plain, "shape": value.sizes, "of": self.recipe(node.operands[0])}
        table = self.lowering.places[value][0].table
        dtype = array_dtype(value).name
        return {"table": table, "groups": self.lowering.groups[table], "shape": value.sizes, "dtype": dtype}

    def host(self, step: Step) -> dict[str, Any]:
        text = self.lowering.reading.xla.text(step.nodes, step.inputs, step.outputs)
        inputs = [self.recipe(v) for v in step.inputs]
        types = [[[v.sizes, array_dtype(v).name] for v in values] for values in (step.inputs, step.outputs)]
        for n, value in enumerate(step.outputs):
            self.kept[value] = f"{step.name} {n}"
        return {"text": text, "inputs": inputs, "types": types, "makes": [self.kept[v] for v in step.outputs]}

    def held(self, table: Table) -> dict[str, Any]:
        assert table.held is not None
        value, groups = table.held
        plan = table.weights
        arranged = None if plan is None else [plan.element_bytes, plan.kb, plan.block_a]
        return {"value": self.recipe(value), "groups": groups, "arranged": arranged}


@dataclass
class Recipe:
    """How a value comes about: an array, a table, or the elements ``of`` another under other names."""

    array: str | None = None
    of: Recipe | None = None
    name: str = ""
    attributes: dict[str, tuple[int | tuple[int, ...], ...]] = field(default_factory=dict)
    shape: tuple[_Size, ...] = ()
    table: str = ""
    groups: Groups = ()
    dtype: str = ""

    @property
    def root(self) -> str | None:
        """The array it is made of, None where it is a table's."""
        return self.array if self.of is None else self.of.root


@dataclass
class Held:
    """What the host puts into a table; ``arranged``: element bytes, kb and block_a of a convolution's weights."""

    value: Recipe
    groups: Groups
    arranged: tuple[_Few, _Few, _Few] | None


@dataclass
class Entry:
    """A step: jobs (element, number of its program, windows), or for the host a text and what it takes and makes."""

    name: str
    unit: str
    operations: _Size
    fallback: str
    jobs: list[tuple[_Size, _Size, list[tuple[str, str, tuple[_Size, ...], tuple[_Size, ...]]]]]
    text: str = ""
    inputs: list[Recipe] = field(default_factory=list)
    types: tuple[list[_Type], list[_Type]] = field(default_factory=lambda: ([], []))
    makes: list[str] = field(default_factory=list)


@dataclass
class Content:
    """``bundle.json``, its types and ranges checked."""

    version: int
    config: dict[str, Any]
    tables: list[tuple[str, tuple[_Size, ...], str, str]]
    held: dict[str, Held]
    stays: list[Stay]
    programs: list[str]
    steps: list[Entry]
    results: list[Recipe]
    arrays: dict[str, tuple[str, tuple[_Size, ...]]]


@dataclass
class Bundle:
    """A compiled model read from a file: ``arrays`` has its arguments, and ``run`` runs it."""

    data: Content
    arrays: dict[str, Array]
    config: MatrixUnitConfig

    def run(self, arguments: Mapping[int, Any] | None = None) -> tuple[tuple[Array, ...], MachineReport]:
        """(results, report) with the file's own arguments, those given by number taking their places."""
        arrays = dict(self.arrays)
        for number, given in (arguments or {}).items():
            own, array = arrays.get(f"argument {number}"), np.asarray(given)
            if own is None or own.shape != array.shape or own.dtype != array.dtype:
                wanted = "no such argument" if own is None else f"{own.dtype}{list(own.shape)}"
                raise UsageError(f"argument {number} is {array.dtype}{list(array.shape)}", how=wanted)
            arrays[f"argument {number}"] = array
        try:
            run = _Run(self, arrays)
            return run.results(), run.report()
        except (LookupError, ValueError, TypeError) as error:  # each entry is sound, but not what another one says
            raise UsageError(f"a damaged compiled model: its parts do not fit together ({error})") from error


def is_bundle(path: str) -> bool:
    """Whether a file looks like a model that :meth:`Compiled.save` wrote."""
    return path != "-" and zipfile.is_zipfile(path)


def load_bundle(path: str | Path) -> Bundle:
    """A compiled model that :meth:`Compiled.save` wrote; ``.run()`` runs it with the arguments it was saved with.

    Raises :class:`UsageError` for another file, or a damaged one.
    """
    where = str(path)
    try:
        with open_bytes(path) as file, zipfile.ZipFile(file) as archive:
            check_archive(archive, where)
            value = parse(text_of(archive.read("bundle.json"), where), "JSON", where)
            version = value.get("version") if isinstance(value, dict) else None
            if version != VERSION:
                raise UsageError(f"a compiled model of version {version}", where=where, how="compile it again")
            data = typed(value, Content, where)
            config = _config(data.config)
            arrays = {key: np.frombuffer(archive.read(key), _dtype(name)).reshape(shape)
                      for key, (name, shape) in data.arrays.items()}  # fmt: skip
            _check(data, config)
    except TilewrightError as error:
        raise UsageError(error.what, where=where, how=error.how) from None
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"not a compiled model: {error}", where=where) from None
    return Bundle(data, arrays, config)


def _config(given: Mapping[str, Any]) -> MatrixUnitConfig:
    """The machine from its saved fields; fields of other versions are left out."""
    known = {f.name for f in fields(MatrixUnitConfig)}
    config: dict[str, Any] = {
        key: tuple(own) if isinstance(own, list) else own for key, own in given.items() if key in known
    }
    return MatrixUnitConfig(**config)


def _check(data: Content, config: MatrixUnitConfig) -> None:
    """That what addresses memory stays within it, and that all that is named is there."""
    tables = {name: (shape, dtype, base) for name, shape, dtype, base in data.tables}
    size = 0
    for name, (shape, dtype, base) in tables.items():
        if dtype not in ELEMENT_TYPES or not shape or len(shape) > 4 or 0 in shape:
            raise UsageError(f"table {name!r} of {dtype}{list(shape)} is none of this machine")
        if base and (base not in tables or tables[base][2]):
            raise UsageError(f"table {name!r} is a view of {base!r}, which is no table with bytes of its own")
        size += 0 if base else prod(shape) * BYTES[dtype]
    if size > _MOST_MEMORY:
        raise UsageError(f"its tables take {size} bytes, and {_MOST_MEMORY} is the most that is simulated")
    for stay in data.stays:
        there = stay.table in tables and not tables[stay.table][2]
        if not there or min(stay.begin, stay.first) < 0 or not stay.first <= stay.last < len(data.steps):
            raise UsageError(f"table {stay.table!r} cannot stand in L2 as it says")
        if stay.size <= 0 or stay.begin + stay.size > config.l2_bytes:
            raise UsageError(f"table {stay.table!r} does not stand within L2")
    for step in data.steps:
        for element, program, windows in step.jobs:
            if element >= config.pes or program >= len(data.programs):
                raise UsageError(f"step {step.name!r}: element {element} or program {program} is not there")
            for name, table, begin, count in windows:
                known, ends = tables.get(table), [b + c for b, c in zip(begin, count)]
                shape = known[0] if known is not None else ()
                if not len(begin) == len(count) == len(shape) or any(e > s for e, s in zip(ends, shape)):
                    raise UsageError(f"step {step.name!r}: window {name!r} is not within table {table!r}")


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    narrow = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    try:
        dtype = np.dtype(narrow if isinstance(narrow, type) else name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind in "OSUMm" or dtype.hasobject or dtype.names is not None or not dtype.itemsize:
        raise UsageError(f"no element type is called {name[:60]!r}")
    return dtype


class _Run(ChipRun):
    def __init__(self, bundle: Bundle, arrays: dict[str, Array]) -> None:
        data, self.arrays = bundle.data, arrays
        tables = {name: Table(name, shape, dtype, base) for name, shape, dtype, base in data.tables}
        programs, steps = [assemble(text, bundle.config) for text in data.programs], list[Step]()
        for entry in data.steps:
            jobs = []
            for pe, number, windows in entry.jobs:
                seen = tuple((name, table, Part(base, size)) for name, table, base, size in windows)
                jobs.append(Job(pe, programs[number], seen))
            more: dict[str, Any] = {"fallback": entry.fallback, "operations": entry.operations}
            steps.append(Step(entry.name, entry.unit, jobs=tuple(jobs), **more))
        super().__init__(tables, steps, bundle.config)
        self.data, self.xla = data, XlaValues(apart=True)
        storages = self.fill({name: self.placed(own) for name, own in data.held.items() if self.is_on_host(own.value)})
        for name, table in tables.items():
            if table.base and storages[name].total_bytes > storages[table.base].total_bytes:
                raise UsageError(f"table {name!r} is a view of more than {table.base!r} has")
        for stay in data.stays:
            if stay.begin + max(stay.size, storages[stay.table].total_bytes) > self.machine.chip.l2_end:
                raise UsageError(f"table {stay.table!r} does not stand within L2")
        self.stays = tuple(data.stays)
        for number in range(len(self.steps)):
            self.step(number)

    def is_on_host(self, recipe: Recipe) -> bool:
        """Whether the host has the value already."""
        return recipe.root in self.arrays

    def value(self, recipe: Recipe) -> Array:
        """The array that a recipe describes."""
        if recipe.array is not None:
            return self.arrays[recipe.array]
        if recipe.of is not None:
            if recipe.name not in LAYOUT or prod(recipe.shape) > _MOST_MEMORY:
                raise UsageError(f"a value is {recipe.name!r} of another, which no layout is")
            result = SimpleNamespace(sizes=recipe.shape)
            node: Any = SimpleNamespace(name=recipe.name, attributes=recipe.attributes, result=result)
            return apply_layout(node, self.value(recipe.of))
        return self.fetch(recipe.table, recipe.shape, recipe.groups, _dtype(recipe.dtype))

    def placed(self, own: Held) -> Array:
        """The array that the host puts into a table."""
        array = folded_array(self.value(own.value), own.groups)
        if own.arranged is None:
            return array
        e, kb, block = own.arranged
        plan = MatmulPlan(1, 1, 1, "", "", e, 1, kb, False, "k_outer", 1, self.config, block)
        return stored_weights(plan, array)

    def on_host(self, step: Step) -> None:
        """Let XLA compute a step, from what the machine made."""
        entry = next(entry for entry in self.data.steps if entry.name == step.name)
        given = [self.value(recipe) for recipe in entry.inputs]
        taken, makes = ([(shape, _dtype(name)) for shape, name in side] for side in entry.types)
        made = self.xla.run_text(entry.text, taken, makes, given)
        self.arrays.update(zip(entry.makes, made, strict=True))
        self.host_bytes += sum(array.nbytes for array in (*given, *made))
        for name, own in self.data.held.items():
            if own.value.root in entry.makes:
                self.place(name, self.placed(own))

    def results(self) -> tuple[Array, ...]:
        return tuple(self.value(recipe) for recipe in self.data.results)
