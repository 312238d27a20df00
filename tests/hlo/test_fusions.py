"""What of StableHLO reaches memory: each rule by hand, the compiler's own peaks, and laws of every lifetime."""

import pytest

from tests.conftest import VECTORS
from tilewright.hlo import lifetimes, load

MIB = 1 << 20
BIG = "tensor<1024x1024xf32>"  # 4 MiB


def main(*lines, results=("%r",), kind=BIG):
    """A program of two arguments: ``lines`` write NAME = OPERATION of arrays of one kind."""
    body = "".join(f"  {line}\n" for line in lines)
    kinds = ", ".join([kind] * len(results))
    head = f"func.func @main(%a: {kind}, %b: {kind}) -> ({kinds}) {{\n"
    return load(f"{head}{body}  return {', '.join(results)} : {kinds}\n}}")


def unary(name, what, of):
    return f"{name} = stablehlo.{what} {of} : {BIG}"


def binary(name, what, x, y):
    return f"{name} = stablehlo.{what} {x}, {y} : {BIG}"


def product(name, x, y):
    return f"{name} = stablehlo.dot_general {x}, {y}, contracting_dims = [1] x [0] : ({BIG}, {BIG}) -> {BIG}"


CASES = {
    # elementwise chains are one kernel
    "chain": (main(unary("%x", "tanh", "%a"), unary("%y", "negate", "%x"), binary("%r", "add", "%y", "%b")), 0),
    # a product does what follows it: only the end is written, and that is the result
    "epilogue": (main(product("%x", "%a", "%b"), unary("%y", "tanh", "%x"), binary("%r", "add", "%y", "%a")), 0),
    # two products in one sum: one of them is written
    "two products": (main(product("%x", "%a", "%b"), product("%y", "%b", "%a"), binary("%r", "add", "%x", "%y")), 1),
    # two products in what a third takes: each is made by a kernel of its own
    "products into a third": (
        main(
            *(product("%x", "%a", "%b"), product("%y", "%b", "%a"), unary("%g", "logistic", "%x")),
            *(binary("%h", "multiply", "%g", "%y"), product("%r", "%h", "%b")),
        ),
        2,
    ),
    # what two kernels want of one array is computed twice
    "computed again": (
        main(unary("%x", "tanh", "%a"), product("%r", "%x", "%b"), product("%s", "%b", "%x"), results=("%r", "%s")),
        0,
    ),
    # what three kernels want of two arrays is written
    "written": (
        main(
            binary("%x", "add", "%a", "%b"),
            *(product(f"%{k}", "%x", of) for k, of in (("r", "%a"), ("s", "%b"), ("t", "%r"))),
            results=("%r", "%s", "%t"),
        ),
        1,
    ),
    # an argument that is returned is copied
    "returned": (main(results=("%a",)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule(name):
    program, written = CASES[name]
    lives = lifetimes(program, "tpu-v6e")
    assert (lives.arguments, lives.temporaries) == (8 * MIB, written * 4 * MIB)
    assert lives.outputs == len(program.entry.root.operands) * 4 * MIB


def test_what_is_given_away_takes_no_memory_twice():
    text = main(binary("%r", "add", "%a", "%b")).text
    lives = lifetimes(load(text.replace(f"%a: {BIG}", f"%a: {BIG} {{tf.aliasing_output = 0 : i32}}")), "tpu-v6e")
    assert (lives.arguments, lives.outputs, lives.aliased, lives.peak) == (8 * MIB, 4 * MIB, 4 * MIB, 8 * MIB)


def test_a_loop_that_changes_an_argument_copies_it():
    text = f"""func.func @main(%a: {BIG}, %w: {BIG}) -> {BIG} {{
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %c, %x = %a, %u = %w) : tensor<i32>, {BIG}, {BIG}
  cond {{
    %n = stablehlo.constant dense<7> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %s = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %s : tensor<i32>
    %2 = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : ({BIG}, {BIG}) -> {BIG}
    stablehlo.return %1, %2, %u : tensor<i32>, {BIG}, {BIG}
  }}
  %r = stablehlo.tanh %0#1 : {BIG}
  return %r : {BIG}
}}"""
    lives = lifetimes(load(text), "tpu-v6e")
    assert lives.temporaries // MIB == 4  # the copy of %a; %w stays what it is


@pytest.mark.parametrize(
    ("file", "chip"),
    [("hlo_tpu/v5e_reshape_zoo.stablehlo.mlir", "tpu-7x"), ("hlo_tpu/v5e_reshape_zoo.after.hlo", "tpu-v5e")],
)
def test_laws(file, chip):
    lives = lifetimes(load(VECTORS / file), chip)
    assert (
        lives.peak
        == lives.spaces["hbm"]
        == sum(lives.by_kind.values())
        == sum(row.bytes for row in lives.at_peak) + lives.lost + lives.again
    )
    assert lives.peak == lives.arguments + lives.outputs - lives.aliased + lives.temporaries
    assert lives.arguments + lives.outputs - lives.aliased <= lives.least <= lives.peak
    assert {row.kind for row in lives.at_peak} <= set(lives.by_kind)


def test_what_the_compiler_lists_as_shared_is_shared():
    text = """HloModule m, is_scheduled=true
ENTRY e {
  a = f32[1024]{0} parameter(0)
  x = f32[1024]{0} negate(a)
  y = f32[1024]{0} custom-call(x), custom_call_target="k", backend_config={"aliasing_operands":{"lists":LISTS}}
  ROOT r = f32[256]{0} slice(y), slice={[0:256]}
}"""
    shared = text.replace("LISTS", '[{"indices":["0","1"]}]')
    assert lifetimes(load(shared), "tpu-v6e").temporaries == 4096
    assert lifetimes(load(text.replace("LISTS", "[]")), "tpu-v6e").temporaries == 8192


def test_a_transpose_of_nothing_ends_no_report():
    """A damaged text."""
    text = """module @m {
  func.func public @main(%0: tensor<8x128xf32>) -> tensor<128x8xf32> {
    %1 = stablehlo.transpose , dims = [1, 0] : (tensor<8x128xf32>) -> tensor<128x8xf32>
    return %1 : tensor<128x8xf32>
  }
}"""
    assert lifetimes(load(text), "tpu-v6e").peak > 0


def test_a_branch_may_read_a_part_of_what_a_loop_gives():
    lines = f"""
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %six = stablehlo.constant dense<6> : tensor<i32>
  %loop:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {BIG}
    cond {{
      %more = stablehlo.compare LT, %i, %six : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %six : tensor<i32>
      %y = stablehlo.tanh %x : {BIG}
      stablehlo.return %next, %y : tensor<i32>, {BIG}
    }}
  %which = stablehlo.compare LT, %loop#0, %six : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %r = "stablehlo.if"(%which) ({{
    %s = stablehlo.add %loop#1, %b : {BIG}
    stablehlo.return %s : {BIG}
  }}, {{
    stablehlo.return %b : {BIG}
  }}) : (tensor<i1>) -> {BIG}"""
    assert lifetimes(main(lines), "tpu-v6e").temporaries // MIB == 4  # what the loop carries
