"""StableHLO text to a Program: a light reader for reports, which needs no jax and never crashes.

It reads the printed form and the generic form of any dialect by their common shape: results, operation name, operands,
regions, type signature, location. What it does not need (attribute dictionaries, constants' values) it steps over. The
rewrites parse the same text with MLIR itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from sys import intern

from tilewright.hlo.opcodes import ELEMENTWISE, PRODUCTS
from tilewright.hlo.program import Computation, Operation, Program, Source, convolution_attributes
from tilewright.hlo.reading.hlo_scan import BLANK, Scanner, configuration, xla_shape, xla_tuple
from tilewright.hlo.reading.sources import Locations

# The words of MLIR text; every pattern is linear in the text it meets.

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_INNER = rf'(?:[^<>"]|{_STRING})'
_ANGLED = rf"<(?:{_INNER}|<(?:{_INNER}|<{_INNER}*+>)*+>)*+>"
_VALUE = r"%[\w$.\-]+"

#: ``%0, %1:2 =`` before an operation.
_RESULTS = re.compile(rf"({_VALUE}(?::\d{{1,4}})?(?:\s*,\s*{_VALUE}(?::\d{{1,4}})?)*)\s*=\s*")
#: ``"stablehlo.add"`` in the generic form, ``stablehlo.add`` in the printed one.
_OPCODE = re.compile(r'"([\w$.\-]+)"|([A-Za-z_][\w$.\-]*)')
#: What the first line of an operation (or of an alias or a block) begins with.
_STARTS = re.compile(
    rf'{_VALUE}(?::\d+)?\s*[,=]|"[\w$.\-]+"\s*[(<]|(?:func|module|return|call)\b|[a-z_]\w*\.[\w.]+|[#!][\w.$]+\s*=|\^'
)
#: A brace that opens a dictionary of attributes rather than a region.
_ATTRIBUTES = re.compile(r"\{(?:[ \t]*\}|\s*(?!return\b)[\w.$\"]+\s*[=,}])")
#: ``#loc3 = loc(...)``, to the end of its line, and those behind it.
_ALIASES = re.compile(r"(?:[#!][\w.$]+\s*=[^\n]*+\s*+)++")
#: ``tensor<2x3xf32>``, ``!stablehlo.token``, ``i32``.
TYPE = re.compile(rf"[!\w][\w.$]*+(?:{_ANGLED})?")
#: Anything else inside an operation.
_TOKEN = re.compile(
    rf"(?P<value>{_VALUE})(?:#(?P<index>\d{{1,6}}))?|(?P<arrow>->)|(?P<location>loc(?=\())|(?P<symbol>@[\w$.\-]+)"
    rf'|(?P<word>[\w#!.$]++(?:{_ANGLED})?)|(?P<string>{_STRING})|(?P<mark>[^\s"])'
)
#: ``: tensor<f32>`` behind an argument's name.
_ARGUMENT = re.compile(rf"\s*:\s*({TYPE.pattern})")
#: ``^bb0`` before its arguments.
_BLOCK = re.compile(r"\^[\w$.\-]+\s*(?=[(:])")
#: ``({`` before the regions of the generic form.
_REGION_LIST = re.compile(rf"\({BLANK.pattern}\{{")
#: ``= %init`` behind a loop argument's name.
_BINDING = re.compile(rf"\s*=\s*({_VALUE})(?:#(\d{{1,6}}))?")
#: The module's name.
_MODULE = re.compile(r"module(?:\s+@([\w$.\-]+|\"[^\"]*\"))?")
#: The name of a function, or of the one that is called, in the generic form.
_SYMBOL = re.compile(r'\b(?:sym_name\s*=\s*"([^"]*)"|(?:callee|decomposition)\s*=\s*@([\w$.\-]+))')
#: One operand.
_USE = re.compile(rf"({_VALUE})(?:#(\d{{1,6}}))?")
# The few attributes of StableHLO operations that a report reads, from the printed and from the generic form.

_I64S = r"(?:array<i64(?::([^<>]*))?>|\[([^\]]*)\]|dense<([^<>]*)>\s*:\s*tensor<(?:(\d+)x)?i64>|(\d+))"
"""Integers, in any of the ways that releases have written them."""
_DIMENSIONS = re.compile(rf"(?:\bdims?|\bpermutation|\bbroadcast_dimensions|\bdimensions?)\s*=\s*{_I64S}")
_DIRECTION = re.compile(r"\bcompare\s+([A-Z]{2})\b|\bcomparison_direction\s+([A-Z]{2})\b")
_SCALAR = re.compile(r"dense<([-+.\w]+)>\s*:\s*tensor<\w+>")
_APPLIES = re.compile(r"\bapplies\s+(\S+)")
_PADDING = re.compile(r"\b(low|high|interior)\s*=\s*\[([-\d,\s]*)\]")
_DOT = re.compile(r"\b(batching|contracting)_dims\s*=\s*\[([\d,\s]*)\]\s*x\s*\[([\d,\s]*)\]")
_DOT_GENERIC = re.compile(r"\b([lr]hs)_(batching|contracting)_dimensions\s*=\s*\[([\d,\s]*)\]")
_DOT_KEYS = {"batching": "batch_dims", "contracting": "contracting_dims"}
_DOT_OF_COMPOSITE = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
_DENSE = re.compile(r"dense<\[?([\d,\s]*)\]?>\s*:\s*tensor<\d+xi64>")
_PRECISION = re.compile(r"\bprecision(?:_config)?\s*=\s*\[[^\]]*\b(HIGHEST|HIGH)\b")
_LABELS = re.compile(r"\[([\w,\s]+)\]\s*x\s*\[([\w,\s]+)\]\s*->\s*\[([\w,\s]+)\]")
_GROUP_COUNTS = re.compile(r"\b(feature_group_count|batch_group_count)\s*=\s*(\d{1,9})")
_WINDOW = re.compile(rf"\b(stride|window_strides|lhs_dilate|lhs_dilation|rhs_dilate|rhs_dilation)\s*=\s*{_I64S}")
_WINDOW_KEYS = {"window_strides": "stride", "lhs_dilation": "lhs_dilate", "rhs_dilation": "rhs_dilate"}
_PADS = re.compile(r"\bpad(?:ding)?\s*=\s*(?:dense<)?(\[\[[-\d,\s\[\]]*\]\])")
_SIZES = re.compile(rf"\b(?:broadcast_)?sizes\s*=\s*{_I64S}")
_OPERAND = re.compile(r"\(tensor<((?:\d+x|\?x)*)")
_LENGTHS = re.compile(rf"\b(?:slice_sizes|window_dimensions|(?:fft_)?length)\s*=\s*{_I64S}")
_SLICE = re.compile(r"\[([\d:,\s]*)\]")
_SLICE_KEYS = ("start_indices", "limit_indices", "strides")
_SLICE_PART = re.compile(rf"\b(start_indices|limit_indices|strides)\s*=\s*{_I64S}")


def attributes_of(opcode: str, text: str) -> dict[str, str]:
    """The attributes a report reads, in HLO's notation.

    >>> attributes_of("transpose", "%1 = stablehlo.transpose %0, dims = [1, 0] : ...")
    {'dimensions': '{1,0}'}
    """
    found = _READERS[opcode](text) if opcode in _READERS else {}
    asked = _PRECISION.search(text) if opcode in ("dot_general", "dot", "convolution") else None
    return {**found, "operand_precision": f"{{{asked[1].lower()}}}"} if asked else found


def _dimensions(text: str, key: str = "dimensions", pattern: re.Pattern[str] = _DIMENSIONS) -> dict[str, str]:
    match = pattern.search(text)
    return {key: "{" + ",".join(_i64s(*match.groups())) + "}"} if match else {}


def _i64s(array: str | None, listed: str | None, dense: str | None, count: str | None, one: str | None) -> list[str]:
    """The numbers of a match of ``_I64S``; a dense one may repeat a single number."""
    inside = next((text for text in (array, listed, dense, one) if text is not None), "")
    numbers = inside.strip("[]").replace(",", " ").split()
    repeated = count and dense and "[" not in dense and len(count) < 6  # one number for each dim: never many
    return numbers * int(count) if repeated and count else numbers


def _dot(text: str) -> dict[str, str]:
    """Dims under HLO's names: ``lhs_contracting_dims`` ..., from the printed or the generic form, or a composite's."""
    parts = [(f"{side}_{_DOT_KEYS[m[1]]}", m[k]) for m in _DOT.finditer(text) for k, side in ((2, "lhs"), (3, "rhs"))]
    parts = parts or [(f"{m[1]}_{_DOT_KEYS[m[2]]}", m[3]) for m in _DOT_GENERIC.finditer(text)]
    parts = parts or [*zip(_DOT_OF_COMPOSITE, _DENSE.findall(text))]
    return {key: "{" + dims.replace(" ", "") + "}" for key, dims in parts}


_LEFT_DIMS = re.compile(r"\(\s*tensor<((?:(?:\d+|\?)x)*)|:\s*\(?\s*tensor<((?:(?:\d+|\?)x)*)")


def _matrix_product(text: str) -> dict[str, str]:
    """The older dot: the left operand's last dim with the right one's first."""
    left = _LEFT_DIMS.search(text)
    rank = (left[1] or left[2] or "").count("x") if left else 0
    return {"lhs_contracting_dims": f"{{{rank - 1}}}", "rhs_contracting_dims": "{0}"} if rank else {}


def _convolution(text: str) -> dict[str, str]:
    """Dim labels, window and groups in HLO's notation: ``b01f_01io->b01f``, ``{stride=2x2 pad=1_1x1_1}``."""
    labels = _LABELS.search(text)
    if labels is None:
        return {}
    images, kernel, result = ("".join(part.replace(",", "").split()) for part in labels.groups())
    words = {_WINDOW_KEYS.get(m[1], m[1]): "x".join(_i64s(*m.groups()[1:])) for m in _WINDOW.finditer(text)}
    if pads := _PADS.search(text):
        pairs = re.findall(r"\[([-\d,\s]+)\]", pads[1])
        words["pad"] = "x".join(pair.replace(" ", "").replace(",", "_") for pair in pairs)
    return convolution_attributes(f"{images}_{kernel}->{result}", words, dict(_GROUP_COUNTS.findall(text)))


