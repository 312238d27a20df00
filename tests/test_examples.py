"""The examples in docstrings are run: documentation that is shown is true."""

import doctest
import importlib
import linecache
import pkgutil

import pytest

ROOMS = ("embed", "isa", "layout", "render", "trace")


def modules():
    for room in ROOMS:
        package = importlib.import_module(f"tilewright.{room}")
        yield from (found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples(name):
    linecache.clearcache()  # or doctest looks at every file that any test has had a traceback of, before each example
    assert doctest.testmod(importlib.import_module(name)).failed == 0
