"""The measured rules, calculated a second time one case at a time, and the boundaries that were measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.embed import FTRL, Adam, Clipped, Limits, gather_seconds, memory
from tilewright.embed.model.formulas import (
    backward_stack_bytes,
    forward_stack_bytes,
    gather_operand_floats,
    padded_table_bytes,
    pointers_per_device,
    round8,
    slots_per_device,
)
from tilewright.errors import UnsupportedError, UsageError

CHIPS = {"tpu-v5p": (524128, 1024), "tpu-v6e": (262112, 1024), "tpu-7x": (524032, 15872)}


def up8(n):
    return math.ceil(n / 8) * 8


def slow(chip, sparsecores, width, limits, op):
    """(compiles, replicas, U', stack bytes) straight from the list of rules."""
    size, k = CHIPS[chip]
    d8, m8 = up8(width), up8(limits.max_ids_per_partition)
    u8 = min(up8(limits.max_unique_ids_per_partition), m8)
    first = 1 if sparsecores >= 16 else 8

    def fits(f):
        if op != "forward" and width % 8:
            need = 4 * (d8 + 1) * u8 + 124 * d8 + (k - 1024)
        else:
            need = (32 if op == "forward" else 36) * u8 + k
        return need + 12 * up8(math.ceil(m8 / f)) + 97 <= size

    def rows(f):
        return min(u8, up8(math.ceil(m8 / f)))

    slots = up8(limits.max_ids_per_partition) * sparsecores
    if op == "forward" and ((sparsecores < 16 and not fits(8)) or (width % 8 and 4 * (d8 + 1) * u8 > size)):
        good = 36 * rows(first) + 52 <= size
        stack = (2 * d8 + 8) * rows(first) * sparsecores * first * 4 + 4 * slots + 48_000
        return (good, sparsecores * first, rows(first), stack) if good else (False, None, None, None)
    for f in dict.fromkeys((first, 8, 16, 32, 64)):
        if fits(f):
            replicas = sparsecores * f
            per_row = {"forward": 2 * d8 + 1, "sgd": 3 * d8 + 5, "adagrad": 4 * d8 + 4, "adam": 6 * d8 + 4}[op]
            extra = 4 * slots + 42_000 if op == "forward" else 48_000
            return True, replicas, rows(f), per_row * rows(f) * replicas * 4 + extra
    return False, None, None, None


@settings(max_examples=tries(40))
@given(
    chip=st.sampled_from(sorted(CHIPS)),
    sparsecores=st.sampled_from([1, 2, 4, 8, 15, 16, 32, 64, 256]),
    width=st.integers(2, 200) | st.sampled_from([8, 16, 32, 64, 104, 128]),
    ids=st.integers(1, 20_000) | st.integers(1, 400_000),
    share=st.floats(0.01, 1.0),
    op=st.sampled_from(["forward", "sgd", "adagrad", "adam"]),
)
def test_memory_equals_the_slow_calculation(chip, sparsecores, width, ids, share, op):
    limits = Limits(ids, max(1, int(ids * share)))
    found = memory(chip, sparsecores, width, limits, op)
    compiles, replicas, rows, stack = slow(chip, sparsecores, width, limits, op)
    assert found.compiles == compiles
    if compiles:
        assert (found.logical_replica_count, found.unique_rows, found.stack_bytes) == (replicas, rows, stack)
        factor = 2 * width + 1 if op == "forward" else 3 * width
        assert found.guide_bytes == factor * rows * replicas * 4
    assert found.basis == "measured"


FORWARD, BACKWARD = ("forward",), ("sgd", "adagrad", "adam")


@pytest.mark.parametrize(
    ("chip", "sparsecores", "width", "ops", "n", "compiles"),
    [
        ("tpu-v5p", 16, 16, FORWARD, 16128, True),
        ("tpu-v5p", 16, 16, FORWARD, 16376, False),
        ("tpu-v5p", 16, 16, BACKWARD, 14000, True),
        ("tpu-v5p", 16, 16, BACKWARD, 15360, False),
        ("tpu-v6e", 32, 16, FORWARD, 7168, True),
        ("tpu-v6e", 32, 16, FORWARD, 8192, False),
        ("tpu-v5p", 16, 100, BACKWARD, 4096, False),
        ("tpu-v5p", 16, 104, BACKWARD, 8192, True),
    ],
)
def test_the_measured_boundaries(chip, sparsecores, width, ops, n, compiles):
    for op in ops:
        found = memory(chip, sparsecores, width, Limits(n, n), op)
        assert found.compiles is compiles
        assert found.reason.startswith("fits" if compiles else "does not fit")
        assert found.basis == "measured"


@pytest.mark.parametrize("op", ["forward", "sgd", "adagrad", "adam"])
@pytest.mark.parametrize(("chip", "sparsecores", "width"), [("tpu-v5p", 16, 16), ("tpu-v6e", 8, 20), ("tpu-7x", 4, 64)])
def test_the_largest_limits_compile_and_larger_ones_do_not(chip, sparsecores, width, op):
    best = memory(chip, sparsecores, width, Limits(900, 900), op).largest_limits
    assert best is not None
    n = best.max_unique_ids_per_partition
    assert best == Limits(n, n)
    assert memory(chip, sparsecores, width, best, op).compiles
    assert not any(memory(chip, sparsecores, width, Limits(m, m), op).compiles for m in (n + 1, n + 8, n + 800, 2 * n))


def test_the_largest_limits_keep_the_proportion():
    best = memory("tpu-v5p", 16, 16, Limits(10_000, 1_000), "sgd").largest_limits
    assert best is not None
    assert best.max_ids_per_partition == best.max_unique_ids_per_partition * 10
    assert slow("tpu-v5p", 16, 16, best, "sgd")[0]
    assert memory("tpu-v5p", 16, 16, Limits(10**9, 1), "sgd").largest_limits is None


def test_errors_speak_the_compilers_words():
    forward = memory("tpu-v5p", 16, 16, Limits(16376, 16376)).reason
    assert f"Can't fit a single row. TileSpmem bytes: 524128; Row bytes: {4 * 17 * 16376}" in forward
    backward = memory("tpu-v5p", 16, 16, Limits(15360, 15360), "sgd").reason
    assert f"fixed_size_allocation_bytes = {36 * 15360 + 1024}" in backward
    assert f"row_dependent_size_allocation_bytes = {12 * 15360}" in backward


def test_width_one_aborts_the_compiler():
    found = memory("tpu-v5p", 16, 1, Limits(8, 8))
    assert not found.compiles
    assert "width of 1" in found.reason
    assert found.largest_limits is None


def test_a_chip_without_measurements_is_modelled():
    found = memory("tpu-v4", 16, 16, Limits(100, 100))
    assert (found.basis, found.compiles, found.tile_limit) == ("modelled", True, 262112)
    assert "tpu-v6e" in found.note


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tpu-v5e", 16, 16, Limits(8, 8)), "no SparseCores"),
        (("tpu-v5p", 0, 16, Limits(8, 8)), "sparsecores = 0"),
        (("tpu-v5p", 16, 0, Limits(8, 8)), "width = 0"),
        (("tpu-v5p", 16, 16, Limits(8, 8), "adamax"), "unknown operation 'adamax'"),
    ],
)
def test_wrong_questions(arguments, text):
    with pytest.raises(UsageError, match=text):
        memory(*arguments)