def _pad(text: str) -> dict[str, str]:
    """``low_high_interior`` for each dim, joined by x."""
    parts = {key: inside.replace(" ", "").split(",") for key, inside in _PADDING.findall(text)}
    if len(parts) < 3 or not all(parts["low"]):
        return {}
    return {"padding": "x".join("_".join(dim) for dim in zip(parts["low"], parts["high"], parts["interior"]))}


def _slice(text: str) -> dict[str, str]:
    parts = {match[1]: _i64s(*match.groups()[1:]) for match in _SLICE_PART.finditer(text)}
    if len(parts) == len(_SLICE_KEYS):
        dims = [":".join(dim) for dim in zip(*(parts[key] for key in _SLICE_KEYS))]
    elif printed := _SLICE.search(text):
        dims = [part.strip() for part in printed[1].split(",") if part.strip()]
    else:
        return {}
    return {"slice": "{" + ", ".join(f"[{dim}]" for dim in dims) + "}"}


def _broadcast(text: str) -> dict[str, str]:
    """The older broadcast names the dims it puts before the operand's; as HLO writes it: where the operand's go."""
    sizes, operand = _SIZES.search(text), _OPERAND.search(text)
    if sizes is None or operand is None:
        return {}
    added = len(_i64s(*sizes.groups()))
    return {"dimensions": "{" + ",".join(map(str, range(added, added + operand[1].count("x")))) + "}"}


