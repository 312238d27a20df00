"""`tilewright layout pack` and `unpack`: a numpy file into a layout's raw bytes, and back."""

from __future__ import annotations

import io
import tokenize
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.layout.show import exact_bytes, sized_array
from tilewright.cli.streams import Json, emit_json, npy_bytes, read_bytes, remark, write_file, writer_of
from tilewright.errors import UnsupportedError, UsageError

_MOST_DATA = 1 << 40
"""Data is no text: it is as large as the array that it is unpacked to, and only memory bounds it."""

if TYPE_CHECKING:
    import numpy as np

    from tilewright.layout import TensorLayout

_Npy = Annotated[str, typer.Argument(metavar="IN.npy", help="The array, as numpy.save writes it; - is stdin.")]
_Bin = Annotated[str, typer.Argument(metavar="IN.bin", help="The raw bytes of the packed buffer; - is stdin.")]
_Text = Annotated[str, typer.Argument(metavar="TEXT", help="The layout, as bf16[20,300]{1,0:T(8,128)(2,1)}.")]
_Raw = Annotated[str, typer.Option("-o", "--out", metavar="OUT.bin", help="Where the bytes go; - is stdout.")]
_Array = Annotated[str, typer.Option("-o", "--out", metavar="OUT.npy", help="Where the array goes; - is stdout.")]


def pack(source: _Npy, text: _Text, out: _Raw, as_json: Json = False) -> None:
    """Pack a numpy array into a layout: the raw bytes as they lie in memory, padding zero."""
    if out.endswith(".npy"):
        raise UsageError("packed bytes are no .npy file", where="-o", how="name it .bin, say")
    writer_of(out, "", as_json=as_json)
    layout = sized_array(text)
    array = _as_layout_type(_read_array(source), layout, source)
    try:
        buffer = layout.pack(array)
    except UsageError as error:
        raise UsageError(error.what, where=source, how=error.how) from None
    write_file(out, _memory_image(layout, buffer))
    _report(layout, source, out, as_json)


def unpack(source: _Bin, text: _Text, out: _Array, as_json: Json = False) -> None:
    """Unpack raw bytes that lie in a layout into a numpy array; padding is left out."""
    writer_of(out, ".npy", as_json=as_json)
    layout = sized_array(text)
    raw = read_bytes(source, _MOST_DATA)
    if len(raw) != layout.size_bytes:
        how = "is it cut off?" if len(raw) < layout.size_bytes else "is it in another layout?"
        if raw.startswith(b"\x93NUMPY"):
            how = "it is an .npy file, which `pack` reads; unpack reads the bare bytes"
        raise UsageError(f"{len(raw)} bytes, but {layout} takes {layout.size_bytes}", where=source, how=how)
    array = layout.unpack(_packed_buffer(layout, raw))
    write_file(out, npy_bytes(array))
    _report(layout, source, out, as_json)
    if array.dtype.isbuiltin != 1 and out != "-":
        remark(f"numpy itself has no {layout.dtype}: read the file with np.load(...).view(ml_dtypes.{array.dtype})")


def _place_bytes(layout: TensorLayout) -> int:
    """Bytes from one element to the next where E(n) asks for more than its type has; 0 where there is nothing to do."""
    bits = layout.element_bits
    if bits < 8 or bits == 8 * layout.numpy_dtype.itemsize:
        return 0
    if bits % 8:
        raise UnsupportedError(f"{layout}: elements of {bits} bits, no whole bytes", how=f"E({bits // 8 * 8 + 8})")
    return bits // 8


def _memory_image(layout: TensorLayout, buffer: np.ndarray[Any, Any]) -> bytes:
    """A packed buffer as the bytes in memory: zeros follow an element that E(n) gives more room than it needs."""
    import numpy as np

    raw, wide = buffer.view(np.uint8), _place_bytes(layout)
    if not wide:
        return raw.tobytes()
    image = np.zeros((len(buffer), wide), np.uint8)
    image[:, : buffer.itemsize] = raw.reshape(len(buffer), buffer.itemsize)
    return image.tobytes()


def _packed_buffer(layout: TensorLayout, raw: bytes) -> np.ndarray[Any, Any]:
    """The inverse of :func:`_memory_image`."""
    import numpy as np

    wide = _place_bytes(layout)
    if not wide:
        return np.frombuffer(raw, np.uint8 if layout.element_bits < 8 else layout.numpy_dtype)
    places = np.frombuffer(raw, np.uint8).reshape(layout.num_slots, wide)
    values = np.ascontiguousarray(places[:, : layout.numpy_dtype.itemsize])
    return values.reshape(-1).view(layout.numpy_dtype)


def _report(layout: TensorLayout, source: str, out: str, as_json: bool) -> None:
    if as_json:
        value = {"layout": str(layout), "from": source, "to": out, "dtype": layout.dtype, "shape": list(layout.shape)}
        emit_json(value | {"data_bytes": layout.data_bytes, "size_bytes": layout.size_bytes})
    elif out != "-":
        remark(f"wrote {out}: {layout}, {exact_bytes(layout.size_bytes)} with padding")


def _read_array(source: str) -> np.ndarray[Any, Any]:
    """The array of an .npy file; never a pickle, never an archive."""
    import numpy as np

    from tilewright.reading import open_bytes

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


def _as_layout_type(array: np.ndarray[Any, Any], layout: TensorLayout, source: str) -> np.ndarray[Any, Any]:
    """The array in the layout's type; raw bytes of its width are what numpy.save makes of bf16 and its like."""
    expected = layout.numpy_dtype
    if array.dtype != expected and array.dtype.kind == "V" and expected.isbuiltin != 1:
        if array.dtype.itemsize != expected.itemsize or array.dtype.names:
            raise UsageError(f"an array of {array.dtype} for the layout {layout}", where=source)
        return array.view(expected)
    return array if array.dtype != expected.newbyteorder() else array.astype(expected)
