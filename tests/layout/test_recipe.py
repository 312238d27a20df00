"""The recipes of pads, reshapes and transposes: they make what pack makes."""

import numpy as np
import pytest
from hypothesis import given, settings

from tests.conftest import tries
from tests.layout.strategies import tiled_layouts
from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout import from_onednn_tag, from_strides, lanes, parse, preset, to_recipe


def packed_by(library, layout, array):
    """What the recipe makes of an array."""
    if library == "numpy":
        return eval(to_recipe(layout), {"np": np}, {"x": array})
    jnp = pytest.importorskip("jax.numpy")
    return np.asarray(eval(to_recipe(layout, "jax"), {"jnp": jnp}, {"x": jnp.asarray(array)}))


@settings(max_examples=tries(15))
@given(tiled_layouts())
def test_numpys_recipe_is_pack(layout):
    array = np.arange(1, layout.num_elements + 1, dtype=np.int32).reshape(layout.shape)
    assert np.array_equal(packed_by("numpy", layout, array), layout.pack(array))


@pytest.mark.parametrize("library", ["numpy", "jax"])
@pytest.mark.parametrize(
    "layout",
    [
        parse("bf16[20,300]{1,0:T(8,128)(2,1)}"),
        parse("f32[2,3,4,6]{1,3,2,0:T(2,4)}"),
        parse("s8[100,20]{0,1:T(8,128)(4,1)}"),
        parse("f32[6,4,5]{2,1,0:T(*,4)}"),
        parse("f32[3]{0:T(1024)L(4096)}"),
        parse("f32[]"),
        preset("ascend_nz", (100, 64), "f16"),
        from_onednn_tag("nChw16c", (2, 40, 3, 5), "f32"),
    ],
    ids=str,
)
def test_recipes_are_pack(layout, library):
    array = np.arange(layout.num_elements).reshape(layout.shape).astype(layout.numpy_dtype)
    assert packed_by(library, layout, array).tobytes() == layout.pack(array).tobytes()


def test_torchs_recipe_pads_the_last_dim_first():
    recipe = to_recipe(parse("f32[4,3,5]{2,1,0:T(2,2)}"), "torch")
    assert recipe == (
        "torch.nn.functional.pad(x, (0, 1, 0, 1)).reshape(4, 2, 2, 3, 2).permute(0, 1, 3, 2, 4).reshape(-1)"
    )


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (lanes((1, 2, 3, 4), "f16", "bm1684x"), "it has the axes npu, offset"),
        (parse("s4[8,8]{1,0:T(8,8)E(4)}"), "values of 4 bits share bytes"),
        (from_strides((3, 5), (40, 8), "f32"), "strides"),
    ],
    ids=str,
)
def test_what_has_no_recipe(layout, why):
    with pytest.raises(UnsupportedError, match=why):
        to_recipe(layout)
    with pytest.raises(UsageError, match="no library"):
        to_recipe(parse("f32[3]"), "tensorflow")
