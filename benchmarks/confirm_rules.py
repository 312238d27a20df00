"""Confirm the rules: what a compiler or a clock says about each rule's example, before and after the rule.

    ./run python benchmarks/confirm_rules.py                         every rule, on every chip that can be asked
    ./run python benchmarks/confirm_rules.py --rules average-pool --chips tpu-v5e cpu
    ./run python benchmarks/confirm_rules.py --dry                   print, write nothing

A TPU's figure is its compiler's estimated cycles before over after (ahead of time, no TPU needed; `pip install
'jax[tpu]'` brings the compiler). Those of `cpu` and `gpu` are the least of interleaved runs of both programs; the
values are compared first. The rows go to src/tilewright/hlo/rules/confirmed.json, where the gate and docs/rules.md read
them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.hlo import Program, catalogue, load, parse_pipeline, run_pipeline
from tilewright.hlo.execute import flat_callable
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.proving.tpu import judge_on_tpu
from tilewright.hlo.proving.trials import trial_inputs
from tilewright.hlo.proving.verify import main_types
from tilewright.hlo.rules.rule import Rule, bindings, program_of

TABLE = Path(__file__).parent.parent / "src/tilewright/hlo/rules/confirmed.json"
TPUS = ("tpu-v5e", "tpu-v6e", "tpu-v5p")
ROUNDS = 15
PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}


def pair(rule: Rule[Any]) -> tuple[Program, Program]:
    """A rule's example at the confirmed sizes, and what the rule alone makes of it; an advice's is what it says.

    Both have their calls inlined: that alone made the estimate of a block of group norms 1.8 times better.
    """
    sizes = bindings(rule.example.sizes)
    before, after = (program_of(rule, part, sizes).text for part in ("before", "after" if not rule.build else "before"))
    passes = f"inline,{rule.name}" if rule.build else "inline"
    text, counts = run_pipeline(after, parse_pipeline(passes))
    if rule.build and not counts[rule.name]:
        raise SystemExit(f"{rule.name} does not act on its own example")
    return load(run_pipeline(before, parse_pipeline("inline"))[0]), load(text)


def row(rule: Rule[Any], chip: str, factor: float, kind: str, by: str) -> dict[str, Any]:
    today = datetime.date.today().isoformat()
    return {"rule": rule.name, "chip": chip, "factor": round(factor, 3), "kind": kind, "by": by, "date": today}


def on_tpu(rules: list[Rule[Any]], chip: str) -> list[dict[str, Any]]:
    """The compiler's estimates, all pairs in one process."""
    rows = []
    for rule, judged in zip(rules, judge_on_tpu([pair(rule) for rule in rules], chip.removeprefix("tpu-"))):
        if isinstance(judged, TilewrightError):
            print(f"{chip:8} {rule.name:40} {judged}")
            continue
        shares = f"{judged.before.filled_share:.0%} and {judged.after.filled_share:.0%} filled in"
        temporaries = f"temporaries {judged.before.temp_bytes:,} -> {judged.after.temp_bytes:,}"
        print(f"{chip:8} {rule.name:40} {judged.ratio:8.2f}   {shares}, {temporaries}")
        rows.append(row(rule, chip, judged.ratio, "estimated", judged.compiler))
    return rows


def on_this_machine(rules: list[Rule[Any]], chip: str) -> list[dict[str, Any]]:
    """Least of interleaved runs on the first device of this process."""
    import jax

    device = jax.devices()[0]
    by = f"jax {version('jax')}, {device.device_kind if chip == 'gpu' else platform.processor() or platform.machine()}"
    rows = []
    for rule in rules:
        programs = pair(rule)
        arrays = [jax.device_put(x, device) for x in inputs_of(programs[0])]
        calls = []
        with jax.enable_x64(True):
            for program in programs:
                inputs, outputs = main_types(program.text)
                calls.append(
                    jax.jit(flat_callable(program.text, inputs, outputs, platform=PLATFORMS[chip]))
                    .lower(*arrays)
                    .compile()
                )
        results = [jax.tree.leaves(call(*arrays)) for call in calls]
        apart = max(distance(a, b) for a, b in zip(*results))
        best = [float("inf")] * 2
        for _ in range(ROUNDS):
            for k, call in enumerate(calls):
                start = time.perf_counter()
                jax.block_until_ready(call(*arrays))
                best[k] = min(best[k], time.perf_counter() - start)
        print(
            f"{chip:8} {rule.name:40} {best[0] / best[1]:8.2f}   "
            f"{best[0] * 1e3:.3f} -> {best[1] * 1e3:.3f} ms, apart {apart:.1e}"
        )
        if apart < 0.1:
            rows.append(row(rule, chip, best[0] / best[1], "measured", by))
    return rows


def inputs_of(program: Program) -> list[Any]:
    """Ordinary numbers for the program's arguments."""
    return trial_inputs(read_functions(parse_module(program.text))[0].arguments, "normal", 0)


def distance(a: Any, b: Any) -> float:
    """The largest difference of two results, in units of the largest element."""
    left, right = (np.asarray(x).astype(np.float64) for x in (a, b))
    return float(np.abs(left - right).max() / max(np.abs(left).max(), 1e-30)) if left.size else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*")
    parser.add_argument("--chips", nargs="*", help="tpu-v5e tpu-v6e tpu-v5p cpu gpu")
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    rules = [rule for rule in catalogue().values() if not asked.rules or rule.name in asked.rules]
    chips = asked.chips or [*(TPUS if find_spec("libtpu") else ()), "cpu"]
    rows = json.loads(TABLE.read_text())["rows"] if TABLE.exists() else []
    for chip in chips:
        for new in (
            on_tpu(rules, chip)
            if chip.startswith("tpu")
            else on_this_machine([rule for rule in rules if rule.build], chip)
        ):
            rows = [old for old in rows if (old["rule"], old["chip"]) != (new["rule"], new["chip"])] + [new]
    rows = sorted((r for r in rows if r["rule"] in catalogue()), key=lambda r: (r["rule"], r["chip"]))
    if not asked.dry:
        TABLE.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
