"""`tilewright isa conv2d` and `tune-conv2d`: a convolution on the machine, and the fastest way to make it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa import machine
from tilewright.cli.isa.matmul import as_counted, difference, print_result, random_array, result_value
from tilewright.cli.isa.tune import report
from tilewright.cli.streams import Json, emit_json, npy_bytes, progress, remark, write_file, writer_of
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.isa import Tuning

_Images = Annotated[str, typer.Argument(metavar="NxHxWxC", help="Shape of the images, as 1x56x56x64.")]
_Weights = Annotated[str, typer.Argument(metavar="KHxKWxCxO", help="Shape of the weights, as 3x3x64x64.")]
_Stride = Annotated[int, typer.Option(min=1, help="Pixels from one window to the next.")]
_Padding = Annotated[str, typer.Option(help="valid, same, or a number of zeros on every side.")]
_Dilation = Annotated[int, typer.Option(min=1, help="Pixels from one tap to the next.")]
_Groups = Annotated[int, typer.Option(min=1, help="Groups of channels.")]
_Out = Annotated[
    str | None, typer.Option("-o", "--out", metavar="FILE", help="FILE.tasm: the program; FILE.npy: the result.")
]


def conv2d(
    x: _Images,
    w: _Weights,
    dtype: machine.Elements = "s8",
    stride: _Stride = 1,
    padding: _Padding = "0",
    dilation: _Dilation = 1,
    groups: _Groups = 1,
    ka: Annotated[int, typer.Option(help="Threads that share a pixel's output channels.")] = 1,
    kb: Annotated[int, typer.Option(help="Threads that share every dot product.")] = 1,
    columns: Annotated[int | None, typer.Option(help="Output channels per instruction.")] = None,
    split: Annotated[str | None, typer.Option(help="What PEs share: images, rows or channels.")] = None,
    block_a: Annotated[int, typer.Option(help="Rounds of channels that one ld brings.")] = 1,
    buffers: Annotated[int, typer.Option(help="2: the next block of A is loaded while one is worked on.")] = 1,
    stream: Annotated[bool, typer.Option("--stream", help="The weights come to L2 by DMA.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random images and weights.")] = 0,
    settings: machine.Settings = None,
    out: _Out = None,
    as_json: Json = False,
) -> int:
    """Convolve random images on the machine; its counts beside the closed forms, its value beside numpy's."""
    from tilewright.isa import conv2d as convolve
    from tilewright.isa import expected_conv2d_counts

    suffix = writer_of(out, ".tasm", ".npy", as_json=as_json)
    config, how = machine.configured(settings), how_of(stride, padding, dilation, groups)
    images, weights = random_array(shape_of(x), dtype, seed), random_array(shape_of(w), dtype, seed + 1)
    options: dict[str, Any] = {"ka": ka, "kb": kb, "columns": columns, "split": split}
    more: dict[str, Any] = {"block_a": block_a, "buffers": buffers, "stream": stream}
    e = images.dtype.itemsize
    forms = expected_conv2d_counts(images.shape, weights.shape, config=config, element_bytes=e, **how, **options)
    with progress("mm", forms.instructions) as bar:
        watcher = machine.watch(bar, forms.instructions)
        result = convolve(images, weights, config=config, watch=watcher, **how, **options, **more)
    depth = prod(weights.shape[:3])
    equal, away = difference(result.value, *_by_numpy(images, weights, result.value.shape, how), depth)
    if out is not None:
        write_file(out, npy_bytes(result.value) if suffix == ".npy" else f"{result.program}\n")
        remark(f"wrote {out}")
    closed = forms.to_dict() | ({"l2_misses": 0, "dram_bytes": 0} if stream else {})
    counted = result.counts.to_dict()
    holds = as_counted(counted, closed)
    if as_json:
        value: dict[str, Any] = {"x": list(images.shape), "w": list(weights.shape), "dtype": dtype, **how, **options}
        value |= {**more, "counts": counted, "closed_forms": closed, "value_equals_numpy": equal, "difference": away}
        emit_json(value | result_value(result, listing=False))
    else:
        print_result(result, counted, closed, holds, equal, away)
    machine.remark_errors(result.errors)
    return 0 if equal and all(holds.values()) and not result.errors else 1


