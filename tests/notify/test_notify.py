"""Notifications: what is sent about a run, by whom,
and what becomes of a message that does not arrive.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hookflow.events.rundir import RunDir
from hookflow.notify import sender as sending
from hookflow.notify import watch as watching
from hookflow.notify.process import notify_until_end
from hookflow.notify.sender import Message, MessageSender
from hookflow.notify.watch import RunWatch
from hookflow.pipeline.schema import NotifySection, Occasion
from tests.cli.conftest import refused
from tests.conftest import TOY, Trained, hookflow, strikes, wait_for
from tests.monitor.fake_run import BEGAN, append, make, record
from tests.runner.same import logged

EVERY: tuple[Occasion, ...] = ("end", "failure", "stall", "best", "warning")
TELL = """\
import os, sys
with open("told.txt", "a") as file:
    print(os.environ["HOOKFLOW_OCCASION"], sys.stdin.read().splitlines(), sys.argv[1:], file=file)
"""
VALUE = "a-long-secret-value"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipeline that notifies by a command."""
    monkeypatch.setenv("TOKEN", VALUE)
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "p.toml").write_text(
        f'extends = "{TOY}"\n[notify]\ncommand = ["{sys.executable}", "tell.py",'
        ' "${env:TOKEN}"]\non = ["end", "failure", "best"]\n[run]\nthreads = 1\n'
    )
    return tmp_path


def told(folder: Path) -> list[str]:
    file = folder / "told.txt"
    return file.read_text().splitlines() if file.exists() else []


def test_the_command_is_given_the_best_value_and_the_end(folder: Path) -> None:
    done = hookflow("run", "p.toml", "--ui=plain", cwd=folder, code=0)
    *best, end = told(folder)
    assert [line.split()[0] for line in best] == ["best"] * len(best) != []
    assert "best accuracy" in best[0] or "best loss" in best[0]
    assert end.startswith("end [")
    assert "finished after" in end
    assert VALUE in end  # the command has it, and nothing else
    for file in folder.rglob("runs/**/*"):
        assert not file.is_file() or VALUE.encode() not in file.read_bytes(), file
    assert VALUE not in done.stdout + done.stderr


def test_the_command_may_move_the_log_elsewhere(folder: Path) -> None:
    """As MMEngine's LoggerHook does with `out_dir`, `out_suffix` and `keep_local`."""
    moves = 'notify.command=["sh", "-c", "mkdir -p logs && mv $HOOKFLOW_RUN/*.jsonl logs"]'
    more = [
        "run.max_epochs=1",
        'notify.on=["end"]',
        'hooks.last={use="log", every="1ep"}',
        'hooks.log.points=[{at="after_train_iter", every=2}]',
    ]
    hookflow(
        "run",
        "p.toml",
        "--ui=none",
        *(f"--set={key}" for key in (moves, *more)),
        cwd=folder,
        code=0,
    )
    assert not [*folder.glob("runs/*/*/*.jsonl")]
    records = [
        json.loads(line) for line in (folder / "logs" / "events.jsonl").read_text().splitlines()
    ]
    assert [record["status"] for record in records if record["k"] == "end"] == ["finished"]
    assert [*logged(RunDir(folder / "logs"), "loss")] == [
        2,
        4,
        5,
    ], "also the last of five, as without `ignore_last`"


@pytest.mark.parametrize("how", ["--ui=none", "--detach"])
def test_a_killed_training_is_a_failure(folder: Path, how: str) -> None:
    (kill,) = strikes(folder, signal.SIGKILL, ("after_train_iter", 7))
    hookflow("run", "p.toml", how, "--set", kill, cwd=folder)
    wait_for(lambda: any(line.startswith("failure") for line in told(folder)), "the notification")
    assert ("killed by SIGKILL" in told(folder)[-1]) is (how != "--detach")
    assert "killed" in told(folder)[-1]


def whole(watch: RunWatch) -> list[Message]:
    """Return every message of a run that is over."""
    messages, over = watch.look()
    more, again = watch.look()
    assert (over, again) == (False, True)
    return messages + more


