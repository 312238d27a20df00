"""Every form of a program on the command line, and what the commands say about it."""

import gzip
import io
import json
import random

import pytest
from jaxlib import _hlo
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.conftest import ROOT, VECTORS
from tilewright.cli.programs.program import load_program
from tilewright.hlo.ir import context

GROUP_NORM = ROOT / "examples" / "group_norm.mlir"
HLO = """\
HloModule m, entry_computation_layout={(f32[3,5]{1,0})->f32[3,5]{0,1}}

ENTRY e {
  p = f32[3,5]{1,0} parameter(0)
  ROOT c = f32[3,5]{0,1} copy(p)
}
"""
PYTHON = """\
import jax.numpy as jnp
print("hello from the user's file")
def split(x):
    return x.reshape(x.shape[0], 4, -1).sum(1)
def broken(x):
    return x.nothing
"""


@pytest.fixture
def files(tmp_path):
    """One file of every form, and a folder."""
    text = GROUP_NORM.read_text()
    with context():
        stream = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(stream)
    contents = {
        "norm.mlir": text.encode(),
        "norm.mlirbc": stream.getvalue(),
        "norm.artifact": stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version()),
        "step.jax_export": (VECTORS / "step.jax_export").read_bytes(),
        "m.hlo": HLO.encode(),
        "m.hlo.pb": _hlo.hlo_module_from_text(HLO).as_serialized_hlo_module_proto(),
        "model.py": PYTHON.encode(),
    }
    for name, raw in contents.items():
        (tmp_path / name).write_bytes(raw)
        if name != "model.py":
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw, mtime=0))
    (tmp_path / "dump").mkdir()
    for number, name in enumerate(("jit_a", "jit_b")):
        text = HLO.replace("HloModule m", f"HloModule {name}") + "\n" * number
        (tmp_path / "dump" / f"module_000{number}.{name}.cpu_after_optimizations.txt").write_text(text)
    return tmp_path


