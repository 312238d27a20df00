"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts."""

from tilewright.isa._assemble import assemble
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._counts import Counts
from tilewright.isa._errors import ErrorRecord, MatrixUnitError
from tilewright.isa._expected import expected_counts
from tilewright.isa._machine import MatrixUnit, RunResult
from tilewright.isa._matmul import MatmulResult, matmul
from tilewright.isa._program import Instruction, Program
from tilewright.isa._reference import reference
from tilewright.isa._segments import Memory

__all__ = [
    "Counts",
    "ErrorRecord",
    "Instruction",
    "MatmulResult",
    "MatrixUnit",
    "MatrixUnitConfig",
    "MatrixUnitError",
    "Memory",
    "Program",
    "RunResult",
    "assemble",
    "expected_counts",
    "matmul",
    "reference",
]
