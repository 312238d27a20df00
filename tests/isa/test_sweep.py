"""sweep: every machine at its best, those that cannot be with their reason."""

import json
import sys

import pytest

from tilewright.cli import main
from tilewright.errors import UsageError
from tilewright.isa import MatrixUnitConfig, autotune, sweep


def test_every_machine_is_tuned_for_itself():
    over = {"threads": (16, 32), "l1_ports": (1, 2)}
    found = sweep(4, 6, 16, over, "bf16", MatrixUnitConfig(l1_bytes=1024), ka=1, order="k_outer")
    assert [tuple(each.settings.values()) for each in found] == [(16, 1), (16, 2), (32, 1), (32, 2)]
    for each in found:
        alone = autotune(4, 6, 16, "bf16", MatrixUnitConfig(l1_bytes=1024, **each.settings), ka=1, order="k_outer")
        assert each.tuning.best == alone.best
    assert found[1].tuning.best.cycles <= found[0].tuning.best.cycles


def test_machines_that_cannot_be_say_why():
    found = sweep(4, 4, 4, {"l1_bytes": (32, 4096)}, ka=1, kb=1)
    assert [each.tuning is None for each in found] == [True, False]
    assert "l1" in found[0].refused


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"ports": (1,)}, "no field 'ports'"),
        ({"threads": ()}, "no values"),
        ({"threads": range(1, 300)}, "299 machines"),
    ],
)
def test_what_cannot_be_swept(over, reason):
    with pytest.raises(UsageError, match=reason):
        sweep(4, 4, 4, over)


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["tilewright", "isa", "sweep", "--m", "4", "--n", "8", "--k", "16", *words])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    return code, capsys.readouterr()


def test_the_command(monkeypatch, capsys):
    code, printed = run(
        monkeypatch, capsys, "--over", "threads=4,8", "--over", "l1_bytes=32,4096", "--json", "--most", "12"
    )
    machines = json.loads(printed.out)["machines"]
    assert code == 0
    assert [each["settings"] for each in machines] == [
        {"threads": t, "l1_bytes": size} for t in (4, 8) for size in (32, 4096)
    ]
    assert [("refused" in each) for each in machines] == [True, False] * 2
    code, printed = run(monkeypatch, capsys, "--over", "threads=4,8,x", "--set", "l1_bytes=4096", "--most", "12")
    assert code == 0
    header, *rows = printed.out.splitlines()[:4]  # then that not all choices were timed
    assert header.split()[:3] == ["threads", "best", "choice"]
    assert [row.split()[0] for row in rows] == ["4", "8", "x"]
    assert [f"{each['cycles']:,}" in row for each, row in zip(machines[1::2], rows, strict=False)] == [True, True]
    assert "is not an integer" in rows[2]
    for wrong in (["--over", "threads"], ["--over", "threads=4", "--over", "threads=8"]):
        assert run(monkeypatch, capsys, *wrong)[0] == 2
