"""Layout speed beside numpy and jax, in one process:  python benchmarks/layout.py [-o docs/layout_speed.md]

Every round times every candidate once and the least time of all rounds counts, so that a disturbance hits all alike.
The layouts take turns, a round each, over and over, so that what the machine can do at some times and not at others
reaches them all: more rounds take longer and find more of it. Results are checked equal first and last. Times are given
relative to np.copyto of the same array on one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.layout import is_bitcast, lanes, parse, tiled, warm

THREADS = "TILEWRIGHT_THREADS"
TYPES = {"f32": np.float32, "u16": np.uint16, "s8": np.int8}
SHAPES = ((4096, 4096), (4093, 4091))


def best(candidates: list[Callable[[], object]], rounds: int) -> list[float]:
    least = [float("inf")] * len(candidates)
    for _ in range(rounds):
        for k, candidate in enumerate(candidates):
            start = time.perf_counter()
            candidate()
            least[k] = min(least[k], time.perf_counter() - start)
    return least


def on_threads(count: int, call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        os.environ[THREADS] = str(count)
        call()

    return run


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A zeroed array that starts on a cache line, so that its pages are there and copies run at their best."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(dtype).reshape(shape)


# -- the peers: pad, reshape, transpose, copy --------------------------------------------------------------------------


def cut(shape, tile, levels, order):
    """(pad, reshape, transpose) of a two-dim array into tiles."""
    sizes = [-(-n // t) * t for n, t in zip(shape, tile, strict=True)]
    return [(0, big - n) for big, n in zip(sizes, shape, strict=True)], levels(*sizes), order


def recipes(dtype, shape):
    """(layout text behind the shape, pad, reshape, transpose) of every matrix layout."""
    m, c0 = shape[0], 32 // np.dtype(dtype).itemsize
    high = -(-m // 16) * 16
    for p in (1, 2, 4):
        levels = cut(shape, (8, 128), lambda a, b, p=p: (a // 8, 8 // p, p, b // 128, 128), (0, 3, 1, 4, 2))
        yield f"T(8,128){f'({p},1)' if p > 1 else ''}", *levels
    faces = cut(shape, (32, 32), lambda a, b: (a // 32, 2, 16, b // 32, 2, 16), (0, 3, 1, 4, 2, 5))
    yield "T(32,32)(16,16)", *faces
    yield f"T({high},{c0})", *cut(shape, (16, c0), lambda a, b: (a, b // c0, c0), (1, 0, 2))


def by_numpy(array, pad, shape, order):
    padded = np.pad(array, pad) if any(high for _, high in pad) else array
    return padded.reshape(shape).transpose(order).copy().reshape(-1)


@cache
def on_device(dtype, shape):
    """The array as jax has it, or None where jax is not installed."""
    try:
        import jax
    except ImportError:
        return None
    return jax.device_put(arrays(dtype, shape)[0])


def by_jax(dtype, array_shape, pad, shape, order):
    """The same under jit, or None."""
    there = on_device(dtype, array_shape)
    if there is None:
        return None
    import jax
    import jax.numpy as jnp

    jitted = jax.jit(lambda x: jnp.pad(x, pad).reshape(shape).transpose(order).reshape(-1))
    return lambda: jitted(there).block_until_ready()


# -- one layout --------------------------------------------------------------------------------------------------------

COLUMNS = ("noise", "stream 1", "stream 2", "pack 1", "pack 2", "unpack 1", "unpack 2", "numpy", "jax")
HEAD = f"| layout | copy ms | GB/s | floor | {' | '.join(COLUMNS)} |\n|---|{'--:|' * (3 + len(COLUMNS))}"
# The most a column may be: XLA's own tiles, and every other layout.
TILES = {"pack 1": 0.8, "pack 2": 0.5, "unpack 1": 1.35, "unpack 2": 0.8}
OTHERS = {"pack 1": 1.5, "pack 2": 0.9, "unpack 1": 1.5, "unpack 2": 0.9}


@dataclass(frozen=True)
class Row:
    """One layout's times, relative to the copy's ``base`` seconds at ``speed`` GB/s."""

    name: str
    base: float
    speed: float
    floor: float
    ratios: dict[str, float]

    def __str__(self) -> str:
        cells = [f"{self.ratios[c]:.2f}" if c in self.ratios else "-" for c in COLUMNS]
        return f"| {self.name} | {self.base * 1e3:.2f} | {self.speed:.1f} | {self.floor:.2f} | {' | '.join(cells)} |"

    @property
    def bars(self) -> dict[str, float]:
        return TILES if "T(8,128)" in self.name else OTHERS


@cache
def arrays(dtype, shape) -> tuple[np.ndarray, ...]:
    """Values, and three arrays like them to copy, stream and unpack into; all layouts of a shape share them."""
    found = tuple(aligned(shape, dtype) for _ in range(4))
    found[0][...] = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    return found


@cache
def slots(dtype) -> np.ndarray:
    """Room for the packed buffer of every layout of a type."""
    return aligned((1 << 25,), dtype)


@dataclass
class Case:
    """One layout, what is timed of it, and the least times so far: the copy's, then those of COLUMNS."""

    layout: object
    name: str
    recipe: tuple
    least: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = self.layout
        dtype, shape = layout.numpy_dtype, layout.shape
        dense = tiled((layout.num_elements,), dtype)
        array, copy, again, back = arrays(dtype, shape)
        packed, jitted = slots(dtype)[: layout.num_slots], by_jax(dtype, shape, *self.recipe)
        flat, flat_again = array.reshape(-1), again.reshape(-1)
        self.calls = [
            lambda: np.copyto(copy, array),
            lambda: np.copyto(again, array),
            on_threads(1, lambda: dense.pack(flat, out=flat_again)),
            on_threads(2, lambda: dense.pack(flat, out=flat_again)),
            on_threads(1, lambda: layout.pack(array, out=packed)),
            on_threads(2, lambda: layout.pack(array, out=packed)),
            on_threads(1, lambda: layout.unpack(packed, out=back)),
            on_threads(2, lambda: layout.unpack(packed, out=back)),
            lambda: by_numpy(array, *self.recipe),
            *([jitted] if jitted else []),
        ]

    def check(self) -> None:
        """What all of them make is the same."""
        array, _, again, back = arrays(self.layout.numpy_dtype, self.layout.shape)
        packed = slots(self.layout.numpy_dtype)[: self.layout.num_slots]
        peers = [self.calls[8](), *(np.asarray(call()) for call in self.calls[9:])]
        for threads in (0, 1):
            for result in (again, back, packed):
                result[...] = 99
            for k in (2, 4, 6):
                self.calls[k + threads]()
            assert np.array_equal(again, array)
            assert np.array_equal(back, array)
            assert all(np.array_equal(packed, peer) for peer in peers)

    def turn(self) -> None:
        found = best(self.calls, 1)
        self.least = [min(pair) for pair in zip(self.least, found, strict=True)] if self.least else found

    @property
    def row(self) -> Row:
        layout, base = self.layout, self.least[0]
        floor = (layout.data_bytes + layout.size_bytes) / (2 * layout.data_bytes)
        ratios = dict(zip(COLUMNS, (t / base for t in self.least[1:]), strict=False))
        return Row(self.name, base, layout.data_bytes / base / 1e9, floor, ratios)


