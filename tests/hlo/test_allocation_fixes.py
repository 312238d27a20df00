"""Every fix is recomputed from the shapes it names, by arithmetic of the tests' own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hlo.allocator_messages import EXPECTED, TEXTS, bits_of, dims_of, padded_bytes
from tilewright.hlo import explain_allocation
from tilewright.hlo.allocation.shape import KINDS
from tilewright.layout import parse, predict

ALLOCATOR = sorted(name for name, expected in EXPECTED.items() if expected["messages"])


def check(fix):
    """The bytes, and that the data are the same."""
    assert fix.bytes_before == fix.arrays_before * padded_bytes(fix.before)[0]
    assert fix.bytes_after == (fix.arrays_after * padded_bytes(fix.after)[0] if fix.arrays_after else 0)
    assert fix.saved == fix.bytes_before - fix.bytes_after > 0
    before = dims_of(fix.before)
    if fix.kind in ("copy", "recompute"):
        assert (fix.after, fix.arrays_after) == ("", 0)
        return
    after = dims_of(fix.after)
    match fix.kind:
        case "order":
            assert sorted(after) == sorted(before)
        case "merge":
            assert len(after) < len(before)
            assert math.prod(after) == math.prod(before)
        case "wider":
            assert after[-1] == 128
            assert math.prod(after) == math.prod(before)
        case "dtype":
            assert after == before
            stored = parse(fix.before).element_bits
            assert bits_of(fix.after.partition("[")[0]) < stored
        case "checkpoint":
            assert fix.after == fix.before
            assert fix.arrays_after < fix.arrays_before
    if fix.kind in ("order", "merge", "wider"):
        assert fix.after.partition("[")[0] == fix.before.partition("[")[0]


@pytest.mark.parametrize("name", ALLOCATOR)
def test_fixes_are_recomputed_and_ranked(name):
    for report in explain_allocation(TEXTS[name]):
        for fix in report.fixes:
            check(fix)
        saved = [fix.saved for fix in report.fixes]
        assert saved == sorted(saved, reverse=True)
        best = {}
        for fix in report.fixes:
            best[fix.allocations] = max(fix.saved, best.get(fix.allocations, 0))
        assert report.saved_together == sum(best.values())
        numbered = {n for fix in report.fixes for n in fix.allocations}
        matrices = {n: shape for n, shape in report.shapes.items() if len(dims_of(shape.shape)) > 1}
        padded = {n for n, shape in matrices.items() if shape.padding > shape.bytes // 2}
        assert padded <= numbered, "whatever is mostly padding has a fix"


def test_all_kinds_occur():
    found = {fix.kind for name in ALLOCATOR for report in explain_allocation(TEXTS[name]) for fix in report.fixes}
    assert found == set(KINDS)


def message(shape, size="", label="", operator=""):
    """A message of one allocation."""
    return (
        "Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm.\n  Largest program allocations in hbm:\n"
        f"  1. Size: {size or '1.00G'}\n     Operator: {operator}\n     Shape: {shape}\n     XLA label: {label}\n"
        "     Allocation type: HLO temp\n"
    )


SHAPES = st.tuples(
    st.sampled_from(["f32", "bf16", "s8", "s32", "f64", "pred", "c64", "f8e4m3fn"]),
    st.lists(st.integers(1, 300), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)


@given(SHAPES)
def test_any_padded_array_is_recomputed(drawn):
    dtype, dims, random = drawn
    order = random.sample(range(len(dims)), len(dims))
    packing = max(1, 32 // bits_of(dtype))
    tile = (f"({random.choice([1, 2, 4, 8])},128)" if len(dims) > 1 else "(1024)(128)" if packing > 1 else "(1024)") + (
        f"({packing},1)" if packing > 1 else ""
    )
    text = f"{dtype}[{','.join(map(str, dims))}]{{{','.join(map(str, order))}:T{tile}}}"
    report = explain_allocation(message(text))[0]
    assert (report.shapes[1].bytes, report.shapes[1].data_bytes) == padded_bytes(text)
    for fix in report.fixes:
        check(fix)
        if fix.kind == "order":
            assert fix.bytes_after == predict("tpu", dims, dtype).size_bytes, "the compiler's own best order"


def test_a_copy_names_the_order_it_comes_in():
    label = "%copy.4 = s32[4096,8,4]{2,1,0:T(8,128)} copy(s32[4096,8,4]{0,2,1:T(4,128)} %x.3), metadata={}"
    fix = explain_allocation(message("s32[4096,8,4]{2,1,0:T(8,128)}", "16.00M", label))[0].fixes[0]
    assert (fix.kind, fix.saved) == ("copy", 16 * 2**20)
    assert "it only turns {0,2,1:T(4,128)} into {2,1,0:T(8,128)}" in fix.text


def test_what_autodiff_keeps_is_checkpointed():
    report = explain_allocation(TEXTS["08_scores_without_padding.txt"])[0]
    assert [fix.kind for fix in report.fixes] == ["checkpoint", "dtype"]
    fix = report.fixes[0]
    assert (fix.allocations, fix.arrays_before, fix.arrays_after) == ((1, 2, 3, 4, 5), 5, 1)
    assert "the compiler recomputes it already" in fix.text


def test_scoped_room_is_no_array_of_the_program():
    report = explain_allocation(TEXTS["36_vmem_paged_attention.txt"])[0]
    assert {fix.kind for fix in report.fixes} <= {"order", "merge", "wider", "dtype"}
    orders = [fix.after for fix in report.fixes if fix.kind == "order"]
    registers = ("T(8,128)", "T(16,128)(2,1)", "T(32,128)(4,1)")
    assert orders
    assert all(after.endswith(tuple(f":{tile}}}" for tile in registers)) for after in orders)


def advice_of(name):
    return " | ".join(explain_allocation(TEXTS[name])[0].advice)


def test_advice_has_the_figures():
    assert "31.00M hold values" not in advice_of("36_vmem_paged_attention.txt")
    assert "31.0 MiB hold values that found no register" in advice_of("36_vmem_paged_attention.txt")
    kernel = advice_of("37_e1001_kernel.txt")
    assert f"vmem_limit_bytes={42 * 2**20}" in kernel
    assert "--xla_tpu_scoped_vmem_limit_kib=43008" in kernel
    assert "tpu-v6e" in kernel
    assert "tpu-v4" not in kernel
    assert "no kernel of yours" in advice_of("38_stack_reduce_window.txt")
    assert "at least 28 parts" in advice_of("39_window_too_large.txt")
    assert "donate arguments" in advice_of("10_e1000_logits.txt")
    assert "arguments (weights, optimizer state, batch) take 79.64G" in advice_of("09_engine_core_weights.txt")
    assert "1.10G are free but in pieces (the largest usable 188.00M)" in advice_of("33_fragmented.txt")
    assert "free 7.85 GiB first" in advice_of("30_load_by_name.txt")
    assert "SparseCores take 88.25G" in advice_of("26_both_cores.txt")
    assert "allocation 1 alone takes 126.6 % of the memory" in advice_of("40_single_hbm.txt")