# More than what an operation does on one device, as HLO writes it: exchanges, custom calls, what is given away.

#: For how many devices a module is.
_DEVICES = re.compile(r"\bmhlo\.num_(partitions|replicas)\s*=\s*(\d{1,9})\b")
_DEVICES_OF = {"partitions": "num_partitions", "replicas": "replica_count"}
#: What says that an argument is given away: for a result, or for whichever fits.
_DONATED = re.compile(r"\btf\.aliasing_output\s*=\s*(\d{1,9})|\bjax\.buffer_donor\s*=\s*true")
_GROUPS = re.compile(
    r"\b(replica_groups|source_target_pairs)\s*=\s*(dense<[^<>]*>\s*:\s*tensor<[\dx]+i64>)"
    rf"|\breplica_groups\s*=\s*#stablehlo\.replica_group_mesh_axes<mesh = @([\w$.\-]+|{_STRING}), axes = \[([^\]]*)\]"
)
_TARGET = re.compile(r'\bcustom_call\s+@([\w$.\-]+)|\bcall_target_name\s*=\s*"([^"]*)"')
_CONFIG = re.compile(rf"\bbackend_config\s*=\s*({_STRING})")
_WRITTEN_OVER = re.compile(
    r"output_operand_alias<output_tuple_indices = \[([\d, ]*)\],\s*operand_index = (\d{1,9}),"
    r"\s*operand_tuple_indices = \[([\d, ]*)\]>"
)
_CHANNEL = re.compile(r"\bchannel_handle\s*=\s*#stablehlo\.channel_handle<handle = (\d{1,18})\b")
_AXIS_REF = re.compile(r'axis_ref<name = "([^"]*)"(?:, sub_axis_info = [^()]*?\((\d+)\)(\d+))?')
_MESH = re.compile(r'sdy\.mesh @([\w$.\-]+|"[^"]*") = <\[([^\]]*)\](?:, device_ids=\[([\d, ]*)\])?>')
_MESH_AXIS = re.compile(r'"([^"]*)"\s*=\s*(\d{1,9})')


