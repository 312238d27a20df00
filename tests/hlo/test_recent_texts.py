"""Forms of HLO text that newer compilers print: elements of tuples where they are used, meshes, aliases, wrappers."""

import re

import pytest

from tests.conftest import by_night, within
from tilewright.errors import ParseError
from tilewright.hlo import load, report
from tilewright.hlo.program import aliases
from tilewright.hlo.semantics.collectives import groups_of
from tilewright.hlo.semantics.dims import devices_of
from tilewright.hlo.timing.estimate import estimate
from tilewright.targets import target
from tilewright.targets.scaling import what_if

ELEMENTS = """\
HloModule m, is_scheduled=true

%body (carried: (s32[], (f32[4], f32[8]))) -> (s32[], (f32[4], f32[8])) {
  %carried = (s32[]{:T(128)}, (f32[4]{0:T(128)}, f32[8]{0:T(128)})) parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%carried#0, %one)
  %twice = f32[8]{0:T(128)} add(%carried#1#1, %carried#1#1)
  %inner = (f32[4]{0:T(128)}, f32[8]{0:T(128)}) tuple(%carried#1#0, %twice)
  ROOT %t = (s32[]{:T(128)}, (f32[4]{0:T(128)}, f32[8]{0:T(128)})) tuple(%next, %inner)
}

%cond (c: (s32[], (f32[4], f32[8]))) -> pred[] {
  %c = (s32[]{:T(128)}, (f32[4]{0:T(128)}, f32[8]{0:T(128)})) parameter(0)
  %n = s32[]{:T(128)} constant(7)
  ROOT %lt = pred[] compare(s32[]{:T(128)} %c#0, s32[]{:T(128)} %n), direction=LT
}

ENTRY %main (a: f32[4], b: f32[8]) -> f32[8] {
  %a = f32[4]{0:T(128)} parameter(0)
  %b = f32[8]{0:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %pair = (f32[4]{0:T(128)}, f32[8]{0:T(128)}) tuple(%a, %b)
  %start = (s32[]{:T(128)}, (f32[4]{0:T(128)}, f32[8]{0:T(128)})) tuple(%zero, %pair)
  %loop = (s32[]{:T(128)}, (f32[4]{0:T(128)}, f32[8]{0:T(128)})) while(%start), condition=%cond, body=%body
  ROOT %out = f32[8]{0:T(128)} copy(%loop#1#1)
}
"""


def test_elements_where_they_are_used_are_the_operations_xla_has_for_them():
    body = load(ELEMENTS).computations[0]
    table = {op.name: op for op in body.operations}
    assert list(table) == [
        *("carried", "one", "carried#0", "next", "carried#1", "carried#1#1", "twice", "carried#1#0", "inner", "t"),
    ]
    element = table["carried#1#1"]
    assert (element.opcode, element.operands, element.shape) == (
        "get-tuple-element",
        ("carried#1",),
        "f32[8]{0:T(128)}",
    )
    assert (element.integers("index"), element.line) == ((1,), table["twice"].line)
    assert table["twice"].operand_shapes == ("f32[8]{0:T(128)}",) * 2


def test_elements_count_trips_and_have_times():
    program = load(ELEMENTS)
    assert not report(program).unknown_loops
    step = estimate(program, "tpu-v6e")
    assert step.priced == 1
    assert {row.runs for row in step.rows if row.name == "twice"} == {7}


@pytest.mark.parametrize(
    ("operand", "reason"),
    [
        ("%carried#2", "'carried' has 2 elements, not one numbered 2"),
        ("%carried#0#0", "'carried#0' has 0 elements"),
        ("%carrie#0", "operand 'carrie' is not defined"),
        ("%carried#", "operand '%carried#' is not defined"),
    ],
)
def test_elements_that_are_not_there(operand, reason):
    text = ELEMENTS[: ELEMENTS.index("  %one")] + f"  ROOT %x = s32[]{{:T(128)}} copy({operand})\n}}\n"
    with pytest.raises(ParseError, match=re.escape(reason)) as caught:
        load(text)
    assert caught.value.line == 5


