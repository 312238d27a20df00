"""Fit the constants of kernels on whole functions that were timed, and say how far off the model is on the others.

    python benchmarks/calibrate_kernels.py FOLDER [--only WORD] [--write]

FOLDER holds ``rows.jsonl.gz`` (a JSON object a line: ``id``, ``chip``, ``op``, ``ms``, the profiler's device time, and
``peak_mb``, its peak of memory) and ``ID.hlo``, the scheduled module of each, as a TPU compiler made it ahead of time.
Where ``ID.mem.json`` holds the compiler's ``peak_memory_in_bytes``, a row whose peak is another one was compiled
otherwise when it was timed: it is judged apart. Beside them stand the measured passes of gpt2
(benchmarks/data/tpu_measured). Rows of one family (``op`` and number, without the variant) are either all fitted or all
held back, by a hash.

Every kernel is counted once by the model itself (``Schedule``), with probing constants that show one class of work at a
time, as work is linear in them. What the units take is then fitted: the logarithm of a program's time, misses counted
by their size. A fit begins at the constants that stand, and priors keep it near them where rows say nothing. ``--only``
fits those whose name holds a word (a chip, a constant: "tpu-v4", "call_us"), and leaves the others as they stand.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import measured_times
import numpy as np
from calibrate_time import file_of, section_text, write
from scipy.optimize import least_squares

from tilewright.errors import TilewrightError
from tilewright.hlo import load
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.row import NOT_HIDDEN, Run
from tilewright.hlo.timing.scheduled import Schedule
from tilewright.hlo.timing.work import COMMON, FIRST_WINDOW, HBM, NEAR, SCALAR_MB, Work
from tilewright.targets import TimeConstants, target
from tilewright.targets.chips import TIME, common_time

SHARED = {
    **dict.fromkeys(("narrow_ops", "convert_ops", "repeat_ops", "cut_ops", "move_ops", "sum_ops"), 0.4),
    "transcendental_ops": 0.4,
    "restreamed": 0.3,
    "vector_cycles": 0.3,
    "rotation_cycles": 0.4,
    "near_kb_a_cycle": 0.15,
    "step_kcycles": 0.5,
}
"""What all chips have in common, and how far off what stands may be (as a logarithm)."""
OWN = {"near_launch_us": 0.4, "hbm_us": 0.4, "scalar_us": 0.3, "efficiency": 0.05, "hbm": 0.05, "call_us": 0.4}
"""What every chip has for itself: the start of a kernel, what HBM adds to it, the shares of both peaks, and what a call
costs beside its kernels, which only whole models have in their times."""
CLASSES = ("narrow_ops", "convert_ops", "repeat_ops", "cut_ops", "move_ops", "sum_ops", "transcendental_ops")
COLUMNS = ("runs", "matrix", "far", "again", "near", "common", "plain", *CLASSES, "special", "turned", "rows")
COLUMNS += ("elements", "windows", "scalar", "link", "apart", "least")
MODEL = "gpt2"
MODELS = 2.0
"""Weight of a whole model against one function, which it has dozens of."""
FEW = {"tpu-v5e"}
"""Chips of which one op alone was timed."""
CALLED = {"tpu-v5p": "tpu-v4", "tpu-7x": "tpu-v6e"}
"""Chips of which no whole model was timed, and the one whose calls theirs are taken to be like."""
ALIKE = 0.02
"""How far the peak of memory of a module may be from that of what was timed."""
MOST = 0.98
"""The most of a peak that any kernel is taken to reach."""
STILL = 1e-6
"""How far a constant may move that is not fitted (as a logarithm)."""
PRIOR = 0.05
"""Weight of a prior against one row."""
SOFT = 0.05
"""Misses above this share count by their size, not by their square."""


@dataclass
class Counted:
    """One timed function: its name, chip and microseconds, what its kernels ask, and what is not fitted (stalls)."""

    name: str
    chip: str
    wanted: float
    kernels: np.ndarray = field(default_factory=lambda: np.zeros((0, len(COLUMNS))))
    other: float = 0.0
    lacking: str = ""
    as_timed: bool = True  # whether its peak of memory is that of the module that was timed

    @property
    def impossible(self) -> bool:
        """Whether its module cannot be what was timed: it passes more bytes than HBM can in that time."""
        least = self.kernels[:, COLUMNS.index("least")] * self.kernels[:, COLUMNS.index("runs")]
        return bool(least.sum() > self.wanted)

    @property
    def op(self) -> str:
        return self.name.split(".")[1]

    @property
    def held_back(self) -> bool:
        family = self.name.split(".", 1)[1].rpartition(".")[0]
        return bool(hashlib.sha256(family.encode()).digest()[0] % 2)


class _Counting(Schedule):
    """A schedule that writes down what its kernels ask."""

    def _priced(self, op: Operation, name: str, work: Work) -> Run:
        run = super()._priced(op, name, work)
        self.asked.append((self.place[1], work, run.us))
        return run


def counted(item: tuple[str, str, float, str]) -> Counted:
    """What a function's kernels ask, class by class."""
    name, chip_name, wanted, text = item
    row = Counted(name, chip_name, wanted)
    chip = chip_of(target(chip_name))
    try:
        program = load(text)
        whole = _asked(program, chip, {})
        plain = _asked(program, chip, dict.fromkeys(CLASSES, 0.0))
        classes = [_asked(program, chip, {**dict.fromkeys(CLASSES, 0.0), one: 1.0}) for one in CLASSES]
    except TilewrightError as error:
        row.lacking = str(error)
        return row
    lines = []
    for k, (runs, work, _) in enumerate(plain[1]):
        far, near, common = (work.moved[memory] for memory in (HBM, NEAR, COMMON))
        each = [run[1][k][1].registers - work.registers for run in classes]
        lines.append(
            (
                *(runs, work.matrix_us * chip.kernel["efficiency"], far, work.again, near, common),
                *(work.registers, *each, work.transcendental, work.rotations, work.rows, work.elements),
                *(work.steps + 1, work.scalar and far < SCALAR_MB, work.link_us, work.apart_us),
                1e12 * far / chip.hbm_peak,
            )
        )
    row.kernels = np.array(lines, float).reshape(-1, len(COLUMNS))
    row.other = whole[0] - sum(runs * us for runs, _, us in whole[1])
    return row


