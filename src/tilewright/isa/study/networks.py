"""Networks as lists of products and convolutions: by name, or from a text of one layer a line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.study.choices import Problem
from tilewright.isa.study.tune_conv import ConvProblem


@dataclass(frozen=True)
class LayerShape:
    """One kind of layer, ``count`` of it: a product ``sizes`` (m, n, k), or a convolution (``x``, ``w``, ``how``)."""

    name: str
    count: int
    sizes: tuple[int, ...] = ()
    x: tuple[int, ...] = ()
    w: tuple[int, ...] = ()
    how: tuple[tuple[str, Any], ...] = ()

    def problem(self, element_bytes: int, config: MatrixUnitConfig) -> Problem | ConvProblem:
        """To be made on a machine."""
        if self.x:
            return ConvProblem(self.x, self.w, self.how, element_bytes, config)
        m, n, k = self.sizes
        return Problem(m, n, k, element_bytes, config)

    def __str__(self) -> str:
        """As a line of a file of shapes."""
        if not self.x:
            return f"{self.name} {self.count} gemm {'x'.join(map(str, self.sizes))}"
        shapes = " ".join("x".join(map(str, side)) for side in (self.x, self.w))
        return " ".join([f"{self.name} {self.count} conv {shapes}", *(f"{name}={value}" for name, value in self.how)])


def resnet50() -> list[LayerShape]:
    """The convolutions of ResNet-50 (the stride in the 3x3, as trained networks have it) for one image, and its end.

    >>> sum(layer.count for layer in resnet50()), str(resnet50()[1])
    (54, 'conv2.1x1a 1 conv 1x56x56x64 1x1x64x64')
    """
    layers = [_conv("conv1", 1, 224, 3, 64, 7, 2)]
    side, depth = 56, 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        stride, out = (1 if stage == 2 else 2), 4 * width
        inner = side // stride
        layers += [
            _conv(f"conv{stage}.1x1a", 1, side, depth, width, 1, 1),
            _conv(f"conv{stage}.3x3a", 1, side, width, width, 3, stride),
            _conv(f"conv{stage}.side", 1, side, depth, out, 1, stride),
            _conv(f"conv{stage}.1x1c", blocks, inner, width, out, 1, 1),
            _conv(f"conv{stage}.1x1b", blocks - 1, inner, out, width, 1, 1),
            _conv(f"conv{stage}.3x3b", blocks - 1, inner, width, width, 3, 1),
        ]
        side, depth = inner, out
    return [*layers, LayerShape("fc", 1, (1, 1000, 2048))]


def _conv(name: str, count: int, side: int, depth: int, outs: int, kernel: int, stride: int) -> LayerShape:
    options = [("stride", stride)] * (stride > 1) + [("padding", kernel // 2)] * (kernel > 1)
    return LayerShape(name, count, (), (1, side, side, depth), (kernel, kernel, depth, outs), tuple(options))


NETWORKS = {"resnet50": resnet50}
_SIDES = r"[0-9]{1,9}(?:x[0-9]{1,9})*"
_LINE = re.compile(
    rf"(?P<name>\S+) +(?P<count>[0-9]{{1,6}}) +(?P<kind>gemm|conv) +(?P<x>{_SIDES})(?: +(?P<w>{_SIDES}))?(?P<how>.*)"
)
_HOW = ("stride", "padding", "dilation", "groups")


def read_network(text: str, where: str = "shapes") -> list[LayerShape]:
    """Layers from lines as ``fc 1 gemm 1x1000x2048`` (m, n, k) or ``c 2 conv 1x7x7x512 3x3x512x512 padding=1``.

    Images are n x h x w x c, weights kh x kw x c x out; ``#`` begins a remark.
    """
    layers = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].strip()
        if plain:
            layers.append(_layer(plain, f"{where}:{number}"))
    if not layers:
        raise UsageError("no layers", where=where, how="a line each, as: fc 1 gemm 1x1000x2048")
    return layers


def _layer(line: str, where: str) -> LayerShape:
    found = _LINE.fullmatch(line)
    how = "fc 1 gemm MxNxK, or c1 2 conv NxHxWxC KHxKWxCxO stride=1 padding=1"
    if found is None:
        raise UsageError(f"{line!r} is no layer", where=where, how=how)
    x = tuple(map(int, found["x"].split("x")))
    w = tuple(map(int, found["w"].split("x"))) if found["w"] else ()
    options = []
    for word in found["how"].split():
        name, _, value = word.partition("=")
        if name not in _HOW or not (value.isdecimal() or value in ("same", "valid")):
            raise UsageError(f"{word!r} is no option of a layer", where=where, how=f"{', '.join(_HOW)} with a number")
        options.append((name, int(value) if value.isdecimal() else value))
    if found["kind"] == "gemm":
        if len(x) != 3 or w or options:
            raise UsageError(f"{line!r} is no product", where=where, how=how)
        return LayerShape(found["name"], int(found["count"]), x)
    if len(x) != 4 or len(w) != 4:
        raise UsageError(f"{line!r} is no convolution", where=where, how=how)
    return LayerShape(found["name"], int(found["count"]), (), x, w, tuple(options))
