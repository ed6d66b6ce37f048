"""`hookflow.attach`: hooks in a loop of one's own compute what they compute by hand;
a run goes on where it ended.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import hookflow
from hookflow import Hook, UserError
from hookflow.events.rundir import RunDir
from tests.attached.loops import (
    BATCHES,
    ITERS,
    Net,
    attached,
    by_hand,
    draw,
    estimate,
    net_and_optimizer,
    same,
    weights,
)
from tests.conftest import ended, hookflow_here, messages, records
from tests.runner.same import assert_same_end, logged

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class CrashError(Exception):
    """What a test raises in the middle of a loop."""


def check_that_a_resume_ends_alike(train: Callable[..., Net], folder: Path) -> None:
    """Assert that a training that fails and is resumed has the weights of one in one go."""
    whole = train(folder / "whole")
    with pytest.raises(CrashError):
        train(folder, fails=True)
    assert same(train(folder, resume=True), whole)


class Tracer(Hook):
    """Keeps the points that it was called at, each with the iterations that are done."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _traced(point: str) -> Any:
    def method(self: Tracer, run: Any) -> None:
        self.seen.append((point, run.iter))

    return method


TRACED = (
    *(
        "before_run",
        "before_train",
        "before_train_epoch",
        "before_train_iter",
        "after_forward",
        "before_backward",
    ),
    *(
        "after_backward",
        "before_optimizer_step",
        "after_optimizer_step",
        "after_train_iter",
        "before_val",
    ),
    *(
        "before_val_epoch",
        "after_val_epoch",
        "after_val",
        "after_train_epoch",
        "after_train",
        "after_run",
    ),
)
for _point in TRACED:
    setattr(Tracer, _point, _traced(_point))


def test_a_loop_with_the_default_hooks_trains_what_it_trains_alone(tmp_path: Path) -> None:
    """It draws the same numbers: nothing is seeded,
    and a validation leaves the generators as they were.
    """
    net, folder = attached({}, tmp_path)
    assert same(net, by_hand())
    run = hookflow.load_run(folder)
    assert run.status == "finished"
    assert run.scalars("loss")["iter"][-1] == ITERS
    assert [checkpoint.iter for checkpoint in run.checkpoints] == [ITERS]
    (fresh,) = records(RunDir(folder), "run")
    assert (fresh["model"], fresh["max_iters"]) == ("Net", ITERS)


def test_the_points_fire_in_the_order_of_the_loop(tmp_path: Path) -> None:
    tracer = Tracer()
    attached({"tracer": {"use": tracer}}, tmp_path, iters=2)
    batch = ["after_forward", "before_backward", "after_backward"]
    iteration = [
        "before_train_iter",
        *batch * BATCHES,
        "before_optimizer_step",
        "after_optimizer_step",
    ]
    validation = ["before_val", "before_val_epoch", "after_val_epoch", "after_val"]
    assert tracer.seen == [
        *(
            (point, 0)
            for point in (
                "before_run",
                "before_train",
                "before_train_epoch",
                *validation,
                *iteration,
            )
        ),
        ("after_train_iter", 1),
        *((point, 1) for point in iteration),
        *(
            (point, 2)
            for point in (
                "after_train_iter",
                "after_train_epoch",
                *validation,
                "after_train",
                "after_run",
            )
        ),
    ]