def _asked(program, chip: Chip, values: Mapping[str, float]) -> tuple[float, list[tuple[int, Work, float]]]:
    kernel = replace(chip.kernel, values=MappingProxyType({**chip.kernel.values, **values}))
    probing = replace(chip, mechanisms=MappingProxyType({**chip.mechanisms, "kernel": kernel}))
    schedule = _Counting(Context(program, target(chip.machine.name)), probing)
    schedule.asked = []
    schedule.run(program.entry, 1)
    return schedule.now, schedule.asked


def _same_peak(line: Mapping[str, object], module: Path) -> bool:
    """Whether a module's peak of memory is that of what was timed, within 2 %; where nothing is known of it, yes."""
    said, timed = module.with_suffix(".mem.json"), line.get("peak_mb")
    if not timed or not said.exists():
        return True
    peak = json.loads(said.read_text()).get("peak_memory_in_bytes", 0) / 1e6
    return not peak or abs(peak / float(str(timed)) - 1) < ALIKE


def rows_of(folder: Path) -> list[Counted]:
    """All timed functions that have a module, and the passes of gpt2 with what their calls cost."""
    items, otherwise = [], set[str]()
    with gzip.open(folder / "rows.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            module = folder / f"{line['id']}.hlo"
            if module.exists() and not line["op"].startswith("pallas") and line["ms"] > 0:
                items.append((line["id"], line["chip"], 1e3 * line["ms"], module.read_text()))
                if not _same_peak(line, module):
                    otherwise.add(line["id"])
    for point in measured_times.gpt2():
        if point.dump:
            name = f"{point.chip[4:]}.gpt2.{point.sequence}.{point.batch}"
            items.append((name, point.chip, 1e3 * point.milliseconds, point.dump))
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(counted, items, chunksize=4))
    for row in rows:
        row.as_timed = row.name not in otherwise
    return rows


