"""A fork begins with its parent's whole state, and may differ from it;
what it leaves out is named.
"""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.api.recorded import RecordedRun
from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir, all_runs
from hookflow.runner.checkpoint.manifest import EXCEPTION, list_checkpoints
from hookflow.runner.checkpoint.store import read
from hookflow.runner.process import launch
from hookflow.service import checkpoints
from tests.conftest import NewRun, Train, Trained, messages, reason, records, strikes
from tests.monitor.conftest import read as read_log
from tests.runner.same import assert_same, curve, final_state, logged
from tests.support.processes import Training
from tests.support.toy import Net

KEEPS = (
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    "hooks.checkpoint.args.keep=99",
)
LR = 'hooks.lr={use="lr_monitor"}'
COSINE = (
    'hooks.schedule={use="scheduler", args={chain=[{use="CosineAnnealingLR",'
    " args={eta_min=0.01}}]}}"
)
WARM = (
    'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="40%"},'
    ' {use="ExponentialLR", args={gamma=0.9}}]}}'
)
PLAIN = "hooks.schedule.enabled=false"
LOADED = (
    'data.train={use="./data_loaders.py:dataset", args={examples=40}, loader={batch_size=8,'
    " shuffle=true}}"
)
BUCKETS = (
    'data.train={use="./data_loaders.py:dataset", args={examples=40}, '
    'loader={batch_sampler="./data_loaders.py:Buckets"}}'
)
Fork = Callable[..., RunDir]


@pytest.fixture
def fork(train_here: Train) -> Fork:
    """Train a fork of a run from one of its checkpoints, with overrides, and return it."""

    def train(parent: RunDir, name: str, *overrides: str, code: int = 0) -> RunDir:
        run_dir = make_fork(f"{parent.path}:{name}", None, PipelineChanges(overrides))
        assert train_here(run_dir) == code, reason(run_dir)
        return run_dir

    return train


def rates(run_dir: RunDir) -> dict[int, float]:
    return logged(run_dir, "lr")  # type: ignore[return-value]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="a source"),
        pytest.param((LOADED, COSINE, "run.accumulate=2"), id="a dataset, accumulated, scheduled"),
        pytest.param((BUCKETS,), id="batches of any size"),
        pytest.param(
            ('data.train={use="./data_loaders.py:Numbers", loader={batch_size=8}}',), id="a stream"
        ),
        pytest.param(('task.use="./own_tasks.py:Remembers"',), id="a task with a state"),
    ],
)
def test_an_unchanged_fork_trains_on_as_its_parent(
    trained: Trained, fork: Fork, overrides: tuple[str, ...]
) -> None:
    """To the bit, from the middle of an epoch; and the parent is only read."""
    parent = trained(*KEEPS, *overrides)
    before = {path: path.stat().st_mtime_ns for path in parent.path.rglob("*")}
    child = fork(parent, "it00000006")
    assert before == {path: path.stat().st_mtime_ns for path in parent.path.rglob("*")}
    begin = min(it for it, *_ in curve(child))  # type: ignore[type-var]
    # A number of the iteration before may still be on its way when a checkpoint is saved.
    assert begin in (6, 7)
    assert_same(
        curve(child),
        {key: value for key, value in curve(parent).items() if key[0] > 6 or key in curve(child)},
    )  # type: ignore[operator]
    states = [final_state(run_dir) for run_dir in (parent, child)]
    for state in states:
        del state["hooks"]["checkpoint"]  # type: ignore[attr-defined]  # the best is the fork's own
    assert_same(*states)
    (begun,) = records(child, "run")
    assert (begun["it"], begun["forked_from"], begun["resumed_from"]) == (
        6,
        f"{parent.id}:it00000006",
        None,
    )
    assert child.parent() == (parent.id, "it00000006", 6, str(parent.checkpoints / "it00000006"))


