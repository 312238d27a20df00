"""Random programs of reshapes, elementwise operations, broadcasts, reductions and transposes keep their values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.hlo.stablehlo_values import module, reduce_line, rewritten, tensor, values
from tests.hlo.traffic import moved
from tilewright.hlo import load, optimize

SHAPES = [(4, 6, 8), (4, 6, 2, 4), (24, 8), (4, 48), (4, 3, 2, 8), (4, 6, 1, 8), (2, 2, 6, 8), (192,)]
SMALL = [(), (4,), (6,), (8,), (4, 8), (2,), (3,), (4, 1, 8), (1,)]


@st.composite
def programs(draw):
    """A straight-line program over integers (so that every rewrite is exact), its result a few of its values."""
    lines, env = [], {"x0": (4, 6, 8), "x1": (24, 8), "y0": (4,), "y1": (8,), "y2": (6, 8), "c0": ()}
    arguments = {name: tensor(shape, "i32") for name, shape in env.items()}

    def add(line, shape, operands):
        name = f"v{len(lines)}"
        lines.append(f"%{name} = " + line.format(*(f"%{o}" for o in operands), t=tensor(shape, "i32")))
        env[name] = shape

    for _ in range(draw(st.integers(3, 16))):
        kind = draw(
            st.sampled_from(
                [
                    "reshape",
                    "reshape",
                    "binary",
                    "binary",
                    "broadcast",
                    "reduce",
                    "transpose",
                    "transpose",
                    "tri",
                    "iota",
                ]
            )
        )
        value = draw(st.sampled_from(sorted(env)))
        shape = env[value]
        own = tensor(shape, "i32")
        if kind == "reshape":
            fits = [s for s in SHAPES + SMALL if np.prod(s) == np.prod(shape)]
            if fits:
                new = draw(st.sampled_from(fits))
                add(f"stablehlo.reshape {{}} : ({own}) -> {{t}}", new, [value])
        elif kind in ("binary", "tri"):
            other = draw(st.sampled_from(sorted(n for n in env if env[n] == shape)))
            if kind == "tri":
                add(f"stablehlo.clamp {{}}, {{}}, {{}} : ({own}, {own}, {own}) -> {{t}}", shape, [other, value, value])
            else:
                name = draw(st.sampled_from(["add", "subtract", "multiply", "maximum"]))
                add(f"stablehlo.{name} {{}}, {{}} : {{t}}", shape, [value, other])
        elif kind == "iota":
            if shape:
                dim = draw(st.sampled_from(range(len(shape))))
                add(f"stablehlo.iota dim = {dim} : {{t}}", shape, [])
        elif kind == "broadcast":
            target = draw(st.sampled_from([s for s in SHAPES if len(s) >= len(shape)]))
            dims = draw(st.permutations(range(len(target))))[: len(shape)]
            if all(n in (1, target[d]) for n, d in zip(shape, dims)):
                add(f"stablehlo.broadcast_in_dim {{}}, dims = {list(dims)} : ({own}) -> {{t}}", target, [value])
        elif kind == "transpose":
            order = draw(st.permutations(range(len(shape))))
            if shape:
                new = tuple(shape[d] for d in order)
                add(f"stablehlo.transpose {{}}, dims = {list(order)} : ({own}) -> {{t}}", new, [value])
        elif shape:
            dims = draw(st.lists(st.sampled_from(range(len(shape))), unique=True, min_size=1))
            monoid = draw(st.sampled_from(["add", "maximum", "xor"]))
            kept = tuple(n for d, n in enumerate(shape) if d not in dims)
            name = f"v{len(lines)}"
            lines.append(reduce_line(name, value, own, "c0", monoid, dims, tensor(kept, "i32")))
            env[name] = kept
    made = sorted(set(env) - set(arguments)) or ["x0"]
    chosen = draw(st.lists(st.sampled_from(made), unique=True, min_size=1, max_size=3))
    return module(arguments, "\n".join(lines), {name: tensor(env[name], "i32") for name in chosen})


@settings(max_examples=tries(20))
@given(programs())
def test_random_programs_keep_their_values(text):
    rng = np.random.default_rng(5)
    given_shapes = [(4, 6, 8), (24, 8), (4,), (8,), (6, 8), ()]
    arrays = [rng.integers(-9, 9, shape).astype(np.int32) for shape in given_shapes]
    expected = values(text, *arrays)
    tiled, alone = optimize(load(text), "vector8x128").text, optimize(load(text), "vector8x128", rules=[]).text
    assert moved(alone) <= moved(text)  # by an independent count; what rules put in place is counted otherwise
    for found in (rewritten(text), tiled, alone, optimize(load(text), "cpu").text):
        for got, wanted in zip(values(found, *arrays), expected):
            np.testing.assert_array_equal(got, wanted)
