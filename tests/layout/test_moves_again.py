"""Moves made again and again, by many threads, and come between: what could go wrong, and once did."""

from __future__ import annotations

import contextlib
import gc
import inspect
import mmap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

from tests.layout.test_moves import expected, sample
from tilewright.kernels import threads
from tilewright.layout import parse
from tilewright.layout.move import DONE
from tilewright.layout.move import calls as _calls
from tilewright.layout.move.plan import pack_plan, unpack_plan


@pytest.mark.parametrize("text", ["bf16[1024]{0:T(1024)(128)(2,1)}", "s32[16]{0:T(16)(4)(2,1)}", "f32[64]{0:T(64)}"])
def test_packing_is_not_taken_for_unpacking(text):
    """A 1-D array without padding and its buffer look alike."""
    layout, back_first = parse(text), parse(text)
    values = sample(layout)
    packed = expected(layout, values)
    for k in range(3):
        out, back = np.zeros_like(packed), np.zeros_like(values)
        assert np.array_equal(layout.pack(values, out=out), packed), k
        assert np.array_equal(layout.unpack(packed, out=back), values), k
        assert np.array_equal(back_first.unpack(packed, out=back), values), k
        assert np.array_equal(back_first.pack(values, out=out), packed), k


TEXT = "f32[1500,1500]{1,0:T(8,128)}"


@pytest.fixture
def late(monkeypatch):
    """The calls meant for other threads, none of which has come yet."""
    calls = []
    monkeypatch.setattr(_calls, "call_soon", lambda call, threads: calls.append(call) or 1)
    monkeypatch.setattr(_calls, "_SMALL", 0)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "2")
    return calls


def test_who_comes_late_after_an_interrupt_keeps_no_array_either(late, monkeypatch):
    def interrupted(call, plan):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(_calls, "_finish", interrupted)
    layout = parse(TEXT)
    out = np.zeros(layout.num_slots, np.float32)
    there = weakref.ref(out)
    with pytest.raises(KeyboardInterrupt):
        layout.pack(np.ones(layout.shape, np.float32), out=out)
    assert len(late) == 1
    assert (out[:100] == 1).all()
    del out
    gc.collect()
    assert there() is None


def test_calls_that_come_back_late_are_not_all_kept(late, monkeypatch):
    monkeypatch.setattr(_calls, "_idle", [])
    monkeypatch.setattr(_calls, "_PART", 1 << 10)
    layout = parse("f32[19,130]{1,0:T(8,128)}")
    values, out = sample(layout), np.zeros(layout.num_slots, np.float32)
    for _ in range(2 * _calls._MOST_IDLE):
        layout.pack(values, out=out)
    assert len(late) == 2 * _calls._MOST_IDLE
    assert not _calls._idle
    for call in late:
        call()
    assert len(_calls._idle) == _calls._MOST_IDLE


def test_who_comes_late_keeps_no_array(late):
    """Or else an mmap could not be closed behind the move, nor an array be resized."""
    layout = parse(TEXT)
    memory = mmap.mmap(-1, 4 * layout.num_slots)
    out = np.frombuffer(memory, np.float32)
    layout.pack(np.ones(layout.shape, np.float32), out=out)
    del out
    memory.close()
    pack_plan.cache_clear()
    gc.collect()
    assert len(late) == 1
    late[0]()  # what it still reads is there: its plan, and how many parts were taken


