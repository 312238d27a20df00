"""How far off modelled times are on thousands of functions that were timed: rows, tables of docs/time.md, pictures.

    python benchmarks/time_rows.py ROWS.jsonl.gz FOLDER... [--docs docs/time.md] [--write]

ROWS holds a JSON object a line (``id``, ``chip``, ``op``, ``ms``: the profiler's device time; ``peak_mb``); the folders
``ID.mlir`` (StableHLO), ``ID.hlo`` (the module that a TPU compiler made ahead of time) and ``ID.mem.json`` of what is
to be priced; beside them stand the passes of gpt2 that are in the repository. The results stand in
``benchmarks/data/time_rows.csv``. Without ROWS the page and the pictures are made of the results that stand there.
``--write`` states the errors in the files of the chips, by kind of kernel (``[errors]``). With ``--pairs`` the advice
of one kernel for an attention or a loss is held to the pairs that were timed: the function as XLA makes it, and the
quickest kernel of the same arguments.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import log, log10
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import measured_times

from tilewright.errors import TilewrightError
from tilewright.hlo import StepTime, TimeRow, estimate, load, suggest
from tilewright.hlo.timing.step import MOSTLY
from tilewright.render.drawing import Drawing
from tilewright.targets import SeenError, target
from tilewright.targets.chips import FEW

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "data" / "time_rows.csv"
TARGETS = ROOT / "src" / "tilewright" / "targets"
PICTURES = ROOT / "docs" / "pictures"
DRAWN = ("tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x")
CHIPS = ("tpu-v4", *DRAWN)
SIDES = {"source": "mlir", "dump": "hlo"}
ALIKE = 0.02
"""How far the peak of memory of a module may be from that of what was timed."""
PART = 0.1
"""Share of a function's time from which kernels are worth a word."""
OTHER = "other"
"""What is of no kind that can be claimed: exchanges between chips, work of other cores."""
WHOLE = ("all", "mixed", "pallas")
"""Errors whose ranges are of whole functions."""
WORST = 10
BEGIN, END = "<!-- rows: benchmarks/time_rows.py -->", "<!-- end of rows -->"


class Part(NamedTuple):
    """Kernels of one kind and bound: their share of a function's time, microseconds of one run of its longest ones."""

    kind: str
    bound: str
    share: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.kind} {self.bound} {self.share:.3f} {self.least:.4g} {self.most:.4g}"


@dataclass(frozen=True)
class Result:
    """One function: milliseconds as modelled, those over the measured, whether it was compiled as what was timed, and
    the kernels that take most of its time.
    """

    name: str
    side: str
    modelled: float
    ratio: float
    alike: bool
    parts: tuple[Part, ...] = ()

    @property
    def chip(self) -> str:
        return f"tpu-{self.name.partition('.')[0]}"

    @property
    def op(self) -> str:
        return self.name.split(".")[1]

    @property
    def kernel(self) -> bool:
        """Whether its author wrote it as a Pallas kernel; else a compiler made it."""
        return self.op.startswith("pallas_")

    @property
    def fitted(self) -> bool:
        """Whether constants were fitted on its family of shapes; the other half is held back, by a hash."""
        family = self.name.split(".", 1)[1].rpartition(".")[0]
        return not hashlib.sha256(family.encode()).digest()[0] % 2

    @property
    def error(self) -> float:
        return 100 * abs(self.ratio - 1)

    @property
    def mostly(self) -> list[Part]:
        """The parts of the one kind that most of its time is of, the largest first; none where it has many kinds."""
        shares: Counter[str] = Counter()
        for part in self.parts:
            shares[part.kind] += part.share  # type: ignore[assignment]
        return [part for part in self.parts if shares[part.kind] >= MOSTLY]

    @property
    def off(self) -> float:
        return abs(log(max(self.ratio, 1e-3)))


def priced(item: tuple[str, str, str, float, bool]) -> Result | str:
    """A function's result, or why it has none."""
    name, side, path, measured, alike = item
    try:
        step = estimate(load(path if "\n" in path else Path(path).read_text()), f"tpu-{name.partition('.')[0]}")
    except TilewrightError as error:
        return f"{name} from {side}: {error}"
    milliseconds, possible = 1e3 * step.device_seconds, 1e3 * step.bytes <= measured * step.hbm_peak
    alike = alike and (possible or side == "source")
    return Result(name, side, milliseconds, milliseconds / measured, alike, tuple(parts_of(step)))


