"""The explorer's questions, answered in a process of their own: input that nobody vouches for.

A question is JSON, and so is its answer. The process keeps what it has read (a program, a machine that was stepped) for
the next question.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tilewright.child import Child, ChildDied, ChildLate, bound, most_memory, serve
from tilewright.errors import ParseError, TilewrightError, UsageError
from tilewright.targets import target_names

MEMORY = most_memory()
#: Question -> (module that answers it, worker, most seconds). Typing waits for `quick` only; kernels compile in `slow`
#: on a first use.
QUESTIONS = {
    "layout": ("layouts", "quick", 10.0),
    "element": ("layouts", "quick", 5.0),
    "place": ("layouts", "quick", 5.0),
    "compare": ("layouts", "quick", 10.0),
    "program": ("programs", "slow", 120.0),
    "graph": ("programs", "slow", 60.0),
    "operation": ("programs", "slow", 10.0),
    "kernel": ("programs", "slow", 120.0),
    "matrix": ("matrix", "slow", 120.0),
    "plan": ("plans", "slow", 180.0),
}


class Worker:
    """The process, seen from the server: started by the first question, one question at a time."""

    def __init__(self) -> None:
        self.child = Child("tilewright.explore.worker")

    def ask(self, question: str, values: Mapping[str, Any], path: str | None, seconds: float) -> str:
        """The answer as JSON text: ``{"value": ...}`` or ``{"error": {"what": ..., ...}}``."""
        asked = {"ask": question, "values": dict(values), "path": path}
        try:
            return self.child.ask(json.dumps(asked).encode(), seconds).decode()
        except ChildDied:
            return _error("the process that worked on this has died; nothing else was lost")
        except ChildLate as error:
            return _error(error.what)

    def close(self) -> None:
        """End the process, whatever it is doing; nothing is answered any more."""
        self.child.close()


def _error(what: str) -> str:
    return json.dumps({"error": {"what": what}})


def main() -> None:
    bound(MEMORY)
    sys.setrecursionlimit(2000)
    serve(lambda question, _: answer(json.loads(question)).encode())


def answer(question: Mapping[str, Any]) -> str:
    """The answer to one question, as JSON text on one line; whatever goes wrong is an answer, too."""
    name = question["ask"]
    try:
        home = import_module(f"tilewright.explore.{QUESTIONS[name][0]}")
        work: Callable[..., Any] = getattr(home, name)
        value = work(Question(question["values"], question["path"]))
        return json.dumps({"value": value}, allow_nan=False)
    except ParseError as error:
        return json.dumps({"error": {"what": str(error), "caret": error.caret(80)}})
    except TilewrightError as error:
        return json.dumps({"error": {"what": str(error)}})
    except MemoryError:
        return _error(f"this needs more than {MEMORY >> 30} GiB of memory")
    except RecursionError:
        return _error("nested too deeply")
    except Exception as error:
        return _error(f"a fault in tilewright itself, {type(error).__name__}: {' '.join(str(error).split())[:300]}")


def known_target(name: str) -> str:
    """The name, if it is a chip's that comes with the package (with a rule behind it or not), or ""."""
    if name and name.partition(":")[0] not in target_names():
        raise UsageError(f"no target called {name[:60]!r}", how=f"known targets: {', '.join(target_names())}")
    return name


class Question:
    """The values of a question, checked as they are taken: what is missing or of another kind is the given default."""

    def __init__(self, values: Mapping[str, Any], path: str | None = None) -> None:
        self.values, self.path = values, path

    def text(self, name: str, most: int = 20_000) -> str:
        """A text; UsageError where it is longer than ``most``."""
        value = self.values.get(name, "")
        if not isinstance(value, str):
            return ""
        if len(value) > most:
            raise UsageError(f"longer than {most:,} characters", where=name)
        return value

    def target(self, default: str = "") -> str:
        """The name of a chip that is known here; never a file that describes one. UsageError for another."""
        return known_target(self.text("target", 100) or default)

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 31) -> int:
        """A whole number, brought between ``least`` and ``most``."""
        value = self.values.get(name, default)
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 53
        return max(least, min(most, int(value) if whole else default))

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers of a list, or of a text as ``2, 3``; None where there is nothing."""
        value = self.values.get(name)
        if value in (None, "", []):
            return None
        words = value.strip(" ()[],").split(",") if isinstance(value, str) else value
        try:
            return tuple(int(str(word).strip()) for word in words[:4096])
        except (TypeError, ValueError):
            raise UsageError(f"not whole numbers such as 2,3: {str(value)[:60]!r}", where=name) from None

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name)
        return [str(word)[:1000] for word in value[:64]] if isinstance(value, list) else []
