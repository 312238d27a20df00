"""Specifications as programs: every operation against numpy, random chains of them, reductions, shapes and machines."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa import MatrixUnitConfig, layer_norm, rms_norm, softmax
from tilewright.isa.execute.vector import FUNCTIONS
from tilewright.isa.vector.programs import run_vector, vector_program
from tilewright.isa.vector.spec import Input, Op, Output, VectorSpec

SMALL = MatrixUnitConfig(threads=12, registers=128, l2_bytes=1 << 14)
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "pred": bool}
NUMPY |= {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "s32": np.int32, "s8": np.int8, "u8": np.uint8, "s16": np.int16}
FLOATS = ("f32", "bf16", "f16", "f8e4m3fn")


def single(function):
    return lambda x: FUNCTIONS[function](x.astype(np.float64)).astype(np.float32)


def greatest(x, y):
    return np.where((x >= y) | np.isnan(x), x, y)


MADE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": greatest,
    "minimum": lambda x, y: np.where((x <= y) | np.isnan(x), x, y),
    "divide": lambda x, y: x / y if x.dtype == np.float32 else quotient(x, y),
    "remainder": lambda x, y: np.where(y == 0, x, x - quotient(x, y) * y),
    "negate": lambda x: np.float32(-1) * x if x.dtype == np.float32 else -x,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "exponential": single("exp"),
    "tanh": single("tanh"),
    "sqrt": np.sqrt,
    "rsqrt": single("rsqrt"),
    "log": single("log"),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "is_finite": np.isfinite,
    "select": lambda m, x, y: np.where(m != 0, x, y),
    "clamp": lambda low, x, high: MADE["minimum"](MADE["maximum"](low, x), high),
    "logistic": lambda x: single("recip")(single("exp")(x * np.float32(-1)) + np.float32(1)),
}
COMPARED = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater}
COMPARED["GE"] = np.greater_equal


def quotient(x, y):
    exact = np.trunc(x.astype(np.float64) / np.where(y == 0, 1, y)).astype(np.int64)
    return np.where(y == 0, -1, exact).astype(np.int32)


def held(values, dtype):
    """float32, int32 or 0 and 1, after rounding to what the type can hold."""
    if dtype in FLOATS:
        return values.astype(NUMPY[dtype]).astype(np.float32)
    return values.astype(NUMPY[dtype]).astype(np.int32)


def converted(x, source, target):
    if target == "pred":
        return (x != 0).astype(np.int32)
    if target in FLOATS or source not in FLOATS:
        return held(x, target)
    info = np.iinfo(NUMPY[target])
    whole = np.clip(np.trunc(x.astype(np.float64)), info.min, info.max)
    return np.where(np.isnan(whole), 0, whole).astype(np.int32)


def slow(spec, tensors):
    """Every operation in numpy, each value broadcast as its form says."""
    values, dtypes = [], []
    for each in spec.inputs:
        x = held(tensors[each.name], each.dtype)
        if each.form == "rows":
            x = x[np.arange(spec.rows) % each.period]
        values.append(x)
        dtypes.append(each.dtype)
    for op in spec.body:
        x = []
        for o in op.operands:
            x.append(values[o] if isinstance(o, int) else held(np.array([[o[1]]]), o[2]))
        source = spec.dtype(op.operands[0]) if op.operands else op.dtype
        if op.name == "convert":
            made = converted(x[0], source, op.dtype)
        elif op.name == "compare":
            made = COMPARED[op.attributes[0]](*x).astype(np.int32)
        elif op.name.startswith("reduce_"):
            wide = np.broadcast_to(x[0], (len(x[0]), spec.cols))
            made = {"add": np.sum, "max": np.max, "min": np.min}[op.name[7:]](wide, axis=1, keepdims=True)
        elif op.name == "iota_cols":
            made = np.arange(spec.cols)[None]
        elif op.name == "iota_rows":
            made = np.arange(spec.rows)[:, None]
        elif op.name == "not" and op.dtype == "pred":
            made = 1 - x[0]
        else:
            made = MADE[op.name](*x)
        values.append(held(made, op.dtype))
        dtypes.append(op.dtype)
    shape = {"full": (spec.rows, spec.cols), "row": (spec.rows, 1)}
    return {o.name: np.broadcast_to(values[o.value], shape[o.form]).astype(NUMPY[o.dtype]) for o in spec.outputs}


def numbers(rng, shape, dtype):
    """Small ones with halves among them, so that sums are exact and ties occur; some that are no numbers."""
    if dtype == "pred":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype not in FLOATS:
        low = 0 if dtype == "u8" else -100
        return rng.integers(low, 100, shape).astype(NUMPY[dtype])
    return (rng.integers(-12, 13, shape) / 2).astype(NUMPY[dtype])


def same(made, expected):
    for name, wanted in expected.items():
        got = made[name]
        assert got.dtype == wanted.dtype
        if wanted.dtype.kind in "biu":
            assert (got == wanted).all()
        else:
            nan = np.isnan(wanted.astype(np.float32))
            assert (np.isnan(got.astype(np.float32)) == nan).all()
            size = f"u{wanted.dtype.itemsize}"
            differ = got.view(size) != np.ascontiguousarray(wanted).view(size)
            assert not (differ & ~nan & (wanted.astype(np.float32) != 0)).any()


ARITHMETIC = ["add", "subtract", "multiply", "maximum", "minimum", "divide", "negate", "abs", "clamp"]
OF_FLOATS = [*ARITHMETIC, "floor", "ceil", "round_nearest_even", "sign", "exponential", "tanh", "logistic"]
OF_WHOLE = [*ARITHMETIC, "and", "or", "xor", "not", "sign", "remainder"]
COUNT = {"clamp": 3, **dict.fromkeys(["negate", "abs", "floor", "ceil", "round_nearest_even", "sign", "not"], 1)}
COUNT |= dict.fromkeys(["exponential", "tanh", "logistic"], 1)


@st.composite
def specs(draw):
    """Inputs of all forms and types, a body of anything, outputs of the last values."""
    rows, cols = draw(st.sampled_from([(1, 1), (3, 5), (30, 9), (2, 200), (5, 64)])), None
    rows, cols = rows
    inputs = [Input("x0", draw(st.sampled_from(["f32", "s32", "bf16", "s8"])))]
    for number in range(draw(st.integers(0, 3))):
        form = draw(st.sampled_from(["full", "row", "col", "one", "rows"]))
        dtype = draw(st.sampled_from(["f32", "s32", "bf16", "s8", "u8", "f16", "pred", "f8e4m3fn"]))
        inputs.append(Input(f"x{number + 1}", dtype, form, 2 if form == "rows" else 0))
    dtypes, body = [each.dtype for each in inputs], []

    def value(dtype):
        """A value of this type: one there is, a constant, or a conversion."""
        there = [n for n, d in enumerate(dtypes) if d == dtype]
        if there and draw(st.integers(0, 3)):
            return draw(st.sampled_from(there))
        if draw(st.booleans()):
            one = draw(st.sampled_from([0, 1, 2, 5] if dtype in ("u8", "pred") else [0, 1, -1, 3]))
            return ("const", min(one, 1) if dtype == "pred" else one, dtype)
        body.append(Op("convert", (draw(st.integers(0, len(dtypes) - 1)),), dtype))
        dtypes.append(dtype)
        return len(dtypes) - 1

    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["plain", "plain", "plain", "compare", "select", "convert", "reduce", "iota"]))
        dtype = draw(st.sampled_from(["f32", "f32", "bf16", "s32", "s32", "s8", "u8", "f16"]))
        if kind == "plain":
            name = draw(st.sampled_from(OF_FLOATS if dtype in FLOATS else OF_WHOLE))
            made = Op(name, tuple(value(dtype) for _ in range(COUNT.get(name, 2))), dtype)
        elif kind == "compare":
            made = Op("compare", (value(dtype), value(dtype)), "pred", (draw(st.sampled_from(sorted(COMPARED))),))
        elif kind == "select":
            made = Op("select", (value("pred"), value(dtype), value(dtype)), dtype)
        elif kind == "convert":
            made = Op("convert", (draw(st.integers(0, len(dtypes) - 1)),), dtype)
        elif kind == "iota":
            made = Op(draw(st.sampled_from(["iota_rows", "iota_cols"])), (), draw(st.sampled_from(["s32", "f32"])))
        else:
            own = VectorSpec(rows, cols, tuple(inputs), tuple(body), (Output("o", 0, "f32"),)).forms
            wide = [n for n, form in enumerate(own) if form in ("full", "col")]
            n = draw(st.sampled_from(wide))
            kind = "s32" if dtypes[n] not in FLOATS else "f32"
            if dtypes[n] != kind:
                body.append(Op("convert", (n,), kind))
                dtypes.append(kind)
                n = len(dtypes) - 1
            op = draw(st.sampled_from(["reduce_add", "reduce_max", "reduce_min"]))
            made = Op(op if kind == "s32" else draw(st.sampled_from(["reduce_max", "reduce_min"])), (n,), kind)
        body.append(made)
        dtypes.append(made.dtype)
    last = len(dtypes) - 1
    outputs = [Output("y", last, dtypes[last])]
    if draw(st.booleans()):
        outputs.append(Output("z", draw(st.integers(0, last)), dtypes[last]))
        outputs[1] = replace(outputs[1], dtype=dtypes[outputs[1].value])
    return VectorSpec(rows, cols, tuple(inputs), tuple(body), tuple(outputs))


@settings(max_examples=tries(15))
@given(specs(), st.integers(0, 99), st.sampled_from([1, 1, 3]))
def test_any_chain_is_numpys(spec, seed, pes):
    rng, shapes = np.random.default_rng(seed), {"full": (spec.rows, spec.cols), "row": (spec.rows, 1), "one": (1, 1)}
    shapes |= {"col": (1, spec.cols), "rows": (2, spec.cols)}
    tensors = {each.name: numbers(rng, shapes[each.form], each.dtype) for each in spec.inputs}
    with np.errstate(all="ignore"):
        expected = slow(spec, tensors)
    result = run_vector(spec, tensors, replace(SMALL, pes=pes))
    assert result.errors == ()
    same(result.values, expected)


def chain(*names, dtype="f32", rows=4, cols=40):
    body = tuple(Op(name, (number,), dtype) for number, name in enumerate(names))
    return VectorSpec(rows, cols, (Input("x", dtype),), body, (Output("y", len(names), dtype),))


def test_functions_made_of_others_are_near_the_truth():
    x = np.concatenate([np.linspace(-9, 9, 120), 10.0 ** -np.arange(1, 21), -(10.0 ** -np.arange(1, 21))])
    x = x.astype(np.float32).reshape(4, 40)
    wide = x.astype(np.float64)
    truth = {
        "erf": np.vectorize(math.erf)(wide),
        "exponential_minus_one": np.expm1(wide),
        "logistic": 1 / (1 + np.exp(-wide)),
        "log_plus_one": np.log1p(np.abs(wide)),
    }
    for name, wanted in truth.items():
        made = run_vector(chain(name), {"x": np.abs(x) if name == "log_plus_one" else x}, SMALL).value
        ulps = np.abs(made - wanted) / np.spacing(np.abs(wanted).astype(np.float32))
        assert ulps.max() < 5, (name, ulps.max())


def test_powers():
    x = np.array([[0.5, 2.0, 3.0, 7.0]], np.float32)
    for exponent in (1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, 2.5):
        body = (Op("power", (0, ("const", exponent, "f32")), "f32"),)
        spec = VectorSpec(1, 4, (Input("x", "f32"),), body, (Output("y", 1, "f32"),))
        assert np.allclose(run_vector(spec, {"x": x}, SMALL).value, x**exponent, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(3, 5), (40, 70), (1, 150), (2, 3, 64)])
def test_softmax_and_norms(shape, dtype):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=shape) * 3).astype(NUMPY[dtype])
    gamma, beta = (rng.normal(size=shape[-1]).astype(NUMPY[dtype]) for _ in range(2))
    wide, g, b = (v.astype(np.float64) for v in (x, gamma, beta))
    power = np.exp(wide - wide.max(-1, keepdims=True))
    apart = wide - wide.mean(-1, keepdims=True)
    expected = {
        "softmax": power / power.sum(-1, keepdims=True),
        "layer_norm": apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5) * g + b,
        "rms_norm": wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * g,
    }
    made = {"softmax": softmax(x, SMALL), "layer_norm": layer_norm(x, gamma, beta, config=SMALL)}
    made["rms_norm"] = rms_norm(x, gamma, config=SMALL)
    step = {"f32": 2e-6, "bf16": 4.1e-3, "f16": 5.1e-4}[dtype]
    for name, result in made.items():
        assert result.value.shape == shape
        assert result.value.dtype == x.dtype
        assert np.allclose(result.value.astype(np.float64), expected[name], rtol=step, atol=step / 10), name


def test_a_power_of_a_number():
    body = (Op("power", (("const", 0.9, "f32"), 0), "f32"),)
    spec = VectorSpec(1, 4, (Input("x", "f32"),), body, (Output("y", 1, "f32"),))
    x = np.array([[0.5, 2.0, 3.0, 7.0]], np.float32)
    assert np.allclose(run_vector(spec, {"x": x}, SMALL).value, np.float32(0.9) ** x, rtol=1e-6)


def test_counts_are_closed_forms():
    """Each element is loaded and stored once; a softmax is three passes, a function, a division and two reductions."""
    rows, cols = 24, 64
    config = MatrixUnitConfig(threads=12)
    result = softmax(np.ones((rows, cols), np.float32), config)
    elements = rows * cols
    assert result.traffic.load_bytes == result.traffic.store_bytes == 4 * elements
    assert result.bytes["dram"] == {"a": 4 * elements, "b": 0, "c": 4 * elements, "dma": 0}
    assert result.traffic.special_ops == 2 * elements
    assert result.traffic.vector_ops == 5 * elements  # greatest, difference, exponential, sum, quotient
    wide = run_vector(chain("negate", rows=12, cols=128), {"x": np.ones((12, 128), np.float32)}, config)
    assert wide.traffic.vector_ops == 12 * 128
    assert wide.cycles >= 2 * 4 * 12 * 128 / config.dram_bytes_per_cycle


def test_requantisation_is_one_instruction():
    body = (
        Op("convert", (0,), "f32"),
        Op("multiply", (2, 1), "f32"),
        Op("round_nearest_even", (3,), "f32"),
        Op("clamp", (("const", -128, "f32"), 4, ("const", 127, "f32")), "f32"),
        Op("convert", (5,), "s8"),
    )
    spec = VectorSpec(5, 8, (Input("x", "s32"), Input("scale", "f32", "col")), body, (Output("y", 6, "s8"),))
    program = vector_program(spec, SMALL)
    vectors = [i.name for i in program.instructions if i.spec.unit == "vector"]
    assert vectors == ["vquant"]
    rng = np.random.default_rng(0)
    x, scale = rng.integers(-(10**5), 10**5, (5, 8)).astype(np.int32), np.float32(2.0) ** -rng.integers(1, 12, (1, 8))
    scale = scale.astype(np.float32)
    made = run_vector(spec, {"x": x, "scale": scale}, SMALL).value
    assert (made == np.clip(np.rint(x.astype(np.float32) * scale), -128, 127)).all()


def test_what_cannot_be_done_is_said():
    x = Input("x", "f32")
    with pytest.raises(UnsupportedError, match="no room"):
        softmax(np.zeros((1, 4000), np.float32), SMALL)
    with pytest.raises(UnsupportedError, match="no operation 'fft'"):
        VectorSpec(1, 1, (x,), (Op("fft", (0,), "f32"),), (Output("y", 1, "f32"),))
    with pytest.raises(UsageError, match="numbers of values"):
        VectorSpec(1, 1, (x,), (Op("abs", (1,), "f32"),), (Output("y", 1, "f32"),))
    with pytest.raises(UsageError, match="x is float64"):
        run_vector(chain("abs"), {"x": np.zeros((4, 40))}, SMALL)
    assert run_vector(chain("abs", rows=0), {"x": np.zeros((0, 40), np.float32)}, SMALL).value.shape == (0, 40)
