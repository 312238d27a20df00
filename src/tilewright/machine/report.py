"""What a run found, its JSON, its page, what a notebook shows of it, and its files."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.embed import Plan, diagnose
from tilewright.extras import installed
from tilewright.files import making_folder, write_whole
from tilewright.hlo import Verdict
from tilewright.machine import page
from tilewright.machine.model import RunData
from tilewright.machine.results import Memory, Sparse, Studied
from tilewright.machine.stages import Judgement, LeftOut, MatrixRun, Movement, Proof
from tilewright.render import Card, Html, Page, Step, bytes_text, cards, count_text, seconds_text
from tilewright.render.delivery import Line
from tilewright.render.formats import finite
from tilewright.render.page import Tone, advised, paragraph, side_by_side
from tilewright.render.tables import Table, glance, glance_table
from tilewright.trace import Recorder, perfetto_bytes

_Section = tuple[str, str, Iterable[Html]]
"""Its name in addresses, its heading, its blocks."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What every run has, and what is made of it.

    ==================  ====================================================================================
    ``model``           its name; ``target``: the chip's
    ``stages``          stage -> wall seconds
    ``recorder``        the timeline's events
    ``peak_rss_bytes``  the largest resident size of the process
    ==================  ====================================================================================
    """

    model: str
    target: str
    stages: dict[str, float]
    recorder: Recorder
    peak_rss_bytes: int

    def _plain(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``."""
        raise NotImplementedError

    def _sections(self) -> list[_Section]:
        """The page's sections in their order."""
        raise NotImplementedError

    def _head(self) -> tuple[str, list[tuple[str, str]]]:
        """What was done, in words, and (name, value) of facts about it."""
        raise NotImplementedError

    def _rows(self) -> list[tuple[str, str]]:
        """What came out, in a few rows: for terminals and notebooks."""
        raise NotImplementedError

    @property
    def _title(self) -> str:
        return f"{self.model} on {self.target}"

    @property
    def failures(self) -> tuple[str, ...]:
        """What the run found to be wrong, in sentences; empty when all agrees."""
        raise NotImplementedError

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, the most urgent first."""
        return ()

    def lines(self) -> Iterator[Line]:
        """For a terminal: what came out, what to do, what it took."""
        yield Table(("what", "result"), self._rows(), self._title)
        yield from (f"- {text}" for text in self.advice[:_MOST_ADVICE])
        yield f"total {seconds_text(sum(self.stages.values()))}, peak memory {bytes_text(self.peak_rss_bytes)}"

    def _repr_html_(self) -> str:
        """What a notebook shows; ``to_page()`` is the whole page."""
        return glance(self._title, *self.failures, glance_table(("what", "result"), self._rows()))

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``; what is not finite (a loss that diverged) becomes None."""
        plain: dict[str, Any] = finite(self._plain())
        return plain

    def to_page(self) -> Page:
        done, facts = self._head()
        facts.append(("took", seconds_text(sum(self.stages.values()))))
        document = Page(f"{self.model} on {self.target}", done, facts=facts)
        for name, heading, blocks in self._sections():
            document.section(name, heading, *blocks)
        document.data("report", self.to_json())
        return document

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, report.json and trace.pftrace into ``folder`` (made if need be); returns their paths.

        The trace is left out where the package that writes it (the extra ``trace``) is not installed.
        """
        files: dict[str, str | bytes] = {
            "report.html": self.to_page().html(),
            "report.json": json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n",
        }
        if installed("perfetto"):
            files["trace.pftrace"] = perfetto_bytes(self.recorder)
        with making_folder(folder) as out:
            for name, data in files.items():
                write_whole(out / name, data)
        return tuple(out / name for name in files)


def _tone(good: bool) -> Tone:
    return "good" if good else "bad"


@dataclass(frozen=True, kw_only=True)
class ProgramReport(Report):
    """A program on a target, planned, run or modelled, and checked.

    ==================  ====================================================================================
    ``source``          what it was read from
    ``studied``         the modelled step, memory over time, movement, checks
    ``sparse``          the embeddings of a recommender, None for a program without tables
    ``left_out``        stages that this program or target has not, with the reason
    ==================  ====================================================================================
    """

    source: str
    studied: Studied
    sparse: Sparse | None
    left_out: dict[str, str]

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{check.what}: {check.said}" for check in self.studied.checks if not check.ok)

    @property
    def advice(self) -> tuple[str, ...]:
        return self.studied.advice

    def _rows(self) -> list[tuple[str, str]]:
        studied, moved = self.studied, self.studied.moved
        return [
            ("step", studied.headline),
            ("memory", studied.memory.sentence),
            ("movement", f"{bytes_text(moved.before)} {moved.what} -> {bytes_text(moved.after)}: {moved.how}"),
            *((card.label, f"{card.value} {card.note}") for card in studied.cards),
            *((check.what, check.said) for check in studied.checks),
            *([("embeddings", self.sparse.sentence)] if self.sparse is not None else []),
            *((stage, f"left out: {why}") for stage, why in self.left_out.items()),
        ]

    def _plain(self) -> dict[str, Any]:
        studied, sparse = self.studied, self.sparse
        losses = {} if sparse is None else {"loss_before": sparse.loss_before, "loss_after": sparse.loss_after}
        return {
            "schema_version": 1,
            "kind": "program_run",
            "model": self.model,
            "target": self.target,
            "headline": studied.headline,
            "bottleneck": studied.bottleneck,
            "advice": list(studied.advice),
            "step": None if studied.step is None else studied.step.to_json(),
            "memory": studied.memory.to_json(),
            "moved": asdict(studied.moved),
            "verification": [asdict(check) for check in studied.checks],
            **studied.details,
            "embeddings": None if sparse is None else {"chip": sparse.chip, **losses, "plan": sparse.plan.to_json()},
            "left_out": self.left_out,
            "stages": self.stages,
            "peak_rss_bytes": self.peak_rss_bytes,
        }

    def _head(self) -> tuple[str, list[tuple[str, str]]]:
        times = [("times", "modelled")] if self.studied.step is not None else []
        return "planned, run or modelled, and checked", [("target", self.target), *times]

    def _sections(self) -> list[_Section]:
        studied, memory = self.studied, self.studied.memory
        todo = [advised(each) for each in studied.advice[:_MOST_ADVICE]]
        found: list[_Section] = [
            ("findings", "What to do", page.lead(self.failures, studied.headline, memory, todo, self._commands())),
            ("summary", "Summary", [cards(self._figures())]),
        ]
        if studied.step is not None:
            found.append(("step", "The step", page.step_blocks(studied)))
        found += [
            ("memory", f"{memory.where} over time", page.memory_blocks(memory, studied.time_text)),
            ("movement", "Movement before and after", page.moved_blocks(studied)),
            ("layers", "Layer by layer", page.layer_blocks(studied)),
        ]
        if self.sparse is not None:
            blocks = [paragraph(self.sparse.sentence), self.sparse.plan.html()]
            found.append(("embeddings", "Embeddings on the SparseCores", blocks))
        if studied.checks:
            found.append(("verification", "Verification", [page.checks_table(studied.checks)]))
        return [*found, ("timings", "Timings", page.timings(self.stages, self.peak_rss_bytes, self.left_out))]

    def _commands(self) -> list[Step]:
        wanted = [each for each in self.studied.commands if self.sparse is None or " run " in each[1]]
        commands = [Step(what, command.replace("PROGRAM", self.source)) for what, command in wanted]
        if self.studied.step is not None:
            commands.append(Step("Look at the step on a timeline: open trace.pftrace at ui.perfetto.dev."))
        return commands

    def _figures(self) -> list[Card]:
        studied, memory, found = self.studied, self.studied.memory, list[Card]()
        if studied.step is not None:
            found.append(
                Card("a step", studied.time_text(studied.step.device_seconds), studied.bottleneck.partition(";")[0])
            )
        room = f"asked for at once, of {bytes_text(memory.capacity)}"
        found += [
            Card(memory.where, bytes_text(memory.need), room, "good" if memory.fits else "warn"),
            Card("moved for layout", bytes_text(studied.moved.after), f"{bytes_text(studied.moved.before)} before"),
            *studied.cards,
        ]
        if studied.checks:
            good, made = not self.failures, f"{len(studied.checks)} made"
            found.append(Card("checks", "all agree" if good else "DIFFERENT", made, _tone(good)))
        if self.sparse is not None:
            plan = self.sparse.plan
            found.append(Card(f"tables on {self.sparse.chip}", bytes_text(plan.heap.tables), plan.verdict))
        return found


_MOST_ADVICE = 5
_MOST_FINDINGS = 2  # of each kind; the sections below have all
_FIGURES = ("loss_before", "loss_after", "auc_before", "auc_after")


@dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """Everything a run of a recommender measured.

    ====================  =======================================================================================
    ``plan``              the embeddings on the target: limits, buffers, HBM, padding, imbalance
    ``movement``          the dense step's data movement and the gate's verdicts per target
    ``proof``             how far the rewritten step is from the original
    ``before``, ``after`` loss and AUC on the evaluation rows
    ``losses``            the loss of every training step
    ``matrix``            the dense layers' products on the matrix unit
    ``memory``            HBM over the dense step, beside the tables
    ``source``            the model's file, as commands name it
    ====================  =======================================================================================
    """

    chips: int
    batch: int
    steps: int
    data: RunData
    plan: Plan
    movement: Movement
    proof: Proof
    before: Judgement
    after: Judgement
    losses: tuple[float, ...]
    matrix: tuple[MatrixRun, ...]
    products_left_out: tuple[LeftOut, ...]
    memory: Memory
    source: str = "MODEL.py"

    loss_before = property(lambda report: report.before.loss, doc="Mean loss before training.")
    loss_after = property(lambda report: report.after.loss, doc="Mean loss afterwards.")
    auc_before = property(lambda report: report.before.auc, doc="AUC before training.")
    auc_after = property(lambda report: report.after.auc, doc="AUC afterwards.")

    @property
    def counts_equal(self) -> bool | None:
        """Whether the matrix unit's counters equal the closed forms for every product; None where there is none."""
        return all(product.counts_equal for product in self.matrix) if self.matrix else None

    @property
    def values_equal(self) -> bool | None:
        """Whether the matrix unit's values equal XLA's within the rounding of float32; None where there is none."""
        return all(product.values_equal for product in self.matrix) if self.matrix else None

    @property
    def _title(self) -> str:
        return f"{self.model} on {self.chips} x {self.target}: {self.steps} steps of {count_text(self.batch)} samples"

    def _rows(self) -> list[tuple[str, str]]:
        figures = ((card.label, f"{card.value} {card.note}") for card in self._figures())
        return [("step", self._headline()), ("plan", self.plan.verdict), *figures]

    @property
    def failures(self) -> tuple[str, ...]:
        found = {
            "the matrix unit's counts differ from the closed forms": self.counts_equal is False,
            "the matrix unit's values differ from XLA's by more than rounding": self.values_equal is False,
            f"training diverged: the loss is {self.loss_after}": not math.isfinite(self.loss_after),
        }
        return tuple(text for text, wrong in found.items() if wrong)

    def _plain(self) -> dict[str, Any]:
        optimized, step = self.movement.optimized, self.movement.time
        return {
            "schema_version": 1,
            "kind": "run",
            **{key: getattr(self, key) for key in ("model", "target", "chips", "batch", "steps")},
            "data": {
                "source": self.data.source,
                "training_rows": len(self.data.train),
                "evaluation_rows": len(self.data.evaluate),
                "held_out": self.data.held_out,
            },
            **{key: getattr(self, key) for key in _FIGURES},
            "losses": list(self.losses),
            "rewrites": {name: [*map(_verdict, done.rewrites)] for name, done in optimized.items()},
            "refusals": {name: [*map(_verdict, done.refusals)] for name, done in optimized.items()},
            "moved": {
                name: {"moved_before": done.moved_before, "moved_after": done.moved_after}
                for name, done in optimized.items()
            },
            "modelled_step": {
                "dense_seconds": step.device_seconds,
                "sparse_seconds": self.plan.traffic.waited,
                "priced": step.priced,
                "notes": list(step.notes),
            },
            "max_difference": self.proof.max_difference,
            "proof": asdict(self.proof),
            "counts_equal": self.counts_equal,
            "values_equal": self.values_equal,
            "products": [_product(product) for product in self.matrix],
            "products_left_out": len(self.products_left_out),
            "left_out": [asdict(product) for product in self.products_left_out],
            "plan": self.plan.to_json(),
            "memory": self.memory.to_json(),
            "stages": self.stages,
            "peak_rss_bytes": self.peak_rss_bytes,
        }

    def _head(self) -> tuple[str, list[tuple[str, str]]]:
        return "planned, rewritten, proved, trained and counted", [
            ("target", f"{self.chips} chip{'s' if self.chips > 1 else ''} of {self.target}"),
            ("steps", f"{self.steps} of {count_text(self.batch)} samples"),
            ("data", self.data.source),
        ]

    def _sections(self) -> list[_Section]:
        target, moves, memory = self.target, self.movement, self.memory
        todo, commands = self._findings(), self._commands()
        title = f"What the TensorCore of {target} waits for in a step, modelled"
        drawings = side_by_side(
            page.waits_chart(moves.time, title, width=460), page.loss_chart(self.losses, width=460, height=190)
        )
        optimized = moves.optimized
        return [
            ("findings", "What to do", page.lead(self.failures, self._headline(), memory, todo, commands)),
            ("summary", "Summary", [cards(self._figures()), drawings]),
            ("step", f"A modelled step on {target}", page.pipelined_step_blocks(moves.time, self.plan)),
            ("plan", "Embedding plan", [self.plan.html()]),
            ("memory", f"{memory.where} over time", page.memory_blocks(memory)),
            ("movement", f"Data movement on {target}", page.dense_movement_blocks(moves.report, optimized[target])),
            (
                "rewrites",
                f"Rewrites and refusals on {' and '.join(optimized)}",
                page.rewrite_blocks(optimized, self.proof, target),
            ),
            ("training", "Training", page.training_blocks(self.data, self.before, self.after, self.losses)),
            ("matrix-unit", "Matrix unit", page.matrix_blocks(self.matrix, self.products_left_out)),
            ("timings", "Timings", page.timings(self.stages, self.peak_rss_bytes, more=_TRACE)),
        ]

    def _headline(self) -> str:
        dense, sparse = self.movement.time, self.plan.traffic.waited
        parts = dense.by_bound()
        most = max(parts, key=lambda name: parts[name])
        side = "the SparseCores" if sparse > dense.device_seconds else "the TensorCore"
        return (
            f"A pipelined step takes {seconds_text(max(sparse, dense.device_seconds))} on {self.target} (modelled, not "
            f"measured), bound by {side}; of the TensorCore's {seconds_text(dense.device_seconds)} most, "
            f"{seconds_text(parts[most])}, is bound by {most}."
        )

    def _findings(self) -> list[Step]:
        """The plan's findings, the movement's changes that pay, the dense step's slowest lines."""
        tones: dict[str, Tone] = {"severe": "bad", "warning": "warn"}
        found = [
            Step(
                f"{finding.bottleneck}: {finding.advice[0]}",
                why=finding.cause,
                worth=finding.severity,
                tone=tones[finding.severity],
            )
            for finding in diagnose(self.plan).findings
            if finding.severity in tones
        ]
        best = self.movement.report.suggestions[:_MOST_FINDINGS]
        changes = [Step(each.words, worth=each.saved, tone="good") for each in best]
        slowest = [advised(line) for line in self.movement.time.waits(_MOST_FINDINGS)]
        return [*found[:_MOST_FINDINGS], *changes, *slowest]

    def _commands(self) -> list[Step]:
        job = f"--target {self.target} --chips {self.chips} --batch {self.batch}"
        again = f"tilewright run {shlex.quote(self.source)} {job} --out other"
        return [
            Step("Change the model, a chip or the batch, run again, and see what that did.",
                 f"{again}\ntilewright diff out/report.json other/report.json -o diff.html"),
            Step("Write the limits of the tables for a whole log.", f"tilewright embed plan LOG {job} -o limits.json"),
            Step("Look at every stage and training step on a timeline: open trace.pftrace at ui.perfetto.dev."),
        ]  # fmt: skip

    def _figures(self) -> list[Card]:
        moved, heap = self.movement.optimized[self.target], self.plan.heap
        equal = bool(self.counts_equal and self.values_equal)
        dense, sparse = self.movement.time.device_seconds, self.plan.traffic.waited
        bound = f"bound by the {'SparseCores' if sparse > dense else 'TensorCore'}; modelled"
        above = sum(bool(product.above_minimum) for product in self.matrix)
        counted = f"; cache misses of {above} above the minimum" if above else ", all counts"
        auc, loss = (self.auc_before, self.auc_after), (self.loss_before, self.loss_after)
        return [
            Card("a step", seconds_text(max(dense, sparse)), bound),
            Card("AUC", f"{auc[1]:.4f}", f"{auc[0]:.4f} before training", _tone(auc[1] > auc[0])),
            Card("loss", f"{loss[1]:.4f}", f"{loss[0]:.4f} before", _tone(loss[1] < loss[0])),
            Card("HBM a chip", bytes_text(heap.total), f"of {bytes_text(heap.capacity)}"),
            Card("moved for layout", bytes_text(moved.moved_bytes[1]), f"on {self.target}"),
            Card("difference", f"{self.proof.max_difference:.1e}", "rewritten against original, largest"),
            Card(
                "matrix unit",
                ("equal" if equal else "differs") if self.matrix else "not used",
                f"{len(self.matrix)} products{counted}",
                _tone(equal) if self.matrix else "plain",
            ),
        ]


_TRACE = (
    " The timeline of every stage and training step is in trace.pftrace: open it at ui.perfetto.dev (one cycle of the "
    "matrix unit is drawn as one nanosecond)."
)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    keys = ("name", "region", "source", "moved_before", "moved_after", "reason")
    return {key: getattr(verdict, key) for key in keys} | {"source": str(verdict.source or "")}


def _product(product: MatrixRun) -> dict[str, Any]:
    return {
        "name": product.name,
        "counts": asdict(product.counts),
        "closed_forms": asdict(product.expected),
        "counts_equal": product.counts_equal,
        "above_minimum": list(product.above_minimum),
        "cycles": product.cycles,
        "error": product.error,
    }
