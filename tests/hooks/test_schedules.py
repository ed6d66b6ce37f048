"""Schedules of the learning rate, of momentum and weight decay, and of gradient accumulation."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import find_argument_problems
from hookflow.hooks.builtin.schedules import LRSchedule, ParamSchedule
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import stage_resume
from tests.conftest import TOY, Train, Trained, hookflow_here, records
from tests.hooks.stand_ins import StandIn
from tests.runner.by_hand import weights
from tests.runner.same import final_state
from tests.support import pytorch_hooks
from tests.support.own_tasks import step
from tests.support.toy import Net


def accumulates(run: Any, batch: Any) -> dict[str, Any]:
    run.accumulate(2, step=False)
    return step(run, batch)


def rates(schedule: LRSchedule, *iters: int) -> list[float]:
    """Return the rates of these iterations of a run of 40 iterations in five epochs,
    where 1 is the whole rate.
    """
    group = {"initial_lr": 1.0}
    optimizers = {"optimizer": SimpleNamespace(param_groups=[group])}
    result = []
    for it in iters:
        run: Any = SimpleNamespace(
            iter=it, max_iters=40, epoch_lengths=EpochLengths.constant(8), optimizers=optimizers
        )
        schedule.before_train_iter(run)
        result.append(group["lr"])
    return result


class TestLRSchedule:
    @pytest.mark.parametrize("warmup", ["20%", 8, "8it", "1ep"])
    def test_a_warm_up_is_an_amount_of_the_run(self, warmup: int | str) -> None:
        assert not list(
            find_argument_problems(
                LRSchedule, {"warmup": warmup}, "lr_schedule", lambda _: Where("")
            )
        )
        schedule = LRSchedule(shape="linear", warmup=warmup, start=0.5)
        assert rates(schedule, 0, 4, 8, 24) == pytest.approx([0.5, 0.75, 1.0, 0.5])

    def test_without_a_warm_up_the_first_rate_is_the_whole_and_a_long_one_is_refused(self) -> None:
        assert rates(LRSchedule(shape="linear", warmup=0), 0, 20) == [1, 0.5]
        for warmup in ("5ep", "100%"):
            with pytest.raises(
                UserError, match=f"the warm-up takes {warmup}, and the run has only 40 iterations"
            ):
                rates(LRSchedule(warmup=warmup), 0)

    def test_an_exponential_way_down_has_the_same_factor_in_equal_times(self) -> None:
        schedule = LRSchedule(shape="exponential", end=0.01)
        assert rates(schedule, 0, 10, 20, 40) == pytest.approx([1, 0.1**0.5, 0.1, 0.01])
        with pytest.raises(ValueError, match="never ends at 0"):
            LRSchedule.check_arguments({"shape": "exponential"})

    def test_it_sets_the_groups_that_it_names_and_no_others(self) -> None:
        groups = [
            {"initial_lr": 1.0, "lr": 1.0, **name}
            for name in ({"name": "position"}, {"name": "colour"}, {})
        ]
        run: Any = SimpleNamespace(
            iter=20, max_iters=40, optimizers={"sgd": SimpleNamespace(param_groups=groups)}
        )
        LRSchedule(shape="linear", groups=["colour"]).before_train_iter(run)
        assert [group["lr"] for group in groups] == [1, 0.5, 1]
        with pytest.raises(UserError) as caught:
            LRSchedule(groups=["color"]).before_train_iter(run)
        assert (
            str(caught.value) == 'no parameter group is called "color"\n    did you mean "colour"?'
        )


def settings(
    hook: ParamSchedule, optimizer: torch.optim.Optimizer, key: str, iters: int = 100
) -> list[list[Any]]:
    """Return a setting of every parameter group in each iteration."""
    run: Any = StandIn(Net(), optimizer, max_iters=iters, iters_per_epoch=10)
    hook.before_run(run)
    hook.before_train(run)
    result = []
    for run.iter in range(iters):
        hook.before_train_iter(run)
        result.append([group[key] for group in optimizer.param_groups])
    return result


class TestParamSchedule:
    @pytest.mark.parametrize(("shape", "torchs"), [("cosine", "cos"), ("linear", "linear")])
    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
    def test_momentum_is_that_of_the_one_cycle_policy(
        self, shape: Any, torchs: Any, kind: Any
    ) -> None:
        key, args = ("momentum", {"momentum": 0.9}) if kind is torch.optim.SGD else ("betas", {})
        oracle, scheduled = (kind(Net().parameters(), 0.1, **args) for _ in range(2))
        cycle = torch.optim.lr_scheduler.OneCycleLR(oracle, 0.1, 100, anneal_strategy=torchs)
        expected = []
        for _ in range(99):
            expected.append(oracle.param_groups[0][key])
            oracle.step()
            cycle.step()
        hook = ParamSchedule(momentum=[(0, 0.95), ("29it", 0.85), (99, 0.95)], shape=shape)
        result = [value for (value,) in settings(hook, scheduled, key, 99)]
        if key == "betas":
            assert {beta for _, beta in result} == {0.999}
            result, expected = [beta for beta, _ in result], [beta for beta, _ in expected]
        assert result == pytest.approx(expected, rel=1e-9)

    def test_weight_decay_goes_by_the_formula_and_stays_where_there_is_none(self) -> None:
        net = Net()
        groups: list[Any] = [
            {"params": net.head.parameters()},
            {"params": net.body.parameters(), "weight_decay": 0},
        ]
        hook = ParamSchedule(weight_decay=[("1ep", 0.04), ("50%", 0.4)])
        result = settings(hook, torch.optim.AdamW(groups, weight_decay=0.04), "weight_decay")
        assert {other for _, other in result} == {0}
        for it, (value, _) in enumerate(result):
            way = min(max((it - 10) / 40, 0), 1)
            assert value == pytest.approx(0.04 + 0.36 * (1 - math.cos(math.pi * way)) / 2)

    def test_a_mistake_is_the_users(self) -> None:
        with pytest.raises(UserError, match="neither momentum nor weight_decay is given"):
            ParamSchedule()
        with pytest.raises(UserError, match='the optimizer "optimizer" has no momentum'):
            settings(
                ParamSchedule(momentum=[(0, 0.5)]), torch.optim.Adagrad(Net().parameters()), "lr"
            )
        hook = ParamSchedule(momentum=[(0, 0.5), ("10%", 0.6), ("1ep", 0.9)])
        with pytest.raises(
            UserError, match="positions must increase: 1ep is iteration 10, the one before it 10"
        ):
            settings(hook, torch.optim.SGD(Net().parameters(), 0.1), "momentum")

    def test_it_may_be_added_to_a_resumed_run_with_its_last_value(
        self, trained: Trained, train_here: Train
    ) -> None:
        run_dir = trained(
            "run.max_epochs=1", "optimizer.args={lr=0.1, momentum=0.9, weight_decay=0.01}"
        )
        args = 'momentum=[[0, 0.9], ["9it", 0.5]], weight_decay=[[0, 0.1]]'
        added = f'hooks.other={{use="param_schedule", args={{{args}}}}}'
        loaded = load(run_dir.pipeline, ("run.max_epochs=2", added), recorded=True)
        stage_resume(loaded, compile_pipeline(loaded, TOY.parent), run_dir, TOY.parent)
        assert train_here(run_dir, resume=True, allow_changed_hooks=True) == 0, records(
            run_dir, "error"
        )
        state: Any = final_state(run_dir)["optimizer"]
        (group,) = state["param_groups"]
        assert (group["momentum"], group["weight_decay"], group["initial_weight_decay"]) == (
            0.5,
            0.1,
            0.01,
        )
        tested = hookflow_here("test", str(run_dir.path), cwd=TOY.parent)
        assert tested.returncode == 0, "which trains nothing, so that no place is an iteration"


PIPELINE = """
run = { name = "accumulation", default_hooks = false, max_epochs = 4, threads = 1, device = "cpu" }
model.use = "tests.support.pytorch_hooks:Net"
task.use = "tests.support.pytorch_hooks:step"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.5, momentum = 0.9 } }
data.train.use = "tests.support.pytorch_hooks:Batches"