@pytest.mark.parametrize(
    "schedule", [(), (COSINE,), (WARM,), (PLAIN,)], ids=["lr_schedule", "cosine", "warm", "none"]
)
def test_a_rate_is_that_of_a_run_that_was_always_so(
    trained: Trained, fork: Fork, schedule: tuple[str, ...]
) -> None:
    """Whatever sets it, and with other batches at the same share of the run."""
    overrides = (LOADED, LR, 'hooks.log.points=["after_train_iter"]', *schedule)
    parent = trained(*KEEPS, *overrides)
    for change in (
        ("optimizer.args.lr=0.02", "data.train.loader.batch_size=4"),
        ("run.accumulate=2",),
    ):
        here, always = (
            rates(fork(parent, "it00000006", *change)),
            rates(trained(*overrides, *change)),
        )
        assert max(here) == max(always), change
        assert here == pytest.approx({it: always[it] for it in here}, rel=1e-6), change


def test_other_settings_take_the_state_along(
    trained: Trained, fork: Fork, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = trained(*KEEPS, PLAIN)
    changes = (
        "optimizer.args.weight_decay=0.1",
        'optimizer.groups=[{match="head.*", scale={lr=0.5}}]',
    )
    child = fork(parent, "it00000012", *changes, "hooks.checkpoint.args.keep=99")
    assert not any("weight_decay" in text for text in messages(child)), "the command has shown it"
    assert "optimizer.args.weight_decay" in capsys.readouterr().err
    groups = final_state(child)["optimizer"]["param_groups"]  # type: ignore[index]
    assert [(group["lr"], group["weight_decay"], group["momentum"]) for group in groups] == [
        (0.05, 0.1, 0.9),
        (0.1, 0.1, 0.9),
    ]
    # Nothing is trained.
    other = fork(parent, "it00000012", changes[1], "run.max_epochs=2", "run.test=true")
    before = read(parent.checkpoints / "it00000012")["optimizer"]["state"]
    after = final_state(other)["optimizer"]["state"]  # type: ignore[index]
    order = [4, 5, 0, 1, 2, 3]  # the head's weight and bias come first now
    for k, of in enumerate(order):
        assert torch.equal(after[k]["momentum_buffer"], before[of]["momentum_buffer"])


def test_what_is_left_out_is_named(trained: Trained, fork: Fork) -> None:
    parent = trained(*KEEPS, 'task.use="./own_tasks.py:Remembers"')
    child = fork(
        parent,
        "it00000009",
        'optimizer={use="torch.optim:AdamW", args={lr=0.01}}',
        'task.use="./own_tasks.py:Forgets"',
        "hooks.early_stop.enabled=false",
        'hooks.swa={use="swa", args={begin="1ep"}}',
        "run.seed=3",
    )
    texts = messages(child)
    for expected in (
        "the optimizer is another: the state of torch.optim:SGD is dropped (momentum_buffer)",
        "the task is another: the state of the parent's is dropped (",
        'a hook "early_stop" that this pipeline does not have: its state is dropped (best, waited,',
        f'since {parent.id}:it00000009: the hook "swa" is new: it starts anew',
        "run.seed is another: the generators begin with it",
        "since",
    ):
        assert any(expected in text for text in texts), expected


def test_the_best_average_of_a_fork_is_its_own(trained: Trained, fork: Fork) -> None:
    """That of the parent is better, and is not in the fork's directory."""
    gives = (
        'hooks.gives={use="tests.runner.test_resume:GivesNumbers", args={numbers=[0.5, 0.9, 0.7]}}'
    )
    parent = trained(*KEEPS, gives, 'hooks.ema.args={decay=0.9, monitor="given", mode="max"}')
    assert (parent.checkpoints / "best-ema").readlink().name == "it00000010"
    child = fork(parent, "it00000012")
    assert (child.checkpoints / "best-ema").readlink().name.startswith("it00000015")


@pytest.mark.parametrize("name", ["Numbers", "NumbersWithPlace"])
def test_a_stream_goes_on_with_its_next_example(
    trained: Trained, fork: Fork, train_here: Train, tmp_path: Path, name: str
) -> None:
    """Among batches of another size; and a resume of that fork is exact."""
    data = f'data.train={{use="./data_loaders.py:{name}", loader={{batch_size=8}}}}'
    parent = trained(*KEEPS, data)
    change = ("data.train.loader.batch_size=4", "run.max_epochs=3")
    alone = fork(parent, "it00000003", *change)
    cut = fork(
        parent,
        "it00000003",
        *change,
        *strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 9)),
        code=143,
    )
    assert train_here(cut, resume=True, allow_changed_hooks=True) == 0
    assert_same(final_state(alone)["model"], final_state(cut)["model"])
    loader = final_state(alone)["data"]["train"]  # type: ignore[index]
    assert "next" in loader
    assert records(alone, "end")[-1]["it"] == 30


