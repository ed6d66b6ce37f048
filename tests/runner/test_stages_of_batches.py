"""Batch sizes and accumulation that change from epoch to epoch: the numbers,
the places in the run, a resume, ranks.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset, TensorDataset

from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.events.rundir import RunDir
from hookflow.pipeline.by_epoch import ByEpoch, EpochLengths, parse_counts
from tests.conftest import Train, Trained, hookflow_here, messages, reason, records, strikes
from tests.distributed.several import carry_out, printed
from tests.runner.same import assert_same_end, final_state, logged, rest_of

EXAMPLES = 22
HERE = "tests.runner.test_stages_of_batches"
SIZES = '[[0, 4], ["1ep", 6], ["3ep", 12]]'
ACCUMULATE = '[[0, 1], ["2ep", 2]]'


class Net(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        with torch.no_grad():
            self.weight.copy_(torch.tensor([[0.5, -0.25, 0.125]]))
            self.bias.zero_()


def examples(count: int = EXAMPLES) -> TensorDataset:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * x[:, :1].square())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from examples()

    def __len__(self) -> int:
        return EXAMPLES


def step(run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    x, y = batch
    return {"loss": mse_loss(run.model(x), y)}


class Places:
    """Logs the place in the run that each iteration has."""

    def after_train_iter(self, run: Any) -> None:
        run.log("size", run.batch_size)
        run.log("per_epoch", run.iters_per_epoch)


class Lengths:
    """Logs what the training data say of the current epoch."""

    def before_train_iter(self, run: Any) -> None:
        data = run.data["train"]
        run.log("batches", len(data))
        run.log("info_batches", data.info["batches"])
        run.log("info_size", data.info["batch_size"])


class Marks:
    def after_train_iter(self, run: Any) -> None:
        run.log("mark", run.iter)


def pipeline(
    folder: Path,
    *,
    loader: str = f"batch_size = {SIZES}, shuffle = false",
    run: str = "",
    **other: str,
) -> Path:
    parts = {"train": f'use = "{HERE}:examples"', "hooks": "", "lr": "0.05", **other}
    text = f"""
