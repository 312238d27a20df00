"""Arguments as numbers and arrays, or one clear error."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tilewright.errors import UsageError


def whole(name: str, value: Any, low: int = 0) -> int:
    """An integer of at least ``low`` (numpy's are welcome, bools and floats are not)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} = {value!r} is not a whole number") from None
    if isinstance(value, bool | np.bool_) or number < low:
        raise UsageError(f"{name} = {value!r} is not a whole number of at least {low}")
    return number


def wholes(name: str, values: Any, low: int = 0) -> tuple[int, ...]:
    """Several of them, as a tuple."""
    try:
        numbers = tuple(values)
    except TypeError:
        raise UsageError(f"{name} = {values!r} is not whole numbers, one per dim") from None
    return tuple(whole(name, value, low) for value in numbers)


def array_of(name: str, value: Any) -> np.ndarray[Any, Any]:
    """A numpy array in this machine's byte order."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no array: {error}") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
