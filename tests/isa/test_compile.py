"""Models compiled for the machine: values against XLA, layers named, counts equal to closed forms."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.isa.test_memory_laws import check
from tilewright import hlo, isa
from tilewright.errors import CheckFailed, UnsupportedError, UsageError

sys.path.insert(0, str(ROOT / "examples"))
SMALL = isa.MatrixUnitConfig(threads=64)
rng = np.random.default_rng(0)


def integers(*shape):
    return rng.integers(-128, 128, shape, np.int8)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def mlp():
    import int8_mlp

    layers, x = int8_mlp.arguments()
    narrow = [{key: array[..., :48] for key, array in layer.items()} for layer in layers]
    cut = [{**layer, "weights": layer["weights"][:48]} for layer in narrow]
    return int8_mlp.forward, (cut, x[:, :48])


def test_an_int8_network_has_xlas_values():
    function, arguments = mlp()
    compiled = isa.compile(function, *arguments, config=SMALL)
    value, report = compiled.run(*arguments, verify=True)
    assert (value == np.asarray(jax.jit(function)(*arguments))).all()
    products = [layer for layer in compiled.layers if layer.unit == "matrix"]
    assert sum(layer.counts.macs for layer in products) == 64 * (48 * 48 + 48 * 48 + 48 * 16)
    assert report.cycles >= sum(layer.cycles for layer in report.layers)
    check(report.moved, report.cycles, SMALL)
    assert set(report.bytes) == {"l1", "l2", "dram"}
    assert set(report.bytes["l1"]) == {"a", "b", "c", "dma"}
    assert report.energy_pj > 0
    assert 0 < report.math_utilisation <= 1
    assert "mm8" in compiled.listing
    assert report.to_html().startswith("<!DOCTYPE html>")


def test_cycles_are_known_before_a_run_and_equal_afterwards():
    function, arguments = mlp()
    compiled = isa.compile(function, *arguments, config=SMALL)
    before = [(layer.name, layer.cycles, layer.counts) for layer in compiled.layers]
    _, report = compiled.run(*arguments)
    assert [(layer.name, layer.cycles, layer.counts) for layer in report.layers] == before


def contracted(numbers, a, b):
    return lambda x, y: jax.lax.dot_general(x, y, numbers, preferred_element_type=jnp.int32)


@pytest.mark.parametrize(
    ("numbers", "a", "b"),
    [
        ((((1,), (0,)), ((), ())), (3, 5), (5, 4)),
        ((((0, 2), (1, 0)), ((), ())), (3, 5, 7), (7, 3, 2)),
        ((((3,), (1,)), ((0, 2), (0, 3))), (2, 5, 3, 8), (2, 8, 6, 3)),
    ],
)
@pytest.mark.parametrize("pes", [1, 3])
def test_products_over_any_dims(numbers, a, b, pes):
    x, y = integers(*a), integers(*b)
    config = isa.MatrixUnitConfig(threads=16, pes=pes)
    function = contracted(numbers, a, b)
    compiled = isa.compile(lambda u, v: function(u, function_twice(v)), x, y, config=config)
    value, _ = compiled.run(x, y, verify=True)
    assert (value == np.asarray(function(x, function_twice(y)))).all()
    (product,) = (layer for layer in compiled.layers if layer.unit == "matrix")
    assert 2 * product.counts.macs == product.operations == 2 * value.size * depth_of(numbers, a)


def depth_of(numbers, a):
    return int(np.prod([a[d] for d in numbers[0][0]]))


def function_twice(v):
    return v[::-1]  # a value the host has not placed: it must be copied


@pytest.mark.parametrize("pes", [1, 2])
@pytest.mark.parametrize(
    ("numbers", "x", "w", "options"),
    [
        (("NHWC", "HWIO", "NHWC"), (1, 6, 5, 8), (3, 3, 8, 4), {"padding": ((1, 1), (1, 0))}),
        (("NHWC", "HWIO", "NHWC"), (2, 4, 4, 6), (1, 1, 6, 5), {}),
        (("NCHW", "OIHW", "NCHW"), (1, 6, 7, 7), (4, 3, 3, 2), {"groups": 2, "strides": (2, 1), "dilation": (1, 2)}),
    ],
)
def test_convolutions(numbers, x, w, options, pes):
    a, b = integers(*x), integers(*w)

    def convolved(x, w):
        return jax.lax.conv_general_dilated(
            x, w, options.get("strides", (1, 1)), options.get("padding", ((0, 0), (0, 0))),
            rhs_dilation=options.get("dilation"), dimension_numbers=numbers,
            feature_group_count=options.get("groups", 1), preferred_element_type=jnp.int32,
        )  # fmt: skip

    compiled = isa.compile(convolved, a, b, config=isa.MatrixUnitConfig(threads=16, pes=pes))
    assert [layer.fallback for layer in compiled.layers] == [""]
    assert (compiled.run(a, b)[0] == np.asarray(convolved(a, b))).all()


def test_elements_in_another_order_are_copied_once_and_only_then():
    def turned(x, y):
        z = jnp.pad(jnp.concatenate([x @ y, x @ y], 1), ((1, 2), (0, 3)))
        return z.reshape(3, 2, 3, 3).transpose(2, 0, 1, 3)[1:, :, ::2], z.T @ z

    x, y = floats(3, 4), floats(4, 3)
    compiled = isa.compile(turned, x, y, config=SMALL)
    value, report = compiled.run(x, y, verify=True)
    for have, want in zip(value, turned(x, y), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5)
    assert {layer.unit for layer in report.layers} == {"matrix", "copy"}


def test_what_is_wrong_is_located():
    x, y = floats(8, 8), floats(8, 8)
    compiled = isa.compile(lambda x, y: (x @ y) @ y, x, y, config=SMALL)
    name, table = compiled.lowering.steps[1].name, compiled.lowering.steps[1].reads[0]
    job = compiled.lowering.steps[1].jobs[0]
    swapped = tuple((n, table if n == "A" else t, p) for n, t, p in job.windows)
    compiled.lowering.steps[1].jobs = (
        type(job)(0, job.program, (swapped[0], ("B", table, swapped[1][2]), swapped[2])),
    )
    with pytest.raises(CheckFailed, match=f"layer {name}"):
        compiled.check(x, y)


def test_what_the_machine_cannot_do_says_why():
    x = floats(4, 4)
    compiled = isa.compile(lambda x: jnp.sort(x @ x), x, config=SMALL)
    value, report = compiled.run(x)
    np.testing.assert_allclose(value, np.sort(x @ x), atol=1e-5)
    assert "sort" in compiled.layers[1].fallback
    assert 0 < report.fallback_share < 1


def test_text_is_compiled_too_and_other_things_are_refused():
    x = floats(4, 4)
    program = hlo.from_jax(lambda x: x @ x, x)
    assert isa.compile(program.text, config=SMALL).run(x)[0][0].tolist() == isa.compile(program).run(x)[0].tolist()
    with pytest.raises(UsageError, match="int to compile"):
        isa.compile(3)
    with pytest.raises(UsageError, match="takes f32"):
        isa.compile(program).run(x.astype(np.int32))


def test_a_transformer_runs_whole_on_the_machine(monkeypatch):
    import transformer

    for name, size in {"LAYERS": 1, "WIDTH": 32, "HEADS": 2, "HIDDEN": 48, "WORDS": 40, "LENGTH": 16}.items():
        monkeypatch.setattr(transformer, name, size)
    arguments = transformer.arguments()
    compiled = isa.compile(transformer.forward, *arguments, config=isa.MatrixUnitConfig(threads=64, pes=2))
    value, report = compiled.run(*arguments, verify=True)
    assert not [layer.name for layer in report.layers if layer.fallback]
    assert report.fallback_share == 0
    check(report.moved, report.cycles, report.config, 2)
    exact = np.asarray(jax.jit(transformer.forward)(*arguments))
    assert np.abs(value - exact).max() < 0.05 * np.abs(exact).max()


def test_sums_over_any_dims_and_numbers_repeated_along_any():
    def statistics(x, y):
        z = x @ y
        by_group = z.reshape(4, 6, 2, 8)
        mean = by_group.mean((1, 3), keepdims=True)
        return (by_group - mean).reshape(z.shape), z.sum(0), z.max(), jnp.where(z > 0, z, 0).sum(1) + z[:, 0]

    x, y = floats(24, 8), floats(8, 16)
    compiled = isa.compile(statistics, x, y, config=SMALL)
    value, report = compiled.run(x, y, verify=True)
    for have, want in zip(value, statistics(x, y), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    assert not [layer.fallback for layer in report.layers if layer.fallback]


def test_tables_stand_in_l2_while_they_are_used_and_no_two_share_a_byte():
    function, arguments = mlp()
    compiled = isa.compile(function, *arguments, config=SMALL)
    execution = compiled._execute(compiled._flat(arguments, {}), SMALL)
    stays = execution.stays
    assert {stay.comes for stay in stays} == {False, True}
    assert any(stay.leaves for stay in stays)
    for one in stays:
        for other in stays:
            together = one is not other and one.first <= other.last and other.first <= one.last
            assert not together or one.begin + one.size <= other.begin or other.begin + other.size <= one.begin
    moved = execution.report().bytes
    assert moved["l2"]["dma"] > 0
    assert execution.stays == compiled.l2_plan()[0].stays
    arrived = [line for line in compiled.schedule.splitlines() if line.endswith("by DMA") and "comes" in line]
    assert len(arrived) == sum(stay.comes for stay in stays)
    tiny = isa.MatrixUnitConfig(threads=64, l2_bytes=1024)
    outside = isa.compile(function, *arguments, config=tiny)
    assert outside.run(*arguments)[1].bytes["dram"]["c"] > moved["dram"]["c"]


def test_pages_and_lines_share_l2_in_a_compiled_run(monkeypatch):
    """As everywhere: what pages take, lines have not; and a machine without L2 computes the same."""
    from tilewright.isa.compiler.running import Execution

    held = []
    leave = Execution.departures

    def watched(run, number):
        chip, line = run.machine.chip, run.config.line_bytes
        lines = chip.l2.lines()
        held.append(line * sum(page for page, _ in lines))
        assert held[-1] == sum(chip.l2_pages.values())
        assert line * len(lines) <= chip.l2_end
        leave(run, number)

    monkeypatch.setattr(Execution, "departures", watched)
    function, arguments = mlp()
    (value, _), (without, _) = (
        isa.compile(function, *arguments, config=isa.MatrixUnitConfig(threads=64, l2_bytes=size)).run(*arguments)
        for size in (SMALL.l2_bytes, 0)
    )
    assert max(held) > 0
    assert (np.asarray(value) == np.asarray(without)).all()


def test_a_model_is_written_and_run_without_its_source(tmp_path):
    def step(x, w, k):
        y = jnp.sort(jax.nn.relu(x @ w), 1).T
        return (
            jax.lax.conv_general_dilated(
                k, k.transpose(1, 2, 3, 0), (1, 1), "SAME", None, None, ("NHWC", "HWIO", "NHWC")
            ),
            y @ x,
            x > 0,
        )

    arguments = floats(6, 5), floats(5, 7), floats(4, 3, 3, 64)
    compiled = isa.compile(step, *arguments)
    compiled.save(str(tmp_path / "step.bundle"), *arguments)
    bundle = isa.load_bundle(str(tmp_path / "step.bundle"))
    (outputs, report), (again, first) = bundle.run(), compiled.run(*arguments)
    assert [(layer.name, layer.cycles, layer.bytes) for layer in report.layers] == [
        (layer.name, layer.cycles, layer.bytes) for layer in first.layers
    ]
    for one, other in zip(outputs, again, strict=True):
        assert one.dtype == other.dtype
        assert (one == other).all()
    assert (bundle.run({0: -arguments[0]})[0][2] == (arguments[0] < 0)).all()
    with pytest.raises(UsageError, match="argument 9"):
        bundle.run({9: arguments[0]})
    with pytest.raises(UsageError, match="not a compiled model"):
        isa.load_bundle(__file__)


def chained():
    function = lambda x, w, v: (x @ w) @ v  # noqa: E731
    arguments = floats(16, 16), floats(16, 16), floats(16, 16)
    return isa.compile(function, *arguments, config=isa.MatrixUnitConfig(threads=16, l2_bytes=1024)), arguments


@pytest.mark.parametrize("fault", ["page", "tile level"])
def test_a_swapped_page_or_tile_level_is_caught_and_located(monkeypatch, fault):
    from tilewright.isa.compiler.running import Execution

    compiled, arguments = chained()
    begin = Execution.begin
    table = compiled.lowering.steps[1].reads[1]

    def broken(execution, given):
        begin(execution, given)
        storage, others = execution.machine.chip.storages[table], compiled.lowering.steps[0].reads
        if fault == "page":
            storage.table.phys[:] = execution.machine.chip.storages[others[0]].table.phys
        else:  # which dim the lines run along
            storage.offsets_of = np.concatenate([storage.offsets_of[16:], storage.offsets_of[:16]])

    monkeypatch.setattr(Execution, "begin", broken)
    with pytest.raises(CheckFailed, match=f"layer {compiled.lowering.steps[1].name} "):
        compiled.check(*arguments)


def test_a_small_wrong_element_beside_large_ones_is_caught(monkeypatch):
    from tilewright.isa.compiler.running import Execution

    x, y = floats(16, 24) * np.logspace(6, -6, 16, dtype=np.float32)[:, None], floats(24, 16)
    compiled = isa.compile(lambda x, y: jax.nn.softmax((x @ y)[8:]), x, y, config=SMALL)
    compiled.check(x, y)
    in_table = Execution.in_table
    for name, at in (("dot_1", (13, 3)), ("elements_1", (2, 5))):
        (value,) = next(step.outputs for step in compiled.lowering.steps if step.name == name)

        def broken(execution, value, name, table=compiled.lowering.places[value][0].table, at=at):
            array = in_table(execution, value, name)
            if name == table:
                array[at] *= np.float32(1 + 2**-12)
            return array

        monkeypatch.setattr(Execution, "in_table", broken)
        with pytest.raises(CheckFailed, match=rf"layer {name} .*: 1 of .* first \[{at[0]}, {at[1]}\]"):
            compiled.check(x, y)


def reduced(op, start, window, strides, padding):
    return lambda x: jax.lax.reduce_window(x, np.asarray(start).astype(x.dtype), op, window, strides, padding)


def test_windows_and_sums_over_leading_dims():
    x, wide = integers(2, 9, 7, 6), floats(40, 2, 20)

    def statistics(x, y):
        return (
            reduced(jax.lax.max, -128, (1, 3, 2, 1), (1, 2, 1, 1), ((0, 0), (1, 1), (1, 0), (0, 0)))(x),
            reduced(jax.lax.min, np.inf, (9, 1, 9), (9, 1, 9), "SAME")(y.astype(jnp.bfloat16)),
            reduced(jax.lax.add, 0, (1, 2, 3), (1, 1, 2), "VALID")(y),
            reduced(jax.lax.add, 0, (1, 1, 1), (1, 2, 2), "VALID")(y),
            x.astype(jnp.int32).sum((0, 2)),
            y.sum(0),
            x.max(1),
        )

    compiled = isa.compile(statistics, x, wide, config=isa.MatrixUnitConfig(threads=12, pes=2))
    values, report = compiled.run(x, wide, verify=True)
    assert not [layer.fallback for layer in report.layers if layer.fallback or layer.unit == "copy"]
    for have, want in zip(values, statistics(x, wide), strict=True):
        np.testing.assert_allclose(have.astype(float), np.asarray(want).astype(float), rtol=1e-4, atol=1e-5)


def test_reshapes_that_divide_nothing_and_reversals_are_copies():
    y = floats(4, 5)
    function = lambda y: (jnp.flip(y + 1, 0).reshape(5, 2, 2) * 2, jnp.flip((y + 1).reshape(10, 2), (0, 1))[2:7])  # noqa: E731
    value, report = isa.compile(function, y, config=SMALL).run(y, verify=True)
    assert {layer.unit for layer in report.layers} == {"vector", "copy"}
    for have, want in zip(value, function(y), strict=True):
        assert (have == np.asarray(want)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
def test_shifts_of_narrow_integers_and_by_many_bits(dtype):
    x, by = (rng.integers(0, 100, (3, 8)) - 50).astype(dtype), rng.integers(0, 40, (3, 8)).astype(dtype)
    shifts = jax.lax.shift_left, jax.lax.shift_right_logical, jax.lax.shift_right_arithmetic

    def all_of_them(x, by):
        return [shift(x, other) for shift in shifts for other in (by, jnp.full_like(x, 3), jnp.full_like(x, 32))]

    isa.compile(all_of_them, x, by, config=SMALL).run(x, by, verify=True)


def test_element_types_of_eight_bits_that_are_floats():
    x = floats(6, 10)
    function = lambda x: (x.astype(jnp.float8_e4m3fn)[:, ::2].astype(jnp.float32) + 1).astype(jnp.float8_e5m2)  # noqa: E731
    value, _ = isa.compile(function, x, config=SMALL).run(x, verify=True)
    assert (value == np.asarray(function(x))).all()


def test_elements_by_numbers():
    x, numbers, begin = floats(6, 7, 8), rng.integers(-9, 9, 5, np.int32), np.int32(3)
    rows, columns = np.tril_indices(7, -1)

    def picked(x, numbers, begin):
        y = x * 2
        return (
            jnp.take(y, numbers, axis=1, mode="clip"),
            jnp.take(y.astype(jnp.int8), numbers, axis=1),
            y[:, numbers, numbers],
            jax.lax.dynamic_slice(y, (begin, begin - 5, begin + 9), (2, 3, 8)),
            jax.grad(lambda z: (z[:, rows, columns] ** 2).sum())(y[:, :, :7]),
        )

    compiled = isa.compile(picked, x, numbers, begin, config=isa.MatrixUnitConfig(threads=10, pes=3))
    values, report = compiled.run(x, numbers, begin, verify=True)
    assert not [layer.fallback for layer in report.layers if layer.fallback]
    for have, want in zip(values, jax.jit(picked)(x, numbers, begin), strict=True):
        np.testing.assert_array_equal(have, want)


def test_gradients_of_convolutions_and_other_paddings():
    x, w = floats(2, 6, 7, 4), floats(3, 2, 4, 5)

    def convolved(x, w, padding=((1, 0), (1, 1)), apart=(1, 1)):
        return jax.lax.conv_general_dilated(x, w, (2, 1), padding, apart, (1, 2), ("NHWC", "HWIO", "NHWC"))

    def several(x, w):
        gradients = jax.grad(lambda x, w: (convolved(x, w) ** 2).sum(), (0, 1))(x, w)
        line = jax.lax.conv_general_dilated(x[0], w[0], (1,), ((1, 2),), dimension_numbers=("NWC", "WIO", "NWC"))
        return gradients, convolved(x, w, ((-1, 3), (2, -2)), (2, 1)), line

    compiled = isa.compile(several, x, w, config=SMALL)
    report = compiled.run(x, w, verify=True)[1]
    assert not [layer.fallback for layer in report.layers if layer.fallback]


def test_pads_with_any_number_and_by_less_than_nothing():
    x = floats(3, 5, 6, 7)

    def padded(x):
        y = x * 2
        inner = jax.lax.pad(y, y[0, 0, 0, 0], [(0, 0, 0), (-1, 2, 1), (0, -3, 0), (2, -3, 2)])
        return inner, jax.lax.pad(y[..., None], np.float32(-np.inf), [(0, 0, 0)] * 3 + [(2, -3, 2), (1, 1, 0)])

    values, report = isa.compile(padded, x, config=SMALL).run(x, verify=True)
    assert not [layer.fallback for layer in report.layers if layer.fallback]
    for have, want in zip(values, padded(x), strict=True):
        np.testing.assert_array_equal(have, want)


def test_products_that_xla_does_not_compute_are_checked_too(monkeypatch):
    run_text = hlo.XlaValues.run_text

    def refusing(self, text, *others):
        if "dot_general" in text:
            raise UnsupportedError("XLA does not compute it on this host")
        return run_text(self, text, *others)

    monkeypatch.setattr(hlo.XlaValues, "run_text", refusing)
    x, y = floats(2, 8, 5).astype(jnp.bfloat16), floats(5, 2, 6).astype(jnp.bfloat16)
    numbers = (((2,), (0,)), ((0,), (1,)))
    function = lambda x, y: jax.lax.dot_general(x, y, numbers, preferred_element_type=jnp.float32) + 1  # noqa: E731
    compiled = isa.compile(function, x, y, config=SMALL)
    compiled.check(x, y)
    monkeypatch.setattr("tilewright.isa.compiler.checking.exact_product", lambda node, a, b: np.ones(node.result.sizes))
    with pytest.raises(CheckFailed, match="dot_1"):
        compiled.check(x, y)


def test_heads_are_read_and_written_where_they_stand():
    def attention(x, queries, keys, values, out):
        q, k, v = ((x @ w).reshape(2, 12, 2, 16) for w in (queries, keys, values))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(2, 12, 32) @ out

    arguments = floats(2, 12, 32), *(floats(32, 32) / 8 for _ in range(4))
    compiled = isa.compile(attention, *arguments, config=isa.MatrixUnitConfig(threads=64, pes=2))
    compiled.run(*arguments, verify=True)
    assert "copy" not in {layer.unit for layer in compiled.layers}


def test_a_product_without_dims_may_be_reshaped():
    x = floats(8)
    compiled = isa.compile(lambda x: (x @ x).reshape(1) + x[:1], x, config=SMALL)
    compiled.run(x, verify=True)


def test_of_two_products_that_meet_each_has_what_narrows_it():
    arguments = integers(20, 24), integers(24, 20), integers(24, 20)

    def both(x, a, b):
        p, q = (jax.lax.dot(x, w, preferred_element_type=jnp.int32) for w in (a, b))
        first = jnp.clip(jnp.round(p.astype(jnp.float32) * 0.01), -128, 127).astype(jnp.int8)
        return jnp.maximum(q.astype(jnp.float32) * 0.02 + first.astype(jnp.float32), 0)

    compiled = isa.compile(both, *arguments, config=SMALL)
    compiled.run(*arguments, verify=True)
    first, second = compiled.layers
    assert (first.unit, second.unit) == ("matrix", "matrix")
    assert first.moved.l1_c == 20 * 20  # a byte each
    assert second.moved.l1_c == 4 * 20 * 20


@pytest.mark.parametrize("ends", [(-128, 127), (-10, 20), (0, 300), (-300, 5)])
def test_rounding_and_clipping_on_the_way_to_integers(ends):
    x = np.concatenate([floats(60) * 100, [np.nan, np.inf, -np.inf, 0.5, 1.5, -0.5, 126.5, 127.5, -128.5, 2.5]])
    x = x.astype(np.float32).reshape(7, 10)

    def quantised(x):
        rounded, low, high = jnp.round(x), *map(jnp.float32, ends)
        clipped = jnp.minimum(jnp.maximum(rounded, low), high)
        return clipped.astype(jnp.int8), jnp.maximum(jax.lax.clamp(low, x, high), 3).round().astype(jnp.int32)

    compiled = isa.compile(quantised, x, config=SMALL)
    compiled.run(x, verify=True)
    assert "vfcmp" not in compiled.listing
    assert "vcvt.to_s8.from_f32 " in compiled.listing


@pytest.mark.parametrize("pes", [1, 2])
@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_a_row_of_a_kernel_over_few_channels_is_one_tap(dtype, pes):
    some = integers if dtype == np.int8 else floats
    x, w = some(2, 9, 11, 3), some(5, 7, 3, 10)

    def convolved(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (2, 2), ((2, 2), (3, 2)), dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.int32 if dtype == np.int8 else None,
        )  # fmt: skip

    compiled = isa.compile(convolved, x, w, config=isa.MatrixUnitConfig(threads=64, pes=pes))
    _, report = compiled.run(x, w, verify=True)
    (layer,) = report.layers
    depth = 8 // x.itemsize
    assert layer.counts.instructions == pes * 5 * -(-7 * 3 // depth)  # 50 pixels in one block, or a half each
