"""docs/pages-and-traces.md: its programs run and make what it says."""

import re

import pytest

from tilewright.layout import predict


def blocks(root):
    text = (root / "docs" / "pages-and-traces.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_page(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks(root)[0], names)
    html = (tmp_path / "padding.html").read_text(encoding="utf-8")
    assert '<section id="arrays">' in html
    for name, data, memory, ratio in names["rows"]:
        dtype, _, dims = name.rstrip("]").partition("[")
        layout = predict("tpu", tuple(map(int, dims.split(","))), dtype)
        assert (layout.data_bytes, layout.size_bytes) == (data, memory)
        assert layout.padding_ratio == pytest.approx(ratio, rel=1e-3)


def test_the_page_of_many_rows(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec("\n".join(blocks(root)[:2]), names)
    html = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert '"sort":"in-memory"' in html
    assert all(name in html for name, *_ in names["rows"])


def test_a_result_of_ones_own(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks(root)[:4]), {})
    out, err = capsys.readouterr()
    assert out.startswith("75% of the memory is used")
    assert "1 better, 0 worse, 0 the same" in out
    assert err == "wrote fit.html\n"
    assert "What fits" in (tmp_path / "fit.html").read_text(encoding="utf-8")


def test_the_trace(root, tmp_path, monkeypatch):
    pytest.importorskip("perfetto")
    monkeypatch.chdir(tmp_path)
    exec(blocks(root)[-1], {})
    assert (tmp_path / "trace.pftrace").stat().st_size > 100
