"""Products and convolutions as steps: operands in the shape the matrix unit wants, a program for each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.segments import Part, by_dim
from tilewright.isa.lowering.moves import copy_padded
from tilewright.isa.lowering.reading import Group, machine_type
from tilewright.isa.lowering.sources import Groups, Job, Step, Table
from tilewright.isa.lowering.tables import BYTES, Lowering, folded
from tilewright.isa.lowering.vectors import Tail, tail_of
from tilewright.isa.multiply.conv import ConvPlan, ConvShape, conv_ahead, conv_program, conv_shares
from tilewright.isa.multiply.matmul import A_REGISTER, PLACES, MatmulPlan, columns_of_mm, matmul_program, type_and_signs

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Matrices:
    """A value as a batch of matrices: its dims that count them, that are the rows and the columns of each.

    ``beside``: of the first, those along which matrices stand side by side (a head's columns among a row's); along the
    others one stands below the other.
    """

    value: Value
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    beside: tuple[int, ...] = ()

    @property
    def groups(self) -> Groups:
        return tuple(d for d in self.batch if d not in self.beside) + self.rows, self.beside + self.columns

    def placed(self, lowering: Lowering) -> _Matrices | None:
        """These matrices as some table has them already; None where none does."""
        ways = (way for way in self.arrangements() if lowering.existing_table(self.value, way.groups) is not None)
        return next(ways, None)

    def arrangements(self) -> Iterator[_Matrices]:
        """Every choice of batch dims along which matrices stand side by side, the fewest first."""
        for count in range(len(self.batch) + 1):
            for beside in combinations(self.batch, count):
                yield replace(self, beside=beside)

    def window(self, number: int, rows: Pair, columns: Pair) -> Part:
        """Of matrix ``number`` of the batch: (first, count) of its rows and columns."""
        sizes, index = self.value.sizes, dict[int, int]()
        for d in reversed(self.batch):
            number, index[d] = divmod(number, sizes[d])
        below, beside = 0, 0
        for d in self.batch:
            if d in self.beside:
                beside = beside * sizes[d] + index[d]
            else:
                below = below * sizes[d] + index[d]
        high, wide = (prod(sizes[d] for d in dims) for dims in (self.rows, self.columns))
        return Part((below * high + rows[0], beside * wide + columns[0]), (rows[1], columns[1]))


@dataclass(frozen=True)
class _ProductForm:
    """A dot_general as products of matrices: A [m, k], B by columns [n, k] or by rows [k, n], C [m, n].

    ``order``: the order of the result's dims that its users want.
    """

    a: _Matrices
    by_columns: _Matrices
    by_rows: _Matrices
    c: _Matrices
    batch: int
    m: int
    n: int
    k: int
    order: tuple[int, ...] = ()

    def copies(self, lowering: Lowering) -> tuple[float, bool]:
        """How much has to be copied for it, and whether B is walked by rows (``t1``)."""
        a, columns, rows = (each.placed(lowering) is not None for each in (self.a, self.by_columns, self.by_rows))
        cost = 0.0 if a or lowering.held(lowering.reading.root(self.a.value)) else float(self.batch * self.m * self.k)
        cost += 0.0 if self.order[-1:] in ((), self.made.groups[1][-1:]) else self.batch * self.m * self.n
        if columns or lowering.held(lowering.reading.root(self.by_rows.value)):
            return cost, False
        walked = rows and self.m <= 256
        return (cost, True) if walked else (cost + self.batch * self.n * self.k, False)

    @property
    def made(self) -> _Matrices:
        """C, its matrices side by side where its users want that order."""
        return next((way for way in self.c.arrangements() if sum(way.groups, ()) == self.order), self.c)


def _forms(lowering: Lowering, node: Node, after: Group | None) -> tuple[_ProductForm, _ProductForm]:
    """The product A B as written, and as the transpose of B^T A^T."""
    (lhs, rhs), out = node.operands, node.result
    batches, free, sums = zip(*node.side_dims, strict=True)
    count = len(batches[0])
    first = count + len(free[0])
    sides = tuple(range(count, first)), tuple(range(first, first + len(free[1])))
    batch, k = (prod(lhs.sizes[d] for d in dims) for dims in (batches[0], sums[0]))
    m, n = (prod(v.sizes[d] for d in dims) for v, dims in zip((lhs, rhs), free, strict=True))
    deep = [_Matrices(v, batches[i], free[i], sums[i]) for i, v in enumerate((lhs, rhs))]  # k the fastest
    wide = [_Matrices(v, batches[i], sums[i], free[i]) for i, v in enumerate((lhs, rhs))]
    straight, turned = (_Matrices(out, tuple(range(count)), *order) for order in (sides, sides[::-1]))
    order = _wanted_order(lowering, out if after is None else after.outputs[0], len(out.sizes))
    return (
        _ProductForm(deep[0], deep[1], wide[1], straight, batch, m, n, k, order),
        _ProductForm(deep[1], deep[0], wide[0], turned, batch, n, m, k, order),
    )


def _wanted_order(lowering: Lowering, made: Value, rank: int) -> tuple[int, ...]:
    """Of a result's dims, as all who use it want them: turned, or with those last that they sum over; else as it is."""
    block, same = lowering.reading.block.operations, tuple(range(rank))
    wishes, seen = set[tuple[int, ...]](), [(made, tuple((d,) for d in range(len(made.sizes))))]
    if len(made.sizes) != rank:
        return same
    while seen:
        value, dims = seen.pop()  # ``dims``: which of the result's each of its dims is, or is a part of
        for node in block:
            if value not in node.operands:
                continue
            if node.name == "transpose" and value is made:
                wishes.add(node.attributes["permutation"])
            elif node.name == "reshape" and (parts := _parts(value.sizes, node.result.sizes)):
                seen.append((node.result, tuple(dims[d] for d in parts)))
            elif node.name == "dot_general":
                side = "lhs" if node.operands[0] is value else "rhs"
                last = sorted({d for each in node.attributes[f"{side}_contract"] for d in dims[each]})
                wishes.add((*(d for d in same if d not in last), *last))
            else:
                wishes.add(same)
    return wishes.pop() if len(wishes) == 1 else same


