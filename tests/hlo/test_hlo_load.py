"""Loading: formats are told by content; paths, texts, bytes, gzip; binary forms in another process; from_jax."""

import gzip
import io
import lzma
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jaxlib import _hlo
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tests.conftest import VECTORS
from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.hlo import from_jax, load, optimize, report, verify
from tilewright.hlo.ir import context
from tilewright.hlo.jaxlib_child import CHILD
from tilewright.hlo.reading.loading import binary_form

HLO = "HloModule m\nENTRY e {\n  ROOT p = f32[4]{0} parameter(0)\n}\n"
STABLEHLO = (
    "module @m {\n  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n    return %x : tensor<4xf32>\n  }\n}\n"
)
ADD = """\
HloModule add, entry_computation_layout={(f32[3,5]{1,0})->f32[5,3]{0,1}}

ENTRY e {
  p = f32[3,5]{1,0} parameter(0)
  c = f32[3,5]{0,1:T(8,128)} copy(p), metadata={op_name="jit(f)/copy" source_file="model.py" source_line=7}
  ROOT t = f32[5,3]{0,1} transpose(c), dimensions={1,0}
}
"""


def grouped(x):
    return x.reshape(8, 3, 4, 8).sum((1, 3)) * 2


@pytest.fixture(scope="module")
def lowered():
    return from_jax(grouped, jax.ShapeDtypeStruct((8, 3, 32), jnp.float32))


def bytecode(text):
    with context():
        stream = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(stream)
        return stream.getvalue()


def artifact(text):
    return stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version())


def proto(text):
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def wrapped(raw):
    """A protobuf message with ``raw`` in field 1, and another field after it."""
    length, prefix = len(raw), b"\n"
    while length > 127:
        prefix += bytes([length & 127 | 128])
        length >>= 7
    return prefix + bytes([length]) + raw + b"\x1a\x02\x08\x01"


def names(program):
    return [(op.opcode, op.shape) for op in program.entry.operations]


@pytest.mark.parametrize(("text", "kind"), [(HLO, "hlo"), (STABLEHLO, "stablehlo")])
def test_text_bytes_path_and_packed_files(tmp_path, text, kind):
    path, packed = tmp_path / "program.dat", tmp_path / "program.xz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    packed.write_bytes(lzma.compress(text.encode()))
    for source in (text, text.encode(), gzip.compress(text.encode(), mtime=0), path, str(path), packed):
        program = load(source)
        assert (program.kind, program.name, program.text) == (kind, "m", text)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("// a comment\n\n", None),
        ("\ufeff", None),
        ("#loc = loc(unknown)\n", "stablehlo"),
        ("/* a\n comment */ ", "hlo"),
    ],
)
def test_what_may_stand_before_a_program(start, kind):
    for text, its_kind in ((HLO, "hlo"), (STABLEHLO, "stablehlo")):
        if kind in (None, its_kind):
            assert load((start + text).encode()).kind == its_kind


OLD = """module {
  func.func public @broadcast(%x: tensor<16xf32>) -> tensor<1x16xf32> {
    %0 = stablehlo.broadcast %x, sizes = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    return %0 : tensor<1x16xf32>
  }
  func.func public @select(%x: tensor<5x1x5xf32>, %i: tensor<2xi32>) -> tensor<2x1x5xf32> {
    %0 = "stablehlo.torch_index_select"(%x, %i) {batch_dims = 0 : i64, dim = 0 : i64}
      : (tensor<5x1x5xf32>, tensor<2xi32>) -> tensor<2x1x5xf32>
    return %0 : tensor<2x1x5xf32>
  }
  func.func public @dynamic(%x: tensor<?xf32>, %n: tensor<2xi32>) -> tensor<?x?xf32> {
    %0 = stablehlo.dynamic_reshape %x, %n : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x?xf32>
    return %0 : tensor<?x?xf32>
  }
}"""


@pytest.mark.parametrize("version", ["0.9.0", "0.14.0", "1.0.0", None])
def test_artifacts_of_old_versions(version):
    """Operations that recent programs hardly have, in the bytecode of releases back to the first."""
    raw = stablehlo.serialize_portable_artifact_str(OLD, version or stablehlo.get_minimum_version())
    program = load(raw)
    assert [c.name for c in program.computations] == ["broadcast", "select", "dynamic"]
    assert [row.bitcast for row in report(program, "tpu-v5e").rows] == [True]


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (b"ML\xefR\x0dStableHLO_v1.0.0\x00", UsageError, "damaged MLIR bytecode"),
        (b"ML\xefR", UsageError, "damaged MLIR bytecode"),
        (b"\n\x01m\x1a\x03\n\x01e", UsageError, "damaged HLO proto"),
        (b"\n\x04main\x12\x80\xff", UnsupportedError, "neither a text"),
        (gzip.compress(HLO.encode(), mtime=0)[:-9], UsageError, "damaged gzip"),
        (b"\x1f\x8b not gzip", UsageError, "damaged gzip"),
        (lzma.compress(HLO.encode())[:-9], UsageError, "damaged xz file: it ends too early"),
        (b"\xfd7zXZ\x00 not xz", UsageError, "damaged xz"),
        (b"", ParseError, "neither HLO text"),
        ("def f(x):\n  return x", ParseError, "neither HLO text"),
        ("no/such/file.hlo", UsageError, "No such file"),
        ("a\0b", UsageError, "cannot read it"),
    ],
)
def test_what_is_refused_and_why(source, error, reason):
    with pytest.raises(error, match=reason):
        load(source)


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "bad.hlo"
    path.write_text("HloModule m\nENTRY e {\n  a = \n}")
    with pytest.raises(ParseError, match=r"bad\.hlo: line 4, column 1: expected a shape"):
        load(path)
    path.write_bytes(b"ML\xefRx")
    with pytest.raises(UsageError, match=r"bad\.hlo: a damaged MLIR bytecode"):
        load(path)