def cases():
    for text, dtype in TYPES.items():
        for shape in SHAPES:
            for tiles, *recipe in recipes(dtype, shape):
                name = f"{text}[{shape[0]},{shape[1]}]{{1,0:{tiles}}}"
                yield Case(parse(name), f"`{name}`", recipe)
    recipe = ([(0, 0)] * 4, (4, 8, 64, 56 * 56), (2, 0, 1, 3))
    for text in TYPES:
        yield Case(lanes((4, 512, 56, 56), text, "bm1684x"), f"{text}[4,512,56,56] lanes aligned, bm1684x", recipe)


def measured(rounds: int) -> list[Row]:
    found = list(cases())
    for case in found:
        case.check()
    for k in range(rounds):
        print(f"round {k + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)
        for case in found:
            case.turn()
    for case in found:
        case.check()
    return [case.row for case in found]


def bars(rows: list[Row]):
    """Which bars are met, and the bare stream beside those that are not."""
    yield "| bar | most | rows | met | worst | not met (the bare stream there; ours) |\n|---|--:|--:|--:|--:|---|"
    for title, bar in (("XLA's tiles", TILES), ("other layouts", OTHERS)):
        for column, most in bar.items():
            chosen = [row for row in rows if row.bars is bar]
            beyond = [row for row in chosen if round(row.ratios[column], 2) > most]
            stream = f"stream {column[-1]}"
            named = ", ".join(
                f"{r.name} {r.ratios[column]:.2f} ({r.ratios[stream]:.2f}; {r.speed / r.ratios[column]:.0f} GB/s)"
                for r in beyond
            )
            worst = max(row.ratios[column] for row in chosen)
            met = f"{len(chosen)} | {len(chosen) - len(beyond)} | {worst:.2f}"
            yield f"| {column}, {title} | {most} | {met} | {named or 'none'} |"
    ragged = [row.ratios["numpy"] / row.ratios["pack 1"] for row in rows if "4093" in row.name]
    jitted = [row.ratios["jax"] / row.ratios["pack 2"] for row in rows if "jax" in row.ratios]
    for title, least, found in (("numpy over pack 1, unaligned", 2.5, ragged), ("jax over pack 2", 1, jitted)):
        if found:
            met = sum(ratio >= least for ratio in found)
            yield f"| {title}: at least | {least} | {len(found)} | {met} | {min(found):.2f} | |"


# -- the rest ----------------------------------------------------------------------------------------------------------


def offsets_by_numpy(shape, pairs, indices):
    """Tiles of 8 by 128 of the last two dims, rows interleaved by ``pairs``: the document's formula, array by array."""
    *outer, r, c = indices.T
    tile = np.zeros(len(indices), np.int64)
    for n, i in zip(shape, outer, strict=False):
        tile = tile * n + i
    tile = (tile * -(-shape[-2] // 8) + r // 8) * -(-shape[-1] // 128) + c // 128
    return tile * 1024 + r % 8 // pairs * (128 * pairs) + c % 128 * pairs + r % pairs


def offsets(rounds: int):
    yield "| offsets of 4 million indices | order | million per second, 1 thread | numpy over ours |\n|---|---|--:|--:|"
    rng, count = np.random.default_rng(0), 4_000_000
    for text, pairs in (("bf16[4093,4091]{1,0:T(8,128)(2,1)}", 2), ("f32[8,500,30,200]{3,2,1,0:T(8,128)}", 1)):
        layout = parse(text)
        chance = np.stack([rng.integers(0, n, count) for n in layout.shape], -1)
        for order, ix in (("chance", chance), ("rows", np.stack(np.unravel_index(np.arange(count), layout.shape), -1))):
            indices = np.ascontiguousarray(ix)
            ours = on_threads(1, lambda layout=layout, ix=indices: layout.offsets(ix))
            peer = lambda shape=layout.shape, pairs=pairs, ix=indices: offsets_by_numpy(shape, pairs, ix)  # noqa: E731
            assert np.array_equal(layout.offsets(indices), peer())
            assert [layout.offset(*i) for i in indices[:20].tolist()] == layout.offsets(indices)[:20].tolist()
            least, by_numpy = best([ours, peer], rounds)
            yield f"| `{text}` | {order} | {count / least / 1e6:.0f} | {by_numpy / least:.1f} |"


def bitcasts(rounds: int):
    from tilewright.layout.index import bitcast as _bitcast

    yield "| is_bitcast at rank 6 | microseconds |\n|---|--:|"
    a, b = (parse(f"bf16[{dims},48,300]{{5,4,3,2,1,0:T(8,128)(2,1)}}") for dims in ("2,3,4,5", "6,20,1,1"))
    moved = parse("bf16[2,3,4,5,48,300]{5,4,2,3,1,0:T(8,128)(2,1)}")
    assert is_bitcast(a, b)
    assert not is_bitcast(a, moved)
    times, order = 200, tuple(range(6))

    def fresh(other) -> None:
        for layout in (a, other):
            layout.__dict__.pop("digits", None)
        _bitcast._keeps_places.__wrapped__(a, other, order)

    cases = {
        "asked before": lambda: is_bitcast(a, b),
        "decided anew": lambda: _bitcast._keeps_places.__wrapped__(a, b, order),
        "decided anew, digit forms too": lambda: fresh(b),
        "the same of one that is none": lambda: fresh(moved),
    }
    for name, case in cases.items():
        least = best([lambda case=case: [case() for _ in range(times)]], rounds)[0]
        yield f"| {name} | {least / times * 1e6:.1f} |"


FIRST = """
import sys, time
import numba, numpy as np
from tilewright.layout import parse
layout = parse(sys.argv[1])
array = np.zeros(layout.shape, layout.numpy_dtype)
start = time.perf_counter()
layout.pack(array)
print(time.perf_counter() - start)
"""


def first_calls(rounds: int):
    yield "| a process's first call of pack, numba loaded; least of five | nothing compiled, s | compiled before, s |"
    yield "|---|--:|--:|"
    texts = (
        "f32[9,300]{1,0:T(8,128)}",
        "bf16[9,300]{1,0:T(8,128)(2,1)}",
        "s8[9,300]{1,0:T(8,128)(4,1)}",
        "f32[9,300]{0,1}",
    )
    for text in texts:
        pairs = []
        for _ in range(min(rounds, 5)):
            with tempfile.TemporaryDirectory() as folder:
                there = {**os.environ, "XDG_CACHE_HOME": folder, "NUMBA_CACHE_DIR": ""}
                command = [sys.executable, "-c", FIRST, text]
                pairs.append([float(subprocess.check_output(command, env=there)) for _ in ("anew", "kept")])
        anew, kept = (min(pair) for pair in zip(*pairs, strict=True))
        yield f"| `{text}` | {anew:.1f} | {kept:.1f} |"


def imports(rounds: int):
    yield "| import | milliseconds |\n|---|--:|"
    timed = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    for name in ("numpy", "tilewright.layout"):
        runs = [subprocess.check_output([sys.executable, "-c", timed.format(name)]) for _ in range(min(rounds, 9))]
        yield f"| `{name}` in a new process | {min(map(float, runs)) * 1e3:.0f} |"


def machine() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
        if (info.exists())
        else [platform.processor()]
    )
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{names[0]}, {os.cpu_count()} cores (shared with other work), {platform.system()}; {versions}"


INTRODUCTION = """# Layout speed

Made by `python benchmarks/layout.py --rounds {rounds} -o docs/layout_speed.md` on {machine}; least times of {rounds}
rounds, in each of which every layout has its turn.

Times are relative to `np.copyto` of the same array on one thread (*copy ms*, and its *GB/s* counting each byte once).
*noise* is that copy against itself. *floor* is the copy of as many bytes as packing reads and writes, padding too.
*stream* is the bare streamed copy of the same bytes in the order they have, on 1 and 2 threads: what this machine's
memory allows, whatever the layout (a bar below it cannot be met on this machine).
*pack* and *unpack* are ours on 1 and 2 threads; *numpy* is pad, reshape, transpose and copy (packing, one thread);
*jax* is the same under `jit` on all cores. Below 1 is faster than a plain copy: lines that are written whole go past
the caches, so they need not be read first.
"""

LIMITS = """
## What limits it

Every byte is read once and written once, and writing is what memory is slow at: a loop in C that writes changing values
past the caches, and reads nothing, made 28.4 GB/s on this machine, on one thread and on two alike, while reading alone
made 40 to 66. One thread of a streamed copy reaches 22 to 26 of them, so a second one adds little; a row at 24 to
28 GB/s is at the limit. At some times two threads reached 39 to 49 GB/s: a virtual machine's two cores may share one
way to memory or have one each, and are moved. That is why many rounds over many minutes find lower times for two.

Per line of 64 bytes written the instructions are: full tiles, one load, log2(p) shuffles for p interleaved rows, one
streaming store, one prefetch; runs of 16 or 32 bytes, four or two loads that also put the line together; ragged rows
that are unpacked, one load and one store into a scratch block, one unaligned load out of it, one streaming store, one
prefetch of the next block.

What was found on the way, in the order of what it brought:

* **Fetch into the second cache.** The lines of the next block come while this one is streamed, and a thread knows early
  which part of the move it does next, so that these come too. Columns or rows that lie a power of two apart push each
  other out of the first cache (8 places), and its few buffers for misses fill up: with the second cache instead,
  unpacking ragged FRACTAL_NZ takes two thirds of the time, packing ragged interleaved rows three quarters.
* **No more runs at a time than a cache has places.** Columns 128 KiB apart, as FRACTAL_NZ has them of 4096 rows, share
  one place of the second cache, rows of 4 KiB one of the first. Sixteen at a time took 0.6 of a copy in one process and
  3.5 in the next, by where their pages lay; eight take 0.6 in all. Packing faces of s8 took 1.2 and takes 0.8.
* **No seams.** A ragged row is unpacked as if it ended with its last tile: the padding behind it is read and goes no
  further than the scratch block, so a row is written in whole lines from end to end. s8 rows went from 1.3 to 0.8.
* **Nothing but addresses.** After a move of several megabytes the caches hold none of the interpreter: checks, plan and
  seven arrays took 250 microseconds before a move began. So plans are kept, and what threads are told. A pack of
  one tile into given memory takes 13 microseconds, 5 if a layout keeps its own moves beside the plans, under shapes,
  strides and types; after other work that saved some 40 microseconds, too little for the code it took.
* **Threads take parts by themselves**, by an atomic count; waking another core takes 100 microseconds here, a future
  took 200.
* Short runs are read 256 bytes ahead, long ones 4096; 512 to 4096 ahead is worse for rows that are no power of two.

Tried without gain: prefetching into the first cache for interleaved rows, or while a block is put together instead of
while it is streamed; interleaving both phases; column strips with the partial lines of all rows kept aside; following
the source instead of the target; plain stores (also for small tensors); other sizes of blocks, of what threads take at
a time and of how far ahead it is fetched; short runs joined to lines in the scratch block.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="of every layout (15)")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    warm()
    found = [INTRODUCTION.format(machine=machine(), rounds=asked.rounds), HEAD]
    print(*found, sep="\n")

    def say(line: object) -> None:
        found.append(str(line))
        print(line, flush=True)

    rows = measured(asked.rounds)
    for row in rows:
        say(row)
    few = min(asked.rounds, 30)
    for lines in (bars(rows), offsets(few), bitcasts(few), first_calls(few), imports(few)):
        say("")
        for line in lines:
            say(line)
    say(LIMITS.rstrip())
    if asked.output:
        asked.output.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
