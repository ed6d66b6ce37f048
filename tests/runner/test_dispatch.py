"""The dispatch core: what it calls, in which order, with what, and what it does about hooks that raise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hookflow.graph.plan import Binding, OnError, Plan, PlannedHook, Trigger
from hookflow.runner.dispatch.dispatcher import Dispatcher, Here
from hookflow.runner.dispatch.engine import Engine
from hookflow.runner.logging.timing import Books, Timeline
from hookflow.runner.process.state import RunState

RUN = object()


def engine(hooks: dict[str, Any], *bindings: tuple[str, str, str, tuple[str, ...]], on_error: OnError = "raise"):  # type: ignore[no-untyped-def]
    """Return an engine of bindings (hook, point, half, takes), its books and what has been reported."""
    planned = tuple(PlannedHook(name, "", {}, "normal", "", "", on_error) for name in hooks)
    made = tuple(
        Binding(k, hook, point, _method(point, half), half, takes, Trigger(), "normal")  # type: ignore[arg-type]
        for k, (hook, point, half, takes) in enumerate(bindings)
    )
    books = Books(len(made), Timeline())
    reported: list[tuple[str, str, str]] = []

    def report(binding: Binding, error: BaseException, action: str) -> None:
        reported.append((binding.hook, str(error), action))

    plan = Plan("p", planned, made, ())
    made_engine = Engine(plan, hooks, {}, RunState(), Dispatcher(plan, books, Here(), report))
    made_engine.bind(RUN)
    return made_engine, books, reported


def _method(point: str, half: str) -> str:
    return point if half == "whole" else "around_" + point.split("_", 1)[1]


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
    fires, books, _ = engine(hooks, ("b", point, "whole", ("batch",)), ("a", point, "whole", ()))
    fires.fire(point, "batch", 0, {})
    fires.fire(point, "batch", 1, {})
    fires.fire("before_train", 1)
    assert notes == [("b", ("batch",)), ("a", ()), ("b", ("batch",)), ("a", ())]
    books.timeline.end_iteration(1)
    books.update()
    assert [cell.n for cell in books.cells] == [2, 2]
    rounded = 4  # nanoseconds: each time is rounded by itself
    assert books.phases["hooks"] + rounded >= sum(cell.total for cell in books.cells) > 0


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


def test_what_ends_the_run_is_thrown_into_the_arounds_that_are_open() -> None:
    notes: list[Any] = []
    hooks = {"guarded": Guarded(notes), "plain": Scribe("plain", notes)}
    fires, *_ = engine(hooks, *around("guarded", "plain"))
    fires.fire("before_val")
    error = ValueError("no batch")
    fires.unwind(error)
    assert notes == ["plain in", "caught no batch", "finally"], "without a try, nothing behind the yield runs"
    assert error.__traceback__ is None


def test_another_exception_of_an_around_is_reported() -> None:
    fires, _, reported = engine({"guarded": Guarded([], ValueError("worse"))}, *around("guarded"))
    fires.fire("before_val")
    fires.unwind(ValueError("no batch"))
    assert reported == [("guarded", "worse", "ignore")]


def test_a_generator_must_yield_once() -> None:
    class Twice:
        def around_val(self) -> Iterator[None]:
            yield
            yield

    fires, *_ = engine({"twice": Twice()}, *around("twice"))
    fires.fire("before_val")
    with pytest.raises(RuntimeError, match="didn't stop"):
        fires.fire("after_val", {})


def test_a_hook_that_is_switched_off_still_leaves_what_it_entered() -> None:
    notes: list[Any] = []
    hook: Any = Scribe("a", notes, raises=True)
    fires, *_ = engine({"a": hook}, *around("a"), ("a", "after_train_iter", "whole", ()), on_error="disable")
    fires.fire("before_val")
    fires.fire("after_train_iter", None, 0, {})
    fires.fire("after_val", {})
    assert notes[0] == "a in"
    assert notes[-1] == "a out"
