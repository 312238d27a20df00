"""How far the modelled peaks of main memory are from the compiler's own: one line per operation, from dump and source.

    ./run python benchmarks/memory_peaks.py FOLDER [--half 0|1] [--worst 20] [--only WORD] [--from dump|source]
    ./run python benchmarks/memory_peaks.py FOLDER --rows rows.jsonl.gz     # of StableHLO alone
    ./run python benchmarks/memory_peaks.py FOLDER --orders                 # of remat policies (memory_steps.py)
    ./run python benchmarks/memory_peaks.py FOLDER --jobs                   # whole steps: NAME.hlo.gz and NAME.json

FOLDER holds, for each program: NAME.mlir (its StableHLO), NAME.hlo (the compiler's scheduled module) and NAME.mem.json
(``memory_analysis()``: argument_, output_, alias_ and temp_size_in_bytes). NAME begins with the chip (``v6e.``) and its
second word is the operation. ``--half``: only the families of shapes whose hash is even (0) or odd (1), so that what
was developed on one half is judged on the other. ``--rows``: the peaks of a list of lines of JSON (``id``, ``peak_mb``:
bytes that live at once by the compiler that a library was tuned with), for which FOLDER needs no more than ID.mlir.
``--orders``: whether the programs that share a name up to its last dot stand in the compiler's order.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.hlo import lifetimes, load


def truth(memory: dict[str, int]) -> int:
    """Bytes of arguments, results and temporaries, what is written over an argument once."""
    sizes = {name: memory[f"{name}_size_in_bytes"] for name in ("argument", "output", "temp", "alias")}
    return sizes["argument"] + sizes["output"] + sizes["temp"] - sizes["alias"]


def half(name: str) -> int:
    """Which half a program belongs to: by its chip, operation and family of shapes, not by its tiling."""
    return hashlib.md5(name.rpartition(".")[0].encode()).digest()[0] % 2


def line(label: str, errors: list[float]) -> str:
    """Count, shares within 5 and 15 %, median, mean and worst of errors."""
    off = sorted(abs(e) for e in errors)
    within = [sum(e <= bar for e in off) / len(off) for bar in (0.05, 0.15)]
    return (
        f"{label:52} {len(off):4}  5%: {within[0]:4.0%}  15%: {within[1]:4.0%}  median {statistics.median(off):6.1%}"
        f"  mean {statistics.mean(off):7.1%}  {min(errors):+.0%} .. {max(errors):+.0%}"
    )


def row(label: str, errors: list[float]) -> str:
    """The same as a row of a table in the docs."""
    off = sorted(abs(e) for e in errors)
    within = [sum(e <= bar for e in off) / len(off) for bar in (0.05, 0.15)]
    return (
        f"| `{label}` | {len(off)} | {within[0]:.0%} | {within[1]:.0%} | {statistics.median(off):.1%} |"
        f" {min(errors):+.0%} to {max(errors):+.0%} |"
    )


def by_rows(folder: Path, rows: Path, worst: int) -> None:
    """A table of source peaks against those of a list: what lives at once, without what an allocator loses."""
    groups: dict[str, list[float]] = defaultdict(list)
    off: dict[str, float] = {}
    for text in gzip.decompress(rows.read_bytes()).decode().splitlines():
        row_ = json.loads(text)
        path = folder / f"{row_['id']}.mlir"
        if not path.exists() or not row_.get("peak_mb"):
            continue
        try:
            lives = lifetimes(load(path), row_["chip"])
        except TilewrightError as error:
            print(row_["id"], str(error).splitlines()[0])
            continue
        off[row_["id"]] = (lives.peak - lives.lost) / (row_["peak_mb"] * 1e6) - 1
        for label in (row_["op"], "all"):
            groups[label].append(off[row_["id"]])
    for label, errors in sorted(groups.items()):
        print(row(label, errors))
    for name, error in sorted(off.items(), key=lambda item: -abs(item[1]))[:worst]:
        print(f"    {error:+8.1%}  {name}")


def orders(found: Mapping[str, tuple[float, int, int]]) -> None:
    """Programs by what they need, ours and the compiler's; two within 5 % of each other there may stand either way."""
    groups: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for name, (_, ours, true) in found.items():
        group, _, policy = name.rpartition(".")
        groups[group].append((policy, ours, true))
    for group, each in sorted(groups.items()):
        wrong = [
            f"{a} and {b}" for a, ours, true in each for b, other, theirs in each
            if true * 1.05 < theirs and ours >= other
        ]  # fmt: skip
        if len(each) > 1:
            order = " < ".join(policy for policy, _, _ in sorted(each, key=lambda one: one[1]))
            print(f"  {group:32} {order}: {'wrong: ' + ', '.join(wrong) if wrong else 'right'}")


