"""A run that was killed and resumed ends like the run that was left alone.

And resumes that are changed, or refused.
"""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.runner.checkpoint.manifest import (
    MANIFEST_FILE,
    make_sealed_text,
    parse_iteration,
    read_manifest,
)
from hookflow.runner.checkpoint.resume_rules import (
    UNREADABLE_HOOKS_NOTE,
    ChangeRule,
    find_changes,
    find_changes_since,
    read_recorded,
)
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.loop.trainer import Trainer
from hookflow.runner.process.launch import (
    CHANGEABLE_FACTS,
    commit_resume,
    rollback_resume,
    stage_resume,
)
from hookflow.runner.state.stateful_parts import trigger_key
from tests.conftest import (
    TOY,
    NewRun,
    Train,
    Trained,
    hookflow,
    hookflow_here,
    messages,
    records,
    run_here,
    strikes,
)
from tests.distributed.several import carry_out, printed
from tests.runner.same import assert_same, assert_same_end
from tests.support import runner_snapshots
from tests.support.overrides import EVERY_3
from tests.support.processes import Training
from tests.support.runner_snapshots import TRAINERS, photograph, registered_states


class Photographs:
    def __init__(self, file: str, at: int) -> None:
        self.file, self.at = Path(file), at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            trainer = TRAINERS[-1]
            shown = {"trainer": photograph(trainer), "registry": registered_states(trainer)}
            self.file.write_text(json.dumps(shown, indent=1))


class FailsInOneIteration:
    """Raises in one iteration, and would note every later one."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.called: list[int] = []

    def after_train_iter(self, run: Any) -> None:
        self.called.append(run.iter)
        if run.iter == self.at:
            raise ValueError("as told")

    def state_dict(self) -> dict[str, Any]:
        return {"called": list(self.called)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.called = state["called"]


class Curriculum:
    def __init__(self) -> None:
        self.harder, self.fetched = 0, torch.zeros(40)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.harder += 1
        return torch.ones(4) * index, index % 3


def halves_once(run: Any, output: Any) -> Any:
    run.handle.remove()
    return output / 2


def unfreezes(run: Any) -> None:
    """Freezes a layer, for the first epoch."""
    run.model.body[0].requires_grad_(run.epoch > 0)


class Forgets:
    """Counts its calls, and holds what is the run's."""

    seen = total = 0

    def before_run(self, run: Any) -> None:
        self.run, self.model, self.weights = run, run.model, list(run.model.parameters())

    def after_train_epoch(self) -> None:
        self.seen += 1
        type(self).total += 1


def test_a_damaged_checkpoint_is_named_and_passed_over(trained: Trained, train_here: Train) -> None:
    run_dir = trained("run.max_epochs=4")
    newest, older = CheckpointStore(run_dir.checkpoints).all()[:2]
    damaged = newest / "model.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert train_here(run_dir, resume=True) == 0
    assert any(f"{newest.name} cannot be used" in text for text in messages(run_dir))
    assert any(f"resumed from {older.name}" in text for text in messages(run_dir))
    assert newest not in CheckpointStore(run_dir.checkpoints).all()[1:], (
        "it makes room for whole ones"
    )


def with_checkpoints(
    new_run: NewRun, train: Train, then: Sequence[str], now: Sequence[str]
) -> RunDir:
    """Train a run for an epoch with overrides,
    and return one with other overrides that has its checkpoints.
    """
    run_dir, other = new_run("run.max_epochs=1", *then), new_run(*now)
    assert train(run_dir) == 0
    run_dir.checkpoints.rename(other.checkpoints)
    return other


