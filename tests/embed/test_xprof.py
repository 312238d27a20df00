"""Counters from a profiler's trace, written here field by field as TPUs write it, and as trace-viewer JSON."""

from __future__ import annotations

import gzip
import json

import pytest

from tilewright.embed import read_counters
from tilewright.embed.diagnosis.sources import read_trace
from tilewright.errors import UsageError
from tilewright.trace import is_profile

US = 10**6  # picoseconds

PLANES = {
    "/host:CPU": {"python": [("$embedding.py:680 preprocess_sparse_dense_matmul_input", 0, 30), ("other", 0, 400)]},
    "/device:TPU:0": {
        "Steps": [("1", 100, 100), ("2", 200, 100)],
        "XLA Ops": [("fusion.1", 100, 40), ("while", 120, 40), ("fusion.2", 210, 30), ("late", 290, 100)],
        "Async XLA Ops": [("copy-start", 100, 200)],
    },
    "/device:TPU:0 SparseCore 0": {"Sparse Core Ops": [("gather", 130, 50), ("scatter", 250, 30)]},
    "/device:TPU:0 SparseCore 1": {"Sparse Core Modules": [("jit_step(1)", 150, 20)]},
    "/device:TPU:1": {
        "XLA Modules": [("jit_step(7)", 100, 70), ("jit_step(8)", 200, 80), ("jit_init(9)", 0, 5)],
        "XLA Ops": [("fusion.1", 100, 90), ("fusion.2", 200, 80)],
    },
}
"""Plane -> line -> (name, begin, length) in microseconds."""


def varint(value):
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, *parts):
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field << 3 | 2) + varint(len(data)) + data


def xspace(planes, start=1_760_000_000_000_000_000):
    """An XSpace whose lines begin at ``start`` nanoseconds, as those of real runs do."""
    out = []
    for plane, lines in planes.items():
        names = sorted({event[0] for events in lines.values() for event in events})
        parts = [number(1, 3), message(2, plane)]
        for line, events in lines.items():
            encoded = [
                message(
                    4,
                    number(1, names.index(name)),
                    number(2, begin * US),
                    number(3, length * US),
                    message(4, b"\x08\x01"),
                )
                for name, begin, length in events
            ]
            parts.append(message(3, message(2, line), number(3, start), *encoded))
        parts += [message(4, number(1, k), message(2, number(1, k), message(2, name))) for k, name in enumerate(names)]
        out.append(message(1, *parts))
    fixed = varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4)
    return b"".join(out) + fixed


def viewer(planes):
    events = []
    for pid, (plane, lines) in enumerate(planes.items()):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane}})
        for tid, (line, spans) in enumerate(lines.items()):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line}})
            events += [{"ph": "X", "pid": pid, "tid": tid, "name": n, "ts": b, "dur": d} for n, b, d in spans]
    return json.dumps({"traceEvents": events}).encode()


def written(folder, form):
    run = folder / "plugins" / "profile" / "today"
    run.mkdir(parents=True)
    data, name = {
        "xspace": (xspace(PLANES), "host.xplane.pb"),
        "packed": (gzip.compress(viewer(PLANES)), "host.trace.json.gz"),
        "plain": (viewer(PLANES), "host.trace.json"),
    }[form]
    (run / name).write_bytes(data)
    return run / name


@pytest.mark.parametrize("form", ["xspace", "packed", "plain"])
def test_what_a_run_did(tmp_path, form):
    file = written(tmp_path, form)
    counters = read_trace(file)
    assert counters.steps == 2
    seconds = {k: v and round(v * 1e6, 6) for k, v in vars(counters.seconds).items()}
    # The first chip's TensorCore: 60 + 30 + 10 of 200; its SparseCores fill 20 + 30 more; the second chip: 90 + 80.
    seen = {"step": 100, "host": 15, "wait": 25, "sparsecore": 40, "tensorcore": 85}
    assert {name: number for name, number in seconds.items() if number is not None} == seen
    assert read_trace(tmp_path) == read_counters(str(tmp_path)) == counters
    assert is_profile(file) and is_profile(tmp_path) and not is_profile("counters.json")  # noqa: PT018


def test_the_xspace_goes_before_the_viewers(tmp_path):
    file = written(tmp_path, "xspace")
    file.with_name("host.trace.json").write_bytes(b"[]")
    assert read_trace(tmp_path).steps == 2


BAD = {
    "cut.pb": (xspace(PLANES)[:-100], "not a profiler's XSpace"),
    "number.pb": (b"\x80" * 20, "a number without end"),
    "kind.pb": (b"\x0b", "a field of kind 3"),
    "empty.pb": (b"", "no TPU's steps"),
    "host.pb": (xspace({"/host:CPU": PLANES["/host:CPU"]}), "no TPU's steps"),
    "words.trace.json": (b"words", "not trace-viewer JSON"),
    "none.trace.json": (b"{}", "no traceEvents"),
    "cut.trace.json.gz": (gzip.compress(viewer(PLANES))[:50], "a damaged gzip file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace(tmp_path, name):
    data, problem = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=problem) as error:
        read_trace(tmp_path / name)
    assert name in str(error.value)


def test_a_folder_without_traces(tmp_path):
    with pytest.raises(UsageError, match=r"no \.xplane\.pb"):
        read_trace(tmp_path)
