"""Laws of modelled time, on any shape, type and chip: bytes and flops need time, more is never quicker, claims end.

Programs: single operations and chains as StableHLO, scheduled modules as dumps, and the dumps in the tree.
"""

from __future__ import annotations

import ast
import gzip
import sys
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, by_night, tries
from tilewright.errors import TilewrightError, UsageError
from tilewright.hlo import estimate, load
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.hlo.timing.chip import chip_of
from tilewright.targets import target
from tilewright.targets.chips import parse_target
from tilewright.targets.scaling import what_if

sys.path.insert(0, str(ROOT / "benchmarks"))
import measured_times

few = settings(max_examples=tries(12))
CHIPS = ("tpu-v4", "tpu-v6e", "tpu-v5e", "tpu-v5p", "tpu-7x")
TYPES = {"bf16": "bf16", "f32": "f32", "i8": "s8", "f8E4M3FN": "f8e4m3fn"}
ROUNDING = 1 + 1e-9
SEEN_BATCHES = measured_times._product(128, 256, 1536, 4096, True)


def sizes(rank, largest):
    """Sizes that are as often small as large, tile edges and their neighbours among them."""
    near_edges = st.integers(1, 9).flatmap(lambda k: st.integers(max(1, 2**k - 1), 2**k + 1))
    return st.lists(st.one_of(near_edges, st.integers(1, largest)), min_size=rank, max_size=rank)


operations = st.sampled_from(measured_times.OPERATIONS).flatmap(
    lambda name: st.tuples(st.just(name), sizes(4 if "gemm" in name else 3, 1500), st.sampled_from(sorted(TYPES)))
)
chips = st.sampled_from(CHIPS)
slower = st.fixed_dictionaries(
    {"hbm_bandwidth": st.floats(0.05, 1), "matrix_peak": st.floats(0.05, 1), "link_bandwidth": st.floats(0.05, 1)}
)


def single(name, shape, kind):
    """One operation as StableHLO; products of one batch have no batch."""
    if "gemm" in name:
        text = measured_times._product(shape[0] if name == "batched_gemm" else 1, *shape[1:], name == "batched_gemm")
    else:
        text = measured_times._module(name, *shape)
    return text.replace("bf16", kind)


def layouts(text, chip):
    """The arrays of a program of one operation, laid out as on the chip: arguments first."""
    context = Context(load(text), target(chip))
    shapes = [op.shape for op in context.program.entry.operations if op.opcode != "return"]
    return [Tiles.of(layout) for shape in shapes if (layout := context.layout(shape)) is not None]


def peak_of(machine, kind):
    """Operations per second of a type, from the chip's own page; what is not stated is as fast as the fastest."""
    units = machine.matrix
    stated = {"i8": units.int8_ops_per_second, "f8E4M3FN": units.fp8_ops_per_second}.get(
        kind, units.bf16_ops_per_second
    )
    return stated or max(units.bf16_ops_per_second, units.int8_ops_per_second, units.fp8_ops_per_second)


def obey(step, machine):
    """Every row and the whole step hold to the chip's published peaks."""
    hbm = machine.memory("hbm").bytes_per_second
    fastest = max(peak_of(machine, kind) for kind in ("bf16", "i8", "f8E4M3FN"))
    near = max(memory.bytes for memory in machine.memories if memory.name in ("vmem", "cmem"))
    device = step.seconds - step.call_seconds
    for row in step.rows:
        passing = row.beside * row.runs if row.beside else row.seconds
        assert passing * ROUNDING >= row.bytes / hbm, row
        assert row.seconds * ROUNDING >= row.flops / fastest, row
        assert row.resident <= near, row
        assert ("vector memory" in row.note) == bool(row.resident), row
        assert row.unpriced or ("not measured" in row.note) != row.calibrated, row
        assert bool(row.error) <= row.calibrated, row
        assert row.begun + row.beside <= row.start + row.seconds / row.runs + 1e-12, row
    assert device * ROUNDING >= step.bytes / hbm
    assert device * ROUNDING >= step.flops / fastest
    lanes: dict[str, float] = {}
    for row in step.rows:
        lanes[row.lane] = lanes.get(row.lane, 0.0) + row.seconds
    assert all(device * ROUNDING >= seconds for seconds in lanes.values())


