"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts."""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.isa.chip.segments import Part, by_blocks, by_diagonals, by_dim
    from tilewright.isa.chip.segments import TensorMemory as Memory
    from tilewright.isa.compiler.compiled import Compiled, compile, load_bundle
    from tilewright.isa.compiler.report import MachineReport
    from tilewright.isa.execute.machine import Machine
    from tilewright.isa.execute.run import MatrixUnit, RunResult, timeline
    from tilewright.isa.language.assemble import assemble
    from tilewright.isa.language.config import MatrixUnitConfig
    from tilewright.isa.language.counts import Counts
    from tilewright.isa.language.errors import ErrorRecord, MatrixUnitError
    from tilewright.isa.language.program import MachineProgram as Program
    from tilewright.isa.multiply.contract import contract
    from tilewright.isa.multiply.conv import conv2d
    from tilewright.isa.multiply.expected import expected_conv2d_counts, expected_counts
    from tilewright.isa.multiply.matmul import element_type, matmul
    from tilewright.isa.study.claims import claims
    from tilewright.isa.study.debug import Debugger
    from tilewright.isa.study.explain import explain
    from tilewright.isa.study.explore import explore, sweep
    from tilewright.isa.study.profile import profile
    from tilewright.isa.study.reference import reference
    from tilewright.isa.study.roofline import Roofline, roofline
    from tilewright.isa.study.tune import autotune, autotune_conv2d
    from tilewright.isa.vector.programs import layer_norm, rms_norm, softmax
    from tilewright.isa.vector.spec import Input, Op, Output, VectorSpec
    from tilewright.isa.warming import warm

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