def test_hooks_compute_what_the_same_does_by_hand(tmp_path: Path) -> None:
    def warm_up_and_clip(it: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 * min(1.0, it / 3)
        clip_grad_norm_(net.parameters(), 0.5)

    hooks = {
        "clip": {"use": "grad_clip", "args": {"max_norm": 0.5}},
        "rate": {"use": "lr_schedule", "args": {"shape": "constant", "warmup": "3it"}},
        "log": {"use": "log", "every": 1},
    }
    net, folder = attached(hooks, tmp_path)
    reference = by_hand(each=warm_up_and_clip)
    for one, other in zip(weights(net), weights(reference), strict=True):
        torch.testing.assert_close(one, other)
    rates = logged(RunDir(folder), "lr")
    assert [rates[1], rates[2], rates[3], rates[9]] == pytest.approx(
        [0.0, 0.01 / 3, 0.02 / 3, 0.01]
    )


def test_the_loss_of_an_iteration_is_the_mean_of_its_batches(tmp_path: Path) -> None:
    _, folder = attached({"log": {"use": "log", "every": 1}}, tmp_path)
    net, optimizer = net_and_optimizer()
    expected = []
    for _ in range(ITERS):
        losses = []
        for _ in range(BATCHES):
            x, y = draw()
            losses.append(cross_entropy(net(x), y))
        loss = torch.stack(losses).mean()
        loss.backward()
        expected.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    assert list(logged(RunDir(folder), "loss").values()) == pytest.approx(expected, rel=1e-4)


EVERYTHING = {
    "ema": {"use": "ema", "args": {"decay": 0.9}},
    "rate": {"use": "lr_schedule", "args": {"shape": "cosine", "warmup": "2it"}},
    "stop": {"use": "early_stop", "args": {"monitor": "loss", "patience": 100}},
    "log": {"use": "log", "every": 1},
}


@pytest.mark.parametrize(
    "saves", [["after_val"], [{"at": "after_train_iter", "every": 3}, "after_val"]]
)
@pytest.mark.parametrize("at", [0, 1, 5, 8, 9, ITERS - 1])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not(
    tmp_path: Path, saves: list[Any], at: int
) -> None:
    """Also where it was killed in an iteration, after a validation of which the checkpoint is."""
    hooks = {
        **EVERYTHING,
        "checkpoint": {"use": "checkpoint", "points": saves, "args": {"monitor": "loss"}},
    }
    net, whole = attached(hooks, tmp_path / "whole")

    def crash(it: int, run: Any) -> None:
        if it == at:
            raise CrashError

    with pytest.raises(CrashError):
        attached(hooks, tmp_path, act=crash)
    torch.manual_seed(99)  # a new process begins somewhere else
    resumed, folder = attached(hooks, tmp_path, resume=True)
    assert len([*(tmp_path / "own").iterdir()]) == 1
    assert same(resumed, net)
    assert_same_end(RunDir(whole), RunDir(folder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_loop_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    net, whole = attached(EVERYTHING, tmp_path / "whole")
    handlers = [signal.getsignal(each) for each in HANDLED]

    def strike(it: int, run: Any) -> None:
        if it == 6:
            os.kill(os.getpid(), number)

    with pytest.raises((SystemExit, KeyboardInterrupt)) as caught:
        attached(EVERYTHING, tmp_path, act=strike)
    assert not isinstance(caught.value, SystemExit) or caught.value.code == code
    assert [signal.getsignal(each) for each in HANDLED] == handlers
    (folder,) = (tmp_path / "own").iterdir()
    run_dir = RunDir(folder)
    assert ended(run_dir) == ("interrupted", code)
    assert hookflow.load_run(folder).checkpoint().iter == 7, "the iteration under way was finished"
    resumed, folder = attached(EVERYTHING, tmp_path, resume=True)
    assert same(resumed, net)
    assert_same_end(RunDir(whole), RunDir(folder))


def test_a_command_is_heard_and_a_stopped_loop_leaves_its_block(tmp_path: Path) -> None:
    beyond = []

    def stop(it: int, run: Any) -> None:
        if it == 3:
            run._loop.safe_point.signals.command(
                {"id": "1", "cmd": "stop", "args": [], "by": "me", "t": 0.0}
            )

    net, optimizer = net_and_optimizer()
    with hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=9, runs=tmp_path
    ) as run:
        for it in run:
            run.backward(net(draw()[0]).square().mean())
            stop(it, run)
            optimizer.step()
            optimizer.zero_grad()
        beyond.append("a validation that nobody will see")
    assert not beyond
    assert hookflow.load_run("own", tmp_path).status == "stopped"
    (answer,) = records(RunDir(hookflow.load_run("own", tmp_path).dir), "ack")
    assert answer["ok"]


def test_a_hook_that_ends_the_run_lets_the_block_go_on(tmp_path: Path) -> None:
    hooks = {
        "stop": {"use": "early_stop", "args": {"monitor": "loss", "patience": 1, "min_delta": 10.0}}
    }
    _, folder = attached(hooks, tmp_path)
    run = hookflow.load_run(folder)
    assert run.status == "finished"
    assert run.scalars("val/loss")["iter"][-1] < ITERS


class SkipsSecond(Hook):
    """Leaves the second step out."""

    writes = ("control",)

    def before_optimizer_step(self, run: Any) -> None:
        if run.iter == 1:
            run.skip_step()


def test_a_step_that_a_hook_skips_changes_nothing(tmp_path: Path) -> None:
    def skip(it: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
        if it == 1:
            optimizer.zero_grad()

    net, _ = attached({"skip": {"use": SkipsSecond}}, tmp_path)
    assert same(net, by_hand(each=skip))


def test_what_is_kept_goes_on_too(tmp_path: Path) -> None:
    """An object of the user's own that draws the batches, as a loader with a state does."""

    class Source:
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(5)

        def draw(self) -> torch.Tensor:
            return torch.randn(8, 4, generator=self.generator)

        def state_dict(self) -> dict[str, Any]:
            return {"generator": self.generator.get_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.generator.set_state(state["generator"])

    def train(runs: Path, fails: bool = False, resume: bool = False) -> Net:
        net, optimizer = net_and_optimizer()
        source = Source()
        kept = {"source": source}
        hooks = {
            "checkpoint": {"use": "checkpoint", "points": [{"at": "after_train_iter", "every": 3}]}
        }
        tables = {"run": {"name": "own", "max_iters": 8}, "hooks": hooks}
        attachment = hookflow.attach(
            tables, model=net, optimizer=optimizer, kept=kept, runs=runs, resume=resume
        )
        with attachment as run:
            for it in run:
                run.backward(net(source.draw()).square().mean())
                if fails and it == 4:
                    raise CrashError
                optimizer.step()
                optimizer.zero_grad()
        return net

    check_that_a_resume_ends_alike(train, tmp_path)


def test_numbers_drawn_before_the_first_turn_move_no_generator(tmp_path: Path) -> None:
    """The iterator of a loader draws a seed as it is made, in a resumed program once more."""

    def train(runs: Path, *, fails: bool = False, resume: bool = False) -> Net:
        net, optimizer = net_and_optimizer()
        saves = [{"at": "after_train_iter", "every": 3}]
        tables = {"run": {"name": "own"}, "hooks": {"checkpoint": {"points": saves}}}
        with hookflow.attach(
            tables, model=net, optimizer=optimizer, max_iters=8, runs=runs, resume=resume
        ) as run:
            iter(torch.utils.data.DataLoader(range(4)))  # type: ignore[arg-type]
            for it in run:
                x, y = draw()
                run.backward(cross_entropy(net(x), y))
                if fails and it == 4:
                    raise CrashError
                optimizer.step()
                optimizer.zero_grad()
        return net

    check_that_a_resume_ends_alike(train, tmp_path)


def test_without_a_checkpoint_a_resume_begins_a_run(tmp_path: Path) -> None:
    net, _ = attached({}, tmp_path, resume=True)
    assert same(net, by_hand())


def test_batches_are_changed_and_reports_are_read(tmp_path: Path) -> None:
    """`resize` and `mixup` change batches; `accuracy` reads what is reported,
    over whole validations.
    """
    net, optimizer = net_and_optimizer()
    batches = [draw() for _ in range(3)]
    hooks = {
        "accuracy": {"use": "accuracy"},
        "double": {"use": double, "points": ["before_train_iter"], "writes": ["batch"]},
    }
    tables = {"run": {"name": "own"}, "hooks": hooks}
    with hookflow.attach(tables, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path) as run:
        for _ in run:
            x, y = draw()
            x, y = run.batch(x, y)
            assert x.abs().min() >= 100
            logits = net(x)
            run.report({"logits": logits, "target": y})
            run.backward(cross_entropy(logits, y))
            optimizer.step()
            optimizer.zero_grad()
        for x, y in run.val(batches):
            assert not net.training
            logits = net(x)
            run.report({"logits": logits, "target": y, "loss": cross_entropy(logits, y)})
        metrics = dict(run.metrics)
    net.eval()
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert metrics["accuracy"] == pytest.approx(
        float((net(inputs).argmax(1) == targets).float().mean())
    )
    assert metrics["loss"] == pytest.approx(cross_entropy(net(inputs), targets).item(), rel=1e-5)


def double(run: Any, batch: Any) -> None:
    x, y = batch
    run.replace_batch((x.sign() * 100 + x, y))


def test_several_optimizers_step_each_with_its_own_points(tmp_path: Path) -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = {
        name: torch.optim.SGD(net.parameters(), 0.1)
        for name, net in (("one", one), ("other", other))
    }
    seen = []

    def note(run: Any) -> None:
        seen.append([*run.stepping])

    tables = {
        "run": {"name": "own"},
        "hooks": {"note": {"use": note, "points": ["before_optimizer_step"]}},
    }
    models = {"one": one, "other": other}
    with hookflow.attach(
        tables, model=models, optimizer=optimizers, max_iters=2, runs=tmp_path
    ) as run:
        for _ in run:
            for name, net in models.items():
                run.backward(net(torch.ones(1, 2)).square().mean())
                optimizers[name].step()
                optimizers[name].zero_grad()
    assert seen == [["one"], ["other"]] * 2


def test_hello_and_goodbye_around_a_main(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(text: str) -> Any:
        return lambda run: print(text)

    hooks = {
        "hello": {"use": say("hello"), "points": ["before_run"]},
        "goodbye": {"use": say("goodbye"), "points": ["after_run"], "phase": "last"},
        "half": {"use": say("half"), "points": ["half_way"]},
    }
    tables = {
        "run": {"name": "main"},
        "points": {"half_way": {"follows": "before_train"}},
        "hooks": hooks,
    }
    with hookflow.attach(tables, runs=tmp_path) as run:
        print("main")
        run.fire("half_way")
    assert capsys.readouterr().out.split() == ["hello", "main", "half", "goodbye"]
    recorded = hookflow.load_run("main", tmp_path)
    assert (recorded.status, recorded.checkpoints) == ("finished", [])
    with (
        pytest.raises(UserError, match="how many iterations"),
        hookflow.attach(tables, runs=tmp_path) as run,
    ):
        for _ in run:
            raise AssertionError


def test_what_the_block_raises_is_recorded_and_raised(tmp_path: Path) -> None:
    seen = []

    def note(exception: BaseException) -> None:
        seen.append(type(exception))

    def crash(it: int, run: Any) -> None:
        if it == 2:
            raise CrashError("by the loop")

    with pytest.raises(CrashError):
        attached({"note": {"use": note, "points": ["on_exception"]}}, tmp_path, act=crash)
    assert seen == [CrashError]
    (folder,) = (tmp_path / "own").iterdir()
    assert ended(RunDir(folder)) == ("failed", 1)
    (error,) = records(RunDir(folder), "error")
    assert error["type"] == "CrashError"


def test_a_block_can_be_entered_again_and_in_a_thread(tmp_path: Path) -> None:
    """As the cells of a notebook are: each time it is a run of its own,
    and no handler or hook is left.
    """
    net, optimizer = net_and_optimizer()
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path
    )

    def cell() -> None:
        with attachment as run:
            for _ in run:
                run.backward(net(draw()[0]).square().mean())
                optimizer.step()

    cell()
    thread = threading.Thread(target=cell)
    thread.start()
    thread.join()
    cell()
    assert [run.status for run in hookflow.runs(tmp_path)] == ["finished"] * 3
    hooks = (*net._forward_hooks, *net._forward_pre_hooks, *optimizer._optimizer_step_pre_hooks)
    assert not hooks
    with attachment, pytest.raises(UserError, match="under way already"):
        attachment.__enter__()


def test_a_validation_stands_between_iterations(tmp_path: Path) -> None:
    net, optimizer = net_and_optimizer()
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=3, runs=tmp_path
    )
    with pytest.raises(UserError, match="middle of an iteration"), attachment as run:
        for _ in run:
            run.backward(net(draw()[0]).square().mean())
            with run.validation() as metrics:
                metrics["loss"] = 1.0
    with attachment as run:
        for _ in run:
            run.backward(net(draw()[0]).square().mean())
            optimizer.step()
            with run.validation() as metrics:
                metrics["loss"] = estimate(net)
            optimizer.zero_grad()
        done = run.iter
    assert done == 3
    assert hookflow.load_run("own", tmp_path).scalars("val/loss")["iter"] == [1, 2, 3]


@pytest.mark.parametrize("cleared", ["at the end", "at the beginning"])
def test_a_step_that_a_scaler_leaves_out_ends_its_iteration(tmp_path: Path, cleared: str) -> None:
    """The first steps overflow: a validation, or a `break`, may follow them as any other step."""
    net, optimizer = net_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=9, runs=tmp_path
    )
    before = weights(net)
    with attachment as run:
        folder = run.dir
        for it in run:
            if cleared == "at the beginning":
                optimizer.zero_grad()
            x, y = draw()
            run.backward(1e3 * cross_entropy(net(x), y), scaler=scaler)
            scaler.step(optimizer)
            scaler.update()
            if cleared == "at the end":
                optimizer.zero_grad()
            if it == 2:
                break
            with run.validation() as metrics:
                metrics["loss"] = estimate(net)
    assert all(map(torch.equal, before, weights(net))), "no step has been taken"
    assert [record["it"] for record in records(RunDir(folder), "metrics")] == [1, 2]
    assert hookflow.load_run(folder).checkpoint().iter == 3


def test_a_step_that_the_loop_leaves_out_ends_its_iteration(tmp_path: Path) -> None:
    """A loop that drops the gradients of a bad batch has nothing that a checkpoint would lack."""
    net, optimizer = net_and_optimizer()
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path
    )
    with attachment as run:
        folder = run.dir
        for it in run:
            x, y = draw()
            run.backward(cross_entropy(net(x), y))
            if it:
                optimizer.step()
            optimizer.zero_grad()
            with run.validation() as metrics:
                metrics["loss"] = estimate(net)
    assert [record["it"] for record in records(RunDir(folder), "metrics")] == [1, 2]


def test_accelerate_divides_the_losses_that_it_adds_up(tmp_path: Path) -> None:
    """Each turn is a batch, and each second one a step; the log has each loss as it is."""
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=BATCHES)
    net, optimizer = net_and_optimizer()
    called, stepping = accelerator.prepare(net, optimizer)
    losses = []
    with hookflow.attach(
        {"run": {"name": "own"}, "hooks": {"log": {"every": 1}}},
        model=called,
        optimizer=stepping,
        max_iters=ITERS * BATCHES,
        runs=tmp_path,
    ) as run:
        folder = run.dir
        for _ in run:
            with accelerator.accumulate(called):
                x, y = draw()
                loss = cross_entropy(called(x), y)
                losses.append(loss.item())
                run.backward(loss, by=accelerator.backward)
                stepping.step()
                stepping.zero_grad()
    assert same(net, by_hand())
    assert [*logged(RunDir(folder), "loss").values()] == pytest.approx(losses)


