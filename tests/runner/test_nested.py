"""Firing in the middle of a hook or of a phase: every nanosecond is booked once, to who spent it.

The clock stands still but for what the hooks spend, so that the books can be read to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookflow.events.now import NOWHERE
from hookflow.graph.plan import Binding, OnError, Plan, PlannedHook, Trigger
from hookflow.graph.points import Point
from hookflow.runner.dispatch import dispatcher
from hookflow.runner.dispatch.dispatcher import Dispatcher, Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.logging import timing
from hookflow.runner.logging.timing import FORWARD, ITERATION, Books, Timeline
from hookflow.runner.process.state import RunState

OWN = ("mine", "before_work", "after_work")
Method = Callable[..., object]


class Clock:
    """A clock that only `spend` moves: it shows seconds, and is told nanoseconds."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> float:
        return self.ns / 1e9

    def spend(self, ns: int) -> None:
        self.ns += ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(dispatcher, "perf_counter", clock)
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


class Bench:
    """A dispatcher of hooks that are functions, each at one point, and its books."""

    def __init__(self, *hooks: tuple[str, str, Method], on_error: dict[str, OnError] | None = None) -> None:
        errors = on_error or {}
        planned = tuple(PlannedHook(n, "", {}, "normal", "", "", errors.get(n, "raise")) for n, _, _ in hooks)
        bindings = tuple(
            Binding(k, name, point, "", "whole", (), Trigger(), "normal")
            for k, (name, point, method) in enumerate(hooks)
        )
        own = tuple(Point(name, 4, ("run",), "firing", "", "own", "after_backward") for name in OWN)
        here = Here()
        self.now = here.ids
        self.now[0] = NOWHERE
        self.timeline = Timeline(timing.perf_counter)
        self.books = Books(len(bindings), self.timeline)
        self.reported: list[tuple[str, str]] = []
        plan = Plan("p", planned, bindings, (), own)
        dispatcher = Dispatcher(
            plan, self.books, here, lambda binding, error, action: self.reported.append((binding.hook, action))
        )
        self.engine = Engine(plan, {name: method for name, _, method in hooks}, {}, RunState(), dispatcher)
        self.engine.bind(object())
        self.dispatcher = self.engine.dispatcher

    @property
    def spent(self) -> list[int]:
        self.books.update()
        return [cell.total for cell in self.books.cells]

    def phases(self, spent_on: float) -> dict[str, int]:
        """Close the time since the last mark, and return what was booked to which phase."""
        self.timeline.mark(spent_on)
        self.books.update()
        return {phase: ns for phase, ns in self.books.phases.items() if ns}


def test_a_hook_within_a_hook(clock: Clock) -> None:
    seen = []

    def outer() -> None:
        clock.spend(10)
        bench.dispatcher.fire_within("mine")
        seen.append(bench.now[0])
        clock.spend(20)
        bench.dispatcher.fire_within("mine")
        clock.spend(30)

    def inner() -> None:
        seen.append(bench.now[0])
        clock.spend(500)

    bench = Bench(
        ("outer", "after_backward", outer), ("inner", "mine", inner), ("next", "after_backward", lambda: clock.spend(7))
    )
    clock.spend(3)
    bench.dispatcher.fire("after_backward")
    assert bench.spent == [60, 1000, 7]
    assert bench.phases(ITERATION) == {"other": 3, "hooks": 1067}
    assert seen == [1, 0, 1], "the outer one is named again"
    assert bench.now[0] == NOWHERE


def test_in_the_middle_of_a_phase(clock: Clock) -> None:
    """One binding that is called there returns what its hook does."""

    def hook() -> str:
        clock.spend(100)
        bench.dispatcher.fire_within("mine")
        return "replaced"

    bench = Bench(("hook", "forward", hook), ("inner", "mine", lambda: clock.spend(40)))
    clock.spend(5)
    bench.dispatcher.fire_within("mine")
    clock.spend(6)
    (firing,) = bench.engine.firings("forward")
    assert bench.dispatcher.call_within(firing, ()) == "replaced"
    assert bench.phases(FORWARD) == {"forward": 11, "hooks": 180}
    assert bench.spent == [100, 80]
    firing.due = lambda: False
    assert bench.dispatcher.call_within(firing, ()) is None
    assert bench.books.cells[0].n == 1


def test_the_time_of_a_trigger_is_its_own_hooks(clock: Clock) -> None:
    """Also where it says no: then the hook has not fired, and its neighbour has nothing to do with it."""

    def asks(answer: bool) -> Callable[[], bool]:
        def due() -> bool:
            clock.spend(20)
            return answer

        return due

    bench = Bench(
        ("yes", "after_backward", lambda: clock.spend(1)),
        ("no", "after_backward", lambda: clock.spend(1)),
        ("next", "after_backward", lambda: clock.spend(7)),
    )
    yes, no, _ = bench.engine.firings("after_backward")
    yes.due, no.due = asks(True), asks(False)
    bench.dispatcher.fire("after_backward")
    assert bench.spent == [21, 20, 7]
    assert [cell.n for cell in bench.books.cells] == [1, 0, 1]
    assert bench.phases(ITERATION) == {"hooks": 48}


@pytest.mark.parametrize("outer_may", ["raise", "ignore", "disable"])
def test_an_inner_hook_that_raises_ends_the_run_and_is_told_once(clock: Clock, outer_may: OnError) -> None:
    def inner() -> None:
        clock.spend(50)
        raise ValueError("inner cannot")

    bench = Bench(
        ("outer", "after_backward", lambda: bench.dispatcher.fire_within("mine")),
        ("inner", "mine", inner),
        ("last", "after_run", lambda: clock.spend(9)),
        on_error={"outer": outer_may},
    )
    with pytest.raises(ValueError, match="inner cannot") as raised:
        bench.dispatcher.fire("after_backward")
    assert raised.value.__notes__ == ['raised by the hook "inner" at mine']
    assert bench.reported == [("inner", "raise")]
    assert bench.now[0] == NOWHERE
    bench.dispatcher.fire("after_run")
    assert bench.spent[2] == 9, "what was booked before does not reach into this"