# What nobody has printed yet: old, new, what the note says, and the row without a time.
UNKNOWN = {
    "an operand": ("add(%carried#0, %one)", "add(%carried@0, %one)", "line 6: operand '%carried@0'", "next"),
    "a value of an attribute": ("(%a, %b)", "(%a, %b), k=v {b} <c>, x={y}", "line 22: what stands here is not", ""),
    "a word between attributes": ("(%a, %b)", "(%a, %b), k {b}, x={y}", "line 22: expected an attribute", ""),
    "a shape": ("%one = s32[]{:T(128)}", "%one = s32[]<:T(128)>", "line 5: expected an opcode", "one"),
    "a line": ("  %zero", "  !reserve 3\n  %zero", "line 21: expected an instruction", ""),
    "brackets": ("f32[8]{0:T(128)}) tuple(%a", "f32[8]{0:T(128)} tuple(%a", "line 22: unexpected '}'", "pair"),
    "a table": ("ENTRY", "NewTable\n1 {a=b}\n2 {c=d}\n\nENTRY", "line 19: expected '{' after the name", ""),
    "words before a brace": ("-> f32[8] {", "-> f32[8], fresh={1} {", "", ""),
    "an operation": ("copy(%loop#1#1)", "frobnicate(%loop#1#1), x={y}", "", "out"),
    "a type": ("%out = f32[8]", "%out = f4e9[8]", "", "out"),
    "a layout": ("%out = f32[8]{0:T(128)}", "%out = f32[8]{0:T(128)Q(3)}", "", "out"),
}


@pytest.mark.parametrize("form", UNKNOWN)
def test_what_is_not_understood_is_a_note_and_a_row_and_never_the_end(form):
    old, new, note, row = UNKNOWN[form]
    assert old in ELEMENTS
    program = load(ELEMENTS.replace(old, new))
    known = {op.name for _, op in load(ELEMENTS).operations()}
    assert {op.name for _, op in program.operations()} >= known - {"carried#0"}
    assert len(program.notes) == bool(note)
    assert all(note in said for said in program.notes)
    step, found = estimate(program, "tpu-v6e"), report(program)
    assert {r.name for r in step.rows if r.unpriced} - {"loop"} == ({row} if row else set())
    assert set(program.notes) <= set(step.notes)
    assert set(program.notes) <= set(found.notes)
    assert type(found).from_json(found.to_json()) == found


def test_a_computation_that_is_not_understood_is_not_called():
    program = load(ELEMENTS.replace("-> pred[] {", "=> pred[] {"))
    assert ["line 12: expected '->' after the parameters" in note for note in program.notes] == [True]
    assert [computation.name for computation in program.computations] == ["body", "main"]
    assert [op.calls for op in program.entry.operations if op.opcode == "while"] == [("body",)]
    assert estimate(program, "tpu-v6e").priced < 1
    assert report(program).unknown_loops == ("loop",)


def test_much_that_is_not_understood_is_damage():
    text = ELEMENTS.replace("{:T(128)}", "<:T(128)>")
    with pytest.raises(ParseError, match="line 5, column"):
        load(text)
    text = ELEMENTS.replace("f32[8]{0:T(128)}", "f32[8]{0:Q(1)}").replace("f32[4]{0:T(128)}", "f32[4]{0:Q(2)}")
    with pytest.raises(ParseError, match="at the end of the layout"):
        report(load(text.replace("s32[]{:T(128)}", "s32[]{:Q(3)}")))


def test_attributes_behind_one_that_is_not_understood_are_read():
    program = load(ELEMENTS.replace("while(%start)", "while(%start), fresh <a>, k=v w"))
    (loop,) = (op for op in program.entry.operations if op.opcode == "while")
    assert loop.calls == ("cond", "body")
    assert loop.attributes["k"] == "v"


def test_many_places_take_linear_time():
    """Each an error of its own, and each a bracket that never closes."""
    head, tail = "HloModule m\n\nENTRY %e {\n", "  ROOT %r = f32[] constant(0)\n}\n"
    count = 4_000 if by_night() else 1_000
    good = "".join(f"  %g{k} = f32[8]{{0}} parameter({k})\n" for k in range(10 * count))
    bad = "".join(f"  %b{k} = f32[8]{{0}} copy(%g{k}@1)\n" for k in range(count))
    with within(4):
        program = load(head + good + bad + tail)
    assert program.notes[0].endswith(f"and {count - 3} more")
    with within(4), pytest.raises(ParseError, match="nested deeper"):
        load(head + bad.replace("@1)", "@1") + good + tail)