def _custom_call(text: str) -> dict[str, str]:
    """What is called, its configuration without quotes, and which results it writes over which operands."""
    attributes: dict[str, str] = {}
    if target := _TARGET.search(text):
        attributes["custom_call_target"] = f'"{target[1] or target[2]}"'
    if config := _CONFIG.search(text):
        attributes["backend_config"] = configuration(config[1][1:-1])
    pairs = [(at.replace(" ", ""), number, inside) for at, number, inside in _WRITTEN_OVER.findall(text)]
    if listed := ", ".join(f"{{{at}}}: ({number}, {{{inside}}})" for at, number, inside in pairs):
        attributes["output_to_operand_aliasing"] = f"{{{listed}}}"
    return attributes


def _exchange(text: str) -> dict[str, str]:
    """The chips that take part together, as MLIR writes them: a table with a row per group, or a mesh's name and axes.

    The latter as HLO has it, ``mesh[@name] {'axis'}``; the reader of the module puts the axes' sizes for the name.
    """
    match, channel = _GROUPS.search(text), _CHANNEL.search(text)
    attributes = {"channel_id": channel[1]} if channel else {}
    if match and match[3]:
        found = _AXIS_REF.findall(match[4])
        axes = (f"'{name}'" + (f":({before}){size}" if size else "") for name, before, size in found)
        attributes["replica_groups"] = f"mesh[@{match[3]}] {{{','.join(axes)}}}"
    elif match:
        attributes[match[1]] = match[2]
    return attributes


def meshes(text: str) -> dict[str, str]:
    """The meshes that a text declares, as HLO writes them in replica groups.

    >>> meshes('sdy.mesh @mesh = <["d"=4, "m"=2]>')
    {'mesh': "mesh['d'=4,'m'=2]"}
    """
    found = {}
    for name, axes, devices in _MESH.findall(text):
        sizes = ",".join(f"'{axis}'={size}" for axis, size in _MESH_AXIS.findall(axes))
        ids = f", device_ids=({devices.replace(' ', '')})" if devices else ""
        found[name] = f"mesh[{sizes}]{ids}"
    return found


def _donations(donated: list[tuple[int, str]]) -> dict[str, str]:
    """Arguments that are given away, as a module's header has them: each with its result, or for any that fits."""
    over = ", ".join(f"{{{result}}}: ({number}, {{}}, may-alias)" for number, result in donated if result)
    given = ", ".join(f"({number}, {{}})" for number, result in donated if not result)
    return {key: f"{{ {text} }}" for key, text in (("input_output_alias", over), ("buffer_donor", given)) if text}


_READERS: dict[str, Callable[[str], dict[str, str]]] = {
    "compare": lambda text: {"direction": m[1] or m[2]} if (m := _DIRECTION.search(text)) else {},
    "constant": lambda text: {"literal": m[1]} if (m := _SCALAR.search(text)) else {},  # of a scalar alone
    "gather": lambda text: _dimensions(text, "slice_sizes", _LENGTHS),
    "fft": lambda text: _dimensions(text, "fft_length", _LENGTHS),
    "reduce_window": lambda text: _dimensions(text, "window_dimensions", _LENGTHS),
    "pad": _pad,
    "slice": _slice,
    "broadcast": _broadcast,
    "custom_call": _custom_call,
    "dot": _matrix_product,
    **dict.fromkeys(("dot_general", "ragged_dot"), _dot),
    "convolution": _convolution,
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "reduce_scatter"), _exchange),
    **dict.fromkeys(("collective_broadcast", "collective_permute"), _exchange),
    **dict.fromkeys(("transpose", "broadcast_in_dim", "concatenate", "reverse"), _dimensions),
    "reduce": lambda text: _dimensions(text) | ({"applies": m[1]} if (m := _APPLIES.search(text)) else {}),
}


