"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts."""

from tilewright.isa._assemble import assemble
from tilewright.isa._config import READINGS, MatrixUnitConfig, Reading
from tilewright.isa._counts import Counts
from tilewright.isa._errors import KINDS, ErrorRecord, MatrixUnitError
from tilewright.isa._expected import expected_counts
from tilewright.isa._machine import MatrixUnit, RunResult
from tilewright.isa._matmul import MatmulResult, matmul
from tilewright.isa._program import Instruction, Program
from tilewright.isa._segments import Memory
from tilewright.isa._table import INSTRUCTIONS, InstructionSpec

__all__ = [
    "INSTRUCTIONS",
    "KINDS",
    "READINGS",
    "Counts",
    "ErrorRecord",
    "Instruction",
    "InstructionSpec",
    "MatmulResult",
    "MatrixUnit",
    "MatrixUnitConfig",
    "MatrixUnitError",
    "Memory",
    "Program",
    "Reading",
    "RunResult",
    "assemble",
    "expected_counts",
    "matmul",
]
