"""When a reshape or a transpose may sink below operations: every condition both ways, on values."""

from __future__ import annotations

from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.hlo.stablehlo_values import big_reshapes, executed, executed_together, module, rewritten, tensor, values
from tests.hlo.test_dims import reshapes
from tilewright.errors import UnsupportedError
from tilewright.hlo import from_jax
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.rewriting.maker import ELEMENTWISE

RNG = np.random.default_rng(13)


def numbers(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype) if np.dtype(dtype).kind == "f" else RNG.integers(0, 99, shape, dtype)


def check(program, arrays, moves, expected=None, least=None):
    """So many reshapes and transposes of the largest input stay; the values are the original's, bit for bit.

    ``least``: how many elements they have at least, if not those of the largest input.
    """
    text = program if isinstance(program, str) else from_jax(program, *arrays).text
    found = rewritten(text)
    assert big_reshapes(found, least or max(np.size(a) for a in arrays)) == moves, found
    results = executed_together([text, found], *arrays)
    pairs = [results]
    with suppress(UnsupportedError):
        pairs.append([values(each, *arrays) for each in (text, found)])
    for before, after in pairs:
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
    for got, wanted in zip(results[1], expected or []):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def both_ways(operation, dtypes="x"):
    """StableHLO of reshape(operation(reshape(x), ...)) on [6,8] <-> [6,4,2]; x float, n integer, p boolean operands."""
    kinds = {"x": "f32", "n": "i32", "p": "i1"}
    flat, split = ({c: tensor(s, kinds[c]) for c in "xnp"} for s in ((6, 8), (6, 4, 2)))
    names = [f"{c}{k}" for k, c in enumerate(dtypes)]
    lines = [f"%s{name} = stablehlo.reshape %{name} : ({flat[name[0]]}) -> {split[name[0]]}" for name in names]
    line, result = operation(*(f"%s{name}" for name in names), **split)
    out = result.replace("6x4x2", "6x8")
    lines += [f"%r = {line}", f"%o = stablehlo.reshape %r : ({result}) -> {out}"]
    return module({name: flat[name[0]] for name in names}, "\n".join(lines), {"o": out}), [
        RNG.uniform(0.1, 0.9, (6, 8)).astype(np.float32) if name[0] == "x"
        else RNG.integers(0, 8, (6, 8)).astype(np.int32 if name[0] == "n" else bool)
        for name in names
    ]  # fmt: skip


#: Operations on one or two arrays of one type; what changes the type or carries attributes is in SPECIAL.
INTEGER = ["and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"]
UNARY_INTEGER = ["not", "popcnt", "count_leading_zeros"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "atan2"]
KINDS = {"f32": np.float32, "i32": np.int32}
OTHERS = {"clamp", "compare", "complex", "convert", "imag", "real", "is_finite", "reduce_precision", "select"}


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_a_reshape_passes_every_elementwise_operation(kind):
    """All of them in one program, each between reshapes of its own."""
    own, others = (INTEGER, UNARY_INTEGER) if kind == "i32" else (BINARY, sorted(ELEMENTWISE - OTHERS))
    others = [n for n in others if "." not in n and n not in BINARY] if kind == "f32" else others
    others = [n for n in others if kind == "i32" or n not in (*INTEGER, *UNARY_INTEGER)]
    flat, split = tensor((6, 8), kind), tensor((6, 4, 2), kind)
    lines, results = [f"%{v} = stablehlo.reshape %{w} : ({flat}) -> {split}" for v, w in ("ax", "by")], {}
    for name in (*own, *others):
        operands = "%a, %b" if name in own else "%a"
        lines.append(f"%{name} = stablehlo.{name} {operands} : {split}")
        lines.append(f"%{name}_ = stablehlo.reshape %{name} : ({split}) -> {flat}")
        results[f"{name}_"] = flat
    assert len(results) > (8 if kind == "i32" else 25)
    x, y = RNG.uniform(0.1, 0.9, (2, 6, 8)) if kind == "f32" else RNG.integers(0, 8, (2, 6, 8))
    check(module({"x": flat, "y": flat}, "\n".join(lines), results), [x.astype(KINDS[kind]), y.astype(KINDS[kind])], 0)


