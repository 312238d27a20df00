"""Published tables beside our own figures, with the difference: SCALE-Sim's cycles, and products on two TPU chips.

    python benchmarks/reproduce.py [-o docs/reproduce.md] [--products 12] [--scalesim PYTHON]

It takes a few minutes, for the tuner's sake.

``--products``: of each chip's measured products, evenly over their sizes. ``--scalesim``: a Python that has scalesim
3.0.0 (it wants an environment of its own: ``python -m venv E && E/bin/pip install scalesim==3.0.0 numpy==2.2.6``); what
it prints is written to benchmarks/data/scalesim/printed.csv first. Without it the figures that stand there are taken.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import measured_times
import ml_dtypes
import numpy as np
from matrix_unit import SCALE_CONFIG
from measured_times import Measured

from tilewright.hlo import estimate, load
from tilewright.isa import Input, MatrixUnitConfig, Op, Output, VectorSpec, autotune, matmul
from tilewright.targets import target

DATA = Path(__file__).resolve().parent / "data" / "scalesim"
FLOWS = {"os": "output", "ws": "weight", "is": "input"}
FIGURE_4 = (4, 8, 16, 20, 32, 40, 50, 64, 70, 80, 90)
FOLDED = ((4, 4, 10, 6, 7), (8, 4, 16, 12, 5), (4, 8, 5, 17, 9), (16, 16, 100, 40, 64), (12, 20, 50, 70, 33))
CHIPS = ("tpu-v4", "tpu-v6e")
VMEM_TIMES_HBM = 22
"""Bandwidth of vector memory over that of HBM: "How to Scale Your Model" (jax-ml.github.io/scaling-book), on TPUs."""
VECTOR_LANES = 4 * 8 * 128
"""Operations of a core's vector unit in a cycle, in the same book; a core has four matrix units (v6e: two)."""
LANE_VALUES = 32
"""Values of A, in bf16, that a thread of the machine multiplies in a cycle: the most that one instruction takes."""


# SCALE-Sim's closed forms.


class Mapped(NamedTuple):
    """A product as a dataflow lays it on an array: over its rows, over its columns, and what streams by in time."""

    rows: int
    columns: int
    time: int


def mapped(flow: str, m: int, n: int, k: int) -> Mapped:
    """[m, k] x [k, n]: what stays is C (os), B (ws) or A (is)."""
    return {"os": Mapped(m, n, k), "ws": Mapped(k, n, m), "is": Mapped(k, m, n)}[flow]


