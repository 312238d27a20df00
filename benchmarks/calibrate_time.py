"""Fit the time model's constants of a chip on measured single operations, and say how far off the model is.

    python benchmarks/calibrate_time.py [--write | --docs docs/time.md]
    python benchmarks/calibrate_time.py --csv FILE --chip NAME [--write]

Fits all kinds of all chips together, on 60 % of the rows of each (seeded), from the constants that stand in their
files: what an operation asks of any chip (``tpu_time.toml``), and what a chip takes for it (its own file). Limits are
not fitted.

Prints, per kind of operation: the error on the rows of the fit and on those left out, the error where whole families of
shapes are left out, and three baselines: a constant, a curve over the size, and boosted trees on layout features.
``--write`` puts the constants into these files ([time.alone]), and into a chip's a section for each kind with the rows
that were fitted and the error seen. ``--docs`` fits none anew but writes the page of tables, of the constants
that stand in the files.

``--csv``: measurements of your own, columns ``op,d0,d1,d2,kernel_us`` (products: rows, columns, depth; batched ones
with a further column ``b``). ``--chip``: a chip by name, or a TOML file that describes it. What all chips have in
common is not fitted then, and kinds without rows keep the constants they have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import measured_times
import numpy as np
from measured_times import CHIPS, SEED, Measured, training
from scipy.optimize import least_squares
from time_page import page

from tilewright.errors import TilewrightError
from tilewright.hlo import load
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.timing.alone import price_alone
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.row import Run, types_of
from tilewright.targets import Target, TimeConstants, target
from tilewright.targets.chips import TIME, Seen, common_time

SECTIONS = {
    "stream": ("exponential", "transpose"),
    "broadcast": ("broadcast",),
    "concatenate": ("concatenate",),
    "reduce": ("reduce",),
    "reshape": ("reshape",),
    "product": ("gemm",),
    "batched_product": ("batched_gemm",),
}
BARS = {
    "reshape": 15.0,
    "transpose": 5.0,
    "broadcast": 12.0,
    "concatenate": 9.5,
    "reduce": 12.0,
    "exponential": 5.0,
    "gemm": 12.0,
    "batched_gemm": 12.0,
}
SOFT = 0.06
"""Misses above this share count by their size, not by their square."""

_SEEN = "not fitted: seen in modules compiled ahead of time, the size from which the compiler works in windows"
FIXED = {
    "window_mb": _SEEN,
    "small_window_mb": f"{_SEEN} that joins or sums what passes HBM",
    "copy_window_mb": "not fitted: the size from which measured copies begin to overlap reading and writing",
    "efficiency": "not fitted: the share of the matrix unit's peak that large square products timed in public reach",
    "resident_mb": "not fitted: the largest argument that modules compiled ahead of time bring in between calls; on v4 "
    "the common memory",
}
"""Constants that are no matter of fitting, and where they are from."""
_NOT_THERE = "0: a chip that has some says so"
PEAK = 0.93
"""The most of HBM's peak that a rate of reading and writing may be fitted to."""


@dataclass(frozen=True)
class Row:
    """A measured row with what its price depends on: the operation and the tiles of its arrays."""

    measured: Measured
    operation: Operation
    operands: list[Tiles]
    result: Tiles

    def microseconds(self, constants: Mapping[str, TimeConstants]) -> float:
        """The modelled time."""
        return self.price(constants).us

    def price(self, constants: Mapping[str, TimeConstants]) -> Run:
        """The modelled time and its bound."""
        priced = price_alone(constants, self.operation, self.operands, self.result)
        assert priced is not None
        return priced


def rows_of(machine: Target, measurements: Sequence[Measured]) -> list[Row]:
    """The rows, read as estimate() reads a program."""
    rows = []
    for measurement in measurements:
        program = load(measurement.text)
        context = Context(program, machine)
        operation = next(op for op in program.entry.operations if op.name == "%0")
        shapes = (*operation.operand_shapes, operation.shape)
        *operands, result = (Tiles.of(layout) for shape in shapes if (layout := context.layout(shape)))
        rows.append(Row(measurement, operation, operands, result))
    return rows


