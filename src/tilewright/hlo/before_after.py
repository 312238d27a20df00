"""A rewritten program as a page: every accepted region, or every pass, before and after side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from textwrap import dedent

from tilewright.hlo.gating.gate import Verdict
from tilewright.hlo.ir import parse_module, print_module
from tilewright.hlo.optimization import Optimized
from tilewright.hlo.rewrites.pipeline import PassRun
from tilewright.render import Card, Column, Html, Page, Step, badge, bytes_text, cards, count_text, steps, table
from tilewright.render.formats import place_text, ratio_text
from tilewright.render.markup import element, join
from tilewright.render.page import code_block, details, note, side_by_side

_BODY = re.compile(r"func\.func[^\n]*\{\n(.*)\n  \}\n\}", re.DOTALL)


def optimized_html(optimized: Optimized) -> str:
    """What :func:`optimize` did, as one self-contained page; ``regions=True`` gives it the regions' texts."""
    target, judged = optimized.target, optimized.judgement
    facts = [("target", target.name), ("written", date.today().isoformat())]
    head = f"{count_text(len(optimized.rewrites))} rewritten, {count_text(len(optimized.refusals))} left alone"
    page = Page(f"Before and after: {optimized.original.name}", head, facts=facts, wide=True)
    figures = [
        Card("rewritten", count_text(len(optimized.rewrites)), "regions of the program", "good"),
        Card("left alone", count_text(len(optimized.refusals)), "with a reason each"),
        Card("moved", bytes_text(optimized.moved_after), f"{bytes_text(optimized.moved_before)} as written"),
    ]
    if judged is not None:
        figures.append(Card("judged", ratio_text(judged.ratio), f"by {judged.compiler}, cycles before over after"))
    done = "Write the rewritten program, and prove it on random inputs and edge values."
    command = f"tilewright optimize FILE --target {target.name} -o faster.mlir --verify"
    todo = [Step(done, command)] if optimized.rewrites else []
    todo += [Step("See every operation's bytes and time after it.",
                  f"tilewright report faster.mlir --target {target.name} -o report.html")] if todo else []  # fmt: skip
    nothing = note("Nothing to do: no region of the program pays on this target. The reasons are below.")
    page.section("summary", "What to do", steps(todo) if todo else nothing, cards(figures))
    changes = [_verdict(number, verdict) for number, verdict in enumerate(optimized.rewrites, 1)]
    page.section("changes", "What changed", *(changes or [note("nothing: no region of it pays on this target")]))
    if optimized.refusals:
        page.section("left", "Left alone", _refusals(optimized.refusals))
    page.section("program", "The whole program", details("before and after", _whole(optimized)))
    return page.html()


def passes_html(name: str, runs: Sequence[PassRun]) -> str:
    """What each pass of a pipeline did, as one self-contained page."""
    fired = [run for run in runs if run.changes]
    head = f"{count_text(len(fired))} of {count_text(len(runs))} passes changed something"
    page = Page(f"Pass by pass: {name}", head, facts=[("written", date.today().isoformat())], wide=True)
    rows = [(str(run.step), run.round, run.changes) for run in runs]
    page.section(
        "passes", "Passes", table([Column("pass"), Column("round", "count"), Column("changes", "count")], rows)
    )
    for number, run in enumerate(fired, 1):
        heading = f"{number}. {str(run.step).partition('{')[0]}, round {run.round}"
        page.section(f"pass-{number}", heading, _beside(run.before, run.after))
    return page.html()


def _verdict(number: int, verdict: Verdict) -> Html:
    """One accepted region: what acted, where, what it is worth and why, and both texts."""
    worth = f"{ratio_text(verdict.factor)} {verdict.kind}" if verdict.kind != "unpriced" else verdict.kind
    head = [f"{number}. {verdict.name} ", badge(worth, "plain" if verdict.kind == "unpriced" else "good")]
    if verdict.source:
        head += [" ", element("code", place_text(str(verdict.source)))]
    parts = [element("h3", *head), element("p", verdict.reason), element("p", element("code", verdict.region))]
    if verdict.before:
        parts.append(_beside(_body(verdict.before), _body(verdict.after)))
    return join(parts, "\n")


def _beside(before: str, after: str) -> Html:
    return side_by_side(code_block(before, "before"), code_block(after, "after"))


def _body(module: str) -> str:
    """The lines of a module's only function."""
    found = _BODY.search(module)
    return dedent(found[1]) if found else module


def _refusals(refusals: Sequence[Verdict]) -> Html:
    rows = [
        (each.name or "-", each.region, place_text(str(each.source)) if each.source else "", each.reason)
        for each in refusals
    ]
    return table([Column("rule or rewrites"), Column("region", "code"), Column("source", "code"), Column("why")], rows)


def _whole(optimized: Optimized) -> Html:
    texts = (print_module(parse_module(program.text)) for program in (optimized.original, optimized.program))
    return _beside(*texts)
