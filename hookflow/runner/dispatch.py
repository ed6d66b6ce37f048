"""The dispatch core: `Dispatcher.fire` calls what the plan says, in its order, and times it.

Everything that can be decided beforehand has been: which hooks, in which order, with which arguments. `fire` only
asks each trigger and calls; the rest of this file prepares it, or deals with a hook that raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from inspect import signature
from operator import itemgetter
from time import perf_counter_ns
from typing import Any, TypeVar

from hookflow.events.now import NOWHERE
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner.meter import Cell, Meter

Call = Callable[[Sequence[Any]], object]
Due = Callable[[], bool]
Report = Callable[[Binding, BaseException, OnError], None]
"""Told of a hook that raised: its binding, the exception, and what becomes of it (raise, disable or ignore)."""


Result = TypeVar("Result")


class Firing:
    """A binding made ready to be called: `call` takes everything that the point offers."""

    __slots__ = ("binding", "call", "cell", "due")

    def __init__(self, binding: Binding, call: Call, due: Due | None, cell: Cell) -> None:
        self.binding = binding
        self.call = call
        self.due = due
        self.cell = cell


class Dispatcher:
    """Fires the points of one run. `now` is what `hookflow.events.now.share` returned.

    Of several processes that train together only the first (`rank` 0) calls the hooks that are for it alone.
    """

    def __init__(
        self,
        plan: Plan,
        hooks: Mapping[str, Any],
        run: object,
        triggers: Mapping[int, Due],
        meter: Meter,
        now: tuple[memoryview[int], memoryview[float]],
        report: Report,
        rank: int = 0,
    ) -> None:
        self._plan = plan
        self._run = run
        self._meter = meter
        self._ids, self._times = now
        self._report = report
        self._open: list[tuple[Binding, Generator[None]]] = []
        self._ending = False
        self._inner = 0
        self._told: BaseException | None = None
        self.was_open: frozenset[str] = frozenset()
        self._at: dict[str, tuple[Firing, ...]] = {}
        self._closings: dict[tuple[str, str], Firing] = {}
        for binding in plan.bindings:
            if rank and plan.hook(binding.hook).ranks == "zero":
                continue
            hook = hooks[binding.hook]
            method = getattr(hook, binding.method) if binding.method else hook
            call = self._halved(binding, adapt(method, binding.takes, plan.points[binding.point].offers, run))
            due = partial(self._is_open, binding) if binding.half == "exit" else triggers.get(binding.id)
            firing = Firing(binding, call, due, meter.cells[binding.id])
            self._put(binding.point, firing)
            if binding.half == "exit":
                self._closings[_who(binding)] = firing
            elif binding.half == "enter":
                again = Firing(binding, call, partial(self._was_open, binding), meter.cells[binding.id])
                self._put(_again(binding.point), again)

    def fire(self, point: str, *offered: Any) -> None:
        """Call every hook that is due at `point`; `offered` is what the point offers after the run itself.

        An exception of a hook goes through, with the hook and the point noted on it, unless its `on_error` says
        otherwise; one that is no Exception (SystemExit, say) always does.
        """
        if firings := self._at.get(point):
            self._fire(firings, (self._run, *offered))

    def offer(self, point: str, everything: Sequence[Any]) -> None:
        """Do what `fire` does; `everything` is what the point offers, the run first, and hooks may change it."""
        if firings := self._at.get(point):
            self._fire(firings, everything)

    def _fire(self, firings: tuple[Firing, ...], everything: Sequence[Any]) -> None:
        ids, times = self._ids, self._times
        began = entered = perf_counter_ns()
        for firing in firings:
            if firing.due is not None and not firing.due():
                continue
            times[0] = entered / 1e9
            ids[0] = firing.binding.id
            try:
                firing.call(everything)
            except BaseException as error:
                self._failed(firing.binding, error)
            left = perf_counter_ns()
            if self._inner:
                entered, self._inner = entered + self._inner, 0
            firing.cell.add(left - entered)
            entered = left
        ids[0] = NOWHERE
        self._meter.hooks(began, entered)

    def fire_within(self, point: str, *offered: Any) -> None:
        """Do what `fire` does in the middle of something else: of a hook, or of a phase of the iteration."""
        if point in self._at:
            self._within(self.fire, point, *offered)

    def call_within(self, firing: Firing, everything: Sequence[Any]) -> Any:
        """Call one binding in the middle of something else, if it is due, and return what it returns."""
        if firing.due is None or firing.due():
            return self._within(self._call, firing, everything)
        return None

    def firings(self, point: str) -> tuple[Firing, ...]:
        """Return what fires at a point, in order."""
        return self._at.get(point, ())

    def _within(self, call: Callable[..., Result], *args: Any) -> Result:
        """Make a call that fires. Its time is theirs who fire: not the hook's around it, and in no phase twice."""
        binding, since = self._ids[0], self._times[0]
        outer, self._inner = self._inner, 0
        books = self._meter.put_away()
        began = perf_counter_ns()
        try:
            return call(*args)
        finally:
            ended = perf_counter_ns()
            self._meter.take_up(books)
            if binding == NOWHERE:
                self._inner = 0
                self._meter.within(began, ended)
            else:
                self._inner = outer + ended - began
            self._times[0], self._ids[0] = since, binding

    def _call(self, firing: Firing, everything: Sequence[Any]) -> Any:
        result = None
        entered = perf_counter_ns()
        self._times[0] = entered / 1e9
        self._ids[0] = firing.binding.id
        try:
            result = firing.call(everything)
        except BaseException as error:
            self._failed(firing.binding, error)
        firing.cell.add(perf_counter_ns() - entered - self._inner)
        return result

    def _put(self, point: str, firing: Firing) -> None:
        self._at[point] = (*self._at.get(point, ()), firing)

    def _failed(self, binding: Binding, error: BaseException) -> None:
        """Tell of a hook that raised, and let the exception through if it ends the run. Ctrl-C is no hook's fault."""
        action: OnError = self._plan.hook(binding.hook).on_error if isinstance(error, Exception) else "raise"
        if self._ending and action == "raise":
            action = "ignore"
        told = error is self._told and not self._ending  # of a hook that fired within this one, and ends the run
        if told or isinstance(error, KeyboardInterrupt):
            action = "raise"
        else:
            error.add_note(f'raised by the hook "{binding.hook}" at {binding.point}')
            self._report(binding, error, action)
        if action == "raise":
            self._told, self._inner, self._ids[0] = error, 0, NOWHERE
            raise error
        if action == "disable":
            self._disable(binding.hook)

    def _disable(self, hook: str) -> None:
        """Never let the hook fire again, but let what it has entered be left."""
        for firings in self._at.values():
            for firing in firings:
                if firing.binding.hook == hook and firing.binding.half != "exit":
                    firing.due = _never

    def _halved(self, binding: Binding, call: Call) -> Call:
        if binding.half == "enter":
            return lambda offered: self._enter(binding, call(offered))
        if binding.half == "exit":
            return lambda offered: self._exit(binding)
        return call

    def _enter(self, binding: Binding, generator: Any) -> None:
        try:
            next(generator)
        except StopIteration:
            raise RuntimeError(f'{binding.method} of the hook "{binding.hook}" must yield once, and has not') from None
        self._open.append((binding, generator))

    def _exit(self, binding: Binding) -> None:
        for entry in reversed(self._open):
            if _who(entry[0]) == _who(binding):
                self._open.remove(entry)
                _finish(*entry)
                return

    def enter(self, point: str) -> None:
        """Run the first halves at `point` that `was_open` names, and nothing else that fires there.

        A run that is resumed in the middle of an epoch is inside of what the epoch had entered.
        """
        self.fire(_again(point))
        self.was_open = frozenset()

    def open_at(self, point: str) -> list[str]:
        """Return the hooks that have been entered at `point` and not left; or will be, once a resumed run is there."""
        entered = {binding.hook for binding, _ in self._open if binding.point == point} | self.was_open
        return [binding.hook for binding in self._plan.at(point) if binding.hook in entered and binding.half == "enter"]

    def _is_open(self, binding: Binding) -> bool:
        return any(_who(entry) == _who(binding) for entry, _ in self._open)

    def _was_open(self, binding: Binding) -> bool:
        return binding.hook in self.was_open

    @property
    def entered(self) -> int:
        """How many `around_X` have been entered and not left."""
        return len(self._open)

    def leave(self, entered: int) -> None:
        """Run the second halves of all that was entered when `entered` had been, the latest first.

        For a pass that is cut short: its closing points do not fire.
        """
        while len(self._open) > entered:
            binding, _ = self._open[-1]
            self._within(self._call, self._closings[_who(binding)], ())

    def unwind(self) -> None:
        """Leave everything: the run ends. From here on no hook that raises keeps others from their turn."""
        self._ending = True
        self.leave(0)