def training_families(rows: Sequence[Row]) -> np.ndarray:
    """The same by whole families of shapes."""
    families = sorted({row.measured.family for row in rows})
    chosen = dict(zip(families, training(len(families), SEED + 1)))
    return np.array([chosen[row.measured.family] for row in rows])


@dataclass(frozen=True)
class Given:
    """A chip and its measured rows by operation, which of them are fitted, and which where families are left out.

    ``own``: the constants that its file has for itself; without such a section all that not all chips have in common.
    """

    chip: Chip
    own: frozenset[str]
    rows: Mapping[str, list[Row]]
    trains: Mapping[str, np.ndarray]
    families: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, name: str, measurements: Mapping[str, Sequence[Measured]]) -> Given:
        """The rows of the kinds whose errors the chip's file has a section for."""
        machine, there = target(name), tomllib.loads(file_of(name).read_text()).get("time", {}).get("alone", {})
        chip = chip_of(machine)
        own = (
            chip.mechanisms["alone"].values.keys() & there.keys()
            or chip.mechanisms["alone"].values.keys() - common_time()[0]["alone"].values
        )
        operations = [
            op for name, of in SECTIONS.items() if name in chip.mechanisms for op in of if measurements.get(op)
        ]
        rows = {operation: rows_of(machine, measurements[operation]) for operation in operations}
        trains = {operation: training(len(of)) for operation, of in rows.items()}
        return cls(
            chip, frozenset(own), rows, trains, {operation: training_families(of) for operation, of in rows.items()}
        )

    def chosen(self, masks: Mapping[str, np.ndarray]) -> list[Row]:
        """The rows of all operations that are to be fitted."""
        return [row for operation in self.rows for row, taken in zip(self.rows[operation], masks[operation]) if taken]


class _Noting(TimeConstants):
    """Constants that note which of them are read, in ``fitted_on``'s place: a set of names."""

    def __getitem__(self, constant: str) -> float:
        self.fitted_on.add(constant)  # type: ignore[attr-defined]
        return super().__getitem__(constant)


