"""Calls of private functions hide patterns (``jnp.var`` arrives as one): put their bodies in place."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, operations_in, replace_value
from tilewright.hlo.ir import inside, ir, run_passes
from tilewright.hlo.rewrites.cleanup import merging_key
from tilewright.hlo.rewriting.base import Step, option
from tilewright.hlo.rewriting.maker import PURE


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
                    size = _inlinable(callee)
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


def _inlinable(function: Any) -> int:
    """How many operations a call of ``function`` would add, nested ones included; 0 if it may not be inlined."""
    if function is None or not _is_private(function):
        return 0
    return len(inside(function)) if len(function.regions[0].blocks) == 1 else 0


def _is_private(function: Any) -> bool:
    named = function.attributes
    return "sym_visibility" in named and ir.StringAttr(named["sym_visibility"]).value == "private"


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


# The same for graphs, whose operations are cheaper to copy than MLIR's: copies share the handle of what they are of.


def with_calls_in_place(bodies: Sequence[Block], once: bool = False) -> tuple[list[Block], int]:
    """Function bodies as :class:`Inline` leaves them, and how many operations went.

    ``once``: what an operation before it has computed is not put there again (:class:`CommonSubexpressions`).
    """
    functions = {body.name: body for body in bodies}
    bodies_of = ((name, operations_in(body)) for name, body in functions.items())
    calls = {name: [op.handle for op in operations if op.name == "func.call"] for name, operations in bodies_of}
    expanding = _Expanding(functions)
    with suppress(CycleError):
        for name in _innermost_first(calls).static_order():
            expanding.first = {} if once and name not in expanding.private else None
            expanding.put(functions[name], functions[name], None, ())
            functions[name].merged = functions[name].edits if expanding.first is not None else -1
    named, open_ = set[str](), functions.keys() - (expanding.private if expanding.called else ())
    while open_:
        named |= open_
        used = (op.handle for name in open_ for op in operations_in(functions[name]) if op.name not in PURE)
        words = {word for op in used for key in op.attributes for word in _SYMBOL.findall(str(op.attributes[key]))}
        open_ = words & functions.keys() - named
    return [body for body in bodies if body.name in named], expanding.count


_SYMBOL = re.compile(r'@"?([\w$.\-]+)')


class _Expanding:
    """Puts the bodies of private functions in place of their calls; ``count``: operations that went."""

    def __init__(self, functions: Mapping[str, Block]) -> None:
        self.functions, self.count, self.called, self.position = functions, 0, False, 0
        self.private = {name for name, body in functions.items() if _is_private(body.handle.owner)}
        self.first: dict[Hashable, Value] | None = None  # what was computed, where it is not to be computed again

    def put(self, source: Block, block: Block, of: dict[Value, Value] | None, calls: Any) -> None:
        """Put a block's operations into it anew, or into another as copies, of values ``of`` theirs, with ``calls``."""
        operations, block.operations = source.operations, [] if source is block else block.operations
        for op in operations if of is None else (op for op in operations if op.name != "func.return"):
            self.position += 1
            operands = op.operands if of is None else [of[value] for value in op.operands]
            key = merging_key(op, operands) if self.first is not None and block.owner is None else None
            callee = _callee(op.handle) if op.name == "func.call" and op.plain else ""
            if callee in self.private and self.position <= Inline.limit:
                self.called, body = True, self.functions[callee]
                given = dict(zip(body.arguments, operands))
                self.put(body, block, given, op.origins)
                values = [given[value] for value in body.operations[-1].operands]
            elif self.first is not None and key is not None and (known := self.first.get(key)) is not None:
                values, block.changed = [known], True
            else:
                node = op if of is None else block.append(self._copy(op, operands, of, calls))
                node.position = self.position
                block.operations += [op] if of is None else []
                for body, inner in zip(op.blocks, node.blocks):
                    self.put(body, inner, of, calls)
                if key is not None:
                    self.first[key] = node.result
                continue
            self.count += 1
            for old, new in zip(op.results, values):
                if of is not None:
                    of[old] = new
                else:
                    replace_value(old, new)
            if of is None:
                op.drop()

    @staticmethod
    def _copy(op: Node, operands: Sequence[Value], of: dict[Value, Value], calls: Any) -> Node:
        copy = Node(op.name, operands, op.attributes)
        copy.handle, copy.plain, copy.said = op.handle, op.plain, op.said
        copy.origins = op.origins and (*op.origins, *calls)
        copy.blocks = [Block(body.name, copy) for body in op.blocks]
        pairs = [(old, copy.add_result(old.shape, old.dtype)) for old in op.results]
        for body, inner in zip(op.blocks, copy.blocks):
            pairs += [(old, inner.add_argument(old.shape, old.dtype)) for old in body.arguments]
        for old, new in pairs:
            of[old], new.handle = new, old.handle
        return copy