def by_jobs(folder: Path) -> None:
    """Dumps of whole steps, NAME.hlo.gz or NAME.hlo.xz beside NAME.json with the compiler's ``memory_bytes``."""
    for path in sorted(folder.glob("*.json")):
        memory = {f"{key}_size_in_bytes": size for key, size in json.loads(path.read_text())["memory_bytes"].items()}
        (dump,) = path.parent.glob(f"{path.stem}.hlo.*")
        chip = "tpu-" + re.findall(r"v6e|v5e|v5p|v4|7x", path.stem)[-1]
        ours, true = lifetimes(load(dump), chip).peak, truth(memory)
        print(f"| `{path.stem}` | {ours / 2**30:.2f} | {true / 2**30:.2f} | {ours / true - 1:+.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--from", dest="face", choices=("dump", "source"))
    parser.add_argument("--table", action="store_true", help="rows of the table in docs/out_of_memory.md")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--orders", action="store_true")
    parser.add_argument("--jobs", action="store_true")
    args = parser.parse_args()
    if args.jobs:
        by_jobs(args.folder)
        return
    if args.rows:
        by_rows(args.folder, args.rows, args.worst)
        return
    for face, ending in (("dump", "hlo"), ("source", "mlir")):
        if args.face and args.face != face:
            continue
        found: dict[str, tuple[float, int, int]] = {}
        said: dict[str, float] = {}
        began = time.perf_counter()
        for path in sorted(args.folder.glob("*.mem.json")):
            name = path.name.removesuffix(".mem.json")
            text = path.with_name(f"{name}.{ending}")
            if args.only not in name or not text.exists() or args.half not in (None, half(name)):
                continue
            memory = json.loads(path.read_text())
            true = truth(memory)
            try:
                lives = lifetimes(load(text), f"tpu-{name.partition('.')[0]}")
            except TilewrightError as error:
                print(name, type(error).__name__, str(error).splitlines()[0])
                continue
            found[name] = lives.peak / true - 1, lives.peak, true
            # The compiler's figure counts the temporaries of that memory space which has most of them.
            most = max(lives.temporaries, lives.spaces["vmem"])
            said[name] = (lives.peak - lives.temporaries + most) / memory["peak_memory_in_bytes"] - 1
        if args.orders:
            orders(found)
            continue
        groups: dict[str, list[float]] = defaultdict(list)
        for name, (off, _, _) in found.items():
            chip, op = name.split(".")[:2]
            for label in (f"{op} {chip}", op, "all"):
                groups[label].append(off)
        print(f"from {face} ({time.perf_counter() - began:.0f} s)")
        for label, errors in sorted(groups.items()):
            if not args.table:
                print("  " + line(label, errors))
            elif " " not in label:
                print(row(label, errors))
        print("  " + line("all, live bytes (peak_memory_in_bytes)", list(said.values())))
        for name, (off, peak, true) in sorted(found.items(), key=lambda item: -abs(said[item[0]]))[: args.worst]:
            print(f"    {said[name]:+8.1%} {off:+8.1%}  {peak / 1e6:10.2f} MB against {true / 1e6:10.2f}  {name}")


if __name__ == "__main__":
    main()
