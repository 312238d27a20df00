"""What an instruction does, in words and with this machine's numbers."""

from __future__ import annotations

from textwrap import wrap

from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._program import Address, Instruction, Register
from tilewright.isa._readings import AMBIGUITIES

__all__ = ["explain"]

_BYTES = {"8": 1, "16": 2, "32": 4, "f16": 2, "bf16": 2, "f32": 4}
_SIGNS = {"s": "signed", "u": "unsigned"}


def explain(instruction: Instruction, config: MatrixUnitConfig | None = None) -> str:
    """Some lines about one assembled instruction on one machine; for ``mm`` its roles, registers, walk and cost.

    >>> from tilewright.isa import assemble
    >>> (tid,) = assemble("tid r3").instructions
    >>> print(explain(tid))
    tid r3
    D = the thread's number
    unit alu; keeps it 1 cycle, its result is there after alu_latency = 1 cycle
    """
    config = checked_config(config)
    lines = [str(instruction)]
    if instruction.guard is not None:
        which = "false" if instruction.guard.negated else "true"
        whose = f": column j by thread j's (pred_scope={config.pred_scope})" if instruction.name == "mm" else ""
        lines.append(f"only where predicate p{instruction.guard.predicate} is {which}{whose}")
    if instruction.name == "mm":
        return "\n".join([*lines, *_mm(instruction, config)])
    spec = instruction.spec
    lines.append(spec.doc)
    cost = f"unit {spec.unit}; keeps it {_cycles(spec.occupies)}"
    if spec.latency:
        cost += f", its result is there after {spec.latency} = {_cycles(str(getattr(config, spec.latency)))}"
    return "\n".join([*lines, cost])


def _cycles(text: str) -> str:
    return f"{text} cycle{'' if text == '1' else 's'}" if text.isdecimal() else text


def _mm(instruction: Instruction, config: MatrixUnitConfig) -> list[str]:
    c = config
    products, address, a = instruction.operands
    assert isinstance(products, Register)
    assert isinstance(address, Address)
    assert isinstance(a, Register)
    ka, kb = int(instruction.suffix("ka") or 1), int(instruction.suffix("kb") or 1)
    kind = instruction.type
    size = _BYTES[kind or "8"]
    group, n = ka * kb, c.default_columns
    rows, local = c.compute_threads // group, -(-n // ka)
    depth, chunk = c.depth(size, kb), c.chunk(size, kb)
    integer = (kind or "8").isdecimal()
    what = f"{'integers' if integer else 'floats'} of {8 * size} bits"
    if integer:
        a_sign, b_sign = (_SIGNS[instruction.suffix(key) or "s"] for key in ("a", "b"))
        what += f" ({a_sign} A, {b_sign} B)"
    walk = (
        "d2; its lines stay in L1 until each of its elements was used (t1)"
        if instruction.suffix("t") == "1"
        else "d1 (t0)"
    )
    coordinates = f"r{address.offset}, ... (d1 first), {address.immediate:+d} on d1"
    threads = f"{group} threads serve a row" if group > 1 else "a thread serves a row"
    lines = [
        f"C += A * B on {what}" if kind else "C += A * B on the segment's elements; the numbers here are for 8 bits",
        f"A: {chunk} elements a thread, in r{a.number} to r{a.number + c.a_registers - 1} ({c.a_bytes} bytes), "
        f"read once for all columns; {depth} of k for a row",
        f"B: thread j loads {depth} elements of column j from the segment in ur{address.segment}, at its own",
        f"   coordinates {coordinates}, along {walk}",
        f"rows: {threads} (ka {ka} share its columns, kb {kb} its k): {rows} rows of {c.compute_threads} threads",
        f"columns: {n} before any setmm, {local} in each of a row's ka threads: products in r{products.number} to "
        f"r{products.number + local - 1}",
    ]
    low, high = _window(products.number, a.number, address.offset, c)
    if products.number + local > high or products.number < low:
        inside = max(0, min(high, products.number + local) - max(low, products.number))
        lines.append(
            f"   only r{low} to r{high - 1} may hold products: {local - inside} of {local} are out, and recorded"
        )
    step = c.step_cycles(size, kb)
    lines += [
        f"math: {local} step{'s' * (local > 1)} of {_cycles(str(step))}, {n * depth * rows:,} multiplications at most; "
        f"{depth * n:,} elements of B cross the bus",
        f"sums: {_sums(integer, c)}",
        *wrap("readings in force: " + ", ".join(f"{name}={getattr(c, name)}" for name in _fields()), 110),
    ]
    return lines


def _window(first: int, a: int, offset: int, c: MatrixUnitConfig) -> tuple[int, int]:
    """Registers that may hold products: up to the first own source register from rC on."""
    if c.acc_window is not None:
        return c.acc_window
    sources = [a, a + 1, offset]
    return first, min([c.registers, *(s for s in sources if s >= first)])


def _sums(integer: bool, c: MatrixUnitConfig) -> str:
    return f"32 bits, overflow {c.overflow!r}" if integer else f"float32, order {c.float_order!r}"


def _fields() -> list[str]:
    """The fields of all readings that this machine has, each once."""
    names = [name for each in AMBIGUITIES for name in each.fields]
    return [name for name in dict.fromkeys(names) if name in MatrixUnitConfig.__dataclass_fields__]
