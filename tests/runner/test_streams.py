"""Iterables of examples or of batches: resumed anywhere, they give what they would have given."""

import sys
from collections import UserDict, namedtuple
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.runner.data.source import Batches, close
from hookflow.runner.data.stream import Stateful
from tests.conftest import NewRun, Trained, messages, reason, records
from tests.runner.same import assert_same
from tests.support.data_loaders import (
    Endless,
    Numbers,
    NumbersWithPlace,
    ShuffledInIter,
    ShuffledWithFirst,
    context,
    with_sampler,
)
from tests.support.data_sources import source


class FromIterator(Numbers):
    """Its iterator has the state."""

    def __iter__(self) -> Iterator[Any]:
        return Walk(super().__iter__())


class Walk:
    def __init__(self, examples: Iterator[Any]) -> None:
        self.examples = examples
        self.given = 0

    def __iter__(self) -> "Walk":
        return self

    def __next__(self) -> Any:
        self.given += 1
        return next(self.examples)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for _ in islice(self, state["given"]):
            pass


KINDS = [Numbers, NumbersWithPlace, FromIterator, ShuffledInIter, ShuffledWithFirst]


def stream(data: Any, **section: Any) -> Stateful:
    made = source(data, batch_size=8, **section)
    assert isinstance(made, Stateful)
    return made


def all_batches(of: Stateful, epochs: int, position: tuple[int, int] = (0, 0)) -> list[Any]:
    return [
        batch
        for k in range(position[0], epochs)
        for batch in of.epoch(k, position[1] if k == position[0] else 0)
    ]


SECTIONS: list[dict[str, Any]] = [{}, {"batches": 3}, {"drop_last": True}, {"rank": 1, "world": 2}]
WITH_WORKERS: dict[str, Any] = {"workers": 2, "batches": 7}


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        *((section, kind) for section in SECTIONS for kind in KINDS),
        *((WITH_WORKERS, kind) for kind in (NumbersWithPlace, ShuffledWithFirst)),
        ({"rank": 1, "world": 2, "workers": 2, "batches": 4}, ShuffledWithFirst),
        *(
            pytest.param(WITH_WORKERS, kind, marks=pytest.mark.long)
            for kind in (Numbers, FromIterator, ShuffledInIter)
        ),
    ],
    ids=str,
)
def test_it_goes_on_from_wherever_it_was_left(kind: type[Endless], section: dict[str, Any]) -> None:
    """Streams of 43 examples, in batches of 8, cut into epochs that need not fit them."""
    whole = stream(kind(43), **section)
    expected = all_batches(whole, 3)
    close(whole)
    for cut in (11,) if section.get("workers") else range(1, len(expected)):
        first, again = stream(kind(43), **section), stream(kind(43), **section)
        epoch, index = divmod(cut, len(first))
        walk = (batch for k in range(3) for batch in first.epoch(k))
        assert_same(list(islice(walk, cut)), expected[:cut])
        again.load_state_dict(first.state_dict())
        close(first)
        torch.rand(cut)  # the training has drawn what it likes
        assert_same(all_batches(again, 3, (epoch, index)), expected[cut:])
        close(again)


def test_its_state_is_a_copy_and_every_validation_begins_at_the_beginning() -> None:
    of = stream(NumbersWithPlace(43), workers=2)
    batches = of.epoch(0)
    next(batches)
    kept = of.state_dict()
    text = str(kept)
    list(batches)
    assert str(kept) == text
    close(of)
    of = stream(Numbers(20))
    first = list(of.epoch(0))
    next(of.epoch(0))
    assert_same(list(of.epoch(0)), first)


def test_epochs_are_as_long_as_is_said_and_each_time_through_is_drawn_anew() -> None:
    targets = torch.cat([target for _, target in all_batches(stream(Endless(40), batches=3), 3)])
    assert targets.tolist() == (torch.arange(40) % 3).repeat(2)[: len(targets)].tolist()
    assert len(targets) == 72
    passes = [all_batches(stream(Numbers(40), seed=seed), 3)[::5] for seed in (5, 6)]
    assert len({float(inputs[0, 3]) for begun in passes for inputs, _ in begun}) == 6


