"""The doctor of upgrades: planted regressions, compiled by the TPU's compiler, are named with cause and line."""

from __future__ import annotations

import gzip

import pytest

from tests.conftest import VECTORS
from tilewright.errors import UsageError
from tilewright.hlo import diagnose_upgrade, load

PAIRS = sorted(path.name.removesuffix(".before.hlo.gz") for path in (VECTORS / "upgrades").glob("*.before.hlo.gz"))
CAUSES = {
    "lost_fusion": ("lost fusion", range(18, 21)),
    "added_transpose": ("new relayout", range(26, 29)),
    "wider": ("wider type", range(31, 34)),
    "changed_layout": ("changed layout", range(38, 39)),
    "new_copy": ("new copy", range(40, 45)),
    "unrolled": ("unrolled loop", range(48, 51)),
}


def module(name: str, side: str):
    return load(gzip.decompress((VECTORS / "upgrades" / f"{name}.{side}.hlo.gz").read_bytes()).decode())


@pytest.mark.parametrize("name", PAIRS)
def test_a_planted_regression_is_named_with_its_line(name):
    cause, lines = next(value for start, value in CAUSES.items() if name.startswith(start))
    diff = diagnose_upgrade(module(name, "before"), module(name, "after"), "tpu-v6e")
    first = (diff.slower() or diff.changes)[0]
    assert first.cause == cause, diff.lines()
    file, _, line = first.source.rpartition(":")
    assert file.endswith("pairs.py")
    assert int(line) in lines


@pytest.mark.parametrize("name", PAIRS[::6])
def test_equal_modules_have_nothing_to_say_and_a_swap_says_the_reverse(name):
    before, after = module(name, "before"), module(name, "after")
    assert not diagnose_upgrade(before, before, "tpu-v6e").changes
    there, back = diagnose_upgrade(before, after, "tpu-v6e"), diagnose_upgrade(after, before, "tpu-v6e")
    assert there.after.seconds == back.before.seconds
    assert there.to_json()["schema_version"] == 1


def test_stablehlo_is_refused():
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}"
    with pytest.raises(UsageError, match="StableHLO"):
        diagnose_upgrade(load(text), load(text), "tpu-v6e")