def _constants_at_readers(operations: list[Operation]) -> tuple[Operation, ...]:
    """Constants of a whole function (``jit(f)``) stand at the call; they get the line of what reads them first."""
    lost = {
        op.name: number
        for number, op in enumerate(operations)
        if op.opcode == "constant" and (op.source is None or "/" not in op.op_name)
    }
    for op in operations if lost else ():
        for name in op.operands:
            if op.source is not None and name in lost:
                number = lost.pop(name)
                operations[number] = replace(operations[number], source=op.source)
    return tuple(operations)


def _uses(parts: Sequence[str]) -> list[str]:
    """The operands between the texts of an operation's line; a name is one object wherever it stands."""
    return [f"{name}#{index}" if index else intern(name) for name, index in zip(parts[1::3], parts[2::3])]


_REGIONS = {"while": ("cond", "body"), "reduce": ("reducer",), "if": ("true", "false")}
_DIALECTS = ("stablehlo.", "chlo.", "func.", "mhlo.")
_CONTAINERS = frozenset({"func", "module", "builtin.module"})
_NAMED = _CONTAINERS | {"call", "composite"}
_DEEPEST = 100
STAND_INS = ("composite", "custom_call")
"""What an operation may be that stands for one which StableHLO lacks."""
_LACKING = re.compile(r'"chlo\.(\w+)"|@mhlo\.(\w+)')
_LENT = {name.replace("-", "_") for name in ELEMENTWISE | PRODUCTS} | {"top_k", "topk"}


def _meant(opcode: str, text: str) -> str:
    """The operation that ``jax.export`` has written as a stand-in; of others a call, or what it was."""
    named = _LACKING.search(text)
    name = (named[1] or named[2]) if named else ""
    return name if name in _LENT else "call" if opcode == "composite" else opcode


def region_kind(opcode: str, number: int) -> str:
    """What the region of this number in an operation is called: ``body`` for the second of a ``while``."""
    kinds = _REGIONS.get(opcode, ())
    return kinds[number] if number < len(kinds) else f"region{number}"


_Scope = dict[str, tuple[str, ...]]


