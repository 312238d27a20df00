"""Two results side by side, from their JSON: numbers that got better or worse, rows and sentences that differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from tilewright.render.delivery import Line
from tilewright.render.formats import Kind, format_value, place_text
from tilewright.render.markup import Sortable, escape
from tilewright.render.page import Page, Step, Tone, note, steps
from tilewright.render.tables import Better, Heading, Table, change_cell, change_text, table

T = TypeVar("T")
_VERDICTS = {"good": "better", "bad": "worse"}


def value_at(value: Any, path: str) -> Any:
    """The value at a path of keys in nested tables; None where it ends before. ``*`` is every row of a list or entry
    of a table: a list of the values there are, or None for none.

    >>> value_at({"memory": {"need": 4}}, "memory.need"), value_at({"memory": None}, "memory.need")
    (4, None)
    >>> value_at({"stacks": [{"wait": 2}, {}, {"wait": 3}]}, "stacks.*.wait")
    [2, 3]
    """
    key, _, rest = path.partition(".")
    if key == "*":
        inside = value.values() if isinstance(value, Mapping) else value or ()
        found = [value_at(each, rest) if rest else each for each in inside]
        return [each for each in found if each is not None] or None
    value = value.get(key) if isinstance(value, Mapping) else None
    return value_at(value, rest) if rest else value


@dataclass(frozen=True)
class Quantity:
    """A number that two results are compared by.

    ============  ==============================================================================
    ``name``      what it is called
    ``kind``      how it is written: count, bytes, seconds, ratio, percent, number
    ``better``    less, more or neither
    ``path``      where it stands in the JSON, as ``memory.need``
    ``then``      what makes a number of the value that stands there (it may be one itself)
    ============  ==============================================================================
    """

    name: str
    kind: Kind
    better: Better
    path: str
    then: Callable[[Any], Any] = lambda value: value

    def of(self, result: Mapping[str, Any]) -> float | None:
        """The number of a result; None where it has none."""
        value = value_at(result, self.path)
        return None if value is None else self.then(value)


@dataclass(frozen=True)
class Change:
    """A quantity before and after; None where a side does not have it."""

    name: str
    kind: Kind
    better: Better
    before: float | None
    after: float | None

    @property
    def tone(self) -> Tone:
        """Whether the change is for the better."""
        if self.before is None or self.after is None or self.before == self.after or self.better == "neither":
            return "plain"
        return "good" if (self.after < self.before) == (self.better == "less") else "bad"

    @property
    def difference(self) -> float:
        """How much the two differ, with one that is missing taken for 0."""
        return abs((self.after or 0.0) - (self.before or 0.0))

    @property
    def text(self) -> str:
        """The difference with its sign and as a share; "" where a side is unknown."""
        return "" if self.before is None or self.after is None else change_text(self.before, self.after, self.kind)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        verdict = _VERDICTS.get(self.tone, "neither")
        return {"name": self.name, "before": self.before, "after": self.after, "verdict": verdict}

    def line(self) -> tuple[object, ...]:
        """A row in the terminal."""
        before, after = (format_value(value, self.kind) for value in (self.before, self.after))
        return self.name, before, after, self.text, _VERDICTS.get(self.tone, "")

    def cells(self) -> tuple[object, ...]:
        """A row of a page."""
        before, after = (Sortable(escape(format_value(v, self.kind)), v) for v in (self.before, self.after))
        return self.name, before, after, change_cell(self.before, self.after, self.kind, better=self.better)


@dataclass(frozen=True)
class Statement:
    """What is said of something before and after; None where a side says nothing of it."""

    of: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Comparison:
    """Two results of one kind: the quantities, and rows that differ, of each the name of its group in front.

    ===============  ==============================================================================
    ``kind``         the kind of the results, as their JSON says it
    ``title``        what a page calls the two
    ``groups``       the headings of a row's two names
    ``said``         what is said differently
    ``notes``        what the comparison is worth
    ``top``          rows that the terminal shows of what differs inside; None: none of them
    ===============  ==============================================================================
    """

    kind: str
    title: str
    before: str
    after: str
    changes: tuple[Change, ...]
    rows: tuple[tuple[str, Change], ...] = ()
    groups: tuple[str, str] = ("of", "quantity")
    said: tuple[Statement, ...] = ()
    notes: tuple[str, ...] | None = None
    top: int | None = None

    @property
    def sentence(self) -> str:
        """How many quantities got better and worse."""
        tones = [change.tone for change in self.changes]
        same = sum(change.before == change.after for change in self.changes)
        return f"{tones.count('good')} better, {tones.count('bad')} worse, {same} the same"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        head = {"schema_version": 1, "kind": f"{self.kind}_diff", "before": self.before, "after": self.after}
        rows = [{"of": name, **change.to_json()} for name, change in self.rows]
        value = {**head, "changes": [change.to_json() for change in self.changes], "rows": rows}
        if self.notes is not None:
            value |= {"said": [asdict(each) for each in self.said], "notes": list(self.notes)}
        return value

    def lines(self) -> Iterator[Line]:
        """The quantities, and the first rows of what differs inside."""
        yield f"{self.sentence}\n"
        yield Table(("", "before", "after", "change", ""), [change.line() for change in self.changes])
        if self.top is None:
            return
        if self.rows:
            rows = [(of, *change.line()) for of, change in self.rows[: self.top]]
            yield from ("", Table((*self.groups, "before", "after", "change", ""), rows))
        for said in self.said[: self.top]:
            yield f"\n{said.of}\n  before: {said.before or '-'}\n  after:  {said.after or '-'}"
        if (most := max(len(self.rows), len(self.said))) > self.top:
            yield f"\nmore is different (--top {most} shows all)"

    def page(self) -> str:
        """What got worse first, then every quantity and what differs inside."""
        facts = [("before", place_text(self.before)), ("after", place_text(self.after))]
        page = Page(f"{self.title} beside each other", self.sentence, facts=facts)
        found = steps(self._steps()) or note("Nothing got better or worse.")
        page.section("look", "What to look at", *map(note, self.notes or ()), found)
        columns: tuple[Heading, ...] = (("before", "number"), ("after", "number"), ("change", "number"))
        quantities = table(("quantity", *columns), [change.cells() for change in self.changes])
        page.section("quantities", "Every quantity", quantities)
        if self.rows:
            rows = [(name, *change.cells()) for name, change in self.rows]
            page.section("rows", "What differs inside", table((*self.groups, *columns), rows))
        if self.said:
            said = [(each.of, each.before, each.after) for each in self.said]
            page.section("said", "Memory, checks, places", table(("of", "before", "after"), said))
        page.data("diff", self.to_json())
        return page.html()

    def _steps(self) -> Iterator[Step]:
        """The five changes that matter most: those for the worse first, by their share of what was before."""

        def rank(change: Change) -> tuple[bool, float]:
            share = change.difference / abs(change.before) if change.before else float("inf")
            return change.tone != "bad", -share

        for change in sorted((each for each in self.changes if each.tone != "plain"), key=rank)[:5]:
            before, after = (format_value(value, change.kind) for value in (change.before, change.after))
            yield Step(f"{change.name}: {before} before, {after} after", worth=change.text, tone=change.tone)


def changes(quantities: Iterable[Quantity], before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Every quantity that one of the two results has."""
    sides = [(quantity, quantity.of(before), quantity.of(after)) for quantity in quantities]
    return tuple(Change(q.name, q.kind, q.better, *two) for q, *two in sides if any(n is not None for n in two))


def matched(
    left: Sequence[T], right: Sequence[T], keys: Sequence[Callable[[T], Hashable]]
) -> list[tuple[T | None, T | None]]:
    """Items that pair, in the order on the right, then those of the left alone; linear in their number.

    Items pair whose first key agrees, then of what is left those whose second does, and so on; equal ones in their
    order. None as a key pairs with nothing.

    >>> matched(["b", "A", "d"], ["a", "b", "c"], [lambda text: text, lambda text: text.lower()])
    [('A', 'a'), ('b', 'b'), (None, 'c'), ('d', None)]
    """
    found: dict[int, int] = {}
    for key in keys:
        taken = set(found.values())
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        for place in reversed(range(len(left))):
            if place not in taken and (named := key(left[place])) is not None:
                waiting[named].append(place)
        for place, item in enumerate(right):
            if place not in found and (places := waiting.get(key(item))):
                found[place] = places.pop()
    both = [(left[found[place]] if place in found else None, item) for place, item in enumerate(right)]
    taken = set(found.values())
    return [*both, *((item, None) for place, item in enumerate(left) if place not in taken)]
