"""What a program spends and need not and no rule can change: what is kept, in which type, which kernel does it.

Each change is tried on the program's records: what it replaces is replaced, and the step is modelled once more. What it
saves is the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from math import gcd, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import array_layout, plain_opcode, shape_text
from tilewright.hlo.inlining import inlined
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE, WRITES_IN_PLACE
from tilewright.hlo.program import GIVEN_AWAY, PALLAS, Computation, Operation, Program, reached
from tilewright.hlo.reporting.buffers import lifetimes
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import product_flops, product_sizes
from tilewright.hlo.semantics.partitioning import of_one_device
from tilewright.hlo.timing.chip import chip_of
from tilewright.hlo.timing.estimate import estimate_placed
from tilewright.layout import TensorLayout
from tilewright.render import bytes_text
from tilewright.targets import Target

_LEAST = 0.01
"""Share of the step that a change must save to be worth a word."""
_LARGE = 1 << 20
"""Elements of an array below which nobody minds that it is written, or read."""
_THIN = 256
"""Columns that the matrix unit has at the most."""
_VIEWS = frozenset({"reshape", "transpose", "broadcast", "optimization-barrier", "convert", "copy"})
_WITHIN = ELEMENTWISE | _VIEWS | {"constant", "iota"}
_PARTS = (_VIEWS - {"convert"}) | {"slice", "dynamic-slice", "gather"}
_AGAIN = "rematted_computation"


_NOTHING = array_layout("s32[0]")


def _array(text: str) -> TensorLayout:
    """An array of the program; an empty one for what is none."""
    try:
        return array_layout(text)
    except TilewrightError:
        return _NOTHING


class _Body:
    """One computation, calls in place: its operations, who reads what, and the array that each makes."""

    def __init__(self, program: Program, name: str) -> None:
        self.name, self.operations = name, inlined(program, program.by_name[name])
        self.entry = program.by_name[name].entry
        in_place = (op for op in self.operations if plain_opcode(op.opcode) in WRITES_IN_PLACE)
        self.updated = {op.operands[0]: op for op in in_place}
        whole = Computation(name, tuple(self.operations))
        self.by_name, self.read_by = whole.named, whole.readers
        self.kind = {op.name: plain_opcode(op.opcode) for op in self.operations}
        arrays = {op.name: _array(op.shape) for op in self.operations}
        self.array = defaultdict(lambda: _NOTHING, arrays)  # of values from outside nothing is known
        self.carried = [op.name for op in self.operations if op.opcode == "parameter"]
        self.returned = {shape for op in self.operations if op.opcode == "return" for shape in op.operand_shapes}
        self.dots = [op for op in self.operations if self.kind[op.name] in DOTS and len(op.operands) == 2]

    def readers(self, name: str) -> list[str]:
        """The operations that read a value, by their names."""
        return [op.name for op in self.read_by[name]]

    def flops(self, op: Operation) -> int:
        return product_flops(op, [*map(_array, op.operand_shapes)], self.array[op.name])

    def sizes(self, op: Operation) -> tuple[int, ...] | None:
        """(batch, rows, columns, depth) of a product."""
        return product_sizes(op, [*map(_array, op.operand_shapes)], self.array[op.name])

    def free(self, op: Operation, side: int) -> list[int]:
        """The dims of a product's operand that its result keeps and the other operand does not have."""
        name = ("lhs", "rhs")[side]
        gone = {*op.integers(f"{name}_batch_dims"), *op.integers(f"{name}_contracting_dims")}
        return [d for d in range(_array(op.operand_shapes[side]).rank) if d not in gone]

    def behind(self, name: str) -> str:
        """The value that is only shown in another form."""
        while self.kind.get(name) in _VIEWS and self.by_name[name].operands:
            name = self.by_name[name].operands[0]
        return name

    def unrepeated(self, name: str) -> str:
        """The array that it holds several times; itself, where it does not."""
        source = self.behind(name)
        return source if 0 < self.array[source].num_elements < self.array[name].num_elements else name

    def softmax(self, op: Operation) -> int:
        """Length of a row of an exponential of what a number of its row was taken off: a maximum, or a sum's logarithm;
        0 of what is none."""
        less = self.by_name.get(self.behind(op.operands[0])) if self.kind[op.name] == "exponential" else None
        if less is None or self.kind[less.name] != "subtract":
            return 0
        row = self.array[self.behind(less.operands[1])].num_elements
        return self.array[op.name].num_elements // row if 1 < row < self.array[op.name].num_elements else 0

    def is_position(self, name: str) -> bool:
        """Whether it counts along a dim, from wherever."""
        op = self.by_name.get(self.behind(name))
        kind = self.kind[op.name] if op is not None else ""
        return kind == "iota" or (kind in ("add", "subtract") and any(map(self.is_position, op.operands if op else ())))

    def is_causal(self, inside: set[str]) -> bool:
        """Whether what is computed element by element compares one place with another, which is the larger."""
        makers = lambda name: (n for n in self.by_name[name].operands if self.kind.get(n) in _WITHIN)  # noqa: E731
        compared = (self.by_name[name] for name in reached(inside, makers) if self.kind[name] == "compare")
        ordered = (op for op in compared if op.attributes.get("direction", "")[:1] in ("G", "L"))
        return any(all(map(self.is_position, op.operands)) for op in ordered)

    def around(self, seed: str) -> tuple[set[str], dict[str, None]]:
        """All values of as many elements as ``seed`` that are computed from each other; and what makes less of them."""
        size, inside, ends, open_ = self.array[seed].num_elements, {seed}, dict[str, None](), [seed]
        while open_:
            name = open_.pop()
            makers = self.by_name[name].operands if self.kind[name] in _WITHIN else ()
            for other in {*makers, *self.readers(name)} & self.by_name.keys() - inside:
                kind, made = self.kind[other], other in makers
                shapes = self.by_name[other].operand_shapes
                grown = made and kind in DOTS and any(_array(shape).num_elements < size for shape in shapes)
                if self.array[other].num_elements == size and (kind in _WITHIN or grown):
                    inside.add(other)
                    open_.append(other)
                elif not made and kind not in ("return", "optimization-barrier"):
                    ends[other] = None
        return inside, dict.fromkeys(sorted(ends))

    def after(self, *names: str) -> set[str]:
        """The values and all that is computed of them, element by element, and no larger."""

        def along(name: str) -> Iterator[str]:
            within, size = (n for n in self.readers(name) if self.kind[n] in _WITHIN), self.array[name].num_elements
            return (n for n in within if self.array[n].num_elements == size)

        return {*reached(names, along)}


