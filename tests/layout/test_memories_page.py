"""docs/layout_memories.md names the chips there are."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from tilewright.targets import target, target_names

PAGE = ROOT / "docs" / "layout_memories.md"


def test_the_table_of_chips_is_the_targets():
    rows = re.findall(
        r"^\| `([a-z0-9`, ]+)` \| (\d+) \| (\d+) \| (\d+) KiB \| (\d+) \| (\d+|-) \|$", PAGE.read_text(), re.M
    )
    shown = {name: tuple(int(v) if v != "-" else 0 for v in row[1:]) for row in rows for name in row[0].split("`, `")}
    chips = {name: target(name).lanes for name in target_names() if target(name).lanes}
    assert shown == {
        name: (c.npu_num, c.eu_bytes, c.local_bytes // 1024, c.banks, c.ic_parallel) for name, c in chips.items()
    }
