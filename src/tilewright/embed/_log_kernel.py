"""Raw values of a log -> ids below a vocabulary, by the hash of the Criteo reader."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.embed._criteo_kernel import _bucket, _finish
from tilewright.kernels import njit

__all__ = ["hash_numbers", "hash_texts"]

Bytes: TypeAlias = NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.int32]


@njit(cache=True, nogil=True)
def hash_texts(data: Bytes, offsets: Longs, vocab: int, out: Ids) -> None:
    """Text k is ``data[offsets[k]:offsets[k + 1]]``."""
    for k in range(out.shape[0]):
        out[k] = _bucket(data, offsets[k], offsets[k + 1], vocab)


@njit(cache=True, nogil=True)
def hash_numbers(values: Longs, vocab: int, out: Ids) -> None:
    """MurmurHash3's finaliser of every number, into 1 .. vocab - 1."""
    for k in range(out.shape[0]):
        out[k] = _finish(np.uint64(values[k]), vocab)
