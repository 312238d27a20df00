"""`tilewright isa matmul`: a product on the machine, its counts beside closed forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa import machine
from tilewright.cli.streams import (
    Json,
    emit_json,
    emit_text,
    npy_bytes,
    progress,
    remark,
    show_table,
    write_file,
    writer_of,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.isa import MatmulResult

_DTYPES = (
    *("s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32"),
    *("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32"),
)
_SMALLER = "this machine is simulated; give smaller sizes"
_Sizes = tuple[int | None, int | None]


def random_array(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Seeded values: the whole range of an integer type, normal floats."""
    import numpy as np

    from tilewright.layout import paged

    rng, kind = np.random.default_rng(seed), paged((1,), dtype).numpy_dtype
    if dtype[0] in "su":
        bits = int(dtype[1:])
        low = -(1 << (bits - 1)) if dtype[0] == "s" else 0
        return rng.integers(low, low + (1 << bits), shape, dtype=np.int64).astype(kind)
    return rng.normal(size=shape).astype(kind)


def difference_of(value: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[bool, float]:
    """:func:`difference` of a product of two matrices."""
    import numpy as np

    if value.dtype == np.int32:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        return difference(value, exact, exact, a.shape[1])
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        return difference(value, x @ y, np.abs(x) @ np.abs(y), a.shape[1])


def difference(
    value: np.ndarray[Any, Any], product: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], depth: int
) -> tuple[bool, float]:
    """Whether the value is numpy's: exactly modulo 2^32, or for floats within the bound of ``depth`` float32 roundings.

    ``sizes``: the product of the absolute values. Elements that are not finite in float32 must be the same; the largest
    difference is that of the others.
    """
    import numpy as np

    if value.dtype == np.int32:
        wrong = int(np.count_nonzero(product.astype(np.uint64).astype(np.uint32).view(np.int32) != value))
        return wrong == 0, float(wrong)
    with np.errstate(all="ignore"):
        bound = (depth + 2) * float(np.finfo(np.float32).eps) * sizes
        same = (value == product.astype(np.float32)) | (np.isnan(value) & np.isnan(product))
        away = np.abs(value - product)
        near = bool((same | (away <= bound)).all())
    return near, float(away[np.isfinite(away)].max(initial=0))


def shape_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """Elements per dim, as 4x16 or 4,16."""
    if text is None:
        return None
    parts = text.replace(",", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"{option} {text!r}", how="elements per dim of B as it is stored, as 4x16")
    return tuple(int(part) for part in parts)


def operands(
    files: Sequence[str] | None, m: int | None, n: int | None, k: int | None, dtypes: tuple[str, str], seed: int
) -> Any:
    """A and B: those of ``files`` (A=FILE.npy), random ones of the sizes and types for the others."""
    for dtype in dtypes:
        if dtype not in _DTYPES:
            raise UsageError(f"no element type called {dtype!r} for matrices", how=f"one of {', '.join(_DTYPES)}")
    arrays = machine.tensors(files)
    if unknown := next((name for name in arrays if name not in ("A", "B")), None):
        raise UsageError(f"unknown matrix in --data {unknown}", how="A=FILE.npy, m x k, or B=FILE.npy, k x n")
    read = [_read(name, arrays[name], dtype) if name in arrays else None for name, dtype in zip("AB", dtypes)]
    depths = [k, *(matrix.shape[dim] for matrix, dim in zip(read, (1, 0)) if matrix is not None)]
    depth = next((size for size in depths if size is not None), None)
    options: tuple[_Sizes, _Sizes] = ((m, depth), (depth, n))
    for name, matrix, sizes in zip("AB", read, options):
        _agree(name, matrix, sizes)
    matrices = [
        random_array(_known(name, sizes), dtype, seed + i) if matrix is None else matrix
        for i, (name, matrix, sizes, dtype) in enumerate(zip("AB", read, options, dtypes))
    ]
    if matrices[0].shape[0] * matrices[1].shape[1] > machine.MOST:
        raise UsageError(f"C has more than {machine.MOST} elements", how=_SMALLER)
    return matrices


