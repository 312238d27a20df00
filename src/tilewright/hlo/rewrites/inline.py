"""Calls of private functions hide patterns (``jnp.var`` arrives as one): put their bodies in place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from tilewright.hlo.ir import inside, ir, run_passes
from tilewright.hlo.rewriting.base import Step, option


@dataclass(frozen=True)
class Inline(Step):
    """Replace ``func.call`` of private one-block functions by their bodies, innermost first.

    ``limit`` bounds the operations this may add, so that calls of calls cannot explode. A call with an attribute of
    another dialect stays, and so does a function that anything still names. Works on the MLIR module
    itself (always a clone), before the graph is read.
    """

    summary: ClassVar[str] = "put the bodies of private functions in place of their calls"
    limit: int = option(1_000_000, "most operations that inlining may add")

    def apply_module(self, module: Any) -> int:
        """Inline every call that can be, and remove functions that nothing refers to any more; how many calls went.

        Nothing where a function calls itself, through others or not.
        """
        with module.context, ir.Location.unknown(module.context), suppress(CycleError):
            functions, calls = _functions(module)
            budget, count = self.limit, 0
            for name in _innermost_first(calls).static_order():
                for call in calls[name]:
                    callee = functions.get(_callee(call))
                    size = inlinable(callee)
                    plain = not any("." in key for key in call.attributes)  # says nothing of where to run it
                    if callee is not None and size and size <= budget and plain:
                        _expand(call, callee)
                        budget, count = budget - size, count + 1
            if count:
                with suppress(ir.MLIRError):  # an operation that nobody knows, with a region: it may name anything
                    run_passes(module, "symbol-dce")
            return count
        return 0


def _functions(module: Any) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The functions of a module by name, and the calls in each."""
    operations = [view.operation for view in module.body.operations]
    functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations if op.name == "func.func"}
    return functions, {name: [op for op in inside(f) if op.name == "func.call"] for name, f in functions.items()}


def _callee(call: Any) -> str:
    name: str = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    return name


def _innermost_first(calls: dict[str, list[Any]]) -> TopologicalSorter[str]:
    """Functions in an order that expands a callee before its callers."""
    return TopologicalSorter({name: [c for c in map(_callee, inner) if c in calls] for name, inner in calls.items()})


def calls_itself(module: Any) -> str:
    """A function of the module that calls itself, through others or not; "" if none does. XLA ends the process then."""
    try:
        with module.context:
            _innermost_first(_functions(module)[1]).prepare()
    except CycleError as error:
        return str(error.args[1][0])
    return ""


def inlinable(function: Any) -> int:
    """How many operations a call of ``function`` would add, nested ones included; 0 if it may not be inlined."""
    named = function.attributes if function is not None else {}
    private = "sym_visibility" in named and ir.StringAttr(named["sym_visibility"]).value == "private"
    return len(inside(function)) if private and len(function.regions[0].blocks) == 1 else 0


def _expand(call: Any, function: Any) -> None:
    copy = function.clone(ip=False)
    body = copy.operation.regions[0].blocks[0]
    for argument, value in zip(body.arguments, call.operands):
        argument.replace_all_uses_with(value)
    *inner, last = [view.operation for view in body.operations]
    called_somewhere = str(call.location) != "loc(unknown)"
    for op in inner:
        for each in (op, *(inside(op) if len(op.regions) else ())) if called_somewhere else ():
            each.location = ir.Location.callsite(each.location, [call.location])
        op.move_before(call)
    for old, new in zip(call.results, last.operands):
        old.replace_all_uses_with(new)
    call.erase()
