"""Sends messages: to services by apprise, and to a command of the user's."""

import logging
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from hookflow.events.rundir import RunDir
from hookflow.pipeline.schema import NotifySection, Occasion

RETRY_PAUSES = (2.0, 8.0)
"""Seconds between the tries to send a message."""

COMMAND_TIMEOUT = 20.0
"""Seconds after which a command is killed, with the processes that it has started."""


class Message(NamedTuple):
    """A message: the occasion, a title of one line, and a text."""

    occasion: Occasion
    title: str
    text: str


def find_service(address: str) -> Any:
    """Return the service that apprise knows an address of; None where it knows none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports every service, and some use what is deprecated
        import apprise

        # apprise logs its errors, and `_post` collects them.
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        asset = apprise.AppriseAsset(app_id="hookflow", app_desc="hookflow", app_url="")
        return apprise.Apprise.instantiate(address, asset=asset)


class MessageSender:
    """Sends messages to every address and to the command of `[notify]`, each with tries."""

    def __init__(self, section: NotifySection, run: RunDir) -> None:
        self._run = run
        self._command = section.command
        self._ways: dict[str, Callable[[Message], str]] = {}
        for number, address in enumerate(section.to, start=1):
            self._ways[f"address {number}"] = partial(_post, find_service(address))
        if section.command:
            self._ways[section.command[0]] = self._call
        self._failing: set[str] = set()  # where the last message did not arrive

    def send(self, message: Message) -> list[str]:
        """Send a message and return why it did not arrive, in a sentence for each place.

        A place where the last message did not arrive is tried once: the others do not wait for it.
        """
        failures = self._try(message, self._ways)
        for pause in RETRY_PAUSES:
            again = [name for name in failures if name not in self._failing]
            if again:
                time.sleep(pause)
                still_failing = self._try(message, again)
                for name in again:
                    del failures[name]
                failures |= still_failing
        self._failing = set(failures)
        return [
            f"{message.occasion} was not sent to {name}: {reason}"
            for name, reason in failures.items()
        ]

    def _try(self, message: Message, names: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
        """Send a message to these places, and return why that has failed, by place."""
        failures = {}
        for name in names:
            reason = self._ways[name](message)
            if reason:
                failures[name] = reason
        return failures

    def _call(self, message: Message) -> str:
        """Run the command with the message; return why that has failed, if it has."""
        environment = {
            **os.environ,
            "HOOKFLOW_OCCASION": message.occasion,
            "HOOKFLOW_TITLE": message.title,
            "HOOKFLOW_RUN": str(self._run.path),
        }
        text = f"{message.title}\n{message.text}\n"
        try:
            code, errors = _run_command(self._command or (), text, environment)
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)
        except subprocess.TimeoutExpired:
            return f"it has not ended after {COMMAND_TIMEOUT:g} s"
        if code == 0:
            return ""
        reason = f"exit code {code}"
        lines = errors.strip().splitlines()
        if lines:
            reason += f": {lines[-1]}"
        return reason


def _run_command(
    command: Sequence[str], text: str, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command with `text` as its input.

    Returns its exit code, and what it has written to stderr.

    The streams are files and no pipes: a process that the command leaves behind may keep those open
    for ever. After COMMAND_TIMEOUT seconds the command is killed with all that it has started, and
    TimeoutExpired is raised.
    """
    with TemporaryFile() as given, TemporaryFile() as errors:
        given.write(text.encode(errors="replace"))
        given.seek(0)
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(COMMAND_TIMEOUT)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def _post(service: Any, message: Message) -> str:
    """Send a message through a service of apprise; return why that has failed, if it has."""
    import apprise

    try:
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
            if service.notify(title=message.title, body=message.text):
                return ""
            lines = log.getvalue().strip().splitlines()
    except Exception as error:  # whatever the library of a service raises
        return f"{type(error).__name__}: {error}"
    return lines[-1] if lines else "apprise does not say why"