def test_formulas_of_the_guide(vectors):
    cases = vectors("embed_memory_formulas")
    for case in cases["stack_cases"]:
        sizes = case["feature_width"], case["max_unique_nz_per_row"], case["logical_replica_count"]
        assert forward_stack_bytes(*sizes) == case["forward_bytes"]
        assert backward_stack_bytes(*sizes) == case["backward_bytes"]
    for case in cases["padding_cases"]:
        vocab, width, shards = case["vocab"], case["dim"], case["num_sc"]
        assert padded_table_bytes(vocab, width, shards) == case["bytes_allocated"]
        assert round8(width) == case["padded_dim"]
        assert vocab * width * 4 == case["bytes_used"]
        assert 1 - width / round8(width) == pytest.approx(case["width_padding_fraction"])
    for case in cases["coo_buffer_cases"]:
        per_device, minibatching = case["num_sc_per_device"], case["minibatching"]
        shards = case["global_device_count"] * per_device
        slots = slots_per_device(case["max_ids_per_partition"], shards, per_device, minibatching)
        assert slots == case["slots_per_device"]
        assert pointers_per_device(shards, per_device, minibatching) == case["row_pointers_per_device"]


def test_a_gather_operand_is_split_over_the_tiles():
    assert gather_operand_floats(samples=1024, width=16, tiles=16) == 1024
    assert gather_operand_floats(samples=3, width=5, tiles=16) == 1


