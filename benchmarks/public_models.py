"""Public models from the package index: made into StableHLO, optimised, and judged.

    python benchmarks/public_models.py make FOLDER
    python benchmarks/public_models.py flops FOLDER
    python benchmarks/public_models.py judge FOLDER [--only NAME ...] [--rounds 7] [--no-tpu] [-o docs/public_models.md]

``make`` installs the libraries into environments under FOLDER and writes each model's forward and gradient with small
random weights at usual layer widths, few layers deep: NAME.mlir, and what its inputs are like in manifest.json.
``flops`` holds the time model's count of flops to that of each function's jaxpr, and says what has no time.
``judge`` rewrites every program for a TPU and for the CPU. What changed is compared on values, timed on the CPU (least
times of interleaved rounds) and compiled for the TPU by its own compiler, whose cycle estimates are added up. Every
program gets a process of its own, and results are kept in FOLDER/judged: only what is not there is judged again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent / "public_models"
#: Environments: what is installed with its dependencies, what without, and the files of HERE that run in each.
ENVIRONMENTS = {
    "new": (
        ["jax==0.10.2", "flax==0.12.8", "equinox==0.13.8", "keras==3.15.1", "dm-haiku==0.0.17", "equimo==1.1.0",
         "penzai==0.2.5", "optax==0.2.8", "gemma==3.3.0", "sentencepiece==0.2.0", "kagglehub", "tokenizers",
         "tensorflow", "regex"],
        ["keras-hub==0.32.0"],
        ["penzai", "gemma", "haiku", "equimo", "keras", "keras_hub", "steps"],
    ),
    "flax": (
        ["jax==0.4.30", "jaxlib==0.4.30", "flax==0.8.5", "transformers==4.49.0", "diffusers==0.32.2", "numpy<2",
         "scipy<1.14", "optax<0.2.5", "chex<0.1.87", "pillow", "h5py", "setuptools<81"],
        ["flaxmodels==0.1.3", "dataclasses-json", "marshmallow", "typing-inspect"],
        ["transformers", "diffusers", "flaxmodels"],
    ),
    "eqxvision": (
        ["jax==0.4.13", "jaxlib==0.4.13", "numpy<2", "scipy<1.12", "equinox==0.9.2", "jaxtyping==0.2.20",
         "setuptools==68", "ml-dtypes==0.2.0"],
        ["eqxvision==0.2.8"],
        ["eqxvision"],
    ),
}  # fmt: skip
TPU_COMPILER = "libtpu==0.0.42.1"
TARGETS = ("tpu-v5e", "cpu")
#: Outputs whose elements differ by at most this share of the largest are said to agree; others are held to float64.
CLOSE = 1e-3


# -- make --------------------------------------------------------------------------------------------------------------


def make(folder: Path) -> None:
    """Install what is missing, write what is missing, and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (packages, alone, libraries) in ENVIRONMENTS.items():
        python = folder / f"env-{name}" / "bin" / "python"
        if not python.exists():
            _uv("venv", "--quiet", "--python", sys.executable, str(python.parents[1]))
            _uv("pip", "install", "--quiet", "--python", str(python), *packages)
            _uv("pip", "install", "--quiet", "--python", str(python), "--no-deps", *alone)
        for library in libraries:
            environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
            environment.pop("PYTHONPATH", None)
            subprocess.run([str(python), str(HERE / "writing.py"), library, str(folder)], env=environment, check=False)
    from tilewright.hlo import load

    for path in folder.glob("*.mlirbc"):
        path.with_suffix(".mlir").write_text(load(path).text)
        path.unlink()
    if not (folder / "tpu").exists():
        _uv("pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", str(folder / "tpu"),
            TPU_COMPILER)  # fmt: skip
    entries = _entries(folder)
    (folder / "manifest.json").write_text(json.dumps(entries, indent=1))
    print(f"{len(entries)} models, {sum(len(entry['functions']) for entry in entries)} functions")