GROUPS = {
    "mesh['data'=1,'model'=8] {'model'}": 8,
    "mesh['a'=4,'b'=2]{'a','b'}": 8,
    "mesh['a'=4,'b'=2] {'a':(2)2,'b'}": 4,
    "mesh['a'=4,'b'=1,'c'=2], device_ids=([4,2]T(1,0)) {'c'}": 2,
    "mesh['a'=4,'b'=2], device_ids=(0,2,4,6,1,3,5,7) {'a'}": 4,
    "mesh['a'=4,'b'=2] {}": 1,
    "[4,2]<=[2,4]T(1,0)": 2,
    "{{0,1,2},{3,4,5}}": 3,
    "{}": 8,
    "{{}}": 8,
}


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_of_every_form(groups):
    text = f"""HloModule m, num_partitions=8
ENTRY %e {{
  %p = f32[1024,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %g = f32[1024,128]{{1,0:T(8,128)}} all-to-all(%p), channel_id=3, replica_groups={groups}, dimensions={{0}}
}}
"""
    program = load(text)
    exchange = program.entry.operations[-1]
    assert set(exchange.attributes) == {"channel_id", "replica_groups", "dimensions"}
    assert len(groups_of(exchange, devices_of(program))[0]) == GROUPS[groups]


def test_an_exchange_that_is_spread_over_fusions_goes_over_the_links_once():
    def fusions(count):
        bodies = "".join(
            f"%f{k} (p{k}: bf16[1024,4096]) -> bf16[8,128] {{\n  %p{k} = bf16[1024,4096]{{1,0}} parameter(0)\n"
            f"  %g{k} = bf16[4096,4096]{{1,0}} all-gather(%p{k}), channel_id=9, replica_groups=[1,4]<=[4],"
            f" dimensions={{0}}\n  ROOT %s{k} = bf16[8,128]{{1,0}} slice(%g{k}), slice={{[0:8], [0:128]}}\n}}\n\n"
            for k in range(count)
        )
        calls = "".join(f"  %c{k} = bf16[8,128]{{1,0}} fusion(%a), kind=kLoop, calls=%f{k}\n" for k in range(count))
        head = "ENTRY %e {\n  %a = bf16[1024,4096]{1,0} parameter(0)\n"
        program = load(f"HloModule m, is_scheduled=true\n\n{bodies}{head}{calls}}}\n")
        return sum(row.seconds for row in estimate(program, "tpu-v6e").rows if row.bound == "link")

    assert fusions(1) == pytest.approx(fusions(3), rel=0.2)


def test_aliases():
    assert aliases("{{}: (0, {})}") == ((None, 0, None),)
    assert aliases("{ {0}: (3, {}, may-alias), {1,2}: (4, {5, 6}, must-alias) }") == ((0, 3, None), (1, 4, 5))
    assert aliases("") == aliases("{}") == ()


def peak(text, space=0):
    return next(found.padded_bytes for found in report(load(text)).peaks if found.memory_space == space)


CACHE = """HloModule m, is_scheduled=true
ENTRY %e {
  %cache = f32[1024]{0} parameter(0)
  %x = f32[256]{0} parameter(1)
  %k = (f32[256]{0}, f32[1024]{0}) custom-call(%x, %cache), custom_call_target="tpu_custom_call", WHERE
  %y = f32[256]{0} get-tuple-element(%k), index=0
  %new = f32[1024]{0} get-tuple-element(%k), index=1
  ROOT %t = (f32[256]{0}, f32[1024]{0}) tuple(%y, %new)
}
"""


@pytest.mark.parametrize(
    ("where", "kibibytes"),
    [
        ('backend_config=""', 10),
        ("output_to_operand_aliasing={{1}: (1, {})}", 6),
        ("output_to_operand_aliasing={{1}: (1, {}), {0}: (0, {})}", 5),
        ("output_to_operand_aliasing={{1}: (7, {})}", 10),  # an operand that is not there
    ],
)
def test_what_is_written_over_an_operand_takes_no_memory_of_its_own(where, kibibytes):
    assert peak(CACHE.replace("WHERE", where)) == kibibytes * 1024


