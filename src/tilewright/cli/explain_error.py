"""`tilewright explain-error`: a TPU's message about memory that is full, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.embed.diagnose import (
    Error,
    MaxIds,
    SparseCores,
    StackWidth,
    error_text,
    explanation_text,
    no_such_file,
)
from tilewright.cli.streams import Json, emit_json, emit_text, remark
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.embed import ErrorExplanation
    from tilewright.hlo import AllocationReport


def explain_error(
    error: Error,
    top: Annotated[int, typer.Option("--top", min=1, help="How many allocations and fixes to print.")] = 10,
    width: StackWidth = None,
    max_ids: MaxIds = None,
    sparsecores: SparseCores = 16,
    as_json: Json = False,
) -> None:
    """Read a TPU's out-of-memory message: every padded array in it, and the changes that make it fit by bytes saved.

    Messages of the compiler and of the runtime, about HBM, vector memory and scalar memory, in any log. --width,
    --max-ids and --sparsecores are for errors about SparseCore memory, as in `embed explain-error`.
    """
    text = error_text(error)
    try:
        reports, sparse = _explained(text, width, max_ids, sparsecores)
    except UsageError as problem:
        raise no_such_file(error, problem) from None
    if as_json:
        allocator = [report.to_json() for report in reports]
        sparsecore = [explanation.to_json() for explanation in sparse]
        emit_json({"kind": "explained_errors", "allocator": allocator, "sparsecore": sparsecore})
        return
    from tilewright.hlo import print_allocation_report

    for number, report in enumerate(reports):
        if number:
            emit_text("")
        print_allocation_report(report, top)
    if sparse:
        emit_text("\n" * bool(reports) + "\n\n".join(map(explanation_text, sparse)))


def _explained(
    text: str, width: int | None, max_ids: int | None, sparsecores: int
) -> tuple[tuple[AllocationReport, ...], tuple[ErrorExplanation, ...]]:
    """What the text says of the TensorCore's memories, and of the SparseCores'. UsageError where it says nothing."""
    from tilewright.embed import explain_error as explain
    from tilewright.embed import names_sparsecores
    from tilewright.hlo import explain_allocation

    of_sparsecores = names_sparsecores(text)
    try:
        reports = explain_allocation(text)
    except UsageError:
        if not of_sparsecores:
            raise
        reports = ()
    if not of_sparsecores:
        return reports, ()
    try:
        return reports, explain(text, width=width, max_ids=max_ids, sparsecores=sparsecores, hbm=False)
    except UsageError as problem:  # only the head of an error, or a width that is not its own
        if not reports:
            raise
        remark(f"SparseCores: {problem}")
        return reports, ()
