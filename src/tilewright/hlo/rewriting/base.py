"""What a rewrite is: a frozen dataclass with a name, options as fields, and one sweep over a block."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from math import copysign
from typing import Any, ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, replace_value
from tilewright.hlo.rewriting.maker import Maker, is_static


def option(default: bool | int, summary: str) -> Any:
    """A dataclass field that is an option, with one line that ``--list-passes`` shows."""
    return field(default=default, metadata={"summary": summary})


@dataclass(frozen=True)
class PassOption:
    """An option of a rewrite: its name, ``true or false`` or ``a number``, its default, and what it does."""

    name: str
    kind: str
    default: str
    summary: str


@dataclass(frozen=True)
class Step:
    """One step of a pipeline: :class:`Inline`, or a :class:`Rewrite`. Its options are its fields.

    ``name`` is its class's, as pipelines write it: ``dead-code`` for ``DeadCode``.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def options(cls) -> tuple[PassOption, ...]:
        """The options, which are the fields of the dataclass.

        >>> from tilewright.hlo import REWRITES
        >>> [(option.name, option.default) for option in REWRITES["reduce-of-reshape"].options()]
        [('allow_reassociation', 'true'), ('allow_products', 'false')]
        """
        kinds = {True: "true or false", False: "a number"}
        return tuple(
            PassOption(
                f.name, kinds[isinstance(f.default, bool)], str(f.default).lower(), f.metadata.get("summary", "")
            )
            for f in fields(cls)
        )

    def __str__(self) -> str:
        """With the options that differ from their defaults: ``reduce-of-reshape{allow_reassociation=false}``."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        options = " ".join(f"{key}={str(value).lower()}" for key, value in changed)
        return f"{self.name}{{{options}}}" if options else self.name


@dataclass(frozen=True)
class Rewrite(Step):
    """A step that works on the blocks of a program's graph, one at a time."""

    def apply(self, block: Block) -> int:
        """Rewrite the operations of ``block`` (not of nested ones); returns how many places changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class LocalRewrite(Rewrite):
    """A rewrite that looks at one operation at a time and may give new values for its results.

    ``roots`` names the operations it looks at, so that a sweep passes by all others; empty for all. ``takes`` names
    those of which one must make an operand, so that it need not look at the rest; empty where it matters not. One that
    is ``near`` looks at an operation and at what makes its operands: what it left once has to be edited before it looks
    again.
    """

    roots: ClassVar[frozenset[str]] = frozenset()
    takes: ClassVar[frozenset[str]] = frozenset()
    near: ClassVar[bool] = False

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The value to use instead of the only result of ``op``, or None to leave it."""
        raise NotImplementedError

    def rewrite_all(self, op: Node, make: Maker) -> list[Value] | None:
        """The values to use instead of all results of ``op``, or None to leave it."""
        value = self.rewrite(op, make) if len(op.results) == 1 and op.plain else None
        return None if value is None else [value]

    def apply(self, block: Block) -> int:
        """One sweep in order, new operations taking the place of the one they replace."""
        make, takes, old = Maker(block), self.takes if block.owner is None else (), block.operations
        places = [k for k, op in enumerate(old) if not self.roots or op.name in self.roots]
        makers = [op for op in old if op.name in takes] if takes and places else []
        taking = {user for maker in makers for value in maker.results for user in value.users}
        block.operations = []
        seen = block.seen if self.near else -1
        new, done, count = list[Node](), 0, 0  # what stands for the first ``done`` operations
        for k in places if taking or not takes else ():
            op = old[k]
            if (takes and op not in taking) or op.edited <= seen:
                continue
            make.like = op
            values = self.rewrite_all(op, make)
            if values is not None:
                for result, value in zip(op.results, values):
                    replace_value(result, value)
                    taking.update(value.users if value.operation is not None and value.operation.name in takes else ())
                op.drop()
                count += 1
            if values is not None or block.operations:
                new += [*old[done:k], *block.operations, *([] if values is not None else [op])]
                done = k + 1
                block.operations.clear()
        block.operations = [*new, *old[done:]] if done else old
        block.changed |= count > 0
        block.edits += count
        return count


# The monoids of a reduction: their identities, when regrouping them is exact, and when it would round.

#: Element types whose sums and products round so coarsely that a first stage must not store them; so do 8-bit floats.
NARROW = frozenset({"bf16", "f16"})
_TINY = re.compile(r"f[468]E")
_INTEGER = re.compile(r"(ui|si|i)(\d+)$")
_INFINITY = {"f64": "0x{}FF0000000000000", "f32": "0x{}F800000", "f16": "0x{}C00", "bf16": "0x{}F80"}


def _integer(dtype: str) -> tuple[bool, int] | None:
    """(signed, bits) of an integer type; MLIR's signless integers are signed in StableHLO."""
    match = _INTEGER.match(dtype)
    return (match[1] != "ui", int(match[2])) if match else None