@pytest.mark.parametrize(
    ("change", "expected"),
    [("model.args.width=16", "head.weight"), ("run.max_epochs=3", "it has no model")],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_the_users_mistake(
    new_run: NewRun, train_here: Train, change: str, expected: str
) -> None:
    run_dir = with_checkpoints(new_run, train_here, [], [change])
    newest = run_dir.checkpoints / "last"
    manifest = read_manifest(newest)
    if "max_epochs" in change:
        del manifest["files"]["model.pt"]
    (newest / MANIFEST_FILE).write_text(make_sealed_text(manifest))
    assert train_here(run_dir, resume=True) == 2
    reason = str(records(run_dir, "refused")[-1]["reason"])
    assert "does not fit this pipeline" in reason and expected in reason


def of_length(examples: int, split: str = "train", **loader: Any) -> str:
    keys = ", ".join(f"{key}={value}" for key, value in {"batch_size": 8, **loader}.items())
    return (
        f'data.{split}={{use="./data_loaders.py:Numbers", args={{examples={examples}}},'
        f" loader={{{keys}}}}}"
    )


@pytest.mark.parametrize(("then", "now"), [(40, 20), (40, 60), (40, 39)])
@pytest.mark.parametrize("stop", ["run.max_iters=3", "run.max_epochs=1"])
@pytest.mark.parametrize("kind", ["Numbers", "dataset"])
def test_training_data_of_another_length_are_refused(
    new_run: NewRun, train_here: Train, then: int, now: int, stop: str, kind: str
) -> None:
    """With 39 examples an epoch has as many batches, in another order."""
    run_dir = with_checkpoints(
        new_run,
        train_here,
        [of_length(then).replace("Numbers", kind), stop],
        [of_length(now).replace("Numbers", kind)],
    )
    assert train_here(run_dir, resume=True) == 2
    refused = str(records(run_dir, "refused")[-1]["reason"])
    assert f"data.train had {then} examples" in refused and f"has {now} now" in refused.replace(
        " examples now", " now"
    )
    assert not records(run_dir, "run")


def test_validation_data_of_another_length_are_said(new_run: NewRun, train_here: Train) -> None:
    now = [of_length(24, "val"), "run.max_epochs=2"]
    run_dir = with_checkpoints(new_run, train_here, [of_length(16, "val")], now)
    assert train_here(run_dir, resume=True) == 0
    said = [text for text in messages(run_dir) if "data.val had 16 examples" in text]
    assert len(said) == 1 and "24 examples now" in said[0]


def test_data_of_the_same_length_are_resumed(new_run: NewRun, train_here: Train) -> None:
    run_dir = with_checkpoints(
        new_run, train_here, [of_length(40)], [of_length(40), "run.max_epochs=2"]
    )
    assert train_here(run_dir, resume=True) == 0
    assert not [text for text in messages(run_dir) if "when the checkpoint was saved" in text]


class GivesNumbers:
    """Gives the metrics `given` and `other`: a number for each epoch, that of `other` negated."""

    writes = ("metrics.given", "metrics.other")

    def __init__(self, numbers: list[float]) -> None:
        self._numbers = numbers

    def after_val(self, run: Any, metrics: Any) -> None:
        metrics["given"] = self._numbers[run.epoch - 1]
        metrics["other"] = -self._numbers[run.epoch - 1]


def with_numbers(
    new_run: NewRun, train: Train, numbers: list[float], then: Sequence[str], now: Sequence[str]
) -> RunDir:
    """Train a run for three epochs, and resume it with other overrides until `numbers` end."""
    gives = f'hooks.gives={{use="{__file__}:GivesNumbers", args={{numbers={numbers}}}}}'
    run_dir = new_run("run.max_epochs=3", gives, *then)
    other = new_run(f"run.max_epochs={len(numbers)}", gives, *now)
    assert train(run_dir) == 0
    run_dir.checkpoints.rename(other.checkpoints)
    assert train(other, resume=True, allow_changed_hooks=True) == 0
    return other


BY_MAX = 'hooks.checkpoint.args={monitor="given", mode="max", top=3}'


@pytest.mark.parametrize(
    ("then", "now", "fourth", "expected"),
    [
        # Of 0.5, 0.9 and 0.7 by hand; an epoch has five iterations.
        (BY_MAX, BY_MAX, 0.6, {"best": 10, "best-2": 15, "best-3": 20}),
        (BY_MAX, BY_MAX.replace("max", "min"), 0.6, {"best": 5, "best-2": 20, "best-3": 15}),
        (BY_MAX, BY_MAX.replace("max", "min"), 1.0, {"best": 5, "best-2": 15, "best-3": 10}),
        (BY_MAX, BY_MAX.replace("max", "min").replace("3", "1"), 1.0, {"best": 5}),
        (BY_MAX.replace("3", "1"), BY_MAX, 0.6, {"best": 10, "best-2": 20}),
        (
            BY_MAX,
            'hooks.checkpoint.args={monitor={given="max", other="max"}}',
            0.6,
            {"best-given": 10, "best-other": 20},
        ),
        (BY_MAX, BY_MAX.replace("given", "other"), 0.6, {"best": 20}),
    ],
)
def test_the_best_so_far_are_ranked_as_a_resumed_run_ranks(
    new_run: NewRun,
    train_here: Train,
    then: str,
    now: str,
    fourth: float,
    expected: dict[str, int],
) -> None:
    run_dir = with_numbers(new_run, train_here, [0.5, 0.9, 0.7, fourth], [then], [now])
    names = CheckpointStore(run_dir.checkpoints).names()
    assert {name: parse_iteration(names[name]) for name in expected} == expected


@pytest.mark.parametrize(
    ("now", "last"),
    [
        # 0.9 is the best of the first three: it waits for one validation, and then for another.
        ('monitor="given", mode="max"', 4),
        # From the fourth on 0.85 is the best, or its negative: two that are worse follow.
        ('monitor="given", mode="min"', 7),
        ('monitor="other", mode="max"', 7),
    ],
)
def test_a_best_of_another_number_stops_no_resumed_run(
    new_run: NewRun, train_here: Train, now: str, last: int
) -> None:
    stops = "hooks.early_stop.args={%s, patience=2}"
    run_dir = with_numbers(
        new_run,
        train_here,
        [0.5, 0.9, 0.7, 0.89, 0.85, 0.86, 0.87, 0.88],
        [stops % 'monitor="given", mode="max"'],
        [stops % now],
    )
    assert records(run_dir, "end")[-1]["it"] == 5 * last
    assert any("the best so far does not count" in text for text in messages(run_dir)) == (last > 4)


def test_an_average_has_no_best_of_another_metric(new_run: NewRun, train_here: Train) -> None:
    best = 'hooks.ema.args={decay=0.9, monitor="%s", mode="max"}'
    run_dir = with_numbers(
        new_run, train_here, [0.5, 0.9, 0.7, 0.6], [best % "given"], [best % "other"]
    )
    assert (run_dir.checkpoints / "best-ema").readlink().name == "it00000020"


def test_hooks_that_are_gone_or_new(new_run: NewRun, train_here: Train) -> None:
    """One with a state is missed, and one without is not;
    a new one fires at the multiples to come.
    """
    run_dir = with_checkpoints(
        new_run,
        train_here,
        ["hooks.ema.enabled=false"],
        [
            "hooks.early_stop.enabled=false",
            "hooks.clip.enabled=false",
            'hooks.plain={use="./common_hooks.py:slow", points=["after_train"]}',
            'hooks.logs={use="./common_hooks.py:logs_iter", points=["after_train_iter"], every=4}',
        ],
    )
    assert train_here(run_dir, resume=True, allow_changed_hooks=True) == 0
    (missed,) = [text for text in messages(run_dir) if "that this pipeline does not have" in text]
    assert '"early_stop"' in missed, "and not the one without a state"
    assert not [text for text in messages(run_dir) if '"plain": it starts anew' in text]
    assert any('does not know the hook "ema"' in text for text in messages(run_dir))
    assert (run_dir.checkpoints / "last" / "model_ema.pt").exists(), (
        "the average starts from the weights"
    )
    logged = [record["it"] for record in records(run_dir, "scalars") if "train/iter" in record["v"]]  # type: ignore[operator]
    assert logged == [8, 12]


def test_what_an_epoch_had_entered_alone_is_entered_again(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    """Every other epoch is entered: whether this one was is not asked again in the middle of it."""
    marks = tmp_path / "around"
    around = f'hooks.around={{use="./common_hooks.py:Around", args={{file="{marks}"}}, every=2}}'
    killed = new_run(
        EVERY_3, around, *strikes(tmp_path, 9, ("after_forward", 4), ("after_forward", 7))
    )
    assert Training(killed).wait() == -9
    assert Training(killed, resume=True).wait() == -9
    assert marks.read_text().split() == [
        "entered",
        "entered",
        "left",
    ], "the first epoch, twice; not the second"
    assert Training(killed, resume=True).wait() == 0
    assert marks.read_text().split()[3:] == ["entered", "left"], "the third"


def test_a_modules_extra_state_goes_through_every_hook_that_keeps_weights(
    resumes_alike: NewRun,
) -> None:
    swa = 'hooks.swa={use="swa", args={begin="1ep"}}'
    export = 'hooks.export={use="export", args={formats=["state_dict"]}}'
    resumes_alike('model.use="./toy.py:Counts"', swa, export, point="after_train_iter", at=12)


@pytest.mark.parametrize("at", [3, 5])
@pytest.mark.parametrize(
    "hook",
    [
        'use="tests.runner.test_resume:unfreezes", points=["before_train_epoch"]',
        'use="freeze", args={params=["head.*"], end="1ep"}',  # no norm is among them
    ],
)
def test_what_a_hook_has_frozen_stays_so(resumes_alike: NewRun, hook: str, at: int) -> None:
    """In the middle of an epoch, where no point fires that would
    freeze it again; and at its end.
    """
    resumes_alike(f"hooks.freezes={{{hook}}}", point="after_train_iter", at=at)


def test_a_group_that_a_hook_adds_in_the_middle_is_resumed(resumes_alike: NewRun) -> None:
    thaws = 'hooks.thaws={use="./model_changes.py:Thaws", args={at=1}}'
    resumes_alike(
        'model.use="./model_changes.py:HalfFrozen"', thaws, point="after_train_iter", at=8
    )


LOST = (
    "the task Forgets changes buffer, draws, target, scaler, steps while it trains, and no"
    " checkpoint holds that"
)


@pytest.mark.parametrize("task", ["Remembers", "Forgets"])
def test_a_tasks_own_state(new_run: NewRun, train_here: Train, tmp_path: Path, task: str) -> None:
    """What has one is resumed to the bit; what has none is named."""
    use = f'task.use="./own_tasks.py:{task}"'
    alone = new_run(use, EVERY_3)
    killed = new_run(use, EVERY_3, *strikes(tmp_path, signal.SIGKILL, ("after_train_iter", 11)))
    assert train_here(alone) == 0
    assert Training(killed).wait() == -signal.SIGKILL
    assert train_here(killed, resume=True) == 0
    for run_dir in (alone, killed):
        assert any(text.startswith(LOST) for text in messages(run_dir)) == (task == "Forgets")
    if task == "Remembers":
        assert_same_end(killed, alone)


def test_data_and_a_hook_that_change_and_save_nothing_are_named(trained: Trained) -> None:
    """The hook after the others: it changes at the end of the epoch.

    Nothing is said of a model, a class or a file.
    """
    model = 'model.use="./toy.py:Forgets"'
    data = (
        'data.train={use="tests.runner.test_resume:Curriculum", loader={batch_size=8,'
        ' sampler="./data_loaders.py:Forgets"}}'
    )
    run_dir = trained(
        model,
        data,
        'hooks.forgets={use="tests.runner.test_resume:Forgets"}',
        EVERY_3,
        "run.max_epochs=1",
    )
    lost = [
        text.partition(" while it trains")[0]
        for text in messages(run_dir)
        if "no checkpoint holds that" in text
    ]
    data = ["data.train (Curriculum) changes harder", "data.train (Forgets) changes power"]
    assert sorted(lost) == [*data, 'the hook "forgets" changes seen']


def test_a_task_that_has_a_state_only_now_is_reported(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    run_dir = trained('task.use="./own_tasks.py:Forgets"', "run.max_epochs=1")
    text = (
        run_dir.pipeline.read_text()
        .replace("Forgets", "Remembers")
        .replace("max_epochs = 1", "max_epochs = 2")
    )
    run_dir.pipeline.write_text(text)
    assert train_here(run_dir, resume=True) == 0
    assert any("no state of the task" in text for text in messages(run_dir))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("hooks.clip.enabled=false", 'the hook "clip" is gone, and what it knew with it'),
        (
            'hooks.more={use="./common_hooks.py:slow", points=["after_train"]}',
            'the hook "more" is new: it starts anew',
        ),
        ("hooks.ema.args.decay=0.5", "hooks.ema.args.decay was 0.9, and is 0.5"),
        (
            "hooks.accuracy.points=['after_val_epoch', 'after_val_iter']",
            'the hook "accuracy" fires no more at',
        ),
        ("hooks.clip.phase='last'", 'hooks.clip.phase was not set, and is "last"'),
        (
            "hooks.throughput.before=['ema']",
            "at before_train the order was ema → throughput, and is throughput → ema",
        ),
    ],
)
def test_each_change_is_told_and_may_be_allowed(
    new_run: NewRun, train_here: Train, change: str, expected: str
) -> None:
    other = with_checkpoints(new_run, train_here, [], ["run.max_epochs=2", change])
    assert train_here(other, resume=True) == 2
    reason = str(records(other, "refused")[-1]["reason"])
    assert "since the checkpoint it00000005: " in reason and expected in reason
    assert reason.endswith("--allow-changed-hooks")
    assert train_here(other, resume=True, allow_changed_hooks=True) == 0
    assert any(expected in text for text in messages(other))
    assert records(other, "end")[-1]["it"] == 10


@pytest.mark.parametrize(
    ("change", "may", "expected"),
    [
        (
            'hooks.log.points=[{at="after_train_iter", every=3, after=["throughput"]}]',
            ChangeRule.YES,
            ["hooks.log.points"],
        ),
        (
            'hooks.log.points=["after_train_epoch"]',
            ChangeRule.ALLOWED,
            ["hooks.log.points", "fires no more at", "fires at after_train_epoch"],
        ),
        ('run.dir="müll"', ChangeRule.YES, ['and is "müll"']),
    ],
)
def test_what_may_change_by_itself(
    new_run: NewRun, change: str, may: ChangeRule, expected: list[str]
) -> None:
    then, now = (read_recorded(run.path) for run in (new_run(), new_run(change)))
    changes = [*find_changes((then[0].pipeline, then[1]), (now[0].pipeline, now[1]))]
    assert {item.may for item in changes} == {may}
    assert [any(words in item.text for item in changes) for words in expected] == [True] * len(
        expected
    )


def test_what_is_recorded_is_read_as_it_stands(new_run: NewRun) -> None:
    """Without the hooks that a file gets by default today,
    and without asking the environment of today.
    """
    run_dir = new_run()
    text = (
        TOY.read_text()
        .partition("[hooks.checkpoint]")[0]
        .replace("[run]", '[run]\ndir = "${env:HOOKFLOW_NO_SUCH_VARIABLE}"')
    )
    run_dir.pipeline.write_text(text)
    pipeline = read_recorded(run_dir.path)[0].pipeline
    assert list(pipeline.hooks) == re.findall(r"^\[hooks\.(\w+)]", text, re.MULTILINE)
    assert str(pipeline.run.dir) == "${env:HOOKFLOW_NO_SUCH_VARIABLE}"


def test_hooks_that_cannot_be_read_any_more_must_be_allowed(new_run: NewRun) -> None:
    run_dir = new_run()
    loaded, plan = read_recorded(run_dir.path)
    assert find_changes_since(run_dir.path, loaded.pipeline, plan) == []
    run_dir.plan.write_text('{"hooks": []}')
    (change,) = find_changes_since(run_dir.path, loaded.pipeline, plan)
    assert (change.may, change.text) == (ChangeRule.ALLOWED, UNREADABLE_HOOKS_NOTE)


@pytest.mark.parametrize(("then", "now"), [("raise", "skip"), ("skip", "ignore")])
def test_what_is_no_hook_may_change(
    new_run: NewRun, train_here: Train, then: str, now: str
) -> None:
    changed = ["run.max_epochs=2", "run.val_every=2", f'run.on_nan="{now}"']
    assert (
        train_here(
            with_checkpoints(new_run, train_here, [f'run.on_nan="{then}"'], changed), resume=True
        )
        == 0
    )


GATE = """
import os
from pathlib import Path

DOOR = Path(__file__).with_name("door")

class Gate:
    def before_run(self, run):
        if DOOR.exists() and DOOR.read_text() == f"kill {run.rank}":
            os.kill(os.getpid(), 9)

    def state_dict(self):
        return {"open": True}

    def load_state_dict(self, state):
        if DOOR.exists() and DOOR.read_text() == f"raise {os.environ.get('RANK', 0)}":
            raise RuntimeError("the gate is closed")
"""


@pytest.fixture
def gate(tmp_path: Path) -> str:
    (tmp_path / "gate.py").write_text(GATE)
    return f'hooks.gate={{use="{tmp_path / "gate.py"}:Gate", points=["before_run"]}}'


@pytest.fixture
def finished(trained: Trained, gate: str) -> RunDir:
    return trained(gate, "run.max_epochs=1")


def files(run: RunDir) -> dict[str, bytes | str]:
    """Return all that stands in the run directory,
    but for who trains and what was printed and recorded.
    """
    apart = ("run.json", "events.jsonl", "now.bin", "lock")
    paths = [
        path for path in run.path.rglob("*") if path.name not in apart and path.suffix != ".log"
    ]
    result = {path for path in paths if path.is_file() or path.is_symlink()}
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in result
    }