def _never() -> bool:
    return False


def _again(point: str) -> str:
    return f"again {point}"


def _who(binding: Binding) -> tuple[str, str]:
    return binding.hook, binding.method


def _finish(binding: Binding, generator: Generator[None]) -> None:
    for _ in generator:
        raise RuntimeError(f'{binding.method} of the hook "{binding.hook}" must yield once, and has yielded again')


def _in_front(method: Callable[..., object], takes: tuple[str, ...]) -> bool:
    """Say whether the arguments that a method takes can be given by position: none with a default stands before."""
    if not takes:
        return True
    parameters = [p for p in signature(method).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    return all(p.name == name and p.kind is not p.KEYWORD_ONLY for p, name in zip(parameters, takes, strict=False))


def adapt(method: Callable[..., object], takes: tuple[str, ...], offers: tuple[str, ...], run: object) -> Call:
    """Return `method` as a function of the tuple of everything that its point offers.

    `takes` names its arguments out of `offers`, whose first is the run.
    """
    places = [offers.index(name) for name in takes]
    if not _in_front(method, takes):
        return lambda offered: method(**{name: offered[place] for name, place in zip(takes, places, strict=True)})
    match places:
        case []:
            return lambda offered: method()
        case [0]:
            return lambda offered: method(run)
        case [place]:
            return lambda offered: method(offered[place])
    pick = itemgetter(*places)
    return lambda offered: method(*pick(offered))
