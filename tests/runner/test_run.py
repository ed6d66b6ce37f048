"""Whole runs: what a hook may do to one, and metrics over the batches of the training."""

import json
import random
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, Train, Trained, firings, hookflow_here, messages, reason, records
from tests.runner.same import assert_same, curve, final_state, logged
from tests.support.own_tasks import StepOnly, step
from tests.support.plain_training import NET, OFF, Fixed
from tests.support.toy import Points


class Noisy(StepOnly):
    """Its evaluations draw from every generator."""

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        noise = random.random() + np.random.random() + torch.rand(()).item()
        return {**self.step(run, batch), "noise": noise}


def talks(run: Any, batch: Any) -> dict[str, Any]:
    run.say("from the task")
    return step(run, batch)


class Samples:
    """Leaves the network in evaluation, as hooks do that generate
    samples and forget to switch back.
    """

    def after_train_iter(self, run: Any) -> None:
        run.model.eval()


class Grows:
    def around_grow(self, run: Any) -> Iterator[None]:
        run.say("grow: in")
        yield
        run.say("grow: out")

    def after_densify(self, count: int, run: Any) -> None:
        run.say(f"densified {count} at {run.iter}")


def says_from_a_thread(run: Any) -> None:
    thread = Thread(target=run.say, args=("from a thread",))
    thread.start()
    thread.join()


class Looks:
    def __init__(self, name: str) -> None:
        self.name = name

    def after_train_epoch(self, run: Any) -> None:
        run.log("looked", run.scalar(self.name))


def test_a_hook_that_does_nothing_changes_no_bit(left_alone: RunDir, trained: Trained) -> None:
    with_it = trained('hooks.nothing={use="./common_hooks.py:Nothing", phase="first"}')
    assert curve(left_alone) == curve(with_it)
    assert len(logged(left_alone, "loss")) == 7
    assert_same(final_state(left_alone)["model"], final_state(with_it)["model"])


def test_what_a_validation_draws_changes_no_training_and_is_drawn_again_by_val(
    trained: Trained,
) -> None:
    task = 'task.use="tests.runner.test_run:Noisy"'
    often, seldom = (
        trained(task, f'run.val_every="{every}"', "hooks.early_stop.enabled=false")
        for every in ("2it", "3ep")
    )
    assert final_state(often)["random"]["python"][1].equal(
        final_state(seldom)["random"]["python"][1]
    )
    assert_same(final_state(often)["model"], final_state(seldom)["model"])
    noises = [record["v"]["noise"] for record in records(often, "metrics")]
    assert len({*noises}) == len(noises) > 5
    assert noises[-1] == records(seldom, "metrics")[-1]["v"]["noise"]
    by_val = hookflow_here("val", ".", "--format=json", cwd=often.path, code=0).stdout
    assert json.loads(by_val)["metrics"]["noise"] == noises[-1]


def test_what_is_said_is_signed(trained: Trained) -> None:
    named = (
        'hooks.mine={use="tests.runner.test_hook_errors:named", args=["from a hook"],'
        ' points=["%s"]}'
    )
    threaded = (
        'hooks.threaded={use="tests.runner.test_run:says_from_a_thread", points=["after_train"]}'
    )
    steps = ("run.max_epochs=1", 'task={use="tests.runner.test_run:talks"}', threaded)
    # The first is generated, the second is not.
    for point in ("after_train_iter", "after_train_epoch"):
        run_dir = trained(*steps, named % point)
        said = {str(r["text"]).split(" at ")[0]: r["source"] for r in records(run_dir, "message")}
        assert said["from a hook"] == "mine"
        assert said["from the task"] == "task"
        assert said["from a thread"] == "hookflow", "nobody knows whose it is"


def test_every_nanosecond_of_an_iteration_is_booked(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("run.max_epochs=2")
    started = time.perf_counter_ns()
    assert train_here(run_dir) == 0
    elapsed = time.perf_counter_ns() - started
    frames = records(run_dir, "frame")
    phases = sum(sum(frame["phases"].values()) for frame in frames)  # type: ignore[attr-defined]
    iterations = sum(frame["iters"][1] for frame in frames)  # type: ignore[index]
    assert sum(frame["iters"][0] for frame in frames) == 10  # type: ignore[index]
    assert iterations <= phases <= elapsed, (
        "the points around the epochs are booked too, and nothing twice"
    )


HEAD = "head.weight, head.bias"


def surgeon(**args: Any) -> str:
    table = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in args.items()
    )
    return f'hooks.surgeon={{use="./model_changes.py:Surgeon", args={{{table}}}}}'


