"""Programs of the kind that ran out of memory on Tenstorrent's chips: the report shows the bytes and says why."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.hlo.norms import struct
from tilewright.errors import UnsupportedError
from tilewright.hlo import estimate, from_jax, optimize, report

WORMHOLE, BLACKHOLE = "tenstorrent-wormhole", "tenstorrent-blackhole"


def rotary(x, table):
    """Interleaved pairs as HiDream writes them (tt-xla 5965)."""
    pairs = x.astype(jnp.float32).reshape(2, 4480, 5, 64, 1, 2)
    turned = table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]
    return turned.reshape(x.shape).astype(x.dtype)


def shuffle(x, channels, t, h, w):
    """Pixel shuffle of a video decoder (Mochi, tt-xla 4252; HunyuanVideo, tt-xla 6048)."""
    _, _, frames, height, width = x.shape
    y = x.reshape(1, channels, t, h, w, frames, height, width).transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return y.reshape(1, channels, frames * t, height * h, width * w)


def mochi(x):
    return shuffle(x, 512, 3, 2, 2)


def hunyuan(x):
    return shuffle(x, 128, 1, 2, 2)


def step(weights, mean, gradient):
    """An optimizer that flattens what it updates: [108365,64] becomes a vector (tt-mlir 9227)."""
    shape = weights.shape
    weights, mean, gradient = (a.reshape(-1) for a in (weights, mean, gradient))
    mean = 0.9 * mean + 0.1 * gradient
    return (weights - 0.001 * mean).reshape(shape), mean.reshape(shape)


ROTARY = struct(2, 4480, 5, 128, dtype=jnp.bfloat16), struct(2, 4480, 1, 64, 2, 2)
MOCHI = (struct(1, 6144, 8, 60, 106, dtype=jnp.bfloat16),)
HUNYUAN = (struct(1, 512, 17, 240, 424, dtype=jnp.bfloat16),)
STEP = (struct(108365, 64),) * 3


@pytest.mark.parametrize(
    ("function", "arguments", "target", "shape", "reported", "reason"),
    [
        (rotary, ROTARY, BLACKHOLE, "f32[2,4480,5,64,1,2]", 11_744_051_200, "dim 5 (2) of the result is cut by"),
        (mochi, MOCHI, WORMHOLE, "bf16[1,512,8,3,60,2,106,2]", 12_079_595_520, "dim 7 (2) is now"),
        (step, STEP, WORMHOLE, "f32[6935360]", 887_726_080, "merge into dim 0 (6935360), but dim 1 (64) is cut by"),
        (
            hunyuan,
            HUNYUAN,
            f"{BLACKHOLE}:row_major",
            "bf16[1,128,17,1,240,2,424,2]",
            28_343_009_280,
            "dim 7 (2) is now",
        ),
    ],
)
def test_the_report_shows_what_users_saw(function, arguments, target, shape, reported, reason):
    result = report(from_jax(function, *arguments), target)
    row = next(row for row in result.rows if row.to_layout.startswith(shape))
    assert row.padded_bytes == reported
    assert reason in row.reason
    assert result.predicted
    assert result.peaks[0].padded_bytes >= reported
    assert result.register_bytes is None


def test_a_mask_counts_as_the_type_it_is_stored_as():
    result = report(from_jax(lambda x: (x > 0).reshape(96, 40), struct(3, 32, 40)), WORMHOLE)
    row = next(row for row in result.rows if row.op.endswith("reshape"))
    assert row.to_layout == "bf16[96,40]{1,0:T(32,32)(16,16)}"
    assert row.bitcast


@pytest.mark.parametrize(
    ("function", "arguments", "target", "rule", "reported"),
    [
        (rotary, ROTARY, BLACKHOLE, "spread-pairs", 11_744_051_200),
        (mochi, MOCHI, WORMHOLE, "pixel-shuffle-by-products", 12_079_595_520),
        (hunyuan, HUNYUAN, f"{BLACKHOLE}:row_major", "pixel-shuffle-by-products", 28_343_009_280),
    ],
)
def test_rules_reduce_the_largest_array_ten_times(function, arguments, target, rule, reported):
    done = optimize(from_jax(function, *arguments), target, assume_finite=True)
    assert rule in [verdict.rule for verdict in done.rewrites], done.explain()
    before, after = (
        max(tensor.padded_bytes for tensor in report(program, target).tensors if tensor.op != "parameter")
        for program in (done.original, done.program)
    )
    assert before == reported
    assert 10 * after <= reported


def test_without_a_word_on_infinities_products_stay_away():
    done = optimize(from_jax(mochi, *MOCHI), WORMHOLE)
    assert done.text == done.original.text
    assert "--assume-finite allows it" in done.explain()


def test_a_step_on_vectors_keeps_its_matrices():
    done = optimize(from_jax(step, *STEP), WORMHOLE)
    before, after = report(done.original, WORMHOLE), report(done.program, WORMHOLE)
    assert done.moved_after == 0
    assert before.peaks[0].padded_bytes > 10 * after.peaks[0].padded_bytes
    assert all(tensor.padded_bytes < 887_726_080 / 10 for tensor in after.tensors)


@pytest.mark.parametrize(("count", "accepted"), [(1, True), (4, False)])
def test_elementwise_work_on_padded_arrays_counts(count, accepted):
    """[2,32,1,256] pads its unit dim to 32: one operation there costs less than two reshapes, four cost more."""

    def work(x):
        y = x.reshape(2, 32, 256)
        for _ in range(count):
            y = jnp.sin(y)
        return y.reshape(x.shape)

    done = optimize(from_jax(work, struct(2, 32, 1, 256)), WORMHOLE)
    assert bool(done.rewrites) is accepted
    assert "of padding instead of" in done.explain()


def test_no_time_is_made_up():
    with pytest.raises(UnsupportedError, match="no time was measured on such a chip, so none is modelled"):
        estimate(from_jax(jax.nn.relu, struct(8, 128)), WORMHOLE)
