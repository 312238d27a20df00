"""`tilewright explain-error`: one entrance for every message about memory that is full."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tests.hlo.allocator_messages import EXPECTED, FOLDER, TEXTS


def test_the_flag_that_a_message_names_is_in_the_answer(run):
    _, out, _ = run("explain-error", str(FOLDER / "28_gave_up_early.txt"))
    assert "set LIBTPU_INIT_ARGS=--xla_tpu_impure_oom_fast_exit_threshold=-1" in out


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_message(run, name):
    code, out, err = run("explain-error", str(FOLDER / name))
    assert (code, err) == (0, "")
    assert out.strip()
    code, out, _ = run("explain-error", str(FOLDER / name), "--json")
    plain = json.loads(out)
    assert (code, plain["schema_version"], plain["kind"]) == (0, 1, "explained_errors")
    assert len(plain["allocator"]) == EXPECTED[name]["messages"]
    assert len(plain["sparsecore"]) == EXPECTED[name]["sparsecore_errors"]


def test_stdin_and_a_text_as_the_argument(run, monkeypatch):
    text = TEXTS["32_device_buffer.txt"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    first = run("explain-error", "-")
    second = run("explain-error", text)
    assert first == second
    assert first[1].startswith("run time: an array takes 144.25M; 61.40M are free\n")


def test_both_kinds_in_one_log(run):
    _, out, _ = run("explain-error", str(FOLDER / "43_sparsecore_and_hbm.txt"))
    assert "compile time: the program needs" in out
    assert "tpu-v5p, update (measured)" in out
    code, out, _ = run("embed", "explain-error", str(FOLDER / "43_sparsecore_and_hbm.txt"), "--json")
    assert (code, len(json.loads(out)["errors"])) == (0, 2), "the embed room still reads what it read"


def test_options_of_sparsecores_are_handed_on(run):
    head = "Can't fit a single row. TileSpmem bytes: 524128; Available bytes: 1000; Row bytes: 1113568"
    assert "give the stack's width" not in run("explain-error", head, "--width", "16")[1]
    code, _, err = run("explain-error", head, "--width", "17")
    assert code == 2
    assert "give the width of the stack" in err


def test_top(run):
    out = run("explain-error", str(FOLDER / "01_estimator_particles.txt"), "--top", "1")[1]
    assert "2 more" in out
    assert sum(line.startswith(tuple("123")) and "f32" in line for line in out.splitlines()) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing_of_this_name.txt", "neither a file nor an error's text"),
        ("my program is slow, what now?", "no TPU allocator message in the text"),
        ("Mosaic failed to compile TPU kernel: a new way", "this message about a kernel is not known"),
        ("No viable logical replica count", "only the head of an error"),
    ],
)
def test_what_is_no_message(run, given, said):
    code, out, err = run("explain-error", given)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_bytes_that_are_no_text(run, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, err = run("explain-error", str(path))
    assert code == 2
    assert "not UTF-8 text" in err


def test_a_kernel_and_a_full_memory_in_one_log(run):
    kernel = "ValueError: Cannot store scalars to VMEM"
    code, out, _ = run("explain-error", kernel)
    assert (code, out.splitlines()[0][:28]) == (0, "a kernel is refused: one num")
    text = f"{TEXTS['37_e1001_kernel.txt']}\n{kernel}"
    assert "a kernel is refused" in run("explain-error", text)[1]
    plain = json.loads(run("explain-error", text, "--json")[1])
    assert (len(plain["allocator"]), len(plain["kernels"])) == (1, 1)
