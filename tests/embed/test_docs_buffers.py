"""The page on buffers and the page on knobs say what the code does."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields

from tests.conftest import ROOT
from tilewright.embed import SparseCoreConfig, read_config


def script():
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "draw_embedding_buffers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_and_the_numbers_are_the_codes():
    draw = script()
    assert draw.PICTURE.read_text() == draw.drawing(), "run: ./run python docs/draw_embedding_buffers.py"
    page = (ROOT / "docs" / "embedding_buffers.md").read_text()
    assert str(draw.batch().row_pointers["t"][0, :8].tolist()) in page


def test_every_knob_and_flag_is_on_the_page(tmp_path):
    page = (ROOT / "docs" / "embedding_knobs.md").read_text()
    for knob in fields(SparseCoreConfig):
        assert f"`{knob.name}`" in page, knob.name
        assert f"`{knob.metadata.get('flag', knob.name)}`" in page
    model = tmp_path / "model.toml"
    model.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    assert read_config(model).stacks == (("user", "item"),)
