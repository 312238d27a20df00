"""Laws of the memory system, on any machine and program: bytes need time, accounts add up, more is not slower.

Programs: products of every type with and without an epilogue, convolutions, vector work, whole compiled models, and
what nobody would write.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.isa.mutated import run_mutated
from tests.isa.test_blocks import both
from tests.isa.test_vector_programs import numbers, specs
from tests.isa.wild import wild
from tilewright import isa
from tilewright.errors import TilewrightError, UsageError
from tilewright.isa import (
    Input,
    Machine,
    MatrixUnit,
    MatrixUnitConfig,
    MatrixUnitError,
    Op,
    Output,
    VectorSpec,
    contract,
    conv2d,
    matmul,
    softmax,
)
from tilewright.isa.language.config import DRAMS
from tilewright.isa.language.counts import Moved, energy, math_cycles_at_least, sram_pj
from tilewright.isa.vector.programs import run_vector

RATES = ("l1_ports", "l2_bytes_per_cycle", "dram_bytes_per_cycle")
few = settings(max_examples=tries(4))

TYPES = ("int4", "int8", "uint8", "uint16", "int32", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")
machines = st.fixed_dictionaries(
    {
        "threads": st.sampled_from([8, 24]),
        "pes": st.sampled_from([1, 1, 2, 3]),
        "line_bytes": st.sampled_from([16, 64]),
        "l1_bytes": st.sampled_from([128, 1024]),
        "l2_bytes": st.sampled_from([1024, 65536]),
        "l2_ways": st.sampled_from([0, 1]),
        "l1_ports": st.sampled_from([1, 2, 64]),
        "l2_bytes_per_cycle": st.sampled_from([1, 7, 64]),
        "dram_bytes_per_cycle": st.sampled_from([1, 5, 32, 512]),
        "dram": st.sampled_from(["flat", *DRAMS]),
        "arbitration": st.sampled_from(["round_robin", "slots"]),
        "l1_latency": st.sampled_from([0, 4]),
        "l2_latency": st.sampled_from([0, 100]),
        "dram_latency": st.sampled_from([0, 400]),
        "dma_latency": st.sampled_from([0, 400]),
        "loads_through_l1": st.booleans(),
        "macs_per_thread_cycle": st.sampled_from([None, 3]),
        "columns_per_step": st.sampled_from([1, 2]),
    }
)
products = st.fixed_dictionaries(
    {
        "sizes": st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 40)),
        "dtype": st.sampled_from(TYPES),
        "epilogue": st.booleans(),
        "block_a": st.sampled_from([1, 1, 3]),
        "tail_kb": st.sampled_from([None, None, 3]),
        "ka": st.integers(1, 2),
        "kb": st.integers(1, 2),
        "transpose_b": st.booleans(),
        "order": st.sampled_from(["k_outer", "column_outer"]),
        "segments": st.sampled_from([None, None, 2]),
    }
)


def some(shape, dtype, seed=0):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.random.default_rng(seed).integers(0, 7, shape).astype(dtype)


def finished(rows, columns, dtype):
    """An epilogue: bias, relu, and int8 or bfloat16 to memory."""
    wide, narrow = ("s32", "s8") if "int" in dtype else ("f32", "bf16")
    steps = (Op("add", (0, 1), wide), Op("maximum", (2, ("const", 0, wide)), wide), Op("convert", (3,), narrow))
    return VectorSpec(rows, columns, (Input("acc", wide), Input("bias", wide, "col")), steps, (Output("y", 4, narrow),))


def product(machine, how):
    (m, n, k), dtype = how["sizes"], how["dtype"]
    options = {name: value for name, value in how.items() if name not in ("sizes", "dtype", "epilogue")}
    if how["kb"] > 1 or how["order"] == "column_outer":
        options["block_a"] = 1
    if how["epilogue"]:
        spec = finished(m, n, dtype)
        options |= {"epilogue": spec, "operands": {"bias": some((1, n), "int32" if "int" in dtype else "float32")}}
    given_ = some((m, k), dtype), some((k, n), dtype, 1), MatrixUnitConfig(**machine)
    try:
        return matmul(*given_, split="columns", **options)
    except UsageError:  # a segment that L2 does not hold
        return matmul(*given_, split="columns", **options | {"segments": None})


def check(moved, cycles, config, pes=1):
    rates = {"l1": config.l1_ports * config.line_bytes * pes}
    rates |= {"l2": config.l2_bytes_per_cycle, "dram": config.dram_bytes_per_cycle}
    for level, of in moved.bytes.items():
        assert sum(of.values()) <= cycles * rates[level], (level, of, cycles)
    assert math_cycles_at_least(moved, config) <= cycles * pes + 1e-6


def check_run(run, config):
    """All laws of one processing element's run."""
    moved, traffic = run.moved, run.traffic
    check(moved, run.cycles, config)
    assert run.math_cycles + sum(run.stalls.values()) == run.cycles == sum(run.queue.values())
    assert (moved.l1_a, moved.l1_c, moved.dram_b) == (traffic.load_bytes, traffic.store_bytes, run.counts.dram_bytes)
    assert moved.l2_b == run.counts.l1_misses * config.line_bytes
    assert sum(getattr(moved, name) for name in vars(moved) if name.startswith("macs")) == run.counts.macs
    lines = (moved.dram_a + moved.dram_b) // config.line_bytes
    assert moved.rows_open + moved.rows_opened == (0 if config.dram == "flat" else lines)
    assert run.energy_pj == sum(energy(moved, traffic, config).values()) >= 0
    special, every = traffic.special_ops * config.special_cycles, traffic.vector_ops - traffic.special_ops
    assert every / config.vector_rate + special <= run.cycles * config.threads


