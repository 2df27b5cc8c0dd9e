"""pyproject.toml, constraints.txt, environment.yml and what is installed say the same."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.house.closure import ROOT, closure, pins, requirements

DECLARED = requirements("book", "test")


def conda_environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_declared_range_admits_its_pin(requirement):
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"constraints.txt does not pin {requirement.name}"
    (exactly,) = pin.specifier
    assert exactly.operator == "=="
    assert requirement.specifier.contains(exactly.version), f"{requirement} does not admit {pin}"


def test_pins_are_exact_and_public():
    for pin in pins().values():
        assert re.fullmatch(r"==[0-9a-z.]+", str(pin.specifier)), f"{pin}: not one public version"
        assert pin.url is None, f"{pin}: an address"


def test_conda_environment_says_the_same():
    lines = conda_environment()["dependencies"]
    (pip_lines,) = [entry["pip"] for entry in lines if isinstance(entry, dict)]
    options = {line for line in pip_lines if line.startswith("-")}
    assert options == {"-c constraints.txt", "-e ."}
    listed = {line.partition("==")[0]: line for line in pip_lines if not line.startswith("-")}
    pinned = {r.name: str(pins()[canonicalize_name(r.name)]) for r in DECLARED}
    assert {canonicalize_name(n): line for n, line in listed.items()} == {
        canonicalize_name(n): line for n, line in pinned.items()
    }


def test_conda_environment_wants_the_same_python():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"python {project['requires-python']}" in conda_environment()["dependencies"]


def test_every_package_in_use_is_pinned():
    """What pip would be free to choose anew tomorrow is what breaks a book that worked today."""
    assert sorted(set(closure(DECLARED)) - set(pins())) == []


def test_installed_versions_are_the_pinned_ones():
    if Path(sys.prefix).resolve() != ROOT / ".venv":
        pytest.skip("the tests do not run in .venv; another environment may differ")
    wrong = []
    for name, pin in pins().items():
        if pin.marker and not pin.marker.evaluate():
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # a package of another platform or version of Python
        if not pin.specifier.contains(version, prereleases=True):
            wrong.append(f"{name} {version} is installed, {pin} is pinned")
    assert wrong == []


def test_every_pin_runs_on_the_oldest_python():
    """A package may ask for a later patch release than a distribution ships."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    too_new = {}
    for name in pins():
        try:
            needed = metadata.metadata(name).get("Requires-Python")
        except metadata.PackageNotFoundError:  # pinned for another platform
            continue
        if needed and oldest not in SpecifierSet(needed):
            too_new[name] = needed
    assert too_new == {}