FORMS = ["norm.mlir", "norm.mlirbc", "norm.artifact", "step.jax_export", "m.hlo", "m.hlo.pb"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_report_takes_every_form(run, files, form, zipped):
    code, out, err = run("report", str(files / (form + zipped)), "--target", "tpu-v5e", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"]


@pytest.mark.parametrize("form", FORMS[:3])
def test_optimize_takes_every_form_of_stablehlo(run, files, form):
    code, out, err = run("optimize", str(files / form), "--target", "vector8x128", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["moved_after"] < found["moved_before"]


def test_a_function_of_a_python_file(run, files):
    code, out, err = run("report", f"{files}/model.py:split", "--arg", "f32[8,64]", "-t", "tpu-v5e", "--json")
    assert (code, "hello from the user's file" in err) == (0, True), err
    assert {row["source"] for row in json.loads(out)["rows"]} == {f"{files}/model.py:4"}
    code, out, err = run("report", f"{files}/model.py:broken", "--arg", "f32[8]", "-t", "tpu-v5e")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"tilewright: {files}/model.py:6: tracing broken fails: AttributeError")


def test_a_dump_folder(run, files):
    code, out, err = run("report", str(files / "dump"))
    assert (code, out.split()[0]) == (0, "jit_b")
    assert "note: module_0001.jit_b.cpu_after_optimizations.txt" in err
    assert "the largest of 2 modules; --module NAME takes another: module_0000.jit_a" in err
    assert run("report", str(files / "dump"), "--module", "jit_a")[1].split()[0] == "jit_a"


def test_options_that_do_not_fit_get_a_remark(run, files):
    code, _, err = run("report", str(files / "m.hlo"), "--arg", "f32[8]", "--module", "x")
    assert code == 0
    assert "m.hlo is not a function of a Python file; --arg is ignored" in err
    assert "m.hlo is not a dump folder; --module is ignored" in err


def test_diff_of_a_file_and_a_function(run, files):
    code, _, err = run("diff", str(files / "norm.mlirbc"), f"{files}/model.py:split", "--arg", "f32[8,64]", "-t", "cpu")
    assert code == 0, err


def test_damaged_files_are_one_line(run, files):
    raw = (files / "norm.mlirbc").read_bytes()
    (files / "norm.mlirbc").write_bytes(raw[:99] + b"\xff\xff" + raw[101:200])
    code, out, err = run("report", str(files / "norm.mlirbc"), "--target", "cpu")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "norm.mlirbc: a damaged MLIR bytecode, or one of another version" in err


DUMPS = [
    pytest.param(path, id=path.name, marks=[pytest.mark.nightly] * (path.stat().st_size > 100_000))
    for path in sorted(VECTORS.glob("hlo_*/*"))
]


@pytest.mark.parametrize("path", DUMPS)
def test_every_dump_is_reported_on(run, path):
    """The two largest at night; by day the others of their kind."""
    code, out, err = run("report", str(path), "--target", "tpu-v5e", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert {type(row["moved_bytes"]) for row in rows} <= {int}
    code, out, err = run("report", str(path), "--target", "tpu-v5e")
    assert (code, any(" moved by " in line for line in out.splitlines()[:2])) == (0, True), err


# What XLA's CPU backend writes of a step with a loop, with the first value of each allocation.
ASSIGNMENT = """\
BufferAssignment:
allocation 0: size 16384, parameter 0, shape |f32[64,64]| at ShapeIndex {}, maybe-live-out:
 value: <24 w.1 @0> (size=16384,offset=0): f32[64,64]{1,0}
allocation 1: size 8192, maybe-live-out:
 value: <17 wrapped_tanh @0> (size=8192,offset=0): f32[32,64]{1,0}
allocation 2: size 8192, parameter 1, shape |f32[32,64]| at ShapeIndex {}:
 value: <25 x.1 @0> (size=8192,offset=0): f32[32,64]{1,0}
allocation 3: size 4, constant:
 value: <14 constant.3 @0> (size=4,offset=0): s32[]
allocation 4: size 16, output shape is |(f32[64,64], f32[32,64])|, maybe-live-out:
 value: <32 tuple.5{} @0> (size=16,offset=0): (f32[64,64]{1,0}, f32[32,64]{1,0})
allocation 5: size 16448, preallocated-temp:
 value: <15 wrapped_add @0> (size=4,offset=8256): s32[]
"""
TOTAL = 16384 + 8192 + 8192 + 4 + 16 + 16448


def beside(files, assignment=ASSIGNMENT, total=TOTAL):
    """A dump folder with the compiler's own texts beside its module."""
    stem = files / "dump" / "module_0001.jit_b.cpu_after_optimizations"
    stem.with_name(f"{stem.name}-buffer-assignment.txt").write_bytes(
        assignment if isinstance(assignment, bytes) else assignment.encode()
    )
    report = f"Memory Space: default (color=0)\nTotal bytes: {total} (48.1KiB)\n"
    stem.with_name(f"{stem.name}-memory-usage-report.txt").write_text(report * bool(total))
    return str(files / "dump")


def test_the_compilers_own_memory(files, capsys):
    folder = beside(files)
    facts = "6 allocations, 48.1 KiB in main memory: parameter 24.0 KiB, temp 16.1 KiB, output 8.02 KiB, constant 4 B"
    for source in (folder, f"{folder}/module_0001.jit_b.cpu_after_optimizations.txt"):
        load_program(source)
        said = capsys.readouterr().err
        assert "own memory report" in said
        assert facts in said
    on_a_tpu = ASSIGNMENT.replace("16448, ", "16448, color 1, page 0, ").replace("4, constant", "4, page 0, constant")
    load_program(beside(files, on_a_tpu, TOTAL - 16448))
    assert "parameter 24.0 KiB, output 8.02 KiB, constant 4 B" in capsys.readouterr().err


def test_a_damaged_assignment_is_not_used(files, capsys):
    draw, whole = random.Random(7), ASSIGNMENT.encode()
    cuts = [whole[: draw.randrange(len(whole))] for _ in range(30)]
    flips = [whole[:k] + draw.randbytes(3) + whole[k + 3 :] for k in (draw.randrange(len(whole)) for _ in range(30))]
    for text in (b"", b"\0", b"allocation 0: size 4:\n", *cuts, *flips):
        load_program(beside(files, text))
        said = capsys.readouterr().err
        assert ("buffer-assignment.txt is damaged" in said) != ("48.1 KiB in main memory: " in said)
    load_program(beside(files, whole[:-1], 0))
    assert "is damaged, cut off" in capsys.readouterr().err
