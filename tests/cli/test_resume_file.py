"""`hookflow run FILE --resume` reads FILE: what differs is shown, what may change takes effect,
the rest is refused.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from hookflow.cli.resume import PipelineChanges, prepare_resume
from hookflow.cli.run import compiled
from hookflow.errors import UserError
from hookflow.events.run_lock import release, try_lock
from hookflow.events.rundir import RunDir
from hookflow.monitor.recording import Recording
from hookflow.runner.checkpoint.resume_rules import ChangeRule, rule_of
from hookflow.runner.process.launch import claim, new_run
from hookflow.service.runs import read_recorded_plan
from tests.cli.conftest import SMALL
from tests.conftest import TOY, TOY_FILES, Train, hookflow_here, records


def new(file: str, changes: PipelineChanges) -> RunDir:
    return new_run(*compiled(file, changes))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the toy pipeline, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in TOY_FILES:
        shutil.copy(TOY.with_name(name), name)
    edit("max_epochs = 3", "max_epochs = 2\nthreads = 1")


@pytest.fixture
def run(train_here: Train) -> RunDir:
    """A run of two epochs that is done."""
    run = new("toy.toml", PipelineChanges())
    assert train_here(run) == 0
    return run


def edit(old: str, new: str) -> None:
    text = Path("toy.toml").read_text()
    assert old in text
    Path("toy.toml").write_text(text.replace(old, new))


def written(run: RunDir) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in run.path.iterdir()
        if file.is_file() and file != run.lock
    }


def refusal(*overrides: str, **options: bool) -> str:
    with pytest.raises(UserError) as raised:
        prepare_resume("toy.toml", PipelineChanges(overrides=overrides), **options)
    return str(raised.value)


def test_an_unchanged_file_has_nothing_left_to_do(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(run)
    with pytest.raises(typer.Exit) as left:
        prepare_resume("toy.toml", PipelineChanges())
    assert left.value.exit_code == 0
    printed = capsys.readouterr().err
    assert "nothing is left to do" in printed
    assert "run.max_epochs is 2 (toy.toml:3:1)" in printed
    assert written(run) == before
    for named in (run.id, None):
        with pytest.raises(typer.Exit):
            prepare_resume(named, PipelineChanges())
    edit("max_epochs = 2", "max_epochs = 1")
    with pytest.raises(typer.Exit):
        prepare_resume("toy.toml", PipelineChanges())
    assert "run.max_epochs is 1" in capsys.readouterr().err
    assert "max_epochs = 2" in run.pipeline.read_text(), "nothing runs, and nothing is recorded"


NEVER_BEGUN = (
    '{"k":"end","t":1.0,"it":0,"ep":0,"status":"interrupted","exit":130,"reason":"SIGINT'
    ' received"}\n'
)


@pytest.mark.parametrize("named", ["toy.toml", "toy", None])
def test_a_finished_run_is_not_resumed_in_place_of_the_newest_which_has_not_begun(
    run: RunDir, named: str | None
) -> None:
    newest = new("toy.toml", PipelineChanges(overrides=("optimizer.args.lr=0.01",)))
    newest.events.write_text(NEVER_BEGUN)
    changes = PipelineChanges(overrides=("run.max_epochs=3",))
    with pytest.raises(UserError) as raised:
        prepare_resume(named, changes)
    assert newest.id in str(raised.value) and run.id in str(raised.value)
    for wanted in (run, newest):
        assert prepare_resume(wanted.id, changes).id == wanted.id, "by its id, each can be resumed"


def test_an_unfinished_run_is_resumed_where_the_newest_has_not_begun_and_that_is_said(
    train_here: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    older = new("toy.toml", PipelineChanges(overrides=(ENDS_EARLY.replace('"stop"', '"fail"'),)))
    assert train_here(older) == 1
    newest = new("toy.toml", PipelineChanges())
    newest.events.write_text(NEVER_BEGUN)
    assert prepare_resume("toy", PipelineChanges()).id == older.id
    assert newest.id in capsys.readouterr().err


class Ends:
    """Stops the training, or fails, in the first attempt's seventh iteration."""

    def __init__(self, how: str) -> None:
        self.how = how

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 7:
            if self.how == "fail":
                raise RuntimeError("as told")
            run.stop("it does not improve any more", this_process=self.how == "stop for now")


ENDS_EARLY = f'hooks.ends={{use="{__file__}:Ends", args={{how="stop"}}, writes=["control"]}}'


