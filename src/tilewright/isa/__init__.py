"""The matrix unit: instruction set, assembler, machine, kernels and closed-form counts."""

from tilewright.isa._assemble import assemble
from tilewright.isa._autotune import Tuned, Tuning, autotune
from tilewright.isa._claims import Claim, claims
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._contract import ContractResult, contract
from tilewright.isa._conv import conv2d
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._debug import Debugger
from tilewright.isa._dma import Transfer
from tilewright.isa._errors import ErrorRecord, MatrixUnitError
from tilewright.isa._expected import expected_counts
from tilewright.isa._expected_conv import expected_conv2d_counts
from tilewright.isa._explain import Explanation, explain
from tilewright.isa._heat import Heat
from tilewright.isa._machine import Command, Machine
from tilewright.isa._matmul import MatmulResult, matmul
from tilewright.isa._profile import profile
from tilewright.isa._profile_lines import Profile, ProfileLine, ProfileTotals
from tilewright.isa._program import Instruction, Program
from tilewright.isa._reference import reference
from tilewright.isa._run import RunResult
from tilewright.isa._segments import Memory
from tilewright.isa._storage import PageEntry
from tilewright.isa._sweep import Design, sweep
from tilewright.isa._timeline import timeline
from tilewright.isa._tune_space import Choice
from tilewright.isa._unit import MatrixUnit
from tilewright.isa._work import Part, by_blocks, by_diagonals, by_dim

__all__ = [
    "Choice",
    "Claim",
    "Command",
    "ContractResult",
    "Counts",
    "Debugger",
    "Design",
    "ErrorRecord",
    "Explanation",
    "Heat",
    "Instruction",
    "Machine",
    "MatmulResult",
    "MatrixUnit",
    "MatrixUnitConfig",
    "MatrixUnitError",
    "Memory",
    "PageEntry",
    "Part",
    "Profile",
    "ProfileLine",
    "ProfileTotals",
    "Program",
    "RunResult",
    "Traffic",
    "Transfer",
    "Tuned",
    "Tuning",
    "assemble",
    "autotune",
    "by_blocks",
    "by_diagonals",
    "by_dim",
    "claims",
    "contract",
    "conv2d",
    "expected_conv2d_counts",
    "expected_counts",
    "explain",
    "matmul",
    "profile",
    "reference",
    "sweep",
    "timeline",
]
