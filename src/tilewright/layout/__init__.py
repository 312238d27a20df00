"""Where does element (i, j, ...) live? Index maps for tiled, lane, paged and sharded memories."""

from tilewright.layout._bitcast import is_bitcast
from tilewright.layout._digits import Digit, Line
from tilewright.layout._index_map import Axis, IndexMap, IndexRangeError
from tilewright.layout._lane_family import global_memory, lane_matrix, lane_matrix2, lane_weights
from tilewright.layout._lanes import LaneLayout, lanes
from tilewright.layout._npu_plan import (
    BankConflict,
    LocalMemoryError,
    LocalPlan,
    LocalTensor,
    PlacedTensor,
    plan_local_memory,
)
from tilewright.layout._paged import PagedLayout, paged
from tilewright.layout._presets import predict, preset
from tilewright.layout._relayout import Relayout, relayout
from tilewright.layout._sharded import ShardedLayout, mod_sharded
from tilewright.layout._tiled import TensorLayout, TupleLayout, parse, parse_prefix, tiled
from tilewright.layout._types import dtype_name
from tilewright.layout._views import compare_svg, ruler_svg
from tilewright.layout._warm import warm

__all__ = [
    "Axis",
    "BankConflict",
    "Digit",
    "IndexMap",
    "IndexRangeError",
    "LaneLayout",
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
    "global_memory",
    "is_bitcast",
    "lane_matrix",
    "lane_matrix2",
    "lane_weights",
    "lanes",
    "mod_sharded",
    "paged",
    "parse",
    "parse_prefix",
    "plan_local_memory",
    "predict",
    "preset",
    "relayout",
    "ruler_svg",
    "tiled",
    "warm",
]
