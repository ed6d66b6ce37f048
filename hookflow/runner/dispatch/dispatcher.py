"""The dispatcher: calls the bindings of a point in the order of the plan, and times them.

Inside the iteration `hookflow.runner.dispatch.engine` does the same faster, where nothing special
is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from inspect import signature
from math import inf
from operator import itemgetter
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

from hookflow.errors import UserError
from hookflow.events.now import NO_BINDING, NowMemory
from hookflow.graph.plan import Binding, OnError, Plan
from hookflow.runner.logging.timing import TimingAggregator
from hookflow.runner.process.state import RunState
from hookflow.user_code import make_showable

Call = Callable[[Sequence[Any]], object]
Due = Callable[[], bool]


class TriggerBase:
    """A trigger, which is called to learn whether its binding fires.

    It is not called before `next` iterations are done. This base class fires each time, unless its
    binding is switched off.
    """

    next: float = 0

    def __call__(self) -> bool:
        return True

    def begin_here(self) -> None:
        """Ask again, from where the run is now."""
        self.next = 0


@dataclass(slots=True, eq=False)
class HookCall:
    """A binding, the `method` of its hook, and `call`.

    `call` takes everything that the point offers.

    `due` says whether it fires; None if it always does. Generated code calls `gate` instead. Over
    ranks `announce` is called when it is due, also where the hook is switched off.
    """

    binding: Binding
    method: Callable[..., object]
    call: Call
    due: Due | None = None
    gate: TriggerBase | None = None
    announce: Callable[[], None] | None = None
    _disabled: bool = False

    def is_due(self) -> bool:
        """Return whether the binding fires at this visit of its point."""
        if self.due is not None and not self.due():
            return False
        if self.announce is not None:
            self.announce()
        return not self._disabled

    def disable(self) -> None:
        """Do not fire.

        A condition is still evaluated: the other ranks wait for this one's numbers.
        """
        self._disabled = True
        if self.gate and self.announce is None and self.binding.trigger.when is None:
            self.gate.next = inf

    def enable(self) -> None:
        """Fire again; what was due meanwhile is not made up for."""
        self._disabled = False
        if self.gate:
            self.gate.begin_here()
        if isinstance(self.method, WatchedMethod) and self.method.gate:
            self.method.gate.begin_here()

    def ask_once_per_iteration(self, state: RunState) -> None:
        """Ask once an iteration whether the binding is due.

        PyTorch may call one binding many times in an iteration, once for each module or parameter.
        """
        if self.due is None:
            return
        due = self.due
        asked_at = -1
        answer = False

        def is_due_in_iteration() -> bool:
            nonlocal asked_at, answer
            if asked_at != state.iter:
                asked_at = state.iter
                answer = due()
            return answer

        self.due = is_due_in_iteration


class WatchedMethod:
    """A method to call at every visit.

    It calls `watch`, and then `method` if that is due, with the same arguments.
    """

    def __init__(
        self, watch: Callable[..., object], method: Callable[..., object], gate: TriggerBase | None
    ) -> None:
        update_wrapper(self, method)  # for its signature
        self.watch = watch
        self.method = method
        self.gate = gate

    def __call__(self, *offered: Any, **named: Any) -> None:
        self.watch(*offered, **named)
        if self.gate is None or self.gate():
            self.method(*offered, **named)


def call_with_retries(
    call: Callable[[], object],
    retries: int,
    binding: Binding,
    report: Callable[[Exception, str], object],
) -> object:
    """Call a firing, and again, so many times, while it raises; then its exception propagates.

    A mistake of the user's (UserError) propagates at once: no second call would mend it. `report`
    is called before each retry, with the exception and a line that says so; what it raises
    propagates, too.
    """
    for retry in range(1, retries + 1):
        try:
            return call()
        except UserError:
            raise
        except Exception as error:
            text, *_ = f"{type(error).__name__}: {error}".splitlines()
            raised = f'the hook "{binding.hook}" raised at {binding.point}'
            report(error, f"{raised} and is called again ({retry} of {retries}): {text}")
    return call()


class RetriedMethod:
    """A method that is called again, so many times, while it raises: see `call_with_retries`."""

    def __init__(
        self,
        binding: Binding,
        method: Callable[..., object],
        retries: int,
        report: Callable[[Exception, str], object],
    ) -> None:
        update_wrapper(self, method)  # for its signature
        self.binding = binding
        self.method = method
        self.retries = retries
        self.report = report

    def __call__(self, *offered: Any, **named: Any) -> object:
        call = partial(self.method, *offered, **named)
        return call_with_retries(call, self.retries, self.binding, self.report)


def is_positional(method: Callable[..., object], takes: tuple[str, ...]) -> bool:
    """Return whether the arguments that a method takes can be given by position.

    No argument with a default may stand before.
    """
    if not takes:
        return True
    parameters = [
        p for p in signature(method).parameters.values() if p.kind is not p.VAR_POSITIONAL
    ]
    if not {p.name for p in parameters}.issuperset(takes):
        return True  # its own names for what PyTorch gives by position
    return all(
        p.name == name and p.kind is not p.KEYWORD_ONLY
        for p, name in zip(parameters, takes, strict=False)
    )


def adapt(method: Callable[..., object], takes: tuple[str, ...], offers: tuple[str, ...]) -> Call:
    """Return `method` as a function of the tuple of everything that its point offers.

    `takes` names its arguments out of `offers`, whose first is the run.
    """
    places = [offers.index(name) for name in takes]
    if not is_positional(method, takes):
        return lambda offered: method(
            **{name: offered[place] for name, place in zip(takes, places, strict=True)}
        )
    match places:
        case []:
            return lambda offered: method()
        case [place]:
            return lambda offered: method(offered[place])
    pick = itemgetter(*places)
    return lambda offered: method(*pick(offered))


class DisabledReason(NamedTuple):
    """Why a hook is switched off, and the points at which it fires nevertheless."""

    why: str
    spared: Sequence[str] = ()


Report = Callable[[Binding, BaseException, OnError, int | None], None]
"""Called after a hook has raised.