def parts_of(step: StepTime) -> Iterator[Part]:
    """What a step is made of, without what takes less than a tenth of it, the largest first."""
    groups, whole = defaultdict[tuple[str, str], list[TimeRow]](list), sum(row.seconds for row in step.rows)
    for row in step.rows:
        if row.seconds:
            groups[row.kind or OTHER, row.bound].append(row)
    for (kind, bound), rows in sorted(groups.items(), key=lambda item: -sum(row.seconds for row in item[1])):
        share = sum(row.seconds for row in rows) / whole
        least = min(PART * whole, max(row.seconds for row in rows))
        times = [1e6 * (row.beside or row.seconds / row.runs) for row in rows if row.seconds >= least]
        if share >= PART:
            yield Part(kind, bound, share, min(times), max(times))


def computed(rows: Path, folders: Sequence[Path]) -> list[Result]:
    """The results of all rows that a folder has a program of; what cannot be priced is printed."""
    items, before = [], {(each.name, each.side): each for each in stored()}
    with gzip.open(rows, "rt") as lines:
        for line in map(json.loads, lines):
            for side, suffix in SIDES.items():
                path = next((f for folder in folders if (f := folder / f"{line['id']}.{suffix}").exists()), None)
                said = next((f for folder in folders if (f := folder / f"{line['id']}.mem.json").exists()), None)
                peak = json.loads(said.read_text()).get("peak_memory_in_bytes", 0) / 1e6 if said else 0.0
                alike = bool(peak and line.get("peak_mb") and abs(peak / line["peak_mb"] - 1) < ALIKE)
                if said is None and (line["id"], side) in before:
                    alike = before[line["id"], side].alike
                if path is not None and line["ms"]:
                    items.append((line["id"], side, str(path), line["ms"], alike))
    for point in measured_times.gpt2():
        name = f"{point.chip[4:]}.gpt2.{point.sequence}.{point.batch}"
        call = target(point.chip).time["kernel"]["call_us"]
        for side, text in (("source", point.stablehlo), ("dump", point.dump)):
            if text:
                items.append((name, side, text, point.milliseconds - call / 1e3, False))
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(priced, items, chunksize=4))
    for each in found:
        if isinstance(each, str):
            print(f"left out: {each}")
    results = list((before | {(each.name, each.side): each for each in found if isinstance(each, Result)}).values())
    otherwise = {each.name for each in results if each.side == "dump" and not each.alike}
    return [replace(each, alike=each.alike and each.name not in otherwise) for each in results]


def written(results: Sequence[Result]) -> None:
    """Put the results into the file that tests and pages read."""
    with RESULTS.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("id", "side", "modelled_ms", "over_measured", "alike", "made_of"))
        for each in sorted(results, key=lambda each: (each.name, each.side)):
            times = (f"{each.modelled:.4g}", f"{each.ratio:.4g}", int(each.alike))
            table.writerow((each.name, each.side, *times, "; ".join(map(str, each.parts))))


def stored() -> list[Result]:
    """The results that stand in the repository."""
    with RESULTS.open() as lines:
        return [
            Result(
                *(row["id"], row["side"], float(row["modelled_ms"]), float(row["over_measured"]), row["alike"] == "1"),
                tuple(map(part, filter(None, (row.get("made_of") or "").split("; ")))),
            )
            for row in csv.DictReader(lines)
        ]


def part(text: str) -> Part:
    """A part from its text."""
    kind, bound, *numbers = text.rsplit(" ", 4)
    return Part(kind, bound, *map(float, numbers))


def figures(results: Sequence[Result]) -> str:
    """Mean, median and worst error in per cent, of rows that were not fitted; of none three blanks."""
    errors = [each.error for each in results]
    return f"{mean(errors):.1f} | {median(errors):.1f} | {max(errors):.0f}" if errors else " | | "


