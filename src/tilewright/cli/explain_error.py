"""`tilewright explain-error`: a TPU's message about memory that is full or a kernel it refuses, and what to change."""

from __future__ import annotations

import re
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
    from tilewright.hlo import AllocationReport, KernelError


def explain_error(
    error: Error,
    top: Annotated[int, typer.Option("--top", min=1, help="How many allocations and fixes to print.")] = 10,
    width: StackWidth = None,
    max_ids: MaxIds = None,
    sparsecores: SparseCores = 16,
    as_json: Json = False,
) -> None:
    """Read a TPU's out-of-memory message: every padded array in it, and the changes that make it fit by bytes saved.

    Messages of the compiler and of the runtime, about HBM, vector memory and scalar memory, in any log, and what Pallas
    and Mosaic say of a kernel they refuse. --width, --max-ids and --sparsecores are for errors about SparseCore memory,
    as in `embed explain-error`.
    """
    text = error_text(error)
    try:
        reports, sparse, kernels = _explained(text, width, max_ids, sparsecores)
    except UsageError as problem:
        raise no_such_file(error, problem) from None
    if as_json:
        allocator = [report.to_json() for report in reports]
        sparsecore = [explanation.to_json() for explanation in sparse]
        refused = [error.to_json() for error in kernels]
        emit_json({"kind": "explained_errors", "allocator": allocator, "sparsecore": sparsecore, "kernels": refused})
        return
    from tilewright.hlo import print_allocation_report

    for number, report in enumerate(reports):
        if number:
            emit_text("")
        print_allocation_report(report, top)
    if sparse:
        emit_text("\n" * bool(reports) + "\n\n".join(map(explanation_text, sparse)))
    if kernels:
        emit_text("\n" * bool(reports or sparse) + "\n\n".join(map(str, kernels)))


def _explained(
    text: str, width: int | None, max_ids: int | None, sparsecores: int
) -> tuple[tuple[AllocationReport, ...], tuple[ErrorExplanation, ...], tuple[KernelError, ...]]:
    """What the text says of the TensorCore's memories, the SparseCores' and of kernels. UsageError where nothing."""
    from tilewright.embed import explain_error as explain
    from tilewright.embed import names_sparsecores
    from tilewright.hlo import explain_allocation, explain_kernel

    of_sparsecores, kernels = names_sparsecores(text), explain_kernel(text)
    try:
        reports = explain_allocation(text)
    except UsageError:
        if not of_sparsecores and not kernels:
            if re.search("Pallas|Mosaic", text):
                how = "docs/out_of_memory.md lists the known ones"
                raise UsageError("this message about a kernel is not known", where="explain-error", how=how) from None
            raise
        reports = ()
    if not of_sparsecores:
        return reports, (), kernels
    try:
        return reports, explain(text, width=width, max_ids=max_ids, sparsecores=sparsecores, hbm=False), kernels
    except UsageError as problem:  # only the head of an error, or a width that is not its own
        if not reports and not kernels:
            raise
        remark(f"SparseCores: {problem}")
        return reports, (), kernels
