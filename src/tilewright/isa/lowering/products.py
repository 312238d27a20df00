"""Products and convolutions as steps: operands in the shape the matrix unit wants, a program for each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.parts import Part, by_dim
from tilewright.isa.lowering.grouping import Group
from tilewright.isa.lowering.padding import padded
from tilewright.isa.lowering.reading import machine_type
from tilewright.isa.lowering.sources import Groups
from tilewright.isa.lowering.steps import Job, Step, Table
from tilewright.isa.lowering.tables import BYTES, Lowering, folded, whole
from tilewright.isa.lowering.tails import Tail, tail_of
from tilewright.isa.multiply.conv import ConvPlan, ConvShape, conv_ahead, conv_parts, conv_program
from tilewright.isa.multiply.expected import expected_counts
from tilewright.isa.multiply.matmul import A_REGISTER, ACCUMULATORS, MatmulPlan, matmul_program, type_and_signs

_PLACES = 280
_MOST_KB = 8


@dataclass(frozen=True)
class _Form:
    """A dot_general as matrices: ``rows`` and ``columns`` of the result's dims, operands and their groups."""

    a: Value
    b: Value
    a_groups: Groups
    b_columns: Groups
    b_rows: Groups
    c_groups: Groups
    batch: int
    m: int
    n: int
    k: int

    def copies(self, lowering: Lowering) -> tuple[float, bool]:
        """How much has to be copied for it, and whether B is walked by rows (``t1``)."""
        a, columns, rows = (
            lowering.there(value, groups) is not None
            for value, groups in ((self.a, self.a_groups), (self.b, self.b_columns), (self.b, self.b_rows))
        )
        cost = 0.0 if a or lowering.held(lowering.reading.root(self.a)) else self.a_size
        if columns or lowering.held(lowering.reading.root(self.b)):
            return cost, False
        return (cost, True) if rows and self.m <= 256 else (cost + self.b_size, False)

    @property
    def a_size(self) -> float:
        return float(self.batch * self.m * self.k)

    @property
    def b_size(self) -> float:
        return float(self.batch * self.n * self.k)


def _forms(node: Node) -> tuple[_Form, _Form]:
    """A B as it is written, and as the transpose of the one with sides changed."""
    own, (lhs, rhs) = node.attributes, node.operands
    batches, sums = (own["lhs_batch"], own["rhs_batch"]), (own["lhs_contract"], own["rhs_contract"])
    free = [
        tuple(d for d in range(len(v.sizes)) if d not in batch + depth)
        for v, batch, depth in zip((lhs, rhs), batches, sums, strict=True)
    ]
    count = len(batches[0])
    outs = tuple(range(count)), tuple(range(count, count + len(free[0])))
    out_rows, out_columns = outs[1], tuple(range(count + len(free[0]), count + len(free[0]) + len(free[1])))
    batch = prod(lhs.sizes[d] for d in batches[0])
    m, n = (prod(v.sizes[d] for d in dims) for v, dims in zip((lhs, rhs), free, strict=True))
    k = prod(lhs.sizes[d] for d in sums[0])
    sides = [
        ((batches[i] + free[i], sums[i]), (batches[i] + sums[i], free[i])) for i in range(2)
    ]  # with k the fastest, and with the own dims the fastest
    straight = _Form(lhs, rhs, sides[0][0], *sides[1], (outs[0] + out_rows, out_columns), batch, m, n, k)
    turned = _Form(rhs, lhs, sides[1][0], *sides[0], (outs[0] + out_columns, out_rows), batch, n, m, k)
    return straight, turned


def types_of(a: Value, b: Value, out: Value) -> tuple[str, str, str]:
    """What follows ``mm``, and the type of its sums. Raises UnsupportedError for what it cannot multiply."""
    types = machine_type(a), machine_type(b)
    if None in types or "i1" in (a.dtype, b.dtype):
        raise UnsupportedError(f"the matrix unit does not multiply {a.dtype} by {b.dtype}")
    try:
        written, signs = type_and_signs(str(types[0]), str(types[1]))
    except TilewrightError as error:
        raise UnsupportedError(str(error)) from None
    made = machine_type(out)
    if made is None or (made[0] in "su") != bool(signs) or out.dtype == "i1":
        raise UnsupportedError(f"products of {a.dtype} are added up in {'s32' if signs else 'f32'}, not {out.dtype}")
    return written, signs, made if made[1:] == "32" else "s32" if signs else "f32"


