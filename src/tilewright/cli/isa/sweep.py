"""`tilewright isa sweep`: which machine? Each at its best, for one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa.tensors import machine, setting
from tilewright.cli.streams import emit_json, emit_text, progress
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa import Design

_Size = typer.Option(min=1, help="Rows of A (m), columns of B (n), depth (k).")


def _sweep(
    m: Annotated[int, _Size],
    n: Annotated[int, _Size],
    k: Annotated[int, _Size],
    over: Annotated[
        list[str],
        typer.Option("--over", metavar="FIELD=A,B,..", help="Values of a field of the machine; all combinations."),
    ],
    dtype: Annotated[str, typer.Option(help="Elements: s8, u8, s16, u16, s32, u32, f16, bf16, f32.")] = "s8",
    most: Annotated[int, typer.Option(min=1, help="Choices timed at most for each machine.")] = 96,
    within: Annotated[float, typer.Option(help="A gain not worth looking for: 0.02 is 2 percent.")] = 0.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field all these machines share.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tune one product for many machines: cycles of each at its best, and the unit that limits it."""
    from tilewright.isa import sweep

    with progress("machines") as bar:
        found = sweep(m, n, k, _values(over), dtype, machine(settings), watch=bar, most=most, within=within)
    if as_json:
        emit_json({"m": m, "n": n, "k": k, "dtype": dtype, "machines": [_json(each) for each in found]})
    else:
        _print(found)


def _values(over: Sequence[str]) -> dict[str, list[Any]]:

    found: dict[str, list[Any]] = {}
    for each in over:
        name, equals, text = each.partition("=")
        if not equals or not text or name in found:
            raise UsageError(f"--over {each}", how="each field once, as --over l1_ports=1,2,4")
        found[name] = [setting(value) for value in text.split(",")]
    return found


def _json(each: Design) -> dict[str, Any]:
    if each.tuning is None:
        return {"settings": each.settings, "refused": each.refused}
    best = each.tuning.best
    found: dict[str, Any] = {"settings": each.settings, "choice": str(best.choice), "options": best.choice.options}
    found |= {"cycles": best.cycles, "default_cycles": each.tuning.default.cycles, "utilisation": best.utilisation}
    return found | {"limit": best.limit, "bound": best.bound, "stalls": best.stalls, "proved": each.tuning.proved}


def _print(found: Sequence[Design]) -> None:
    from tilewright.render import Column, print_table

    names = list(found[0].settings)
    columns = [*(Column(name, "code") for name in names), Column("best choice", "code"), Column("cycles", "count")]
    columns += [
        Column("default's", "count"),
        Column("utilisation", "percent"),
        Column("busiest"),
        Column("busy", "count"),
    ]
    rows: list[tuple[object, ...]] = []
    for each in found:
        values = [str(value) for value in each.settings.values()]
        if each.tuning is None:
            rows.append((*values, each.refused, None, None, None, "", None))
            continue
        best, default = each.tuning.best, each.tuning.default
        numbers = (best.cycles, default.cycles, best.utilisation, best.limit, best.bound)
        rows.append((*values, str(best.choice), *numbers))
    print_table(columns, rows)
    done = [each for each in found if each.tuning]
    if done and not all(each.tuning.proved for each in done if each.tuning):
        emit_text("\nnot every choice is proved the best: raise --most")


def add_to(group: typer.Typer) -> None:
    """Register the command with its group."""
    group.command("sweep")(_sweep)
