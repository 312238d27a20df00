"""What a rule is: a pattern, a condition, a build, and what it says to the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, replace_value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_static
from tilewright.hlo.rules.finite import is_finite
from tilewright.hlo.rules.matching import Match, Pattern

#: The phases in their order. A rule never touches what a rule of this run has made, so none undoes another; an earlier
#: phase has the first choice. ``work``: fewer operations or bytes whatever the layout. ``shape``: the same work on
#: arrays that fill the tiles. ``movement``: data moves another way. ``advice``: only the user can change it.
PHASES = ("work", "shape", "movement", "advice")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program that the rule is for, and what to write instead, as users would write both.

    ``before``, ``after`` and ``away`` are bodies of Python functions with ``jnp``, ``jax`` and ``lax`` at hand;
    ``away`` is a program that looks alike and that the rule must leave alone. ``shapes`` are their arguments, one a
    line, with the sizes as letters or products (``q: T[b,8*g,d]``); ``T`` is each of ``types`` in turn. ``sizes`` gives
    the letters (``b=8 g=8 d=64``) at which the gain is confirmed, with the first of the types; ``small`` those for
    tests, and hypothesis draws others from ``draw`` (``b=1..3 g=1..4``; letters that are not named stay small). The
    bodies may use the letters. ``away_shapes`` are the arguments of ``away`` where they differ, ``after_shapes`` those
    of ``after``: an advice is about how arguments are stored.
    """

    before: str
    after: str
    shapes: str
    sizes: str
    small: str
    away: str
    draw: str = ""
    types: tuple[str, ...] = ("f32", "bf16")
    away_shapes: str = ""
    after_shapes: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of the catalogue; a file of this folder's rooms defines one as ``RULE``.

    ==============  ================================================================================================
    ``name``        as users write it: ``grouped-query-attention``
    ``phase``       one of ``PHASES``
    ``summary``     what it does, in one line
    ``finding``     the sentence for the user's finding: what the program does now and why that costs
    ``change``      the sentence that says what to write instead
    ``source``      where the gain was seen: the compiler's estimate, a measurement, a document
    ``pattern``     what the (first) result of a root must be made by
    ``roots``       names of the operations that can end the pattern
    ``where``       legality: whether the build keeps the value, given the match and the root
    ``pays``        the shapes for which a TPU's compiler confirmed a gain, given the match and the root
    ``build``       makes the values that take the place of the root's results; None leaves it after all
    ``together``    all the operations that are replaced at once, the root among them; the build then returns the values
                    for all of their results, in this order
    ``finite``      names of the pattern whose values must be finite: a NaN or an infinity would spread
    ``exact``       the result has the same bits; a rule that is not needs ``allow_reassociation``
    ``opt_in``      it changes the numerics beyond rounding: only by name
    ``families``    families of targets whose compilers the gain depends on, where it is not of the layouts alone
    ``over``        names of rules that it goes before where both would act: the compiler's figures say so, and the time
                    model cannot tell them apart
    ``example``     a program before and after
    ==============  ================================================================================================
    """

    name: str
    phase: str
    summary: str
    finding: str
    change: str
    source: str
    pattern: Pattern
    roots: frozenset[str]
    example: Example
    build: Callable[[Match, Node, Maker], Value | Sequence[Value] | None] | None
    where: Callable[[Match, Node], bool] = lambda match, root: True
    pays: Callable[[Match, Node], bool] = lambda match, root: True
    together: Callable[[Match, Node], Sequence[Node]] = lambda match, root: (root,)
    finite: tuple[str, ...] = ()
    exact: bool = True
    opt_in: bool = False
    families: tuple[str, ...] = ()
    over: tuple[str, ...] = ()

    @property
    def guard(self) -> str:
        """What must hold before it may act: ``none``, or ``finite``, ``rounding``, ``opt-in``, ``advice``."""
        parts = [
            name
            for name, holds in (
                ("advice", self.build is None), ("opt-in", self.opt_in), ("finite", bool(self.finite)),
                ("rounding", not self.exact),
            )
            if holds
        ]  # fmt: skip
        return ", ".join(parts) or "none"

    def match(self, root: Node) -> Match | None:
        """What the rule needs of the program that ends in ``root``, or None where it must not touch it."""
        if root.name not in self.roots or not root.plain or not root.results or not is_static(*root.results):
            return None
        match = self.pattern.match(root.result)
        return match if match is not None and self.where(match, root) else None

    def unknown(self, match: Match) -> list[str]:
        """Names of ``finite`` whose values are not known to be finite."""
        return [name for name in self.finite if not is_finite(match.found[name])]

    def replaced(self, match: Match, root: Node) -> list[Value]:
        """The results that new values take the place of."""
        return [result for node in self.together(match, root) for result in node.results]

    def values(self, match: Match, root: Node, make: Maker) -> list[Value] | None:
        """The values that take the place of the results of all that is replaced together."""
        built = self.build(match, root, make) if self.build is not None else None
        if built is None:
            return None
        values = [built] if isinstance(built, Value) else list(built)
        kinds = [(value.shape, value.dtype) for value in values]
        wanted = [(old.shape, old.dtype) for old in self.replaced(match, root)]
        assert kinds == wanted, f"{self.name} built {kinds} for {root}"
        return values


@dataclass(frozen=True)
class RuleStep(LocalRewrite):
    """A rule as a step of a pipeline, without any gate: ``--passes grouped-query-attention``."""

    rule: Rule = field(default=None)  # type: ignore[assignment]
    roots: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The rule's name."""
        return self.rule.name

    def apply(self, block: Block) -> int:
        """One sweep; what is replaced together may stand far apart, so the order is found anew."""
        count = super().apply(block)
        if count:
            block.operations = [*in_order(block.operations[:-1]), block.operations[-1]]
        return count

    def rewrite_all(self, op: Node, make: Maker) -> list[Value] | None:
        """The rule's values, wherever it is legal."""
        if op.handle is None:
            return None
        match = self.rule.match(op)
        if match is None or op is not self.rule.together(match, op)[0]:
            return None
        replaced = self.rule.replaced(match, op)
        values = self.rule.values(match, op, make)
        if values is None:
            return None
        for old, new in zip(replaced[len(op.results) :], values[len(op.results) :]):
            replace_value(old, new)
        return values[: len(op.results)]

    def __str__(self) -> str:
        """The rule's name."""
        return self.rule.name