def test_a_place_among_other_batches_trains_nothing_less(trained: Trained, fork: Fork) -> None:
    parent = trained(*KEEPS, LOADED)
    child = fork(parent, "it00000003", "data.train.loader.batch_size=16")
    assert any("example 16: 8 examples" in text for text in messages(child))
    text = "an epoch has 3 iterations: iteration 3 of the parent is 1 here"
    assert any(text in message for message in messages(child, "warn"))
    assert records(child, "end")[-1]["it"] == 9
    over = fork(parent, "it00000005", "data.train.loader.batch_size=16")
    assert records(over, "run")[0]["it"] == 5 and records(over, "end")[-1]["it"] == 9


@pytest.mark.parametrize(
    ("data", "change", "place", "again"),
    [
        pytest.param(BUCKETS, LOADED, 8, 3, id="from batches of any size"),
        pytest.param(LOADED, BUCKETS, 20, 4, id="to batches of any size"),
    ],
)
def test_a_place_is_counted_in_the_sizes_of_a_batch_sampler(
    trained: Trained, fork: Fork, data: str, change: str, place: int, again: int
) -> None:
    """Three batches of 5, 2 and 4, and three of 8."""
    parent = trained(*KEEPS, data, "run.max_epochs=1")
    child = fork(parent, "it00000003", change)
    assert any(f"example {place}: {again} examples" in text for text in messages(child))


def test_a_model_of_other_parameters_is_the_users_mistake(trained: Trained, fork: Fork) -> None:
    parent = trained(*KEEPS, "run.max_epochs=2")
    child = fork(parent, "it00000005", "model.args.width=16", code=2)
    text = reason(child)
    assert "does not fit this pipeline" in text
    assert '"body.0.weight" in the shape (8, 4)' in text and "(16, 4)" in text
    assert not records(child, "frame") or not any(
        record["samples"] for record in records(child, "frame")
    )


def test_a_fork_that_a_hook_refuses_before_its_first_iteration_is_refused(
    trained: Trained, fork: Fork
) -> None:
    child = fork(
        trained(*KEEPS), "it00000006", 'hooks.mine={use="lr_finder", args={iters=4000}}', code=2
    )
    assert read_log(child).state.outcome == "refused"


ADAM = 'optimizer={use="torch.optim:AdamW", args={lr=0.01}}'


@pytest.mark.parametrize(
    ("optimizer", "setting", "code"),
    [
        (ADAM, "amsgrad=true", 2),
        (ADAM.replace("AdamW", "RMSprop"), "momentum=0.9", 2),
        (ADAM, "weight_decay=0.3", 0),
        ("optimizer.args.momentum=0", "momentum=0.9", 0),
    ],
    ids=["more state", "momentum of RMSprop", "no state", "a state that begins by itself"],
)
def test_settings_need_their_own_state(
    trained: Trained, fork: Fork, optimizer: str, setting: str, code: int
) -> None:
    child = fork(trained(*KEEPS, optimizer), "it00000006", f"optimizer.args.{setting}", code=code)
    if code:
        assert f"lacks what {setting.partition('=')[0]} needs" in reason(child)


def test_an_unsaved_fork_starts_at_its_parent(
    trained: Trained, fork: Fork, new_run: NewRun, tmp_path: Path
) -> None:
    parent = trained(*KEEPS)
    killed = make_fork(
        str(parent.checkpoints / "it00000006"),
        None,
        PipelineChanges((*strikes(tmp_path, signal.SIGKILL, ("after_train_iter", 8)),)),
    )
    assert Training(killed).wait() == -signal.SIGKILL
    assert Training(killed, resume=True).wait() == 0
    assert [record["forked_from"] for record in records(killed, "run")] == [
        f"{parent.id}:it00000006"
    ] * 2
    assert_same(final_state(killed)["model"], final_state(parent)["model"])
    shutil.rmtree(parent.path)
    assert Training(killed, resume=True).wait() == 0, "it has checkpoints of its own"


