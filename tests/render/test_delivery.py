"""How a result is delivered: to the terminal, as JSON, to a file by its suffix; and how two of them are compared."""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tilewright.errors import UsageError
from tilewright.render import Column, Output, Page, Table, deliver, table
from tilewright.render.compare import Comparison, Quantity, changes
from tilewright.render.delivery import Line


@dataclass(frozen=True)
class Fit:
    """A new result: how much of a memory its arrays take. All that it wants is here, in one file."""

    memory: int
    arrays: Mapping[str, int]

    @property
    def used(self) -> int:
        return sum(self.arrays.values())

    def to_json(self) -> dict[str, Any]:
        return {"kind": "fit", "memory": self.memory, "used": self.used, "arrays": dict(self.arrays)}

    def lines(self) -> Iterator[Line]:
        yield f"{self.used / self.memory:.0%} of the memory is used"
        yield Table(("array", ("size", "bytes")), self.arrays.items())

    def page(self) -> str:
        page = Page("What fits", f"{self.used / self.memory:.0%} of the memory")
        page.section("arrays", "Arrays", table((Column("array", "code"), ("size", "bytes")), self.arrays.items()))
        page.data("fit", self.to_json())
        return page.html()


FIT_QUANTITIES = (
    Quantity("bytes used", "bytes", "less", "used"),
    Quantity("arrays", "count", "neither", "arrays", len),
)


def compare_fits(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    return Comparison("fit", "Two fits", "before", "after", changes(FIT_QUANTITIES, before, after))


BEFORE, AFTER = Fit(8192, {"x": 4096, "y": 2048}), Fit(8192, {"x": 4096})


def test_a_new_result_is_forty_lines():
    parts = [inspect.getsource(part) for part in (Fit, compare_fits)]
    quantities = 4
    assert sum(len(part.splitlines()) for part in parts) + quantities <= 40


def test_terminal(capsys):
    deliver(BEFORE, Output())
    assert capsys.readouterr() == ("75% of the memory is used\narray      size\nx      4.00 KiB\ny      2.00 KiB\n", "")


def test_json(capsys):
    deliver(BEFORE, Output(as_json=True))
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema_version": 1, **BEFORE.to_json()}
    assert err == ""


def test_a_file_by_its_suffix_and_a_remark(tmp_path, capsys):
    for suffix in (".json", ".html", ".txt"):
        path = str(tmp_path / f"fit{suffix}")
        deliver(BEFORE, Output(path, False, ".json", ".html", ".txt"), {".txt": lambda: "six\n"}, said=())
        assert capsys.readouterr() == ("", f"wrote {path}\n")
    assert json.loads((tmp_path / "fit.json").read_text())["used"] == 6144
    assert (tmp_path / "fit.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "fit.txt").read_text() == "six\n"


def test_a_file_beside_the_terminal_and_beside_json(tmp_path, capsys):
    path = str(tmp_path / "fit.json")
    deliver(BEFORE, Output(path, False, ".json"), wrote="all of it", notes=["modelled"])
    out, err = capsys.readouterr()
    assert out.startswith("75%")
    assert err == f"wrote {path}: all of it\nnote: modelled\n"
    deliver(BEFORE, Output(path, True, ".json"), notes=["modelled"])
    out, err = capsys.readouterr()
    assert json.loads(out)["used"] == 6144
    assert err == f"wrote {path}\n"


def test_stdout_takes_the_first_form_and_nothing_else(capsys):
    deliver(BEFORE, Output("-", False, ".json", ".html"))
    out, err = capsys.readouterr()
    assert json.loads(out)["used"] == 6144
    assert err == ""


@pytest.mark.parametrize(
    ("path", "as_json", "suffixes", "problem"),
    [
        ("fit.png", False, (".json", ".html"), "no writer for 'fit.png'; end the name in .json or .html"),
        ("-", True, (".json",), "-o - and --json both want stdout"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(path, as_json, suffixes, problem):
    with pytest.raises(UsageError, match=problem):
        Output(path, as_json, *suffixes)


def test_the_longest_suffix_counts():
    assert Output("x.graph.JSON", False, ".json", ".graph.json").suffix == ".graph.json"
    assert Output("x.htm", False, ".html", ".htm").suffix == ".html"


def test_two_of_them_compared(capsys):
    compared = compare_fits(BEFORE.to_json(), AFTER.to_json())
    assert compared.sentence == "1 better, 0 worse, 0 the same"
    deliver(compared, Output())
    assert "bytes used  6.00 KiB  4.00 KiB  -2.00 KiB (-33.3 %)  better" in capsys.readouterr().out
    assert compared.to_json()["changes"][1] == {"name": "arrays", "before": 2, "after": 1, "verdict": "neither"}
    assert "Two fits beside each other" in compared.page()
