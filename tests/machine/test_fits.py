"""Programs that do not fit: the change ranked first makes them, by the TPU compiler's own figures.

The figures are of benchmarks/memory_fits.py (libtpu 0.0.50), which has eight more programs.
"""

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import estimate, from_jax
from tilewright.machine.subject import Subject
from tilewright.machine.tpu import hbm
from tilewright.targets import target

GIB = 1 << 30
USABLE = 15.75  # GiB, in the compiler's message


def cached(w, cache, token, place):
    cache = jax.lax.dynamic_update_slice(cache, (token @ w)[None], (place, 0, 0))
    return cache, (cache[place] * token).sum()


def served(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def shapes(*sizes, dtype=jnp.bfloat16):
    return tuple(jax.ShapeDtypeStruct(size, dtype) for size in sizes)


@pytest.mark.parametrize(
    ("step", "args", "change", "compiled"),
    [
        (
            cached,
            (*shapes((128, 128), (700000, 64, 128), (64, 128)), jax.ShapeDtypeStruct((), jnp.int32)),
            "donate the arguments",
            10.68,
        ),
        (
            served,
            (list(shapes(*[(16384, 16384)] * 18, dtype=jnp.float32)), *shapes((256, 16384), dtype=jnp.float32)),
            "bfloat16 instead of float32",
            9.02,
        ),
    ],
)
def test_the_change_ranked_first_fits(step, args, change, compiled):
    def retrace(args, kwargs):
        return from_jax(step, *args)

    program, chip = retrace(args, {}), target("tpu-v5e")
    memory = hbm(Subject("step", program, (args, {}), retrace), chip, estimate(program, chip))
    best = memory.changes[0]
    assert chip.memory("hbm").usable == USABLE * GIB < memory.need
    assert best is memory.cheapest
    assert best.what.startswith(change)
    assert best.after / GIB == pytest.approx(compiled, rel=0.02)
    assert compiled < USABLE
