"""Which packages the project pulls in, and the constraints file that pins them.

`python -m tests.house.closure > constraints.txt`, run in an environment that was just resolved and
seen working, rewrites the pins (`make constraints` does that).
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
HEADER = """\
# Every package of the environment, as it was seen working.
# pip install -c constraints.txt -e '.[book,test]'
# Made by `make constraints`; pyproject.toml says which ranges the project accepts.
"""
# What a CUDA build of torch brings along differs by build and platform: torch pins it, we do not.
BROUGHT_BY_TORCH = re.compile(r"^(nvidia|cuda|triton|pytorch-triton)(-|$)")
# Needed on one platform only, so a walk from elsewhere misses it.
ELSEWHERE = {"appnope": "appnope==0.1.4; sys_platform == 'darwin'"}


def requirements(*groups: str) -> list[Requirement]:
    """The requirements that pyproject.toml declares: the runtime's and those of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for group in groups:
        lines += project["optional-dependencies"][group]
    return [Requirement(line) for line in lines]


def pins() -> dict[str, Requirement]:
    """The pins of constraints.txt by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in parsed}


def closure(start: list[Requirement]) -> dict[str, str]:
    """All packages reached from `start` in the running environment: canonical name -> version.

    Raises:
        importlib.metadata.PackageNotFoundError: if one of them is not installed.
    """
    found: dict[str, str] = {}
    queue = [(requirement, "") for requirement in start]
    walked: set[tuple[str, str]] = set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if BROUGHT_BY_TORCH.match(name):
            continue
        distribution = metadata.distribution(requirement.name)
        found[name] = Version(distribution.version).public
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in walked:
                walked.add((name, wanted))
                queue += [(Requirement(line), wanted) for line in distribution.requires or []]
    return found


def main() -> None:
    """Print the constraints file of the running environment."""
    found = closure(requirements("book", "test"))
    lines = ELSEWHERE | {name: f"{name}=={version}" for name, version in found.items()}
    print(HEADER + "\n".join(lines[name] for name in sorted(lines)))


if __name__ == "__main__":
    main()
