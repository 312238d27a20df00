"""What a fusion is charged for: the slice it takes, the part it replaces, through moves and fusions inside."""

import pytest

from tilewright.hlo import estimate, load

STACK, LAYER = "bf16[80,2048,2048]{2,1,0:T(8,128)(2,1)}", "bf16[1,2048,2048]{2,1,0:T(8,128)(2,1)}"
FLAT, SCALAR = "bf16[2048,2048]{1,0:T(8,128)(2,1)}", "s32[]{:T(128)}"
LAYER_BYTES = 2048 * 2048 * 2

HEAD = "HloModule m, is_scheduled=true\n"
TAKES = f"""
%moved (p: bf16[80,2048,2048]) -> bf16[80,2048,2048] {{
  %p = {STACK} parameter(0)
  %b = {STACK} bitcast(%p)
  ROOT %c = {STACK} copy(%b)
}}
%inner (p.1: bf16[80,2048,2048], i.1: s32[]) -> bf16[2048,2048] {{
  %p.1 = {STACK} parameter(0)
  %i.1 = {SCALAR} parameter(1)
  %z.1 = {SCALAR} constant(0)
  %m.1 = {STACK} fusion(%p.1), kind=kLoop, calls=%moved
  %s.1 = {LAYER} dynamic-slice(%m.1, %i.1, %z.1, %z.1), dynamic_slice_sizes={{1,2048,2048}}
  ROOT %f.1 = {FLAT} bitcast(%s.1)
}}
%outer (p.2: bf16[80,2048,2048], i.2: s32[], x.2: bf16[2048,2048]) -> bf16[2048,2048] {{
  %p.2 = {STACK} parameter(0)
  %i.2 = {SCALAR} parameter(1)
  %x.2 = {FLAT} parameter(2)
  %w.2 = {FLAT} fusion(%p.2, %i.2), kind=kLoop, calls=%inner
  ROOT %y.2 = {FLAT} convolution(%x.2, %w.2), dim_labels=bf_io->bf
}}
ENTRY %e (p: bf16[80,2048,2048], i: s32[], x: bf16[2048,2048]) -> bf16[2048,2048] {{
  %p = {STACK} parameter(0)
  %i = {SCALAR} parameter(1)
  %x = {FLAT} parameter(2)
  ROOT %y = {FLAT} fusion(%p, %i, %x), kind=kOutput, calls=%outer
}}
"""
WRITES = f"""
%fused (p.1: bf16[80,2048,2048], x.1: bf16[2048,2048], i.1: s32[]) -> (bf16[80,2048,2048], bf16[2048,2048]) {{
  %p.1 = {STACK} parameter(0)
  %x.1 = {FLAT} parameter(1)
  %i.1 = {SCALAR} parameter(2)
  %z.1 = {SCALAR} constant(0)
  %t.1 = {FLAT} exponential(%x.1)
  %u.1 = {LAYER} bitcast(%t.1)
  %d.1 = {STACK} dynamic-update-slice(%p.1, %u.1, %i.1, %z.1, %z.1)
  ROOT %r.1 = ({STACK}, {FLAT}) tuple(%d.1, %t.1)
}}
ENTRY %e (p: bf16[80,2048,2048], x: bf16[2048,2048], i: s32[]) -> (bf16[80,2048,2048], bf16[2048,2048]) {{
  %p = {STACK} parameter(0)
  %x = {FLAT} parameter(1)
  %i = {SCALAR} parameter(2)
  ROOT %y = ({STACK}, {FLAT}) fusion(%p, %x, %i), kind=kLoop, calls=%fused
}}
"""
STACKS = WRITES.replace(
    f"%p.1 = {STACK} parameter(0)",
    f'%p.0 = {STACK} parameter(0)\n  %p.1 = {STACK} custom-call(), custom_call_target="AllocateBuffer"',
)
READ_AGAIN = WRITES.replace("tuple(%d.1, %t.1)", "tuple(%d.1, %s.1)").replace(
    "  ROOT %r.1",
    f"  %n.1 = {STACK} negate(%d.1)\n"
    f"  %l.1 = {LAYER} dynamic-slice(%n.1, %i.1, %z.1, %z.1), dynamic_slice_sizes={{1,2048,2048}}\n"
    f"  %s.1 = {FLAT} bitcast(%l.1)\n"
    "  ROOT %r.1",
)
ALL = TAKES.replace(
    f"%s.1 = {LAYER} dynamic-slice(%m.1, %i.1, %z.1, %z.1), dynamic_slice_sizes={{1,2048,2048}}", ""
).replace(f"{FLAT} bitcast(%s.1)", f"{FLAT} reduce(%m.1, %z.1), dimensions={{0}}, to_apply=%sum")


@pytest.mark.parametrize(
    ("text", "layers"),
    [(TAKES, 3), (WRITES, 3), (STACKS, 3), (READ_AGAIN, 3)],
    ids=["a slice of a moved stack", "an update beside another result", "a part of a new stack", "one read again"],
)
def test_bytes_are_those_of_the_slice(text, layers):
    (row,) = estimate(load(HEAD + text), "tpu-v6e").rows
    assert row.bytes == pytest.approx(layers * LAYER_BYTES, rel=0.01)


def test_an_array_of_which_all_is_wanted_is_read_whole():
    text = ALL.replace("%moved (p", "%sum (a: bf16[], b: bf16[]) -> bf16[] {\n  %a = bf16[] parameter(0)\n"
                       "  %b = bf16[] parameter(1)\n  ROOT %t = bf16[] add(%a, %b)\n}\n%moved (p")  # fmt: skip
    (row,) = estimate(load(HEAD + text), "tpu-v6e").rows
    assert row.bytes == pytest.approx(82 * LAYER_BYTES, rel=0.01)


def test_work_on_what_nobody_wants_is_not_charged():
    doubled = TAKES.replace(f"ROOT %c = {STACK} copy(%b)", f"ROOT %c = {STACK} tanh(%b)")
    (row,) = estimate(load(HEAD + doubled), "tpu-v6e").rows
    (plain,) = estimate(load(HEAD + TAKES), "tpu-v6e").rows
    assert row.seconds < 2 * plain.seconds  # the tanh of one layer, not of eighty
