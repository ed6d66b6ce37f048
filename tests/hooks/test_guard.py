"""Hooks that judge a run: `checkpoint`, `early_stop`, `spike_guard`, `time_limit`, `lr_finder`."""

import itertools
import math
from copy import deepcopy
from functools import partial
from operator import ge
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.schedules import (
    LRFinder,
    compute_swept_rate,
    find_largest_size,
    find_steepest_rate,
    find_valley_rate,
)
from hookflow.hooks.builtin.stops import EarlyStop, SpikeGuard, is_spike
from hookflow.runner.checkpoint.store import read
from hookflow.zoo.tasks import Classification
from tests.conftest import NewRun, Train, Trained, messages, reason, records, strikes
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, assert_same_end, final_state
from tests.support.toy import Counts


class TestTimeLimit:
    def test_it_stops_with_a_checkpoint_from_which_the_run_is_resumed_to_the_same_end(
        self,
        undisturbed: Trained,
        trained: Trained,
        train_here: Train,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        limit = 'hooks.limit={use="time_limit", args={limit="1h"}}'
        # Of the clock: when the hook is made, after 5 iterations, a validation, and 2 more.
        calls = itertools.count()
        clock = SimpleNamespace(monotonic=lambda: 3600.0 if next(calls) == 8 else 0.0)
        monkeypatch.setattr("hookflow.hooks.builtin.stops.time", clock)
        stopped = trained(limit)
        end = records(stopped, "end")[-1]
        assert (end["it"], end["status"], end["reason"]) == (
            7,
            "stopped",
            "the time limit of 1h is reached",
        )
        assert (stopped.checkpoints / "last").resolve().name == "it00000007"
        assert train_here(stopped, resume=True) == 0
        assert_same_end(undisturbed(limit), stopped)

    @pytest.mark.parametrize("stops", ["the time limit", "a hook"])
    def test_a_signal_cuts_the_validation_short_after_which_it_would_have_stopped(
        self,
        new_run: NewRun,
        train_here: Train,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        stops: str,
    ) -> None:
        """The limit was that of the job that is over;
        what another hook has asked for still holds.
        """
        limit = 'hooks.limit={use="time_limit", args={limit="1h"}}'
        steers = (
            'use="./common_hooks.py:Steers", args={call="stop", point="after_train_iter", at=8}'
        )
        once = f'hooks.once={{{steers}, points=["after_train_iter"], writes=["control"]}}'
        common = (limit if stops == "the time limit" else once, "run.val_every=4")
        swap, struck = (
            ("max_epochs = 3", "max_iters = 15"),
            strikes(tmp_path, SIGTERM, ("before_val_iter", 8)),
        )
        alone, broken = new_run(*common, swap=swap), new_run(*common, *struck, swap=swap)
        assert train_here(alone) == 0
        # Of the clock: when the hook is made, after 4 iterations, a validation, and 4 more.
        calls = itertools.count()
        clock = SimpleNamespace(monotonic=lambda: 3600.0 if next(calls) == 9 else 0.0)
        monkeypatch.setattr("hookflow.hooks.builtin.stops.time", clock)
        assert train_here(broken) == 143
        assert train_here(broken, resume=True) == 0
        assert records(broken, "end")[-1]["it"] == (15 if stops == "the time limit" else 8)
        assert_same_end(alone, broken)


class TestTheBestCheckpoint:
    @pytest.mark.parametrize(
        ("metric", "mode", "values", "best_at"),
        [
            ("score", "max", [1, 2, 2, 1, 3], [0, 1, 4]),
            ("score", "max", [math.nan, 1, math.nan, 2], [1, 3]),
            ("score", "min", [math.nan, math.nan], []),
            ("loss", None, [3, 2, 2, 4, 1], [0, 1, 4]),
        ],
    )
    def test_of_a_metric(
        self, metric: str, mode: Any, values: list[float], best_at: list[int]
    ) -> None:
        run: Any = StandIn()
        hook, saved_at = Checkpoint(metric, mode), []
        for k, value in enumerate(values):
            run.metrics, run.saved = {metric: value}, []
            hook.after_val(run)
            saved_at += [k] * len(run.saved)
        assert saved_at == best_at

    @pytest.mark.parametrize(
        "metrics", [("val/loss", "val_loss"), ("loss + kl", "loss - kl"), ("loss", "loss-2")]
    )
    def test_of_two_metrics_have_two_names(self, metrics: tuple[str, str]) -> None:
        monitor = dict.fromkeys(metrics, "min")
        with pytest.raises(ValueError, match=r"the best by .* both go by"):
            Checkpoint.check_arguments({"monitor": monitor, "top": 2})

    def test_of_several_metrics_have_ranks(self) -> None:
        run: Any = StandIn()
        hook, requests = Checkpoint({"score": "max", "val/loss": "min"}, top=2), []
        for k, (score, loss) in enumerate([(1, 1), (3, 2), (2, 0.5), (0, 3), (3, 0.7)], 1):
            run.iter, run.saved, run.moved, run.metrics = (
                k,
                [],
                {},
                {"score": score, "val/loss": loss},
            )
            hook.after_val(run)
            requests.append((run.saved, run.moved))
        assert requests == [
            (["best-score", "best-val_loss"], {}),
            (["best-score", "best-val_loss-2"], {"best-score-2": 1}),
            (["best-score-2", "best-val_loss"], {"best-val_loss-2": 1}),
            ([], {}),
            (["best-score-2", "best-val_loss-2"], {}),
        ]
        again = Checkpoint({"score": "max", "val/loss": "min"}, top=2)
        again.load_state_dict(hook.state_dict())
        assert (
            again.best == hook.best == {"score": [(3, 2), (3, 5)], "val/loss": [(0.5, 3), (0.7, 5)]}
        )


class TestEarlyStop:
    @pytest.mark.parametrize(
        ("mode", "args", "value", "said"),
        [
            (
                "max",
                {"stopping_threshold": 0.9},
                0.9,
                "score is 0.9000, as good as the threshold of 0.9000",
            ),
            (
                "min",
                {"stopping_threshold": 0.1},
                0.05,
                "score is 0.05000, as good as the threshold of 0.1000",
            ),
            ("min", {"stopping_threshold": 0.1}, 0.2, ""),
            (
                "max",
                {"divergence_threshold": 0.1},
                0.05,
                "score is 0.05000, worse than the threshold of 0.1000",
            ),
            (
                "min",
                {"divergence_threshold": 9.0},
                10.0,
                "score is 10.00, worse than the threshold of 9.000",
            ),
            ("min", {"divergence_threshold": 9.0}, 9.0, ""),
            ("min", {"check_finite": True}, math.nan, "score is NaN, which is not finite"),
            ("min", {}, math.nan, ""),
        ],
    )
    def test_thresholds(self, mode: Any, args: dict[str, Any], value: float, said: str) -> None:
        run: Any = StandIn()
        run.metrics = {"score": value}
        EarlyStop("score", mode, patience=5, **args).after_val(run)
        assert run.stopped == ([said] if said else [])

    @pytest.mark.parametrize(
        ("mode", "values", "stops_at"),
        [
            ("max", [1, 2, 2, 2], 3),
            ("min", [2, 1, 1.5, 0.5, 1, 1], 5),
            ("max", [math.nan, 1, 2, 2, 2], 4),
            ("max", [math.nan, math.nan], 1),
            ("max", [1, math.inf, 2, 3, 3, 3], 5),
            ("max", [1, 1.05, 1.09], 2),
        ],
    )
    def test_patience(self, mode: Any, values: list[float], stops_at: int) -> None:
        run: Any = StandIn()
        hook, stopped = EarlyStop("score", mode, patience=2, min_delta=0.1), []
        for value in values:
            run.metrics = {"score": value}
            hook.after_val(run)
            stopped.append(bool(run.stopped))
        assert stopped.index(True) == stops_at


class TestSpikeGuard:
    def test_a_spike_is_so_many_standard_deviations_above_the_mean(self) -> None:
        losses = [1.0, 3.0] * 5
        assert not is_spike(7.9, losses, 10, 6)
        assert is_spike(8.1, losses, 10, 6)
        assert not is_spike(-100.0, losses, 10, 6), "it may fall as it likes"
        assert not is_spike(8.1, losses, 11, 6), "there are too few to compare it with"
        assert is_spike(math.nan, [], 10, 6) and is_spike(math.inf, losses, 10, 6)
        assert is_spike(2.2, [2.0] * 10, 10, 6) and not is_spike(2.1, [2.0] * 10, 10, 6), (
            "of even losses a little is none"
        )

    def told(self, run_dir: RunDir, words: str) -> list[object]:
        return [
            record["it"] for record in records(run_dir, "message") if words in str(record["text"])
        ]

    def test_the_step_of_a_spike_is_skipped_and_no_other(self, trained: Trained) -> None:
        task = 'task={use="./own_tasks.py:spikes", args={at=[8]}}'
        guarded = trained(task, 'hooks.guard={use="spike_guard", args={window=4}}')
        by_hand = trained(task, 'hooks.guard={use="tests.support.common_hooks:Skips", args={at=8}}')
        assert_same(final_state(guarded)["model"], final_state(by_hand)["model"])
        assert self.told(guarded, "the loss has spiked to") == [8]

    def test_a_rollback_puts_the_last_checkpoint_back(self, trained: Trained) -> None:
        task = 'task={use="./own_tasks.py:spikes", args={at=[12]}}'
        guard = 'hooks.guard={use="spike_guard", args={window=4, rollback=true}}'
        run_dir = trained(task, guard, swap=("max_epochs = 3", "max_iters = 13"))
        assert self.told(run_dir, "those of the last checkpoint again") == [13]
        before = read(run_dir.checkpoints / "it00000010")
        after = final_state(run_dir)
        assert after["position"]["iter"] == 13  # type: ignore[index]
        assert_same(after["model"], before["model"])
        assert_same(after["optimizer"]["state"], before["optimizer"]["state"])  # type: ignore[index]
        losses = [state["hooks"]["guard"]["losses"] for state in (before, after)]  # type: ignore[index]
        assert losses[0] == losses[1] and len(losses[0]) == 4
        rates = [state["optimizer"]["param_groups"][0]["lr"] for state in (before, after)]  # type: ignore[index]
        assert rates[0] != rates[1], "the schedule goes on"

    def test_a_spike_that_lasts_stops_the_run(self, trained: Trained) -> None:
        task = f'task={{use="./own_tasks.py:spikes", args={{at={list(range(6, 15))}}}}}'
        end = records(
            trained(task, 'hooks.guard={use="spike_guard", args={window=4, patience=3}}'), "end"
        )[-1]
        assert end["it"] == 9 and "spiked 3 times" in end["reason"]

    def test_the_batches_of_an_iteration_are_one_spike(self) -> None:
        """However many of them jump, and be the last one as good as ever:
        the iteration takes no step.
        """
        run: Any = StandIn(batch_weight=1)
        guard = SpikeGuard(window=2, patience=3)
        for iteration, losses in enumerate(
            [[1, 1, 1], [9, 9, 9], [9, 1, 1], [1, 1, 1], [9, 9, 1], [1, 9, 1]]
        ):
            run.iter = iteration
            for loss in losses:
                guard.after_forward(run, {"loss": torch.tensor(float(loss))})
            guard.after_train_iter(run)
        assert (run.skipped, len(run.messages), run.stopped) == (7, 4, [])
        assert guard.in_a_row == 2
        guard.after_forward(run, {"loss": torch.tensor(9.0)})
        guard.after_train_iter(run)
        assert len(run.stopped) == 1

    def test_a_resumed_run_that_has_less_patience_stops_at_its_next_spike(self) -> None:
        run: Any = StandIn(batch_weight=1)
        guard = SpikeGuard(window=2, patience=3)
        guard.load_state_dict({"losses": [1.0, 1.0], "in_a_row": 5})
        guard.after_forward(run, {"loss": torch.tensor(9.0)})
        guard.after_train_iter(run)
        assert len(run.stopped) == 1

    def test_a_task_without_a_loss_or_with_several_is_refused(self) -> None:
        """A step that is skipped would be the wrong one, and a window would hold losses of both."""
        run: Any = StandIn(
            task=SimpleNamespace(steps_itself=True), optimizers={"a": None, "b": None}
        )
        with pytest.raises(UserError, match="knows one loss"):
            SpikeGuard().before_train(run)
        for after in (LRFinder().after_train_iter, SpikeGuard().after_forward):
            with pytest.raises(UserError, match='needs the output "loss" of the task'):
                after(StandIn(batch_size=3), {})  # type: ignore[arg-type]


FINDER = 'hooks.finder={use="lr_finder", args={start=1e-4, end=1.0, iters=12}}'


class TestLRFinder:
    def test_it_suggests_where_the_loss_falls_fastest_or_the_valley_of_fastai(self) -> None:
        assert [compute_swept_rate(1e-4, 1.0, step, 5) for step in range(5)] == pytest.approx(
            [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
        )
        rates = [10.0**k for k in range(-6, 2)]
        assert find_steepest_rate(rates, [3, 3, 2.9, 2, 1, 0.9, 2, 9]) == pytest.approx(1e-3)
        assert find_steepest_rate(rates, [1, 1, 1, 2, 3, 4, 5, 6]) is None
        assert find_steepest_rate(rates, [3, 2, 1, math.inf, math.nan, 1, 1, 1]) == pytest.approx(
            1e-5
        )
        rates = [compute_swept_rate(1e-6, 1.0, step, 40) for step in range(40)]
        best = find_steepest_rate(rates, [9.0, 6.0, 3.0] + [2.5] * 27 + [1.5] * 10)
        assert best is not None
        assert rates[27] < best < rates[32]
        # fastai's `valley` gives these, of what is left without the first tenth and the last five
        rates = [*range(20)]
        falls = [3.39, 3.13, 2.47, 2.02, 1.75, 1.94, 1.49, 1.26, 1.65, 1.54]
        falls += [1.58, 1.08, 1.29, 1.21, 0.72, 1.29, 1.18, 1.76, 1.06, 0.92]
        assert find_valley_rate(rates, falls) == 9
        again = [3.7, 2.5, 2.57, 2.29, 2.33, 1.51, 1.68, 1.46, 1.27, 1.25]
        again += [1.27, 1.26, 1.01, 1.35, 1.01, 0.17, 1.44, 0.92, 0.78, 1.04]
        assert find_valley_rate(rates, again) == 8
        assert find_valley_rate(rates, [*range(20)]) is None
        assert find_valley_rate(rates, [math.nan] * 20) is None

    def test_a_sweep_is_logged_and_reported_and_leaves_no_trace(self, trained: Trained) -> None:
        groups = 'optimizer.groups=[{match="head.*", args={lr=0.02}}]'
        counts = 'model.use="./toy.py:Counts"'  # which has extra state
        run_dir = trained(
            FINDER,
            groups,
            counts,
            "hooks.log.points=['after_train_iter']",
            "hooks.ema.enabled=false",
        )
        logged: Any = {}
        for record in records(run_dir, "scalars"):
            logged.setdefault(record["it"], {}).update(record["v"])
        rates = [logged[it]["lr_finder/lr"] for it in range(1, 13)]
        assert rates == pytest.approx([10 ** (-4 + k * 4 / 11) for k in range(12)])
        assert logged[12]["lr"] == pytest.approx(1.0)
        (message,) = (text for text in messages(run_dir) if "learning rate" in text)
        assert message.startswith(("suggested learning rate", "no learning rate to suggest"))
        assert message.endswith("the sweep ended at 1.000")
        assert records(run_dir, "end")[0]["it"] == 12
        state: Any = final_state(run_dir)
        torch.manual_seed(0)
        assert_same(dict(state["model"]), dict(Counts().state_dict()))
        assert not state["optimizer"]["state"]
        assert [group["initial_lr"] for group in state["optimizer"]["param_groups"]] == [0.02, 0.1]

    def test_a_negative_loss_is_no_divergence_until_it_rises(self) -> None:
        """A log-likelihood of densities, say: the sweep goes on while it falls."""
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        run: Any = StandIn(net, optimizer, batch_weight=1)
        finder = LRFinder(iters=10)
        finder.before_train(run)
        for loss in (-1.0, -1.1, -1.5, -3.0):
            finder.before_train_iter(run)
            finder.after_train_iter(run, {"loss": torch.tensor(loss)})
        assert (finder.steps, run.stopped) == (4, [])
        finder.before_train_iter(run)
        finder.after_train_iter(run, {"loss": torch.tensor(300.0)})
        (message,) = run.stopped
        assert "the sweep diverged at" in message

    def test_it_stops_where_the_loss_diverges_or_suggests_its_valley(
        self, trained: Trained, new_run: NewRun
    ) -> None:
        run_dir = trained(
            FINDER, "hooks.finder.args.end=1e8", "hooks.clip.enabled=false", "run.on_nan='ignore'"
        )
        (message,) = (text for text in messages(run_dir) if "learning rate" in text)
        assert "the sweep diverged at" in message
        assert records(run_dir, "end")[0]["it"] < 12  # type: ignore[operator]
        run_dir = trained(FINDER, "hooks.finder.args.rule='valley'")
        assert any(
            "the loss fell longest around it; the sweep" in text for text in messages(run_dir)
        )
        with pytest.raises(UserError, match="start must be below end"):
            new_run(FINDER, "hooks.finder.args.end=1e-5")


class Small(Classification):
    """Has the memory for 21 examples in a training step, and draws random numbers in each."""

    def step(self, run: Any, batch: Any) -> Any:
        torch.rand(1)
        if len(batch[1]) > 21:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return super().step(run, batch)


class Watches:
    """Keeps what a run begins and ends with."""

    def state(self, run: Any) -> Any:
        weights = {name: tensor.detach().clone() for name, tensor in run.model.named_parameters()}
        buffers = {name: tensor.clone() for name, tensor in run.model.named_buffers()}
        return [weights, buffers, run.optimizer.state_dict(), torch.get_rng_state()]

    def before_train(self, run: Any) -> None:
        self.before = deepcopy(self.state(run))

    def after_run(self, run: Any) -> None:
        torch.save([self.before, self.state(run)], run.dir / "states.pt")


SIZES = 'hooks.sizes={use="batch_size_finder", args={limit=64}}'
DATASET = 'data.train={use="./data_loaders.py:dataset", args={examples=40}, loader={batch_size=8}}'


class TestBatchSizeFinder:
    @pytest.mark.parametrize("on_device", [False, True])
    def test_it_finds_the_largest_that_fits_and_leaves_no_trace(
        self, trained: Trained, on_device: bool
    ) -> None:
        watches, small = (
            f'hooks.watches={{use="{__file__}:Watches"}}',
            f'task.use="{__file__}:Small"',
        )
        run_dir = trained(
            SIZES, DATASET, watches, small, f"data.train.loader.on_device={on_device}".lower()
        )
        found = "batches of 21 examples fit into memory; data.train.loader.batch_size is 8"
        assert f"batch_size_finder: {found}" in reason(run_dir)
        tried = [
            text.split()[1:] for text in messages(run_dir) if text.startswith("batch_size_finder: ")
        ]
        assert [int(size) for size, *_ in tried if size.isdigit()] == [
            2,
            4,
            8,
            16,
            32,
            24,
            20,
            22,
            21,
        ]
        assert records(run_dir, "end")[0]["it"] == 0
        before, after = torch.load(run_dir.path / "states.pt")
        assert_same(after, before)

    def test_it_tries_no_more_than_the_limit_and_where_it_cannot_search_is_a_mistake(
        self, trained: Trained
    ) -> None:
        for most in (0, 1, 2, 63, 64, 99, 100, 500):
            assert find_largest_size(partial(ge, most), 2, 100) == min(most, 100)
        assert "loader has a batch_size" in reason(trained(SIZES, code=2))
        assert "limit on a CPU" in reason(
            trained(SIZES, "hooks.sizes.args.limit=null", DATASET, code=2)
        )
