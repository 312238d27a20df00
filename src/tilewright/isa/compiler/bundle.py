"""A compiled model as one file: programs, tables, the plan of L2, arguments; and running it without its source.

The file is a zip archive: ``bundle.json`` says all but the arrays, whose bytes stand beside it. What XLA does on the
host is kept as StableHLO.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.files import write_whole
from tilewright.hlo import Value, XlaValues, array_dtype
from tilewright.isa.chip.parts import Part
from tilewright.isa.compiler.chip_run import ChipRun
from tilewright.isa.compiler.result import MachineReport
from tilewright.isa.compiler.running import Execution
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.steps import Job, Stay, Step, Table
from tilewright.isa.lowering.tables import Lowering, folded_array, named, unfolded_array
from tilewright.isa.multiply.conv import stored_weights
from tilewright.isa.multiply.matmul import MatmulPlan

Array = np.ndarray[Any, Any]
Recipe = dict[str, Any]
VERSION = 2


def bundle_bytes(execution: Execution) -> bytes:
    """The file of a model whose run has begun: with the arguments it was given."""
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

    def recipe(self, value: Value) -> Recipe:
        if value in self.kept:
            return {"array": self.kept[value]}
        node = value.operation
        if node is not None and node.name in LAYOUT:
            plain = {key: own for key, own in node.attributes.items() if isinstance(own, tuple)}
            return {"name": node.name, "attributes": plain, "shape": value.sizes, "of": self.recipe(node.operands[0])}
        table = self.lowering.places[value][0].table
        dtype = array_dtype(value).name
        return {"table": table, "groups": self.lowering.groups[table], "shape": value.sizes, "dtype": dtype}

    def host(self, step: Step) -> Recipe:
        text = self.lowering.reading.xla.text(step.nodes, step.inputs, step.outputs)
        inputs = [self.recipe(v) for v in step.inputs]
        types = [[[v.sizes, array_dtype(v).name] for v in values] for values in (step.inputs, step.outputs)]
        for n, value in enumerate(step.outputs):
            self.kept[value] = f"{step.name} {n}"
        return {"text": text, "inputs": inputs, "types": types, "makes": [self.kept[v] for v in step.outputs]}

    def held(self, table: Table) -> Recipe:
        assert table.held is not None
        value, groups = table.held
        plan = table.weights
        arranged = None if plan is None else [plan.element_bytes, plan.kb, plan.block_a]
        return {"value": self.recipe(value), "groups": groups, "arranged": arranged}


@dataclass
class Bundle:
    """A compiled model read from a file: ``arrays`` has its arguments, and ``run`` runs it."""

    data: dict[str, Any]
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
        run = _Run(self, arrays)
        return run.results(), run.report()


def load_bundle(path: str | Path) -> Bundle:
    """Read what ``Compiled.save`` wrote. Raises :class:`UsageError` for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("bundle.json"))
            arrays = {
                key: np.frombuffer(archive.read(key), _dtype(name)).reshape(shape)
                for key, (name, shape) in data["arrays"].items()
            }
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"not a compiled model: {error}", where=str(path)) from None
    if data.get("version") != VERSION:
        raise UsageError(f"a compiled model of version {data.get('version')}", where=str(path), how="compile it again")
    known = {f.name for f in fields(MatrixUnitConfig)}
    config: dict[str, Any] = {key: _tuples(own) for key, own in data["config"].items() if key in known}
    return Bundle(data, arrays, MatrixUnitConfig(**config))


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class _Run(ChipRun):
    def __init__(self, bundle: Bundle, arrays: dict[str, Array]) -> None:
        data, self.arrays = bundle.data, arrays
        tables = {name: Table(name, tuple(shape), dtype, base) for name, shape, dtype, base in data["tables"]}
        programs = [assemble(text, bundle.config) for text in data["programs"]]
        super().__init__(tables, [_step(entry, programs) for entry in data["steps"]], bundle.config)
        self.data, self.xla = data, XlaValues()
        self.fill({name: self.placed(own) for name, own in data["held"].items() if self.there(own["value"])})
        self.planned(tuple(Stay(**stay) for stay in data["stays"]))
        for number in range(len(self.steps)):
            self.step(number)

    def there(self, recipe: Recipe) -> bool:
        """Whether the host has it."""
        return self.there(recipe["of"]) if "of" in recipe else recipe.get("array") in self.arrays

    def value(self, recipe: Recipe) -> Array:
        """The array a recipe says."""
        if "array" in recipe:
            return self.arrays[recipe["array"]]
        shape = tuple(recipe["shape"])
        if "of" in recipe:
            attributes = {key: _tuples(own) for key, own in recipe["attributes"].items()}
            node: Any = SimpleNamespace(name=recipe["name"], attributes=attributes, result=SimpleNamespace(sizes=shape))
            return named(node, self.value(recipe["of"]))
        raw = self.machine.tensor(recipe["table"])
        return unfolded_array(raw, shape, _tuples(recipe["groups"]), _dtype(recipe["dtype"]))

    def placed(self, own: Recipe) -> Array:
        """What the host puts into a table."""
        array = folded_array(self.value(own["value"]), _tuples(own["groups"]))
        if own["arranged"] is None:
            return array
        e, kb, block = own["arranged"]
        plan = MatmulPlan(1, 1, 1, "", "", e, 1, kb, False, "k_outer", 1, self.config, block)
        return stored_weights(plan, array)

    def on_host(self, step: Step) -> None:
        """XLA computes it, of what the machine made."""
        entry = next(entry for entry in self.data["steps"] if entry["name"] == step.name)
        given = [self.value(recipe) for recipe in entry["inputs"]]
        types: Any = [[(tuple(shape), _dtype(name)) for shape, name in side] for side in entry["types"]]
        made = self.xla.run_text(entry["text"], types[0], types[1], given)
        self.arrays.update(zip(entry["makes"], made, strict=True))
        self.host_bytes += sum(array.nbytes for array in (*given, *made))
        for name, own in self.data["held"].items():
            if _root(own["value"]) in entry["makes"]:
                self.place(name, self.placed(own))

    def results(self) -> tuple[Array, ...]:
        """What the program returns."""
        return tuple(self.value(recipe) for recipe in self.data["results"])


def _root(recipe: Recipe) -> str | None:
    while "of" in recipe:
        recipe = recipe["of"]
    return recipe.get("array")


def _step(entry: Recipe, programs: Sequence[MachineProgram]) -> Step:
    jobs = []
    for pe, number, windows in entry["jobs"]:
        seen = tuple((name, table, Part(tuple(base), tuple(size))) for name, table, base, size in windows)
        jobs.append(Job(pe, programs[number], seen))
    return Step(
        entry["name"], entry["unit"], jobs=tuple(jobs), fallback=entry["fallback"], operations=entry["operations"]
    )


def save(execution: Execution, path: str | Path) -> None:
    """Write the file."""
    write_whole(str(path), bundle_bytes(execution))
