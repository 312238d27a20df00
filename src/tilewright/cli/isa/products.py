"""`tilewright isa matmul` and `conv2d`: products on the machine, their counts beside closed forms."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Argument, Option

from tilewright import isa, layout, trace
from tilewright.cli.isa import machine
from tilewright.cli.options import Files
from tilewright.cli.streams import npy_bytes, progress
from tilewright.errors import UsageError
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark, write_file
from tilewright.render.tables import Table

if TYPE_CHECKING:
    import numpy as np

_Array: TypeAlias = "np.ndarray[Any, Any]"
_DTYPES = (*("s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32"), *("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32"))


def random_array(shape: tuple[int, ...], dtype: str, seed: int) -> _Array:
    """Seeded values: the whole range of an integer type, normal floats."""
    import numpy as np

    rng, kind = np.random.default_rng(seed), layout.paged((1,), dtype).numpy_dtype
    if dtype[0] in "su":
        bits = int(dtype[1:])
        low = -(1 << (bits - 1)) if dtype[0] == "s" else 0
        return rng.integers(low, low + (1 << bits), shape, dtype=np.int64).astype(kind)
    return rng.normal(size=shape).astype(kind)


def difference(
    value: _Array, a: _Array, b: _Array, depth: int, product: Callable[[Any, Any], Any] = operator.matmul
) -> tuple[bool, float]:
    """Whether the value is numpy's: exactly modulo 2^32, or for floats within the bound of ``depth`` float32 roundings.

    Elements that are not finite in float32 must be the same; the largest difference is that of the others. Of whole
    numbers it is how many elements differ.
    """
    import numpy as np

    if value.dtype == np.int32:
        exact = product(a.astype(np.int64), b.astype(np.int64))
        wrong = int(np.count_nonzero(exact.astype(np.uint64).astype(np.uint32).view(np.int32) != value))
        return wrong == 0, float(wrong)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        right = product(x, y)
        bound = (depth + 2) * float(np.finfo(np.float32).eps) * product(np.abs(x), np.abs(y))
        same = (value == right.astype(np.float32)) | (np.isnan(value) & np.isnan(right))
        away = np.abs(value - right)
        near = bool((same | (away <= bound)).all())
    return near, float(away[np.isfinite(away)].max(initial=0))


def _sizes(text: str | None, count: int, like: str) -> tuple[int, ...] | None:
    """The ``count`` sizes of a text such as ``4x16`` or ``1x56x56x64``. UsageError for another text."""
    if text is None:
        return None
    sizes = tuple(int(part) if part.strip().isdecimal() else -1 for part in text.replace(",", "x").split("x"))
    if len(sizes) != count or min(sizes) < 0:
        raise UsageError(f"{text!r} is no shape", how=f"{count} numbers, as {like}")
    if prod(sizes) > machine.MOST:
        raise UsageError(f"{text} has more than {machine.MOST} elements")
    return sizes


def operands(
    files: list[str] | None, m: int | None, n: int | None, k: int | None, dtypes: tuple[str, str], seed: int
) -> Any:
    """A and B: those of ``files`` (A=FILE.npy), random ones of the sizes and types for the others."""
    if wrong := next((dtype for dtype in dtypes if dtype not in _DTYPES), None):
        raise UsageError(f"no element type called {wrong!r} for matrices", how=f"one of {', '.join(_DTYPES)}")
    arrays = machine.Tensors(files).arrays()
    if unknown := next((name for name in arrays if name not in ("A", "B")), None):
        raise UsageError(f"unknown matrix in --data {unknown}", how="A=FILE.npy, m x k, or B=FILE.npy, k x n")
    read = {name: _read(name, arrays[name], dtype) for name, dtype in zip("AB", dtypes) if name in arrays}
    depths = [k, *(read[name].shape[dim] for name, dim in (("A", 1), ("B", 0)) if name in read)]
    depth = next((size for size in depths if size is not None), None)
    of: Any = (("A", (m, depth), dtypes[0], "--m and --k"), ("B", (depth, n), dtypes[1], "--k and --n"))
    for name, sizes, dtype, missing in of:
        if name in read:
            if not all(size in (None, side) for size, side in zip(sizes, read[name].shape, strict=True)):
                expected = " x ".join("any" if size is None else str(size) for size in sizes)
                raise UsageError(f"{name} has shape {list(read[name].shape)}, not {expected}", where="--data")
            continue
        if None in sizes:
            raise UsageError(f"the size of {name} is not given", how=f"{missing}, or --data {name}=FILE.npy")
        _check_size(name, *sizes)
        read[name] = random_array(sizes, dtype, seed + (name == "B"))
    _check_size("C", read["A"].shape[0], read["B"].shape[1])
    return read["A"], read["B"]


def _check_size(name: str, *sizes: Any) -> None:
    if prod(sizes) > machine.MOST:
        how = "this machine is simulated; give smaller sizes"
        raise UsageError(f"{name} has more than {machine.MOST} elements", how=how)


def _read(name: str, array: _Array, dtype: str) -> _Array:
    """A matrix as it was saved; numpy saves bf16 as two bytes of no type."""
    kind = layout.paged((1,), dtype).numpy_dtype
    if array.dtype.kind == "V" and array.dtype.itemsize == kind.itemsize:
        array = array.view(kind)
    if array.ndim != 2:
        raise UsageError(f"{name} has shape {list(array.shape)}", where="--data", how="a matrix has two dims")
    isa.element_type(array, name)
    return array


_Size = Option(min=0, help="Rows of A (m), columns of B (n), depth (k); files of --data have theirs.")


def matmul(
    m: Annotated[int | None, _Size] = None,
    n: Annotated[int | None, _Size] = None,
    k: Annotated[int | None, _Size] = None,
    dtype: Annotated[str, "Elements of A: s4 to s32, u4 to u32, f8e4m3fn, f8e5m2, f16, bf16, f32."] = "s8",
    dtype_b: Annotated[str | None, "Elements of B, if not those of A."] = None,
    data: Annotated[list[str] | None, "--data", "--tensor A=FILE.npy", "A or B of a file, not random."] = None,
    ka: Annotated[int, "Threads that share a row's columns."] = 1,
    kb: Annotated[int, "Threads that share every dot product."] = 1,
    transpose_b: Annotated[bool, "Store B row-major and walk it with t1."] = False,
    order: Annotated[str, "k_outer or column_outer."] = "k_outer",
    columns: Annotated[int | None, "Columns per instruction."] = None,
    block_a: Annotated[int, "Rounds of A that one ld brings."] = 1,
    tail_kb: Annotated[int | None, "--kb of the last rows, where they are fewer than a block."] = None,
    line: Annotated[str | None, "--line 4x16", "A line, in elements per dim of B as it is stored."] = None,
    page: Annotated[str | None, "--page 64x128", "A page, likewise; a multiple of the line."] = None,
    split: Annotated[str | None, "What of C PEs (--set pes=4) share: rows (if there are enough) or columns."] = None,
    segments: Annotated[int | None, "B comes to L2 by DMA, for every PE in so many segments."] = None,
    double_buffer: Annotated[bool, "--double-buffer/--no-double-buffer", "A segment comes as one is worked on."] = True,
    seed: Annotated[int, Option(min=0, help="Seed of the random matrices.")] = 0,
    settings: machine.Settings = None,
    listing: Annotated[bool, "Print the program too, of several PEs each."] = False,
    *,
    to: Annotated[
        Output, Files(".tasm the program; FILE-pe0.tasm, ... where those of PEs differ", ".pftrace", ".npy C")
    ],
) -> int:
    """Multiply two matrices on the machine; its counts beside the closed forms, its value beside numpy's."""
    config = machine.configured(settings)
    a, b = operands(data, m, n, k, (dtype, dtype_b or dtype), seed)
    sizes = {"m": a.shape[0], "n": b.shape[1], "k": b.shape[0]}
    options: dict[str, Any] = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    options |= {"line": _sizes(line, 2, "4x16"), "split": split, "segments": segments, "tail_kb": tail_kb}
    more: dict[str, Any] = {"page": _sizes(page, 2, "64x128"), "double_buffer": double_buffer}
    options["block_a"] = block_a
    expected = isa.expected_counts(**sizes, config=config, element_bytes=a.dtype.itemsize, **options)
    with progress("mm", expected.instructions) as bar:
        watcher = machine.watch(bar, expected.instructions)
        result = isa.matmul(a, b, config=config, trace=to.suffix == ".pftrace", watch=watcher, **options, **more)
    types = {"dtype": isa.element_type(a, "A"), "dtype_b": isa.element_type(b, "B")}
    value = {**sizes, **types, **options, **more, "errors": len(result.errors)}
    compared = difference(result.value, a, b, a.shape[1])
    answer, correct = _compared(result, expected.to_dict(), *compared, value, listing)
    forms: dict[str, Form] = {
        ".pftrace": lambda: trace.perfetto_bytes(result.trace),
        ".npy": lambda: npy_bytes(result.value),
        ".tasm": lambda: f"{result.program}\n",
    }
    if to.suffix == ".tasm" and len(programs := _programs(result)) > 1:
        _write_programs(to, programs)
        to = Output(as_json=to.as_json)
    deliver(answer, to, forms, wrote=machine.timeline_text(result.trace) if to.suffix == ".pftrace" else "")
    machine.remark_errors(result.errors)
    return 0 if correct else 1


