"""What a StableHLO program spends and need not: changes that only its user can make, priced in this very program.

No rule makes them, for they change what is kept, in which type, or which kernel does it. Each is tried on the program's
records: what the change replaces is replaced, and the step is modelled once more. The gain is the difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import NamedTuple, TypeAlias

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.inlining import inlined
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.buffers import lifetimes
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

    def after(self, names: list[str]) -> set[str]:
        """The values and all that is computed of them, element by element, and no larger."""
        found, open_ = set(names), list(names)
        while open_:
            name = open_.pop()
            for reader in self.readers[name]:
                same = self.array[reader.name].elements == self.array[name].elements
                if same and self.kind[reader.name] in _WITHIN and reader.name not in found:
                    found.add(reader.name)
                    open_.append(reader.name)
        return found

    def read_within(self, name: str, names: set[str]) -> bool:
        """Whether only ``names`` read the value."""
        return all(reader.name in names for reader in self.readers[name])


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
        return estimate_placed(
            Context(replace(program, computations=tuple(changed)), target, assume=assume), chip
        ).device_seconds

    @cache
    def room() -> int:
        memory = target.memory("hbm")
        return max(0, memory.usable - lifetimes(program, target).peak) if memory is not None else 0

    found, whole = list[Suggestion](), 0.0
    for cause in (cause for find in _CAUSES for cause in find(bodies, room)):
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


def _written_out(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
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
            sums = body.after([end.name for end in ends if body.kind[end.name] == "reduce"])
            leaves = {name for name in sums if not body.read_within(name, inside | sums)}
            left = [end for end in ends if end.name not in sums or body.after([end.name]) & leaves]
            others = [end for end in left if body.kind[end.name] not in DOTS]
            edits: Edits = {e.name: (_in_one_kernel(body, e, inside, sums, e in others[1:]),) for e in left}
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
        yield _Cause(
            f"fused-{name}",
            f"{_WRITTEN[name]} {list(array.shape)} are written out {many}({size} each)",
            _FUSED[name],
            first,
            together,
        )


_WRITTEN = {"attention": "attention's scores", "loss": "the loss's logits"}
_FUSED = {
    "attention": "from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention; "
    "flash_attention(q, k, v, sm_scale=q.shape[-1] ** -0.5) with q, k, v: [batch, heads, tokens, depth] "
    "(splash_attention beside it where heads share keys); tilewright kernel check names its block sizes",
    "loss": "tokamax.linear_softmax_cross_entropy_loss(x, labels, w), or a lax.map of jax.checkpoint(loss) over blocks "
    "of tokens, keeps no logits",
}


def _in_one_kernel(body: _Body, end: Operation, inside: set[str], sums: set[str], again: bool) -> Operation:
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
            elif name not in inside | sums:
                inputs[name] = shape
    if again:  # it comes out of a kernel that is there
        inputs, flops, special = {}, 0, 0
    estimate = f'{{"custom_call_config":{{"cost_estimate":{{"flops":"{flops}","transcendentals":"{special}"}}}}}}'
    said = {"custom_call_target": TARGET, "backend_config": estimate}
    return replace(
        end, opcode="custom-call", operands=(*inputs,), operand_shapes=(*inputs.values(),), attributes=said, calls=()
    )


def _in_wide_types(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    """Products of float32 operands: what they read and write is narrowed, and nothing else."""
    edits, wide = defaultdict[str, Edits](dict), list[tuple[int, Operation]]()
    for body in bodies:
        narrow = set[str]()
        for op in body.operations:
            if body.kind[op.name] in DOTS and all(shape.startswith("f32") for shape in (op.shape, *op.operand_shapes)):
                wide.append((product_flops(op, body.operands(op), body.array[op.name]) or 0, op))
                narrow |= {n for n in (op.name, *op.operands) if body.kind.get(n) in _WITHIN | DOTS}
        for op in body.operations:  # what is computed of narrow values alone is narrow
            values = [n for n in op.operands if body.kind.get(body.through(n)) not in ("constant", "iota", "parameter")]
            if (
                body.kind[op.name] in _WITHIN
                and op.shape.startswith("f32")
                and values
                and all(n in narrow for n in values)
            ):
                narrow.add(op.name)
        for name in narrow:
            edits[body.name][name] = _narrow(body.by_name[name], narrow)
    if wide:
        what = f"{len(wide)} products of float32" if len(wide) > 1 else "a product of float32"
        how = (
            "x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), or dtype=jnp.bfloat16 of the layer (sums stay float32); "
        )
        how += "tilewright verify OLD NEW says how far results move"
        yield _Cause("float32-product", what, how, max(wide, key=lambda each: each[0])[1], edits)


def _narrow(op: Operation, narrow: set[str]) -> tuple[Operation, ...]:
    """The operation with a result and operands of bfloat16, behind casts of operands that are not narrow yet."""
    casts, names, shapes = list[Operation](), list[str](), list[str]()
    for k, (name, shape) in enumerate(zip(op.operands, op.operand_shapes)):
        shapes.append(shape.replace("f32", "bf16", 1))
        names.append(name if name in narrow or shape == shapes[-1] else f"{op.name}.{k}")
        if names[-1] != name:
            casts.append(Operation(names[-1], "convert", shapes[-1], (name,), (shape,)))
    made = replace(op, shape=op.shape.replace("f32", "bf16", 1), operands=(*names,), operand_shapes=(*shapes,))
    return (*casts, made)


def _cast_every_step(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    """Arguments that are read wide and only used narrow, in a program that does not update them."""
    edits, cast = defaultdict[str, Edits](dict), list[Operation]()
    for body in bodies:
        returned = {shape for op in body.operations if op.opcode == "return" for shape in op.operand_shapes}
        for op in body.operations:
            readers = body.readers[op.name]
            to = {body.array[reader.name].kind for reader in readers}
            casts = len(to) == 1 and all(body.kind[reader.name] == "convert" for reader in readers)
            if op.opcode != "parameter" or not casts or body.array[op.name].elements < _LARGE or op.shape in returned:
                continue
            kind, narrow = body.array[op.name].kind, to.pop()
            if kind in _FLOATS and narrow in ("bf16", "f16"):
                shape = op.shape.replace(kind, narrow, 1)
                edits[body.name][op.name] = (replace(op, shape=shape),)
                for each in readers:
                    edits[body.name][each.name] = (
                        replace(each, opcode="optimization-barrier", operand_shapes=(shape,)),
                    )
                cast += readers
    if cast:
        what = (
            f"{len(cast)} arguments are read in float32 and cast"
            if len(cast) > 1
            else "an argument is read in float32 and cast"
        )
        how = "cast once, outside the step: params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)"
        yield _Cause("cast-every-step", what, how, max(cast, key=lambda op: _array(op.shape).elements), edits)


_THIN = 256


def _thin(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    """Products of one array with weights of fewer columns than the matrix unit has: one product with all of them."""
    for body in bodies:
        groups = defaultdict[tuple[str, ...], list[Operation]](list)
        for op in body.operations:
            dims = [op.attributes.get(name, "") for name in ("lhs_contracting_dims", "rhs_contracting_dims")]
            if (
                body.kind[op.name] not in DOTS
                or op.integers("lhs_batch_dims")
                or len(op.integers("rhs_contracting_dims")) != 1
            ):
                continue
            weights = body.operands(op)[1].shape
            if len(weights) == 2 and body.array[op.name].shape[-1:] and body.array[op.name].shape[-1] < _THIN:
                groups[op.operands[0], *dims, body.array[op.name].kind].append(op)
        for group in groups.values():
            first, widths = group[0], [body.array[op.name].shape[-1] for op in group]
            if len(group) < 2 or len({op.operands[1] for op in group}) < len(group):
                continue
            whole, name, at = sum(widths), f"{first.name}.joined", 0
            shapes = [_with_size(op.shape, -1, whole) for op in group]
            side = 1 - first.integers("rhs_contracting_dims")[0]
            weights_shape = _with_size(first.operand_shapes[1], side, whole)
            joined = replace(first, name=name, shape=shapes[0], operands=(first.operands[0], f"{name}.weights"))
            joined = replace(joined, operand_shapes=(first.operand_shapes[0], weights_shape))
            edits: Edits = {}
            for op, width in zip(group, widths):
                *outer, _ = body.array[op.name].shape
                taken = ", ".join([*(f"[0:{n}]" for n in outer), f"[{at}:{at + width}]"])
                part = replace(
                    op,
                    opcode="slice",
                    operands=(name,),
                    operand_shapes=(shapes[0],),
                    attributes={"slice": f"{{{taken}}}"},
                )
                edits[op.name], at = (part,), at + width
            edits[first.name] = (Operation(f"{name}.weights", "parameter", weights_shape), joined, *edits[first.name])
            how = f"store the weights side by side and multiply once: jnp.split(x @ w, {[*_sums(widths)]}, axis=-1)"
            yield _Cause(
                "thin-products",
                f"{len(group)} products of one array with {widths} columns",
                how,
                first,
                {body.name: edits},
            )


def _with_size(shape: str, dim: int, size: int) -> str:
    kind, sizes = _array(shape)
    changed = list(sizes)
    changed[dim] = size
    return f"{kind}[{','.join(map(str, changed))}]"


def _sums(widths: list[int]) -> Iterator[int]:
    at = 0
    for width in widths[:-1]:
        at += width
        yield at


def _made_again(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    """Products that are computed a second time for the gradient, and whose results memory has room for."""
    again = [
        (body, op) for body in bodies for op in body.operations
        if body.kind[op.name] in DOTS and "rematted_computation" in op.op_name
    ]  # fmt: skip
    if not again:
        return
    left, edits, kept = room(), defaultdict[str, Edits](dict), list[Operation]()
    for body, op in sorted(again, key=lambda each: -_depth(*each)):
        size = body.array[op.name].elements * (2 if body.array[op.name].kind == "bf16" else 4)
        if size > left:
            continue
        twin = next(
            (
                t.name
                for t in body.operations
                if t.opcode == op.opcode and t.shape == op.shape and "rematted_computation" not in t.op_name
                if body.through(t.operands[1]) == body.through(op.operands[1])
            ),
            "",
        )
        if twin:
            left -= size
            same = replace(op, opcode="optimization-barrier", operands=(twin,), operand_shapes=(op.shape,))
            edits[body.name][op.name] = (same,)
            kept.append(op)
    if kept:
        batched = any(op.integers("lhs_batch_dims") for op in kept)
        policy = "dots_saveable" if batched else "dots_with_no_batch_dims_saveable"
        size = bytes_text(room() - left)
        how = (
            f"jax.checkpoint(f, policy=jax.checkpoint_policies.{policy}) keeps them, {size} that memory has room for; "
        )
        how += "tilewright run shows its peak"
        yield _Cause("computed-again", f"{len(kept)} products are computed a second time", how, kept[0], edits)


def _depth(body: _Body, op: Operation) -> int:
    sizes = product_sizes(op, body.operands(op), body.array[op.name])
    return sizes[3] if sizes else 0


def _sent_by_ones(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    """Products with arrays of zeros and ones, which send each row to one place: rows are moved by their index."""
    edits, found = defaultdict[str, Edits](dict), list[tuple[int, Operation]]()
    for body in bodies:
        ones = set[str]()
        for op in body.operations:
            kind = body.kind[op.name]
            equal = kind == "compare" and "EQ" in op.attributes.get("direction", "") and any(
                body.kind.get(body.through(name)) == "iota" for name in op.operands
            )  # fmt: skip
            sent = op.operands[:1] if kind in _VIEWS else op.operands if kind in ("multiply", "select") else ()
            if equal or any(name in ones for name in sent):
                ones.add(op.name)
            if kind not in DOTS or len(op.operands) != 2:
                continue
            arrays = body.operands(op)
            for side in (0, 1):
                several = body.kind.get(body.through(op.operands[side])) in (
                    "multiply",
                    "select",
                )  # else it is a lookup
                large = several and arrays[side].elements >= _LARGE and len(arrays[side].shape) > 2
                if op.operands[side] in ones and op.operands[1 - side] not in ones and large:
                    name = ("rhs", "lhs")[side]
                    fixed = {*op.integers(f"{name}_contracting_dims"), *op.integers(f"{name}_batch_dims")}
                    row = [1 if d in fixed else size for d, size in enumerate(arrays[1 - side].shape)]
                    sends = len(op.integers(f"{name}_contracting_dims")) == 1  # rows to places; else places to rows
                    rows = (arrays[1 - side] if sends else body.array[op.name]).elements // prod(row)
                    at = Operation(f"{op.name}.index", "iota", f"s32[{max(1, rows)},1]")
                    moved = (op.operands[1 - side], op.operand_shapes[1 - side])
                    to = Operation(f"{op.name}.places", "broadcast", op.shape)
                    kind, first, *rest = ("scatter", (to.name, to.shape), moved) if sends else ("gather", moved)
                    names, shapes = zip(first, (at.name, at.shape), *rest)
                    said = {} if sends else {"slice_sizes": f"{{{','.join(map(str, row))}}}", "start_index_map": "{0}"}
                    new = replace(op, opcode=kind, attributes=said, operands=names, operand_shapes=shapes)
                    edits[body.name][op.name] = at, to, new
                    found.append((product_flops(op, arrays, body.array[op.name]) or 0, op))
                    break
    if found:
        what = f"{len(found)} products send rows to places by arrays of zeros and ones"
        how = "send rows by index, jnp.zeros((e, c, d), x.dtype).at[expert, place].add(x), and fetch them by index, "
        how += "y[expert, place], times the gates; or sort them by expert for jax.lax.ragged_dot"
        yield _Cause("one-hot-dispatch", what, how, max(found, key=lambda each: each[0])[1], edits)


_CAUSES: tuple[Callable[[list[_Body], Callable[[], int]], Iterator[_Cause]], ...] = (
    _written_out, _sent_by_ones, _in_wide_types, _cast_every_step, _thin, _made_again
)  # fmt: skip
