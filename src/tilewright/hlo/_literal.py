"""Constants: read when asked, compared with a monoid's identity, laid out anew in another shape."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.hlo._ir import ir

__all__ = ["Literal"]

_SPLAT = re.compile(r"dense<([^\[<>\"]+)> : tensor<")


class Literal:
    """The value of a ``stablehlo.constant``: one repeated element, or a handle on all of them.

    ``element`` is MLIR's text of the repeated element (``-0.000000e+00``, ``0xFF800000``, ``(1.0,0.0)``), or None.
    """

    def __init__(self, handle: Any = None, element: str | None = None) -> None:
        self.handle = handle
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
        found = _SPLAT.search(text)
        return found[1].strip() if found else None

    @cached_property
    def key(self) -> object:
        """Equal for constants known to be equal."""
        return self.element if self.element is not None else id(self.handle)

    @property
    def movable(self) -> bool:
        """Whether it can be laid out in another shape: any splat, and every element type numpy holds."""
        return self.element is not None or self.array() is not None

    def array(self) -> np.ndarray[Any, Any] | None:
        """The elements, None for element types the bindings give no buffer of."""
        try:
            found = np.array(self.handle.attributes["value"])
        except (TypeError, ValueError, RuntimeError):  # complex and narrow floats have no buffer in the bindings
            return None
        return found if found.dtype != object else None

    def attribute_text(self, tensor: str) -> str:
        """The attribute of a splat for the MLIR type ``tensor``."""
        return f"dense<{self.element}> : {tensor}"

    def attribute(self, shape: tuple[int, ...], tensor_type: Any) -> Any:
        """The attribute of a constant that is not a splat, its elements in row-major order in ``shape``."""
        array = self.array()
        assert array is not None
        array = np.ascontiguousarray(array.reshape(shape))  # booleans too are one byte each to the bindings
        return ir.DenseElementsAttr.get(array, type=tensor_type.element_type, shape=list(shape))