def identity(monoid: str, dtype: str) -> str | None:
    """The identity as MLIR writes it, None where ``dtype`` has none.

    Floating addition starts from -0.0: adding +0.0 would turn a -0.0 into +0.0.

    >>> identity("add", "f32"), identity("maximum", "i8"), identity("and", "i1"), identity("minimum", "bf16")
    ('-0.0', '-128', 'true', '0x7F80')
    """
    if kind := _integer(dtype):
        signed, bits = kind
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        ones = -1 if signed else high
        if bits == 1 and dtype == "i1":
            return "false" if monoid in ("add", "or", "xor", "maximum") else "true"
        element = {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": ones, "or": 0, "xor": 0}[monoid]
        return str(element)
    if monoid in ("and", "or", "xor"):
        return None
    if monoid in ("add", "multiply"):
        if dtype.startswith("complex"):  # 1 + 0i is no identity: infinity times 0i is not a number
            return "(-0.0,-0.0)" if monoid == "add" else None
        return ("-0.0" if monoid == "add" else "1.0") if dtype in _INFINITY else None
    if dtype in _INFINITY:
        return _INFINITY[dtype].format("F" if monoid == "maximum" else "7")
    return None


def _numbers(element: str) -> list[int | float] | None:
    """The number, or a complex one's two; integers exactly. None for true, false and the bits of a float."""
    try:
        return [int(part) if part.strip("- ").isdecimal() else float(part) for part in element.strip("()").split(",")]
    except ValueError:
        return None


def is_identity(monoid: str, init: Value, exact: bool) -> bool:
    """Whether ``init`` is a constant that is the monoid's identity; ``exact`` tells -0.0 from +0.0."""
    op = init.operation
    if op is None or op.name != "constant":
        return False
    element, neutral = op.attributes["literal"].element, identity(monoid, init.dtype)
    if element is None or neutral is None:
        return False
    if element.lower() == neutral.lower():
        return True
    numbers = _numbers(element)
    if numbers is None or numbers != _numbers(neutral):
        return False
    floating_sum = monoid == "add" and _integer(init.dtype) is None
    return not (exact and floating_sum and any(copysign(1, number) > 0 for number in numbers))


def is_exact(monoid: str, dtype: str) -> bool:
    """Whether regrouping and reordering give the same bits: integers, and maximum, minimum, and, or, xor."""
    return _integer(dtype) is not None or monoid in ("maximum", "minimum", "and", "or", "xor")


def may_regroup(monoid: str, dtype: str, allow_reassociation: bool, allow_products: bool) -> bool:
    """Whether elements may be taken in another order: where the bits stay, sums that may round, products on request.

    In another order a product of reals can leave the range of its type on the way: 1e30 * 1e30 * 1e-30 * 1e-30 is 1,
    infinity or 0, and beside a 0 the infinity is no number. A sum can do so too, of summands near the largest number.
    """
    return is_exact(monoid, dtype) or (allow_products if monoid == "multiply" else allow_reassociation)


def regroups(reduce: Node, allow_reassociation: bool, allow_products: bool = False) -> bool:
    """Whether a reduction of one static array may take its elements in another order (:func:`may_regroup`)."""
    monoid = reduce.attributes.get("monoid")
    if monoid is None or len(reduce.operands) != 2 or not is_static(*reduce.operands):
        return False
    return may_regroup(monoid, reduce.operands[0].dtype, allow_reassociation, allow_products)


def accumulator(monoid: str, dtype: str) -> str:
    """The element type both stages of a reduction work in: f32 where the first would store coarsely rounded values.

    The operand is converted first: XLA's verifier refuses a reduction of one floating type into another.
    """
    return "f32" if monoid in ("add", "multiply") and (dtype in NARROW or _TINY.match(dtype)) else dtype


def starts(monoid: str, init: Value, make: Maker) -> tuple[Value, Value] | None:
    """What the two stages of a reduction start from, in the accumulator's type; None where the first has nothing.

    The first starts from the identity, the second from the user's ``init``, so that it counts once. Where ``init`` is
    the identity both start from it, and where it counts twice like once (maximum, minimum, and, or) too. A product of
    complex numbers has no identity (infinity times 1 + 0i is not a number): both start from 1 + 0i if the user does.
    """
    dtype = accumulator(monoid, init.dtype)
    if init.dtype == dtype and is_identity(monoid, init, exact=False):
        return init, init  # +0.0 for -0.0 too: the second stage adds +0.0 anyway
    if monoid == "multiply" and dtype.startswith("complex"):
        op = init.operation
        element = op.attributes["literal"].element if op is not None and op.name == "constant" else None
        return (init, init) if element is not None and _numbers(element) == [1.0, 0.0] else None
    text = identity(monoid, dtype)
    if text is not None:
        return make.constant(text, dtype), make.convert(init, dtype)
    return (init, init) if monoid in ("maximum", "minimum", "and", "or") else None
