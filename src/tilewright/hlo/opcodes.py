"""What kinds of operations there are, by HLO's names (``plain_opcode``): the table that pricing, reports, proofs ask.

Some are StableHLO's alone: ``case``, ``if``, ``return``, ``create-token``.
"""

from __future__ import annotations

RENAMES = frozenset(
    {"bitcast", "tuple", "get-tuple-element", "return", "opt-barrier", "optimization-barrier", "domain"}
)
"""Other names of arrays that are there already: nothing is computed, moved or stored."""

TAKES_NO_TIME = (
    RENAMES
    | {"parameter", "constant", "after-all", "create-token", "add-dependency"}
    | {"partition-id", "replica-id", "get-dimension-size"}
)
"""Operations that no unit works for."""

CONTROL = frozenset({"while", "conditional", "call", "case", "if"})
"""Operations whose time is that of the computations they call."""

DOTS = frozenset({"dot", "dot-general"})
PRODUCTS = DOTS | {"convolution", "ragged-dot"}
"""Operations of the matrix unit."""

TAKES_PART = frozenset({"slice", "dynamic-slice", "gather"})
"""Operations that read of their first operand only what they take out of it."""

WRITES_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations that write in place of their first operand, and which operand they write there."""

TRANSCENDENTAL = {
    **dict.fromkeys(("exponential", "tanh", "rsqrt", "sqrt", "log", "divide", "cbrt", "sine", "cosine"), 1),
    **dict.fromkeys(("exponential-minus-one", "log-plus-one", "exp", "logistic-minus-one"), 1),
    **dict.fromkeys(("logistic", "tan", "atan2"), 2),
    **dict.fromkeys(("erf", "power", "remainder"), 3),
}
"""Operations of the transcendental unit, and how often they pass it."""

WRITTEN_OUT = {
    "erfc": (3, 58),
    "erf-inv": (2, 37),
    "lgamma": (13, 42),
    "digamma": (22, 54),
    "asin": (3, 5),
    "acos": (3, 3),
    "atan": (2, 0),
    "sinh": (4, 9),
    "cosh": (2, 3),
    "asinh": (4, 10),
    "acosh": (4, 7),
    "atanh": (2, 4),
    "next-after": (0, 20),
}
"""Functions that the compiler writes out: operations of the transcendental and of the vector unit, counted in modules
that it made.
"""

ELEMENTWISE = frozenset(
    {"abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros", "floor", "imag"}
    | {"is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real", "reduce-precision"}
    | {"round-nearest-afz", "round-nearest-even", "select", "shift-left", "shift-right-arithmetic", "sign", "square"}
    | {"shift-right-logical", "stochastic-convert", "subtract", "xor", *TRANSCENDENTAL, *WRITTEN_OUT}
)
"""Operations that take each element by itself."""

REARRANGES = frozenset(
    {"broadcast", "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "reshape", "slice"}
    | {"transpose"}
)
"""Operations that move elements and compute none."""

FREE = frozenset({"constant", "iota", "broadcast", "partition-id", "replica-id"})
"""Values that every kernel makes for itself."""
FLOWS = ELEMENTWISE | FREE
FLOWS |= {"reshape", "transpose", "slice", "dynamic-slice", "pad", "reverse", "concatenate", "bitcast-convert"}
"""Operations that run in the kernels that want their values."""
HEADS = PRODUCTS - {"ragged-dot"} | {"reduce", "gather", "reduce-window"}
"""Operations that do what follows them elementwise."""
INSIDE = FLOWS | HEADS
"""Operations that compute in their own kernel what they read."""

MOVES_ONLY = TAKES_NO_TIME | REARRANGES | {"bitcast-convert", "custom-call", "fusion", "iota", "scatter"}
"""Operations inside a fusion that compute nothing: their cost is at the fusion's border."""

_EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
COLLECTIVES = frozenset(
    kind + suffix for kind in (*_EXCHANGES, "ragged-all-to-all") for suffix in ("", "-start", "-done")
)
"""Operations that exchange data between chips."""

MARKER_CALLS = (
    "AssumeGatherIndicesInBound",
    "AllocateBuffer",
    "PrepareAsyncCall",
    "Sharding",
    "SPMDFullToShardShape",
    "ConcatBitcast",
    "Bitcast",
)
"""Custom calls (a part of their target's name) that tell the compiler something and compute nothing."""