def check_result(result, config):
    """All laws of a kernel's run, every element's and all together."""
    for run in result.pes or (result,):
        check_run(run, config)
    check(result.moved, result.cycles, config, config.pes)
    assert result.cycles == max((run.cycles for run in result.pes), default=result.cycles)
    assert 0 <= result.math_utilisation <= 1


@few
@given(machines, products)
def test_bytes_and_products_take_their_time(machine, how):
    result, config = product(machine, how), MatrixUnitConfig(**machine)
    check_result(result, config)
    (m, n, k), got = how["sizes"], result.bytes
    bits = 4 if how["dtype"] == "int4" else 8 * some(1, how["dtype"]).itemsize
    assert 8 * got["dram"]["a"] >= m * k * bits
    assert 8 * (got["dram"]["b"] + got["dram"]["dma"]) >= k * n * bits
    assert got["dram"]["c"] >= result.value.nbytes
    assert result.math_utilisation > 0
    assert result.energy_pj > 0


@few
@given(
    machines,
    st.tuples(st.integers(1, 2), st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.integers(1, 20)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.fixed_dictionaries(
        {
            "stride": st.integers(1, 2),
            "padding": st.sampled_from(["SAME", 2]),
            "dilation": st.integers(1, 2),
            "layout": st.sampled_from(["NHWC", "NCHW"]),
            "ka": st.integers(1, 2),
            "kb": st.integers(1, 2),
            "split": st.sampled_from([None, "images", "rows", "channels"]),
        }
    ),
    st.sampled_from(TYPES),
    st.booleans(),
)
def test_convolutions_take_their_time(machine, sizes, kernel, how, dtype, epilogue):
    (n, h, w, c, out), config = sizes, MatrixUnitConfig(**machine)
    x, weights = some((n, h, w, c), dtype), some((*kernel, c, out), dtype, 1)
    if how["layout"] == "NCHW":
        x, weights = x.transpose(0, 3, 1, 2), weights.transpose(3, 2, 0, 1)
    plain = conv2d(x, weights, config=config, **how)
    check_result(plain, config)
    more = {name: 40 * machine[name] for name in RATES} if config.pes == 1 else {}
    assert conv2d(x, weights, config=replace(config, **more), **how).cycles <= plain.cycles
    if epilogue:
        spec = finished(plain.value.size // out, out, dtype)
        bias = {"bias": some((1, out), "int32" if "int" in dtype else "float32")}
        check_result(conv2d(x, weights, config=config, epilogue=spec, operands=bias, **how), config)


@few
@given(machines, products, st.sampled_from(RATES), st.sampled_from([2, 3, 50]))
def test_more_bandwidth_never_hurts(machine, how, name, times):
    """One element: never. Several: by no more than the time for which the buses serve all of them."""
    less = product(machine, how)
    more = product(machine | {name: machine[name] * times}, how)
    assert (more.value == less.value).all()
    assert more.counts == less.counts
    assert more.bytes == less.bytes
    if machine["pes"] == 1:
        assert more.cycles <= less.cycles + (20 * 2 if how["segments"] else 0)
    else:
        c = MatrixUnitConfig(**machine)
        busy = sum(
            sum(less.bytes[at].values()) / c.line_bytes * -(-c.line_bytes // rate)
            for at, rate in (("l2", c.l2_bytes_per_cycle), ("dram", c.dram_bytes_per_cycle))
        )
        assert more.cycles <= less.cycles + busy


@few
@given(st.integers(0, 10**9))
def test_any_program_obeys(seed):
    config, memory, text = wild(seed)
    r = Random(seed)
    config = replace(
        config,
        dram=r.choice(("flat", "hbm2")),
        dram_bytes_per_cycle=r.choice((1, 32)),
        l2_bytes_per_cycle=r.choice((1, 64)),
    )
    try:
        run = MatrixUnit(config).run(text, memory)
    except MatrixUnitError as error:
        run = error.result
        if run is None or run.executed >= config.max_instructions:  # stopped half-way: nothing was waited for
            return
    check_run(run, config)


def test_mutated_programs_obey():
    for seed in range(tries(20)):
        config, call = run_mutated(seed)

        def work(call=call):
            try:
                return call()
            except TilewrightError as error:
                return str(error)

        one, other, _ = both(work) if seed % 8 == 0 else (work(), None, 0)
        assert other in (None, one), seed
        if not isinstance(one, str):
            check_result(one, config)


def test_a_of_one_mebibyte_takes_its_time():
    a, b = np.ones((1024, 1024), np.int8), np.ones((1024, 8), np.int8)
    usual = matmul(a, b)
    slow = matmul(a, b, MatrixUnitConfig(dram_bytes_per_cycle=1))
    assert slow.cycles >= 1_048_576 + 1024 * 8 + 4 * 1024 * 8 > usual.cycles
    assert matmul(a, b, MatrixUnitConfig(l2_bytes_per_cycle=1)).cycles >= 1_048_576
    assert slow.bytes["dram"] == {"a": 1 << 20, "b": 8192, "c": 1024 * 64, "dma": 0}
    assert slow.counts.dram_bytes == 8192


def test_a_convolution_counts_all_it_moves():
    x, w = np.ones((1, 14, 14, 64), np.int8), np.ones((3, 3, 64, 32), np.int8)
    result = conv2d(x, w, padding=1, config=MatrixUnitConfig(threads=64))
    assert result.bytes["dram"] == {"a": x.size, "b": w.size, "c": 4 * 14 * 14 * 32, "dma": 0}
    both = contract("bmk,bkn->bmn", np.ones((2, 8, 8), np.int8), np.ones((2, 8, 8), np.int8))
    assert both.bytes["l1"]["b"] == sum(run.bytes["l1"]["b"] for run in both.runs) == 2 * 64
    assert 0 < both.math_utilisation < 1
    assert both.energy_pj == sum(run.energy_pj for run in both.runs)


def test_rows_of_device_memory_cost_what_is_published():
    """Lines one behind the other find their row open; lines a row apart, in one bank, never do."""
    config = MatrixUnitConfig(threads=1, dram="ddr4_3200", dram_bytes_per_cycle=64, l2_latency=0, dram_latency=0)
    timing = DRAMS["ddr4_3200"]
    apart = timing.banks * timing.row_bytes
    program = "segment ur1, $X\nmov ur2, 16\nagain: ld r1, ur1:rf0:0, 1\nadd r0, r0, STEP\nloop ur2, again"
    memory = {"X": np.zeros(16 * apart, np.int8)}
    near, far = (MatrixUnit(config).run(program.replace("STEP", str(step)), memory) for step in (64, apart))
    assert (near.moved.rows_open, near.moved.rows_opened) == (15, 1)
    assert (far.moved.rows_open, far.moved.rows_opened) == (0, 16)
    per_row = timing.cycles("ras") + timing.cycles("rp")
    assert far.cycles - near.cycles >= 14 * per_row
    assert near.bytes == far.bytes


def test_elements_share_the_buses_by_need_or_by_slots():
    """One of two elements has next to nothing to do: by need the other is as fast as alone, by slots it is not."""
    load = "segment ur1, $X\ntid r1\nmul r1, r1, 64\nmov ur2, 40\n"
    load += "again: ld r2, ur1:rf1:0, 16\nadd r3, r2, 0\nadd r1, r1, 4096\nloop ur2, again\nhalt"
    cycles = {}
    for how in ("round_robin", "slots"):
        config = MatrixUnitConfig(threads=64, pes=2, dram_bytes_per_cycle=8, arbitration=how)
        for second in ("halt", load):
            machine = Machine(config)
            machine.system["X"] = np.zeros(40 * 4096, np.int8)
            machine.page_table("X", mapped=True)
            machine.start(load, 0)
            machine.start(second, 1)
            runs = machine.run()
            cycles[how, second] = max(run.cycles for run in runs)
            total = Moved.together(run.moved for run in runs)
            check(total, cycles[how, second], config, 2)
    alone = cycles["round_robin", "halt"]
    assert alone == pytest.approx(40 * 512, rel=0.1)
    assert cycles["round_robin", load] < 1.1 * alone  # what one fetched the other finds in L2
    assert cycles["slots", "halt"] > 2.5 * alone


def test_dma_of_the_host_takes_time_from_an_element_that_works_alone():
    config = MatrixUnitConfig(threads=64, pes=2, dram_bytes_per_cycle=1, l2_bytes_per_cycle=1)
    machine = Machine(config)
    machine.system |= {"X": np.zeros(4096, np.int8), "Y": np.zeros(4096, np.int8)}
    machine.page_table("X")
    machine.page_table("Y", mapped=True)
    machine.dma_in("X")
    each = "tid r1\nmul r1, r1, 64\nld r2, ur1:rf1:0, 16\n"
    machine.start(f"segment ur1, $Y\n{each}segment ur1, $X\n{each}", 1)
    runs = machine.run()
    total = Moved.together(run.moved for run in runs)
    assert total.bytes["l2"] == {"a": 8192, "b": 0, "c": 0, "dma": 4096}
    check(total, runs[1].cycles, config, 2)


@pytest.mark.parametrize("pes", [1, 2])
def test_a_program_reads_nothing_before_it_starts(pes):
    config = MatrixUnitConfig(threads=64, pes=pes, dram_bytes_per_cycle=1, l2_bytes_per_cycle=1)
    machine = Machine(config)
    machine.system["X"] = np.zeros(4096, np.int8)
    machine.page_table("X", mapped=True)
    machine.start("mov ur2, 5000\nagain: nop\nloop ur2, again")
    begin = machine.run()[0].cycles
    machine.start("segment ur1, $X\ntid r1\nmul r1, r1, 64\nld r2, ur1:rf1:0, 16", 0)
    run = machine.run()[0]
    assert run.bytes["dram"]["a"] == 4096 <= run.cycles - begin


def test_energy_is_what_was_published():
    assert (sram_pj(8 << 10), sram_pj(32 << 10), round(sram_pj(1 << 20), 9)) == (10, 20, 100)
    found = energy(Moved(macs_f32=1000, dram_a=8000), MatrixUnit().run("halt").traffic, MatrixUnitConfig())
    assert found["math"] == pytest.approx(1000 * (3.7 + 0.9))
    assert found["dram"] == pytest.approx(1000 * 1950)


@pytest.mark.parametrize("wrong", [{"dram": "ddr9"}, {"arbitration": 3}])
def test_names_that_nobody_knows(wrong):
    with pytest.raises(UsageError, match="one of"):
        MatrixUnitConfig(**wrong)


@few
@given(
    machines,
    st.tuples(st.integers(1, 40), st.integers(1, 60)),
    st.sampled_from([(1, 4), (4, 1)]),
    st.sampled_from(["float32", "float16"]),
)
def test_vectors_take_their_time_too(machine, shape, rates, dtype):
    machine = machine | {"registers": 96, "vector_rate": rates[0], "special_cycles": rates[1]}
    config, x = MatrixUnitConfig(**machine), np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)
    result = softmax(x, config)
    check_result(result, config)
    assert result.bytes["dram"]["c"] >= x.nbytes
    assert result.bytes["dram"]["a"] >= x.nbytes
    slow = softmax(x, replace(config, dram_latency=900, alu_latency=7))
    assert (slow.value == result.value).all()
    assert (slow.moved, slow.traffic) == (result.moved, result.traffic)


@few
@given(machines, specs(), st.sampled_from([(1, 4), (4, 1)]))
def test_any_chain_takes_its_time(machine, spec, rates):
    config = MatrixUnitConfig(**machine | {"vector_rate": rates[0], "special_cycles": rates[1]})
    shapes = {"full": (spec.rows, spec.cols), "row": (spec.rows, 1), "one": (1, 1)}
    shapes |= {"col": (1, spec.cols), "rows": (2, spec.cols)}
    rng = np.random.default_rng(0)
    result = run_vector(spec, {one.name: numbers(rng, shapes[one.form], one.dtype) for one in spec.inputs}, config)
    check_result(result, config)
    assert result.bytes["dram"]["c"] >= sum(value.nbytes for value in result.values.values())


MODEL = """func.func @main(%x: tensor<{m}x{k}x{t}>, %w: tensor<{k}x{n}x{t}>, %v: tensor<{n}x{k}x{t}>) -> tensor<{m}x{k}x{t}> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<{m}x{k}x{t}>, tensor<{k}x{n}x{t}>) -> tensor<{m}x{n}x{t}>
  %1 = stablehlo.{op} %0 : tensor<{m}x{n}x{t}>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<{m}x{n}x{t}>, tensor<{n}x{k}x{t}>) -> tensor<{m}x{k}x{t}>
  %3 = stablehlo.add %2, %x : tensor<{m}x{k}x{t}>
  return %3 : tensor<{m}x{k}x{t}>
}}"""  # noqa: E501


@few
@given(
    machines,
    st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 30)),
    st.sampled_from(["f32", "bf16"]),
    st.sampled_from(["tanh", "negate", "exponential"]),
)
def test_compiled_models_take_their_time(machine, sizes, dtype, op):
    (m, n, k), config = sizes, MatrixUnitConfig(**machine)
    compiled = isa.compile(MODEL.format(m=m, n=n, k=k, t=dtype, op=op), config=config)
    name = {"f32": "float32", "bf16": "bfloat16"}[dtype]
    _, report = compiled.run(some((m, k), name), some((k, n), name), some((n, k), name))
    assert not any(layer.fallback or layer.errors for layer in report.layers)
    check(report.moved, report.cycles, config, config.pes)
    assert report.counts.macs == 2 * m * n * k
    assert report.cycles >= sum(layer.cycles for layer in report.layers) > 0
    for layer in report.layers:  # DMA may be ahead of its layer
        check(replace(layer.moved, l2_dma=0, dram_dma=0), layer.cycles, config, config.pes)
    assert 0 < report.math_utilisation <= 1
    assert report.bytes["dram"]["a"] + report.bytes["dram"]["b"] + report.bytes["dram"]["dma"] >= sum(
        size * some(1, name).itemsize for size in (m * k, k * n, n * k)
    )
