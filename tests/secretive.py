"""A hook and a writer that are given secrets, which the tests put into pipelines as "./secretive.py:…"."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.own_writers import Notes


class Holds:
    """Logs whether its arguments are what the environment gives."""

    def __init__(
        self, token: str, headers: Mapping[str, str] | None = None, parts: Sequence[Any] = (), pin: int = 0
    ) -> None:
        self.given = token, (headers or {}).get("auth", ""), pin, *parts

    def before_run(self, run: Any) -> None:
        token = os.environ["HOOKFLOW_TOKEN"]
        assert self.given == (token, f"Bearer {token}", 271828182845904523, f"{token}-1", "${env:LITERAL}"), (
            "not as it was meant"
        )
        run.say("it is what it should be")


class Knows(Notes):
    """Notes everything that it is given of the run, but its own token."""

    def __init__(self, file: str, token: str) -> None:
        assert token == os.environ["HOOKFLOW_TOKEN"]
        super().__init__(file)

    def write_config(self, config: Any) -> None:
        self.note("config", config)
