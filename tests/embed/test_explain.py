"""Errors of the compiler, read back: what was asked for, and changes that the rules say compile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.embed import Limits, explain_error, memory
from tilewright.errors import UsageError

E3001 = (
    "E3001: CompileTimeSparseCoreInvalidReplicaCount: No viable logical replica count for the embedding table with "
    "metadata: max_nz_per_row = 15360;\n fixed_size_allocation_bytes = {}, row_dependent_size_allocation_bytes = {}, "
    "total_spmem_size_bytes = {}"
)
ROW = "Can't fit a single row. TileSpmem bytes: {}; Available bytes: 1000; Row bytes: {}"
CHIPS = {"tpu-v5p": (524128, 1024), "tpu-v6e": (262112, 1024), "tpu-7x": (524032, 15872)}


@pytest.mark.parametrize(("chip", "total", "constant"), [(n, *figures) for n, figures in CHIPS.items()])
def test_an_updates_error_tells_both_limits(chip, total, constant):
    unique = total // 36 // 8 * 8 + 800
    found = explain_error(E3001.format(36 * unique + constant, 12 * (unique + 80), total))[0]
    assert (found.target, found.program, found.basis, found.width) == (chip, "backward", "measured", 0)
    assert found.limits == Limits(unique + 80, unique)
    assert found.largest_limits == memory(chip, 16, 16, found.limits, "adagrad").largest_limits
    assert any(f"lower max_unique_ids_per_partition alone from {unique:,}" in line for line in found.advice)


@settings(max_examples=tries(30))
@given(
    chip=st.sampled_from(sorted(CHIPS)),
    width=st.sampled_from([8, 16, 20, 64, 100, 128]),
    unique=st.integers(500, 30_000),
    more=st.integers(0, 30_000),
    op=st.sampled_from(["forward", "sgd"]),
)
def test_what_memory_refuses_is_read_back(chip, width, unique, more, op):
    """Every refusal carries the compiler's text; from it the limits, and changes that really compile."""
    asked = memory(chip, 16, width, Limits(unique + more, unique), op)
    if asked.compiles:
        return
    found = explain_error(asked.reason, width=width, max_ids=unique + more)[0]
    assert found.target == chip
    assert found.program == ("forward" if op == "forward" else "backward")
    assert found.limits.max_unique_ids_per_partition == -(-unique // 8) * 8
    best = found.largest_limits
    assert best is None or memory(chip, 16, width, best, op).compiles
    alone = [line for line in found.advice if "_per_partition alone" in line]
    for line in alone:
        n = int(line.rsplit(" ", 1)[1].replace(",", ""))
        ids, kept = found.limits.max_ids_per_partition, found.limits.max_unique_ids_per_partition
        changed, over = (
            (Limits(ids, n), Limits(ids, n + 8)) if "max_unique" in line else (Limits(n, kept), Limits(n + 8, kept))
        )
        assert memory(chip, 16, width, changed, op).compiles
        assert not memory(chip, 16, width, over, op).compiles


def test_a_width_that_8_does_not_divide_is_the_cause():
    asked = memory("tpu-v5p", 16, 100, Limits(4096, 4096), "sgd")
    for width in (100, None):
        found = explain_error(asked.reason, width=width)[0]
        assert found.limits == Limits(4096, 4096)
        assert "padded to 104" in found.meaning
        assert found.advice[0] == "make the width 104, a multiple of 8: the same limits then compile"
        assert found.basis == "modelled"
    assert memory("tpu-v5p", 16, 104, Limits(4096, 4096), "sgd").compiles


def test_a_lookups_error():
    text = ROW.format(524128, 4 * 17 * 16376)
    found = explain_error(text, width=16)[0]
    assert (found.program, found.limits) == ("forward", Limits(16376, 16376))
    assert "not in the text and taken as equal" in found.meaning
    assert memory("tpu-v5p", 16, 16, found.largest_limits).compiles
    assert explain_error(text)[0].width == 16, "no other width explains the figures"
    several = explain_error(ROW.format(524128, 4 * 17 * 33 * 800))[0]
    assert several.limits is None
    assert "give the stack's width" in several.advice[0]
    assert "16 (" in several.advice[0]
    assert "24 (" in several.advice[0]
    with pytest.raises(UsageError, match=r"not 4 \* \(24 \+ 1\)"):
        explain_error(text, width=24)


def test_a_log_of_many_lines_each_error_once():
    one, two = ROW.format("524,128", 4 * 17 * 16376), E3001.format(36 * 15360 + 1024, 12 * 15360, 524128)
    found = explain_error(f"I0000 hello\n{two}\nW0000 again\n{one}\n{two}\n")
    assert [e.program for e in found] == ["backward", "forward"]
    assert "\n" not in found[0].error


def test_the_guides_older_texts():
    fixed = explain_error("Fixed size allocations (553984 bytes) do not fit in TileSpmem (524128 bytes)")[0]
    assert fixed.limits == Limits(15360, 15360)
    gather = explain_error("RESOURCE_EXHAUSTED: Gather operand too large for TileSpmem: 1048576")[0]
    assert "stages gather operands in HBM" in gather.advice[0]
    assert gather.basis.startswith("the guide")


def test_the_figures_of_a_gather_operand():
    found = explain_error("Gather operand too large (1048576 bytes) for TileSpmem (524128 bytes)")[0]
    assert found.target == "tpu-v5p"
    assert found.figures == {"operand of one tile": 1048576, "TileSpmem per tile": 524128}
    assert found.advice[1].startswith("cut the batch to 50% or take 3 times the chips")


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 110.5G of "
        "95.74G hbm. Exceeded hbm capacity by 14.76G.\n\nTotal hbm usage >= 111.0G:",
        "Ran out of memory in memory space hbm.\n  Used 118648471552 bytes of 102800042721 bytes hbm.",
    ],
)
def test_hbm_that_is_full(text):
    (found,) = explain_error(text)
    assert found.figures["used"] == round(110.5 * 2**30)
    assert abs(found.figures["too much"] - 14.76 * 2**30) < 2**20
    assert "14.8 GiB more" in found.meaning
    assert any("xla_sc_num_serialized_tables_to_optimize_hbm" in line for line in found.advice)
    assert any("take 2 times the chips" in line for line in found.advice)


