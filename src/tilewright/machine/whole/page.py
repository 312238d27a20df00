"""The page of a whole run: what to do first, the step and its lanes, memory over time, movement, layers, checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.embed import plan_html
from tilewright.hlo import report_html, slowest_table, step_lanes
from tilewright.machine.whole.parts import Change, Memory, Studied
from tilewright.machine.whole.results import ProgramResults
from tilewright.render import (
    Bar,
    Card,
    Column,
    Html,
    Page,
    Step,
    badge,
    bar_chart,
    bytes_text,
    cards,
    seconds_text,
    steps,
    table,
)
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.markup import element
from tilewright.render.page import details, note, paragraph

_MOST_ADVICE = 5
_LONGEST_WORTH = 40
_MOST_ROWS = 60
_LARGEST = (Column("tensor", "code"), Column("bytes", "bytes"), Column("from step"), Column("to"), Column("where"))
_MISFITS = (Column("what", "code"), Column("bytes", "bytes"), Column("room", "bytes"), Column("what becomes of it"))
_CHECKS = (Column("what"), Column("verdict"), Column("outcome"))


def page(run: ProgramResults) -> Page:
    """The report as one self-contained page."""
    studied = run.studied
    facts = [
        ("target", run.target),
        *([("times", "modelled")] if studied.step is not None else []),
        ("took", seconds_text(sum(run.stages.values()))),
    ]
    document = Page(f"{run.model} on {run.target}", "planned, run or modelled, and checked", facts=facts)
    document.section("findings", "What to do", *_lead(run))
    document.section("summary", "Summary", _figures(run))
    if studied.step is not None:
        document.section("step", "The step", *_step(studied))
    document.section("memory", f"{studied.memory.where} over time", *memory_blocks(studied.memory, studied.time_text))
    document.section("movement", "Movement before and after", *_movement(studied))
    document.section("layers", "Layer by layer", *_layers(studied))
    if run.sparse is not None:
        document.section("embeddings", "Embeddings on the SparseCores", *_embeddings(run))
    if studied.checks:
        document.section("verification", "Verification", _verification(studied))
    document.section("timings", "Timings", *_timings(run))
    document.data("report", run.to_json())
    return document


def _lead(run: ProgramResults) -> Iterator[Html]:
    """What failed, the step's time and bottleneck, what does not fit and the cheapest change, what to do."""
    studied = run.studied
    for failure in run.failures:
        yield note(failure, tone="bad")
    yield note(studied.headline)
    yield note(studied.memory.sentence, tone="plain" if studied.memory.fits else "warn")
    yield steps([_advised(each) for each in studied.advice[:_MOST_ADVICE]])
    wanted = [each for each in studied.commands if run.sparse is None or " run " in each[1]]
    commands = [Step(what, command.replace("PROGRAM", run.source)) for what, command in wanted]
    if studied.step is not None:
        commands.append(Step("Look at the step on a timeline: open trace.pftrace at ui.perfetto.dev."))
    yield details("Commands that lead on", steps(commands), open_=True)


def _advised(text: str) -> Step:
    """A short beginning up to the colon is what it is worth."""
    head, _, words = text.partition(": ")
    return Step(words, worth=head) if words and len(head) <= _LONGEST_WORTH else Step(text)


def _figures(run: ProgramResults) -> Html:
    studied, memory = run.studied, run.studied.memory
    found = []
    if studied.step is not None:
        found.append(Card("a step", studied.time_text(studied.step.seconds), studied.bottleneck.partition(";")[0]))
    room = f"asked for at once, of {bytes_text(memory.capacity)}"
    found.append(Card(memory.where, bytes_text(memory.need), room, "good" if memory.fits else "warn"))
    found.append(
        Card("moved for layout", bytes_text(studied.moved.after), f"{bytes_text(studied.moved.before)} before")
    )
    found += studied.cards
    if studied.checks:
        good = not run.failures
        made = f"{len(studied.checks)} made"
        found.append(Card("checks", "all agree", made, "good") if good else Card("checks", "DIFFERENT", made, "bad"))
    if run.sparse is not None:
        heap = run.sparse.plan.heap
        found.append(Card(f"tables on {run.sparse.chip}", bytes_text(heap.tables), run.sparse.plan.verdict))
    return cards(found)


