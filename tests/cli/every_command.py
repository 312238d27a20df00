"""Every command once, on small things, and the extra it needs; run as a program it says which of them work.

    python tests/cli/every_command.py [--without jax,pyarrow,...] [--json]

The program needs nothing of the test environment, so that a wheel in an environment of its own is tried with it, from
a checkout's root. Packages after --without are hidden, as though they were not installed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = (
    "jax",
    "jaxlib",
    "optax",
    "orbax",
    "pyarrow",
    "tensorstore",
    "ray",
    "perfetto",
    "starlette",
    "uvicorn",
    "mcp",
)

DUMP = "{root}/tests/data/hlo_tpu/v5e_reshape_zoo.after.hlo"
STABLEHLO = "{root}/tests/data/hlo_tpu/v5e_patent_rb.stablehlo.mlir"
MODEL = "{root}/examples/dlrm.py"
PRODUCT = ["{root}/examples/product.tasm", "--iota", "A=s8[4,4]", "--iota", "B=s8[4,4]", "--zeros", "C=s32[4,4]"]
SIZES = ["--m", "4", "--n", "4", "--k", "4"]
PACK = (
    "%p = linalg.pack %x inner_dims_pos = [0, 1] inner_tiles = [8, 128] into %d "
    ": tensor<20x300xf32> -> tensor<3x3x8x128xf32>"
)
FEW = ["--steps", "2", "--batch", "64", "--scale", "0.0001"]
TILED = "bf16[20,300]{1,0:T(8,128)(2,1)}"

#: Words of a command, and the packages without which it can only say what is missing.
COMMANDS: list[tuple[list[str], tuple[str, ...]]] = [
    (["layout", "explain", TILED], ()),
    (["layout", "draw", TILED], ()),
    (["layout", "draw", TILED, "-o", "drawn.svg"], ()),
    (["layout", "compare", "f32[3,5]{1,0}", "f32[3,5]{0,1}"], ()),
    (["layout", "convert", TILED], ()),
    (["layout", "cute", "((2,2),8):((1,16),2)"], ()),
    (["layout", "lanes", "f16[2,3,4,5]", "--chip", "bm1684x"], ()),
    (["layout", "linalg", PACK], ()),
    (["layout", "onednn", "nChw16c", "f32[2,40,3,5]"], ()),
    (["layout", "pack", "x.npy", "f32[3,5]{1,0:T(2,2)}", "-o", "x.bin"], ()),
    (["layout", "unpack", "x.bin", "f32[3,5]{1,0:T(2,2)}", "-o", "y.npy"], ()),
    (["layout", "paged", "f16[8,8]", "--page", "4,4", "--line", "2,2"], ()),
    (["layout", "plan", "{root}/examples/conv_tensors.toml"], ()),
    (["layout", "plan", "{root}/tests/data/tpu_mlir/two_groups_final.mlir"], ()),
    (["layout", "predict", "bf16[32,224,224,3]"], ()),
    (["layout", "preset", "ascend_nz", "f16[100,64]"], ()),
    (["layout", "sharded", "f32[100,8]", "--shards", "4"], ()),
    (["isa", "asm", PRODUCT[0]], ()),
    (["isa", "claims"], ()),
    (["isa", "compile", STABLEHLO], ("jax",)),
    (["isa", "conv2d", "1x4x4x8", "3x3x8x4"], ()),
    (["isa", "explain", PRODUCT[0]], ()),
    (["isa", "explore", "--shapes", "shapes.txt", "--over", "threads=16,32", "--most", "1"], ()),
    (["isa", "matmul", *SIZES], ()),
    (["isa", "matmul", *SIZES, "-o", "product.pftrace"], ("perfetto",)),
    (["isa", "profile", *PRODUCT], ()),
    (["isa", "reference"], ()),
    (["isa", "roofline", *SIZES, "--no-what-if"], ()),
    (["isa", "run", *PRODUCT], ()),
    (["isa", "step", *PRODUCT, "-x", "run"], ()),
    (["isa", "sweep", *SIZES, "--over", "threads=64,128", "--most", "2"], ()),
    (["isa", "tune", *SIZES, "--most", "2"], ()),
    (["isa", "tune-conv2d", "1x4x4x8", "3x3x8x4", "--most", "2"], ()),
    (["embed", "plan", "--rows", "512", "--batch", "256", "--scale", "0.001", "-o", "limits.json"], ()),
    (["embed", "plan", "log.parquet"], ("pyarrow",)),
    (["embed", "plan", "log.parquet", "--engine", "ray", "--workers", "1"], ("ray",)),
    (["embed", "check", "clicks.tsv", "limits.json"], ()),
    (["embed", "diagnose", "clicks.tsv", "--batch", "64"], ()),
    (["embed", "explain-error", "message.txt"], ()),
    (["embed", "stats", "limits.json"], ()),
    (["embed", "train", MODEL, *FEW, "--checkpoint", "saved"], ("jax", "optax", "orbax")),
    (["embed", "export", "saved", "-o", "model.tables"], ("jax", "orbax")),
    (["embed", "quantise", MODEL, "--checkpoint", "saved", "--rows", "128", "--scale", "0.0001"], ("jax", "orbax")),
    (["explain-error", "{root}/tests/data/allocator_messages/01_estimator_particles.txt"], ()),
    (["report", DUMP], ()),
    (["report", STABLEHLO, "--target", "tpu-v5e"], ()),
    (["diff", DUMP, DUMP], ()),
    (["time", DUMP, "--target", "tpu-v5e"], ()),
    (["time", DUMP, "--target", "tpu-v5e", "-o", "step.pftrace"], ("perfetto",)),
    (["report", DUMP, "-o", "found.sarif"], ()),
    (["report", DUMP, "-o", "found.modelexplorer.json"], ()),
    (["report", "{root}/tests/data/step.jax_export", "--target", "tpu-v5e"], ("jax",)),
    (["report", "model.py:halves", "--arg", "f32[8,128]", "--target", "tpu-v5e"], ("jax",)),
    (["kernel", "check", "{root}/examples/pallas_matmul.py:matmul"], ("jax",)),
    (["kernel", "time", "{root}/examples/pallas_matmul.py:matmul"], ("jax",)),
    (["kernel", "explain", "{root}/examples/pallas_matmul.py:matmul"], ("jax",)),
    (["kernel", "run", "{root}/examples/pallas_cases.py:packed"], ("jax",)),
    (["lint", STABLEHLO, "--exit-zero"], ("jax",)),
    (["shard", STABLEHLO, "--mesh", "d=2"], ("jax",)),
    (["optimize", STABLEHLO, "--target", "vector8x128"], ("jax",)),
    (["optimize", "--list-passes"], ()),
    (["optimize", "--list-rules"], ()),
    (["verify", STABLEHLO, STABLEHLO, "--inputs", "zeros", "--no-eager"], ("jax",)),
    (["run", MODEL, *FEW, "--out", "result"], ("jax", "optax", "orbax")),
    (["explore", "--no-browser"], ("starlette", "uvicorn")),
    (["mcp"], ("mcp",)),
    (["targets"], ()),
    (["targets", "tpu-v5e"], ()),
    ([], ()),
]  # fmt: skip


class Hidden:
    """A finder that says of the packages it hides that there are none."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def called(words):
    """Exit code, stdout and stderr of a command in this process."""
    from tilewright.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    sys.argv, code = ["tilewright", *words], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