def standing(chip: str) -> dict[str, float]:
    """What stands in a chip's file under the names of ``SHARED`` and ``OWN``: where a fit begins, and its priors."""
    found = chip_of(target(chip))
    kernel, cycle = found.kernel, 1 / found.kernel["ghz"] / found.kernel["cores"]
    return {
        **kernel.values,
        "vector_cycles": kernel["vector_ns"] / cycle,
        "rotation_cycles": kernel["rotation_ns"] / cycle,
        "near_kb_a_cycle": kernel["near_mb_per_us"] * cycle,
        "step_kcycles": kernel["step_us"] * kernel["ghz"],
        "hbm_us": kernel["launch_us"] - kernel["near_launch_us"],
        "hbm": kernel["mb_per_us"] / (found.hbm_peak / 1e12),
    }


class Fit:
    """All kernels of many functions as one table, and what the model makes of it under other constants."""

    def __init__(self, rows: Sequence[Counted], only: str = "") -> None:
        self.rows, self.chips = rows, sorted({row.chip for row in rows})
        self.table = dict(zip(COLUMNS, np.concatenate([row.kernels for row in rows]).T))
        self.row = np.repeat(np.arange(len(rows)), [len(row.kernels) for row in rows])
        which = np.array([self.chips.index(row.chip) for row in rows])
        self.chip = which[self.row]
        self.wanted = np.array([row.wanted for row in rows])
        self.other = np.array([row.other for row in rows])
        self.of, self.calls = which, np.array([row.op == MODEL for row in rows])
        self.names = [*SHARED, *(f"{name} {chip}" for chip in self.chips for name in OWN)]
        self.loose = np.array([*SHARED.values(), *(list(OWN.values()) * len(self.chips))])
        own = [standing(chip) for chip in self.chips]
        self.first = np.array([*(own[0][name] for name in SHARED), *(found[name] for found in own for name in OWN)])
        self.free = np.array([only in name for name in self.names])

    def constants(self, chip: str, values: np.ndarray) -> dict[str, float]:
        """The constants of one chip's kernels, those that all chips have in common included."""
        found = dict(zip(self.names, map(float, values)))
        old, hbm = chip_of(target(chip)).kernel, chip_of(target(chip)).hbm_peak / 1e12
        cycle = 1 / old["ghz"] / old["cores"]
        own = {name: found[f"{name} {chip}"] for name in OWN}
        made = {name: found[name] for name in (*CLASSES, "restreamed")}
        made |= {name: own[name] for name in ("near_launch_us", "scalar_us", "efficiency")}
        made |= {"launch_us": own["near_launch_us"] + own["hbm_us"], "vector_ns": found["vector_cycles"] * cycle}
        made |= {"rotation_ns": found["rotation_cycles"] * cycle, "transcendental_ns": cycle}
        made |= {"near_mb_per_us": found["near_kb_a_cycle"] / cycle, "step_us": found["step_kcycles"] / old["ghz"]}
        made["mb_per_us"] = own["hbm"] * hbm
        made["call_us"] = found.get(f"call_us {CALLED.get(chip, chip)}", old["call_us"])
        return {**old.values, **made}

    def modelled(self, values: np.ndarray) -> np.ndarray:
        """Microseconds of every function: the same composition as ``Asked`` and ``busy``, for all kernels at once."""
        of = [self.constants(chip, values) for chip in self.chips]
        c = {name: np.array([constants[name] for constants in of])[self.chip] for name in of[0]}
        t = self.table
        registers = t["plain"] + sum(t[name] * c[name] for name in CLASSES)
        vector = np.maximum(registers * c["vector_ns"], t["special"] * c["transcendental_ns"])
        vector = (vector + t["turned"] * c["rotation_ns"]) / 1e3 + t["near"] / c["near_mb_per_us"]
        stream = (t["far"] + c["restreamed"] * t["again"]) / c["mb_per_us"]
        stream = np.maximum(stream, t["common"] / np.where(c["common_mb_per_us"] > 0, c["common_mb_per_us"], np.inf))
        rows = (t["rows"] * c["gather_row_ns"] + t["elements"] * c["gather_element_ns"]) / 1e3
        parts = np.sort([t["matrix"] / c["efficiency"], vector, np.maximum(stream, rows), t["link"]], axis=0)
        start = np.where(t["far"] > 0.001, c["launch_us"], c["near_launch_us"])
        start = start + stream * FIRST_WINDOW / np.maximum(t["windows"], t["rows"]) + t["apart"]
        start = start + (t["windows"] - 1) * c["step_us"]
        each = np.where(t["scalar"] > 0, c["scalar_us"], start) + parts[-1] + NOT_HIDDEN * parts[-2]
        called = self.calls * np.array([constants["call_us"] for constants in of])[self.of]
        return np.bincount(self.row, each * t["runs"], len(self.rows)) + self.other + called

    def of_chip(self, chip: str) -> np.ndarray:
        """Which of the constants a chip has for itself."""
        return np.array([name.endswith(f" {chip}") for name in self.names])

    def fitted(self, on: np.ndarray) -> np.ndarray:
        """The constants that fit some of the functions best."""
        weights = np.array([MODELS if row.op == MODEL else 1.0 for row in self.rows])

        def misses(moved: np.ndarray) -> np.ndarray:
            off = np.log(self.modelled(self.first * np.exp(moved)) / self.wanted)[on] / SOFT
            soft = weights[on] * np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
            return np.concatenate([soft, PRIOR / SOFT * moved / self.loose])

        shares = [name.startswith(("efficiency", "hbm tpu")) for name in self.names]
        high = np.where(shares, np.maximum(np.log(MOST / self.first), STILL), 3.0)
        bounds = np.where(self.free, -3.0, -STILL), np.where(self.free, high, STILL)
        moved = least_squares(misses, np.zeros(len(high)), bounds=bounds, max_nfev=40).x
        return self.first * np.exp(np.where(self.free, moved, 0.0))

    def trimmed(self, on: np.ndarray) -> np.ndarray:
        """The same in two turns: what is off by half or more after the first was compiled otherwise than it is here.

        What a call costs is read again at the end: the weighted middle of what its chip's passes leave, as passes that
        the measured program computed in another way (scores through HBM) must not move it.
        """
        off = np.abs(np.log(self.modelled(self.fitted(on)) / self.wanted))
        found = self.fitted(on & (off < np.log(1.5)))
        left = self.wanted - self.modelled(found)
        for chip in {self.rows[k].chip for k in np.flatnonzero(self.calls)}:
            passes = np.flatnonzero(self.calls & (self.of == self.chips.index(chip)))
            passes = passes[np.argsort(left[passes])]
            share = np.cumsum(1 / self.wanted[passes])
            call = self.names.index(f"call_us {chip}")
            found[call] += self.free[call] * left[passes[np.searchsorted(share, share[-1] / 2)]]
        return found