def _uv(*arguments: str) -> None:
    uv = shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")
    subprocess.run([uv, *arguments], check=True)


def _entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.*.json"))]


# -- flops -------------------------------------------------------------------------------------------------------------


def flops(folder: Path) -> int:
    """How the time model counts every function beside its jaxpr, and what has no time; how many are off by 1 %."""
    from tilewright.hlo import estimate, load

    off = 0
    for entry in _entries(folder):
        for function, counted in entry.get("flops", {}).items():
            step = estimate(load(folder / entry["functions"][function]), "tpu-v6e")
            ratio = step.flops / counted if counted else float(step.flops == 0)
            reasons = sorted({row.unpriced for row in step.rows if row.unpriced})
            off += abs(ratio - 1) > 0.01 or step.priced < 0.995
            name = f"{entry['library']}.{entry['model']}.{function}"
            print(f"{name:44} {counted:10.4g} flops, ours {ratio:7.4f} of them, priced {step.priced:.4f} {reasons}")
    return off


# -- judge -------------------------------------------------------------------------------------------------------------


def judge(folder: Path, only: list[str], rounds: int, limit: float, tpu: bool) -> list[dict[str, Any]]:
    """A row for every function; what changed for a TPU is compiled for it in one process."""
    judged = folder / "judged"
    judged.mkdir(exist_ok=True)
    rows = []
    for entry in _entries(folder):
        for function, file in entry["functions"].items():
            name = file.removesuffix(".mlir")
            if only and not any(part in name for part in only):
                continue
            path = judged / f"{name}.json"
            if not path.exists() or not _finished(json.loads(path.read_text())):
                _one_apart(folder, entry, function, rounds, limit)
            row = json.loads(path.read_text())
            print(_remark(row), flush=True)
            rows.append(row)
    if tpu:
        _judge_on_tpu(folder, rows)
    return rows


def _finished(row: dict[str, Any]) -> bool:
    """Whether every program was rewritten, and what changed was compared, and timed on the CPU."""
    found = [row.get(target, {}) for target in TARGETS]
    timed = "cpu_ratio" in row.get("cpu", {}) or not row.get("cpu", {}).get("changed")
    return "crash" in row or (
        timed and all("changed" in each and ("values" in each or not each["changed"]) for each in found)
    )


def _one_apart(folder: Path, entry: dict[str, Any], function: str, rounds: int, limit: float) -> None:
    """One function in a process of its own: a crash is a result too."""
    file = entry["functions"][function]
    path = folder / "judged" / file.replace(".mlir", ".json")
    job = {"folder": str(folder), "entry": entry, "function": function, "rounds": rounds, "path": str(path)}
    why = ""
    try:
        done = subprocess.run([sys.executable, __file__, "one"], input=json.dumps(job), text=True, timeout=limit,
                              capture_output=True, check=False)  # fmt: skip
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        why = f"not done in {limit:.0f} s"
    if why:
        known = json.loads(path.read_text()) if path.exists() else _head(entry, function)
        path.write_text(json.dumps({**known, "crash": why}, indent=1))


def _head(entry: dict[str, Any], function: str) -> dict[str, Any]:
    head = {key: entry[key] for key in ("library", "version", "model")}
    return {**head, "function": function, "file": entry["functions"][function]}


