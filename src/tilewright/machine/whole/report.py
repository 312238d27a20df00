"""The report of a whole run: its results as a page and as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.extras import installed
from tilewright.files import making_folder, write_whole
from tilewright.machine.whole.page import page
from tilewright.machine.whole.results import ProgramResults
from tilewright.render import Column, Page, glance
from tilewright.render.tables import glance_table
from tilewright.trace import perfetto_bytes


@dataclass(frozen=True)
class ProgramReport(ProgramResults):
    """What was found (see :class:`ProgramResults`), as a page and as files."""

    def to_page(self) -> Page:
        """One self-contained page; ``.html()`` is its text."""
        return page(self)

    def _repr_html_(self) -> str:
        """What a notebook shows; ``to_page()`` is the whole page."""
        studied = self.studied
        rows = [("memory", studied.memory.sentence), *((check.what, check.said) for check in studied.checks)]
        columns = (Column("what"), Column("result"))
        return glance(f"{self.model} on {self.target}", studied.headline, *self.failures, glance_table(columns, rows))

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, report.json and trace.pftrace into ``folder`` (made if need be); returns their paths.

        The trace is left out where the package that writes it (the extra ``trace``) is not installed.
        """
        files: dict[str, str | bytes] = {
            "report.html": self.to_page().html(),
            "report.json": json.dumps(self.to_json(), indent=2) + "\n",
        }
        if installed("perfetto"):
            files["trace.pftrace"] = perfetto_bytes(self.recorder)
        with making_folder(folder) as out:
            for name, data in files.items():
                write_whole(out / name, data)
        return tuple(out / name for name in files)