def _parts(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Of each dim of a reshape's result, the dim that it is a part of; nothing where one is of several, or of none."""
    if not before:
        return []
    parts, d, left = [], 0, before[0]
    for size in after:
        while left == 1 and d + 1 < len(before):
            d, left = d + 1, before[d + 1]
        if size == 0 or left % size:
            return []
        parts.append(d)
        left //= size
    return parts


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
    form = min(_forms(lowering, node, after), key=lambda form: form.copies(lowering)[0])
    _add(lowering, node, form, types, lowering.name("dot"), after)


def _add(
    lowering: Lowering, node: Node, form: _ProductForm, types: tuple[str, str, str], name: str, after: Group | None
) -> None:
    written, signs, sums = types
    walks = form.copies(lowering)[1]
    a, b = (each.placed(lowering) or each for each in (form.a, form.by_rows if walks else form.by_columns))
    first, c = lowering.table(a.value, a.groups), form.made
    tail = tail_of(lowering, node, c.groups, sums, after)
    e = BYTES[lowering.tables[first].dtype]
    held = not walks and lowering.held(lowering.reading.root(b.value))
    plan = product_plan(lowering, (form.m, form.n, form.k), (written, signs), e, walks, held)
    plan = replace(plan, epilogue=tail.spec)
    second = _operand_table(lowering, plan, b.value, b.groups)
    depth, jobs = (0, form.k), []
    for number in range(form.batch):
        for pe, (rows, columns) in _shares(plan, number, form.batch).items():
            mine = replace(plan, m=rows[1], n=columns[1])
            part = c.window(number, rows, columns)
            windows = (
                ("A", first, a.window(number, rows, depth)),
                ("B", second, b.window(number, *((depth, columns) if walks else (columns, depth)))),
                ("C", tail.table, part),
                *tail.windows(part),
            )
            jobs.append(Job(pe, matmul_program(mine), windows))
    macs = form.batch * form.m * form.n * form.k
    lowering.steps.append(_step(name, tail, jobs, (first, second), 2 * macs))


def _step(name: str, tail: Tail, jobs: Sequence[Job], reads: tuple[str, str], work: int) -> Step:
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
    )


