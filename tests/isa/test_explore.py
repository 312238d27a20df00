"""roofline and explore: bounds hold, advice follows from them, and nobody on the front is beaten."""

import json
import sys

import numpy as np
import pytest

from tilewright.cli import main
from tilewright.errors import UsageError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, autotune, explore, matmul, roofline
from tilewright.isa.study.explore import LayerShape, area_mm2, read_network, resnet50
from tilewright.isa.study.roofline import what_if

NETWORK = "# a small one\nfc 2 gemm 8x32x64\nc 1 conv 1x4x4x16 3x3x16x24 padding=1 stride=2\n"


@pytest.mark.parametrize("options", [{}, {"pes": 2}, {"threads": 32, "l1_bytes": 1024}, {"dram_bytes_per_cycle": 1}])
def test_no_run_is_faster_than_its_bounds(options):
    config = MatrixUnitConfig(**options)
    a, b = np.ones((40, 48), np.int8), np.ones((48, 56), np.int8)
    found = roofline(matmul(a, b, config), config)
    assert found.macs == 40 * 48 * 56
    assert found.cycles >= found.limit.cycles
    assert [bound.cycles for bound in found.bounds] == sorted((bound.cycles for bound in found.bounds), reverse=True)
    for bound in found.bounds:
        assert found.rate <= bound.ceiling
        assert bound.ceiling <= found.peak * 1.0001 or bound.what != "products"
    assert found.advice


def test_the_narrowest_level_is_named():
    a = np.ones((64, 64), np.int8)
    for field, name in (("dram_bytes_per_cycle", "device memory"), ("l2_bytes_per_cycle", "L2's bus")):
        config = MatrixUnitConfig(**{field: 1})
        found = roofline(matmul(a, a, config), config)
        assert found.limit.name == name
        assert any(name in text for text in found.advice)


def test_a_change_is_a_run():
    a = np.ones((64, 64), np.int8)
    config = MatrixUnitConfig()
    changes = what_if(config, lambda machine: matmul(a, a, machine).cycles)
    by_field = {change.field: change for change in changes}
    assert by_field["l1_ports"].cycles == matmul(a, a, MatrixUnitConfig(l1_ports=2)).cycles
    assert by_field["l2_latency"].after == 50
    assert changes == tuple(sorted(changes, key=lambda change: change.cycles))


def test_a_program_has_a_roofline_and_nothing_else_has():
    run = MatrixUnit().run("mov r0, 1\nhalt", {})
    assert roofline(run).macs == 0
    with pytest.raises(UsageError, match="no run"):
        roofline(3)


def test_networks_are_read_as_they_are_written():
    layers = read_network(NETWORK)
    assert layers[0] == LayerShape("fc", 2, (8, 32, 64))
    assert read_network("\n".join(map(str, [*layers, *resnet50()]))) == [*layers, *resnet50()]
    macs = sum(layer.count * layer.problem(1, MatrixUnitConfig()).macs for layer in resnet50())
    assert macs == 4_089_184_256  # the 4.1 billion of the literature


@pytest.mark.parametrize(
    "line", ["", "fc 1 gemm 8x32", "c 1 conv 1x4x4 3x3x16x24", "fc 1 gemm 8x8x8 k=3", "fc gemm 8x8x8"]
)
def test_other_lines_are_refused(line):
    with pytest.raises(UsageError):
        read_network(line)


def test_nobody_on_the_front_is_beaten():
    found = explore(NETWORK, {"threads": (16, 32), "l1_bytes": (32, 1024)}, config=MatrixUnitConfig(l2_bytes=1 << 16))
    assert [bool(point.refused) for point in found.points] == [True, False, True, False]
    for point in found.built:
        beaten = [
            o for o in found.built if o.costs != point.costs and all(a <= b for a, b in zip(o.costs, point.costs))
        ]
        assert (point in found.front) == (not beaten)
        assert point.area_mm2 == area_mm2(point.config)
        fc = point.layers[0]
        assert fc.best.cycles >= autotune(8, 32, 64, config=point.config).best.cycles
        assert point.cycles == 2 * fc.best.cycles + point.layers[1].best.cycles
    assert found.fastest.cycles == min(point.cycles for point in found.built)


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["tilewright", "isa", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().out


def test_commands(tmp_path, monkeypatch, capsys):
    shapes, page = tmp_path / "net.txt", tmp_path / "page.html"
    shapes.write_text(NETWORK)
    words = ["explore", "small", "--shapes", str(shapes), "--over", "threads=16,32", "--most", "1"]
    code, printed = run(monkeypatch, capsys, *words, "-o", str(page))
    assert code == 0
    assert "front" in printed
    assert "Machines for small" in page.read_text()
    assert len(json.loads(run(monkeypatch, capsys, *words, "--json")[1])["points"]) == 2
    words = ["roofline", "--x", "1x4x4x16", "--w", "3x3x16x24", "--padding", "1", "--tuned", "--set", "threads=16"]
    code, printed = run(monkeypatch, capsys, *words, "--no-what-if", "-o", str(page))
    assert code == 0
    assert "load-store unit" in printed
    assert "What to change" in page.read_text()
    found = json.loads(run(monkeypatch, capsys, "roofline", "--m", "4", "--n", "5", "--k", "6", "--json")[1])
    assert found["macs"] == 120
    assert found["changes"]
    assert run(monkeypatch, capsys, "roofline", "--m", "4")[0] == 2