def test_an_interrupted_move_is_finished(late, monkeypatch):
    """Another thread took a part and stands still; the caller is interrupted twice while it waits."""
    pauses = []

    def stands_still(call, threads):
        words = inspect.getclosurevars(call).nonlocals["call"].words
        words[0] += 1
        counts.append(words[DONE:])
        return 1

    def interrupted(seconds):
        pauses.append(seconds)
        if len(pauses) < 3:
            raise KeyboardInterrupt
        counts[0][0] += 1  # now it is done

    counts = []
    monkeypatch.setattr(_calls, "call_soon", stands_still)
    monkeypatch.setattr(_calls.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parse(TEXT).pack(np.ones((1500, 1500), np.float32))
    assert len(pauses) == 3


def test_threads_that_ask_at_once_find_one_table():
    """Its address is given away, so nobody may put another in its place."""
    layout = parse("f32[19,130]{1,0:T(8,128)}")
    both = threading.Barrier(2)

    class Slow(tuple):
        def __iter__(self):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            return super().__iter__()

    plan = replace(pack_plan(layout, (520, 4), 4, True)[0])
    object.__setattr__(plan, "works", Slow(plan.works))
    with ThreadPoolExecutor(2) as pool:
        headers = [each.result() for each in [pool.submit(lambda: plan.header) for _ in range(2)]]
    assert headers == 2 * [plan.tables[0].ctypes.data] == 2 * [plan.header]


def test_a_plan_in_the_making_holds_up_no_other():
    """It may take the seconds of a compilation; and a child forked meanwhile would wait for ever."""
    begun, go = threading.Event(), threading.Event()

    class Slow(tuple):
        def __iter__(self):
            begun.set()
            go.wait(20)
            return super().__iter__()

    plan = pack_plan(parse("f32[19,130]{1,0:T(8,128)}"), (520, 4), 4, True)[0]
    slow, other = replace(plan), replace(plan)
    object.__setattr__(slow, "works", Slow(plan.works))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: slow.header)
        try:
            assert begun.wait(20)
            assert pool.submit(lambda: other.header).result(timeout=300) == other.tables[0].ctypes.data
            assert not first.done()
        finally:
            go.set()
    assert first.result() == slow.header


def test_helpers_are_as_many_as_were_wanted_at_once():
    def helpers():
        return [each for each in threading.enumerate() if each.name.startswith("tilewright-") and each.daemon]

    before, called = len(helpers()), SimpleQueue()
    for wanted in range(1, 7):
        threads.call_soon(lambda: called.put(threading.get_ident()), wanted)
        assert threading.get_ident() not in {called.get(timeout=300) for _ in range(wanted)}
    assert len(helpers()) == max(before, 6)


def test_a_move_does_without_threads_that_cannot_be_had(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_helpers", threads._Helpers())
    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(_calls, "_SMALL", 0)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    layout = parse("s8[1500,1500]{1,0:T(8,128)}")
    values = sample(layout)
    assert np.array_equal(layout.unpack(layout.pack(values)), values)
    assert threads._helpers.calls.empty()


@pytest.mark.parametrize("text", ["f32[51,129]{1,0:T(1,128)(2,64)}", "bf16[1,35,1046]{2,0,1:T(1,256)(2,64)}"])
def test_a_part_may_begin_with_a_narrow_end(monkeypatch, text):
    """The few bytes of a row's last piece share a line with the part before, and with the next row."""
    layout = parse(text)
    values = sample(layout)
    packed = expected(layout, values, 99)
    for part in (1 << 10, 3000):
        monkeypatch.setattr(_calls, "_PART", part)
        unpack_plan.cache_clear()
        out = np.zeros_like(values)
        assert np.array_equal(layout.unpack(packed, out=out), values), part
        unpack_plan.cache_clear()


@pytest.mark.parametrize("text", ["s8[64,512]{1,0:T(16,8)}", "f32[3,7,958]{2,1,0:T(300,7)}", "f64[126]{0:T(300,7)}"])
def test_unpacking_into_an_array_whose_rows_are_all_the_same_memory(text):
    layout = parse(text)
    row = sample(layout)[:1]
    packed = layout.pack(np.broadcast_to(row, layout.shape))
    memory = np.zeros_like(row)
    out = np.lib.stride_tricks.as_strided(memory, layout.shape, (0, *memory.strides[1:]))
    layout.unpack(packed, out=out)
    assert np.array_equal(memory, row)
