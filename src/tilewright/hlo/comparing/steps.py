"""Two optimised modules of one program: what got slower, at which line, and why.

Kernels are paired by what they compute and where that comes from, never by name: by their *main operation* (a product
before a gather, before a reduction, before elementwise work), its framework name and its source line. A kernel that has
no partner is explained by where its operations stood before: in another kernel (a lost fusion), inside a loop
(unrolled), on another core (offloaded), or nowhere (a new copy, a relayout, a transpose that the author added).
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import UsageError
from tilewright.hlo.comparing.kernels import Kernel, Side, is_transpose, origin, paired
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.timing.step import StepTime
from tilewright.render import bytes_text, seconds_text
from tilewright.render.formats import place_text
from tilewright.targets import Target
from tilewright.targets import target as find_target

_MOVERS = frozenset({"copy", "transpose", "copy-start", "copy-done"})
_SPACES = {0: "HBM", 1: "vector memory", 3: "common memory", 5: "host memory"}
_PASSED_ON = frozenset({"wider type", "narrower type", "changed layout"})
"""What a kernel hands to those that read its result."""
_WORK_CAUSES = ("less work", "more work")
_REASONS = 3
_INDENT = " " * 11
_NOTHING = 1e-11
"""Seconds that rounding makes."""
_SMALL = 0.01
"""Share of its time by which a kernel must differ, and nothing else, to be worth a line."""


@dataclass(frozen=True)
class TimeChange:
    """One difference that takes or saves time.

    ``cause``: ``new relayout``, ``new copy``, ``lost fusion``, ``changed layout``, ``wider type``, ``memory space``,
    ``unrolled loop``, ``offloaded``, ``more bytes``, ``more work``, ``new``, ``gone``; for what got faster the reverse:
    ``relayout gone``, ``copy gone``, ``new fusion``, ``narrower type``, ``rolled loop``, ``back on the TensorCore`` ...
    ``detail`` says it in a sentence; ``source`` is the line of the user's program.
    """

    cause: str
    detail: str
    source: str
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Seconds more (or, below 0, less) than before."""
        return self.after - self.before


