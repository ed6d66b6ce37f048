"""A binding made ready to be called: which arguments its method takes is settled here, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from math import inf
from operator import itemgetter
from typing import Any, Protocol

from hookflow.graph.plan import Binding
from hookflow.runner.state import RunState

Call = Callable[[Sequence[Any]], object]
Due = Callable[[], bool]


class Gate(Protocol):
    """What is asked whether a binding fires: not before `next` iterations are done, and then by calling it."""

    next: float

    def __call__(self) -> bool:
        """Say whether it fires at this visit."""


class Switch:
    """The gate of a binding without a trigger that may be switched off."""

    next: float = 0

    def __call__(self) -> bool:
        return True


class Firing:
    """A binding, the `method` of its hook, and `call`, which takes everything that the point offers.

    `due` says whether it fires; None if it always does. `gate` is what generated code asks instead. `announce` is
    called when it is due, over ranks where all must know of it: also on one where the hook is switched off.
    """

    __slots__ = ("_disabled", "announce", "binding", "call", "due", "gate", "method")

    def __init__(
        self,
        binding: Binding,
        method: Callable[..., object],
        call: Call,
        due: Due | None = None,
        gate: Gate | None = None,
        announce: Callable[[], None] | None = None,
    ) -> None:
        self.binding = binding
        self.method = method
        self.call = call
        self.due = due
        self.gate = gate
        self.announce = announce
        self._disabled = False

    def is_due(self) -> bool:
        """Say whether the binding fires at this visit of its point."""
        if self.due is not None and not self.due():
            return False
        if self.announce is not None:
            self.announce()
        return not self._disabled

    def disable(self) -> None:
        """Never fire again. A condition is asked all the same: over ranks, the others wait for this one's numbers."""
        self._disabled = True
        if self.gate and self.announce is None and self.binding.trigger.when is None:
            self.gate.next = inf

    def ask_once_per_iteration(self, state: RunState) -> None:
        """Ask once an iteration whether it is due: what is said holds for all that the binding fires on."""
        if self.due is None:
            return
        due, asked, answer = self.due, -1, False

        def same() -> bool:
            nonlocal asked, answer
            if asked != state.iter:
                asked, answer = state.iter, due()
            return answer

        self.due = same


def watched(watch: Callable[..., object], method: Callable[..., object], due: Due | None) -> Callable[..., object]:
    """Return a method as one to call at every visit: that calls `watch`, and then the method if it is due."""

    @wraps(method)
    def both(*offered: Any, **named: Any) -> None:
        watch(*offered, **named)
        if due is None or due():
            method(*offered, **named)

    return both


def by_position(method: Callable[..., object], takes: tuple[str, ...]) -> bool:
    """Say whether the arguments that a method takes can be given by position: none with a default stands before."""
    if not takes:
        return True
    parameters = [p for p in signature(method).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    if not {p.name for p in parameters}.issuperset(takes):
        return True  # its own names for what PyTorch gives by position
    return all(p.name == name and p.kind is not p.KEYWORD_ONLY for p, name in zip(parameters, takes, strict=False))


def adapt(method: Callable[..., object], takes: tuple[str, ...], offers: tuple[str, ...], run: object) -> Call:
    """Return `method` as a function of the tuple of everything that its point offers.

    `takes` names its arguments out of `offers`, whose first is the run.
    """
    places = [offers.index(name) for name in takes]
    if not by_position(method, takes):
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
