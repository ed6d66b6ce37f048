"""Commands to a running training.

The module has which there are, how they are sent, and how a process is ended.
"""

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import psutil

from hookflow.errors import nearest_or_all
from hookflow.events.log import LogAppender
from hookflow.events.records import CommandRecord
from hookflow.events.run_lock import holds
from hookflow.events.rundir import RunDir, user_name


class Command(NamedTuple):
    """A command: its name, the arguments that it takes, and what it does.

    One that is `destructive` discards work or ends the run: its sender asks the user first.
    """

    name: str
    takes: str
    about: str
    destructive: bool = False

    @property
    def min_args(self) -> int:
        """How many arguments it must be given: 0 or 1."""
        if self.takes and not self.takes.startswith("["):
            return 1
        return 0

    @property
    def max_args(self) -> int:
        """How many arguments it may be given: 0 or 1."""
        if self.takes:
            return 1
        return 0


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command("pause", "", "pause the training"),
        Command("resume", "", "end a pause"),
        Command("step", "", "train one iteration, then pause again"),
        Command("checkpoint", "", "save a checkpoint"),
        Command("validate", "", "validate now"),
        Command("trace", "[N]", "record the next N iterations, 10 by default, as a timeline"),
        Command("off", "HOOK", "switch a hook off"),
        Command("on", "HOOK", "switch a hook on again"),
        Command("set", "HOOK.ARGUMENT=VALUE", "set an argument that its hook declares settable"),
        Command(
            "rewind",
            "[CHECKPOINT]",
            "go back to a checkpoint, the latest by default",
            destructive=True,
        ),
        Command("stop", "", "stop the run, with a checkpoint", destructive=True),
    )
}
DEFAULT_TRACED_ITERATIONS = 10
"""Iterations that are traced where no number is given."""

MOST_TRACED = 1000


def find_command_problem(
    name: str, args: Sequence[str], settable: Mapping[str, Collection[str]]
) -> str:
    """Return why a command cannot be executed, whatever the run does; empty if it can.

    `settable` has every hook of the plan, with the arguments that may be set. The sender asks, and
    so does the run.
    """
    command = COMMANDS.get(name)
    if command is None:
        return f'there is no command "{name}"; {nearest_or_all(name, COMMANDS)}'
    usage = f"usage: {name} {command.takes}".rstrip()
    if not command.min_args <= len(args) <= command.max_args:
        return usage
    if command.takes == "[N]" and args and not _is_iteration_count(args[0]):
        return f"N must be an integer from 1 to {MOST_TRACED}, not {args[0]}"
    if name == "set":
        hook, argument, _ = split_setting(args[0])
        if not argument:
            return usage
        return _find_hook_problem(hook, settable) or _find_argument_problem(
            hook, argument, settable[hook]
        )
    if command.takes == "HOOK":
        return _find_hook_problem(args[0], settable)
    return ""


def _is_iteration_count(text: str) -> bool:
    return text.isdecimal() and 0 < int(text[:9]) <= MOST_TRACED


def _find_hook_problem(hook: str, settable: Mapping[str, Collection[str]]) -> str:
    if hook in settable:
        return ""
    return f'there is no hook "{hook}"; {nearest_or_all(hook, settable)}'


def _find_argument_problem(hook: str, argument: str, settable: Collection[str]) -> str:
    if argument in settable:
        return ""
    hint = nearest_or_all(argument, settable, "settable are", "none of its arguments")
    return f'hook "{hook}" does not declare "{argument}" settable; {hint}'


def split_setting(text: str) -> tuple[str, str, str]:
    """Return the hook, the argument and the value of `HOOK.ARGUMENT=VALUE`.

    The argument is empty where it is none.
    """
    key, _, value = text.partition("=")
    hook, _, argument = key.strip().rpartition(".")
    value = value.strip()
    if not hook or not value:
        return "", "", ""
    return hook, argument, value


def send(run: RunDir, command: str, *args: str) -> str:
    """Send a command to the run and return the id of its answer.

    Raises OSError without the right to write.
    """
    request = secrets.token_hex(4)
    log = LogAppender(run.commands)
    try:
        log.append(
            [CommandRecord(id=request, cmd=command, args=[*args], t=time.time(), by=user_name())]
        )
    finally:
        log.close()
    return request


STOP_SIGNALS = ((signal.SIGTERM, 0.5), (signal.SIGINT, 10.0), (signal.SIGKILL, 10.0))
"""The signals and the seconds to wait after each.

SIGINT, the second, interrupts a hook or the wait for data.
"""

POLL_PERIOD_SECONDS = 0.1


def stop_now(run: RunDir, say: Callable[[str], None]) -> bool:
    """End the process of a run on this machine, with those that it has started.

    Returns whether the process is gone. It is the one which `run.json` names, if it holds the lock:
    the file may be a copy, or of a run that is over. `say` receives each signal. Raises
    PermissionError for a process of another user.
    """
    for number, patience in STOP_SIGNALS:
        if run.life() != "alive":
            break
        pid = run.describe()["pid"]
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            try:
                holds_lock = holds(pid, run.path)
            except psutil.AccessDenied:
                raise PermissionError(1, f"process {pid} is another user's") from None
            if not holds_lock:
                say(
                    f"process {pid}, which run.json names, does not hold the lock of this run: it"
                    " is left alone"
                )
                return False
            say(f"{number.name} sent to process {pid}")
            process = psutil.Process(pid)
            if number == signal.SIGKILL:
                _kill_children(process)
            process.send_signal(number)
        until = time.monotonic() + patience
        while run.life() == "alive" and time.monotonic() < until:
            time.sleep(POLL_PERIOD_SECONDS)
    gone = run.life() != "alive"
    say("the process has ended" if gone else "the process does not end, even by SIGKILL")
    return gone


def _kill_children(process: psutil.Process) -> None:
    """Kill the processes that a process has started: once it is gone, no other would end them."""
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
