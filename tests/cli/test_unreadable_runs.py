"""Runs that the system does not let anybody read or write, or whose mount has gone: one line, and no run is hidden."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hookflow.cli.complete import _runs
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from tests.cli.conftest import called
from tests.conftest import TOY

VERSION = 0x20080522
"""Of what `capget` and `capset` are given: two sets of 32 capabilities."""

OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root's way past the permissions of files."""


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Let the permissions of files hold for this thread, be it root's; the test is skipped where that cannot be."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads every file on this system")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    before = sets[0]
    sets[0] = before & ~OVERRIDE
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


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
    [("name", errno.ENOTCONN), ("run", errno.ESTALE), ("alone", errno.EIO), ("root", errno.ENOTCONN)],
)
def test_one_that_cannot_be_read_is_one_line(
    run: RunDir, here: Path, monkeypatch: pytest.MonkeyPatch, answer: int, where: str
) -> None:
    toy = run.path.parent
    dead = {"name": here / "runs" / "zzz", "run": toy / "99990101-000000-dead", "alone": toy}.get(where, here / "runs")
    dead.mkdir(exist_ok=True)
    break_mount(monkeypatch, dead, answer)
    line = f"{dead.relative_to(here)} cannot be read: {os.strerror(answer)}"
    seen = where in ("name", "run")
    code, text = called("runs")
    assert (code, text.count(line), run.id in text) == (0, 1, seen), text
    for arguments in (("show",), ("watch", "--ui=plain"), ("checkpoints",), ("graph", run.id), ("export",)):
        code, text = called(*arguments)
        assert (code, line in text) == (0, False) if seen else (2, True), (arguments, text)
    code, text = called("show", "nowhere")
    assert (code, line in text) == (2, True), text
    assert [name for name, _ in _runs(Path("runs"))] == ([run.id, "toy"] if seen else [])


@pytest.mark.parametrize("answer", [errno.ENOTCONN, errno.ESTALE, errno.EIO], ids=errno.errorcode.get)
def test_a_run_that_is_named_and_cannot_be_read(run: RunDir, monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
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


def test_one_that_cannot_be_read_hides_no_other(run: RunDir) -> None:
    other = RunDir(shutil.copytree(run.path, run.path.with_name("20260101-000000-aaaa"), symlinks=True))
    run.events.chmod(0)
    code, text = denied("runs")
    run.events.chmod(0o600)
    assert code == 0
    assert f"{run.id} is unreadable: its event log cannot be read: Permission denied" in text
    (row,) = (line for line in text.splitlines() if line.startswith(other.id))
    assert "finished" in row


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


def test_what_run_json_lacks_is_told(run: RunDir) -> None:
    run.identity.write_text("{}")
    with pytest.raises(UserError, match=r"run\.json: it cannot be read, or does not say"):
        run.base()
