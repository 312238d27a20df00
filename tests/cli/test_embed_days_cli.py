"""Plans of logs of several days, as a user makes them."""

from __future__ import annotations

import json

from tests.embed.test_days import NOON, written
from tilewright.embed import read_config

MODEL = """
target = "tpu-v6e"
batch = 20
time = "at"
[[table]]
name = "user"
vocab = 100
width = 8
[[feature]]
name = "user"
ids = "direct"
"""


def test_a_plan_by_days_as_a_user_makes_it(run, tmp_path, monkeypatch):
    """By the file's time column, by --time, and by several files; on the terminal, the page and in JSON."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(MODEL)
    assert read_config("model.toml").time == "at"
    written(tmp_path, "log.csv", [t.isoformat() for t in NOON for _ in range(5)])
    code, out, _ = run("embed", "plan", "log.csv", "--config", "model.toml")
    assert code == 0
    assert "confidence: 1 of 2 later days exceeded what the days before gave (2026-11-26 in 100% of its" in out
    assert "later days against the limits of the days before" in out
    assert "max_ids_per_partition of user" in out
    assert run("embed", "plan", "log.csv", "--config", "model.toml", "-o", "plan.html")[0] == 0
    assert "Later days against the limits of the days before" in (tmp_path / "plan.html").read_text()
    (tmp_path / "model.toml").write_text(MODEL.replace('time = "at"\n', ""))
    _, by_option, _ = run("embed", "plan", "log.csv", "--config", "model.toml", "--time", "at", "--json")
    lines = (tmp_path / "log.csv").read_text().splitlines()
    names = ("mon.csv", "tue.csv", "wed.csv")
    for k, name in enumerate(names):
        (tmp_path / name).write_text("\n".join([lines[0], *lines[1 + 40 * k : 41 + 40 * k]]) + "\n")
    _, by_file, _ = run("embed", "plan", *names, "--config", "model.toml", "--json")
    option, file = (json.loads(text)["confidence"]["days"] for text in (by_option, by_file))
    assert [day.pop("name") for day in option] == ["2026-11-25", "2026-11-26"]
    assert [day.pop("name") for day in file] == list(names[1:])
    assert option == file
    _, out, _ = run("embed", "plan", "log.csv", "--config", "model.toml")
    assert "later days" not in out
    code, _, err = run("embed", "plan", "log.csv", "--config", "model.toml", "--engine", "local", "--time", "at")
    assert (code, "--time on a pod" in err) == (2, True)