def _compared(
    result: Any, forms: Mapping[str, int], equal: bool, away: float, value: Mapping[str, Any], listing: bool = False
) -> tuple[Answer, bool]:
    """A product that was run beside the closed ``forms`` of its counts and numpy's value; whether all agrees.

    ``away``: the largest difference, or for whole numbers how many elements differ; ``value``: its options as JSON.
    """
    counts, misses = result.counts.to_dict(), ("l1_misses", "l2_misses", "dram_bytes")
    # Of misses the closed form is the least.
    holds = {name: n >= forms[name] if name in misses else n == forms[name] for name, n in counts.items()}

    def to_json() -> dict[str, Any]:
        held = {k: {"machine": n, "closed_form": forms[k], "holds": holds[k]} for k, n in counts.items()}
        plain = {"counts": held, "value_equals_numpy": equal, "difference": away, **value}
        plain |= machine.numbers(result) | {"pes": machine.pes_value(result.pes)}
        plain |= {"dma_bytes": result.dma_bytes, "buffering": result.buffering}
        if listing:
            plain |= {"program": str(result.program), "programs": [str(program) for program in result.programs]}
        return plain

    def lines() -> Iterator[Line]:
        if listing:
            heads = [f"what {_who(pes)}:\n" if len(result.programs) > 1 else "" for pes, *_ in _programs(result)]
            yield "\n".join(f"{head}{text}\n" for head, (*_, text) in zip(heads, _programs(result)))
        verdicts = {k: "equal" if n == forms[k] else "at least" if holds[k] else "DIFFERS" for k, n in counts.items()}
        rows = [(name, n, forms[name], verdicts[name]) for name, n in counts.items()]
        yield from (Table(("counter", ("machine", "count"), ("closed form", "count"), ""), rows), "")
        if len(result.pes) > 1:
            yield from (machine.pes_table(result.pes), "")
        last = max(result.pes, key=lambda run: run.cycles).state.number if len(result.pes) > 1 else None
        of = "" if last is None else f" (PE {last}, the last one done)"
        yield f"{result.cycles:,} cycles by the model, {result.math_cycles:,} of them math{of}"
        yield from machine.took_lines(machine.numbers(result))
        if result.buffering:
            double = result.buffering == "double"
            way = "the next one while one is worked on" if double else "one after the other"
            yield f"segments of B: {result.dma_bytes:,} bytes by DMA, {way}"
        if result.value.dtype.kind == "f":
            verdict = "is" if equal else "is NOT"
            yield f"value {verdict} numpy's within float32 rounding (largest difference {away:.3g})"
        else:
            yield "value equals numpy's" if equal else f"value DIFFERS from numpy's in {int(away)} elements"

    return Answer(to_json, lines), equal and all(holds.values()) and not result.errors


