"""Inlining: what anything still names stays, and so does a call that says more than where to go."""

from __future__ import annotations

import re

from tests.hlo.stablehlo_values import rewritten

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