def tune_conv2d(
    x: _Images,
    w: _Weights,
    dtype: machine.Elements = "s8",
    stride: _Stride = 1,
    padding: _Padding = "0",
    dilation: _Dilation = 1,
    groups: _Groups = 1,
    most: machine.MostChoices = 48,
    within: machine.Within = 0.0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the ranking printed.")] = 8,
    settings: machine.Settings = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE", help="FILE.html: a page; FILE.json: all numbers.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Rank the ways to make a convolution by modelled cycles, and say why the first is the fastest."""
    from tilewright.isa import autotune_conv2d

    suffix = writer_of(out, ".json", ".html")
    how = how_of(stride, padding, dilation, groups)
    with progress("timing") as bar:
        config = machine.configured(settings)
        tuning = autotune_conv2d(shape_of(x), shape_of(w), dtype, config, most=most, within=within, watch=bar, **how)
    return report(tuning, _call(tuning, x, w, how, settings or ()), top, out, suffix, as_json, None)


def _call(tuning: Tuning, x: str, w: str, how: dict[str, Any], settings: Sequence[str]) -> str:
    """The best choice as a command."""
    words = [f"isa conv2d {x} {w} --dtype {tuning.dtype}"]
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "ka": 1, "kb": 1, "block_a": 1, "buffers": 1}
    for name, value in {**how, **tuning.options}.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value not in (None, False) and usual.get(name) != value:
            words.append(f"{option} {value}")
    return " ".join([*words, *(f"--set {assignment}" for assignment in settings)])


def how_of(stride: int, padding: str, dilation: int, groups: int) -> dict[str, Any]:
    zeros: Any = int(padding) if re.fullmatch("[0-9]{1,9}", padding) else padding
    return {"stride": stride, "padding": zeros, "dilation": dilation, "groups": groups}


def shape_of(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9}){3}", text):
        raise UsageError(f"{text!r} is no shape", how="four numbers, as 1x56x56x64")
    shape = tuple(map(int, text.split("x")))
    if prod(shape) > machine.MOST:
        raise UsageError(f"{text} has more than {machine.MOST} elements")
    return shape


def _by_numpy(
    x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], out: tuple[int, ...], how: dict[str, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(the convolution, that of the absolute values) in int64 or float64."""
    import numpy as np

    wide: Any = np.int64 if x.dtype.kind in "iu" else np.float64
    stride, dilation, groups = how["stride"], how["dilation"], how["groups"]
    spans = [(size - 1) * stride + 1 for size in out[1:3]]
    more = [max(0, span + (k - 1) * dilation - n) for span, k, n in zip(spans, w.shape, x.shape[1:3], strict=False)]
    given = how["padding"]
    before = [need // 2 if given == "same" else 0 if given == "valid" else given for need in more]
    padded = np.pad(x.astype(wide), ((0, 0), *((b, max(0, n - b)) for b, n in zip(before, more, strict=True)), (0, 0)))
    both: Any = np.zeros((2, *out), wide)
    depth, width = w.shape[2], w.shape[3] // groups
    for i, j, g in np.ndindex(*w.shape[:2], groups):
        top, left = i * dilation, j * dilation
        part = padded[:, top : top + spans[0] : stride, left : left + spans[1] : stride, g * depth : (g + 1) * depth]
        mine = slice(g * width, (g + 1) * width)
        taps = w[i, j, :, mine].astype(wide)
        both[0][..., mine] += part @ taps
        both[1][..., mine] += np.abs(part) @ np.abs(taps)
    return both[0], both[1]
