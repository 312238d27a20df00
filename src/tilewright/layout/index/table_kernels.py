"""The numba kernel that looks many indices up in tables of places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit

_options: Any = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_U = np.uint64


@njit(**_options)
def look_up(ix: Any, table: Any, starts: Any, base: int, out: Any, axis: int, begin: int, end: int) -> bool:
    """out[k, axis] = base + sum over dims d of table[starts[d] + ix[k, d]]; whether all indices were inside.

    A dim's table runs to the start of the next. An index outside reads the dim's last entry; unsigned comparison
    catches negative ones.
    """
    rank = ix.shape[1]
    outside = _U(0)
    if rank == 1:
        n0 = _U(starts[1] - 1)
        for k in range(begin, end):
            a = _U(ix[k, 0])
            outside |= _U(a > n0)
            out[k, axis] = base + table[min(a, n0)]
    elif rank == 2:
        n0, n1, s1 = _U(starts[1] - 1), _U(starts[2] - starts[1] - 1), _U(starts[1])
        for k in range(begin, end):
            a, b = _U(ix[k, 0]), _U(ix[k, 1])
            outside |= _U(a > n0) | _U(b > n1)
            out[k, axis] = base + table[min(a, n0)] + table[s1 + min(b, n1)]
    elif rank == 4:
        n0, n1 = _U(starts[1] - 1), _U(starts[2] - starts[1] - 1)
        n2, n3 = _U(starts[3] - starts[2] - 1), _U(starts[4] - starts[3] - 1)
        s1, s2, s3 = _U(starts[1]), _U(starts[2]), _U(starts[3])
        for k in range(begin, end):
            a, b, c, d = _U(ix[k, 0]), _U(ix[k, 1]), _U(ix[k, 2]), _U(ix[k, 3])
            outside |= _U(a > n0) | _U(b > n1) | _U(c > n2) | _U(d > n3)
            near = table[min(a, n0)] + table[s1 + min(b, n1)]
            out[k, axis] = base + near + table[s2 + min(c, n2)] + table[s3 + min(d, n3)]
    else:
        for k in range(begin, end):
            value = base
            for r in range(rank):
                a, n = _U(ix[k, r]), _U(starts[r + 1] - starts[r] - 1)
                outside |= _U(a > n)
                value += table[_U(starts[r]) + min(a, n)]
            out[k, axis] = value
    return bool(outside == _U(0))
