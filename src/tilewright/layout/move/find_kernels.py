"""A kernel that finds the kept move for two arrays by reading the array objects in memory.

numpy's C interface fixes how an array object begins: where its data is, how many dims it has, where their sizes and
steps stand, its type and its flags. Every extension compiled against numpy reads it so. To ask for the same in Python
costs a hundred microseconds when the caches are cold.
"""

from __future__ import annotations

from tilewright.kernels import inner, njit
from tilewright.kernels.vectors import load_word
from tilewright.layout.move.vector_kernels import store_element
from tilewright.layout.move.words import (
    ALIGNED,
    DONE,
    GIVEN,
    HEADER,
    MOST_DIMS,
    READS,
    RECORD,
    SIDE,
    SIDES,
    VALUE,
    WAY,
    WRITES,
)

_HEAD = object.__basicsize__  # bytes before an object's own
_DATA, _RANK, _SIZES, _STEPS, _TYPE, _FLAGS = (_HEAD + 8 * k for k in (0, 1, 2, 3, 5, 6))
_WRITEABLE, _LINE = 0x400, 64


@inner(boundscheck=False)
def _is_like(array: int, side: int) -> bool:
    rank = load_word(array + _RANK, 0) & 0xFFFFFFFF
    if rank != load_word(side, 1) or load_word(array + _TYPE, 0) != load_word(side, 0):
        return False
    sizes, steps = load_word(array + _SIZES, 0), load_word(array + _STEPS, 0)
    for d in range(rank):
        if load_word(sizes, d) != load_word(side, 2 + d) or load_word(steps, d) != load_word(side, 2 + MOST_DIMS + d):
            return False
    return True


@njit(cache=True, boundscheck=False)
def find_move(records: int, count: int, target: int, source: int, way: int, call: int) -> int:
    """The number of the record that fits two arrays (the addresses of their objects), of ``count``; -1: none.

    Their data's addresses, and that nothing is done yet, then stand in the ``call``
    (:class:`tilewright.layout.move.calls.Call`). No record fits arrays that share memory or a read-only target. The
    kernel keeps the interpreter's lock, so that no other thread reshapes the arrays meanwhile.
    """
    to, out_of = load_word(target + _DATA, 0), load_word(source + _DATA, 0)
    if not load_word(target + _FLAGS, 0) & _WRITEABLE:
        return -1
    for k in range(count):
        record = records + 8 * RECORD * k
        if load_word(record, WAY) != way or load_word(record, ALIGNED) != int(to % _LINE == 0):
            continue
        sides = record + 8 * SIDES
        if not (_is_like(target, sides) and _is_like(source, sides + 8 * SIDE)):
            continue
        below = to + load_word(record, WRITES + 1) <= out_of + load_word(record, READS)
        if not below and to + load_word(record, WRITES) < out_of + load_word(record, READS + 1):
            continue
        # in the order of the words from GIVEN on
        words = to, out_of, load_word(record, HEADER), load_word(record, VALUE), 1
        for at in range(len(words)):
            store_element(call + 8 * (GIVEN + at), words[at], words[at])
        store_element(call, 0, words[0])
        store_element(call + 8 * DONE, 0, words[0])
        return k
    return -1