@dataclass(frozen=True)
class StepDiff:
    """Two modelled steps of one program and what lies between them, the largest change first.

    ``peaks``: that of main memory before and after, as a report has it; ``peak_spaces``: memory space -> the same.
    """

    before: StepTime
    after: StepTime
    changes: tuple[TimeChange, ...]
    peaks: tuple[int, int] = (0, 0)
    peak_spaces: dict[int, tuple[int, int]] = field(default_factory=dict)

    def slower(self) -> list[TimeChange]:
        """What takes longer than before."""
        return [change for change in self.changes if change.seconds > 0]

    def by_lane(self) -> dict[str, tuple[float, float]]:
        """Unit -> the seconds it is waited for, before and after; of the SparseCores those they run."""
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for side, step in enumerate((self.before, self.after)):
            for row in step.rows:
                sums[row.lane][side] += max(row.seconds, row.beside) if row.lane == "sparsecore" else row.seconds
        return {lane: (before, after) for lane, (before, after) in sums.items() if before or after}

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": "tilewright.time_diff/1",
            "schema_version": 1,
            "target": self.after.target,
            "device_seconds": _sides(self.before.device_seconds, self.after.device_seconds),
            "seconds": _sides(self.before.seconds, self.after.seconds),
            "peak_bytes": _sides(*self.peaks),
            "lanes": {lane: _sides(*pair) for lane, pair in self.by_lane().items()},
            "changes": [
                {"cause": c.cause, "detail": c.detail, "source": c.source}
                | {"seconds_before": c.before, "seconds_after": c.after}
                for c in self.changes
            ],
        }

    def summary(self) -> list[str]:
        """The step before and after; units and memories that differ."""
        before, after = self.before.device_seconds, self.after.device_seconds
        growth = f" ({(after - before) / before:+.1%})" if before and before != after else ""
        lines = [f"modelled step on {self.after.target}: {seconds_text(before)} -> {seconds_text(after)}{growth}"]
        lanes = [(lane, a, b) for lane, (a, b) in self.by_lane().items() if _differs(a, b)]
        units = [f"{lane} {seconds_text(a)} -> {seconds_text(b)}" for lane, a, b in lanes]
        if units:
            lines.append(f"by unit: {', '.join(units)}")
        for space, (old, new) in sorted(self.peak_spaces.items()):
            if space in _SPACES and bytes_text(old) != bytes_text(new):
                lines.append(f"peak of {_SPACES[space]}: {bytes_text(old)} -> {bytes_text(new)}")
        return lines

    def lines(self, top: int = 10, width: int = 100) -> list[str]:
        """The summary and the largest changes as lines for a terminal, ``top`` of them."""
        lines = self.summary()
        if not self.changes:
            lines.append("no operation takes longer or less")
        for change in self.changes[:top]:
            place = place_text(change.source) if change.source else "no source line"
            lines.append(f"{_signed(change.seconds):>9}  {change.cause}  {place}")
            lines += textwrap.wrap(change.detail, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
        if len(self.changes) > top:
            rest = sum(change.seconds for change in self.changes[top:])
            lines.append(f"{len(self.changes) - top} more with {_signed(rest)}")
        for side, step in (("before", self.before), ("after", self.after)):
            reasons = list(dict.fromkeys(row.unpriced for row in step.rows if row.unpriced))
            lines += [f"without a time {side}: {reason}" for reason in reasons[:_REASONS]]
        return lines


def _sides(before: float, after: float) -> dict[str, float]:
    return {"before": before, "after": after}


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"


def _differs(before: float, after: float) -> bool:
    return abs(after - before) > _SMALL * max(before, after)


def diagnose_upgrade(before: Program, after: Program, target: Target | str) -> StepDiff:
    """What changed between two optimised modules of one program (two compilers, or two versions of the code), by time.

    Raises :class:`UsageError` where one of them is StableHLO: what the compiler changed can be seen after it only.
    """
    chip = find_target(target) if isinstance(target, str) else target
    for program in (before, after):
        if program.kind != "hlo":
            raise UsageError(f"{program.name} is StableHLO", how="give two optimised HLO dumps (or --compile)")
    old, new = Side.of(before, chip), Side.of(after, chip)
    findings = _Comparison(old, new).findings()
    changes = [TimeChange(f.cause, f.detail, f.source, *f.seconds) for f in findings]
    changes.sort(key=lambda change: -abs(change.seconds))
    peaks = old.peaks, new.peaks
    spaces = {space: (peaks[0].get(space, 0), peaks[1].get(space, 0)) for space in {**peaks[0], **peaks[1]}}
    main = min(spaces, default=0)
    return StepDiff(old.step, new.step, tuple(changes), spaces.get(main, (0, 0)), spaces)


@dataclass
class _Finding:
    """A change and the kernels it is about."""

    cause: str
    detail: str
    source: str
    before: list[Kernel] = field(default_factory=list)
    after: list[Kernel] = field(default_factory=list)

    def include(self, other: _Finding) -> None:
        self.before.extend(other.before)
        self.after.extend(other.after)

    @property
    def seconds(self) -> tuple[float, float]:
        return sum(k.row.seconds for k in self.before), sum(k.row.seconds for k in self.after)

    @property
    def counts(self) -> bool:
        """Whether it takes or saves time; an offload is worth a line though the step may not wait for it."""
        before, after = self.seconds
        return abs(after - before) > _NOTHING or self.cause == "offloaded"


class _Comparison:
    """The two sides and what is known of both."""

    def __init__(self, old: Side, new: Side) -> None:
        self.old, self.new = old, new
        more = new.transposes() - old.transposes()
        self.turned = {origin_: _line_of(new, origin_, old) for origin_ in more}
        self.borders = _changed_borders(old.program, new.program)

    def findings(self) -> list[_Finding]:
        """All changes: kernel by kernel, loops as a whole."""
        loops = self._loops()
        old, new = _without(self.old, loops), _without(self.new, loops)
        found: list[_Finding] = []
        left: list[Kernel] = []
        right: list[Kernel] = []
        for key in {**old, **new}:
            pairs, mine, theirs = paired(old.get(key, ()), new.get(key, ()))
            found += self._of_pairs(pairs)
            left, right = left + mine, right + theirs
        renamed, left, right = _renamed(left, right)
        found += [finding for pair in renamed for finding in self._of_pairs([pair])]
        found += self._of_left(left, right)
        for loop in loops:  # as one change, with all else that changed on its lines
            lines = {loop.source, *(kernel.source for kernel in (*loop.before, *loop.after))} - {""}
            for finding in found:
                if finding.source in lines:
                    loop.include(finding)
            found = [*(finding for finding in found if finding.source not in lines), loop]
        found.sort(key=lambda finding: min((k.row.start for k in finding.after), default=0.0))
        return [finding for finding in self._with_roots(found) if finding.counts]

    def _with_roots(self, found: list[_Finding]) -> list[_Finding]:
        """Changes passed on by a wider type or another layout are added to the change of the kernel that makes it."""
        makes = {kernel.row.name: n for n, finding in enumerate(found) for kernel in finding.after}
        roots: list[int] = []
        kept: list[_Finding] = []
        for n, finding in enumerate(found):
            read = (name for kernel in finding.after for name in self._made_by(kernel.op))
            made = (makes[name] for name in read if name in makes)
            root = next((roots[k] for k in made if k < n and found[k].cause == finding.cause), n)
            roots.append(root)
            if root == n or finding.cause not in _PASSED_ON:
                kept.append(finding)
            else:
                found[root].include(finding)
        return kept

    def _made_by(self, op: Operation) -> Iterator[str]:
        """The kernels whose results an operation reads, through bitcasts and tuples."""
        for name in op.operands:
            while name in self.new.operations:
                made = self.new.operations[name][1]
                if made.opcode not in ("bitcast", "get-tuple-element") or not made.operands:
                    break
                name = made.operands[0]
            yield name

    # -- loops

    def _loops(self) -> list[_Finding]:
        """Loops that one side unrolled, wholly or in part, each with its kernels on both sides."""
        found = []
        for one, other, cause in ((self.old, self.new, "unrolled loop"), (self.new, self.old, "rolled loop")):
            bodies: dict[str, list[Kernel]] = defaultdict(list)
            for kernel in one.all_kernels():
                if kernel.loop:
                    bodies[kernel.loop].append(kernel)
            for body, kernels in bodies.items():
                keys = {kernel.key for kernel in kernels}
                if not _unrolled(kernels, [kernel for key in keys for kernel in other.kernels.get(key, ())]):
                    continue
                lines = {kernel.source for kernel in kernels if kernel.source}
                whole = [k for k in other.all_kernels() if k.key in keys or k.source in lines]
                before, after = (kernels, whole) if one is self.old else (whole, kernels)
                runs = [sum(kernel.row.runs for kernel in side) for side in (before, after)]
                detail = f"{len(before)} kernels in {runs[0]} runs -> {len(after)} kernels in {runs[1]} runs"
                source = str(one.program.callers[body][0][1].source or "")
                source = source or next((k.source for k in (*after, *before) if k.source), "")
                found.append(_Finding(cause, detail, source, list(before), list(after)))
        return found

    # -- kernels that stand on both sides

    def _of_pairs(self, pairs: Sequence[tuple[Kernel, Kernel]]) -> list[_Finding]:
        """The pairs that differ, alike ones together."""
        groups: dict[tuple[str, str], list[tuple[Kernel, Kernel, str]]] = defaultdict(list)
        for mine, theirs in pairs:
            cause, detail = self._changed(mine, theirs)
            if cause:
                source = self._wider_at(mine, theirs) if "type" in cause else ""
                groups[cause, source or theirs.source or mine.source].append((mine, theirs, detail))
        found = []
        for (cause, source), group in groups.items():
            largest = max(group, key=lambda item: abs(item[1].row.seconds - item[0].row.seconds))
            detail = largest[2] + (f", {len(group)} times" if len(group) > 1 else "")
            found.append(_Finding(cause, detail, source, [g[0] for g in group], [g[1] for g in group]))
        return found

    def _wider_at(self, before: Kernel, after: Kernel) -> str:
        """Of a kernel with several results, the line that makes the one whose type differs."""
        types = [re.findall(r"(\w+)\[", kernel.op.shape) for kernel in (before, after)]
        differ = [n for n, (a, b) in enumerate(zip(*types)) if a != b]
        return self.new.line_of_result(after.op, differ[0]) if differ and after.op.shape.startswith("(") else ""

    def _changed(self, before: Kernel, after: Kernel) -> tuple[str, str]:
        """Why a kernel differs; ("", "") where it does not."""
        name = after.name
        if before.core != after.core:
            back = "back on the TensorCore", f"{name} ran on the {_core_text(before.core)}"
            return ("offloaded", _offloaded(after)) if after.core else back
        if moved := self._of_shapes(before, after):
            return moved
        if not _differs(before.row.seconds, after.row.seconds):
            return "", ""
        old, new = before.row, after.row
        for a, b, causes, detail in (
            (old.runs, new.runs, _WORK_CAUSES, f"{name} runs {new.runs} times instead of {old.runs}"),
            (old.flops, new.flops, _WORK_CAUSES, f"{name}: {old.flops:,} -> {new.flops:,} flops"),
            (old.bytes, new.bytes, ("fewer bytes", "more bytes"),
             f"{name}: {bytes_text(old.bytes)} -> {bytes_text(new.bytes)} through HBM"),
        ):  # fmt: skip
            if a != b:
                return causes[b > a], detail
        slower = new.seconds > old.seconds
        if after.op.opcode.endswith("-done"):
            return ("shorter wait", "longer wait")[slower], _transfer(after.op)
        return _WORK_CAUSES[slower], f"{name}: bound by {new.bound}"

    def _of_shapes(self, before: Kernel, after: Kernel) -> tuple[str, str] | None:
        """A type, a layout or a memory space that differs, of results first."""
        pairs = zip(self.old.layouts(before.op), self.new.layouts(after.op))
        texts = zip((before.op.shape, *before.op.operand_shapes), (after.op.shape, *after.op.operand_shapes))
        for (a, b), (left, right) in zip(pairs, texts):
            if a is None or b is None or str(a) == str(b):
                continue
            if a.element_bits != b.element_bits:
                cause = "wider type" if b.element_bits > a.element_bits else "narrower type"
                return cause, f"{after.name}: {left.partition('{')[0]} -> {right.partition('{')[0]}"
            if a.shape == b.shape and (a.minor_to_major, a.tiles) != (b.minor_to_major, b.tiles):
                return "changed layout", f"{after.name}: {_from_layout_to(left, right)}"
            if a.shape == b.shape and a.memory_space != b.memory_space:
                spaces = (_SPACES.get(x.memory_space, f"S({x.memory_space})") for x in (a, b))
                where = f"{left.lstrip('(').partition('{')[0]} from {' to '.join(spaces)}"
                return "memory space", f"{after.name}: {where}"
        return None

    # -- kernels of one side only

    def _of_left(self, left: Sequence[Kernel], right: Sequence[Kernel]) -> list[_Finding]:
        found: list[_Finding] = []
        for kernels, appeared in ((right, True), (left, False)):
            groups: dict[tuple[tuple[str, str], str], list[Kernel]] = defaultdict(list)
            for kernel in kernels:
                groups[kernel.key, kernel.source].append(kernel)
            for (_, source), group in groups.items():
                cause, detail, line = self._appeared(group) if appeared else (*self._vanished(group), "")
                sides: tuple[list[Kernel], list[Kernel]] = ([], group) if appeared else (group, [])
                runs = sum(kernel.row.runs for kernel in group)
                times = f", {runs} times" if runs > 1 else ""
                found.append(_Finding(cause, detail + times, line or source, *sides))
        return found

    def _appeared(self, kernels: Sequence[Kernel]) -> tuple[str, str, str]:
        """Cause, detail and, where it is not the kernel's own, the line."""
        kernel = max(kernels, key=lambda k: k.row.seconds)
        if kernel.core:
            return "offloaded", _offloaded(kernel), ""
        if line := self._added_transpose(kernel):
            moved = _turns(kernel)
            what = _from_layout_to(*moved) if moved else f"{kernel.op.shape.partition('{')[0]} of {kernel.name}"
            return "new relayout", f"{what}, for a transpose that was not there before", line
        if kernel.moves_only:
            relayout, detail = _movement(kernel)
            if relayout == "relayout" and self._at_changed_border(kernel):
                return "changed layout", f"{detail}: an argument or a result has another layout and must be turned", ""
            return f"new {relayout}", detail, ""
        homes = self._kernels_that_hold(kernels, self.old)
        if homes:
            between = self._new_movement(kernel)
            if between is not None:
                relayout, detail = _movement(between)
                return f"new {relayout}", f"{detail}; {kernel.name} before or behind it is a kernel of its own now", ""
            return "lost fusion", f"{kernel.name} was part of a kernel with {homes} and is one of its own now", ""
        return "new", f"{kernel.name} of {kernel.op.shape.partition('{')[0]} was not there before", ""

    def _vanished(self, kernels: Sequence[Kernel]) -> tuple[str, str]:
        kernel = max(kernels, key=lambda k: k.row.seconds)
        if kernel.moves_only:
            relayout, detail = _movement(kernel)
            return f"{relayout} gone", detail
        if homes := self._kernels_that_hold(kernels, self.new):
            return "new fusion", f"{kernel.name} is part of a kernel with {homes} now"
        return "gone", f"{kernel.name} of {kernel.op.shape.partition('{')[0]} is not there any more"

    def _at_changed_border(self, kernel: Kernel) -> bool:
        """Whether it turns an argument or a result of the program that only changed its layout."""
        ends = _turns(kernel) or ()
        if not self.borders & {match.groups() for shape in ends if (match := _ARRAY.search(shape))}:
            return False
        users = [kernel.op, *self.new.users.get(kernel.op.name, ())]
        made = (self.new.operations[name][1] for name in self._made_by(kernel.op) if name in self.new.operations)
        return any(op.root for op in users) or any(op.opcode == "parameter" for op in made)

    def _added_transpose(self, kernel: Kernel) -> str:
        """The line of a transpose that the author added, where this kernel turns data for it; "" where it does not."""
        if not self.turned or not (_turns(kernel) or any(is_transpose(op) for op in kernel.inside)):
            return ""
        origins = (origin(op) for op in self.new.around(kernel) if is_transpose(op))
        return next((self.turned[name] for name in origins if name in self.turned), "")

    def _new_movement(self, kernel: Kernel) -> Kernel | None:
        """A kernel that only moves data, directly before or behind this one, that the other side does not have."""
        near = {*kernel.op.operands, *(user.name for user in self.new.users.get(kernel.row.name, ()))}
        for key, others in self.new.kernels.items():
            if len(others) <= len(self.old.kernels.get(key, ())):
                continue
            for other in others:
                users = (user.name for user in self.new.users.get(other.row.name, ()))
                around = {other.row.name, *other.op.operands, *users}
                counts = other.row.seconds >= 0.1 * kernel.row.seconds and other is not kernel
                if other.moves_only and counts and around & near:
                    return other
        return None

    def _kernels_that_hold(self, kernels: Sequence[Kernel], side: Side) -> str:
        """The main operations of the kernels, on the other side, that hold what these compute."""
        found: Counter[str] = Counter()
        for kernel in kernels:
            for op in kernel.inside:
                for home in side.homes.get(f"{plain_opcode(op.opcode)} {origin(op)}", ()):
                    if home != kernel.key:
                        found[home[0]] += 1
        return " and ".join(name for name, _ in found.most_common(2))


def _without(side: Side, loops: Sequence[_Finding]) -> dict[tuple[str, str], list[Kernel]]:
    """The kernels that no loop which changed as a whole has taken."""
    taken = {kernel for loop in loops for kernel in (*loop.before, *loop.after)}
    return {key: [k for k in kernels if k not in taken] for key, kernels in side.kernels.items()}


def _unrolled(looped: Sequence[Kernel], there: Sequence[Kernel]) -> bool:
    """Whether what is one kernel of many runs here is many kernels of fewer runs there."""
    mine, theirs = [k for k in looped if not k.moves_only], [k for k in there if not k.moves_only]
    if not mine or len(theirs) <= len(mine):
        return False
    runs = max(k.row.runs for k in mine), max(k.row.runs for k in theirs)
    return runs[1] < runs[0]


def _renamed(
    left: Sequence[Kernel], right: Sequence[Kernel]
) -> tuple[list[tuple[Kernel, Kernel]], list[Kernel], list[Kernel]]:
    """Kernels that compute the same from the same, or turn data in the same way, under another framework name."""

    def kind(kernel: Kernel) -> tuple[object, ...]:
        if not kernel.moves_only:
            return kernel.name, kernel.main.shape.partition("{")[0], kernel.dims
        turn = _turns(kernel)
        return tuple(_SPACE.sub("", shape) for shape in turn) if turn else kernel.movement

    return paired(left, right, [kind])


def _line_of(side: Side, wanted: str, other: Side) -> str:
    """The line of the transposes of this origin, of one that the other side does not have if there is one."""
    lines = [str(op.source or "") for _, op in side.program.operations() if is_transpose(op) and origin(op) == wanted]
    known = {str(op.source or "") for _, op in other.program.operations() if is_transpose(op)}
    return next((line for line in lines if line and line not in known), next(filter(None, lines), ""))


_SPACE = re.compile(r"S\(\d+\)")
_ARRAY = re.compile(r"\w+(\[[\d,]*\])\{([\d,]*)")


def _changed_borders(before: Program, after: Program) -> set[tuple[str, ...]]:
    """(dims, the new order) of arguments and results of the program that only changed their layout."""
    borders = [_ARRAY.findall(program.attributes.get("entry_computation_layout", "")) for program in (before, after)]
    if len(borders[0]) != len(borders[1]):
        return set()
    both = list(zip(*borders))
    if any(a[0] != b[0] for a, b in both):
        return set()
    return {b for a, b in both if a[1] != b[1]}


def _offloaded(kernel: Kernel) -> str:
    where = f"{kernel.name} runs on the {_core_text(kernel.core)} now"
    return f"{where}, beside the rest (its bytes are priced, its speed is not known)"


def _core_text(core: str) -> str:
    return {"sparsecore": "SparseCore"}.get(core, core)


def _turns(kernel: Kernel) -> tuple[str, str] | None:
    """From which layout to which a kernel turns an array, None where it keeps the order and the tiles."""
    if not kernel.moves_only:
        return None
    for op in kernel.inside:
        if plain_opcode(op.opcode) in _MOVERS and op.operand_shapes:
            shapes = op.operand_shapes[0], op.shape
            if plain_opcode(op.opcode) == "transpose" or _order_and_tiles(shapes[0]) != _order_and_tiles(shapes[1]):
                return shapes
    shapes = (kernel.op.operand_shapes or (kernel.op.shape,))[0], kernel.op.shape
    return shapes if _order_and_tiles(shapes[0]) != _order_and_tiles(shapes[1]) else None


def _movement(kernel: Kernel) -> tuple[str, str]:
    """``relayout`` or ``copy``, and what is moved from where to where."""
    if shapes := _turns(kernel):
        return "relayout", _from_layout_to(*shapes)
    if kernel.op.opcode.endswith("-done"):
        return "copy", _transfer(kernel.op)
    return "copy", f"{kernel.op.opcode} of {(kernel.op.operand_shapes or (kernel.op.shape,))[0]}"


def _transfer(op: Operation) -> str:
    """What a transfer brings where, by its end."""
    arrays = re.findall(r"\w+\[[\d,]*\]\{[^}]*\}", (op.operand_shapes or ("",))[0])
    places = [
        _SPACES.get(int((re.search(r"S\((\d+)\)", shape) or [0, 0])[1]), "another memory") for shape in arrays[:2]
    ]
    if op.opcode == "slice-done":
        places.reverse()  # its tuple begins with the operand
    way = f" from {places[1]} to {places[0]}" if len(places) == 2 else ""
    return f"{op.shape.lstrip('(').partition('{')[0]}{way}, waited for"


def _order_and_tiles(shape: str) -> tuple[str, ...] | None:
    match = re.search(r"\{([\d,]*)(?::(T[^S}]*))?", shape)
    return match.groups() if match else None


def _from_layout_to(before: str, after: str) -> str:
    """Two layouts, what they share written once."""
    a, b = (_SPACE.sub("", shape) for shape in (before, after))
    first, second = _ARRAY.match(a), _ARRAY.match(b)
    if first and second and a.partition("{")[0] == b.partition("{")[0] and _tiles(a) == _tiles(b):
        return f"{a.partition('{')[0]} from {{{first[2]}}} to {{{second[2]}}}"
    return f"{a} -> {b}"


def _tiles(shape: str) -> str:
    return shape.partition(":")[2].rstrip("}")
