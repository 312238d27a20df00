"""A pytest plugin: ``pytest --tilewright-lint model.py:step`` has one more test, which fails where a finding pays."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.cli.programs.lint import TARGET, THRESHOLD, fails, findings, line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --tilewright-lint, --tilewright-target and --tilewright-threshold."""
    group = parser.getgroup("tilewright")
    group.addoption("--tilewright-lint", action="append", default=[], metavar="PROGRAM", help="lint model.py:step")
    group.addoption("--tilewright-target", default=TARGET, metavar="CHIP", help=f"the chip ({TARGET})")
    group.addoption(
        "--tilewright-threshold", type=float, default=THRESHOLD, metavar="FACTOR", help="fail from this factor on"
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test for each program that was named."""
    for program in config.getoption("--tilewright-lint"):
        items.append(LintItem.from_parent(session, name=f"tilewright-lint[{program}]", program=program))


class Findings(Exception):
    """What the rules found, a line each."""


class LintItem(pytest.Item):
    """One program; it passes if no finding's factor reaches the threshold."""

    def __init__(self, *, program: str, **given: Any) -> None:
        super().__init__(**given)
        self.program = program

    def runtest(self) -> None:
        """Raise the findings whose factor reaches the threshold."""
        target, threshold = (self.config.getoption(f"--tilewright-{name}") for name in ("target", "threshold"))
        failing = [line(each) for each in findings(self.program, target) if fails(each, threshold)]
        if failing:
            raise Findings("\n".join(failing))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings alone, without a traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, Findings) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The name that pytest shows for it."""
        return self.path, None, self.name
