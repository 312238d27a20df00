"""The matrix unit: how fast its machine runs, beside numpy, JAX's Pallas interpreter and SCALE-Sim, in one run.

    python benchmarks/matrix_unit.py [-o docs/matrix_unit_speed.md] [--rounds 15] [--scalesim PYTHON]

``--scalesim``: a Python that has scalesim 3.0.0 (it wants numpy 2.2.6, so give it an environment of its own:
``python -m venv E && E/bin/pip install scalesim==3.0.0 numpy==2.2.6``). Rounds are interleaved: each times every
candidate once. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from numba import njit

from tilewright.isa import MatrixUnitConfig, conv2d, expected_counts, matmul
from tilewright.isa.chip.state import Cache
from tilewright.isa.kernels.cache_kernels import address_of, tables_of, touch

N = 512
SCALE_CONFIG = """[general]
run_name = gemm
[architecture_presets]
ArrayHeight: 16
ArrayWidth: 16
IfmapSramSzkB: 64
FilterSramSzkB: 64
OfmapSramSzkB: 64
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Bandwidth: 10
Dataflow: ws
MemoryBanks: 1
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""
PALLAS = (
    "Pallas, interpreted, int8, a step per mm (values only)",
    "the same, blocks of 128 x 128 x 128",
    "the same, blocks of 256 x 256 and all of k",
)
PEAK = """import resource, numpy as np
from tilewright.isa import matmul
ones = np.ones(({n}, {n}), np.int8)
assert (matmul(ones, ones).value == {n}).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"""


LIMITS = """
## What limits it

Of a product of 512 x 512 x 512 in int8 about half is one kernel that runs the program: 256 `mm`, each with a load,
every thread's elements found, moved and taken through the tables of two caches, two buses and device memory. A quarter
are products (64 to an instruction where the processor multiplies bytes by fours). The rest makes the machine (540 KB of
registers, two caches, A and B packed into pages), unpacks C, and is Python around it.

Pallas' interpreter compiles the program with its shapes at a first call, which is not in these times.

Float32 in the documented order has two elements per register pair and so four times as many instructions.

Columns of 512 bytes meet in the same sets: with 4 and 8 ways every touch is a miss in L1 and a touch of L2, two touches
for one that is counted for the bar; the last column counts both.
"""


def interleaved(candidates, rounds, clock=time.perf_counter):
    """Seconds of every candidate, a list each."""
    times = [[] for _ in candidates]
    for _ in range(rounds):
        for candidate, found in zip(candidates, times, strict=True):
            start = clock()
            candidate()
            found.append(clock() - start)
    return times


def factors(dtype, size=N):
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "i":
        return [rng.integers(-128, 128, (size, size)).astype(dtype) for _ in range(2)]
    return [rng.standard_normal((size, size)).astype(dtype) for _ in range(2)]


