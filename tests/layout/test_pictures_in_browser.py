"""What a browser makes of the pictures: every text inside its drawing and its cell, legible in light and in dark."""

import json
import re

import pytest

from tilewright.layout import (
    LocalTensor,
    compare_svg,
    from_cute,
    lanes,
    mod_sharded,
    paged,
    parse,
    plan_local_memory,
    plan_svg,
    ruler_svg,
)

PICTURES = {
    "figure 1": lambda: parse("f32[3,5]{1,0:T(2,2)}").to_svg(),
    "figure 2": lambda: parse("f32[4,8]{1,0:T(2,4)(2,1)}").to_svg(),
    "one dim": lambda: parse("s8[100]{0:T(32)}").to_svg(),
    "four dims": lambda: parse("f32[2,3,4,6]{1,3,2,0:T(2,4)}").to_svg(),
    "large": lambda: parse("bf16[1000000,3000]{1,0:T(8,128)(2,1)}").to_svg(),
    "by offset": lambda: parse("f32[9,12]{0,1:T(4,4)}").to_svg(colour="offset"),
    "by line": lambda: parse("f32[9,33]").to_svg(colour="line"),
    "a window": lambda: parse("bf16[20,300]{1,0:T(8,128)(2,1)}").to_svg(window="0:8,120:136"),
    "an element": lambda: parse("bf16[20,300]{1,0:T(8,128)(2,1)S(5)}").to_svg(at=(7, 130)),
    "combined": lambda: parse("f32[2,3,5]{2,1,0:T(*,2,4)}").to_svg(),
    "many lanes": lambda: lanes((2, 70, 28, 28), "f16", "bm1684x", start=2).to_svg(),
    "lanes": lambda: lanes((2, 10, 4, 5), "f16", "mars3", start=2).to_svg(),
    "pages": lambda: paged((9, 20), "s8", (4, 8), (1, 4)).to_svg(),
    "shards": lambda: mod_sharded(20, 5, 3, rotation=1).to_svg(),
    "ruler": lambda: ruler_svg(parse("f32[3,5]{1,0:T(2,2)}")),
    "ruler of lines": lambda: ruler_svg(parse("bf16[20,300]{1,0:T(8,128)(2,1)}")),
    "ruler of tiles": lambda: ruler_svg(parse("s8[300,300]{1,0:T(8,128)(4,1)}"), unit="tile", colour="offset"),
    "ruler of lanes": lambda: ruler_svg(lanes((2, 10, 4, 5), "f16", "mars3", start=2)),
    "moves": lambda: compare_svg(parse("f32[3,5]{1,0:T(2,2)}"), parse("f32[3,5]{1,0:T(4,2)}")),
    "large moves": lambda: compare_svg(parse("f32[14,14,256]{2,1,0:T(8,128)}"), parse("f32[196,256]{1,0:T(8,128)}")),
    "few cells": lambda: compare_svg(parse("f32[900,900]{1,0:T(8,128)}"), parse("f32[900,900]{0,1}"), cells=300),
    "plan": lambda: plan_svg(
        plan_local_memory(
            [
                LocalTensor("image", lanes((1, 64, 56, 56), "f16", "bm1684x")),
                LocalTensor("a longer name", lanes((4, 72, 140, 140), "s8", "bm1684x", start=3), base=0),
            ],
            "bm1684x",
            [["image", "a longer name"]],
        )
    ),
    "swizzle": lambda: from_cute("Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)").to_svg(),
    "wide swizzle": lambda: from_cute("Sw<3,4,3> o smem_ptr[16b](unset) o (64,(8,8),2):(1,(64,512),4096)").to_svg(),
    "bitcast": lambda: compare_svg(parse("f32[6]"), parse("f32[2,3]")),
}

# Per drawing: texts that leave it, labels wider than their cell, cells and polygons, the least contrast of a label.
MEASURE = """
const luminance = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
  .map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] }
const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p)
  return (x + .05) / (y + .05) }
const found = {}
for (const box of document.querySelectorAll('[data-scheme]')) {
  const svg = box.querySelector('svg'), view = svg.viewBox.baseVal, texts = [...svg.querySelectorAll('text')]
  const outside = texts.filter(t => { const b = t.getBBox(); return b.x < 0 || b.y < 0 || b.x + b.width > view.width
    || b.y + b.height > view.height }).map(t => t.textContent)
  const cells = [...svg.querySelectorAll('rect.cell')], wide = [], contrasts = []
  const at = new Map(cells.map(c => [[+c.getAttribute('x') + +c.getAttribute('width') / 2, +c.getAttribute('y')].map(
    n => n.toFixed(1)).join(), c]))
  for (const t of svg.querySelectorAll('text.label')) {
    const y = +t.getAttribute('y'), x = (+t.getAttribute('x')).toFixed(1)
    const cell = at.get([x, (y - 16.5).toFixed(1)].join())
    if (!cell) continue
    if (t.getBBox().width > +cell.getAttribute('width')) wide.push(t.textContent)
    contrasts.push(contrast(getComputedStyle(t).fill, getComputedStyle(cell).fill))
  }
  found[box.dataset.name + '/' + box.dataset.scheme] = { outside, wide, cells: cells.length, labels: contrasts.length,
    marks: svg.querySelectorAll('polygon.moved').length, contrast: contrasts.length ? Math.min(...contrasts) : null,
    ground: getComputedStyle(svg.querySelector('rect.ground')).fill }
}
document.body.textContent = JSON.stringify(found)
"""


@pytest.fixture(scope="module")
def measured(document_of, tmp_path_factory):
    """What the browser measured of every picture in both schemes."""
    folder = tmp_path_factory.mktemp("pictures")
    drawn = {name: draw() for name, draw in PICTURES.items()}
    boxes = "".join(
        f'<div data-name="{name}" data-scheme="{scheme}" style="color-scheme:{scheme}">{svg}</div>'
        for name, svg in drawn.items()
        for scheme in ("light", "dark")
    )
    page = f"<!doctype html><meta charset=utf-8><body>{boxes}<script type=module>{MEASURE}</script></body>"
    (folder / "pictures.html").write_text(page, encoding="utf-8")
    document = document_of(folder / "pictures.html")
    return json.loads(re.search(r"<body>(\{.*\})</body>", document, re.DOTALL)[1].replace("&amp;", "&"))


@pytest.mark.parametrize("name", PICTURES)
def test_texts_stay_in_their_places(measured, name):
    for scheme in ("light", "dark"):
        found = measured[f"{name}/{scheme}"]
        assert not found["outside"]
        assert not found["wide"]
        assert found["cells"]


@pytest.mark.parametrize("name", PICTURES)
def test_labels_are_legible_in_light_and_dark(measured, name):
    light, dark = measured[f"{name}/light"], measured[f"{name}/dark"]
    assert light["ground"] != dark["ground"]
    for found in (light, dark):
        assert found["contrast"] is None or found["contrast"] > 4.5


def test_labels_were_measured_and_moves_marked(measured):
    assert measured["figure 1/light"]["labels"] == 24 + 15
    assert measured["moves/dark"]["marks"] == 41
    assert measured["bitcast/dark"]["marks"] == 0
    assert measured["large/light"]["cells"] <= 4096 + 100  # and the insets