def _read(name: str, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """A matrix as it was saved; numpy saves bf16 as two bytes of no type."""
    from tilewright.isa import element_type
    from tilewright.layout import paged

    kind = paged((1,), dtype).numpy_dtype
    if array.dtype.kind == "V" and array.dtype.itemsize == kind.itemsize:
        array = array.view(kind)
    if array.ndim != 2:
        raise UsageError(f"{name} has shape {list(array.shape)}", where="--data", how="a matrix has two dims")
    element_type(array, name)
    return array


def _agree(name: str, array: Any, sizes: _Sizes) -> None:
    if array is None or all(size in (None, side) for size, side in zip(sizes, array.shape, strict=True)):
        return
    expected = " x ".join("any" if size is None else str(size) for size in sizes)
    raise UsageError(f"{name} has shape {list(array.shape)}, not {expected}", where="--data")


def _known(name: str, sizes: _Sizes) -> tuple[int, int]:
    """The shape of a random matrix."""
    rows, columns = sizes
    if rows is None or columns is None:
        missing = {"A": "--m and --k", "B": "--k and --n"}[name]
        raise UsageError(f"the size of {name} is not given", how=f"{missing}, or --data {name}=FILE.npy")
    if prod(sizes) > machine.MOST:  # type: ignore[arg-type]
        raise UsageError(f"{name} has more than {machine.MOST} elements", how=_SMALLER)
    return rows, columns


_Size = typer.Option(min=0, help="Rows of A (m), columns of B (n), depth (k); files of --data have theirs.")


def matmul(
    m: Annotated[int | None, _Size] = None,
    n: Annotated[int | None, _Size] = None,
    k: Annotated[int | None, _Size] = None,
    dtype: Annotated[
        str, typer.Option(help="Elements of A: s4 to s32, u4 to u32, f8e4m3fn, f8e5m2, f16, bf16, f32.")
    ] = "s8",
    dtype_b: Annotated[str | None, typer.Option(help="Elements of B, if not those of A.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "--tensor", metavar="A=FILE.npy", help="A or B of a file, not random."),
    ] = None,
    ka: Annotated[int, typer.Option(help="Threads that share a row's columns.")] = 1,
    kb: Annotated[int, typer.Option(help="Threads that share every dot product.")] = 1,
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Store B row-major and walk it with t1.")] = False,
    order: Annotated[str, typer.Option(help="k_outer or column_outer.")] = "k_outer",
    columns: Annotated[int | None, typer.Option(help="Columns per instruction.")] = None,
    block_a: Annotated[int, typer.Option(help="Rounds of A that one ld brings.")] = 1,
    tail_kb: Annotated[
        int | None, typer.Option(help="--kb of the last rows, where they are fewer than a block.")
    ] = None,
    line: Annotated[
        str | None, typer.Option(metavar="4x16", help="A line, in elements per dim of B as it is stored.")
    ] = None,
    page: Annotated[
        str | None, typer.Option(metavar="64x128", help="A page, likewise; a multiple of the line.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="What of C is divided among PEs (--set pes=4): rows or columns; rows if there are enough."),
    ] = None,
    segments: Annotated[
        int | None, typer.Option(help="B comes to L2 by DMA, for every PE in so many segments.")
    ] = None,
    double_buffer: Annotated[
        bool, typer.Option("--double-buffer/--no-double-buffer", help="The next segment comes while one is worked on.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random matrices.")] = 0,
    settings: machine.Settings = None,
    listing: Annotated[bool, typer.Option("--listing", help="Print the program too, of several PEs each.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="FILE.tasm: the program (where those of PEs differ FILE-pe0.tasm, ...); FILE.pftrace: a timeline; "
            "FILE.npy: C.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Multiply two matrices on the machine; its counts beside the closed forms, its value beside numpy's."""
    from tilewright.isa import element_type, expected_counts, type_and_signs
    from tilewright.isa import matmul as multiply

    suffix = writer_of(out, ".tasm", ".pftrace", ".npy", as_json=as_json)
    config = machine.configured(settings)
    a, b = operands(data, m, n, k, (dtype, dtype_b or dtype), seed)
    types = element_type(a, "A"), element_type(b, "B")
    type_and_signs(*types)
    sizes = {"m": a.shape[0], "n": b.shape[1], "k": b.shape[0]}
    options: dict[str, Any] = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    options |= {"line": shape_of(line, "--line"), "split": split, "segments": segments, "tail_kb": tail_kb}
    options["block_a"] = block_a
    more: dict[str, Any] = {"page": shape_of(page, "--page"), "double_buffer": double_buffer}
    expected = expected_counts(**sizes, config=config, element_bytes=a.dtype.itemsize, **options)
    with progress("mm", expected.instructions) as bar:
        watcher = machine.watch(bar, expected.instructions)
        result = multiply(a, b, config=config, trace=suffix == ".pftrace", watch=watcher, **options, **more)
    equal, away = difference_of(result.value, a, b)
    _write(out, suffix, result)
    counted, forms = result.counts.to_dict(), expected.to_dict()
    holds = as_counted(counted, forms)
    fine = equal and all(holds.values()) and not result.errors
    if as_json:
        value: dict[str, Any] = {**sizes, "dtype": types[0], "dtype_b": types[1], **options, **more}
        rows = {key: {"machine": counted[key], "closed_form": forms[key], "holds": holds[key]} for key in counted}
        value |= {"counts": rows, "value_equals_numpy": equal, "difference": away, "errors": len(result.errors)}
        emit_json(value | result_value(result, listing))
    else:
        if listing:
            emit_text(_listing(result))
        print_result(result, counted, forms, holds, equal, away)
    machine.remark_errors(result.errors)
    return 0 if fine else 1


def as_counted(counted: Mapping[str, int], forms: Mapping[str, int]) -> dict[str, bool]:
    """Which counters are as their closed forms say: equal, or at least that for misses."""
    misses = ("l1_misses", "l2_misses", "dram_bytes")
    return {key: counted[key] >= forms[key] if key in misses else counted[key] == forms[key] for key in counted}


def _write(out: str | None, suffix: str, result: MatmulResult) -> None:
    if out is None:
        return
    if suffix == ".pftrace":
        machine.write_timeline(out, result.trace)
    elif suffix == ".npy":
        write_file(out, npy_bytes(result.value))
        remark(f"wrote {out}")
    else:
        _write_programs(out, result)


def _programs(result: MatmulResult) -> list[tuple[list[int], str, str]]:
    """Every program, as text and as a listing, with the processing elements that run it."""
    listed: dict[str, tuple[list[int], str]] = {}
    pes = [run.state.number for run in result.pes] or [0]
    for pe, program in zip(pes, result.programs or (result.program,), strict=True):
        listed.setdefault(str(program), ([], program.listing()))[0].append(pe)
    return [(pes, text, listing) for text, (pes, listing) in listed.items()]


def _write_programs(out: str, result: MatmulResult) -> None:
    programs = _programs(result)
    if len(programs) > 1 and out == "-":
        raise UsageError(
            f"{len(programs)} different programs", where="-o -", how="write them to FILE.tasm, or --listing"
        )
    for pes, text, _ in programs:
        name = out if len(programs) == 1 else f"{out.removesuffix('.tasm')}-pe{pes[0]}.tasm"
        write_file(name, text + "\n")
        if out != "-":
            of = f", what {_of(pes)}" if len(programs) > 1 else ""
            remark(f"wrote {name}{of}")


def _of(pes: list[int]) -> str:
    return f"PE {pes[0]} runs" if len(pes) == 1 else f"PEs {', '.join(map(str, pes))} run"


def _listing(result: MatmulResult) -> str:
    programs = _programs(result)
    if len(result.programs) < 2:
        return programs[0][2] + "\n"
    return "".join(f"what {_of(pes)}:\n{listing}\n\n" for pes, _, listing in programs)[:-1]


def result_value(result: MatmulResult, listing: bool) -> dict[str, Any]:
    """What JSON has of the run."""
    plain: dict[str, Any] = {"cycles": result.cycles, "math_cycles": result.math_cycles, "stalls": result.stalls}
    plain |= {"queue": result.queue, "traffic": result.traffic.to_dict(), "executed": result.executed}
    plain |= {"bytes": result.bytes, "energy_pj": result.energy_pj, "math_utilisation": result.math_utilisation}
    plain |= {"dma_bytes": result.dma_bytes, "buffering": result.buffering, "pes": machine.pes_value(result.pes)}
    if listing:
        plain |= {"program": str(result.program), "programs": [str(program) for program in result.programs]}
    return plain


def print_result(
    result: MatmulResult,
    counted: Mapping[str, int],
    forms: Mapping[str, int],
    holds: Mapping[str, bool],
    equal: bool,
    away: float,
) -> None:
    rows = []
    for key, value in counted.items():
        verdict = "equal" if value == forms[key] else "at least" if holds[key] else "DIFFERS"
        rows.append((key, value, forms[key], verdict))
    show_table(("counter", ("machine", "count"), ("closed form", "count"), ""), rows)
    emit_text("")
    if len(result.pes) > 1:
        machine.print_pes(result.pes)
    emit_text(f"{result.cycles:,} cycles by the model, {result.math_cycles:,} of them math{_last(result)}")
    machine.print_account("the math unit was idle", result.stalls)
    machine.print_account("the issue queue", result.queue)
    machine.print_moved(result.bytes, result.energy_pj, result.math_utilisation)
    if result.buffering:
        emit_text(f"segments of B: {result.dma_bytes:,} bytes by DMA, {_BUFFERING[result.buffering]}")
    if result.value.dtype.kind == "f":
        verdict = "is" if equal else "is NOT"
        emit_text(f"value {verdict} numpy's within float32 rounding (largest difference {away:.3g})")
    else:
        emit_text("value equals numpy's" if equal else f"value DIFFERS from numpy's in {int(away)} elements")


_BUFFERING = {"double": "the next one while one is worked on", "serial": "one after the other"}


def _last(result: MatmulResult) -> str:
    """Whose cycles the accounts are."""
    if len(result.pes) < 2:
        return ""
    last = max(result.pes, key=lambda run: run.cycles)
    return f" (PE {last.state.number}, the last one done)"
