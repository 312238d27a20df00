"""Raw values of a log -> ids below a vocabulary, without a Python object per value.

The hash is a promise: FNV-1a (64 bits) of a text's bytes, or the number itself, finished as MurmurHash3 does. So an id
is the same on every machine and in every version.
"""

from __future__ import annotations

import numpy as np

from tilewright.embed.host.arrays import Bytes, Ints, Longs
from tilewright.kernels import inner, njit

_RETURN, _SPACE, _QUOTE = 13, 32, 34


@inner()
def _trim(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """The field without surrounding blanks and one pair of double quotes."""
    while start < end and (data[start] == _SPACE or data[start] == _RETURN):
        start += 1
    while end > start and (data[end - 1] == _SPACE or data[end - 1] == _RETURN):
        end -= 1
    if end - start >= 2 and data[start] == _QUOTE and data[end - 1] == _QUOTE:
        return start + 1, end - 1
    return start, end


@inner()
def _finish(h: np.uint64, vocab: int) -> np.int64:
    """A 64-bit number, finished as MurmurHash3 does, into 1 .. vocab-1; 0 where there is no such id."""
    if vocab < 2:
        return np.int64(0)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    h = h ^ (h >> np.uint64(33))
    return np.int64(1) + np.int64(h % np.uint64(vocab - 1))


@njit(cache=True, nogil=True)
def hash_texts(data: Bytes, offsets: Longs, vocab: int, trimmed: bool, out: Ints) -> None:
    """Text k is ``data[offsets[k]:offsets[k + 1]]``, ``trimmed``: without blanks and quotes around it; none is id 0."""
    for k in range(out.shape[0]):
        start, end = offsets[k], offsets[k + 1]
        if trimmed:
            start, end = _trim(data, start, end)
        h = np.uint64(0xCBF29CE484222325)
        for i in range(start, end):
            h = (h ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
        out[k] = _finish(h, vocab) if end > start else 0


@njit(cache=True, nogil=True)
def hash_numbers(values: Longs, vocab: int, out: Ints) -> None:
    """MurmurHash3's finaliser of every number, into 1 .. vocab - 1."""
    for k in range(out.shape[0]):
        out[k] = _finish(np.uint64(values[k]), vocab)
