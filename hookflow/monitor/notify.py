"""The notifications of a run: `python -m hookflow.monitor.notify` watches it, and sends what `[notify]` asks for.

The command that starts a training starts this process beside it, in a session of its own. It outlives the terminal,
the dashboard and a training that is killed, and it reads nothing but the logs.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from hookflow.errors import Problem
from hookflow.events.process_life import started_at
from hookflow.events.records import Record
from hookflow.events.rundir import RunDir
from hookflow.monitor.feed import Live
from hookflow.monitor.health import judge
from hookflow.monitor.plain import StallWatch
from hookflow.monitor.series import Best
from hookflow.monitor.summary import summary
from hookflow.numbers import number, one_line
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.references import interpolate
from hookflow.pipeline.registry import missing_package
from hookflow.pipeline.schema import NotifySection, Occasion
from hookflow.pipeline.source_map import SourceMap
from hookflow.text import mask, mask_streams, print_error, printable, printable_lines

PAUSES = (2.0, 8.0)
"""Seconds between the tries to send a notification."""

LONGEST = 20.0
"""Seconds after which a command is killed, with the processes that it has started."""

PERIOD = 0.5
"""Seconds between looks at the logs."""

GRACE = 2.0
"""Seconds in which the command that has started a killed training records its end."""

APART = 60.0
"""Seconds between two notifications of a new best value, or of warnings; what comes in between is sent as one."""

UNHEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that have no effect here: they are for the training, whose end is to be sent."""


class Message(NamedTuple):
    """A message: the occasion, a title of one line, and a text."""

    occasion: Occasion
    title: str
    text: str


def wrong_notifications(loaded: Loaded) -> Iterator[Problem]:
    """Yield what keeps the notifications of a pipeline from being sent. Nothing is sent."""
    section = loaded.pipeline.notify
    if section is None:
        return
    if section.to:
        missing = missing_package("notify.to", "apprise", "notify", loaded.places.of("notify.to"))
        if missing is not None:
            yield missing
        else:
            for k, address in enumerate(section.to):
                if _service(address) is None:
                    message = f'"{address}" is no address that apprise knows'
                    hint = 'write one as "ntfys://ntfy.sh/topic"; the documentation of apprise lists them'
                    yield Problem(message, loaded.places.of(f"notify.to.{k}"), hint)
    if section.command and shutil.which(section.command[0]) is None:
        message = f'there is no program "{section.command[0]}"'
        yield Problem(message, loaded.places.of("notify.command.0"), "a path is relative to the current directory")


def _service(address: str) -> Any:
    """Return the service that apprise knows an address of; None where it knows none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports every service, and some use what is deprecated
        import apprise

        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # what it reports is taken by `_post`
        asset = apprise.AppriseAsset(app_id="hookflow", app_desc="hookflow", app_url="")
        return apprise.Apprise.instantiate(address, asset=asset)


class Sender:
    """Sends messages to every address and to the command of `[notify]`, each with tries."""

    def __init__(self, section: NotifySection, run: RunDir) -> None:
        self._section, self._run = section, run
        self._services = {f"address {k}": _service(address) for k, address in enumerate(section.to, 1)}
        self._failing: set[str] = set()

    def send(self, message: Message) -> list[str]:
        """Send a message and return why it did not arrive, in a sentence for each place.

        A place where the last message did not arrive is tried once: the others do not wait for it.
        """
        ways: dict[str, Callable[[Message], str]] = {name: partial(_post, it) for name, it in self._services.items()}
        if self._section.command:
            ways[self._section.command[0]] = self._call
        failed = {name: why for name, send in ways.items() if (why := send(message))}
        for pause in PAUSES:
            again = failed.keys() - self._failing
            if again:
                time.sleep(pause)
            for name in again:
                if why := ways[name](message):
                    failed[name] = why
                else:
                    del failed[name]
        self._failing = {*failed}
        return [f"{message.occasion} was not sent to {name}: {why}" for name, why in failed.items()]

    def _call(self, message: Message) -> str:
        """Run the command with the message; return why that has failed, if it has."""
        facts = {"OCCASION": message.occasion, "TITLE": message.title, "RUN": str(self._run.path)}
        environment = {**os.environ, **{f"HOOKFLOW_{name}": value for name, value in facts.items()}}
        text = f"{message.title}\n{message.text}\n"
        try:
            code, errors = _run_command(self._section.command or (), text, environment)
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)
        except subprocess.TimeoutExpired:
            return f"it has not ended after {LONGEST:g} s"
        if code == 0:
            return ""
        lines = errors.strip().splitlines()
        return f"exit code {code}: {lines[-1]}" if lines else f"exit code {code}"


def _run_command(command: Sequence[str], text: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command with `text` as its input; return its exit code, and what it has written to stderr.

    The streams are files and no pipes: a process that the command leaves behind may keep those open for ever. After
    LONGEST seconds the command is killed with all that it has started, and TimeoutExpired is raised.
    """
    with TemporaryFile() as given, TemporaryFile() as errors:
        given.write(text.encode(errors="replace"))
        given.seek(0)
        streams: dict[str, Any] = {"stdin": given, "stdout": subprocess.DEVNULL, "stderr": errors}
        process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        try:
            code = process.wait(LONGEST)
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
            return next(reversed(log.getvalue().strip().splitlines()), "apprise does not say why")
    except Exception as error:  # whatever the library of a service raises
        return f"{type(error).__name__}: {error}"