def product_plan(
    lowering: Lowering, sizes: tuple[int, int, int], types: tuple[str, str], element_bytes: int, walks: bool, held: bool
) -> MatmulPlan:
    """How threads share the work, and how many k steps of A one load brings: what takes least.

    ``held``: the host places B, and so may put it in the order that blocks of several k steps of kb want.
    """
    c, (m, n, k) = lowering.config, sizes
    chunk, columns = c.a_bytes // element_bytes, columns_of_mm(c, 1)
    found: list[tuple[int, int, int]] = []  # cycles, kb, k steps of A at once
    for kb in (1, 2, 4, 8):
        if kb > 1 and (m * kb > c.compute_threads or kb * chunk >= 2 * k or c.kb_mode != "chunk"):
            break
        k_steps, most = -(-k // (chunk * kb)), min(8, (PLACES - A_REGISTER) // c.a_registers)
        whole_blocks = [b for b in range(1, most + 1) if held and k % (chunk * kb * b) == 0]
        block = min(most, k_steps) if kb == 1 else max(whole_blocks, default=1)
        threads, depth = min(m, c.compute_threads // kb) * kb, chunk * kb
        lines = -(-threads * -(-block * c.a_bytes // c.line_bytes) // c.l1_ports)  # of A
        # Of an mm: lines of its columns, by rows one for each of their elements; or the wait for those that are new.
        touched = min(n, columns) * (depth if walks else 1)
        new = 1.0 if walks else min(1.0, depth * element_bytes / c.line_bytes)
        each = max(touched, int(new * (c.l2_latency + c.dram_latency)) // c.bcast_depth)
        found.append((-(-k_steps // block) * (lines + max(block * each, c.l2_latency)), kb, block))
    _, kb, block = min(found, key=lambda way: (way[0], -way[1]))  # the fewest k steps, of ways as fast
    return MatmulPlan(m, n, k, *types, element_bytes, 1, kb, walks, "k_outer", columns, c, max(1, block))


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
        images, result = _Matrices(x, (), *rows), _Matrices(out, (), *pixels)
        weights = _Matrices(w, (), kernel[0], deep), _Matrices(w, (), deep, kernel[0])
        form = _ProductForm(images, *weights, result, 1, n * height * width, outs, depth, sum(pixels, ()))
        _add(lowering, node, form, types, lowering.name("conv"), after)
        return
    if any(own["reversal"]):
        turned = tuple(d for d, turns in zip(sum(kernel[1:3], ()), own["reversal"], strict=True) if turns)
        w = Node("reverse", [w], {"dims": turned}).add_result(w.sizes, w.dtype)
    beside = 0
    if apart != (1, 1) or min(min(pair) for pair in padding) < 0:
        a = _spread_images(lowering, x, image, padding, apart)
        (_, height, width, _), before = lowering.tables[a].shape, (0, 0)
    else:
        before = (padding[0][0], padding[1][0])
        if own["groups"] == dilation[1] == 1 and _row_as_one_tap_is_better(lowering, x, kw, depth):
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
    held, e = lowering.held(lowering.reading.root(w)), BYTES[lowering.tables[a].dtype]
    plan = product_plan(lowering, (shape.pixels, per_group, depth), (written, signs), e, False, held)
    plan = _in_blocks(plan, kh * kw)
    b = _operand_table(lowering, plan, w, kernel)
    conv = ConvPlan(replace(plan, epilogue=tail.spec), shape, 0, (0, outs))
    names, jobs = {"A": a, "B": b, "C": tail.table}, list[Job]()
    for pe, mine, windows in conv_shares(conv, lowering.tables[a].shape, lowering.tables[b].shape):
        seen = tuple((name, names[name], part) for name, part in windows.items())
        jobs.append(Job(pe, conv_program(mine), (*seen, *tail.windows(windows["C"]))))
    macs = shape.pixels * outs * depth * kh * kw
    lowering.steps.append(_step(lowering.name("conv"), tail, jobs, (a, b), 2 * macs))


def _row_as_one_tap_is_better(lowering: Lowering, x: Value, across: int, channels: int) -> bool:
    """Whether a row of the kernel takes fewer ``mm`` as one tap, whose pixels' channels lie side by side."""
    dtype = machine_type(x)
    deep = lowering.config.a_bytes // BYTES[str(dtype)]
    return lowering.held(lowering.reading.root(x)) and across * -(-channels // deep) > -(-across * channels // deep)


def _spread_images(
    lowering: Lowering, x: Value, image: Groups, padding: Sequence[tuple[int, int]], apart: Sequence[int]
) -> str:
    """A table of images with zeros around them and between their elements, or without some at their ends."""
    sizes, begins, gaps = list(x.sizes), [0] * len(x.sizes), [1] * len(x.sizes)
    for dims, (low, high), gap in zip(image[1:3], padding, apart, strict=True):
        for d in dims:
            sizes[d], begins[d], gaps[d] = low + (x.sizes[d] - 1) * gap + 1 + high, low, gap
    return copy_padded(lowering, x, Value(tuple(sizes), x.dtype), image, begins, gaps, "spread")


def _in_blocks(plan: MatmulPlan, taps: int) -> MatmulPlan:
    """As many k steps of A at once as divide the channels, and the next while they are multiplied."""
    k_steps = -(-plan.k // plan.depth)
    block = max(b for b in range(1, plan.block_a + 1) if k_steps % b == 0)
    plan = replace(plan, block_a=block)
    ahead = conv_ahead(replace(plan, buffers=2), taps) or plan.k % (plan.depth * block * 2) == 0
    return replace(plan, buffers=2) if ahead else plan


def _operand_table(lowering: Lowering, plan: MatmulPlan, value: Value, groups: Groups) -> str:
    """The table of B, or of weights: where threads share dot products in blocks, in the order in which they do."""
    if plan.kb == 1 or plan.block_a == 1:
        return lowering.table(value, groups)
    name, dtype = lowering.name("t"), str(machine_type(value))
    lowering.tables[name] = Table(name, folded(value.sizes, groups), dtype, held=(value, groups), weights=plan)
    return name
