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


#: Examples that take a second: by day tests/isa holds what they say, test_autotune, test_conv_tune and test_explore.
AT_NIGHT = ("tilewright.isa.study.tune", "tilewright.isa.study.explore")
NAMES = [pytest.param(name, marks=[pytest.mark.nightly] * (name in AT_NIGHT)) for name in modules()]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples(name):
    linecache.clearcache()  # or doctest looks at every file that any test has had a traceback of, before each example
    assert doctest.testmod(importlib.import_module(name)).failed == 0
