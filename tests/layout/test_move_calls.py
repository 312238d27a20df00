"""Moves made again, and the threads that share one: the same values, the same refusals, and nobody left behind."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layout.test_moves import expected, sample
from tilewright.errors import UsageError
from tilewright.layout import parse, tiled
from tilewright.layout.move import calls as _calls

TEXT = "f32[19,130]{1,0:T(8,128)}"


def made(text=TEXT):
    """A layout that has packed and unpacked once, with the arrays it did it with."""
    layout = parse(text)
    values = sample(layout)
    out, back = layout.pack(values), np.zeros_like(values)
    layout.pack(values, out=out)
    layout.unpack(out, out=back)
    return layout, values, out, back


@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from(["s8", "u16", "f32", "c128"]), st.integers(0, 3))
def test_again_is_the_same(rows, columns, dtype, seed):
    layout = tiled((rows, columns), dtype, tiles=((8, 128), (2, 1)))
    first = sample(layout)
    out, back = layout.pack(first), np.zeros_like(first)
    for values in (first, sample(layout, seed), first + 1):
        out[:] = 99
        assert layout.pack(values, out=out) is out
        assert np.array_equal(out, expected(layout, values))
        assert layout.unpack(out, out=back) is back
        assert np.array_equal(back, values)


def test_refusals_stay():
    layout, values, out, back = made()
    out.flags.writeable = back.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        layout.pack(values, out=out)
    with pytest.raises(UsageError, match="read-only"):
        layout.unpack(out, out=back)


def test_padding_is_what_is_asked():
    layout, values, out, _ = made()
    layout.pack(values, out=out, fill=3)
    assert np.array_equal(out, expected(layout, values, 3))
    layout.pack(values, out=out)
    assert np.array_equal(out, expected(layout, values))
    layout.pack(values, out=out, fill=0.5)
    assert np.array_equal(out, expected(layout, values, 0.5))


def test_arrays_that_share_memory():
    layout = parse("s32[16,128]{1,0:T(8,128)}")
    values = sample(layout)
    layout.unpack(layout.pack(values), out=np.zeros_like(values))
    layout.pack(values, out=np.zeros(layout.num_slots, np.int32))
    memory = np.zeros(layout.num_slots + 64, np.int32)
    for shift in (0, 16, 48):
        array = memory[shift : shift + values.size].reshape(values.shape)
        array[...] = values
        out = memory[: layout.num_slots]
        layout.pack(array, out=out)
        assert np.array_equal(out, expected(layout, values))
        layout.unpack(out, out=array)
        assert np.array_equal(array, values)


def test_who_comes_late_moves_nothing(monkeypatch):
    late = []
    monkeypatch.setattr(_calls, "call_soon", lambda call, threads: late.append(call) or 1)
    monkeypatch.setattr(_calls, "_SMALL", 0)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    layout = parse("f32[1024,1024]{1,0:T(8,128)}")
    values = sample(layout)
    out = layout.pack(values)
    assert np.array_equal(out, expected(layout, values))
    out[:] = 7
    assert len(late) == 1
    late[0]()
    assert (out == 7).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_whatever_a_signal_raises_the_others_are_waited_for(monkeypatch, error):
    monkeypatch.setattr(_calls, "call_soon", lambda call, threads: threads)
    monkeypatch.setattr(_calls, "_SMALL", 0)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    answers = iter([False, error(), False, error(), True])  # whether all is done, where no signal comes

    def kernel(call, scratch):
        answer = next(answers, True)
        if isinstance(answer, bool):
            return answer
        raise answer

    with pytest.raises(error):
        _calls.run_plan(SimpleNamespace(kernel=kernel, header=0, total=1, parts=2), np.zeros(1), np.zeros(1))
    assert list(answers) == []


def test_a_signal_before_the_first_line_of_the_wait(monkeypatch):
    finish, told = _calls._finish, []

    def finishes(call, plan):
        told.append(call)
        if len(told) == 1:
            raise KeyboardInterrupt
        finish(call, plan)

    monkeypatch.setattr(_calls, "_finish", finishes)
    monkeypatch.setattr(_calls, "call_soon", lambda call, threads: threads)
    monkeypatch.setattr(_calls, "_SMALL", 0)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    layout = parse("f32[1024,1024]{1,0:T(8,128)}")
    values, out = sample(layout), np.zeros(layout.num_slots, np.float32)
    with pytest.raises(KeyboardInterrupt):
        layout.pack(values, out=out)
    assert np.array_equal(out, expected(layout, values))
    assert told[0] not in _calls._idle  # whoever comes late still reads it


def test_the_last_idle_call_taken_by_another_thread(monkeypatch):
    class Taken(list):
        def __len__(self):
            return 1  # as it looked a moment ago

    monkeypatch.setattr(_calls, "_idle", Taken())
    assert isinstance(_calls.take_call(), _calls.Call)


def test_copies_of_a_layout_move_the_same():
    layout, values, _, _ = made()
    for other in (pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout)):
        assert other == layout
        assert np.array_equal(other.pack(values), expected(layout, values))
