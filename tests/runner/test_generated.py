"""The generated dispatcher does what the readable one does: over random plans, triggers, hooks that raise."""

from __future__ import annotations

import traceback
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookflow.events.percentiles import bin_of
from hookflow.graph.plan import Binding, Plan, PlannedHook, Trigger
from hookflow.graph.points import POINTS
from hookflow.runner.dispatch import engine as engine_module
from hookflow.runner.dispatch.dispatcher import Dispatcher, Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.dispatch.triggers import make_triggers
from hookflow.runner.logging import timing
from hookflow.runner.logging.timing import CHUNK, ITERATION, Books, Rows, Timeline, bins_of
from hookflow.runner.process.state import RunState

ITERS = 12
BEFORE = ("before_train_iter", "after_forward", "before_backward", "after_backward", "before_optimizer_step")
AFTER = ("after_optimizer_step", "after_train_iter")

amounts = st.none() | st.sampled_from(["1", "3", "5it", "1ep", "25%"])
triggers = st.builds(Trigger, every=amounts, since=amounts, until=amounts)
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
    state.set_length(None, ITERS, 4)
    names = [f"h{k}" for k in range(len(said))]
    planned = tuple(
        PlannedHook(name, "", {}, "normal", "", "", hook["on_error"]) for name, hook in zip(names, said, strict=True)
    )
    bindings = tuple(
        Binding(k, name, hook["point"], "", "whole", hook["takes"], hook["trigger"], "normal")
        for k, (name, hook) in enumerate(zip(names, said, strict=True))
    )
    plan = Plan("p", planned, bindings, ())
    books = Books(len(bindings), timeline)
    here = Here()

    def report(binding: Binding, error: BaseException, action: str) -> None:
        reported.append((binding.hook, str(error), action, list(error.__notes__)))

    engine = Engine(
        plan,
        {name: Recording(name, hook, state, notes).method for name, hook in zip(names, said, strict=True)},
        make_triggers(plan, state, lambda binding: lambda: True),
        state,
        Dispatcher(plan, books, here, report),
        generates=generates,
    )
    engine.bind(object())
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
    made = [call for name in POINTS for call in [engine.call(name.name)] if call and hasattr(call, "__code__")]
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
    assert fast.pop("generated") == len({hook["point"] for hook in said}), "all of these points are plain"
    assert fast == readable


def test_a_traceback_shows_the_line_that_was_generated() -> None:
    said = {"takes": ("batch",), "by_name": False, "trigger": Trigger(), "raises_at": 0, "kind": ValueError}
    state = RunState()
    binding = Binding(0, "h0", "after_forward", "", "whole", ("batch",), Trigger(), "normal")
    plan = Plan("p", (PlannedHook("h0", "", {}, "normal", "", "", "raise"),), (binding,), ())
    here = Here()
    hook = Recording("h0", said, state, []).method
    engine = Engine(plan, {"h0": hook}, {}, state, Dispatcher(plan, Books(1, Timeline()), here, lambda *told: None))
    engine.bind(object())
    with pytest.raises(ValueError, match="h0") as caught:
        engine.fire("after_forward", "b", 0, {})
    written = "".join(traceback.format_exception(caught.value))
    assert f'{engine_module.__file__}:after_forward", line' in written
    assert "_method0(batch)" in written


def test_its_time_is_booked_to_its_binding_and_to_the_hooks() -> None:
    timeline = Timeline()
    books, rows = Books(2, timeline), Rows(3)
    books.points.append(((0, 1), rows))
    timeline.restart()
    began, ended = perf_counter(), perf_counter()
    rows.put(began, ended, ended)  # the second one was not due
    timeline.mark(ITERATION)
    books.update()
    assert [cell.n for cell in books.cells] == [1, 0]
    assert books.phases["hooks"] == pytest.approx(books.cells[0].total, abs=2)


def test_rows_are_read_whole_and_in_order_while_they_are_written() -> None:
    rows = Rows(2)
    taken: list[float] = []
    for k in range(3 * CHUNK + 5):
        rows.put(k, -k)
        if k % 1000 == 0:
            taken += rows.take()[:, 0].tolist()
    taken += rows.take()[:, 0].tolist()
    assert taken == [*range(3 * CHUNK + 5)]
    assert not len(rows.take())


def test_rows_that_nobody_reads_take_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CHUNK", 4)
    monkeypatch.setattr(timing, "KEPT", 2)
    rows = Rows(1)
    for k in range(100):
        rows.put(k)
    assert rows.take()[:, 0].tolist() == [*range(96, 100)], "the newest"


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50))
def test_the_bins_of_many_are_those_of_each(ns: list[int]) -> None:
    assert bins_of(np.array(ns, dtype=np.int64)).tolist() == [bin_of(each) for each in ns]