@pytest.mark.parametrize(
    ("door", "code", "reason"),
    [
        (
            "raise 0",
            1,
            (
                'RuntimeError: the gate is closed; raised while the hook "gate" was given back its'
                " state"
            ),
        ),
        ("kill 0", 137, "killed by SIGKILL"),
    ],
)
def test_nothing_changes_before_it_is_read(
    finished: RunDir, tmp_path: Path, door: str, code: int, reason: str
) -> None:
    before, log, facts = files(finished), finished.events.read_bytes(), finished.describe()
    (tmp_path / "door").write_text(door)
    resume = ("--resume", finished.id, "--set=run.max_epochs=2")
    if door.startswith("kill"):
        refused = hookflow("run", *resume, "--ui=plain", cwd=tmp_path)
        assert f"not resumed: {reason}" in refused.stdout
    else:
        refused = run_here(*resume, cwd=tmp_path, code=code)
    left = {path: text for path, text in files(finished).items() if "/proposed/" not in path}
    assert left == before
    assert finished.events.read_bytes().startswith(log)
    assert len(records(finished, "run")) == len(records(finished, "end")) == 1
    assert {fact: finished.describe()[fact] for fact in CHANGEABLE_FACTS} == {
        fact: facts[fact] for fact in CHANGEABLE_FACTS
    }
    assert "finished" in hookflow_here("runs", cwd=tmp_path).stdout
    shown = hookflow_here("show", finished.id, cwd=tmp_path).stdout
    assert "finished" in shown
    assert f"not resumed: {reason}" in " ".join(shown.split())
    (tmp_path / "door").unlink()
    run_here(*resume, cwd=tmp_path, code=0)
    assert "max_epochs = 2" in finished.pipeline.read_text()
    assert records(finished, "end")[-1]["ep"] == 2
    assert not finished.proposed.path.exists()


