"""`hookflow show`: a run on one page of plain text."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.cli.show import Page
from hookflow.events.records import stamped
from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.health import Health
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.state import RunState
from hookflow.runner.checkpoint.manifest import MANIFEST, TRAINING, VERSION
from tests.conftest import records
from tests.golden_files import check_golden
from tests.monitor.fake_run import BEGAN, make


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, where it is noon at Greenwich."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield tmp_path
    monkeypatch.undo()
    time.tzset()


def run_of(root: Path, upto: int | None = None) -> RunDir:
    """Write a run that finished, or was killed after so many frames; with two checkpoints, one of them damaged."""
    run = make(root / "runs", upto=upto)
    run.sign(created=BEGAN, source="pipelines/cifar.toml", overrides=["run.precision=bf16", "hooks.ema.args.decay=0.9"])
    if upto is not None:
        run.sign_process()
        run.sign(process_started=1.0)
    save(run, 196, 2)
    save(run, 392, 4, missing=1)
    (run.checkpoints / "best").symlink_to("it00000196")
    (run.checkpoints / "last").symlink_to("it00000392")
    return run


def save(run: RunDir, it: int, ep: int, missing: int = 0) -> None:
    """Write a checkpoint; so many of its bytes are missing."""
    folder = run.checkpoints / f"it{it:08}"
    folder.mkdir(parents=True)
    (folder / TRAINING).write_bytes(b"x" * 52_600)
    files = {TRAINING: {"bytes": 52_600 + missing, "sha256": ""}}
    printed = {"version": VERSION, "hookflow": "0.1.0", "it": it, "ep": ep, "files": files}
    (folder / MANIFEST).write_text(json.dumps(printed))


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["show", *arguments])
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    return done.stdout


@pytest.mark.parametrize(("upto", "golden"), [(None, "show-finished.txt"), (60, "show-lost.txt")])
def test_a_run_that_finished_or_was_killed(here: Path, upto: int | None, golden: str) -> None:
    run_of(here, upto)
    check_golden(golden, shown("cifar"))


def test_each_attempt_is_shown_with_what_had_changed_and_how_it_ended(here: Path) -> None:
    """The first left no end record, the second is ended twice, by its rank 0 and its agent, the third never began."""
    run = run_of(here, upto=60)
    first = next(record for record in records(run) if record["k"] == "run")

    def at(after: float, it: int, kind: str, **fields: object) -> dict[str, object]:
        return {"k": kind, "t": BEGAN + after, "it": it, "ep": it // 98, **fields}

    def says(seconds: float, it: int, text: str, level: str = "warn") -> dict[str, object]:
        return at(seconds, it, "message", level=level, source="hookflow", text=text)

    def ends(seconds: float, it: int, status: str, code: int, reason: str, lasted: float) -> dict[str, object]:
        return at(seconds, it, "end", status=status, exit=code, reason=reason, seconds=lasted)

    changed = "since the checkpoint it00000196: hooks.ema.args.decay was 0.9, and is 0.8"
    with run.events.open("ab") as log:
        log.writelines(
            json.dumps(record, separators=(",", ":")).encode() + b"\n"
            for record in (
                says(3600, 0, changed),
                {**first, **at(3605, 196, "run"), "resumed_from": "it00000196"},
                *(says(3610 + k, 200 + k, f"the loss is odd {'x' * 70}") for k in range(3)),
                ends(3660, 300, "interrupted", 143, "SIGTERM received", 60),
                ends(3661, 300, "failed", 1, "rank 1 was killed by SIGKILL", 61),
                ends(7200, 0, "failed", 2, 'mine.toml:3: there is no "x"\n    did you mean "y"?', 2),
            )
        )
    check_golden("show-attempts.txt", shown())
    lines = io.StringIO()
    plain.follow(run, lines)
    printed = [line[9:] for line in lines.getvalue().splitlines()]
    assert printed.index("resumed    attempt 2") + 1 == printed.index(f"warn       hookflow: {changed}")


def test_a_run_that_a_hook_ended_is_resumed_and_not_extended(here: Path) -> None:
    """Twice its iterations would be another length for its schedules, and `val_every` would count iterations."""
    run = run_of(here, upto=60)
    end = {"k": "end", "t": BEGAN + 60, "it": 300, "ep": 3, "status": "finished", "exit": 0, "reason": "no progress"}
    with run.events.open("ab") as log:
        log.write(json.dumps({**end, "seconds": 60.0}, separators=(",", ":")).encode() + b"\n")
    page = shown()
    assert "pruned" in page
    assert "resume      it has no checkpoint to resume from" in page
    assert "extend" not in page


def test_of_many_attempts_warnings_and_errors_the_first_few_are_shown(here: Path) -> None:
    state = RunState()
    for k in range(1, 12):
        state.apply(stamped("message", k, 0, {"level": "warn", "source": "a", "text": f"x{k}"}))
        state.apply(stamped("end", k, 0, {"status": "failed", "exit": 2, "reason": "no", "seconds": -k}))
    for k in range(30):
        state.journal.add(0.0, "warn", "hook", f"text {k}")
    page = Page(RunDir(here), state, NO_PLAN, Health("failed"), [])
    lines = list(page.lines())
    assert [line for line in lines if line.endswith((" 3 earlier", " x4"))] == [
        "              3 earlier",
        "              x4",
    ]
    assert "              x3" not in lines
    assert "              and 11 more: hookflow watch --ui plain" in lines


def test_of_many_checkpoints_the_first_are_shown(here: Path) -> None:
    run = run_of(here)
    for it in range(1, 9):
        save(run, it, 1)
    assert shown().count("  it0") == 8
    assert "\n  and 2 more\n" in shown()


def test_the_page_is_data_too(here: Path) -> None:
    run = run_of(here)
    save(run, 3, 1)
    page = json.loads(CliRunner().invoke(app, ["show", "--format", "json"]).stdout)
    assert page["id"] == run.id
    assert len(page["checkpoints"]) == 3
    assert page["hooks"]
    assert page["attempts"]
    assert page["errors"]
