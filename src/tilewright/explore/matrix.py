"""What the page asks about a matrix-unit program: the machine after so many instructions, and what the last one did."""

from __future__ import annotations

import json
import re
from operator import ne
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.explore.worker import Question
from tilewright.isa import Debugger, MatrixUnitConfig
from tilewright.layout import TensorLayout, parse
from tilewright.layout.index.types import dtype_name

_MOST_STEPS = 200_000
_MOST_LINES = 2000
_MOST_ELEMENTS = 1 << 20
_THREADS = 8
_REGISTERS = 48
_SIDE = 16

#: One tensor a line: its name, its type and shape, what it begins with.
_TENSOR = re.compile(r"([A-Za-z_]\w*)\s*=\s*([^\s]+)(?:\s+(iota|zeros|ones))?")


class _Stepped:
    """A machine that can go on; going back starts it anew."""

    def __init__(self, text: str, memory: dict[str, Any], config: MatrixUnitConfig) -> None:
        self.debugger = Debugger(text, memory, config)
        self.steps = 0
        self.before: dict[str, Any] = {}
        self.names = list(memory)

    def to(self, steps: int) -> None:
        """After ``steps`` instructions; remembers what things were like before the last one."""
        if steps - self.steps > 1:
            self._go(steps - 1 - self.steps)
        if steps > self.steps:
            self.before = self.look()
            self._go(1)

    def _go(self, steps: int) -> None:
        if steps > 0 and not self.debugger.done:
            before = self.debugger.pe.executed
            self.debugger.command(f"step {steps}")
            self.steps += self.debugger.pe.executed - before

    def look(self) -> dict[str, Any]:
        pe = self.debugger.pe
        return {
            "r": pe.registers[:_THREADS].copy(),
            "p": pe.predicates[:_THREADS].copy(),
            "ur": list(pe.uniform),
            "lines": {name: list(cache.lines()) for name, cache in (("L1", pe.l1), ("L2", pe.chip.l2))},
            "counts": {**pe.counts.to_dict(), **pe.traffic.to_dict()},
            "tensors": {name: np.array(self.debugger.result().tensor(name)) for name in self.names},
            "cycles": pe.clock.cycles,
        }


_machine: tuple[str, _Stepped] | None = None


def matrix(asked: Question) -> dict[str, Any]:
    """The machine that runs ``program`` on ``tensors``, after ``step`` instructions."""
    global _machine
    text, tensors, settings = asked.text("program", 200_000), asked.text("tensors"), asked.text("settings", 2000)
    if not text.strip():
        raise UsageError("no program: type one, or load the example")
    key = json.dumps([text, tensors, settings])
    wanted = asked.number("step", 0, most=_MOST_STEPS)
    if _machine is None or _machine[0] != key or _machine[1].steps > wanted:
        _machine = None
        words = settings.replace(",", " ").split()
        if any(word.startswith("pes=") for word in words):
            raise UsageError("one processing element is shown", how="leave pes out")
        config = MatrixUnitConfig.from_settings(words, max_instructions=_MOST_STEPS)
        _machine = key, _Stepped(text, _tensors(tensors), config)
    stepped = _machine[1]
    stepped.to(wanted)
    return _state(stepped)


def _tensors(text: str) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _TENSOR.fullmatch(line.strip())
        if match is None:
            raise UsageError(f"not a tensor: {line.strip()[:60]!r}", how="write NAME = s8[4,4] iota (or zeros, ones)")
        layout = parse(match[2])
        if not isinstance(layout, TensorLayout):
            raise UsageError(f"{match[2][:60]} is a tuple", where=match[1])
        layout.require_static()
        if layout.num_elements > _MOST_ELEMENTS:
            raise UsageError(f"more than {_MOST_ELEMENTS:,} elements", where=match[1])
        count = layout.num_elements
        flat = {"iota": np.arange(count), "ones": np.ones(count)}.get(match[3], np.zeros(count))
        arrays[match[1]] = flat.astype(layout.numpy_dtype).reshape(layout.shape)
    if sum(array.size for array in arrays.values()) > _MOST_ELEMENTS:
        raise UsageError(f"more than {_MOST_ELEMENTS:,} elements together")
    return arrays


