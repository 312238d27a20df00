"""``isa.compile``, and a compiled model: its listing, its layers, running, checking and saving it.

Its file is a zip archive: ``bundle.json`` has the program as StableHLO and the machine, its arguments stand beside it.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import CheckFailed, TilewrightError, UsageError
from tilewright.files import write_whole
from tilewright.hlo import Program, array_dtype, from_jax, load, operations_of, sample_arrays
from tilewright.isa.compiler.checking import check_step
from tilewright.isa.compiler.report import Layer, MachineReport
from tilewright.isa.compiler.running import (
    SHARE,
    Execution,
    L2Plan,
    Watch,
    bytes_of,
    checked_arguments,
    l2_plan,
    listing,
    schedule,
)
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.errors import Array
from tilewright.isa.lowering.layers import lower
from tilewright.isa.lowering.tables import Lowering
from tilewright.reading import check_archive, open_bytes, parse, text_of, typed

VERSION = 3
"""Of a compiled model's file."""
_MOST_MEMORY = 1 << 30
WHOLE_MODELS = MatrixUnitConfig(kb_mode="chunk")
"""The machine that models are compiled for unless another is given: kb threads take kb chunks of A at a time.

With the text's own split they would take the one chunk that a thread takes alone, and gain nothing for few rows.
"""


@dataclass
class Compiled:
    """A program for the matrix unit. ``config``: the machine; ``run`` runs it whole on a chip of that kind."""

    program: Program
    config: MatrixUnitConfig
    lowering: Lowering = field(repr=False)
    last: MachineReport | None = field(default=None, repr=False)

    @property
    def listing(self) -> str:
        """The schedule, the tables, and every layer with the programs it starts."""
        return listing(self.lowering)

    @property
    def schedule(self) -> str:
        """Every layer with the elements that work on it, what it reads and writes, and what moves to L2 and from it."""
        return schedule(self.lowering)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer with its cycles and counts: of the last run, else as :meth:`estimate` finds them."""
        return (self.last or self.estimate()).layers

    def estimate(self, watch: Watch | None = None) -> MachineReport:
        """Cycles and counts, which no value changes: a run on zeros with the products left out."""
        config, values = replace(self.config, values=False), self.lowering.reading.block.arguments
        self.last = self._execute([np.zeros(v.sizes, array_dtype(v)) for v in values], config, False, watch).report()
        return self.last

    def l2_plan(self, *l2_bytes: int) -> tuple[L2Plan, ...]:
        """What stands in L2 and when: for each of these sizes of it, or for the machine's own. Nothing is run."""
        sizes = bytes_of(self.lowering)
        return tuple(l2_plan(self.lowering, sizes, int(size * SHARE)) for size in l2_bytes or (self.config.l2_bytes,))

    def run(self, *args: Any, verify: bool = False, watch: Watch | None = None, **kwargs: Any) -> Any:
        """(outputs, :class:`MachineReport`): the function's outputs as it returns them, as numpy arrays.

        ``args``: as for the function that was compiled; the flat arrays for a program from a file. ``verify`` holds
        every layer against XLA, as :meth:`check` does. ``watch(done, all, name)`` is called before every layer.
        """
        execution = self._execute(self._flat(args, kwargs), self.config, verify, watch)
        outputs = [execution.value(value) for value in self.lowering.reading.results]
        signature = self.program.signature
        self.last = report = execution.report()
        return (tuple(outputs) if signature is None else signature.result(outputs)), report

    def check(self, *args: Any, **kwargs: Any) -> MachineReport:
        """Run it and hold every layer against XLA on the machine's own inputs of that layer.

        Integers must be equal, and floats as near, element by element, as rounding allows (``rounding.py``). Raises
        :class:`CheckFailed` that names the first layer that disagrees, and where.

        Without arguments: the example its file has, else random ones.
        """
        watch = kwargs.pop("watch", None)
        self.last = self._execute(self._given(args, kwargs), self.config, True, watch).report()
        return self.last

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write it as one file that ``isa.load_bundle`` and ``tilewright isa run`` run, with these arguments in it.

        Without arguments: as for :meth:`check`.
        """
        file = io.BytesIO()
        data = {"version": VERSION, "config": asdict(self.config), "program": self.program.text}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("bundle.json", json.dumps(data))
            for number, array in enumerate(self._given(args, kwargs)):
                archive.writestr(f"argument {number}", np.ascontiguousarray(array).tobytes())
        write_whole(path, file.getvalue())

    def _given(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Array]:
        if args or kwargs or not self.lowering.reading.block.arguments:
            return self._flat(args, kwargs)
        return checked_arguments(self.lowering, sample_arrays(self.program))

    def _flat(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Array]:
        signature = self.program.signature
        if signature is None:
            if kwargs:
                raise UsageError("a program from a file takes no named arguments")
            return checked_arguments(self.lowering, args)
        return checked_arguments(self.lowering, signature.flat(args, kwargs))

    def _execute(
        self, arguments: Sequence[Array], config: MatrixUnitConfig, verify: bool = False, watch: Watch | None = None
    ) -> Execution:
        execution, steps = Execution(self.lowering, config), self.lowering.steps
        execution.begin(arguments)
        for number, step in enumerate(steps):
            if watch is not None:
                watch(number, len(steps), step.name)
            execution.step(number, (lambda step: check_step(execution, step)) if verify else None)
            last = execution.layers[-1]
            if last.errors and config.values:
                raise CheckFailed(f"layer {step.name}: {len(last.errors)} error records: {last.errors[0]}")
        return execution


def compile(program_or_fn: Any, *args: Any, config: MatrixUnitConfig | None = None) -> Compiled:
    """A JAX function (traced on ``args``), a :class:`tilewright.hlo.Program` or StableHLO text for this machine.

    Products and convolutions become programs of ``mm``, work on elements vector programs, what only moves elements
    copies where memory has another order. What the machine has no program for is left to XLA, and says why in
    ``layers[i].fallback``. ``args`` are arrays or ``jax.ShapeDtypeStruct``. ``config``: the machine; without one, one
    with ``kb_mode="chunk"``, where threads that share a dot product take a chunk of A each.

    >>> import numpy as np
    >>> x = np.ones((2, 3), np.float32)
    >>> compile(lambda x, y: x @ y.T, x, x).run(x, x)[0].tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    config = WHOLE_MODELS if config is None else checked_config(config)
    if isinstance(program_or_fn, Program):
        program = program_or_fn
    elif callable(program_or_fn):
        program = from_jax(program_or_fn, *args)
    elif isinstance(program_or_fn, str):
        program = load(program_or_fn)
    else:
        kind = type(program_or_fn).__name__
        raise UsageError(f"a {kind} to compile", how="give a function, a Program, or StableHLO text")
    return Compiled(program, config, lower(operations_of(program), config, apart=program.signature is None))


