"""Which entries of an overfull partition stay: the lowest, as the peer does, or a choice without bias to low ids."""

from __future__ import annotations

import numpy as np

from tilewright.embed._types import Entries, Index, Keys, Longs, Mask
from tilewright.kernels import njit

__all__ = ["choose"]


@njit(cache=True, nogil=True)
def _mix(word: np.uint64) -> np.uint64:
    """A bijection of 64-bit words that scatters neighbours (the finaliser of MurmurHash3)."""
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@njit(cache=True, nogil=True)
def _word(entries: Entries, q: Index) -> np.uint64:
    return (np.uint64(entries[0][q]) << np.uint64(32)) | np.uint64(entries[1][q])


@njit(cache=True, nogil=True)
def _cutoff(words: Keys, n: Index, rank: Index) -> np.uint64:
    """The value of which exactly ``rank`` of the first ``n`` words, all distinct, are below or equal: bit by bit."""
    found = np.uint64(0)
    for place in range(64):
        shift = np.uint64(63 - place)
        below = 0
        for i in range(n):
            below += (words[i] >> shift) == (found >> shift)
        if rank > below:
            rank -= below
            found |= np.uint64(1) << shift
    return found


@njit(cache=True, nogil=True)
def _keep_lowest(chosen: Longs, n: Index, entries: Entries, limits: Longs, keep: Mask) -> None:
    """An entry stays iff its rank is within the first limit and its row's rank within the second."""
    last, rank = np.int64(-1), 0
    for i in range(n):
        row = np.int64(entries[0][chosen[i]])
        if row != last:
            last = row
            rank += 1
        keep[chosen[i]] = i < limits[0] and rank <= limits[1]


@njit(cache=True, nogil=True)
def _keep_scattered(chosen: Longs, n: Index, entries: Entries, limits: Longs, keep: Mask) -> None:
    """Keep as many rows, then as many of their entries, as allowed, by a hash seeded with the partition's content."""
    rows = entries[0]
    words = np.empty(n, np.uint64)
    seed = np.uint64(0)
    for i in range(n):
        seed += _mix(_word(entries, chosen[i]))
    last, found = np.int64(-1), 0
    for i in range(n):
        row = np.int64(rows[chosen[i]])
        if row != last:
            last = row
            words[found] = _mix(np.uint64(row) ^ seed)
            found += 1
    if found > limits[1]:
        cut = _cutoff(words, found, limits[1])
        for i in range(n):
            keep[chosen[i]] = _mix(np.uint64(rows[chosen[i]]) ^ seed) <= cut
    found = 0
    for i in range(n):
        if keep[chosen[i]]:
            words[found] = _mix(_word(entries, chosen[i]) ^ seed)
            found += 1
    if found > limits[0]:
        cut = _cutoff(words, found, limits[0])
        for i in range(n):
            if _mix(_word(entries, chosen[i]) ^ seed) > cut:
                keep[chosen[i]] = False


@njit(cache=True, nogil=True)
def choose(chosen: Longs, n: Index, entries: Entries, limits: Longs, lowest: bool, keep: Mask) -> Index:
    """Set ``keep`` for the ``n`` ``chosen`` entries of a partition, equal rows adjacent; returns how many must go.

    ``limits``: most entries and most distinct rows. ``lowest``: keep the lowest rows and samples.
    """
    unique, last = 0, np.int64(-1)
    for i in range(n):
        row = np.int64(entries[0][chosen[i]])
        keep[chosen[i]] = True
        if row != last:
            last = row
            unique += 1
    if n <= limits[0] and unique <= limits[1]:
        return 0
    if lowest:
        _keep_lowest(chosen, n, entries, limits, keep)
    else:
        _keep_scattered(chosen, n, entries, limits, keep)
    gone = 0
    for i in range(n):
        gone += not keep[chosen[i]]
    return gone
