"""StableHLO text: hand-made texts, MLIR's own parser as the reference, and mutations."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import ParseError, TilewrightError
from tilewright.hlo import estimate, from_jax, load, report
from tilewright.hlo.program import Source
from tilewright.hlo.reading import mlir_reader
from tilewright.hlo.reading.mlir_reader import read_stablehlo, xla_shape
from tilewright.hlo.reading.sources import Locations

GENERIC = """\
#map = loc("x.py":1:2)
"builtin.module"() <{sym_name = "generic"}> ({
  "func.func"() <{function_type = (tensor<4x6xf32>) -> tensor<6x2xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<4x6xf32> loc("argument"), %arg1: tensor<f32>):
    %0 = "stablehlo.transpose"(%arg0) <{permutation = array<i64: 1, 0>}> :
      (tensor<4x6xf32>) -> tensor<6x4xf32> loc(#map)
    %1 = "stablehlo.slice"(%0) <{limit_indices = array<i64: 6, 4>, start_indices = array<i64: 0, 2>,
      strides = array<i64: 1, 1>}> : (tensor<6x4xf32>) -> tensor<6x2xf32>
    %2 = "stablehlo.reduce"(%1, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%3) : (tensor<f32>) -> ()
    }) : (tensor<6x2xf32>, tensor<f32>) -> tensor<2xf32>
    "func.return"(%1) : (tensor<6x2xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""


def test_the_generic_form():
    program = read_stablehlo(GENERIC)
    assert [c.name for c in program.computations] == ["main", "main/%2.reducer"]
    assert program.entry.name == "main"
    first, _, transpose, slice_, reduce, last = program.entry.operations
    assert (first.opcode, first.shape, first.op_name) == ("parameter", "f32[4,6]", "argument")
    assert (transpose.integers("dimensions"), transpose.source) == ((1, 0), Source("x.py", 1, 2))
    assert slice_.attributes["slice"] == "{[0:6:1], [2:4:1]}"
    assert (reduce.calls, reduce.shape) == (("main/%2.reducer",), "f32[2]")
    assert (last.opcode, last.root) == ("return", True)


def network(x, w):
    def body(carry, row):
        return carry + row.sum(), jnp.transpose(row).var()

    total, rest = jax.lax.scan(body, 0.0, jnp.reshape(x, (4, 8, 2)))
    chosen = jax.lax.cond(total > 0, lambda v: v.T.reshape(-1), lambda v: v.reshape(-1), x)
    joined = jnp.concatenate([x, x], 1)[:, 2:9:3]
    mixed = jax.lax.reduce(x, jnp.int32(3), lambda a, b: a * 2 + b, (0,)) if x.dtype == jnp.int32 else x
    return rest, chosen, jnp.argmax(x, 0), jax.nn.softmax(x @ w), joined, jnp.sort(x), mixed


@pytest.fixture(scope="module")
def program():
    return from_jax(network, jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32))


def test_source_lines_of_a_jax_function(program):
    lines = {op.op_name: op.source for op in program.entry.operations}
    transpose = next(op for _, op in program.operations() if op.op_name.endswith("branch_1_fun/transpose"))
    first = network.__code__.co_firstlineno
    assert transpose.source.file == __file__
    assert transpose.source.line == first + 5
    assert lines["jit(network)/dot_general"].line == first + 8
    assert lines["jit(network)/dot_general"].function == "network"


def test_calls_and_paths(program):
    assert program.entry.name == "main"
    assert program.path("main/%2.body") == "main > main/%2.body"
    assert program.path("_var").startswith("main > main/%2.body > ")
    while_ = next(op for op in program.entry.operations if op.opcode == "while")
    assert while_.calls == ("main/%2.cond", "main/%2.body")


def mlir_operations(text):
    """(opcode, operand types, result types, names, line) of every operation by MLIR's own parser."""
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    found = []

    def visit(op):
        dialect, _, short = op.name.partition(".")
        name = short if dialect in ("stablehlo", "chlo", "func") else op.name
        if name not in ("builtin.module", "func", "sdy.mesh"):
            operands = tuple(xla_shape(str(value.type)) for value in op.operands)
            found.append((name, operands, tuple(xla_shape(str(value.type)) for value in op.results)))
        for region in op.regions:
            for block in region:
                for inner in block:
                    visit(inner.operation)

    with make_ir_context():
        visit(ir.Module.parse(text).operation)
    return sorted(found)


def our_operations(program):
    found = []
    for _, op in program.operations():
        results = tuple(op.shape.strip("()").split(", ")) if op.shape != "()" else ()
        results = (op.shape,) if not op.shape.startswith("(") else results
        if op.opcode != "parameter":
            found.append((op.opcode, op.operand_shapes, results))
    return found


def without_printed_reducers(found, ours):
    """MLIR prints ``applies stablehlo.add`` for a reducer of one operation; our reader then sees no region."""
    rest = list(found)
    for operation in ours:
        assert operation in rest
        rest.remove(operation)
    return rest


@pytest.mark.parametrize("form", ["printed", "generic"])
def test_agrees_with_mlir(program, form):
    text = program.text
    if form == "generic":
        from jax._src.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir

        with make_ir_context():
            text = ir.Module.parse(text).operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    rest = without_printed_reducers(mlir_operations(text), our_operations(read_stablehlo(text)))
    allowed = {"add", "maximum", "return", "or", "and"} if form == "printed" else set()
    assert {name for name, *_ in rest} <= allowed
    assert all(shape.endswith("[]") for _, operands, _ in rest for shape in operands)


def everything(x, k, key):
    """One of each construct with a printed form of its own."""
    y = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")
    pooled = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    flat = pooled.reshape(-1)
    ordered = jax.lax.sort((flat, jnp.arange(flat.size)), num_keys=1)
    drawn = jax.random.normal(key, (4, 4)).astype(jnp.bfloat16)
    spread = flat.at[jnp.array([1, 2])].add(2.0)[::-1]
    solved = jnp.linalg.cholesky(jnp.eye(4) + jnp.outer(flat[:4], flat[:4]))
    waves = jnp.fft.rfft(flat).real
    looped = jax.lax.fori_loop(0, 3, lambda i, c: jax.lax.dynamic_update_slice(c, c[:1] * i, (i,)), flat)
    checked = jnp.where(jnp.isnan(flat), jnp.clip(flat, 0, 1), jnp.round(flat)) + jnp.pad(flat, (1, 2))[: flat.size]
    bits = jax.lax.bitcast_convert_type(flat, jnp.int8).astype(jnp.int4)
    return ordered, drawn, spread, solved, waves, looped, checked, bits, jax.lax.optimization_barrier(flat)


def test_every_printed_form_agrees_with_mlir():
    x, k = jnp.zeros((2, 3, 8, 8)), jnp.zeros((4, 3, 3, 3))
    forward = from_jax(everything, x, k, jax.random.key(0))
    backward = from_jax(jax.grad(lambda x, k: everything(x, k, jax.random.key(0))[2].sum(), (0, 1)), x, k)
    for program in (forward, backward):
        rest = without_printed_reducers(mlir_operations(program.text), our_operations(program))
        assert {name for name, *_ in rest} <= {"add", "and", "maximum", "or", "return"}
        assert report(program, "tpu-v5e").rows


def test_real_files_agree_with_mlir(data_folder):
    for file in sorted(data_folder.glob("hlo_tpu/*.mlir")):
        text = file.read_text()
        rest = without_printed_reducers(mlir_operations(text), our_operations(read_stablehlo(text)))
        assert {name for name, *_ in rest} <= {"add", "and", "maximum", "return"}, file.name


MAIN = "func.func @main(%x: tensor<2x3xf32>) -> tensor<6xf32> {\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "has no function"),
        ("module {\n", 1, "never closed"),
        (MAIN + "  %0 = stablehlo.reshape %y : (tensor<2x3xf32>) -> tensor<6xf32>\n}", 2, "%y is not defined"),
        (MAIN + "  %0 = stablehlo.reshape %x#1 : (tensor<2x3xf32>) -> tensor<6xf32>\n}", 2, "%x has 1 results"),
        (MAIN + "  %x = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>\n}", 2, "defined twice"),
        (MAIN + "  %0 = stablehlo.reshape %x : (tensor<2x3xf32> -> tensor<6xf32>\n}", 2, "expected ',' or '\\)'"),
        (MAIN + "  %0 = stablehlo.reshape %x : \n}", 3, "expected a type"),
        (MAIN + "  %0 = call @f(%x) : (tensor<2x3xf32>) -> tensor<6xf32>\n}", 2, "calls @f"),
        (MAIN + "  return %x : tensor<2x3xf32>\n}\n" + MAIN + "}", 4, "defined twice"),
        (MAIN + '  %0 = stablehlo.reshape "x\n}', 2, "expected the rest"),
    ],
)
def test_malformed_texts_name_the_line(text, line, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        read_stablehlo(text)
    assert caught.value.line == line


def test_deep_regions_are_refused():
    with pytest.raises(ParseError, match="nested deeper"):
        read_stablehlo("module {\n" * 5000)


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ('"a.py":3:4', "", "a.py:3"),
        ('"jit(f)/add"("a.py":3:4 to :9)', "jit(f)/add", "a.py:3"),
        ('"add"(callsite("f"("/v/site-packages/flax/nn.py":1:1) at "g"("a.py":5:6)))', "add", "a.py:5"),
        ('"add"(callsite("f"("/v/site-packages/lib.py":1:1) at "g"("a.py":5:6)))', "add", "/v/site-packages/lib.py:1"),
        ('fused<"x">["mul"("b.py":7:1), "c.py":8:1]', "mul", "b.py:7"),
        ("#loc9", "add", "a.py:2"),
        ("#circle", "", "None"),
        ("unknown", "", "None"),
        ('"jit:"("f"("a.py":1:1))', "jit", "a.py:1"),
    ],
)
def test_locations(text, name, line):
    aliases = Locations.of('#loc9 = loc("add"(#loc8))\n#loc8 = loc("a.py":2:0)\n#circle = loc(#circle)\n')
    op_name, source = aliases.resolve(text)
    assert (op_name, str(source)) == (name, line)