def test_a_loop_that_computes_its_gradients_itself_is_told_what_it_lacks(tmp_path: Path) -> None:
    """It is told once; a loss that it reports is logged, and nothing is said."""

    def train(name: str, *, reports: bool) -> RunDir:
        net, optimizer = net_and_optimizer()
        tables = {"run": {"name": name}, "hooks": {"log": {"every": 1}}}
        with hookflow.attach(
            tables, model=net, optimizer=optimizer, max_iters=3, runs=tmp_path
        ) as run:
            folder = run.dir
            for _ in run:
                x, y = draw()
                loss = cross_entropy(net(x), y)
                if reports:
                    run.report({"loss": loss.detach()})
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return RunDir(folder)

    silent = train("silent", reports=False)
    assert logged(silent, "loss") == {}
    assert sum("run.backward" in text for text in messages(silent)) == 1
    reported = train("reported", reports=True)
    assert [*logged(reported, "loss")] == [1, 2, 3]
    assert not any("run.backward" in text for text in messages(reported))


def test_what_the_body_logs_is_of_its_iteration(tmp_path: Path) -> None:
    """Also before the first forward pass; a validation there is of the iteration before."""

    def log(it: int, run: Any) -> None:
        run.log("late", it)

    net, optimizer = net_and_optimizer()
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path
    )
    with attachment as run:
        folder = run.dir
        for it in run:
            run.log("early", it)
            with run.validation():
                run.log("measured", it)
            run.log("between", it)
            x, y = draw()
            run.backward(cross_entropy(net(x), y))
            log(it, run)
            optimizer.step()
            optimizer.zero_grad()
    run_dir = RunDir(folder)
    assert logged(run_dir, "measured") == {0: 0.0, 1: 1.0}
    for name in ("early", "between", "late"):
        assert logged(run_dir, name) == {1: 0.0, 2: 1.0}, name


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    net, optimizer = net_and_optimizer()
    attachment = hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=3, runs=tmp_path
    )
    with pytest.raises(ArithmeticError, match="the loss is NaN in iteration 1"), attachment as run:
        for _ in run:
            run.backward(net(draw()[0]).square().mean() * float("nan"))


