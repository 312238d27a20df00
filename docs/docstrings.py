"""Our docstrings as Markdown: tables, sessions, blocks and references, for the reference of the site."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

RULE = re.compile(r"^(\s*)=+(?:  ?=+)+\s*$")


class Markdown(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring in Markdown.

    >>> print(as_markdown("Reads :class:`~a.Thing`::\\n\\n    x = 1\\n\\nSo."))
    Reads `Thing`:
    <BLANKLINE>
    ```text
    x = 1
    ```
    <BLANKLINE>
    So.
    """
    lines, done = text.splitlines(), []
    while lines:
        line = lines.pop(0)
        if rule := RULE.match(line):
            body = taken(lines, lambda each: not RULE.match(each))
            lines = lines[len(body) + 1 :]
            done += table(line[len(rule[1]) :], [each[len(rule[1]) :] for each in body])
        elif line.lstrip().startswith(">>> "):
            body = [line, *taken(lines, lambda each: bool(each.strip()))]
            lines = lines[len(body) - 1 :]
            done += ["```pycon", *dedent("\n".join(body)).splitlines(), "```"]
        elif line.rstrip().endswith("::") and (not lines or not lines[0].strip()):
            body = taken(lines, lambda each: not each.strip() or each.startswith(" "))
            lines = lines[len(body) :]
            said = inline(line.rstrip()[:-1]) if line.strip() != "::" else ""
            done += [said, "", "```text", *dedent("\n".join(body)).strip("\n").splitlines(), "```", ""]
        else:
            done.append(inline(line))
    return "\n".join(done).rstrip()


def taken(lines: list[str], wanted: Any) -> list[str]:
    """The lines up to the first that is not wanted."""
    end = next((at for at, line in enumerate(lines) if not wanted(line)), len(lines))
    return lines[:end]


def inline(line: str) -> str:
    """References and code as Markdown has them; outside of code a product's asterisk and a bracket are themselves.

    >>> print(inline("f32[C*H*W] of :class:`~a.Thing`, ``x[2*k]``, *once*"))
    f32\\[C\\*H\\*W] of `Thing`, `x[2*k]`, *once*
    """
    line = re.sub(r":\w+:`~?([\w.]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", line)
    line = re.sub(r"``(.+?)``", lambda found: f"`{found[1]}`" if "`" not in found[1] else found[0], line)
    words = re.split(r"(``.+?``|`[^`]+`)", line)
    words[::2] = [re.sub(r"(?<=\w)\*(?=\w)|\[(?!\w+\]\()", r"\\\g<0>", word) for word in words[::2]]
    return "".join(words)


def table(rule: str, body: list[str]) -> list[str]:
    """A table that is ruled by equal signs; its last column may be wider than its rule."""
    starts = [found.start() for found in re.finditer(r"=+", rule)]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    for line in body:
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    made = [f"| {' | '.join(inline(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return ["", f"|{' |' * len(starts)}", f"|{'---|' * len(starts)}", *made, ""]