class Watch:
    """Turns the log of one attempt at a run, from the moment `since` on, into messages."""

    def __init__(self, run: RunDir, wanted: Sequence[Occasion], pid: int, since: float) -> None:
        self._run, self._wanted, self._since = run, wanted, since
        self._pid, self._started = pid, started_at(pid)
        self._live = Live(run)
        self._stall, self._stalled = StallWatch(run, self._live), False
        self._begun = False
        self._best: dict[str, Best] = {}
        self._seen = 0  # entries of the journal
        self._texts: set[str] = set()  # warnings that were sent
        self._gone: float | None = None  # since when no process of the run is alive
        self._held: dict[Occasion, list[str]] = {}
        self._sent: dict[Occasion, float] = {}

    def look(self) -> tuple[list[Message], bool]:
        """Return the messages that are due, and whether they are the last ones."""
        over = self._over()  # before the look at the logs, so that nothing comes after
        for rank, record in self._live.records():
            if rank == 0:
                self._take(record, new=record["t"] >= self._since)
        self._warn()
        messages = [*self._due(everything=over)]
        if self._begun and (stall := self._stall.look(time.time())):
            condition, sentence = stall
            if (stalled := condition == "stalled") != self._stalled:  # once, however long it lasts
                messages.append(self._message("stall", f"{condition}: {sentence}", []))
            self._stalled = stalled
        if over:
            title, *rest = summary(self._run, self._live.state, self._live.plan)
            bad = judge(self._run, self._live.state, time.time()).bad or self._live.state.refused is not None
            messages.append(Message("failure" if bad else "end", title, "\n".join([*rest, *self._host()])))
        return [message for message in messages if message.occasion in self._wanted], over

    def _over(self) -> bool:
        """Say whether nothing more will come of this attempt."""
        end = self._live.state.refused or self._live.state.end
        if end is not None and end["t"] >= self._since:
            return True
        if (self._started is not None and started_at(self._pid) == self._started) or self._run.life() == "alive":
            self._gone = None
            return False
        self._gone = time.monotonic() if self._gone is None else self._gone
        return time.monotonic() > self._gone + GRACE

    def _take(self, record: Record, *, new: bool) -> None:
        """Hold a new best value of a monitored metric, or of any whose mode is known where none is monitored."""
        self._begun |= new and record["k"] == "run"
        state = self._live.state
        for name in (state.monitored or state.metrics.best) if record["k"] == "metrics" else ():
            best = state.metrics.best.get(name)
            if best is not None and best != self._best.get(name):
                self._best[name] = best
                if new:
                    self._hold("best", f"best {name} {number(best.value)} at epoch {best.ep}, iteration {best.it}")

    def _warn(self) -> None:
        """Hold the warnings and errors that are new in the journal, but those that the message of a failure has."""
        entries = self._live.state.journal.since(self._seen)
        self._seen = entries[-1].number + 1 if entries else self._seen
        for entry in entries:
            if entry.trouble and entry.t >= self._since and not entry.ends_run:
                text = f"{entry.source}: {one_line(entry.text)}"
                if text not in self._texts:
                    self._texts.add(text)
                    self._hold("warning", text)

    def _hold(self, occasion: Occasion, text: str) -> None:
        self._held.setdefault(occasion, []).append(text)

    def _due(self, everything: bool) -> Iterator[Message]:
        """Yield what is held and due: of best values the last, of warnings all."""
        for occasion, texts in list(self._held.items()):
            now = time.monotonic()
            if everything or now >= self._sent.get(occasion, -APART) + APART:
                del self._held[occasion]
                self._sent[occasion] = now
                last, *rest = texts[::-1]
                yield self._message(occasion, last, rest[::-1] if occasion == "warning" else [])

    def _message(self, occasion: Occasion, title: str, more: Sequence[str]) -> Message:
        name = f"{self._run.path.parent.name} {self._run.id}"
        return Message(occasion, printable(f"{name}: {title}"), printable_lines("\n".join([*more, *self._host()])))

    def _host(self) -> list[str]:
        host = self._live.state.run.get("host")
        return [f"on {host}"] if host else []


def section_of(written: Mapping[str, Any]) -> NotifySection:
    """Return the recorded section with the values of the environment, which are masked from now on.

    Raises ValueError where a variable is missing.
    """
    tree, unresolved, variables = interpolate({"notify": dict(written)}, SourceMap("[notify]"), os.environ)
    if unresolved:
        raise ValueError("; ".join(problem.message for problem in unresolved.values()))
    mask({name: os.environ[name] for name in variables if name in os.environ})
    return NotifySection.model_validate(tree["notify"])


def main() -> None:
    """Watch a run to its end; the exit code is 1 where a notification was not sent."""
    mask_streams()
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=lambda path: RunDir(Path(path)))
    parser.add_argument("section", type=json.loads)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--since", type=float, required=True)
    provided = parser.parse_args()
    for signal_ in UNHEARD:
        signal.signal(signal_, lambda got, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, UNHEARD)
    raise SystemExit(execute(provided.run_dir, provided.section, provided.pid, provided.since))


def execute(run: RunDir, written: Mapping[str, Any], pid: int, since: float) -> int:
    """Send what is due until the attempt at the run is over; return 1 where something was not sent.

    Messages that were not sent are printed, into the output of the run, which viewers show live.
    """
    watch = Watch(run, NotifySection.model_validate(written).on, pid, since)
    try:
        sender = Sender(section_of(written), run)
    except Exception as error:  # a variable or a package that was there when the run was checked
        print_error(f"notify: nothing is sent: {error}")
        return 1
    failed = over = False
    while not over:
        messages, over = watch.look()
        for message in messages:
            for why in sender.send(message):
                failed = True
                print_error(f"notify: {why}")
        time.sleep(0 if over else PERIOD)
    return int(failed)


if __name__ == "__main__":
    main()
