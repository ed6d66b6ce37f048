"""Run directories that are garbled, or that nobody may read:
no command over them does worse than to say so.
"""

import errno
import io
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from hookflow.cli.options import _list_run_completions
from hookflow.cli.resume import PipelineChanges, prepare_resume
from hookflow.errors import UserError
from hookflow.events.log import TailReader
from hookflow.events.reading import read_command
from hookflow.events.records import CommandRecord
from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.recording import Recording
from tests.cli.conftest import called
from tests.conftest import TOY
from tests.support.corruption import garbled
from tests.support.file_permissions import permissions_hold
from tests.support.random_records import hostile_line

SUFFIXES = (".json", ".jsonl", ".toml", ".bin")
SECONDS = 10


def command(*arguments: str) -> Callable[[RunDir], tuple[int, str]]:
    """Return what calls the command line, and returns its exit code and what it printed."""
    return lambda run: called(*(str(run.path) if word == "RUN" else word for word in arguments))


def followed(follow: Callable[..., int]) -> Callable[[RunDir], tuple[int, str]]:
    def run(run_dir: RunDir) -> tuple[int, str]:
        out = io.StringIO()
        return follow(run_dir, out, child_exit=lambda: 0), out.getvalue()

    return run


def replayed(run_dir: RunDir) -> tuple[int, str]:
    recording = Recording(run_dir)
    recording.seek(recording.last)
    recording.step(-3)
    return 0, ""


def resumable(run_dir: RunDir) -> tuple[int, str]:
    """Do what `--resume` does before it starts the training,
    the last of which is to write down what will be run.
    """
    try:
        prepare_resume(str(run_dir.path), PipelineChanges(("run.max_epochs=9",)))
    except UserError as error:
        return 2, str(error)
    except typer.Exit as ended:
        return ended.exit_code, ""
    return 0, ""


READERS: dict[str, Callable[[RunDir], tuple[int, str]]] = {
    "runs": command("runs"),
    "show": command("show", "RUN"),
    "checkpoints": command("checkpoints", "RUN", "--verify"),
    "export": command("export", "RUN"),
    "report": command("export", "RUN", "--format", "html"),
    "graph": command("graph", "RUN"),
    "diff": command("compare", "RUN", str(TOY)),
    "check": command("check", str(TOY)),
    "plain": followed(plain.print_run),
    "json": followed(plain.print_records),
    "replay": replayed,
    "resume": resumable,
}


def read_by_all(run: RunDir, what: str) -> dict[str, str]:
    """Let every reader read a run in the working directory, and return what each says;
    `what` is wrong with it.
    """
    outputs = {}
    for name, read in READERS.items():
        began = time.process_time()  # which a busy machine does not make longer
        code, text = read(run)
        printed = f"{what}, {name}: exit code {code}\n{text}"
        assert code in (range(256) if name in ("plain", "json") else (0, 1, 2)), printed
        assert "\x1b" not in text, printed
        assert time.process_time() - began < SECONDS, printed
        outputs[name] = text
    return outputs


def attack(run: RunDir, seed: int) -> None:
    """Garble one file of the run, let every reader read it, and put the file back."""
    chance = random.Random(seed)
    victim = chance.choice(
        sorted(path for path in run.path.rglob("*") if path.is_file() and path.suffix in SUFFIXES)
    )
    data = victim.read_bytes()
    kept = shutil.copytree(run.path, run.path.parents[2] / "kept", symlinks=True)
    victim.unlink()
    victim.write_bytes(garbled(data, chance))
    read_by_all(run, f"seed {seed}, {victim.relative_to(run.path)}")
    shutil.rmtree(run.path)
    kept.rename(run.path)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_wrong_in_it(run: RunDir, seed: int) -> None:
    for k in range(8):
        attack(run, 8 * seed + k)


def manifest(run: RunDir) -> Path:
    return next(run.checkpoints.glob("it*")) / "manifest.json"