def _state(stepped: _Stepped) -> dict[str, Any]:
    debugger, pe, now, before = stepped.debugger, stepped.debugger.pe, stepped.look(), stepped.before
    ended, counted = debugger.done or pe.halted, before.get("counts", {})
    labels: dict[int, list[str]] = {}
    for label, pc in debugger.program.labels:
        labels.setdefault(pc, []).append(label)
    rows = enumerate(debugger.program.instructions[:_MOST_LINES])
    said = None if ended else debugger.answer("explain").value
    caches = [_cache(name, now["lines"][name], before.get("lines", {}).get(name, [])) for name in ("L1", "L2")]
    return {
        "step": stepped.steps,
        "done": ended,
        "says": debugger.where() if ended else "",
        "stopped": debugger.stopped,
        "errors": [str(error) for error in pe.errors[:20]],
        "pc": None if ended else pe.pc,
        "cycles": now["cycles"],
        "took": now["cycles"] - before.get("cycles", 0),
        "listing": [{"pc": pc, "text": str(it), "line": it.line, "labels": labels.get(pc, [])} for pc, it in rows],
        "next": list(said["says"]) if said else [],
        "waits": debugger.answer("print tokens").value["waits"],
        "threads": min(_THREADS, pe.config.threads),
        "registers": _registers(now, before),
        "caches": caches,
        "counts": [(key.replace("_", " "), n, n - counted.get(key, 0)) for key, n in now["counts"].items() if n],
        "tensors": [_tensor(name, now["tensors"][name], before.get("tensors", {}).get(name)) for name in stepped.names],
    }


def _registers(now: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """Registers that hold something or have just changed, those first."""
    found = list[tuple[str, list[int], list[int]]]()
    for kind in ("r", "p"):
        values, old = now[kind], before.get(kind, np.zeros_like(now[kind]))
        for number in np.flatnonzero(old.any(axis=0) | values.any(axis=0))[: 4 * _REGISTERS]:
            here, was = (side[:, number].astype(int).tolist() for side in (values, old))
            found.append((f"{kind}{number}", here, was))
    uniform = zip(now["ur"], before.get("ur", [0] * len(now["ur"])), strict=True)
    found += [(f"ur{number}", [value], [was]) for number, (value, was) in enumerate(uniform) if value or was]
    rows = [{"name": name, "values": here, "changed": list(map(ne, here, was))} for name, here, was in found]
    rows.sort(key=lambda row: not any(row["changed"]))
    return rows[:_REGISTERS]


def _cache(name: str, lines: list[tuple[int, int]], before: list[tuple[int, int]]) -> dict[str, Any]:
    old = {line for _, line in before}
    held = [{"line": line, "kept": bool(kept), "new": line not in old} for kept, line in lines]
    here = {line for _, line in lines}
    return {"name": name, "count": len(lines), "lines": held[-64:], "gone": sorted(old - here)[:16]}


def _tensor(name: str, values: Any, before: Any) -> dict[str, Any]:
    """A tensor's first rows and columns (of the first two dims from the right), and which have changed."""
    array = np.atleast_2d(values)
    corner = array[(0,) * (array.ndim - 2)][:_SIDE, :_SIDE]
    old = corner if before is None else np.atleast_2d(before)[(0,) * (array.ndim - 2)][:_SIDE, :_SIDE]
    whole_numbers = array.dtype.kind in "biu"
    shown = [[str(int(value)) if whole_numbers else f"{float(value):g}" for value in row] for row in corner]
    whole = "" if corner.size == array.size else f", its first {corner.shape[0]} by {corner.shape[1]}"
    shape = f"{dtype_name(values.dtype)}[{','.join(map(str, values.shape))}]{whole}"
    return {"name": name, "shape": shape, "values": shown, "changed": (corner != old).tolist()}
