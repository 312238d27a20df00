"""Peak memory: random straight programs against a slow count, and each rule of the model by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.hlo import load, report

KB = 256  # f32[256] is 1 KiB


def peak(text, space=0):
    return next(p for p in report(load(text)).peaks if p.memory_space == space)


@st.composite
def straight_programs(draw):
    """(sizes, operands): value 0 and 1 are arguments, every other is an operation on earlier ones."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=3, max_size=12))
    operands = [()] * 2 + [
        tuple(draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=2))) for i in range(2, len(sizes))
    ]
    return sizes, operands


@given(straight_programs())
def test_straight_programs_against_a_slow_count(program):
    sizes, operands = program
    lines = []
    for i, (size, used) in enumerate(zip(sizes, operands)):
        what = (
            f"parameter({i})" if i < 2 else f'custom-call({", ".join(f"v{u}" for u in used)}), custom_call_target="x"'
        )
        lines.append(f"  {'ROOT ' if i == len(sizes) - 1 else ''}v{i} = f32[{size * KB}] {what}")
    found = peak("HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}")
    last = len(sizes) - 1

    def alive(i, at):
        throughout = i < 2 or i == last
        dies = last if throughout else max([i] + [j for j, used in enumerate(operands) if i in used])
        return (0 if throughout else i) <= at <= dies

    slow = [sum(size for i, size in enumerate(sizes) if alive(i, at)) for at in range(len(sizes))]
    assert found.padded_bytes == 1024 * max(slow)
    runs = [at for at, count in enumerate(slow) if count == max(slow) and at > 1]  # one that runs, if there is one
    assert found.at == f"v{(runs or [slow.index(max(slow))])[0]}"
    assert sum(tensor.padded_bytes for tensor in found.tensors) <= found.padded_bytes


def entry(*lines, before=""):
    return "HloModule m\n" + before + "ENTRY e {\n  a = f32[256] parameter(0)\n  " + "\n  ".join(lines) + "\n}"


CASES = {
    # a and b live throughout: the argument and the result
    "copy": (entry("ROOT b = f32[256] copy(a)"), 2),
    # x dies when b is written; both live then
    "chain": (entry("x = f32[256] negate(a)", "ROOT b = f32[256] negate(x)"), 3),
    # other names
    "bitcast": (entry("x = f32[256] negate(a)", "ROOT b = f32[2,128] bitcast(x)"), 2),
    "tuple": (
        entry(
            "x = f32[256] negate(a)",
            "t = (f32[256], f32[256]) tuple(x, a)",
            "g = f32[256] get-tuple-element(t), index=1",
        )
        + "",
        2,
    ),
    # in place: x is not read later
    "update": (
        entry("x = f32[256] negate(a)", "i = s32[] constant(0)", "u = f32[1] constant({1})").replace(
            "\n}", "\n  ROOT b = f32[256] dynamic-update-slice(x, u, i)\n}"
        ),
        2 + 8 / 1024,
    ),
    # not in place: the argument must not change
    "update of an argument": (
        entry("i = s32[] constant(0)", "u = f32[1] constant({1})").replace(
            "\n}", "\n  ROOT b = f32[256] dynamic-update-slice(a, u, i)\n}"
        ),
        2 + 8 / 1024,
    ),
    # the callee's own temporary lies on top; its result is the caller's
    "call": (
        entry(
            "ROOT b = f32[256] call(a), to_apply=f",
            before='f {\n  p = f32[256] parameter(0)\n  x = f32[768] custom-call(p), custom_call_target="x"\n'
            '  ROOT r = f32[256] custom-call(x), custom_call_target="y"\n}\n',
        ),
        2 + 3,
    ),
    # what the loop carries is the caller's, updated in place
    "while": (
        entry(
            "x = f32[256] negate(a)",
            "ROOT b = f32[256] while(x), condition=c, body=f",
            before='f {\n  p = f32[256] parameter(0)\n  x = f32[512] custom-call(p), custom_call_target="x"\n'
            '  ROOT r = f32[256] custom-call(x), custom_call_target="y"\n}\n'
            "c {\n  p = f32[256] parameter(0)\n  ROOT t = pred[] constant(true)\n}\n",
        ),
        2 + 2,
    ),
    # the larger branch counts
    "conditional": (
        entry(
            "i = s32[] constant(0)",
            "ROOT b = f32[256] conditional(i, a, a), branch_computations={f, g}",
            before="f {\n  ROOT p = f32[256] parameter(0)\n}\n"
            'g {\n  p = f32[256] parameter(0)\n  x = f32[1024] custom-call(p), custom_call_target="x"\n'
            '  ROOT r = f32[256] custom-call(x), custom_call_target="y"\n}\n',
        ),
        2 + 4 + 4 / 1024,
    ),
    # a fusion's inside has no buffer
    "fusion": (
        entry(
            "ROOT b = f32[256] fusion(a), kind=kLoop, calls=f",
            before="f {\n  p = f32[256] parameter(0)\n  x = f32[256] negate(p)\n  ROOT y = f32[256] negate(x)\n}\n",
        ),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_of_the_model(name):
    text, kibibytes = CASES[name]
    assert peak(text).padded_bytes == kibibytes * 1024


def test_memory_spaces_are_counted_apart():
    """The prefetched copy lives in S(1) from its start to its last reader; the source stays until the copy is done."""
    text = entry(
        'x = f32[512] custom-call(a), custom_call_target="x"',
        "s = (f32[512]{0:S(1)}, f32[512]{0}, u32[]{:S(2)}) copy-start(x)",
        "d = f32[512]{0:S(1)} copy-done(s)",
        'ROOT b = f32[256] custom-call(d), custom_call_target="y"',
    )
    assert peak(text).padded_bytes == 4 * 1024  # the argument, x, the result
    assert (peak(text, 1).padded_bytes, peak(text, 1).at) == (2 * 1024, "s")
    assert [tensor.name for tensor in peak(text, 1).tensors] == ["s"]


def test_padding_and_place():
    text = """HloModule m
ENTRY e {
  a = f32[256,2]{1,0:T(8,128)} parameter(0)
  ROOT b = f32[2,256]{1,0:T(2,128)} transpose(a), dimensions={1,0}
}"""
    found = peak(text)
    assert (found.padded_bytes, found.logical_bytes) == (256 * 128 * 4 + 2048, 2 * 2048)
    assert [(tensor.name, tensor.padded_bytes) for tensor in found.tensors] == [("a", 131072), ("b", 2048)]


def test_regions_of_stablehlo_keep_what_they_read_alive():
    """%big is read only inside the loop's body: it must live while the loop runs."""
    text = """func.func @main(%a: tensor<256xf32>) -> tensor<256xf32> {
  %big = stablehlo.negate %a : tensor<256xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, tensor<256xf32>
  cond {
    %n = stablehlo.constant dense<7> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %s = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %s : tensor<i32>
    %t = stablehlo.exponential %x : tensor<256xf32>
    %2 = stablehlo.add %t, %big : tensor<256xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<256xf32>
  }
  return %0#1 : tensor<256xf32>
}
"""
    found = report(load(text), "cpu").peaks[0]
    assert found.padded_bytes == 4 * 1024 + 4  # %a, its copy that the loop changes, %big, %t; the counter
    assert found.path == "main > main/%0.body"
    assert "%big" in {tensor.name for tensor in found.tensors}