def make_inputs():
    """The files that the commands read, in the working folder."""
    import numpy as np

    np.save("x.npy", np.arange(15, dtype=np.float32).reshape(3, 5))
    row = "\t".join(["1", *["7"] * 13, *["68fd1e64"] * 26])
    Path("clicks.tsv").write_text(f"{row}\n" * 256)
    Path("shapes.txt").write_text("fc 1 gemm 4x4x4\n")
    Path("message.txt").write_text(
        "E3001: CompileTimeSparseCoreInvalidReplicaCount: No viable logical replica count for the embedding table with "
        "metadata: max_nz_per_row = 15360;\n fixed_size_allocation_bytes = 552960, "
        "row_dependent_size_allocation_bytes = 184320, total_spmem_size_bytes = 524128\n"
    )
    Path("model.py").write_text("import jax.numpy\ndef halves(x):\n    return jax.numpy.stack([x[:4], x[4:]])\n")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        Path("log.parquet").write_bytes(b"PAR1")
    else:
        columns = {"label": [0, 1] * 2048} | {f"I{k}": [1.0] * 4096 for k in range(1, 14)}
        parquet.write_table(pyarrow.table(columns | {f"C{k}": [0] * 4096 for k in range(1, 27)}), "log.parquet")


def try_all(folder, hidden):
    """(words, needed packages, exit code, the end of what was said) of every command, run in ``folder``."""
    os.chdir(folder)
    make_inputs()
    tried = []
    for words, needs in COMMANDS:
        words = [word.replace("{root}", str(ROOT)) for word in words]
        if words[:1] in (["explore"], ["mcp"]) and not hidden:
            continue  # they would wait for somebody to come
        code, out, err = called(words)
        tried.append((words, needs, code, err.strip() or out.strip()[-300:]))
    return tried


if __name__ == "__main__":
    hidden = sys.argv[2].split(",") if sys.argv[1:2] == ["--without"] else []
    sys.meta_path.insert(0, Hidden(hidden))
    as_json = "--json" in sys.argv
    with tempfile.TemporaryDirectory() as place:
        found = try_all(place, hidden)
        os.chdir("/")
    if as_json:
        print(json.dumps(found))
    else:
        for words, _, code, said in found:
            named = re.search(r"tilewright\[[\w,]+\]", said)
            print(
                code,
                " ".join(words)[:90].replace(str(ROOT), "."),
                "->",
                named[0] if named else said[-150:] if code else "",
                sep="\t",
            )