class Fit:
    """The constants of operations alone, as the logarithms of those that rows decide, and what the rows miss by.

    ``names``: (chip, constant), the chip "" for what all chips have in common, which is fitted unless ``alone`` it is
    one chip that is. A row depends on the few constants that its price reads, and only these are moved to see how.
    """

    def __init__(self, given: Sequence[Given], families: bool = False, alone: bool = False) -> None:
        self.chips = [each.chip for each in given]
        self.rows = [each.chosen(each.families if families else each.trains) for each in given]
        self.names = list[tuple[str, str]]()
        first = list[float]()
        for each, of in zip(given, self.rows):
            chip, read = each.chip, self._readers(each.chip, of, each.chip.mechanisms["alone"])
            for name, value in chip.mechanisms["alone"].values.items():
                key = (chip.machine.name if name in each.own else ""), name
                if name in read.keys() - FIXED.keys() and value > 0 and key not in self.names and (key[0] or not alone):
                    self.names.append(key)
                    first.append(value)
        self.first = np.log(first)
        self.logs = np.log([row.measured.microseconds for of in self.rows for row in of])
        most = {chip.machine.name: np.log(PEAK * chip.hbm_peak / 1e12) for chip in self.chips}
        rates = [most.get(key[0]) if key[1] == "stream_mb_per_us" else None for key in self.names]
        self.high = np.array([value + 5 if rate is None else rate for rate, value in zip(rates, self.first)])

    def _readers(self, chip: Chip, rows: Sequence[Row], constants: TimeConstants) -> dict[str, list[int]]:
        """The numbers of a chip's rows that read each constant."""
        found: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            read = set[str]()
            row.microseconds({**chip.mechanisms, "alone": _Noting(constants.values, read)})  # type: ignore[arg-type]
            for name in read:
                found.setdefault(name, []).append(number)
        return found

    def constants(self, values: np.ndarray, chip: Chip, digits: int = 0) -> TimeConstants:
        """A chip's section under other logarithms; ``digits``: rounded to so many."""
        pairs = sorted(zip(self.names, values))  # what is of all chips first, a chip's own over it
        found = {name: float(np.exp(value)) for (of, name), value in pairs if of in ("", chip.machine.name)}
        if digits:
            found = {name: float(f"{value:.{digits}g}") for name, value in found.items()}
        return TimeConstants(MappingProxyType({**chip.mechanisms["alone"].values, **found}))

    def misses(self, values: np.ndarray) -> np.ndarray:
        """Logarithms of modelled over measured times."""
        found = list[float]()
        for chip, rows in zip(self.chips, self.rows):
            now = {**chip.mechanisms, "alone": self.constants(values, chip)}
            found += [row.microseconds(now) for row in rows]
        return np.log(found) - self.logs

    def slopes(self, values: np.ndarray, step: float = 1e-4) -> np.ndarray:
        """How the misses of every row change with every logarithm."""
        table, before, begin = np.zeros((len(self.logs), len(values))), self.misses(values) + self.logs, 0
        for chip, rows in zip(self.chips, self.rows):
            readers = self._readers(chip, rows, self.constants(values, chip))
            for column, (of, name) in enumerate(self.names):
                moved = values.copy()
                moved[column] += step
                now = {**chip.mechanisms, "alone": self.constants(moved, chip)}
                for number in readers.get(name, ()) if of in ("", chip.machine.name) else ():
                    later = np.log(rows[number].microseconds(now))
                    table[begin + number, column] = (later - before[begin + number]) / step
            begin += len(rows)
        return table

    def best(self, start: np.ndarray) -> np.ndarray:
        """The logarithms that fit the rows best: least squares, outliers counted less."""
        bounds = self.first - 6, self.high
        begin = np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6)
        answer = least_squares(
            self.misses, begin, jac=self.slopes, loss="soft_l1", f_scale=SOFT, bounds=bounds, max_nfev=60
        )
        return answer.x  # type: ignore[no-any-return]

    def fitted(self) -> list[TimeConstants]:
        """Each chip's constants that fit best, five digits; those that stand where none are better by a thousandth."""
        found = self.best(self.first)
        better = cost(self.misses(found)) < 0.999 * cost(self.misses(self.first))
        return [self.constants(found, chip, 5) if better else chip.mechanisms["alone"] for chip in self.chips]

    def fitted_anew(self) -> list[TimeConstants]:
        """The same, begun at one digit of every constant: a start that knows little of rows another fit has seen."""
        found = self.best(np.log([float(f"{value:.1g}") for value in np.exp(self.first)]))
        return [self.constants(found, chip) for chip in self.chips]


def cost(misses: np.ndarray) -> float:
    """What a fit makes small: squares, but of large misses little more than their size (soft L1)."""
    return float(np.sum(np.sqrt(1 + (misses / SOFT) ** 2) - 1))


def times(rows: Sequence[Row]) -> np.ndarray:
    """Measured microseconds."""
    return np.array([row.measured.microseconds for row in rows])


def errors(chip: Chip, constants: TimeConstants, rows: Sequence[Row]) -> np.ndarray:
    """Relative errors, as shares."""
    now = {**chip.mechanisms, "alone": constants}
    return np.array([row.microseconds(now) for row in rows]) / times(rows) - 1


def mean(shares: np.ndarray) -> float:
    """Mean absolute error in per cent, nan of nothing."""
    return float(100 * np.mean(np.abs(shares))) if len(shares) else float("nan")