@dataclass
class _Cause:
    """A change that can be made: its name, what is done now and ``{}`` for how often, what to write instead; the
    operations that it is about with a weight for each, and what takes an operation's place, by computation and name.
    """

    name: str
    what: str = ""
    how: str = ""
    about: list[tuple[int, Operation]] = field(default_factory=list)
    edits: dict[tuple[str, str], tuple[Operation, ...]] = field(default_factory=dict)


def causes(program: Program, target: Target, assume: Mapping[str, float] | None = None) -> list[Suggestion]:
    """The changes that are known to save time in this program on ``target``, each with what it saves there.

    Raises UnsupportedError for a target without a time model.
    """
    chip, program = chip_of(target), of_one_device(program)
    called = {callee for _, op in program.operations() if op.opcode == "call" for callee in op.calls}
    bodies = {each.name: _Body(program, each.name) for each in program.computations if each.name not in called}

    def seconds(cause: _Cause) -> float:
        changed = list[Computation]()
        for each in program.computations:
            operations = bodies[each.name].operations if each.name in bodies else each.operations
            new = (made for op in operations for made in cause.edits.get((each.name, op.name), (op,)))
            changed.append(replace(each, operations=tuple(new)))
        whole = replace(program, computations=tuple(changed))
        return estimate_placed(Context(whole, target, assume=assume), chip).device_seconds

    @cache
    def room() -> int:
        memory = target.memory("hbm")
        return max(0, memory.usable - lifetimes(program, target).peak) if memory is not None else 0

    found, whole = list[Suggestion](), 0.0
    for cause in (cause for find in _CAUSES for cause in find([*bodies.values()], room) if cause.edits):
        whole = whole or seconds(_Cause(""))
        saved = whole - seconds(cause)
        if saved > _LEAST * whole:
            at = max(cause.about, key=lambda each: each[0])[1]
            factor, also = round(whole / (whole - saved), 3), tuple(name for _, name in cause.edits if name != at.name)
            how = (
                cause.how if "tilewright" in cause.how else f"{cause.how}; tilewright diff OLD NEW shows what it brings"
            )
            what = cause.what.replace("{}", f"{len(cause.about)} times " if len(cause.about) > 1 else "")
            each = Suggestion(at.name, cause.name, factor, "predicted", how, str(at.source or ""), what)
            found.append(replace(each, also=also, saved_us=1e6 * saved))
    return found