def kinds(results: Sequence[Result]) -> Iterator[str]:
    """A line for each kind and chip, then for each chip, then for all."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for each in results:
        whole = "all kernels" if each.kernel else "all"
        for group in ((each.op, each.chip), (whole, each.chip), (whole, "all")):
            groups[group].append(each)
    order = sorted(groups, key=lambda group: (group[0].startswith("all"), group[0], [*CHIPS, "all"].index(group[1])))
    yield "| kind | chip | fitted | not fitted | mean | median | worst | dumps | mean | median | worst |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for op, chip in order:
        source, dumps = ([each for each in groups[op, chip] if each.side == side] for side in SIDES)
        fitted = sum(each.fitted for each in source)
        held, held_dumps = ([each for each in some if not each.fitted] for some in (source, dumps))
        name = f"**{op}**" if op.startswith("all") else f"`{op}`"
        parts = (name, chip, str(fitted), str(len(held)), figures(held), str(len(held_dumps)), figures(held_dumps))
        yield f"| {' | '.join(parts)} |"


def held(results: Sequence[Result], side: str, kernels: bool = False) -> list[Result]:
    """The results that were not fitted: of what a compiler made, or of kernels."""
    return [each for each in results if each.side == side and not each.fitted and each.kernel == kernels]


def worst(results: Sequence[Result], kernels: bool = False) -> list[Result]:
    """Of each family that was not fitted the function that is furthest off from source, the worst first."""
    families: dict[str, Result] = {}
    for each in sorted(held(results, "source", kernels), key=lambda each: -each.off):
        families.setdefault(each.name.rpartition(".")[0].rpartition(".")[0], each)
    return list(families.values())[:WORST]


def section(results: Sequence[Result]) -> str:
    """The part of docs/time.md between its two marks."""
    alike = {side: [r for r in held(results, side) if r.alike] for side in SIDES}
    said = {side: figures(some).replace(" | ", " / ") for side, some in alike.items()}
    lines = [*kinds(results), "", *errors_table(results), "", PROSE.format(count=len(alike["source"]), **said)]
    for head, far in (("function", worst(results)), ("kernel", worst(results, kernels=True))):
        lines += ["", f"| {head} | modelled ms | over measured | why |", "|---|--:|--:|---|"]
        lines += [f"| `{r.name}` | {r.modelled:.3g} | {r.ratio:.2f} | {why(r)} |" for r in far]
    return "\n".join([BEGIN, *lines, "", *(f"![{chip}](pictures/time-{chip}.svg)" for chip in DRAWN), END])


def errors_table(results: Sequence[Result]) -> Iterator[str]:
    """What is claimed of kernels of programs: a line for each kind and bound that functions enough are mostly of."""
    found = {chip: seen_errors(results, chip) for chip in CHIPS}
    names = {name for errors in found.values() for name, seen in errors.items() if seen.functions >= FEW}
    yield f"| mostly | {' | '.join(CHIPS)} |"
    yield f"|---|{'--:|' * len(CHIPS)}"
    for name in sorted(names):
        cells = (each if (each := found[chip].get(name)) and each.functions >= FEW else None for chip in CHIPS)
        yield f"| {name} | {' | '.join(f'{100 * e.error:.1f} ({e.functions})' if e else '' for e in cells)} |"


def why(result: Result) -> str:
    """What the model gets wrong there; every function of the table has a reason."""
    return next(text for pattern, text in WHY.items() if re.search(pattern, result.name))


PROSE = """That table is what a row's `.error` is read from: the mean error in per cent and, in brackets, the number of
functions that were not fitted and are mostly of that kind (two thirds of their modelled time and more: kind of kernel,
its narrowest element type, what bounds it), from source or from modules, whichever is further off. Kinds of fewer than
six functions have the error of all, or their own where that is larger; `mixed` and `all` are what a step is told that
is of no one kind, `pallas` what Pallas kernels are.

Of {count} of the rows not fitted the module that a compiler makes has the very peak of memory that was
measured, and passes no more bytes than HBM can in the measured time, so it may be the module that was timed. From
source they are off by {source} % (mean / median / worst), from their dumps by {dump} %. Of the others some were
compiled in another way.

