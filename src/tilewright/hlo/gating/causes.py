"""What a StableHLO program spends and need not: changes that only its user can make, priced in this very program.

No rule makes them, for they change what is kept, in which type, or which kernel does it. Each is tried on the program's
records: what the change replaces is replaced, and the step is modelled once more. The gain is the difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple, TypeAlias

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import inlined
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import product_flops, product_sizes
from tilewright.hlo.semantics.partitioning import of_one_device
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.estimate import estimate_placed
from tilewright.hlo.timing.kernels import TARGET
from tilewright.render import bytes_text
from tilewright.targets import Target

LEAST_SHARE = 0.01
"""Share of the step that a change must save to be worth a word."""
_LARGE = 1 << 20
"""Elements of an array below which nobody minds that it is written."""
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_VIEWS = frozenset({"reshape", "transpose", "broadcast", "optimization-barrier", "convert", "copy"})
_WITHIN = ELEMENTWISE | _VIEWS | {"constant", "iota"}
_FLOATS = ("f32", "f64")

Edits: TypeAlias = dict[str, tuple[Operation, ...]]
"""What takes an operation's place, by its name."""


class _Array(NamedTuple):
    kind: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


class _Cause(NamedTuple):
    """A change that can be made: what is done now, what to write instead, where, and what the records become."""

    name: str
    what: str
    how: str
    at: Operation
    edits: Mapping[str, Edits]


def _array(text: str) -> _Array:
    found = _ARRAY.match(text)
    return _Array(found[1], tuple(int(n) for n in found[2].split(",") if n)) if found else _Array("", (0,))


class _Body:
    """One computation, calls in place: its operations, who reads what, and the array that each makes."""

    def __init__(self, program: Program, name: str) -> None:
        self.name = name
        self.operations = inlined(program, program.by_name[name])
        self.by_name = {op.name: op for op in self.operations}
        self.kind = {op.name: plain_opcode(op.opcode) for op in self.operations}
        self.array = {op.name: _array(op.shape) for op in self.operations}
        self.readers = defaultdict[str, list[Operation]](list)
        for op in self.operations:
            for operand in dict.fromkeys(op.operands):
                self.readers[operand].append(op)

    def operands(self, op: Operation) -> list[_Array]:
        return [_array(shape) for shape in op.operand_shapes]

    def through(self, name: str, kinds: frozenset[str] = _VIEWS) -> str:
        """The value behind what only shows it in another form."""
        while self.kind.get(name) in kinds and self.by_name[name].operands:
            name = self.by_name[name].operands[0]
        return name

    def around(self, seed: str) -> tuple[set[str], list[Operation]]:
        """All values of as many elements as ``seed`` that are computed from each other; and what makes less of them."""
        size, inside, ends, open_ = self.array[seed].elements, {seed}, dict[str, Operation](), [seed]
        while open_:
            name = open_.pop()
            makers = self.by_name[name].operands if self.kind[name] in _WITHIN else ()
            for other in (*makers, *(reader.name for reader in self.readers[name])):
                if other in inside or other not in self.by_name:
                    continue
                kind, reads = self.kind[other], other not in makers
                grown = kind in DOTS and all(a.elements < size for a in self.operands(self.by_name[other]))
                if self.array[other].elements == size and (kind in _WITHIN or (grown and not reads)):
                    inside.add(other)
                    open_.append(other)
                elif reads and kind not in ("return", "optimization-barrier"):
                    ends[other] = self.by_name[other]
        return inside, list(ends.values())


def causes(program: Program, target: Target, assume: Mapping[str, float] | None = None) -> list[Suggestion]:
    """The changes that are known to save time in this program on ``target``, each with what it saves there.

    Raises UnsupportedError for a target without a time model.
    """
    chip = chip_of(target)
    if program.kind != "stablehlo":
        return []
    program = of_one_device(program)
    called = {callee for _, op in program.operations() if op.opcode == "call" for callee in op.calls}
    bodies = [_Body(program, each.name) for each in program.computations if each.name not in called]

    def seconds(edits: Mapping[str, Edits]) -> float:
        operations = {
            body.name: tuple(new for op in body.operations for new in edits.get(body.name, {}).get(op.name, (op,)))
            for body in bodies
        }
        changed = (replace(c, operations=operations.get(c.name, c.operations)) for c in program.computations)
        return estimate_placed(Context(replace(program, computations=tuple(changed)), target, assume=assume), chip).device_seconds

    found, whole = list[Suggestion](), 0.0
    for cause in (cause for find in _CAUSES for cause in find(bodies)):
        whole = whole or seconds({})
        saved = whole - seconds(cause.edits)
        if saved > LEAST_SHARE * whole:
            at = cause.at
            names = tuple(name for edits in cause.edits.values() for name in edits if name != at.name)
            found.append(
                Suggestion(
                    *(at.name, cause.name, round(whole / (whole - saved), 3), "predicted", cause.how),
                    *(str(at.source or ""), cause.what),
                    also=names,
                    saved_us=1e6 * saved,
                )
            )
    return found


