"""Whether the tuner's best is beaten by random programs of the same generator.

    python benchmarks/random_search.py [--programs 2000] [--seed 0] [-o FILE.md]

Every program is legal and drawn from everything ``matmul`` takes, not from the choices the tuner considers: any ka, kb,
columns, lines, pages, segments, blocks of A, and kb of the last rows. One whose closed-form bound is no better than the
tuner's best is counted without a run. Ends with 1 where any is faster, or faster than its bound.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.isa import MatrixUnitConfig, autotune
from tilewright.isa.study.choices import Choice, Problem

SHAPES = (
    *((64, 64, 64, 256), (256, 256, 256, 256), (512, 512, 512, 256), (1, 1000, 2048, 256)),
    *((49, 512, 512, 256), (16, 64, 64, 64), (100, 300, 96, 128), (784, 128, 512, 256)),
)


def legal(rng: random.Random, problem: Problem) -> Choice:
    """Any options that make a program; some that do not fit are found out by the run."""
    c, e = problem.config, problem.element_bytes
    ka = rng.choice((1, rng.randint(1, min(c.threads, 16)), 1 << rng.randrange(5)))
    kb = min(rng.choice((1, rng.randint(1, 32), 1 << rng.randrange(6))), c.threads // ka)
    order = "column_outer" if rng.random() < 0.05 else "k_outer"
    walks = rng.random() < 0.35
    columns = rng.choice((None, rng.randint(1, min(c.threads, ka * 256)), min(c.threads, problem.n)))
    elements = c.line_bytes // e
    along = 1 << rng.randrange(elements.bit_length())
    line = rng.choice((None, (along, elements // along)))
    rows, run = (problem.k, problem.n) if walks else (problem.n, problem.k)
    segments = rng.choice((None, None, rng.randint(1, min(16, problem.n))))
    high, wide = line or (1, elements)
    sides = [-(-rng.randint(1, size) // side) * side for size, side in ((rows, high), (run, wide))]
    page = rng.choice((None, tuple(sides)))
    block = rng.choice((1, rng.randint(1, 12), 1 << rng.randrange(4))) if order == "k_outer" else 1
    tail_kb = rng.choice((None, rng.randint(1, c.threads // ka), min(c.threads // ka, 1 << rng.randrange(6))))
    if kb > 1 and block > 1:
        tail_kb = None
    return Choice(ka, kb, order, walks, columns, line, page, None, segments, block, tail_kb)


def search(shape: tuple[int, int, int, int], programs: int, seed: int) -> dict[str, object]:
    """The tuner's best, and the best of so many random programs."""
    m, n, k, threads = shape
    config = MatrixUnitConfig(threads=threads)
    start = time.perf_counter()
    tuning = autotune(m, n, k, config=config)
    tuned = time.perf_counter() - start
    rng, problem = random.Random(f"{seed} {shape}"), Problem(m, n, k, 1, config)
    best, options, seen, runs = None, "", set(), 0
    start = time.perf_counter()
    while len(seen) < programs:
        choice = legal(rng, problem)
        if choice in seen:
            continue
        try:
            if max(problem.busy(choice).values()) < min(tuning.best.cycles, best or 1 << 62):
                found, weights = problem.runs("s8", choice)
                runs += 1
                cycles = sum(run.cycles * weight for run, weight in zip(found, weights, strict=True))
                if not found[0].errors and cycles < max(problem.busy(choice).values()):
                    sys.exit(f"{choice}: {cycles} cycles are below its bound")
                if not found[0].errors and (best is None or cycles < best):
                    best, options = cycles, str(choice)
        except TilewrightError:
            continue  # not legal
        seen.add(choice)
    row = {"shape": f"{m} x {n} x {k}, {threads} threads", "tuned": tuning.best.cycles, "by": str(tuning.best.choice)}
    row |= {"random": best, "random by": options, "programs": len(seen), "run": runs}
    return row | {"tuner's s": round(tuned, 1), "search's s": round(time.perf_counter() - start, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", type=int, action="append", help="only this one of the eight")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows, beaten = [], 0
    for shape in [SHAPES[i] for i in asked.shape] if asked.shape else SHAPES:
        row = search(shape, asked.programs, asked.seed)
        if not rows:
            rows += ["| " + " | ".join(row) + " |", "|" + "---|" * len(row)]
        beaten += row["random"] is not None and row["random"] < row["tuned"]
        rows.append("| " + " | ".join("none can be" if value is None else str(value) for value in row.values()) + " |")
        print(rows[-1], flush=True)
    if asked.output:
        asked.output.write_text("\n".join(rows) + "\n")
    return int(beaten > 0)


if __name__ == "__main__":
    sys.exit(main())