@pytest.mark.parametrize("how", ["stop", "stop for now"])
def test_a_run_that_a_hook_has_ended_early_is_not_trained_on_by_a_plain_resume(
    train_here: Train, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Unless the hook has stopped this process alone, as a time limit does,
    or something is changed.
    """
    run = new("toy.toml", PipelineChanges(overrides=(ENDS_EARLY.replace('"stop"', f'"{how}"'),)))
    assert train_here(run) == 0
    if how == "stop for now":
        assert records(run, "end")[-1]["status"] == "stopped"
        assert prepare_resume(run.id, PipelineChanges()).id == run.id
        return
    assert records(run, "end")[-1]["status"] == "finished"
    for named in (run.id, "toy", None):
        with pytest.raises(typer.Exit) as left:
            prepare_resume(named, PipelineChanges())
        assert left.value.exit_code == 0
    assert "it does not improve any more" in capsys.readouterr().err
    assert (
        prepare_resume(run.id, PipelineChanges(without=("ends",)), allow_changed_hooks=True).id
        == run.id
    )


def test_where_no_checkpoint_can_be_used_nothing_of_the_run_changes(run: RunDir) -> None:
    for weights in run.checkpoints.glob("it*/model.pt"):
        weights.write_bytes(weights.read_bytes()[:-1])
    before = written(run)
    assert "cannot be used (model.pt has" in refusal("run.max_epochs=5", "model.args.width=64")
    hookflow_here("run", "--resume", run.id, "--ui", "plain", cwd=Path.cwd(), code=2)
    assert written(run) == before, "neither its files nor its log"
    for target in ("toy.toml:best", f"{run.id}:best"):
        with pytest.raises(
            UserError, match=f"is a checkpoint, .*\n.*: hookflow fork {run.id}:best$"
        ):
            prepare_resume(target, PipelineChanges())
    for target, hint in (
        (run.id, f"to resume it: hookflow run --resume {run.id}"),
        ("toy", 'did you mean "toy.toml"'),
    ):
        with pytest.raises(
            UserError, match=f"{target} is a run, and a new run begins with a .*file\n    {hint}"
        ):
            compiled(target, PipelineChanges())


def test_nobody_else_resumes_it_before_it_starts(run: RunDir) -> None:
    prepare_resume("toy.toml", PipelineChanges(overrides=("run.max_epochs=5",)))
    assert try_lock(run.path) is None
    release(claim(run))
    prepare_resume("toy.toml", PipelineChanges(overrides=("run.max_epochs=9",)))
    release(claim(run))


@pytest.mark.parametrize(
    ("override", "printed"),
    [
        ('run.dir="a\\u0000b"', "no run directory can be made in a"),
        ('hooks.checkpoint.args.out_dir="toy.py/there"', "out_dir"),
        ('hooks.checkpoint.args.out_dir="a\\u0000b"', "out_dir"),
    ],
)
def test_a_folder_that_cannot_be_made_is_a_mistake(override: str, printed: str) -> None:
    done = hookflow_here(
        "run", "toy.toml", "--in-process", "--set", override, cwd=Path.cwd(), code=2
    )
    assert printed in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_test_that_is_new_is_something_to_do(run: RunDir, train_here: Train) -> None:
    edit("threads = 1", "threads = 1\ntest = true")
    assert prepare_resume("toy.toml", PipelineChanges()).id == run.id
    assert train_here(run, resume=True) == 0
    assert records(run, "metrics")[-1]["split"] == "test"


def test_more_epochs_continue_it(
    run: RunDir, train_here: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    edit("max_epochs = 2", "max_epochs = 4")
    edit("every = 2,", "every = 7,")
    assert prepare_resume("toy.toml", PipelineChanges()).id == run.id
    printed = capsys.readouterr().err
    assert re.search(r"run\.max_epochs +2 → 4", printed)
    assert train_here(run, resume=True) == 0
    assert records(run, "end")[-1]["it"] == 20
    assert [(record["it"], record["ep"]) for record in records(run, "run")] == [
        (0, 0),
        (10, 2),
    ], "where each begins"
    assert [record["it"] for record in records(run, "scalars") if "loss" in record["v"]] == [
        2,
        4,
        6,
        8,
        10,
        14,
    ]  # type: ignore[operator]
    assert "max_epochs = 4" in (run.checkpoints / "last" / "pipeline.toml").read_text()
    texts = [record["text"] for record in records(run, "message")]
    assert "since the checkpoint it00000010: run.max_epochs was 2, and is 4" in texts


def test_what_would_be_another_run_is_refused_by_name_with_its_line(run: RunDir) -> None:
    edit("lr = 0.1", "lr = 0.2")
    edit('use = "./toy.py:Net"', 'use = "./toy.py:Net"\nargs = { width = 16 }')
    before = written(run)
    printed = refusal("run.seed=3", "run.accumulate=2", "run.precision=bf16", "run.max_epochs=9")
    for line in (
        (
            "toy.toml:12:10: optimizer.args.lr was 0.1, and is 0.2: a resumed run has the optimizer"
            " of its checkpoint"
        ),
        "toy.toml:8:10: model.args.width was not set, and is 16",
        "--set run.seed=3: run.seed was 0, and is 3",
        "run.accumulate was 1, and is 2",
        'run.precision was "fp32", and is "bf16"',
        f"hookflow run --resume {run.id}",
    ):
        assert line in printed
    assert "max_epochs was" not in printed
    assert written(run) == before


def test_a_change_of_a_hook_must_be_allowed_and_then_takes_effect(
    run: RunDir, train_here: Train
) -> None:
    edit("max_epochs = 2", "max_epochs = 3")
    edit("decay = 0.9", "decay = 0.5")
    edit('[hooks.clip]\nuse = "grad_clip"\nargs = { max_norm = 1.0 }\n', "")
    printed = refusal()
    assert (
        "toy.toml:34:10: since the checkpoint it00000010: hooks.ema.args.decay was 0.9, and is 0.5"
        in printed
    )
    assert 'the hook "clip" is gone' in printed
    assert printed.count("--allow-changed-hooks") == 1
    prepare_resume("toy.toml", PipelineChanges(), allow_changed_hooks=True)
    assert train_here(run, resume=True, allow_changed_hooks=True) == 0
    assert records(run, "end")[-1]["it"] == 15
    saved = (run.checkpoints / "last" / "pipeline.toml").read_text()
    assert "decay = 0.5" in saved
    assert "hooks.clip" not in saved
    assert "[hooks.clip]" not in run.pipeline.read_text()
    recording = Recording(run)
    for move, there in ((-(10**6), True), (10**6, False)):
        recording.step(move)
        assert recording.plan is not None
        assert any(hook.name == "clip" for hook in recording.plan.hooks) is there, (
            "each attempt is shown by its plan"
        )


def test_what_it_was_started_with_stays_unless_given(
    train_here: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new(
        "toy.toml",
        PipelineChanges(overrides=("run.seed=5", "run.max_epochs=1"), without=("early_stop",)),
    )
    assert train_here(run) == 0
    prepare_resume("toy.toml", PipelineChanges(overrides=("run.max_iters=8",)))
    kept = "--set run.seed=5 --set hooks.early_stop.enabled=false"
    assert f"kept from the start of the run: {kept}" in capsys.readouterr().err
    assert "seed = 5" in run.wanted().pipeline.read_text()
    assert "max_epochs" not in run.wanted().pipeline.read_text()
    overrides = ["run.seed=5", "hooks.early_stop.enabled=false", "run.max_iters=8"]
    assert run.wanted().describe()["overrides"] == overrides
    edit(
        '[hooks.early_stop]\nuse = "early_stop"\nargs = { monitor = "accuracy", patience = 50 }\n',
        "",
    )
    assert prepare_resume("toy.toml", PipelineChanges(overrides=("run.max_iters=9",))).id == run.id


def test_a_run_without_a_checkpoint_begins_anew_and_as_it_likes(train_here: Train) -> None:
    edit("lr = 0.1", "lr = -0.1")
    run = new("toy.toml", PipelineChanges())
    assert train_here(run) == 2
    edit("lr = -0.1", "lr = 0.2")
    assert prepare_resume("toy.toml", PipelineChanges()).id == run.id
    assert train_here(run, resume=True) == 0


def test_the_first_rule_that_fits_counts_and_an_unknown_key_may_not_change() -> None:
    may = (
        "run.max_epochs",
        "data.test.args.split",
        "data.val.loader.workers",
        "hooks.log.every",
        "hooks.log.on_error",
    )
    no = (
        "data.val.args.split",
        "run.name",
        "model.generator.use",
        "optimizer.args.lr",
        "run.something_new",
    )
    assert {rule_of(key).may for key in may} == {ChangeRule.YES}
    assert {rule_of(key).may for key in no} == {ChangeRule.NO}
    assert rule_of("hooks.log.args.every").may is ChangeRule.ALLOWED


def order(run: RunDir) -> list[str]:
    return [binding.hook for binding in read_recorded_plan(run).at("before_train")]


def test_a_run_is_shuffled_and_a_resume_keeps_its_order_and_its_hooks() -> None:
    hooks = (f'[hooks.h{k}]\nuse = "builtins:print"\npoints = ["before_train"]\n' for k in range(6))
    Path("p.toml").write_text(SMALL + "".join(hooks))
    first, again, plain = (new("p.toml", PipelineChanges(shuffle=seed)) for seed in (7, 7, None))
    assert read_recorded_plan(first).shuffle == 7
    assert order(first) == order(again) != order(plain)
    run = new("p.toml", PipelineChanges(shuffle=7, without=("h0",)))
    shuffled = order(run)
    assert sorted(shuffled) == ["h1", "h2", "h3", "h4", "h5"]
    assert order(prepare_resume(run.id, PipelineChanges())) == shuffled
    longer = prepare_resume("p.toml", PipelineChanges(overrides=("run.max_iters=20",)))
    assert (longer.id, order(longer.wanted()), read_recorded_plan(longer.wanted()).shuffle) == (
        run.id,
        shuffled,
        7,
    )
    assert "max_iters = 20" in longer.wanted().pipeline.read_text()
    assert (
        read_recorded_plan(prepare_resume(run.id, PipelineChanges(shuffle=0)).wanted()).shuffle == 0
    )
