"""Dumps of real jobs, whole folders of them: read, timed, counted, and held to XLA's own parser.

    python benchmarks/real_jobs.py table FOLDER... [--kv-len 1024]
    python benchmarks/real_jobs.py parser FOLDER... [--python PYTHON] [-n 150]

``table`` prints a row for every ``NAME.hlo``, ``.hlo.gz`` or ``.hlo.xz``: seconds to read and to time it, its step,
what share has a time, and its flops over the model's closed form. That is ``model_flops`` of ``NAME.json`` beside
it (of one device), or for a serving step made by tpu-inference computed here from the sizes of ``model``. It says what
fell short: more than 10 s, less than .99 priced, fewer than .97 or more than 1.6 times the flops. More is no fault
where the compiler's own count (``flops`` of ``NAME.json``, of a program without loops; its kernels count nothing
there) says so too: then the program computes more than its model asks for, such as all experts for every token.

``parser`` asks jaxlib's own parser, in a process of PYTHON (this one's if not given), and compares computations,
instructions, opcodes, operands and shapes with layouts.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHIPS = {"7x": "tpu-7x", "v6e": "tpu-v6e", "v5e": "tpu-v5e", "v5p": "tpu-v5p", "v4": "tpu-v4"}
SERVED = {
    "llama8b": (32, 4096, 32, 8, 128, 14_336, 128_256),
    "llama70b": (80, 8192, 64, 8, 128, 28_672, 128_256),
    "qwen4b": (36, 2560, 32, 8, 128, 9728, 151_936),
    "qwen8b": (36, 4096, 32, 8, 128, 12_288, 151_936),
    "qwen32b": (64, 5120, 64, 8, 128, 25_600, 151_936),
    "gptoss20b": (24, 2880, 64, 8, 64, 4 * 2880, 201_088),
}
"""Served models: layers, width, heads, heads of keys, their size, feed-forward of a token, vocabulary."""


def dumps(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*") if re.search(r"\.hlo(\.gz|\.xz)?$", path.name))


def served_flops(made: dict[str, Any], devices: int, kv_len: float) -> float:
    """Multiplications and additions of one device in a serving step; the logits are a module of their own."""
    layers, width, heads, kv, kept, inner, vocabulary = SERVED[made["model"]]
    layers = int(made["options"].get("layers", layers))
    if made["options"].get("what") == "logits":
        return 2.0 * made["tokens"] * width * vocabulary / devices
    layer = width * kept * (2 * heads + 2 * kv) + 3 * width * inner
    new = min(kv_len, made["tokens"]) if made["tokens"] > made["seqs"] else 1
    seen = kv_len - (new - 1) / 2  # of a sequence that is prefilled, a token sees those before it alone
    return layers * made["tokens"] * (2.0 * layer + 4 * seen * heads * kept) / devices


def model_flops(path: Path, devices: int, kv_len: float) -> float | None:
    beside = path.with_name(path.name.partition(".hlo")[0] + ".json")
    made = json.loads(beside.read_text()) if beside.exists() else {}
    if made.get("model") in SERVED:
        return served_flops(made, devices, kv_len)
    return made.get("model_flops")


def compiler_flops(path: Path) -> float | None:
    """The compiler's own count of a serving step, whose layers are unrolled: a loop's body counts once there."""
    beside = path.with_name(path.name.partition(".hlo")[0] + ".json")
    made = json.loads(beside.read_text()) if beside.exists() else {}
    return made.get("flops") if made.get("model") in SERVED else None


def table(folders: list[Path], kv_len: float) -> int:
    """Print the rows; how many fell short."""
    from tilewright.hlo import estimate, load
    from tilewright.hlo.semantics.dims import devices_of

    short = 0
    for path in dumps(folders):
        chip = next((chip for word, chip in CHIPS.items() if word in path.name), "tpu-v6e")
        begun = time.perf_counter()
        program = load(path)
        read = time.perf_counter() - begun
        step = estimate(program, chip, assume={"kv_len": kv_len})
        took = time.perf_counter() - begun
        known = model_flops(path, max(1, devices_of(program)), kv_len)
        ratio = step.flops / known if known else 0.0
        again = sum(row.flops for row in step.rows if row.again) / step.flops if step.flops else 0.0
        kernels = sum(row.flops for row in step.rows if row.op == "custom-call")
        theirs = compiler_flops(path)
        named = bool(theirs and abs((step.flops - kernels) / theirs - 1) < 0.05)
        outside = bool(known and not 0.97 <= ratio <= 1.6 and not (ratio > 1.6 and named))
        fell = took > 10 or step.priced < 0.99 or outside or bool(program.notes)
        short += fell
        operations = sum(len(computation.operations) for computation in program.computations)
        print(
            f"{path.name.partition('.hlo')[0]:34} {chip:8} {operations:7,} operations, read {read:4.1f} s, timed"
            f" {took - read:4.1f} s; step {1e3 * step.device_seconds:10.2f} ms, priced {step.priced_flops:.4f} /"
            f" {step.priced_bytes:.4f}; flops {step.flops:.4g}, {ratio:.3f} of the model's, {again:.3f} again,"
            f" {(step.flops - kernels) / theirs if theirs else 0:.3f} of the compiler's count without kernels"
            f" {'FELL SHORT ' if fell else ''}{sorted({row.unpriced for row in step.rows if row.unpriced}) or ''}",
            flush=True,
        )
    return short


def name_of(opcode: str) -> str:
    """jaxlib's name of an opcode."""
    short = {"cosine": "Cos", "sine": "Sin", "exponential": "Exp", "log-plus-one": "Log1p"}
    short |= {"exponential-minus-one": "Expm1"}
    return short.get(opcode, "".join(word.capitalize() for word in opcode.split("-")))


