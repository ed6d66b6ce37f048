"""The section `[notify]` of a pipeline.

It finds what keeps it from being followed, and its values from the environment.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from hookflow.errors import Problem
from hookflow.notify.sender import find_service
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.references import interpolate
from hookflow.pipeline.registry import missing_package
from hookflow.pipeline.schema import NotifySection
from hookflow.pipeline.source_map import SourceMap
from hookflow.text import mask


def find_notification_problems(loaded: Loaded) -> Iterator[Problem]:
    """Yield what keeps the notifications of a pipeline from being sent. Nothing is sent."""
    section = loaded.pipeline.notify
    if section is None:
        return
    if section.to:
        missing = missing_package("notify.to", "apprise", "notify", loaded.places.of("notify.to"))
        if missing is not None:
            yield missing
        else:
            yield from _find_address_problems(section, loaded)
    if section.command and shutil.which(section.command[0]) is None:
        message = f'there is no program "{section.command[0]}"'
        yield Problem(
            message,
            loaded.places.of("notify.command.0"),
            "a path is relative to the current directory",
        )


def _find_address_problems(section: NotifySection, loaded: Loaded) -> Iterator[Problem]:
    for place, address in enumerate(section.to):
        if find_service(address) is None:
            message = f'"{address}" is no address that apprise knows'
            hint = 'write one as "ntfys://ntfy.sh/topic"; the documentation of apprise lists them'
            yield Problem(message, loaded.places.of(f"notify.to.{place}"), hint)


def read_section(recorded: Mapping[str, Any]) -> NotifySection:
    """Return the recorded section with the values of the environment, which are masked from now on.

    Raises ValueError where a variable is missing.
    """
    interpolation = interpolate({"notify": dict(recorded)}, SourceMap("[notify]"), os.environ)
    if interpolation.problems:
        raise ValueError("; ".join(problem.message for problem in interpolation.problems.values()))
    mask({name: os.environ[name] for name in interpolation.variables if name in os.environ})
    return NotifySection.model_validate(interpolation.resolved["notify"])
