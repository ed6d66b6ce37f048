"""Callbacks of Lightning, unmodified: they see what Lightning's Trainer shows them, in its order,
and do their work.
"""

import json
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
from tests.conftest import Trained, messages, reason, records
from tests.distributed.several import carry_out, printed
from tests.runner.same import final_state, logged

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pl() -> Any:
    """The module `pl_training`, which takes long to import; no call has been seen."""
    from tests.hooks import pl_training

    pl_training.SEEN.clear()
    return pl_training


@pytest.fixture
def here(pl: Any, tmp_path: Path, trained: Trained) -> Any:
    """Train the pipeline of `pl_training` with hooks; return the run."""

    def train(*hooks: str, epochs: int = 2, code: int = 0, sets: bool = False) -> RunDir:
        file = tmp_path / "pl.toml"
        text = pl.PIPELINE.replace("EPOCHS", str(epochs))
        if sets:  # named sets come in place of the one set
            text = "\n".join(line for line in text.splitlines() if "data.val" not in line)
        file.write_text(text)
        return trained(*hooks, pipeline=file, code=code)

    return train


@pytest.fixture
def theirs(pl: Any, tmp_path: Path) -> Any:
    """Train the same by Lightning's Trainer; return the weights,
    and the calls that a `Recorder` has seen.
    """

    def train(*args: Any, **options: Any) -> tuple[dict[str, torch.Tensor], list[Any]]:
        weights = pl.train_theirs(tmp_path / "theirs", *args, **options)
        calls = [*pl.SEEN]
        pl.SEEN.clear()
        return weights, calls

    return train


def assert_weights(run_dir: RunDir, weights: dict[str, torch.Tensor]) -> None:
    state: Any = final_state(run_dir)
    assert all(torch.equal(state["model"][name], value) for name, value in weights.items())


def test_a_callback_sees_the_same_calls_and_counters(pl: Any, here: Any, theirs: Any) -> None:
    _, expected = theirs(2, pl.Recorder(), predict=True)
    run_dir = here(
        'hooks.recorder={use="tests.hooks.pl_training:Recorder"}',
        'hooks.checkpoint={use="checkpoint"}',
    )
    with_checkpoint(
        Trainer.predict, run_dir, run_dir.checkpoints / "last", "test", (), print, single=True
    )
    assert expected == pl.SEEN


def test_each_optimizer_that_steps_is_handed_over_as_in_lightning(
    pl: Any, here: Any, theirs: Any
) -> None:
    """But for Lightning's `global_step`, which counts the steps of every optimizer,
    where ours counts iterations.
    """
    _, calls = theirs(1, pl.Recorder(), module=pl.ManualModule())
    here(
        'hooks.recorder={use="tests.hooks.pl_training:Recorder"}',
        'model={a={use="tests.hooks.pl_training:net"}, b={use="tests.hooks.pl_training:net"}}',
        'optimizer={a={use="torch.optim:SGD", args={lr=0.1}}, b={use="torch.optim:Adam"}}',
        "task.use='tests.hooks.pl_training:Turns'",
        epochs=1,
    )
    assert [call[-1] for call in calls if call[0] == "on_before_optimizer_step"] == [
        ["Adam"],
        ["SGD"],
    ] * 3
    assert [(*call[:2], *call[3:]) for call in calls] == [
        (*call[:2], *call[3:]) for call in pl.SEEN
    ]


def test_sets_of_a_validation_are_seen_as_several_dataloaders(
    pl: Any, here: Any, theirs: Any
) -> None:
    """Their batches are counted by set, and the end of an epoch comes after all of them."""
    validation = {"near": pl.loader(10), "far": pl.loader(7)}
    module = pl.ModuleOfSets()
    _, expected = theirs(2, pl.SetRecorder(), module=module, validation=validation)
    here('hooks.recorder={use="tests.hooks.pl_training:SetRecorder"}', pl.TWO_SETS, sets=True)
    assert expected == pl.SEEN
    assert pl.SEEN[1] == ("validation_batch_start", [0, 0], {"near": 3, "far": 2}, [3, 2], True)


