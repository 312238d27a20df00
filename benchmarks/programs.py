"""Programs: how fast they are loaded, reported and rewritten, and what rewriting gains on XLA's CPU.

    python benchmarks/programs.py [-o docs/programs_speed.md] [--rounds 15] [--only NAME ...] [--cpu-time]

Every part runs in a process of its own. Each round times every candidate once and the least time of all rounds counts,
so that a disturbance hits all alike; results are compared first. ``--cpu-time`` counts processor seconds instead of
wall-clock ones for the parts that run on one thread, for a machine that others use too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import networks
import numpy as np

from tilewright.hlo.graphs.graph import collector_paused

SIZES = (10_000, 20_000, 40_000, 80_000)
DUMP = Path(__file__).parents[2] / "shared/data/hlo_public/nv_maxtext_1n1g_jit_train_step_before_optimization.hlo"
#: glibc gives big arrays back to the kernel after every call; with these it keeps them, as a training loop's pool does.
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**28)}


class Clock:
    """Least seconds of named steps over rounds."""

    def __init__(self, cpu: bool) -> None:
        self.now = time.process_time if cpu else time.perf_counter
        self.least: dict[str, float] = {}

    def __call__(self, name, step):
        gc.collect()
        with collector_paused():  # as load, report and optimize do
            start = self.now()
            value = step()
            taken = self.now() - start
        self.least[name] = min(taken, self.least.get(name, taken))
        return value


# -- load, report, rewrite ---------------------------------------------------------------------------------------------


def network(size: int, rounds: int, cpu: bool) -> dict[str, float]:
    """Every step on the way of a module of ``size`` operations, in seconds, and the peak memory in bytes."""
    from tilewright.hlo import load, optimize, report
    from tilewright.hlo.gating.gate import gate
    from tilewright.hlo.graphs.mlir import read_functions, write_functions
    from tilewright.hlo.ir import parse_module, print_module, verify_module
    from tilewright.hlo.reading.mlir_reader import read_stablehlo
    from tilewright.hlo.rewrites.inline import Inline
    from tilewright.hlo.rewrites.pipeline import fixpoint, pipeline
    from tilewright.hlo.rewriting.base import Rewrite
    from tilewright.targets import target

    text, chip, clock = networks.deep_network(size), target("vector8x128"), Clock(cpu)
    steps = [step for step in pipeline() if isinstance(step, Rewrite)]
    optimize(load(networks.deep_network(100)), chip)  # imports and the IR's dialects
    for _ in range(rounds):
        program = clock("load", lambda: load(text))
        clock("report", lambda program=program: report(program, chip))
        module = clock("parse", lambda: parse_module(text))
        clock("inline", lambda module=module: Inline().apply_module(module))
        bodies = clock("read", lambda module=module: read_functions(module))
        accepted, refused = clock("rewrite", lambda bodies=bodies: gate(bodies, chip, steps))
        clock("emit", lambda module=module, bodies=bodies: write_functions(module, bodies))
        clock("verify", lambda module=module: verify_module(module))
        printed = clock("print", lambda module=module: print_module(module, locations=True))
        clock("read back", lambda printed=printed: read_stablehlo(printed))
        [block] = read_functions(parse_module(text))
        changes = clock("ungated", lambda block=block: fixpoint(block, steps))
        different = read_functions(parse_module(networks.deep_network(size, alike=False)))
        clock("none alike", lambda bodies=different: gate(bodies, chip, steps))
        found = clock("optimize", lambda program=program: optimize(program, chip))
    assert len(found.rewrites) == len(accepted)
    counts = {
        "operations": sum(len(c.operations) for c in program.computations),
        "accepted": len(accepted),
        "refused": len(refused),
        "changes": changes.total(),
    }
    return {**counts, **clock.least, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def networks_table(asked):
    """Sizes 1x to 8x, each in a process of its own."""
    names = ("load", "report", "rewrite", "none alike", "ungated", "optimize")
    yield "## Modules of 10,000 operations and more\n"
    yield NETWORKS + "\n"
    yield f"| operations | regions rewritten, left | {' | '.join(names)} | peak memory |"
    yield f"|--:|--:|{'--:|' * len(names)}--:|"
    every = {}
    for size in SIZES:
        found = every[size] = in_child("network", size, max(2, asked.rounds * SIZES[0] // size // 3), asked.cpu_time)
        cells = " | ".join(f"{found[name]:.2f} s" for name in names)
        regions = f"{found['accepted']}, {found['refused']}"
        yield f"| {found['operations']:,} | {regions} | {cells} | {found['peak'] / 2**20:.0f} MiB |"
    first, last = every[SIZES[0]], every[SIZES[-1]]
    growth = [last[name] / first[name] / (SIZES[-1] / SIZES[0]) for name in names]
    yield "| growth against linear | | " + " | ".join(f"{each:.2f}" for each in growth) + " | |"
    yield "\nWhere `optimize` spends its time at the smallest size; parse, verify and print are jaxlib's own:\n"
    parts = ("parse", "inline", "read", "rewrite", "emit", "verify", "print", "read back")
    yield f"| {' | '.join(parts)} |\n|{'--:|' * len(parts)}"
    yield f"| {' | '.join(f'{first[name] * 1e3:.0f} ms' for name in parts)} |"
    floor = sum(first[name] for name in ("parse", "verify", "print"))
    yield f"\njaxlib's share: {floor / sum(first[name] for name in parts):.0%}."


def dump(rounds: int, cpu: bool) -> dict[str, float]:
    from tilewright.hlo import load, report
    from tilewright.hlo.timing.estimate import _predict

    clock = Clock(cpu)
    load("HloModule m\nENTRY e {\n  ROOT p = f32[3,5] parameter(0)\n}")
    for _ in range(rounds):
        _predict.cache_clear()  # every round prices the step anew
        program = clock("load", lambda: load(DUMP))
        rows = clock("report", lambda program=program: report(program, "tpu-v5e").rows)
    return {**clock.least, "rows": len(rows), "operations": sum(len(c.operations) for c in program.computations)}


def dump_table(asked):
    yield "## A real dump\n"
    if not DUMP.exists():
        yield f"({DUMP.name} is not beside this repository.)"
        return
    found = in_child("dump", asked.rounds, asked.cpu_time)
    yield "| file | operations | load | report | rows |\n|---|--:|--:|--:|--:|"
    times = f"{found['load']:.2f} s | {found['report']:.2f} s"
    yield f"| {DUMP.name} ({DUMP.stat().st_size / 1e6:.1f} MB) | {found['operations']:,} | {times} | {found['rows']} |"


# -- XLA's CPU ---------------------------------------------------------------------------------------------------------


def random_like(*shapes):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def cases():
    """name -> (function, arguments, least ratio asked for)."""
    import jax

    image, channels = (8, 32, 32, 256), (256,)
    x, scale, bias = random_like(image, channels, channels)
    cotangent = random_like(channels, image)[1]

    def loss(*args):
        return (networks.group_norm(*args) ** 2).sum()

    def pullback(cotangent, *args):
        return jax.vjp(norm, *args)[1](cotangent)

    norm = networks.group_norm
    return {
        "sums over groups f32[8,32,32,256], 32 groups": (networks.group_sum, (x,), 3.0),
        "group norm": (norm, (x, scale, bias), 2.0),
        "its gradient by x": (jax.grad(loss), (x, scale, bias), 1.3),
        "its gradient by x, scale and bias": (jax.grad(loss, argnums=(0, 1, 2)), (x, scale, bias), 1.3),
        "its value and gradient": (jax.value_and_grad(loss, argnums=(0, 1, 2)), (x, scale, bias), 1.3),
        "its pullback of a cotangent": (pullback, (cotangent, x, scale, bias), 1.3),
        "norm over fields f32[256,27,32], 4 groups": (networks.field_norm, random_like((256, 27, 32), (32,), (32,)), 0),
    }  # fmt: skip


def race(original, rewritten, args, rounds: int) -> dict[str, float]:
    """Least milliseconds of both, the original's second least as noise, and how far the results are apart."""
    import jax

    def run(fn):
        return jax.block_until_ready(fn(*args))

    first, second = (jax.tree.leaves(run(fn)) for fn in (original, rewritten))
    apart = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(first, second, strict=True))
    assert apart < 1e-3, f"the programs differ by {apart} of the largest value"
    least = [float("inf")] * 3
    for _ in range(rounds):
        for k, fn in enumerate((original, rewritten, original)):
            start = time.perf_counter()
            run(fn)
            least[k] = min(least[k], time.perf_counter() - start)
    before, after, again = (1e3 * each for each in least)
    return {"before": before, "after": after, "ratio": before / after, "noise": again / before, "apart": apart}