SPECIAL = {
    "compare": (lambda a, b, x, n, p: (f"stablehlo.compare GE, {a}, {b} : ({x}, {x}) -> {p}", p), "xx"),
    "select": (lambda c, a, b, x, n, p: (f"stablehlo.select {c}, {a}, {b} : {p}, {x}", x), "pxx"),
    "convert": (lambda a, x, n, p: (f"stablehlo.convert {a} : ({x}) -> {n}", n), "x"),
    "is_finite": (lambda a, x, n, p: (f"stablehlo.is_finite {a} : ({x}) -> {p}", p), "x"),
    "clamp": (lambda a, b, c, x, n, p: (f"stablehlo.clamp {a}, {b}, {c} : {x}", x), "xxx"),
    "reduce_precision": (lambda a, x, n, p: (f"stablehlo.reduce_precision {a}, format = e5m10 : {x}", x), "x"),
    "bitcast of one width": (lambda a, x, n, p: (f"stablehlo.bitcast_convert {a} : ({x}) -> {n}", n), "x"),
    "square": (lambda a, x, n, p: (f"chlo.square {a} : {x} -> {x}", x), "x"),
}


@pytest.mark.parametrize("operation", SPECIAL.values(), ids=SPECIAL.keys())
def test_operations_that_change_the_type_or_carry_attributes(operation):
    check(*both_ways(*operation), 0)


X = numbers(6, 8)


def sandwiched(fn):
    """reshape(fn(reshape(x))) for a function that keeps the shape [6,4,2]."""
    return lambda x: fn(x.reshape(6, 4, 2)).reshape(6, -1)


BIG = "tensor<6x4x2xf32>"
EFFECTS = {
    "a custom call": f"%r = stablehlo.custom_call @f(%sx0) : ({BIG}) -> {BIG}",
    "one with effects": f"%r = stablehlo.custom_call @f(%sx0) {{has_side_effect = true}} : ({BIG}) -> {BIG}",
    "a sharding constraint":
        f'%r = stablehlo.custom_call @Sharding(%sx0) {{mhlo.sharding = "{{replicated}}"}} : ({BIG}) -> {BIG}',
    "shardy": f"%r = sdy.sharding_constraint %sx0 <@mesh, [{{}}, {{}}, {{}}]> : {BIG}",
    "an annotated operation": f'%r = stablehlo.negate %sx0 {{mhlo.sharding = "{{replicated}}"}} : {BIG}',
}  # fmt: skip


@pytest.mark.parametrize("line", EFFECTS.values(), ids=EFFECTS.keys())
def test_custom_calls_and_shardings_stop_a_reshape(line):
    plain = f"%r = stablehlo.negate %sx0 : {BIG}"
    text, x = both_ways(lambda a, x, n, p: (f"stablehlo.negate {a} : {x}", x))
    check(text, x, 0)
    text = text.replace(plain, line)
    if "sdy" in line:
        text = text.replace("module {", 'module {\nsdy.mesh @mesh = <["a"=1]>')
    assert big_reshapes(rewritten(text), 48) == 2
    assert plain not in text


STOPS = {
    "cumsum": lambda y: jnp.cumsum(y, 1),
    "cumlogsumexp": lambda y: jax.lax.cumlogsumexp(y, 2),
    "sort": lambda y: jnp.sort(y, 1),
    "reverse": lambda y: jnp.flip(y, 2),
    "pad": lambda y: jnp.pad(y, ((0, 0), (0, 0), (1, 1)))[:, :, 1:-1] * 2,
    "reduce_window": lambda y: jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 1), (1, 1, 1), "SAME"),
    "dot": lambda y: y @ jnp.ones((2, 2)),
    "barrier": jax.lax.optimization_barrier,
    "roll": lambda y: jnp.roll(y, 1, 1),
    "gather": lambda y: y[:, jnp.array([1, 0, 3, 2])],
}


@pytest.mark.parametrize(
    "fn",
    [pytest.param(STOPS[k], id=k, marks=[pytest.mark.nightly] if k in ("cumlogsumexp", "roll") else []) for k in STOPS],
)
def test_what_is_not_elementwise_stops_a_reshape(fn):
    """By day: cumulative sums, and slices as in a pad, stand for their like."""
    text = from_jax(sandwiched(fn), X).text
    found = rewritten(text)
    assert big_reshapes(found, 48) >= 2
    before, after = executed_together([text, found], X)
    np.testing.assert_array_equal(before[0], after[0])


