"""Triggers: when a binding fires over whole runs, by a table,
over random ones, and in real ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.plan import Trigger as Written
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.graph.schedule import Length, compute_forecasts
from hookflow.hooks.base import Hook
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.values import Interval
from hookflow.runner.dispatch.triggers import ScheduledTrigger, ThrottledTrigger
from hookflow.runner.process.state import all_iterations
from tests.conftest import NewRun, Trained, messages, records
from tests.runner.same import final_state, logged


@dataclass
class Place:
    iter: int = 0
    epoch: int = 0
    max_iters: int = 40
    iters_per_epoch: int = 10
    now: float = 100.0

    @property
    def epoch_lengths(self) -> EpochLengths:
        return EpochLengths.constant(self.iters_per_epoch)

    def seconds(self) -> float:
        return self.now


def trigger_of(written: Written, place: Place, point: str = "after_train_iter") -> ScheduledTrigger:
    return ScheduledTrigger(bound(point, written), DEFAULT_POINTS[point], place)


def test_a_throttled_firing_that_comes_once_is_spent_when_it_fires() -> None:
    written = Written.parse(once=True)
    trigger = ThrottledTrigger(
        bound("after_train_iter", written),
        DEFAULT_POINTS["after_train_iter"],
        Place(),
        None,
        {"h": 3},
    )
    assert [trigger() for _ in range(9)] == [False, False, True, *[False] * 6]


@pytest.mark.parametrize(
    ("point", "before", "after", "done", "next_"),
    [
        ("after_train_iter", "10", "50", 105, 150),
        ("after_train_iter", "50", "10", 105, 110),
        ("after_train_iter", "50", "10", 100, 110),
        ("before_train_iter", "50", "10", 100, 100),
        ("before_train_iter", "50", "10", 101, 110),
        ("after_train_iter", None, "10", 105, 110),
        ("after_train_iter", "10", None, 105, 106),
    ],
)
def test_another_every_counts_on(
    point: str, before: str | None, after: str | None, done: int, next_: int
) -> None:
    place, ahead = Place(), DEFAULT_POINTS[point].ahead
    first, resumed, new = (
        trigger_of(Written.parse(every=every), place, point) for every in (before, after, after)
    )
    for place.iter in range(1 - ahead, done + 1 - ahead):
        first()
    place.iter = done
    resumed.load_state_dict(first.state_dict())
    new.begin_here()
    for trigger in (resumed, new):
        place.iter = done + 1 - ahead
        while not trigger():
            place.iter += 1
        assert place.iter == next_


def test_seconds_and_minutes_are_exact_and_counted_anew_after_a_resume() -> None:
    place = Place()
    first = trigger_of(Written.parse(every="1m"), place)
    place.now += 61
    assert first()
    again = trigger_of(Written.parse(every="1m"), place)
    again.load_state_dict(first.state_dict())
    assert not again(), "a minute has not gone by since the process began"
    place.now += 61
    assert again()
    place = Place(now=0.0)
    # 4.1 times 60 is a little less than 246 in floats.
    trigger = trigger_of(Written.parse(since="4.1m"), place)
    for place.now, fires in ((245.99999999999997, False), (246.0, True)):
        assert trigger() is fires


@pytest.mark.parametrize(
    ("trigger", "place", "fires"),
    [
        (Written.parse(every="1000000000"), Place(999_999_999, max_iters=10**10), False),
        (Written.parse(every="1000000000"), Place(1_000_000_000, max_iters=10**10), True),
        # the first multiple is entered after 3,330,000,000.333 iterations
        (Written.parse(every="33.3%"), Place(3_330_000_000, max_iters=10_000_000_001), False),
        (Written.parse(every="33.3%"), Place(3_330_000_001, max_iters=10_000_000_001), True),
    ],
    ids=str,
)
def test_no_rounding_makes_it_early(trigger: Written, place: Place, fires: bool) -> None:
    assert trigger_of(trigger, place)() is fires


@pytest.mark.parametrize(
    "trigger", [Written.parse(until="2ep"), Written.parse(until="50%"), Written.parse(every="10%")]
)
def test_nothing_is_done_where_the_length_is_not_known_yet(trigger: Written) -> None:
    """`hookflow val` learns from the checkpoint how many iterations an epoch has:
    after `before_run`.
    """
    assert trigger_of(trigger, Place(max_iters=0, iters_per_epoch=0), "before_run")()


@dataclass
class Walk:
    """A run without anything to train; the points come as `hookflow.graph.points` draws them."""

    length: Length
    iter: int = 0
    epoch: int = 0
    ticks: int = 0
    max_iters: int = field(init=False)
    iters_per_epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.iters_per_epoch = self.length.iters_per_epoch or 1
        self.epoch_lengths = EpochLengths.constant(self.iters_per_epoch)
        self.max_iters = all_iterations(
            self.length.max_epochs, self.length.max_iters, self.epoch_lengths
        )

    def seconds(self) -> float:
        return self.ticks * 0.7

    @property
    def finished(self) -> bool:
        enough = self.length.max_epochs is not None and self.epoch >= self.length.max_epochs
        return enough or (self.length.max_iters is not None and self.iter >= self.length.max_iters)

    def points(self) -> Iterator[str]:
        for point in self._loop():
            self.ticks += 1
            yield point

    def _loop(self) -> Iterator[str]:
        yield from ("before_run", "before_train")
        every, unit = self.length.val_every
        validated = -1
        if self.length.at_start:
            yield from ("before_val", "after_val")
        while not self.finished:
            yield "before_train_epoch"
            for batch in range(1, self.iters_per_epoch + 1):
                yield from ("before_train_iter", "forward", "after_optimizer_step")
                self.iter += 1
                yield "after_train_iter"
                whole = batch == self.iters_per_epoch
                if (
                    (self.iter % every == 0 or self.finished)
                    if unit == "it"
                    else (self.finished and not whole)
                ):
                    yield from ("before_val", "after_val")
                    validated = self.iter
                if self.finished:
                    break
            if not whole:
                break
            self.epoch += 1
            yield "after_train_epoch"
            if (
                (self.epoch % every == 0 or self.finished)
                if unit == "ep"
                else self.finished and validated != self.iter
            ):
                yield from ("before_val", "after_val")
        yield from ("after_train", "after_run")


AT = list(dict.fromkeys(Walk(Length(1, None, iters_per_epoch=1)).points()))
"""The points of a run, in their order."""

lengths = st.builds(
    lambda loop, total, every, unit, per, at_start: Length(
        total if "ep" in loop else None,
        total * 4 if "it" in loop else None,
        Interval(every, unit),
        iters_per_epoch=per,
        at_start=at_start,
    ),
    st.sampled_from(["it", "ep", "it ep"]),
    st.integers(1, 7),
    st.integers(1, 6),
    st.sampled_from(["it", "ep"]),
    st.integers(1, 9),
    st.booleans(),
)
shares = st.sampled_from(
    ["0.1%", "1%", "7.3%", "10%", "12.5%", "33.3%", "50%", "66.7%", "100%", "120%"]
)
counted = st.builds("{}{}".format, st.integers(1, 30), st.sampled_from(["", "it", "ep"])) | shares
amounts = counted | st.builds("{}s".format, st.sampled_from(["0.7", "1", "2.1", "5", "0.1"]))


def triggers(amount: st.SearchStrategy[str]) -> st.SearchStrategy[Written]:
    side = st.none() | amount
    return st.builds(Written.parse, every=side, since=side, until=side, once=st.booleans())


def bound(point: str, written: Written) -> Binding:
    return Binding("h", point, point, "whole", (), written, "normal", id=0)


def fired(
    run: Walk, point: str, written: Written, *, spared: bool, hold: bool = False
) -> list[int]:
    """Walk through the run and return the visits of the point (from 0) at which the trigger fires.

    With `spared` it is asked only where its `next` says so; with `hold` it has a condition, of odd
    iterations.
    """
    trigger = ScheduledTrigger(
        bound(point, written),
        DEFAULT_POINTS[point],
        run,
        (lambda: run.iter % 2 == 1) if hold else None,
    )
    result, visit = [], 0
    for here in run.points():
        if here == point:
            if (not spared or run.iter >= trigger.next) and trigger():
                result.append(visit)
            visit += 1
    return result


@given(lengths, st.sampled_from(AT), triggers(amounts), st.booleans())
def test_asked_from_next_on_it_fires_as_always_asked(
    length: Length, point: str, written: Written, hold: bool
) -> None:
    always = fired(Walk(length), point, written, spared=False, hold=hold)
    assert fired(Walk(length), point, written, spared=True, hold=hold) == always


@given(lengths, st.sampled_from(AT), triggers(counted))
def test_the_forecast_is_what_it_does(length: Length, point: str, written: Written) -> None:
    plan = Plan("p", (), (bound(point, written),), ())
    result = fired(Walk(length), point, written, spared=True)
    told = compute_forecasts(plan, length)[0]
    if DEFAULT_POINTS[point].kind == "module":
        assert told.times is None or not result  # which depends on how many modules there are
        assert len(result) < 2 or written.once or f"{len(result):,} times" in told.text
    else:
        assert told.times == len(result)
    number = told.first.rpartition(" ")[2]
    assert (told.first == "never") == (not result)
    if number.isdecimal():
        assert int(number) == result[0] + 1
    less = compute_forecasts(plan, replace(length, iters_per_epoch=None))[0]
    assert less.times in (
        None,
        told.times,
    ), "what is said without knowing the batches of an epoch stays true"


@given(lengths, st.sampled_from(AT), triggers(counted), st.data())
def test_saved_and_loaded_it_continues(
    length: Length, point: str, written: Written, data: st.DataObject
) -> None:
    run = Walk(length)
    straight, broken = (
        ScheduledTrigger(bound(point, written), DEFAULT_POINTS[point], run) for _ in range(2)
    )
    for here in run.points():
        if here == point:
            answers = [run.iter >= trigger.next and trigger() for trigger in (straight, broken)]
            assert answers[0] == answers[1]
            if data.draw(st.booleans()):
                state = broken.state_dict()
                broken = ScheduledTrigger(bound(point, written), DEFAULT_POINTS[point], run)
                broken.load_state_dict(state)
                assert broken.state_dict() == state


@pytest.mark.parametrize(
    ("point", "trigger", "expected"),
    [
        ("after_train_iter", Written.parse(every="15"), [15, 30]),
        ("after_train_iter", Written.parse(every="15it"), [15, 30]),
        ("after_train_iter", Written.parse(every="2ep"), [20, 40]),
        ("after_train_iter", Written.parse(every="25%"), [10, 20, 30, 40]),
        ("after_train_iter", Written.parse(every="10", since="2ep"), [20, 30, 40]),
        ("after_train_iter", Written.parse(every="10", until="2ep"), [10, 20]),
        *(
            (point, trigger, expected)
            for point in ("before_train_iter", "forward", "after_optimizer_step")
            for trigger, expected in (
                (Written.parse(every="15"), [0, 15, 30]),
                (Written.parse(every="10", until="2ep"), [0, 10]),
                (Written.parse(since="38"), [38, 39]),
                (Written.parse(until="2"), [0, 1]),
            )
        ),
        ("before_train_epoch", Written.parse(every="2"), [0, 2]),
        ("before_train_epoch", Written.parse(since="3"), [3]),
        ("after_train_epoch", Written.parse(every="2"), [2, 4]),
        ("after_train_epoch", Written.parse(every="25it"), [3]),
        ("after_train_epoch", Written.parse(every="50%"), [2, 4]),
        ("after_val", Written.parse(every="3"), [3]),
        ("after_train_iter", Written.parse(once=True), [1]),
        ("after_train_iter", Written.parse(every="15", once=True), [15]),
        ("before_train_epoch", Written.parse(since="2ep", once=True), [2]),
    ],
    ids=str,
)
def test_when_it_fires(point: str, trigger: Written, expected: list[int]) -> None:
    """The numbers are iterations done, or epochs, in a run of four epochs of ten."""
    visits = fired(Walk(Length(4, None, iters_per_epoch=10)), point, trigger, spared=True)
    assert [visit + (not DEFAULT_POINTS[point].ahead) for visit in visits] == expected


def told(at: str, when: str, name: str = "told", **more: object) -> str:
    """Return an override for a hook that says where it fires."""
    written = "".join(f", {key}={value}" for key, value in more.items())
    quoted = when.replace('"', '\\"')
    return (
        f'hooks.{name}={{use="./common_hooks.py:tells", points=["{at}"], when="{quoted}"{written}}}'
    )


def iterations(run_dir: RunDir, name: str = "told") -> list[object]:
    """Return the iterations that were done when a hook fired."""
    return [
        r["it"] for r in records(run_dir, "message") if (r["text"], r["source"]) == ("told", name)
    ]


CONDITIONS: list[tuple[str, str, dict[str, object], list[int]]] = [
    ("after_train_iter", "iter % 4 == 1 and epoch >= 1", {}, [9, 13]),
    ("before_train_iter", "iter < 2 and rank == 0", {}, [0, 1]),
    ("after_train_iter", "iter == max_iters - 1 or epoch == max_epochs", {}, [14]),
    ("after_train_epoch", "epoch > 1", {}, [10, 15]),
    ("after_train", "metrics.loss > 0 and metrics.accuracy >= 0", {}, [15]),
    ("before_train_epoch", "accuracy >= 0", {}, [5, 10]),
    ("after_val", "not (iter < 10)", {}, [10, 15]),
    ("forward", "iter == 3", {"modules": '["head"]'}, [3]),
    ("after_train_iter", 'value("train/iter") == 4', {}, [4]),  # quoted, since it is no identifier
    ("after_train_iter", "iter > 5", {"every": 4}, [8, 12]),  # not at 6, where it would hold first
    ("after_train_iter", "unheard > 1", {"every": 100}, []),  # never due, so never asked
    ("after_train_iter", "accuracy >= 0", {}, [*range(6, 16)]),  # which is missing at first
]


def test_each_fires_only_where_its_condition_holds(trained: Trained) -> None:
    slashed = (
        'hooks.slashed={use="./common_hooks.py:logs_iter", points=["after_train_iter"],'
        ' phase="first"}'
    )
    hooks = [told(at, when, f"told{k}", **more) for k, (at, when, more, _) in enumerate(CONDITIONS)]
    run_dir = trained(slashed, *hooks)
    fired = {when: iterations(run_dir, f"told{k}") for k, (_, when, *_) in enumerate(CONDITIONS)}
    assert fired == {when: expected for _, when, _, expected in CONDITIONS}
    assert not messages(run_dir, "warn")


def test_the_loss_is_that_of_the_iteration_at_hand(trained: Trained) -> None:
    every = "hooks.log.points=[{at='after_train_iter'}]"
    losses = logged(trained(every), "loss")
    middle = sorted(losses.values())[7]
    when = f"loss > {middle!r}"
    run_dir = trained(
        every, told("after_train_iter", when), told("before_train_iter", when, "before")
    )
    above = [it for it, loss in losses.items() if loss > middle]
    assert iterations(run_dir) == above
    assert iterations(run_dir, "before") == [it for it in above if it != 15]


UNHEARD = {
    "los > 1": 'did you mean "loss"?',
    "metrics.acuracy > 1": 'did you mean "metrics.accuracy"?',
    "logits > 1": "",
    "zzz > 1": (
        "there are accuracy, grad_norm, loss, lr, metrics.accuracy, metrics.loss, samples_per_s"
    ),
}


def test_names_that_nobody_ever_logs_are_told_at_the_end(trained: Trained) -> None:
    hooks = [told("after_train_iter", when, f"told{k}") for k, when in enumerate(UNHEARD)]
    run_dir = trained(*hooks, "run.sanity=false")
    assert "told" not in messages(run_dir)
    lines = messages(run_dir, "warn")[-len(UNHEARD) :]  # those before are what `check` warns of
    for k, (when, hint) in enumerate(UNHEARD.items()):
        start = (
            f'hook "told{k}": nobody has ever logged the "{when.split()[0]}" of its condition'
            f' "{when}"; {hint}'
        )
        assert [line for line in lines if line.startswith(start)], (start, lines)


class Sees(Hook):
    """Watches the iterations; says at which it fires, and which it has seen by then."""

    reads = ("outputs",)
    watches: ClassVar[Mapping[str, str]] = {"after_train_iter": "see"}

    def __init__(self, fails_at: int = 0) -> None:
        self.seen: list[int] = []
        self.fails_at = fails_at

    def see(self, run: Any, outputs: Any) -> None:
        assert "loss" in outputs
        if run.iter == self.fails_at:
            raise RuntimeError("cannot look")
        self.seen.append(run.iter)

    def after_train_iter(self, run: Any, outputs: Any) -> None:
        run.say(f"{run.iter}: {self.seen}")


def sees(more: str, args: str = "") -> str:
    return f'hooks.sees={{use="tests.runner.test_triggers:Sees", args={{{args}}}, {more}}}'


def said(run_dir: Any) -> list[object]:
    return [record["text"] for record in records(run_dir, "message") if record["source"] == "sees"]


# the first is fired by generated code, the second by the dispatcher
@pytest.mark.parametrize("trigger", ["every=3", 'every=3, when="iter > 0"'])
def test_every_iteration_is_seen_until_the_hook_fails(trained: Trained, trigger: str) -> None:
    short = ("run.max_epochs=2", "data.train.args={examples=32}")
    run_dir = trained(sees(trigger), *short)
    assert said(run_dir) == ["3: [1, 2, 3]", "6: [1, 2, 3, 4, 5, 6]"]
    run_dir = trained(sees(f'{trigger}, on_error="disable"', "fails_at=5"), *short)
    assert said(run_dir) == ["3: [1, 2, 3]"]
    assert [error["text"] for error in records(run_dir, "error")] == ["cannot look"]


class Counted:
    """A task whose batches have as many tokens as numbers."""

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        inputs, target = batch
        logits = run.model(inputs)
        return {"loss": cross_entropy(logits, target), "logits": logits, "target": target}

    def batch_tokens(self, batch: Any) -> int:
        return int(batch[0].numel())


UNEVEN = ("data.train.args={examples=43, whole=true}", f'task.use="{__file__}:Counted"')
"""Epochs of five batches of eight examples and one of three, of four numbers each."""


def multiples(every: int, *, ahead: bool = False, until: int = 10**9) -> list[int]:
    """Return the iterations done at which samples enter another multiple of so many,
    by counting them one by one.
    """
    result, samples, entered = [], 0, -1 if ahead else 0
    for it, size in enumerate([8, 8, 8, 8, 8, 3] * 3):
        before = samples
        samples += size
        count = before if ahead else samples
        in_time = count < until if ahead else count <= until
        if count // every != entered and in_time:
            result.append(it if ahead else it + 1)
        entered = count // every
    return result


DATA_TRIGGERS: dict[str, tuple[str, str, list[int]]] = {
    "told_samples": ("after_train_iter", 'every="20 samples"', multiples(20)),
    "told_thousands": ("after_train_iter", 'every="0.05k samples"', multiples(50)),
    "told_tokens": ("after_train_iter", 'every="80 tokens"', multiples(20)),
    "told_ahead": ("before_train_iter", 'every="30 samples"', multiples(30, ahead=True)),
    "told_until": (
        "after_train_iter",
        'every="20 samples", until="90 samples"',
        multiples(20, until=90),
    ),
    "told_once": ("after_train_iter", 'from="60 samples", once=true', [9]),
    "told_when": ("after_train_iter", 'when="iter > 6", once=true', [7]),
}


def of_data() -> list[str]:
    return [
        f'hooks.{name}={{use="./common_hooks.py:tells", points=["{point}"], {written}}}'
        for name, (point, written, _) in DATA_TRIGGERS.items()
    ]


def test_samples_and_tokens_count_what_each_batch_has(trained: Trained) -> None:
    run_dir = trained(*UNEVEN, *of_data())
    expected = {name: its for name, (*_, its) in DATA_TRIGGERS.items()}
    assert {name: iterations(run_dir, name) for name in DATA_TRIGGERS} == expected
    accumulated = trained(*UNEVEN, *of_data(), "run.accumulate=2")
    totals = [16, 32, 43, 59, 75, 86, 102, 118, 129]
    fired = [
        it
        for it, total in enumerate(totals, 1)
        if total // 20 != (totals[it - 2] if it > 1 else 0) // 20
    ]
    assert iterations(accumulated, "told_samples") == fired


@pytest.mark.parametrize("at", [7, 13])
def test_counts_of_the_data_go_on_after_a_resume(resumes_alike: NewRun, at: int) -> None:
    run_dir = resumes_alike(*UNEVEN, *of_data(), point="after_train_iter", at=at)
    for name, (*_, expected) in DATA_TRIGGERS.items():
        assert iterations(run_dir, name) == expected
    state: Any = final_state(run_dir)["position"]
    assert (state["samples"], state["tokens"]) == (129, 516)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (['hooks.log.every="1.5 samples"'], "must be an integer"),
        (['hooks.log.every="1k sampels"'], "is no amount"),
        (['run.val_every="1k samples"'], "must be iterations, epochs or seconds, not samples"),
    ],
)
def test_counts_that_nobody_makes_are_refused(
    new_run: NewRun, overrides: list[str], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        new_run(*overrides)


def test_a_task_that_counts_no_tokens_is_refused_before_the_training(trained: Trained) -> None:
    run_dir = trained('hooks.accuracy.until="1k tokens"', code=2)
    assert "does not say how many there are" in str(records(run_dir, "end"))
    assert not records(run_dir, "scalars")