@dataclass
class _Head:
    opcode: str
    line: int
    names: tuple[str, ...] = ()
    operands: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    arguments: list[tuple[str, str, str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    location: str = ""
    symbol: str = ""
    interleaved: bool = False


def read_stablehlo(text: str, where: str = "", frames: str = "") -> Program:
    """Read StableHLO text; ``frames`` chooses lines (``users_line``). Raises ParseError with line, column and reason.

    >>> program = read_stablehlo('''func.func @main(%x: tensor<2x3xf32>) -> tensor<6xf32> {
    ...   %0 = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
    ...   return %0 : tensor<6xf32>
    ... }''')
    >>> [(op.name, op.opcode, op.shape) for op in program.entry.operations]
    [('%x', 'parameter', 'f32[2,3]'), ('%0', 'reshape', 'f32[6]'), ('', 'return', '()')]
    """
    return _Reader(text, where, frames).program()


class _Reader(Scanner):
    def __init__(self, text: str, where: str, frames: str = "") -> None:
        super().__init__(text, where)
        self.locations = Locations.of(text, frames)
        self.computations: list[Computation | None] = []
        self.scopes: list[_Scope] = [{}]
        self.names: set[str] = set()
        self.module = ""
        self.header: dict[str, str] = {}
        self.donated: dict[str, list[tuple[int, str]]] = {}
        self.depth = 0
        self.known: dict[tuple[str, ...], Operation] = {}
        self.unused: set[str] = set()  # functions that a stand-in names, for whoever does not know what it stands for

    def program(self) -> Program:
        sink: list[Operation] = []
        while not self.ended():
            self._operation(sink, "")
        read = [c for c in self.computations if c is not None and c.name.partition("/")[0] not in self.unused]
        if not read:
            raise self.fail("the module has no function")
        functions = [c.name for c in read if "/" not in c.name]
        entry = "main" if "main" in functions else functions[0] if functions else read[0].name
        computations = tuple(Computation(c.name, c.operations, c.name == entry) for c in read)
        known = {c.name for c in computations}
        for computation in computations:
            for op in computation.operations:
                if missing := [name for name in op.calls if name not in known]:
                    reason = f"{op.opcode} calls @{missing[0]}, which the module does not have"
                    raise self.fail(reason, self.first_of(op.line))
        attributes = self.header | _donations(self.donated.get(entry, []))
        return Program("stablehlo", self.module or entry, self.text, computations, attributes)

    def _operation(self, sink: list[Operation], owner: str) -> None:
        """One operation (or definitions of aliases, which are stepped over); appends it to ``sink``.

        Nine of ten say what another one said before, on a line and but for names: they are not read again.
        """
        line, start = self.line(), self.at
        words = self._line_of_one_result() if self.peek("%") else None
        if words is not None:
            name, parts, location = words
            first = self.known.get(tuple(parts[::3]))
            if first is not None and (operation := self._like(first, name, parts, location, line)):
                sink.append(operation)
                return
        elif aliases := _ALIASES.match(self.text, start):
            self.at = aliases.end()
            return
        results = _RESULTS.match(self.text, self.at)
        self.at = results.end() if results else self.at
        if module := _MODULE.match(self.text, self.at):
            self.module = self.module or (module[1] or "").strip('"')
            said = _DEVICES.findall(self.text, module.end(), self.text.find("\n", module.end()) + 1)
            self.header |= {_DEVICES_OF[kind]: count for kind, count in said}
        match = self.match(_OPCODE, "an operation")
        opcode = match[1] or match[2]
        for dialect in _DIALECTS:
            opcode = opcode.removeprefix(dialect)
        names = tuple(word.strip() for word in results[1].split(",")) if results else ()
        head = _Head(opcode, line, names)
        self._body(head, owner)
        if opcode in _CONTAINERS:
            return
        sink.append(self._finish(head, start))
        alone = "\n" not in self.text[start : self.at].rstrip()
        if words and alone and (head.operands, head.location) == (_uses(parts), location):
            self.known[tuple(parts[::3])] = sink[-1]

    def _line_of_one_result(self) -> tuple[str, list[str], str] | None:
        """The result's name, what is behind it (text, name, number, text, ...) and the place; None for other lines."""
        end = self.text.find("\n", self.at)
        name, _, rest = self.text[self.at : end].rstrip().partition(" = ")
        body, mark, location = rest.rpartition(" loc(#")
        if "," in name or ":" in name or end < 0 or (mark and not location[:-1].isalnum()):
            return None
        return intern(name), _USE.split(body if mark else rest), f"#{location[:-1]}" if mark else ""

    def _like(self, first: Operation, name: str, parts: list[str], location: str, line: int) -> Operation | None:
        """An operation that says what the ``first`` one said; None where it names what is not there."""
        shapes = [shape for shape in map(self._shape_of, parts[1::3], parts[2::3]) if shape is not None]
        if 3 * len(shapes) < len(parts) - 1 or name in self.scopes[-1]:
            return None
        self.at = self.text.find("\n", self.at)
        self.scopes[-1][name] = (first.shape,)
        op_name, source = self._resolve(location)
        return Operation(
            *(name, first.opcode, first.shape, tuple(_uses(parts)), tuple(shapes), first.attributes),
            *(op_name, source, first.calls, line),
        )

    def _body(self, head: _Head, owner: str) -> None:
        """Everything after the operation's name, up to the next operation or the end of the region."""
        regions = 0
        while not self._ends():
            if self.peek("{") and not _ATTRIBUTES.match(self.text, self.at):
                self._region(head, owner, regions)
                regions += 1
            elif _REGION_LIST.match(self.text, self.at):
                regions = self._region_list(head, owner, regions)
            else:
                self._token(head)

    def _ends(self) -> bool:
        """Is this the end of the operation: a closing brace, or a new line on which another one starts?"""
        self.blank()
        if self.at >= len(self.text) or self.peek("}"):
            return True
        return self._at_line_start() and _STARTS.match(self.text, self.at) is not None

    def _at_line_start(self) -> bool:
        at = self.at
        while at and self.text[at - 1] in " \t\r":
            at -= 1
        return at == 0 or self.text[at - 1] == "\n"

    def _region_list(self, head: _Head, owner: str, regions: int) -> int:
        """``({ ... }, { ... })`` of the generic form."""
        self.at += 1
        while True:
            self.expect("{", "'(' of a list of regions")
            self.at -= 1
            self._region(head, owner, regions)
            regions += 1
            if not self.take(","):
                self.expect(")", "the regions")
                return regions

    def _region(self, head: _Head, owner: str, number: int) -> None:
        """``{ operations }``: a computation of its own, unless it is a module's."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.fail(f"regions nested deeper than {_DEEPEST}")
        start = self.at
        self.at += 1
        if head.opcode in _CONTAINERS and head.opcode != "func":
            self._operations([], "", start)
        else:
            self._computation(head, owner, number, start)
        self.depth -= 1

    def _computation(self, head: _Head, owner: str, number: int, start: int) -> None:
        name = self._region_name(head, owner, number, start)
        place = len(self.computations)
        self.computations.append(None)
        operations: list[Operation] = []
        self.scopes.append({})
        for argument in head.arguments:
            operations.append(self._parameter(*argument, line=head.line))
        if head.opcode != "while":  # a loop's condition and body share their arguments
            head.arguments.clear()
        self._operations(operations, name, start)
        self.scopes.pop()
        self.computations[place] = Computation(name, _constants_at_readers(operations))
        head.calls.append(name)

    def _region_name(self, head: _Head, owner: str, number: int, start: int) -> str:
        if head.opcode == "func":
            name = head.symbol or f"function{len(self.computations)}"
        else:
            named = head.names[0].split(":")[0] if head.names else head.opcode
            name = f"{owner}/{named}.{region_kind(head.opcode, number)}"
        if name in self.names:
            if head.opcode == "func":
                raise self.fail(f"function @{name} is defined twice", start)
            name = f"{name}.{len(self.computations)}"
        self.names.add(name)
        return name

    def _operations(self, sink: list[Operation], owner: str, start: int) -> None:
        while not self.take("}"):
            if self.at >= len(self.text):
                raise self.fail("'{' is never closed", start)
            if self.peek("^"):
                self._block(sink)
            else:
                self._operation(sink, owner)

    def _block(self, sink: list[Operation]) -> None:
        """``^bb0(%x: tensor<f32>, ...):``, whose arguments are the region's parameters."""
        line = self.line()
        self.match(_BLOCK, "a block '^NAME(ARGUMENTS):'")
        head = _Head("block", line)
        while not self.take(":"):
            if self.at >= len(self.text):
                raise self.fail("the block's header has no ':'")
            self._token(head, inside=True)
        sink += [self._parameter(*argument, line=line) for argument in head.arguments]

    def _parameter(self, name: str, shape: str, location: str, line: int) -> Operation:
        op_name, source = self._resolve(location)
        self.scopes[-1][name] = (shape,)
        return Operation(name, "parameter", shape, op_name=op_name, source=source, line=line)

    def _resolve(self, location: str) -> tuple[str, Source | None]:
        return self.locations.resolve(location) if location else ("", None)

    def _token(self, head: _Head, inside: bool = False) -> None:
        """One token of an operation outside its regions; ``inside`` brackets a colon starts no type."""
        self.blank()
        start = self.at
        token = self.match(_TOKEN, "the rest of the operation")
        kind = token.lastgroup
        if kind in ("value", "index"):
            self._operand(head, token["value"], token["index"], start)
        elif kind == "arrow":
            self.blank()
            if not self.peek("["):  # dim numbers: [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]
                head.types = self._types()
        elif kind == "location":
            head.location = self.balanced()[1:-1]
        elif kind == "symbol":
            head.symbol = head.symbol or token[0][1:]
        elif token[0] == "init" and inside:
            head.interleaved = True
        elif token[0] == ":" and not inside:
            head.types = self._types()
        elif token[0] == "(":
            self._group(head, start)
        elif token[0] in "{[":
            self.at = start
            held = self.balanced()
            if head.opcode in _NAMED and not head.symbol and (symbol := _SYMBOL.search(held)):
                head.symbol = symbol[1] or symbol[2]
        elif token[0] in ")]}":
            raise self.fail(f"unexpected '{token[0]}'", start)

    def _group(self, head: _Head, start: int) -> None:
        """``( ... )`` around operands or arguments."""
        while not self.take(")"):
            if self.at >= len(self.text):
                raise self.fail("'(' is never closed", start)
            if self.peek("("):
                raise self.fail("unexpected '('")
            self._token(head, inside=True)

    def _operand(self, head: _Head, name: str, index: str | None, start: int) -> None:
        """A value: an argument with its type, a loop's binding ``%a = %b``, or a use."""
        if argument := _ARGUMENT.match(self.text, self.at):
            if head.opcode in ("func", "block") or not any(name in scope for scope in self.scopes):
                self._argument(head, name, argument)
                return
        elif binding := _BINDING.match(self.text, self.at):
            self.at = binding.end()
            shape = self._use(head, binding[1], binding[2], binding.start(1))
            head.arguments.append((name, shape, ""))
            return
        self._use(head, name, index, start)

    def _argument(self, head: _Head, name: str, match: re.Match[str]) -> None:
        self.at = match.end()
        self.blank()
        if self.peek("{") and (given := _DONATED.search(self.balanced())) and head.opcode == "func":
            self.donated.setdefault(head.symbol, []).append((len(head.arguments), given[1] or ""))
        head.arguments.append((name, xla_shape(match[1]), self.location()))

    def _use(self, head: _Head, name: str, index: str | None, at: int) -> str:
        shape = self._shape_of(name, index)
        if shape is None:
            shapes = next((shapes for scope in reversed(self.scopes) if (shapes := scope.get(name))), None)
            if shapes:
                raise self.fail(f"{name} has {len(shapes)} results, not one numbered {index}", at)
            raise self.fail(f"{name} is not defined before its use", at)
        head.operands.append(f"{name}#{index}" if index else name)
        head.shapes.append(shape)
        return shape

    def _shape_of(self, name: str, index: str | None) -> str | None:
        """The shape of a value; None where there is no such value, or it has no result of this number."""
        for scope in reversed(self.scopes):
            if shapes := scope.get(name):
                number = int(index or 0)
                return shapes[number] if number < len(shapes) else None
        return None

    def _types(self) -> list[str]:
        """``type, type`` or ``(type, type)``, there with attributes and locations.

        A function type's arguments are given up when its arrow comes.
        """
        types, grouped, more = list[str](), self.take("("), True
        while not self.take(")") if grouped else more:
            self.blank()
            if types and not grouped and not TYPE.match(self.text, self.at):
                break
            types.append(xla_shape(self.match(TYPE, "a type such as tensor<8x128xf32>")[0]))
            self.blank()
            if grouped and self.peek("{"):
                self.balanced()
            if grouped:
                self.location()
            more = self.take(",")
            if grouped and not more and not self.peek(")"):
                raise self.fail("expected ',' or ')' in a list of types")
        return types

    def _finish(self, head: _Head, start: int) -> Operation:
        """The operation's record; its results enter the scope."""
        names = [name.partition(":")[::2] for name in head.names]
        count = sum(int(number or 1) for _, number in names)
        types = tuple(head.types)
        if len(types) != count:
            types = (types[-1:] or ("opaque[]",)) * count
        of_each = iter(types)
        for name, number in names:
            if name in self.scopes[-1]:
                raise self.fail(f"{name} is defined twice", start)
            self.scopes[-1][name] = tuple(islice(of_each, int(number or 1)))
        if head.interleaved:  # `reduce(%a init: %x), (%b init: %y)` has the operands a, b, x, y
            head.operands = head.operands[::2] + head.operands[1::2]
            head.shapes = head.shapes[::2] + head.shapes[1::2]
        if head.opcode in STAND_INS:
            head.opcode = _meant(head.opcode, self.text[start : self.at])
            self.unused |= {head.symbol} if head.opcode in _LENT else set()
        calls = (*head.calls, *((head.symbol,) if head.opcode == "call" and head.symbol else ()))
        return Operation(
            *(names[0][0] if names else "", head.opcode, xla_tuple(types), tuple(head.operands), tuple(head.shapes)),
            *(self._attributes(head.opcode, start), *self._resolve(head.location), calls),
            *(head.line, head.opcode == "return"),
        )

    def _attributes(self, opcode: str, start: int) -> dict[str, str]:
        attributes = attributes_of(opcode, self.text[start : self.at])
        if attributes.get("replica_groups", "").startswith("mesh[@"):
            name, _, axes = attributes["replica_groups"][6:].partition("] ")
            attributes["replica_groups"] = f"{self._meshes.get(name, 'mesh[]')} {axes}"
        return attributes

    @cached_property
    def _meshes(self) -> dict[str, str]:
        return meshes(self.text)