def test_the_messages_of_a_run(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained()
    messages = whole(RunWatch(run, EVERY, os.getpid(), 0.0))
    assert [message.occasion for message in messages] == ["best", "warning", "end"]
    assert "SYNTHETIC" in messages[1].title
    assert "finished after" in messages[-1].title
    assert "best accuracy" in messages[-1].text
    assert [each.occasion for each in whole(RunWatch(run, ["end"], os.getpid(), 0.0))] == ["end"]
    later = RunWatch(run, EVERY, os.getpid(), time.time() + 100)  # of an attempt that has not begun
    assert later.look() == ([], False)
    after = 1000
    clock = SimpleNamespace(time=lambda: time.time() + after, monotonic=time.monotonic)
    monkeypatch.setattr(watching, "time", clock)
    run.events.write_text(
        "".join(line for line in run.events.read_text().splitlines(True) if '"k":"end"' not in line)
    )
    monkeypatch.setattr(RunDir, "life", lambda self: "alive")
    hanging = RunWatch(run, ["stall"], os.getpid(), 0.0)
    (stall,), over = hanging.look()
    assert not over
    assert "stalled: no progress for" in stall.title
    after = 9000
    assert hanging.look() == ([], False)  # it is sent once


def test_an_error_that_a_run_survives_is_sent_whatever_its_text(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", upto=60)
    survived = record(
        "error", hook="visual", point="after_val", action="ignore", text="ends the run: not at all"
    )
    fatal = record("error", hook="clip", point="after_backward", action="raise", text="too large")
    append(run, [survived, fatal])
    watch = RunWatch(run, ["warning"], os.getpid(), BEGAN + 99)
    (warning,), _ = watch.look()
    assert "not at all" in warning.title
    assert "too large" not in f"{warning.title} {warning.text}", "the message of the failure has it"


class Server(http.server.BaseHTTPRequestHandler):
    """Refuses the first requests, and keeps what the others bring."""

    refusals = 0
    taken: list[dict[str, str]] = []  # noqa: RUF012  # of the test

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if type(self).refusals:
            type(self).refusals -= 1
            self.send_error(503)
            return
        self.taken.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("apprise")
    monkeypatch.setattr(sending, "RETRY_PAUSES", (0.0, 0.0))
    Server.taken = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield f"json://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_apprise_sends_and_tries_again(
    trained: Trained, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, section = trained(), {"to": [address], "on": ["end"]}
    Server.refusals = 2
    assert notify_until_end(run, section, os.getpid(), 0.0) == 0
    (message,) = Server.taken
    assert "finished after" in message["title"]
    assert "best accuracy" in message["message"]
    Server.refusals = 10
    assert notify_until_end(run, section, os.getpid(), 0.0) == 1
    assert Server.refusals == 7
    assert "notify: end was not sent to address 1: " in capsys.readouterr().err
    sender = MessageSender(NotifySection(to=[address]), run)
    assert sender.send(Message("end", "t", "x"))
    assert Server.refusals == 4
    assert sender.send(Message("end", "t", "x"))
    assert Server.refusals == 3  # a place that has failed is tried once
    Server.refusals = 0
    assert not sender.send(Message("end", "t", "x"))


def test_a_command_that_fails_is_reported(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "RETRY_PAUSES", ())
    run = trained()

    def sent(*command: str) -> list[str]:
        return MessageSender(NotifySection(command=[*command]), run).send(Message("end", "t", "x"))

    code = "import sys; sys.exit('no network')"
    why = f"end was not sent to {sys.executable}: exit code 1: no network"
    assert sent(sys.executable, "-c", code) == [why]
    assert sent("/nowhere/to/be") == [
        "end was not sent to /nowhere/to/be: No such file or directory"
    ]
    monkeypatch.setattr(sending, "COMMAND_TIMEOUT", 0.0)
    (late,) = sent(sys.executable, "-c", "import time; time.sleep(100)")
    assert "it has not ended after 0 s" in late


LEAVES = """
import subprocess, sys
sys.stdin.read()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10**6)"])
open("children", "a").write(f"{child.pid}\\n")
"""


@pytest.fixture
def children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[psutil.Process]]]:
    """Return the processes that the commands of a test have started."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "children"

    def started() -> list[psutil.Process]:
        pids = file.read_text().splitlines() if file.exists() else []
        return [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]

    yield started
    for process in started():
        process.kill()


def test_a_command_that_leaves_a_child_is_called_once(
    trained: Trained, children: Callable[[], list[psutil.Process]]
) -> None:
    sender = MessageSender(NotifySection(command=[sys.executable, "-c", LEAVES]), trained())
    assert sender.send(Message("end", "t", "x")) == []
    (child,) = children()
    assert child.is_running()


def test_a_command_that_hangs_is_killed_with_its_children(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, children: Callable[[], list[psutil.Process]]
) -> None:
    monkeypatch.setattr(sending, "RETRY_PAUSES", ())
    sender = MessageSender(
        NotifySection(command=[sys.executable, "-c", f"{LEAVES}\nchild.wait()"]), trained()
    )
    wait = subprocess.Popen.wait

    def wait_until_begun(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        wait_for(children)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_begun)
    (late,) = sender.send(Message("end", "t", "x"))
    assert "has not ended" in late
    wait_for(
        lambda: all(not it.is_running() or it.status() == psutil.STATUS_ZOMBIE for it in children())
    )


def test_what_cannot_be_sent_is_refused_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")
    file = tmp_path / "p.toml"

    def wrong(lines: str) -> str:
        file.write_text(f'extends = "{TOY}"\n[notify]\n{lines}\n')
        return refused("run", file, "--detach")

    assert f'{file}:3:7: "nonsense://x" ' in wrong('to = ["nonsense://x"]')
    assert f'{file}:3:12: there is no program "./no.sh"' in wrong('command = ["./no.sh"]')
    assert "nothing is sent anywhere" in wrong('on = ["end"]')
    assert 'did you mean "best"?' in wrong('command = ["true"]\non = ["bets"]')
    monkeypatch.setattr("hookflow.pipeline.registry.find_spec", lambda name: None)
    assert "pip install 'hookflow[notify]'" in wrong('to = ["ntfy://topic"]')