def lower_product(lowering: Lowering, node: Node, after: Group | None = None) -> None:
    """One dot_general as a step, with a region of its users (``after``) done to its sums."""
    types = types_of(node.operands[0], node.operands[1], node.result)
    form = min(_forms(node), key=lambda form: form.copies(lowering)[0])
    _add(lowering, node, form, types, lowering.name("dot"), after)


def _add(
    lowering: Lowering, node: Node, form: _Form, types: tuple[str, str, str], name: str, after: Group | None
) -> None:
    written, signs, sums = types
    walks = form.copies(lowering)[1]
    a = lowering.table(form.a, form.a_groups)
    b = lowering.table(form.b, form.b_rows if walks else form.b_columns)
    tail = tail_of(lowering, node, form.c_groups, sums, after)
    e = BYTES[lowering.tables[a].dtype]
    plan = product_plan(lowering, form.m, form.n, form.k, written, signs, e, walks)
    plan = replace(plan, epilogue=tail.spec)
    deep = (form.k, form.n) if walks else (form.n, form.k)
    jobs = []
    for number in range(form.batch):
        for pe, (rows, columns) in _shares(plan, number, form.batch).items():
            mine = replace(plan, m=rows[1], n=columns[1])
            own = ((0, form.k), columns) if walks else (columns, (0, form.k))
            part = Part((number * form.m + rows[0], columns[0]), (rows[1], columns[1]))
            windows = (
                ("A", a, Part((number * form.m + rows[0], 0), (rows[1], form.k))),
                ("B", b, Part((number * deep[0] + own[0][0], own[1][0]), (own[0][1], own[1][1]))),
                ("C", tail.table, part),
                *tail.windows(part),
            )
            jobs.append(Job(pe, matmul_program(mine), windows))
    expected = expected_counts(
        form.m, form.n, form.k, config=plan.config, ka=plan.ka, kb=plan.kb, transpose_b=walks, element_bytes=e
    )
    closed = {"macs": expected.macs * form.batch}
    if plan.config.pes == 1:
        closed |= {name: getattr(expected, name) * form.batch for name in ("instructions", "steps", "column_loads")}
    macs = form.batch * form.m * form.n * form.k
    lowering.steps.append(_step(name, tail, jobs, (a, b), 2 * macs, closed))


def _step(
    name: str, tail: Tail, jobs: Sequence[Job], reads: tuple[str, str], work: int, closed: dict[str, int]
) -> Step:
    more = tuple(table for key, table in tail.tables.items() if key.startswith("x"))
    return Step(
        name,
        "matrix",
        nodes=tail.nodes,
        outputs=(tail.out,),
        jobs=tuple(jobs),
        reads=(*reads, *more),
        writes=(tail.table,),
        operations=work + tail.operations,
        expected=closed,
    )