PIECES = st.sampled_from([*'{}()[]<>,=:%#@^"\\/ \n\0-1', "tensor<", "loc(", "%0:9", "({", "->", "dense<", "!x<"])


@settings(max_examples=tries(40))
@given(st.data())
def test_mutations_end_in_a_program_or_an_error(program, data):
    text = data.draw(st.sampled_from([program.text, GENERIC]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(PIECES) + text[at + data.draw(st.integers(0, 30)) :]
    try:
        report(read_stablehlo(text), "tpu-v5e")
    except TilewrightError as error:
        assert str(error)


OLD_FORMS = """func.func @main(%x: tensor<16xf32>, %m: tensor<8x16xf32>) -> tensor<1x16xf32> {
  %0 = stablehlo.broadcast %x, sizes = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
  %1 = stablehlo.broadcast %x, sizes = [2, 3] : (tensor<16xf32>) -> tensor<2x3x16xf32>
  %2 = "stablehlo.broadcast"(%x) {broadcast_sizes = array<i64: 1>} : (tensor<16xf32>) -> tensor<1x16xf32>
  %3 = "stablehlo.broadcast"(%x) {broadcast_sizes = dense<[2, 3]> : tensor<2xi64>} : (tensor<16xf32>) -> tensor<2x3x16xf32>
  %4 = "stablehlo.transpose"(%m) {permutation = dense<[1, 0]> : tensor<2xi64>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %5 = "stablehlo.slice"(%m) {limit_indices = dense<4> : tensor<2xi64>, start_indices = dense<[1, 0]> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>} : (tensor<8x16xf32>) -> tensor<3x4xf32>
  %6 = "stablehlo.broadcast_in_dim"(%x) {broadcast_dimensions = dense<1> : tensor<1xi64>} : (tensor<16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<1x16xf32>
}
"""  # noqa: E501


def test_an_operation_that_says_what_another_one_said_reads_as_if_alone(monkeypatch, data_folder):
    texts = [path.read_text() for path in sorted(data_folder.glob("*/*.mlir"))]
    fast = [read_stablehlo(text) for text in texts]
    monkeypatch.setattr(mlir_reader._Reader, "_line_of_one_result", lambda self: None)
    alone = [read_stablehlo(text) for text in texts]
    assert [p.computations for p in fast] == [p.computations for p in alone]
    assert sum(len(c.operations) for p in fast for c in p.computations) > 100


def test_older_forms_of_attributes():
    program = read_stablehlo(OLD_FORMS)
    found = {op.name: dict(op.attributes) for op in program.entry.operations if op.attributes}
    assert [found[f"%{k}"]["dimensions"] for k in (0, 1, 2, 3, 4, 6)] == ["{1}", "{2}", "{1}", "{2}", "{1,0}", "{1}"]
    assert found["%5"] == {"slice": "{[1:4:1], [0:4:1]}"}
    rows = {row.name: row for row in report(program, "tpu-v5e").rows}
    assert rows["%1"].reason == "repeats the operand along dim 0 (2) and dim 1 (3)"


def test_constants_stand_at_what_reads_them():
    def scaled(x):
        offset = jnp.array([[1.0, 2.0, 3.0]])
        return x * 2.0 + offset

    operations = from_jax(scaled, jnp.zeros((4, 3))).entry.operations
    here = scaled.__code__.co_firstlineno
    lines = {op.source.line - here for op in operations if op.opcode == "constant"}
    assert lines == {2}
    assert {op.source.file for op in operations if op.opcode == "constant"} == {__file__}


X, TOP = "tensor<64x128xf32>", "(tensor<64x5xf32>, tensor<64x5xi32>)"
MADE = f"""
func.func private @made(%x: {X}) -> {X} {{
  %0 = stablehlo.reshape %x : ({X}) -> tensor<128x64xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<128x64xf32>) -> {X}
  return %1 : {X}
}}
"""
COMPOSITE = 'stablehlo.composite "NAME" %x {decomposition = @made, version = 1 : i32} : (TYPE) -> TYPE'
GROUPS = "(tensor<100x64xbf16>, tensor<4x64x96xbf16>, tensor<4xi32>) -> tensor<100x96xbf16>"
ATTRIBUTES = "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0]"
GROUPED = f'%0 = "chlo.ragged_dot"(%a, %b, %n) <{{ragged_dot_dimension_numbers = #chlo.ragged_dot<{ATTRIBUTES}>}}> :'
NUMBERS = ", ".join(f"dense<{dim}> : tensor<{len(dim)}xi64>" for dim in ("", "", "1", "1", "0", "0"))
EXPORTED = f"""\
%0 = stablehlo.composite "chlo.ragged_dot" %a, %b, %n {{composite_attributes = {{
    ragged_dot_dimension_numbers = [{NUMBERS}]}}, decomposition = @made, version = 1 : i32}} :"""


def of_grouped(form, types=GROUPS):
    a, b, n = types.partition(" ->")[0].strip("()").split(", ")
    result = types.partition("-> ")[2]
    head = f"func.func @main(%a: {a}, %b: {b}, %n: {n}) -> {result} {{\n  "
    return f"{head}{form} {types}\n  return %0 : {result}\n}}\n"


def of_erf(form):
    """A function of one operation and a tanh, beside the function that the operation may be made of."""
    tail = f"  %1 = stablehlo.tanh %0 : {X}\n  return %1 : {X}\n}}{MADE}"
    return f"func.func @main(%x: {X}) -> {X} {{\n  %0 = {form}\n{tail}"


def times_of(text):
    """The step's seconds, and the report's, which is of the normal form."""
    return estimate(load(text), "tpu-v6e").device_seconds, report(load(text), "tpu-v6e").time.device_us


def test_what_exports_put_for_an_operation_is_that_operation():
    exported = of_erf(COMPOSITE.replace("NAME", "chlo.erf").replace("TYPE", X))
    assert times_of(exported) == times_of(of_erf(f"chlo.erf %x : {X} -> {X}").replace(MADE, ""))
    assert [op.opcode for op in load(exported).entry.operations] == ["parameter", "erf", "tanh", "return"]
    older = "stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 5 : i64, largest = true}}"
    head, tail = f"func.func @main(%x: {X}) -> {TOP} {{\n  %0:2 = ", f"\n  return %0#0, %0#1 : {TOP[1:-1]}\n}}\n"
    top, called = f"{head}chlo.top_k(%x, k = 5) : {X} -> {TOP}{tail}", f"{head}{older} : ({X}) -> {TOP}{tail}"
    assert times_of(called) == times_of(top)
    found = [
        next(op for op in load(of_grouped(form)).entry.operations if op.attributes) for form in (GROUPED, EXPORTED)
    ]
    assert {op.attributes["lhs_contracting_dims"] for op in found} == {"{1}"}
    assert times_of(of_grouped(EXPORTED)) == times_of(of_grouped(GROUPED))


def test_a_composite_of_an_unknown_operation_is_a_call():
    text = of_erf(COMPOSITE.replace("NAME", "mine.norm").replace("TYPE", X))
    called = of_erf(f"func.call @made(%x) : ({X}) -> {X}")
    assert [op.opcode for op in load(text).entry.operations] == ["parameter", "call", "tanh", "return"]
    assert times_of(text)[0] == times_of(called)[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (")x64xf32", "no element type called '_x64xf32'"),
        ("2xbla", "no element type called 'bla'"),
        ("-1xf32", "no element type called '_1xf32'"),
        ("f33", "no element type called 'f33'"),
        ("2x3", "expected an element type"),
    ],
)
def test_a_tensor_of_no_element_type_is_named(kind, said):
    text = f"func.func @main(%a: tensor<{kind}>) -> tensor<{kind}> {{\n  return %a : tensor<{kind}>\n}}\n"
    with pytest.raises(ParseError, match=f"parameter %a: {said}"):
        report(load(text), "tpu-v6e")


def test_a_grouped_product_of_arrays_without_a_size_has_no_time():
    text = of_grouped(GROUPED, GROUPS.replace("100x64xbf16", "100x64x!quant.uniform<i8:f32>"))
    assert [row.unpriced for row in estimate(load(text), "tpu-7x").rows] == ["the size of its arrays is not known"]
