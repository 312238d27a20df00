"""Prove a rewrite on values: both programs on the same inputs, compiled and op by op, against float64.

A verification holds one record per trial, and the verdict over all of them.
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from tilewright.child import Tell, bound, half_of_memory, serve
from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.execute import SECONDS, array_struct, ask, check_custom_calls
from tilewright.hlo.graphs.graph import Block, Value
from tilewright.hlo.graphs.mlir import read_functions
from tilewright.hlo.ir import parse_module
from tilewright.hlo.program import Program
from tilewright.hlo.proving import trials as trying
from tilewright.hlo.proving.reference import Reference, XlaValues, types_of
from tilewright.hlo.proving.trials import inputs_for, may_never_end, trial_inputs
from tilewright.hlo.rewrites.inline import Inline, calls_itself


@dataclass(frozen=True)
class Difference:
    """One element of one output, as both programs and the reference (or "") give it."""

    output: int
    index: tuple[int, ...]
    before: str
    after: str
    reference: str

    def __str__(self) -> str:
        """``output 0 at (3, 1): original 1.5, result 1.25, float64 reference 1.5``."""
        place = f"output {self.output} at {self.index}" if self.index else f"output {self.output}"
        text = f"{place}: original {self.before}, result {self.after}"
        return f"{text}, float64 reference {self.reference}" if self.reference else text


@dataclass(frozen=True)
class Trial:
    """Both programs on one set of inputs, run in one way.

    ====================  ==========================================================================================
    ``inputs``            the kind: ``normal``, ``wide``, ``zeros``, ``denormal``, ``large``, ``lowest``, ``special`` or
                          ``given``
    ``run``               ``jit`` or ``op by op``
    ``seed``              with ``inputs``, makes the same arrays again (:meth:`arguments`)
    ``ok``                every element agrees to rounding (integers exactly), is right by the reference, or has an
                          error that is rounding in both programs and at most twice the original's
    ``bit_equal``         every output is equal bit for bit (any NaN equals any NaN, and the two zeros are equal)
    ``max_difference``    largest difference of two elements, in units of the largest element of that output
    ``error_before``      the original's largest distance from the float64 reference, in the same units, or None
    ``error_after``       the rewritten program's
    ``reason``            why it is not ok: the output, and an element that is wrong; "" if it is
    ``difference``        the element the two are furthest apart in, None if they are nowhere apart
    ====================  ==========================================================================================
    """

    inputs: str
    run: str
    seed: int
    ok: bool
    bit_equal: bool
    max_difference: float
    error_before: float | None
    error_after: float | None
    reason: str
    difference: Difference | None

    def arguments(self, program: Program) -> list[Array]:
        """The arrays it was made with: the arguments of the program's ``main`` that show what it shows."""
        if self.inputs == "given":
            raise UsageError("the inputs of this trial were passed in, so they cannot be made again")
        return trial_inputs(_main(program).arguments, self.inputs, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: infinities as the text ``inf``."""
        plain = asdict(self)
        for name in ("max_difference", "error_before", "error_after"):
            value = plain[name]
            plain[name] = value if value is None or math.isfinite(value) else str(value)
        return plain


@dataclass(frozen=True)
class Verification:
    """How far two programs are apart on the same inputs.

    ``trials`` holds every :class:`Trial`; ``reference`` says who computed in float64 (``StableHLO's interpreter``,
    ``XLA in float64``, or ``none: `` and why); ``remarks`` what else there is to know. The figures are those of the
    first trial (normal inputs, or the given ones), the verdicts are over all.
    """

    trials: tuple[Trial, ...] = field(repr=False)
    reference: str
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        return all(trial.ok for trial in self.trials)

    @property
    def bit_equal(self) -> bool:
        return all(trial.bit_equal for trial in self.trials)

    @property
    def worst(self) -> Trial:
        """The first trial that failed, else the one with the largest error or difference."""
        return max(self.trials, key=lambda t: (not t.ok, _finite(t.error_after), t.max_difference))

    @property
    def reason(self) -> str:
        """Why it is not ok: the trial, the output, an element that is wrong; "" if it is."""
        failed = next((trial for trial in self.trials if not trial.ok), None)
        return f"{failed.inputs} inputs, {failed.run}: {failed.reason}" if failed else ""

    @property
    def max_difference(self) -> float:
        """Of the first trial, as are the errors."""
        return self.trials[0].max_difference

    @property
    def error_before(self) -> float | None:
        return self.trials[0].error_before

    @property
    def error_after(self) -> float | None:
        return self.trials[0].error_after

    def to_json(self) -> dict[str, Any]:
        """Plain values: ok, bit_equal, reference, reason, remarks, trials."""
        return {
            "ok": self.ok, "bit_equal": self.bit_equal, "reference": self.reference, "reason": self.reason,
            "remarks": list(self.remarks), "trials": [trial.to_dict() for trial in self.trials],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Verification:
        """Of what ``dataclasses.asdict`` makes of one; UnsupportedError for anything else."""
        import msgspec

        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise UnsupportedError(f"the process that ran the programs gave no verification: {error}") from None

    def __str__(self) -> str:
        """A few lines: how many trials, the worst case, why not if not."""
        ways = ", ".join(dict.fromkeys(trial.run for trial in self.trials))
        kinds = ", ".join(dict.fromkeys(trial.inputs for trial in self.trials))
        verdict = "equal bit for bit" if self.bit_equal else "they agree" if self.ok else "THEY DIFFER"
        lines = [f"{verdict} in {len(self.trials)} trials ({ways}; {kinds} inputs), reference: {self.reference}"]
        if self.reason:
            lines.append(self.reason)
        elif self.worst.difference:
            lines.append(f"furthest apart on {self.worst.inputs} inputs, {self.worst.run}: {self.worst.difference}")
        return "\n".join([*lines, *self.remarks])


def _finite(error: float | None) -> float:
    return error if error is not None and math.isfinite(error) else -1.0


_HLO = "only StableHLO programs are run and compared; this is HLO text"
Array = np.ndarray[Any, Any]
Run = Callable[[int, Sequence[Any]], list[Array]]
"""Runs the original (0) or the rewritten program (1) on arguments, and returns its results."""


def verify(
    original: Program,
    rewritten: Program,
    arguments: Sequence[Any] | None = None,
    seed: int = 0,
    bit_exact: bool = False,
    inputs: Sequence[str] | None = None,
    eager: bool = True,
    advance: Callable[[int, int, str], None] | None = None,
    assume_finite: bool = False,
    seconds: float = SECONDS,
    within: float | None = None,
    apart: bool = False,
) -> Verification:
    """Run both StableHLO programs on the same inputs and compare every element.

    ``arguments`` are the flat arrays the program's ``main`` takes; without them, random ones of every kind in
    ``inputs`` (default: all of :data:`INPUTS`; a program with a loop that no constant bounds gets ``normal`` ones
    alone, as it might never end). Each is run under jit and, with ``eager``, one operation at a time. The two must take
    and give the same types. Both are measured against the original in float64: by StableHLO's own interpreter where it
    has every operation and is quick, as XLA's CPU backend may be wrong under jit; else by XLA. ``bit_exact`` asks for
    the same bits.
    ``assume_finite`` leaves out inputs with a NaN or an infinity, or so large that one would come about: what a rewrite
    under the same assumption has promised nothing about.
    ``within``: no trial begins that would probably end after so many seconds; the first is always made.
    ``advance(done, total, what)`` is called before every trial. Raises UsageError where the types differ.

    Programs from texts run in a process of their own, on the CPU: ``seconds`` for each trial, with bounded memory, and
    only with custom calls that are known. Raises CheckFailed where that process dies of them, UnsupportedError where
    they take longer, need more, or call anything else. Programs of the user's own JAX functions (both have a
    ``signature``) run here, with whatever this process has registered, and without these bounds; calls back into Python
    are refused. ``apart``: in the other process, too, where all that they call is known.
    """
    options: dict[str, Any] = {"seed": seed, "bit_exact": bit_exact, "inputs": inputs, "eager": eager}
    options |= {"assume_finite": assume_finite, "within": within}
    own = original.signature is not None and rewritten.signature is not None
    if own and not (apart and all(map(_calls_are_known, (original, rewritten)))):
        return verify_here(original, rewritten, arguments, advance=advance, **options)
    for program in (original, rewritten):
        if program.kind != "stablehlo":
            raise UnsupportedError(_HLO)
        parse_module(program.text)  # an error in a text is this process's to tell, with its place
    options["arguments"] = None if arguments is None else [np.asarray(a) for a in arguments]
    texts = (original.text, rewritten.text)
    return Verification.from_json(ask("verify", {"texts": texts, "options": options}, seconds, advance)[0])


def _calls_are_known(program: Program) -> bool:
    try:
        check_custom_calls(program.text)
    except UnsupportedError:
        return False
    return True


def verify_here(
    original: Program,
    rewritten: Program,
    arguments: Sequence[Any] | None = None,
    *,
    seed: int,
    bit_exact: bool,
    inputs: Sequence[str] | None,
    eager: bool,
    assume_finite: bool,
    within: float | None,
    advance: Callable[[int, int, str], None] | None,
) -> Verification:
    """:func:`verify` in this process."""
    import jax

    before, after = _main(original), _main(rewritten)
    types = [[repr(v) for v in (*body.arguments, *body.operations[-1].operands)] for body in (before, after)]
    if types[0] != types[1]:
        raise UsageError("the two programs have arguments or results of different types", how=_first_difference(*types))
    own_inputs = None if arguments is None else [np.asarray(a) for a in arguments]
    kinds = ["given"] if own_inputs is not None else inputs_for(before, inputs, assume_finite)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):  # programs name their types; x64 only admits 64 bits
        xla = XlaValues()
        judge = _Comparison(original, rewritten, before, after, bit_exact, xla, Reference(original.text, before, xla))
        runs, remarks = _runs(judge, eager)
        if own_inputs is None and inputs is None and may_never_end(before):
            remarks.append("only normal inputs were tried: a loop in it runs until a condition on values holds")
        trials: list[Trial] = []
        begun, total = time.monotonic(), len(kinds) * len(runs)
        for number, (kind, how) in enumerate((kind, how) for kind in kinds for how in runs):
            each = (time.monotonic() - begun) / max(number, 1)
            if within is not None and number and each * (number + 1) > within:
                left = f"{total - number} of {total} trials were left out: one takes {each:.0f} s"
                remarks.append(f"{left}, and all may take {within:g} s")
                break
            if advance:
                advance(number, total, f"{kind} inputs, {how}")
            arrays = own_inputs if own_inputs is not None else trial_inputs(before.arguments, kind, seed)
            trials.append(judge.trial(kind, how, seed, arrays, runs[how]))
    return Verification(tuple(trials), judge.reference.kind, tuple(dict.fromkeys(remarks + judge.remarks)))


def _first_difference(before: Sequence[str], after: Sequence[str]) -> str:
    if len(before) != len(after):
        return f"{len(before)} arguments and results in one, {len(after)} in the other"
    return next(f"{a} in one is {b} in the other" for a, b in zip(before, after) if a != b)


def main_types(text: str) -> tuple[list[Any], list[Any]]:
    """The arguments and results of a StableHLO text's main, as ShapeDtypeStructs."""
    body = _main(Program("stablehlo", "", text, ()))
    inputs, outputs = map(types_of, (body.arguments, body.operations[-1].operands))
    return [array_struct(*each) for each in inputs], [array_struct(*each) for each in outputs]


