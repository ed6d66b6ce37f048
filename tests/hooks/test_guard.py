"""Hooks that guard a run: when they stop it, and what they leave behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.builtin.early_stop import EarlyStop
from hookflow.hooks.builtin.spike_guard import SpikeGuard, is_spike
from hookflow.hooks.builtin.time_limit import TimeLimit, seconds
from hookflow.runner.checkpoint.store import read
from tests.conftest import NewRun, records
from tests.runner.same import assert_same, assert_same_end, final_state
from tests.runner.test_resume import strikes as interrupts

Train = Callable[..., int]


class TestTimeLimit:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [("3h50m", 13800), ("90m", 5400), ("1d12h", 129600), ("30s", 30), ("1h 30s", 3630), ("0.5s", 0.5)],
    )
    def test_durations(self, written: str, expected: float) -> None:
        assert seconds(written) == expected
        assert not list(wrong_arguments(TimeLimit, {"limit": written}, "time_limit", lambda _: Where("")))

    @pytest.mark.parametrize("written", ["", "soon", "10", "50m3h", "2ep", "0s", 10])
    def test_what_is_no_duration_is_refused_before_the_run(self, written: object) -> None:
        (problem,) = wrong_arguments(TimeLimit, {"limit": written}, "time_limit", lambda _: Where(""))
        assert "limit" in problem.message

    def test_it_stops_with_a_checkpoint_from_which_the_run_is_resumed_to_the_same_end(
        self, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = 'hooks.limit={use="time_limit", args={limit="1h"}}'
        alone = new_run(limit)
        assert train_here(alone) == 0
        calls = itertools.count()  # of the clock: when the hook is made, after 5 iterations, a validation, and 2 more
        clock = SimpleNamespace(monotonic=lambda: 3600.0 if next(calls) == 8 else 0.0)
        monkeypatch.setattr("hookflow.hooks.builtin.time_limit.time", clock)
        stopped = new_run(limit)
        assert train_here(stopped) == 0
        end = records(stopped, "end")[-1]
        assert (end["it"], end["status"], end["reason"]) == (7, "finished", "the time limit of 1h is reached")
        assert (stopped.checkpoints / "last").resolve().name == "it00000007"
        assert train_here(stopped, resume=True) == 0
        assert_same_end(alone, stopped)

    @pytest.mark.parametrize("stops", ["the time limit", "a hook"])
    def test_a_signal_cuts_the_validation_short_after_which_it_would_have_stopped(
        self, new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: str
    ) -> None:
        """The limit was that of the job that is over; what another hook has asked for still holds."""
        limit = 'hooks.limit={use="time_limit", args={limit="1h"}}'
        steers = 'use="./steerers.py:Steers", args={call="stop", point="after_train_iter", at=8}'
        once = f'hooks.once={{{steers}, points=["after_train_iter"], writes=["control"]}}'
        common = (limit if stops == "the time limit" else once, "run.val_every=4")
        swap, strikes = ("max_epochs = 3", "max_iters = 15"), interrupts(tmp_path, SIGTERM, ("before_val_iter", 8))
        alone, broken = new_run(*common, swap=swap), new_run(*common, *strikes, swap=swap)
        assert train_here(alone) == 0
        calls = itertools.count()  # of the clock: when the hook is made, after 4 iterations, a validation, and 4 more
        clock = SimpleNamespace(monotonic=lambda: 3600.0 if next(calls) == 9 else 0.0)
        monkeypatch.setattr("hookflow.hooks.builtin.time_limit.time", clock)
        assert train_here(broken) == 143
        assert train_here(broken, resume=True) == 0
        assert records(broken, "end")[-1]["it"] == (15 if stops == "the time limit" else 8)
        assert_same_end(alone, broken)


class TestEarlyStop:
    @pytest.mark.parametrize(
        ("mode", "args", "value", "said"),
        [
            ("max", {"stopping_threshold": 0.9}, 0.9, "score is 0.9000, as good as the threshold of 0.9000"),
            ("max", {"stopping_threshold": 0.9}, 0.89, ""),
            ("min", {"stopping_threshold": 0.1}, 0.05, "score is 0.05000, as good as the threshold of 0.1000"),
            ("min", {"stopping_threshold": 0.1}, 0.2, ""),
            ("max", {"divergence_threshold": 0.1}, 0.05, "score is 0.05000, worse than the threshold of 0.1000"),
            ("min", {"divergence_threshold": 9.0}, 10.0, "score is 10.00, worse than the threshold of 9.000"),
            ("min", {"divergence_threshold": 9.0}, 9.0, ""),
            ("min", {"check_finite": True}, math.nan, "score is NaN, which is not finite"),
            ("min", {"check_finite": True}, math.inf, "score is inf, which is not finite"),
            ("min", {"check_finite": True}, 1e9, ""),
            ("min", {}, math.nan, ""),
        ],
    )
    def test_thresholds(self, mode: str, args: dict[str, float], value: float, said: str) -> None:
        class Judged:
            stopped = ""

            def metric(self, name: str) -> float:
                return value

            def stop(self, reason: str) -> None:
                self.stopped = reason

        run = Judged()
        EarlyStop("score", mode, patience=5, **args).after_val(run)  # type: ignore[arg-type]
        assert run.stopped == said

    def test_a_threshold_ends_a_run(self, new_run: NewRun, train_here: Train) -> None:
        run_dir = new_run('hooks.early_stop.args={monitor="accuracy", stopping_threshold=0.0}')
        assert train_here(run_dir) == 0
        end = records(run_dir, "end")[-1]
        assert end["it"] == 5 and "as good as the threshold of 0" in str(end["reason"])


class TestSpikeGuard:
    def test_a_spike_is_so_many_standard_deviations_above_the_mean(self) -> None:
        losses = [1.0, 3.0] * 5
        assert not is_spike(7.9, losses, 10, 6)
        assert is_spike(8.1, losses, 10, 6)
        assert not is_spike(-100.0, losses, 10, 6), "it may fall as it likes"
        assert not is_spike(8.1, losses, 11, 6), "there are too few to compare it with"
        assert is_spike(math.nan, [], 10, 6) and is_spike(math.inf, losses, 10, 6)

    def test_of_even_losses_a_little_more_is_none(self) -> None:
        assert not is_spike(2.1, [2.0] * 10, 10, 6)
        assert is_spike(2.2, [2.0] * 10, 10, 6)

    def told(self, run_dir: RunDir, words: str) -> list[object]:
        return [record["it"] for record in records(run_dir, "message") if words in str(record["text"])]

    def test_the_step_of_a_spike_is_skipped_and_no_other(self, new_run: NewRun, train_here: Train) -> None:
        task = 'task={use="./own_tasks.py:spikes", args={at=[8]}}'
        guarded = new_run(task, 'hooks.guard={use="spike_guard", args={window=4}}')
        by_hand = new_run(task, 'hooks.guard={use="tests.photographs:SkipsOne", args={at=8}}')
        assert train_here(guarded) == train_here(by_hand) == 0
        assert_same(final_state(guarded)["model"], final_state(by_hand)["model"])
        assert self.told(guarded, "the loss has spiked to") == [8]

    def test_a_rollback_puts_the_last_checkpoint_back(self, new_run: NewRun, train_here: Train) -> None:
        task = 'task={use="./own_tasks.py:spikes", args={at=[12]}}'
        guard = 'hooks.guard={use="spike_guard", args={window=4, rollback=true}}'
        run_dir = new_run(task, guard, swap=("max_epochs = 3", "max_iters = 13"))
        assert train_here(run_dir) == 0
        assert self.told(run_dir, "those of the last checkpoint again") == [13]
        before = read(run_dir.checkpoints / "it00000010", torch.device("cpu"))
        after = final_state(run_dir)
        assert after["position"]["iter"] == 13  # type: ignore[index]
        assert_same(after["model"], before["model"])
        assert_same(after["optimizer"]["state"], before["optimizer"]["state"])  # type: ignore[index]
        losses = [state["hooks"]["guard"]["losses"] for state in (before, after)]  # type: ignore[index]
        assert losses[0] == losses[1] and len(losses[0]) == 4
        rates = [state["optimizer"]["param_groups"][0]["lr"] for state in (before, after)]  # type: ignore[index]
        assert rates[0] != rates[1], "the schedule goes on"

    def test_a_spike_that_lasts_stops_the_run(self, new_run: NewRun, train_here: Train) -> None:
        task = f'task={{use="./own_tasks.py:spikes", args={{at={list(range(6, 15))}}}}}'
        run_dir = new_run(task, 'hooks.guard={use="spike_guard", args={window=4, patience=3}}')
        assert train_here(run_dir) == 0
        end = records(run_dir, "end")[-1]
        assert (end["it"], end["reason"]) == (9, "the loss has spiked 3 times in a row")

    def test_the_batches_of_an_iteration_are_one_spike(self) -> None:
        """However many of them jump, and be the last one as good as ever: the iteration takes no step."""
        asked = {"skip": 0, "say": 0, "stop": 0}
        count = lambda call: lambda *_: asked.update({call: asked[call] + 1})  # noqa: E731
        calls = {"skip_step": count("skip"), "say": count("say"), "stop": count("stop")}
        run: Any = SimpleNamespace(world=1, iter=0, batch_size=1, device=torch.device("cpu"), **calls)
        guard = SpikeGuard(window=2, patience=3)
        for iteration, losses in enumerate([[1, 1, 1], [9, 9, 9], [9, 1, 1], [1, 1, 1], [9, 9, 1], [1, 9, 1]]):
            run.iter = iteration
            for loss in losses:
                guard.after_forward(run, {"loss": torch.tensor(float(loss))})
            guard.after_train_iter(run)
        assert asked == {"skip": 7, "say": 4, "stop": 0}
        assert guard.in_a_row == 2
        guard.after_forward(run, {"loss": torch.tensor(9.0)})
        guard.after_train_iter(run)
        assert asked["stop"] == 1

    def test_a_task_with_a_loss_for_each_optimizer_is_refused(self) -> None:
        """A step that is skipped would be the wrong one, and a window would hold losses of both."""
        run: Any = SimpleNamespace(task=SimpleNamespace(steps_itself=True), optimizers={"a": None, "b": None})
        with pytest.raises(UserError, match="knows one loss"):
            SpikeGuard().before_train(run)