# Bytes and flops need time.


@few
@example(("batched_gemm", (4, 1, 3, 1), "f32"), "tpu-v6e")  # one row a batch: the result is not turned
@given(operations, chips)
def test_an_operation_takes_its_bytes_and_flops_at_the_peaks(operation, chip):
    name, shape, kind = operation
    text, machine = single(*operation), target(chip)
    step = estimate(load(text), chip)
    obey(step, machine)
    row = next(row for row in step.rows if row.op != "stream")
    arrays = layouts(text, chip)
    if name != "batched_gemm" or "batched_product" in chip_of(machine).mechanisms:
        assert len(step.rows) == 1
        assert row.bytes + row.resident == pytest.approx(sum(tiles.megabytes for tiles in arrays) * 1e6, abs=1)
        assert row.resident in [0, *(round(tiles.megabytes * 1e6) for tiles in arrays[:-1])]
    if "gemm" in name:
        flops = 2 * prod(shape if name == "batched_gemm" else shape[1:])
        assert row.flops == flops
        assert row.seconds * ROUNDING >= flops / peak_of(machine, kind)


@few
@given(operations, chips, st.dictionaries(st.integers(0, 400), st.floats(1e-3, 1e3), max_size=30))
def test_no_constant_however_wrong_gets_below_the_peaks(operation, chip, factors):
    machine = target(chip)
    known = [(name, key, value) for name, of in chip_of(machine).mechanisms.items() for key, value in of.values.items()]
    changes = {}
    for number, factor in factors.items():
        name, key, value = known[number % len(known)]
        if value:
            changes[f"{name}.{key}"] = value * factor
    changed = what_if(machine, changes)
    obey(estimate(load(single(*operation)), changed), changed)
    obey(estimate(load(module(["dot", "copy", "negate"], 700, "bf16")), changed), changed)


def test_a_time_raised_to_a_peak_says_so():
    copy = measured_times._module("exponential", 64, 1024, 4096)
    machine = what_if(target("tpu-v6e"), {"alone.stream_mb_per_us": 50.0, "alone.window_us": 1e-3})
    (row,) = estimate(load(copy), machine).rows
    assert row.seconds == row.bytes / target("tpu-v6e").memory("hbm").bytes_per_second
    assert (row.bound, row.calibrated) == ("hbm", False)
    assert row.note == "raised to its bytes at HBM's published peak; not measured there"
    product = what_if(target("tpu-v6e"), {"kernel.ghz": 100.0, "alone.near_mb_per_us": 1e4})
    (row,) = estimate(load(measured_times._product(1, 8192, 4096, 8192, False)), product).rows
    assert row.seconds == pytest.approx(row.flops / target("tpu-v6e").matrix.bf16_ops_per_second)
    assert row.bound == "matrix"
    assert "flops at the matrix unit's published peak" in row.note


def test_batches_too_large_for_vector_memory_stream_from_hbm():
    """Measured on a v6e: 1,355 us; the bytes alone take 1,207."""
    (row,) = estimate(load(SEEN_BATCHES), "tpu-v6e").rows
    assert row.bytes == 2 * 128 * (256 * 4096 + 4096 * 1536 + 256 * 1536)
    assert row.seconds * 1e6 == pytest.approx(1355.3, rel=0.05)
    assert (row.bound, row.resident, row.calibrated, row.error) == ("hbm", 0, False, 0)
    assert row.note == "not measured there"


