"""numba kernels: arithmetic on runs of registers, thread by thread. Imported on first use.

Sources are copied before anything is written, so they may overlap with what is written. No fast-math: one rounding for
each operation; every NaN is the one of 0x7fc00000.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit

FLOATS = ("add", "sub", "mul", "div", "min", "max")
INTEGERS = ("add", "sub", "mul", "min", "max", "and", "or", "xor")
_NAN = np.float32(np.nan)


@njit(cache=True, nogil=True, error_model="numpy")
def vector_floats(code: int, file: Any, places: Any, count: int, constants: Any, on: Any) -> None:
    """Operation FLOATS[code] on ``count`` registers of ``file`` (float32[threads, words]).

    ``places``: first registers of D, X and Y (-1: the constant), and how far each of Y is from the next (0 or 1).
    """
    into, first, second, step = places[0], places[1], places[2], places[3]
    x, y = np.empty(count, np.float32), np.empty(count, np.float32)
    if first < 0:
        x[:] = constants[0]
    if second < 0:
        y[:] = constants[1]
    for thread in range(len(file)):
        if not on[thread]:
            continue
        row = file[thread]
        if first >= 0:
            for i in range(count):
                x[i] = row[first + i]
        if second >= 0:
            for i in range(count):
                y[i] = row[second + i * step]
        out = row[into : into + count]
        if code == 0:
            for i in range(count):
                v = x[i] + y[i]
                out[i] = v if v == v else _NAN
        elif code == 1:
            for i in range(count):
                v = x[i] - y[i]
                out[i] = v if v == v else _NAN
        elif code == 2:
            for i in range(count):
                v = x[i] * y[i]
                out[i] = v if v == v else _NAN
        elif code == 3:
            for i in range(count):
                v = x[i] / y[i]
                out[i] = v if v == v else _NAN
        elif code == 4:
            for i in range(count):
                v = x[i] if x[i] <= y[i] or x[i] != x[i] else y[i]
                out[i] = v if v == v else _NAN
        else:
            for i in range(count):
                v = x[i] if x[i] >= y[i] or x[i] != x[i] else y[i]
                out[i] = v if v == v else _NAN


@njit(cache=True, nogil=True)
def vector_integers(code: int, file: Any, places: Any, count: int, constants: Any, on: Any) -> None:
    """The same of INTEGERS[code] on int32, modulo 2^32."""
    into, first, second, step = places[0], places[1], places[2], places[3]
    x, y = np.empty(count, np.int32), np.empty(count, np.int32)
    if first < 0:
        x[:] = constants[0]
    if second < 0:
        y[:] = constants[1]
    for thread in range(len(file)):
        if not on[thread]:
            continue
        row = file[thread]
        if first >= 0:
            for i in range(count):
                x[i] = row[first + i]
        if second >= 0:
            for i in range(count):
                y[i] = row[second + i * step]
        out = row[into : into + count]
        if code == 0:
            for i in range(count):
                out[i] = np.int32(x[i] + y[i])
        elif code == 1:
            for i in range(count):
                out[i] = np.int32(x[i] - y[i])
        elif code == 2:
            for i in range(count):
                out[i] = np.int32(x[i] * y[i])
        elif code == 3:
            for i in range(count):
                out[i] = min(x[i], y[i])
        elif code == 4:
            for i in range(count):
                out[i] = max(x[i], y[i])
        elif code == 5:
            for i in range(count):
                out[i] = x[i] & y[i]
        elif code == 6:
            for i in range(count):
                out[i] = x[i] | y[i]
        else:
            for i in range(count):
                out[i] = x[i] ^ y[i]