def _step(studied: Studied) -> Iterator[Html]:
    step = studied.step
    assert step is not None
    for text in step.notes:
        yield note(text)
    yield step_lanes(step)
    waits = {"the call itself": step.call_seconds, **step.by_bound()}
    bars = [Bar(name, (seconds,)) for name, seconds in waits.items() if seconds]
    if studied.clocked:
        yield bar_chart(bars, title="Time by what bounds it", kind="seconds")
    else:
        counted = [Bar(bar.label, (round(bar.parts[0] * 1e9),)) for bar in bars]
        yield bar_chart(counted, title="Cycles by what bounds the layers", kind="count")


def memory_blocks(memory: Memory, time_text: Callable[[float], str]) -> Iterator[Html]:
    """Bytes over the steps, what has no room, what would need less, the largest tensors."""
    yield note(memory.sentence, tone="plain" if memory.fits else "warn")
    numbers = list(range(len(memory.live)))
    curves = [Curve("asked for", numbers, list(memory.live))]
    if memory.standing:
        curves.append(Curve("has its place there", numbers, list(memory.standing)))
    if memory.capacity <= 4 * max(memory.need, 1):
        curves.append(Curve("room", numbers, [memory.capacity] * len(numbers)))
    yield line_chart(curves, title=f"{memory.where}, step by step", x_label="step", kind="bytes")
    if memory.changes:
        yield element("h3", "What would need less")
        yield _changes(memory, time_text)
    if memory.misfits:
        yield element("h3", "What does not fit")
        rows = [(each.name, each.bytes, each.room, each.why) for each in memory.misfits]
        yield table(_MISFITS, rows[:_MOST_ROWS])
    if memory.largest:
        yield element("h3", f"The largest while {memory.at} runs")
        names = memory.steps
        yield table(_LARGEST, [(h.name, h.bytes, names[h.first], names[h.last], h.place) for h in memory.largest])


def _changes(memory: Memory, time_text: Callable[[float], str]) -> Html:
    columns = [
        *([Column("layer", "code")] if any(each.name for each in memory.changes) else []),
        Column("change"),
        Column(memory.counts, "bytes"),
        Column("then", "bytes"),
        Column("fits"),
        Column("time of the same work"),
    ]

    def row(change: Change) -> tuple[object, ...]:
        head = (change.name,) if any(each.name for each in memory.changes) else ()
        took = "" if change.seconds is None else time_text(change.seconds)
        took = took if change.moved is None else f"{bytes_text(change.moved)} moved"
        mark = badge("fits", "good") if change.fits else badge("does not", "warn")
        return *head, change.what, change.before, change.after, mark, took

    return table(columns, [row(change) for change in memory.changes[:_MOST_ROWS]])


def _movement(studied: Studied) -> Iterator[Html]:
    moved = studied.moved
    yield paragraph(f"{bytes_text(moved.before)} {moved.what} before, {bytes_text(moved.after)} after: {moved.how}.")
    bars = [Bar("before", (moved.before,)), Bar("after", (moved.after,))]
    yield bar_chart(bars, title=f"Bytes moved {moved.what}", kind="bytes")
    yield from studied.movement
    if studied.report is not None:
        yield report_html(studied.report)


def _layers(studied: Studied) -> Iterator[Html]:
    if studied.layers:
        yield from studied.layers
    elif studied.step is not None:
        yield table(*slowest_table(studied.step, _MOST_ROWS))


def _embeddings(run: ProgramResults) -> Iterator[Html]:
    sparse = run.sparse
    assert sparse is not None
    yield paragraph(sparse.sentence)
    yield plan_html(sparse.plan)


def _verification(studied: Studied) -> Html:
    rows = []
    for check in studied.checks:
        rows.append((check.what, badge("agrees", "good") if check.ok else badge("differs", "bad"), check.said))
    return table(_CHECKS, rows)


def _timings(run: ProgramResults) -> Iterator[Html]:
    bars = [Bar(name, (seconds,)) for name, seconds in run.stages.items()]
    yield bar_chart(bars, title="Wall time of the stages", kind="seconds")
    for stage, why in run.left_out.items():
        yield note(f"{stage}: left out, {why}")
    yield paragraph(f"Peak memory {bytes_text(run.peak_rss_bytes)}.")
