"""`tilewright isa matmul`: a product on the machine, its counts beside closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli._io import emit_json, emit_text, progress, remark, write_file
from tilewright.cli._isa_tensors import (
    MOST,
    Json,
    Settings,
    machine,
    print_account,
    remark_errors,
    watch,
    write_timeline,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.isa import MatmulResult

__all__ = ["add_to", "difference_of", "random_matrix"]

_Size = typer.Option(min=0, help="Rows of A (m), columns of B (n), depth (k).")
_DTYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "f16", "bf16", "f32")


def random_matrix(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Seeded values: the whole range of an integer type, normal floats."""
    import numpy as np

    from tilewright.layout import paged

    rng, kind = np.random.default_rng(seed), paged((1,), dtype).numpy_dtype
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(kind)
    return rng.normal(size=shape).astype(kind)


def difference_of(value: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[bool, float]:
    """Whether the value is numpy's: exactly modulo 2^32, or for floats within the bound of k float32 roundings."""
    import numpy as np

    if value.dtype == np.int32:
        exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.uint64).astype(np.uint32).view(np.int32)
        wrong = int(np.count_nonzero(exact != value))
        return wrong == 0, float(wrong)
    x, y = a.astype(np.float64), b.astype(np.float64)
    difference = np.abs(value - x @ y)
    bound = (a.shape[1] + 2) * float(np.finfo(np.float32).eps) * (np.abs(x) @ np.abs(y))
    return bool((difference <= bound).all()), float(difference.max(initial=0))


def _matmul(
    m: Annotated[int, _Size],
    n: Annotated[int, _Size],
    k: Annotated[int, _Size],
    dtype: Annotated[str, typer.Option(help="Elements of A: s8, u8, s16, u16, s32, u32, f16, bf16, f32.")] = "s8",
    dtype_b: Annotated[str | None, typer.Option(help="Elements of B, if not those of A.")] = None,
    ka: Annotated[int, typer.Option(help="Threads that share a row's columns.")] = 1,
    kb: Annotated[int, typer.Option(help="Threads that share every dot product.")] = 1,
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Store B row-major and walk it with t1.")] = False,
    order: Annotated[str, typer.Option(help="k_outer or column_outer.")] = "k_outer",
    columns: Annotated[int | None, typer.Option(help="Columns per instruction.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random matrices.")] = 0,
    settings: Settings = None,
    listing: Annotated[bool, typer.Option("--listing", help="Print the program too.")] = False,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="FILE", help="FILE.tasm: the program; FILE.pftrace: a timeline."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Multiply two random matrices on the machine; its counts beside the closed forms, its value beside numpy's."""
    from tilewright.isa import expected_counts, matmul

    suffix = _suffix(out)
    config = machine(settings)
    if max(m * n, m * k, n * k) > MOST:
        raise UsageError(f"a matrix of more than {MOST} elements", how="this machine is simulated; give smaller sizes")
    for each in (dtype, dtype_b or dtype):
        if each not in _DTYPES:
            raise UsageError(f"no element type called {each!r} for matrices", how=f"one of {', '.join(_DTYPES)}")
    a, b = random_matrix((m, k), dtype, seed), random_matrix((k, n), dtype_b or dtype, seed + 1)
    how: dict[str, Any] = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    expected = expected_counts(m, n, k, config=config, element_bytes=a.dtype.itemsize, **how)
    with progress("mm") as bar:
        told = watch(bar, expected.instructions)
        result = matmul(a, b, config=config, trace=suffix == ".pftrace", watch=told, **how)
    equal, difference = difference_of(result.value, a, b)
    _write(out, suffix, result)
    counted, forms = result.counts.to_dict(), expected.to_dict()
    misses = ("l1_misses", "l2_misses", "dram_bytes")
    holds = {key: counted[key] >= forms[key] if key in misses else counted[key] == forms[key] for key in counted}
    fine = equal and all(holds.values()) and not result.errors
    if as_json:
        value = {"m": m, "n": n, "k": k, "dtype": dtype, "dtype_b": dtype_b or dtype, **how}
        rows = {key: {"machine": counted[key], "closed_form": forms[key], "holds": holds[key]} for key in counted}
        value |= {"counts": rows, "value_equals_numpy": equal, "difference": difference, "errors": len(result.errors)}
        value |= {"cycles": result.cycles, "math_cycles": result.math_cycles, "stalls": result.stalls}
        value |= {"queue": result.queue, "traffic": result.traffic.to_dict()}
        if listing:
            value["program"] = str(result.program)
        emit_json(value)
    else:
        if listing:
            emit_text(result.program.listing() + "\n")
        _print_matmul(result, counted, forms, holds, equal, difference)
    remark_errors(result.errors)
    return 0 if fine else 1


def _suffix(out: str | None) -> str:
    """The writer `-o` picks."""
    for suffix in (".tasm", ".pftrace"):
        if out is None or out == "-" or out.endswith(suffix):
            return suffix if out is not None else ""
    raise UsageError(f"no writer for {out}", how="FILE.tasm, FILE.pftrace, or - for the program")


def _write(out: str | None, suffix: str, result: MatmulResult) -> None:
    if out is None:
        return
    if suffix == ".pftrace":
        write_timeline(out, result.trace)
        return
    write_file(out, str(result.program) + "\n")
    if out != "-":
        remark(f"wrote {out}")


def _print_matmul(
    result: MatmulResult,
    counted: Mapping[str, int],
    forms: Mapping[str, int],
    holds: Mapping[str, bool],
    equal: bool,
    difference: float,
) -> None:
    rows = [("counter", "machine", "closed form", "")]
    for key, value in counted.items():
        verdict = "equal" if value == forms[key] else "at least" if holds[key] else "DIFFERS"
        rows.append((key, f"{value:,}", f"{forms[key]:,}", verdict))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, *numbers, verdict in rows:
        cells = "  ".join(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
        emit_text(f"{name.ljust(widths[0])}  {cells}  {verdict}".rstrip())
    emit_text(f"\n{result.cycles:,} cycles by the model, {result.math_cycles:,} of them math")
    print_account("the math unit was idle", result.stalls)
    print_account("the issue queue", result.queue)
    if result.value.dtype.kind == "f":
        verdict = "is" if equal else "is NOT"
        emit_text(f"value {verdict} numpy's within float32 rounding (largest difference {difference:.3g})")
    else:
        emit_text("value equals numpy's" if equal else f"value DIFFERS from numpy's in {int(difference)} elements")


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("matmul")(_matmul)
