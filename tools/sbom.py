"""Prints the bill of materials of this environment: hookflow and all that it needs, as CycloneDX 1.6 in JSON.

It reads the metadata that the packages have installed beside themselves, so it needs no network and no package of its
own: `make sbom > sbom.json`. `tests/test_dependencies.py` holds what it finds against `constraints.txt`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CONSTRAINTS = ROOT / "constraints.txt"


def normal(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Return the version that `constraints.txt` has for each package."""
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def declared(*extras: str) -> list[Requirement]:
    """Return what pyproject.toml asks for, with these extras or with all."""
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras or optional for line in optional[extra])]
    return [Requirement(line) for line in lines]


class Environment:
    """What is installed of hookflow's dependencies: `found` by name, what each `needs`, and what is `missing`."""

    def __init__(self, roots: list[Requirement]) -> None:
        self.found: dict[str, Distribution] = {}
        self.needs: dict[str, set[str]] = {}
        self.unmet: list[str] = []
        """Requirements of an installed package that another one does not meet, as sentences."""
        for root in roots:
            self._follow(root, "hookflow", optional=True)

    def _follow(self, requirement: Requirement, by: str, *, optional: bool = False) -> None:
        name = normal(requirement.name)
        try:
            there = distribution(requirement.name)
        except PackageNotFoundError:
            if not optional:
                self.unmet.append(f"{by} needs {requirement}, and it is not installed")
            return
        if not requirement.specifier.contains(there.version, prereleases=True):
            self.unmet.append(f"{by} needs {requirement}, and {there.version} is installed")
        self.needs.setdefault(by, set()).add(name)
        known = name in self.found
        self.found[name] = there
        if not known or requirement.extras:
            for needed in _needed(there, requirement.extras):
                self._follow(needed, name)


def _needed(of: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in of.requires or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


def bill(environment: Environment) -> dict[str, Any]:
    """Return the bill of materials."""
    components = [_component(there) for _, there in sorted(environment.found.items())]
    whole = {"type": "application", "name": "hookflow", "version": PROJECT["version"], "bom-ref": "hookflow"}
    whole["licenses"] = [{"license": {"id": PROJECT["license"]}}]  # type: ignore[assignment]
    refs = {normal(component["name"]): component["bom-ref"] for component in components} | {"hookflow": "hookflow"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": whole},
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(refs[needed] for needed in environment.needs.get(name, ()))}
            for name, ref in refs.items()
        ],
    }


def _component(of: Distribution) -> dict[str, Any]:
    name, version = of.metadata["Name"], of.version
    purl = f"pkg:pypi/{normal(name)}@{version.replace('+', '%2B')}"
    component = {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
    if licence := of.metadata.get("License-Expression"):
        component["licenses"] = [{"expression": licence}]
    return component


if __name__ == "__main__":
    json.dump(bill(Environment(declared())), sys.stdout, indent=2)
    print()
