"""Drawings are well-formed and to scale."""

import math
import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.render import Bar, bar_chart
from tilewright.render.drawing import Curve, Drawing, _thin, column_chart, line_chart, text_width, ticks_of

SVG = "{http://www.w3.org/2000/svg}"


def read(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure[figure.index("<svg") : figure.index("</svg>") + 6])


def test_bars_are_to_scale():
    chart = bar_chart([Bar("a", (1.0, 3.0)), Bar("b", (2.0, 0.0))], title="t", kind="bytes", parts=("data", "padding"))
    bars = [r for r in read(chart).iter(f"{SVG}rect") if r.get("height") == "15"]
    widths = [float(r.get("width")) for r in bars]
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.05)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.05)
    assert float(bars[1].get("x")) == pytest.approx(float(bars[0].get("x")) + widths[0], abs=0.02)
    assert [r.find(f"{SVG}title").text for r in bars][:2] == ["a: data: 1 B", "a: padding: 3 B"]


def test_nothing_to_draw_is_said():
    assert "nothing to draw" in bar_chart([], title="t")
    assert "nothing to draw" in line_chart([Curve("x", [1], [math.nan])], title="t")
    assert "rect" in bar_chart([Bar("zero", (0,))], title="t")


def test_curves_stay_inside_the_frame():
    ys = [math.sin(n / 9) * n for n in range(3000)]
    chart = read(line_chart([Curve("c", range(3000), ys), Curve("one", [5], [7])], title="t", width=600, height=200))
    for line in chart.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
        assert all(0 <= x <= 600 and 0 <= y <= 200 for x, y in points)
    assert len(list(chart.iter(f"{SVG}circle"))) == 1


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_enclose_and_are_few(low, span):
    ticks = ticks_of(low, low + span)
    slack = (ticks[1] - ticks[0]) * 1e-6 + 1e-9 * abs(low)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 9


@given(st.integers(601, 3000), st.integers(0, 99))
def test_thinning_keeps_the_extremes(count, seed):
    generator = random.Random(seed)
    ys = [generator.uniform(-10, 10) for _ in range(count)]
    kept = _thin(list(enumerate(ys)))
    assert len(kept) <= 610
    assert min(y for _, y in kept) == min(ys)
    assert max(y for _, y in kept) == max(ys)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_a_drawing_stands_alone():
    drawing = Drawing(40, 20, title="a < b", description="why")
    drawing.rect(0, 0, 20, 20, "cell c0", tip="(0, 0)")
    drawing.padding(20, 0, 20, 20, tip="padding")
    drawing.text(3, 10, "17 & more", "mono", anchor="middle")
    root = ElementTree.fromstring(drawing.svg())
    pattern = root.find(f".//{SVG}pattern").get("id")
    assert [r.get("fill") for r in root.iter(f"{SVG}rect")] == [None, None, f"url(#{pattern})"]
    assert root.find(f"{SVG}title").text == "a < b"
    assert root.find(f"{SVG}style").text
    other = Drawing(1, 1, title="another")
    other.padding(0, 0, 1, 1)
    assert pattern not in other.svg()


def test_width_estimates_grow():
    assert text_width("wide") > text_width("ill.")
    assert text_width("x", 24) == 2 * text_width("x", 12)


def test_columns_stand_on_zero_and_many_are_drawn_together():
    few = column_chart([Curve("load", range(4), [1.0, 0.5, 2.0, 0.0])], title="t", x_label="shard")
    tall = [float(height) for height in re.findall(r'height="([0-9.]+)" class="bar s0"', few)][1:]
    assert tall[2] == pytest.approx(2 * tall[0], rel=0.01)
    assert tall[3] == 0
    many = column_chart(
        [Curve("load", range(5000), [float(n == 4321) for n in range(5000)])], title="t", x_label="shard"
    )
    assert many.count('class="bar s0"') < 200
    assert "each bar the highest of 27" in many
    assert "shard 4,321" in many
    assert "nothing to draw" in column_chart([], title="t")
