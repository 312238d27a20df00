"""A StableHLO program four times as long takes four times the work and memory to price: counted, with no clock read."""

import sys
import tracemalloc

import pytest

from tilewright.hlo import estimate, load
from tilewright.hlo.rewrites import pipeline

ROWS, WEIGHTS = "tensor<64x512xf32>", "tensor<512x512xf32>"
HEADS, SCORES = "tensor<64x8x64xf32>", "tensor<8x64x64xf32>"
STATE = f"tensor<i32>, {ROWS}"


def program(arguments, lines, results):
    types = ", ".join([ROWS] * len(results))
    body = "\n".join([*lines, f"return {', '.join(results)} : {types}"])
    return f"func.func @main({', '.join(arguments)}) -> ({types}) {{\n{body}\n}}"


def layers(count):
    """Layers behind one another: a sum over rows, its broadcast, heads split off and merged again, a product."""
    lines, x = [], "%x"
    for k in range(count // 11):
        lines += [
            f"%z{k} = stablehlo.constant dense<0.0> : tensor<f32>",
            f"%s{k} = stablehlo.reduce({x} init: %z{k}) applies stablehlo.add across dimensions = [1] : "
            f"({ROWS}, tensor<f32>) -> tensor<64xf32>",
            f"%b{k} = stablehlo.broadcast_in_dim %s{k}, dims = [0] : (tensor<64xf32>) -> {ROWS}",
            f"%m{k} = stablehlo.subtract {x}, %b{k} : {ROWS}",
            f"%h{k} = stablehlo.reshape %m{k} : ({ROWS}) -> {HEADS}",
            f"%t{k} = stablehlo.transpose %h{k}, dims = [1, 0, 2] : ({HEADS}) -> {SCORES}",
            f"%e{k} = stablehlo.exponential %t{k} : {SCORES}",
            f"%u{k} = stablehlo.transpose %e{k}, dims = [1, 0, 2] : ({SCORES}) -> {HEADS}",
            f"%r{k} = stablehlo.reshape %u{k} : ({HEADS}) -> {ROWS}",
            f"%p{k} = stablehlo.dot_general %r{k}, %w, contracting_dims = [1] x [0] : ({ROWS}, {WEIGHTS}) -> {ROWS}",
            f"%y{k} = stablehlo.add {x}, %p{k} : {ROWS}",
        ]
        x = f"%y{k}"
    return program([f"%x: {ROWS}", f"%w: {WEIGHTS}"], lines, [x])


def sums(count):
    """One sum of many arguments: all of it is one kernel."""
    names = ["%a0", *(f"%s{k}" for k in range(1, count))]
    lines = [f"{names[k]} = stablehlo.add {names[k - 1]}, %a{k} : {ROWS}" for k in range(1, count)]
    return program([f"%a{k}: {ROWS}" for k in range(count)], lines, names[-1:])


def results(count):
    """Many results of as many arguments."""
    lines = [f"%t{k} = stablehlo.tanh %a{k} : {ROWS}" for k in range(count)]
    return program([f"%a{k}: {ROWS}" for k in range(count)], lines, [f"%t{k}" for k in range(count)])


def loops(count):
    """Loops behind one another."""
    lines, x = [f"%{name} = stablehlo.constant dense<{n}> : tensor<i32>" for name, n in (("c0", 0), ("c1", 1))], "%x"
    for k in range(count // 9):
        lines += [
            f"%n{k} = stablehlo.constant dense<{k % 7 + 2}> : tensor<i32>",
            f"%l{k}:2 = stablehlo.while(%i{k} = %c0, %y{k} = {x}) : {STATE} cond {{",
            f"%t{k} = stablehlo.compare LT, %i{k}, %n{k} : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            f"stablehlo.return %t{k} : tensor<i1>\n}} do {{",
            f"%j{k} = stablehlo.add %i{k}, %c1 : tensor<i32>",
            f"%z{k} = stablehlo.tanh %y{k} : {ROWS}",
            f"stablehlo.return %j{k}, %z{k} : {STATE}\n}}",
        ]
        x = f"%l{k}#1"
    return program([f"%x: {ROWS}"], lines, [x])


def work(text):
    """Calls of functions, built-in ones too, and bytes in use at most, while a text is read and priced."""
    count = 0

    def called(frame, event, value):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(called)
    try:
        step = estimate(load(text), "tpu-v6e")
    finally:
        sys.setprofile(before)
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert step.priced == 1
    return count, memory


@pytest.mark.parametrize("text", [layers, sums, results, loops])
def test_four_times_as_many_operations_are_four_times_the_work(text):
    estimate(load(text(100)), "tpu-v6e")  # imports, dialects and tables
    (calls, memory), (more_calls, more_memory) = work(text(250)), work(text(1000))
    assert more_calls < 4.4 * calls
    assert more_memory < 6 * memory


def test_the_normal_form_sweeps_a_longer_program_as_often(monkeypatch):
    """Two rounds and not a whole third: a step is passed by where nothing was edited since it looked."""
    sweeps = []

    def counted(apply):
        return lambda step, block: sweeps.append(step.name) or apply(step, block)

    for step in pipeline.NORMAL_FORMS[pipeline.NEWEST]:
        monkeypatch.setattr(type(step), "apply", counted(type(step).apply))
    counts = []
    for count in (1100, 4400):  # of no other test: a step that was just priced is kept
        estimate(load(layers(count)), "tpu-v6e")
        counts.append(len(sweeps))
        sweeps.clear()
    assert counts[0] == counts[1] < 3 * len(pipeline.NORMAL_FORMS[pipeline.NEWEST])