[hooks.accumulation]
use = "accumulation_schedule"
args = { batches = [["1ep", 2], ["2ep", 3]] }
"""
OFF = [
    f"hooks.{name}.enabled=false"
    for name in ("schedule", "clip", "ema", "throughput", "early_stop")
]
PLAIN = 'model={use="./own_tasks.py:Plain"}'  # batch norm and dropout see the small batches


def accumulation(batches: str) -> str:
    return f'hooks.accumulation={{use="accumulation_schedule", args={{batches={batches}}}}}'


class TestAccumulationSchedule:
    def test_the_weights_are_those_of_a_plain_loop_to_the_bit(
        self, tmp_path: Path, trained: Trained
    ) -> None:
        (tmp_path / "accumulation.toml").write_text(PIPELINE)
        trained(pipeline=tmp_path / "accumulation.toml")
        result = pytorch_hooks.NETS[-1].state_dict()
        net = pytorch_hooks.Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        for groups in ([1, 1, 1], [2, 1], [3], [3]):
            batches = iter([*pytorch_hooks.Batches().epoch(0)])
            for size in groups:
                optimizer.zero_grad()
                for _ in range(size):
                    inputs, target = next(batches)
                    (torch.nn.functional.cross_entropy(net(inputs), target) / size).backward()
                optimizer.step()
        assert all(torch.equal(result[name], weight) for name, weight in net.state_dict().items())

    @pytest.mark.parametrize(
        ("examples", "lengths"), [(40, [24, 6]), (46, [30, 9])], ids=["even", "a smaller last"]
    )
    def test_a_group_is_one_big_batch(
        self, trained: Trained, examples: int, lengths: list[int]
    ) -> None:
        """As `run.accumulate` makes it, with its last group incomplete."""
        common = PLAIN, f"data.train.args={{examples={examples}, batch_size=5, whole=true}}", *OFF
        runs = trained(*common, accumulation("[[0, 4]]")), trained(*common, "run.accumulate=4")
        for name, weight in weights(runs[1]).items():
            torch.testing.assert_close(weights(runs[0])[name], weight, rtol=1e-5, atol=1e-6)
        assert [records(run_dir, "run")[0]["max_iters"] for run_dir in runs] == lengths

    def test_hooks_of_the_step_fire_once_for_all_batches_of_a_group(
        self, trained: Trained, tmp_path: Path
    ) -> None:
        tracer = (
            f'hooks.tracer={{use="./common_hooks.py:Tracer", args={{file="{tmp_path / "trace"}"}}}}'
        )
        trained(*OFF, tracer, accumulation('[["1ep", 2], [11, 3]]'))
        lines = [line.split()[:2] for line in (tmp_path / "trace").read_text().splitlines()]
        stepped = [
            int(it.removeprefix("iter=")) for point, it in lines if point == "after_optimizer_step"
        ]
        assert stepped == [0, 1, 2, 3, 4, 6, 8, 9, 11, 14], (
            "the group from 10 on has two batches, the last three"
        )
        assert len([line for line in lines if line[0] == "after_train_iter"]) == 15

    def test_a_step_that_another_hook_skips_drops_the_gradients(self, trained: Trained) -> None:
        """The next batch begins a group: of five, two are dropped, and the last three are one."""
        skips = 'hooks.skips={use="tests.support.common_hooks:Skips", args={at=1}}'
        skipped = trained(PLAIN, *OFF, skips, accumulation("[[0, 4]]"), "run.max_epochs=1")
        rest = trained(PLAIN, *OFF, "run.max_epochs=1", "data.train.args={batch_size=24, begin=16}")
        for name, weight in weights(rest).items():
            torch.testing.assert_close(weights(skipped)[name], weight, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (
                (accumulation("[[0, 2]]"), "run.accumulate=2"),
                "both say on how many batches the optimizer steps",
            ),
            (
                (accumulation("[[0, 2]]"), 'run.accumulate=[[0, 1], ["2ep", 2]]'),
                "both say on how many batches the optimizer steps",
            ),
            (
                (accumulation('[["2ep", 2], [3, 4]]'),),
                "batches: positions must increase: 3 is iteration 3, the one",
            ),
            (
                (
                    accumulation("[[0, 2]]"),
                    "task.use=tests.support.runner_snapshots:StepsEveryThird",
                    *OFF,
                ),
                "this task steps it",
            ),
            (("task.use=tests.hooks.test_schedules:accumulates",), "run.accumulate is for hooks"),
        ],
    )
    def test_mistakes_are_reported_at_first(
        self, trained: Trained, overrides: tuple[str, ...], message: str
    ) -> None:
        end = records(trained(*overrides, code=2), "end")[-1]
        assert (end["it"], message in str(end["reason"])) == (0, True)