@pytest.mark.parametrize("chip", CHIPS)
def test_arguments_that_do_not_fit_near_the_core_are_read_from_hbm(chip):
    machine = target(chip)
    near = max(memory.bytes for memory in machine.memories if memory.name in ("vmem", "cmem"))
    for rows, fits in ((near // 4096 // 4, True), (near // 4096 * 2, False)):
        for text in (
            measured_times._module("reduce", 16, rows // 2, 256),
            measured_times._product(1, rows, 16, 2048, False),
        ):
            (row,) = estimate(load(text), chip).rows
            assert bool(row.resident) == fits
            assert row.seconds >= row.bytes / machine.memory("hbm").bytes_per_second


# Chains of operations, and scheduled modules.

STEPS = {
    "dot": "stablehlo.dot_general {x}, {w}, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}",
    "tanh": "stablehlo.tanh {x} : {t}",
    "add": "stablehlo.add {x}, {w} : {t}",
    "transpose": "stablehlo.transpose {x}, dims = [1, 0] : ({t}) -> {t}",
    "residual": "stablehlo.add {x}, %a : {t}",
}
LINES = {
    "negate": ("{y} = {far} negate({x})",),
    "near": ("{y} = {close} negate({x})",),
    "dot": ("{y} = {far} dot({x}, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",),
    "copy": ("{y}s = ({close}, {far}, u32[]) copy-start(%w)", "{y} = {close} copy-done({y}s)"),
    "early": (
        "{y}s = ({close}, {far}, u32[]) copy-start(%w)",
        "{y}m = {far} tanh({x})",
        "{y} = {close} copy-done({y}s)",
    ),
    "kept": (
        "{y}s = ({close}, {far}, u32[]) copy-start(%w), cross_program_prefetch_index=0",
        "{y} = {close} copy-done({y}s)",
    ),
    "reduce": (
        "{y}s = {far} all-reduce-start({x}), replica_groups={{{{0,1,2,3}}}}",
        "{y}t = {far} all-reduce-start(%w), replica_groups={{{{0,1,2,3}}}}",
        "{y}u = {far} all-reduce-done({y}s)",
        "{y} = {far} all-reduce-done({y}t)",
    ),
    "sparse": (
        '{y}s = (({far}), {far}, s32[]) async-start({x}), async_execution_thread="sparsecore", calls=%g',
        "{y}m = {far} tanh(%w)",
        "{y} = {far} async-done({y}s)",
    ),
}


def chain(names, size, kind):
    """A function of several operations over square arrays, as StableHLO."""
    tensor, lines, weights = f"tensor<{size}x{size}x{kind}>", [], ["%a: tensor"]
    for k, name in enumerate(names):
        x, weight = f"%{k - 1}" if k else "%a", f"%w{k}"
        if "{w}" in STEPS[name]:
            weights.append(f"{weight}: tensor")
        lines.append(f"  %{k} = {STEPS[name].format(x=x, w=weight, t=tensor)}")
    taken = ", ".join(weights).replace("tensor", tensor)
    body = "\n".join(lines)
    return f"func.func @main({taken}) -> {tensor} {{\n{body}\n  return %{len(names) - 1} : {tensor}\n}}"


def module(names, size, kind):
    """A scheduled module of several operations over square arrays; the result of one is an operand of the next."""
    packed = {"bf16": "(2,1)", "s8": "(4,1)"}.get(kind, "")
    far, close = (f"{kind}[{size},{size}]{{1,0:T(8,128){packed}{space}}}" for space in ("", "S(1)"))
    lines = [f"%w = {far} parameter(0)"]
    for k, name in enumerate(names):
        x = f"%x{k - 1}" if k else "%w"
        lines += [line.format(x=x, y=f"%x{k}", far=far, close=close) for line in LINES[name]]
    lines.append(f"ROOT %r = {far} negate(%x{len(names) - 1})")
    body = "\n".join(f"  {line}" for line in lines)
    offloaded = f"%g (p: {far}) -> {far} {{\n  %p = {far} parameter(0)\n  ROOT %q = {far} copy(%p)\n}}\n\n"
    plain = f"{kind}[{size},{size}]"
    return f"HloModule m, is_scheduled=true\n\n{offloaded}ENTRY %main (w: {plain}) -> {plain} {{\n{body}\n}}\n"


side = st.sampled_from([8, 130, 512, 1000, 2048, 4096, 9000])
chains = st.builds(
    chain, st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6), side, st.sampled_from(["bf16", "f32"])
)
modules = st.builds(
    module,
    st.lists(st.sampled_from(sorted(LINES)), min_size=1, max_size=6),
    side,
    st.sampled_from(["bf16", "f32", "s8"]),
)


@few
@given(st.one_of(chains, modules), chips)
def test_steps_of_many_operations_obey(text, chip):
    obey(estimate(load(text), chip), target(chip))


@cache
def dumps():
    """The dumps in the tree that hold one program; long ones where LAWS is set."""
    found = {}
    passes = ROOT / "benchmarks" / "data" / "tpu_measured" / "gpt2"
    for path in [*sorted((ROOT / "tests" / "data").glob("hlo_*/*")), *sorted(passes.iterdir())]:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        if len(text) > 100_000 and not by_night() and path.name != "tpu-v6e_gpt2_s128_b1.hlo.gz":
            continue
        try:
            found[path.name] = load(text)
        except TilewrightError:
            continue
    return found


def test_the_dumps_in_the_tree_obey():
    assert len(dumps()) > 10
    for number, program in enumerate(dumps().values()):
        chip = CHIPS[number % len(CHIPS)]
        obey(estimate(program, chip), target(chip))


# More is never quicker.


@few
@given(
    operations.filter(lambda drawn: drawn[0] != "reshape"), chips, st.integers(0, 3), st.sampled_from([1.05, 1.5, 2])
)
def test_more_of_the_same_is_never_quicker(operation, chip, dim, factor):
    """As long as arrays keep their order of dims and the compiler its way.

    Its way changes, as measured, where a dim is 1, an array is one tile, or a seam of operands falls on a tile's edge;
    reshapes of few rows are dearer than of many.
    """
    name, shape, kind = operation
    shape = [max(2, size) for size in shape]
    dims = {"gemm": (1, 2, 3), "batched_gemm": (0, 1, 2, 3), "concatenate": (0, 1)}.get(name, (0, 1, 2))
    more = list(shape)
    more[dims[dim % len(dims)]] = max(shape[dims[dim % len(dims)]] + 1, int(shape[dims[dim % len(dims)]] * factor))
    before, after = (layouts(single(name, of, kind), chip) for of in (shape, more))
    assume([(t.minor_to_major, t.tile) for t in before] == [(t.minor_to_major, t.tile) for t in after])
    assume(min(tiles.count for tiles in before) > 1)
    small, large = (estimate(load(single(name, of, kind)), chip).rows[0] for of in (shape, more))
    assert large.bytes + large.resident >= small.bytes + small.resident
    assert large.seconds * ROUNDING >= small.seconds


@few
@given(st.one_of(operations.map(lambda drawn: single(*drawn)), chains, modules), chips, slower)
def test_a_slower_chip_is_never_quicker(text, chip, shares):
    machine = target(chip)
    rates = {
        "hbm_bandwidth": machine.memory("hbm").bytes_per_second,
        "matrix_peak": machine.matrix.bf16_ops_per_second,
        "link_bandwidth": machine.links.bytes_per_second,
    }
    program = load(text)
    fast, slow = (
        estimate(program, what_if(machine, {name: rate * of.get(name, 1) for name, rate in rates.items()}))
        for of in ({}, shares)
    )
    assert slow.seconds * ROUNDING >= fast.seconds
    kernels = [[row for row in step.rows if row.lane in ("matrix", "vector")] for step in (fast, slow)]
    for before, after in zip(*kernels, strict=True):
        assert after.seconds * ROUNDING >= before.seconds, (before, after)


@few
@given(chains, chips)
def test_a_chain_is_never_quicker_for_larger_arrays(text, chip):
    """Twice the side: four times the bytes."""
    size = text.partition("tensor<")[2].partition("x")[0]
    larger = text.replace(f"<{size}x{size}x", f"<{2 * int(size)}x{2 * int(size)}x")
    assert estimate(load(larger), chip).seconds * ROUNDING >= estimate(load(text), chip).seconds


UNARY = ("negate", "exponential", "tanh", "sqrt", "abs", "logistic")


@few
@given(
    st.tuples(st.sampled_from(UNARY), st.sampled_from(UNARY)),
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    st.sampled_from(["bf16", "f32"]),
    st.sampled_from(["", "S(1)"]),
    chips,
)
def test_a_fused_pair_is_never_slower_than_both_apart(pair, sizes, kind, space, chip):
    """The array between them in HBM or in vector memory."""
    tiles = "T(8,128)(2,1)" if kind == "bf16" else "T(8,128)"
    far, between = (f"{kind}[{sizes[0]},{sizes[1]}]{{1,0:{tiles}{where}}}" for where in ("", space))
    head = f"HloModule m, is_scheduled=true\n%f (p: {far}) -> {far} {{\n  %p = {far} parameter(0)\n"
    head += f"  %i = {far} {pair[0]}(%p)\n  ROOT %o = {far} {pair[1]}(%i)\n}}\n"
    entry = f"ENTRY %main (a: {far}) -> {far} {{\n  %a = {far} parameter(0)\n"
    fused = f"{head}{entry}  ROOT %r = {far} fusion(%a), kind=kLoop, calls=%f\n}}\n"
    apart = f"{head}{entry}  %b = {between} {pair[0]}(%a)\n  ROOT %r = {far} {pair[1]}(%b)\n}}\n"
    one, two = (estimate(load(text), chip).device_seconds for text in (fused, apart))
    assert one <= two * ROUNDING


# A claim holds where it was seen.


@few
@given(operations, st.sampled_from(["tpu-v4", "tpu-v6e"]))
def test_an_error_is_claimed_only_for_what_was_seen(operation, chip):
    name, shape, kind = operation
    text = single(*operation)
    row = next(row for row in estimate(load(text), chip).rows if row.op != "stream")
    section = {"gemm": "product", "batched_gemm": "batched_product", "exponential": "stream", "transpose": "stream"}
    constants = target(chip).time.get(section.get(name, name))
    if constants is None:
        return  # nobody measured batches on v4: their kernels are those of whole programs
    least, most = constants.seen.ranges["megabytes"]
    inside = least <= sum(tiles.megabytes for tiles in layouts(text, chip)) <= most
    if "gemm" in name:
        batched = name == "batched_gemm"
        (low, high), (shallow, deep) = constants.seen.ranges["flops"], constants.seen.ranges["depth"]
        inside = inside and low <= 2 * prod(shape if batched else shape[1:]) <= high and shallow <= shape[3] <= deep
    assert row.calibrated == (inside and kind == "bf16" and row.bound in constants.seen.bounds)
    assert row.error == (constants.error if row.calibrated else 0)


def test_where_an_error_was_seen_is_data_that_is_checked():
    text = (ROOT / "src" / "tilewright" / "targets" / "data" / "tpu-v6e.toml").read_text()
    for right, wrong in (
        ('types = ["bf16"]', 'types = "bf16"'),
        ("depth = [64, 128]", "depth = [128, 64]"),
        ("depth = [64, 128]", "depth = [64]"),
    ):
        assert right in text
        with pytest.raises(UsageError, match=r"time\.\w+\.seen"):
            parse_target(text.replace(right, wrong, 1))


# No walker can forget it.


def test_rows_are_made_in_one_file():
    folder = ROOT / "src" / "tilewright" / "hlo" / "timing"
    makers = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                changes = called == "replace" and {"seconds", "beside", "error", "calibrated"} & {
                    k.arg for k in node.keywords
                }
                if called == "TimeRow" or changes:
                    makers.add(path.name)
    assert makers == {"row.py"}


def test_targets_that_differ_in_their_constants_alone_have_times_of_their_own():
    """A step's time is kept for what asks for it next; targets alike in all but their times are told apart."""
    program, chip = load(LAYERS), target("tpu-v6e")
    kernel = chip.time["kernel"]
    slower = replace(chip, time={**chip.time, "kernel": replace(kernel, values={**kernel.values, "launch_us": 50.0})})
    assert (slower == chip, hash(slower) == hash(chip)) == (False, True)
    first, second = estimate(program, chip), estimate(program, slower)
    assert second.device_seconds > first.device_seconds + 50e-6
    assert estimate(program, chip) == first


LAYERS = (
    "HloModule m, is_scheduled=true\n"
    + "".join(
        f"""
body.{k} {{
  p.{k} = f32[1024,512]{{1,0:T(8,128)}} parameter(0)
  ROOT e.{k} = f32[1024,{size}]{{1,0:T(8,128)}} {name}(p.{k}), metadata={{op_name="layer{k}"}}
}}
"""
        for k, (name, size) in enumerate([("exponential", 512), ("exponential", 512), ("negate", 512)])
    )
    + """
ENTRY main {
  x = f32[1024,512]{1,0:T(8,128)} parameter(0)
  a = f32[1024,512]{1,0:T(8,128)} fusion(x), kind=kLoop, calls=body.0
  b = f32[1024,512]{1,0:T(8,128)} fusion(a), kind=kLoop, calls=body.1
  ROOT c = f32[1024,512]{1,0:T(8,128)} fusion(b), kind=kLoop, calls=body.2
}
"""
)


def test_bodies_that_say_the_same_are_alike():
    alike = load(LAYERS).alike
    assert [alike[f"body.{k}"].name for k in range(3)] == ["body.0", "body.0", "body.2"]
    first, second, _ = estimate(load(LAYERS), "tpu-v6e").rows
    assert first.seconds == second.seconds > 0


PRECISE = """func.func @main(
    %a: tensor<4096x4096x{type}>, %b: tensor<4096x4096x{type}>) -> tensor<4096x4096x{result}> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{precision}
    : (tensor<4096x4096x{type}>, tensor<4096x4096x{type}>) -> tensor<4096x4096x{result}>
  return %0 : tensor<4096x4096x{result}>
}}"""
SCHEDULED = """HloModule m, is_scheduled=true

ENTRY e {{
  a = {type}[4096,4096]{{1,0:T(8,128)}} parameter(0)
  b = {type}[4096,4096]{{1,0:T(8,128)}} parameter(1)
  ROOT c = {result}[4096,4096]{{1,0:T(8,128)}} convolution(a, b), dim_labels=bf_io->bf{precision}
}}"""


@pytest.mark.parametrize(
    ("chip", "kind", "precision", "times"),
    [
        ("tpu-v6e", "f32", "HIGHEST", 6),
        ("tpu-v5p", "f32", "HIGH", 3),
        ("tpu-v6e", "bf16", "HIGHEST", 1),  # bfloat16 has no parts
        ("tpu-v6e", "i8", "", 0.5),
        ("tpu-v5e", "i8", "", 0.5),
        ("tpu-v4", "i8", "", 1),  # no peak of it is stated
        ("tpu-7x", "f8E5M2", "", 0.5),
        ("tpu-v6e", "f8E5M2", "", 1),
        ("tpu-v6e", "complex<f32>", "", 3),  # products of reals
        ("tpu-v5p", "complex<f32>", "HIGHEST", 18),
    ],
)
def test_a_product_passes_as_often_as_its_type_and_precision_say(chip, kind, precision, times):
    result = {"i8": "i32"}.get(kind, kind)
    asked = f", precision = [{precision}, {precision}]" if precision else ""
    text = PRECISE.format(type=kind, result=result, precision=asked)
    hlo = {"i8": "s8", "i32": "s32", "f8E5M2": "f8e5m2", "complex<f32>": "c64"}
    asked = f", operand_precision={{{precision.lower()},{precision.lower()}}}" if precision else ""
    dump = SCHEDULED.format(type=hlo.get(kind, kind), result=hlo.get(result, result), precision=asked)
    plain = (
        PRECISE.format(type="bf16", result="bf16", precision=""),
        SCHEDULED.format(type="bf16", result="bf16", precision=""),
    )
    for own, other in zip((text, dump), plain):
        step, base = estimate(load(own), chip), estimate(load(other), chip)
        assert step.rows[0].bound == "matrix" or times < 1
        assert step.device_seconds / base.device_seconds == pytest.approx(
            times, rel=0.35 if times < 1 else 0.2
        )  # the rest streams beside
