"""Fit the time model's constants of a chip on measured single operations, and say how far off the model is.

    python benchmarks/calibrate_time.py [--write | --docs docs/time.md]
    python benchmarks/calibrate_time.py --csv FILE --chip NAME [--write]

Fits on 60 % of the rows (seeded), from the constants that stand in the chip's file; limits and published facts are not
fitted. (Begun at one digit of each constant, the fits end within half a point of the same errors.)

Prints, per kind of operation: the error on the rows of the fit and on those left out, the error where whole families of
shapes are left out, and three baselines: a constant, a curve over the size, and boosted trees on layout features.
``--write`` puts the constants into the chip's TOML file, each section with its source, the rows it was fitted on and
the error seen. ``--docs`` fits none anew but writes the page of tables, of the constants that stand in the files.

``--csv``: measurements of your own, columns ``op,d0,d1,d2,kernel_us`` (products: rows, columns, depth; batched ones
with a further column ``b``). ``--chip``: a chip by name, or a TOML file that describes it. Kinds without rows keep the
constants they have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.estimate import mechanism
from tilewright.hlo.timing.row import types_of
from tilewright.hlo.timing.tiles import Tiles
from tilewright.targets import Target, TimeConstants, target
from tilewright.targets.chips import Seen

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
_MATRIX = "not fitted: published, as in [matrix]"
FIXED = {
    "one_window_mb": _SEEN,
    "prefetched_window_mb": _SEEN,
    "copy_window_mb": "not fitted: the size from which measured copies begin to overlap reading and writing",
    "prefetched_mb": "not fitted: the largest operand that modules compiled ahead of time bring in between calls",
    "resident_mb": "not fitted: the largest argument that modules compiled ahead of time bring in between calls; on v4 "
    "the common memory",
    "hbm_mb_per_us": "carried over from [time.stream] stream_mb_per_us",
    "few_tiles": "not fitted: tiles below which the few-row way is taken, read off the measured rows",
    "fill_rows": "not fitted: chosen on the training rows, a share of a side",
    "side": _MATRIX,
    "units": _MATRIX,
    "rows_per_cycle": "not fitted: the published peak over units, multipliers and clock",
    "ghz": "not fitted: the published clock",
}
"""Constants that are no matter of fitting, and where they are from."""

_OF_PRODUCT = "carried over from [time.product]: the measured batches are too shallow to show it"
_NEAR = "not fitted: the training rows only say that it is at least this"
_NOT_THERE = "0: this chip has none"


def fixed(section: str) -> dict[str, str]:
    """The constants of a section that are not fitted, and where they are from."""
    more = {
        "batched_product": {"efficiency": _OF_PRODUCT, "fill_rows": _OF_PRODUCT},
        "reduce": {"near_mb_per_us": _NEAR},
    }
    return {**FIXED, **more.get(section, {})}


@dataclass(frozen=True)
class Row:
    """A measured row with what its price depends on: the operation and the tiles of its arrays."""

    measured: Measured
    operation: Operation
    operands: list[Tiles]
    result: Tiles

    def microseconds(self, constants: Mapping[str, TimeConstants]) -> float:
        """The modelled time."""
        priced = mechanism(constants, self.operation, self.operands, self.result)
        assert priced is not None
        return priced[1].microseconds


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


def fitted(section: str, start: TimeConstants, rows: Sequence[Row]) -> TimeConstants:
    """The constants that fit the rows best: least squares of the logarithm, outliers counted less."""
    names = [name for name, value in start.values.items() if name not in fixed(section) and value > 0]
    first = np.array([start[name] for name in names])
    low = np.array([0.002 if name == "start_mb" else 1e-5 for name in names])
    high = np.maximum(first * 6, 0.5)
    high = np.array([min(top, 20.0) if name.endswith("_ns") else top for name, top in zip(names, high)])
    logs = np.log([row.measured.microseconds for row in rows])

    def constants(values: np.ndarray) -> TimeConstants:
        return TimeConstants(MappingProxyType({**start.values, **dict(zip(names, map(float, values)))}))

    def misses(values: np.ndarray) -> np.ndarray:
        now = {section: constants(values)}
        return np.log([row.microseconds(now) for row in rows]) - logs

    answer = least_squares(
        misses, np.clip(first, low, high), loss="soft_l1", f_scale=SOFT, bounds=(low, high), max_nfev=60
    )
    found = constants(np.array([float(f"{value:.5g}") for value in answer.x]))
    return found if cost(misses(answer.x)) < 0.999 * cost(misses(first)) else start  # no better: the same digits again


def cost(misses: np.ndarray) -> float:
    """What a fit makes small: squares, but of large misses little more than their size (soft L1)."""
    return float(np.sum(np.sqrt(1 + (misses / SOFT) ** 2) - 1))


def rounded(section: str, constants: TimeConstants) -> TimeConstants:
    """One digit of every fitted constant: a start that knows little of the rows that another fit has seen."""
    kept = fixed(section)
    values = {name: value if name in kept else float(f"{value:.1g}") for name, value in constants.values.items()}
    return TimeConstants(MappingProxyType(values))


def times(rows: Sequence[Row]) -> np.ndarray:
    """Measured microseconds."""
    return np.array([row.measured.microseconds for row in rows])


def errors(section: str, constants: TimeConstants, rows: Sequence[Row]) -> np.ndarray:
    """Relative errors, as shares."""
    return np.array([row.microseconds({section: constants}) for row in rows]) / times(rows) - 1


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


def seen_of(section: str, constants: TimeConstants, rows: Sequence[Row]) -> Seen:
    """The types, bounds and sizes of measured rows: where their error may be claimed."""
    sizes: dict[str, list[float]] = {"megabytes": []}
    types, bounds = set[str](), set[str]()
    for row in rows:
        priced = mechanism({section: constants}, row.operation, row.operands, row.result)
        assert priced is not None
        types |= types_of(row.operation)
        bounds.add(priced[1].bound)
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


def calibrate(
    machine: Target, section: str, start: TimeConstants, measurements: Mapping[str, Sequence[Measured]], anew: bool
) -> tuple[TimeConstants, list[Kind]]:
    """One section's constants, fitted on the training rows (not ``anew``: as they are), and its kinds' errors."""
    rows = {operation: rows_of(machine, measurements[operation]) for operation in measurements}
    trains = {operation: training(len(of)) for operation, of in rows.items()}
    families = {operation: training_families(of) for operation, of in rows.items()}

    def fit(begin: TimeConstants, chosen: Mapping[str, np.ndarray]) -> TimeConstants:
        seen = [row for name in rows for row, taken in zip(rows[name], chosen[name]) if taken]
        return fitted(section, begin, seen) if seen else begin

    constants, without_families = fit(start, trains) if anew else start, fit(rounded(section, start), families)
    kinds, held = [], []
    for operation, of in rows.items():
        train, family = trains[operation], families[operation]
        off = errors(section, constants, of)
        left_out = errors(section, without_families, of)[~family]
        held.append(off[~train])
        kinds.append(
            Kind(
                *(machine.name, operation, len(of), mean(off[train]), mean(off[~train])),
                *(100 * float(np.median(np.abs(off[~train]))), mean(left_out)),
                *baselines(of, train),
            )
        )
        print(kinds[-1].line(), flush=True)
    error = float(f"{mean(np.concatenate(held)) / 100:.3g}")
    return TimeConstants(constants.values, "", error), kinds


def with_time(machine: Target, constants: Mapping[str, TimeConstants]) -> Target:
    """The chip with other constants."""
    return replace(machine, time=MappingProxyType(dict(constants)))


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


def fit_chip(
    machine: Target, measurements: Mapping[str, Sequence[Measured]], origin: str, anew: bool = True
) -> tuple[dict[str, TimeConstants], dict[str, str], list[Kind]]:
    """All sections of a chip: constants, TOML texts of those that changed, and the errors of the kinds.

    ``anew``: fit, do not only judge.
    """
    chip = chip_of(machine)
    constants = dict(chip.mechanisms)
    texts: dict[str, str] = {}
    kinds: list[Kind] = []
    for section, operations in SECTIONS.items():
        rows = {operation: measurements[operation] for operation in operations if measurements.get(operation)}
        if section not in constants or not rows:
            continue
        start = constants[section]
        if "hbm_mb_per_us" in start.values and anew:
            carried = {"hbm_mb_per_us": constants["stream"]["stream_mb_per_us"]}
            if section == "batched_product":
                carried |= {name: constants["product"][name] for name in ("efficiency", "fill_rows")}
            start = TimeConstants(MappingProxyType({**start.values, **carried}))
        count = sum(map(len, rows.values()))
        if count < 3 * len(start.values):
            print(f"note: {count} rows for the {len(start.values)} constants of [time.{section}]: few")
        found, errors_seen = calibrate(machine, section, start, rows, anew)
        kinds += errors_seen
        seen = seen_of(section, found, [row for name in rows for row in rows_of(machine, rows[name])])
        constants[section] = replace(found, fitted_on=f"{', '.join(rows)}: 60 % of {count} rows", seen=seen)
        source = f"fitted by benchmarks/calibrate_time.py on {origin}, 60 % of {count} rows, seed {SEED}"
        sources = {**fixed(section), **{name: _NOT_THERE for name, value in found.values.items() if not value}}
        texts[section] = section_text(section, constants[section], source, sources)
    if not machine.time:
        for section in constants.keys() - texts.keys():
            texts[section] = section_text(section, constants[section], chip.note, {})
    return constants, texts, kinds


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
    kinds: list[Kind] = []
    for name in [arguments.chip] if arguments.chip else CHIPS:
        machine = target(name)
        if arguments.csv:
            measurements, origin = measured_times.of_your_own(arguments.csv, machine.name), arguments.csv.name
        else:
            measurements = {operation: measured_times.measured(name, operation) for operation in BARS}
            origin = "benchmarks/data/tpu_measured"
        _, texts, errors_seen = fit_chip(machine, measurements, origin, not arguments.docs)
        kinds += errors_seen
        if arguments.write:
            write(file_of(name), texts)
            print(f"wrote [time.*] of {file_of(name)}: {', '.join(texts)}")
    if arguments.docs:
        arguments.docs.write_text(page(kinds))
        print(f"wrote {arguments.docs}")


if __name__ == "__main__":
    main()
