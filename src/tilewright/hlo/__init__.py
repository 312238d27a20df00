"""Programs: load, report their data movement, rewrite them, prove and run the result.

jax is imported when a function that needs it is called: a report on a dump starts without it.
"""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.hlo.advice import search_shardings, sharding_advice
    from tilewright.hlo.allocation.kernel_errors import KernelError, explain_kernel
    from tilewright.hlo.allocation.report import AllocationReport, explain_allocation
    from tilewright.hlo.comparing.reports import diff_reports
    from tilewright.hlo.comparing.steps import StepDiff, diagnose_upgrade
    from tilewright.hlo.exchange import suggestions_sarif
    from tilewright.hlo.gating.gate import Verdict
    from tilewright.hlo.gating.suggesting import suggest
    from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, inputs_of
    from tilewright.hlo.optimization import Optimized, optimize, passes_html, suggest_rewrites
    from tilewright.hlo.pallas.check import KernelCheck, check_kernels, kernels
    from tilewright.hlo.pallas.run import run_kernels
    from tilewright.hlo.program import Operation, Program
    from tilewright.hlo.proving.reference import XlaValues
    from tilewright.hlo.proving.tpu import TpuComparison, compare_on_tpu, compile_for_tpu
    from tilewright.hlo.proving.verify import Verification, operations_of, sample_arrays, verify
    from tilewright.hlo.reading.loading import dumped_modules, load
    from tilewright.hlo.reading.python_source import from_jax, from_python, functions_in, names_python, python_module
    from tilewright.hlo.reading.sharded import sharded
    from tilewright.hlo.reporting.buffers import Lifetimes, lifetimes
    from tilewright.hlo.reporting.movement import MovementReport, report
    from tilewright.hlo.reporting.types import MovementRow, Suggestion
    from tilewright.hlo.rewrites.pipeline import (
        DEFAULT_PIPELINE,
        REWRITES,
        PassRun,
        parse_pipeline,
        record_passes,
        run_pipeline,
    )
    from tilewright.hlo.rules.catalogue import catalogue, list_rules
    from tilewright.hlo.running import optimize_function
    from tilewright.hlo.semantics.collectives import Collective, collectives
    from tilewright.hlo.semantics.predicting import in_normal_form
    from tilewright.hlo.slices import partition
    from tilewright.hlo.timing.estimate import estimate
    from tilewright.hlo.timing.step import StepTime, TimeRow
    from tilewright.targets import what_if

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