The functions and the kernels furthest off, one of a family of shapes:"""
WHY = {
    r"^v5p\.ragged_dot": "v5p's compiler, as it was timed, multiplied all rows by the weights of every group, which is "
    "as many times the work as there are groups; the one asked today does not",
    r"pallas_tpu_batched_rpa": "how long its sequences are is data: a plain guess is priced",
    r"pallas_mosaic_tpu_v2_ragged_dot": "sums of few products, whose results are large beside them: not explained",
    r"pallas_mosaic_tpu_ragged_dot": "its rows are all of one group, which is data: groups drawn at random are priced",
    r"pallas_": "short kernels, and steps that overlap less than a pipeline does: not explained",
    r"ragged_dot": "its rows are all of one group: weights of the others are neither read nor turned",
    r"xla_chunked_dot_product_attention": "which scores stay near the core inside the loop is predicted by their size",
    r"multi_head_latent_attention": "its loops run as long as the data says, and count once",
    r"batched_rpa": "what the compiler makes of a cache gathered by tables is not predicted; its dump is nearer",
    r"(dsv4_compressor|csa_gather)": "many small gathers of a cache's rows, which take longer, from its dump as well",
    r"(router_top_k|ragged_gather)": "sorts and gathers of few rows: a network that sorts was never measured by itself",
    r".": "which operations share a kernel, or stay near the core, is predicted otherwise than the compiler does",
}
"""Why the functions of a kind are off where they are far off: read from their modules and dumps."""


def drawing(chip: str, results: Sequence[Result]) -> str:
    """Modelled against measured milliseconds of one chip's functions that were not fitted, from source."""
    shown = [each for each in held(results, "source") if each.chip == chip]
    low, high, left, top, size = -3.0, 4.0, 60.0, 16.0, 420.0
    title = f"{chip}: modelled against measured milliseconds"
    about = f"{len(shown)} functions that were not fitted, from source, logarithmic; the lines are 30 % off"
    picture = Drawing(left + size + 20, top + size + 44, title=title, description=about, ground=True)

    def at(value: float) -> float:
        return (log10(min(max(value, 10**low), 10**high)) - low) / (high - low) * size

    for power in range(int(low), int(high) + 1):
        across = at(10.0**power)
        picture.line(left + across, top, left + across, top + size, "grid")
        picture.line(left, top + size - across, left + size, top + size - across, "grid")
        picture.text(left + across, top + size + 18, f"{10.0**power:g}", "small soft", anchor="middle")
        picture.text(left - 6, top + size - across + 4, f"{10.0**power:g}", "small soft", anchor="end")
    for factor in (0.7, 1.0, 1.3):
        ends = [
            (10**low / min(1, factor), 10**low * max(1, factor)),
            (10**high / max(1, factor), 10**high * min(1, factor)),
        ]
        picture.polyline([(left + at(x), top + size - at(y)) for x, y in ends], "curve s1" if factor == 1 else "axis")
    for each in sorted(shown, key=lambda each: each.name):
        tip = f"{each.name}: {each.modelled:.3g} modelled, {each.modelled / each.ratio:.3g} measured"
        picture.circle(left + at(each.modelled / each.ratio), top + size - at(each.modelled), 3, "dot s0", tip=tip)
    picture.text(left + size / 2, top + size + 38, "measured ms", "soft", anchor="middle")
    picture.text(left + 6, top + 14, "modelled ms", "soft")
    return f"{picture.svg()}\n"


def seen_errors(results: Sequence[Result], chip: str) -> dict[str, SeenError]:
    """How far off a chip's functions are that were not fitted, by the kind of kernel that they mostly are, with and
    without what bounds it; ``all`` and ``pallas`` of all kinds together, ``mixed`` of those of many kinds.

    Of source or of modules: of the side that is further off, where both have functions enough. Kinds that few or none
    are mostly of have the range of what takes a tenth of a function and more.
    """
    groups, sizes = defaultdict[str, list[Result]](list), defaultdict[str, list[float]](list)
    for each in (each for kernels in (False, True) for side in SIDES for each in held(results, side, kernels)):
        if each.chip != chip or not each.parts:
            continue
        groups["pallas" if each.kernel else "all"].append(each)
        for part in each.mostly[:1]:
            groups[part.kind].append(each)
            if part.share >= MOSTLY:
                groups[f"{part.kind} {part.bound}"].append(each)
        if not each.mostly and not each.kernel:
            groups["mixed"].append(each)
        for part in each.parts:
            sizes[part.kind] += [part.least, part.most]
    found = {}
    for name in {**groups, **sizes}.keys() - {OTHER}:
        sides = [[each for each in groups[name] if each.side == side] for side in SIDES]
        some = max(sides, key=lambda some: (min(len(some), FEW), error_of(some)))
        if name in WHOLE:
            ends = [1e3 * each.modelled for each in some]
        elif len(some) >= FEW:
            parts = (part for each in some for part in each.mostly)
            ends = [end for p in parts if name in (p.kind, f"{p.kind} {p.bound}") for end in (p.least, p.most)]
        else:
            ends = sizes.get(name, [])
        if ends:
            found[name] = SeenError(error_of(some), len(some), *outwards(ends))
    return found


def error_of(some: Sequence[Result]) -> float:
    """Mean error as a share, to three digits; 0 of none."""
    return float(f"{mean(each.error for each in some) / 100:.3g}") if some else 0.0


def outwards(ends: Sequence[float]) -> tuple[float, float]:
    """The least and the largest to three digits, none cut off."""
    low, high = (float(f"{ends_of(ends):.3g}") for ends_of in (min, max))
    low, high = (low if low <= min(ends) else low * 0.99), (high if high >= max(ends) else high * 1.01)
    return float(f"{low:.3g}"), float(f"{high:.3g}")


