"""Findings as SARIF: what code scanning needs of each, places relative to the folder, names of any kind."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import unquote

import pytest

from tests.conftest import ROOT
from tilewright.hlo import Suggestion, load, report, suggestions_sarif

COPY = "HloModule m\nENTRY e {\n p = f32[4,2]{1,0} parameter(0)\n ROOT c = f32[4,2]{0,1} copy(p)%s\n}"


def checked(log):
    """The results of a log whose shape is the standard's, as far as this program writes it."""
    assert json.loads(json.dumps(log, allow_nan=False)) == log
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    run = log["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    for rule in run["tool"]["driver"]["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("warning", "note")
        assert result["message"]["text"]
        for place in result["locations"]:
            uri = place.get("physicalLocation", {}).get("artifactLocation", {}).get("uri", "x")
            assert uri.isascii()
            assert " " not in uri
            assert place.get("physicalLocation", {}).get("region", {}).get("startLine", 1) >= 1
    return run["results"]


def place_of(result):
    place = result["locations"][0]["physicalLocation"]
    return unquote(place["artifactLocation"]["uri"]), place["region"]["startLine"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "data" / "hlo_tpu").glob("*.before.hlo")), ids=lambda p: p.stem
)
def test_a_dump(path):
    found = report(load(path), "tpu-v5e")
    results = checked(found.to_sarif())
    assert len(results) >= len(found.suggestions)
    for result, suggestion in zip(results, found.suggestions):
        assert result["ruleId"] == suggestion.rule
        assert suggestion.how in result["message"]["text"]
        assert result["properties"]["savedBytes"] == suggestion.saved_bytes


def test_padding_is_told_by_line():
    text = "HloModule m\nENTRY e {\n p = f32[16,60,8]%s parameter(0)\n ROOT n = f32[16,60,8]%s negate(p)\n}"
    results = checked(report(load(text.replace("%s", "{2,1,0:T(8,128)}"))).to_sarif())
    (result,) = [each for each in results if "negate" in each["message"]["text"]]
    assert (result["ruleId"], result["level"], result["properties"]["wastedBytes"]) == ("padding", "warning", 493568)


def test_a_place_is_relative_where_the_file_is_here(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "my model.py").touch()
    found = report(load(COPY % ""))
    for written, shown in (
        (f"{tmp_path}/app/my model.py:7", ("app/my model.py", 7)),
        ("/home/ci/checkout/app/my model.py:7", ("app/my model.py", 7)),
        ("app/other.py:9", ("app/other.py", 9)),
        ("/elsewhere/../b.py:3", ("file:///elsewhere/../b.py", 3)),
        ("-:12", ("dump.hlo", 1)),
        ("", ("dump.hlo", 1)),
    ):
        placed = replace(found.suggestions[0], source=written)
        log = replace(found, suggestions=(placed,), source="dump.hlo").to_sarif(tmp_path)
        assert place_of(checked(log)[0]) == shown


def test_without_any_file_a_finding_names_its_operation():
    (result,) = checked(replace(report(load(COPY % "")), source="-").to_sarif())
    assert result["locations"] == [{"logicalLocations": [{"name": "c", "kind": "element"}]}]


@pytest.mark.parametrize(
    "name", ["a\nb.py:3", "\ud800.py:3", "a" * 5000 + ":3", "x.py:99999999999", "x.py:0", "\0:1", ":1"]
)
def test_names_of_any_kind(name, tmp_path):
    found = Suggestion("op", "rule", 2.0, "counted", "do this", name, "it costs", column=4)
    checked(suggestions_sarif([found, replace(found, factor=1.0)], "tpu-v5e", tmp_path))