def test_after_an_epoch_it_goes_on_with_the_next_and_nowhere_without_a_state() -> None:
    first, again = stream(Numbers(40)), stream(Numbers(40))
    list(first.epoch(0))
    again.load_state_dict(first.state_dict())
    assert list(again.epoch(0, start=5)) == []
    assert_same(list(again.epoch(1)), list(first.epoch(1)))
    with pytest.raises(UserError, match="does not say where the stream Numbers was"):
        next(stream(Numbers(40)).epoch(1, start=2))


def test_without_torchdata_workers_are_refused_and_this_process_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchdata", None)
    first, again = stream(Numbers(40)), stream(Numbers(40))
    whole = list(first.epoch(0))
    seen = [next(batches) for batches in [again.epoch(0)] for _ in range(3)]
    last = stream(Numbers(40))
    last.load_state_dict(again.state_dict())
    assert_same([*seen, *last.epoch(0, start=3)], whole)
    with pytest.raises(
        UserError, match="with workers needs the package torchdata, which is not installed"
    ) as raised:
        stream(Numbers(40), workers=1)
    assert "hookflow[data]" in raised.value.problems[0].hint


@pytest.mark.parametrize(("then", "now"), [(0, 1), (2, 1)])
def test_it_is_resumed_with_as_many_workers(then: int, now: int) -> None:
    first, again = stream(Numbers(40), workers=then), stream(Numbers(40), workers=now)
    next(first.epoch(0))
    state = first.state_dict()
    close(first)
    with pytest.raises(UserError, match=f"it had {then}, and now has {now}"):
        again.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", [40, 41, 43])