def test_an_adoption_that_was_cut_short_is_finished(finished: RunDir, new_run: NewRun) -> None:
    other = new_run("run.max_epochs=9")
    stage_resume(*read_recorded(other.path), finished, other.path)
    rollback_resume(finished)
    assert "max_epochs = 9" not in finished.pipeline.read_text(), "it had not begun"
    stage_resume(*read_recorded(other.path), finished, other.path)
    finished.proposed.plan.replace(finished.plan)
    rollback_resume(finished)
    assert "max_epochs = 9" in finished.pipeline.read_text()
    assert finished.describe()["source"] == str(read_recorded(other.path)[0].source)
    assert not finished.proposed.path.exists()
    commit_resume(finished)  # nothing is proposed


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_changes_a_thing_before_all_have_read_it(
    new_run: NewRun, gate: str, tmp_path: Path, rank: int
) -> None:
    data = [
        f'data.{split}={{use="./data_loaders.py:Clouds", loader={{batch_size=8}}}}'
        for split in ("train", "val")
    ]
    run = new_run(gate, *data, 'run.device="cpu"', "run.max_epochs=1")
    assert carry_out(run, 2) == [0, 0], printed(run, 1)
    before = files(run)
    (tmp_path / "door").write_text(f"raise {rank}")
    assert carry_out(run, 2, resume=True)[rank] == 1
    after = files(run)
    assert {path: after[path] for path in before if "rank1" not in path} == {
        path: text for path, text in before.items() if "rank1" not in path
    }
    assert len(records(run, "run")) == len(records(run, "end")) == 1
    (refused,) = records(run, "refused")
    assert "the gate is closed" in str(refused["reason"])


OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}]'
THIRD = (
    'task.use="./runner_snapshots.py:StepsEveryThird"',
    "hooks.accuracy.enabled=false",
    "hooks.early_stop.enabled=false",
    "hooks.checkpoint.args={}",
)
SKIPS = 'hooks.skips={use="./common_hooks.py:Skips", args={at=6}}'
FAILS = (
    'hooks.fails={use="tests.runner.test_resume:FailsInOneIteration", args={at=3},'
    ' on_error="disable"}'
)
TRIGGERS = (
    (
        'hooks.some={use="./common_hooks.py:slow", points=["after_train_iter"], every=4, when="loss'
        ' > 0.1"}'
    ),
    (
        'hooks.late={use="./common_hooks.py:slow", points=["before_train_iter"], from="1ep",'
        ' every="20%"}'
    ),
    'hooks.vals={use="./common_hooks.py:slow", points=["after_val"], every=2}',
    'hooks.logs={use="./common_hooks.py:logs_iter", points=["after_train_iter"], every=6}',
    'hooks.seen={use="./common_hooks.py:slow", points=["after_train_iter"], when="mine > 2"}',
)

INSIDE = (
    'hooks.probes={use="./common_hooks.py:halves", points=["forward"], modules=["head"], every=2}',
    (
        'hooks.once={use="tests.runner.test_resume:halves_once", points=["forward"],'
        ' modules=["type:Linear"], from=2}'
    ),
    (
        'hooks.halves={use="./common_hooks.py:halves", points=["forward"], modules=["body.0"],'
        ' stages=["train", "val"]}'
    ),
)

