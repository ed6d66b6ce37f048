"""The dispatch core: `Dispatcher.fire` calls what the plan says, in its order, and times it.

Everything that can be decided beforehand has been: which hooks, in which order, with which arguments. `fire` only asks
each trigger, calls, and stamps the clock; the rest of this file is for what fires within something else, and for a
hook that raised. Inside the iteration `hookflow.runner.generated` does the same faster, where nothing special is
bound; a test over random plans holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import perf_counter
from typing import Any, TypeVar

from hookflow.events.now import NOWHERE, Shared
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner.firing import Firing
from hookflow.runner.timing import Books
from hookflow.user_code import showable

Report = Callable[[Binding, BaseException, OnError], None]
"""Told of a hook that raised: its binding, the exception, and what becomes of it (raise, disable or ignore)."""

Result = TypeVar("Result")


class Here:
    """Which binding is being called, and since when: `binding[0]` for the runner, the others for other processes.

    `ids` and `times` are the memory of a `hookflow.events.now.Shared`, if others look.
    """

    __slots__ = ("_shared", "binding", "ids", "times")

    def __init__(self, shared: Shared | None = None) -> None:
        self.binding = [NOWHERE]
        self._shared = shared
        self.ids, self.times = (shared.ids, shared.times) if shared else _unshared()

    def leave(self) -> None:
        """Show nothing any more: the run is over, whatever may still fire."""
        if self._shared:
            self.ids, self.times = _unshared()
            self._shared.close()

    def set(self, binding: int, since: float) -> None:
        self.times[0] = since
        self.binding[0] = self.ids[0] = binding


def _unshared() -> tuple[memoryview[int], memoryview[float]]:
    return memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("d")


class Dispatcher:
    """Fires the points of one run; `at` holds what is bound to each, in order, and may still change."""

    def __init__(self, plan: Plan, at: Mapping[str, tuple[Firing, ...]], books: Books, here: Here, report: Report):
        self.at = at
        self.run: object = None
        self.disabled: set[str] = set()
        self.thread = get_ident()
        """The thread that hooks are called in: the training's, or autograd's while that computes on a GPU."""
        self._plan = plan
        self._books = books
        self._here = here
        self._report = report
        self._inner = 0.0
        self._nested = 0
        self._ending = False
        self._told: BaseException | None = None

    def fire(self, point: str, *offered: Any) -> None:
        """Call every hook that is due at `point`; `offered` is what the point offers after the run itself.

        An exception of a hook goes through, with the hook and the point noted on it, unless its `on_error` says
        otherwise; one that is no Exception (SystemExit, say) always does.
        """
        if firings := self.at.get(point):
            self.call_all(firings, (self.run, *offered))

    def call_all(self, firings: Sequence[Firing], everything: Sequence[Any]) -> None:
        """Call what is due of these; `everything` is what their point offers, the run first. Hooks may change it."""
        here, put = self._here, self._books.firings.put
        began = entered = perf_counter()
        for firing in firings:
            due = firing.is_due()
            if due:
                here.set(firing.binding.id, entered)
                try:
                    firing.call(everything)
                except BaseException as error:
                    self.failed(firing.binding, error)
            left = perf_counter()
            put(firing.binding.id, entered, left - entered - self._inner, due)
            self._inner = 0.0
            entered = left
        here.set(NOWHERE, entered)
        if not self._nested:
            self._books.spans.put(began, entered)

    def fire_within(self, point: str, *offered: Any) -> None:
        """Do what `fire` does in the middle of something else: of a hook, or of a phase of the iteration."""
        if point in self.at:
            self._within(self.fire, point, *offered)

    def call_within(self, firing: Firing, everything: Sequence[Any]) -> Any:
        """Call one binding in the middle of something else, if it is due, and return what it returns."""
        if firing.is_due():
            return self._within(self._call, firing, everything)
        return None

    def _within(self, call: Callable[..., Result], *args: Any) -> Result:
        """Make a call that fires. Its time is theirs who fire: not the hook's around it, and in no phase twice."""
        here = self._here
        binding, since = here.binding[0], here.times[0]
        in_hook = binding != NOWHERE
        outer, self._inner = self._inner, 0.0
        self._nested += in_hook
        thread, self.thread = self.thread, get_ident()
        began = perf_counter()
        try:
            return call(*args)
        finally:
            self.thread = thread
            self._nested -= in_hook
            self._inner = outer + perf_counter() - began if in_hook else 0.0
            here.set(binding, since)

    def _call(self, firing: Firing, everything: Sequence[Any]) -> Any:
        result = None
        entered = perf_counter()
        self._here.set(firing.binding.id, entered)
        try:
            result = firing.call(everything)
        except BaseException as error:
            self.failed(firing.binding, error)
        left = perf_counter()
        self._books.firings.put(firing.binding.id, entered, left - entered - self._inner, 1.0)
        if not self._nested:
            self._books.spans.put(entered, left)
        return result

    def failed(self, binding: Binding, error: BaseException) -> None:
        """Tell of a hook that raised, and let the exception through if it ends the run. Ctrl-C is no hook's fault."""
        action: OnError = self._plan.hook(binding.hook).on_error if isinstance(error, Exception) else "raise"
        if self._ending and action == "raise":
            action = "ignore"
        told = error is self._told and not self._ending  # of a hook that fired within this one, and ends the run
        if told or isinstance(error, KeyboardInterrupt):
            action = "raise"
        else:
            error = showable(error, f'raised by the hook "{binding.hook}" at {binding.point}')
            self._report(binding, error, action)
        if action == "raise":
            self._told, self._inner = error, 0.0
            self._here.set(NOWHERE, perf_counter())
            raise error
        if action == "disable":
            self.disable(binding.hook)

    def disable(self, hook: str) -> None:
        """Never let the hook fire again, but let what it has entered be left."""
        self.disabled.add(hook)
        for firings in self.at.values():
            for firing in firings:
                if firing.binding.hook == hook and firing.binding.half != "exit":
                    firing.disable()

    def end(self) -> None:
        """From here on no hook that raises keeps others from their turn: the run ends."""
        self._ending = True