def _written_out(bodies: list[_Body]) -> Iterator[_Cause]:
    """Scores and their softmax, or logits and theirs: arrays larger than all they are made of, written and read again.

    One kernel computes them block by block near the core: for each result that leaves, the products before it, an
    exponential of each score, and the arrays that come in from outside.
    """
    found = defaultdict[tuple[str, str], list[tuple[_Body, Operation, Edits]]](list)
    for body in bodies:
        seen = set[str]()
        for op in body.operations:
            if body.kind[op.name] != "exponential" or op.name in seen or body.array[op.name].elements < _LARGE:
                continue
            inside, ends = body.around(op.name)
            seen |= inside
            starts = [body.by_name[name] for name in inside if body.kind[name] in DOTS]
            if not starts:
                continue
            batched = any(start.integers("lhs_batch_dims") for start in starts)
            edits = {end.name: (_in_one_kernel(body, end, inside),) for end in ends if _leaves(body, end, inside)}
            first = min(starts, key=body.operations.index)
            found["attention" if batched else "loss", str(first.source)].append((body, first, edits))
    for (name, _), places in found.items():
        together = defaultdict[str, Edits](dict)
        for body, _, edits in places:
            together[body.name].update(edits)
        body, first, _ = places[0]
        array = body.array[first.name]
        size = bytes_text(array.elements * (2 if array.kind == "bf16" else 4))
        many = f"{len(places)} times " if len(places) > 1 else ""
        yield _Cause(f"fused-{name}", f"{_WRITTEN[name]} {list(array.shape)} are written out {many}({size} each)", _FUSED[name], first, together)


_WRITTEN = {"attention": "attention's scores", "loss": "the loss's logits"}
_FUSED = {
    "attention": "from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention; "
    "flash_attention(q, k, v, sm_scale=q.shape[-1] ** -0.5) with q, k, v: [batch, heads, tokens, depth] "
    "(splash_attention beside it where heads share keys); tilewright kernel check names its block sizes",
    "loss": "tokamax.linear_softmax_cross_entropy_loss(x, labels, w), or a lax.map of jax.checkpoint(loss) over blocks "
    "of tokens, keeps no logits",
}


def _leaves(body: _Body, end: Operation, inside: set[str]) -> bool:
    """Whether what makes less of an array is wanted outside, and not only to be spread over the array again."""
    open_, seen = [end.name], {end.name}
    while open_:
        for reader in body.readers[open_.pop()]:
            if reader.name not in inside and reader.name not in seen:
                if body.kind[reader.name] not in _VIEWS or body.array[reader.name].elements != body.array[end.name].elements:
                    return True
                seen.add(reader.name)
                open_.append(reader.name)
    return False


def _in_one_kernel(body: _Body, end: Operation, inside: set[str]) -> Operation:
    """The end as a kernel of its own, which makes of the array what it needs, block by block."""
    inputs, seen, open_, flops, special = dict[str, str](), set[str](), [end], 0, 0
    while open_:
        op = open_.pop()
        kind = body.kind[op.name]
        flops += (product_flops(op, body.operands(op), body.array[op.name]) or 0) if kind in DOTS else 0
        special += body.array[op.name].elements if kind == "exponential" else 0
        for name, shape in zip(op.operands, op.operand_shapes):
            if name in inside and name not in seen:
                seen.add(name)
                open_.append(body.by_name[name])
            elif name not in inside:
                inputs[name] = shape
    if body.kind[end.name] not in DOTS:  # it comes out of a kernel that is there
        inputs, flops, special = {}, 0, 0
    estimate = f'{{"custom_call_config":{{"cost_estimate":{{"flops":"{flops}","transcendentals":"{special}"}}}}}}'
    said = {"custom_call_target": TARGET, "backend_config": estimate}
    return replace(
        end, opcode="custom-call", operands=(*inputs,), operand_shapes=(*inputs.values(),), attributes=said, calls=()
    )


_CAUSES: tuple[Callable[[list[_Body]], Iterator[_Cause]], ...] = (_written_out,)
