import doctest
import importlib
import pkgutil

import pytest

import richbook.show

MODULES = [info.name for info in pkgutil.iter_modules(richbook.show.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(f"richbook.show.{name}"))
    assert result.failed == 0
