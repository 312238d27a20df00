"""The rewrites, one file each; a pipeline is a text such as ``inline,canonicalize,reduce-of-reshape``."""

from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.common_subexpressions import CommonSubexpressions
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.pipeline import (
    DEFAULT_PIPELINE,
    REWRITES,
    PassOption,
    PassRun,
    fixpoint,
    format_pipeline,
    options,
    parse_pipeline,
    record_passes,
    run_pipeline,
)
from tilewright.hlo.rewrites.reduce_of_reshape import ReduceOfReshape
from tilewright.hlo.rewrites.reduce_of_transpose import ReduceOfTranspose
from tilewright.hlo.rewrites.reduces_of_reshapes import ReducesOfReshapes
from tilewright.hlo.rewrites.reshape_of_branch import ReshapeOfBranch
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_dynamic_slice import ReshapeOfDynamicSlice
from tilewright.hlo.rewrites.reshape_of_elementwise import ReshapeOfElementwise
from tilewright.hlo.rewrites.reshape_of_loop import ReshapeOfLoop
from tilewright.hlo.rewrites.transpose_of_elementwise import TransposeOfElementwise
from tilewright.hlo.rewriting.base import LocalRewrite, Maker, Rewrite

__all__ = [
    "DEFAULT_PIPELINE",
    "REWRITES",
    "Canonicalize",
    "CommonSubexpressions",
    "DeadCode",
    "Inline",
    "LocalRewrite",
    "Maker",
    "PassOption",
    "PassRun",
    "ReduceOfReshape",
    "ReduceOfTranspose",
    "ReducesOfReshapes",
    "ReshapeOfBranch",
    "ReshapeOfBroadcast",
    "ReshapeOfDynamicSlice",
    "ReshapeOfElementwise",
    "ReshapeOfLoop",
    "Rewrite",
    "TransposeOfElementwise",
    "fixpoint",
    "format_pipeline",
    "options",
    "parse_pipeline",
    "record_passes",
    "run_pipeline",
]