def inlined_functions(program: Program) -> dict[str, Block]:
    """The functions of a StableHLO program by name, calls put in place. UnsupportedError for one that calls itself."""
    module = parse_module(program.text)
    if name := calls_itself(module):
        raise UnsupportedError(f"function {name} calls itself, or is called by one that does: XLA has no recursion")
    Inline().apply_module(module)
    return {body.name: body for body in read_functions(module)}


def operations_of(program: Program) -> Block:
    """The program's main function as one list of operations, calls put in place; the last one names the results."""
    if program.kind != "stablehlo":
        raise UnsupportedError("a program as XLA compiled it", how="give StableHLO, or the function it was made from")
    bodies = inlined_functions(program)
    return bodies["main"] if "main" in bodies else next(iter(bodies.values()))


def sample_arrays(program: Program) -> list[Array]:
    """Arrays to run a program with: those its file has as an example, else random ones."""
    signature = program.signature
    if signature is not None and signature.example is not None:
        given = signature.flat(*signature.example)
        if all(hasattr(array, "__array__") or np.isscalar(array) for array in given):
            return [np.asarray(array, signature.inputs[i].dtype) for array, i in zip(given, signature.kept)]
    return [np.asarray(array) for array in trial_inputs(operations_of(program).arguments, "normal", 0)]