def test_a_result_over_an_argument_takes_no_memory_of_its_own():
    text = CACHE.replace("WHERE", 'backend_config=""')
    donated = text.replace("is_scheduled", "input_output_alias={ {1}: (0, {}, may-alias) }, is_scheduled")
    assert (peak(text), peak(donated)) == (10 * 1024, 6 * 1024)


HOST = """HloModule m, is_scheduled=true

%put (p: bf16[8,1024,1024], q: bf16[1,1024,1024], i: s32[]) -> bf16[8,1024,1024] {
  %p = bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)} parameter(0)
  %q = bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)} parameter(1)
  %i = s32[]{:T(128)} parameter(2)
  ROOT %u = bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)} dynamic-update-slice(%p, %q, %i, %i, %i)
}

ENTRY %e (a: bf16[1,1024,1024], i: s32[]) -> bf16[8,1024,1024] {
  %a = bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i.1 = s32[]{:T(128)} parameter(1)
  %room = bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)} custom-call(), custom_call_target="AllocateBuffer"
  %s = STARTED async-start(%room, %a, %i.1), THREADcalls=%put
  %m = STARTED async-update(%s)
  ROOT %d = bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)} async-done(%m)
}
""".replace(
    "STARTED",
    "((bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)}, bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)}, s32[]{:T(128)}),"
    " bf16[8,1024,1024]{2,1,0:T(8,128)(2,1)S(5)}, u32[]{:S(2)})",
)


def test_a_started_update_of_host_memory_is_a_transfer_of_what_it_writes():
    program = load(HOST.replace("THREAD", ""))
    (row,) = estimate(program, "tpu-v6e").rows
    assert (row.name, row.lane, row.bound, row.calibrated, row.bytes) == ("d", "host", "host", False, 2 * 2**20)
    assert row.seconds == row.beside == pytest.approx(2 * 2**20 / 32e9)  # at the rate of the host's link
    assert peak(HOST.replace("THREAD", ""), 5) == 16 * 2**20  # written where it is


@pytest.mark.parametrize("text", [HOST.replace("THREAD", ""), "copy"])
def test_a_host_whose_rate_is_not_public_has_no_time(text):
    if text == "copy":
        text = """HloModule m, is_scheduled=true
ENTRY %e {
  %a = bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)} parameter(0)
  ROOT %c = bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)S(5)} copy(%a)
}"""
    step = estimate(load(text), "tpu-7x")
    (row,) = (row for row in step.rows if row.unpriced)
    assert "not public" in row.unpriced
    assert row.untimed_bytes == 2 * 2**20
    assert step.priced == 0
    assert step.device_seconds == 0
    told = estimate(load(text), what_if(target("tpu-7x"), {"host_bandwidth": 1e10}))
    assert told.priced == 1
    assert told.device_seconds == pytest.approx(2 * 2**20 / 1e10)


BOTH_WAYS = """HloModule m, is_scheduled=true
ENTRY %e {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[1024,512]{1,0:T(8,128)(2,1)} parameter(1)
  %c = bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)} parameter(2)
  %s = (bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)}, bf16[1024,1024]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%a)
  %t = (bf16[1024,512]{1,0:T(8,128)(2,1)S(5)}, bf16[1024,512]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%b)
  %u = (bf16[1024,1024]{1,0:T(8,128)(2,1)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)}, u32[]{:S(2)}) copy-start(%c)
  %short = bf16[1024,512]{1,0:T(8,128)(2,1)S(5)} copy-done(%t)
  %long = bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)} copy-done(%s)
  %back = bf16[1024,1024]{1,0:T(8,128)(2,1)} copy-done(%u)
  ROOT %r = (bf16[1024,512]{1,0:T(8,128)(2,1)S(5)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(5)}) tuple(%short, %long)
}
"""


def test_the_hosts_link_carries_each_way_what_is_waited_for_first():
    rows = {row.name: row for row in estimate(load(BOTH_WAYS), "tpu-v6e").rows}
    mib = 2**20 / 32e9
    waits = [rows[name].seconds for name in ("short", "long", "back")]
    assert waits == pytest.approx([mib, 2 * mib, 0.0])  # the other way ended beside them
    assert rows["long"].beside == pytest.approx(3 * mib)


