"""`tilewright isa`: assemble programs for the matrix unit, run them, and check a matmul's counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import _isa_sweep, _isa_tune
from tilewright.cli._io import emit_json, emit_text, progress, read_text, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.isa import MatmulResult, MatrixUnitConfig, RunResult

__all__ = ["add_to"]

_File = Annotated[str, typer.Argument(metavar="FILE", help="A program (.tasm); - is stdin.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A field of the machine, as threads=64 or kb_acc=last."),
]
_MOST = 1 << 27
_Size = typer.Option(min=0, help="Rows of A (m), columns of B (n), depth (k).")


def _config(settings: Sequence[str] | None) -> MatrixUnitConfig:
    from tilewright.isa import MatrixUnitConfig

    known = {f.name for f in fields(MatrixUnitConfig)}
    values: dict[str, Any] = {}
    for each in settings or ():
        name, equals, text = each.partition("=")
        if not equals or name not in known:
            raise UsageError(f"--set {each}: no such field", how=f"one of {', '.join(sorted(known))}")
        values[name] = _setting(text)
    return MatrixUnitConfig(**values)


def _setting(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    parts = text.split(":")
    if all(part.lstrip("-").isdecimal() for part in parts):
        numbers = tuple(int(part) for part in parts)
        return numbers[0] if len(numbers) == 1 else numbers
    return text


_DTYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "f16", "bf16", "f32")


def _random(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Seeded values: the whole range of an integer type, normal floats."""
    import numpy as np

    from tilewright.layout import paged

    rng, kind = np.random.default_rng(seed), paged((1,), dtype).numpy_dtype
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(kind)
    return rng.normal(size=shape).astype(kind)


def _difference(value: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[bool, float]:
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
    settings: _Set = None,
    listing: Annotated[bool, typer.Option("--listing", help="Print the program too.")] = False,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="FILE", help="FILE.tasm: the program; FILE.pftrace: a timeline."),
    ] = None,
    as_json: _Json = False,
) -> int:
    """Multiply two random matrices on the machine; its counts beside the closed forms, its value beside numpy's."""
    from tilewright.isa import expected_counts, matmul

    suffix = _suffix(out)
    config = _config(settings)
    if max(m * n, m * k, n * k) > _MOST:
        raise UsageError(f"a matrix of more than {_MOST} elements", how="this machine is simulated; give smaller sizes")
    for each in (dtype, dtype_b or dtype):
        if each not in _DTYPES:
            raise UsageError(f"no element type called {each!r} for matrices", how=f"one of {', '.join(_DTYPES)}")
    a, b = _random((m, k), dtype, seed), _random((k, n), dtype_b or dtype, seed + 1)
    how: dict[str, Any] = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    expected = expected_counts(m, n, k, config=config, element_bytes=a.dtype.itemsize, **how)
    with progress("mm") as bar:
        watch = _watch(bar, expected.instructions)
        result = matmul(a, b, config=config, trace=suffix == ".pftrace", watch=watch, **how)
    equal, difference = _difference(result.value, a, b)
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
    _remark_errors(result.errors)
    return 0 if fine else 1


def _watch(bar: Any, total: int) -> Any:
    return lambda counts: bar(counts.instructions, total)


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
        from tilewright.trace import Recorder, perfetto_bytes

        recorder = Recorder()
        recorder.events.extend(result.trace)
        write_file(out, perfetto_bytes(recorder.events))
    else:
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
    _print_account("the math unit was idle", result.stalls)
    _print_account("the issue queue", result.queue)
    if result.value.dtype.kind == "f":
        verdict = "is" if equal else "is NOT"
        emit_text(f"value {verdict} numpy's within float32 rounding (largest difference {difference:.3g})")
    else:
        emit_text("value equals numpy's" if equal else f"value DIFFERS from numpy's in {int(difference)} elements")


def _print_account(title: str, account: Mapping[str, int]) -> None:
    """Reasons and cycles, the largest first."""
    parts = [f"{reason} {cycles:,}" for reason, cycles in sorted(account.items(), key=lambda row: -row[1]) if cycles]
    emit_text(f"{title}: {', '.join(parts) or 'never'}")


def _remark_errors(errors: Sequence[Any], most: int = 5) -> None:
    for record in errors[:most]:
        remark(str(record))
    if len(errors) > most:
        remark(f"... and {len(errors) - most} more error records")


