"""`tilewright layout`: what a layout's text means, in words and as a picture; what differs between two; data moved."""

from tilewright.cli.layout.convert import convert, cute, linalg, onednn, pack, predict, preset, unpack
from tilewright.cli.layout.draw import compare, draw
from tilewright.cli.layout.memories import lanes, paged, plan, sharded
from tilewright.cli.layout.show import explain

COMMANDS = (
    *(explain, draw, compare, convert, cute, linalg, onednn, pack, unpack, predict, preset, lanes, paged, sharded),
    plan,
)
