"""Hooks that guard a run: when they stop it, and what they leave behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hookflow.errors import Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.early_stop import EarlyStop
from hookflow.hooks.time_limit import TimeLimit, seconds
from tests.conftest import NewRun, records
from tests.runner.same import assert_same_end

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
        monkeypatch.setattr("hookflow.hooks.time_limit.time", clock)
        stopped = new_run(limit)
        assert train_here(stopped) == 0
        end = records(stopped, "end")[-1]
        assert (end["it"], end["status"], end["reason"]) == (7, "finished", "the time limit of 1h is reached")
        assert (stopped.checkpoints / "last").resolve().name == "it00000007"
        assert train_here(stopped, resume=True) == 0
        assert_same_end(alone, stopped)


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
