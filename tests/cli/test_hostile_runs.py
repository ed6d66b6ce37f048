"""A run directory is data, whoever wrote it: garbled in any way, no command over it does worse than to say so."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

from hookflow.cli.app import main
from hookflow.cli.resume import resumed
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.monitor import jsonl, plain
from hookflow.monitor.feed import Recording
from hookflow.pipeline.load import parse
from hookflow.runner.launch import prepare
from tests.conftest import TESTS, TOY

ODD: list[Any] = [None, True, -1, 7, 1.5, 10**30, "x", "\x1b[31m", "../..", [], [1], {}, {"a": 1}, [[[[]]]], "nan", ""]
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1e400",
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00",
    b"9" * 5_000,
    b"NaN",
    b"\n\n",
]
SUFFIXES = (".json", ".jsonl", ".toml", ".bin")
SECONDS = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of runs with one that was trained, and has answered a command."""
    from hookflow.runner.process import train

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    loaded = parse(TOY.read_text(), TOY, ("run.threads=1", "run.max_epochs=2"))
    run = RunDir.create(tmp_path_factory.mktemp("hostile") / "runs", "toy")
    prepare(loaded, compile_pipeline(loaded), run, TESTS)
    assert train(run) == 0
    run.commands.write_text('{"id":"01234567","cmd":"pause","t":1.0,"by":"me"}\n')
    yield run.path.parents[1]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def garbled(data: bytes, chance: random.Random) -> bytes:
    """Return a file with something wrong in it: bytes, a line, or a value of its JSON."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(RAW)
    if kind == 1:
        return data[: chance.randrange(len(data) + 1)]
    if kind == 2 and data:
        flipped = bytearray(data)
        for _ in range(chance.randrange(1, 8)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        return bytes(flipped)
    lines = data.splitlines(keepends=True)
    if kind == 3 and lines:
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(RAW) + b"\n")
        return b"".join(lines)
    return other_value(data, chance)


def other_value(data: bytes, chance: random.Random) -> bytes:
    """Return JSON (or JSON lines) with one value swapped for an odd one, taken out, or with a key added."""
    try:
        whole = [json.loads(data)]
    except ValueError:
        try:
            whole = [json.loads(line) for line in data.splitlines() if line]
        except ValueError:
            return chance.choice(RAW)
    if not whole:
        return chance.choice(RAW)
    place: Any = whole
    key: Any = chance.randrange(len(whole))
    while isinstance(place[key], dict | list) and place[key] and chance.random() < 0.8:
        place = place[key]
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
    if isinstance(place, dict) and chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(ODD)
    text = "\n".join(json.dumps(one) for one in whole)
    return (text.replace("1.5", "1e400") if chance.random() < 0.1 else text).encode()


def command(*arguments: str) -> Callable[[RunDir], tuple[int, str]]:
    """Return what runs the command line, and returns its exit code and what it printed."""

    def run(run_dir: RunDir) -> tuple[int, str]:
        sys.argv = ["hookflow", *(str(run_dir.path) if one == "RUN" else one for one in arguments)]
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            try:
                main()
            except SystemExit as exit_:
                return int(exit_.code or 0), out.getvalue()
        return 0, out.getvalue()

    return run


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
    """Do what `--resume` does before it starts the training, the last of which is to write down what will be run."""
    try:
        resumed(str(run_dir.path), ["run.max_epochs=9"])
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
    "graph": command("graph", "RUN"),
    "diff": command("diff", "RUN", str(TOY)),
    "check": command("check", str(TOY)),
    "plain": followed(plain.follow),
    "json": followed(jsonl.follow),
    "replay": replayed,
    "resume": resumable,
}


def attack(trained: Path, folder: Path, seed: int) -> None:
    """Garble one file of a copy of the run, and let every reader read it."""
    chance = random.Random(seed)
    runs = folder / "runs"
    shutil.copytree(trained, runs, symlinks=True)
    run = RunDir(next(runs.glob("*/*")))
    files = sorted(
        path for path in run.path.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".toml", ".bin")
    )
    victim = chance.choice(files)
    data = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(garbled(data, chance))
    os.chdir(folder)
    for name, read in READERS.items():
        began = time.process_time()  # which a busy machine does not make longer
        code, text = read(run)
        told = f"seed {seed}, {victim.relative_to(run.path)}, {name}: exit code {code}\n{text}"
        assert code in (0, 1, 2), told
        assert "Traceback" not in text, told
        assert "\x1b" not in text, told
        assert time.process_time() - began < SECONDS, told
    shutil.rmtree(runs)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_wrong_in_it(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(gc, "set_threshold", lambda *given: None)
    for k in range(10):
        attack(trained, tmp_path, 10 * seed + k)


@pytest.mark.long
def test_whatever_is_wrong_in_it_thousands_of_times(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    for seed in range(1000, 6000):
        attack(trained, tmp_path, seed)
