"""Write the pages that are made from something else: ./run python docs/generate.py.

docs/commands.md from the command line, docs/rules.md from the catalogue, docs/fidelity.md from docs/fidelity.csv. Tests
keep all three true.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer

from tilewright.cli import app
from tilewright.hlo import catalogue, list_rules
from tilewright.hlo.rules.rule import Rule

HEAD = """# Commands

Generated from the commands themselves by `./run python docs/generate.py`; a test keeps this page true.

`-` is stdin or stdout. `--json` prints stable JSON with a `schema_version`. `-o` picks the writer by suffix. A file
is written whole or not at all, beside its place, and moved there: it keeps the mode of the one it replaces, and a
symbolic link is replaced, while what it names stays as it is; pipes and `/dev/stdout` are written to. Data goes to
stdout, remarks and progress to stderr. Exit codes: 0 fine, 1 a check found something, 2 usage, 3 an unsupported
construct. `--debug`, anywhere, shows a traceback where something fails. `NO_COLOR` is obeyed.
"""


def parameters(command: Any) -> list[str]:
    """One table row per argument and option."""
    rows = []
    for each in command.params:
        if each.name in ("help", "install_completion", "show_completion"):
            continue
        if each.param_type_name == "argument":
            name = f"`{each.name.upper()}`" + ("" if each.required else " (optional)")
        else:
            name = ", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts))
        help_text = " ".join((each.help or "").split()).replace("|", "\\|")
        default = each.default if not callable(each.default) else None
        shown = "" if default is None or default is False or default in ((), "") else f"`{default}`"
        rows.append(f"| {name} | {help_text} | {shown} |")
    return rows


def page(command: Any, path: str) -> list[str]:
    """A command's section, and those of the commands below it."""
    below = getattr(command, "commands", {})
    lines = []
    if path != "tilewright" and not below:
        usage = " ".join(f"{a.name.upper()}" for a in command.params if a.param_type_name == "argument")
        lines += [f"## {path}", "", f"`{' '.join(f'{path} {usage} [options]'.split())}`", ""]
        lines += ["\n".join(line.strip() for line in (command.help or "").strip().splitlines()), ""]
        rows = parameters(command)
        if rows:
            lines += ["| argument or option | what it does | default |", "|---|---|---|", *rows, ""]
    for name in sorted(below):
        lines += page(below[name], f"{path} {name}")
    return lines


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *page(typer.main.get_command(app), "tilewright")]).rstrip() + "\n"


RULES_HEAD = """# Rules that act

Generated from the catalogue by `./run python docs/generate.py`; a test keeps this page true.

A rule knows a way of writing things that an accelerator runs badly, and a way that it runs well. What to do:

1. Ask which of your lines a rule would change. Exit code 1 means that something pays:

    ```sh
    ./run tilewright lint model.py:step --target tpu-v5e
    ```

2. Either write what it says, or let the rules act on the program, and prove the result on random inputs:

    ```sh
    ./run tilewright optimize model.py:step --target tpu-v5e -o fast.mlir --verify
    ```

3. Where a finding ends in `--assume-finite`, the rule multiplies by a matrix of zeros and ones, which would spread a
   NaN or an infinity to its neighbours. Add the option if your values have none.
4. With a TPU compiler installed (`pip install 'jax[tpu]'`, no TPU needed) add `--judge tpu:v5e`: both programs are
   compiled, and what wins there is kept.

[tutorial_rules.md](tutorial_rules.md) does this for one decode step; [optimize.md](optimize.md) explains the gate;
`src/tilewright/hlo/rules/README.md` says how to write a rule.

## What each is worth

How many times as fast the example below becomes. On a TPU that is its compiler's estimate of cycles, before over after:
no run time, and in the middle of a model the gain is smaller. On a CPU it is measured. Nothing stands where nobody has
looked, and a rule does not act on a chip where its factor is below 1.02. Nor does it where the time model has a loss of
more than 2 % at your shapes: the two dispute it, and only a compiler can tell, by `--judge`.

The largest factor, 129, is of one product of a decode step. As written, v5e's compiler fills memory with eight copies
of the keys (1,748,560 cycles), and multiplies each by its single query on the vector unit (936,512). Grouped, all of it
is one product on the matrix unit (20,762). With the rest of an attention block around it the same change gives 13
([rules_in_context.md](rules_in_context.md)).
"""

GUARDS = {
    "finite": "its values must be known to be finite, or `--assume-finite` says that all are",
    "rounding": "it rounds in another order: not with `--bit-exact`",
    "advice": "only you can make this change, for it is about how data is stored",
    "none": "nothing; the values stay the same",
}


def rules_reference() -> str:
    """docs/rules.md: what each rule is worth, and each rule with its example, guard and figures."""
    rows = list_rules()
    chips = sorted(
        {chip for row in rows for chip in row["confirmed"]}, key=lambda chip: (not chip.startswith("tpu"), chip)
    )
    lines = [RULES_HEAD, f"| rule | what it does | {' | '.join(chips)} |", f"|---|---|{'---|' * len(chips)}"]
    for row in rows:
        figures = [row["confirmed"].get(chip, {}).get("factor") for chip in chips]
        cells = " | ".join("" if figure is None else f"{figure:.3g}" for figure in figures)
        lines.append(f"| [{row['name']}](#{row['name']}) | {row['summary']} | {cells} |")
    for room in sorted({row["room"] for row in rows}):
        lines += ["", f"## {room.capitalize()}"]
        for row in rows:
            if row["room"] == room:
                lines += ["", *rule_section(row, catalogue()[row["name"]])]
    return "\n".join(lines) + "\n"


