"""Measured times: a trace that jax.profiler writes here, the form of a TPU's, and what is refused."""

import gzip
import json
import struct
from collections import Counter

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.hlo import load, report
from tilewright.hlo.reporting.profile import read_profile
from tilewright.trace.xspace import read_xspace


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(HLO text, folder of the profile) of three runs of a compiled function."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def turned(x):
        y = x.reshape(16, 8, -1).transpose(2, 0, 1) + 1.0
        return jax.lax.fori_loop(0, 5, lambda i, v: jnp.sort(v.T.reshape(v.shape) * 1.01, axis=0), y.reshape(-1, 128))

    x = jnp.ones((128, 64))
    text = turned.lower(x).compile().as_text()
    jax.block_until_ready(turned(x))
    folder = tmp_path_factory.mktemp("profile")
    with jax.profiler.trace(str(folder)):
        for _ in range(3):
            jax.block_until_ready(turned(x))
    return text, folder


def test_a_profile_of_jax(traced):
    text, folder = traced
    program = load(text)
    found = report(program).with_profile(program, folder)
    profile = found.profile
    assert 0 < profile.rows_us <= profile.matched_us <= profile.total_us
    assert profile.unmatched_share < 0.5
    assert "while" not in " ".join(profile.unmatched)
    ranked = found.slowest()
    assert [row.measured_us for row in ranked] == sorted((row.measured_us for row in ranked), reverse=True)
    in_loop = next(row for row in ranked if row.trips == (5,) and row.op != "sort")
    assert in_loop.measured_runs == 15  # three runs of five trips
    assert any("of the profile's time belongs to no operation" in note for note in found.notes)
    assert found.to_json()["profile"]["total_us"] == profile.total_us


def test_both_files_of_a_profile_say_the_same(traced):
    _, folder = traced
    (viewer,), (whole,) = (list(folder.rglob(pattern)) for pattern in ("*.trace.json.gz", "*.xplane.pb"))
    theirs, ours = read_profile(viewer).times, read_profile(whole).times
    assert read_profile(folder).times == ours
    assert ours.keys() == theirs.keys()
    for key, (microseconds, count) in ours.items():
        assert theirs[key] == (pytest.approx(microseconds, abs=0.01 * count), count)


def test_the_decoder_agrees_with_jax(traced):
    from jax.profiler import ProfileData

    _, folder = traced
    (file,) = folder.rglob("*.xplane.pb")
    ours = Counter()
    for plane in read_xspace(file.read_bytes()):
        for line in plane.lines:
            for each in line.events:
                ours[plane.name, line.name or line.display, each.name, round(each.picoseconds / 1000)] += 1
    theirs = Counter()  # without its stats: reading them ends the process in jax 0.12
    for plane in ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for each in line.events:
                theirs[plane.name, line.name, each.name, round(each.duration_ns)] += 1
    assert ours == theirs


def number(field, value):
    """A field of the wire format that holds a whole number."""
    return varint(field << 3) + varint(value)


def inside(field, *parts):
    """A field of the wire format that holds bytes, a text or a message."""
    raw = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def varint(value):
    raw = bytearray()
    while value > 127:
        raw.append(value & 127 | 128)
        value >>= 7
    return bytes([*raw, value])


def tpu_space(op="copy.1"):
    """An XSpace of a TPU: texts as names with display names, device times, an asynchronous line, a host."""
    called = [(1, f"%{op} = f32[8,128]{{0,1}} copy(%p)", op), (2, "%copy.2 = f32[8,128]{1,0} copy(%copy.1)", ""),
              (3, "fusion.9", ""), (4, "while.3", "while.3")]  # fmt: skip
    metadata = [inside(4, number(1, k), inside(2, number(1, k), inside(2, name), inside(4, display)))
                for k, name, display in called]  # fmt: skip
    statistics = [inside(5, number(1, 7), inside(2, number(1, 7), inside(2, "device_duration_ps"))),
                  inside(5, number(1, 8), inside(2, number(1, 8), inside(2, "share"))),
                  inside(5, number(1, 9), inside(2, number(1, 9), inside(2, "hlo_module"))),
                  inside(5, number(1, 10), inside(2, number(1, 10), inside(2, "jit_step(77)")))]  # fmt: skip

    def event(kind, ps, *stats):
        return inside(4, number(1, kind), number(2, 5), number(3, ps), *(inside(4, stat) for stat in stats))

    share = number(1, 8) + varint(2 << 3 | 1) + struct.pack("<d", 0.5)
    device = [event(1, 4_000_000, share), event(1, 9_000_000, number(1, 7) + number(3, 5_000_000)),
              event(2, 6_000_000, number(1, 9) + number(7, 10)), event(3, 5_000_000),
              event(4, 50_000_000)]  # fmt: skip
    lines = [inside(3, inside(2, "XLA Ops"), *device), inside(3, inside(2, "Async XLA Ops"), event(1, 70_000_000))]
    tpu = inside(1, number(1, 1), inside(2, "/device:TPU:0"), *lines, *metadata, *statistics)
    host = inside(1, inside(2, "/host:CPU"), inside(3, inside(2, "python"), event(1, 10**9)), *metadata)
    return tpu + host + inside(4, "a host's name")