THROTTLED = (
    (
        'hooks.thin={use="./common_hooks.py:slow", points=["after_train_iter"], budget="1%",'
        ' over_budget="throttle"}'
    ),
    (
        'hooks.thinned={use="./common_hooks.py:halves", points=["forward"], modules=["head"],'
        ' every=2, budget="1%", over_budget="throttle"}'
    ),
)

SETUPS = {
    "epochs": [OFTEN, FAILS, *TRIGGERS],
    "throttled": [OFTEN, *THROTTLED],
    "iterations": [OFTEN, "run.val_every=4", *TRIGGERS],
    "accumulated": [OFTEN, "run.max_epochs=5", "run.accumulate=2"],
    "float16": [OFTEN, 'run.precision="fp16"'],
    "skipped where not finite": [OFTEN, 'run.on_nan="skip"'],
    "steps itself": [OFTEN, *THIRD],
    "a skip that waits for its step": [OFTEN, SKIPS, *THIRD],
    "hooks inside the network": [OFTEN, "run.val_every=1", *INSIDE],
    "a frozen module": [OFTEN, 'hooks.freezes={use="./runner_snapshots.py:Freezes", args={at=2}}'],
    "a loader with a place": [OFTEN, 'data.train={use="./data_loaders.py:stateful_loader"}'],
}


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Trainer.__init__

    def remember(trainer: Trainer, *args: Any) -> None:
        make(trainer, *args)
        runner_snapshots.TRAINERS.append(trainer)

    monkeypatch.setattr(Trainer, "__init__", remember)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("name", SETUPS)
