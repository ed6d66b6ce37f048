"""Every dependency is pinned, fits what asks for it, and stands in the bill of materials: all without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.sbom import Environment, declared, normal, pinned

ROOT = Path(__file__).parents[1]
OF_A_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")
"""Packages that come with a build of torch for GPUs, of whatever version that build wants."""


@pytest.fixture(scope="module")
def environment() -> Environment:
    return Environment(declared())


def test_what_pyproject_asks_for_is_pinned_to_a_version_that_fits() -> None:
    pins = pinned()
    for requirement in declared():
        assert requirement.specifier.contains(pins[normal(requirement.name)]), str(requirement)


def test_what_those_need_is_pinned_too(environment: Environment) -> None:
    needed = {name for name in environment.found if not name.startswith(OF_A_BUILD)}
    assert {"torch", "pydantic-core", "pytest", "execnet"} <= needed, "it has looked, and not at the first row alone"
    assert needed <= pinned().keys()


def test_nothing_that_is_installed_lacks_what_it_needs(environment: Environment) -> None:
    assert environment.unmet == []


def test_a_package_that_lacks_something_would_be_noticed() -> None:
    from packaging.requirements import Requirement

    found = Environment([Requirement("pydantic>=1000")])
    (told,) = found.unmet
    assert told.startswith("hookflow needs pydantic>=1000, and ")


def test_the_bill_of_materials_has_them_all(environment: Environment) -> None:
    printed = subprocess.run([sys.executable, ROOT / "tools" / "sbom.py"], capture_output=True, text=True, check=True)
    bill = json.loads(printed.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {normal(one["name"]): one["version"] for one in bill["components"]} == {
        name: there.version for name, there in environment.found.items()
    }
    refs = {one["bom-ref"] for one in bill["components"]} | {"hookflow"}
    assert len(refs) == len(bill["components"]) + 1
    assert {each for one in bill["dependencies"] for each in (one["ref"], *one["dependsOn"])} == refs
