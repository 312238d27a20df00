"""The measured times of benchmarks/data/tpu_measured as programs: StableHLO modules of one operation, and gpt2."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.errors import UsageError

TRAINED = 0.6
"""The share of the measured rows that constants are fitted on; errors are judged on the others."""
SEED = 0
DATA = Path(__file__).resolve().parent / "data" / "tpu_measured"
CHIPS = ("tpu-v4", "tpu-v6e")
OPERATIONS = ("exponential", "transpose", "broadcast", "concatenate", "reduce", "reshape", "gemm", "batched_gemm")
LOOP_GAP_US = {"tpu-v4": 13.0}
"""What program_us holds beyond the kernels, for reshapes whose loop and body were both summed in kernel_us."""


@dataclass(frozen=True)
class Measured:
    """One row: the operation, its sizes (batch, rows, columns, depth for products), a module of it, microseconds."""

    operation: str
    sizes: tuple[int, ...]
    text: str
    microseconds: float

    @property
    def family(self) -> int:
        """Shapes of one family share their leading dim; products share a range of depths."""
        return self.sizes[3] // 64 if "gemm" in self.operation else self.sizes[0]

    @property
    def work(self) -> float:
        """Elements that go through, or multiplications of a product."""
        sizes = self.sizes
        return float(sizes[0]) * sizes[1] * sizes[2] * (sizes[3] if "gemm" in self.operation else 1)


def training(count: int, seed: int = SEED) -> np.ndarray:
    """Which of ``count`` rows are fitted on."""
    return np.random.default_rng(seed).random(count) < TRAINED


def measured(chip: str, operation: str) -> list[Measured]:
    """The rows of one operation on one chip, [] where it was not measured."""
    path = DATA / f"{chip}_{operation}.csv"
    if not path.exists():
        return []
    with path.open() as lines:
        return [_row(chip, operation, row) for row in csv.DictReader(lines)]


def of_your_own(path: Path, chip: str) -> dict[str, list[Measured]]:
    """Rows of a CSV file with the columns op,d0,d1,d2,kernel_us, by operation."""
    rows: dict[str, list[Measured]] = {}
    with path.open() as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            operation = (row.get("op") or "").strip()
            if operation not in OPERATIONS:
                known = ", ".join(OPERATIONS)
                raise UsageError(f"no operation called {operation!r}", where=f"{path}:{number}", how=f"one of {known}")
            try:
                made = _row(chip, operation, row)
            except (KeyError, TypeError, ValueError) as error:
                how = "op,d0,d1,d2,kernel_us; products: d0,d1,d2 = rows, columns, depth, and b for a batch"
                raise UsageError(f"not a row: {error}", where=f"{path}:{number}", how=how) from None
            if not 0 < made.microseconds < 1e9 or min(made.sizes) < 1 or max(made.sizes) >= 2**31:
                raise UsageError("sizes and times are above 0, and no chip holds so much", where=f"{path}:{number}")
            rows.setdefault(operation, []).append(made)
    if not rows:
        raise UsageError("it has no rows", where=str(path), how="op,d0,d1,d2,kernel_us and a row for each measurement")
    return rows


def _row(chip: str, operation: str, row: dict[str, str]) -> Measured:
    if "gemm" in operation:
        m, n, k = (int(row.get(product) or row[plain]) for product, plain in (("M", "d0"), ("N", "d1"), ("K", "d2")))
        batch = int(row.get("b") or 1)
        text = next(row[column] for column in ("einsum_us", "latency_us_device", "kernel_us") if row.get(column))
        batched = operation == "batched_gemm"
        return Measured(operation, (batch, m, n, k), _product(batch, m, n, k, batched), float(text))
    sizes = (int(row["d0"]), int(row["d1"]), int(row["d2"]))
    kernel, program = float(row["kernel_us"]), float(row.get("program_us") or "inf")
    looped = operation == "reshape" and kernel > program
    microseconds = program - LOOP_GAP_US.get(chip, 0.0) if looped else kernel
    return Measured(operation, sizes, _module(operation, *sizes), microseconds)


def _tensor(*sizes: int) -> str:
    return "tensor<" + "".join(f"{size}x" for size in sizes) + "bf16>"


def _function(arguments: list[str], result: str, line: str) -> str:
    taken = ", ".join(f"%{name}: {argument}" for name, argument in zip("ab", arguments))
    zero = "  %c = stablehlo.constant dense<0.0> : tensor<bf16>\n" if "%c" in line else ""
    types = f"({', '.join(arguments)}{', tensor<bf16>' if zero else ''}) -> {result}"
    return f"func.func @main({taken}) -> {result} {{\n{zero}  %0 = {line} : {types}\n  return %0 : {result}\n}}"


def _module(operation: str, a: int, b: int, c: int) -> str:
    whole = _tensor(a, b, c)
    if operation == "exponential":
        return _function([whole], whole, "stablehlo.exponential %a")
    if operation == "transpose":
        return _function([whole], _tensor(a, c, b), "stablehlo.transpose %a, dims = [0, 2, 1]")
    if operation == "broadcast":
        return _function([_tensor(a, 1, c)], whole, "stablehlo.broadcast_in_dim %a, dims = [0, 1, 2]")
    if operation == "reduce":
        line = "stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [2]"
        return _function([whole], _tensor(a, b), line)
    if operation == "reshape":
        return _function([whole], _tensor(a, b * c), "stablehlo.reshape %a")
    seam = max(1, c // 2)
    parts = [_tensor(a, b, size) for size in (seam, c - seam) if size]
    return _function(parts, whole, f"stablehlo.concatenate {', '.join(['%a', '%b'][: len(parts)])}, dim = 2")


def _product(batch: int, rows: int, columns: int, depth: int, batched: bool) -> str:
    if batched:
        arguments, result = [_tensor(batch, rows, depth), _tensor(batch, depth, columns)], _tensor(batch, rows, columns)
        dims = "batching_dims = [0] x [0], contracting_dims = [2] x [1]"
    else:
        arguments, result = [_tensor(rows, depth), _tensor(depth, columns)], _tensor(rows, columns)
        dims = "contracting_dims = [1] x [0]"
    return _function(arguments, result, f"stablehlo.dot_general %a, %b, {dims}")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dot": jnp.dot,
    "dot, weights [n,k]": lambda rows, weights: rows @ weights.T,
    "batched dot": lambda left, right: jnp.einsum("gmk,gkn->gmn", left, right),
    "rows by index": lambda table, indices: table[indices],
    "top_k 8": lambda scores: jax.lax.top_k(scores, 8),
    "take_along_axis": lambda scores, indices: jnp.take_along_axis(scores, indices, axis=-1),
    "copy": lambda array: array * 1,
    "largest magnitude of a row": lambda array: jnp.max(jnp.abs(array), axis=-1),
}
"""The functions of functions.csv."""


def functions() -> Iterator[tuple[str, str, str, float, str]]:
    """Timed functions of functions.csv: the chip, what it is, its arguments, microseconds, and its StableHLO."""
    with (DATA / "functions.csv").open() as lines:
        for row in csv.DictReader(lines):
            shapes = [(kind, dims.split(",")) for kind, dims in _ARRAY.findall(row["arguments"])]
            arrays = [jax.ShapeDtypeStruct(tuple(map(int, dims)), _TYPES[kind]) for kind, dims in shapes]
            text = jax.jit(FUNCTIONS[row["function"]]).lower(*arrays).as_text()
            yield row["chip"], row["function"], row["arguments"], float(row["us"]), text


_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")
_TYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32, "s32": jnp.int32}


@dataclass(frozen=True)
class Gpt2:
    """One measured forward pass: milliseconds, the compiler's dump ("" where none was made) and the StableHLO."""

    chip: str
    sequence: int
    batch: int
    milliseconds: float
    dump: str
    stablehlo: str


def gpt2() -> Iterator[Gpt2]:
    """The measured forward passes of gpt2."""
    with (DATA / "gpt2_measured.csv").open() as lines:
        for row in csv.DictReader(lines):
            chip, sequence, batch = row["chip"], int(row["seq"]), int(row["batch"])
            dump = DATA / "gpt2" / f"{chip}_gpt2_s{sequence}_b{batch}.hlo.gz"
            program = DATA / "gpt2" / f"gpt2_s{sequence}_b{batch}.mlir.gz"
            yield Gpt2(
                *(chip, sequence, batch, float(row["device_ms"])),
                dump=gzip.decompress(dump.read_bytes()).decode() if dump.exists() else "",
                stablehlo=gzip.decompress(program.read_bytes()).decode(),
            )
