"""`tilewright shard`, and `--mesh` and `--shard` of the commands about programs."""

import json

import pytest

pytest.importorskip("jaxlib._hlo")

TEXT = """\
module @m {
  func.func public @main(%arg0: tensor<512x256xf32> loc("x"), %arg1: tensor<256x512xf32> loc("w")) -> tensor<512x512xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<512x256xf32>, tensor<256x512xf32>) -> tensor<512x512xf32> loc("model.py":3:4)
    return %0 : tensor<512x512xf32>
  }
}
"""  # noqa: E501


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(TEXT)
    return str(path)


MESH = ("--mesh", "d=4,m=2", "--shard", "x=d,m", "--shard", "w=m,-")


def test_one_program_cut_is_the_same_to_every_command(run, program, tmp_path):
    """The step of `time`, `report` and `shard`; what a device holds; a page with the torus."""
    page = tmp_path / "page.html"
    code, out, _ = run("shard", program, "-t", "tpu-v5e", *MESH, "--json", "-o", str(page))
    said = json.loads(out)
    assert (code, said["devices"], said["arguments_bytes"]) == (0, 8, (128 * 128 + 128 * 512) * 4)
    assert {each["op"] for each in said["collectives"]} == {"all-reduce"}
    assert "laid as JAX does: d over 4" in said["slice"]
    assert "Bytes over each link" in page.read_text()
    _, out, _ = run("time", program, "-t", "tpu-v5e", *MESH, "--json")
    assert json.loads(out)["device_seconds"] == pytest.approx(said["step"])
    code, out, err = run("report", program, "-t", "tpu-v5e", *MESH)
    assert out.startswith("a step ")
    assert "for 8 devices" in err


def test_a_mesh_that_cuts_nothing_is_said(run, program):
    code, out, err = run("shard", program, "-t", "tpu-v5e", "--mesh", "d=4")
    assert code == 0
    assert " on 1 device of tpu-v5e: " in out
    assert "note: nothing of it is cut; with --mesh, add --shard NAME=AXES,.. or --search" in err


def test_who_else_cuts_it_how(run, program, monkeypatch):
    code, out, _ = run("shard", program, "-t", "tpu-v5e", *MESH)
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines() if line.startswith(("XLA", "Shardy"))] == [
        "XLA (jaxlib)",
        "Shardy's passes",
    ]
    monkeypatch.setattr("tilewright.hlo.proving.tpu.find_spec", lambda name: None)
    for command in ("shard", "time", "report"):
        code, out, err = run(command, program, "-t", "tpu-v5e", *MESH, "--compile")
        assert (code, out) == (3, "")
        assert "the TPU compiler is not installed" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--shard", "x=d"), "go with --mesh"),
        (("--mesh", "d=3", "--shard", "x=d"), "3 devices do not divide"),
        (("--mesh", "d=4", "--shard", "y=d"), "no argument 'y'"),
        (("--mesh", "d=4", "--topology", "3x3"), "is not of 4 devices"),
        (("--mesh", "d=8", "-t", "tpu-v5e", "--topology", "2x2x2"), "no slice of chips with links in 2 dims; give"),
        (("--search",), "--search needs a mesh"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(run, program, words, reason):
    code, out, err = run("shard", program, *words)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.nightly
def test_a_search_says_what_to_type(run, program):
    code, out, _ = run("shard", program, "-t", "tpu-v5e", "--mesh", "d=4,m=2", "--search", "--most", "12")
    assert code == 0
    best = out.rstrip().rpartition("take it: ")[2]
    assert best.startswith("--shard ")
    words = [word.strip('"') for word in best.split()]
    code, again, _ = run("shard", program, "-t", "tpu-v5e", "--mesh", "d=4,m=2", *words, "--json")
    assert code == 0
    assert f"{json.loads(again)['step'] * 1e6:.1f}"[:3] in out


def test_an_axis_across_slices_is_told(run, tmp_path):
    """Sums over the axis that crosses two slices go over the data centre's network; the other axis sends nothing."""
    path = tmp_path / "model.py"
    path.write_text("def f(x, w, v):\n    return (x @ w) @ v\n")
    words = [f"--arg={shape}" for shape in ("bf16[4096,1024]", "bf16[1024,4096]", "bf16[4096,1024]")]
    words += ["--shard=x=data,-", "--shard=w=-,model", "--shard=v=model,-", "--topology", "2*2x2"]
    code, out, err = run("shard", f"{path}:f", "-t", "tpu-v5e", "--mesh", "model=2,data=4", *words)
    assert code == 0
    assert "in the order model, data, and model crosses slices: make the mesh with its axes as data, model" in (
        " ".join(out.split())
    )
    assert "model over 2 slices" in err
    code, out, _ = run("shard", f"{path}:f", "-t", "tpu-v5e", "--mesh", "data=4,model=2", *words)
    assert "crosses slices" not in out


def test_heads_that_do_not_divide(run, tmp_path):
    path = tmp_path / "model.py"
    path.write_text("def f(cache):\n    return cache + 1\n")
    code, _, err = run(
        *("shard", f"{path}:f", "--arg", "bf16[16,4096,6,128]", "--mesh", "data=2,model=4"),
        *("--shard", "cache=data,-,model,-"),
    )
    assert code == 2
    assert "dim 2 of cache has 6, which 4 devices do not divide; cut dim 1 (4,096) or dim 3 (128) over them" in err
