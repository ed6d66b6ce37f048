"""Callbacks of Hugging Face's Trainer, unmodified: they see what it shows them, in its order,
and do their work.
"""

from pathlib import Path
from typing import Any

import pytest
import tomli
import torch

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.observation import missing
from hookflow.pipeline.load import load
from hookflow.runner.loop.trainer import Trainer
from hookflow.service.pipelines import valid_plan
from hookflow.trials.temporary_run import observe, with_checkpoint
from tests.conftest import Trained, reason, records
from tests.runner.same import final_state

pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="needs accelerate, for Hugging Face's own Trainer")

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDER = 'hooks.recorder={use="tests.hooks.hf_training:Recorder"}'
SAVES = 'hooks.checkpoint={use="checkpoint", points=["after_train_epoch"]}'


@pytest.fixture
def hf() -> Any:
    """The module `hf_training`, which takes long to import; no event has been seen."""
    from tests.hooks import hf_training

    hf_training.SEEN.clear()
    return hf_training


@pytest.fixture
def here(hf: Any, tmp_path: Path, trained: Trained) -> Any:
    """Train the pipeline of `hf_training` with hooks; return the run."""

    def train(*hooks: str, epochs: int = 2, validates: bool = True, code: int = 0) -> RunDir:
        file = tmp_path / "hf.toml"
        text = hf.PIPELINE.replace("EPOCHS", str(epochs))
        if not validates:
            text = "\n".join(line for line in text.splitlines() if "data.val" not in line)
        file.write_text(text)
        return trained(*hooks, pipeline=file, code=code)

    return train


@pytest.fixture
def theirs(hf: Any, tmp_path: Path) -> Any:
    """Train the same by Hugging Face's Trainer; return the weights,
    and the events that a `Recorder` has seen.
    """

    def train(*callbacks: Any, **args: Any) -> tuple[dict[str, torch.Tensor], list[Any]]:
        weights = hf.train_theirs(tmp_path / "theirs", *callbacks, **args)
        events = [*hf.SEEN]
        hf.SEEN.clear()
        return weights, events

    return train


BY_EPOCHS = {"eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}


def test_a_callback_sees_the_same_events_and_figures_by_epochs(
    hf: Any, here: Any, theirs: Any
) -> None:
    weights, expected = theirs(hf.Recorder(), **BY_EPOCHS)
    run_dir = here(RECORDER, 'hooks.log={use="log", every="1ep"}', SAVES)
    assert [event[0] for event in hf.SEEN] == [event[0] for event in expected]
    assert expected == hf.SEEN
    state: Any = final_state(run_dir)
    assert all(torch.equal(state["model"][name], value) for name, value in weights.items())


def test_a_callback_sees_the_same_events_and_figures_by_steps(
    hf: Any, here: Any, theirs: Any
) -> None:
    _, expected = theirs(hf.Recorder(), **BY_STEPS)
    here(RECORDER, 'hooks.log={use="log", every=2}', 'run.val_every="2it"')
    assert [event[0] for event in hf.SEEN] == [event[0] for event in expected]
    assert expected == hf.SEEN


def test_logs_of_several_epochs_come_when_their_trainer_logs(
    hf: Any, here: Any, theirs: Any
) -> None:
    """Two epochs are six steps; the epochs are five, so that the last one logs nothing."""
    _, expected = theirs(hf.Recorder(), logging_steps=6, eval_strategy="epoch", num_train_epochs=5)
    here(RECORDER, 'hooks.log={use="log", every="2ep"}', epochs=5)
    assert expected == hf.SEEN


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ('log={use="log", every="2ep"}', "steps 6 no 500"),
        ('log={use="log", points=["after_train_epoch"]}', "epoch 500 no 500"),
        ('log={use="log", points=["after_train_epoch"], every=2}', "steps 6 no 500"),
        ('log={use="log", points=["after_train_epoch"], every="50%"}', "steps 9 no 500"),
        ('saves={use="checkpoint", points=["after_train_iter"], every="2ep"}', "steps 500 steps 6"),
        ('saves={use="checkpoint", points=["after_train_epoch"]}', "steps 500 epoch 500"),
        ('saves={use="checkpoint", points=["after_train_epoch"], every=2}', "steps 500 steps 6"),
    ],
)
def test_the_intervals_of_hooks_are_arguments_in_steps(here: Any, hook: str, expected: str) -> None:
    """An epoch is three steps, and the run has six of them."""
    names = ("logging_strategy.value", "logging_steps", "save_strategy.value", "save_steps")
    asked = ", ".join(f"args.{name}" for name in names)
    expression = f"'%s %d %s %d' % ({asked})"
    asks = (
        f"""hooks.asks={{use='tests.hooks.hf_training:Asks', args={{expression="{expression}"}}}}"""
    )
    run_dir = here(asks, f"hooks.{hook}", epochs=6, code=1)
    assert f": {expected}" in reason(run_dir)