It is given the binding, the exception, and what becomes of it (raise, disable or ignore). The last
one is the iteration of its firing, where that is not the one under way.
"""


class CurrentHook:
    """Which binding is being called, and since when.

    `binding[0]` is for the runner, and the others are for other processes.

    `ids` and `times` are the memory of a `hookflow.events.now.NowMemory`, if others look.
    """

    __slots__ = ("_shared", "binding", "ids", "times")

    def __init__(self, shared: NowMemory | None = None) -> None:
        self.binding = [NO_BINDING]
        self._shared = shared
        self.ids, self.times = (shared.ids, shared.times) if shared else _make_private_memory()

    def leave(self) -> None:
        """Show nothing any more: the run is over."""
        if self._shared:
            self.ids, self.times = _make_private_memory()
            self._shared.close()

    def set(self, binding: int, since: float) -> None:
        self.times[0] = since
        self.binding[0] = self.ids[0] = binding


def _make_private_memory() -> tuple[memoryview[int], memoryview[float]]:
    return memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("d")


class Dispatcher:
    """Fires the points of one run.

    `at` holds the firings of each, in order, and may still change.
    """

    def __init__(
        self, plan: Plan, timing: TimingAggregator, here: CurrentHook, report: Report
    ) -> None:
        self.at: dict[str, tuple[HookCall, ...]] = {}
        self.run: object = None
        self.disabled: dict[str, DisabledReason] = {}
        """The hooks that are switched off."""
        self.thread = get_ident()
        """The thread that hooks are called in.

        It is the training's, or autograd's while that computes on a GPU.
        """
        self._plan = plan
        self._report = report
        self.timing = timing
        self.clock = timing.timeline.clock
        self.here = here
        self._inner = 0.0
        """Seconds of hooks that have fired within the hook that is being called."""
        self._nested = 0
        """The hooks that are being called and within which others fire."""
        self.ending = False
        """Exceptions of hooks are ignored: the run ends, and every hook has its turn."""
        self._ended_by: BaseException | None = None

    def fire(self, point: str, *offered: Any) -> None:
        """Call every hook that is due at `point`.

        `offered` is what the point offers after the run itself. An exception of a hook propagates,
        with the hook and the point noted on it, if its `on_error` is "raise".
        """
        firings = self.at.get(point)
        if firings:
            self.call_all(firings, (self.run, *offered))

    def call_all(
        self, firings: Sequence[HookCall], everything: Sequence[Any], *, all_due: bool = False
    ) -> Any:
        """Call the firings that are due, or all where `all_due`; return what the last one returns.

        `everything` is what their point offers, the run first. Hooks may change it.
        """
        here = self.here
        put = self.timing.firings.put
        clock = self.clock
        result = None
        began = entered = clock()
        for firing in firings:
            due = all_due or firing.is_due()
            if due:
                here.set(firing.binding.id, entered)
                try:
                    result = firing.call(everything)
                except BaseException as error:
                    result = None
                    self.handle_failure(firing.binding, error)
            left = clock()
            put(firing.binding.id, entered, left - entered - self._inner, due)
            self._inner = 0.0
            entered = left
        here.set(NO_BINDING, entered)
        if not self._nested:
            self.timing.spans.put(began, entered)
        return result

    def fire_within(self, point: str, *offered: Any) -> None:
        """Fire a point in the middle of something else: of a hook, or a phase of the iteration."""
        firings = self.at.get(point)
        if firings:
            self._within(firings, (self.run, *offered), all_due=False)

    def call_within(self, firing: HookCall, everything: Sequence[Any]) -> Any:
        """Call one binding in the middle of something else, if it is due.

        Returns what the binding returns.
        """
        if firing.is_due():
            return self._within((firing,), everything, all_due=True)
        return None

    def _within(
        self, firings: Sequence[HookCall], everything: Sequence[Any], *, all_due: bool
    ) -> Any:
        """Call them in the middle of something else.

        Their time is not part of the time of the hook around them, nor counted twice in a phase.
        """
        here = self.here
        binding = here.binding[0]
        since = here.times[0]
        in_hook = binding != NO_BINDING
        outer = self._inner
        self._inner = 0.0
        self._nested += in_hook
        thread = self.thread
        self.thread = get_ident()
        began = perf_counter()
        try:
            return self.call_all(firings, everything, all_due=all_due)
        finally:
            self.thread = thread
            self._nested -= in_hook
            self._inner = 0.0
            if in_hook:
                self._inner = outer + perf_counter() - began
            here.set(binding, since)

    def handle_failure(self, binding: Binding, error: BaseException, it: int | None = None) -> None:
        """Report a hook that raised, and do what its `on_error` says: raise, disable or ignore.

        A KeyboardInterrupt is raised again and not reported: it is no fault of the hook.

        `it` is the iteration of the firing, where that is not the one under way.
        """
        action: OnError = "raise"
        if isinstance(error, Exception):
            action = self._plan.hook(binding.hook).on_error
        if self.ending and action == "raise":
            action = "ignore"
        # A hook that fired within this one has raised the error, and it was reported there.
        is_reported = error is self._ended_by and not self.ending
        if is_reported or isinstance(error, KeyboardInterrupt):
            action = "raise"
        else:
            error = make_showable(error, f'raised by the hook "{binding.hook}" at {binding.point}')
            self._report(binding, error, action, it)
        if action == "raise":
            self._ended_by = error
            self._inner = 0.0
            self.here.set(NO_BINDING, perf_counter())
            raise error
        if action == "disable":
            self.disable(binding.hook, DisabledReason(f"it raised at {binding.point}"))

    def disable(self, hook: str, off: DisabledReason) -> None:
        """Let a hook fire no more.

        The second half of an `around_X` still runs where the first has run.
        """
        self.disabled[hook] = off
        for firing in self._of(hook):
            if firing.binding.point not in off.spared:
                firing.disable()

    def enable(self, hook: str) -> None:
        del self.disabled[hook]
        for firing in self._of(hook):
            firing.enable()

    def _of(self, hook: str) -> Iterator[HookCall]:
        for firings in self.at.values():
            yield from (
                firing
                for firing in firings
                if firing.binding.hook == hook and firing.binding.half != "exit"
            )