def gains(rounds: int) -> dict[str, dict[str, float]]:
    """Original and rewritten functions that the gate accepted for the target ``cpu``, each under jit."""
    import jax

    from tilewright.hlo import from_jax, optimize

    found = {}
    for name, (fn, args, wanted) in cases().items():
        args = jax.device_put(args)
        done = optimize(from_jax(fn, *args), "cpu")
        assert done.rewrites, f"the gate refused {name}"
        reason = done.rewrites[0].reason
        found[name] = {**race(jax.jit(fn), done.callable(), args, rounds), "wanted": wanted, "reason": reason}
    return found


def gains_table(asked):
    yield "## Original over rewritten on XLA's CPU\n"
    yield GAINS + "\n"
    kept, default = (in_child("gains", asked.rounds, env=env) for env in (KEPT_MEMORY, {}))
    head = (
        "program",
        "original ms",
        "rewritten ms",
        "ratio",
        "asked for",
        "noise",
        "apart",
        "ratio, default allocator",
    )
    yield f"| {' | '.join(head)} |\n|---|{'--:|' * (len(head) - 1)}"
    for name, one in kept.items():
        wanted = f"{one['wanted']:.1f}" if one["wanted"] else "-"
        times = f"{one['before']:.2f} | {one['after']:.2f} | {one['ratio']:.2f} | {wanted} | {one['noise']:.2f}"
        other = default[name]
        yield f"| {name} | {times} | {one['apart']:.0e} | {other['ratio']:.2f} (noise {other['noise']:.2f}) |"
    yield "\nThe gate's reasons:\n"
    yield from (f"* {name}: {one['reason']}" for name, one in kept.items())


