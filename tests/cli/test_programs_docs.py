"""The tutorial's prose and running.md say what is printed; the tutorial's example trains as it did."""

from __future__ import annotations

import importlib.util
import re

import pytest


@pytest.fixture
def place(tmp_path, monkeypatch, root):
    """A folder with the examples in it, for commands that write beside them."""
    (tmp_path / "examples").symlink_to(root / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorials_prose(run, place, root):
    page = " ".join((root / "docs" / "tutorial_group_norm.md").read_text().split())
    _, out, _ = run("report", "examples/resnet_groupnorm.py:group_norm", "--target", "vector8x128", "--top", "2")
    said = " ".join(out.split())
    assert said.count("136 MiB 20.2 %") == 2
    assert "136 MiB each" in page
    reason = "dim 3 (256) splits into dims 3 (32) and 4 (8), but dim 4 (8) of the result is cut by the tile 128"
    assert reason in said
    assert reason in page
    _, out, _ = run("optimize", "examples/resnet_groupnorm.py:group_norm", "--target", "vector8x128", "--diff")
    assert re.search(r"^\+.*reshape .*tensor<8x256xf32>\) -> tensor<8x32x8xf32>", out, re.M)
    assert re.search(r"^-.*reshape .*tensor<8x32x32x256xf32>\) -> tensor<8x32x32x32x8xf32>", out, re.M)


def test_the_example_measures_every_function_it_names(root, monkeypatch, capsys):
    """With small sizes, so that it takes no time; the lines are those of the tutorial but for the times."""
    spec = importlib.util.spec_from_file_location("resnet_groupnorm", root / "examples" / "resnet_groupnorm.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, size in {"BATCH": 2, "SIDE": 4, "CHANNELS": 64, "NARROW": 64}.items():
        monkeypatch.setattr(example, name, size)
    monkeypatch.setattr(example, "fastest", lambda functions, arguments: (2.0, 1.0))
    example.main()
    printed = [re.sub(r"[\d. ]+", " ", line) for line in capsys.readouterr().out.splitlines()]
    page = (root / "docs" / "tutorial_group_norm.md").read_text()
    shown = page.partition("$ ./run python examples/resnet_groupnorm.py\n")[2].partition("```")[0].splitlines()
    assert printed == [re.sub(r"[\d. ]+", " ", line) for line in shown]


@pytest.mark.nightly
def test_rewritten_training_is_the_same_training(root):
    """The example's step: equal losses and parameters, the gate's choice for the CPU.

    By day tests/hlo/test_optimize_function.py takes gradients of what is rewritten, and the test above the example.
    """
    import jax
    import numpy as np

    import tilewright

    spec = importlib.util.spec_from_file_location("resnet_groupnorm", root / "examples" / "resnet_groupnorm.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.BATCH, example.SIDE = 2, 8
    fast = tilewright.optimize(example.train_step, target="cpu")
    params, images, labels = example.training_arguments()
    rewritten = params
    for _ in range(3):
        loss, params = jax.jit(example.train_step)(params, images, labels)
        fast_loss, rewritten = fast(rewritten, images, labels)
        assert float(fast_loss) == pytest.approx(float(loss), rel=1e-4, abs=1e-6)
    assert fast.fallback(params, images, labels) == ""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), rewritten, params)


def test_the_page_on_running(root, tmp_path, capsys):
    page = (root / "docs" / "running.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    promised = [line[4:] for line in re.search(r"prints\n\n((?:    .*\n)+)", page)[1].splitlines()]
    names = {}
    exec(compile(code, "sums.py", "exec"), names)
    assert capsys.readouterr().out.splitlines() == promised
    assert names["batched"].shape == (2, 256, 4)
    assert names["gradient"].shape == names["x"].shape
