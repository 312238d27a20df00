"""Convolutions with A in blocks and weights by DMA, their tuner and its commands."""

import json
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.isa import Counts, MatrixUnitConfig, autotune_conv2d, conv2d, expected_conv2d_counts
from tilewright.isa.study.choices import ConvChoice, ConvProblem

SMALL = MatrixUnitConfig(threads=32)
CASES = [
    ((1, 5, 6, 64), (3, 3, 64, 40), {"padding": 1}, {"kb": 2, "block_a": 2, "stream": True}),
    ((2, 5, 5, 64), (3, 3, 32, 20), {"padding": 1, "groups": 2}, {"kb": 2, "block_a": 2}),
    ((2, 5, 5, 64), (1, 3, 32, 20), {"groups": 2}, {"ka": 2, "kb": 2, "buffers": 2, "stream": True}),
    ((1, 9, 9, 96), (3, 3, 96, 50), {"stride": 2}, {"kb": 3, "block_a": 2, "buffers": 2, "columns": 16}),
    ((1, 6, 6, 32), (1, 1, 32, 50), {}, {"block_a": 2, "buffers": 2}),
    ((1, 6, 6, 32), (3, 3, 32, 24), {"padding": 2, "dilation": 2}, {"kb": 2, "block_a": 2, "buffers": 2}),
    ((2, 7, 5, 32), (2, 3, 16, 30), {"groups": 2, "stride": 2}, {"block_a": 2, "buffers": 2, "stream": True}),
]


@pytest.mark.parametrize("mode", ["chunk", "split"])
@pytest.mark.parametrize(("x", "w", "how", "options"), CASES)
def test_blocks_of_a_change_neither_values_nor_counts(x, w, how, options, mode):
    if mode == "split" and options.get("kb") == 3:
        options = options | {"kb": 2}  # whole registers of A for every thread
    machine = replace(SMALL, kb_mode=mode)
    rng = np.random.default_rng(1)
    images, weights = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (x, w))
    blocked = conv2d(images, weights, config=machine, **how, **options)
    np.testing.assert_array_equal(blocked.value, conv2d(images, weights, config=SMALL, **how).value)
    grouping = {name: options[name] for name in ("ka", "kb", "columns") if name in options}
    forms = expected_conv2d_counts(x, w, config=machine, **how, **grouping)
    for field in fields(Counts):
        if field.name not in ("l1_misses", "l2_misses", "dram_bytes"):
            assert getattr(blocked.counts, field.name) == getattr(forms, field.name), field.name
    if options.get("stream"):
        assert blocked.bytes["dram"]["b"] == 0
        assert blocked.dma_bytes >= weights.nbytes


def test_blocks_of_floats_with_several_elements():
    rng = np.random.default_rng(2)
    images, weights = rng.normal(size=(1, 4, 4, 16)), rng.normal(size=(1, 1, 16, 12))
    images, weights = images.astype(np.float32), weights.astype(np.float32)
    for config in (SMALL, MatrixUnitConfig(threads=32, pes=2)):
        blocked = conv2d(images, weights, config=config, kb=2, block_a=2, buffers=2).value
        np.testing.assert_allclose(blocked, images @ weights[0, 0], rtol=1e-5, atol=1e-5)


def test_a_of_the_next_tap_comes_before_the_products_of_one():
    x, w = np.ones((1, 9, 8, 16), np.int8), np.ones((3, 3, 16, 10), np.int8)
    plain, ahead = (conv2d(x, w, padding=1, config=SMALL, block_a=2, buffers=number) for number in (1, 2))
    assert ahead.counts == plain.counts
    assert ahead.cycles < 0.9 * plain.cycles


@pytest.mark.parametrize("options", [{"block_a": 2}, {"buffers": 2}, {"buffers": 3}, {"block_a": 0}])
def test_blocks_that_do_not_fit_are_refused(options):
    with pytest.raises(TilewrightError):
        conv2d(np.ones((1, 4, 4, 8), np.int8), np.ones((1, 1, 8, 8), np.int8), config=SMALL, **options)


def test_weights_by_dma_for_several_elements_are_refused():
    x, w = np.ones((1, 4, 4, 8), np.int8), np.ones((1, 1, 8, 8), np.int8)
    with pytest.raises(UnsupportedError, match="DMA"):
        conv2d(x, w, config=MatrixUnitConfig(pes=2), stream=True)


def test_conv5_uses_most_of_the_math_there_is():
    """Four threads of a pixel, a chunk of A each; a chunk for all four would ask for four times as many lines of B."""
    machine, fixed = MatrixUnitConfig(kb_mode="chunk"), {"padding": 1, "stream": True, "kb": 4, "buffers": 1, "ka": 1}
    tuning = autotune_conv2d((1, 7, 7, 512), (3, 3, 512, 512), config=machine, **fixed)
    assert tuning.best.utilisation > 0.6
    assert tuning.best.choice == ConvChoice(kb=4, block_a=8, stream=True)


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [
        ((1, 5, 5, 32), (3, 3, 32, 24), {"padding": 1}),
        pytest.param(*CASES[2][:2], {"groups": 2}, marks=pytest.mark.nightly),
    ],
)
def test_no_choice_is_faster_than_the_tuners(x, w, how):
    """By day: without groups."""
    tuning = autotune_conv2d(x, w, config=SMALL, **how)
    problem = ConvProblem(x, w, tuple(how.items()), 1, SMALL)
    space = problem.choices({})
    rng = np.random.default_rng(0)
    for index in rng.choice(len(space), min(6, len(space)), replace=False):
        (run,), _ = problem.runs("s8", space[index])
        assert max(problem.busy(space[index]).values()) <= run.cycles
        assert run.errors or run.cycles >= tuning.best.cycles


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["tilewright", "isa", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().out


def test_commands(tmp_path, monkeypatch, capsys):
    page = tmp_path / "tuning.html"
    shapes = ["1x5x5x32", "3x3x32x24", "--padding", "same", "--set", "threads=32"]
    code, printed = run(monkeypatch, capsys, "tune-conv2d", *shapes, "--most", "3", "-o", str(page))
    assert code == 0
    assert "A convolution of 1x5x5x32 by 3x3x32x24" in page.read_text()
    command = next(line for line in printed.splitlines() if line.startswith("isa conv2d"))
    code, found = run(monkeypatch, capsys, *command.split()[1:], "--json")
    assert json.loads(found)["value_equals_numpy"]
    assert code == 0
    assert f"{json.loads(found)['cycles']:,}" in printed
    floats = run(
        monkeypatch, capsys, "conv2d", "2x5x6x8", "3x2x4x6", "--groups", "2", "--dtype", "f32", "--stride", "2"
    )
    assert floats[0] == 0
    assert "within float32 rounding" in floats[1]
    assert run(monkeypatch, capsys, "conv2d", "5x6x8", "3x2x4x6")[0] == 2
