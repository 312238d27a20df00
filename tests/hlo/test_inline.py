"""Inlining: what anything still names stays, and so does a call that says more than where to go."""

from __future__ import annotations

import re

import pytest

from tests.hlo.stablehlo_values import rewritten
from tilewright.hlo.graphs.graph import walk
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.rewrites.cleanup import CommonSubexpressions
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.semantics.predicting import functions_of

KIND = "tensor<3xf32>"


def called(line, *names, body=f"%y = stablehlo.negate %x : {KIND}"):
    """main with one line that makes %y from %x, and private functions of these names."""
    others = "\n".join(
        f"func.func private @{n}(%x: {KIND}) -> {KIND} {{\n{body}\nreturn %y : {KIND}\n}}" for n in names
    )
    call = f"%a = func.call @helper(%x) : ({KIND}) -> {KIND}"  # one that is inlined, so that the unused are dropped
    helper = f"func.func private @helper(%x: {KIND}) -> {KIND} {{\nreturn %x : {KIND}\n}}"
    main = f"func.func public @main(%x: {KIND}) -> {KIND} {{\n{call}\n{line}\nreturn %y : {KIND}\n}}"
    return f"module {{\n{main}\n{helper}\n{others}\n}}"


def functions(text, passes="inline"):
    return re.findall(r'func\.func \w+ @("[^"]*"|\w+)', rewritten(text, passes))


def test_quoted_names_are_seen():
    composite = f'%y = stablehlo.composite "my.op" %a {{decomposition = @"my-impl.1"}} : ({KIND}) -> {KIND}'
    assert functions(called(composite, '"my-impl.1"', '"my-impl.2"')) == ["main", '"my-impl.1"']
    foreign = f'%y = stablehlo.custom_call @f(%a) {{called_computations = [@"a \\22b\\22, c"]}} : ({KIND}) -> {KIND}'
    assert functions(called(foreign, '"a \\22b\\22, c"', '"a "')) == ["main", '"a \\22b\\22, c"']


def test_a_name_in_any_attribute_is_a_use():
    line = f"%y = stablehlo.custom_call @f(%a) {{my.config = {{inner = [@kept]}}}} : ({KIND}) -> {KIND}"
    assert functions(called(line, "kept", "gone")) == ["main", "kept"]


def test_beside_an_unknown_operation_with_a_region_every_function_stays():
    line = f'%y = "my.op"(%a) ({{ ^bb0(%q: {KIND}): "my.end"(%q) : ({KIND}) -> () }}) : ({KIND}) -> {KIND}'
    assert functions(called(line, "kept")) == ["main", "helper", "kept"]


def test_a_call_with_attributes_of_another_dialect_stays():
    line = f'%y = func.call @pinned(%a) {{mhlo.frontend_attributes = {{where = "host"}}}} : ({KIND}) -> {KIND}'
    found = rewritten(called(line, "pinned"), "inline")
    assert 'call @pinned(%arg0) {mhlo.frontend_attributes = {where = "host"}}' in found
    assert functions(called(line.replace("mhlo.", ""), "pinned")) == ["main"]


def test_the_limit_counts_nested_operations():
    """A loop and what is in it: seven operations and the return."""
    loop = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %y0 = %x) : tensor<i32>, {KIND}
     cond {{
      %c = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %z = stablehlo.negate %y0 : {KIND}
      stablehlo.return %i, %z : tensor<i32>, {KIND}
    }}
    %y = stablehlo.add %r#1, %r#1 : {KIND}"""
    text = called(f"%y = func.call @looping(%a) : ({KIND}) -> {KIND}", "looping", body=loop)
    assert functions(text, "inline{limit=8}") == ["main", "looping"]
    assert functions(text, "inline{limit=9}") == ["main"]


def both_ways(text):
    """What a text's functions are made of with calls put in place in MLIR, and in the graph."""
    module = parse_module(text)
    Inline().apply_module(module)
    graph, _ = functions_of(read_stablehlo(text))
    return [described(read_functions(module)), described(graph)]


def described(bodies):
    found = {}
    for body in bodies:
        numbers, found[body.name] = {}, []
        for block in walk(body):
            for value in (*block.arguments, *(value for op in block.operations for value in op.results)):
                numbers[value] = len(numbers)
            for op in block.operations:
                found[body.name].append((op.name, [numbers[v] for v in op.operands], list(map(str, op.results))))
    return found


LOOP = f"""%one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %one, %v = %x) : tensor<i32>, {KIND}
     cond {{
      %c = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, %one : tensor<i32>
      %w = func.call @inner(%v) : ({KIND}) -> {KIND}
      stablehlo.return %n, %w : tensor<i32>, {KIND}
    }}
    %y = stablehlo.add %r#1, %x : {KIND}"""
TWICE = f"""%b = func.call @outer(%a) : ({KIND}) -> {KIND}
    %y = func.call @outer(%b) : ({KIND}) -> {KIND}"""
INNER = f"func.func private @inner(%x: {KIND}) -> {KIND} {{\n%y = stablehlo.sine %x : {KIND}\nreturn %y : {KIND}\n}}"


NAMED = f'%y = stablehlo.custom_call @f(%a) {{called_computations = [@"a.b"]}} : ({KIND}) -> {KIND}'
AGAIN = f"%y = func.call @again(%a) : ({KIND}) -> {KIND}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(called(TWICE, "outer", body=LOOP).removesuffix("}") + INNER + "\n}", id="loops within calls"),
        pytest.param(called(AGAIN.replace(") :", ") {mhlo.on = 1} :"), "again"), id="a call that stays"),
        pytest.param(called(NAMED, '"a.b"', "c"), id="a function that is named"),
        pytest.param(called(AGAIN, "again", body=AGAIN.replace("%a", "%x")), id="one that calls itself"),
    ],
)
def test_the_graph_puts_calls_in_place_as_mlir_does(text):
    in_mlir, in_graph = both_ways(text)
    assert in_mlir == in_graph


def test_what_was_computed_is_not_put_there_again():
    text = called(TWICE, "outer", body=LOOP).removesuffix("}") + INNER + "\n}"
    [merged], _ = functions_of(read_stablehlo(text), once=True)
    [whole], _ = functions_of(read_stablehlo(text))
    assert len(merged.operations) == len(whole.operations) - 1  # the second constant of the two
    assert CommonSubexpressions().apply(whole) == 1
    assert described([merged]) == described([whole])


def test_an_array_of_constants_in_a_function_called_twice_is_computed_once():
    body = f"%c = stablehlo.constant dense<[1.0, 2.0, 4.0]> : {KIND}\n%y = stablehlo.add %x, %c : {KIND}"
    [merged], _ = functions_of(read_stablehlo(called(TWICE, "outer", body=body)), once=True)
    assert [op.name for op in merged.operations[:-1]] == ["constant", "add", "add"]
