"""Programs that do not fit: the change ranked first makes them, by the TPU compiler's own figures."""

import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from memory_fits import PROGRAMS, asked

GIB = 1 << 30
USABLE = 15.75  # GiB, in the compiler's message

# What `benchmarks/memory_fits.py judge` printed (libtpu 0.0.50): the program changed, GiB.
COMPILED = {
    "weights and momentum, kept": ("donate the arguments", 10.51),
    "activations of a plain network": ("a batch of 81920 instead of 163840", 9.44),
    "Adam, kept": ("donate the arguments", 11.59),
    "moments of Adam": ("the optimizer's moments in bfloat16", 12.33),
    "a language model, everything saved": ("a batch of 6 instead of 12", 11.45),
    "a language model of layers in full, products saved": ("a batch of 16 instead of 32", 12.06),
    "images": ("a batch of 3072 instead of 6144", 9.82),
    "weights in float32": ("bfloat16 instead of float32", 9.02),
    "a cache, copied": ("donate the arguments", 10.68),
    "scores of attention": ("a batch of 48 instead of 96", 15.2),
}
BY_DAY = ("weights in float32", "a cache, copied")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DAY else [pytest.mark.nightly]) for name in PROGRAMS]
)
def test_the_change_ranked_first_fits(name):
    """Two by day, eight at night; what the compiler needs of the change, and what is said of it, fit both."""
    change, compiled = COMPILED[name]
    memory = asked(name)
    best = memory.changes[0]
    assert memory.need > USABLE * GIB
    assert best is memory.cheapest
    assert best.what.startswith(change)
    assert max(best.after / GIB, compiled) < USABLE
    assert best.after / GIB == pytest.approx(compiled, rel=0.02 if name in BY_DAY else 0.25)
