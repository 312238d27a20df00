"""What MLIR says beyond one operation of one device: exchanges, custom calls, how many devices, what is given away.

All as HLO writes it, so that whoever asks a program need not know what it was read from.
"""

from __future__ import annotations

import re

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
#: For how many devices a module is.
_DEVICES = re.compile(r"\bmhlo\.num_(partitions|replicas)\s*=\s*(\d{1,9})\b")
#: What says that an argument is given away: for a result, or for whichever fits.
DONATED = re.compile(r"\btf\.aliasing_output\s*=\s*(\d{1,9})|\bjax\.buffer_donor\s*=\s*true")
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


def custom_call(text: str) -> dict[str, str]:
    """What is called, its configuration without quotes, and which results it writes over which operands."""
    attributes: dict[str, str] = {}
    if target := _TARGET.search(text):
        attributes["custom_call_target"] = f'"{target[1] or target[2]}"'
    if config := _CONFIG.search(text):
        attributes["backend_config"] = config[1][1:-1].replace("\\22", '"').replace('\\"', '"')
    pairs = [(result.replace(" ", ""), number, inside) for result, number, inside in _WRITTEN_OVER.findall(text)]
    if pairs:
        listed = (f"{{{result}}}: ({number}, {{{inside}}})" for result, number, inside in pairs)
        attributes["output_to_operand_aliasing"] = f"{{{', '.join(listed)}}}"
    return attributes


def exchange(text: str) -> dict[str, str]:
    """The chips that take part together, as MLIR writes them: a table with a row per group, or a mesh's name and axes.

    The latter as HLO has it, ``mesh[@name] {'axis'}``; the reader of the module puts the axes' sizes for the name.
    """
    match, channel = _GROUPS.search(text), _CHANNEL.search(text)
    attributes = {"channel_id": channel[1]} if channel else {}
    if match and match[3]:
        axes = (
            f"'{name}'" + (f":({before}){size}" if size else "") for name, before, size in _AXIS_REF.findall(match[4])
        )
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


_HLO_NAMES = {"partitions": "num_partitions", "replicas": "replica_count"}


def devices(header: str) -> dict[str, str]:
    """For how many devices a module is, from its first line.

    >>> devices("module @m attributes {mhlo.num_partitions = 16 : i32, mhlo.num_replicas = 1 : i32} {")
    {'num_partitions': '16', 'replica_count': '1'}
    """
    return {_HLO_NAMES[kind]: count for kind, count in _DEVICES.findall(header)}


def donations(donated: list[tuple[int, str]]) -> dict[str, str]:
    """Arguments that are given away, as a module's header has them: each with its result, or for any that fits."""
    over = ", ".join(f"{{{result}}}: ({number}, {{}}, may-alias)" for number, result in donated if result)
    given = ", ".join(f"({number}, {{}})" for number, result in donated if not result)
    words = (("input_output_alias", over), ("buffer_donor", given))
    return {key: f"{{ {text} }}" for key, text in words if text}