def folds(flow: str, height: int, width: int, m: int, n: int, k: int) -> int:
    """How often the array is filled."""
    over = mapped(flow, m, n, k)
    return -(-over.rows // height) * -(-over.columns // width)


def paper_cycles(flow: str, height: int, width: int, m: int, n: int, k: int) -> int:
    """The paper's closed form: every fold takes 2 Sr + Sc + T - 2 cycles, of the whole array."""
    return folds(flow, height, width, m, n, k) * (2 * height + width + mapped(flow, m, n, k).time - 2)


def simulated_cycles(flow: str, height: int, width: int, m: int, n: int, k: int) -> int:
    """As the simulator walks them: what stays is loaded first (ws, is); results of os leave as they are made."""
    if flow != "os":
        return paper_cycles(flow, height, width, m, n, k)
    return folds(flow, height, width, m, n, k) * (height + width + k - 2)


def rows_of(name: str) -> list[dict[str, str]]:
    """A file of figures."""
    with (DATA / name).open() as lines:
        return list(csv.DictReader(lines))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> Iterator[str]:
    """A Markdown table whose first ``words`` columns are text."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * words + "--:|" * (len(head) - words)
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def figure_4() -> Iterator[str]:
    """Square products on arrays of their own size, output stationary."""
    square = [row for row in rows_of("printed.csv") if row["flow"] == "os" and row["m"] == row["k"] == row["height"]]
    printed = {int(row["height"]): int(row["cycles"]) for row in square}
    yield "## Figure 4: products as large as the array, output stationary\n"
    found = []
    for n in FIGURE_4:
        ours, paper = simulated_cycles("os", n, n, n, n, n), paper_cycles("os", n, n, n, n, n)
        published = 10 if n == 4 else ""
        found.append((f"{n} x {n}", ours, published, printed[n], printed[n] - ours, paper, paper - ours))
    head = ("array", "Sr + Sc + T - 2", "figure", "scalesim 3.0.0", "difference", "2 Sr + Sc + T - 2", "difference")
    yield from table(head, found)
    yield (
        "\n*The off-by-one.* The simulator numbers cycles from 0 and prints the number of the last one: 9 where there\n"
        "are ten, 0 to 9 (scalesim-project/SCALE-Sim, issue 125; the figure's 10 for 4 x 4 is from there, the other\n"
        "bars carry no number that we have). What it prints is one too small for every product and dataflow, however\n"
        "many folds there are, as the next table shows.\n\n"
        "*The difference of N.* The paper's closed form counts Sr cycles more, in which results move out of an output\n"
        "stationary array. The figure's cycles and the simulator's end with the last result: results leave through\n"
        "the columns while later ones are made. With weights or inputs stationary the same Sr cycles load what stays."
    )


def folded() -> Iterator[str]:
    """Products larger than the array, and smaller, in all dataflows."""
    yield "\n## Products that are not as large as the array\n"
    wanted = [(r, c, *size) for r, c, *size in FOLDED]
    found = []
    for row in rows_of("printed.csv"):
        height, width, m, n, k = (int(row[name]) for name in ("height", "width", "m", "n", "k"))
        if (height, width, m, n, k) in wanted:
            flow, said = row["flow"], int(row["cycles"])
            ours = simulated_cycles(flow, height, width, m, n, k)
            product = (f"{m} x {n} x {k}", f"{height} x {width}", FLOWS[flow])
            found.append((*product, folds(flow, height, width, m, n, k), ours, said, said - ours))
    head = ("m x n x k", "array", "stationary", "folds", "closed form", "scalesim 3.0.0", "difference")
    yield from table(head, found, 3)


def arrays_of_128() -> Iterator[str]:
    """The cycles that SCALE-Sim's authors publish beside measured TPU times."""
    yield "\n## The authors' cycles of an array of 128 x 128\n"
    yield (
        "From their validation on a TPU ([the rows](../benchmarks/data/scalesim/README.md)). The published figure is\n"
        "the smaller of two dataflows, weights or inputs stationary, without the off-by-one; output stationary, which\n"
        "would need fewer cycles where k is large, was not among them.\n"
    )
    found, sums = [], 0
    for row in rows_of("array_128.csv"):
        m, n, k, cycles = (int(row[name]) for name in ("m", "n", "k", "cycles"))
        each = {flow: paper_cycles(flow, 128, 128, m, n, k) for flow in ("ws", "is")}
        best = min(each, key=lambda flow: each[flow])
        equal = each["ws"] == each["is"]
        kind = "either" if equal else FLOWS[best]
        sums += abs(cycles - each[best])
        found.append((f"{m} x {n} x {k}", kind, f"{each[best]:,}", f"{cycles:,}", cycles - each[best]))
    yield from table(("m x n x k", "stationary", "closed form", "published", "difference"), found, 2)
    yield f"\n{len(found)} products, differences of {sums} cycles together."


# The machine as a TPU chip.


def chip_machine(chip: str) -> tuple[float, MatrixUnitConfig]:
    """GHz, and the matrix unit's machine with the chip's published figures."""
    described = target(chip)
    assert described.matrix is not None
    unit, counted = described.matrix, described.time["kernel"]
    ghz, units = counted["ghz"], unit.units
    memory = {each.name: each for each in described.memories}
    hbm = memory["hbm"].bytes_per_second / (ghz * 1e9)
    threads = round(unit.rows * unit.columns * counted["rows_per_cycle"] / LANE_VALUES)
    # A line takes whole cycles of a bus: the shortest line that comes nearest to the published bandwidth.
    line = max((512, 1024, 2048, 4096), key=lambda each: (round(each / -(-each // hbm)), -each))
    return ghz, MatrixUnitConfig(
        pes=units,
        threads=threads,
        loaders=256,
        a_bytes=2 * LANE_VALUES,
        line_bytes=line,
        l1_bytes=1 << 20,
        l2_bytes=memory["vmem"].bytes,
        dram_bytes_per_cycle=round(hbm),
        l2_bytes_per_cycle=round(VMEM_TIMES_HBM * hbm),
        l1_ports=round(VMEM_TIMES_HBM * hbm / units / 64),
        vector_rate=max(1, round(VECTOR_LANES / 4 / threads)),
        kb_mode="chunk",
        bcast_depth=8,
        values=False,
    )


def modelled(chip: str, m: int, n: int, k: int) -> tuple[float, str, str]:
    """Microseconds of the tuned program with a result in bf16, its options, and what bounds it."""
    ghz, machine = chip_machine(chip)
    tile = (16, machine.line_bytes // 32)
    fixed = {"order": "k_outer", "transpose_b": False, "line": tile, "columns": None, "page": None}
    best = autotune(m, n, k, "bf16", machine, most=12, **fixed).best
    a, b = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((m, k), (k, n)))
    rounded = VectorSpec(m, n, (Input("acc", "f32"),), (Op("convert", (0,), "bf16"),), (Output("y", 1, "bf16"),))
    result = matmul(a, b, machine, epilogue=rounded, **best.choice.options)
    assert not result.errors
    choice = best.choice
    parts = f"ka{choice.ka} kb{choice.kb}, by {choice.split or 'whichever suits'}"
    return result.cycles / ghz / 1e3, parts, best.limit


def chosen(chip: str, count: int) -> list[Measured]:
    """So many of the measured products, evenly over the order of their multiplications."""
    measured = sorted(measured_times.measured(chip, "gemm"), key=lambda row: row.work)
    return [measured[(2 * i + 1) * len(measured) // (2 * count)] for i in range(count)]


def products(count: int) -> Iterator[str]:
    """Measured, by the machine, by the time model."""
    yield "\n## Matrix products on two TPU chips\n"
    yield (
        "Measured by SCALE-Sim's authors ([the rows](../benchmarks/data/tpu_measured/README.md)), bf16, microseconds.\n"
        "*machine*: the matrix unit's machine with the chip's published figures, its program found by `autotune`,\n"
        "sums rounded to bf16 before they are stored. *time model*: [`tilewright time`](time.md), whose constants are\n"
        "fitted on 60 % of all measured products, so on most of these. Nothing of the machine was fitted.\n"
    )
    for chip in CHIPS:
        ghz, c = chip_machine(chip)
        peak = 2 * c.pes * c.threads * LANE_VALUES * ghz / 1e3
        yield (
            f"**{chip}**: {c.pes} processing elements at {ghz} GHz, each {c.threads} threads of {LANE_VALUES}\n"
            f"products a cycle ({peak:.0f} TFLOP/s); device memory {c.dram_bytes_per_cycle} bytes a cycle in lines of "
            f"{c.line_bytes}; L2 of\n{c.l2_bytes >> 20} MiB, {c.l2_bytes_per_cycle} bytes a cycle.\n"
        )
        found, ours, theirs = [], [], []
        for row in chosen(chip, count):
            (_, m, n, k), microseconds = row.sizes, row.microseconds
            machine, options, limit = modelled(chip, m, n, k)
            model_us = 1e6 * (estimate(load(row.text), chip).slowest(1)[0].seconds or 0.0)
            ours.append(machine / microseconds - 1)
            theirs.append(model_us / microseconds - 1)
            cells = (f"{microseconds:.2f}", f"{machine:.2f}", f"{100 * ours[-1]:+.0f} %")
            cells = (*cells, f"{model_us:.2f}", f"{100 * theirs[-1]:+.0f} %")
            found.append((f"{m} x {n} x {k}", options, limit, *cells))
        head = ("m x n x k", "program", "bound by", "measured", "machine", "difference", "time model", "difference")
        yield from table(head, found, 3)
        middle = [100 * statistics.median(abs(each) for each in of) for of in (ours, theirs)]
        yield f"\nMedian of the absolute differences: machine {middle[0]:.0f} %, time model {middle[1]:.0f} %.\n"


WHY = """*Where the machine is off.* Too fast for the smallest products: a TPU takes 0.8 to 0.9 us to begin any kernel,
which the machine does not have. Too slow where k or n is small, or n a little more than a line: lines of A and C lie
along rows here and move whole, so that a row of 22 bytes takes a line of device memory; a TPU's tiles have 8 or 16
rows. Too slow, also, where operands fit beside the core: a TPU keeps them there between calls (measured times jump
where they no longer fit), and the machine begins with cold memories. Where rows fill their lines and the product is
large it comes within a quarter."""


# SCALE-Sim itself.

RUN = """import contextlib, io, json, sys, tempfile
from pathlib import Path
from scalesim.scale_sim import scalesim
config, wanted = json.load(sys.stdin)
for height, width, flow, m, n, k in wanted:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        at = Path(folder)
        text = config.replace("ArrayHeight: 16", f"ArrayHeight: {height}")
        text = text.replace("ArrayWidth: 16", f"ArrayWidth: {width}")
        (at / "c.cfg").write_text(text.replace("Dataflow: ws", f"Dataflow: {flow}"))
        (at / "t.csv").write_text(f"Layer,M,N,K,\\ngemm,{m},{n},{k},\\n")
        (at / "l.csv").write_text("Layer," * 25 + "\\ngemm," + "1," * 24 + "\\n")
        paths = {"config": f"{at}/c.cfg", "topology": f"{at}/t.csv", "layout": f"{at}/l.csv"}
        s = scalesim(save_disk_space=True, verbose=False, input_type_gemm=True, **paths)
        s.run_scale(top_path=folder)
        cycles = int(float(s.runner.single_layer_sim_object_list[0].get_compute_report_items()[1]))
    print(height, width, flow, m, n, k, cycles, sep=",", flush=True)
"""


def ask_scalesim(python: str) -> None:
    """Let SCALE-Sim print all of printed.csv anew."""
    squares = [(n, n, "os", n, n, n) for n in FIGURE_4]
    others = [(height, width, flow, m, n, k) for height, width, m, n, k in FOLDED for flow in FLOWS]
    given = json.dumps([SCALE_CONFIG, squares + others])
    done = subprocess.run([python, "-c", RUN], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"SCALE-Sim did not run: {done.stderr.strip().splitlines()[-1:]}")
    (DATA / "printed.csv").write_text("height,width,flow,m,n,k,cycles\n" + done.stdout)


HEAD = """# Published tables, printed again

```sh
./run python benchmarks/reproduce.py -o docs/reproduce.md
```

writes this page: figures of others, and beside each what our closed forms, the matrix unit's machine and the time model
say of it, with the difference.

SCALE-Sim models a systolic array of Sr x Sc multipliers. A product is laid over it by what stays in place, results
(output stationary), weights or inputs, in as many folds as it needs, and takes T steps of what streams by in each.
*Closed forms* are those of "A Systematic Methodology for Characterizing Scalability of DNN Accelerators using
SCALE-Sim" (Samajdar and others, ISPASS 2020): folds x (2 Sr + Sc + T - 2).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--products", type=int, default=12)
    parser.add_argument("--scalesim", metavar="PYTHON")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.scalesim:
        ask_scalesim(asked.scalesim)
    found = [HEAD]
    print(HEAD)
    for part in (figure_4(), folded(), arrays_of_128(), products(asked.products)):
        for line in part:
            found.append(line)
            print(line, flush=True)
    print(WHY)
    if asked.output:
        asked.output.write_text("\n".join([*found, WHY]) + "\n")


if __name__ == "__main__":
    main()
