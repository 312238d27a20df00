"""The doctor of upgrades: planted regressions, compiled by the TPU's compiler, are named with cause and line."""

from __future__ import annotations

import gzip
import json
from functools import cache

import pytest

from tests.cli.conftest import completed
from tests.conftest import VECTORS
from tilewright.errors import UsageError
from tilewright.hlo import diagnose_upgrade, load

FOLDER = VECTORS / "upgrades"
PLANTED = json.loads((FOLDER / "planted.json").read_text())


def module(name: str, side: str):
    return load(gzip.decompress((FOLDER / f"{name}.{side}.hlo.gz").read_bytes()).decode())


@cache
def diagnosed(name: str):
    return diagnose_upgrade(module(name, "before"), module(name, "after"), PLANTED[name]["chip"])


def test_every_kind_is_planted():
    causes = [planted["cause"] for planted in PLANTED.values()]
    assert len(causes) >= 40
    assert {cause: causes.count(cause) >= 4 for cause in set(causes)} == dict.fromkeys(
        (
            *("lost fusion", "new relayout", "wider type", "changed layout", "new copy"),
            *("unrolled loop", "offloaded"),
        ),
        True,
    )


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_regression_is_named_first_and_with_its_line(name):
    planted, diff = PLANTED[name], diagnosed(name)
    first = diff.changes[0]
    assert first.cause == planted["cause"], diff.lines()
    file, _, line = first.source.rpartition(":")
    assert file.rpartition("/")[2] == planted["file"]
    assert int(line) in planted["lines"], diff.lines()


@pytest.mark.parametrize("name", sorted(PLANTED)[::4])
def test_equal_modules_have_nothing_to_say_and_a_swap_says_the_reverse(name):
    before, after, chip = module(name, "before"), module(name, "after"), PLANTED[name]["chip"]
    same = diagnose_upgrade(before, before, chip)
    assert not same.changes
    assert same.lines()[-1] == "no operation takes longer or less"
    there, back = diagnose_upgrade(before, after, chip), diagnose_upgrade(after, before, chip)
    assert there.after.seconds == back.before.seconds
    assert sum(c.seconds for c in there.changes) == pytest.approx(-sum(c.seconds for c in back.changes), abs=1e-7)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_what_the_changes_add_up_to_is_the_difference(name):
    diff = diagnosed(name)
    named = sum(change.seconds for change in diff.changes)
    assert named == pytest.approx(diff.after.seconds - diff.before.seconds, abs=0.02 * diff.after.seconds)


def test_the_account_names_units_peaks_and_lines():
    lines = diagnosed("offloaded_words").lines()
    assert lines[0].startswith("modelled step on tpu-v6e: ")
    assert "sparsecore 0 s -> " in lines[1]
    assert any(line.endswith("  offloaded  models.py:32") for line in lines)
    assert "gather runs on the SparseCore now" in " ".join(lines)
    plain = diagnosed("wider_gate").to_json()
    assert plain["schema_version"] == 1
    assert plain["peak_bytes"]["after"] > plain["peak_bytes"]["before"]
    assert plain["lanes"]["matrix"]["after"] > plain["lanes"]["matrix"]["before"]


def test_the_command_prints_writes_and_draws_it(tmp_path):
    sides = [FOLDER / f"lost_fusion_conv.{side}.hlo.gz" for side in ("before", "after")]
    printed = completed("diff", *sides, "--target", "tpu-v5p", COLUMNS="100").stdout.decode()
    assert "  lost fusion  models.py:78" in printed
    assert max(map(len, printed.splitlines())) <= 100
    plain = json.loads(completed("diff", *sides, "--target", "tpu-v5p", "--json").stdout)
    assert plain["time"]["changes"][0]["cause"] == "lost fusion"
    assert "time" not in json.loads(completed("diff", *sides, "--json").stdout)
    page = tmp_path / "page.html"
    assert completed("diff", *sides, "--target", "tpu-v5p", "-o", page).returncode == 0
    text = page.read_text()
    assert "lost fusion" in text
    assert "Lanes before" in text


def test_stablehlo_is_refused():
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}"
    with pytest.raises(UsageError, match="StableHLO"):
        diagnose_upgrade(load(text), load(text), "tpu-v6e")