def errors_text(errors: Mapping[str, SeenError]) -> str:
    """``[errors]`` as TOML."""
    rows = []
    for kind, seen in sorted(errors.items()):
        cells = ", ".join(f"{name} = {value:g}" for name, value in vars(seen).items())
        rows.append(f'"{kind}" = {{ {cells} }}')
    return "\n".join(["[errors]", f'source = "{SOURCE}"', *rows]) + "\n"


SOURCE = (
    "benchmarks/time_rows.py, functions that were not fitted, mostly of such kernels: mean error, how many functions, "
    "microseconds of one run of their longest kernels (all, mixed, pallas: of the functions), least and most"
)


def state_errors(results: Sequence[Result]) -> None:
    """Put the errors into the files of the chips, and that of all Pallas kernels into the one of all chips."""
    for chip in CHIPS:
        path = TARGETS / "data" / f"{chip}.toml"
        before = re.sub(r"\n\[errors\]\n(?:[^\[\n].*\n)*", "", path.read_text())
        path.write_text(f"{before}\n{errors_text(seen_errors(results, chip))}")
    error, of = pallas_error(results)
    stated = re.compile(r'(\[time\.pallas\]\n(?:[^\[].*\n)*?fitted_on = "[^";]*; )[^"]*"\nerror = .*\n')
    path = TARGETS / "tpu_time.toml"
    path.write_text(stated.sub(lambda match: f'{match[1]}{of}"\nerror = {error}\n', path.read_text()))


def pallas_error(results: Sequence[Result]) -> tuple[float, str]:
    """The mean error as a share of the kernels of all chips together, and of how many."""
    some = held(results, "source", kernels=True)
    return error_of(some), f"the error is of {len(some)} others, from source"


def pairs(rows: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Of each op that was timed as XLA makes it and as kernels: where one kernel is advised, and what that is worth."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    with gzip.open(rows, "rt") as lines:
        for line in map(json.loads, lines):
            key = line["chip"], line["op"], line["key"]
            best[key] = min(best.get(key, line), line, key=lambda each: each["ms"])
    found: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    for (chip, op, key), line in best.items():
        kernels = [row for (c, name, k), row in best.items() if (c, k) == (chip, key) and name in KERNELS.get(op, ())]
        path = next((f for folder in folders if (f := folder / f"{line['id']}.mlir").exists()), None)
        if kernels and path is not None:
            program = load(path.read_text())
            saved = sum(each.saved_us or 0.0 for each in suggest(program, chip) if each.rule.startswith("fused-"))
            modelled = 1e3 * estimate(program, chip).device_seconds
            found[op].append((line["ms"], min(row["ms"] for row in kernels), modelled, modelled - saved / 1e3))
    for op, some in found.items():
        said = [(a, b, after) for a, b, before, after in some if after < before]
        gained = sum(a > b for a, b, _ in said)
        off = (
            f", modelled kernels {100 * median(abs(m / b - 1) for _, b, m in said):.0f} % off (median)" if said else ""
        )
        yield f"{op}: {len(some)} pairs, advised in {len(said)}, of which {gained} gained as measured{off}"


KERNELS = {
    f"{op}{vjp}": [f"pallas_mosaic_tpu_{kernel}{vjp}"]
    for vjp in ("", "_vjp")
    for op, kernel in (
        ("dot_product_attention", "flash_attention"),
        ("linear_softmax_cross_entropy_loss", "linear_softmax_cross_entropy_loss"),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="*", help="ROWS.jsonl.gz, then the folders of programs")
    parser.add_argument("--docs", type=Path, help="put the tables into this page, and draw the pictures")
    parser.add_argument("--pairs", action="store_true", help="hold the advice of one kernel to pairs that were timed")
    parser.add_argument("--write", action="store_true", help="state the errors in the files of the chips")
    options = parser.parse_args()
    if options.pairs:
        print("\n".join(pairs(options.rows[0], options.rows[1:])))
        return
    if options.rows:
        written(computed(options.rows[0], options.rows[1:]))
    results = stored()
    print("\n".join(kinds(results)))
    if options.write:
        state_errors(results)
    if options.docs:
        before, _, after = options.docs.read_text().partition(BEGIN)
        options.docs.write_text(before + section(results) + after.partition(END)[2])
        for chip in DRAWN:
            (PICTURES / f"time-{chip}.svg").write_text(drawing(chip, results), encoding="utf-8")


if __name__ == "__main__":
    main()
