"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts."""

from tilewright.isa.chip.parts import Part, by_blocks, by_diagonals, by_dim
from tilewright.isa.chip.segments import TensorMemory as Memory
from tilewright.isa.compiler.bundle import Bundle, is_bundle, load_bundle
from tilewright.isa.compiler.compiled import Compiled, compile
from tilewright.isa.compiler.planning import L2Plan
from tilewright.isa.compiler.report import Layer, MachineReport
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.run import MatrixUnit, RunResult, timeline
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.errors import ErrorRecord, MatrixUnitError
from tilewright.isa.language.program import MachineProgram as Program
from tilewright.isa.multiply.contract import contract
from tilewright.isa.multiply.conv import conv2d
from tilewright.isa.multiply.expected import expected_conv2d_counts, expected_counts
from tilewright.isa.multiply.matmul import KernelResult as MatmulResult
from tilewright.isa.multiply.matmul import element_type, matmul, type_and_signs
from tilewright.isa.study.claims import claims
from tilewright.isa.study.debug import Debugger
from tilewright.isa.study.explain import InstructionExplanation as Explanation
from tilewright.isa.study.explain import explain
from tilewright.isa.study.explore import Exploration, area_mm2, explore, read_network, sweep
from tilewright.isa.study.heat import Heat
from tilewright.isa.study.profile import ProfileLine, profile
from tilewright.isa.study.profile import RunProfile as Profile
from tilewright.isa.study.reference import reference
from tilewright.isa.study.roofline import Roofline, measured_roofline, roofline
from tilewright.isa.study.tune import Tuned, Tuning, autotune, autotune_conv2d
from tilewright.isa.vector.programs import layer_norm, rms_norm, run_vector, softmax, vector_program
from tilewright.isa.vector.spec import Input, Op, Output, VectorSpec
from tilewright.isa.warming import warm

__all__ = [
    "Bundle",
    "Compiled",
    "Counts",
    "Debugger",
    "ErrorRecord",
    "Explanation",
    "Exploration",
    "Heat",
    "Input",
    "L2Plan",
    "Layer",
    "Machine",
    "MachineReport",
    "MatmulResult",
    "MatrixUnit",
    "MatrixUnitConfig",
    "MatrixUnitError",
    "Memory",
    "Moved",
    "Op",
    "Output",
    "Part",
    "Profile",
    "ProfileLine",
    "Program",
    "Roofline",
    "RunResult",
    "Traffic",
    "Tuned",
    "Tuning",
    "VectorSpec",
    "area_mm2",
    "assemble",
    "autotune",
    "autotune_conv2d",
    "by_blocks",
    "by_diagonals",
    "by_dim",
    "claims",
    "compile",
    "contract",
    "conv2d",
    "element_type",
    "expected_conv2d_counts",
    "expected_counts",
    "explain",
    "explore",
    "is_bundle",
    "layer_norm",
    "load_bundle",
    "matmul",
    "measured_roofline",
    "profile",
    "read_network",
    "reference",
    "rms_norm",
    "roofline",
    "run_vector",
    "softmax",
    "sweep",
    "timeline",
    "type_and_signs",
    "vector_program",
    "warm",
]