# -- what the gate refuses, and what short_run_bytes is calibrated on --------------------------------------------------


def forced(program):
    """The program after all rewrites, without asking the gate."""
    from tilewright.hlo import DEFAULT_PIPELINE, load, parse_pipeline, run_pipeline

    text = run_pipeline(program.text, parse_pipeline(DEFAULT_PIPELINE))[0]
    return replace(load(text), signature=program.signature)


def refusals(rounds: int) -> dict[str, dict[str, object]]:
    """Programs that are better left alone: is their text identical, and what would rewriting cost?"""
    import jax

    from tilewright.hlo import from_jax, optimize
    from tilewright.hlo.execute import callable_of

    programs = {
        "grouped layer norm [8,512,16,64]": (networks.grouped_layer_norm, ((8, 512, 1024), (1024,), (1024,))),
        "ghost batch norm, NHWC": (networks.ghost_batch_norm, ((64, 16, 16, 256), (256,), (256,))),
        "attention head split and merge": (networks.attention, ((2, 128, 1024), (1024, 1024), (1024, 1024))),
    }
    found = {}
    for name, (fn, shapes) in programs.items():
        args = jax.device_put(random_like(*shapes))
        program = from_jax(fn, *args)
        kept = [t for t in ("vector8x128", "cpu", "tpu-v5e") if optimize(program, t).text == program.text]
        times = race(jax.jit(fn), callable_of(forced(program)), args, rounds)
        reasons = [refusal.reason for refusal in optimize(program, "vector8x128").refusals]
        found[name] = {**times, "kept": kept, "reason": reasons[0] if reasons else "no region"}
    return found


def refusals_table(asked):
    yield "## Refused\n"
    yield REFUSALS + "\n"
    head = ("program", "text identical on", "original over forced", "noise", "reason on vector8x128")
    yield f"| {' | '.join(head)} |\n|---|---|--:|--:|---|"
    for name, one in in_child("refusals", asked.rounds, env=KEPT_MEMORY).items():
        yield f"| {name} | {', '.join(one['kept'])} | {one['ratio']:.2f} | {one['noise']:.2f} | {one['reason']} |"


