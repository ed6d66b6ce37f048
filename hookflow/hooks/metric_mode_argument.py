"""The argument by which a hook that monitors a metric is told what is better."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hookflow.metric_mode import Mode

ModeArgument = Annotated[
    Mode | None, Field(description="whether more or less of the metric is better; its name says it if left out")
]
