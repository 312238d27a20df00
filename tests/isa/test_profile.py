"""Profiles: every column adds up to the run, and the run is the plain one."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, MatrixUnitError, Memory, matmul, profile
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.isa.study.profile import _scene

SMALL = MatrixUnitConfig(threads=16, l1_bytes=2048)
PRODUCT = """
segment ur1, $A
segment ur4, $B
tid r280
mov r290, 0
mov r291, r280
mov r294, 0
mov r295, r280
ld r256, ur1:rf294:0x00, 2
mm8.ka1.kb1.t0.sa.sb r0, ur4:rf290:0x00, r256
mm8.ka1.kb1.t0.sa.sb r0, ur4:rf290:0x00, r256
halt
"""


def tensors(m, n, k, dtype=np.int8):
    rng = np.random.default_rng(m * 10_000 + n * 100 + k)
    a, b = rng.integers(-9, 9, (m, k)).astype(dtype), rng.integers(-9, 9, (k, n)).astype(dtype)
    return {"A": a, "B": b, "C": np.zeros((m, n), np.float32 if dtype == np.float32 else np.int32)}


def product(memory, config, **options):
    """A program for A times B; without transpose_b it finds B as (n, k)."""
    program = matmul(memory["A"], memory["B"], config=config, **options).program
    return program, memory if options.get("transpose_b") else {**memory, "B": memory["B"].T.copy()}


def total(found, part, name=None):
    values = [getattr(line, part) for line in found.lines]
    if name is None:
        return sum(values)
    return sum(value[name] if isinstance(value, dict) else getattr(value, name) for value in values)


def check(program, memory, config):
    """A profile equals the plain run, and adds up."""
    plain, found = MatrixUnit(config).run(program, memory), profile(program, memory, config)
    assert found.result == plain
    assert total(found, "executed") == plain.executed
    assert total(found, "cycles") == plain.cycles
    assert total(found, "math_cycles") == plain.math_cycles
    for part in ("queue", "stalls"):
        assert {name: total(found, part, name) for name in getattr(plain, part)} == getattr(plain, part)
    for part in ("counts", "traffic"):
        numbers = getattr(plain, part).to_dict()
        assert {name: total(found, part, name) for name in numbers} == numbers
    seen = sum(
        (found.heat(name).lines.sum(axis=0) for name in found.tensors), start=np.zeros(len(LINE_ACCESSES), np.int64)
    )
    c, t = plain.counts, plain.traffic
    assert seen.tolist() == [c.l1_touches, c.l1_misses, c.l2_misses, t.load_lines, t.store_lines]
    return found


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"transpose_b": True}, {}),
        ({"ka": 2, "kb": 2}, {}),
        ({"order": "column_outer"}, {"retention": "bypass"}),
        ({}, {"pred_scope": "both"}),
        ({}, {"loads_through_l1": True}),
    ],
)
def test_a_product_adds_up(options, settings):
    config = MatrixUnitConfig(threads=16, l1_bytes=2048, **settings)
    memory = tensors(40, 36, 64)
    program, memory = product(memory, config, **options)
    found = check(program, memory, config)
    counted = [line for line in found.lines if "mm8." in line.text]
    assert sum(line.counts.macs for line in counted) == 40 * 36 * 64
    assert all(line.counts.macs == 0 and line.math_cycles == 0 for line in found.lines if line not in counted)
    assert found.hottest[0].cycles == max(line.cycles for line in found.lines) > 0


@settings(max_examples=tries(8))
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([np.int8, np.int16, np.float32]),
    st.integers(1, 3),
    st.booleans(),
)
def test_random_products_add_up(m, n, k, dtype, ka, transposed):
    memory = tensors(m, n, k, dtype)
    check(*product(memory, SMALL, ka=ka, transpose_b=transposed), SMALL)


def test_programs_without_mm_and_without_anything():
    found = check("mov ur1, 0\nagain: add ur1, ur1, 1\nbr.lt ur1, 300, again\nhalt", {}, SMALL)
    assert [line.executed for line in found.lines] == [1, 300, 300, 1]
    assert found.lines[1].labels == ("again",)
    assert check("", {}, SMALL).lines == ()


def test_pages_that_come_by_dma_keep_their_lines():
    memory = Memory()
    memory.add("A", np.arange(128, dtype=np.int8).reshape(16, 8))
    memory.add("B", np.ones((8, 16), np.int8), resident=False)
    program = PRODUCT.replace("tid r280", "dmain ur4\ndmawait ur4\ntid r280")
    found = check(program, memory, SMALL)
    assert found.heat("B").totals["touches"] == found.result.counts.l1_touches > 0
    waiting = next(line for line in found.lines if line.text.startswith("dmawait"))
    assert waiting.waits == {"dma": found.result.queue["dma"]}


def test_the_line_of_every_element():
    config = MatrixUnitConfig(threads=4, line_bytes=16)
    memory = {"A": np.ones((4, 8), np.int8), "B": np.ones((4, 8), np.int8)}
    found = check(PRODUCT, memory, config)
    heat = found.heat("B")
    assert heat.touches.shape == heat.line_of.shape == (4, 8)
    lines = {tuple(heat.layout.addresses(np.array([i, j])).tolist()) for i in range(4) for j in range(8)}
    assert {page for page, _ in lines} == {0}
    for i in range(4):
        for j in range(8):
            page, offset = heat.layout.addresses(np.array([i, j])).tolist()
            assert heat.line_of[i, j] == (page * heat.layout.page_elements + offset) // heat.layout.line_elements
    assert (heat.touches == heat.lines[heat.line_of, 0]).all()
    assert heat.misses.max() == 1  # the second mm finds all in L1
    assert (found.heat("A").loads.max(), found.heat("A").touches.max()) > (0, -1)


def test_pages_and_lines_in_any_order():
    memory = Memory()
    memory.add("A", np.arange(512, dtype=np.int32).reshape(4, 16, 8), page=(2, 8, 8), line=(2, 4, 4), order=(2, 0, 1))
    program = "segment ur1, $A\ntid r1\nmov r0, 0\nmov r2, 1\nld r8, ur1:rf0:0x00, 8\nhalt"
    found = check(program, memory, MatrixUnitConfig(threads=16, line_bytes=128))
    heat = found.heat("A")
    for index in np.ndindex(4, 16, 8):
        page, offset = heat.layout.addresses(np.array(index)).tolist()
        assert heat.line_of[index] == (page * heat.layout.page_elements + offset) // heat.layout.line_elements
    # Thread t reads A[1, t, :]: two lines; a line is 2 x 4 x 4, so four threads meet in each.
    assert heat.loads[:2].max() == heat.loads[:2].min() == 4
    assert heat.loads[2:].max() == 0


def test_faults_and_errors_are_those_of_the_run():
    program = "segment ur1, $A\nmm8.ka1.kb1.t0.sa.sb r0, ur9:rf290:0x00, r256\nhalt"
    found = check(program, {"A": np.ones(4, np.float32)}, SMALL)
    assert [e.kind for e in found.result.errors] == ["unknown_segment"]
    with pytest.raises(MatrixUnitError, match="did not end") as stop:
        profile("again: jump again", {}, MatrixUnitConfig(max_instructions=10))
    assert stop.value.result.executed == 10
    with pytest.raises(UsageError, match="no tensor called 'Z'"):
        found.heat("Z")
    with pytest.raises(UsageError, match="no kind of access"):
        found.heat("A").of("warmth")


def test_numbers_as_csv_and_json():
    memory = tensors(16, 16, 16)
    found = profile(*product(memory, SMALL), SMALL)
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["text"] for row in rows] == [line.text for line in found.lines]
    for column, value in (("cycles", found.result.cycles), ("macs", 16**3), ("queue.A", found.result.queue["A"])):
        assert sum(int(row[column]) for row in rows) == value
    value = found.to_dict()
    assert value["totals"]["cycles"] == sum(line["cycles"] for line in value["lines"])
    assert value["tensors"]["B"]["touches"] == found.result.counts.l1_touches
    assert str(found).splitlines()[-1] == f"{found.result.executed:,} instructions, {found.result.cycles:,} cycles"


def picture(shape, lines, kind="accesses", rows=64, columns=64, **how):
    """The values of a picture's cells, folded as it is, of a tensor whose line n was touched lines(n) times."""
    memory = Memory()
    memory.add("A", np.zeros(shape, np.int8), **how)
    heat = profile("halt", memory, SMALL).heat("A")
    heat.lines[:, 0] = lines(np.arange(len(heat.lines)))
    scene, top = _scene(heat, kind, rows, columns)
    return heat, scene, top