@dataclass
class Bundle:
    """A compiled model read from a file: ``compiled`` anew, with the ``arguments`` it was saved with."""

    compiled: Compiled
    arguments: list[Array]

    @property
    def config(self) -> MatrixUnitConfig:
        """The machine."""
        return self.compiled.config

    def run(self, arguments: Mapping[int, Any] | None = None) -> tuple[tuple[Array, ...], MachineReport]:
        """(results, report) with the file's own arguments, those given by number taking their places."""
        arrays: dict[int, Any] = dict(enumerate(self.arguments)) | dict(arguments or {})
        if len(arrays) > len(self.arguments):
            raise UsageError(f"no argument {max(arrays)}: the program has {len(self.arguments)}")
        results, report = self.compiled.run(*arrays.values())
        return tuple(results), report


@dataclass
class _Content:
    """``bundle.json``, its types checked."""

    version: int
    config: dict[str, Any]
    program: str


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
            data = typed(value, _Content, where)
            known = {f.name for f in fields(MatrixUnitConfig)}  # fields of other versions are left out
            own: dict[str, Any] = {
                key: tuple(v) if isinstance(v, list) else v for key, v in data.config.items() if key in known
            }
            compiled = compile(load(data.program.encode()), config=MatrixUnitConfig(**own))
            if (size := sum(bytes_of(compiled.lowering).values())) > _MOST_MEMORY:
                raise UsageError(f"its tables take {size} bytes, and {_MOST_MEMORY} is the most that is simulated")
            taken = enumerate(compiled.lowering.reading.block.arguments)
            arrays = [np.frombuffer(archive.read(f"argument {n}"), array_dtype(v)).reshape(v.sizes) for n, v in taken]
    except TilewrightError as error:
        raise UsageError(error.what, where=where, how=error.how) from None
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"not a compiled model: {error}", where=where) from None
    return Bundle(compiled, arrays)
