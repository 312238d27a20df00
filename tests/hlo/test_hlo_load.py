"""Loading: formats are told by content; paths, texts, bytes, gzip; from_jax."""

import gzip
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.hlo import from_jax, load

HLO = "HloModule m\nENTRY e {\n  ROOT p = f32[4]{0} parameter(0)\n}\n"
STABLEHLO = (
    "module @m {\n  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n    return %x : tensor<4xf32>\n  }\n}\n"
)


@pytest.mark.parametrize(("text", "kind"), [(HLO, "hlo"), (STABLEHLO, "stablehlo")])
def test_text_bytes_path_and_gzip(tmp_path, text, kind):
    path = tmp_path / "program.dat"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    for source in (text, text.encode(), gzip.compress(text.encode(), mtime=0), path, str(path)):
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


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (b"ML\xefR\x0dStableHLO_v1.0.0\x00", UsageError, "damaged MLIR bytecode"),
        (b"\n\x04main\x12\x80\xff", UnsupportedError, "neither a text"),
        (gzip.compress(HLO.encode(), mtime=0)[:-9], UsageError, "damaged gzip"),
        (b"\x1f\x8b not gzip", UsageError, "damaged gzip"),
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


def test_reading_and_reporting_do_not_import_jax():
    code = f"import sys, tilewright.hlo as h; h.report(h.load({HLO!r})).to_html(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