def test_metrics_of_a_set_have_its_name(pl: Any, here: Any) -> None:
    recorder = 'hooks.recorder={use="tests.hooks.pl_training:MetricRecorder"}'
    here(recorder, pl.TWO_SETS, sets=True, epochs=1)
    of_near = ["near/loss", "val_near/loss"]
    of_both = ["far/loss", "near/loss", "val_far/loss", "val_near/loss"]
    assert [("set", of_near), ("set", of_both), ("all", of_both)] == pl.SEEN


def test_early_stopping_follows_the_metric_of_a_set(pl: Any, here: Any) -> None:
    """No epoch improves by 1.0: the second counts one, which is the patience."""
    args = "args={monitor='near/loss', patience=1, min_delta=1.0}"
    stops = f"hooks.stops={{use='lightning:EarlyStopping', {args}}}"
    run_dir = here(stops, pl.TWO_SETS, sets=True, epochs=9)
    assert records(run_dir, "end")[-1]["ep"] == 2


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        ("2ep", "2ep", "(2, 1.0)"),
        ("5it", "5it", "(None, 5.0)"),
        ("1ep", "2ep", "(1, 1.0)"),
    ],
)
def test_the_interval_of_validations_is_that_of_their_sets(
    pl: Any, here: Any, near: str, far: str, expected: str
) -> None:
    asked = "trainer.check_val_every_n_epoch, trainer.val_check_interval"
    asks = f'hooks.asks={{use="tests.hooks.pl_training:Asks", args={{attribute="{asked}"}}}}'
    every = [f"data.val.near.val_every='{near}'", f"data.val.far.val_every='{far}'"]
    run_dir = here(asks, pl.TWO_SETS, *every, sets=True)
    assert f"{asked}: {expected}" in messages(run_dir)


def test_early_stopping_stops_where_lightning_s_trainer_stops(
    pl: Any, here: Any, theirs: Any
) -> None:
    args = {"monitor": "val_loss", "patience": 1, "min_delta": 0.02}
    table = json.dumps(args).replace('": ', '"=')
    stopping = pl.callbacks.EarlyStopping(**args)
    theirs(9, stopping)
    run_dir = here(f"hooks.stops={{use='lightning:EarlyStopping', args={table}}}", epochs=9)
    assert "trainer.should_stop" in reason(run_dir)
    assert records(run_dir, "end")[-1]["ep"] == stopping.stopped_epoch + 1 < 9


def test_the_average_is_lightning_s_to_the_bit(pl: Any, here: Any, theirs: Any) -> None:
    weights, _ = theirs(2, pl.callbacks.EMAWeightAveraging(decay=0.5))
    saves = 'hooks.checkpoint={use="checkpoint"}'
    run_dir = here('hooks.average={use="lightning:EMAWeightAveraging", args={decay=0.5}}', saves)
    assert_weights(run_dir, weights)
    measured = [each["v"]["loss"] for each in records(run_dir, "metrics")]  # type: ignore[index]
    plain = [each["v"]["loss"] for each in records(here(), "metrics")]  # type: ignore[index]
    assert measured[0] != plain[0], "validated with the average"


@pytest.mark.parametrize("examples", [16, 20], ids=["whole groups", "an incomplete group"])
def test_gradients_accumulate_as_in_lightning_to_the_bit(
    pl: Any, here: Any, theirs: Any, examples: int
) -> None:
    scheduler = pl.callbacks.GradientAccumulationScheduler(scheduling={1: 2, 3: 4})
    weights, expected = theirs(5, scheduler, pl.Recorder(), examples=examples)
    run_dir = here(
        'hooks.groups={use="lightning:GradientAccumulationScheduler", args={scheduling={1=2,'
        " 3=4}}}",
        'hooks.recorder={use="tests.hooks.pl_training:Recorder"}',
        'hooks.checkpoint={use="checkpoint"}',
        f"data.train.args.examples={examples}",
        epochs=5,
    )
    assert expected == pl.SEEN
    assert_weights(run_dir, weights)