def calibration(rounds: int) -> dict[str, dict[str, object]]:
    """Sums and norms of f32[8,32,32,256] whose inner runs are 8 to 512 bytes, rewritten without the gate."""
    import jax

    from tilewright.hlo import from_jax, optimize
    from tilewright.hlo.execute import callable_of

    x, scale, bias = jax.device_put(random_like((8, 32, 32, 256), (256,), (256,)))
    found = {}
    for run in (2, 4, 8, 16, 32, 64, 128):
        for kind, fn, args, groups in (
            ("sum", networks.group_sum, (x,), 256 // run),
            ("norm", networks.group_norm, (x, scale, bias), 256 // run),
            ("kept sum", networks.group_sum_minor, (x,), run),
            ("kept norm", networks.group_norm_minor, (x, scale, bias), run),
        ):
            grouped = partial(fn, groups=groups)
            program = from_jax(grouped, *args)
            times = race(jax.jit(grouped), callable_of(forced(program)), args, rounds)
            found[f"{run} {kind}"] = {**times, "accepted": bool(optimize(program, "cpu").rewrites)}
    return found


def calibration_table(asked):
    from tilewright.targets import target

    chip = target("cpu")
    yield "## Calibration of the target `cpu`\n"
    yield CALIBRATION.format(reduced=chip.short_run_bytes, kept=chip.short_kept_run_bytes) + "\n"
    found = in_child("calibration", asked.rounds, env=KEPT_MEMORY)
    yield "| inner run | (G, C/G): sums | group norm | (C/G, G): sums | group norm |\n|--:|--:|--:|--:|--:|"
    for run in sorted({int(name.split()[0]) for name in found}):
        cells = [found[f"{run} {kind}"] for kind in ("sum", "norm", "kept sum", "kept norm")]
        text = (f"{c['ratio']:.2f} {'taken' if c['accepted'] else '-'} (noise {c['noise']:.2f})" for c in cells)
        yield f"| {run * 4} bytes | {' | '.join(text)} |"


# -- the page ----------------------------------------------------------------------------------------------------------

NETWORKS = """A residual stream of normalised, linear and tanh layers, written by `benchmarks/networks.py`, target
`vector8x128`. *load*: text to program. *report*: program to rows. *rewrite*: graph to graph, every region judged and
put back, regions that are alike tried once. *none alike*: the same with a constant of its own in every layer, so that
every region is tried. *ungated*: all rewrites to their fixpoint, no region and no gate. *optimize*: the whole road from
program to program, through jaxlib's parser, verifier and printer. Peak memory is of the whole process, jax included."""

GAINS = """Each pair runs under `jit` in one process on all cores; the gate accepted every one of them for the target
`cpu`. *noise* is the original against itself, *apart* the largest difference of the results over the largest value.
In the first columns the allocator keeps the memory of temporaries, as the pool of a training process does:
{environment}.
By default glibc returns arrays this big to the kernel after each call, and both programs then spend most of a
gradient's time on page faults: the last column.""".format(
    environment=", ".join(f"`{key}={value}`" for key, value in KEPT_MEMORY.items())
)

REFUSALS = """Programs whose reshapes are better left where they are. *original over forced* is what all rewrites would
have done to them on XLA's CPU: below 1 they would have been slower."""

CALIBRATION = """A reduction on linear memory is charged s / r - 1 times its operand if its contiguous inner run of r
bytes is shorter than s. Where the run is reduced, order (G, C/G), s is {reduced} (`short_run_bytes`); where it is kept,
order (C/G, G), s is {kept} (`short_kept_run_bytes`). Both were read off this table: sums and norms of f32[8,32,32,256]
at every length of the run, rewritten without asking the gate. The figures are original over rewritten; *taken* is where
the gate rewrites. Kept runs of 64 and 128 bytes gain in sums alone and lose in a norm; s is on the safe side."""

INTRODUCTION = """# Programs: speed

Made by `python benchmarks/programs.py{options} -o docs/programs_speed.md` on {machine}; least times of {rounds}
interleaved rounds{clock}.
"""

CHILDREN = (network, dump, gains, refusals, calibration)
TABLES = (networks_table, dump_table, gains_table, refusals_table, calibration_table)


def in_child(name: str, *args, env=()):
    """The result of a function of this file in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps([name, *args])]
    out = subprocess.run(command, env={**os.environ, **dict(env)}, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def machine() -> str:
    import jax

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")] or [platform.processor()]
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}"
    return f"{names[0]}, {os.cpu_count()} cores (shared with other work), {platform.system()}; {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="processor seconds for what runs on one thread")
    parser.add_argument("--only", nargs="+", choices=[each.__name__.removesuffix("_table") for each in TABLES])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        name, *args = json.loads(asked.child)
        print(json.dumps({each.__name__: each for each in CHILDREN}[name](*args)))
        return
    options = " --cpu-time" if asked.cpu_time else ""
    clock = ", processor seconds in the first two tables" if asked.cpu_time else ""
    found = [INTRODUCTION.format(machine=machine(), rounds=asked.rounds, options=options, clock=clock)]
    print(*found, sep="\n")
    for table in TABLES:
        if asked.only and table.__name__.removesuffix("_table") not in asked.only:
            continue
        for line in table(asked):
            found.append(line)
            print(line, flush=True)
        found.append("")
        print()
    if asked.output:
        asked.output.write_text("\n".join(found).rstrip() + "\n")


if __name__ == "__main__":
    main()