def _asm(
    file: _File,
    settings: _Set = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE.tasm", help="Write the canonical text; - is stdout.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Assemble a program and print it in canonical form, each instruction with its address."""
    from tilewright.isa import assemble

    program = assemble(read_text(file), _config(settings))
    if out is not None:
        if _suffix(out) != ".tasm":
            raise UsageError(f"no writer for {out}", how="FILE.tasm, or - for stdout")
        write_file(out, str(program) + "\n")
        return
    if as_json:
        rows = [
            {"pc": pc, "text": str(each), "name": each.name, "unit": each.spec.unit, "line": each.line}
            for pc, each in enumerate(program.instructions)
        ]
        emit_json({"instructions": rows, "labels": dict(program.labels)})
        return
    emit_text(program.listing())


def _pair(text: str, option: str, what: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option} {text!r} is not NAME={what}")
    return name, value


def _array(text: str, option: str, count_up: bool) -> np.ndarray[Any, Any]:
    """An array of the shape and type of ``text``, as s32[4,4]: zeros, or 0, 1, 2, ..."""
    import numpy as np

    from tilewright.layout import TensorLayout, parse

    layout = parse(text)
    if not isinstance(layout, TensorLayout):
        raise UsageError(f"{text} is a tuple", where=option)
    if layout.num_elements > _MOST:
        raise UsageError(f"{text} has more than {_MOST} elements", where=option)
    if count_up:
        return np.arange(layout.num_elements).astype(layout.numpy_dtype).reshape(layout.shape)
    return np.zeros(layout.shape, layout.numpy_dtype)


def _tensors(files: Sequence[str], iota: Sequence[str], zeros: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    found: dict[str, np.ndarray[Any, Any]] = {}
    for each in files:
        name, path = _pair(each, "--tensor", "FILE.npy")
        try:
            found[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the array: {error}", where=path) from None
    for option, given in (("--iota", iota), ("--zeros", zeros)):
        for each in given:
            name, text = _pair(each, option, "s32[4,4]")
            found[name] = _array(text, option, option == "--iota")
    return found


def _run(
    file: _File,
    tensor: Annotated[
        list[str] | None, typer.Option("--tensor", metavar="NAME=FILE.npy", help="A tensor the program calls $NAME.")
    ] = None,
    iota: Annotated[
        list[str] | None, typer.Option("--iota", metavar="NAME=s8[4,4]", help="A tensor of 0, 1, 2, ...")
    ] = None,
    zeros: Annotated[
        list[str] | None,
        typer.Option("--zeros", metavar="NAME=s32[4,4]", help="A tensor of zeros; printed afterwards."),
    ] = None,
    save: Annotated[
        list[str] | None, typer.Option("--save", metavar="NAME=FILE.npy", help="Write a tensor after the run.")
    ] = None,
    settings: _Set = None,
    as_json: _Json = False,
) -> int:
    """Run a program; print counts, cycles, errors, and the tensors that began as zeros."""
    from tilewright.isa import MatrixUnit, assemble

    config = _config(settings)
    program = assemble(read_text(file), config)
    memory = _tensors(tensor or (), iota or (), zeros or ())
    with progress(file) as bar:
        result = MatrixUnit(config).run(program, memory, watch=_watch(bar, 0))
    for each in save or ():
        _save(result, *_pair(each, "--save", "FILE.npy"))
    shown = [_pair(each, "--zeros", "")[0] for each in zeros or ()]
    _print_run(result, shown, as_json)
    _remark_errors(result.errors)
    return 1 if result.errors else 0


def _save(result: RunResult, name: str, path: str) -> None:
    import io

    import numpy as np

    raw = io.BytesIO()
    np.save(raw, result.tensor(name))
    write_file(path, raw.getvalue())


def _print_run(result: RunResult, shown: Sequence[str], as_json: bool) -> None:
    if as_json:
        records = [{"pc": e.pc, "kind": e.kind, "column": e.column, "register": e.register} for e in result.errors]
        tensors = {name: _plain(result.tensor(name)) for name in shown}
        value = {"counts": result.counts.to_dict(), "cycles": result.cycles, "math_cycles": result.math_cycles}
        emit_json(
            {
                **value,
                "executed": result.executed,
                "stalls": result.stalls,
                "queue": result.queue,
                "traffic": result.traffic.to_dict(),
                "errors": records,
                "tensors": tensors,
            }
        )
        return
    for name in shown:
        emit_text(f"{name} =\n{result.tensor(name)}\n")
    emit_text(f"{result.executed:,} instructions executed, {result.cycles:,} cycles by the model")
    for key, count in result.counts.to_dict().items():
        if count:
            emit_text(f"{key:20} {count:,}")


def _plain(array: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers; None for what JSON has no number for."""
    import numpy as np

    if array.dtype.kind in "iu":
        return array.tolist()
    plain = array.astype(np.float64).astype(object)
    plain[~np.isfinite(array.astype(np.float64))] = None
    return plain.tolist()


def _reference() -> None:
    """Print the instruction reference (Markdown)."""
    from tilewright.isa import reference

    emit_text(reference())


def _claims(as_json: _Json = False) -> None:
    """Count what the instruction's source claims, where it holds and where it does not."""
    from tilewright.isa import claims

    rows = claims()
    if as_json:
        table = [
            {"claim": r.claim, "case": r.case, "counted": r.counted, "without": r.without, "with": r.with_it}
            | {"factor": r.factor, "holds": r.holds, "remark": r.remark}
            for r in rows
        ]
        emit_json({"claims": table})
        return
    title = ""
    for row in rows:
        if row.claim != title:
            emit_text(f"{chr(10) * bool(title)}{row.claim}")
            title = row.claim
        emit_text(f"  {row.case}")
        numbers = f"{row.without:,} -> {row.with_it:,} {row.counted}, {row.factor:.4g} times"
        emit_text(f"    {numbers}: {row.remark}")


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(help="The matrix unit: assemble, run, multiply, count.", no_args_is_help=True)
    group.command("matmul")(_matmul)
    group.command("asm")(_asm)
    group.command("run")(_run)
    group.command("claims")(_claims)
    group.command("reference")(_reference)
    _isa_tune.add_to(group)
    _isa_sweep.add_to(group)
    app.add_typer(group, name="isa")
