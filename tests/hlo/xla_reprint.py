"""Run in a process of its own: read HLO texts with jaxlib's parser and print them again in another style.

``python xla_reprint.py OUT FILE...`` writes OUT/0.hlo, OUT/1.hlo ...: operands with shapes, names without percent
signs. jaxlib's parser may abort the process on what it cannot read, so no test calls it directly.
"""

import sys
from pathlib import Path

from jaxlib import _hlo

options = _hlo.HloPrintOptions()
options.print_operand_shape = True
options.print_percent = False
for number, file in enumerate(sys.argv[2:]):
    module = _hlo.hlo_module_from_text(Path(file).read_text())
    (Path(sys.argv[1]) / f"{number}.hlo").write_text(module.to_string(options))
