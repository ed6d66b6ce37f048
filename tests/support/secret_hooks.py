"""Hooks and a writer that are given secrets,
which the tests put into pipelines as "./secret_hooks.py:…".
"""

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from email.message import Message
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import torch

from hookflow import UserError
from hookflow.errors import Problem
from tests.support.own_writers import Notes


class Holds:
    """Logs whether its arguments are what the environment gives."""

    def __init__(
        self,
        token: str,
        headers: Mapping[str, str] | None = None,
        parts: Sequence[Any] = (),
        pin: int = 0,
    ) -> None:
        self.given = token, (headers or {}).get("auth", ""), pin, *parts

    def before_run(self, run: Any) -> None:
        token = os.environ["HOOKFLOW_TOKEN"]
        assert self.given == (
            token,
            f"Bearer {token}",
            271828182845904523,
            f"{token}-1",
            "${env:LITERAL}",
        ), "not as it was meant"
        run.say("it is what it should be")


class Knows(Notes):
    """Notes everything that it is given of the run, but its own token."""

    def __init__(self, file: str, token: str) -> None:
        assert token == os.environ["HOOKFLOW_TOKEN"]
        super().__init__(file)

    def write_config(self, config: Any) -> None:
        self.note("config", config)


class Leaks:
    """Lets its token into texts, in one of several ways, and raises in the end."""

    def __init__(self, token: str, how: str) -> None:
        self.token, self.how = token, how

    def before_train_iter(self, run: Any) -> None:
        if self.how == "url":
            raise HTTPError(
                f"https://example.com/push?token={quote(self.token)}",
                401,
                self.token,
                Message(),
                None,
            )
        if self.how == "key":
            raise KeyError(self.token)
        if self.how == "cause":
            try:
                raise ValueError(f"wrong: {self.token!r}")
            except ValueError as error:
                raise RuntimeError("refused") from error
        if self.how == "mistake":
            raise UserError(Problem(f"{self.token} is not accepted", hint=f"not {self.token}"))
        if self.how == "thread":
            thread = Thread(target=lambda: {}[self.token])
            thread.start()
            thread.join()
        print("with", self.token, f"key={self.token};", flush=True)
        warnings.warn(f"{self.token} is old", stacklevel=1)
        logging.getLogger("secretive").warning("%s is old", self.token)
        run.say(f"has {self.token}")
        run.log_text("sample", f"from {self.token}")
        sys.exit(f"{self.token} is too old")

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if args["how"] == "check":
            raise ValueError(f"refused: {args}")


class Names:
    """Names everything that it logs after its token."""

    def __init__(self, token: str) -> None:
        self.token = token

    def after_train_iter(self, run: Any) -> None:
        run.log(f"{self.token}/number", 0.5)
        if run.iter == 2:
            run.log_image(f"{self.token}/image", torch.zeros(2, 2, 3))
            run.log_histogram(f"{self.token}/histogram", torch.arange(3.0))
            run.log_text(f"{self.token}/text", "plain")

    def after_val_epoch(self, metrics: Any) -> None:
        metrics[f"{self.token}/metric"] = 0.25

    def before_train_epoch(self, run: Any) -> None:
        if run.epoch:
            run.say(f"has its metric: {run.metrics[f'{self.token}/metric'] == 0.25}")
