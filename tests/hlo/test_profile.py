"""Measured times: a trace that jax.profiler writes here, the form of a TPU's, and what is refused."""

import gzip
import json

import pytest

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import join_profile, load, read_profile, report


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
    found = join_profile(report(program), program, read_profile(folder))
    profile = found.profile
    assert 0 < profile.rows_us <= profile.matched_us <= profile.total_us
    assert profile.unmatched_share < 0.5
    assert "while" not in " ".join(profile.unmatched)
    ranked = found.slowest()
    assert [row.measured_us for row in ranked] == sorted((row.measured_us for row in ranked), reverse=True)
    in_loop = next(row for row in ranked if row.trips == (5,))
    assert in_loop.measured_runs == 15  # three runs of five trips
    assert any("of the profile's time belongs to no operation" in note for note in found.notes)
    assert found.to_json()["profile"]["total_us"] == profile.total_us


def test_the_file_itself_can_be_named(traced):
    _, folder = traced
    (file,) = folder.rglob("*.trace.json.gz")
    assert read_profile(file).times == read_profile(folder).times


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
    found = join_profile(report(program), program, read_profile(file))
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
    assert join_profile(report(program), program, read_profile(file)).profile.total_us == 3.0


def test_a_profile_of_another_program_is_refused(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [event("copy.1", 3.0, hlo_op="copy.1", hlo_module="jit_other")]}))
    program = load(HLO)
    with pytest.raises(UsageError, match="the profile times jit_other, not jit_step"):
        join_profile(report(program), program, read_profile(file))


@pytest.mark.parametrize(
    ("name", "data", "error", "words"),
    [
        ("a.json", b"{}", UsageError, "no traceEvents"),
        ("a.json", b"[1, 2]", UsageError, "no event of an XLA operation"),
        ("a.json", b"{", UsageError, "not trace-viewer JSON"),
        ("a.json", b"[" * 100_000, UsageError, "not trace-viewer JSON"),
        ("a.json.gz", gzip.compress(b"[]", mtime=0)[:-4], UsageError, "cannot read it"),
        ("a.json", b"\xff\xfe\x00", UsageError, "not trace-viewer JSON"),
        ("a.xplane.pb", b"", UnsupportedError, "XSpace files"),
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
    with pytest.raises(UsageError, match=r"no \.trace\.json\.gz"):
        read_profile(tmp_path)


def test_stablehlo_has_no_measured_names(tmp_path):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(tpu_trace()))
    program = load("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n")
    with pytest.raises(UsageError, match="StableHLO has none"):
        join_profile(report(program, "cpu"), program, read_profile(file))
