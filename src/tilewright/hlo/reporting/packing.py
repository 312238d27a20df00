"""Where buffers lie in memory: the room that temporaries take once an allocator has found each of them a place.

The TPU compiler's allocator, read off its buffer assignments: in the order of the schedule, what an operation calls in
front of it, every buffer goes to the lowest place that is free, and is free after its last reader. (It rounds places up
to 16 KiB, which counts in the smallest programs alone and is left out.) The memory analysis of older compilers adds
what is lost in between once more: the room less the most that lives at once, where an array does not count while a loop
carries it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import accumulate

from tilewright.hlo.program import Computation, Program

Span = tuple[int, int, int]
"""First moment, last moment, bytes."""


def moments(
    callers_first: Iterable[Computation], entry: str, run: Callable[[str], bool]
) -> Mapping[str, tuple[list[int], list[int]]]:
    """Computation -> the moments of its operations, and those at which what they call begins, of all that is reached.

    ``run``: whether a computation runs on its own, not in a kernel. One that is called twice has its first moments.
    """
    order = list(callers_first)
    lasts: dict[str, int] = {}
    for computation in reversed(order):
        called = (lasts.get(name, 0) for op in computation.operations for name in op.calls if run(name))
        lasts[computation.name] = len(computation.operations) + sum(called)
    starts = {entry: 0}
    found = {}
    for computation in order:
        if computation.name not in starts:
            continue
        clock, at, begins = starts[computation.name], list[int](), list[int]()
        for op in computation.operations:
            begins.append(clock)
            for name in op.calls:
                if run(name):
                    starts.setdefault(name, clock)
                    clock += lasts.get(name, 0)
            at.append(clock)
            clock += 1
        found[computation.name] = at, begins
    return found


def room(spans: Iterable[Span]) -> int:
    """The bytes up to the highest place that is ever taken.

    >>> room([(0, 1, 1 << 20), (1, 2, 2 << 20), (2, 3, 2 << 20)]) >> 20
    5
    """
    gaps: list[tuple[int, int]] = [(0, 1 << 62)]  # (from, to) of what is free, in order
    leaving: list[tuple[int, int, int]] = []  # (last moment, from, to), the first to leave in front
    top = 0
    for start, last, size in sorted((span for span in spans if span[2]), key=lambda span: span[0]):
        while leaving and leaving[0][0] < start:
            _, begin, end = heappop(leaving)
            after = bisect_left(gaps, (begin, end))
            first, behind = after - (after > 0 and gaps[after - 1][1] == begin), after + (gaps[after][0] == end)
            gaps[first:behind] = [
                (min(begin, gaps[first][0]), max(end, gaps[behind - 1][1]) if behind > after else end)
            ]
        number, (at, end) = next((k, gap) for k, gap in enumerate(gaps) if gap[1] - gap[0] >= size)
        gaps[number : number + 1] = [(at + size, end)] if at + size < end else []
        heappush(leaving, (last, at, at + size))
        top = max(top, at + size)
    return top


def at_once(spans: Iterable[Span]) -> int:
    """The most bytes of any moment.

    >>> at_once([(0, 1, 1 << 20), (1, 2, 2 << 20), (2, 3, 2 << 20)]) >> 20
    4
    """
    changes = sorted(change for start, last, size in spans for change in ((start, 0, size), (last, 1, -size)))
    return max(accumulate(change[2] for change in changes), default=0)


def of_older_compiler(program: Program) -> bool:
    """Whether a dump is of a compiler that counts what is lost twice (libtpu up to 0.0.50), by the fields it writes.

    A dump in which neither field stands is taken for a newer one's.
    """
    return '"buffering_level"' in program.text and '"output_reverse_dimensions"' not in program.text


# Keys and values of a serving step, as its attention kernels lay them out.

_LANES, _WORD_BITS = 128, 32


def cache_bytes(heads: int, depth: int, bits: int = 16, devices: int = 1, latent: bool = False) -> int:
    """Bytes of cache that one token takes in one layer on one device, keys and values together.

    ``heads`` of ``depth`` elements of ``bits`` are split over ``devices``; with fewer heads than devices each device
    has one. At a depth of 64 key and value of a head share a row. ``latent``: one vector for both.

    The kernels of vLLM on TPU (tpu-inference 0.32.0) keep rows of 128 lanes, as many in a word of 32 bits as its
    elements are narrow: a token never takes less than one such word of rows, 512 bytes, on each device.

    >>> [cache_bytes(8, 128, bits, devices) for bits in (16, 8) for devices in (1, 4, 8)]
    [4096, 1024, 512, 2048, 512, 512]
    >>> [cache_bytes(8, 64, bits, devices) for bits in (16, 8) for devices in (1, 4, 8)]
    [2048, 512, 512, 1024, 512, 512]
    >>> cache_bytes(1, 576, latent=True) / (576 * 2)
    1.1111111111111112
    """
    width = -(-depth // _LANES) * _LANES
    if latent:
        return width * bits // 8
    own = -(-heads // devices)
    rows = own if 2 * depth == _LANES else 2 * own
    packing = _WORD_BITS // bits
    return -(-rows // packing) * packing * width * bits // 8
