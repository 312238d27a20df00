"""HighwayHash64 of a stacked column id: its low 6 bits are the hash bucket by which mini-batches are cut.

The algorithm is that of google/highwayhash (published with its C reference), for a message of four bytes and one fixed
key. Four lanes of 64 bits each; all sums and products wrap modulo 2**64.
"""

from __future__ import annotations

import numpy as np

from tilewright.embed.host.arrays import Index, Keys, Longs
from tilewright.embed.model.formulas import BUCKETS
from tilewright.kernels import inner, njit

_KEY = (0x4451E30F87DB9609, 0xCA7358A1FD2737F8, 0x4B2C991FCEE4FDEA, 0x0B2658E18326F6BA)
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_SIZE = 4  # bytes of the message
_WORD = 2**64 - 1

V0, V1, M0, M1 = 0, 4, 8, 12
"""Where each group of four lanes begins in the state of sixteen words."""

_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def _initial() -> Keys:
    """The state after the key and the length went in, before the message: the same for every id."""
    turned = [(k >> 32) | (k << 32) & _WORD for k in _KEY]
    v0 = [(m ^ k) + (_SIZE << 32) + _SIZE & _WORD for m, k in zip(_MUL0, _KEY)]
    v1 = [_rotate_halves(m ^ k) for m, k in zip(_MUL1, turned)]
    return np.array([*v0, *v1, *_MUL0, *_MUL1], np.uint64)


def _rotate_halves(word: Index) -> Index:
    low, high = word & 0xFFFFFFFF, word >> 32
    left = [(h << _SIZE | h >> (32 - _SIZE)) & 0xFFFFFFFF for h in (low, high)]
    return left[1] << 32 | left[0]


_INITIAL = _initial()


def fresh_state() -> Keys:
    """Working room for :func:`bucket_of`: the words after the key, then the words it changes."""
    return np.concatenate([_INITIAL, _INITIAL])


@inner(forceinline=True)
def _zipper(state: Keys, source: Index, target: Index) -> None:
    """Add the bytes of two lanes, interleaved, to two others."""
    low, high = state[source], state[source + 1]
    u = np.uint64
    state[target] += (
        (((low & u(0xFF000000)) | (high & u(0xFF00000000))) >> u(24))
        | (((low & u(0xFF0000000000)) | (high & u(0xFF000000000000))) >> u(16))
        | (low & u(0xFF0000))
        | ((low & u(0xFF00)) << _32)
        | ((high & u(0xFF00000000000000)) >> u(8))
        | (low << u(56))
    )
    state[target + 1] += (
        (((high & u(0xFF000000)) | (low & u(0xFF00000000))) >> u(24))
        | (high & u(0xFF0000))
        | ((high & u(0xFF0000000000)) >> u(16))
        | ((high & u(0xFF00)) << u(24))
        | ((low & u(0xFF000000000000)) >> u(8))
        | ((high & u(0xFF)) << u(48))
        | (low & u(0xFF00000000000000))
    )


@inner()
def _update(s: Keys, a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> None:
    """One round with the packet (a, b, c, d)."""
    s[V1] += a
    s[V1 + 1] += b
    s[V1 + 2] += c
    s[V1 + 3] += d
    for i in range(4):
        s[V1 + i] += s[M0 + i]
        s[M0 + i] ^= (s[V1 + i] & _LOW) * (s[V0 + i] >> _32)
        s[V0 + i] += s[M1 + i]
        s[M1 + i] ^= (s[V0 + i] & _LOW) * (s[V1 + i] >> _32)
    for i in range(2):
        _zipper(s, V1 + 2 * i, V0 + 2 * i)
    for i in range(2):
        _zipper(s, V0 + 2 * i, V1 + 2 * i)


@inner()
def bucket_of(col_id: Index, state: Keys) -> Index:
    """The bucket, 0 .. 63, of a stacked column id; ``state`` is from :func:`fresh_state`."""
    s = state[16:]
    for i in range(16):
        s[i] = state[i]
    zero = np.uint64(0)
    _update(s, np.uint64(col_id) & _LOW, zero, zero, zero)
    for _ in range(4):
        a, b, c, d = s[V0 + 2], s[V0 + 3], s[V0], s[V0 + 1]
        _update(
            s,
            (a >> _32) | (a << _32),
            (b >> _32) | (b << _32),
            (c >> _32) | (c << _32),
            (d >> _32) | (d << _32),
        )
    return np.int64((s[V0] + s[V1] + s[M0] + s[M1]) & np.uint64(BUCKETS - 1))


@njit(cache=True, nogil=True)
def _hash_all(col_ids: Longs, state: Keys, out: Longs) -> None:
    for i in range(col_ids.size):
        out[i] = bucket_of(col_ids[i], state)


def hash_ids(col_ids: Longs) -> Longs:
    """Buckets of many stacked column ids."""
    out = np.empty(len(col_ids), np.int64)
    _hash_all(np.ascontiguousarray(col_ids, np.int64), fresh_state(), out)
    return out
