"""Layout speed beside numpy and jax, in one process:  python benchmarks/layout.py [-o docs/layout_speed.md]

Every round times every candidate once and the least time of all rounds counts, so that a disturbance hits all alike.
Results are checked equal first. Times are given relative to np.copyto of the same array on one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
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


def by_jax(array, pad, shape, order):
    """The same under jit, or None where jax is not installed."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    there = jax.device_put(array)
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


def measure(layout, name, recipe, rounds: int) -> Row:
    dtype = layout.numpy_dtype
    dense = tiled((layout.num_elements,), dtype)
    array, copy, again, back = (aligned(layout.shape, dtype) for _ in range(4))
    array[...] = np.random.default_rng(0).integers(0, 100, layout.shape).astype(dtype)
    packed = aligned((layout.num_slots,), dtype)
    jitted = by_jax(array, *recipe)
    flat = array.reshape(-1)
    dense.pack(flat, out=again.reshape(-1))
    assert np.array_equal(again, array)
    layout.pack(array, out=packed)
    layout.unpack(packed, out=back)
    assert np.array_equal(back, array)
    assert np.array_equal(packed, by_numpy(array, *recipe))
    assert jitted is None or np.array_equal(packed, np.asarray(jitted()))
    times = best(
        [
            lambda: np.copyto(copy, array),
            lambda: np.copyto(again, array),
            on_threads(1, lambda: dense.pack(flat, out=again.reshape(-1))),
            on_threads(2, lambda: dense.pack(flat, out=again.reshape(-1))),
            on_threads(1, lambda: layout.pack(array, out=packed)),
            on_threads(2, lambda: layout.pack(array, out=packed)),
            on_threads(1, lambda: layout.unpack(packed, out=back)),
            on_threads(2, lambda: layout.unpack(packed, out=back)),
            lambda: by_numpy(array, *recipe),
            *([jitted] if jitted else []),
        ],
        rounds,
    )
    base, floor = times[0], (layout.data_bytes + layout.size_bytes) / (2 * layout.data_bytes)
    ratios = dict(zip(COLUMNS, (t / base for t in times[1:]), strict=False))
    return Row(name, base, array.nbytes / base / 1e9, floor, ratios)


def matrices(rounds: int):
    for text, dtype in TYPES.items():
        for shape in SHAPES:
            for tiles, *recipe in recipes(dtype, shape):
                name = f"{text}[{shape[0]},{shape[1]}]{{1,0:{tiles}}}"
                yield measure(parse(name), f"`{name}`", recipe, rounds)


def npu_tensors(rounds: int):
    shape = (4, 512, 56, 56)
    for text in TYPES:
        layout = lanes(shape, text, "bm1684x")
        recipe = ([(0, 0)] * 4, (4, 8, 64, 56 * 56), (2, 0, 1, 3))
        yield measure(layout, f"{text}[4,512,56,56] lanes aligned, bm1684x", recipe, rounds)


def bars(rows: list[Row]):
    """Which bars are met, and the bare stream beside those that are not."""
    yield "| bar | most | rows | met | worst | not met (the bare stream there) |\n|---|--:|--:|--:|--:|---|"
    for title, bar in (("XLA's tiles", TILES), ("other layouts", OTHERS)):
        for column, most in bar.items():
            chosen = [row for row in rows if row.bars is bar]
            beyond = [row for row in chosen if round(row.ratios[column], 2) > most]
            stream = f"stream {column[-1]}"
            named = ", ".join(f"{r.name} {r.ratios[column]:.2f} ({r.ratios[stream]:.2f})" for r in beyond)
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


def offsets(rounds: int):
    yield "| offsets of 4 million indices | order | million per second, 1 thread |\n|---|---|--:|"
    rng, count = np.random.default_rng(0), 4_000_000
    for text in ("bf16[4093,4091]{1,0:T(8,128)(2,1)}", "f32[8,500,30,200]{3,2,1,0:T(8,128)}"):
        layout = parse(text)
        chance = np.stack([rng.integers(0, n, count) for n in layout.shape], -1)
        for order, ix in (("chance", chance), ("rows", np.stack(np.unravel_index(np.arange(count), layout.shape), -1))):
            indices = np.ascontiguousarray(ix)
            few = layout.offsets(indices[:100])
            assert np.array_equal(layout.offsets(indices)[:100], few)
            assert [layout.offset(*i) for i in indices[:20].tolist()] == few[:20].tolist()
            least = best([on_threads(1, lambda layout=layout, ix=indices: layout.offsets(ix))], rounds)[0]
            yield f"| `{text}` | {order} | {count / least / 1e6:.0f} |"


def bitcasts(rounds: int):
    from tilewright.layout import _bitcast

    yield "| is_bitcast at rank 6 | microseconds |\n|---|--:|"
    a, b = (parse(f"bf16[{dims},48,300]{{5,4,3,2,1,0:T(8,128)(2,1)}}") for dims in ("2,3,4,5", "6,20,1,1"))
    assert is_bitcast(a, b)
    times, order = 200, tuple(range(6))

    def fresh() -> None:
        for layout in (a, b):
            layout.__dict__.pop("digits", None)
        _bitcast.why_not.__wrapped__(a, b, order)

    cases = {
        "asked before": lambda: is_bitcast(a, b),
        "decided anew": lambda: _bitcast.why_not.__wrapped__(a, b, order),
        "decided anew, digit forms too": fresh,
    }
    for name, case in cases.items():
        least = best([lambda case=case: [case() for _ in range(times)]], rounds)[0]
        yield f"| {name} | {least / times * 1e6:.1f} |"


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

Made by `python benchmarks/layout.py -o docs/layout_speed.md` on {machine}; least times of {rounds} interleaved rounds.

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

Every byte is read once and written once, so the bare streamed copy is the floor; on this machine two threads of it are
hardly faster than one, and where the bars for two threads lie below it they cannot be met here. Per line of 64 bytes
written the instructions are: full tiles, one load, log2(p) shuffles for p interleaved rows, one streaming store; ragged
rows that are unpacked, one load and one store into a scratch block, one unaligned load out of it, one streaming store,
one prefetch of the next block. Ragged tiles are packed whole, padding too, and cost what full ones do. Unpacking ragged
rows has no such way: their lines begin in one tile and end in another. Tried there without gain: blocks of 4 to 32 KB,
prefetching two or three blocks ahead, unrolled loops, lines blended from two runs without scratch memory, short runs
joined before they are stored, plain stores.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    warm()
    found = [INTRODUCTION.format(machine=machine(), rounds=asked.rounds), HEAD]
    print(*found, sep="\n")
    rows: list[Row] = []

    def say(line: object) -> None:
        found.append(str(line))
        print(line, flush=True)

    for part in (matrices, npu_tensors):
        for row in part(asked.rounds):
            rows.append(row)
            say(row)
    for lines in (bars(rows), offsets(asked.rounds), bitcasts(asked.rounds), imports(asked.rounds)):
        say("")
        for line in lines:
            say(line)
    say(LIMITS.rstrip())
    if asked.output:
        asked.output.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
