"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories.

Of what is not listed here (the parts of a picture, element types) each file is entered by its own name, as
``tilewright.layout.draw.scene``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.layout.convert.cute import bank_conflicts, from_cute, to_cute
    from tilewright.layout.convert.linalg import (
        from_linalg_pack,
        from_onednn_tag,
        parse_linalg_pack,
        to_linalg_pack,
        to_onednn_tag,
    )
    from tilewright.layout.convert.recipe import to_recipe
    from tilewright.layout.convert.strided import from_array, from_jax, from_strides, to_numpy_view
    from tilewright.layout.convert.tpu_mlir import read_tpu_mlir
    from tilewright.layout.draw.comparison import compare, compare_svg
    from tilewright.layout.draw.picture import ruler_svg
    from tilewright.layout.explain import summary
    from tilewright.layout.index.address_map import IndexRangeError
    from tilewright.layout.index.bitcast import is_bitcast
    from tilewright.layout.index.index_map import IndexMap
    from tilewright.layout.kinds.lanes import global_memory, lane_matrix, lane_matrix2, lane_weights, lanes
    from tilewright.layout.kinds.local_plan import LocalMemoryError, LocalPlan, LocalTensor, plan_local_memory, plan_svg
    from tilewright.layout.kinds.paged import mod_sharded, paged
    from tilewright.layout.kinds.presets import predict, preset
    from tilewright.layout.kinds.tiled import TensorLayout, TupleLayout, find_shapes, parse, tiled
    from tilewright.layout.meshes.mesh import Mesh
    from tilewright.layout.meshes.reshard import reshard
    from tilewright.layout.meshes.shards import shard
    from tilewright.layout.meshes.text import read_groups, read_sharding
    from tilewright.layout.move.relayout import Relayout, relayout
    from tilewright.layout.warming import warm

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
