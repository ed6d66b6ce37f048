"""Every command: accepted or refused with a reason, at the iteration that its answer names; and what it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.commands import COMMANDS
from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, Train, Trained, reason, records, strikes
from tests.runner.same import assert_same_end, curve

OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=4}, "after_val"]'


def commander(mark: Path, *script: tuple[int, str]) -> str:
    lines = ", ".join(f"[{it}, {json.dumps(text)}]" for it, text in script)
    return f'hooks.commander={{use="tests.commander:Commander", args={{mark="{mark}", script=[{lines}]}}}}'


def answers(run_dir: RunDir) -> list[tuple[Any, ...]]:
    return [
        (ack["it"], " ".join([ack["cmd"], *ack["args"]]), ack["ok"], ack["note"]) for ack in records(run_dir, "ack")
    ]  # type: ignore[misc, list-item]


EXAMPLES: dict[str, str] = {"off": "off ema", "on": "on ema", "set": "set clip.max_norm=0.5", "trace": "trace 2"}
PAUSED = {
    "pause": ["pause", "resume"],
    "resume": ["pause", "resume"],
    "step": ["pause", "step", "resume"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_answered_twice_in_a_row(trained: Trained, tmp_path: Path, name: str) -> None:
    text = EXAMPLES.get(name, name)
    sent = [*PAUSED.get(name, [text]), text]
    if name == "pause":
        sent = ["pause", "pause", "resume"]
    run_dir = trained(OFTEN, commander(tmp_path / "mark", *((6, each) for each in sent)), "run.max_epochs=2")
    given = answers(run_dir)
    assert [command for _, command, *_ in given] == sent
    assert all(it == 6 or command == "step" for it, command, *_ in given)
    assert all(ok or note for _, _, ok, note in given), "a refusal has its reason"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("validat", 'there is no command "validat"; did you mean "validate"?'),
        ("trace 0", "N must be an integer from 1 to 1000, not 0"),
        ("trace 1 2", "usage: trace [N]"),
        ("off", "usage: off HOOK"),
        ("off emma", 'there is no hook "emma"; did you mean "ema"?'),
        ("on ema", "ema is switched on already"),
        ("set clip", "usage: set HOOK.ARGUMENT=VALUE"),
        ("set clip.max_nrom=1", 'hook "clip" does not declare "max_nrom" settable; did you mean "max_norm"?'),
        ("set throughput.window=1", 'hook "throughput" does not declare "window" settable; settable are none'),
        ("set clip.max_norm=-1", 'hook "clip": "max_norm" must be greater than 0, not -1'),
        ("set clip.max_norm=big", 'hook "clip": "max_norm" must be a number, not "big"'),
        ("resume", "the run is not paused"),
        ("step", "the run is not paused; a step is one iteration of a paused run"),
        ("rewind", "there is no checkpoint yet"),
    ],
)
def test_a_refused_command_says_why_and_changes_nothing(trained: Trained, tmp_path: Path, text: str, why: str) -> None:
    run_dir = trained("run.max_epochs=1", commander(tmp_path / "mark", (2, text)))
    ((it, command, ok, note),) = answers(run_dir)
    assert (it, command, ok) == (2, text, False)
    assert why in note


def test_a_hook_is_off_from_the_next_iteration_on_and_on_again(trained: Trained, tmp_path: Path) -> None:
    """Also one that the generated dispatch calls, and one that fires elsewhere; its trigger does not catch up."""
    watch = 'hooks.watch={use="./watchers.py:Everywhere", modules=["head"], parameters=["head.weight"]}'
    tenth = 'hooks.tenth={use="tests.commander:log_iter", points=["after_train_iter"], every=3}'
    script = commander(tmp_path / "mark", (4, "off tenth"), (4, "off clip"), (8, "on tenth"), (10, "on clip"))
    run_dir = trained(tenth, script)
    seen = sorted({it for it, _, name in curve(run_dir) if name == "tenth"})
    assert seen == [3, 9, 12, 15]
    clipped = sorted({it for it, _, name in curve(run_dir) if name == "grad_norm"})
    assert clipped == [*range(4), *range(10, 15)]
    del watch


SCRIPT = (
    (4, "set clip.max_norm=0.05"),
    (6, "off ema"),
    (7, "validate"),
    (9, "on ema"),
    (11, "set ema.decay=0.5"),
)


def commanded(new_run: NewRun, mark: Path, *overrides: str) -> RunDir:
    return new_run(OFTEN, commander(mark, *SCRIPT), *overrides)


@pytest.mark.parametrize("at", [4, 6, 7, 8, 10, 12])
def test_a_resume_follows_the_commands_to_the_bit(new_run: NewRun, train_here: Train, tmp_path: Path, at: int) -> None:
    """Killed in the iteration after `at`, wherever that lies between commands and checkpoints."""
    alone, cut = (
        new_run(OFTEN, commander(tmp_path / name, *SCRIPT), *strikes(tmp_path, signal.SIGKILL, ("after_forward", its)))
        for name, its in (("alone", 99), ("cut", at))
    )
    from tests.processes import Training

    assert train_here(alone) == 0, reason(alone)
    assert [given[:3] for given in answers(alone)] == [(it, text, True) for it, text in SCRIPT]
    assert Training(cut).wait() == -signal.SIGKILL
    assert train_here(cut, resume=True) == 0, reason(cut)
    assert_same_end(alone, cut)
    assert curve(alone) == curve(cut)