def one() -> None:
    """The child: rewrite, compare, time."""
    job = json.load(sys.stdin)
    folder, path, entry = Path(job["folder"]), Path(job["path"]), job["entry"]
    from tilewright.hlo import load, optimize, verify

    row = _head(entry, job["function"])
    program = load(folder / row["file"])
    row["operations"] = sum(len(each.operations) for each in program.computations)
    given = [_like(described, seed) for seed, described in enumerate(entry["inputs"])]
    compiled = {}

    def run(text: str) -> Any:
        import jax

        from tilewright.hlo.execute import flat_callable
        from tilewright.hlo.proving.verify import main_types

        if text not in compiled:
            compiled[text] = jax.jit(flat_callable(text, *main_types(program.text)))
        with jax.enable_x64(True):
            return jax.block_until_ready(compiled[text](*given))

    for target in TARGETS:
        start = time.perf_counter()
        done = optimize(program, target, assume_finite=True)  # inputs and weights are
        found = row[target] = {
            "seconds": time.perf_counter() - start,
            "rules": dict(Counter(getattr(verdict, "rule", "") or verdict.name for verdict in done.rewrites)),
            "changed": done.text != program.text,
        }
        path.write_text(json.dumps(row, indent=1))
        if found["changed"]:
            path.with_suffix(f".{target}.mlir").write_text(done.text)
            found["apart"] = _apart(run(program.text), run(done.text))
            if found["apart"] <= CLOSE:
                found["values"] = "agree" if found["apart"] else "equal"
            else:  # held to float64
                proof = verify(program, done.program, arguments=given, eager=False)
                found["values"] = "agree" if proof.ok else proof.reason
            path.write_text(json.dumps(row, indent=1))
            if target == "cpu":
                found.update(_timed(run, program.text, done.text, job["rounds"]))
        path.write_text(json.dumps(row, indent=1))


def _apart(before: list[Any], after: list[Any]) -> float:
    """The largest difference of an output's elements, as a share of that output's largest element.

    An output a million times smaller than the largest of all is measured by that millionth: the gradient of a bias
    before a norm is zero but for rounding.
    """
    pairs = [[np.asarray(x).astype(np.float64) for x in pair] for pair in zip(before, after, strict=True)]
    largest = [float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))) for a, _ in pairs]
    shares = [0.0]
    for (a, b), scale in zip(pairs, largest):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not same.all():
            shares.append(float(np.max(np.where(same, 0, np.abs(a - b))) / max(scale, 1e-6 * max(largest), 1e-30)))
    return max(math.inf if math.isnan(share) else share for share in shares)


def _like(described: dict[str, Any], seed: int) -> np.ndarray:
    """An array like the one a model was made with."""
    random = np.random.default_rng(seed)
    shape, dtype = described["shape"], np.dtype(_type(described["dtype"]))
    if "low" in described:
        return random.integers(described["low"], described["high"] + 1, shape).astype(dtype)
    return (random.standard_normal(shape) * described["std"] + described["mean"]).astype(dtype)


def _type(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name, name)


def _timed(run: Callable[[str], Any], before: str, after: str, rounds: int) -> dict[str, float]:
    """Least seconds of both on the CPU; and of the original against itself, which shows the noise."""
    least: dict[str, float] = {}
    for _ in range(rounds):
        for name, text in (("before", before), ("after", after), ("again", before)):
            start = time.perf_counter()
            run(text)
            least[name] = min(least.get(name, math.inf), time.perf_counter() - start)
    ratio, noise = least["before"] / least["after"], least["before"] / least["again"]
    return {"before_s": least["before"], "after_s": least["after"], "cpu_ratio": ratio, "noise": noise}