def features(row: Row) -> list[float]:
    """What boosted trees see of a row: sizes, padded megabytes, tiles, orders, whether it is a bitcast, ratios."""
    sizes = [float(size) for size in row.measured.sizes]
    seen = [*sizes, *np.log(sizes), row.measured.work, np.log(row.measured.work)]
    arrays = [*(tiles for tiles in row.operands[:2] if tiles.shape), row.result]
    arrays = arrays if len(arrays) == 3 else [arrays[0], *arrays]
    for tiles in arrays:
        seen += [tiles.megabytes, np.log(tiles.megabytes), tiles.count, tiles.tile[0], tiles.grid[-1], tiles.grid[-2]]
        seen += [tiles.minor_to_major[0], tiles.minor_to_major[-1], tiles.elements / np.prod(tiles.shape)]
    whole = sum(tiles.megabytes for tiles in row.operands) + row.result.megabytes
    kept = [d for d in row.operands[0].minor_to_major if row.operands[0].shape[d] > 1]
    same = [row.operands[0].shape[d] for d in kept] == [
        n for d in row.result.minor_to_major if (n := row.result.shape[d]) > 1
    ]
    return [*seen, whole, np.log(whole), row.operands[0].megabytes / row.result.megabytes, float(same)]


def curves(rows: Sequence[Row], train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What two baselines say: a constant, and a cubic in the logarithm of the padded size; logarithms of times."""
    log = np.log(times(rows))
    size = np.log([sum(tiles.megabytes for tiles in row.operands) + row.result.megabytes for row in rows])
    return np.full(len(rows), np.median(log[train])), np.polyval(np.polyfit(size[train], log[train], 3), size)


def missed(rows: Sequence[Row], test: np.ndarray, predicted: np.ndarray) -> float:
    """The error of predicted logarithms on the rows of ``test``."""
    return mean(np.exp(predicted - np.log(times(rows)))[test] - 1)


def trees(rows: Sequence[Row], train: np.ndarray) -> float:
    """The error on the rows left out of boosted trees: the best of four set-ups, chosen on the very rows they are
    judged by; more than fair.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # so few rows: threads would only wait for each other
    from sklearn.ensemble import HistGradientBoostingRegressor

    log, table, found = np.log(times(rows)), np.array([features(row) for row in rows]), []
    for base in (np.zeros(len(rows)), curves(rows, train)[1]):
        for loss in ("squared_error", "absolute_error"):
            model = HistGradientBoostingRegressor(
                loss=loss, max_iter=300, learning_rate=0.06, min_samples_leaf=4, random_state=0
            )
            model.fit(table[train], (log - base)[train])
            found.append(missed(rows, ~train, base + model.predict(table)))
    return min(found)


def baselines(rows: Sequence[Row], train: np.ndarray) -> tuple[float, float, float]:
    """Errors on the rows left out of a constant, of a curve over the size, and of boosted trees; nan of few rows."""
    if len(rows) < 30:
        return float("nan"), float("nan"), float("nan")
    constant, curve = (missed(rows, ~train, predicted) for predicted in curves(rows, train))
    return constant, curve, trees(rows, train)


def seen_of(section: str, mechanisms: Mapping[str, TimeConstants], rows: Sequence[Row]) -> Seen:
    """The types, bounds and sizes of measured rows: where their error may be claimed."""
    sizes: dict[str, list[float]] = {"megabytes": []}
    types, bounds = set[str](), set[str]()
    for row in rows:
        types |= types_of(row.operation)
        bounds.add(row.price(mechanisms).bound)
        sizes["megabytes"].append(sum(tiles.megabytes for tiles in (*row.operands, row.result)))
        if "product" in section:
            sizes.setdefault("flops", []).append(2 * row.measured.work)
            sizes.setdefault("depth", []).append(row.measured.sizes[3])
    return seen(types, bounds, sizes)


def seen(types: set[str], bounds: set[str], sizes: Mapping[str, Sequence[float]]) -> Seen:
    """Sorted, and ranges to five digits, outwards."""
    ranges = {}
    for name, values in sizes.items():
        low, high = (float(f"{end(values):.5g}") for end in (min, max))
        low, high = (low if low <= min(values) else low * 0.9999), (high if high >= max(values) else high * 1.0001)
        ranges[name] = (float(f"{low:.5g}"), float(f"{high:.5g}"))
    return Seen(tuple(sorted(types)), tuple(sorted(bounds)), ranges)


@dataclass(frozen=True)
class Kind:
    """The errors of one kind of operation on one chip, in per cent."""

    chip: str
    operation: str
    rows: int
    train: float
    held: float
    median: float
    families: float
    constant: float
    size: float
    trees: float

    @property
    def bar(self) -> float:
        """What the error on rows left out must stay below."""
        return BARS[self.operation]

    def line(self) -> str:
        """A row of the printed table."""
        numbers = (self.train, self.held, self.median, self.families, self.constant, self.size, self.trees)
        rest = "".join(f"{number:9.1f}" for number in numbers)
        return f"{self.chip:8s} {self.operation:13s}{self.rows:5d}{rest}{self.bar:7.1f}"


HEAD = f"{'chip':8s} {'kind':13s} rows    train held-out   median families constant     size    trees    bar"


def section_text(name: str, constants: TimeConstants, source: str, sources: Mapping[str, str]) -> str:
    """``[time.NAME]`` as TOML."""
    lines = [f"[time.{name}]", *(f"{key} = {value!r}" for key, value in constants.values.items())]
    if constants.fitted_on:
        lines.append(f'fitted_on = "{constants.fitted_on}"')
    if constants.error:
        lines.append(f"error = {constants.error}")
    lines.append(f'source = "{source}"')
    if seen := constants.seen:
        lines += ["", f"[time.{name}.seen]"]
        lines += [
            f"{key} = {json.dumps(list(words))}" for key, words in (("types", seen.types), ("bounds", seen.bounds))
        ]
        lines += [f"{key} = [{low:g}, {high:g}]" for key, (low, high) in seen.ranges.items()]
    known = [f'{key} = "{sources[key]}"' for key in constants.values if key in sources]
    return "\n".join([*lines, *(["", f"[time.{name}.sources]", *known] if known else [])]) + "\n"


def write(path: Path, sections: Mapping[str, str]) -> None:
    """Put the sections in the place of those of the same names, or behind all others."""
    text = path.read_text()
    for name, section in sections.items():
        there = re.compile(rf"^\[time\.{name}\]\n.*?(?=^\[(?!time\.{name}\.)|\Z)", re.MULTILINE | re.DOTALL)
        if there.search(text):
            text = there.sub(lambda _: section + "\n", text)  # noqa: B023
        else:
            text = text.rstrip("\n") + "\n\n" + section
    path.write_text(text.rstrip("\n") + "\n")


def fit_all(given: Sequence[Given], anew: bool, alone: bool) -> tuple[list[TimeConstants], list[TimeConstants]]:
    """The constants of each chip, and those where families are left out. ``anew``: fit, do not only judge."""
    fitting = Fit(given, alone=alone)
    if len(fitting.logs) < 2 * len(fitting.names):
        print(f"note: {len(fitting.logs)} rows to fit {len(fitting.names)} constants on: few")
    constants = fitting.fitted() if anew else [chip.mechanisms["alone"] for chip in fitting.chips]
    return constants, Fit(given, families=True, alone=alone).fitted_anew()


def judged(
    given: Given, constants: TimeConstants, without_families: TimeConstants, origin: str
) -> tuple[dict[str, str], list[Kind]]:
    """TOML texts of a chip's sections, and the errors of its kinds."""
    chip, rows, texts, found = given.chip, given.rows, dict[str, str](), []
    mechanisms, count = {**chip.mechanisms, "alone": constants}, sum(map(len, rows.values()))
    source = f"fitted by benchmarks/calibrate_time.py on {origin}, 60 % of {count} rows, seed {SEED}"
    own = {name: value for name, value in constants.values.items() if name in given.own}
    on = f"{', '.join(rows)}: 60 % of {count} rows"
    texts["alone"] = section_text("alone", TimeConstants(MappingProxyType(own), on), source, FIXED)
    for section, of in SECTIONS.items():
        operations, held = [operation for operation in of if operation in rows], []
        for operation in operations:
            train, family = given.trains[operation], given.families[operation]
            off = errors(chip, constants, rows[operation])
            left_out = errors(chip, without_families, rows[operation])[~family]
            held.append(off[~train])
            found.append(
                Kind(
                    *(chip.machine.name, operation, len(train), mean(off[train]), mean(off[~train])),
                    *(100 * float(np.median(np.abs(off[~train]))), mean(left_out)),
                    *baselines(rows[operation], train),
                )
            )
            print(found[-1].line(), flush=True)
        if not operations:
            continue
        seen = seen_of(section, mechanisms, [row for operation in operations for row in rows[operation]])
        on = f"{', '.join(operations)}: 60 % of {sum(len(rows[operation]) for operation in operations)} rows"
        kind = TimeConstants(MappingProxyType({}), on, float(f"{mean(np.concatenate(held)) / 100:.3g}"), seen)
        texts[section] = section_text(section, kind, f"{source}; the error is of the others", {})
    if not chip.machine.time:
        for section in chip.mechanisms.keys() - texts.keys():
            texts[section] = section_text(section, chip.mechanisms[section], chip.note, {})
    return texts, found


def common_text(constants: TimeConstants, chips: Sequence[str]) -> str:
    """The section of what all chips have in common."""
    names = common_time()[0]["alone"].values
    values = MappingProxyType({name: constants[name] if value else value for name, value in names.items()})
    source = f"fitted by benchmarks/calibrate_time.py on the rows of {' and '.join(chips)} together"
    sources = {**FIXED, **{name: _NOT_THERE for name, value in values.items() if not value}}
    return section_text("alone", TimeConstants(values), source, sources)


def file_of(chip: str) -> Path:
    """The TOML file of a chip by name, or the file itself."""
    if chip.endswith(".toml"):
        return Path(chip)
    return Path(str(resources.files("tilewright.targets") / "data" / f"{chip}.toml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the constants into the chip's TOML file")
    parser.add_argument("--docs", type=Path, help="write the page of tables there; the constants as they stand")
    parser.add_argument("--csv", type=Path, help="measurements of your own: op,d0,d1,d2,kernel_us")
    parser.add_argument("--chip", help="with --csv: the chip by name, or its TOML file")
    arguments = parser.parse_args()
    if bool(arguments.csv) != bool(arguments.chip):
        parser.error("--csv and --chip go together")
    if arguments.docs and (arguments.write or arguments.csv):
        parser.error("--docs is of the constants as they stand: --write first")
    try:
        run(arguments)
    except (TilewrightError, OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"calibrate_time.py: {error}") from None


def run(arguments: argparse.Namespace) -> None:
    """Fit or judge every chip that is asked for, and write what is asked for."""
    print(HEAD)
    kinds, names = list[Kind](), [arguments.chip] if arguments.csv else CHIPS
    if arguments.csv:
        own, origin = measured_times.of_your_own(arguments.csv, target(arguments.chip).name), arguments.csv.name
        given = [Given.of(arguments.chip, own)]
    else:
        origin = "benchmarks/data/tpu_measured"
        measured = [{op: measured_times.measured(name, op) for op in BARS} for name in names]
        given = [Given.of(name, rows) for name, rows in zip(names, measured)]
    constants, without_families = fit_all(given, not arguments.docs, alone=bool(arguments.csv))
    for name, each, found, left_out in zip(names, given, constants, without_families):
        texts, errors_seen = judged(each, found, left_out, origin)
        kinds += errors_seen
        if arguments.write:
            write(file_of(name), texts)
            print(f"wrote [time.*] of {file_of(name)}: {', '.join(texts)}")
    if arguments.write and not arguments.csv:
        write(Path(str(resources.files("tilewright.targets") / TIME)), {"alone": common_text(constants[0], names)})
    if arguments.docs:
        arguments.docs.write_text(page(kinds))
        print(f"wrote {arguments.docs}")


if __name__ == "__main__":
    main()