def product_plan(
    lowering: Lowering, m: int, n: int, k: int, written: str, signs: str, element_bytes: int, walks: bool
) -> MatmulPlan:
    """How threads share the work: rows as far as there are, then every dot product; A in blocks."""
    c = lowering.config
    chunk, kb = c.a_bytes // element_bytes, 1
    while kb < _MOST_KB and m * kb * 2 <= c.compute_threads and kb * chunk < k and c.kb_mode == "chunk":
        kb *= 2
    columns = min(c.default_columns, ACCUMULATORS)
    block = min((_PLACES - A_REGISTER) // c.a_registers, 8, -(-k // chunk)) if kb == 1 else 1
    return MatmulPlan(m, n, k, written, signs, element_bytes, 1, kb, walks, "k_outer", columns, c, max(1, block))


def _shares(plan: MatmulPlan, number: int, batch: int) -> dict[int, tuple[tuple[int, int], tuple[int, int]]]:
    """(first, count) of rows and of columns, by processing element; whole products of a batch in turn."""
    pes = plan.config.pes
    if batch > 1 or pes == 1:
        return {number % pes: ((0, plan.m), (0, plan.n))}
    by_rows = -(-plan.m // plan.fit) >= pes or plan.m >= plan.n
    shares = by_dim((plan.m, plan.n), 0 if by_rows else 1, pes)
    return {pe: tuple(zip(part.base, part.size, strict=True)) for pe, (part,) in shares.items()}  # type: ignore[misc]


# Convolutions.


def _spatial(numbers: str, first: str, second: str) -> tuple[tuple[int, ...], ...]:
    """The dims in the order (first, 0, 1, second); where there is one, it is the second."""
    inner = [(numbers.index(letter),) for letter in "01"[: len(numbers) - 2]]
    return ((numbers.index(first),), *((),) * (2 - len(inner)), *inner, (numbers.index(second),))


def lower_convolution(lowering: Lowering, node: Node, after: Group | None = None) -> None:
    """One convolution as a step; 1x1 ones without strides are products. ``after``: a region done to its sums."""
    own, (x, w), out = node.attributes, node.operands, node.result
    types = types_of(x, w, out)
    written, signs, sums = types
    rank = len(own["numbers"][0]) - 2
    if rank not in (1, 2) or own["batch_groups"] != 1:
        raise UnsupportedError(f"a convolution over {rank} dims, of {own['batch_groups']} groups of images")
    image, kernel, made = (
        _spatial(n, *ends) for n, ends in zip(own["numbers"], (("b", "f"), ("o", "i"), ("b", "f")), strict=True)
    )
    ones = (1,) * (2 - rank)
    strides, dilation, apart = (ones + own[name] for name in ("strides", "rhs_dilation", "lhs_dilation"))
    padding = ((0, 0),) * (2 - rank) + own["padding"]
    n, height, width, _ = folded(x.sizes, image)
    outs, kh, kw, depth = folded(w.sizes, kernel)
    pixels = made[0] + made[1] + made[2], made[3]
    plain = padding == ((0, 0), (0, 0)) and apart == (1, 1)
    many = n * height * width > lowering.config.compute_threads // 2
    if (kh, kw) == strides == (1, 1) and plain and own["groups"] == 1 and many:
        deep = kernel[1] + kernel[2] + kernel[3]
        rows = image[0] + image[1] + image[2], image[3]
        form = _Form(x, w, rows, (kernel[0], deep), (deep, kernel[0]), pixels, 1, n * height * width, outs, depth)
        _add(lowering, node, form, types, lowering.name("conv"), after)
        return
    if any(own["reversal"]):
        w = _reversed(w, [d for d, turned in zip(sum(kernel[1:3], ()), own["reversal"], strict=True) if turned])
    beside = 0
    if apart != (1, 1) or min(min(pair) for pair in padding) < 0:
        a = _apart(lowering, x, image, padding, apart)
        (_, height, width, _), before = lowering.tables[a].shape, (0, 0)
    else:
        before = (padding[0][0], padding[1][0])
        if own["groups"] == dilation[1] == 1 and _row_is_better(lowering, x, kw, depth):
            image, kernel = ((*g[:2], (), g[2] + g[3]) for g in (image, kernel))
            beside, kw, depth = depth, 1, kw * depth
        a = lowering.table(x, image)
    _, *size, _ = folded(out.sizes, made)
    out_size = size[0], size[1]
    shape = ConvShape(
        n, (height, width), depth, outs, own["groups"], (kh, kw), strides, before, dilation, out_size, beside
    )
    tail = tail_of(lowering, node, pixels, sums, after)
    per_group = outs // own["groups"]
    plan = product_plan(
        lowering, shape.pixels, per_group, depth, written, signs, BYTES[lowering.tables[a].dtype], False
    )
    plan, b = _weights(lowering, plan, w, kernel, kh * kw)
    conv = ConvPlan(replace(plan, epilogue=tail.spec), shape, 0, (0, outs))
    jobs = _conv_jobs(lowering, conv, a, b, tail)
    macs = shape.pixels * outs * depth * kh * kw
    lowering.steps.append(_step(lowering.name("conv"), tail, jobs, (a, b), 2 * macs, {}))


def _row_is_better(lowering: Lowering, x: Value, across: int, channels: int) -> bool:
    """Whether a row of the kernel takes fewer ``mm`` as one tap, whose pixels' channels lie side by side."""
    dtype = machine_type(x)
    deep = lowering.config.a_bytes // BYTES[str(dtype)]
    return lowering.held(lowering.reading.root(x)) and across * -(-channels // deep) > -(-across * channels // deep)


def _reversed(value: Value, dims: Sequence[int]) -> Value:
    """What ``reverse`` makes of it."""
    return Node("reverse", [value], {"dims": tuple(dims)}).add_result(value.sizes, value.dtype)


def _apart(
    lowering: Lowering, x: Value, image: Groups, padding: Sequence[tuple[int, int]], apart: Sequence[int]
) -> str:
    """A table of images with zeros around them and between their elements, or without some at their ends."""
    sizes, begins, gaps = list(x.sizes), [0] * len(x.sizes), [1] * len(x.sizes)
    for dims, (low, high), gap in zip(image[1:3], padding, apart, strict=True):
        for d in dims:
            sizes[d], begins[d], gaps[d] = low + (x.sizes[d] - 1) * gap + 1 + high, low, gap
    return padded(lowering, x, Value(tuple(sizes), x.dtype), image, begins, gaps, "spread")


def _weights(lowering: Lowering, plan: MatmulPlan, w: Value, groups: Groups, taps: int) -> tuple[MatmulPlan, str]:
    """As many rounds of A at once as divide the channels, the next while they are multiplied; the table of weights."""
    held = lowering.held(lowering.reading.root(w))
    most = min(8, (_PLACES - A_REGISTER) // plan.config.a_registers) if plan.kb == 1 or held else 1
    rounds = -(-plan.k // plan.depth)
    block = max(b for b in range(1, most + 1) if rounds % b == 0 and (plan.kb == 1 or plan.k % (plan.depth * b) == 0))
    plan = replace(plan, block_a=block)
    if conv_ahead(replace(plan, buffers=2), taps) or plan.k % (plan.depth * block * 2) == 0:
        plan = replace(plan, buffers=2)
    if plan.kb == 1 or block == 1:
        return plan, lowering.table(w, groups)
    name, dtype = lowering.name("t"), str(machine_type(w))
    lowering.tables[name] = Table(name, folded(w.sizes, groups), dtype, held=(w, groups), weights=plan)
    return plan, name


def _conv_jobs(lowering: Lowering, conv: ConvPlan, a: str, b: str, tail: Tail) -> list[Job]:
    """Rows of the result to every processing element, or output channels where there are too few."""
    plan, shape, pes = conv.plan, conv.shape, conv.plan.config.pes
    images, weights = lowering.tables[a].shape, lowering.tables[b].shape
    if pes == 1:
        part = whole((shape.pixels, shape.outs))
        seen = (("A", a, whole(images)), ("B", b, whole(weights)), ("C", tail.table, part))
        return [Job(0, conv_program(conv), (*seen, *tail.windows(part)))]
    per_image = shape.out[0] * shape.out[1]
    enough = min(shape.images * shape.out[0], -(-plan.m // plan.fit)) >= pes
    jobs = []
    for pe, part in conv_parts((shape.images, *shape.out, shape.outs), "rows" if enough else "channels", pes).items():
        (pixel, channel), (rows, outs) = part.base, part.size
        first, end = pixel // per_image, -(-(pixel + rows) // per_image)
        mine = replace(
            conv,
            plan=replace(plan, m=rows),
            pixel=pixel - first * per_image,
            channels=(channel, channel + outs),
        )
        seen = (
            ("A", a, Part((first, 0, 0, 0), (end - first, *images[1:]))),
            ("B", b, Part((channel, 0, 0, 0), (outs, *weights[1:]))),
            ("C", tail.table, part),
        )
        jobs.append(Job(pe, conv_program(mine), (*seen, *tail.windows(part))))
    return jobs
