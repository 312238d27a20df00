"""Calls of private functions hide patterns (``jnp.var`` arrives as one): put their bodies in place."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, replace_value, walk
from tilewright.hlo.ir import ir, run_passes
from tilewright.hlo.rewrites.cleanup import may_be_merged, operation_key
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
    return functions, {name: [op for op in _inside(f) if op.name == "func.call"] for name, f in functions.items()}


def _inside(root: Any) -> list[Any]:
    """Every operation inside ``root``, collected before anything changes."""
    found: list[Any] = []

    def look(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    root.walk(look)
    return found[:-1]


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
    return len(_inside(function)) if len(function.regions[0].blocks) == 1 else 0


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
        for each in (op, *(_inside(op) if len(op.regions) else ())) if called_somewhere else ():
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
    expanding = _Expanding(functions)
    with suppress(CycleError):
        for name in _innermost_first({name: _calls(body) for name, body in functions.items()}).static_order():
            expanding.expand(name, functions[name], {} if once and name not in expanding.private else None)
    if not expanding.count:
        return [*bodies], 0
    named, open_ = set[str](), functions.keys() - expanding.private
    while open_:
        named |= open_
        used = (op.handle for name in open_ for op in _operations(functions[name]) if op.name not in PURE)
        open_ = {word for op in used for key in op.attributes for word in _SYMBOL.findall(str(op.attributes[key]))}
        open_ = open_ & functions.keys() - named
    return [body for body in bodies if body.name in named], expanding.count


_SYMBOL = re.compile(r"@([\w$.\-]+)")


def _operations(body: Block) -> Iterator[Node]:
    return (op for block in walk(body) for op in block.operations)


def _calls(body: Block) -> list[Any]:
    return [op.handle for op in _operations(body) if op.name == "func.call"]


class _Expanding:
    """Puts the bodies of private functions in place of their calls; ``count``: operations that went."""

    def __init__(self, functions: Mapping[str, Block]) -> None:
        self.functions, self.budget, self.count, self.position = functions, Inline.limit, 0, 0
        self.private = {name for name, body in functions.items() if _is_private(body.handle.owner)}
        self.sizes: dict[str, int] = {}  # operations of a function, calls expanded

    def expand(self, name: str, block: Block, first: dict[Hashable, Value] | None) -> None:
        """Expand the calls in a block; ``first``: what was computed, where it is not to be computed again."""
        operations, block.operations = block.operations, []
        for op in operations:
            self.position += 1
            op.position, values = self.position, op.results
            for body in op.blocks:
                self.expand("", body, None)
            callee = self._callee(op)
            if callee is not None:
                of = dict(zip(callee.arguments, op.operands))
                self._copy(callee.operations[:-1], block, of, op.origins, first)
                values = [of[value] for value in callee.operations[-1].operands]
            elif first is not None and may_be_merged(op):
                values = [first.setdefault((operation_key(op), *op.operands), op.result)]
            if callee is None and values == op.results:
                block.operations.append(op)
                continue
            self.count, block.changed = self.count + 1, block.changed or callee is None
            for old, new in zip(op.results, values):
                replace_value(old, new)
            op.drop()
        self.sizes[name] = sum(1 for _ in _operations(block))

    def _callee(self, op: Node) -> Block | None:
        """The function that an operation calls, if its body is to take the call's place."""
        name = _callee(op.handle) if op.name == "func.call" and op.plain else ""
        if name not in self.private or self.sizes[name] > self.budget:
            return None
        self.budget -= self.sizes[name]
        return self.functions[name]

    def _copy(
        self,
        operations: Sequence[Node],
        block: Block,
        of: dict[Value, Value],
        calls: tuple[Any, ...],
        first: dict[Hashable, Value] | None,
    ) -> None:
        """Put copies of operations into a block, of the values ``of`` theirs; ``calls``: what they come with."""
        for op in operations:
            operands = [of[value] for value in op.operands]
            key = (operation_key(op), *operands) if first is not None and may_be_merged(op) else None
            if first is not None and key in first:
                of[op.result], self.count, block.changed = first[key], self.count + 1, True
                continue
            copy = Node(op.name, operands, op.attributes)
            self.position += 1
            copy.handle, copy.plain, copy.position, copy.said = op.handle, op.plain, self.position, op.said
            copy.origins = op.origins and (*op.origins, *calls)
            block.append(copy)
            for value in op.results:
                of[value] = copy.add_result(value.shape, value.dtype)
                of[value].handle = value.handle
            if first is not None and key is not None:
                first[key] = copy.result
            for body in op.blocks:
                inner = Block(body.name, copy)
                for value in body.arguments:
                    of[value] = inner.add_argument(value.shape, value.dtype)
                    of[value].handle = value.handle
                self._copy(body.operations, inner, of, calls, None)
                copy.blocks.append(inner)