@pytest.mark.parametrize("make", ["net", "norms"])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_stochastic_averages_are_lightning_s_to_the_bit(
    pl: Any, here: Any, theirs: Any, make: str, strategy: str
) -> None:
    args = {
        "swa_lrs": 0.05,
        "swa_epoch_start": 0.5,
        "annealing_epochs": 2,
        "annealing_strategy": strategy,
    }
    weights, _ = theirs(4, pl.callbacks.StochasticWeightAveraging(**args), make=getattr(pl, make))
    run_dir = here(
        "hooks.average={use='lightning:StochasticWeightAveraging',"
        f" args={json.dumps(args).replace(': ', '=')}}}",
        'hooks.checkpoint={use="checkpoint"}',
        f"model.use='tests.hooks.pl_training:{make}'",
        epochs=4,
    )
    assert_weights(run_dir, weights)


@pytest.mark.parametrize(
    ("point", "at"), [("after_train_iter", 7), ("after_train_epoch", 8), ("after_val", 12)]
)
def test_groups_and_averages_are_resumed_to_the_bit(
    resumes_alike: Any, point: str, at: int
) -> None:
    hooks = (
        'hooks.groups={use="lightning:GradientAccumulationScheduler", args={scheduling={0=3}}}',
        (
            'hooks.average={use="lightning:StochasticWeightAveraging", args={swa_lrs=0.05,'
            " swa_epoch_start=1}}"
        ),
        "hooks.ema.enabled=false",
        "hooks.schedule.enabled=false",
    )
    resumes_alike(*hooks, point=point, at=at)


def test_what_they_would_contradict_is_refused(here: Any) -> None:
    average = 'hooks.average={use="lightning:StochasticWeightAveraging", args={swa_lrs=0.05}}'
    rates = 'hooks.rates={use="lr_schedule", args={warmup=2}}'
    with pytest.raises(
        UserError, match='sets the learning rates from one epoch on, and so does "rates"'
    ):
        here(average, rates)
    groups = 'hooks.groups={use="lightning:GradientAccumulationScheduler", args={scheduling={1=2}}}'
    for several in ("2", '[[0, 1], ["2ep", 2]]'):
        assert "on how many batches the optimizer steps" in reason(
            here(groups, f"run.accumulate={several}", code=2)
        )
    sets = 'hooks.sets={use="tests.hooks.pl_training:Sets"}'
    assert "trainer.accumulate_grad_batches" in reason(here(sets, code=2))


def test_what_callbacks_have_is_resumed_to_the_bit(resumes_alike: Any, tmp_path: Path) -> None:
    hooks = (
        (
            'hooks.average={use="lightning:EMAWeightAveraging", args={decay=0.9,'
            " update_starting_at_epoch=1}}"
        ),
        (
            'hooks.stops={use="lightning:EarlyStopping", args={monitor="accuracy", mode="max",'
            " patience=40}}"
        ),
        'hooks.rates={use="lightning:LearningRateMonitor"}',
        'hooks.counts={use="tests.hooks.pl_training:Counts"}',
        (
            'hooks.spikes={use="lightning:SpikeDetection",'
            f' args={{exclude_batches_path="{tmp_path}/skip.json"}}}}'
        ),
    )
    cut = resumes_alike(*hooks, "hooks.ema.enabled=false", point="after_train_iter", at=7)
    state: Any = final_state(cut)
    assert {"current_model_state", "averaging_state"} <= state["lightning"].keys()
    assert state["hooks"]["counts"]["numbers"]["seen"] == state["position"]["iter"]


def test_they_log_into_the_run(here: Any) -> None:
    rates = (
        'hooks.rates={use="lightning:LearningRateMonitor", args={logging_interval="epoch",'
        " log_momentum=true}}"
    )
    stats = 'hooks.stats={use="lightning:DeviceStatsMonitor"}'
    speed = (
        'hooks.speed={use="lightning:ThroughputMonitor",'
        ' args={batch_size_fn={use="tests.hooks.pl_training:size"}}}'
    )
    run_dir = here(rates, stats, speed, 'hooks.checkpoint={use="checkpoint"}')
    for split in ("val", "test"):
        with_checkpoint(
            Trainer.evaluate, run_dir, run_dir.checkpoints / "last", split, (), print, single=True
        )
    assert [*logged(run_dir, "lr-SGD").values()] == [0.1, 0.1]
    assert [*logged(run_dir, "lr-SGD-momentum").values()] == [0.9, 0.9]
    names = {name for record in records(run_dir, "scalars") for name in record["v"]}  # type: ignore[attr-defined]
    assert any(
        name.startswith("DeviceStatsMonitor.on_validation_batch_start/cpu_percent")
        for name in names
    )
    assert any(name == "validate/samples" for name in names)
    run_dir = here('hooks.draws={use="tests.hooks.pl_training:Draws"}')
    assert [*logged(run_dir, "evaluated").values()] == [1.0]
    assert {each["name"] for kind in ("image", "histogram") for each in records(run_dir, kind)} == {
        "noise",
        "weights",
    }


