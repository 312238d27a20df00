"""The work of optimising grows with the program, not faster: calls are counted, so that no clock is needed."""

from __future__ import annotations

import cProfile
import pstats

import pytest

from tests.hlo.stablehlo_values import module, reduce_line, tensor
from tilewright.hlo import DEFAULT_PIPELINE, load, optimize, parse_pipeline, run_pipeline

X, Y, SMALL = tensor((64, 9, 32)), tensor((64, 9, 4, 8)), tensor((64, 4))


def split(result, operand):
    return f"%{result} = stablehlo.reshape %{operand} : ({X}) -> {Y}"


def layers(count):
    """Norm-like layers, each a region of its own."""
    lines = []
    for k in range(count):
        lines += [
            split(f"y{k}", f"x{k}"),
            reduce_line(f"s{k}", f"y{k}", Y, "c", "add", [1, 3], SMALL),
            f"%b{k} = stablehlo.broadcast_in_dim %s{k}, dims = [0, 2] : ({SMALL}) -> {Y}",
            f"%d{k} = stablehlo.subtract %y{k}, %b{k} : {Y}",
            f"%z{k} = stablehlo.reshape %d{k} : ({Y}) -> {X}",
            f"%x{k + 1} = stablehlo.reverse %z{k}, dims = [0] : {X}",
        ]
    return module({"x0": X, "c": tensor(())}, "\n".join(lines), {f"x{count}": X})


def one_region(count):
    """A chain of elementwise operations between two reshapes."""
    steps = [f"%y{k + 1} = stablehlo.sine %y{k} : {Y}" for k in range(count)]
    body = [split("y0", "x0"), *steps, f"%z = stablehlo.reshape %y{count} : ({Y}) -> {X}"]
    return module({"x0": X}, "\n".join(body), {"z": X})


def stuck(count):
    """The same, with a reshape at every step and a first leaf that cannot follow: every tree must be left alone."""
    lines = [f"%y0 = stablehlo.reverse %a, dims = [0] : {Y}"]
    for k in range(count):
        lines += [split(f"r{k}", "x0"), f"%y{k + 1} = stablehlo.multiply %y{k}, %r{k} : {Y}"]
    return module({"x0": X, "a": Y}, "\n".join(lines), {f"y{count}": Y})


def scalars(count):
    """Every layer adds to one running scalar, which every region can reach."""
    lines = ["%t0 = stablehlo.add %c, %c : tensor<f32>"]
    for k in range(count):
        lines += [
            split(f"y{k}", f"x{k}"),
            reduce_line(f"s{k}", f"y{k}", Y, "c", "add", [0, 1, 2, 3], tensor(())),
            f"%t{k + 1} = stablehlo.add %t{k}, %s{k} : tensor<f32>",
            f"%x{k + 1} = stablehlo.reverse %x{k}, dims = [0] : {X}",
        ]
    return module({"x0": X, "c": tensor(())}, "\n".join(lines), {f"t{count}": tensor(())})


def calls(work):
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("program", [layers, one_region, stuck, scalars])
def test_optimize_grows_linearly(program):
    optimize(load(program(4)), "vector8x128")
    few, many = (calls(lambda n=n: optimize(load(program(n)), "vector8x128")) for n in (15, 60))
    assert many < 4.4 * few


@pytest.mark.parametrize("program", [layers, one_region, stuck, scalars])
def test_the_ungated_fixpoint_grows_linearly(program):
    steps = parse_pipeline(DEFAULT_PIPELINE)
    run_pipeline(program(4), steps)
    few, many = (calls(lambda n=n: run_pipeline(program(n), steps)) for n in (20, 80))
    assert many < 4.4 * few