@pytest.mark.parametrize("epochs", [2, 10])
def test_an_end_within_an_epoch_is_seen_alike(
    hf: Any, here: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """The epochs of the run are those that it begins, and the examples those that it trains on."""

    def count(split: str, began: float, **counts: Any) -> dict[str, Any]:
        return counts

    monkeypatch.setattr("transformers.trainer.speed_metrics", count)
    monkeypatch.setattr("transformers.trainer_utils.speed_metrics", count)
    _, expected = theirs(hf.Recorder(), max_steps=5, logging_steps=2, num_train_epochs=epochs)
    log = 'hooks.log={use="log", every=2}'
    limits = [f"run.max_epochs={epochs}", "run.max_iters=5"]
    here(RECORDER, log, *limits, validates=False)
    assert expected == hf.SEEN
    assert hf.SEEN[-2][3]["num_samples"] == 5 * 4


def test_an_iteration_of_several_batches_is_one_step(hf: Any, here: Any, theirs: Any) -> None:
    """The last group of the epoch is incomplete: three batches, two of them a step."""
    _, expected = theirs(hf.Recorder(), gradient_accumulation_steps=2, logging_steps=1)
    here(RECORDER, 'hooks.log={use="log", every=1}', "run.accumulate=2", validates=False)
    assert expected == hf.SEEN


def sets(flag: str, step: int, event: str) -> str:
    return (
        f'hooks.sets={{use="tests.hooks.hf_training:SetsFlag", args={{flag="{flag}", step={step},'
        f' event="{event}"}}}}'
    )


@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end", "on_optimizer_step"])
@pytest.mark.parametrize("flag", ["should_training_stop", "should_epoch_stop", "should_log"])
def test_flags_act_as_in_their_trainer(
    hf: Any, here: Any, theirs: Any, flag: str, event: str
) -> None:
    _, expected = theirs(hf.SetsFlag(flag, 1, event), hf.Recorder(), logging_steps=100)
    here(sets(flag, 1, event), RECORDER, 'hooks.log={use="log", every=100}', validates=False)
    assert expected == hf.SEEN


def test_a_stop_from_the_beginning_comes_after_the_first_step(
    hf: Any, here: Any, theirs: Any
) -> None:
    _, expected = theirs(
        hf.SetsFlag("should_training_stop", 0, "on_train_begin"), hf.Recorder(), logging_steps=100
    )
    stops = sets("should_training_stop", 0, "on_train_begin")
    here(stops, RECORDER, 'hooks.log={use="log", every=100}', validates=False)
    assert expected == hf.SEEN
    assert max(event[1]["global_step"] for event in expected) == 1


def test_a_stop_that_is_asked_for_in_a_log_is_followed(hf: Any, here: Any, theirs: Any) -> None:
    _, expected = theirs(
        hf.SetsFlag("should_training_stop", 2, "on_log"), hf.Recorder(), logging_steps=2
    )
    run_dir = here(
        sets("should_training_stop", 2, "on_log"),
        RECORDER,
        'hooks.log={use="log", every=2}',
        validates=False,
    )
    assert expected == hf.SEEN
    assert "control.should_training_stop" in reason(run_dir)


def test_a_flag_asks_for_a_validation(hf: Any, here: Any, theirs: Any) -> None:
    strategy = {"eval_strategy": "steps", "eval_steps": 100, "logging_steps": 100, "max_steps": 6}
    _, expected = theirs(hf.SetsFlag("should_evaluate", 2), hf.Recorder(), **strategy)
    here(
        sets("should_evaluate", 2, "on_step_end"),
        RECORDER,
        'hooks.log={use="log", every=100}',
        'run.val_every="100it"',
        "run.max_iters=6",
    )
    assert expected == hf.SEEN


def test_a_flag_asks_for_a_checkpoint(hf: Any, here: Any, theirs: Any) -> None:
    _, expected = theirs(hf.SetsFlag("should_save", 2), hf.Recorder(), logging_steps=100)
    run_dir = here(
        sets("should_save", 2, "on_step_end"),
        RECORDER,
        'hooks.log={use="log", every=100}',
        validates=False,
    )
    assert expected == hf.SEEN[:-1]
    assert hf.SEEN[-1][0] == "on_save", "a run of hookflow keeps its end, too"
    assert [record["it"] for record in records(run_dir, "checkpoint")] == [2, 6]


def takes_back(flag: str) -> str:
    return f'hooks.takes={{use="tests.hooks.hf_training:TakesBack", args={{flag="{flag}"}}}}'


def test_a_later_callback_may_take_a_flag_back(hf: Any, here: Any, theirs: Any) -> None:
    callbacks = (
        hf.SetsFlag("should_training_stop", 1),
        hf.TakesBack("should_training_stop"),
        hf.Recorder(),
    )
    _, expected = theirs(*callbacks, logging_steps=100)
    stops = sets("should_training_stop", 1, "on_step_end")
    log = 'hooks.log={use="log", every=100}'
    here(stops, takes_back("should_training_stop"), RECORDER, log, validates=False)
    assert expected == hf.SEEN


def test_a_validation_that_the_run_makes_by_itself_is_not_taken_back(here: Any) -> None:
    run_dir = here(takes_back("should_evaluate"), 'run.val_every="2it"', code=2)
    assert "has set control.should_evaluate back" in reason(run_dir)


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping_stops_where_their_trainer_stops(
    hf: Any, here: Any, theirs: Any, patience: int
) -> None:
    """The examples of the validation are others, so its loss grows after some epochs."""
    args = {
        **BY_EPOCHS,
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "num_train_epochs": 30,
    }
    stopping = hf.EarlyStoppingCallback(patience, 0.002)
    _, expected = theirs(stopping, hf.Recorder(), **args)
    arguments = f"{{early_stopping_patience={patience}, early_stopping_threshold=0.002}}"
    run_dir = here(
        f'hooks.stops={{use="huggingface:EarlyStoppingCallback", args={arguments}}}',
        RECORDER,
        'hooks.log={use="log", every="1ep"}',
        'hooks.checkpoint={use="checkpoint", args={monitor="loss", mode="min"}}',
        epochs=30,
    )
    epochs = records(run_dir, "end")[-1]["ep"]
    assert epochs == expected[-1][1]["epoch"] < 30
    # Hookflow saves the best, and the end.
    kept = [event for event in hf.SEEN if event[0] != "on_save"]
    assert [event for event in expected if event[0] != "on_save"] == kept


TWO_SETS = (
    'data.val={near={use="tests.hooks.hf_training:loader", args={examples=10}},'
    ' far={use="tests.hooks.hf_training:loader", args={examples=7}}}'
)


def test_sets_of_a_validation_are_named_as_in_their_trainer(
    hf: Any, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in one evaluation; 17 examples are five batches."""

    def count(split: str, began: float, num_samples: float, num_steps: int) -> dict[str, Any]:
        return {"samples": num_samples, "steps": num_steps}

    monkeypatch.setattr("transformers.trainer_utils.speed_metrics", count)
    monkeypatch.setattr(hf, "TIMES", ())
    here(RECORDER, TWO_SETS, validates=False)
    evaluations = [event for event in hf.SEEN if event[0] == "on_evaluate"]
    named = {"eval_near_loss", "eval_far_loss"}
    assert [event[3].keys() for event in evaluations] == [{*named, "epoch", "samples", "steps"}] * 2
    assert [(e[3]["samples"], e[3]["steps"]) for e in evaluations] == [(17, 5)] * 2
    asked = [event[2]["should_evaluate"] for event in hf.SEEN if event[0] == "on_prediction_step"]
    assert asked == [True] * 10
    lengths = [event[7][1] for event in hf.SEEN if event[0] == "on_prediction_step"]
    assert lengths == [3, 3, 3, 2, 2] * 2


def list_evaluations(seen: list[Any]) -> tuple[list[int], list[int]]:
    """Return the steps after which the flag asks for an evaluation, and those of evaluations."""
    asked, measured = [], []
    for event, figures, flags, *_ in seen:
        is_after_step = event in ("on_step_end", "on_epoch_end")
        if is_after_step and flags["should_evaluate"]:
            asked.append(figures["global_step"])
        if event == "on_evaluate":
            measured.append(figures["global_step"])
        assert event != "on_prediction_step" or flags["should_evaluate"]
    return asked, measured


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        ("2ep", "3ep", [6, 9, 12]),
        ("5it", "2ep", [5, 6, 10, 12]),
        ("4it", "5it", [4, 5, 8, 10, 12, 12]),
        ("1h", "2h", [12]),
    ],
)
def test_a_set_with_its_own_interval_is_asked_for(
    hf: Any, here: Any, near: str, far: str, expected: list[int]
) -> None:
    """Four epochs are twelve steps. The end of the run validates on all sets: on one that is due
    after the twelfth iteration anyway before the epoch is closed, and then on the other.
    """
    every = [f"data.val.near.val_every='{near}'", f"data.val.far.val_every='{far}'"]
    here(RECORDER, TWO_SETS, *every, validates=False, epochs=4)
    assert list_evaluations(hf.SEEN) == (expected, expected)


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [("5it", "5it", "steps 5"), ("2ep", "1ep", "epoch None"), ("2ep", "5it", "steps 6")],
)
def test_the_arguments_have_the_interval_of_the_sets(
    here: Any, near: str, far: str, expected: str
) -> None:
    """It is `run.val_every` where a set has that, and otherwise that of the first set."""
    asked = "'%s %s' % (args.eval_strategy.value, args.eval_steps and int(args.eval_steps))"
    asks = f"""hooks.asks={{use='tests.hooks.hf_training:Asks', args={{expression="{asked}"}}}}"""
    every = [f"data.val.near.val_every='{near}'", f"data.val.far.val_every='{far}'"]
    run_dir = here(asks, TWO_SETS, *every, validates=False, epochs=4, code=1)
    assert f": {expected}" in reason(run_dir)


@pytest.mark.parametrize(
    ("every", "expected"), [("2ep", "steps 6"), ("0.5ep", "steps 1"), ("1ep", "epoch None")]
)
def test_the_arguments_have_an_interval_of_epochs_in_steps(
    here: Any, every: str, expected: str
) -> None:
    """Half of an epoch of three steps is one: `TrainingArguments` wants whole ones."""
    asked = "'%s %s' % (args.eval_strategy.value, args.eval_steps and int(args.eval_steps))"
    asks = f"""hooks.asks={{use='tests.hooks.hf_training:Asks', args={{expression="{asked}"}}}}"""
    run_dir = here(asks, f"run.val_every='{every}'", code=1)
    assert f": {expected}" in reason(run_dir)


@pytest.mark.parametrize("monitor", ["near/loss", "near/loss + far/loss"])
def test_early_stopping_compares_what_ranks_the_checkpoints(here: Any, monitor: str) -> None:
    """No epoch improves by 1.0: the second counts one, which is the patience."""
    run_dir = here(
        'hooks.stops={use="huggingface:EarlyStoppingCallback", args={early_stopping_threshold=1}}',
        f'hooks.checkpoint={{use="checkpoint", args={{monitor="{monitor}", mode="min"}}}}',
        TWO_SETS,
        validates=False,
        epochs=9,
    )
    assert records(run_dir, "end")[-1]["ep"] == 2


def test_a_prediction_has_the_data_and_the_speed_of_its_split(
    hf: Any, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = 'data.test={use="tests.hooks.hf_training:loader", args={examples=6}}'
    run_dir = here(RECORDER, SAVES, test)
    hf.SEEN.clear()
    monkeypatch.setattr(
        "transformers.trainer_utils.speed_metrics", lambda name, began, *counts: {"counts": counts}
    )
    monkeypatch.setattr(hf, "without_times", lambda numbers: numbers)
    with_checkpoint(
        Trainer.predict, run_dir, run_dir.checkpoints / "last", "test", (), print, single=True
    )
    assert hf.SEEN[-1][0] == "on_predict" and hf.SEEN[-1][3] == {"counts": (6, 2)}
    assert [event[7][1] for event in hf.SEEN if event[0] == "on_prediction_step"] == [2, 2]


def test_the_checkpoint_has_what_a_callback_counts(here: Any) -> None:
    run_dir = here('hooks.counts={use="tests.hooks.hf_training:Counts"}', SAVES)
    state: Any = final_state(run_dir)
    saved = state["hooks"]["counts"]
    assert saved["numbers"]["seen"] == 6 and saved["trainer"]["global_step"] == 6


def test_a_resumed_run_sees_what_an_unbroken_one_has_seen(
    resumes_alike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No two are alike.
    monkeypatch.setattr("transformers.trainer_utils.speed_metrics", lambda *args, **options: {})
    hooks = (
        'hooks.counts={use="tests.hooks.hf_training:Counts"}',
        'hooks.losses={use="tests.hooks.hf_training:KeepsLosses"}',
        'hooks.log={use="log", every=4}',
        "hooks.ema.enabled=false",
    )
    cut = resumes_alike(*hooks, point="after_train_iter", at=7)
    state: Any = final_state(cut)
    assert state["hooks"]["losses"]["numbers"]["total"] > 0


def test_predictions_and_tests_are_passes_without_a_log(hf: Any, here: Any, theirs: Any) -> None:
    _, expected = theirs(hf.Recorder(), logging_steps=100, predict=True)
    test = 'data.test={use="tests.hooks.hf_training:loader", args={examples=8}}'
    here(RECORDER, 'hooks.log={use="log", every=100}', test, "run.test=true", validates=False)
    assert [event[0] for event in expected[-3:]] == [
        "on_prediction_step",
        "on_prediction_step",
        "on_predict",
    ]
    assert expected[-1][3] == hf.SEEN[-1][3]  # the figures of the test
    assert [event[0] for event in expected] == [event[0] for event in hf.SEEN]


ANSWERS = {
    "type(args).__mro__[2].__name__, args.max_steps, args.num_train_epochs": (
        "('TrainingArguments', -1, 2.0)"
    ),
    "args.per_device_train_batch_size, args.train_batch_size, args.world_size": "(4, 4, 1)",
    "args.device.type, args.n_gpu, args.process_index, args.seed": "('cpu', 0, 0, 0)",
    "args.learning_rate, args.eval_strategy.value, args.save_strategy.value": (
        "(0.1, 'epoch', 'no')"
    ),
    "state.max_steps, state.num_train_epochs, state.is_world_process_zero": "(6, 2, True)",
    "len(train_dataloader), eval_dataloader, processing_class": "(3, None, None)",
    "type(model).__name__, optimizer.param_groups[0]['lr'], lr_scheduler.get_last_lr()": (
        "('Net', 0.1, [0.1])"
    ),
}


@pytest.mark.parametrize("expression", ANSWERS)
def test_what_an_event_is_given_is_that_of_the_run(here: Any, expression: str) -> None:
    asked = here(
        f'hooks.asks={{use="tests.hooks.hf_training:Asks", args={{expression="{expression}"}}}}',
        code=1,
    )
    assert f"{expression}: {ANSWERS[expression]}" in reason(asked)


@pytest.mark.parametrize("expression", ["lr_scheduler.step()", "lr_scheduler.state_dict()"])
def test_what_is_not_there_is_refused_by_name(here: Any, expression: str) -> None:
    asked = here(
        f'hooks.asks={{use="tests.hooks.hf_training:Asks", args={{expression="{expression}"}}}}',
        code=1,
    )
    assert "scheduler of Hugging Face's Trainer has no" in reason(asked)


REFUSED = {
    "huggingface:DefaultFlowCallback": "is a part of Hugging Face's Trainer",
    "huggingface:ProgressCallback": "is a part of Hugging Face's Trainer",
    "huggingface:EarlyStopingCallback": "EarlyStoppingCallback",
    "tests.hooks.hf_training:TakesTrainer": "takes a Trainer, and there is none here",
    "tests.hooks.hf_training:Pushes": "Pushes.on_push_begin has no point here",
}


@pytest.mark.parametrize("use", REFUSED)
def test_what_cannot_run_here_is_refused_before_the_start(here: Any, use: str) -> None:
    with pytest.raises(UserError, match=REFUSED[use]):
        here(f'hooks.it={{use="{use}"}}')


def test_a_callback_has_no_trigger(here: Any) -> None:
    with pytest.raises(UserError, match="decides itself what it does"):
        here('hooks.it={use="tests.hooks.hf_training:Counts", every=2}')


def test_what_the_run_does_not_offer_is_refused_by_the_callback_s_name(here: Any) -> None:
    substeps = here('hooks.it={use="tests.hooks.hf_training:Substeps"}', "run.accumulate=2", code=2)
    assert "Substeps.on_substep_end has no point here" in reason(substeps)
    stops = here('hooks.it={use="huggingface:EarlyStoppingCallback"}', code=2)
    assert "compares the metric of the best checkpoint" in reason(stops)


def test_what_callbacks_touch_is_declared_also_in_a_trial(hf: Any, tmp_path: Path) -> None:
    hooks = {
        "stops": {"use": "huggingface:EarlyStoppingCallback"},
        "prints": {"use": "huggingface:PrinterCallback"},
        "counts": {"use": "tests.hooks.hf_training:Counts"},
        "checkpoint": {"use": "checkpoint", "args": {"monitor": "loss"}},
    }
    tables: dict[str, Any] = tomli.loads(hf.PIPELINE.replace("EPOCHS", "2")) | {"hooks": hooks}
    plan = valid_plan(loaded := load(tables), tmp_path)
    result = observe(loaded, plan, tmp_path, lambda *texts: None)
    assert not [item for item in result.silent if item.why.startswith("raised")]
    assert missing(plan, result.seen) == {}


def test_a_callback_that_was_switched_off_is_not_waited_for(hf: Any, here: Any) -> None:
    """It stands last, so that the flags would be looked at after it."""
    run_dir = here(
        sets("should_training_stop", 4, "on_step_end"),
        'hooks.fails={use="tests.hooks.hf_training:FailsOnce", on_error="disable"}',
        validates=False,
    )
    assert records(run_dir, "end")[-1]["it"] in (4, 5)
    assert "control.should_training_stop" in reason(run_dir)


@pytest.mark.parametrize("split", ["val", "test"])
def test_an_evaluation_of_a_checkpoint_is_seen(hf: Any, here: Any, split: str) -> None:
    test = 'data.test={use="tests.hooks.hf_training:loader", args={examples=8}}'
    run_dir = here(RECORDER, SAVES, test)
    hf.SEEN.clear()
    with_checkpoint(
        Trainer.evaluate, run_dir, run_dir.checkpoints / "last", split, (), print, single=True
    )
    events = [event[0] for event in hf.SEEN]
    if split == "val":
        assert events == ["on_init_end", *["on_prediction_step"] * 3, "on_log", "on_evaluate"]
        assert hf.SEEN[-1][3].keys() == {"eval_loss", "epoch"}
    else:
        assert events == ["on_init_end", *["on_prediction_step"] * 2, "on_predict"]
        assert hf.SEEN[-1][3].keys() == {"test_loss"}


def test_a_prediction_of_a_checkpoint_is_seen(hf: Any, here: Any) -> None:
    test = 'data.test={use="tests.hooks.hf_training:loader", args={examples=8}}'
    run_dir = here(RECORDER, SAVES, test)
    hf.SEEN.clear()
    with_checkpoint(
        Trainer.predict, run_dir, run_dir.checkpoints / "last", "test", (), print, single=True
    )
    assert [event[0] for event in hf.SEEN] == [
        "on_init_end",
        *["on_prediction_step"] * 2,
        "on_predict",
    ]
