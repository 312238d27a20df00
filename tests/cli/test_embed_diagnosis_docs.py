"""docs/embedding_diagnosis.md is true: the run it shows, its Python, and the table of rules."""

from __future__ import annotations

import re

from tilewright.embed.diagnosis.diagnose import RULES


def text_of(root):
    return (root / "docs" / "embedding_diagnosis.md").read_text(encoding="utf-8")


def test_the_run_it_shows(root, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = text_of(root)
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    shown = re.search(r"```console\n\$ \./run tilewright embed diagnose run.toml\n(.*?)\n\.\.\.\n```", text, re.DOTALL)[
        1
    ]
    code, out, _ = run("embed", "diagnose", "run.toml")
    assert code == 1
    assert out.startswith(shown)


def test_its_python(root):
    (block,) = re.findall(r"```python\n(.*?)```", text_of(root), re.DOTALL)
    names: dict[str, object] = {}
    checked = []
    names["claim"] = lambda value, expected: checked.append(value == expected)
    exec(re.sub(r"^(\S.*?)  # (.*)$", r"claim(\1, \2)", block, flags=re.MULTILINE), names)
    assert checked == [True, True]


def test_its_table_is_the_rules(root):
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", text_of(root), re.MULTILINE)
    assert rows == [(rule.name, rule.when, rule.source) for rule in RULES]
