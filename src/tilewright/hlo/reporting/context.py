"""What every part of the report asks of a program: layouts, paths, source lines, runs, cores, places of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tilewright.errors import ParseError, TilewrightError, UnsupportedError
from tilewright.hlo.cost import array_layout, place
from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.reporting.runs import Runs, count_runs
from tilewright.layout import TensorLayout, TupleLayout, parse
from tilewright.targets import Target

_LONGEST_PATH = 16
_TPU_REGISTER = 8 * 128 * 4
_THREAD = re.compile(r"\b(sparsecore|host)\b")
_COMPUTE_TYPE = re.compile(r'_xla_compute_type"?\s*=\s*"(\w+)"')
_OFFLOADED = {"sparse": "sparsecore", "sparseoffload": "sparsecore", "host": "host"}


class Context:
    """One program under one target."""

    def __init__(self, program: Program, chip: Target | None) -> None:
        self.program, self.chip = program, chip
        self.predicted = program.kind == "stablehlo"
        self.tiled = False
        self.unsized: set[str] = set()
        self.by_name = {computation.name: computation for computation in program.computations}
        self.runs, self.unknown_loops = count_runs(program)
        self._paths: dict[str, tuple[str, ...]] = {}
        self._sources: dict[str, str] = {}
        self._texts: dict[int, tuple[TensorLayout, str]] = {}
        self._cores: dict[str, str] = {}
        self._lines = program.text.split("\n") if self.predicted and "_xla_compute_type" in program.text else []
        self._marked = self.predicted or any(word in program.text for word in ("sparse", "_xla_compute_type", "host"))

    def layout(self, shape: str) -> TensorLayout | None:
        """Where an array lives; None for what is no array (tuples, tokens) or has no size."""
        if shape.startswith(("(", "token", "opaque", "b(")):
            return None
        layout = array_layout(shape)
        if "?" in shape:
            self.unsized.add(shape)
            return None
        if self.predicted and self.chip is not None:
            layout = place(layout.shape, layout.dtype, self.chip)
        self.tiled = self.tiled or bool(layout.tiles)
        return layout

    def layouts(self, shape: str) -> list[TensorLayout]:
        """Every array in a shape, those of a tuple one after the other."""
        return [layout for text in array_shapes(shape) if (layout := self.layout(text)) is not None]

    def text(self, layout: TensorLayout) -> str:
        """``str(layout)``, remembered by identity: a program has far fewer layouts than places where they are named."""
        if id(layout) not in self._texts:
            self._texts[id(layout)] = (layout, str(layout))
        return self._texts[id(layout)][1]

    @property
    def register_bytes(self) -> int | None:
        """Bytes of one vector register: the target's, a TPU's for a dump with tiles, None for linear memory."""
        if self.chip is not None and self.chip.vector is not None:
            return self.chip.vector.register_bytes
        return _TPU_REGISTER if self.tiled and not self.predicted else None

    def registers(self, layouts: Sequence[TensorLayout]) -> int | None:
        """Vector registers that arrays fill, padding included."""
        size = self.register_bytes
        return None if size is None else sum(-(-layout.size_bytes // size) for layout in layouts)

    def runs_of(self, computation: str) -> Runs:
        """How often a computation runs."""
        return self.runs[computation]

    def path(self, computation: str) -> str:
        """The computations from the entry to this one by first callers; the middle of a very long chain is left out."""
        for name in reversed(self._open_chain(computation, self._paths)):
            calls = self.program.callers[name]
            outer = self._paths.get(calls[0][0], ()) if calls else ()
            whole = (*outer, name)
            self._paths[name] = whole if len(whole) <= _LONGEST_PATH else (*whole[:8], "...", *whole[-7:])
        return " > ".join(self._paths[computation])

    def source(self, computation: str, op: Operation) -> str:
        """The operation's own line, or that of the nearest caller that has one."""
        if op.source is not None:
            return str(op.source)
        for name in reversed(self._open_chain(computation, self._sources)):
            calls = self.program.callers[name]
            caller = calls[0] if calls else None
            found = "" if caller is None else str(caller[1].source or "") or self._sources.get(caller[0], "")
            self._sources[name] = found
        return self._sources[computation]

    def _open_chain(self, computation: str, known: Mapping[str, object]) -> list[str]:
        """This computation and its first callers, inner first, up to one that is known (or to a circle's end)."""
        chain: dict[str, None] = {}
        while computation not in known and computation not in chain:
            chain[computation] = None
            calls = self.program.callers[computation]
            if not calls:
                break
            computation = calls[0][0]
        return list(chain)

    def core(self, computation: str, op: Operation) -> str:
        """ "sparsecore" or "host" where the operation, or what calls its computation, is offloaded, else ""."""
        if not self._marked:
            return ""
        return self._mark(op) or self._core_of(computation)

    def _core_of(self, computation: str) -> str:
        """What the nearest marked caller says."""
        for name in reversed(self._open_chain(computation, self._cores)):
            calls = self.program.callers[name]
            self._cores[name] = (self._mark(calls[0][1]) or self._cores.get(calls[0][0], "")) if calls else ""
        return self._cores[computation]

    def _mark(self, op: Operation) -> str:
        """Where this operation says it runs."""
        if self.predicted:
            line = self._lines[op.line - 1] if self._lines else ""
            kind = _COMPUTE_TYPE.search(line.replace(" ", ""))
            return _OFFLOADED.get(kind[1], "") if kind else ""
        if thread := _THREAD.search(op.attributes.get("async_execution_thread", "")):
            return thread[1]
        if kind := _COMPUTE_TYPE.search(op.attributes.get("frontend_attributes", "")):
            return _OFFLOADED.get(kind[1], "")
        return "sparsecore" if '"sparse_core_config"' in op.attributes.get("backend_config", "") else ""

    def at(self, op: Operation, error: TilewrightError) -> TilewrightError:
        """An error of a shape at its column, any other at its operation's line; what is unsupported stays so."""
        if isinstance(error, UnsupportedError):
            return error
        text, start = self.program.text, 0
        for _ in range(op.line - 1):
            start = text.find("\n", start) + 1
        if isinstance(error, ParseError) and (found := text.find(error.text, start)) >= 0:
            start = found + error.column
        return ParseError(f"{op.opcode} {op.name}: {error.what}", text=text, column=start, how=error.how)

    def body(self, op: Operation) -> Computation | None:
        """The one computation a fusion calls."""
        return self.by_name[op.calls[0]] if len(op.calls) == 1 else None


@lru_cache(maxsize=4096)
def array_shapes(shape: str) -> tuple[str, ...]:
    """The arrays in a shape's text, nested tuples flattened; tokens and opaque values left out.

    >>> array_shapes("((f32[4,2]{1,0}), f32[2]{0:S(1)}, token[])")
    ('f32[4,2]{1,0}', 'f32[2]{0:S(1)}')
    """
    if not shape.startswith("("):
        return () if shape.startswith(("token", "opaque")) else (shape,)
    whole = parse(shape)
    return tuple(_flat(whole)) if isinstance(whole, TupleLayout) else ()


def _flat(layout: TupleLayout) -> list[str]:
    found: list[str] = []
    for element in layout.elements:
        if isinstance(element, TupleLayout):
            found += _flat(element)
        elif isinstance(element, TensorLayout) and element.dtype not in ("token", "opaque"):
            found.append(str(element))
    return found