[run]
name = "staged"
device = "cpu"
threads = 1
max_epochs = 4
{run}
[model]
use = "{HERE}:Net"
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = {parts["lr"]}, momentum = 0.9 }}
[task]
use = "{HERE}:step"
[data.train]
{parts["train"]}
loader = {{ {loader} }}
[hooks.places]
use = "{HERE}:Places"
[hooks.log]
use = "log"
[hooks.checkpoint]
use = "checkpoint"
points = [{{ at = "after_train_iter", every = 1 }}]
args = {{ keep = 99 }}
{parts["hooks"]}
"""
    file = folder / "staged.toml"
    file.write_text(text)
    return file


def by_hand(
    order: Callable[[int], Sequence[int]],
    sizes: Sequence[int],
    accumulate: Sequence[int],
    rule: Callable[[float], float] | None,
) -> tuple[Net, list[int], list[int]]:
    """Train by a plain loop, with the sizes of each epoch; return the net,
    the examples and the epoch of each step.
    """
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = examples().tensors
    steps: list[int] = []
    epochs: list[int] = []
    for epoch in range(len(sizes)):
        if epoch and rule is not None:
            now = sizes[epoch] * accumulate[epoch]
            before = sizes[epoch - 1] * accumulate[epoch - 1]
            if now != before:
                optimizer.param_groups[0]["lr"] *= rule(now / before)
        together = sizes[epoch] * accumulate[epoch]
        indices = list(order(epoch))
        for begin in range(0, len(indices), together):
            chosen = indices[begin : begin + together]
            optimizer.zero_grad()
            mse_loss(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            steps.append(len(chosen))
            epochs.append(epoch)
    return net, steps, epochs


def in_order(epoch: int) -> Sequence[int]:
    return range(EXAMPLES)


RULES = {"": None, 'scale_lr = "linear"': float, 'scale_lr = "sqrt"': sqrt}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loader", ["", ", workers = 1", ", on_device = true"])
def test_it_trains_as_a_plain_loop_does(
    trained: Trained, tmp_path: Path, rule: str, loader: str
) -> None:
    staged = pipeline(tmp_path, loader=f"batch_size = {SIZES}, shuffle = false{loader}", run=rule)
    run_dir = trained(pipeline=staged)
    net, steps, epochs = by_hand(in_order, [4, 6, 6, 12], [1, 1, 1, 1], RULES[rule])
    state: Any = final_state(run_dir)["model"]
    assert torch.equal(state["weight"], net.weight)
    assert torch.equal(state["bias"], net.bias)
    assert [*logged(run_dir, "size").values()] == steps
    assert [*logged(run_dir, "per_epoch").values()][:-1] == [
        [6, 4, 4, 2][epoch] for epoch in epochs
    ][:-1]
    (began,) = records(run_dir, "run")
    assert began["max_iters"] == len(steps) == 16
    assert began["epoch_lengths"] == [[0, 6], [1, 4], [3, 2]]


@pytest.mark.parametrize(
    ("limit", "batches"), [("", [6, 4, 4, 2]), ("limit_train = 3", [3, 3, 3, 2])]
)
def test_hooks_see_the_length_of_the_current_epoch(
    trained: Trained, train_here: Train, tmp_path: Path, limit: str, batches: list[int]
) -> None:
    """Also in a run that is resumed in the middle of the third epoch."""
    hooks = f'[hooks.lengths]\nuse = "{HERE}:Lengths"\n'
    whole = trained(pipeline=pipeline(tmp_path, run=limit, hooks=hooks))
    rest = rest_of(whole, sum(batches[:2]) + 1, tmp_path / "rest", train_here)
    expected = [
        (length, size)
        for length, size in zip(batches, [4, 6, 6, 12], strict=True)
        for _ in range(length)
    ]
    for run_dir in (whole, rest):
        counts = logged(run_dir, "batches").values()
        sizes = logged(run_dir, "info_size").values()
        assert [*zip(counts, sizes, strict=True)] == expected
        assert [*logged(run_dir, "info_batches").values()] == [*counts]


def test_accumulation_changes_as_in_a_plain_loop(trained: Trained, tmp_path: Path) -> None:
    """The last step of an epoch has fewer batches, or a smaller one."""
    staged = pipeline(tmp_path, run=f'accumulate = {ACCUMULATE}\nscale_lr = "linear"')
    run_dir = trained(pipeline=staged)
    net, steps, _ = by_hand(in_order, [4, 6, 6, 12], [1, 1, 2, 2], float)
    state: Any = final_state(run_dir)["model"]
    assert torch.allclose(state["weight"], net.weight, rtol=1e-5, atol=1e-6)
    assert [*logged(run_dir, "size").values()] == steps
    assert records(run_dir, "run")[0]["max_iters"] == len(steps) == 6 + 4 + 2 + 1
    assert any(
        "6 after 1 epoch, 12 after 2 epochs, 24 after 3 epochs" in text
        for text in messages(run_dir)
    )


def test_a_shuffled_epoch_has_the_order_of_a_run_with_one_size(
    trained: Trained, tmp_path: Path
) -> None:
    """Each example comes once an epoch, and which ones a batch has follows from the order alone."""
    staged = trained(pipeline=pipeline(tmp_path, loader=f"batch_size = {SIZES}"))
    whole = trained(pipeline=pipeline(tmp_path, loader="batch_size = 4"), swap=None)
    assert [*logged(staged, "loss").values()][:6] == [*logged(whole, "loss").values()][:6]
    assert sum(logged(staged, "size").values()) == 4 * EXAMPLES


EVERY = '[hooks.marks]\nuse = "{here}:Marks"\nevery = "{every}"\n'


@pytest.mark.parametrize(
    ("every", "marked"),
    [
        ("1ep", [6, 10, 14, 16]),
        ("2ep", [10, 16]),
        ("50%", [8, 16]),
        ("44 samples", [10, 16]),
    ],
)
def test_triggers_count_epochs_of_different_lengths(
    trained: Trained, tmp_path: Path, every: str, marked: list[int]
) -> None:
    run_dir = trained(pipeline=pipeline(tmp_path, hooks=EVERY.format(here=HERE, every=every)))
    assert [*logged(run_dir, "mark").values()] == marked


def test_validations_within_epochs_of_different_lengths(trained: Trained, tmp_path: Path) -> None:
    val = f'[data.val]\nuse = "{HERE}:examples"\nloader = {{ batch_size = 11 }}\n'
    run_dir = trained(pipeline=pipeline(tmp_path, hooks=val, run='val_every = "0.5ep"'))
    assert [record["it"] for record in records(run_dir, "metrics")] == [3, 6, 8, 10, 12, 14, 15, 16]


def test_a_run_ends_at_its_iterations_in_the_middle_of_a_stage(
    trained: Trained, tmp_path: Path
) -> None:
    run_dir = trained("run.max_iters=9", pipeline=pipeline(tmp_path))
    assert records(run_dir, "run")[0]["max_iters"] == 9
    assert [*logged(run_dir, "size").values()] == [4, 4, 4, 4, 4, 2, 6, 6, 6]


def test_a_limit_holds_in_each_epoch(trained: Trained, tmp_path: Path) -> None:
    by_number = trained("run.limit_train=3", pipeline=pipeline(tmp_path))
    assert records(by_number, "run")[0]["epoch_lengths"] == [[0, 3], [1, 3], [3, 2]]
    assert [*logged(by_number, "size").values()] == [4] * 3 + [6] * 6 + [12, 10]
    by_share = trained('run.limit_train="50%"', pipeline=pipeline(tmp_path))
    assert [*logged(by_share, "size").values()] == [4] * 3 + [6] * 4 + [12]


@pytest.mark.parametrize("loader", ["", ", workers = 1"])
@pytest.mark.parametrize("saved", [3, 6, 7, 10, 11, 12, 13])
def test_a_resumed_run_ends_with_the_same_bits(
    trained: Trained, train_here: Train, tmp_path: Path, loader: str, saved: int
) -> None:
    """In the middle of each stage, and right where one begins:
    iterations 6 and 12 are the last of theirs.
    """
    staged = pipeline(
        tmp_path,
        loader=f"batch_size = {SIZES}{loader}",
        run=f'accumulate = {ACCUMULATE}\nscale_lr = "sqrt"',
    )
    whole = trained(pipeline=staged)
    assert_same_end(whole, rest_of(whole, saved, tmp_path / "rest", train_here))


AFTER_TWO, AFTER_ONE = '[[0, 4], ["2ep", 8]]', '[[0, 4], ["1ep", 8]]'


@pytest.mark.parametrize(
    ("then", "now", "saved", "of_now"),
    [
        pytest.param("4", AFTER_TWO, 9, [4, 4, 8, 8], id="before it changes"),
        pytest.param("4", AFTER_TWO, 15, [4, 4, 8, 8], id="in an epoch that has changed"),
        pytest.param("4", AFTER_TWO, 18, [4, 4, 8, 8], id="after it has changed"),
        pytest.param(AFTER_TWO, "4", 13, [4, 4, 4, 4], id="it changes no more"),
        pytest.param(AFTER_TWO, AFTER_ONE, 12, [4, 8, 8, 8], id="it has changed earlier"),
        pytest.param(AFTER_ONE, AFTER_TWO, 7, [4, 4, 8, 8], id="it changes later"),
    ],
)
def test_a_fork_has_the_sizes_and_the_rates_of_a_run_that_was_always_so(
    trained: Trained,
    train_here: Train,
    tmp_path: Path,
    then: str,
    now: str,
    saved: int,
    of_now: Any,
) -> None:
    """The rate of 0.05 is for the 4 examples of a first step; `saved` is in any epoch."""

    def rule_for(size: str) -> str:
        return 'scale_lr = "linear"' if size.startswith("[") else ""

    staged = pipeline(
        tmp_path,
        loader=f"batch_size = {then}",
        run=rule_for(then),
        hooks='[hooks.rates]\nuse = "lr_monitor"\n',
    )
    parent = trained(pipeline=staged)
    overrides = [f"data.train.loader.batch_size={now}"]
    if rule_for(now) != rule_for(then):
        overrides.append(f"run.scale_lr={rule_for(now).partition('= ')[2] or 'null'}")
    child = make_fork(f"{parent.path}:it{saved:08d}", None, PipelineChanges(overrides))
    assert train_here(child) == 0, reason(child)
    steps = []
    for size in of_now:
        left = EXAMPLES
        while left > 0:
            steps.append((min(size, left), 0.05 * size / 4))
            left -= size
    sizes = logged(child, "size")
    rates = logged(child, "lr")
    assert [*sizes] == list(range(min(sizes), len(steps) + 1))
    for it, size in sizes.items():
        assert (size, pytest.approx(rates[it])) == steps[it - 1]


@pytest.mark.parametrize("at", [5, 10, 11])
def test_a_killed_run_ends_with_the_same_bits(
    trained: Trained, train_here: Train, tmp_path: Path, at: int
) -> None:
    staged = pipeline(
        tmp_path, loader=f"batch_size = {SIZES}, workers = 1", run='scale_lr = "linear"'
    )
    whole = trained(pipeline=staged)
    ends = strikes(tmp_path, signal.SIGTERM, ("after_train_iter", at), times=2)
    killed = trained(*ends, pipeline=staged, code=143)
    assert train_here(killed, resume=True) == 0
    assert_same_end(whole, killed)


def test_two_ranks_train_as_one_though_they_are_ended_and_resumed(
    new_run: Any, train_here: Train, tmp_path: Path
) -> None:
    """The shares of the last batch of an epoch are not even."""
    staged = pipeline(
        tmp_path,
        loader=f"batch_size = {SIZES}, workers = 1",
        run=f'accumulate = {ACCUMULATE}\nscale_lr = "linear"',
    )
    alone: RunDir = new_run(pipeline=staged)
    assert train_here(alone) == 0
    strike = f'rank=1, at=11, number={int(signal.SIGTERM)}, mark="{tmp_path / "mark"}"'
    use = 'use="tests.distributed.actors:strikes", points=["after_backward"]'
    together: RunDir = new_run(f"hooks.strikes={{{use}, args={{{strike}}}}}", pipeline=staged)
    assert carry_out(together, 2) == [143, 143], printed(together, 0)
    assert carry_out(together, 2, resume=True) == [0, 0], printed(together, 0)
    one: Any = final_state(alone)
    both: Any = final_state(together)
    assert torch.allclose(one["model"]["weight"], both["model"]["weight"], rtol=1e-5, atol=1e-6)
    assert both["position"]["iter"] == one["position"]["iter"] == 13
    rates = [state["optimizer"]["param_groups"][0]["lr"] for state in (one, both)]
    assert rates == [pytest.approx(0.05 * 24 / 4)] * 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loader": "batch_size = [[0, 4], [100, 8]]"}, "where an epoch begins"),
        ({"loader": 'batch_size = [["1ep", 4]]'}, "from 0 on"),
        ({"loader": 'batch_size = [[0, 4], ["2ep", 8], ["1ep", 16]]'}, "must increase"),
        ({"loader": "batch_size = [[0, 0]]"}, "no integer above zero"),
        ({"loader": "batch_size = [4, 8]"}, "no pair"),
        ({"run": 'accumulate = [[0, 1], ["10%", 8]]'}, "where an epoch begins"),
        ({"run": "overfit = 2"}, "run.overfit"),
        ({"loader": "batch_size = 4", "run": 'scale_lr = "linear"'}, "run.scale_lr"),
        (
            {"run": 'scale_lr = "linear"', "hooks": '[hooks.cosine]\nuse = "lr_schedule"\n'},
            'hook "cosine"',
        ),
        ({"train": f'use = "{HERE}:Stream"', "loader": f"batch_size = {SIZES}"}, "iterable"),
        ({"loader": f"batch_size = {SIZES}, batches = 4"}, "4"),
        (
            {
                "hooks": (
                    f'[data.val]\nuse = "{HERE}:examples"\nloader = {{ batch_size = {SIZES} }}\n'
                )
            },
            "data.val",
        ),
    ],
)
def test_what_cannot_change_is_refused(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    staged = pipeline(tmp_path, **changes)  # type: ignore[arg-type]
    refused = hookflow_here(
        "run", str(staged), "--in-process", "--ui", "plain", cwd=tmp_path, code=2
    )
    assert says in refused.stderr
    assert "staged.toml" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_several_sets_have_one_size_each(tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    file.write_text(file.read_text().replace("[data.train]", "[data.train.a]"))
    assert "data.train.a" in hookflow_here("check", str(file), cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize("lengths", [((0, 6), (1, 4), (3, 2)), ((0, 5),), ((0, 3), (4, 7))])
def test_places_in_epochs_and_in_iterations_are_the_same_places(
    lengths: tuple[tuple[int, int], ...],
) -> None:
    """Against a list of all iterations with the epoch of each."""
    table = EpochLengths(lengths)
    listed = [epoch for epoch in range(9) for _ in range(table.at(epoch))]
    for epoch in range(9):
        first = listed.index(epoch)
        assert table.iterations(epoch) == first
        assert table.epochs(first) == epoch
    for iteration, epoch in enumerate(listed):
        exact = table.epochs(iteration)
        assert int(exact) == epoch
        assert table.iterations(exact) == iteration


@pytest.mark.parametrize("written", [3, [[0, 4], ["2ep", 8]]])
def test_counts_are_written_as_they_are_read(written: Any) -> None:
    assert parse_counts(written).as_toml() == written


def test_an_iteration_takes_several_batches_of_an_epoch() -> None:
    batches = ByEpoch(((0, 10), (3, 5)))
    accumulate = ByEpoch(((0, 1), (2, 4)))
    lengths = EpochLengths.of(batches, accumulate)
    assert [lengths.at(epoch) for epoch in range(5)] == [10, 10, ceil(10 / 4), ceil(5 / 4), 2]
