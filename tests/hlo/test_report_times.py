"""Modelled times in the movement report: each row's, as `estimate` gives it, or none where there is no model."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.cli.conftest import completed
from tests.conftest import ROOT, VECTORS
from tilewright.errors import UsageError
from tilewright.hlo import estimate, from_jax, load, report
from tilewright.render import seconds_text

GPT2 = ROOT / "benchmarks/data/tpu_measured/gpt2/tpu-v6e_gpt2_s512_b1.hlo.gz"


@pytest.fixture(scope="module")
def gpt2():
    program = load(gzip.decompress(GPT2.read_bytes()).decode())
    return report(program, "tpu-v6e"), estimate(program, "tpu-v6e")


def test_rows_have_the_times_of_the_step(gpt2):
    found, step = gpt2
    assert found.time.step_us == pytest.approx(step.seconds * 1e6)
    times = {row.name: row for row in step.rows}
    alone = [row for row in found.rows if row.name in times and not row.in_fusion]
    assert len(alone) > 50
    for row in alone:
        assert row.modelled_us == pytest.approx(times[row.name].seconds * 1e6)
        assert row.bound == times[row.name].bound
    assert all(row.modelled_us is None for row in found.rows if row.in_fusion)
    assert all(row.modelled_us == 0 for row in found.rows if row.bitcast and not row.in_fusion)


def test_a_transfer_takes_what_its_end_waits(gpt2):
    found, step = gpt2
    waits = {row.name: row.seconds for row in step.rows if row.op.endswith("-done")}
    starts = {row.name: row for row in found.rows if row.op.endswith("-start")}
    assert sum(row.modelled_us for row in starts.values()) == pytest.approx(sum(waits.values()) * 1e6)
    assert starts["copy-start.28"].modelled_us == pytest.approx(waits["copy-done.28"] * 1e6)


def test_the_ranking_is_by_time_and_keeps_the_bytes(gpt2):
    found, _ = gpt2
    times = [row.modelled_us or 0.0 for row in found.slowest()]
    assert times == sorted(times, reverse=True)
    lines = [line for _, line in found.ranking_lines("time", top=3, transfers=True, only=["transfer"])]
    assert lines[0].split() == ["#", "time", "share", "moved", "padding", "registers", "operation"]
    slowest = max(row.modelled_us for row in found.rows if row.op.endswith("-start"))
    assert lines[1].split()[1:3] == seconds_text(slowest / 1e6).split()
    assert "6.75 MiB" in lines[1]
    assert "time" in next(line for _, line in found.ranking_lines("moved")).split()


CALLS = """func.func @main(%x: tensor<4096x512xbf16>, %w: tensor<512x512xbf16>) -> tensor<4096x8x64xbf16> {
  %0 = call @split(%x, %w) : (tensor<4096x512xbf16>, tensor<512x512xbf16>) -> tensor<4096x8x64xbf16>
  %1 = stablehlo.reshape %0 : (tensor<4096x8x64xbf16>) -> tensor<4096x512xbf16>
  %2 = call @split(%1, %w) : (tensor<4096x512xbf16>, tensor<512x512xbf16>) -> tensor<4096x8x64xbf16>
  return %2 : tensor<4096x8x64xbf16>
}
func.func private @split(%x: tensor<4096x512xbf16>, %w: tensor<512x512xbf16>) -> tensor<4096x8x64xbf16> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4096x512xbf16>, tensor<512x512xbf16>) -> tensor<4096x512xbf16>
  %1 = stablehlo.reshape %0 : (tensor<4096x512xbf16>) -> tensor<4096x8x64xbf16>
  return %1 : tensor<4096x8x64xbf16>
}
"""


def test_what_is_called_twice_takes_both_times():
    step = estimate(load(CALLS), "tpu-v6e")
    assert sum(row.flops for row in step.rows) == 2 * 2 * 4096 * 512 * 512
    found = report(load(CALLS), "tpu-v6e")
    assert step.device_seconds == pytest.approx(sum(row.seconds for row in step.rows))
    assert found.time.device_us == pytest.approx(1e6 * step.device_seconds)


@pytest.mark.parametrize("target", [None, "vector8x128", "simt"])
def test_without_a_model_nothing_changes(target):
    text = (VECTORS / "hlo_tpu/v5e_reshape_zoo.after.hlo").read_text()
    found = report(load(text), target)
    assert found.time is None
    assert {row.modelled_us for row in found.rows} == {None}
    assert [row.name for row in found.slowest()] == [row.name for row in found.ranked()]
    assert all(row.category != "compute" for row in found.rows)
    assert found.rows == tuple(
        row.__class__(**{**{n: getattr(row, n) for n in row.__slots__}, "modelled_us": None, "bound": ""})
        for row in report(load(text), "tpu-v5e").rows
        if row.category != "compute"
    )


def test_everything_in_a_dump_has_a_row_with_its_time(gpt2):
    found, step = gpt2
    assert sum(row.modelled_us or 0.0 for row in found.rows) == pytest.approx(found.time.device_us, rel=1e-3)
    first = found.slowest()[0]
    assert (first.category, first.moved_bytes, first.bound) == ("compute", 0, step.slowest(1)[0].bound)
    assert first.reason.startswith("computes, a fusion of convolution")
    inside = [row for row in found.rows if row.in_fusion and not row.bitcast]
    assert inside
    assert all(row.modelled_us is None and row.inside_us for row in inside)


def test_prefetches_fold_away(gpt2):
    found, _ = gpt2
    for by in ("time", "moved"):
        folded, listed = (
            "\n".join(line for _, line in found.ranking_lines(by, top=999, transfers=each)) for each in (False, True)
        )
        assert "copy-start" not in folded
        assert f"{len(found.transfers)} prefetches and write-backs of 475 MiB" in folded
        assert "copy-start" in listed
        assert "(--transfers lists them)" not in listed
    page = found.to_html()
    assert page.index("<details><summary>") < page.index("prefetches and write-backs of 475 MiB")


def test_reports_are_read_back_and_so_are_older_ones(gpt2):
    found, _ = gpt2
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["schema_version"] == 2
    assert type(found).from_json(plain) == found
    del plain["time"]
    for row in plain["rows"]:
        del row["modelled_us"], row["bound"]
    old = type(found).from_json(plain)
    assert (old.time, old.moved_bytes) == (None, found.moved_bytes)


def test_a_terminal_and_a_page_rank_by_time(tmp_path):
    done = completed("report", GPT2, "--target", "tpu-v6e", COLUMNS="100", NO_COLOR="1")
    out = done.stdout.decode()
    step = estimate(load(gzip.decompress(GPT2.read_bytes()).decode()), "tpu-v6e")
    assert f"modelled step on tpu-v6e: {seconds_text(step.device_seconds)}" in out
    assert "      time  share      moved  padding" in out
    assert "times are modelled: constants of tpu-v6e fitted" in done.stderr.decode()
    assert max(map(len, out.splitlines())) <= 100
    page = tmp_path / "page.html"
    assert completed("report", GPT2, "--target", "tpu-v6e", "-o", page).returncode == 0
    assert '"sort":"modelled"' in page.read_text()
    assert "Operations by time" in page.read_text()


HLO = """HloModule jit_step
ENTRY e {
  p = f32[4096,128]{1,0:T(8,128)} parameter(0)
  copy.1 = f32[4096,128]{0,1:T(8,128)} copy(p)
  ROOT add.2 = f32[4096,128]{0,1:T(8,128)} add(copy.1, copy.1)
}
"""


def profiled(tmp_path, name, microseconds=30.0):
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": microseconds, "name": name, "args": {"hlo_op": name}}
    file = tmp_path / "t.trace.json"
    file.write_text(json.dumps({"traceEvents": [event, event]}))
    return file


def test_a_profile_puts_measured_beside_modelled(tmp_path):
    (tmp_path / "step.hlo").write_text(HLO)
    words = (
        "report",
        tmp_path / "step.hlo",
        "-t",
        "tpu-v6e",
        "--profile",
        profiled(tmp_path, "copy.1"),
        "--by",
        "time",
    )
    done = completed(*words, COLUMNS="100", NO_COLOR="1")
    lines = done.stdout.decode().splitlines()
    at = next(number for number, line in enumerate(lines) if "one run" in line)
    head, first = lines[at : at + 2]
    assert head.split() == ["#", "time", "share", "events", "one", "run", "modelled", "moved", "operation"]
    modelled = next(row.seconds for row in estimate(load(HLO), "tpu-v6e").rows if row.name == "copy.1") * 1e6
    assert first.split()[1:10] == ["60.0", "µs", "100.0", "%", "2", "30.0", "µs", f"{modelled:.2f}", "µs"]


def test_a_profile_of_other_names_joins_nothing_and_says_so(tmp_path):
    program = load(HLO)
    with pytest.raises(UsageError, match=r"nothing to join: none of the operations .*\(fusion.7\) is in jit_step"):
        report(program).with_profile(program, profiled(tmp_path, "fusion.7"))
    found = report(program).with_profile(program, profiled(tmp_path, "add.2"))
    assert any(note.startswith("no operation that moves has a measured time") for note in found.notes)


REPEATED = """func.func @main(%x: tensor<512x1024xbf16>, %w: tensor<4096x1024xbf16>) -> tensor<512x1024xbf16> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 2] : (tensor<512x1024xbf16>) -> tensor<512x4x1024xbf16>
  %1 = stablehlo.reshape %0 : (tensor<512x4x1024xbf16>) -> tensor<512x4096xbf16>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]
    : (tensor<512x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<512x1024xbf16>
  return %2 : tensor<512x1024xbf16>
}
"""


def test_what_stands_alone_between_kernels_takes_time_of_its_own():
    program = load(REPEATED)
    found, step = report(program, "tpu-v6e"), estimate(program, "tpu-v6e")
    moving = found.ranked()
    assert [row.op for row in moving] == ["reshape", "broadcast_in_dim"]
    assert [row.modelled_us > 0 for row in moving] == [True, False]  # the reshape's kernel does the broadcast
    assert moving[0].bound == "hbm"
    lone = [row for row in step.rows if row.op in ("reshape", "broadcast_in_dim")]
    assert [row.seconds * 1e6 for row in lone] == [moving[0].modelled_us]
    assert found.time.device_us == pytest.approx(1e6 * step.device_seconds)
    assert step.device_seconds == pytest.approx(sum(row.seconds for row in step.rows))
    first = found.suggestions[0]
    assert (first.kind, first.saved_us) == ("predicted", pytest.approx(moving[0].modelled_us))


def test_a_loop_writes_into_its_carried_array_in_place():
    import jax
    import jax.numpy as jnp

    def steps(x):
        return jax.lax.scan(lambda carry, row: (carry * 0.5 + row, jnp.tanh(carry + row)), x[0], x)[1]

    step = estimate(from_jax(steps, jnp.zeros((256, 64, 1024))), "tpu-v6e")
    updates = [row for row in step.rows if row.op == "dynamic_update_slice"]
    assert updates
    assert all(row.bytes < 4 * 256 * 64 * 1024 * 4 for row in updates)