def cells(panel):
    """Numbers of a panel, 0 for cells without one; None for cells that are not there."""
    rows = zip(panel.labels, panel.tips, strict=True)
    return [[float(x.replace(",", "") or 0) if t else None for x, t in zip(*row, strict=True)] for row in rows]


def test_small_tensors_are_drawn_element_by_element():
    heat, scene, top = picture((6, 10), lambda n: n * 3)
    ((panel,),) = scene.panels
    assert cells(panel) == heat.touches.tolist()
    assert top == heat.touches.max() == 15
    assert panel.padding.tolist() == (heat.touches == 0).tolist()
    assert panel.colours[5, 0] == 7
    assert "a cell is an element" in scene.cut
    assert panel.tips[2][3] == "(2, 3): 6 touches by mm"


def test_large_tensors_are_drawn_in_blocks_and_say_so():
    heat, scene, _ = picture((300, 1000), lambda n: n % 97)
    ((panel,),) = scene.panels
    assert panel.padding.shape == (38, 16)
    assert "a cell is 8 x 64 elements, the mean over its 8 lines" in scene.cut
    blocks = [[heat.touches[r : r + 8, c : c + 64].mean() for c in range(0, 1000, 64)] for r in range(0, 300, 8)]
    assert np.allclose(cells(panel), blocks, atol=0.051)
    assert heat.to_svg().count("<rect") >= 38 // 2 * 16


