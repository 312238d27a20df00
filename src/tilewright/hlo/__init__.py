"""Programs: load, report their data movement, rewrite them, prove and run the result.

jax is imported when a function that needs it is called: a report on a dump starts without it.
"""

from tilewright.hlo.allocation.kernel_errors import KernelError, explain_kernel
from tilewright.hlo.allocation.report import AllocationReport, explain_allocation
from tilewright.hlo.comparing.reports import diff_reports
from tilewright.hlo.comparing.steps import StepDiff, diagnose_upgrade
from tilewright.hlo.exchange.sarif import suggestions_sarif
from tilewright.hlo.gating.gate import Verdict
from tilewright.hlo.gating.suggesting import suggest
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype
from tilewright.hlo.optimization import Optimized, optimize, passes_html, suggest_rewrites
from tilewright.hlo.pallas.check import KernelCheck, check_kernels, kernels
from tilewright.hlo.pallas.run import run_kernels
from tilewright.hlo.partition import partition
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.proving.reference import XlaValues, inputs_of
from tilewright.hlo.proving.tpu import TpuComparison, compare_on_tpu, compile_for_tpu
from tilewright.hlo.proving.verify import Trial, Verification, operations_of, sample_arrays, trial_arguments, verify
from tilewright.hlo.reading.loading import dumped_modules, load
from tilewright.hlo.reading.python_source import from_jax, from_python, functions_in, names_python
from tilewright.hlo.reporting.buffers import Lifetimes, lifetimes
from tilewright.hlo.reporting.movement import MovementReport, report
from tilewright.hlo.reporting.types import MovementRow, Suggestion
from tilewright.hlo.rewrites.pipeline import (
    DEFAULT_PIPELINE,
    REWRITES,
    PassRun,
    parse_pipeline,
    record_passes,
    rewrite_options,
    run_pipeline,
)
from tilewright.hlo.rules.catalogue import catalogue, list_rules
from tilewright.hlo.running import optimize_function
from tilewright.hlo.semantics.collectives import Collective, collectives
from tilewright.hlo.semantics.predicting import in_normal_form
from tilewright.hlo.timing.chip import what_if
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime, TimeRow

__all__ = [
    "DEFAULT_PIPELINE", "REWRITES", "AllocationReport", "Block", "Collective", "KernelCheck", "KernelError",
    "Lifetimes", "MovementReport", "MovementRow", "Node", "Operation", "Optimized", "PassRun", "Program", "StepDiff",
    "StepTime", "Suggestion", "TimeRow", "TpuComparison", "Trial", "Value", "Verdict", "Verification", "XlaValues",
    "array_dtype", "catalogue", "check_kernels", "collectives", "compare_on_tpu", "compile_for_tpu",
    "diagnose_upgrade", "diff_reports", "dumped_modules", "estimate", "explain_allocation", "explain_kernel",
    "from_jax", "from_python", "functions_in", "in_normal_form", "inputs_of", "kernels", "lifetimes", "list_rules",
    "load", "names_python", "operations_of", "optimize", "optimize_function", "parse_pipeline", "partition",
    "passes_html", "record_passes", "report", "rewrite_options", "run_kernels", "run_pipeline", "sample_arrays",
    "suggest", "suggest_rewrites", "suggestions_sarif", "trial_arguments", "verify", "what_if",
]  # fmt: skip