def table(rows: Sequence[Counted], errors: np.ndarray, worst: int = 20) -> str:
    """Rows, mean and median error and the share beyond 30 %, by chip and by op and chip; then the worst."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, error in zip(rows, errors):
        for group in (("all", ""), ("all", row.chip), (row.op, row.chip), (row.op, "")):
            groups[group].append(error)
    lines = [f"{'op':50} {'chip':8} rows  mean median  >30 %  ratio"]
    for (op, chip), found in sorted(groups.items(), key=lambda group: (group[0][0] != "all", group[0])):
        off = 100 * np.abs(found)
        share, ratio = 100 * np.mean(off > 30), 1 + np.median(found)
        lines.append(f"{op:50} {chip:8} {len(off):4} {off.mean():5.1f} {np.median(off):6.1f} {share:6.0f} {ratio:6.2f}")
    order = np.argsort(-np.abs(np.log(np.maximum(1e-3, 1 + errors))))[:worst]
    return "\n".join([*lines, *(f"  {1 + errors[k]:8.3f} {rows[k].name} {rows[k].wanted / 1e3:.4f} ms" for k in order)])


_FITTED = "fitted by benchmarks/calibrate_kernels.py on whole functions"
_SHARED = f"{_FITTED}, of all chips together"
SOURCES = {
    **dict.fromkeys((*CLASSES, "restreamed"), _SHARED),
    **dict.fromkeys(
        ("vector_cycles", "rotation_cycles", "near_kb_a_cycle", "step_kcycles"), f"{_SHARED}, in cycles of the clock"
    ),
    **dict.fromkeys(("near_launch_us", "launch_us", "scalar_us", "efficiency"), _FITTED),
    "mb_per_us": f"{_FITTED}: one share of HBM's peak",
    "call_us": "what a call costs beyond its kernels: the one constant read off whole models, gpt2_measured.csv",
}
"""Where fitted constants are from; what is not fitted keeps the source that its file states."""


def write_chip(chip: str, values: Mapping[str, float], fitted: int) -> None:
    """Put ``[time.kernel]`` into the chip's file. How far off it is then, ``[errors]`` says (time_rows.py).

    ``fitted``: how many functions; 0 where a part of the constants was fitted only, and the others are of those that
    the file states.
    """
    own = tomllib.loads(file_of(chip).read_text())["time"]["kernel"]
    on = f"{fitted} whole functions" if fitted else own["fitted_on"]
    plain = {name: float(f"{values[name]:.4g}") for name, old in own.items() if isinstance(old, float)}
    constants = TimeConstants(MappingProxyType(plain), on)
    write(file_of(chip), {"kernel": section_text("kernel", constants, f"{_FITTED}: {on}", own["sources"] | SOURCES)})


def write_common(found: Mapping[str, float]) -> None:
    """Put what all chips have in common of ``[time.kernel]`` into its file; what is not fitted stays as it is."""
    path = Path(str(resources.files("tilewright.targets") / TIME))
    sources = tomllib.loads(path.read_text())["time"]["kernel"]["sources"] | SOURCES
    values = {name: found.get(name, old) for name, old in common_time()[0]["kernel"].values.items()}
    constants = TimeConstants(MappingProxyType({name: float(f"{value:.4g}") for name, value in values.items()}))
    write(path, {"kernel": section_text("kernel", constants, _SHARED, sources)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = rows_of(options.folder)
    for row in rows:
        if row.lacking:
            print(f"left out: {row.name}: {row.lacking}")
    rows = [row for row in rows if not row.lacking and len(row.kernels)]
    fit = Fit(rows, options.only)
    held = np.array([row.held_back for row in rows])
    half = fit.trimmed(~held & ~np.array([row.impossible for row in rows]))
    errors = fit.modelled(half) / fit.wanted - 1
    names = [row.name for row in rows if row.impossible]
    print(f"More bytes than HBM passes in the time, so compiled otherwise: {', '.join(names)}")
    print("Held back, fitted on the others:")
    print(table([row for row in rows if row.held_back], errors[held]))
    alike = np.array([row.as_timed for row in rows])
    print("Of them, those whose peak of memory is that of what was timed:")
    print(table([row for row in rows if row.held_back and row.as_timed], errors[held & alike]))
    print({name: float(f"{value:.3g}") for name, value in zip(fit.names, half)})
    if options.write:
        if fit.free[: len(SHARED)].any():
            write_common(dict(zip(fit.names, half)))
        for chip in sorted({chip for chip in fit.chips if (fit.free & fit.of_chip(chip)).any()} - FEW):
            of_chip = np.array([row.chip == chip for row in rows])
            write_chip(chip, fit.constants(chip, half), 0 if options.only else int(np.sum(of_chip & ~held)))


if __name__ == "__main__":
    main()