def test_rows_of_one_line_and_vectors_are_folded():
    heat, scene, _ = picture((100, 50), lambda n: n)
    ((panel,),) = scene.panels
    assert [x for row in cells(panel) for x in row] == [*heat.touches[:, 0].tolist(), *[None] * 28]
    assert panel.rows == ("0", "32", "64", "96")
    assert panel.columns[:3] == ("+0", "+1", "+2")
    heat, scene, _ = picture((5000,), lambda n: n)
    ((panel,),) = scene.panels
    assert [x for row in cells(panel) for x in row if x is not None] == heat.touches[::64].tolist()


def test_more_dims_are_blocks_of_rows_and_columns():
    heat, scene, _ = picture((3, 5, 4, 6), lambda n: n)
    panels = [panel for row in scene.panels for panel in row]
    assert [panel.heading for panel in panels] == [f"[{i}, {j}]" for i in range(2) for j in range(5)][:8]
    assert cells(panels[7]) == heat.touches[1, 2].tolist()
    assert "the first 8 of 15 blocks" in scene.cut


def test_pages_and_lines_are_outlined():
    _, scene, _ = picture((16, 32), lambda n: n, page=(8, 16), line=(4, 16))
    assert [(v.name, v.row_period, v.column_period) for v in scene.levels] == [
        ("page (8, 16)", 8, 16),
        ("line (4, 16)", 4, 16),
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_terminal_pictures_fit(width):
    for shape in ((12, 100), (200, 300), (70, 20), (4000,), (2, 3, 40)):
        heat, _, _ = picture(shape, lambda n: n * 1000)
        lines = heat.to_text("accesses", width).plain.splitlines()
        body = [line for line in lines[3:-1] if line.strip()]
        assert body
        assert max(map(len, body)) <= width
    assert heat.to_text().plain == heat.to_text("accesses", 100).plain
    assert str(heat) == heat.to_text().plain


def test_pictures_of_nothing():
    heat, scene, top = picture((4, 4), lambda n: n * 0)
    assert top == 0
    assert scene.facts == "accesses to its lines: none"
    assert "no accesses" in heat.to_svg()
