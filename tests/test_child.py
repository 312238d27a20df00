"""A process for what nobody vouches for: it answers; it dies, is late, takes too much, and another one answers."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import ROOT
from tilewright.child import Child, ChildDied, ChildLate


@pytest.fixture
def child():
    child = Child("tests.child_home", {"PYTHONPATH": str(ROOT)})
    yield child
    child.close()


def test_a_child_answers_and_is_kept(child):
    notes = []
    first = child.ask(b"count 3", 60, notes.append)
    assert notes == [b"0", b"1", b"2"]
    assert child.ask(b"count", 60) == first == b"%d" % child.pid
    assert child.ask(b"take 100000000", 60) == b"100000000"


def test_a_child_that_dies_is_late_or_takes_too_much_ends_nothing_else(child):
    first = child.ask(b"count", 60)
    with pytest.raises(ChildDied, match="SIGSEGV") as died:
        child.ask(b"die %d" % signal.SIGSEGV, 60)
    with pytest.raises(ChildLate, match="longer than 1 s") as late:
        child.ask(b"sleep", 1)
    assert (died.value.exit_code, late.value.exit_code) == (1, 3)
    assert child.ask(b"take 2000000000", 60) == b"too much"
    assert child.ask(b"count", 60) != first
    child.close()
    with pytest.raises(ChildLate, match="ending"):
        child.ask(b"count", 60)