def _programs(result: Any) -> list[tuple[list[int], str, str]]:
    """Every program that differs: the processing elements that run it, its text, its listing."""
    found: dict[str, tuple[list[int], str]] = {}
    numbers = [run.state.number for run in result.pes] or [0]
    for pe, program in zip(numbers, result.programs or (result.program,), strict=True):
        found.setdefault(str(program), ([], program.listing()))[0].append(pe)
    return [(pes, text, listing) for text, (pes, listing) in found.items()]


def _who(pes: list[int]) -> str:
    return f"PE {pes[0]} runs" if len(pes) == 1 else f"PEs {', '.join(map(str, pes))} run"


def _write_programs(to: Output, programs: list[tuple[list[int], str, str]]) -> None:
    """The programs of several processing elements, a file for each that differs."""
    if not to.is_file or to.path is None:
        problem = f"{len(programs)} different programs"
        raise UsageError(problem, where="-o -", how="write them to FILE.tasm, or --listing")
    for pes, text, _ in programs:
        name = f"{to.path.removesuffix('.tasm')}-pe{pes[0]}.tasm"
        write_file(name, f"{text}\n", note=None)
        remark(f"wrote {name}, what {_who(pes)}")


# Convolutions.


@dataclass(frozen=True)
class Convolution:
    """The options that say what is convolved, and how."""

    x: Annotated[str, Argument(metavar="NxHxWxC", help="Shape of the images, as 1x56x56x64.")]
    w: Annotated[str, Argument(metavar="KHxKWxCxO", help="Shape of the weights, as 3x3x64x64.")]
    dtype: machine.Elements = "s8"
    stride: Annotated[int, Option(min=1, help="Pixels from one window to the next.")] = 1
    padding: Annotated[str, "valid, same, or a number of zeros on every side."] = "0"
    dilation: Annotated[int, Option(min=1, help="Pixels from one tap to the next.")] = 1
    groups: Annotated[int, Option(min=1, help="Groups of channels.")] = 1

    @property
    def shapes(self) -> tuple[Any, Any]:
        """The sizes (N, H, W, C) of the images and (KH, KW, C, O) of the weights."""
        return _sizes(self.x, 4, "1x56x56x64"), _sizes(self.w, 4, "3x3x64x64")

    @property
    def how(self) -> dict[str, Any]:
        """The options as the library takes them: zeros on every side as a number."""
        zeros: Any = int(self.padding) if re.fullmatch("[0-9]{1,9}", self.padding) else self.padding
        return {"stride": self.stride, "padding": zeros, "dilation": self.dilation, "groups": self.groups}