def test_ranks_share_every_batch_of_one_alone(kind: type[Numbers], examples: int) -> None:
    alone = all_batches(stream(kind(examples)), 2)
    shares = [all_batches(stream(kind(examples), rank=rank, world=2), 2) for rank in (0, 1)]
    assert [len(share) for share in shares] == [2 * -(-(examples // 2) // 4)] * 2
    for whole, *parts in zip(alone[:5], *shares, strict=False):
        for k in (0, 1):
            assert_same([part[k] for part in parts], [whole[k][:8][rank::2] for rank in (0, 1)])


def test_a_stream_is_shared_out_evenly_or_given_whole() -> None:
    """Its examples are drawn apart from those of the other rank."""
    # Both give all.
    shares = [stream(Numbers(20), rank=rank, world=2, shards_itself=True) for rank in (0, 1)]
    one, two = (all_batches(share, 1) for share in shares)
    assert [len(target) for _, target in one] == [len(target) for _, target in two] == [4] * 5
    assert torch.equal(one[0][1], two[0][1])
    assert not torch.equal(one[0][0], two[0][0])
    with pytest.raises(UserError, match="batches of 8 cannot be sharded evenly across 3 ranks"):
        source(Numbers(40), batch_size=8, world=3)


def test_the_examples_of_a_batch_are_counted_where_they_are_collated() -> None:
    """Of shares of their own nobody knows how many all ranks have together."""
    for of, everywhere in (
        (stream(Numbers(43)), 1),
        (stream(Numbers(43), rank=1, world=2), 2),
        (stream(Numbers(43), rank=1, world=2, shards_itself=True), 0),
    ):
        assert of.batch_size is not None
        assert [of.batch_size(k) for k, _ in enumerate(of.epoch(0))] == [
            len(target) for _, target in of.epoch(0)
        ]
        if everywhere:
            assert of.global_batch_size is not None
            assert of.global_batch_size(0) == everywhere * of.batch_size(0)
        else:
            assert of.global_batch_size is None


def test_it_is_augmented_on_the_device() -> None:
    plain, noisy = stream(Numbers(40)), stream(Numbers(40), augment="./data_loaders.py:noisy")
    added = torch.cat([b[0] - a[0] for a, b in zip(plain.epoch(0), noisy.epoch(0), strict=True)])
    assert added.std() > 0.5
    assert_same(
        list(noisy.epoch(0)), list(stream(Numbers(40), augment="./data_loaders.py:noisy").epoch(0))
    )


CPU = torch.device("cpu")
Pair = namedtuple("Pair", "inputs target")


def batches(made: object, channels_last: bool = False, device: torch.device = CPU) -> Batches:
    return Batches(made, context(device=device, channels_last=channels_last))


def train_on(name: str, **args: object) -> str:
    return (
        f'data.train={{use="./data_loaders.py:{name}",'
        f" args={{{','.join(f'{k}={v}' for k, v in args.items())}}}}}"
    )


@pytest.mark.parametrize("name", ["shuffled", "with_generator", "with_sampler", "a_list"])
def test_it_is_trained_on_and_shown(trained: Trained, name: str) -> None:
    run_dir = trained(train_on(name))
    (run,) = records(run_dir, "run")
    info = run["data"]["train"]  # type: ignore[index]
    known = (24, 8) if name != "a_list" else (0, 0)
    assert (info["batches"], info["examples"], info["batch_size"]) == (3, *known)
    assert not info["synthetic"]
    assert records(run_dir, "end")[0]["it"] == 9


def test_batches_may_be_dicts(trained: Trained) -> None:
    task = 'task.use="./data_loaders.py:FromDicts"'
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    val = train_on("of_dicts").replace("train", "val")
    trained(train_on("of_dicts"), val, task, *off)


@pytest.mark.parametrize("name", ["shuffled", "with_generator", "with_sampler", "mined"])
@pytest.mark.parametrize(("point", "it"), [("after_train_epoch", 3), ("after_backward", 4)])
def test_a_resumed_run_has_the_batches_of_one_left_alone(
    resumes_alike: NewRun, name: str, point: str, it: int
) -> None:
    broken = resumes_alike(train_on(name), point=point, at=it)
    again = [text for text in messages(broken) if "batches again to find the place" in text]
    assert len(again) == (1 if point == "after_backward" else 0)


def test_its_sampler_is_told_the_epoch() -> None:
    source = batches(with_sampler())
    first, again, second = (torch.cat([target for _, target in source.epoch(k)]) for k in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_every_tensor_of_a_batch_is_moved_also_of_a_tokenizer() -> None:
    there = torch.device("meta")
    x = torch.ones(2)
    batch = {"a": x, "b": [x, (x, "text")], "c": Pair(x, 3), "d": None}
    (moved,) = batches([batch], device=there).epoch(0)
    assert [
        moved["a"].device,
        moved["b"][0].device,
        moved["b"][1][0].device,
        moved["c"].inputs.device,
    ] == [there] * 4
    assert (moved["b"][1][1], moved["c"].target, moved["d"]) == ("text", 3, None)
    assert isinstance(moved["b"][1], tuple)
    assert isinstance(moved["c"], Pair)
    (batch,) = batches(
        [UserDict(input_ids=torch.ones(2, 3, dtype=torch.int64))], device=torch.device("meta")
    ).epoch(0)
    assert type(batch) is dict and batch["input_ids"].device.type == "meta"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("too_short", "the dataset yields no batches"),
        ("stream", "this makes a DataLoader, which has no length"),
        ("dataset", "this makes a TensorDataset, which is a dataset: add `loader`"),
        ("splits", "this makes a dict, which yields no batches"),
        (
            "Half",
            "this makes a Half, whose info lacks examples, batches, batch_size, synthetic, note",
        ),
        ("FromDicts", "this makes a FromDicts, which has no length"),
    ],
)
def test_what_is_no_data_is_told_with_its_place(trained: Trained, use: str, message: str) -> None:
    run_dir = trained(train_on(use), code=2)
    assert message in reason(run_dir)
    assert f"--set data.train: {message}" in reason(run_dir) or "data.train" in reason(run_dir)
    assert not records(run_dir, "run")


def test_fewer_batches_than_promised_are_an_error_and_more_are_left(trained: Trained) -> None:
    assert "promised 5 batches, and gave 3" in reason(trained(train_on("Says", promised=5), code=2))
    assert records(trained(train_on("Says", promised=2)), "end")[0]["it"] == 6