# Scores and their softmax, or logits and theirs: arrays larger than all they are made of, written and read again. One
# kernel computes them block by block near the core.

_BLOCK, _LANES = 1024, 128
"""Tokens of a block of scores that a kernel holds near the core, and what their number is a multiple of."""
_WRITTEN = {"attention": "attention's scores", "loss": "the loss's logits"}
_FUSED = {
    "attention": "from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as sk, "
    "splash_attention_mask as sm; attend = sk.make_splash_m{0}a_single_device(sm.MultiHeadMask([sm.{1}Mask(({2}, {3}))]"
    " * {4}), block_sizes=sk.BlockSizes({5}, {6}, {6}, {5}, {6}, {6}, {5}, {6})); "
    "{7}(q * q.shape[-1] ** -0.5, k, v) with q: [batch, {8}heads, tokens, depth], k, v: [batch, heads, tokens, depth]"
    "{9}; of small blocks, as by default, it is slower",
    "loss": "tokamax.linear_softmax_cross_entropy_loss(x, labels, w, reduction='mean', implementation='mosaic_tpu') "
    "keeps no logits: of blocks that tokamax.autotune finds (a lax.map over blocks of tokens saves memory, and takes "
    "longer)",
}


def _written_out(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    found = dict[tuple[str, str], _Cause]()
    for body in bodies:
        seen = set[str]()
        for op in body.operations:
            row = body.softmax(op) if op.name not in seen and body.array[op.name].num_elements >= _LARGE else 0
            inside, ends = body.around(op.name) if row else (set[str](), dict[str, None]())
            seen |= inside
            first = next((dot for dot in body.dots if dot.name in inside), None)
            if first is None:
                continue
            kind = "attention" if first.integers("lhs_batch_dims") else "loss"
            side = int((body.sizes(first) or ())[2:3] != (row,))  # of the queries
            queries = [_array(first.operand_shapes[side]).shape[dim] for dim in body.free(first, side)]
            sizes, keys = (max(queries, default=1), row), first.operands[1 - side]
            if kind == "attention" and sizes[0] < _LANES:  # a decoding step, for which these kernels are none
                continue
            cause = found.setdefault((kind, str(first.source)), _Cause(f"fused-{kind}"))
            cause.about.append((-len(cause.about), first))
            array = body.array[first.name]
            times = max(1, body.array[keys].num_elements // max(1, body.array[body.unrepeated(keys)].num_elements))
            group = prod(queries) // sizes[0] * times
            each = f"{list(array.shape)} are written out {{}}({bytes_text(array.data_bytes)} each)"
            tokens = [-(-size // _LANES) * _LANES for size in sizes]
            padded = "" if (*tokens,) == sizes else ", padded to as many tokens (segment_ids mask the rest)"
            blocks, filled = [gcd(size, _BLOCK) for size in tokens], prod(tokens) / prod(sizes)
            causal = sizes[0] == row and body.is_causal(inside)
            if causal:  # blocks of later tokens are left out
                filled *= (1 + blocks[0] / tokens[0]) / 2
            several = (f"{group}", "jax.vmap(jax.vmap(attend))", f"heads, {group} ")
            heads = several if group > 1 else ("q.shape[1]", "jax.vmap(attend)", "")
            said = ("q" if group > 1 else "h", "Causal" if causal else "Full", *tokens, heads[0], *blocks, *heads[1:])
            cause.what, cause.how = f"{_WRITTEN[kind]} {each}", _FUSED[kind].format(*said, padded)
            sums = body.after(*(name for name in ends if body.kind[name] == "reduce"))
            own = inside | sums
            leaves = {name for name in sums if not own.issuperset(body.readers(name))}
            left = [name for name in ends if name not in sums or body.after(name) & leaves]
            carried = next((name for name in left if body.kind[name] not in DOTS), "")
            for name in left:
                alone = body.kind[name] not in DOTS and name != carried  # it comes out of a kernel that is there
                made = _in_one_kernel(body, body.by_name[name], own, alone, prod(blocks), filled)
                cause.edits[body.name, name] = (made,)
    yield from found.values()


def _in_one_kernel(body: _Body, end: Operation, own: set[str], alone: bool, scores: int, filled: float) -> Operation:
    """What leaves as a kernel: the products before it, an exponential of each score, what comes from outside.

    ``scores`` of one step; ``filled``: how many there are of all with what tokens are padded by.
    """
    inputs, flops, special = dict[str, str](), 0, 0
    thin = list[int]()  # of its products, the sum's length or the result's columns: a head's depth
    makers = lambda name: (each for each in body.by_name[name].operands if each in own)  # noqa: E731
    for op in (body.by_name[name] for name in reached([end.name], makers)) if not alone else ():
        if body.kind[op.name] in DOTS:
            flops += body.flops(op)
            thin += (body.sizes(op) or ())[2:]
        special += body.array[op.name].num_elements if body.kind[op.name] == "exponential" else 0
        for name, shape in zip(op.operands, op.operand_shapes):
            source = body.by_name.get(body.unrepeated(name)) if name not in own else op
            inputs |= {name: shape} if source is None else {source.name: source.shape} if source is not op else {}
    flops, special = round(flops * filled), round(special * filled)
    estimate = f'"flops":"{flops}","transcendentals":"{special}","depth":"{min(thin, default=0)}","scores":"{scores}"'
    config = f'{{"custom_call_config":{{"cost_estimate":{{{estimate}}}}}}}'
    said = {"custom_call_target": PALLAS, "backend_config": config}
    made = replace(end, opcode="custom-call", attributes=said, calls=())
    return replace(made, operands=tuple(inputs), operand_shapes=tuple(inputs.values()))


# Products of float32 operands: what they read and write is narrowed, and what is computed of that alone.


def _in_wide_types(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    how = "keep x and w in bfloat16: dtype and param_dtype=jnp.bfloat16 of the layer (of weights that the step updates "
    how += "dtype alone, or x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16); sums stay float32); tilewright verify OLD "
    how += "NEW says how far results move"
    cause, narrow = _Cause("float32-product", "{}a product of float32", how), dict[_Value, str]()
    for body in bodies:
        own = set[str]()
        for op in body.dots:
            if all(shape.startswith("f32") for shape in (op.shape, *op.operand_shapes)):
                cause.about.append((body.flops(op), op))
                own |= {n for n in (op.name, *op.operands) if body.kind.get(n) in _WITHIN | DOTS}
        for op in body.operations:
            values = [n for n in op.operands if body.kind.get(body.behind(n)) not in ("constant", "iota", "parameter")]
            if body.kind[op.name] in _WITHIN and op.shape.startswith("f32") and values and own.issuperset(values):
                own.add(op.name)
        narrow |= {(body.name, name): "bf16" for name in own}
    stored = _stored_wide(bodies, lambda body, op: narrow.get((body.name, op.name), ""))
    cause.edits = _narrowed(bodies, narrow | stored)
    yield cause


_Value = tuple[str, str]
"""A computation, and a value in it, by their names."""


def _narrowed(bodies: list[_Body], narrow: Mapping[_Value, str]) -> dict[_Value, tuple[Operation, ...]]:
    """What makes or reads values that are narrow now: operands that are not are cast before it, and a cast to what they
    are is none."""
    edits = dict[_Value, tuple[Operation, ...]]()
    for body in bodies:
        for op in body.operations:
            kind, casts, names = narrow.get((body.name, op.name)), list[Operation](), list[str]()
            wanted = [narrow.get((body.name, name), kind) for name in op.operands]
            shapes = [shape.replace("f32", to, 1) if to else shape for shape, to in zip(op.operand_shapes, wanted)]
            if not kind and shapes == [*op.operand_shapes]:
                continue
            for k, (name, shape, new) in enumerate(zip(op.operands, op.operand_shapes, shapes)):
                names.append(name if (body.name, name) in narrow or shape == new else f"{op.name}.{k}")
                casts += [Operation(names[-1], "convert", new, (name,), (shape,))] * (names[-1] != name)
            shape = f"({', '.join(shapes)})" if op.shape.startswith("(") else op.shape
            made = replace(op, shape=shape.replace("f32", kind, 1) if kind else shape, operands=(*names,))
            same = body.kind[op.name] == "convert" and [made.shape] == shapes
            made = replace(made, opcode="optimization-barrier" if same else op.opcode, operand_shapes=(*shapes,))
            edits[body.name, op.name] = (*casts, made)
    return edits


def _stored_wide(bodies: list[_Body], cast: Callable[[_Body, Operation], str]) -> dict[_Value, str]:
    """Large arguments of float32, and parts of them, that nothing reads as such, in a step that does not return their
    like -> the one type that ``cast`` says their readers want; through loops that keep them."""
    named, found = {body.name: body for body in bodies}, dict[_Value, str]()
    for entry in (body for body in bodies if body.entry):
        for argument in (entry.by_name[name] for name in entry.carried):
            if not argument.shape.startswith("f32") or argument.shape in entry.returned:
                continue
            path, open_, kinds = dict[_Value, None](), [(entry, argument.name)], set[str]()
            while open_ and "f32" not in kinds:
                body, name = open_.pop()
                path[body.name, name] = None
                for op in body.read_by[name]:
                    kind, place = cast(body, op), op.operands.index(name)
                    if kind or (op.opcode == "return" and body.carried[place : place + 1] == [name]):
                        kinds |= {kind} - {""}
                    elif body.kind[op.name] == "while":
                        inner = [named[callee] for callee in op.calls if callee in named]
                        open_ += [(each, each.carried[place]) for each in inner]
                    elif body.kind[op.name] in _PARTS and place == 0:
                        open_.append((body, op.name))
                    else:
                        kinds.add("f32")
            if len(kinds) == 1 and kinds < {"bf16", "f16"} and entry.array[argument.name].num_elements >= _LARGE:
                found |= dict.fromkeys(path, *kinds)
    return found


# Arguments that are read wide and only used narrow, in a program that does not update them.


def _cast_every_step(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    def cast(body: _Body, op: Operation) -> str:
        return body.array[op.name].dtype if body.kind[op.name] == "convert" else ""

    how = "cast once, outside the step: params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)"
    cause = _Cause("cast-every-step", "{}an argument is read in float32 and cast", how)
    stored = _stored_wide(bodies, cast)
    cause.edits = _narrowed(bodies, stored)
    for body in bodies:
        casts = (op for op in body.operations if cast(body, op) and (body.name, op.operands[0]) in stored)
        cause.about += [(body.array[op.name].num_elements, op) for op in casts]
    yield cause


# Products of one array with weights of fewer columns than the matrix unit has: one product with all of them. So are
# those of the weights' gradients, which have as few rows, and those of the array's, which are sums of as few elements.


def _thin(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    for body in bodies:
        groups = defaultdict[tuple[str, str], dict[str, Operation]](dict)
        for op in body.dots:
            plain = not op.integers("lhs_batch_dims") and _array(op.operand_shapes[1]).rank == 2
            if plain and len(body.free(op, 1)) == 1 and body.array[op.name].shape[-1] < _THIN:
                groups[op.operands[0], str(sorted(op.attributes.items()))].setdefault(op.operands[1], op)
        for (x, _), group in groups.items():
            dots = list(group.values())
            if len(dots) < 2:
                continue
            rows, deep, tall = body.free(dots[0], 0), list[Operation](), list[Operation]()
            for op in (op for op in body.dots if op not in dots and not op.integers("lhs_batch_dims")):
                for side, name in enumerate(op.operands):
                    if name == x and not {*rows} & {*body.free(op, side)} and len(body.free(op, 1 - side)) == 1:
                        tall.append(op)
                    elif name in group and not {*body.free(group[name], 1)} & {*body.free(op, side)}:
                        deep.append(op)
            ends = [*accumulate(body.array[op.name].shape[-1] for op in dots)]
            what = f"{len(dots)} products of one array, each of fewer columns than the unit has"
            how = f"store the weights side by side and multiply once: jnp.split(x @ w, {ends[:-1]}, axis=-1)"
            cause = _Cause("thin-products", what, how)
            cause.about = [(body.flops(op), op) for op in dots]
            for some in (each for each in (dots, tall) if len(each) == len(dots)):
                cause.edits |= _side_by_side(body, some, int(some[0].operands[0] == x), ends)
            if len(deep) == len(dots):
                first, summed = deep[0], ("lhs_contracting_dims", "rhs_contracting_dims")
                made = _wider(first, dict(enumerate(first.integers(key)[0] for key in summed)), ends[-1])
                cause.edits |= {(body.name, op.name): _same(op, first.name) for op in deep[1:]}
                cause.edits[body.name, first.name] = made
            yield cause


def _wider(op: Operation, dims: Mapping[int, int], size: int) -> tuple[Operation, ...]:
    """A product with so many elements along a dim of an operand, or of each; what it reads then comes before it."""
    held, names, shapes = list[Operation](), [*op.operands], [*op.operand_shapes]
    for side, dim in dims.items():
        array = _array(shapes[side])
        names[side] = f"{op.name}.{side}"
        shapes[side] = f"{array.dtype}{shape_text((*array.shape[:dim], size, *array.shape[dim + 1 :]))}"
        held.append(Operation(names[side], "parameter", shapes[side]))
    return *held, replace(op, operands=(*names,), operand_shapes=(*shapes,))


def _side_by_side(
    body: _Body, dots: list[Operation], side: int, ends: list[int]
) -> dict[_Value, tuple[Operation, ...]]:
    """Products that differ in an operand alone as one, and each of them as its part of that."""
    first, made = dots[0], body.array[dots[0].name]
    dim = (made.rank - 1) * side
    *held, whole = _wider(first, {side: body.free(first, side)[0]}, ends[-1])
    shape = f"{made.dtype}{shape_text((*made.shape[:dim], ends[-1], *made.shape[dim + 1 :]))}"
    whole, edits = replace(whole, name=f"{first.name}.joined", shape=shape), dict[_Value, tuple[Operation, ...]]()
    for op, begin, end in zip(dots, (0, *ends), ends):
        taken = [f"[{begin}:{end}]" if d == dim else f"[0:{size}]" for d, size in enumerate(made.shape)]
        part = replace(op, opcode="slice", operands=(whole.name,), operand_shapes=(shape,))
        edits[body.name, op.name] = (replace(part, attributes={"slice": f"{{{', '.join(taken)}}}"}),)
    return edits | {(body.name, first.name): (*held, whole, *edits[body.name, first.name])}


def _same(op: Operation, name: str) -> tuple[Operation, ...]:
    """Another value of its shape in an operation's place."""
    return (replace(op, opcode="optimization-barrier", operands=(name,), operand_shapes=(op.shape,)),)


# Products that are computed a second time for the gradient, and whose results memory has room for, the deepest first.


def _made_again(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    cause, kept = _Cause("computed-again"), 0
    firsts, again = dict[tuple[str, ...], str](), list[tuple[int, _Body, Operation, tuple[str, ...]]]()
    for body in bodies:
        for op in body.dots:
            key: tuple[str, ...] = (body.name, op.shape, body.behind(op.operands[1]))
            if _AGAIN not in op.op_name:
                firsts.setdefault(key, op.name)
            else:
                sizes = body.sizes(op)
                again.append((sizes[3] if sizes else 0, body, op, key))
    for _, body, op, key in sorted(again, key=lambda each: -each[0]):
        size = body.array[op.name].data_bytes
        if key in firsts and kept + size <= room():
            kept += size
            cause.edits[body.name, op.name] = _same(op, firsts[key])
            cause.about.append((body.flops(op), op))
    batched = any(op.integers("lhs_batch_dims") for _, op in cause.about)
    policy = "dots_saveable" if batched else "dots_with_no_batch_dims_saveable"
    cause.what = f"{len(cause.about)} products are computed a second time for the gradient"
    cause.how = f"jax.checkpoint(f, policy=jax.checkpoint_policies.{policy}) keeps their results, {bytes_text(kept)} "
    cause.how += "that memory has room for; tilewright run shows the peak"
    yield cause


# Products with arrays of zeros and ones, which send each row to one place: rows are moved by their index.

_MANY_ROWS = 4096
"""Of a table: fewer are looked up as fast by a product."""


def _by_ones(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    how = "send rows by index, jnp.zeros((e, c, d), x.dtype).at[expert, place].add(x), and fetch them by index, "
    how += "y[expert, place], times the gates, or sort them by expert for jax.lax.ragged_dot"
    sent = _Cause("one-hot-dispatch", "{}rows are sent to places by a product with zeros and ones", how)
    what = "{}rows of a table are picked, or added to, by a product with zeros and ones"
    looked = _Cause("one-hot-lookup", what, "look the rows up by index, table[ids]: its gradient adds rows")
    gradients = False
    for body in bodies:
        ones, plain = _ones(body)
        for op, side in ((op, side) for op in body.dots if op.name not in ones for side in (0, 1)):
            mask, array = op.operands[side], _array(op.operand_shapes[side])
            if mask not in ones or op.operands[1 - side] in ones or array.num_elements < _LARGE:
                continue
            fetches = array.rank - 1 in op.integers(("lhs", "rhs")[side] + "_contracting_dims")
            lookup = body.behind(mask) in plain
            if array.shape[-1] >= _MANY_ROWS if lookup else array.rank > 2:
                cause = looked if lookup else sent
                cause.edits[body.name, op.name] = _by_index(body, op, 1 - side, ones[mask], fetches)
                cause.about.append((fetches * body.flops(op), op))
                gradients |= lookup and not fetches
    yield sent
    if gradients:  # without them the rule of this name says it all
        yield looked


def _ones(body: _Body) -> tuple[dict[str, int], set[str]]:
    """Arrays of zeros and ones, or of gates at the ones -> to how many places each row is sent; comparisons with places
    that such an array begins with."""
    ones, plain = dict[str, int](), set[str]()
    for op in body.operations:
        kind, known = body.kind[op.name], [ones[name] for name in op.operands if name in ones]
        if kind == "compare" and "EQ" in op.attributes.get("direction", ""):
            if any(body.kind.get(body.behind(name)) == "iota" for name in op.operands):
                ones[op.name] = 1
                plain.add(op.name)
        elif kind in _VIEWS or kind == "reduce":  # a sum over a token's choices sends it to each
            several = _array(op.operand_shapes[0]).num_elements // max(1, body.array[op.name].num_elements)
            if op.operands[:1] and op.operands[0] in ones:
                ones[op.name] = ones[op.operands[0]] * max(1, several)
        elif kind in DOTS and known:
            if len(known) == 2 or not body.free(op, int(op.operands[0] in ones)):
                ones[op.name] = prod(known) * (body.sizes(op) or (1,))[-1]
        elif known and (kind in ("multiply", "select", "compare", "and") or (kind == "add" and len(known) == 2)):
            ones[op.name] = sum(known) if kind == "add" else max(known)
    return ones, plain


def _by_index(body: _Body, op: Operation, side: int, choices: int, fetches: bool) -> tuple[Operation, ...]:
    """A product with zeros and ones as the gather, or scatter, of its other operand's rows, each several times."""
    array, result, free = _array(op.operand_shapes[side]), body.array[op.name], body.free(op, side)
    row = [size if d in free else 1 for d, size in enumerate(array.shape)]
    rows = (result if fetches else array).num_elements // prod(row)
    index = Operation(f"{op.name}.index", "iota", f"s32[{max(1, rows * choices)},1]")
    to = Operation(f"{op.name}.places", "broadcast", op.shape)
    moved = op.operands[side], op.operand_shapes[side]
    places = (moved, (index.name, index.shape)) if fetches else ((to.name, to.shape), (index.name, index.shape), moved)
    names, shapes = zip(*places)
    said = {"slice_sizes": f"{{{','.join(map(str, row))}}}", "start_index_map": "{0}"} if fetches else {}
    new = replace(op, opcode="gather" if fetches else "scatter", attributes=said, operands=names, operand_shapes=shapes)
    if not fetches or choices == 1:
        return index, *([] if fetches else [to]), new
    new = replace(new, name=f"{op.name}.rows", shape=f"{result.dtype}{shape_text((choices, *result.shape))}")
    summed = replace(op, opcode="reduce", attributes={"dimensions": "{0}"})
    return index, new, replace(summed, operands=(new.name,), operand_shapes=(new.shape,))


# Arguments that are updated in place, in a loop or not: in a copy of them, as the caller keeps them.


def _kept(bodies: list[_Body], room: Callable[[], int]) -> Iterator[_Cause]:
    how = "give it away if nobody needs it after the call: jax.jit(..., donate_argnums=...)"
    cause = _Cause("donated-argument", how=how)
    named = {body.name: body for body in bodies}
    for body in (body for body in bodies if body.entry):
        updated = body.updated
        for loop in (op for op in body.operations if body.kind[op.name] == "while" and op.calls[-1] in named):
            inner = named[loop.calls[-1]]
            pairs = zip(loop.operands, inner.carried)
            updated |= {name: inner.updated[part] for name, part in pairs if part in inner.updated}
        for op in body.operations:
            first = updated.get(op.name)
            if op.opcode == "parameter" and op.shape in body.returned and first is not None:
                cause.edits[body.name, op.name] = (replace(op, attributes={**op.attributes, GIVEN_AWAY: ""}),)
                cause.about.append((body.array[op.name].size_bytes, first))
    size = bytes_text(sum(size for size, _ in cause.about))
    cause.what = f"{{}}an argument is copied before it is changed ({size})"
    yield cause


_CAUSES = (_written_out, _by_ones, _in_wide_types, _cast_every_step, _thin, _made_again, _kept)
