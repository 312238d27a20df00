"""Mutated, truncated and hostile messages: a report that says what is missing, or one clear error; in linear time."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.hlo.allocator_messages import EXPECTED, TEXTS
from tilewright.errors import UsageError
from tilewright.hlo import explain_allocation
from tilewright.render.delivery import show

ALLOCATOR = sorted(name for name, expected in EXPECTED.items() if expected["messages"])


def survives(text):
    """The reports, () where there is no message; anything else is a fault."""
    try:
        found = explain_allocation(text)
    except UsageError as error:
        assert "no TPU allocator message" in str(error)
        return ()
    for report in found:
        json.dumps(report.to_json(), allow_nan=False)
    return found


@pytest.mark.parametrize("name", ALLOCATOR)
def test_truncated_anywhere(name):
    text = TEXTS[name]
    whole = explain_allocation(text)[0]
    for end in range(0, len(text), max(1, len(text) // tries(12))):
        for report in survives(text[:end]):
            assert len(report.message.allocations) <= len(whole.message.allocations)


def test_a_list_that_is_cut_says_where():
    text = TEXTS["10_e1000_logits.txt"]
    cut = text[: text.index("Unpadded size", text.index("  2. Size"))]
    report = explain_allocation(cut)[0]
    assert len(report.message.allocations) == 2
    assert "the end of allocation 2: not in the text" in report.unread
    head = text[: text.index("  1. Size")]
    assert explain_allocation(head)[0].unread == ("the list of the largest allocations: not in the text",)
    shape = text.replace("f32[4,8192,32003]{2,1,0:T(8,128)}", "f32[4,8192,32003]{2,1,0:T(8,1", 1)
    report = explain_allocation(shape)[0]
    assert report.unread[0].startswith("allocation 1: the shape 'f32[4,8192,32003]{2,1,0:T(8,1'")
    assert set(report.shapes) == {2, 3}


@settings(max_examples=tries(40))
@given(st.sampled_from(ALLOCATOR), st.data())
def test_mutations(name, data):
    text = TEXTS[name][:6000]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 40)))
        new = data.draw(
            st.one_of(
                st.text(max_size=12),
                st.sampled_from(
                    ["9" * 30, "-", "1e400", "nan", "\n", "\\n", '"', "(" * 50, "{", "Size: ", "1. Size: 1G\n",
                     "Ran out of memory in memory space vmem", "Shape: (f32[2], f32[3])\n", "\x00", "٣", "%"]
                ),
            )
        )  # fmt: skip
        text = text[:start] + new + text[end:]
    survives(text)


@given(st.text(max_size=300))
def test_any_text(text):
    survives(text)
    survives(f"Ran out of memory in memory space hbm. {text}")
    survives(f"Largest program allocations in hbm:\n 1. Size: {text}\n Shape: {text}\n XLA label: %a = {text}")


@given(
    st.lists(st.one_of(st.integers(0, 9), st.integers(2**31, 2**66)), max_size=6),
    st.sampled_from(["f32", "bf16", "pred", "s4", "c128", "token", "f99"]),
    st.sampled_from(
        ["", "{}", ":T(8,128)", ":T(8,128)(2,1)E(32)", ":T(1024)", ":T(9223372036854775807,128)", ":T(*,128)"]
    ),
)
@example([2**31, 0, 2**31, 3], "f32", ":T(8,128)")
@example([2**31, 1, 2**30, 1], "pred", ":T(8,128)")  # another order of its dims would be padded beyond all bounds
def test_absurd_shapes(dims, dtype, tail):
    order = ",".join(map(str, reversed(range(len(dims)))))
    layout = f"{{{order}{tail}}}" if tail.startswith(":") else tail
    shape = f"{dtype}[{','.join(map(str, dims))}]{layout}"
    text = (
        f"Largest program allocations in hbm:\n  1. Size: 1.00G\n     Shape: {shape}\n     Allocation type: HLO temp\n"
    )
    report = survives(text)[0]
    assert 1 in report.shapes or any("allocation 1: the shape" in note for note in report.unread)


def test_very_many_dims(capsys):
    for count in (16, 17, 500, 20_000):
        shape = f"f32[{','.join(['1'] * count)}]{{{','.join(map(str, reversed(range(count))))}:T(8,128)}}"
        text = (
            f"Largest program allocations in hbm:\n  1. Size: 4.0K\n     Shape: {shape}\n     Allocation type: scoped\n"
        )
        report = explain_allocation(text)[0]
        assert report.shapes[1].bytes == 4096
    show(report.lines())
    assert "4.00 KiB" in capsys.readouterr().out


ENTRY = "  {}. Size: 1.00G\n     Shape: f32[2048,1024,7]{{2,1,0:T(8,128)}}\n     XLA label: copy.{} = copy(p.{})\n"
HOSTILE = {
    "blanks": lambda n: "Total hbm usage >= 1.00G:" + " " * n,
    "words": lambda n: "Program hbm requirement 1.00G:\n" + "a " * (n // 2),
    "parts": lambda n: "Total hbm usage >= 1.00G:\n" + "    x    1.00G" * (n // 14),
    "heads": lambda n: "Ran out of memory in memory space hbm. " * (n // 39),
    "entries": lambda n: (
        "Largest program allocations in hbm:\n" + "".join(ENTRY.format(k, k, k) for k in range(n // 90))
    ),
    "repeated": lambda n: "Largest program allocations in hbm:\n" + ENTRY.format(1, 1, 1) * (n // 90),
    "quotes": lambda n: "Largest program allocations in hbm:\n1. Size: 1G\nOperator: " + 'op_name="\\' * (n // 10),
    "label": lambda n: "1. Size: 1G\nXLA label: %a = " + "(" * n,
    "escapes": lambda n: "\\n1. Size: 1G" + "\\n " * (n // 3),
    "numbers": lambda n: "1. " * (n // 3) + "Size: 1G",
    "stack": lambda n: (
        "Ran out of memory in memory space vmem while allocating on stack for " + "%a = f32[2] " * (n // 12)
    ),
}


def grows_as_the_text(work, make):
    """Eight times the text takes at most 16 times the processor time; work that grows with its square takes 64 times.

    Each size counts with the least it ever took: what else the machine does, and a garbage collection that falls into
    one measurement, cannot make that smaller.
    """
    small = large = float("inf")
    short, long = make(20_000), make(160_000)
    for _ in range(10):
        small = min(small, *(seconds(work, short) for _ in range(3)))
        large = min(large, seconds(work, long))
        if large <= 16 * max(small, 0.002):
            return True
    return False


def seconds(work, text):
    start = time.process_time()
    work(text)
    return time.process_time() - start


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_texts_are_survived(name):
    survives(HOSTILE[name](1000))


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_time_grows_as_the_text(name):
    assert grows_as_the_text(survives, HOSTILE[name])


@pytest.mark.nightly
def test_time_that_grows_with_the_square_is_seen():
    assert not grows_as_the_text(lambda text: [text[at:].count("#") for at in range(0, len(text), 100)], "a".__mul__)