def test_the_wire_format_of_a_tpu(tmp_path):
    file = tmp_path / "vm.xplane.pb"
    file.write_bytes(tpu_space())
    program = load(HLO)
    profile = read_profile(file)
    assert profile.times["jit_step", "copy.2"] == (6.0, 1)
    assert profile.holds == "1 on /host:CPU python"
    found = report(program).with_profile(program, file)
    assert [(row.name, row.measured_us, row.measured_runs) for row in found.rows] == [
        ("copy.1", 9.0, 2),
        ("copy.2", 6.0, 1),
    ]
    assert (found.profile.total_us, found.profile.unmatched) == (20.0, ("fusion.9",))


def test_damaged_spaces_end_in_an_error(tmp_path):
    file, whole = tmp_path / "vm.xplane.pb", tpu_space()
    random = np.random.default_rng(3)
    for _ in range(300):
        raw = bytearray(whole[: random.integers(1, len(whole))])
        raw[random.integers(len(raw))] = random.integers(256)
        file.write_bytes(raw)
        try:
            read_profile(file)
        except UsageError as error:
            assert str(file) in str(error)


def test_what_computes_is_joined_too(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(tpu_trace()))
    program = load(HLO.replace("  ROOT copy.2", "  fusion.9 = f32[8,128]{1,0} add(p, p)\n  ROOT copy.2"))
    found = report(program).with_profile(program, file)
    assert [(row.name, row.category, row.measured_us) for row in found.slowest()][2] == ("fusion.9", "compute", 5.0)
    assert (found.profile.matched_us, found.profile.rows_us) == (20.0, 15.0)
    assert [row.name for row in found.rows] == ["copy.1", "fusion.9", "copy.2"]


def test_what_was_measured_leads(tmp_path):
    """Changes are ranked by what their operations took, not by what the model thought; two steps are in the profile."""
    text = """HloModule step, is_scheduled=true
ENTRY e {
  a = f32[1024,1024]{1,0} parameter(0)
  b = f32[2048,2048]{1,0} parameter(1)
  small = f32[1024,1024]{0,1} copy(a)
  large = f32[2048,2048]{0,1} copy(b)
  ROOT r = (f32[1024,1024]{0,1}, f32[2048,2048]{0,1}) tuple(small, large)
}"""
    program = load(text)
    modelled = report(program, "tpu-v6e")
    assert [change.op for change in modelled.suggestions] == ["large", "small"]
    file = tmp_path / "t.trace.json"
    names = thread(7, 2, "XLA Ops"), {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/device:TPU:0"}}
    file.write_text(json.dumps([*names, *[event("small", 900.0), event("large", 30.0)] * 2]))
    found = modelled.with_profile(program, file)
    assert [(change.op, change.saved_us) for change in found.suggestions] == [("small", 900.0), ("large", 30.0)]
    assert found.measured_us == 930.0
    assert any(line.startswith("measured step: 930 µs") for line in found.head_lines())
    assert "930 µs a step" in str(found.to_html())


def test_nothing_to_join_says_what_there_is(tmp_path):
    file = tmp_path / "vm.xplane.pb"
    file.write_bytes(tpu_space("copy.77").replace(b"copy.2", b"copy.8"))
    program = load(HLO.replace("jit_step", "jit_other"))
    with pytest.raises(
        UsageError, match=r"none of the operations .*\(copy\.77, .* is in jit_other; its other events: 1"
    ):
        report(program).with_profile(program, file)


HLO = """HloModule jit_step
ENTRY e {
  p = f32[8,128]{1,0} parameter(0)
  copy.1 = f32[8,128]{0,1} copy(p)
  ROOT copy.2 = f32[8,128]{1,0} copy(copy.1)
}
"""


def thread(pid, tid, name):
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def event(name, dur, tid=2, pid=7, **arguments):
    return {"ph": "X", "pid": pid, "tid": tid, "ts": 1.0, "dur": dur, "name": name, "args": arguments}


def tpu_trace():
    """What XProf writes for a TPU: names on "XLA Ops", texts as long_name, picoseconds of the device."""
    return [
        {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}},
        thread(7, 1, "XLA Modules"),
        thread(7, 2, "XLA Ops"),
        thread(7, 3, "Async XLA Ops"),
        thread(1, 2, "python"),
        event("jit_step(77)", 99.0, tid=1),
        event("copy.1", 4.0, hlo_category="data formatting"),
        event("copy.1", 9.0, device_duration_ps=5_000_000),
        event("renamed", 6.0, long_name="%copy.2 = f32[8,128]{1,0} copy(f32[8,128]{0,1} %copy.1)"),
        event("fusion.9", 5.0),
        event("while.3", 50.0),
        event("copy-start.1", 70.0, tid=3, long_name="%copy-start.1 = (f32[8]) copy-start(%p)"),
        event("copy.1", 1000.0, pid=1),
        {"ph": "X", "pid": 7, "tid": 2, "name": "copy.2", "args": {"device_duration_ps": "?"}},
        "no event",
    ]


