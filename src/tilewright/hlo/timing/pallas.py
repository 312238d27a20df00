"""How long a Pallas kernel takes: each step the longest of what it brings in, what it computes and what it takes out.

A step's computation is as long as its busiest unit: the matrix unit by passes, the slots for vector arithmetic, loads,
stores and transcendentals, and beside them what crosses lanes. The cycles are fitted on one half of a public library's
kernels, in cycles of the chip's clock, the same for all chips ([time.pallas] of a target).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilewright.hlo.opcodes import TRANSCENDENTAL
from tilewright.hlo.reading.kernel import Kernel, Moment, Part
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.work import REGISTER
from tilewright.targets import TimeConstants

_HLO_NAMES = {"exp": "exponential", "exp2": "exponential", "divf": "divide", "powf": "power", "log2": "log"}
_HLO_NAMES |= {"sin": "sine", "cos": "cosine", "log1p": "log-plus-one", "expm1": "exponential-minus-one"}
_HLO_NAMES |= {"reciprocal": "divide"}
_CONVERTS = frozenset({"truncf", "extf", "sitofp", "uitofp", "fptosi", "fptoui"})
_REDUCES = frozenset({"multi_reduction", "reduction", "all_reduce"})
_CROSSES = frozenset({"concatenate", "dynamic_gather", "rotate", "dynamic_rotate", "repeat"})
_NOTHING = frozenset({"bitcast", "extui", "extract", "reshape", "shape_cast", "extract_strided_slice"})
_INTEGERS = ("i32", "i16", "i1")


@dataclass(frozen=True)
class Step:
    """Steps that are alike: microseconds of one, by unit and of its transfers, and how long it is in the pipeline."""

    moment: Moment
    units: Mapping[str, float]  # matrix, vector, loads, stores, transcendental, lanes
    moved_us: float
    us: float
    bound: str


@dataclass(frozen=True)
class Pipeline:
    """One run of a kernel: microseconds, what it waits for, megabytes through HBM, its kinds of steps."""

    us: float
    bound: str
    megabytes: float
    steps: tuple[Step, ...]

    def by_bound(self) -> dict[str, float]:
        """Microseconds by what bounds them, the most first."""
        sums: Counter[str] = Counter()
        for step in self.steps:
            sums[step.bound] += step.us * step.moment.times  # type: ignore[assignment]
        return dict(sums.most_common())

    def core_us(self) -> tuple[float, float]:
        """Microseconds of the matrix unit, and of the other units of the core, over all steps."""
        matrix = sum(step.units.get("matrix", 0.0) * step.moment.times for step in self.steps)
        others = (_beside(s.units) + s.units.get("lanes", 0.0) for s in self.steps)
        return matrix, sum(us * step.moment.times for us, step in zip(others, self.steps))


def _beside(units: Mapping[str, float]) -> float:
    """Of the units that work at once beside the matrix unit the busiest; what crosses lanes comes on top."""
    return max((us for unit, us in units.items() if unit not in ("matrix", "lanes")), default=0.0)


def pipeline(chip: Chip, kernel: Kernel, near: Collection[int] = ()) -> Pipeline:
    """The pipeline of one run; ``near``: numbers of the arrays that lie in vector memory already.

    Two cores that are one device share the steps of a grid with a parallel dim; without one, one core does all.
    """
    constants = chip["pallas"]
    cores = round(chip.kernel["cores"])
    shared = any(word == "parallel" and size > 1 for word, size in zip(kernel.semantics, kernel.grid))
    split = max(1.0, cores / kernel.uneven) if shared else 1.0
    units = [_units(chip, constants, part, cores) for part in kernel.parts]
    steps, far_all = [], 0.0
    for moment in kernel.moments:
        asked: Counter[str] = Counter()
        for number, runs in moment.parts:
            for unit, us in units[number].items():
                asked[unit] += us * runs / split  # type: ignore[assignment]
        far = sum(megabytes for operand, megabytes, _ in moment.moved if operand not in near)
        beside = sum(megabytes for operand, megabytes, _ in moment.moved if operand in near)
        moved = chip.stream_us(far, constants["hbm"]) + beside / chip.kernel["near_mb_per_us"]
        count = sum(transfers for _, _, transfers in moment.moved)
        lanes, vector = asked["lanes"], _beside(asked)
        matrix = asked["matrix"]
        core = max(matrix, vector) + constants["not_hidden"] * min(matrix, vector) + lanes
        start = count * constants["transfer_us"] + (constants["alone_us"] if moment.alone else constants["step_us"])
        start /= 1 if moment.alone else split
        us = max(core, moved) + constants["beside"] * min(core, moved) + start
        parts = {"matrix": matrix, "vector": max(vector + lanes, core - matrix if vector > matrix else 0.0)}
        parts |= {"hbm" if far >= beside else "vmem": moved, "latency": start}
        steps.append(Step(moment, dict(asked), moved, us, max(parts, key=lambda unit: parts[unit])))
        far_all += far * moment.times
    whole = Pipeline(constants["launch_us"] + sum(s.us * s.moment.times for s in steps), "", far_all, tuple(steps))
    return Pipeline(whole.us, next(iter(whole.by_bound()), "latency"), far_all, whole.steps)


def _units(chip: Chip, constants: TimeConstants, part: Part, cores: int) -> dict[str, float]:
    """Microseconds of one core's units for one run of a part."""
    kernel = chip.kernel
    side, us = int(kernel["side"]), 1e-3 / kernel["ghz"]
    cycles: Counter[str] = Counter()

    def add(unit: str, count: float) -> None:
        cycles[unit] += count  # type: ignore[assignment]

    for (batch, rows, columns, depth, kind), count in part.products.items():
        squares = count * batch * -(-depth // side) * -(-columns // side)
        once = max(-(-rows // 8) * 8, side * constants["fill"]) / kernel["rows_per_cycle"] / kernel["units"] * cores
        quick = chip.matrix_peaks.get(matrix_kind(kind), 0.0) / (chip.matrix_peaks.get("bf16", 0.0) or 1.0)
        once *= constants["f32_passes"] if kind == "f32" else 1 / max(1.0, quick)
        add("matrix", squares * once / constants["efficiency"] / kernel["efficiency"])
    for (name, kind), elements in part.elements.items():
        packed = 0.5 if kind in ("bf16", "f16", "i16") else 0.25 if kind.startswith(("f8", "i8")) else 1.0
        registers = elements / REGISTER * packed
        special = TRANSCENDENTAL.get(_HLO_NAMES.get(name, name), 0)
        if "load" in name:
            add("loads", registers / constants["loads"])
        elif "store" in name:
            add("stores", registers / constants["stores"])
        elif special:
            add("transcendental", registers * min(special, 4) / constants["transcendentals"])
            add("vector", registers * constants["special_ops"] / constants["slots"])
        elif name in _CROSSES:
            add("lanes", registers * constants["cross_cycles"])
        elif name not in _NOTHING:
            each = constants["integer_ops"] if kind in _INTEGERS else 1.0
            each = constants["convert_ops"] if name in _CONVERTS else each
            each = constants["broadcast_ops"] if name == "broadcast" else each
            each = constants["reduce_ops"] if name in _REDUCES else each
            add("vector", registers * (0.1 if name == "iota" else each) / constants["slots"])
    add("lanes", part.turned / REGISTER * constants["turn_cycles"])
    return {unit: count * us for unit, count in cycles.items() if count}


def matrix_kind(kind: str) -> str:
    """The type by which the matrix unit's peak is told: int8, fp8 or bf16."""
    return "int8" if kind in ("i8", "i4") else "fp8" if kind.startswith("f8") else "bf16"
