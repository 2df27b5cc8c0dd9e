"""Public names are documented, and the examples in the documentation run."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import richbook
from tests.house.closure import ROOT

SKIPPED = {"richbook.__main__"}  # importing it runs the command
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = sorted(
    {"richbook"}
    | {found.name for found in pkgutil.walk_packages(richbook.__path__, "richbook.")} - SKIPPED
)
PUBLIC = sorted(
    name
    for name, value in vars(richbook).items()
    if not name.startswith("_") and not inspect.ismodule(value) and callable(value)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_module_run(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said: list[str] = []
    for test in finder.find(module, name):
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", MODULES)
def test_module_documents_its_public_parts(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} does not say what it is for"
    bare = []
    for attribute, value in vars(module).items():
        if attribute.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        if not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if not own_documentation(value):
            bare.append(attribute)
        if inspect.isclass(value):
            bare += [
                f"{attribute}.{part}"
                for part, member in vars(value).items()
                if not part.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
                and not getattr(getattr(member, "__func__", member), "__doc__", None)
            ]
    assert bare == []


def own_documentation(value) -> str:
    """The docstring that was written, not the signature that a dataclass makes up."""
    text = vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""
    return "" if text.startswith(f"{value.__name__}(") else text


def shows_an_example(value) -> bool:
    """Whether a function or a class, itself or through one of its methods, does."""
    texts = [own_documentation(value)]
    if inspect.isclass(value):
        texts += [getattr(member, "__doc__", "") or "" for member in vars(value).values()]
    return any(">>>" in text for text in texts)


def makers(name: str) -> list:
    """The public functions that return an object of a class."""
    functions = [getattr(richbook, other) for other in PUBLIC]
    annotations = [getattr(function, "__annotations__", {}).get("return") for function in functions]
    return [
        function
        for function, made in zip(functions, annotations, strict=True)
        if name in (made, getattr(made, "__name__", None))
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_a_runnable_example(name):
    """A function shows its use; a class does, or the function that makes its objects."""
    value = getattr(richbook, name)
    assert own_documentation(value), f"richbook.{name} is not documented"
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    candidates = [value, *(makers(name) if inspect.isclass(value) else [])]
    assert any(map(shows_an_example, candidates)), f"richbook.{name} shows no example"


def test_readme_names_what_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"richbook\.([A-Za-z_]+)\(", text))
    assert len(names) > 10
    assert sorted(name for name in names if not hasattr(richbook, name)) == []
