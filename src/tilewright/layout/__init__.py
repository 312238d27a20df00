# ruff: noqa: F403
"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what a type checker sees; at run time a name's module is imported when the name is asked for
    from tilewright.layout.convert.cute import *
    from tilewright.layout.convert.linalg import *
    from tilewright.layout.convert.recipe import *
    from tilewright.layout.convert.strided import *
    from tilewright.layout.convert.tpu_mlir import *
    from tilewright.layout.draw.comparison import *
    from tilewright.layout.draw.panels import *
    from tilewright.layout.draw.picture import *
    from tilewright.layout.draw.scene import *
    from tilewright.layout.draw.terminal import *
    from tilewright.layout.exchange.from_jax import *
    from tilewright.layout.explain import *
    from tilewright.layout.index.address_map import *
    from tilewright.layout.index.bitcast import *
    from tilewright.layout.index.index_map import *
    from tilewright.layout.index.types import *
    from tilewright.layout.kinds.lanes import *
    from tilewright.layout.kinds.local_plan import *
    from tilewright.layout.kinds.paged import *
    from tilewright.layout.kinds.presets import *
    from tilewright.layout.kinds.tiled import *
    from tilewright.layout.move.relayout import *
    from tilewright.layout.warming import *

_HOMES = {
    "convert.cute": "bank_conflicts from_cute to_cute",
    "convert.linalg": "LinalgPack from_linalg_pack from_onednn_tag parse_linalg_pack to_linalg_pack to_onednn_tag",
    "convert.recipe": "to_recipe",
    "convert.strided": "from_array from_strides to_numpy_view",
    "convert.tpu_mlir": "LayerGroup is_tpu_mlir read_tpu_mlir",
    "draw.comparison": "Comparison MovedElement compare compare_scenes compare_svg draw_comparison",
    "draw.panels": "Bounds Level Panel Scene",
    "draw.picture": "draw_picture ruler_svg",
    "draw.scene": "make_scene ruler_scene",
    "draw.terminal": "terminal_drawing terminal_ruler",
    "exchange.from_jax": "from_jax",
    "explain": "derive explain_place summary",
    "index.address_map": "IndexRangeError",
    "index.bitcast": "is_bitcast",
    "index.index_map": "IndexMap",
    "index.types": "dtype_name memory_name xla_dtype",
    "kinds.lanes": "LaneLayout global_memory lane_matrix lane_matrix2 lane_weights lanes",
    "kinds.local_plan": "BankConflict LocalMemoryError LocalPlan LocalTensor plan_local_memory plan_svg",
    "kinds.paged": "PagedLayout ShardedLayout mod_sharded paged",
    "kinds.presets": "predict preset",
    "kinds.tiled": "FoundShape TensorLayout TupleLayout find_shapes parse parse_prefix tiled",
    "move.relayout": "Relayout relayout",
    "warming": "warm",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