MISTAKES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"run": {"name": "own", "accumulate": 2}}, {}, "run.accumulate is for hookflow's own loop"),
    ({"run": {"name": "own", "on_nan": "skip"}}, {}, 'on_nan = "skip"'),
    (
        {"run": {"name": "own"}, "distributed": {"backend": "gloo"}},
        {},
        "[distributed] is not for a pipeline of hooks",
    ),
    ({"run": {"name": "own"}, "hooks": {"a": {"use": "grad_clp"}}}, {}, 'did you mean "grad_clip"'),
    ({"run": {"name": "own"}, "hooks": {"a": {"use": "param_stats", "args": {"x": 1}}}}, {}, '"x"'),
    (
        {"run": {"name": "own"}},
        {"optimizer": nn.Linear(1, 1)},
        "must be a torch.optim.Optimizer, not a Linear",
    ),
    ({"run": {"name": "own"}}, {"model": "net"}, "must be a torch.nn.Module, not a str"),
    ({"run": {"name": "own"}}, {"kept": {"loader": [1]}}, "without state_dict()"),
    ({"run": {"name": "own"}, "model": {"use": Net}}, {}, "the section [optimizer] is missing"),
]


@pytest.mark.parametrize(("tables", "options", "said"), MISTAKES)
def test_mistakes_are_refused_before_there_is_a_run(
    tables: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    net, optimizer = net_and_optimizer()
    options = {"model": net, "optimizer": optimizer, "max_iters": 3, "runs": tmp_path, **options}
    with pytest.raises(UserError) as caught:
        hookflow.attach(tables, **options)
    assert said in str(caught.value)
    assert not [*tmp_path.iterdir()]


def test_a_loop_that_does_not_offer_what_a_hook_needs_is_refused_at_its_first_iteration(
    tmp_path: Path,
) -> None:
    net, optimizer = net_and_optimizer()

    def loop(use: str, **args: Any) -> None:
        tables = {"run": {"name": "own"}, "hooks": {"hook": {"use": use, "args": args}}}
        with hookflow.attach(
            tables, model=net, optimizer=optimizer, max_iters=3, runs=tmp_path
        ) as run:
            for _ in run:
                x, y = draw()
                cross_entropy(net(x), y).backward()
                optimizer.step()

    with pytest.raises(UserError, match='"hook" needs the batch'):
        loop("mixup", classes=3)
    with pytest.raises(UserError, match=r"called no run\.backward"):
        loop("spike_guard")


def test_scaled_gradients_are_no_gradients_for_hooks(tmp_path: Path) -> None:
    net, optimizer = net_and_optimizer()
    norms = []

    def note(run: Any) -> None:
        norms.append(float(next(run.model.parameters()).grad.norm()))

    tables = {
        "run": {"name": "own"},
        "hooks": {"note": {"use": note, "points": ["before_optimizer_step"]}},
    }
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = draw()
    net.eval()
    expected = torch.autograd.grad(cross_entropy(net(x), y), next(net.parameters()))[0].norm()
    options = {
        "model": net,
        "optimizer": optimizer,
        "max_iters": 1,
        "runs": tmp_path,
        "kept": {"scaler": scaler},
    }
    with hookflow.attach(tables, **options) as run:
        for _ in run:
            net.eval()
            loss = cross_entropy(net(x), y)
            run.backward(loss, scaler=scaler)
            scaler.step(optimizer)
            scaler.update()
    assert norms == pytest.approx([float(expected)])


HOOKS = """
[run]
name = "own"

[hooks.clip]
use = "grad_clip"
args = { max_norm = 1.0 }

[hooks.rate]
use = "lr_schedule"
"""


def test_the_commands_take_such_a_file_and_such_a_run(tmp_path: Path) -> None:
    _, folder = attached(
        {"clip": {"use": "grad_clip", "args": {"max_norm": 1.0}}}, tmp_path / "runs", iters=2
    )
    (tmp_path / "hooks.toml").write_text(HOOKS)
    for arguments in (["check"], ["graph"], ["explain"]):
        hookflow_here(*arguments, "hooks.toml", cwd=tmp_path, code=0)
    hookflow_here("why", "clip", "rate", "hooks.toml", cwd=tmp_path, code=0)
    for command in ("show", "graph"):
        hookflow_here(command, folder.name, cwd=tmp_path, code=0)
    refused = hookflow_here("run", "hooks.toml", cwd=tmp_path, code=2)
    assert "for a loop of your own" in refused.stderr
    assert refused.stderr.count("a loop of your own") == 1
    assert json.loads((folder / "run.json").read_text())["argv"]
    again = hookflow_here("run", "--resume", folder.name, cwd=tmp_path, code=2)
    assert "its program again, with resume=True" in again.stderr
    assert "with resume=True" in hookflow_here("show", folder.name, cwd=tmp_path, code=0).stdout
    assert not messages(RunDir(folder), "error")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sam", {}, "only the loop can compute a loss"),
    ("lr_finder", {}, "puts the weights back"),
    ("batch_size_finder", {}, "only the loop can compute a loss"),
    ("precise_bn", {}, "only the loop can fetch a batch"),
    ("tta", {"transforms": ["hflip"]}, "replaces the forward pass"),
    ("accumulation_schedule", {"batches": [["50%", 2]]}, "how many batches an iteration has"),
    ("predict", {"outputs": ["logits"]}, "what a test predicts"),
    ("comm_hook", {}, "ddp_comm"),
]


