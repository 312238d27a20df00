"""Run in a process of its own: read HLO texts with jaxlib's parser and print them again in another style.

``python xla_reprint.py OUT FILE...`` writes OUT/0.hlo, OUT/1.hlo ...: operands with shapes, names without percent
signs; and OUT/0.json ...: computation -> instruction -> its opcode and operands, as jaxlib has them. OUT/0.refused has
what it says of a text that it cannot read. jaxlib's parser may abort the process on such, so no test calls it directly.
"""

import gzip
import json
import lzma
import sys
from pathlib import Path

from jaxlib import _hlo


def outline(module):
    return {
        computation.name: {
            op.name: [str(op.opcode).rpartition(".k")[2], [operand.name for operand in op.operands()]]
            for op in computation.instructions()
        }
        for computation in module.computations()
    }


options = _hlo.HloPrintOptions()
options.print_operand_shape = True
options.print_percent = False
opened = {".gz": gzip.open, ".xz": lzma.open}
for number, file in enumerate(sys.argv[2:]):
    text = opened.get(Path(file).suffix, open)(file, "rb").read().decode()
    try:
        module = _hlo.hlo_module_from_text(text)
    except Exception as error:
        (Path(sys.argv[1]) / f"{number}.refused").write_text(str(error))
        continue
    (Path(sys.argv[1]) / f"{number}.hlo").write_text(module.to_string(options))
    (Path(sys.argv[1]) / f"{number}.json").write_text(json.dumps(outline(module)))