@pytest.mark.parametrize(
    "hook",
    [surgeon(adds=False), 'hooks.thaws={use="./model_changes.py:Thaws"}'],
    ids=["replaced", "thawed"],
)
def test_parameters_without_an_optimizer_end_the_run_before_the_first_iteration(
    trained: Trained, hook: str
) -> None:
    (end,) = records(trained(hook, 'model.use="./model_changes.py:HalfFrozen"', code=2), "end")
    named = HEAD if "Surgeon" in hook else "body.0.weight"
    assert f"no optimizer trains {named}: " in str(end["reason"])
    assert "run.add_param_group(module.parameters())" in str(end["reason"])
    assert end["it"] == 0


def test_one_call_trains_them(trained: Trained) -> None:
    run_dir = trained(surgeon(lr=0.05))
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    first, added = state["optimizer"]["param_groups"]
    assert (first["initial_lr"], added["initial_lr"], added["momentum"]) == (0.1, 0.05, 0.9)
    assert added["lr"] / added["initial_lr"] == first["lr"] / first["initial_lr"], (
        "the schedule sets both"
    )
    assert (len(first["params"]), len(added["params"])) == (4, 2), "the old head has left"
    torch.manual_seed(5)
    assert not torch.equal(state["model"]["head.weight"], torch.nn.Linear(8, 3).weight)
    assert not any("optimizer" in line for line in messages(run_dir, "warn"))


def test_pytorchs_schedulers_see_the_added_group(trained: Trained) -> None:
    chain = (
        'hooks.decay={use="scheduler", args={chain=[{use="ExponentialLR", args={gamma=0.5}}],'
        ' per="epoch"}}'
    )
    run_dir = trained(surgeon(lr=0.05), "hooks.schedule.enabled=false", chain)
    state: dict[str, Any] = final_state(run_dir)  # type: ignore[assignment]
    assert [group["lr"] for group in state["optimizer"]["param_groups"]] == [0.025, 0.0125]


def test_a_network_in_evaluation_or_lost_parameters_are_a_warning_at_the_next_checkpoint(
    trained: Trained,
) -> None:
    run_dir = trained('hooks.samples={use="tests.runner.test_run:Samples"}')
    assert (
        sum("the network is in evaluation mode" in line for line in messages(run_dir, "warn")) == 1
    )
    run_dir = trained(surgeon(point="before_train_iter", at=7, adds=False))
    lost, kept = (line for line in messages(run_dir, "warn") if "optimizer" in line)
    assert lost.startswith(f"no optimizer trains {HEAD}: ")
    assert kept.startswith(f"an optimizer still trains {HEAD}, ")


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (surgeon(point="after_forward"), "run.add_param_group is not allowed at after_forward"),
        (surgeon(rl=0.1), 'SGD has no setting "rl"'),
        (surgeon()[:-1] + ', writes=["model"]}', 'without declaring that it writes "optimizer"'),
    ],
)
def test_where_it_is_refused(trained: Trained, hook: str, expected: str) -> None:
    assert expected in reason(trained(hook, code=2))


POINTS = (
    'points={before_grow={follows="after_optimizer_step"}, '
    'after_densify={follows="before_grow", offers=["count"]}, after_grow={follows="after_densify"}}'
)
SHORT = ("run.max_epochs=1", "data.train.args={examples=16}")


def densifies(**args: object) -> str:
    written = ", ".join(f"{name}={value}" for name, value in args.items())
    return f'hooks.densify={{use="./common_hooks.py:Densifies", args={{{written}}}}}'


def grows(**keys: str) -> str:
    written = "".join(f", {key}={value}" for key, value in keys.items())
    return f'hooks.grow={{use="tests.runner.test_run:Grows"{written}}}'


def test_they_fire_with_what_they_offer_and_their_pair_closes(trained: Trained) -> None:
    run_dir = trained(POINTS, densifies(), grows(), *SHORT)
    once = ["grow: in", "densified 12 at {}", "grow: out"]
    counts = firings(run_dir)
    assert [counts["grow", point] for point in ("before_grow", "after_densify", "after_grow")] == [
        2,
        2,
        2,
    ]
    assert messages(run_dir) == [line.format(k) for k in (0, 1) for line in once]


def test_triggers_hold_there_too(trained: Trained) -> None:
    points = '["around_grow", {at="after_densify", every=2}]'
    run_dir = trained(
        POINTS, densifies(), grows(points=points, when='"iter > 0"'), "run.max_epochs=1"
    )
    assert [line for line in messages(run_dir) if str(line).startswith("dens")] == [
        "densified 12 at 1",
        "densified 12 at 3",
    ]
    assert messages(run_dir).count("grow: in") == messages(run_dir).count("grow: out") == 4


