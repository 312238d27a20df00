"""A run's report: what it found, and the files that show it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.machine.page import page
from tilewright.machine.results import RunResults
from tilewright.render import Page
from tilewright.trace import write_perfetto


@dataclass(frozen=True)
class RunReport(RunResults):
    """Everything a run measured (see :class:`RunResults`), as a page and as files."""

    def to_page(self) -> Page:
        """One self-contained page; ``.html()`` is its text."""
        return page(self)

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, report.json and trace.pftrace into ``folder`` (made if need be); returns their paths."""
        out = make_folder(folder)
        (out / "report.json").write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", "utf-8")
        self.to_page().write(out / "report.html")
        write_perfetto(self.recorder, out / "trace.pftrace")
        return out / "report.html", out / "report.json", out / "trace.pftrace"


def make_folder(folder: str | Path) -> Path:
    """The folder, made if need be and shown to be writable; :class:`UsageError` where it cannot be."""
    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".tilewright-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        problem = f"cannot write into it: {error.strerror or error}"
        raise UsageError(problem, where=str(out), how="give another folder with --out") from None
    return out