def test_they_write_checkpoints_that_lightning_reads(pl: Any, here: Any) -> None:
    keeps = 'hooks.keeps={use="lightning:ModelCheckpoint", args={monitor="val_loss", save_top_k=1}}'
    run_dir = here(keeps)
    (file,) = run_dir.path.rglob("*.ckpt")
    saved = torch.load(file, weights_only=False)
    assert saved["global_step"] in (3, 6) and saved["callbacks"] and saved["optimizer_states"]
    assert file.name == f"epoch={saved['epoch']}-step={saved['global_step']}.ckpt"
    module = pl.Module()
    module.net.load_state_dict(saved["state_dict"])


def test_checkpoints_within_an_epoch_are_lightning_s(
    pl: Any, here: Any, theirs: Any, tmp_path: Path
) -> None:
    args = {"monitor": "val_loss", "every_n_train_steps": 2, "save_top_k": -1}
    theirs(3, pl.callbacks.ModelCheckpoint(tmp_path / "kept", **args))
    table = json.dumps({**args, "dirpath": str(tmp_path / "ours")}).replace('": ', '"=')
    here(f"hooks.keeps={{use='lightning:ModelCheckpoint', args={table}}}", epochs=3)
    names = [
        sorted(file.name for file in (tmp_path / folder).iterdir()) for folder in ("kept", "ours")
    ]
    assert (
        names[0]
        == names[1]
        == ["epoch=1-step=4.ckpt", "epoch=1-step=6.ckpt", "epoch=2-step=8.ckpt"]
    )


def test_they_save_when_something_raises(here: Any, tmp_path: Path) -> None:
    saves = (
        f'hooks.keeps={{use="lightning:OnExceptionCheckpoint", args={{dirpath="{tmp_path}/kept"}}}}'
    )
    here(saves, 'hooks.raises={use="tests.hooks.pl_training:Raises"}', code=1)
    assert (
        torch.load(tmp_path / "kept" / "on_exception.ckpt", weights_only=False)["global_step"] == 1
    )
    spikes = (
        'hooks.spikes={use="lightning:SpikeDetection", args={atol=0.0,'
        f' exclude_batches_path="{tmp_path}/s.json"}}}}'
    )
    run_dir = here(spikes, "optimizer.args.lr=1e6", code=1)
    assert "Training spike detected in batch" in reason(run_dir) and (tmp_path / "s.json").exists()


def test_ranks_are_counted_by_machine(pl: Any, tmp_path: Path, new_run: Any) -> None:
    """As Lightning's environment for torchrun reads them: two machines with two processes each."""
    file = tmp_path / "pl.toml"
    file.write_text(pl.PIPELINE.replace("EPOCHS", "1"))
    splits = ("train", "val", "test")
    uses = [f'data.{split}.use="tests.hooks.pl_training:shares"' for split in splits]
    tells = 'hooks.tells={use="tests.hooks.pl_training:TellsRank"}'
    sizes = ["data.val.args.examples=12"]
    run_dir = new_run(tells, *uses, *sizes, pipeline=file)
    assert carry_out(run_dir, 4, num_local=2) == [0, 0, 0, 0], records(run_dir, "end")
    assert "ranks: (0, 0, 0) (2, 2)" in printed(run_dir, 0)
    assert "ranks: (1, 1, 0) (2, 2)" in printed(run_dir, 1)
    assert "ranks: (2, 0, 1) (2, 2)" in printed(run_dir, 2)
    assert "ranks: (3, 1, 1) (2, 2)" in printed(run_dir, 3)