@pytest.mark.parametrize(("use", "args", "why"), REFUSED)
def test_hooks_that_need_hookflows_own_loop_are_refused_with_the_reason(
    use: str, args: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError) as caught:
        hookflow.load(
            {"run": {"name": "own"}, "hooks": {"hook": {"use": use, "args": args}}}
        ).check()
    assert '"hook" cannot fire in a loop' in str(caught.value)
    assert why in str(caught.value)


def test_hooks_of_the_users_own_that_need_it_are_found_by_their_source() -> None:
    def probe(run: Any, batch: Any) -> None:
        run.log("again", run.loss(batch))

    hooks = {"probe": {"use": probe, "points": ["before_train_iter"]}}
    with pytest.raises(UserError, match=r"run\.loss computes the loss of a batch"):
        hookflow.load({"run": {"name": "own"}, "hooks": hooks}).check()


def test_a_sharded_model_is_refused_by_name(tmp_path: Path) -> None:
    class FullyShardedDataParallel(nn.Linear):
        """Looks like PyTorch's."""

    net = FullyShardedDataParallel(1, 1)
    with pytest.raises(UserError, match="FSDP has sharded this model"):
        hookflow.attach({"run": {"name": "own"}}, model=net, max_iters=1, runs=tmp_path)


def test_epochs_are_counted_where_they_have_a_length(tmp_path: Path) -> None:
    seen = []

    def note(run: Any) -> None:
        seen.append((run.iter, run.epoch))

    hooks = {"note": {"use": note, "points": ["after_train_epoch"]}}
    attached(hooks, tmp_path, iters_per_epoch=5)
    assert seen == [(5, 1), (10, 2)]