def test_everything_mutable_is_in_the_checkpoint(
    new_run: NewRun, train_here: Train, tmp_path: Path, name: str
) -> None:
    swap = ("max_epochs = 3", "max_iters = 15" if name == "iterations" else "max_epochs = 3")

    def photographed(file: str, at: int) -> RunDir:
        args = f'{{file="{tmp_path / file}", at=9}}'
        takes = f'hooks.photographs={{use="tests.runner.test_resume:Photographs", args={args}}}'
        return new_run(
            *SETUPS[name], takes, *strikes(tmp_path, 15, ("after_forward", at)), swap=swap
        )

    alone, resumed = photographed("alone", 99), photographed("resumed", 6)
    assert train_here(alone) == 0
    assert train_here(resumed) == 143
    assert train_here(resumed, resume=True) == 0
    one, other = (json.loads((tmp_path / file).read_text()) for file in ("alone", "resumed"))
    assert {"LatestScalars", "OptimizerUpdate", "RunState"} <= kinds(one["trainer"]), (
        "it is a photograph of all, not of a name"
    )
    assert_same(one["trainer"], other["trainer"])
    assert one["registry"] == other["registry"]
    assert_same_end(alone, resumed)


def test_the_documentation_names_every_entry_of_a_checkpoint(trained: Trained) -> None:
    saved = torch.load(
        trained("run.max_epochs=1").checkpoints / "last" / "training.pt", weights_only=True
    )
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "checkpoints.md").read_text()
    table = text.partition("## Contents of training.pt")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert saved.keys() <= named


def kinds(photograph: Any) -> set[str]:
    if isinstance(photograph, dict):
        return {str(photograph.get(""))}.union(*map(kinds, photograph.values()))
    return set().union(*map(kinds, photograph)) if isinstance(photograph, list) else set()