def test_functions_are_callbacks_and_a_timer_and_the_middle_of_an_epoch_stop(here: Any) -> None:
    calls = (
        'hooks.calls={use="lightning:LambdaCallback",'
        ' args={on_train_epoch_end={use="tests.hooks.pl_training:tell"}}}'
    )
    assert [text for text in messages(here(calls)) if "epoch" in text] == ["epoch 0", "epoch 1"]
    timer = 'hooks.timer={use="lightning:Timer", args={duration={seconds=0}, interval="epoch"}}'
    assert records(here(timer, epochs=5), "end")[-1]["it"] <= 3
    assert records(here('hooks.stops={use="tests.hooks.pl_training:Stops"}'), "end")[-1]["it"] == 4


def test_the_trainer_has_what_is_public_and_names_what_it_has_not(here: Any) -> None:
    asks = 'hooks.asks%d={use="tests.hooks.pl_training:Asks", args={attribute="%s"}}'
    public = {
        "trainer.max_epochs, trainer.num_training_batches, trainer.num_val_batches": "(2, 3, [3])",
        "trainer.check_val_every_n_epoch, trainer.val_check_interval": "(1, 1.0)",
        "trainer.estimated_stepping_batches, trainer.max_steps": "(6, 6)",
        "module.in_features, module.trainer is trainer": "(4, True)",
        "{type(each).__name__ for each in trainer.callbacks}": "{'Asks'}",
        "module(torch.zeros(1, 4)).shape": "torch.Size([1, 3])",
        "trainer.strategy.broadcast(3), trainer.strategy.reduce_boolean_decision(True)": (
            "(3, True)"
        ),
    }
    told = messages(here(*(asks % each for each in enumerate(public))))
    assert {": ".join(each) for each in public.items()} <= {*told}
    each_hour = messages(here(asks % (0, "trainer.val_check_interval"), "run.val_every='1h'"))
    assert "trainer.val_check_interval: 3600.0" in each_hour
    data = (
        'data.train={use="tests.support.data_loaders:dataset", args={examples=12},'
        " loader={batch_size=4}}"
    )
    assert "len(trainer.train_dataloader.dataset): 12" in messages(
        here(asks % (0, "len(trainer.train_dataloader.dataset)"), data)
    )
    groups = 'hooks.groups={use="lightning:GradientAccumulationScheduler", args={scheduling={1=2}}}'
    asked = here(groups, asks % (0, "trainer.estimated_stepping_batches"), code=2)
    assert "estimated_stepping_batches" in reason(asked)
    asked = here(asks % (0, "trainer.checkpoint_callback"), code=1)
    assert "Lightning's Trainer has no checkpoint_callback" in reason(asked)


def test_what_hooks_of_other_frameworks_touch_is_declared_also_in_a_trial(
    pl: Any, tmp_path: Path
) -> None:
    hooks = {
        "stops": {"use": "lightning:EarlyStopping", "args": {"monitor": "val_loss"}},
        "average": {"use": "lightning:StochasticWeightAveraging", "args": {"swa_lrs": 0.05}},
        "rates": {"use": "lightning:LearningRateMonitor"},
        "ema": {"use": "lightning:EMAWeightAveraging"},
        "timer": {"use": "lightning:Timer"},
        "spikes": {
            "use": "lightning:SpikeDetection",
            "args": {"exclude_batches_path": str(tmp_path / "spikes.json")},
        },
        "theirs": {"use": "mmengine:EMAHook"},
        "early": {"use": "mmengine:EarlyStoppingHook", "args": {"monitor": "loss"}},
        "info": {"use": "mmengine:RuntimeInfoHook"},
    }
    tables: dict[str, Any] = tomli.loads(pl.PIPELINE.replace("EPOCHS", "2")) | {"hooks": hooks}
    plan = valid_plan(loaded := load(tables), tmp_path)
    result = observe(loaded, plan, tmp_path, lambda *texts: None)
    assert not [item for item in result.silent if item.why.startswith("raised")]
    assert missing(plan, result.seen) == {}