@pytest.mark.parametrize("form", ["gzip", "plain", "list"])
def test_the_form_of_a_tpu(tmp_path, form):
    trace = tpu_trace() if form == "list" else {"traceEvents": tpu_trace()}
    raw = json.dumps(trace).encode()
    file = tmp_path / "t.trace.json"
    file.write_bytes(gzip.compress(raw) if form == "gzip" else raw)
    program = load(HLO)
    found = report(program).with_profile(program, file)
    assert [(row.name, row.measured_us, row.measured_runs) for row in found.rows] == [
        ("copy.1", 9.0, 2),
        ("copy.2", 6.0, 1),
    ]
    assert (found.profile.total_us, found.profile.matched_us, found.profile.rows_us) == (20.0, 15.0, 15.0)
    assert found.profile.unmatched == ("fusion.9",)
    assert found.profile.unmatched_share == pytest.approx(0.25)


def test_other_modules_are_left_out(tmp_path):
    events = [
        event("copy.1", 3.0, hlo_op="copy.1", hlo_module="jit_step"),
        event("copy.1", 40.0, hlo_op="copy.1", hlo_module="jit_other"),
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": events}))
    program = load(HLO)
    assert report(program).with_profile(program, file).profile.total_us == 3.0


def test_a_profile_of_another_program_is_refused(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [event("copy.1", 3.0, hlo_op="copy.1", hlo_module="jit_other")]}))
    program = load(HLO)
    with pytest.raises(UsageError, match="the profile times jit_other, not jit_step"):
        report(program).with_profile(program, file)


@pytest.mark.parametrize(
    ("name", "data", "error", "words"),
    [
        ("a.json", b"{}", UsageError, "no traceEvents"),
        ("a.json", b"[1, 2]", UsageError, "no event of an XLA operation"),
        ("a.json", b'[{"ph": "X", "dur": 1}]', UsageError, "its events: 1 on lines without a name"),
        ("a.json", b"{", UsageError, "not trace-viewer JSON"),
        ("a.json", b"[" * 100_000, UsageError, "not trace-viewer JSON"),
        ("a.json.gz", gzip.compress(b"[]", mtime=0)[:-4], UsageError, "damaged gzip"),
        ("a.json", b"\xff\xfe\x00", UsageError, "not trace-viewer JSON"),
        ("a.xplane.pb", b"", UsageError, "no event of an XLA operation"),
        ("a.xplane.pb", b"HloModule", UsageError, "not a profiler's XSpace"),
    ],
)
def test_what_is_no_trace(tmp_path, name, data, error, words):
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(error, match=words):
        read_profile(file)


def test_missing_files(tmp_path):
    with pytest.raises(UsageError, match="cannot read it"):
        read_profile(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"no \.xplane\.pb or \.trace\.json\.gz"):
        read_profile(tmp_path)


def test_stablehlo_has_no_measured_names(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(tpu_trace()))
    program = load("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    with pytest.raises(UsageError, match="StableHLO has none"):
        report(program, "cpu").with_profile(program, file)