def test_hooks_that_were_switched_off_or_removed_stay_so(
    trained: Trained, train_here: Train, tmp_path: Path
) -> None:
    run_dir = trained(
        OFTEN, INSIDE[1], FAILS, *strikes(tmp_path, 15, ("after_forward", 6)), code=143
    )
    assert train_here(run_dir, resume=True) == 0
    assert any('"once" remains removed' in text for text in messages(run_dir))
    assert len(records(run_dir, "error")) == 1
    assert any('the hook "fails" stays switched off' in text for text in messages(run_dir))


A_LIST, WITH_A_PLACE = (
    f'data.test={{use="./data_loaders.py:{name}"}}' for name in ("a_list", "stateful_loader")
)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ([A_LIST], [WITH_A_PLACE]),
        ([WITH_A_PLACE], [A_LIST]),
        ([A_LIST], [A_LIST, "run.limit_test=1"]),
    ],
    ids=["gets a place", "loses its place", "cut short"],
)
def test_the_data_of_a_test_may_be_others(
    new_run: NewRun, train_here: Train, then: list[str], now: list[str]
) -> None:
    other = with_checkpoints(
        new_run, train_here, ["run.test=true", *then], ["run.test=true", "run.max_epochs=2", *now]
    )
    assert train_here(other, resume=True) == 0
    assert records(other, "end")[0]["it"] == 10


def test_each_trigger_has_a_name_of_its_own(new_run: NewRun) -> None:
    """Also those of an around and of a method that fire at one point."""
    run_dir = new_run(
        'hooks.all={use="./common_hooks.py:Everywhere", modules=["head"],'
        ' parameters=["head.weight"]}'
    )
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    names = [trigger_key(binding) for binding in plan.bindings if binding.half != "exit"]
    assert len({*names}) == len(names) > 30


class EndsEarly:
    """Ends the training after iteration 4, in the middle of an epoch."""

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 4:
            run.stop("it is good enough")


class FailsOnce:
    """Raises at a point, once: `mark` says whether it has."""

    def __init__(self, mark: str = "") -> None:
        self._mark = Path(mark) if mark else None

    def _fail(self) -> None:
        if self._mark is not None and not self._mark.exists():
            self._mark.touch()
            raise RuntimeError("once")

    def after_train(self) -> None:
        self._fail()

    def after_run(self) -> None:
        self._fail()


ENDS_EARLY = f'hooks.ends={{use="{__file__}:EndsEarly", writes=["control"]}}'


@pytest.mark.parametrize("point", ["after_train", "after_run"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_a_hook_has_ended_and_that_crashes_is_restarted_to_the_same_end(
    undisturbed: Trained, new_run: NewRun, train_here: Train, tmp_path: Path, point: str, every: int
) -> None:
    """As `--max-restarts` does it: no iteration is trained beyond the one
    that the hook has ended it at.
    """
    saves = f'hooks.checkpoint.points=[{{at="after_train_iter", every={every}}}]'
    fails = f'hooks.fails={{use="{__file__}:FailsOnce", points=["{point}"], args={{mark="%s"}}}}'
    cut = new_run(ENDS_EARLY, saves, fails % (tmp_path / "mark"))
    assert train_here(cut) == 1
    assert train_here(cut, resume=True) == 0
    end = records(cut, "end")[-1]
    assert (end["it"], end["status"], end["reason"]) == (4, "finished", "it is good enough")
    assert_same_end(undisturbed(ENDS_EARLY, saves, fails % ""), cut)


@pytest.mark.parametrize(
    ("changes", "last"),
    [((), 4), (("run.max_epochs=4",), 20), (("hooks.clip.args.max_norm=2.0",), 15)],
)
def test_what_a_hook_has_ended_goes_on_where_something_is_changed(
    new_run: NewRun, train_here: Train, changes: Sequence[str], last: int
) -> None:
    ended, again = new_run(ENDS_EARLY), new_run(ENDS_EARLY, *changes)
    assert train_here(ended) == 0
    ended.checkpoints.rename(again.checkpoints)
    assert train_here(again, resume=True, allow_changed_hooks=True) == 0
    assert records(again, "end")[-1]["it"] == last
    assert train_here(again, resume=True, allow_changed_hooks=True) == 0
    assert records(again, "end")[-1]["it"] == last, "and so it does when it is restarted"
