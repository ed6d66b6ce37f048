"""Every dependency is pinned, and the installed packages fit one another: all without a network."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DECLARED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]
LINES = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
PINS = dict(line.split("==") for line in LINES if line and not line.startswith("#"))
OF_A_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")
"""Packages that come with a build of torch for GPUs, of whatever version that build wants."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(requirement: Requirement) -> dict[str, list[Requirement]]:
    """Return the packages that stand behind a requirement, and what each requires."""
    packages: dict[str, list[Requirement]] = {}
    waiting = [requirement]
    while waiting:
        wanted = waiting.pop()
        name = normal(wanted.name)
        try:
            lines = distribution(wanted.name).requires or ()
        except PackageNotFoundError:
            continue
        extras = [{"extra": extra} for extra in ("", *wanted.extras)]
        needs = [
            n
            for n in map(Requirement, lines)
            if n.marker is None or any(map(n.marker.evaluate, extras))
        ]
        if name not in packages or wanted.extras:
            waiting += [need for need in needs if need not in packages.get(name, [])]
            packages[name] = needs
    return packages


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_a_dependency_and_its_own_are_pinned_to_versions_that_fit(requirement: Requirement) -> None:
    assert requirement.specifier.contains(PINS[normal(requirement.name)])
    packages = installed(requirement)
    assert {name for name in packages if not name.startswith(OF_A_BUILD)} <= PINS.keys()
    for name, needs in packages.items():
        for need in needs:
            version = distribution(need.name).version
            assert need.specifier.contains(version, prereleases=True), (
                f"{name} needs {need}, and {version} is installed"
            )