def parser(folders: list[Path], python: str, most: int) -> int:
    """Compare with jaxlib's parser; how many modules differ."""
    import zlib

    sys.path.insert(0, str(ROOT))
    from tests.hlo.test_hlo_reader import plain

    from tilewright.hlo import load

    script = ROOT / "tests" / "hlo" / "xla_reprint.py"
    every = sorted(dumps(folders), key=lambda path: zlib.crc32(path.name.encode()))
    differ = asked = refused = 0
    for path in every:
        if asked == most:
            break
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [python, str(script), folder, str(path)], check=False, capture_output=True, timeout=600
            )
            if not (Path(folder) / "0.json").exists():
                why = Path(folder) / "0.refused"
                refused += 1
                said = why.read_text() if why.exists() else f"ended with {done.returncode}"
                print(f"{path.name}: jaxlib does not read it: {said.splitlines()[0][:150]}", flush=True)
                continue
            theirs = json.loads((Path(folder) / "0.json").read_text())
            again = load(Path(folder) / "0.hlo")
        asked += 1
        found = differences(load(path), theirs, again, plain)
        differ += bool(found)
        if found:
            print(f"{path.name}: {len(found)} differences, {found[:3]}", flush=True)
    print(f"{asked} modules compared, {differ} differ; {refused} that jaxlib does not read")
    return differ


def differences(program: Any, theirs: dict[str, Any], again: Any, plain: Any) -> list[str]:
    """What is not the same, in words.

    Three forms differ in the text alone: ``slice-start`` is short for an async-start of a computation that slices,
    which jaxlib spells out; where an instruction in there takes a name that another has, jaxlib numbers that anew; an
    element of a tuple where it is used (``%x#1``) is an instruction of its own in jaxlib.
    """
    found: list[str] = []
    ours = {computation.name: computation.operations for computation in program.computations}
    for name in ours.keys() ^ theirs.keys():
        if not name.startswith("async_wrapped"):
            found.append(f"computation {name}")
    for name in ours.keys() & theirs.keys():
        table = {op.name.replace("#", "_"): op for op in ours[name]}
        anew = numbered_anew(table, theirs[name])
        table = {anew.get(each, each): op for each, op in table.items()}
        for missing in table.keys() ^ theirs[name].keys():
            found.append(f"instruction {missing} of {name}")
        for each in table.keys() & theirs[name].keys():
            opcode, operands = theirs[name][each]
            mine = name_of(table[each].opcode)
            wrapped = opcode.startswith("Async") and mine.endswith(opcode.removeprefix("Async"))
            if mine != opcode and not wrapped:
                found.append(f"{each} is {mine}, {opcode}")
            mine = [operand.replace("#", "_") for operand in table[each].operands]
            if [anew.get(operand, operand) for operand in mine] != operands:
                found.append(f"operands of {each}")
    left, right = shapes_of(program), shapes_of(again)
    found += [
        f"shape of {name}: {left[name]}, {right[name]}"
        for name in left.keys() & right.keys()
        if left[name] != right[name]
    ]
    exact = "#" not in program.text and not re.search(r" (?:send|recv)\(", program.text)
    if exact and not found and left.keys() == right.keys() and plain(program) != plain(again):
        found.append("printed anew it is read otherwise")
    return found


def numbered_anew(table: dict[str, Any], theirs: dict[str, Any]) -> dict[str, str]:
    """Our name -> theirs, of instructions whose names differ in the number alone, of one opcode and operands."""

    def key(name: str, opcode: str, operands: list[str]) -> tuple[str, ...]:
        return re.sub(r"[._]\d+$", "", name), opcode, *operands

    lone = {key(name, *theirs[name]): name for name in theirs.keys() - table.keys()}
    alone = {name: key(name, name_of(op.opcode), list(op.operands)) for name, op in table.items() if name not in theirs}
    return {name: lone[found] for name, found in alone.items() if found in lone}


def shapes_of(program: Any) -> dict[tuple[str, str], str]:
    """Shapes with layouts; of a send or recv without its number's memory, which jaxlib's parser forgets."""
    return {
        (computation.name, op.name.replace("#", "_")): re.sub(
            r"/\*.*?\*/|\s" + (r"|\{:S\(2\)\}" if op.opcode in ("send", "recv") else ""), "", op.shape
        )
        for computation in program.computations
        for op in computation.operations
    }


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("command", choices=["table", "parser"])
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--kv-len", type=float, default=1024.0, help="tokens in the cache of a sequence")
    options.add_argument("--python", default=sys.executable, help="whose jaxlib is asked")
    options.add_argument("-n", type=int, default=150, help="modules to compare")
    given = options.parse_args()
    if given.command == "table":
        sys.exit(min(100, table(given.folders, given.kv_len)))
    sys.exit(min(100, parser(given.folders, given.python, given.n)))


if __name__ == "__main__":
    main()