def swap(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert re.search(old, text), old
    file.write_text(re.sub(old, new, text))


ODDITIES: dict[str, Callable[[RunDir], object]] = {
    "pid": lambda run: swap(run.path / "run.json", r'"pid": \d+', '"pid": "x"'),
    "created": lambda run: swap(run.path / "run.json", r'"created": [\d.]+', '"created": Infinity'),
    "overrides": lambda run: swap(run.path / "run.json", r'"overrides": \[', '"overrides": [-1, '),
    "environment": lambda run: swap(
        run.path / "run.json", "^{", '{"environment": {"values": [1], "key": 1},'
    ),
    "reason": lambda run: swap(run.events, r'"reason":"[^"]*"', '"reason":5'),
    "saved": lambda run: swap(manifest(run), r'"saved": [\d.]+', '"saved": "x"'),
    "plan": lambda run: run.plan.write_text("{"),
    "time": lambda run: swap(run.events, r'"k":"frame","t":[\d.]+', '"k":"frame","t":1e400'),
    "end": lambda run: swap(run.events, '{"k":"end","t"', '{"k":"end",\x05t"'),
    "first": lambda run: run.events.write_text(
        '{"k":"run","iters_per_epoch":' + "[" * 50_000 + "\n"
    ),
    "pipeline": lambda run: run.pipeline.write_text(f"[run]\nx = {'[' * 50_000}"),
    "bin": lambda run: swap(run.events, r'("iters":\[\d+,\d+,\d+,\d+,\[)\d+', r"\g<1>9999"),
    "records of every type": lambda run: run.events.write_bytes(
        run.events.read_bytes() + b"".join(hostile_line(random.Random(seed)) for seed in range(80))
    ),
}


@pytest.mark.parametrize("oddity", ODDITIES)
def test_a_value_of_another_type_is_not_believed(run: RunDir, trained: Path, oddity: str) -> None:
    ODDITIES[oddity](run)
    other = shutil.copytree(
        next(trained.glob("*/*")), run.path.with_name("20260101-000000-aaaa"), symlinks=True
    )
    outputs = read_by_all(run, oddity)
    (sound,) = (line for line in outputs["runs"].splitlines() if other.name in line)
    assert "✓ finished" in sound, "the other one is told as it is"
    assert run.id in outputs["runs"]


@pytest.mark.parametrize("other", ["a folder", "a file", "a link to itself", "a pipe"])
def test_something_else_in_its_place(run: RunDir, other: str) -> None:
    for name in ("checkpoints", "events.jsonl", "plan.json", "pipeline.toml"):
        place = run.path / name
        place.rename(run.path.parents[1] / name)
        make = {"a folder": Path.mkdir, "a file": Path.touch, "a pipe": os.mkfifo}
        make.get(other, lambda path: path.symlink_to(path.name))(place)
        for arguments in (("runs",), ("show", "RUN"), ("checkpoints", "RUN"), ("graph", "RUN")):
            code, text = command(*arguments)(run)
            assert code in (0, 1, 2), (name, arguments, text)
            assert arguments != ("runs",) or run.id in text
        place.rmdir() if other == "a folder" else place.unlink()
        (run.path.parents[1] / name).rename(place)


@pytest.mark.parametrize("other", ["a folder", "a link to itself"])
def test_something_else_in_place_of_the_lock(run: RunDir, other: str) -> None:
    lock = run.path / "lock"
    lock.mkdir() if other == "a folder" else lock.symlink_to("lock")
    code, text = command("run", "--resume", "RUN", "--ui", "none")(run)
    assert (code, text.partition(":")[0]) == (2, str(lock.relative_to(Path.cwd())))


def test_a_garbled_command_log_is_heard_for_what_it_still_says(tmp_path: Path) -> None:
    request = b'{"id":"01234567","cmd":"pause","t":1.0,"by":"me"}\n'
    for seed in range(300):
        file = tmp_path / "commands.jsonl"
        file.write_bytes(garbled(3 * request, random.Random(seed)) + b"\n" + request)
        assert TailReader[CommandRecord](file, read_command).read_all()[-1]["cmd"] == "pause", seed


@pytest.mark.long
def test_whatever_is_wrong_in_it_thousands_of_times(run: RunDir) -> None:
    for seed in range(1000, 6000):
        attack(run, seed)


def break_mount(monkeypatch: pytest.MonkeyPatch, mount: Path, answer: int) -> None:
    """Let the system answer so to whoever looks at a folder or below."""
    dead = str(mount)

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any = ".", *args: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.path.abspath(os.fspath(path)).startswith(dead):  # noqa: PTH100
                raise OSError(answer, os.strerror(answer), os.fspath(path))
            return call(path, *args, **named)

        return refuse

    for name in ("stat", "lstat", "listdir", "scandir", "open", "readlink"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        ("name", errno.ENOTCONN),
        ("run", errno.ESTALE),
        ("alone", errno.EIO),
        ("root", errno.ENOTCONN),
    ],
)
def test_one_that_cannot_be_read_is_one_line(
    run: RunDir, here: Path, monkeypatch: pytest.MonkeyPatch, answer: int, where: str
) -> None:
    toy = run.path.parent
    dead = {"name": here / "runs" / "zzz", "run": toy / "99990101-000000-dead", "alone": toy}.get(
        where, here / "runs"
    )
    dead.mkdir(exist_ok=True)
    break_mount(monkeypatch, dead, answer)
    line = f"{dead.relative_to(here)} cannot be read: {os.strerror(answer)}"
    seen = where in ("name", "run")
    code, text = called("runs")
    assert (code, text.count(line), run.id in text) == (0, 1, seen), text
    for arguments in (
        ("show",),
        ("watch", "--ui=plain"),
        ("checkpoints",),
        ("graph", run.id),
        ("export",),
    ):
        code, text = called(*arguments)
        assert (code, line in text) == (0, False) if seen else (2, True), (arguments, text)
    code, text = called("show", "nowhere")
    assert (code, line in text) == (2, True), text
    assert [name for name, _ in _list_run_completions(Path("runs"))] == (
        [run.id, "toy"] if seen else []
    )


