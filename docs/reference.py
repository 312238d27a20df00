"""The reference of the Python names: which there are, what shows each of them at work, and a page for every room.

A public name is one that ``tilewright`` or one of its rooms exports. Each stands in the reference with an example of
its own docstring, or with links: to pages of these docs that use it, or to names that take, give or mention it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from docstrings import inline  # beside this file

DOCS = Path(__file__).parent
#: The rooms, each with the pages to begin with and the order of its folders.
ROOMS = {
    "tilewright": ("README.md tutorial_group_norm.md", ""),
    "layout": ("layout.md layout_memories.md", "kinds index draw move convert"),
    "hlo": (
        "report.md optimize.md time.md verify.md",
        "reading reporting timing comparing gating rewriting running proving",
    ),
    "isa": ("matrix_unit.md matrix_unit_tools.md", "multiply language execute chip study"),
    "embed": ("embeddings.md embedding_plan.md tutorial_training.md", "model host device training planning diagnosis"),
    "machine": ("run.md tutorial_training.md", ""),
    "explore": ("explore.md", ""),
    "targets": ("time.md tenstorrent.md", ""),
    "render": ("pages-and-traces.md", ""),
    "trace": ("pages-and-traces.md", ""),
}
#: Names that nothing else leads to, and the names to look at.
SEE = {
    "LimitError": "embeddings.md",
    "layout.warm": "commands.md",
    "layout.IndexRangeError": "TensorLayout layout.md",
    "hlo.record_passes": "run_pipeline optimize.md",
    "hlo.DEFAULT_PIPELINE": "parse_pipeline optimize.md",
    "hlo.REWRITES": "parse_pipeline optimize.md",
    "hlo.diff_reports": "report report.md",
    "hlo.list_rules": "catalogue rules.md",
    "hlo.names_python": "load loading.md",
    "hlo.python_module": "from_python loading.md",
    "trace.XEvent": "read_profile",
    "trace.XPlane": "read_profile",
    "embed.CATEGORICAL": "read_criteo embedding_plan.md",
    "embed.COUNTERS_TEMPLATE": "read_counters embedding_diagnosis.md",
    "embed.CRITEO_CARDINALITIES": "scale_vocabs synthetic_criteo",
    "embed.F2A": "RowOptimizer embeddings.md",
    "embed.FDO_SUFFIXES": "embedding_statistics.md",
    "embed.FTRL": "RowOptimizer embeddings.md",
    "embed.OPTIMIZERS": "RowOptimizer embeddings.md",
    "embed.AdagradMomentum": "RowOptimizer embeddings.md",
    "embed.LaProp": "RowOptimizer embeddings.md",
    "embed.RowwiseAdagrad": "RowOptimizer embeddings.md",
    "embed.LimitsFile": "read_limits embedding_plan.md",
    "embed.names_sparsecores": "explain_error embedding_diagnosis.md",
    "embed.optimizer_of": "read_config tutorial_training.md",
    "embed.read_torchrec": "embedding_statistics.md",
    "explore.Explorer": "serve explore.md",
    "explore.serve": "Explorer explore.md",
    "machine.join": "fit tutorial_training.md",
    "targets.target_names": "target time.md",
}
GENERATED = ("README.md", "commands.md", "rules.md", "instructions.md")


@dataclass
class Name:
    """A public name, and where it is to be seen at work."""

    room: str
    name: str
    value: Any
    home: str
    words: str
    example: bool = False
    pages: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.name if self.room == "tilewright" else f"{self.room}.{self.name}"

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        first = " ".join(self.words.partition("\n\n")[0].split())
        return re.split(r"(?<=[^.][.])(?= [A-Z`]|$)", first)[0].rstrip(":")


def room_module(room: str) -> Any:
    """The package of a room."""
    return import_module("tilewright" if room == "tilewright" else f"tilewright.{room}")


@cache
def public_names() -> tuple[Name, ...]:
    """Every public name with its examples and links."""
    names = [described(room, name) for room in ROOMS for name in room_module(room).__all__ if name != "__version__"]
    pages = [page for page in sorted(DOCS.glob("*.md")) if page.name not in GENERATED]
    words = {page.name: words_of(page.read_text(encoding="utf-8")) for page in pages}
    for each in names:
        each.pages = [
            page
            for page, used in words.items()
            if {each.name, f"{each.room}.{each.name}", f"tilewright.{each.room}.{each.name}"} & used
        ]
    for room in ROOMS:
        here = [each for each in names if each.room == room]
        mentions = {each.name: mentioned(each) for each in here}
        for each in here:
            near = [o for o in here if each.name in mentions[o.name] or o.name in mentions[each.name]]
            shown = sorted(near, key=lambda other: not (other.example or other.pages))
            see = SEE.get(each.path, "").split()
            each.near = [*(o.name for o in shown if o is not each), *(name for name in see if "." not in name)]
            each.pages += [name for name in see if "." in name]
    return tuple(names)


def described(room: str, name: str) -> Name:
    """A name with what its own docstring says."""
    value = getattr(room_module(room), name)
    own = inspect.isclass(value) or inspect.isroutine(value)
    words = (inspect.getdoc(value) or "") if own else ""
    members = vars(value).values() if inspect.isclass(value) else ()
    example = any(">>> " in (inspect.getdoc(each) or "") for each in (value, *members)) if own else False
    home = getattr(value, "__module__", "") if own else ""
    return Name(room, name, value, home, words, example)


def mentioned(each: Name) -> set[str]:
    """Words of its annotations, and what its docstring sets as code."""
    members = vars(each.value).values() if inspect.isclass(each.value) else ()
    words = "\n".join([each.words, *(inspect.getdoc(m) or "" for m in members if inspect.isroutine(m))])
    return set(re.findall(r"\w+", signature(each.value) + " ".join(re.findall(r"`[^`\n]+`", words))))


def signature(value: Any) -> str:
    """The annotations of a function, or of a class' fields and public methods, as text."""
    found = [getattr(value, "__annotations__", {})]
    if inspect.isclass(value):
        members = (getattr(each, "fget", each) for key, each in vars(value).items() if not key.startswith("_"))
        found += [getattr(getattr(each, "__func__", each), "__annotations__", {}) for each in members]
    return " ".join(str(note) for notes in found if isinstance(notes, dict) for note in notes.values())


