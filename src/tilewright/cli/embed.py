"""`tilewright embed plan`: limits, buffers and memory of embedding tables from a click log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import _embed_explain
from tilewright.cli._io import emit_json, progress, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.embed import Clicks, Plan

__all__ = ["add_to"]

_app = typer.Typer(name="embed", help="Sparse cores: plan embedding tables before renting chips.", no_args_is_help=True)


@_app.command("plan")
def _plan(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A click log: Criteo TSV without header, or CSV with C1..C26; - is stdin. None: a generated one."
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="The chip.")] = "tpu-v5p",
    chips: Annotated[int, typer.Option(help="How many chips.")] = 1,
    batch: Annotated[int, typer.Option(help="Samples of a batch, over all chips.")] = 4096,
    vocab: Annotated[str, typer.Option(help="Rows per table: kaggle, terabyte, a number, or 26 numbers.")] = "kaggle",
    scale: Annotated[float, typer.Option(help="Factor on the vocabularies, above 0 and at most 1.")] = 1.0,
    width: Annotated[int, typer.Option(help="Floats per row of every table.")] = 16,
    optimizer: Annotated[str, typer.Option(help="sgd or adagrad.")] = "adagrad",
    quantile: Annotated[float, typer.Option(help="Share of the partitions that the limits must hold.")] = 1.0,
    stacking: Annotated[bool, typer.Option("--stacking/--no-stacking", help="Stack tables.")] = True,
    rows: Annotated[int, typer.Option(help="Rows to read at most (0: all), or to generate.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Write plan.html (the page) or limits.json (the limits file).")
    ] = None,
) -> None:
    """Learn limits from a click log, and say what its tables need on a chip.

    Raw categorical values are hashed into the vocabularies. A last batch that is not full is left out.
    """
    _check_out(out)
    tables, kind = _vocabs(vocab, scale), _optimizer(optimizer)
    from tilewright.embed import Feature, Table, Topology, plan, print_plan

    features = [Feature(f"C{i}", Table(f"C{i}", n, width, optimizer=kind)) for i, n in enumerate(tables, 1)]
    topology = Topology.for_target(target, chips)
    if batch < 1 or batch % topology.sparsecores:
        near = max(1, round(batch / topology.sparsecores)) * topology.sparsecores
        what = f"a batch of {batch} does not divide over {topology.sparsecores} SparseCores"
        raise UsageError(what, where="--batch", how=f"take a multiple of them, such as {near}")
    log = _log(file, tables, batch, rows, topology.sparsecores)
    with progress("batches") as advance:
        inputs = (clicks.features() for clicks in log)
        made = plan(
            inputs, features, topology, quantile, target=target, table_stacking=stacking, progress=lambda n: advance(n)
        )
    _emit(made, as_json, out, file or "a generated click log", print_plan)


def _check_out(out: str | None) -> None:
    """Refuse an unknown kind of file before the work is done."""
    if out is not None and not out.endswith((".json", ".html")):
        raise UsageError("no writer for this name", where=out, how="end it in .json (limits) or .html (page)")


def _vocabs(text: str, scale: float) -> tuple[int, ...]:
    from tilewright.embed import CRITEO_CARDINALITIES, scale_vocabs

    known = CRITEO_CARDINALITIES.get(text)
    if known is None:
        words = text.split(",")
        if not all(word.strip().isdecimal() for word in words) or len(words) not in (1, 26):
            how = f"{', '.join(CRITEO_CARDINALITIES)}, one number, or 26 with commas"
            raise UsageError(f"vocabularies {text!r}", where="--vocab", how=how)
        known = tuple(int(word) for word in words) * (26 if len(words) == 1 else 1)
    return scale_vocabs(known, scale)


def _optimizer(name: str) -> Any:
    from tilewright.embed import SGD, Adagrad

    kinds = {"sgd": SGD(), "adagrad": Adagrad()}
    if name not in kinds:
        raise UsageError(f"optimizer {name!r}", where="--optimizer", how=f"one of {', '.join(kinds)}")
    return kinds[name]


def _log(file: str | None, vocabs: tuple[int, ...], batch: int, rows: int, sparsecores: int) -> Iterator[Clicks]:
    """Whole batches of the log."""
    from tilewright.embed import read_criteo, synthetic_criteo

    if rows < 0 or 0 < rows < batch:
        raise UsageError(f"{rows} rows are less than one batch", where="--rows", how="give a multiple of --batch")
    if file is None:
        yield from synthetic_criteo(0, rows or 16 * batch, vocabs).batches(batch)
        return
    seen = 0
    for clicks in read_criteo(file, vocabs, batch, ids_only=True):
        if len(clicks) < batch:
            if not seen:
                how = f"give --batch of at most {len(clicks) // sparsecores * sparsecores}"
                raise UsageError(f"only {len(clicks)} rows, less than one batch of {batch}", where=file, how=how)
            remark(f"{file}: the last {len(clicks)} rows are less than a batch and left out")
            return
        yield clicks
        seen += batch
        if rows and seen + batch > rows:
            return


def _emit(made: Plan, as_json: bool, out: str | None, source: str, print_plan: Any) -> None:
    if out is not None and out.endswith(".json"):
        made.write_limits(out)
    elif out is not None:
        write_file(out, _page(made, source))
    if as_json:
        emit_json(made.to_json())
    elif out is None:
        print_plan(made)
    else:
        remark(made.verdict)
        remark(f"wrote {out}")


def _page(made: Plan, source: str) -> str:
    from tilewright.embed import plan_html
    from tilewright.render import Page

    topology = made.stacking.topology
    facts = [
        ("target", made.target),
        ("chips", str(topology.chips)),
        ("SparseCores", str(topology.sparsecores)),
        ("batches", str(made.batches)),
    ]
    page = Page("Embedding plan", f"learnt from {source}", facts=facts)
    page.section("plan", "Plan", plan_html(made))
    page.data("embedding-plan", made.to_json())
    return page.html()


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    _embed_explain.add_to(_app)
    app.add_typer(_app)