def test_random_numbers_stop_a_reshape():
    """They are not a function of their operands: made in another shape they would be other numbers."""
    line = """%k = stablehlo.constant dense<[6, 4, 2]> : tensor<3xi64>
    %u = stablehlo.rng %lo, %hi, %k, distribution = UNIFORM :
        (tensor<f32>, tensor<f32>, tensor<3xi64>) -> tensor<6x4x2xf32>
    %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
    %s = stablehlo.add %y, %u : tensor<6x4x2xf32>
    %z = stablehlo.reshape %s : (tensor<6x4x2xf32>) -> tensor<6x8xf32>"""
    scalars = {"x": "tensor<6x8xf32>", "lo": "tensor<f32>", "hi": "tensor<f32>"}
    found = rewritten(module(scalars, line, {"z": "tensor<6x8xf32>"}))
    assert "stablehlo.rng" in found
    assert found.count("tensor<3xi64>) -> tensor<6x4x2xf32>") == 1
    assert big_reshapes(found, 48) == 1  # of the random numbers


@pytest.mark.parametrize(("wide", "narrow", "width"), [("f32", "ui8", 4), ("i32", "i16", 2)])
def test_a_bitcast_that_changes_the_rank_stops_a_reshape(wide, narrow, width):
    line = f"""%y = stablehlo.reshape %x : (tensor<6x8x{wide}>) -> tensor<6x4x2x{wide}>
    %b = stablehlo.bitcast_convert %y : (tensor<6x4x2x{wide}>) -> tensor<6x4x2x{width}x{narrow}>
    %z = stablehlo.reshape %b : (tensor<6x4x2x{width}x{narrow}>) -> tensor<6x8x{width}x{narrow}>
    %s = stablehlo.bitcast_convert %a : (tensor<{wide}>) -> tensor<{width}x{narrow}>"""
    text = module(
        {"x": f"tensor<6x8x{wide}>", "a": f"tensor<{wide}>"}, line,
        {"z": f"tensor<6x8x{width}x{narrow}>", "s": f"tensor<{width}x{narrow}>"},
    )  # fmt: skip
    x = numbers(6, 8) if wide == "f32" else numbers(6, 8, dtype=np.int32)
    found = rewritten(text)
    assert big_reshapes(found, 48) == 2
    np.testing.assert_array_equal(
        executed(found, x, x[0, 0])[0], x.view(np.uint8 if width == 4 else np.int16).reshape(6, 8, -1)
    )


def test_clamps_have_scalar_bounds_or_bounds_that_follow():
    def clamped(x, w, low, high):
        y, z = x.reshape(6, 4, 2), w.reshape(6, 4, 2)
        wide = [jnp.broadcast_to(b, z.shape) for b in (low, high)]
        return jax.lax.clamp(low, y, high).reshape(6, 8), jax.lax.clamp(wide[0], z, wide[1]).reshape(6, 8)

    wanted = [np.clip(X, -0.5, 0.25), np.clip(2 * X, -0.5, 0.25)]
    check(clamped, [X, 2 * X, np.float32(-0.5), np.float32(0.25)], 0, wanted)


def test_a_select_has_a_scalar_predicate_or_one_that_follows():
    def chosen(x, w, p):
        y, z = x.reshape(6, 4, 2), w.reshape(6, 4, 2)
        return jax.lax.select(p, y, z).reshape(6, 8)

    check(chosen, [X, X + 1, np.bool_(False)], 0, [X + 1])


CONSTANTS = ["float32", "bfloat16", "int32", "int8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", CONSTANTS)
def test_constants_are_laid_out_anew_at_compile_time(dtype):
    """12 and 300 elements: MLIR prints few as numbers, many as bytes. Reshaped, and transposed; one reshape stays."""
    shapes = [(2, 3, 2), (10, 6, 5)]
    ks = [RNG.integers(0, 2, shape).astype(jnp.dtype(dtype)) for shape in shapes]
    xs = [RNG.integers(0, 9, (a, b * c)).astype(jnp.dtype(dtype)) for a, b, c in shapes]

    def scaled(*xs):
        results = []
        for x, k in zip(xs, ks):
            y, turned = x.reshape(k.shape), k.transpose(2, 0, 1)
            results += [(y * k).reshape(x.shape), (y.transpose(2, 0, 1) * turned).transpose(1, 2, 0)]
        return results

    wanted = []
    for x, k in zip(xs, ks):
        wide = x.reshape(k.shape).astype(complex) * k.astype(complex)
        wide = wide.astype(bool) if dtype == "bool" else wide
        wanted += [wide.reshape(x.shape), wide]
    check(scaled, xs, 2, wanted, least=12)