NO_POINT = 'this pipeline has no point "%s" of its own\n    '


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"point": '"after_densfy"'}, NO_POINT % "after_densfy" + 'did you mean "after_densify"?'),
        ({"point": '"sometime"'}, NO_POINT % "sometime" + "declare it: [points.sometime]"),
        ({"point": '"after_val"'}, "after_val cannot be fired by a hook: the run itself fires it"),
        (
            {"offered": "[]"},
            "after_densify offers 1 beside the run: count; it has been fired with 0",
        ),
        (
            {"offered": "[1, 2]"},
            "after_densify offers 1 beside the run: count; it has been fired with 2",
        ),
        (
            {"point": '"before_grow"'},
            "before_grow offers 0 beside the run; it has been fired with 1",
        ),
    ],
)
def test_what_cannot_be_fired(trained: Trained, args: dict[str, object], reason: str) -> None:
    hook = densifies(**args)
    (end,) = records(trained(POINTS, hook, *SHORT, code=2), "end")
    place = 'raised by the hook "densify" at after_optimizer_step\n    iteration 1, epoch 1'
    assert end["reason"] == f"--set {hook}: {reason}\n    {place}"


COUNTS = "hooks.accuracy.args.stages=['train', 'val']"
NO_VAL = ('[data.val]\nuse = "./toy.py:Points"\nargs = { split = 1, examples = 16 }\n', "")
BY_TRAINING = (
    "hooks.early_stop.args={monitor='train/accuracy', stage='train', patience=1}",
    "hooks.checkpoint.args={monitor='loss_epoch', stage='train', keep=2}",
    "hooks.log={use='log', args={mean='epoch'}}",
)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_accuracy_of_an_epoch_is_pytorch_s(
    left_alone: RunDir, trained: Trained, accumulate: int
) -> None:
    off = ("hooks.clip.enabled=false", *OFF)
    run_dir = trained(
        NET, COUNTS, *off, "run.max_epochs=2", f"run.accumulate={accumulate}", "run.val_every='3it'"
    )
    net, data = Fixed(), Points(0, torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for epoch in range(2):
        right, batches = 0, list(data.epoch(epoch))
        for k in range(0, len(batches), accumulate):
            group = batches[k : k + accumulate]
            optimizer.zero_grad()
            for inputs, target in group:
                logits = net(inputs)
                right += int((logits.argmax(dim=1) == target).sum())
                (cross_entropy(logits, target) / len(group)).backward()
            optimizer.step()
        expected.append(right / 40)
    assert list(logged(run_dir, "train/accuracy").values()) == expected
    assert not logged(left_alone, "train/accuracy"), "without stages the training counts nothing"


def test_the_count_and_an_added_head_are_there_after_a_kill_in_the_middle_of_an_epoch(
    resumes_alike: NewRun,
) -> None:
    resumes_alike(COUNTS, *BY_TRAINING[1:], surgeon(lr=0.05), point="after_train_iter", at=12)


def test_best_and_early_stop_may_go_by_the_training(trained: Trained) -> None:
    run_dir = trained(
        COUNTS, *BY_TRAINING, "run.max_epochs=9", "optimizer.args.lr=0.0", swap=NO_VAL
    )
    (end,) = records(run_dir, "end")
    assert (end["status"], str(end["reason"]).endswith("for 1 epoch")) == ("finished", True)
    losses = logged(run_dir, "loss_epoch")
    best: object = min(losses, key=losses.__getitem__)
    saved = [record["it"] for record in records(run_dir, "checkpoint") if "best" in record["names"]]  # type: ignore[operator]
    assert saved[-1] == best


LOOKS = 'hooks.looks={use="tests.runner.test_run:Looks", args=["%s"]%s}'


def test_a_hook_looks_up_the_numbers_that_it_declares_to_read(trained: Trained) -> None:
    run_dir = trained(
        LOOKS % ("loss", ', reads=["scalars.loss"]'), "hooks.log.points=['after_train_iter']"
    )
    losses = logged(run_dir, "loss")
    assert logged(run_dir, "looked") == {it: losses[it] for it in (5, 10, 15)}
    printed = reason(trained(LOOKS % ("loss", ""), code=2))
    assert 'the number "loss"' in printed
    assert 'declare it: reads = ["scalars.loss"]' in printed


def test_a_number_that_nobody_logs_is_a_mistake(trained: Trained) -> None:
    monitor = "hooks.early_stop.args={monitor='los_epoch', mode='min', stage='train'}"
    printed = reason(trained(monitor, BY_TRAINING[2], code=2))
    assert 'no number "los_epoch" has been logged' in printed
    assert 'did you mean "loss_epoch"?' in printed