def test_a_validation_that_is_left_counts_for_nothing(tmp_path: Path) -> None:
    """Its hooks are left, the average gives the weights back,
    and what is saved later is the state of then.
    """
    net, optimizer = net_and_optimizer()
    hooks = {"ema": {"use": "ema", "args": {"decay": 0.5}}}
    tables = {"run": {"name": "own"}, "hooks": hooks}
    batches = [draw() for _ in range(3)]
    with hookflow.attach(tables, model=net, optimizer=optimizer, max_iters=4, runs=tmp_path) as run:
        for it in run:
            run.backward(net(draw()[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            trained = weights(net)
            if it == 1:
                for x, _ in run.val(batches):
                    net(x)
                    break
            if it == 2:
                with suppress(CrashError), run.validation():
                    raise CrashError
    assert all(map(torch.equal, weights(net), trained))
    recorded = hookflow.load_run("own", tmp_path)
    assert (recorded.status, recorded.metrics) == ("finished", {})
    saved = recorded.checkpoint().load_into(Net(), "model")
    assert recorded.checkpoint().iter == 4
    assert all(map(torch.equal, weights(saved), trained))


def test_validations_that_are_broken_off_are_told_of_once(tmp_path: Path) -> None:
    """The log says how to take a part of the data, and tells of an exception by itself."""
    net, optimizer = net_and_optimizer()
    tables = {"run": {"name": "own"}}
    batches = [draw() for _ in range(3)]
    with hookflow.attach(tables, model=net, optimizer=optimizer, max_iters=6, runs=tmp_path) as run:
        folder = run.dir
        for it in run:
            if it < 3:
                for _ in run.val(batches):
                    break
            elif it < 5:
                with suppress(CrashError), run.validation():
                    raise CrashError
    told = [line for line in messages(RunDir(folder)) if "left before its end" in line]
    assert len(told) == 2
    assert "run.val(itertools.islice(loader, 50))" in told[0]
    assert "CrashError" in told[1]


def test_what_is_reported_in_a_block_is_among_its_metrics(tmp_path: Path) -> None:
    """The means are over the batches of all its loaders; what the block sets itself stands."""
    net, optimizer = net_and_optimizer()
    tables = {"run": {"name": "own"}, "hooks": {"accuracy": {"use": "accuracy"}}}
    sets = [[draw() for _ in range(3)], [draw()]]
    losses = []
    with hookflow.attach(tables, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path) as run:
        for _ in run:
            with run.validation() as metrics:
                for loader in sets:
                    for x, y in run.val(loader):
                        loss = cross_entropy(net(x), y)
                        losses.append(float(loss))
                        run.report({"loss": loss, "own": 1.0, "logits": net(x), "target": y})
                metrics["own"] = 2.0
        seen = dict(run.metrics)
    assert seen["loss"] == pytest.approx(sum(losses[:4]) / 4)
    assert seen["own"] == 2.0
    assert 0 <= seen["accuracy"] <= 1


def test_the_best_weights_are_given_back(tmp_path: Path) -> None:
    net, optimizer = net_and_optimizer()
    hooks = {
        "checkpoint": {
            "use": "checkpoint",
            "points": ["after_val"],
            "args": {"monitor": "loss", "restore_best": True},
        }
    }
    tables = {"run": {"name": "own"}, "hooks": hooks}
    kept = []
    with hookflow.attach(tables, model=net, optimizer=optimizer, max_iters=4, runs=tmp_path) as run:
        for it in run:
            with run.validation() as metrics:
                metrics["loss"] = abs(it - 2.0)
            kept.append(weights(net))
            run.backward(net(draw()[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, weights(net), kept[2]))


def test_modes_of_the_model_are_the_loops_own(tmp_path: Path) -> None:
    net, optimizer = net_and_optimizer()
    net.eval()
    with hookflow.attach(
        {"run": {"name": "own"}}, model=net, optimizer=optimizer, max_iters=2, runs=tmp_path
    ) as run:
        for _ in run:
            assert not net.training
            run.backward(net(draw()[0]).square().mean())
            optimizer.step()
    assert hookflow.load_run("own", tmp_path).scalars("loss")["iter"][-1] == 2


@pytest.mark.parametrize("at", [3, 5])
def test_a_loop_that_is_left_by_a_break_is_gone_on_with_by_the_next_one(
    tmp_path: Path, at: int
) -> None:
    """As pytorch/ignite#1386 asks of a second `run`: no iteration twice, and none is left out."""
    tracer = Tracer()
    net, optimizer = net_and_optimizer()
    tables = {"run": {"name": "own"}, "hooks": {"tracer": {"use": tracer}}}
    options: Any = {"model": net, "optimizer": optimizer, "max_iters": ITERS, "runs": tmp_path}
    turns = []
    with hookflow.attach(tables, iters_per_epoch=4, **options) as run:
        for _ in range(3):
            for it in run:
                turns.append(it)
                for _ in range(BATCHES):
                    x, y = draw()
                    run.backward(cross_entropy(net(x), y) / BATCHES)
                optimizer.step()
                optimizer.zero_grad()
                if it == at:
                    break
    assert turns == [*range(ITERS)]
    assert same(net, by_hand())
    counted = [it for point, it in tracer.seen if point == "after_train_iter"]
    assert counted == [*range(1, ITERS + 1)]
    assert [it for point, it in tracer.seen if point == "after_train_epoch"] == [4, 8, 12]


def test_an_infinite_metric_is_the_best_neither_by_name_nor_where_it_is_shown(
    tmp_path: Path,
) -> None:
    """As Lightning#1008 asks of NaN, which compares with nothing."""
    scores = [float("nan"), 0.5, 0.4, float("inf"), 0.3]
    saved = {"points": ["after_val"], "args": {"monitor": "score", "mode": "max"}}
    net, optimizer = net_and_optimizer()
    tables = {"run": {"name": "own"}, "hooks": {"checkpoint": {"use": "checkpoint", **saved}}}
    options: Any = {"model": net, "optimizer": optimizer, "max_iters": 5, "runs": tmp_path}
    with hookflow.attach(tables, **options) as run:
        for it in run:
            run.backward(net(draw()[0]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            with run.validation() as metrics:
                metrics["score"] = scores[it]
    recorded = hookflow.load_run("own", tmp_path)
    assert recorded.checkpoint("best").iter == 2
    folder = str(recorded.dir)
    shown = hookflow_here("compare", folder, folder, "--format", "json", cwd=tmp_path, code=0)
    assert json.loads(shown.stdout)["metrics"]["score"]["best"] == [0.5, 0.5]


def test_of_a_resumed_run_the_hooks_are_counted_in_the_last_attempt_and_the_page_says_so(
    tmp_path: Path,
) -> None:
    hooks = {
        "checkpoint": {"use": "checkpoint", "points": [{"at": "after_train_iter", "every": 3}]}
    }

    def crash(it: int, run: Any) -> None:
        if it == 7:
            raise CrashError

    with pytest.raises(CrashError):
        attached(hooks, tmp_path, act=crash, validates=False)
    _, folder = attached(hooks, tmp_path, validates=False, resume=True)
    data = json.loads(hookflow_here("show", str(folder), "-f", "json", cwd=tmp_path, code=0).stdout)
    assert data["hooks"]["checkpoint@after_train_iter"]["fired"] == (ITERS - 6) // 3
    page = hookflow_here("show", str(folder), cwd=tmp_path, code=0).stdout
    assert "\nhooks, in the last attempt\n" in page


def test_what_if_names_a_measurement_that_works_for_a_loop_of_one_s_own(tmp_path: Path) -> None:
    """It named `hookflow rerun`, which is refused: a loop of one's own cannot be done again."""
    _, folder = attached({"log": {"use": "log", "every": 1}}, tmp_path)
    shown = hookflow_here("graph", str(folder), "--what-if", "log", cwd=tmp_path, code=0).stdout
    assert "your program with hooks.log.enabled = false" in shown
    untraced = hookflow_here("graph", str(folder), "--gantt", "3", cwd=tmp_path, code=2).stderr
    assert "no trace of iteration 3" in untraced
    assert "hookflow rerun" not in shown + untraced
