"""Constants: read when needed, compared with a monoid's identity, laid out in another shape."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.hlo.ir import ir

_SPLAT = re.compile(r"dense<([^\[<>\"]+)> : tensor<")
_ELEMENTS = re.compile(r'dense<(?:"0x([0-9A-F]+)"|(\[[^<>"]*\]))> : tensor<')


class Literal:
    """The value of a ``stablehlo.constant``: one repeated element, or a handle on all of them.

    ``element`` is MLIR's text of the repeated element (``-0.000000e+00``, ``0xFF800000``, ``(1.0,0.0)``), or None.
    ``order`` gives the handle's elements, by their row-major numbers, in their new order; None where it is unchanged.
    """

    def __init__(self, handle: Any = None, element: str | None = None, order: Any = None) -> None:
        self.handle, self.order = handle, order
        if element is not None:
            self.element = element

    @cached_property
    def element(self) -> str | None:
        """The repeated element's text, None where the elements differ."""
        try:
            value = self.handle.attributes["value"]
        except TypeError:  # complex numbers have no attribute class; printing an operation renumbers its function
            text = self.handle.get_asm(large_elements_limit=4, print_generic_op_form=True)
        else:
            if not getattr(value, "is_splat", False):
                return None
            text = str(value)
        match = _SPLAT.search(text)
        return match[1].strip() if match else None

    @cached_property
    def key(self) -> object:
        """Equal for constants known to be equal."""
        if self.element is not None:
            return self.element
        return id(self.handle) if self.order is None else (id(self.handle), self.order.tobytes())

    @property
    def movable(self) -> bool:
        """Whether it can be laid out in another shape: all but constants kept outside the program's text."""
        return self.element is not None or self.array() is not None or self.elements is not None

    def array(self) -> np.ndarray[Any, Any] | None:
        """The elements, None for element types the bindings give no buffer of."""
        try:
            array = np.array(self.handle.attributes["value"])
        except (TypeError, ValueError, RuntimeError):  # complex and narrow floats have no buffer in the bindings
            return None
        if array.dtype == object:
            return None
        return array if self.order is None else array.reshape(-1)[self.order]

    def transposed(self, shape: tuple[int, ...], permutation: tuple[int, ...]) -> Literal:
        """The literal of ``numpy.transpose(constant of that shape, permutation)``."""
        if self.element is not None:
            return self
        order = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape).transpose(permutation).reshape(-1)
        return Literal(self.handle, order=order if self.order is None else self.order[order])

    @cached_property
    def elements(self) -> list[str] | bytes | None:
        """All elements in row-major order as MLIR writes them: a few as texts, many as their little-endian bytes.

        This is how constants without a buffer are read (bf16, complex, int4, 8-bit floats). None for a splat, and for
        a resource outside the text.
        """
        try:
            text = str(self.handle.attributes["value"])
        except TypeError:
            text = self.handle.get_asm(print_generic_op_form=True)
        match = _ELEMENTS.search(text)
        if match is None:
            return None
        if match[1]:
            return _reordered(bytes.fromhex(match[1]), self.order)
        listed = match[2].replace("[", "").replace("]", "").split(", ")
        return listed if self.order is None else [listed[k] for k in self.order]

    def attribute_text(self, shape: tuple[int, ...], tensor: str) -> str:
        """The attribute for the MLIR type ``tensor`` of ``shape``: what MLIR has no buffer of is written as text."""
        if self.element is not None:
            return f"dense<{self.element}> : {tensor}"
        assert self.elements is not None
        if isinstance(self.elements, bytes):
            return f'dense<"0x{self.elements.hex().upper()}"> : {tensor}'
        return f"dense<{_nested(self.elements, shape)}> : {tensor}"

    def attribute(self, shape: tuple[int, ...], tensor_type: Any) -> Any:
        """The attribute of a constant that is not a splat, its elements in row-major order in ``shape``.

        None where the bindings give no buffer of the element type.
        """
        array = self.array()
        if array is None:
            return None
        array = np.ascontiguousarray(array.reshape(shape))  # booleans too are one byte each to the bindings
        return ir.DenseElementsAttr.get(array, type=tensor_type.element_type, shape=list(shape))


def _reordered(raw: bytes, order: Any) -> bytes:
    if order is None:
        return raw
    rows: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8).reshape(len(order), -1)
    return bytes(rows[order])


def _nested(elements: list[str], shape: tuple[int, ...]) -> str:
    """Nested brackets, innermost first: ``[[a, b], [c, d]]``."""
    for size in reversed(shape):
        elements = [f"[{', '.join(elements[k : k + size])}]" for k in range(0, len(elements), size)]
    return elements[0]
