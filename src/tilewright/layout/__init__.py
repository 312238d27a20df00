"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories."""

from tilewright.layout.convert.cute import from_cute, to_cute
from tilewright.layout.convert.linalg import LinalgPack, from_linalg_pack, parse_linalg_pack, to_linalg_pack
from tilewright.layout.convert.onednn import from_onednn_tag, to_onednn_tag
from tilewright.layout.convert.strided import ConvertedLayout, from_strides, to_numpy_view
from tilewright.layout.draw.views import compare_svg, plan_svg, ruler_svg
from tilewright.layout.index.address_map import Axis, IndexRangeError
from tilewright.layout.index.bitcast import is_bitcast
from tilewright.layout.index.digits import Digit, Line
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import dtype_name
from tilewright.layout.kinds.lanes import LaneLayout, global_memory, lane_matrix, lane_matrix2, lane_weights, lanes
from tilewright.layout.kinds.npu_plan import (
    BankConflict,
    LocalMemoryError,
    LocalPlan,
    LocalTensor,
    PlacedTensor,
    plan_local_memory,
)
from tilewright.layout.kinds.paged import PagedLayout, paged
from tilewright.layout.kinds.presets import predict, preset
from tilewright.layout.kinds.sharded import ShardedLayout, mod_sharded
from tilewright.layout.kinds.tiled import TensorLayout, TupleLayout, parse, parse_prefix, tiled
from tilewright.layout.move.relayout import Relayout, relayout
from tilewright.layout.warming import warm

__all__ = [
    "Axis",
    "BankConflict",
    "ConvertedLayout",
    "Digit",
    "IndexMap",
    "IndexRangeError",
    "LaneLayout",
    "LinalgPack",
    "Line",
    "LocalMemoryError",
    "LocalPlan",
    "LocalTensor",
    "PagedLayout",
    "PlacedTensor",
    "Relayout",
    "ShardedLayout",
    "TensorLayout",
    "TupleLayout",
    "compare_svg",
    "dtype_name",
    "from_cute",
    "from_linalg_pack",
    "from_onednn_tag",
    "from_strides",
    "global_memory",
    "is_bitcast",
    "lane_matrix",
    "lane_matrix2",
    "lane_weights",
    "lanes",
    "mod_sharded",
    "paged",
    "parse",
    "parse_linalg_pack",
    "parse_prefix",
    "plan_local_memory",
    "plan_svg",
    "predict",
    "preset",
    "relayout",
    "ruler_svg",
    "tiled",
    "to_cute",
    "to_linalg_pack",
    "to_numpy_view",
    "to_onednn_tag",
    "warm",
]