def _judge_on_tpu(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The TPU compiler's ratio of every program that changed for it; a program is compiled once, ever.

    A rewritten program has its calls inlined, which alone moves the estimate: ``inlined_ratio`` is what that does.
    """
    from tilewright.hlo import load, parse_pipeline, run_pipeline

    changed = [row for row in rows if row.get("tpu-v5e", {}).get("changed")]
    for row in changed:
        places = [folder / "judged" / row["file"].replace(".mlir", f".{kind}.mlir") for kind in ("tpu-v5e", "inlined")]
        if not places[1].exists():
            text, _ = run_pipeline(load(folder / row["file"]).text, parse_pipeline("inline"))
            places[1].write_text(text)
        before, after, inlined = _estimates(folder, [folder / row["file"], *places])
        row["tpu-v5e"].pop("tpu_error", None)
        for side in (before, after):
            if "error" in side:
                row["tpu-v5e"]["tpu_error"] = side["error"]
        if "cycles" in before and "cycles" in inlined:
            row["tpu-v5e"]["inlined_ratio"] = before["cycles"] / inlined["cycles"]
        if "cycles" in before and "cycles" in after:
            row["tpu-v5e"].update(
                tpu_ratio=before["cycles"] / after["cycles"],
                cycles=[before["cycles"], after["cycles"]],
                filled=[before["filled_cycles"], after["filled_cycles"]],
                compiler=after["compiler"],
            )
        (folder / "judged" / row["file"].replace(".mlir", ".json")).write_text(json.dumps(row, indent=1))


def _estimates(folder: Path, paths: list[Path]) -> list[dict[str, Any]]:
    """What the TPU compiler says of programs, from FOLDER/estimates where it has been asked before."""
    from tilewright.errors import UnsupportedError
    from tilewright.hlo import load
    from tilewright.hlo.proving.tpu import judge_on_tpu

    known = folder / "estimates"
    known.mkdir(exist_ok=True)
    places = [known / f"{hashlib.sha256(path.read_bytes()).hexdigest()[:24]}.json" for path in paths]
    missing = {place: load(path) for path, place in zip(paths, places) if not place.exists()}
    for place, found in zip(missing, judge_on_tpu([(each, each) for each in missing.values()], "v5e", timeout=600)):
        error = isinstance(found, UnsupportedError)
        answer = {"error": str(found)} if error else {**asdict(found.before), "compiler": found.compiler}
        place.write_text(json.dumps(answer))
    return [json.loads(place.read_text()) for place in places]


def _remark(row: dict[str, Any]) -> str:
    parts = [f"{row['library']} {row['model']} {row['function']}:"]
    for target in TARGETS:
        found = row.get(target, {})
        parts.append(f"{target} {found.get('rules') or '-'} {found.get('values', '')}")
        parts += [f"{key} {found[key]:.3f}" for key in ("tpu_ratio", "cpu_ratio") if key in found]
    return "  ".join([*parts, row.get("crash", "")])


# -- the page ----------------------------------------------------------------------------------------------------------


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown."""
    there = [row["tpu-v5e"] for row in rows if "tpu-v5e" in row]
    tpu = [found.get("tpu_ratio", 1.0) for found in there if "tpu_ratio" in found or not found["changed"]]
    beyond = [found["tpu_ratio"] / found.get("inlined_ratio", 1.0) for found in there if "tpu_ratio" in found]
    alone = [found["inlined_ratio"] for found in there if "inlined_ratio" in found]
    cpu = [(row["cpu"]["cpu_ratio"], row["cpu"]["noise"]) for row in rows if "cpu_ratio" in row.get("cpu", {})]
    compilers = sorted({row["tpu-v5e"]["compiler"] for row in rows if "compiler" in row.get("tpu-v5e", {})})
    changed = [row[target] for row in rows for target in TARGETS if row.get(target, {}).get("changed")]
    unseen = sum("values" not in found for found in changed)
    wrong = sum(found.get("values", "equal") not in ("equal", "agree") for found in changed)
    seconds = [row[target]["seconds"] for row in rows for target in TARGETS if target in row]
    lines = [
        "# Public models", "",
        "To rewrite a model of your own, run", "",
        "    tilewright optimize model.py:step --target tpu-v5e --assume-finite", "",
        "and add `--judge tpu:v5e` where a TPU compiler is installed: it keeps what that compiler confirms.", "",
        "Here are models of public libraries with small random weights at usual widths, few layers deep: forward (of",
        "language models with a cache one step of decoding) and gradient, rewritten for `tpu-v5e` and for `cpu`.", "",
        "* *TPU* is the TPU compiler's own estimate of cycles before over after, no run time",
        f"  ({', '.join(compilers) or 'nothing changed'}). A rewritten program has its calls inlined, which alone",
        "  moves the estimate: what inlining does without any rule stands in brackets.",
        "* *CPU* is the least time of interleaved rounds before over after, with the original against itself in",
        "  brackets. A dash: left as it was.",
        f"* All outputs were compared on the CPU: they differ by at most {CLOSE:g} of an output's largest element, or",
        "  agree with float64 as closely as the original's do. An output a million times smaller than the largest one",
        "  is held to a millionth of that one: the gradient of a bias before a norm is zero but for rounding.", "",
        "What was seen:", "",
        f"* {len({(r['library'], r['model']) for r in rows})} models, {len(rows)} functions;"
        f" {sum('crash' in r for r in rows)} crashes, {wrong} wrong values,"
        f" {unseen} rewritten and not compared",
        f"* TPU: {sum(x > 1.05 for x in tpu)} of {len(tpu)} better than 1.05, worst {min(tpu, default=1):.3f},"
        f" best {max(tpu, default=1):.2f}, geometric mean {_mean(tpu):.3f}",
        f"* Against the inlined program, over the {len(beyond)} that were rewritten: {sum(x > 1.05 for x in beyond)}"
        f" better than 1.05, worst {min(beyond, default=1):.3f}, geometric mean {_mean(beyond):.3f}; inlining alone"
        f" came out between {min(alone, default=1):.2f} and {max(alone, default=1):.2f}",
        f"* CPU: {len(cpu)} changed, worst {min((r for r, _ in cpu), default=1):.3f}, best"
        f" {max((r for r, _ in cpu), default=1):.2f}",
        f"* {sum(bool(row.get('tpu-v5e', {}).get('rules')) for row in rows)} functions are rewritten for the TPU;"
        f" one `optimize` takes {np.median(seconds):.1f} s in the middle, {max(seconds, default=0):.1f} s at most", "",
        "| library | model | function | operations | rules on tpu-v5e | TPU | rules on cpu | CPU |",
        "|---|---|---|--:|---|--:|---|--:|",
    ]  # fmt: skip
    for row in rows:
        on_tpu, on_cpu = (row.get(target, {}) for target in TARGETS)
        ratio = (
            f"{on_tpu['tpu_ratio']:.2f} ({on_tpu.get('inlined_ratio', math.nan):.2f})"
            if "tpu_ratio" in on_tpu
            else on_tpu.get("tpu_error", "not asked" if on_tpu.get("changed") else "-")
        )
        cpu_ratio = f"{on_cpu['cpu_ratio']:.2f} ({on_cpu['noise']:.2f})" if "cpu_ratio" in on_cpu else "-"
        if any(row.get(target, {}).get("changed") and "values" not in row[target] for target in TARGETS):
            cpu_ratio = "not compared"
        lines.append(
            f"| {row['library']} {row['version']} | {row['model']} | {row['function']} | {row.get('operations', 0):,} |"
            f" {_rules(on_tpu)} | {ratio} | {_rules(on_cpu)} | {row.get('crash') or cpu_ratio} |"
        )
    lines += [
        "",
        "Made by `python benchmarks/public_models.py make FOLDER`, then `judge FOLDER -o docs/public_models.md`.",
    ]
    return "\n".join([*lines, ""])


def _rules(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} x{n}" if n > 1 else name for name, n in sorted(found.get("rules", {}).items())) or "-"


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "judge", "flops", "one"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one function")
    parser.add_argument("--no-tpu", action="store_true", help="leave the TPU compiler alone")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.command == "one":
        one()
    elif options.command == "make":
        make(options.folder)
    elif options.command == "flops":
        sys.exit(flops(options.folder))
    else:
        compiler = str(options.folder / "tpu")
        sys.path.append(compiler)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), compiler]))
        rows = judge(options.folder, options.only, options.rounds, options.limit, not options.no_tpu)
        (options.folder / "judged.json").write_text(json.dumps(rows, indent=1))
        if options.output:
            options.output.write_text(page(rows))


if __name__ == "__main__":
    main()