@pytest.mark.parametrize(
    "answer", [errno.ENOTCONN, errno.ESTALE, errno.EIO], ids=errno.errorcode.get
)
def test_a_run_that_is_named_and_cannot_be_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    break_mount(monkeypatch, run.path, answer)
    for command in ("show", "watch", "checkpoints", "graph", "export", "stop"):
        code, text = called(command, str(run.path))
        assert code == 2, (command, text)
        assert os.strerror(answer) in text, (command, text)


RESUME = ("run", "--resume", "RUN", "--set", "run.max_epochs=9", "--ui", "none")
OF_A_RUN = [
    ("watch", "RUN", "--ui", "plain"),
    ("watch", "RUN", "--ui", "json"),
    ("checkpoints", "RUN"),
    ("show", "RUN"),
    ("export", "RUN"),
    ("graph", "RUN"),
    ("compare", "RUN", str(TOY)),
    ("stop", "RUN"),
    RESUME,
]


def denied(*arguments: str) -> tuple[int, str]:
    """Call the command line where the permissions of files hold."""
    with permissions_hold():
        return called(*arguments)


@pytest.mark.parametrize("arguments", OF_A_RUN, ids=[" ".join(item[:4]) for item in OF_A_RUN])
@pytest.mark.parametrize("of", ["directory", "event log"])
def test_a_run_that_cannot_be_read(run: RunDir, arguments: tuple[str, ...], of: str) -> None:
    refused = run.path if of == "directory" else run.events
    refused.chmod(0)
    code, text = denied(*(str(run.path) if item == "RUN" else item for item in arguments))
    refused.chmod(0o700)
    assert code == 2
    assert "Permission denied" in text
    assert run.id in text


def test_one_that_cannot_be_read_hides_no_other_and_what_run_json_lacks_is_told(
    run: RunDir,
) -> None:
    other = RunDir(
        shutil.copytree(run.path, run.path.with_name("20260101-000000-aaaa"), symlinks=True)
    )
    run.events.chmod(0)
    code, text = denied("runs")
    run.events.chmod(0o600)
    assert code == 0
    assert f"{run.id} is unreadable: " in text
    (row,) = (line for line in text.splitlines() if line.startswith(other.id))
    assert "finished" in row
    run.identity.write_text("{}")
    with pytest.raises(UserError, match=r"run\.json: it cannot be read, or does not say"):
        run.base()


@pytest.mark.parametrize(
    ("name", "mode", "arguments", "printed"),
    [
        ("checkpoints", 0, ("checkpoints", "RUN"), "checkpoints: Permission denied"),
        ("plan.json", 0, RESUME, "plan.json"),
        ("pipeline.toml", 0, RESUME, "pipeline.toml"),
        ("run.json", 0, RESUME, "run.json"),
        (".", 0o500, RESUME, "Permission denied"),
    ],
)
def test_what_cannot_be_read_or_written_is_not_taken_for_missing(
    run: RunDir, name: str, mode: int, arguments: tuple[str, ...], printed: str
) -> None:
    run.lock.unlink(missing_ok=True)
    (run.path / name).chmod(mode)
    code, text = denied(*(str(run.path) if item == "RUN" else item for item in arguments))
    (run.path / name).chmod(0o700)
    assert (code, printed in text) == (2, True), text