def _main(program: Program) -> Block:
    if program.kind != "stablehlo":
        raise UnsupportedError(_HLO)
    main = inlined_functions(program).get("main")
    if main is None:
        raise UsageError("the module has no function called main")
    if any(v.shape is None for v in (*main.arguments, *main.operations[-1].operands)):
        raise UnsupportedError("an argument or result of main is not an array of known shape")
    return main


def _runs(judge: _Comparison, eager: bool) -> tuple[dict[str, Run], list[str]]:
    """Ways to run the two programs, by name, and why one is missing."""
    types = types_of(judge.before.arguments), types_of(judge.before.operations[-1].operands)
    texts, bodies = (judge.original.text, judge.rewritten.text), (judge.before, judge.after)
    runs: dict[str, Run] = {"jit": lambda side, given: judge.xla.run_text(texts[side], *types, given)}
    if not eager:
        return runs, []
    try:
        for body in bodies:
            judge.xla.prepare(body)
    except UnsupportedError as error:
        return runs, [f"not run op by op: {error}"]
    return runs | {"op by op": lambda side, given: judge.xla.run(bodies[side], given)}, []


@dataclass
class _Comparison:
    """Two programs, how to run them, and the reference for each input once it is known."""

    original: Program
    rewritten: Program
    before: Block
    after: Block
    bit_exact: bool
    xla: XlaValues
    reference: Reference
    remarks: list[str] = field(default_factory=list)
    _known: tuple[str, list[Array] | None] = ("", None)
    _jitted: tuple[str, list[Array]] = ("", [])
    _nudged: dict[bool, list[list[Array]]] = field(default_factory=dict)

    def trial(self, kind: str, how: str, seed: int, arguments: Sequence[Any], run: Run) -> Trial:
        old, new = (run(side, arguments) for side in range(2))
        if self._known[0] != kind:  # made once for each input
            self._known = (kind, self.reference.results(arguments))
        reference = self._known[1]
        self._nudged.clear()
        exact: Sequence[Array | None] = [None] * len(old) if reference is None else reference
        allowed = list(map(trying.allowance, old, exact, self._inner))
        self._remark_on_xla(kind, how, old, allowed)
        if reference is not None:
            old, new = self._without_lost_nans(kind, how, old, new, reference)
        reason = self._reason(arguments, old, new, reference, allowed)
        if any(map(trying.zeros_differ, old, new)):
            self.remarks.append(f"zeros differ in sign on {kind} inputs, {how}; they count as equal")
        errors: list[float | None] = [None, None]
        if reference is not None:
            errors = [max(map(trying.distance, reference, outs), default=0.0) for outs in (old, new)]
        apart = max(map(trying.distance, old, new), default=0.0)
        if reason and errors[0] and np.isfinite(errors[0]) and 10 * apart < errors[0]:
            self.remarks.append(
                f"on {kind} inputs the two are ten times nearer to each other than the original is to its float64 "
                "reference: rounding decides there; compare on the model's own values (hlo.verify(a, b, arguments))"
            )
        return Trial(
            inputs=kind, run=how, seed=seed, ok=not reason, bit_equal=all(map(trying.identical, old, new)),
            max_difference=apart, error_before=errors[0], error_after=errors[1],
            reason=reason, difference=_largest(old, new, reference),
        )  # fmt: skip

    @cached_property
    def _inner(self) -> list[np.dtype[Any] | None]:
        """For each output the coarsest type that the original rounds to on the way to it."""
        return trying.coarsest(self.before)

    def _remark_on_xla(self, kind: str, how: str, old: list[Array], allowed: list[float]) -> None:
        """Add a remark where the original program gives other values under jit than op by op: XLA can be wrong.

        Called for every run of an input kind, the one under jit first: that one's outputs ``old`` are kept, those of a
        later run are compared with them. ``allowed``: the rounding error of each output, in units of its largest
        element.
        """
        if how == "jit":
            self._jitted = (kind, old)
        elif self._jitted[0] == kind and any(
            bool(trying.differing(*each).any()) for each in zip(self._jitted[1], old, allowed)
        ):
            self.remarks.append(
                f"the original itself gives other values under jit than op by op on {kind} inputs: its rounding or "
                "XLA's fault, no rewrite's"
            )

    def _without_lost_nans(
        self, kind: str, how: str, before: list[Array], after: list[Array], reference: list[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Leave out what the original loses: the reference is not a number, the original gives one all the same.

        XLA's CPU backend does so where it reduces a maximum or minimum: what remains depends on the order.
        """
        lost = [trying.loses_nan(a, r) for a, r in zip(before, reference)]
        if not any(bool(mask.any()) for mask in lost):
            return before, after
        k = next(k for k, mask in enumerate(lost) if mask.any())
        a, b = before[k][lost[k]][0], after[k][lost[k]][0]
        self.remarks.append(
            f"{kind} inputs, {how}: {sum(int(mask.sum()) for mask in lost)} elements are left out, as the original "
            f"itself loses a NaN there (float64 reference nan, original {a}, result {b})"
        )
        gone = [np.array(np.nan).astype(a.dtype) for a in before]
        old, new = ([np.where(m, n, x) for m, n, x in zip(lost, gone, outputs)] for outputs in (before, after))
        return old, new

    def _nudged_results(self, arguments: Sequence[Any], output: int, wide: bool = False) -> list[Array]:
        """One output's reference for arguments that are one unit in the last place (of float64) off, twice."""
        if wide not in self._nudged:
            compute = self.reference.by_xla if wide else self.reference.results
            references = [compute(trying.nudged(arguments, seed, wide)) for seed in range(2)]
            self._nudged[wide] = [reference for reference in references if reference is not None]
        return [reference[output] for reference in self._nudged[wide]]

    def _only_rounding(
        self, arguments: Sequence[Any], index: int, before: Array, after: Array, reference: list[Array]
    ) -> bool:
        exact = self.reference.by_xla(arguments) or reference
        around = [each for each in map(np.asarray, (*arguments, *exact)) if not trying.is_integral(each.dtype)]
        sizes = (np.abs(trying.in_float64(each)) for each in around)
        largest = max((float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes), default=0.0)
        if not trying.is_tiny(exact[index], largest):
            return False
        references = [exact[index], *self._nudged_results(arguments, index, wide=True)]
        own = max(trying.unit(each) for each in (before.dtype, self._inner[index]) if each is not None)
        return len(references) > 1 and trying.only_rounding(before, after, references, largest, own)

    def _reason(
        self,
        arguments: Sequence[Any],
        before: list[Array],
        after: list[Array],
        reference: list[Array] | None,
        allowed: list[float],
    ) -> str:
        """Why the first output that may not stand may not, "" if all may."""
        depth = _depth(self.before)
        for index, (a, b, most) in enumerate(zip(before, after, allowed)):
            if self.bit_exact:
                reason = "" if trying.identical(a, b) else "the bits differ, and bit_exact asks for the same ones"
            elif reference is not None:
                moved = partial(self._nudged_results, arguments, index)
                fine = all(trying.unit(np.asarray(each).dtype) < 1e-5 for each in (*arguments, a)) and most < 1e-5
                reason = trying.missed(a, b, reference[index], depth, most, moved if fine else list)
                if reason and self._only_rounding(arguments, index, a, b, reference):
                    self.remarks.append(f"output {index} is zero but for rounding, in both programs")
                    continue
                reason = reason or trying.spoiled(a, b, reference[index], moved, most)
            else:
                count = int(trying.differing(a, b, most).sum())
                if count and "RESOURCE_EXHAUSTED" in self.reference.kind:  # the reference could still excuse them
                    how = "allow more, with --memory on the command line, or TILEWRIGHT_CHILD_GIB"
                    raise UnsupportedError("the reference in float64 needs more memory than is allowed", how=how)
                reason = f"{count} of {a.size} elements differ beyond rounding, and there is no reference" * bool(count)
            if reason:
                return f"output {index}: {reason}"
            own = trying.tolerance(a.dtype)
            if most > own and trying.differing(a, b, own).any():
                self.remarks.append(
                    f"output {index} of {a.dtype} is rounded to {self._inner[index]} inside the original, and is held "
                    "to that rounding"
                )
        return ""


def _largest(before: list[Array], after: list[Array], reference: list[Array] | None) -> Difference | None:
    """The element the two are furthest apart in, over all outputs."""
    apart = [trying.distance(a, b) for a, b in zip(before, after)]
    if not any(apart):
        return None
    output = int(np.argmax(apart))
    at = trying.worst(before[output], after[output])
    values = [str(side[output][at]) for side in (before, after)]
    return Difference(output, at, values[0], values[1], "" if reference is None else str(reference[output][at]))


def _depth(body: Block) -> int:
    """Operations on the longest way through a body, nested bodies counted once."""
    depth: dict[Value, int] = {}
    deepest = 1
    for op in body.operations:
        inside = max(map(_depth, op.blocks), default=1)
        here = inside + max((depth.get(v, 0) for v in op.operands), default=0)
        depth.update(dict.fromkeys(op.results, here))
        deepest = max(deepest, here)
    return deepest


# -- inside the process in which programs from texts run: their custom calls are known ones, its memory is bounded ----


_Answer = tuple[Any, Sequence[bytes]]


def main() -> None:
    memory = half_of_memory()
    bound(memory)
    values = XlaValues()

    def answer(question: bytes, tell: Tell) -> bytes:
        name, given = pickle.loads(question)  # of our own parent, which made it
        try:
            value, parts = _verify(given, tell) if name == "verify" else _run(values, given)
        except TilewrightError as error:
            value, parts = _error(error), ()
        except MemoryError:
            how = f"it may take {memory >> 30} GiB; TILEWRIGHT_CHILD_GIB=N allows N"
            value, parts = _error(UnsupportedError("running this program needs more memory", how=how)), ()
        except Exception as error:  # XLA's and JAX's own: they have no family
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            value, parts = _error(UnsupportedError(f"this program cannot be run here: {reason}")), ()
        return b"\n".join([json.dumps(value).encode(), b"".join(parts)])

    serve(answer)


def _error(error: TilewrightError) -> dict[str, str]:
    kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == TilewrightError.__module__)
    return {"error": error.what, "kind": kind, "where": error.where, "how": error.how}


def _verify(given: Mapping[str, Any], tell: Tell) -> _Answer:
    for text in given["texts"]:
        check_custom_calls(text)
    before, after = (Program("stablehlo", "", text, ()) for text in given["texts"])
    advance: Callable[[int, int, str], None] = lambda *note: tell(json.dumps(note).encode())  # noqa: E731
    found = verify_here(before, after, **given["options"], advance=advance)
    return {"value": asdict(found)}, ()


def _run(values: XlaValues, given: Mapping[str, Any]) -> _Answer:
    check_custom_calls(given["text"])
    made = values.run_text(given["text"], given["inputs"], given["outputs"], given["arrays"])
    return {"value": None}, [np.ascontiguousarray(array).tobytes() for array in made]
