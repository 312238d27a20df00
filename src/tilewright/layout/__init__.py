# ruff: noqa: F403
"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories.

Of what is not listed here (the parts of a picture, element types) each file is entered by its own name, as
``tilewright.layout.draw.scene``.
"""

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
    from tilewright.layout.draw.picture import *
    from tilewright.layout.exchange.from_jax import *
    from tilewright.layout.explain import *
    from tilewright.layout.index.address_map import *
    from tilewright.layout.index.bitcast import *
    from tilewright.layout.index.index_map import *
    from tilewright.layout.kinds.lanes import *
    from tilewright.layout.kinds.local_plan import *
    from tilewright.layout.kinds.paged import *
    from tilewright.layout.kinds.presets import *
    from tilewright.layout.kinds.tiled import *
    from tilewright.layout.meshes.mesh import *
    from tilewright.layout.meshes.reshard import *
    from tilewright.layout.meshes.shards import *
    from tilewright.layout.meshes.text import *
    from tilewright.layout.move.relayout import *
    from tilewright.layout.warming import *

_SUBMODULE_OF = {
    "IndexMap": "index.index_map",
    "IndexRangeError": "index.address_map",
    "LaneLayout": "kinds.lanes",
    "LinalgPack": "convert.linalg",
    "LocalMemoryError": "kinds.local_plan",
    "LocalPlan": "kinds.local_plan",
    "LocalTensor": "kinds.local_plan",
    "Mesh": "meshes.mesh",
    "MeshLayout": "meshes.shards",
    "PagedLayout": "kinds.paged",
    "Relayout": "move.relayout",
    "Reshard": "meshes.reshard",
    "ShardedLayout": "kinds.paged",
    "Sharding": "meshes.mesh",
    "TensorLayout": "kinds.tiled",
    "TupleLayout": "kinds.tiled",
    "bank_conflicts": "convert.cute",
    "compare": "draw.comparison",
    "compare_svg": "draw.comparison",
    "explain_place": "explain",
    "find_shapes": "kinds.tiled",
    "from_array": "convert.strided",
    "from_cute": "convert.cute",
    "from_jax": "exchange.from_jax",
    "from_linalg_pack": "convert.linalg",
    "from_onednn_tag": "convert.linalg",
    "from_strides": "convert.strided",
    "global_memory": "kinds.lanes",
    "is_bitcast": "index.bitcast",
    "lane_matrix": "kinds.lanes",
    "lane_matrix2": "kinds.lanes",
    "lane_weights": "kinds.lanes",
    "lanes": "kinds.lanes",
    "mod_sharded": "kinds.paged",
    "paged": "kinds.paged",
    "parse": "kinds.tiled",
    "parse_linalg_pack": "convert.linalg",
    "plan_local_memory": "kinds.local_plan",
    "plan_svg": "kinds.local_plan",
    "predict": "kinds.presets",
    "preset": "kinds.presets",
    "read_groups": "meshes.text",
    "read_sharding": "meshes.text",
    "read_tpu_mlir": "convert.tpu_mlir",
    "relayout": "move.relayout",
    "reshard": "meshes.reshard",
    "ruler_svg": "draw.picture",
    "shard": "meshes.shards",
    "summary": "explain",
    "tiled": "kinds.tiled",
    "to_cute": "convert.cute",
    "to_linalg_pack": "convert.linalg",
    "to_numpy_view": "convert.strided",
    "to_onednn_tag": "convert.linalg",
    "to_recipe": "convert.recipe",
    "warm": "warming",
}
__all__ = list(_SUBMODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _SUBMODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SUBMODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
