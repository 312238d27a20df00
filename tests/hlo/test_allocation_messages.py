"""Messages in the forms that compilers and runtimes print: all read, every padded array recomputed."""

from __future__ import annotations

import doctest
import importlib
import json

import pytest

from tests.hlo.allocator_messages import EXPECTED, TEXTS, padded_bytes
from tilewright.errors import UsageError
from tilewright.hlo import explain_allocation
from tilewright.hlo.allocation.reading import Kind, read_messages, read_size
from tilewright.hlo.allocation.shape import padded_shape

ALLOCATOR = sorted(name for name, expected in EXPECTED.items() if expected["messages"])


@pytest.mark.parametrize("name", ["reading", "shape", "report"])
def test_docstring_examples(name):
    found = doctest.testmod(importlib.import_module(f"tilewright.hlo.allocation.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_there_are_forty_and_no_two_alike():
    assert len(ALLOCATOR) >= 40
    assert len(set(TEXTS.values())) == len(TEXTS)
    kinds = {(EXPECTED[name]["kind"], EXPECTED[name]["space"]) for name in ALLOCATOR}
    assert {kind for kind, _ in kinds} == {kind.value for kind in Kind}
    assert {space for _, space in kinds} == {"hbm", "vmem", "smem"}


@pytest.mark.parametrize("name", ALLOCATOR)
def test_what_a_message_says(name):
    expected = EXPECTED[name]
    found = explain_allocation(TEXTS[name])
    assert len(found) == expected["messages"]
    message = found[0].message
    assert (message.kind.value, message.space, message.code) == tuple(expected[k] for k in ("kind", "space", "code"))
    for field in ("used", "limit", "free"):
        stated = getattr(message, field)
        assert (stated is None) == (expected[field] is None), field
        assert stated is None or stated.covers(expected[field]) or stated.bytes == expected[field], field
    assert [each.number for each in message.allocations] == list(range(1, expected["allocations"] + 1))
    assert len(found[0].unread) == expected["unread"]


@pytest.mark.parametrize("name", ALLOCATOR)
def test_every_padded_array(name):
    report = explain_allocation(TEXTS[name])[0]
    shapes = {str(n): {"bytes": s.bytes, "data_bytes": s.data_bytes} for n, s in report.shapes.items()}
    assert shapes == EXPECTED[name]["shapes"]
    for number, shape in report.shapes.items():
        assert (shape.bytes, shape.data_bytes) == padded_bytes(shape.shape), number
        assert shape.agrees is not False
        assert bool(shape.words) == (shape.padding > 0)
        assert shape.padding == 0 or shape.dims or shape.rest > 1
    assert report.padding_bytes == sum(s["bytes"] - s["data_bytes"] for s in EXPECTED[name]["shapes"].values())


@pytest.mark.parametrize("name", ALLOCATOR)
def test_plain_values(name):
    for report in explain_allocation(TEXTS[name]):
        plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert len(plain["allocations"]) == len(report.message.allocations)
        assert plain["excess_bytes"] == report.message.excess


def test_labels_say_where_an_allocation_comes_from():
    first, second, _ = explain_allocation(TEXTS["01_estimator_particles.txt"])[0].message.allocations
    assert (first.label.name, first.label.opcode) == ("copy.20117", "copy")
    assert first.label.operand == "s32[4194304,8,3]{0,2,1:T(4,128)}"
    assert (first.op_type, first.op_name, first.type) == ("FloorMod", "mesh_12/paint/FloorMod", "HLO temp")
    assert second.label.opcode == "reshape"
    gather = explain_allocation(TEXTS["04_take_along_axis.txt"])[0].message.allocations[0]
    assert gather.source == "pick.py:9"
    assert gather.label.opcode == "fusion", "with shapes, its operands cut"
    modern = explain_allocation(TEXTS["09_engine_core_weights.txt"])[0].message.allocations[0]
    assert (modern.label.name, modern.label.opcode, modern.label.operand) == ("copy.1326", "copy", "")


def test_totals_and_parts():
    message = explain_allocation(TEXTS["01_estimator_particles.txt"])[0].message
    assert dict(message.totals)["reserved"].text == "528.00M"
    assert dict(message.totals)["arguments"] is None
    assert [name for name, _ in message.parts] == ["reserved", "global", "HLO temp"]
    assert 0 < message.utilization < 1
    runtime = explain_allocation(TEXTS["31_reserve_with_capacity.txt"])[0].message
    assert dict(runtime.totals)["heap allocations (without fragmentation)"].text == "4.80G"
    lost = explain_allocation(TEXTS["25_arguments_only.txt"])[0].message
    assert [(name, size and size.text) for name, size in lost.totals] == [
        ("reserved", "2.88M"),
        ("program", None),
        ("arguments", "44.10G"),
    ]


def test_dims_and_tiles_in_words():
    words = padded_shape("f32[4,128,128,9,18]{4,3,0,2,1:T(8,128)}").words
    assert words.startswith("tile (8,128) pads dim 4 from 18 to 128 and dim 3 from 9 to 16: ")
    assert padded_shape("pred[64,512,2048]{2,1,0:T(8,128)E(32)}").words.startswith("an element takes 32 bits")
    assert "from 1 to 256" in padded_shape("f32[]{:T(256)}").words
    assert "the rest is padded 2.00×" in padded_shape("bf16[7,3]{1,0:T(1,128)(2,1)}").words
    assert padded_shape("f32[16,256]{1,0:T(8,128)}").words == ""


def test_tiles_that_are_not_written_are_those_that_explain_the_size():
    for text, size, tiles in (
        ("f32[128,3]{1,0}", "64.0K", "f32[128,3]{1,0:T(8,128)}"),
        ("bf16[5,3]{1,0}", "4.0K", "bf16[5,3]{1,0:T(16,128)(2,1)}"),
        ("bf16[2,3]{1,0}", "512B", "bf16[2,3]{1,0:T(2,128)(2,1)}"),
        ("f32[100]{0}", "4.0K", "f32[100]{0:T(1024)}"),
        ("bf16[100]{0}", "512B", "bf16[100]{0:T(256)(128)(2,1)}"),
    ):
        found = padded_shape(text, read_size(size))
        assert (found.shape, found.assumed, found.agrees) == (tiles, True, True)
    dense = padded_shape("u8[4096]{0}", read_size("4.0K"))
    assert (dense.shape, dense.assumed, dense.agrees) == ("u8[4096]{0}", False, True)
    odd = padded_shape("f32[128,3]{1,0}", read_size("1.00G"))
    assert (odd.assumed, odd.agrees) == (False, False)


def test_sizes_are_ranges():
    for count in (0, 7, 1023, 1024, 1536, 70_000, 2**20, 2**20 + 1, 44_818_000_001, 3 * 2**40 + 12345, 2**62):
        assert read_size(human(count)).covers(count)
        assert not read_size(human(count)).covers(count * 2 + 10)
    assert read_size("14.30GiB").text == "14.30GiB"
    assert read_size("-2.55G").bytes < 0
    assert read_size("none") is None


def human(count):
    """A size as XLA writes it."""
    if count < 1024:
        return f"{count}B"
    units = "KMGTPE"
    while count >= 2**20:
        count, units = count // 1024, units[1:]
    return f"{count / 1024:.1f}K" if units[0] == "K" else f"{count / 1024:.2f}{units[0]}"


def test_what_does_not_agree_is_said():
    text = TEXTS["33_fragmented.txt"] + TEXTS["41_smem.txt"]
    assert [each.message.kind.value for each in explain_allocation(text)] == ["buffer", "program"]
    wrong = TEXTS["10_e1000_logits.txt"].replace("Size: ", "Size: 1", 1).replace("Exceeded hbm capacity by ", "by 9")
    notes = explain_allocation(wrong)[0].unread
    assert any("Size says" in note and "comes to" in note for note in notes)
    head = "Ran out of memory in memory space hbm. Used 20.00G of 16.00G hbm. Exceeded hbm capacity by 9.00G."
    assert explain_allocation(head)[0].unread == ("the head: 20.00G of 16.00G is not 9.00G too much",)


def test_a_gap_in_the_list_is_said():
    lines = TEXTS["14_quoted_in_an_issue.txt"].split("> \n")
    cut = "> \n".join(part for part in lines if ">   2. Size" not in part)
    assert explain_allocation(cut)[0].unread == ("allocation 2 of the list: not in the text",)


def test_a_shorter_repetition_is_one_message():
    text = TEXTS["10_e1000_logits.txt"]
    head = text.partition("\n")[0]
    assert len(read_messages(f"{head}\n{text}\n{head}\n{text}")) == 1


@pytest.mark.parametrize(
    "text", ["", "hello", "CUDA out of memory. Tried to allocate 2.00 GiB", "Size: 3", "Shape: f32[2]"]
)
def test_a_text_without_any(text):
    with pytest.raises(UsageError, match="no TPU allocator message"):
        explain_allocation(text)
