"""Dump folders: which file of the many is the program, and which module is meant."""

import gzip
import lzma
import shutil

import jax
import jax.numpy as jnp
import pytest

from tilewright.errors import ParseError, UsageError
from tilewright.hlo import dumped_modules, load

HLO = "HloModule {name}\nENTRY e {{\n  ROOT p = f32[{size}]{{0}} parameter(0)\n}}\n"


@pytest.fixture
def folder(tmp_path):
    """What XLA writes on CPU, GPU and TPU, and beside it what is no program."""

    def write(name, module="m", size=4, data=None):
        (tmp_path / name).write_bytes(HLO.format(name=module, size=size).encode() if data is None else data)

    write("module_0001.jit_small.before_optimizations.txt")
    write("module_0001.jit_small.cpu_after_optimizations.txt", "small")
    write("module_0001.jit_small.cpu_after_optimizations-buffer-assignment.txt", data=b"BufferAssignment:")
    write("module_0001.jit_small.cpu_after_optimizations-memory-usage-report.txt", data=b"Total bytes" * 999)
    write("module_0002.jit_step.sm_8.0_gpu_after_optimizations.txt", "gpu", 10**9)
    write("module_0002.jit_step.thunk_sequence.txt", data=b"thunks")
    write("module_0003.jit_big.cl_813.after_optimizations.txt", "big", 10**12)
    write(
        "module_0004.jit_zip.tpu_after_optimizations.txt.gz",
        data=gzip.compress(HLO.format(name="zip", size=2).encode()),
    )
    write(
        "module_0006.jit_thin.tpu_after_optimizations.txt.xz",
        data=lzma.compress(HLO.format(name="thin", size=1).encode()),
    )
    write("module_0004.jit_zip.tpu_after_optimizations.hlo.pb", data=b"\n" * 999)
    write("module_0005.flagfile", data=b"--x")
    (tmp_path / "module_0001.jit_small").mkdir()
    return tmp_path


def test_the_largest_optimised_module_is_taken(folder):
    assert load(folder).name == "big"
    assert load(str(folder)).name == "big"
    found = {each.name: (each.path.name, each.stage) for each in dumped_modules(folder)}
    assert list(found)[:3] == ["module_0003.jit_big", "module_0002.jit_step", "module_0001.jit_small"]
    assert found["module_0004.jit_zip"] == (
        "module_0004.jit_zip.tpu_after_optimizations.txt.gz", "after optimizations",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("module_0001.jit_small", "small"),
        ("jit_step", "gpu"),
        ("*zip", "zip"),
        ("*thin", "thin"),
        ("jit", "big"),
        ("module_000[12]*", "gpu"),
    ],
)
def test_a_module_can_be_named(folder, module, name):
    assert load(folder, module).name == name


def test_what_there_is_when_nothing_was_optimised(tmp_path):
    (tmp_path / "jax_ir0_jit_f_compile.mlir").write_text("module @f {\n  func.func @main() {\n    return\n  }\n}\n")
    assert (load(tmp_path).name, dumped_modules(tmp_path)[0].stage) == ("f", "lowered")
    (tmp_path / "module_0001.jit_f.before_optimizations.txt").write_text(HLO.format(name="before", size=4))
    assert (load(tmp_path).name, dumped_modules(tmp_path)[0].stage) == ("before", "before optimizations")


def test_a_text_that_is_no_program_is_passed_by(tmp_path):
    (tmp_path / "readme.txt").write_text("What these files are.\n")
    with pytest.raises(UsageError, match="no program in this folder"):
        load(tmp_path)
    (tmp_path / "small.txt").write_text(HLO.format(name="small", size=4))
    assert load(tmp_path).name == "small"


def test_faults(folder, tmp_path_factory):
    with pytest.raises(UsageError, match=r"no module is called other; the folder has module_0001\.jit_small, "):
        load(folder, "other")
    with pytest.raises(UsageError, match="no program in this folder; --xla_dump_to=FOLDER"):
        load(tmp_path_factory.mktemp("empty"))
    with pytest.raises(UsageError, match="not a dump folder"):
        load(folder / "module_0005.flagfile", "jit")
    with pytest.raises(UsageError, match="cannot read it"):
        dumped_modules(folder / "nothing")
    (folder / "module_0003.jit_big.cl_813.after_optimizations.txt").write_text("HloModule m\n" + " " * 999)
    with pytest.raises(ParseError, match=r"module_0003\.jit_big\.cl_813\.after_optimizations\.txt: line 2"):
        load(folder)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """A folder with all that XLA writes, in both forms."""
    folder = tmp_path_factory.mktemp("dump")
    flags = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True}
    x, y = (jax.ShapeDtypeStruct((n, 128), jnp.float32) for n in (64, 128))
    jax.jit(lambda x, y: jnp.tanh(x @ y).reshape(64, 2, 64).sum(1)).lower(x, y).compile(compiler_options=flags)
    return folder


@pytest.mark.parametrize(("form", "other"), [("text", ".pb"), ("proto", ".txt")])
def test_what_xla_really_writes(dumped, tmp_path, form, other):
    folder = shutil.copytree(dumped, tmp_path / "one form", ignore=shutil.ignore_patterns(f"*{other}"))
    program = load(folder, "lambda")
    assert program.name == "jit__lambda"
    assert program.attributes["is_scheduled"] == "true"
    assert "f32[64,128]{1,0}" in {op.shape for op in program.entry.operations}
    assert all(load(each.path).kind == "hlo" for each in dumped_modules(folder))