def test_trees_of_several_leaves():
    """f, g and h over two reshaped, two broadcast leaves and a constant."""

    def tree(x, w, u, v):
        y, z = x.reshape(5, 6, 4, 2), w.reshape(5, 6, 4, 2)
        b, c = u[:, :, None], v[None, None, :]
        return (jnp.tanh(y * b) + jnp.where(z > c, z, -jnp.exp(y) * 0.5)).reshape(5, 6, 8)

    check(tree, [numbers(5, 6, 8), numbers(5, 6, 8), numbers(6, 4), numbers(2)], 0)


def test_a_leaf_of_the_reshaped_shape_is_reshaped_in_place_of_the_two_around_it():
    """reshape(f(reshape(X), Z)) is f(X, reshape(Z)); several leaves only if fewer reshapes are left."""

    def tree(x, w):
        return (x.reshape(6, 4, 2) * w).reshape(6, 8)

    check(tree, [X, numbers(6, 4, 2)], 1)
    check(lambda x, w: jnp.exp(tree(jnp.tanh(x), w)) * x, [X, numbers(6, 4, 2)], 1)
    two = [X, numbers(6, 4, 2), numbers(6, 4, 2)]
    check(lambda x, w, v: (x.reshape(6, 4, 2) * w - v).reshape(6, 8), two, 2)
    check(lambda x, w: ((y := x.reshape(6, 4, 2) * w).reshape(6, 8), y), [X, numbers(6, 4, 2)], 2)
    check(lambda x, w: x.reshape(6, 4, 2) * w, [X, numbers(6, 4, 2)], 1)
    check(lambda w: jnp.exp(w).reshape(6, 8), [numbers(6, 4, 2)], 1)


def test_a_reshaped_tree_of_broadcasts_reshapes_what_is_spread():
    def tree(v, w):
        wide = jnp.exp(jnp.broadcast_to(v[:, None, :, None], (6, 5, 4, 2))) * w
        return wide.reshape(6, 5, 8)

    check(tree, [numbers(6, 4), numbers(4, 2)], 0, least=6 * 5 * 8)


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (2, 0), (0, 2), (2, 1), (1, 2)])
def test_broadcast_dims_may_be_unsorted_and_expand_unit_dims(dims):
    """Nothing to expand, the first dim, the second: three trees of their own in one program."""
    split, lines, given, wanted = (6, 4, 2, 5), [], {}, []
    order = sorted(range(2), key=dims.__getitem__)
    for n, expand in enumerate((None, 0, 1)):
        operand = tuple(1 if k == expand else split[d] for k, d in enumerate(dims))
        x, v = numbers(6, 8, 5), numbers(*operand)
        lines += [
            f"%y{n} = stablehlo.reshape %x{n} : (tensor<6x8x5xf32>) -> tensor<6x4x2x5xf32>",
            f"%b{n} = stablehlo.broadcast_in_dim %v{n}, dims = {list(dims)} :",
            f"    ({tensor(operand)}) -> tensor<6x4x2x5xf32>",
            f"%s{n} = stablehlo.multiply %y{n}, %b{n} : tensor<6x4x2x5xf32>",
            f"%z{n} = stablehlo.reshape %s{n} : (tensor<6x4x2x5xf32>) -> tensor<6x8x5xf32>",
        ]
        given |= {f"x{n}": x, f"v{n}": v}
        wide = np.expand_dims(v.transpose(order), (({0, 1, 2} - set(dims)).pop(), 3))
        wanted.append((x.reshape(split) * wide).reshape(6, 8, 5))
    kinds = {name: tensor(array.shape) for name, array in given.items()}
    text = module(kinds, "\n".join(lines), {f"z{n}": "tensor<6x8x5xf32>" for n in range(3)})
    check(text, [*given.values()], 0, wanted)


