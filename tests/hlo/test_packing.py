"""What an allocator loses between buffers, what it does about programs that do not fit."""

import json
import random

import jax
import jax.numpy as jnp

from tilewright.hlo import MovementReport, from_jax, lifetimes, load, report
from tilewright.hlo.reporting.lines import head_lines
from tilewright.hlo.reporting.packing import room

# f32[512,512,1024] twice behind a smaller buffer that neither fits into: the TPU compiler (libtpu 0.0.50) gives the
# three 2,560 MiB, and its memory analysis says 3,072.
MODULE = """HloModule m, is_scheduled=true
ENTRY e {
  a = bf16[1024]{0:T(1024)(128)(2,1)} parameter(0)
  x = bf16[512,1024,512]{2,1,0:T(8,128)(2,1)} broadcast(a), dimensions={1}EXTRA
  y = f32[512,512,1024]{2,1,0:T(8,128)} custom-call(x), custom_call_target="k"
  z = f32[512,512,1024]{2,1,0:T(8,128)} custom-call(y), custom_call_target="k"
  ROOT r = f32[128]{0:T(128)} custom-call(z), custom_call_target="k"
}"""


def test_what_is_lost_between_buffers():
    now = lifetimes(load(MODULE.replace("EXTRA", "")), "tpu-v5p")
    assert [size >> 20 for size in (now.temporaries, now.lost, now.again)] == [2560, 512, 0]
    older = lifetimes(load(MODULE.replace("EXTRA", ', backend_config={"buffering_level":"2"}')), "tpu-v5p")
    assert [size >> 20 for size in (older.temporaries, older.lost, older.again)] == [3072, 512, 512]
    assert older.by_kind["fragmentation"] == older.lost + older.again


def test_the_lowest_place_that_is_free():
    """Against a search of every place, one after the other."""
    draw = random.Random(3)
    for _ in range(200):
        begins = [draw.randrange(12) for _ in range(12)]
        spans = sorted((begin, begin + draw.randrange(8), draw.choice([0, 1, 2, 3, 5])) for begin in begins)
        placed: list[tuple[int, int, int, int]] = []
        for begin, last, size in spans:
            others = [(at, end) for first, until, at, end in placed if until >= begin]
            at = next(at for at in range(99) if all(at + size <= low or high <= at for low, high in others))
            placed.append((begin, last, at, at + size))
        assert room(spans) == max(end for *_, at, end in placed if end > at)


def test_what_is_lost_is_no_padding():
    found = report(load(MODULE.replace("EXTRA", "")), "tpu-v5p")
    assert (found.peak.lost_bytes >> 20, found.peak.wasted_bytes) == (512, 0)
    assert "0.0 % of it padding, 20.0 % lost between buffers" in "\n".join(head_lines(found))
    assert "B in smaller ones, 512 MiB lost between buffers" in found.to_html()
    again = MovementReport.from_json(json.loads(json.dumps(found.to_json())))
    assert again.peak == found.peak


def test_donated_and_narrowed():
    def step(w, m, x):
        m = 0.9 * m + x.T @ x
        return w - m, m

    square = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    lives = lifetimes(from_jax(step, square, square, square), "tpu-v5e")
    donated = lives.donated()
    assert donated.peak == lives.peak - (8 << 20)
    assert donated.donated() is None
    assert donated.narrowed().arguments == donated.arguments - (2 << 20)