@pytest.mark.parametrize(
    ("op", "like"),
    [
        ("rowwise_adagrad", "adagrad"),
        ("adagrad_momentum", "adam"),
        ("ftrl", "adam"),
        ("laprop", "adam"),
        ("f2a", "adam"),
        (Clipped(FTRL(), high=1), "adam"),
    ],
)
def test_updates_that_were_not_measured_take_the_stack_of_one_with_as_many_slots(op, like):
    modelled, measured = (memory("tpu-v5p", 16, 16, Limits(1024, 512), which) for which in (op, like))
    assert modelled.stack_bytes == measured.stack_bytes
    assert (modelled.basis, measured.basis) == ("modelled", "measured")
    assert modelled.op in modelled.note
    assert f"{like}'s, which keeps as many slots," in modelled.note


def test_an_optimizer_may_stand_for_its_name():
    assert memory("tpu-v5p", 16, 16, Limits(64, 64), Adam(0.1)) == memory("tpu-v5p", 16, 16, Limits(64, 64), "adam")
    own = memory("tpu-v5p", 16, 16, Limits(64, 64), ThreeSlots())
    assert own.op == "ThreeSlots"
    adam = memory("tpu-v5p", 16, 16, Limits(64, 64), "adam")
    assert own.stack_bytes - adam.stack_bytes == 2 * 16 * own.unique_rows * own.logical_replica_count * 4


@dataclass(frozen=True)
class ThreeSlots:
    learning_rate: float = 0.1
    slots: Any = field(default_factory=lambda: dict.fromkeys("abc", 0.0), hash=False)

    def apply(self, rows: Any, slots: Any, gradient: Any, rate: Any) -> Any:
        return rows, slots


V6E_GATHERS = {2048: 42.06, 8192: 103.31, 16384: 184.84, 32768: 347.44}
"""Public device times of both SparseCores of a v6e: rows of 1,024 f32 and their microseconds."""


@pytest.mark.parametrize("rows", V6E_GATHERS)
def test_gathers_take_what_was_measured_in_public(rows):
    seconds = gather_seconds(rows=rows, width=1024, dtype="f32", target="tpu-v6e")
    assert 1e6 * seconds == pytest.approx(V6E_GATHERS[rows], rel=0.02)


def test_gathers_of_more_or_wider_rows_take_longer_and_bad_ones_are_refused():
    def seconds(rows=4096, width=1024, dtype="bf16", target="tpu-7x"):
        return gather_seconds(rows=rows, width=width, dtype=dtype, target=target)

    assert seconds(rows=0) < seconds() < seconds(rows=8192)
    assert seconds() <= seconds(width=8192) < seconds(width=8192, target="tpu-v6e")
    with pytest.raises(UnsupportedError, match="no SparseCores"):
        seconds(target="tpu-v5e")
    with pytest.raises(UsageError, match="width from 1"):
        seconds(width=0)
    with pytest.raises(UsageError, match="no element type"):
        seconds(dtype="f33")
