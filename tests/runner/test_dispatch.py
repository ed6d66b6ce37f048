"""The dispatch core, readable and generated: what it calls, in which order, with what;
firings inside firings.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.errors import UserError
from hookflow.events.now import NO_BINDING
from hookflow.events.packing import bin_of
from hookflow.graph.plan import Binding, OnError, Plan, PlannedHook, Trigger
from hookflow.graph.points import DEFAULT_POINTS, Point
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.runner.dispatch import dispatcher
from hookflow.runner.dispatch import engine as engine_module
from hookflow.runner.dispatch.dispatcher import CurrentHook, Dispatcher
from hookflow.runner.dispatch.engine import DispatchEngine
from hookflow.runner.dispatch.triggers import make_triggers
from hookflow.runner.logging import timing
from hookflow.runner.logging.timing import (
    CHUNK_ROWS,
    FORWARD,
    ITERATION_SLOT,
    RowBuffer,
    Timeline,
    TimingAggregator,
    compute_bins,
)
from hookflow.runner.process.state import RunState

OWN = ("mine", "before_work", "after_work")
Method = Callable[..., object]


class Bench:
    """An engine of hooks, its books, and what has been reported; a binding is (hook,
    point, half, takes).
    """

    def __init__(
        self,
        hooks: dict[str, Any],
        *bindings: tuple[str, str, str, tuple[str, ...]],
        on_error: Mapping[str, OnError] = MappingProxyType({}),
    ) -> None:
        planned = tuple(
            PlannedHook(name, "", {}, "normal", "", "", on_error.get(name, "raise"))
            for name in hooks
        )
        made = tuple(
            Binding(
                hook,
                point,
                self._method(hooks[hook], point, half),
                half,
                takes,
                Trigger(),
                "normal",
                id=k,
            )  # type: ignore[arg-type]
            for k, (hook, point, half, takes) in enumerate(bindings)
        )
        own = tuple(Point(name, 4, ("run",), "firing", "", "own", "after_backward") for name in OWN)
        here = CurrentHook()
        self.now = here.ids
        self.now[0] = NO_BINDING
        self.timeline = Timeline(timing.perf_counter)
        self.books = TimingAggregator(len(made), self.timeline)
        self.reported: list[tuple[str, str, str]] = []
        plan = Plan("p", planned, made, (), own)
        self.dispatcher = Dispatcher(plan, self.books, here, self._report)
        self.engine = DispatchEngine(plan, hooks, {}, RunState(), self.dispatcher)
        self.engine.bind(object())
        self.fire, self.unwind = self.engine.fire, self.engine.throw_into_arounds

    @staticmethod
    def _method(hook: Any, point: str, half: str) -> str:
        if callable(hook):
            return ""
        return point if half == "whole" else "around_" + point.split("_", 1)[1]

    def _report(self, binding: Binding, error: BaseException, action: str, it: int | None) -> None:
        self.reported.append((binding.hook, str(error), action))

    @property
    def spent(self) -> list[int]:
        self.books.update()
        return [cell.total for cell in self.books.cells]

    def phases(self, spent_on: float) -> dict[str, int]:
        """Close the time since the last mark, and return what was booked to which phase."""
        self.timeline.mark(spent_on)
        self.books.update()
        return {phase: ns for phase, ns in self.books.phases.items() if ns}


def functions(
    *hooks: tuple[str, str, Method], on_error: Mapping[str, OnError] = MappingProxyType({})
) -> Bench:
    """Return a bench of hooks that are functions, each at one point."""
    bindings = ((name, point, "whole", ()) for name, point, _ in hooks)
    return Bench({name: function for name, _, function in hooks}, *bindings, on_error=on_error)


class Scribe:
    """Notes what it was called with."""

    def __init__(self, name: str, notes: list[Any], raises: bool = False) -> None:
        self.name, self.notes, self.raises = name, notes, raises

    def after_train_iter(self, *args: Any) -> None:
        self.notes.append((self.name, args))
        if self.raises:
            raise ValueError(f"{self.name} cannot")

    def around_val(self) -> Iterator[None]:
        self.notes.append(f"{self.name} in")
        yield
        self.notes.append(f"{self.name} out")


def test_hooks_are_called_in_the_plans_order_and_each_is_counted() -> None:
    notes: list[Any] = []
    hooks = {name: Scribe(name, notes) for name in "ab"}
    point = "after_train_iter"
    bench = Bench(hooks, ("b", point, "whole", ("batch",)), ("a", point, "whole", ()))
    bench.fire(point, "batch", 0, {})
    bench.fire(point, "batch", 1, {})
    bench.fire("before_train", 1)
    assert notes == [("b", ("batch",)), ("a", ()), ("b", ("batch",)), ("a", ())]
    bench.timeline.end_iteration(1)
    spent, rounded = sum(bench.spent), 4  # nanoseconds: each time is rounded by itself
    assert [cell.n for cell in bench.books.cells] == [2, 2]
    assert bench.books.phases["hooks"] + rounded >= spent > 0


def test_a_traceback_shows_the_line_that_was_generated() -> None:
    bench = Bench(
        {"a": Scribe("a", [], raises=True)}, ("a", "after_train_iter", "whole", ("batch",))
    )
    with pytest.raises(ValueError, match="a cannot") as caught:
        bench.fire("after_train_iter", "b", 0, {})
    written = "".join(traceback.format_exception(caught.value))
    assert f'{engine_module.__file__}:after_train_iter", line' in written
    assert "_method0(batch)" in written


def around(*names: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    enters = [(name, "before_val", "enter", ()) for name in names]
    return [*enters, *((name, "after_val", "exit", ()) for name in reversed(names))]


class Guarded:
    def __init__(self, notes: list[Any], reraise: Exception | None = None) -> None:
        self.notes, self.reraise = notes, reraise

    def around_val(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            self.notes.append(f"caught {error}")
            if self.reraise:
                raise self.reraise from error
        finally:
            self.notes.append("finally")


def test_an_error_is_thrown_into_the_arounds_that_are_open_and_theirs_is_reported() -> None:
    notes: list[Any] = []
    hooks = {"guarded": Guarded(notes), "plain": Scribe("plain", notes)}
    bench = Bench(hooks, *around("guarded", "plain"))
    bench.fire("before_val")
    error = ValueError("no batch")
    bench.unwind(error)
    assert notes == ["plain in", "caught no batch", "finally"], (
        "without a try, nothing behind the yield runs"
    )
    assert error.__traceback__ is None
    bench = Bench({"guarded": Guarded([], ValueError("worse"))}, *around("guarded"))
    bench.fire("before_val")
    bench.unwind(ValueError("no batch"))
    assert bench.reported == [("guarded", "worse", "ignore")]


def test_a_generator_must_yield_once() -> None:
    class Twice:
        def around_val(self) -> Iterator[None]:
            yield
            yield

    bench = Bench({"twice": Twice()}, *around("twice"))
    bench.fire("before_val")
    with pytest.raises(UserError, match="around_val yields a second time, and must yield once"):
        bench.fire("after_val", {})


def test_a_hook_that_is_switched_off_still_leaves_what_it_entered() -> None:
    notes: list[Any] = []
    hook: Any = Scribe("a", notes, raises=True)
    bench = Bench(
        {"a": hook}, *around("a"), ("a", "after_train_iter", "whole", ()), on_error={"a": "disable"}
    )
    bench.fire("before_val")
    bench.fire("after_train_iter", None, 0, {})
    bench.fire("after_val", {})
    assert notes[0] == "a in"
    assert notes[-1] == "a out"


ITERS = 12
BEFORE = (
    "before_train_iter",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_optimizer_step",
)
AFTER = ("after_optimizer_step", "after_train_iter")

amounts = st.none() | st.sampled_from(["1", "3", "5it", "1ep", "25%"])
triggers = st.builds(Trigger.parse, every=amounts, since=amounts, until=amounts)
hooks = st.fixed_dictionaries(
    {
        "point": st.sampled_from([*BEFORE, *AFTER]),
        "takes": st.permutations(["run", "batch", "batch_idx"]).flatmap(
            lambda names: st.integers(0, 3).map(lambda n: tuple(names[:n]))
        ),
        "by_name": st.booleans(),
        "trigger": st.just(Trigger()) | triggers,
        "on_error": st.sampled_from(["raise", "disable", "ignore"]),
        "raises_at": st.none() | st.integers(0, ITERS),
        "kind": st.sampled_from([ValueError, ValueError, ValueError, SystemExit]),
    }
)


class Recording:
    """A hook that writes down each call, and raises in one iteration."""

    def __init__(self, name: str, said: dict[str, Any], state: RunState, notes: list[Any]) -> None:
        def note(**given: Any) -> None:
            shown = {key: value if key != "run" else "run" for key, value in given.items()}
            notes.append((name, state.iter, shown))
            if said["raises_at"] == state.iter:
                raise said["kind"](name)

        names = said["takes"]
        written = ", ".join(["*", *names] if said["by_name"] and names else names)
        space: dict[str, Any] = {"note": note}
        exec(f"def method({written}): note({', '.join(f'{key}={key}' for key in names)})", space)
        self.method = space["method"]


def walk(said: list[dict[str, Any]], *, generates: bool) -> dict[str, Any]:
    """Walk through a run of these hooks, and return everything that can be seen of it."""
    state, timeline, notes, reported = RunState(), Timeline(), [], []
    state.set_length(None, ITERS, EpochLengths.constant(4))
    names = [f"h{k}" for k in range(len(said))]
    planned = tuple(
        PlannedHook(name, "", {}, "normal", "", "", hook["on_error"])
        for name, hook in zip(names, said, strict=True)
    )
    bindings = tuple(
        Binding(name, hook["point"], "", "whole", hook["takes"], hook["trigger"], "normal", id=k)
        for k, (name, hook) in enumerate(zip(names, said, strict=True))
    )
    plan = Plan("p", planned, bindings, ())
    books = TimingAggregator(len(bindings), timeline)
    here = CurrentHook()

    def report(binding: Binding, error: BaseException, action: str, it: int | None) -> None:
        reported.append((binding.hook, str(error), action, list(error.__notes__)))

    engine = DispatchEngine(
        plan,
        {
            name: Recording(name, hook, state, notes).method
            for name, hook in zip(names, said, strict=True)
        },
        make_triggers(plan, state, lambda binding: lambda: True, {}),
        state,
        Dispatcher(plan, books, here, report),
    )
    engine.bind(object(), None if generates else lambda binding, call: call)
    ended: Any = None
    try:
        for it in range(ITERS):
            offered = f"batch {it}", it
            for point in BEFORE:
                engine.fire(point, *offered, *([{}] if point != "before_train_iter" else []))
            engine.fire("after_optimizer_step", *offered, {})
            state.iter += 1
            engine.fire("after_train_iter", *offered, {})
            timeline.end_iteration(1)
    except BaseException as error:
        ended = type(error), str(error), error.__notes__
    else:
        books.update()
    made = [
        call
        for name in DEFAULT_POINTS
        for call in [engine.call(name.name)]
        if call and hasattr(call, "__code__")
    ]
    return {
        "notes": notes,
        "reported": reported,
        "ended": ended,
        "fired": [cell.n for cell in books.cells],
        "here": (engine.current, here.ids[0]),
        "disabled": engine.dispatcher.disabled,
        "generated": len(made),
    }


@given(st.lists(hooks, max_size=6))
def test_it_does_what_the_readable_one_does(said: list[dict[str, Any]]) -> None:
    fast, readable = walk(said, generates=True), walk(said, generates=False)
    assert readable.pop("generated") == 0
    assert fast.pop("generated") == len({hook["point"] for hook in said}), (
        "all of these points are plain"
    )
    assert fast == readable


def test_rows_are_read_whole_and_in_order_and_take_a_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = RowBuffer(2)
    taken: list[float] = []
    for k in range(3 * CHUNK_ROWS + 5):
        rows.put(k, -k)
        if k % 1000 == 0:
            taken += rows.take()[:, 0].tolist()
    taken += rows.take()[:, 0].tolist()
    assert taken == [*range(3 * CHUNK_ROWS + 5)]
    assert not len(rows.take())
    monkeypatch.setattr(timing, "CHUNK_ROWS", 4)
    monkeypatch.setattr(timing, "MAX_CHUNKS", 2)
    rows = RowBuffer(1)
    for k in range(100):
        rows.put(k)
    assert rows.take()[:, 0].tolist() == [*range(96, 100)], "the newest"


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50))
def test_the_bins_of_many_are_those_of_each(ns: list[int]) -> None:
    assert compute_bins(np.array(ns, dtype=np.int64)).tolist() == [bin_of(each) for each in ns]


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

    bench = functions(
        ("outer", "after_backward", outer),
        ("inner", "mine", inner),
        ("next", "after_backward", lambda: clock.spend(7)),
    )
    clock.spend(3)
    bench.dispatcher.fire("after_backward")
    assert bench.spent == [60, 1000, 7]
    assert bench.phases(ITERATION_SLOT) == {"other": 3, "hooks": 1067}
    assert seen == [1, 0, 1], "the outer one is named again"
    assert bench.now[0] == NO_BINDING


def test_in_the_middle_of_a_phase(clock: Clock) -> None:
    """One binding that is called there returns what its hook does."""

    def hook() -> str:
        clock.spend(100)
        bench.dispatcher.fire_within("mine")
        return "replaced"

    bench = functions(("hook", "forward", hook), ("inner", "mine", lambda: clock.spend(40)))
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
    """Also where it says no: then the hook has not fired,
    and its neighbour has nothing to do with it.
    """

    def asks(answer: bool) -> Callable[[], bool]:
        def due() -> bool:
            clock.spend(20)
            return answer

        return due

    bench = functions(
        ("yes", "after_backward", lambda: clock.spend(1)),
        ("no", "after_backward", lambda: clock.spend(1)),
        ("next", "after_backward", lambda: clock.spend(7)),
    )
    yes, no, _ = bench.engine.firings("after_backward")
    yes.due, no.due = asks(True), asks(False)
    bench.dispatcher.fire("after_backward")
    assert bench.spent == [21, 20, 7]
    assert [cell.n for cell in bench.books.cells] == [1, 0, 1]
    assert [cell.checks for cell in bench.books.cells] == [0, 20, 0], (
        "that of a firing belongs to it"
    )
    assert bench.phases(ITERATION_SLOT) == {"hooks": 48}


@pytest.mark.parametrize("outer_may", ["raise", "ignore", "disable"])
def test_an_inner_hook_that_raises_ends_the_run_and_is_told_once(
    clock: Clock, outer_may: OnError
) -> None:
    def inner() -> None:
        clock.spend(50)
        raise ValueError("inner cannot")

    bench = functions(
        ("outer", "after_backward", lambda: bench.dispatcher.fire_within("mine")),
        ("inner", "mine", inner),
        ("last", "after_run", lambda: clock.spend(9)),
        on_error={"outer": outer_may},
    )
    with pytest.raises(ValueError, match="inner cannot") as raised:
        bench.dispatcher.fire("after_backward")
    assert raised.value.__notes__ == ['raised by the hook "inner" at mine']
    assert bench.reported == [("inner", "inner cannot", "raise")]
    assert bench.now[0] == NO_BINDING
    bench.dispatcher.fire("after_run")
    assert bench.spent[2] == 9, "what was booked before does not reach into this"