@pytest.mark.parametrize("form", [bytecode, artifact])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytecode_is_the_program_it_was_made_of(lowered, form, pack):
    program = load(pack(form(lowered.text)))
    assert (program.kind, program.name, names(program)) == ("stablehlo", "jit_grouped", names(lowered))
    reshape, original = (next(op for op in p.entry.operations if op.opcode == "reshape") for p in (program, lowered))
    assert reshape.source == original.source
    assert reshape.source.line == grouped.__code__.co_firstlineno + 1


def test_bytecode_can_be_optimized_and_run(lowered):
    done = optimize(load(artifact(lowered.text)), "vector8x128")
    assert [each.name for each in done.rewrites] == ["reduce-of-reshape"]
    assert verify(lowered, done.program, inputs=["normal"], eager=False).ok


def test_what_jax_export_wrote():
    """The file holds `jax.export.export(jax.jit(step))(...).serialize()` of jax 0.10.2."""
    raw = (VECTORS / "step.jax_export").read_bytes()
    program = load(raw)
    step = next(c for c in program.computations if any(op.opcode == "tanh" for op in c.operations))
    assert program.name == "jit_step"
    assert next(op for op in step.operations if op.opcode == "tanh").source.file == "model.py"
    assert report(program, "tpu-v5e").rows


@pytest.mark.parametrize("wrap", [0, 1, 2], ids=["HloModuleProto", "HloProto", "HloSnapshot"])
def test_protos_are_the_program_they_were_made_of(wrap):
    raw = proto(ADD)
    for _ in range(wrap):
        raw = wrapped(raw)
    program = load(raw)
    assert (program.kind, program.name, names(program)) == ("hlo", "add", names(load(ADD)))
    assert str(program.entry.operations[1].source) == "model.py:7"


def test_texts_are_no_protos():
    assert binary_form(HLO.encode()) is None
    assert binary_form(b"\n\x02\x80\x01\x1a\x00") is None  # a name that is no text
    assert binary_form(b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01") is None
    assert binary_form(b"12345678" + b"\x05\x00\x00\x00ML\xefR!") == ("mlir", b"ML\xefR!")
    assert binary_form(b"12345678" + b"\x06\x00\x00\x00ML\xefR!") is None


def test_the_reading_process_is_started_again_after_it_died(lowered):
    raw = bytecode(lowered.text)
    load(raw)
    first = CHILD.pid
    os.killpg(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert names(load(raw)) == names(lowered)
    assert CHILD.pid != first


CRASHES = """
import os, signal, sys
from tilewright.hlo import ir
from tilewright.hlo import jaxlib_child as child
ir.bytecode_text = lambda raw: eval(raw)
for code in sys.argv[1:]:
    answer = child._served(b"m", code.encode(), 1)
    print(answer[:1], answer[1:], flush=True)
"""


def test_whatever_a_file_does_to_the_parser_is_an_answer():
    codes = ["os.abort()", "os.kill(os.getpid(), 11)", "[x for x in iter(int, 1)]", "b'x' * (1 << 42)", "1/0", "'text'"]
    code = "import os\n" + CRASHES
    done = subprocess.run([sys.executable, "-c", code, *codes], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == [
        "b'd' b'jaxlib crashes on it (SIGABRT)'",
        "b'd' b'jaxlib crashes on it (SIGSEGV)'",
        "b'd' b'reading it takes more than 1 s'",
        "b'e' b'it asks for more memory than there is'",
        "b'e' b'division by zero'",
        "b't' b'text'",
    ]


def test_from_jax_takes_jitted_functions_and_shapes():
    def f(x, y):
        return (x + y["a"]).reshape(3, 2).T

    shape = jax.ShapeDtypeStruct((6,), jnp.bfloat16)
    for fn in (f, jax.jit(f)):
        program = from_jax(fn, shape, {"a": shape})
        assert [op.opcode for op in program.entry.operations[2:]] == ["add", "reshape", "transpose", "return"]
        assert program.entry.operations[-2].shape == "bf16[2,3]"
        assert program.text.startswith("#loc")
        assert program.entry.operations[2].source.line == f.__code__.co_firstlineno + 1


def test_reading_and_reporting_do_not_import_jax_nor_does_the_child_of_the_tpu_compiler():
    """That child imports nothing of the command line either."""
    code = f"""import sys, tilewright.hlo.proving.tpu
import tilewright.hlo as h
h.report(h.load({HLO!r})).to_html()
print("jax" in sys.modules, "typer" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
