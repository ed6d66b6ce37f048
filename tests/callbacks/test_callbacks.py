"""hookflow's hooks as one callback in another trainer: they fire in order,
and compute what they compute in our own.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import hookflow
from hookflow import Hook, UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import list_checkpoints, parse_iteration
from tests.callbacks import killed_training
from tests.callbacks.counting_hooks import SEEN
from tests.conftest import hookflow_here, messages, records
from tests.runner.same import final_state, logged

pytestmark = pytest.mark.filterwarnings("ignore")


class Tracer(Hook):
    """Keep the points, with the iterations and epochs that are done."""


def _traced(point: str) -> Any:
    def method(self: Tracer, run: Any) -> None:
        SEEN.append((point, run.iter, run.epoch))

    return method


for _point in (
    *(
        "before_run",
        "before_train",
        "before_train_epoch",
        "before_train_iter",
        "before_optimizer_step",
    ),
    *(
        "after_optimizer_step",
        "after_train_iter",
        "after_train_epoch",
        "after_val",
        "after_train",
        "after_run",
    ),
):
    setattr(Tracer, _point, _traced(_point))


class Strikes(Hook):
    """Ask this process to end after two iterations."""

    def after_train_iter(self, run: Any) -> None:
        if run.iter == 2:
            os.kill(os.getpid(), signal.SIGTERM)


class StrikesAfterValidation(Hook):
    """Ask this process to end after the first validation."""

    def after_val(self, run: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class WatchesBackward(Hook):
    """Keep the points around a backward pass, whose gradients are there after it alone."""

    def before_backward(self, run: Any, outputs: Mapping[str, Any]) -> None:
        assert outputs["loss"].requires_grad
        SEEN.append(("before_backward", run.iter, run.epoch))

    def after_backward(self, run: Any) -> None:
        assert all(parameter.grad is not None for parameter in run.model.parameters())
        SEEN.append(("after_backward", run.iter, run.epoch))


TRACER: dict[str, Any] = {"use": "tests.callbacks.test_callbacks:Tracer"}
CLIP: dict[str, Any] = {"use": "grad_clip", "args": {"max_norm": 0.1}}


def tables(**hooks: Any) -> dict[str, Any]:
    return {"run": {"name": "theirs"}, "hooks": hooks}


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def only_run(folder: Path) -> RunDir:
    (path,) = (folder / "theirs").iterdir()
    return RunDir(path)


def train_and_die(trainer: str, folder: Path) -> RunDir:
    """Train by a trainer until SIGKILL after the fifth step; return the run."""
    environment = {**os.environ, "HOOKFLOW_TEST_DIES": "1", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "tests.callbacks.killed_training", trainer]
    died = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    run_dir = only_run(folder / "runs")
    steps = sorted(parse_iteration(path) for path in list_checkpoints(run_dir.checkpoints))
    assert steps == [2, 4, 5], "the last two saves of the trainer, and the newest of hookflow"
    return run_dir


def assert_resumed_at_four(run_dir: RunDir) -> None:
    """Assert that the run has gone on after step 4, and knows of nothing after that."""
    assert [number for _, number, _ in SEEN] == [5, 6, 7, 8, 9], "the hook has counted on"
    assert only_run(run_dir.path.parents[1]).id == run_dir.id
    assert records(run_dir, "run")[-1]["it"] == 4
    assert records(run_dir, "end")[-1]["it"] == 9


ITERATION = [
    "before_train_iter",
    "before_optimizer_step",
    "after_optimizer_step",
    "after_train_iter",
]
EPOCH = ["before_train_epoch", *ITERATION * 3, "after_train_epoch", "after_val"]
WHOLE = ["before_run", "before_train", *EPOCH * 2, "after_train", "after_run"]


def assert_in_order() -> None:
    """Assert that two epochs of three iterations have been seen, each validated."""
    assert [name for name, *_ in SEEN] == WHOLE
    assert [it for name, it, _ in SEEN if name == "after_train_iter"] == [1, 2, 3, 4, 5, 6]
    assert [(it, epoch) for name, it, epoch in SEEN if name == "after_val"] == [(3, 1), (6, 2)]


class TestHuggingFace:
    @pytest.fixture
    def hf(self) -> Any:
        pytest.importorskip("transformers", reason="needs transformers")
        pytest.importorskip("accelerate", reason="needs accelerate, for Hugging Face's own Trainer")
        from tests.hooks import hf_training

        return hf_training

    @pytest.fixture
    def train(self, hf: Any, tmp_path: Path) -> Any:
        def train(hooks: Mapping[str, Any], **args: Any) -> Any:
            callback = hookflow.callbacks.huggingface(hooks, runs=str(tmp_path / "runs"))
            return hf.train_theirs(tmp_path / "theirs", callback, **args)

        return train

    def test_hooks_fire_at_their_points(self, train: Any) -> None:
        train(tables(tracer=TRACER), eval_strategy="epoch")
        assert_in_order()

    def test_gradients_are_clipped_as_by_hand(self, hf: Any, train: Any) -> None:
        clipped = train(tables(clip=CLIP))
        model = hf.Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for batch in hf.loader(12):
                optimizer.zero_grad()
                model(**batch)["loss"].backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        assert all(
            torch.allclose(clipped[name], value) for name, value in model.state_dict().items()
        )

    def test_the_training_is_the_same_with_and_without(
        self, hf: Any, train: Any, tmp_path: Path
    ) -> None:
        plain = hf.train_theirs(tmp_path / "plain", eval_strategy="epoch")
        watched = train(tables(tracer=TRACER), eval_strategy="epoch")
        assert all(torch.equal(watched[name], value) for name, value in plain.items())

    def test_several_batches_are_one_iteration(self, train: Any) -> None:
        train(tables(tracer=TRACER), gradient_accumulation_steps=2)
        assert [it for name, it, _ in SEEN if name == "after_train_iter"] == [1, 2, 3, 4]
        assert [(it, epoch) for name, it, epoch in SEEN if name == "after_train_epoch"] == [
            (2, 1),
            (4, 2),
        ]

    def test_the_run_has_their_logs_and_metrics(self, train: Any, tmp_path: Path) -> None:
        train(tables(rates={"use": "lr_monitor"}), eval_strategy="epoch", logging_steps=2)
        run_dir = only_run(tmp_path / "runs")
        assert [*logged(run_dir, "loss")] == [2, 4, 6]
        assert [record["it"] for record in records(run_dir, "metrics")] == [3, 6]
        assert records(run_dir, "end")[-1]["status"] == "finished"
        for command in ("show", "graph"):
            assert hookflow_here(command, str(run_dir.path), cwd=tmp_path).returncode == 0

    def test_a_hook_stops_their_training(self, train: Any, tmp_path: Path) -> None:
        stops = {"use": "early_stop", "args": {"monitor": "loss", "patience": 1, "min_delta": 10.0}}
        train(tables(stops=stops, tracer=TRACER), eval_strategy="epoch", num_train_epochs=9)
        assert records(only_run(tmp_path / "runs"), "end")[-1]["it"] == 6

    def test_a_signal_ends_their_training_after_its_step(self, train: Any, tmp_path: Path) -> None:
        with pytest.raises(SystemExit) as ended:
            train(
                tables(strikes={"use": "tests.callbacks.test_callbacks:Strikes"}),
                num_train_epochs=9,
            )
        assert ended.value.code == 143
        end = records(only_run(tmp_path / "runs"), "end")[-1]
        assert (end["status"], end["it"]) == ("interrupted", 2)

    def test_a_training_that_a_signal_ended_is_resumed_at_its_step(
        self, hf: Any, train: Any, tmp_path: Path
    ) -> None:
        """Their Trainer saves as it stops, too, where it would have saved at other steps."""
        strikes = {"use": "tests.callbacks.test_callbacks:Strikes"}
        hooks = tables(strikes=strikes, checkpoint={"use": "checkpoint"})
        saving = {"save_strategy": "steps", "save_steps": 5}
        whole = hf.train_theirs(tmp_path / "whole")
        with pytest.raises(SystemExit):
            train(hooks, **saving)
        resumed = train(hooks, **saving, resume=True)
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())
        assert records(only_run(tmp_path / "runs"), "end")[-1]["it"] == 6

    def test_a_killed_training_is_resumed_where_their_trainer_has_saved(
        self, hf: Any, tmp_path: Path
    ) -> None:
        """The hook has saved once more since then: its later checkpoint is dropped."""
        whole = hf.train_theirs(tmp_path / "whole", num_train_epochs=3)
        run_dir = train_and_die("huggingface", tmp_path)
        resumed = killed_training.train_huggingface(tmp_path, resume=True)
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())
        assert_resumed_at_four(run_dir)

    def test_the_log_says_that_a_training_which_hooks_have_ended_takes_one_more_step(
        self, train: Any, tmp_path: Path
    ) -> None:
        """Their Trainer looks for a stop only after a step: its weights are those of one more."""
        stops = {"use": "early_stop", "args": {"monitor": "loss", "patience": 1, "min_delta": 10.0}}
        hooks = tables(checkpoint={"use": "checkpoint"}, stops=stops)
        options = {"num_train_epochs": 9, "eval_strategy": "epoch", "save_strategy": "epoch"}
        train(hooks, **options)
        train(hooks, **options, resume=True)
        run_dir = only_run(tmp_path / "runs")
        assert records(run_dir, "end")[-1]["it"] == 6
        (told,) = [text for text in messages(run_dir, "warn") if "one more step" in text]
        assert "checkpoint-6" in told

    def test_a_resume_at_an_older_step_says_at_which_it_can_be(
        self, train: Any, tmp_path: Path
    ) -> None:
        hooks = tables(checkpoint={"use": "checkpoint"})
        train(hooks, save_strategy="steps", save_steps=1, max_steps=4)
        with pytest.raises(UserError, match="goes on after step 1") as refused:
            train(hooks, resume=str(tmp_path / "theirs" / "checkpoint-1"))
        assert "of the steps 3, 4:" in refused.value.problems[0].hint
        train(hooks, resume=str(tmp_path / "theirs" / "checkpoint-3"))
        assert records(only_run(tmp_path / "runs"), "end")[-1]["it"] == 6

    def test_a_signal_in_a_validation_ends_their_training(self, train: Any, tmp_path: Path) -> None:
        strikes = {"use": "tests.callbacks.test_callbacks:StrikesAfterValidation"}
        with pytest.raises(SystemExit) as ended:
            train(tables(strikes=strikes), num_train_epochs=9, eval_strategy="epoch")
        assert ended.value.code == 143
        end = records(only_run(tmp_path / "runs"), "end")[-1]
        assert (end["status"], end["it"]) == ("interrupted", 3)

    def test_several_sets_are_one_validation(self, hf: Any, tmp_path: Path) -> None:
        """Their Trainer tells of each set by itself, in the middle of an evaluation."""
        watched = {"use": "early_stop", "args": {"monitor": "b_loss", "patience": 9}}
        callback = hookflow.callbacks.huggingface(
            tables(stops=watched, tracer=TRACER),
            runs=str(tmp_path / "runs"),
            eval_sets=["a", "b"],
        )
        arguments = hf.TrainingArguments(
            str(tmp_path / "theirs"), use_cpu=True, per_device_train_batch_size=4,
            num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to="none",
            disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        sets = {"a": hf.dataset(10), "b": hf.dataset(6)}
        model = hf.Net()
        trainer = hf.OrderedTrainer(
            model,
            arguments,
            train_dataset=hf.dataset(12),
            eval_dataset=sets,
            callbacks=[callback],
        )
        trainer.train()
        assert [it for name, it, _ in SEEN if name == "after_val"] == [3, 6]
        measured = records(only_run(tmp_path / "runs"), "metrics")
        assert [record["v"].keys() for record in measured] == [{"a_loss", "b_loss"}] * 2
        for name, examples in sets.items():
            x = torch.stack([example["x"] for example in examples])
            labels = torch.stack([example["labels"] for example in examples])
            expected = float(model(x, labels)["loss"])
            assert measured[-1]["v"][f"{name}_loss"] == pytest.approx(expected, rel=1e-4)

    def test_a_training_that_failed_is_over_when_the_next_one_begins(
        self, hf: Any, tmp_path: Path
    ) -> None:
        """Their Trainer has no event for an error: the next beginning tells of it."""
        callback = hookflow.callbacks.huggingface(tables(), runs=str(tmp_path / "runs"))
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(RuntimeError, match="as planned"):
            hf.train_theirs(tmp_path / "theirs", callback, hf.FailsOnce())
        hf.train_theirs(tmp_path / "theirs", callback)
        assert signal.getsignal(signal.SIGTERM) == handler
        folders = (tmp_path / "runs" / "theirs").iterdir()
        statuses = [records(RunDir(folder), "end")[-1]["status"] for folder in folders]
        assert sorted(statuses) == ["failed", "finished"]  # type: ignore[type-var]

    def test_a_resumed_training_goes_on_with_its_run(
        self, hf: Any, train: Any, tmp_path: Path
    ) -> None:
        hooks = tables(
            counts={"use": "tests.callbacks.counting_hooks:Counts"},
            checkpoint={"use": "checkpoint"},
        )
        saving = {"save_strategy": "steps", "save_steps": 2}
        whole = hf.train_theirs(tmp_path / "whole")
        train(hooks, **saving, max_steps=4)
        SEEN.clear()
        resumed = train(hooks, **saving, resume=str(tmp_path / "theirs" / "checkpoint-4"))
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())
        run_dir = only_run(tmp_path / "runs")
        assert records(run_dir, "end")[-1]["it"] == 6
        assert SEEN == [("counted", 5, 1), ("counted", 6, 1)], "the hook has counted on"
        state: Any = final_state(run_dir)
        assert state["hooks"]["counts"]["seen"] == 6

    def test_a_resumed_training_without_its_run_is_refused(
        self, train: Any, tmp_path: Path
    ) -> None:
        saving = {"save_strategy": "steps", "save_steps": 2}
        train(tables(tracer=TRACER), **saving, max_steps=4)
        with pytest.raises(UserError, match="goes on after step 4, and hookflow's run after 0"):
            train(tables(tracer=TRACER), **saving, resume=str(tmp_path / "theirs" / "checkpoint-4"))

    @pytest.mark.parametrize(
        ("hook", "why"),
        [
            ({"use": "ema"}, "to which Hugging Face's Trainer does not come"),
            ({"use": "mixup", "args": {"classes": 3}}, "takes the batch at before_train_iter"),
        ],
    )
    def test_what_their_trainer_does_not_offer_is_refused(
        self, hf: Any, hook: Any, why: str
    ) -> None:
        with pytest.raises(UserError, match=why):
            hookflow.callbacks.huggingface(tables(it=hook))


class TestLightning:
    @pytest.fixture
    def train(self, tmp_path: Path) -> Any:
        pytest.importorskip("pytorch_lightning", reason="needs pytorch-lightning")
        from tests.hooks import pl_training

        def train(hooks: Mapping[str, Any], **args: Any) -> Any:
            callback = hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs"))
            return pl_training.train_theirs(tmp_path / "theirs", 2, callback, **args)

        return train

    def test_hooks_fire_at_their_points(self, train: Any) -> None:
        train(tables(tracer=TRACER))
        assert_in_order()

    def test_gradients_are_clipped_as_by_hand(self, train: Any) -> None:
        from tests.hooks import pl_training

        clipped = train(tables(clip=CLIP))
        model = pl_training.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            for x, y in pl_training.loader(12):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
        assert all(
            torch.allclose(clipped[name], value) for name, value in model.state_dict().items()
        )

    def test_the_training_is_the_same_with_and_without(self, train: Any, tmp_path: Path) -> None:
        from tests.hooks import pl_training

        plain = pl_training.train_theirs(tmp_path / "plain", 2)
        watched = train(tables(tracer=TRACER))
        assert all(torch.equal(watched[name], value) for name, value in plain.items())

    def test_the_run_has_the_losses_and_metrics(self, train: Any, tmp_path: Path) -> None:
        train(tables(log={"use": "log", "every": 1}))
        run_dir = only_run(tmp_path / "runs")
        assert [*logged(run_dir, "loss")] == [1, 2, 3, 4, 5, 6]
        metrics = records(run_dir, "metrics")
        assert [record["it"] for record in metrics] == [3, 6]
        assert all(record["v"].keys() == {"loss"} for record in metrics)

    def test_validations_are_of_the_average(self, train: Any, tmp_path: Path) -> None:
        train(tables(ema={"use": "ema", "args": {"decay": 0.5}}))
        averaged = [
            record["v"]["loss"] for record in records(only_run(tmp_path / "runs"), "metrics")
        ]
        train({**tables(tracer=TRACER), "run": {"name": "plain"}})
        plain = [
            record["v"]["loss"]
            for record in records(RunDir(next((tmp_path / "runs/plain").iterdir())), "metrics")
        ]
        assert averaged[0] != plain[0]

    def test_hooks_at_the_backward_pass_see_the_loss(self, train: Any) -> None:
        train(tables(watches={"use": "tests.callbacks.test_callbacks:WatchesBackward"}))
        assert [name for name, *_ in SEEN] == ["before_backward", "after_backward"] * 6

    def test_several_batches_are_one_iteration(self, tmp_path: Path) -> None:
        """The loss of an iteration is the mean of its batches, computed by hand."""
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")
        hooks = tables(log={"use": "log", "every": 1})
        callback = hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs"))
        trainer = pl.Theirs(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[callback],
            accumulate_grad_batches=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
            num_sanity_val_steps=0,
        )
        trainer.fit(pl.Module(), pl.loader(16))
        model = pl.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        expected = []
        batches = [*pl.loader(16)]
        for group in (batches[:2], batches[2:]):
            optimizer.zero_grad()
            losses = [torch.nn.functional.cross_entropy(model(x), y) for x, y in group]
            mean = torch.stack(losses).mean()
            mean.backward()
            optimizer.step()
            expected.append(float(mean))
        assert [*logged(only_run(tmp_path / "runs"), "loss").values()] == pytest.approx(expected)

    @pytest.fixture
    def fit(self, tmp_path: Path) -> Any:
        """Return a function that fits a module on 5 batches, the last two of which are a group."""
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")

        def fit(module: Any, hooks: Mapping[str, Any] | None, **options: Any) -> RunDir | None:
            callbacks = []
            if hooks is not None:
                made = hookflow.callbacks.lightning(tables(**hooks), runs=str(tmp_path / "runs"))
                callbacks.append(made)
            trainer = pl.Theirs(
                accelerator="cpu", default_root_dir=tmp_path, logger=False,
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                enable_checkpointing=False, callbacks=callbacks, **{"max_epochs": 1, **options},
            )  # fmt: skip
            trainer.fit(module, pl.loader(20), pl.loader(10))
            return None if hooks is None else only_run(tmp_path / "runs")

        return fit

    def test_a_validation_among_the_batches_of_an_iteration(self, fit: Any) -> None:
        """The Trainer counts batches for it: the metrics are of the steps that are done."""
        from tests.hooks import pl_training

        plain, watched = pl_training.Module(), pl_training.Module()
        options = {"accumulate_grad_batches": 3, "val_check_interval": 2}
        fit(plain, None, **options)
        run_dir = fit(watched, {"tracer": TRACER}, **options)
        assert torch.equal(watched.net.weight, plain.net.weight)
        assert [record["it"] for record in records(run_dir, "metrics")] == [0, 1]
        assert [it for name, it, _ in SEEN if name == "after_train_iter"] == [1, 2]

    def test_the_loss_of_a_group_that_the_epoch_cuts_is_its_mean(self, fit: Any) -> None:
        from tests.hooks import pl_training

        hooks = {"log": {"use": "log", "every": 1}}
        run_dir = fit(pl_training.Module(), hooks, accumulate_grad_batches=3)
        model = pl_training.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = [*pl_training.loader(20)]
        means = []
        for group in (batches[:3], batches[3:]):
            optimizer.zero_grad()
            losses = [torch.nn.functional.cross_entropy(model(x), y) for x, y in group]
            (torch.stack(losses).sum() / 3).backward()  # the Trainer divides by 3, in any case
            optimizer.step()
            means.append(float(torch.stack(losses).mean()))
        assert [*logged(run_dir, "loss").values()] == pytest.approx(means)

    def test_a_batch_without_a_loss_fires_no_points_of_a_backward_pass(self, fit: Any) -> None:
        from tests.hooks import pl_training

        class LeavesOut(pl_training.Module):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return None if batch_idx == 1 else super().training_step(batch, batch_idx)

        watches = {"use": "tests.callbacks.test_callbacks:WatchesBackward"}
        fit(LeavesOut(), {"watches": watches})
        assert [it for name, it, _ in SEEN if name == "before_backward"] == [0, 2, 3, 4]

    def test_a_metric_by_the_name_of_a_number_of_the_training(self, fit: Any) -> None:
        from tests.hooks import pl_training

        class LogsBoth(pl_training.Module):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                outputs = super().training_step(batch, batch_idx)
                self.log_dict({"loss": outputs["loss"], "train_only": 1.0})
                return outputs

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
                self.log("loss", loss, batch_size=len(batch[1]))

        module = LogsBoth()
        run_dir = fit(module, {"tracer": TRACER}, max_epochs=2)
        (_, last) = (record["v"] for record in records(run_dir, "metrics"))
        x, y = (torch.cat(parts) for parts in zip(*pl_training.loader(10), strict=True))
        expected = float(torch.nn.functional.cross_entropy(module.net(x), y))
        assert last == pytest.approx({"loss": expected})

    def test_a_resumed_training_goes_on_with_its_run(self, tmp_path: Path) -> None:
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")
        hooks = tables(
            counts={"use": "tests.callbacks.counting_hooks:Counts"},
            checkpoint={"use": "checkpoint"},
        )
        whole = pl.train_theirs(tmp_path / "whole", 2)
        file = ""
        for epochs in (1, 2):
            kept = pl.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
            trainer = pl.Theirs(
                max_epochs=epochs, accelerator="cpu", default_root_dir=tmp_path, logger=False,
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                callbacks=[hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs")), kept],
            )  # fmt: skip
            module = pl.Module()
            trainer.fit(module, pl.loader(12), pl.loader(10), ckpt_path=file or None)
            file = kept.last_model_path
        weights = {name.removeprefix("net."): value for name, value in module.state_dict().items()}
        assert all(torch.equal(weights[name], value) for name, value in whole.items())
        assert [count for _, count, _ in SEEN] == [1, 2, 3, 4, 5, 6]
        assert records(only_run(tmp_path / "runs"), "end")[-1]["it"] == 6

    def test_a_training_that_a_signal_ended_is_resumed_at_its_step(self, tmp_path: Path) -> None:
        """Their Trainer saves as it stops, too, where it would have saved at other steps."""
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")
        strikes = {"use": "tests.callbacks.test_callbacks:Strikes"}
        hooks = tables(strikes=strikes, checkpoint={"use": "checkpoint"})

        def fit(every: int, hooked: bool, file: Path | None = None) -> Any:
            kept = pl.callbacks.ModelCheckpoint(
                tmp_path / f"kept{every}", every_n_train_steps=every, save_top_k=-1
            )
            called = [kept]
            if hooked:
                called.append(hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs")))
            trainer = pl.Theirs(
                max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, logger=False,
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                callbacks=called,
            )  # fmt: skip
            module = pl.Module()
            trainer.fit(module, pl.loader(12), pl.loader(10), ckpt_path=file)
            return module.state_dict()

        fit(2, hooked=False)
        (theirs,) = (tmp_path / "kept2").glob("*step=2.ckpt")
        expected = fit(9, hooked=False, file=theirs)
        with pytest.raises(SystemExit) as ended:
            fit(5, hooked=True)
        assert ended.value.code == 143
        (ours,) = (tmp_path / "kept5").iterdir()
        assert ours.name == "stopped-step=2.ckpt"
        resumed = fit(5, hooked=True, file=ours)
        assert all(torch.equal(resumed[name], value) for name, value in expected.items())
        assert records(only_run(tmp_path / "runs"), "end")[-1]["it"] == 6

    def test_a_killed_training_is_resumed_where_their_trainer_has_saved(
        self, tmp_path: Path
    ) -> None:
        """The weights are those of a resume without hookflow: of its epoch Lightning forgets how
        many batches it has had.
        """
        pytest.importorskip("pytorch_lightning", reason="needs pytorch-lightning")
        run_dir = train_and_die("lightning", tmp_path)
        (saved,) = (tmp_path / "theirs").glob("*step=4*")
        plain = killed_training.train_lightning(tmp_path / "plain", str(saved), hooks=None)
        resumed = killed_training.train_lightning(tmp_path, str(saved))
        assert all(torch.equal(resumed[name], value) for name, value in plain.items())
        assert_resumed_at_four(run_dir)

    def test_a_training_that_hooks_have_ended_takes_no_further_step(self, tmp_path: Path) -> None:
        """A resume behind the end finds it, and their Trainer must not train on."""
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")
        stops = {"use": "early_stop", "args": {"monitor": "loss", "patience": 1, "min_delta": 10.0}}
        hooks = tables(checkpoint={"use": "checkpoint"}, stops=stops)
        file = None
        trained = []
        for _ in range(2):
            kept = pl.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
            trainer = pl.Theirs(
                max_epochs=9, accelerator="cpu", default_root_dir=tmp_path, logger=False,
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                callbacks=[hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs")), kept],
            )  # fmt: skip
            module = pl.Module()
            trainer.fit(module, pl.loader(12), pl.loader(10), ckpt_path=file)
            file = kept.last_model_path
            trained.append(module.net.weight.detach().clone())
            assert trainer.global_step == 6
        assert torch.equal(*trained)

    def test_a_module_that_steps_twice_a_batch_by_itself(self, tmp_path: Path) -> None:
        """Their Trainer counts steps, and hookflow batches; weights and losses are as by hand."""
        pl = pytest.importorskip("tests.hooks.pl_training", reason="needs pytorch-lightning")
        cross_entropy = torch.nn.functional.cross_entropy
        halves = (slice(0, 2), slice(2, 4))

        class StepsTwice(pl.Module):
            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch: Any, batch_idx: int) -> None:
                optimizer = self.optimizers()
                for half in halves:
                    optimizer.zero_grad()
                    self.manual_backward(cross_entropy(self.net(batch[0][half]), batch[1][half]))
                    optimizer.step()

        hooks = tables(
            counts={"use": "tests.callbacks.counting_hooks:Counts"},
            checkpoint={"use": "checkpoint"},
            log={"use": "log", "every": 1},
        )
        file = None
        for epochs in (1, 2):
            kept = pl.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
            trainer = pl.Theirs(
                max_epochs=epochs, accelerator="cpu", default_root_dir=tmp_path, logger=False,
                enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                callbacks=[hookflow.callbacks.lightning(hooks, runs=str(tmp_path / "runs")), kept],
            )  # fmt: skip
            module = StepsTwice()
            trainer.fit(module, pl.loader(12), pl.loader(10), ckpt_path=file)
            file = kept.last_model_path
        model = pl.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        means = []
        for x, y in [*pl.loader(12)] * 2:
            losses = []
            for half in halves:
                optimizer.zero_grad()
                loss = cross_entropy(model(x[half]), y[half])
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
            means.append(sum(losses) / 2)
        assert trainer.global_step == 12
        assert torch.equal(module.net.weight, model.weight)
        assert [count for _, count, _ in SEEN] == [1, 2, 3, 4, 5, 6]
        run_dir = only_run(tmp_path / "runs")
        assert [*logged(run_dir, "loss").values()] == pytest.approx(means)
        assert records(run_dir, "end")[-1]["it"] == 6

    def test_an_error_of_their_training_ends_the_run(self, train: Any, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="as planned"):
            train(tables(fails={"use": "tests.hooks.pl_training:Raises"}))
        end = records(only_run(tmp_path / "runs"), "end")[-1]
        assert end["status"] == "failed" and "as planned" in end["reason"]


class TestKeras:
    @pytest.fixture
    def keras(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        keras = pytest.importorskip("keras", reason="needs keras")
        if keras.backend.backend() != "torch":
            pytest.skip("Keras has been imported with another backend")
        return keras

    @pytest.fixture
    def train(self, keras: Any, tmp_path: Path) -> Any:
        def train(hooks: Mapping[str, Any] | None, **options: Any) -> Any:
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(12, 4, generator=generator).numpy()
            y = (torch.arange(12) % 3).numpy()
            callbacks = []
            if hooks is not None:
                callbacks.append(hookflow.callbacks.keras(hooks, runs=str(tmp_path / "runs")))
            history = model.fit(
                x,
                y,
                batch_size=4,
                shuffle=False,
                verbose=0,
                validation_data=(x, y),
                callbacks=callbacks,
                **{"epochs": 2, **options},
            )
            return model, history.history

        return train

    def test_hooks_fire_at_their_points(self, train: Any) -> None:
        train(tables(tracer={**TRACER, "points": KERAS_POINTS}))
        expected = [name for name in WHOLE if "optimizer" not in name]
        assert [name for name, *_ in SEEN] == expected
        assert [(it, epoch) for name, it, epoch in SEEN if name == "after_val"] == [(3, 1), (6, 2)]

    def test_the_run_has_their_metrics_and_the_weights_are_the_same(
        self, train: Any, tmp_path: Path
    ) -> None:
        plain, history = train(None)
        watched, _ = train(tables(tracer={**TRACER, "points": KERAS_POINTS}))
        assert all(
            (one == other).all()
            for one, other in zip(plain.get_weights(), watched.get_weights(), strict=True)
        )
        run_dir = only_run(tmp_path / "runs")
        measured = [record["v"]["loss"] for record in records(run_dir, "metrics")]
        assert measured == pytest.approx(history["val_loss"])
        assert [*logged(run_dir, "loss_epoch").values()] == pytest.approx(history["loss"])

    def test_a_hook_stops_their_training(self, train: Any) -> None:
        stops = {"use": "early_stop", "args": {"monitor": "loss", "patience": 1, "min_delta": 10.0}}
        _, history = train(tables(stops=stops), epochs=9)
        assert len(history["loss"]) == 2

    def test_hooks_around_the_step_are_refused(self, keras: Any) -> None:
        with pytest.raises(UserError, match="to which Keras does not come"):
            hookflow.callbacks.keras(tables(clip=CLIP))


KERAS_POINTS = [*dict.fromkeys(name for name in WHOLE if "optimizer" not in name)]