def words_of(text: str) -> set[str]:
    """The names in what a page sets as code, blocks and words between backticks, without those of commands."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    return set(
        re.findall(r"(?<![\w.-])[A-Za-z_][\w.]*(?![\w-])", re.sub(r"^\$ .*|tilewright [a-z -]+", "", code, flags=re.M))
    )


@cache
def titles() -> dict[str, str]:
    """The heading of every page."""
    return {page.name: page.read_text().partition("\n")[0].lstrip("# ") for page in DOCS.glob("*.md")}


def groups(room: str) -> dict[str, list[Name]]:
    """The names of a room by the folder they live in; constants and other names without a home come last."""
    found: dict[str, list[Name]] = {}
    for each in public_names():
        if each.room == room:
            parts = each.home.split(".")
            inside = parts[2] if len(parts) > 3 and parts[1] == room else ""
            found.setdefault(inside if each.home else "~", []).append(each)
    order = ROOMS[room][1].split()
    places = {inside: place for place, inside in enumerate(order)}
    last = {"": -1 if room == "hlo" else 99, "~": 100}
    return dict(sorted(found.items(), key=lambda item: (places.get(item[0], last.get(item[0], 50)), item[0])))


def page(room: str) -> str:
    """The reference page of a room, for mkdocstrings to fill."""
    module = room_module(room)
    package = module.__name__
    behind = ["---", "search:", "  boost: 0.3", "---", ""]  # in a search the guides come first
    lines = [*behind, f"# {package}", "", f"{inspect.getdoc(module) or ''}", ""]
    links = ", ".join(f"[{titles()[name]}](../{name})" for name in ROOMS[room][0].split())
    lines += [f"Begin with: {links}.", ""]
    found = groups(room)
    for inside, names in found.items():
        heading = {"": "Names" if len(found) == 1 else "At the top", "~": "Constants and types"}.get(inside)
        heading = heading or sentence_of(package, inside)
        lines += [f"## {heading}", "", "| name | what it is |", "|---|---|"]
        for each in names:
            target = f"{package}.{each.name}"
            lines.append(f"| [`{each.name}`][{target}] | {plain(each.summary)} |")
        lines.append("")
        for each in names:
            lines += [f"::: {package}.{each.name}", "", *at_work(each, package), ""]
    return "\n".join(lines)


def sentence_of(package: str, inside: str) -> str:
    """What a folder of a room is for, by its docstring."""
    said = (inspect.getdoc(import_module(f"{package}.{inside}")) or "").partition("\n")[0].rstrip(".")
    return said or inside


def plain(words: str) -> str:
    """A sentence inside a table's cell."""
    return inline(words).replace("|", "\\|")


def at_work(each: Name, package: str) -> list[str]:
    """The line of links under a name."""
    parts = [f"[{titles()[name]}](../{name})" for name in each.pages[:4]]
    parts += [f"[`{name}`][{package}.{name}]" for name in each.near[: max(0, 5 - len(parts))]]
    return [f"See it at work: {', '.join(parts)}.", "{: .work }"] if parts else []