@pytest.mark.parametrize("there", [(6, 4, 2), (6, 8), (48,), (1, 6, 8)])
def test_reshapes_that_do_nothing_do_not_loop(there):
    """To and fro, and at last to each of three shapes; every chain has an argument of its own."""
    backs = [(6, 8), (48,), (6, 1, 8)]

    def chains(*given):
        there_and_there = [x.reshape(there).reshape(there).reshape(x.shape).reshape(there) for x in given]
        return [jnp.sin(y).reshape(back) for y, back in zip(there_and_there, backs)]

    given = [X, X + 1, X + 2]
    check(chains, given, 2, [np.sin(x).reshape(back) for x, back in zip(given, backs)])


def test_dynamic_shapes_are_left_alone():
    text = module(
        {"x": "tensor<?x8xf32>", "n": "tensor<3xi32>", "m": "tensor<2xi32>"},
        """%y = stablehlo.dynamic_reshape %x, %n : (tensor<?x8xf32>, tensor<3xi32>) -> tensor<?x4x2xf32>
        %s = stablehlo.sine %y : tensor<?x4x2xf32>
        %z = stablehlo.dynamic_reshape %s, %m : (tensor<?x4x2xf32>, tensor<2xi32>) -> tensor<?x8xf32>""",
        {"z": "tensor<?x8xf32>"},
    )
    assert rewritten(text).count("dynamic_reshape") == 2


def test_zero_sizes_are_left_alone():
    text = from_jax(lambda x: jnp.sin(x.reshape(0, 4, 2)).reshape(0, 8), np.zeros((0, 8), np.float32)).text
    assert big_reshapes(rewritten(text), 0) == big_reshapes(text, 0) == 2


@settings(max_examples=tries(20))
@given(reshapes(), st.data())
def test_transposed_trees_of_reshapes(pair, data):
    """x reshaped, turned, combined with turned and broadcast leaves, turned back or elsewhere: exact integers."""
    source, target = pair
    rank = len(target)
    first, second = data.draw(st.permutations(range(rank))), data.draw(st.permutations(range(rank)))
    dims = data.draw(st.lists(st.sampled_from(range(rank)), unique=True)) if rank else []
    turned = tuple(target[d] for d in first)
    operand, out = tuple(turned[d] for d in dims), tuple(turned[d] for d in second)
    lines = f"""%a = stablehlo.reshape %x : ({tensor(source, "i32")}) -> {tensor(target, "i32")}
    %t = stablehlo.transpose %a, dims = {list(first)} : ({tensor(target, "i32")}) -> {tensor(turned, "i32")}
    %b = stablehlo.broadcast_in_dim %y, dims = {dims} : ({tensor(operand, "i32")}) -> {tensor(turned, "i32")}
    %m = stablehlo.multiply %t, %b : {tensor(turned, "i32")}
    %n = stablehlo.subtract %m, %t : {tensor(turned, "i32")}
    %u = stablehlo.transpose %n, dims = {list(second)} : ({tensor(turned, "i32")}) -> {tensor(out, "i32")}"""
    text = module({"x": tensor(source, "i32"), "y": tensor(operand, "i32")}, lines, {"u": tensor(out, "i32")})
    x, y = (np.arange(int(np.prod(s)), dtype=np.int32).reshape(s) + 1 for s in (source, operand))
    found = rewritten(text)
    np.testing.assert_array_equal(values(found, x, y)[0], values(text, x, y)[0])
    assert len(parse_and_count(found)) <= len(parse_and_count(text)) + 2


def parse_and_count(text):
    """The transposes of a text."""
    body = read_functions(parse_module(text))[0]
    return [op for op in body.operations if op.name == "transpose"]


@pytest.mark.parametrize(("source", "target"), [((), (1, 1)), ((1,), ())])
def test_slices_of_a_reshaped_scalar_stay(source, target):
    starts = ", ".join(["%i"] * len(target))
    types = "".join(", tensor<i32>" for _ in target)
    own, kind = tensor(source), tensor(target)
    operands, sizes = ("%y, " + starts, ": 1, 1") if target else ("%y", "")
    taken = f'"stablehlo.dynamic_slice"({operands}) {{slice_sizes = array<i64{sizes}>}}'
    body = f"%y = stablehlo.reshape %x : ({own}) -> {kind}\n%z = {taken} : ({kind}{types}) -> {kind}"
    text = rewritten(module({"x": own, "i": "tensor<i32>"}, body, {"z": kind}), "reshape-of-dynamic-slice")
    assert f"({own}" not in text.partition("dynamic_slice")[2]
