"""Programs: load, report their data movement, rewrite them, prove and run the result.

jax is imported when a function that needs it is called: a report on a dump starts without it.
"""

from tilewright.hlo.allocation.kernel_errors import KernelError, explain_kernel
from tilewright.hlo.allocation.report import AllocationReport, explain_allocation, print_allocation_report
from tilewright.hlo.before_after import optimized_html, passes_html
from tilewright.hlo.comparing.reports import diff_html, diff_lines, diff_reports, regressions
from tilewright.hlo.comparing.steps import StepDiff, diagnose_upgrade
from tilewright.hlo.exchange.model_explorer import model_explorer, model_explorer_data
from tilewright.hlo.exchange.sarif import report_sarif, suggestions_sarif
from tilewright.hlo.gating.gate import Verdict
from tilewright.hlo.gating.suggesting import suggest
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype
from tilewright.hlo.optimization import Optimized, optimize, suggest_rewrites
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.proving.reference import XlaValues, inputs_of
from tilewright.hlo.proving.tpu import TpuComparison, compare_on_tpu, compile_for_tpu, judge_on_tpu
from tilewright.hlo.proving.verify import Trial, Verification, operations_of, sample_arrays, trial_arguments, verify
from tilewright.hlo.reading.loading import dumped_modules, load
from tilewright.hlo.reading.python_source import from_jax, from_python, names_python
from tilewright.hlo.reporting.buffers import Lifetimes, lifetimes
from tilewright.hlo.reporting.lines import change_lines, report_head, report_lines
from tilewright.hlo.reporting.movement import MovementReport, report
from tilewright.hlo.reporting.movement import from_json as report_from_json
from tilewright.hlo.reporting.page import report_html
from tilewright.hlo.reporting.predicting import in_normal_form
from tilewright.hlo.reporting.profile import join_profile, read_profile
from tilewright.hlo.reporting.types import MovementRow, Suggestion
from tilewright.hlo.rewrites.pipeline import (
    DEFAULT_PIPELINE,
    REWRITES,
    PassRun,
    format_pipeline,
    parse_pipeline,
    record_passes,
    rewrite_options,
    run_pipeline,
)
from tilewright.hlo.rules.catalogue import catalogue, list_rules
from tilewright.hlo.running import optimize_function
from tilewright.hlo.timing.chip import what_if
from tilewright.hlo.timing.estimate import estimate
from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.hlo.timing.views import advice as step_advice
from tilewright.hlo.timing.views import comparison_table, slowest_table, step_lanes, summary_lines, time_html

__all__ = [
    "DEFAULT_PIPELINE",
    "REWRITES",
    "AllocationReport",
    "Block",
    "KernelError",
    "Lifetimes",
    "MovementReport",
    "MovementRow",
    "Node",
    "Operation",
    "Optimized",
    "PassRun",
    "Program",
    "StepDiff",
    "StepTime",
    "Suggestion",
    "TimeRow",
    "TpuComparison",
    "Trial",
    "Value",
    "Verdict",
    "Verification",
    "XlaValues",
    "array_dtype",
    "catalogue",
    "change_lines",
    "compare_on_tpu",
    "comparison_table",
    "compile_for_tpu",
    "diagnose_upgrade",
    "diff_html",
    "diff_lines",
    "diff_reports",
    "dumped_modules",
    "estimate",
    "explain_allocation",
    "explain_kernel",
    "format_pipeline",
    "from_jax",
    "from_python",
    "in_normal_form",
    "inputs_of",
    "join_profile",
    "judge_on_tpu",
    "lifetimes",
    "list_rules",
    "load",
    "model_explorer",
    "model_explorer_data",
    "names_python",
    "operations_of",
    "optimize",
    "optimize_function",
    "optimized_html",
    "parse_pipeline",
    "passes_html",
    "print_allocation_report",
    "read_profile",
    "record_passes",
    "regressions",
    "report",
    "report_from_json",
    "report_head",
    "report_html",
    "report_lines",
    "report_sarif",
    "rewrite_options",
    "run_pipeline",
    "sample_arrays",
    "slowest_table",
    "step_advice",
    "step_lanes",
    "suggest",
    "suggest_rewrites",
    "suggestions_sarif",
    "summary_lines",
    "time_html",
    "trial_arguments",
    "verify",
    "what_if",
]