PEER = """
I0000 00:00:1.1    6364 input_preprocessing_threads.cc:54] Creating thread pool for SparseCore input preprocessing
F0000 00:00:1.2    6366 sort_and_group_coo_tensors_impl.h:61] Observed max ids per partition: 64 for table: user is \
greater than the set max ids per partition: 16. Use `allow_id_dropping` or increase the `max_ids_per_partition`. You \
could also try to reduce the batch size.
F0000 00:00:1.3    6367 sort_and_group_coo_tensors_impl.h:79] Observed max unique ids per partition: 61 for table: \
user is greater than the set max unique ids per partition: 8. Use `allow_id_dropping` or increase the \
`max_ids_per_partition`. You could also try to reduce the batch size.
W0000 00:00:1.4    6380 sort_and_group_coo_tensors_impl.h:55] Allowing ID dropping for table: item observed max ids \
per partition: 70 is greater than the set max ids per partition: 16
W0000 00:00:1.5    6380 sort_and_group_coo_tensors_impl.h:55] Allowing ID dropping for table: item observed max ids \
per partition: 99 is greater than the set max ids per partition: 16
"""


def test_batches_above_their_limits_in_jax_tpu_embeddings_log():
    ids, unique, dropped = explain_error(PEER)
    assert {each.program for each in (ids, unique, dropped)} == {"host"}
    assert ids.advice[0].startswith("set max_ids_per_partition of user to at least 64 ")
    assert "it ends the process" in ids.meaning
    assert unique.advice[0].startswith("set max_unique_ids_per_partition of user to at least 64 ")
    assert "not max_ids_per_partition as the text says" in unique.advice[1]
    assert dropped.figures["most observed (ids)"] == 99
    assert dropped.figures["lines that say so"] == 2
    assert dropped.advice[0].startswith("set max_ids_per_partition of item to at least 104 ")
    assert "it drops what is above" in dropped.meaning


def test_limits_that_should_compile_and_an_unknown_chip():
    fine = explain_error(E3001.format(36 * 800 + 1024, 12 * 800, 524128))[0]
    assert "these limits compile" in fine.advice[0]
    other = explain_error(E3001.format(36 * 15360 + 1024, 12 * 15360, 400000))[0]
    assert (other.target, other.basis) == ("", "modelled")
    odd = explain_error(E3001.format(1000, 96, 524128))[0]
    assert odd.limits is None


def test_json_is_plain():
    value = json.loads(json.dumps(explain_error(E3001.format(36 * 15360 + 1024, 12 * 15360, 524128))[0].to_json()))
    assert value["limits"] == {"max_ids_per_partition": 15360, "max_unique_ids_per_partition": 15360}
    assert value["rules"] == "libtpu 0.0.50.1"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "no SparseCore memory error"),
        ("Segmentation fault", {}, "known are"),
        ("E3001: No viable logical replica count; fixed_size", {}, "only the head"),
        (E3001.format(1, 2, 3), {"width": 0}, "width = 0"),
        (E3001.format(1, 2, 3), {"sparsecores": 0}, "sparsecores = 0"),
        (E3001.format(1, 2, 3), {"max_ids": -1}, "max_ids = -1"),
    ],
)
def test_wrong_questions(text, options, message):
    with pytest.raises(UsageError, match=message):
        explain_error(text, **options)
