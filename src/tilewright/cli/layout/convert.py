"""Layouts by other names (`tilewright layout convert`, `cute`, `linalg`, `onednn`, `preset`, `predict`), and data.

`pack` and `unpack` take a numpy file into a layout's raw bytes, and back.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright import targets
from tilewright.cli.layout import show
from tilewright.cli.layout.draw import View
from tilewright.cli.streams import Json, npy_bytes, read_bytes, read_text
from tilewright.errors import ParseError, TilewrightError, UnsupportedError, UsageError, placed_at
from tilewright.reading import open_bytes
from tilewright.render.delivery import Answer, Output, deliver, remark
from tilewright.render.formats import ratio_text
from tilewright.render.tables import Table

if TYPE_CHECKING:
    import numpy as np

    from tilewright.layout.convert.linalg import LinalgPack


def convert(text: show.Text, leaf: show.Leaf = None, as_json: Json = False) -> None:
    """Write a layout as CuTe's shape:stride, MLIR's linalg.pack, a oneDNN tag and as numpy, JAX and torch pack it.

    The last three are expressions of pads, reshapes and transposes. What cannot be written says why.
    """
    layout = show.one_array(text, leaf)
    forms, rows = dict[str, dict[str, str | None]](), list[tuple[str, str]]()
    for name, write in _writers().items():
        try:
            written = write(layout)
            forms[name] = {"text": written, "refusal": ""}
            rows.append((name, written))
        except TilewrightError as error:
            forms[name] = {"text": None, "refusal": error.what}
            rows.append((name, f"none: {error.what}"))
    table = Table(("layout", str(layout)), rows)
    deliver(Answer(lambda: {"layout": str(layout), "forms": forms}, lambda: [table]), Output(as_json=as_json))


def _writers() -> dict[str, Callable[[layouts.TensorLayout], str]]:
    return {
        "CuTe": layouts.to_cute,
        "CuTe, padded": lambda layout: layouts.to_cute(layout, padded=True),
        "linalg.pack": lambda layout: "; ".join(map(_pack_text, layouts.to_linalg_pack(layout))),
        "oneDNN": layouts.to_onednn_tag,
        "numpy": layouts.to_recipe,
        "JAX": lambda layout: layouts.to_recipe(layout, "jax"),
        "torch": lambda layout: layouts.to_recipe(layout, "torch"),
    }


def _pack_text(pack: LinalgPack) -> str:
    if not pack.inner_tiles and pack.outer_dims_perm == tuple(sorted(pack.outer_dims_perm)):
        return "no pack: the array as it is"
    return pack.attributes


_Cute = Annotated[str, Argument(metavar="LAYOUT", help="As '((2,2),8):((1,16),2)'.")]
_Dtype = Annotated[str | None, "--dtype TYPE", "Element type, as bf16; the pointer's, or f32."]
_Threads = Annotated[str | None, "--threads LAYOUT", "A layout of (threads, values): its bank conflicts, on stderr."]
_Linalg = Annotated[str, Argument(metavar="TEXT", help="MLIR with linalg.pack or tensor.pack in it; - is stdin.")]
_Tag = Annotated[str, Argument(metavar="TAG", help="As nChw16c or aBcd16b.")]
_Shape = Annotated[
    str, Argument(metavar="SHAPE", help="Element type and dims in oneDNN's order, as f32[2,40,3,5]; - is stdin.")
]


def cute(
    text: _Cute, offset: show.Offset = None, dtype: _Dtype = None, threads: _Threads = None, *, view: View
) -> None:
    """Read a CuTe layout (CUTLASS's shape:stride), swizzled or not: facts, an element, an offset, a picture."""
    layout = layouts.from_cute(text, dtype)
    if threads is not None:
        found = layouts.bank_conflicts(layout, layouts.from_cute(threads, layout.dtype))
        passes = f"{found.wavefronts} passes over the banks where {found.least} would do"
        remark(f"bank conflicts: {found.conflicts}: {passes}, {found.width} bytes at once, {found.ways}-way at most")
    view.show(layout, offset)


def linalg(text: _Linalg, offset: show.Offset = None, *, view: View) -> None:
    """Read MLIR's linalg.pack operations, each packing what the one before made: facts, an element, a picture."""
    first, *more = layouts.parse_linalg_pack(read_text("-") if text == "-" else text)
    attributes = first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm
    layout = layouts.from_linalg_pack(first.source_shape, first.dtype, *attributes, *more)
    view.show(layout, offset)


def onednn(tag: _Tag, shape: _Shape, offset: show.Offset = None, *, view: View) -> None:
    """Read a oneDNN format tag: facts, an element, an offset, a picture."""
    array = show.sized_array(shape)
    view.show(layouts.from_onednn_tag(tag, array.shape, array.dtype), offset)


_Name = Annotated[
    str,
    Argument(
        metavar="NAME", help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton."
    ),
]
_Dims = Annotated[str, Argument(metavar="SHAPE", help="Element type and dims, as f16[100,64]; - is stdin.")]
_WithinFace = Annotated[bool, "Of tenstorrent: the elements of every face transposed."]
_OfFaces = Annotated[bool, "Of tenstorrent: the four faces of every tile transposed."]


def preset(
    name: _Name,
    shape: _Dims,
    offset: show.Offset = None,
    transpose_within_face: _WithinFace = False,
    transpose_of_faces: _OfFaces = False,
    *,
    view: View,
) -> None:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    array = show.sized_array(shape)
    flags = {"transpose_within_face": transpose_within_face, "transpose_of_faces": transpose_of_faces}
    chosen = {option: True for option, value in flags.items() if value}
    view.show(layouts.preset(name, array.shape, array.dtype, **chosen), offset)


_Shapes = Annotated[
    list[str],
    Argument(metavar="SHAPE...", help="Element types and dims, as bf16[32,224,224,3]; - is stdin, one a line."),
]
_Target = Annotated[str, "--target NAME", "-t", "The chip; see `tilewright targets`."]
_Boundary = Annotated[bool, "An argument or a result of the program: 8 and 4 bits get larger tiles."]
_NAMES = {"default": "default order", "predicted": "predicted", "given": "as given"}

Sides = Mapping[str, "layouts.TensorLayout"]


def predict(shape: _Shapes, target: _Target = "tpu-v5e", boundary: _Boundary = False, as_json: Json = False) -> None:
    """Predict the layout a TPU's compiler chooses for a shape, beside the default order of the dims.

    Of several shapes, or a tuple's arrays, one line each.
    """
    chip = targets.target(target).name
    arrays = [sides for where, text in _texts(shape) for sides in _all_sides(text, where, chip, boundary)]
    values = [
        {"dtype": sides["predicted"].dtype, "shape": list(sides["predicted"].shape)}
        | {name: layouts.summary(side) for name, side in sides.items()}
        for sides in arrays
    ]
    value = {"target": target, **(values[0] if len(values) == 1 else {"shapes": values})}
    table = _one_shape(target, arrays[0]) if len(arrays) == 1 else _many_shapes(target, arrays)
    deliver(Answer(lambda: value, lambda: [table]), Output(as_json=as_json))


def _texts(shapes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every shape's text and where it stands ("" for an argument)."""
    for text in shapes:
        if text != "-":
            yield "", text
            continue
        lines = [(number, line) for number, line in enumerate(read_text("-").splitlines(), 1) if line.strip()]
        if not lines:
            raise UsageError("no shape is given", where="stdin")
        yield from ((f"stdin, line {number}", line) for number, line in lines)


def _all_sides(text: str, where: str, chip: str, boundary: bool) -> Iterator[Sides]:
    """The layouts of a shape, or of every array of a tuple."""
    from tilewright.layout.explain import leaves

    try:
        layout = show.read_layout(text)
    except ParseError as error:
        if not where:
            raise
        raise ParseError(error.what, text=text, column=error.column, where=where, how=error.how) from None
    for name, array in leaves(layout):
        if array.element_bits or not name:  # a tuple's tokens lie nowhere
            yield _sides(array, show.names_layout(text), chip, boundary)


def _sides(layout: layouts.TensorLayout, with_given: bool, chip: str, boundary: bool) -> Sides:
    """The layouts of one array: by default, as predicted and, where it has one, as given."""
    layout.require_static()
    predicted = layouts.predict(chip, layout.shape, layout.dtype, boundary=boundary)
    sides = {"default": layouts.preset("tpu", layout.shape, layout.dtype), "predicted": predicted}
    return sides | {"given": layout} if with_given else sides


def _one_shape(target: str, sides: Sides) -> Table:
    rows = [
        (_NAMES[name], str(layout), show.exact_bytes(layout.size_bytes), ratio_text(layout.padding_ratio))
        for name, layout in sides.items()
    ]
    return Table((target, "layout", "size in memory", "padding ratio"), rows)


def _many_shapes(target: str, arrays: Sequence[Sides]) -> Table:
    """A line for every shape: the predicted layout, and the padding ratios of all there are."""
    shown = [name for name in ("predicted", "default", "given") if any(name in sides for sides in arrays)]
    columns = [target, "size in memory", "padding ratio"]
    columns += [f"in {_NAMES[name]}" if name == "default" else _NAMES[name] for name in shown[1:]]
    rows = []
    for sides in arrays:
        ratios = (ratio_text(sides[name].padding_ratio) if name in sides else "" for name in shown)
        rows.append((str(sides["predicted"]), show.exact_bytes(sides["predicted"].size_bytes), *ratios))
    return Table(columns, rows)


# Data: a numpy file into a layout's raw bytes, and back.

_MOST_DATA = 1 << 40
"""Data is no text: it is as large as the array that it is unpacked to, and only memory bounds it."""

_Npy = Annotated[str, Argument(metavar="IN.npy", help="The array, as numpy.save writes it; - is stdin.")]
_Bin = Annotated[str, Argument(metavar="IN.bin", help="The raw bytes of the packed buffer; - is stdin.")]
_TiledText = Annotated[str, Argument(metavar="TEXT", help="The layout, as bf16[20,300]{1,0:T(8,128)(2,1)}.")]
_Raw = Annotated[str, "-o", "--out OUT.bin", "Where the bytes go; - is stdout."]
_Array = Annotated[str, "-o", "--out OUT.npy", "Where the array goes; - is stdout."]


def pack(source: _Npy, text: _TiledText, out: _Raw, as_json: Json = False) -> None:
    """Pack a numpy array into a layout: the raw bytes as they lie in memory, padding zero."""
    if out.endswith(".npy"):
        raise UsageError("packed bytes are no .npy file", where="-o", how="name it .bin, say")
    where, layout = Output(out, as_json, ""), show.sized_array(text)
    array = _as_layout_type(_read_array(source), layout, source)
    with placed_at(source):
        image = _memory_image(layout, layout.pack(array))
    _deliver_data(image, layout, source, where)


def unpack(source: _Bin, text: _TiledText, out: _Array, as_json: Json = False) -> None:
    """Unpack raw bytes that lie in a layout into a numpy array; padding is left out."""
    where, layout = Output(out, as_json, ".npy"), show.sized_array(text)
    raw = read_bytes(source, _MOST_DATA)
    if len(raw) != layout.size_bytes:
        how = "is it cut off?" if len(raw) < layout.size_bytes else "is it in another layout?"
        if raw.startswith(b"\x93NUMPY"):
            how = "it is an .npy file, which `pack` reads; unpack reads the bare bytes"
        raise UsageError(f"{len(raw)} bytes, but {layout} takes {layout.size_bytes}", where=source, how=how)
    array = layout.unpack(_packed_buffer(layout, raw))
    _deliver_data(npy_bytes(array), layout, source, where)
    if array.dtype.isbuiltin != 1 and where.is_file:
        remark(f"numpy itself has no {layout.dtype}: read the file with np.load(...).view(ml_dtypes.{array.dtype})")


def _deliver_data(data: bytes, layout: layouts.TensorLayout, source: str, where: Output) -> None:
    value: dict[str, Any] = {"layout": str(layout), "from": source, "to": where.path, "dtype": layout.dtype}
    value |= {"shape": list(layout.shape), "data_bytes": layout.data_bytes, "size_bytes": layout.size_bytes}
    size = f"{layout}, {show.exact_bytes(layout.size_bytes)} with padding"
    deliver(Answer(lambda: value, list), where, {where.suffix: lambda: data}, said=(), wrote=size)


def _place_bytes(layout: layouts.TensorLayout) -> int:
    """Bytes from one element to the next where E(n) asks for more than its type has; 0 where there is nothing to do."""
    bits = layout.element_bits
    if bits < 8 or bits == 8 * layout.numpy_dtype.itemsize:
        return 0
    if bits % 8:
        raise UnsupportedError(f"{layout}: elements of {bits} bits, no whole bytes", how=f"E({bits // 8 * 8 + 8})")
    return bits // 8


def _memory_image(layout: layouts.TensorLayout, buffer: np.ndarray[Any, Any]) -> bytes:
    """A packed buffer as the bytes in memory: zeros follow an element that E(n) gives more room than it needs."""
    import numpy as np

    raw, wide = buffer.view(np.uint8), _place_bytes(layout)
    if not wide:
        return raw.tobytes()
    image = np.zeros((len(buffer), wide), np.uint8)
    image[:, : buffer.itemsize] = raw.reshape(len(buffer), buffer.itemsize)
    return image.tobytes()


def _packed_buffer(layout: layouts.TensorLayout, raw: bytes) -> np.ndarray[Any, Any]:
    """The inverse of :func:`_memory_image`."""
    import numpy as np

    wide = _place_bytes(layout)
    if not wide:
        return np.frombuffer(raw, np.uint8 if layout.element_bits < 8 else layout.numpy_dtype)
    places = np.frombuffer(raw, np.uint8).reshape(layout.num_slots, wide)
    values = np.ascontiguousarray(places[:, : layout.numpy_dtype.itemsize])
    return values.reshape(-1).view(layout.numpy_dtype)


def _read_array(source: str) -> np.ndarray[Any, Any]:
    """The array of an .npy file; never a pickle, never an archive."""
    import numpy as np

    try:
        if source == "-":
            return np.lib.format.read_array(io.BytesIO(read_bytes(source, _MOST_DATA)), allow_pickle=False)
        with open_bytes(source) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=source) from None
    except (ValueError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError, tokenize.TokenError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UsageError(f"not a whole .npy file: {reason}", where=source, how="write it with numpy.save") from None


def _as_layout_type(array: np.ndarray[Any, Any], layout: layouts.TensorLayout, source: str) -> np.ndarray[Any, Any]:
    """The array in the layout's type; raw bytes of its width are what numpy.save makes of bf16 and its like."""
    expected = layout.numpy_dtype
    if array.dtype != expected and array.dtype.kind == "V" and expected.isbuiltin != 1:
        if array.dtype.itemsize != expected.itemsize or array.dtype.names:
            raise UsageError(f"an array of {array.dtype} for the layout {layout}", where=source)
        return array.view(expected)
    return array if array.dtype != expected.newbyteorder() else array.astype(expected)
