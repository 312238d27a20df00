"""The trace file, parsed back with the protobuf classes."""

import itertools
import sys
from collections import Counter as Multiset

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import tries, within
from tilewright.errors import UsageError
from tilewright.trace import Counter, Instant, Recorder, Slice, Track, perfetto_bytes, write_perfetto

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
MATRIX, HOST = Track("matrix unit", "mm"), Track("embed host", "preprocess")


def packets(raw):
    return pb.Trace.FromString(raw).packet


def descriptors(raw):
    return {p.track_descriptor.uuid: p.track_descriptor for p in packets(raw) if p.HasField("track_descriptor")}


def track_of(known, uuid) -> Track:
    lane = known[uuid]
    return Track(known[lane.parent_uuid].process.process_name, lane.name)


def value_of(note):
    return getattr(note, note.WhichOneof("value"))


def read_back(raw):
    """The events of a file: what its packets say when played in time order."""
    known, stacks, found = descriptors(raw), {}, []
    for packet in sorted((p for p in packets(raw) if p.HasField("track_event")), key=lambda p: p.timestamp):
        event, at = packet.track_event, packet.timestamp
        track = track_of(known, event.track_uuid)
        args = tuple((note.name, value_of(note)) for note in event.debug_annotations)
        if event.type == event.TYPE_SLICE_BEGIN:
            stacks.setdefault(event.track_uuid, []).append((event.name, at, args))
        elif event.type == event.TYPE_SLICE_END:
            name, start, args = stacks[event.track_uuid].pop()
            found.append(Slice(track, name, start, at - start, args))
        elif event.type == event.TYPE_INSTANT:
            found.append(Instant(track, event.name, at, args))
        else:
            value = event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            found.append(Counter(track, at, value, known[event.track_uuid].counter.unit_name))
    assert not any(stacks.values())
    return found


TRACKS = st.sampled_from([MATRIX, HOST, Track("matrix unit", "loads")])
ARGS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.booleans())
)
TIMES = st.integers(0, 40)
SLICES = st.builds(Slice, TRACKS, st.sampled_from(["x", "y"]), TIMES, st.integers(0, 20), ARGS.map(tuple))
COUNTS = st.builds(Counter, st.just(Track("counts", "macs")), TIMES, st.integers(-5, 5), st.just("MAC"))
INSTANTS = st.builds(Instant, TRACKS, st.sampled_from(["p", "q"]), TIMES, ARGS.map(tuple))


def typed(events):
    """Events as comparable values in which True differs from 1."""
    return Multiset(repr(event) for event in events)


@given(st.lists(SLICES | COUNTS | INSTANTS, max_size=30))
def test_every_event_comes_back(events):
    raw = perfetto_bytes(events)
    assert typed(read_back(raw)) == typed(events)
    assert perfetto_bytes(list(events)) == raw


@given(st.lists(SLICES, max_size=30))
def test_rows_nest(events):
    raw = perfetto_bytes(events)
    ordered = sorted((p for p in packets(raw) if p.HasField("track_event")), key=lambda p: p.timestamp)
    ordered.sort(key=lambda p: p.track_event.track_uuid)
    for _, row in itertools.groupby(ordered, key=lambda p: p.track_event.track_uuid):
        depth = 0
        for packet in row:
            depth += 1 if packet.track_event.type == packet.track_event.TYPE_SLICE_BEGIN else -1
            assert depth >= 0
        assert depth == 0


def test_engines_are_processes_in_the_order_they_come():
    events = [Slice(HOST, "batch 0", 5, 10), Instant(MATRIX, "error", 2), Counter(Track("matrix unit", "macs"), 3, 2.5)]
    known = list(descriptors(perfetto_bytes(events)).values())
    processes = [d for d in known if d.HasField("process")]
    assert [d.process.process_name for d in processes] == ["embed host", "matrix unit"]
    assert len({d.process.pid for d in processes}) == 2
    assert all("1 cycle = 1 ns" in d.description for d in processes)
    lanes = sorted((d for d in known if d.parent_uuid), key=lambda d: d.sibling_order_rank)
    assert [d.name for d in lanes] == ["preprocess", "mm", "macs"]
    assert [d.HasField("counter") for d in lanes] == [False, False, True]


def test_the_sequence_is_declared_before_it_is_used():
    first, *rest = packets(perfetto_bytes([Slice(MATRIX, "a", 0, 1)]))
    assert first.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {p.trusted_packet_sequence_id for p in (first, *rest)} == {1}


def test_numpy_integers_and_large_times():
    events = [
        Slice(MATRIX, "a", np.int64(2**62), np.int64(3), (("n", np.int32(7)),)),
        Counter(HOST, 2**63, np.uint8(9)),
    ]
    read = read_back(perfetto_bytes(events))
    assert [(e.start, e.duration, e.args) for e in read if isinstance(e, Slice)] == [(2**62, 3, (("n", 7),))]
    assert [(e.time, e.value) for e in read if isinstance(e, Counter)] == [(2**63, 9)]


def test_time_cannot_run_backwards():
    for wrong in (lambda: Slice(MATRIX, "a", 0, -1), lambda: Instant(MATRIX, "a", -1), lambda: Counter(MATRIX, -1, 0)):
        with pytest.raises(UsageError, match=">= 0"):
            wrong()


def test_two_hundred_thousand_events_in_seconds():
    recorder, count = Recorder(), min(200_000, tries(10_000))
    for n in range(count):
        recorder.emit(Slice(MATRIX, "mm", n * 10, 12, (("pc", n % 97),)))
    with within(8):
        raw = perfetto_bytes(recorder)
    assert len(packets(raw)) == 2 * count + 4


def test_files(tmp_path):
    size = write_perfetto([Slice(MATRIX, "a", 0, 1)], tmp_path / "t.pftrace")
    assert (tmp_path / "t.pftrace").stat().st_size == size
    assert [p.name for p in tmp_path.iterdir()] == ["t.pftrace"]
    with pytest.raises(UsageError, match="cannot write it"):
        write_perfetto([], tmp_path / "no" / "t.pftrace")


def test_a_missing_package_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(UsageError, match=r"tilewright\[trace\]"):
        perfetto_bytes([])
