"""`tilewright isa`: programs and models for the matrix unit: assemble, compile, run, multiply, profile, step, tune."""

from tilewright.cli.isa.compile import compile
from tilewright.cli.isa.conv import conv2d, tune_conv2d
from tilewright.cli.isa.debug import explain, step
from tilewright.cli.isa.explore import explore, roofline
from tilewright.cli.isa.matmul import matmul
from tilewright.cli.isa.profile import profile
from tilewright.cli.isa.run import asm, claims, reference, run
from tilewright.cli.isa.tune import sweep, tune

COMMANDS = (
    *(asm, claims, compile, conv2d, explain, explore, matmul, profile, reference, roofline, run, step, sweep),
    *(tune, tune_conv2d),
)