def conv2d(
    of: Convolution,
    ka: Annotated[int, "Threads that share a pixel's output channels."] = 1,
    kb: Annotated[int, "Threads that share every dot product."] = 1,
    columns: Annotated[int | None, "Output channels per instruction."] = None,
    split: Annotated[str | None, "What PEs share: images, rows or channels."] = None,
    block_a: Annotated[int, "Rounds of channels that one ld brings."] = 1,
    buffers: Annotated[int, "2: the next block of A is loaded while one is worked on."] = 1,
    stream: Annotated[bool, "The weights come to L2 by DMA."] = False,
    seed: Annotated[int, Option(min=0, help="Seed of the random images and weights.")] = 0,
    settings: machine.Settings = None,
    *,
    to: Annotated[Output, Files(".tasm the program", ".npy the result")],
) -> int:
    """Convolve random images on the machine; its counts beside the closed forms, its value beside numpy's."""
    config, how = machine.configured(settings), of.how
    images, weights = (random_array(shape, of.dtype, seed + k) for k, shape in enumerate(of.shapes))
    options: dict[str, Any] = {"ka": ka, "kb": kb, "columns": columns, "split": split}
    more: dict[str, Any] = {"block_a": block_a, "buffers": buffers, "stream": stream}
    e = images.dtype.itemsize
    forms = isa.expected_conv2d_counts(images.shape, weights.shape, config=config, element_bytes=e, **how, **options)
    with progress("mm", forms.instructions) as bar:
        watcher = machine.watch(bar, forms.instructions)
        result = isa.conv2d(images, weights, config=config, watch=watcher, **how, **options, **more)
    by_numpy = partial(_convolved, out=result.value.shape, **how)
    compared = difference(result.value, images, weights, prod(weights.shape[:3]), by_numpy)
    closed = forms.to_dict() | ({"l2_misses": 0, "dram_bytes": 0} if stream else {})
    value = {"x": list(images.shape), "w": list(weights.shape), "dtype": of.dtype, **how, **options, **more}
    value |= {"counts": result.counts.to_dict(), "closed_forms": closed}
    answer, correct = _compared(result, closed, *compared, value)
    deliver(answer, to, {".npy": lambda: npy_bytes(result.value), ".tasm": lambda: f"{result.program}\n"})
    machine.remark_errors(result.errors)
    return 0 if correct else 1


def _convolved(
    x: _Array, w: _Array, *, out: tuple[int, ...], stride: int, padding: int | str, dilation: int, groups: int
) -> _Array:
    """The convolution by numpy, of shape ``out``, in the arrays' type: every window's elements by all weights."""
    import numpy as np

    spans = [(k - 1) * dilation + 1 for k in w.shape[:2]]
    more = [max(0, (size - 1) * stride + span - n) for size, span, n in zip(out[1:3], spans, x.shape[1:3])]
    before = [n // 2 if padding == "same" else 0 if padding == "valid" else int(padding) for n in more]
    padded = np.pad(x, ((0, 0), *((b, max(0, n - b)) for b, n in zip(before, more)), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, (1, 2))
    taps = windows[:, ::stride, ::stride, :, ::dilation, ::dilation].reshape(*out[:3], groups, 1, -1)
    weights = np.moveaxis(w, 2, 0).reshape(-1, groups, out[3] // groups).swapaxes(0, 1)
    return np.asarray((taps @ weights).reshape(out))