def rule_section(row: dict[str, Any], rule: Rule[Any]) -> list[str]:
    """One rule: what it does and why, the code before and after, guard, figures, and where it stays away."""
    lines = [f"### {row['name']}", "", f"{sentence(row['finding'])} {sentence(row['change'])}", ""]
    lines += [f"With {shapes(rule.shapes)}; {numbers(rule.sizes)}:", "", *code(rule.before), ""]
    after = f", with {shapes(rule.after_shapes)}," if rule.after_shapes else ""
    lines += [f"becomes{after}", "", *code(rule.after), ""]
    lines += [f"* What it needs: {'; '.join(GUARDS[guard] for guard in row['guard'].split(', '))}."]
    figures: dict[str, list[str]] = {}
    for chip, figure in row["confirmed"].items():
        by = f"{figure['kind']} by {figure['by']}, {figure['date']}"
        figures.setdefault(by, []).append(f"{chip} {figure['factor']:.3g}")
    said = "; ".join(f"{', '.join(found)} ({by})" for by, found in figures.items())
    lines += [f"* Times as fast: {said or 'not confirmed yet'}. Source: {row['source']}."]
    away = f", with {shapes(rule.away_shapes)}" if rule.away_shapes else ""
    return [*lines, f"* It stays away from what looks alike{away}:", "", *code(rule.away, "  ")]


def sentence(text: str) -> str:
    """Words as a sentence; names of code that begin one keep their case."""
    first = text.split(" ")[0]
    head = text[0].upper() if first.isalpha() else text[0]
    return f"{head}{text[1:]}."


def shapes(text: str) -> str:
    """``q: T[b,8*g,d]`` a line, as names and shapes in a sentence."""
    return ", ".join(
        f"`{line.strip().replace(': T', '').replace(': ', ' ')}`" for line in text.splitlines() if line.strip()
    )


def numbers(text: str) -> str:
    """``b=8 g=8`` in a sentence."""
    return ", ".join(word.replace("=", " = ") for word in text.split())


def code(body: str, indent: str = "") -> list[str]:
    """A Python block."""
    lines = dedent(body).strip().splitlines()
    return [f"{indent}{line}".rstrip() for line in ("```python", *lines, "```")]


TEXTS = {
    "tiled layout": ("XLA's tiled layouts", "layout.md", "Places are sections and figures."),
    "npu storage": ("Tensors over the NPUs of a Sophgo TPU", "layout_memories.md", "Places are lines of the text."),
    "rewrites": (
        "The patent on reshapes and broadcasts",
        "optimize.md",
        "Places are parts and figures.",
    ),
    "sparsecore": ("Google's SparseCore guide", "embeddings.md", "Places are sections."),
    "matrix unit": (
        "The patent on a tensor-multiply instruction",
        "matrix_unit.md",
        "Places are paragraphs.",
    ),
}
"""Of each text: its name, the page that explains what is built from it, and how places in it are given."""

VERDICTS = {
    "done": "the tests named hold it, as far as reading them tells",
    "reading": "the text leaves it open; this is our reading",
    "partly": "what is missing is said",
    "differently": "what is different is said",
    "not": "not built",
}

FIDELITY_HEAD = """# What each text says, and whether it is so here

Generated from `docs/fidelity.csv` by `./run python docs/generate.py`; a test keeps this page true, and holds that every
row marked *done* names tests that exist. To see one of them hold:

```sh
./run pytest tests/layout/test_worked_examples.py -k test_canonical_text
```

Five public texts are implemented, and every sentence of them that demands or claims something is a row below.
"""


def fidelity_rows() -> list[dict[str, str]]:
    """Rows of docs/fidelity.csv: text, place, statement, verdict, where, tests."""
    with Path(__file__).with_name("fidelity.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fidelity() -> str:
    """docs/fidelity.md: how many statements of each text are done, then all of them."""
    rows = fidelity_rows()
    counts = Counter((row["text"], row["verdict"]) for row in rows)
    lines = [FIDELITY_HEAD, f"| text | {' | '.join(VERDICTS)} | all |", f"|---|{'--:|' * (len(VERDICTS) + 1)}"]
    for text, (name, _, _) in TEXTS.items():
        found = [counts[text, verdict] for verdict in VERDICTS]
        lines.append(f"| [{name}](#{text.replace(' ', '-')}) | {' | '.join(map(str, found))} | {sum(found)} |")
    lines += ["", *(f"* *{verdict}*: {means}." for verdict, means in VERDICTS.items())]
    for text, (name, page, places) in TEXTS.items():
        lines += ["", f"## {name} {{ #{text.replace(' ', '-')} }}", "", f"Explained in [{page}]({page}). {places}", ""]
        lines += ["| place | it says; where that is done; what holds it | verdict |", "|---|---|---|"]
        lines += [fidelity_row(row) for row in rows if row["text"] == text]
    return "\n".join(lines) + "\n"


def fidelity_row(row: dict[str, str]) -> str:
    """A statement, below it what is missing, the module that does it and the tests that hold it."""
    module, _, remark = row["where"].partition("; ")
    below = [f"Here: {words(remark)}."] if remark else []
    below += [" ".join(f"`{each}`" for each in (module, *row["tests"].replace("tests/", "").split()) if each)]
    verdict = row["verdict"] if row["verdict"] in ("done", "reading") else f"**{row['verdict']}**"
    cells = (words(row["place"]), "<br>".join([words(row["statement"]), *filter(None, below)]), verdict)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def words(text: str) -> str:
    """Words in which signs of Markdown are themselves."""
    return re.sub(r"[*_`\[<]", r"\\\g<0>", text)


PAGES = {"commands.md": reference, "rules.md": rules_reference, "fidelity.md": fidelity}

if __name__ == "__main__":
    for name, made in PAGES.items():
        Path(__file__).with_name(name).write_text(made(), encoding="utf-8")
