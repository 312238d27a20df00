"""The examples in docstrings are run: documentation that is shown is true."""

import doctest
import importlib
import pkgutil

import pytest

ROOMS = ("embed", "layout", "render", "trace")


def modules():
    for room in ROOMS:
        package = importlib.import_module(f"tilewright.{room}")
        yield from (f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__))


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
