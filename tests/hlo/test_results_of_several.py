"""StableHLO's operations with several results: what is made of one of them has a time, as what is made of any value."""

import pytest

from tilewright.hlo import load
from tilewright.hlo.timing.estimate import estimate

X = "tensor<1024x1024xbf16>"


def loop(rows):
    x = f"tensor<{rows}x1024xbf16>"
    return f"""
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, {x}
  cond {{
    %n = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %s = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %s : tensor<i32>
    %2 = stablehlo.dot_general %x, %b, contracting_dims = [1] x [0] : ({x}, {X}) -> {x}
    stablehlo.return %1, %2 : tensor<i32>, {x}
  }}
"""


LOOP = loop(1024)
BARRIER = f"  %0:2 = stablehlo.optimization_barrier %b, %a : {X}, {X}\n"
LONE = f"  %0 = stablehlo.optimization_barrier %a : {X}\n"
CALL = f"  %0:2 = call @two(%b, %a) : ({X}, {X}) -> ({X}, {X})\n"
TWO = f"""
func.func private @two(%p: {X}, %q: {X}) -> ({X}, {X}) {{
  %0:2 = stablehlo.optimization_barrier %p, %q : {X}, {X}
  %1 = stablehlo.add %0#0, %0#1 : {X}
  return %1, %0#1 : {X}, {X}
}}
"""


def flops_of(before, value, after=""):
    text = f"""func.func @main(%a: {X}, %b: {X}) -> {X} {{{before}
  %9 = stablehlo.dot_general {value}, %b, contracting_dims = [1] x [0] : ({X}, {X}) -> {X}
  return %9 : {X}
}}
{after}"""
    step = estimate(load(text), "tpu-v6e")
    assert step.priced == 1
    return step.flops / 2**31


@pytest.mark.parametrize(
    ("before", "value", "products"),
    [("", "%a", 1), (LOOP, "%0#1", 4), (BARRIER, "%0#1", 1), (LONE, "%0", 1), (CALL, "%0#1", 1), (CALL, "%0#0", 1)],
    ids=["argument", "loop", "barrier", "lone barrier", "call", "sum in a call"],
)
def test_products_of_one_of_several_results(before, value, products):
    assert flops_of(before, value, TWO if "@two" in before else "") == products


def test_what_a_region_without_a_time_computes_is_counted():
    text = f"""func.func @main(%a: {X}, %b: {X}) -> {X} {{
  %9 = fresh.region(%a, %b) ({{
  ^bb0(%a1: {X}, %b1: {X}):
{loop(1024).replace("%a)", "%a1)").replace("%b,", "%b1,")}
    %3 = stablehlo.dot_general %0#1, %b1, contracting_dims = [1] x [0] : ({X}, {X}) -> {X}
    fresh.return %3 : {X}
  }}) : ({X}, {X}) -> {X}
  return %9 : {X}
}}"""
    step = estimate(load(text), "tpu-v6e")
    assert (step.flops, step.priced, step.priced_flops) == (4 * 2**31, 0, 0)


def test_a_result_that_is_read_comes_from_memory():
    """The loop's 128 MiB cannot stay near the core: the product reads them."""
    large = "tensor<65536x1024xbf16>"
    text = f"""func.func @main(%a: {large}, %b: {X}) -> {large} {{{loop(65536)}
  %9 = stablehlo.dot_general %0#1, %b, contracting_dims = [1] x [0] : ({large}, {X}) -> {large}
  return %9 : {large}
}}"""
    (row,) = (row for row in estimate(load(text), "tpu-v6e").rows if row.name == "%9")
    assert row.bytes >= 2 * 65536 * 1024 * 2


def test_a_loop_without_a_body_is_a_row_without_a_time():
    text = f"func.func @main(%a: {X}) -> {X} {{\n  %0 = stablehlo.while %a : {X}\n  return %0 : {X}\n}}"
    (row,) = estimate(load(text), "tpu-v6e").rows
    assert "not known" in row.unpriced