def pallas(a, b, block, depth):
    """The same product by a Pallas kernel of block x block outputs, ``depth`` of k a step, or None without jax.

    With blocks of 256 and a depth of 8 a step is one ``mm``.
    """
    try:
        import jax
        import jax.numpy as jnp
        from jax.experimental import pallas as pl
    except ImportError:
        return None

    def kernel(left, right, out):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out[...] = jnp.zeros_like(out)

        out[...] += jnp.dot(left[...].astype(jnp.int32), right[...].astype(jnp.int32))

    call = pl.pallas_call(
        kernel,
        grid=(len(a) // block, len(a) // block, len(a) // depth),
        in_specs=[
            pl.BlockSpec((block, depth), lambda i, j, k: (i, k)),
            pl.BlockSpec((depth, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct(a.shape, jnp.int32),
        interpret=True,
    )
    there = jax.device_put(a), jax.device_put(b)
    return lambda: call(*there).block_until_ready()


def products(rounds):
    a, b = factors(np.int8)
    c, d = factors(np.float32)
    interpreted = [pallas(a, b, *how) for how in ((256, 8), (128, 128), (256, N))]
    found, counts = matmul(a, b), expected_counts(N, N, N)
    assert np.array_equal(found.value, a.astype(np.int32) @ b.astype(np.int32))
    assert found.counts.macs == counts.macs
    assert found.counts.l1_touches == counts.l1_touches
    assert np.allclose(matmul(c, d).value, c @ d, atol=1e-3)
    candidates = [lambda: matmul(a, b), lambda: matmul(c, d), lambda: c @ d]
    if interpreted[0] is not None:
        assert all(np.array_equal(np.asarray(each()), found.value) for each in interpreted)
        candidates += interpreted
    times = interleaved(candidates, rounds)
    names = (
        "int8, values and counts",
        "float32 in the documented order",
        "numpy float32 (values only)",
    )
    yield f"## {N} x {N} x {N}\n\n| | least ms | median ms | MAC/s (least) | bar | met |\n|---|--:|--:|--:|--:|---|"
    bars = (1.5e10, 2e9, *[None] * 4)
    for name, seconds, bar in zip((*names, *PALLAS), times, bars, strict=False):
        least, rate = min(seconds), N**3 / min(seconds)
        met = "" if bar is None else "yes" if rate >= bar else "no"
        shown = f"{least * 1e3:.1f} | {statistics.median(seconds) * 1e3:.1f} | {rate:.2e}"
        yield f"| {name} | {shown} | {'' if bar is None else f'{bar:.1e}'} | {met} |"
    yield f"\nint8 is {min(times[2]) / min(times[0]):.0%} of numpy's float32 product in MAC/s."
    if interpreted[0] is not None:
        step, blocks, whole = (min(times[at]) / min(times[0]) for at in (3, 4, 5))
        yield f"Pallas's interpreter takes {step:.1f} times as long as int8 here when a step of its grid is one mm, and"
        yield f"{blocks:.1f} times in blocks of 128; {whole:.1f} times when one step has all of k, which"
        yield "is XLA's own product of the whole and no instruction of any machine."
    rounds_ = counts.instructions
    yield (
        f"Counted: {rounds_} mm, each 256 loads of A, 256 columns of B and 256 line touches: "
        f"{min(times[0]) / (rounds_ * 256) * 1e9:.0f} ns for each such triple, everything else shared out."
    )


def stream(transposed):
    """Lines of B in the order in which the machine touches them, L1's line numbers from 0."""
    lines, found = N // 64, []
    for _ in range(2):
        for block in range(2):
            columns = np.arange(256) + 256 * block
            for k in range(0, N, 8):
                if transposed:
                    found.append(((k + np.arange(8))[None] * lines + columns[:, None] // 64).ravel())
                else:
                    found.append(columns * lines + k // 64)
    return np.concatenate(found)


@njit
def touch_stream(lines, l1, l2):
    """Lines through L1, and through L2 where they miss there; how many missed both."""
    first, second, deep = address_of(l1), address_of(l2), 0
    own, other = tables_of(first), tables_of(second)
    for line in lines:
        if touch(first, own, line, np.int64(1)):
            deep += touch(second, other, line, np.int64(1)) > 0
    return deep


def caches(rounds):
    yield "\n## Line touches of this product's own stream\n"
    yield "L1 of 1024 lines before an L2 that holds all; medians.\n"
    yield "| B | L1 | touches of L1 | L1 misses | touches/s | bar | met | touches of L1 and L2 together/s |"
    yield "|---|---|--:|--:|--:|--:|---|--:|"
    touch_stream(np.zeros(1, np.int64), *(Cache.of(8, 8, 0).cells for _ in range(2)))  # compiled
    for transposed in (False, True):
        touched = stream(transposed)
        for ways in (0, 4, 8):
            seconds = []
            for _ in range(rounds):
                l1, l2 = Cache.of(N * 8, 1024, ways), Cache.of(N * 8, N * 8, 0)
                [[taken]] = interleaved([partial(touch_stream, touched, l1.cells, l2.cells)], 1)
                seconds.append(taken)
            options = {"l1_ways": ways}
            a, b = np.ones((N, N), np.int8), np.ones((N, N), np.int8)
            counts = matmul(a, b, MatrixUnitConfig(**options), transpose_b=transposed).counts
            rate = len(touched) / statistics.median(seconds)
            assert counts.l1_touches == len(touched)
            kind = f"{ways}-way" if ways else "fully associative"
            walk = "row-major, t1" if transposed else "columns, t0"
            met = "yes" if rate >= 8e7 else "no"
            both = (len(touched) + counts.l1_misses) / statistics.median(seconds)
            row = f"{len(touched)} | {counts.l1_misses} | {rate:.2e} | 8.0e+07 | {met} | {both:.2e}"
            yield f"| {walk} | {kind} | {row} |"


def scalesim(python, ours):
    """SCALE-Sim on the same product in its own environment, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "c.cfg").write_text(SCALE_CONFIG)
        (at / "t.csv").write_text(f"Layer,M,N,K,\ngemm,{N},{N},{N},\n")
        (at / "l.csv").write_text("Layer," * 25 + "\ngemm," + "1," * 24 + "\n")
        script = (
            "import time\nfrom scalesim.scale_sim import scalesim\n"
            f"s = scalesim(save_disk_space=True, verbose=False, config='{at}/c.cfg', topology='{at}/t.csv', "
            f"layout='{at}/l.csv', input_type_gemm=True)\nt = time.perf_counter()\ns.run_scale(top_path='{at}')\n"
            "print('SECONDS', time.perf_counter() - t)"
        )
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=folder, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("SECONDS")]
    if not said:
        return f"SCALE-Sim did not run: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
    seconds = float(said[0].split()[1])
    return (
        f"SCALE-Sim 3.0.0 took {seconds:.1f} s for the same sizes: {seconds / ours:.0f} times as long (bar: 100). It "
        "simulates another machine, a 16 x 16 weight-stationary array, cycle by cycle, and computes no values."
    )


def others(asked):
    yield "\n## Others\n"
    done = subprocess.run([sys.executable, "-c", PEAK.format(n=1024)], capture_output=True, text=True, check=True)
    peak = int(done.stdout)
    yield f"* Peak memory of a process at 1024 x 1024 x 1024: {peak / 1e6:.0f} MB (bar: 1 GB; all imports included)."
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (1, 56, 56, 64)).astype(np.int8)
    w = rng.integers(-128, 128, (3, 3, 64, 64)).astype(np.int8)
    padded = np.pad(x.astype(np.int32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(padded[:, i : i + 56, j : j + 56] @ w[i, j].astype(np.int32) for i in range(3) for j in range(3))
    [seconds] = interleaved([lambda: conv2d(x, w, padding=1)], 3)
    assert np.array_equal(conv2d(x, w, padding=1).value, expected)
    yield f"* conv2d of ResNet-50's conv2_x 3x3 layer, int8: {min(seconds):.3f} s, equal to numpy's (bar: 10 s)."
    if asked.scalesim:
        a, b = factors(np.int8)
        [ours] = interleaved([lambda: matmul(a, b)], 5)
        yield f"* {scalesim(asked.scalesim, min(ours))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scalesim", metavar="PYTHON")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    head = "# How fast the matrix unit's machine runs\n\nBy `benchmarks/matrix_unit.py -o docs/matrix_unit_speed.md`"
    found = [f"{head} on {platform.machine()}, {os.cpu_count()} cores; {asked.rounds} interleaved rounds.\n"]
    for part in (products(asked.rounds), caches(asked.rounds), others(asked)):
        for line in part:
            found.append(line)
            print(line, flush=True)
    found.append(LIMITS.rstrip())
    print(LIMITS)
    if asked.output:
        asked.output.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