SLICES = """HloModule m, is_scheduled=true, num_partitions=4
ENTRY %e {
  %a = f32[1024,512]{1,0:T(8,128)} parameter(0)
  %t = token[] after-all()
  %s = (f32[1024,512]{1,0:T(8,128)}, u32[]{:S(2)}, token[]) send(%a, %t), channel_id=1, is_host_transfer=true, SAID
  %r = (TAKEN, u32[]{:S(2)}, token[]) recv(%t), channel_id=2, is_host_transfer=true, SAID
  %over = token[] send-done(%s), channel_id=1, is_host_transfer=true, HANDLER
  ROOT %d = (TAKEN, token[]) recv-done(%r), channel_id=2, is_host_transfer=true, HANDLER
}
"""
HANDLER = 'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}'
SENT = 2 * 2**20 / 12.5e9
"""Seconds that 2 MiB take over the network of a v6e."""


def between_slices(kind, target, taken=1024):
    said = f'{HANDLER[:-1]},_xla_host_transfer_rendezvous="x_0",_xla_megascale_target={target},'
    said += f'_xla_megascale_transfer_type="{kind}"}}'
    text = SLICES.replace("TAKEN", f"f32[{taken},512]{{1,0:T(8,128)}}")
    return load(text.replace("SAID", said).replace("HANDLER", HANDLER))


@pytest.mark.parametrize(
    ("kind", "target", "taken", "times"),
    [
        ("ALL_REDUCE", '"{1,2}x{0:7}"', 1024, 1.0),
        ("ALL_REDUCE", '"{1:4}x{0:7}"', 1024, 1.5),
        ("ALL_GATHER", '"{1,2,3,4}x{0:3}"', 4096, 3.0),
        ("REDUCE_SCATTER", '"{1,2,3,4}x{0:3}"', 256, 0.75),
        ("ALL_TO_ALL", "{{100000,200000},{100001,200001}}", 1024, 0.5),
        ("ONE_TO_ONE", "{{100000->200000},{200000->100000}}", 1024, 1.0),
    ],
)
def test_exchanges_between_slices_go_over_the_network(kind, target, taken, times):
    step = estimate(between_slices(kind, target, taken), "tpu-v6e")
    (row,) = step.rows
    assert (row.name, row.bound, row.lane, row.calibrated) == ("d", "link", "link", False)
    assert row.bytes == (1024 + taken) * 2048
    assert "network" in row.note
    assert row.seconds == step.exposed_seconds == pytest.approx(times * SENT)
    assert step.priced == 1


def test_a_network_whose_rate_is_not_public_has_no_time():
    program = between_slices("ALL_REDUCE", '"{1,2}x{0:7}"')
    (row,) = estimate(program, "tpu-8t").rows
    assert "not public" in row.unpriced
    assert row.untimed_bytes == 2**21
    told = estimate(program, what_if(target("tpu-v6e"), {"network_bandwidth": 25e9}))
    assert told.device_seconds == pytest.approx(SENT / 2)


def test_work_of_the_sparsecores_stays_theirs():
    (row,) = estimate(load(HOST.replace("THREAD", 'async_execution_thread="sparsecore", ')), "tpu-v6e").rows
    assert (row.lane, row.bound) == ("sparsecore", "sparsecore")


def test_a_loop_that_never_runs_takes_no_time():
    text = ELEMENTS.replace("s32[]{:T(128)} constant(7)", "s32[]{:T(128)} constant(0)")
    assert {row.name for row in estimate(load(text), "tpu-v6e").rows} == {"lt", "out"}


MINE = """HloModule m, is_scheduled=true
ENTRY %e {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %y = bf16[1024,1024]{1,0:T(8,128)(2,1)} convolution(%a, %a), dim_labels=bf_io->bf
  %k = bf16[1024,1024]{1,0:T(8,128)(2,1)} custom-call(%y), custom_call_target="tpu_custom_call", backend_config=SAID
  ROOT %z = bf16[1024,1024]{1,0:T(8,128)(2,1)} convolution(%k, %a), dim_labels=bf_io->bf
}
"""