def test_a_fork_holds_its_checkpoint_though_the_parent_removes_it(
    trained: Trained, train_here: Train
) -> None:
    parent = trained(*KEEPS)
    child = make_fork(f"{parent.path}:it00000006", None, PipelineChanges())
    shutil.rmtree(parent.checkpoints / "it00000006")
    assert train_here(child) == 0, reason(child)
    assert_same(final_state(child)["model"], final_state(parent)["model"])
    assert not child.fork_start.exists(), "it has checkpoints of its own"


@pytest.mark.parametrize("moment", ["found", "made"])
def test_where_the_checkpoint_is_removed_before_it_is_held_the_next_one_is_taken(
    trained: Trained, train_here: Train, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The parent trains on, and removes its newest checkpoint once it has another one."""
    parent = trained(*KEEPS)
    newest = list_checkpoints(parent.checkpoints)[0]
    module, name = {"found": (checkpoints, "find_checkpoint"), "made": (launch, "new_run")}[moment]
    before = getattr(module, name)

    def removing(*args: Any, **options: Any) -> Any:
        result = before(*args, **options)
        shutil.rmtree(newest, ignore_errors=True)
        return result

    monkeypatch.setattr(module, name, removing)
    child = make_fork(str(parent.path), None, PipelineChanges(("run.max_epochs=4",)))
    started_from = child.parent()
    assert started_from is not None and started_from.checkpoint != newest.name
    assert [run.path for run in all_runs(child.path.parent.parent) if run.parent()] == [child.path]
    assert train_here(child) == 0, reason(child)


@pytest.mark.parametrize("place", ["around_val second", "after_train_epoch"])
def test_a_hook_that_raises_after_the_iterations_costs_no_epoch(
    left_alone: RunDir, trained: Trained, fork: Fork, place: str
) -> None:
    """A fork of what was saved apart does that again,
    and ends with the bits of a run that never raised.
    """
    parent = trained(
        f'hooks.fails={{use="./common_hooks.py:Fails", args={{place="{place}"}}}}', code=1
    )
    (apart,) = list_checkpoints(parent.checkpoints, EXCEPTION)
    assert f"hookflow fork {apart} trains on from it" in messages(parent, "warn")[-1]
    loaded = RecordedRun(parent).checkpoint(apart.name).load_into(Net(), "model")
    assert_same(loaded.state_dict(), torch.load(apart / "model.pt", weights_only=True))
    assert apart not in [each.path for each in RecordedRun(parent).checkpoints]
    child = fork(parent, apart.name, 'hooks.fails.args.place="nowhere"')
    assert records(child, "metrics")[0]["it"] == 5
    assert_same(final_state(child)["model"], final_state(left_alone)["model"])


def test_nothing_is_left_to_train(left_alone: RunDir) -> None:
    with pytest.raises(
        UserError, match=r"nothing is left to train.* has done 3, and run.max_epochs is 3"
    ):
        make_fork(str(left_alone.path), None, PipelineChanges())


def test_another_rate_by_epochs_counts_from_the_middle_of_an_epoch_on(
    trained: Trained, fork: Fork
) -> None:
    by_epochs = (
        'hooks.schedule={use="scheduler", args={per="epoch", chain=[{use="ExponentialLR",'
        " args={gamma=0.5}}]}}"
    )
    parent = trained(*KEEPS, by_epochs, LR, 'hooks.log.points=["after_train_iter"]')
    child = rates(fork(parent, "it00000006", "optimizer.args.lr=0.02"))
    assert {it: child[it] for it in (7, 10, 11)} == pytest.approx({7: 0.01, 10: 0.01, 11: 0.005})


@pytest.mark.parametrize("now", [39, 60])
def test_data_of_another_length_are_said(trained: Trained, fork: Fork, now: int) -> None:
    parent = trained(LOADED, *KEEPS)
    child = fork(parent, "it00000003", f"data.train.args.examples={now}")
    said = [text for text in messages(child) if "data.train had 40 examples" in text]
    assert len(said) == 1 and f"has {now} examples now" in said[0]
