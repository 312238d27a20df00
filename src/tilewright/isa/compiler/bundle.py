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
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo import XlaValues, array_dtype
from tilewright.isa.chip.segments import Part
from tilewright.isa.compiler.report import MachineReport
from tilewright.isa.compiler.running import MOST_MEMORY, ChipRun, Execution, Held, Recipe, Recipes, Size, element_dtype
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.sources import Job, Stay, Step, Table
from tilewright.isa.lowering.tables import BYTES
from tilewright.reading import check_archive, open_bytes, parse, text_of, typed

Array = np.ndarray[Any, Any]
VERSION = 2
_Type = tuple[tuple[Size, ...], str]


def bundle_bytes(execution: Execution) -> bytes:
    """The bytes of the file of a model, with the arguments its run was given."""
    lowering, arrays, recipes = execution.lowering, execution.arrays, execution.recipes
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
        steps.append({**entry, "jobs": jobs, **(_host(recipes, step) if step.fallback else {})})
    data = {
        "version": VERSION,
        "config": asdict(execution.config),
        "tables": [[t.name, t.shape, t.dtype, t.base] for t in lowering.tables.values()],
        "held": {name: asdict(own) for name, own in execution.held.items()},
        "stays": [asdict(stay) for stay in execution.stays],
        "programs": texts,
        "steps": steps,
        "results": [asdict(recipes.of(value)) for value in lowering.reading.results],
    }
    data["arrays"] = {key: [array.dtype.name, array.shape] for key, array in arrays.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("bundle.json", json.dumps(data))
        for key, array in arrays.items():
            archive.writestr(key, np.ascontiguousarray(array).tobytes())
    return file.getvalue()


def _host(recipes: Recipes, step: Step) -> dict[str, Any]:
    """What XLA is asked for, as StableHLO: what it takes and makes."""
    text = recipes.lowering.reading.xla.text(step.nodes, step.inputs, step.outputs)
    types = [[[v.sizes, array_dtype(v).name] for v in values] for values in (step.inputs, step.outputs)]
    inputs, makes = [asdict(recipes.of(v)) for v in step.inputs], [recipes.kept[v] for v in step.outputs]
    return {"text": text, "inputs": inputs, "types": types, "makes": makes}


@dataclass
class Entry:
    """A step: jobs (element, number of its program, windows), or for the host a text and what it takes and makes."""

    name: str
    unit: str
    operations: Size
    fallback: str
    jobs: list[tuple[Size, Size, list[tuple[str, str, tuple[Size, ...], tuple[Size, ...]]]]]
    text: str = ""
    inputs: list[Recipe] = field(default_factory=list)
    types: tuple[list[_Type], list[_Type]] = field(default_factory=lambda: ([], []))
    makes: list[str] = field(default_factory=list)


@dataclass
class Content:
    """``bundle.json``, its types and ranges checked."""

    version: int
    config: dict[str, Any]
    tables: list[tuple[str, tuple[Size, ...], str, str]]
    held: dict[str, Held]
    stays: list[Stay]
    programs: list[str]
    steps: list[Entry]
    results: list[Recipe]
    arrays: dict[str, tuple[str, tuple[Size, ...]]]


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
            return tuple(map(run.resolve, self.data.results)), run.report()
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
            arrays = {key: np.frombuffer(archive.read(key), element_dtype(name)).reshape(shape)
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
    if size > MOST_MEMORY:
        raise UsageError(f"its tables take {size} bytes, and {MOST_MEMORY} is the most that is simulated")
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


class _Run(ChipRun):
    def __init__(self, bundle: Bundle, arrays: dict[str, Array]) -> None:
        data = bundle.data
        tables = {name: Table(name, shape, dtype, base) for name, shape, dtype, base in data.tables}
        programs, steps = [assemble(text, bundle.config) for text in data.programs], list[Step]()
        for entry in data.steps:
            jobs = []
            for pe, number, windows in entry.jobs:
                seen = tuple((name, table, Part(base, size)) for name, table, base, size in windows)
                jobs.append(Job(pe, programs[number], seen))
            more: dict[str, Any] = {"fallback": entry.fallback, "operations": entry.operations}
            steps.append(Step(entry.name, entry.unit, jobs=tuple(jobs), **more))
        super().__init__(tables, steps, bundle.config, arrays=arrays, held=data.held)
        self.data, self.xla = data, XlaValues(apart=True)
        storages = self.fill()
        for name, table in tables.items():
            if table.base and storages[name].total_bytes > storages[table.base].total_bytes:
                raise UsageError(f"table {name!r} is a view of more than {table.base!r} has")
        for stay in data.stays:
            if stay.begin + max(stay.size, storages[stay.table].total_bytes) > self.machine.chip.l2_end:
                raise UsageError(f"table {stay.table!r} does not stand within L2")
        self.stays = tuple(data.stays)
        for number in range(len(self.steps)):
            self.step(number)

    def compute(self, step: Step) -> tuple[list[Array], dict[str, Array]]:
        """What XLA takes for a step, and what it makes, by name."""
        entry = next(entry for entry in self.data.steps if entry.name == step.name)
        given = [self.resolve(recipe) for recipe in entry.inputs]
        taken, makes = ([(shape, element_dtype(name)) for shape, name in side] for side in entry.types)
        made = self.xla.run_text(entry.text, taken, makes, given)
        return given, dict(zip(entry.makes, made, strict=True))
