"""Programs that nobody would write: loops at the ends of register files, windows, pages and numbers.

Those of odd seeds have vector instructions among the others.
"""

from __future__ import annotations

import re
from random import Random

import ml_dtypes
import numpy as np

from tilewright.errors import TilewrightError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory, assemble
from tilewright.isa.language.instructions import GROUPS, InstructionSpec

TYPES = ("int8", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")
IMMEDIATES = (0, 0, 0, 1, -1, -4, 9, 4096, 2**31 - 1, -(2**31))
VECTORS = (*GROUPS["Vectors"], *(spec for spec in GROUPS["Loads and stores"] if spec.ours))
NUMBERS = (0, 1, -1, 7, 40, 64, 2**30, 2**31 - 1, -(2**31), 2**32 - 1)


def wild(seed: int) -> tuple[MatrixUnitConfig, Memory, str]:
    """A machine, its tensors and a program."""
    r = Random(seed)
    config = _config(r)
    memory, text = _memory(r, config), _program(r, config)
    return config, memory, _with_vectors(Random(seed + 1), config, text) if seed % 2 else text


def _config(r: Random) -> MatrixUnitConfig:
    threads, registers, line = r.choice((1, 2, 3, 6, 12)), r.choice((16, 24, 40)), r.choice((16, 32, 64))
    several = threads > 1
    return MatrixUnitConfig(
        threads=threads,
        registers=registers,
        predicates=r.choice((2, 3)),
        uniform_registers=r.choice((10, 12)),
        line_bytes=line,
        l1_bytes=line * r.choice((2, 4, 8)),
        l2_bytes=line * r.choice((4, 16, 64)),
        l1_ways=r.choice((0, 0, 1, 2)),
        l2_ways=r.choice((0, 1, 2)),
        a_bytes=r.choice((4, 8, 8, 16, 24)),
        bcast_depth=r.choice((1, 2, 8)),
        l1_ports=r.randint(1, 2),
        alu_latency=r.randint(0, 3),
        bus_bytes_per_cycle=r.choice((0, 0, 1, 8)),
        fetch_cycles=r.choice((0, 0, 3)),
        retention=r.choice(("bypass", "evict", "off")),
        ka_split=r.choice(("blocked", "interleaved")),
        group_order=r.choice(("consecutive", "strided")),
        kb_acc=r.choice(("first", "last")),
        kb_mode=r.choice(("chunk", "chunk", "split")),
        columns_per_step=r.choice((1, 2, 5)),
        disjoint_sets=several and r.random() < 0.2,
        loaders=r.choice((None, max(1, threads - 1))),
        acc_window=r.choice((None, None, (0, registers), (2, registers - 1))),
        macs_per_thread_cycle=r.choice((None, 1, 3)),
        max_instructions=600,
    )


def _memory(r: Random, config: MatrixUnitConfig) -> Memory:
    memory = Memory()
    for name in "ABCD":
        while not _added(memory, name, r, config):
            pass
    return memory


def _added(memory: Memory, name: str, r: Random, config: MatrixUnitConfig) -> bool:
    """One to four dims; lines of any shape, pages that are larger than the tensor or smaller."""
    kind = r.choice(TYPES)
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    dims = r.choice((1, 2, 2, 2, 2, 3, 4))
    shape = tuple(r.randint(1, (80, 20, 9, 5)[dims - 1]) for _ in range(dims))
    values = np.random.default_rng(r.getrandbits(32)).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    how, line, rest = {}, [1] * dims, config.line_bytes // dtype.itemsize
    while rest > 1:
        line[r.randrange(dims)] *= 2
        rest //= 2
    if r.random() < 0.6:
        page = tuple(each * r.randint(1, 3) for each in line) if r.random() < 0.7 else None
        how = {"line": tuple(line), "order": tuple(r.sample(range(dims), dims)), "page": page}
    given = values.view(dtype).reshape(shape), how, r.random() > 0.1
    try:
        MatrixUnit(config).run("halt", _one(Memory(), name, *given))
    except TilewrightError:  # a line that the layout cannot have
        return False
    _one(memory, name, *given)
    return True


def _one(memory: Memory, name: str, values: np.ndarray, how: dict, resident: bool) -> Memory:
    memory.add(name, values, resident=resident, **how)
    return memory


def _program(r: Random, config: MatrixUnitConfig) -> str:
    handles = [config.uniform_registers - 1 - n for n in range(4)]
    lines = [f"segment ur{h}, ${name}" for h, name in zip(handles, "ABCD", strict=True)]
    for number in range(r.randint(1, 3)):
        lines += _loop(r, config, handles, number)
    labels = "".join(f"{line}\n" for line in lines if line.endswith(":"))
    return "\n".join(line for line in lines if line.endswith(":") or _assembles(labels + line, config))


def _assembles(text: str, config: MatrixUnitConfig) -> bool:
    try:
        assemble(text, config)
    except TilewrightError:
        return False
    return True


def _places(r: Random, config: MatrixUnitConfig, dims: int) -> tuple[int, int, int, int]:
    """Where coordinates, A, products and other coordinates begin: mostly apart, the last often at the file's end."""
    sizes = [("x", dims), ("a", config.a_registers), ("c", r.randint(1, 6)), ("y", r.randint(1, 4))]
    r.shuffle(sizes)
    at, place = {}, 0
    gap = max(0, config.registers - sum(size for _, size in sizes))
    for name, size in sizes:
        more = gap if name == sizes[-1][0] and r.random() < 0.5 else r.randint(0, min(gap, 2))
        gap, place = gap - more, place + more
        at[name] = min(place, config.registers - 1)
        place += size
    return at["x"], at["a"], at["c"], at["y"]


def _loop(r: Random, config: MatrixUnitConfig, handles: list[int], number: int) -> list[str]:
    dims = r.randint(1, 4)
    x, a, c, y = _places(r, config, dims)
    lines = [f"setmm {r.randint(1, config.loader_threads)}" + r.choice(("", f", {r.randint(1, 6)}"))]
    lines += [r.choice((f"tid r{x + d}", f"mov r{x + d}, {r.choice((0, 0, 1, -1, -3, 5))}")) for d in range(dims)]
    lines += [r.choice((f"tid r{y}", f"mov r{y}, 0")), f"tid r{y + 1}", f"mul r{a}, r{x}, 1103515245"]
    lines += [f"cmp.{r.choice(('lt', 'ge', 'ne'))} p0, r{x}, {r.randint(-1, config.threads)}", f"cmp.gt p1, r{a}, 0"]
    for what in ("segbase ur{}, {}, {}", "segsize ur{}, {}, {}"):
        if r.random() < 0.3:
            lines.append(what.format(r.choice(handles), r.randint(1, 3), r.randint(0, 9)))
    lines += [f"{what} ur{r.choice(handles)}" for what in ("dmaout", "dmain", "dmawait") if r.random() < 0.1]
    body = [_mm(r, handles, x, a, c)] * (r.random() < 0.9) + [_ld(r, config, handles, x, a, y)] * (r.random() < 0.6)
    body += [_scalar(r, config, number, (x, x + r.randrange(dims), y, a)) for _ in range(r.randint(0, 4))]
    r.shuffle(body)
    body.insert(r.randrange(len(body) + 1), f"mid{number}:")
    lines += [f"mov ur3, {r.choice((1, 2, 5, 30, 140))}", "mov ur2, 0"]
    nested = r.random() < 0.3
    if nested:
        lines += [f"mov ur5, {r.randint(1, 3)}", f"out{number}:"]
    lines += [f"in{number}:", *body, f"loop ur3, in{number}"]
    if nested:
        again = [f"setmm {r.randint(1, config.loader_threads)}"] * (r.random() < 0.5)
        lines += ["mov ur3, 9", *again, f"loop ur5, out{number}"]
    return [*lines, f"st r{c}, ur{r.choice(handles)}:rf{y}:0, {r.randint(0, 3)}"]


def _guard(r: Random) -> str:
    return r.choice(("", "", "@p0, ", "@!p1, ", "@p1, "))


def _mm(r: Random, handles: list[int], x: int, a: int, c: int) -> str:
    kind = r.choice(("", "", "", "8", "8", "16", "32", "f32"))
    suffixes = [r.choice(("", f".ka{r.randint(1, 4)}")), r.choice(("", f".kb{r.randint(1, 5)}")), r.choice(("", ".t1"))]
    suffixes += [r.choice(("", ".ua")), r.choice(("", ".ub"))] if kind.isdigit() else []
    return f"{_guard(r)}mm{kind}{''.join(suffixes)} r{c}, ur{r.choice(handles)}:rf{x}:{r.choice(IMMEDIATES)}, r{a}"


def _ld(r: Random, config: MatrixUnitConfig, handles: list[int], x: int, a: int, y: int) -> str:
    suffixes = r.choice(("", ".t1")) + r.choice(("", "", f".s{r.choice((1, 2, 5, 999_999))}"))
    suffixes += r.choice(("", "", f".n{r.choice((0, 1, 3, 4, 5, 8, 9999))}"))
    into, words = r.choice((a, a, config.registers - 2)), r.choice((0, 1, 2, 2, 2, config.a_registers))
    where = f"ur{r.choice(handles)}:rf{r.choice((x, y, config.registers - 1))}:{r.choice(IMMEDIATES)}"
    return f"{_guard(r)}ld{suffixes} r{into}, {where}, {words}"


def _scalar(r: Random, config: MatrixUnitConfig, number: int, places: tuple[int, ...]) -> str:
    d, s = r.choice(places), r.choice((f"r{r.choice(places)}", "ur2", str(r.choice(NUMBERS))))
    op = r.choice(("add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "shru"))
    condition, p = r.choice(("eq", "ne", "lt", "ge", "ltu", "geu")), r.randrange(config.predicates)
    choices = [
        f"{_guard(r)}{op} r{d}, r{r.choice(places)}, {s}",
        f"{_guard(r)}add r{d}, r{d}, {r.choice((1, 2, 4, 8, -1))}",
        f"add ur2, ur2, {r.choice(NUMBERS)}",
        f"{_guard(r)}mov r{d}, {r.choice((s, '1.5'))}",
        f"{_guard(r)}cmp.{condition} p{p}, r{d}, {s}",
        r.choice((f"pnot p{p}, p0", f"pxor p0, p{p}, p1", "nop")),
        f"br.{condition} ur2, {r.randint(-1, 40)}, {r.choice((f'mid{number}', f'in{number}'))}",
    ]
    return r.choice(choices)


def _with_vectors(r: Random, config: MatrixUnitConfig, text: str) -> str:
    """Vector instructions between the lines, most of them outside the innermost loops."""
    lines, handles = [], [config.uniform_registers - 1 - n for n in range(4)]
    inside = False
    for line in text.split("\n"):
        lines.append(line)
        inside = (inside or line.startswith("in")) and not line.startswith("loop ur3")
        if r.random() < (0.02 if inside else 0.3):
            more = vector(r, config, handles, r.choice(VECTORS))
            lines += [more] * _assembles(more, config)
    return "\n".join(lines)


def vector(r: Random, config: MatrixUnitConfig, handles: list[int], spec: InstructionSpec) -> str:
    """One of these with suffixes and operands of any kind."""
    name = spec.name
    for suffix in spec.suffixes:
        if suffix.default is None or r.random() < 0.4:
            name += "." + _matching(r, suffix.pattern)
    registers = f"r{r.randrange(config.registers)}", f"r{r.choice((0, 4, config.registers - 3))}"
    kinds = {
        "r": registers,
        "ur": ("ur2", "ur3"),
        "imm": tuple(str(r.choice((*NUMBERS, *range(12)))) for _ in range(3)),
        "float": ("1.5", "-0.0", "0f7f800000", "0fffc00001", "1e-45", "3e38"),
        "address": (f"ur{r.choice(handles)}:rf{r.randrange(config.registers)}:{r.choice(IMMEDIATES)}",),
    }
    operands = []
    for operand in spec.operands:
        if operand.optional and r.random() < 0.2:
            break
        operands.append(r.choice(kinds[r.choice(operand.kinds)]))
    if operands[-1].lstrip("-").isdigit() and r.random() < 0.8:
        operands[-1] = str(r.choice((0, 1, 2, 3, 5, 8)))
    return f"{_guard(r) if spec.guard else ''}{name} {', '.join(operands)}"


def _matching(r: Random, pattern: str) -> str:
    """A text of a suffix: one of its choices, or a small number."""
    text = re.sub(r"\[0-9\]\{1,6\}", lambda _: str(r.choice((0, 1, 2, 3, 7))), pattern)
    text = re.sub(r"\[(\w+)\]", lambda found: r.choice(found[1]), text)
    return re.sub(r"\(([^)]*)\)", lambda found: r.choice(found[1].split("|")), text)