@pytest.mark.parametrize("said", ['"opaque"', '"opaque", output_to_operand_aliasing={{}: (0, {})}'])
def test_the_shares_that_have_a_time_are_of_flops_and_of_bytes(said):
    step = estimate(load(MINE.replace("SAID", said)), "tpu-v6e")
    assert (step.flops, step.priced_flops) == (2 * 2**31, 1.0)
    whole = sum(row.bytes for row in step.rows)
    assert step.priced_bytes == whole / (whole + (2 - ("aliasing" in said)) * 2**21)
    assert step.priced == min(step.priced_flops, step.priced_bytes) < 1
    (note,) = (note for note in step.notes if "of the flops and" in note and "of the bytes have no time" in note)
    assert "custom calls that do not say their flops" in note


def test_a_product_without_a_time_still_has_flops():
    text = MINE.replace('custom-call(%y), custom_call_target="tpu_custom_call"', "fft(%y)").replace("SAID", '""')
    step = estimate(load(text.replace("convolution(%k", "frobnicate(%k")), "tpu-v6e")
    assert {row.name for row in step.rows if row.unpriced} == {"k", "z"}
    assert step.flops == 2**31


FORMS = """HloModule m, is_scheduled=true, entry_computation_layout={()->f32[]}

%sc (p: bf16[2,128,256]) -> bf16[2,128,256] {
  %p = bf16[2,128,256]{2,1,0:T(16,128)(2,1)} parameter(0)
  ROOT %c = bf16[2,128,256]{1,2,0:T(16,128)(2,1)} copy(%p)
}, execution_thread="sparsecore"

ENTRY %e (a: bf16[2,128,256], b: f32[<=8,128]) -> f32[<=8,128] {
  %a = bf16[2,128,256]{2,1,0:T(16,128)(2,1)} parameter(0), origin={{"a"}}
  %b = f32[<=8,128]{1,0:T(8,128)} parameter(1)
  %size = s32[] get-dimension-size(%b), dimensions={0}
  %s = ((bf16[2,128,256]{2,1,0:T(16,128)(2,1)}), bf16[2,128,256]{1,2,0:T(16,128)(2,1)}, u32[]{:S(8)}) async-start(%a), async_execution_thread="sparsecore", calls=%sc, backend_config={"flag_configs":[{"k":"v, {"}],"n":{"x":["1"]}}
  %u = ((bf16[2,128,256]{2,1,0:T(16,128)(2,1)}), bf16[2,128,256]{1,2,0:T(16,128)(2,1)}, u32[]{:S(8)}) async-update(%s), backend_config="text: \\"proto\\" sub { x: 1 }"
  %d = bf16[2,128,256]{1,2,0:T(16,128)(2,1)} async-done(%u)
  %h = (bf16[2,128,256]{1,2,0:T(16,128)(2,1)S(5)}, bf16[2,128,256]{1,2,0:T(16,128)(2,1)}, u32[]{:S(2)}) copy-start(%d)
  %far = bf16[2,128,256]{1,2,0:T(16,128)(2,1)S(5)} copy-done(%h)
  ROOT %r = f32[<=8,128]{1,0:T(8,128)} negate(%b)
}
"""  # noqa: E501


def test_layouts_wrappers_and_configurations_of_newer_compilers():
    program = load(FORMS)
    assert not program.notes
    table = {op.name: op for op in program.entry.operations}
    assert table["s"].attributes["backend_config"] == '{"flag_configs":[{"k":"v, {"}],"n":{"x":["1"]}}'
    assert table["u"].attributes["backend_config"] == '"text: \\"proto\\" sub { x: 1 }"'
    assert table["s"].calls == ("sc",)
    rows = {row.name: row for row in estimate(program, "tpu-v6e").rows}
    assert [(name, row.lane) for name, row in rows.items()] == [("d", "sparsecore"), ("far", "host"), ("r", "vector")]
    assert {peak.memory_space for peak in report(program).peaks} == {0, 5}


def test_a_convolution_of_nothing_takes_no_flops():
    text = """HloModule m
ENTRY %e {
  %a = bf16[1,0,8]{2,1,0} parameter(0)
  %b = bf16[1,8,8]{2,1,0} parameter(1)
  ROOT %c = bf16[1,0,8]{2,1,0} convolution(%a, %b), window={size=1}, dim_labels=b0f_0io->b0f
}
"""
    assert estimate(load(text), "tpu-v6e").flops == 0
