"""Programs: load, report their data movement, rewrite them, prove and run the result.

jax is imported when a function that needs it is called: a report on a dump starts without it.
"""

from tilewright.hlo._cost import Movement, movement, place
from tilewright.hlo._dump_folder import DumpedModule, dumped_modules
from tilewright.hlo._from_jax import from_jax
from tilewright.hlo._function import OptimizedFunction, optimize_function
from tilewright.hlo._gate import Verdict
from tilewright.hlo._load import load
from tilewright.hlo._optimize import Optimized, optimize
from tilewright.hlo._program import Computation, Operation, Program, Source
from tilewright.hlo._python_source import from_python, names_python
from tilewright.hlo._report import report
from tilewright.hlo._report_faces import report_html
from tilewright.hlo._report_types import MovementReport, MovementRow, PaddedTensor
from tilewright.hlo._verify import Verification, verify

__all__ = [
    "Computation",
    "DumpedModule",
    "Movement",
    "MovementReport",
    "MovementRow",
    "Operation",
    "Optimized",
    "OptimizedFunction",
    "PaddedTensor",
    "Program",
    "Source",
    "Verdict",
    "Verification",
    "dumped_modules",
    "from_jax",
    "from_python",
    "load",
    "movement",
    "names_python",
    "optimize",
    "optimize_function",
    "place",
    "report",
    "report_html",
    "verify",
]
