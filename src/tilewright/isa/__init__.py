"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts.

``Program``, ``Memory``, ``Profile``, ``Explanation`` and ``MatmulResult`` are shorter names of ``MachineProgram``,
``TensorMemory``, ``RunProfile``, ``InstructionExplanation`` and ``KernelResult``.
"""

from typing import TYPE_CHECKING, Any

from tilewright.isa.chip.parts import Part, by_blocks, by_diagonals, by_dim
from tilewright.isa.chip.segments import PageEntry, TensorMemory
from tilewright.isa.chip.state import Transfer
from tilewright.isa.compiler.entry import compile, is_bundle, load_bundle
from tilewright.isa.compiler.planning import L2Plan
from tilewright.isa.compiler.result import Layer, MachineReport
from tilewright.isa.execute.machine import Command, Machine
from tilewright.isa.execute.run import MatrixUnit, RunResult, timeline
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.errors import ErrorRecord, MatrixUnitError
from tilewright.isa.language.program import Instruction, MachineProgram
from tilewright.isa.multiply.contract import ContractResult, contract
from tilewright.isa.multiply.conv import conv2d
from tilewright.isa.multiply.expected import expected_conv2d_counts, expected_counts
from tilewright.isa.multiply.matmul import KernelResult, element_type, matmul, type_and_signs
from tilewright.isa.study.choices import Choice
from tilewright.isa.study.claims import Claim, claims
from tilewright.isa.study.debug import Debugger
from tilewright.isa.study.explain import InstructionExplanation, explain
from tilewright.isa.study.explore import Exploration, area_mm2, explore
from tilewright.isa.study.heat import Heat
from tilewright.isa.study.machines import Design, sweep
from tilewright.isa.study.networks import LayerShape, read_network
from tilewright.isa.study.pages import exploration_page, roofline_page
from tilewright.isa.study.profile import ProfileLine, ProfileTotals, RunProfile, profile
from tilewright.isa.study.reference import reference
from tilewright.isa.study.roofline import Roofline, roofline, what_if
from tilewright.isa.study.tune import Tuned, Tuning, autotune
from tilewright.isa.study.tune_conv import ConvChoice, autotune_conv2d
from tilewright.isa.vector.known import layer_norm, rms_norm, softmax
from tilewright.isa.vector.programs import run_vector, vector_program
from tilewright.isa.vector.spec import Input, Op, Output, VectorSpec
from tilewright.isa.warming import warm

if TYPE_CHECKING:
    from tilewright.isa.compiler.bundle import Bundle
    from tilewright.isa.compiler.compiled import Compiled

Program = MachineProgram
Memory = TensorMemory
Profile = RunProfile
Explanation = InstructionExplanation
MatmulResult = KernelResult


def __getattr__(name: str) -> Any:
    if name in ("Compiled", "Bundle"):  # they need the room of programs, which nothing else here does
        from tilewright.isa.compiler.bundle import Bundle
        from tilewright.isa.compiler.compiled import Compiled

        return {"Compiled": Compiled, "Bundle": Bundle}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Bundle",
    "Choice",
    "Claim",
    "Command",
    "Compiled",
    "ContractResult",
    "ConvChoice",
    "Counts",
    "Debugger",
    "Design",
    "ErrorRecord",
    "Explanation",
    "Exploration",
    "Heat",
    "Input",
    "Instruction",
    "InstructionExplanation",
    "KernelResult",
    "L2Plan",
    "Layer",
    "LayerShape",
    "Machine",
    "MachineProgram",
    "MachineReport",
    "MatmulResult",
    "MatrixUnit",
    "MatrixUnitConfig",
    "MatrixUnitError",
    "Memory",
    "Moved",
    "Op",
    "Output",
    "PageEntry",
    "Part",
    "Profile",
    "ProfileLine",
    "ProfileTotals",
    "Program",
    "Roofline",
    "RunProfile",
    "RunResult",
    "TensorMemory",
    "Traffic",
    "Transfer",
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
    "exploration_page",
    "explore",
    "is_bundle",
    "layer_norm",
    "load_bundle",
    "matmul",
    "profile",
    "read_network",
    "reference",
    "rms_norm",
    "roofline",
    "roofline_page",
    "run_vector",
    "softmax",
    "sweep",
    "timeline",
    "type_and_signs",
    "vector_program",
    "warm",
    "what_if",
]
