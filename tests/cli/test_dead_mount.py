"""A mount whose server has gone, or a broken disk, at one entry of the runs: it is one line, and hides no run."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookflow.cli.app import main
from hookflow.cli.complete import _runs
from hookflow.events.rundir import RunDir
from tests.cli.test_hostile_runs import trained  # noqa: F401
from tests.conftest import TOY

ANSWERS = [errno.ENOTCONN, errno.ESTALE, errno.EIO]


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


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:  # noqa: F811
    shutil.copytree(trained, tmp_path / "runs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return RunDir(next((tmp_path / "runs").glob("*/*")))


def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["hookflow", *arguments])
    with pytest.raises(SystemExit) as leaves:
        main()
    text = "".join(capsys.readouterr())
    assert "Traceback" not in text, arguments
    return int(leaves.value.code or 0), text


@pytest.mark.parametrize("answer", ANSWERS, ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["name", "run", "alone", "root"])
def test_one_that_cannot_be_read_is_one_line(
    run: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: int,
    where: str,
) -> None:
    toy = run.path.parent
    dead = {"name": tmp_path / "runs" / "zzz", "run": toy / "99990101-000000-dead", "alone": toy}.get(
        where, tmp_path / "runs"
    )
    dead.mkdir(exist_ok=True)
    break_mount(monkeypatch, dead, answer)
    line = f"{dead.relative_to(tmp_path)} cannot be read: {os.strerror(answer)}"
    seen = where in ("name", "run")
    code, text = ended(monkeypatch, capsys, "runs")
    assert (code, text.count(line), run.id in text) == (0, 1, seen), text
    for arguments in (("show",), ("watch", "--ui=plain"), ("checkpoints",), ("graph", run.id), ("export",)):
        code, text = ended(monkeypatch, capsys, *arguments)
        assert (code, line in text) == (0, False) if seen else (2, True), (arguments, text)
    code, text = ended(monkeypatch, capsys, "show", "nowhere")
    assert (code, line in text) == (2, True), text
    code, text = ended(monkeypatch, capsys, "check", str(TOY))
    assert (code, "an epoch, as in the run" in text) == (0, seen), text
    assert [name for name, _ in _runs(Path("runs"))] == ([run.id, "toy"] if seen else [])


@pytest.mark.parametrize("answer", ANSWERS, ids=errno.errorcode.get)
def test_a_run_that_is_named_and_cannot_be_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: int
) -> None:
    break_mount(monkeypatch, run.path, answer)
    for command in ("show", "watch", "checkpoints", "graph", "export", "stop"):
        code, text = ended(monkeypatch, capsys, command, str(run.path))
        assert code == 2, (command, text)
        assert os.strerror(answer) in text, (command, text)
