"""`tilewright layout`: what a layout's text means, in words and as a picture; what differs between two; data moved."""

from tilewright.cli.layout import make
from tilewright.cli.layout.show import compare, draw, explain

COMMANDS = (
    *(explain, draw, compare, make.convert, make.cute, make.linalg, make.onednn, make.pack, make.unpack),
    *(make.predict, make.preset, make.lanes, make.paged, make.sharded, make.plan),
)
