"""Data through index maps: packed, unpacked, moved from layout to layout.

The numbers that Python and the kernels share stand here: primitives, and which word of a call or a work holds what. A
kernel sees addresses only, so all it needs stands in tables of 64-bit words.
"""

from __future__ import annotations

LINE = 64  # bytes of a cache line
SCRATCH = 1 << 16  # bytes of a thread's scratch memory; a block takes half, the rest is for pitches

# Primitives: what a work does at each of its places.
RUN, ZIP, UNZIP, TRANSPOSE, LINES, SHORTS, JOIN = range(7)

# A call, which all threads of a move share. Its first word counts the parts taken; the others are, on lines of their
# own: the parts done; from GIVEN on target, source, the plan's header, padding's value; and the threads.
DONE, GIVEN, THREADS = 8, 16, 20

# A work's row: kind, stream, (count, source step, target step) of the repeat and of the core's two loops; (first,
# count) of its inner places, its rows and its runs; bytes of a run; bytes of scratch that are padding; the address of
# its primitive.
KIND, STREAM, REPEAT, CORE, INNER, ROWS, RUNS, LENGTH, PADDED, CALL, NUMBERS = 0, 1, 2, 5, 11, 13, 15, 17, 18, 19, 20

# A plan's header: works, how many; inner places, rows, runs, places, starts of parts; parts; pads, how many.
