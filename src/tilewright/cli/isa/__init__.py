"""`tilewright isa`: programs and models for the matrix unit: assemble, compile, run, multiply, profile, step, tune."""

from tilewright.cli.isa.debug import explain, profile, step
from tilewright.cli.isa.machine import asm, claims, compile, reference, run
from tilewright.cli.isa.products import conv2d, matmul
from tilewright.cli.isa.search import explore, roofline, sweep, tune, tune_conv2d

COMMANDS = (
    *(asm, claims, compile, conv2d, explain, explore, matmul, profile, reference, roofline, run, step, sweep),
    *(tune, tune_conv2d),
)
