"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.layout.index.address_map import Axis, IndexRangeError
from tilewright.layout.index.bitcast import is_bitcast
from tilewright.layout.index.digits import Digit, Line
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import dtype_name, memory_name, xla_dtype
from tilewright.layout.kinds.lanes import LaneLayout, global_memory, lane_matrix, lane_matrix2, lane_weights, lanes
from tilewright.layout.kinds.paged import PagedLayout, paged
from tilewright.layout.kinds.presets import predict, preset
from tilewright.layout.kinds.sharded import ShardedLayout, mod_sharded
from tilewright.layout.kinds.tiled import FoundShape, TensorLayout, TupleLayout, find_shapes, parse, parse_prefix, tiled

if TYPE_CHECKING:
    from tilewright.layout.convert.cute import from_cute, to_cute
    from tilewright.layout.convert.linalg import LinalgPack, from_linalg_pack, parse_linalg_pack, to_linalg_pack
    from tilewright.layout.convert.onednn import from_onednn_tag, to_onednn_tag
    from tilewright.layout.convert.recipe import to_recipe
    from tilewright.layout.convert.strided import ConvertedLayout, from_strides, to_numpy_view
    from tilewright.layout.convert.swizzle import BankConflicts, SwizzledLayout, bank_conflicts
    from tilewright.layout.convert.tpu_mlir import LayerGroup, is_tpu_mlir, read_tpu_mlir
    from tilewright.layout.draw.comparison import (
        Comparison,
        MovedElement,
        compare,
        compare_scenes,
        compare_svg,
        draw_comparison,
    )
    from tilewright.layout.draw.local_plan import plan_svg
    from tilewright.layout.draw.panels import Bounds, Level, Panel, Scene
    from tilewright.layout.draw.picture import draw_picture
    from tilewright.layout.draw.ruler import ruler_scene, ruler_svg
    from tilewright.layout.draw.scene import make_scene
    from tilewright.layout.draw.terminal import terminal_drawing, terminal_ruler
    from tilewright.layout.exchange.from_jax import from_jax
    from tilewright.layout.exchange.strided_arrays import from_array
    from tilewright.layout.explain.derivation import Derivation, derive, explain_place
    from tilewright.layout.explain.summary import summary
    from tilewright.layout.kinds.local_plan import (
        BankConflict,
        LocalMemoryError,
        LocalPlan,
        LocalTensor,
        PlacedTensor,
        plan_local_memory,
    )
    from tilewright.layout.move.relayout import Relayout, relayout
    from tilewright.layout.warming import warm

__all__ = [
    "Axis",
    "BankConflict",
    "BankConflicts",
    "Bounds",
    "Comparison",
    "ConvertedLayout",
    "Derivation",
    "Digit",
    "FoundShape",
    "IndexMap",
    "IndexRangeError",
    "LaneLayout",
    "LayerGroup",
    "Level",
    "LinalgPack",
    "Line",
    "LocalMemoryError",
    "LocalPlan",
    "LocalTensor",
    "MovedElement",
    "PagedLayout",
    "Panel",
    "PlacedTensor",
    "Relayout",
    "Scene",
    "ShardedLayout",
    "SwizzledLayout",
    "TensorLayout",
    "TupleLayout",
    "bank_conflicts",
    "compare",
    "compare_scenes",
    "compare_svg",
    "derive",
    "draw_comparison",
    "draw_picture",
    "dtype_name",
    "explain_place",
    "find_shapes",
    "from_array",
    "from_cute",
    "from_jax",
    "from_linalg_pack",
    "from_onednn_tag",
    "from_strides",
    "global_memory",
    "is_bitcast",
    "is_tpu_mlir",
    "lane_matrix",
    "lane_matrix2",
    "lane_weights",
    "lanes",
    "make_scene",
    "memory_name",
    "mod_sharded",
    "paged",
    "parse",
    "parse_linalg_pack",
    "parse_prefix",
    "plan_local_memory",
    "plan_svg",
    "predict",
    "preset",
    "read_tpu_mlir",
    "relayout",
    "ruler_scene",
    "ruler_svg",
    "summary",
    "terminal_drawing",
    "terminal_ruler",
    "tiled",
    "to_cute",
    "to_linalg_pack",
    "to_numpy_view",
    "to_onednn_tag",
    "to_recipe",
    "warm",
    "xla_dtype",
]

_LATE = {  # imported when asked for: reading a dump should not wait for them
    "convert.cute": ("from_cute", "to_cute"),
    "convert.linalg": ("LinalgPack", "from_linalg_pack", "parse_linalg_pack", "to_linalg_pack"),
    "convert.onednn": ("from_onednn_tag", "to_onednn_tag"),
    "convert.recipe": ("to_recipe",),
    "convert.swizzle": ("BankConflicts", "SwizzledLayout", "bank_conflicts"),
    "convert.strided": ("ConvertedLayout", "from_strides", "to_numpy_view"),
    "convert.tpu_mlir": ("LayerGroup", "is_tpu_mlir", "read_tpu_mlir"),
    "draw.comparison": (
        *("Comparison", "MovedElement", "compare", "compare_scenes", "compare_svg", "draw_comparison"),
    ),
    "draw.local_plan": ("plan_svg",),
    "draw.picture": ("draw_picture",),
    "draw.ruler": ("ruler_scene", "ruler_svg"),
    "draw.panels": ("Bounds", "Level", "Panel", "Scene"),
    "draw.scene": ("make_scene",),
    "draw.terminal": ("terminal_drawing", "terminal_ruler"),
    "exchange.from_jax": ("from_jax",),
    "exchange.strided_arrays": ("from_array",),
    "explain.derivation": ("Derivation", "derive", "explain_place"),
    "explain.summary": ("summary",),
    "kinds.local_plan": (
        "BankConflict",
        "LocalMemoryError",
        "LocalPlan",
        "LocalTensor",
        "PlacedTensor",
        "plan_local_memory",
    ),
    "move.relayout": ("Relayout", "relayout"),
    "warming": ("warm",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
