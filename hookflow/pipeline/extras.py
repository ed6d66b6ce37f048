"""Packages that only an extra of hookflow installs, and what to say where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from hookflow.errors import Problem, Where


def missing_package(
    what: str, package: str, extra: str, where: Where | None = None, *, module: str = ""
) -> Problem | None:
    """Return the problem that `what` needs a package which is not installed, without importing it; None if it is.

    `module` is what it is imported as, if that is not the package's name.
    """
    if getattr(find_spec(module or package), "origin", None):  # a mere folder of that name has none
        return None
    said = f"{what} needs the package {package}, which is not installed"
    return Problem(said, where, f"pip install 'hookflow[{extra}]'")
