"""Arrays for a specification: each of the shape its form says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.language.errors import array_of
from tilewright.isa.vector.emit import machine_type
from tilewright.isa.vector.spec import Input, Output, VectorSpec
from tilewright.layout import paged

Array = np.ndarray[Any, Any]


def _shape(spec: VectorSpec, form: str, period: int = 0) -> tuple[int, int]:
    rows = {"full": spec.rows, "row": spec.rows, "rows": period}.get(form, 1)
    return rows, spec.cols if form in ("full", "col", "rows") else 1


def _kind(dtype: str) -> Any:
    return paged((1,), machine_type(dtype)).numpy_dtype


def tensor_of(spec: VectorSpec, each: Input, tensors: Mapping[str, Any]) -> Array:
    """The array of an input, or one clear error; truth values as bytes."""
    if each.name not in tensors:
        raise UsageError(f"no tensor {each.name!r}", how=f"there are {', '.join(tensors) or 'none'}")
    array, wanted = array_of(each.name, tensors[each.name]), _shape(spec, each.form, each.period)
    if array.dtype == bool:
        array = array.view(np.uint8)
    if array.dtype != _kind(each.dtype) or array.size != wanted[0] * wanted[1]:
        raise UsageError(f"{each.name} is {array.dtype}{list(array.shape)}", how=f"{each.dtype}{list(wanted)}")
    return array.reshape(wanted)


def zeros_of(spec: VectorSpec, out: Output) -> Array:
    """Zeros for an output, as one number: nothing to be packed."""
    return np.broadcast_to(np.zeros((), _kind(out.dtype)), _shape(spec, out.form))
