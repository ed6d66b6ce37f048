"""The engine: bound methods for bindings, generated functions for points, and arounds."""

import linecache
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.events.now import NO_BINDING
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.hooks.base import Hook
from hookflow.runner.dispatch.dispatcher import (
    Call,
    DisabledReason,
    Dispatcher,
    Due,
    HookCall,
    RetriedMethod,
    TriggerBase,
    WatchedMethod,
    adapt,
    is_positional,
)
from hookflow.runner.dispatch.offload import BackgroundExecutor
from hookflow.runner.logging.timing import RowBuffer
from hookflow.runner.process.signals import Rewind
from hookflow.runner.process.state import RunState


def can_be_generated(plan: Plan, point: Point, firings: Sequence[HookCall]) -> bool:
    """Return whether these firings of a point are plain enough to be generated.

    Nothing in the plan may fire within something else.
    """
    nested = any(plan.at(other.name) for other in plan.points if other.nested)
    if nested or point.unit != "it" or point.kind not in ("standard", "step"):
        return False
    return all(map(_is_plain, firings))


def _is_plain(firing: HookCall) -> bool:
    """Return whether generated code can call a firing.

    Its gate compares iterations, and it neither changes the batch nor makes requests.
    """
    binding = firing.binding
    trigger = binding.trigger
    if binding.half != "whole" or trigger.when is not None or firing.announce is not None:
        return False
    if "batch" in binding.writes or "control" in binding.writes:
        return False
    amounts = (trigger.every, trigger.since, trigger.until)
    return not any(amount and amount.unit == "s" for amount in amounts)


def generate(
    point: Point, firings: Sequence[HookCall], dispatcher: Dispatcher, state: RunState
) -> Callable[..., None]:
    """Return a function that calls the firings and books their time.

    It takes what the point offers after the run.
    """
    rows = RowBuffer(len(firings) + 1)
    here = dispatcher.here
    names: dict[str, Any] = {
        "_run": dispatcher.run,
        "_state": state,
        "_clock": dispatcher.clock,
        "_handle_failure": dispatcher.handle_failure,
        "_here": here.binding,
        "_ids": here.ids,
        "_times": here.times,
        "_rows": rows,
        "_pack": rows.pack,
        "_end": rows.end,
    }
    for firing in firings:
        id_ = firing.binding.id
        method = firing.method
        if isinstance(method, WatchedMethod):
            names |= {f"_watch{id_}": method.watch, f"_due{id_}": method.gate}
            method = method.method
        names |= {
            f"_method{id_}": method,
            f"_binding{id_}": firing.binding,
            f"_gate{id_}": firing.gate,
        }
    source = "\n".join(_iter_source_lines(point, firings, rows))
    file = f"{__file__}:{point.name}"
    # Tracebacks find the lines of the generated source here.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)  # noqa: S102  # the source is ours: names of bindings are numbers in it
    dispatcher.timing.points.append((tuple(firing.binding.id for firing in firings), rows))
    made: Callable[..., None] = names[point.name]
    return made


def _iter_source_lines(point: Point, firings: Sequence[HookCall], rows: RowBuffer) -> Iterator[str]:
    yield f"def {point.name}({', '.join(point.offers[1:])}):"
    yield "    _t0 = _clock()"
    for k, firing in enumerate(firings):
        if firing.gate is None:
            yield from _iter_call_lines(firing, k, "    ")
        else:
            yield f"    if {_make_gate_test(f'_gate{firing.binding.id}')}:"
            yield from _iter_call_lines(firing, k, "        ")
            yield "    else:"
            yield f"        _t{k + 1} = _t{k}"
    yield f"    _here[0] = _ids[0] = {NO_BINDING}"
    yield "    _chunk = _rows.chunk"
    yield "    _at = _chunk.at"
    yield f"    _pack(_chunk.data, _at, {', '.join(f'_t{k}' for k in range(len(firings) + 1))})"
    yield f"    _chunk.at = _at = _at + {rows.size}"
    yield "    if _at >= _end:"
    yield "        _rows.turn()"


def _iter_call_lines(firing: HookCall, k: int, indent: str) -> Iterator[str]:
    id_ = firing.binding.id
    arguments = _write_arguments(firing)
    call = f"_method{id_}({arguments})"
    yield f"{indent}_times[0] = _t{k}"
    yield f"{indent}_here[0] = _ids[0] = {id_}"
    yield f"{indent}try:"
    if isinstance(firing.method, WatchedMethod):
        yield f"{indent}    _watch{id_}({arguments})"
        if firing.method.gate:
            call = f"if {_make_gate_test(f'_due{id_}')}: {call}"
    yield f"{indent}    {call}"
    yield f"{indent}except BaseException as _error:"
    yield f"{indent}    _handle_failure(_binding{id_}, _error)"
    yield f"{indent}_t{k + 1} = _clock()"


def _write_arguments(firing: HookCall) -> str:
    takes = firing.binding.takes
    values = {name: name for name in takes}
    if "run" in values:
        values["run"] = "_run"
    if is_positional(firing.method, takes):
        return ", ".join(values.values())
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _make_gate_test(gate: str) -> str:
    return f"_state.iter >= {gate}.next and {gate}()"


class OpenArounds:
    """The `around_X` whose first half has run and whose second half has not.

    `resumed` names the hooks that a resumed run enters again. `error` is the exception that ends
    the run, as `sys.exc_info` has it. It is thrown into each generator that is left from then on.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.open: list[tuple[Binding, AbstractContextManager[None]]] = []
        self.error: tuple[Any, Any, Any] = (None, None, None)
        self.resumed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.open)

    def enter(
        self,
        binding: Binding,
        make: Callable[[Sequence[Any]], AbstractContextManager[None]],
        offered: Sequence[Any],
    ) -> None:
        """Run the first half. Raises UserError when the generator does not yield."""
        around = make(offered)
        with _require_one_yield(binding, around):
            around.__enter__()
        self.open.append((binding, around))

    def leave(self, binding: Binding, offered: Sequence[Any]) -> None:
        """Run the second half of the around that this binding entered last.

        Raises UserError when its generator yields once more.
        """
        for entry in reversed(self.open):
            entered, around = entry
            if around_key(entered) == around_key(binding):
                self.open.remove(entry)
                with _require_one_yield(entered, around):
                    around.__exit__(*self.error)
                return

    def is_open(self, binding: Binding) -> bool:
        return any(around_key(entered) == around_key(binding) for entered, _ in self.open)

    def is_resumed(self, binding: Binding) -> bool:
        return binding.hook in self.resumed

    def list_entered(self, point: str) -> list[str]:
        """Return the hooks that have been entered at `point` and not left, in the plan's order.

        Those that a resumed run enters again count as entered.
        """
        open_here = {binding.hook for binding, _ in self.open if binding.point == point}
        entered = open_here | self.resumed
        return [
            binding.hook
            for binding in self._plan.at(point)
            if binding.hook in entered and binding.half == "enter"
        ]


@contextmanager
def _require_one_yield(binding: Binding, around: Any) -> Iterator[None]:
    """Raise UserError with the place of the method where its generator does not yield once.

    `contextmanager` raises RuntimeError then.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("generator didn't "):
            raise
        wrong = "returns before its yield"
        if "stop" in str(error):
            wrong = "yields a second time"
        where = Where(around.gen.gi_code.co_filename, around.gen.gi_code.co_firstlineno)
        raise UserError(Problem(f"{binding.method} {wrong}, and must yield once", where)) from None


def around_key(binding: Binding) -> tuple[str, str]:
    """Return what the two halves of an `around_X` have in common: the hook and its method."""
    return binding.hook, binding.method


class DispatchEngine:
    """The hooks of one run. Nothing fires before `bind` is given the run.

    Hooks with `ranks = "zero"` are called where `rank` is 0.
    """

    on_request: Callable[[], None] | None = None
    """Called on all ranks when a hook is due that may make a request.

    Such a hook writes "control" or "checkpoint".
    """

    on_retry: Callable[[Exception, str], object] = staticmethod(lambda error, text: None)
    """Called before a hook that has raised is called again."""

    def __init__(
        self,
        plan: Plan,
        hooks: Mapping[str, Any],
        gates: Mapping[int, TriggerBase],
        state: RunState,
        dispatcher: Dispatcher,
        rank: int = 0,
    ) -> None:
        self.plan = plan
        self.dispatcher = dispatcher
        self.arounds = OpenArounds(plan)
        self._hooks = hooks
        self._gates = gates
        self._state = state
        self._rank = rank
        self._own = {point.name: point.offers[1:] for point in plan.own}
        self._closings: dict[tuple[str, str], HookCall] = {}
        self._calls: dict[str, Callable[..., None]] = {}
        self._generated: set[str] = set()
        self.offloaded: BackgroundExecutor | None = None

    def bind(
        self,
        run: object,
        wrap: Callable[[Binding, Call], Call] | None = None,
        executor: BackgroundExecutor | None = None,
    ) -> None:
        """Make every binding ready to be called with this run.

        `wrap` puts something around each call; then the readable dispatcher fires every point.
        `executor` fires the offloaded hooks; without it the training thread does.
        """
        self.dispatcher.run = run
        self.offloaded = executor
        at: dict[str, list[HookCall]] = defaultdict(list)
        for binding in self.plan.bindings:
            if self._rank and self.plan.hook(binding.hook).ranks == "zero":
                continue
            firing = self._make_hook_call(binding)
            if wrap:
                firing.call = wrap(binding, firing.call)
            at[binding.point].append(firing)
            if binding.half == "exit":
                self._closings[around_key(binding)] = firing
            elif binding.half == "enter":
                again = HookCall(
                    binding, firing.method, firing.call, partial(self.arounds.is_resumed, binding)
                )
                at[f"again {binding.point}"].append(again)
        self.dispatcher.at = {name: tuple(firings) for name, firings in at.items()}
        self._calls = {name: partial(self.dispatcher.fire, name) for name in self.dispatcher.at}
        for name, firings in self.dispatcher.at.items():
            if (
                not wrap
                and name in self.plan.points
                and can_be_generated(self.plan, self.plan.points[name], firings)
            ):
                self._generated.add(name)
                self._generate(name)
        if executor:
            executor.check()

    def _generate(self, point: str) -> None:
        """Generate the function of a point, from the hooks that are not switched off."""
        firings = [
            each
            for each in self.firings(point)
            if each.binding.hook not in self.dispatcher.disabled
        ]
        self._calls[point] = generate(
            self.plan.points[point], firings, self.dispatcher, self._state
        )

    def switch(self, hook: str, off: DisabledReason | None = None) -> None:
        """Switch a hook off, for the reason `off`, or on again.

        A function that `call` has returned before still behaves as before.
        """
        if off:
            self.dispatcher.disable(hook, off)
        else:
            self.dispatcher.enable(hook)
        for point in {
            binding.point for binding in self.plan.bindings if binding.hook == hook
        } & self._generated:
            self._generate(point)

    def _make_hook_call(self, binding: Binding) -> HookCall:
        hook = self._hooks[binding.hook]
        planned = self.plan.hook(binding.hook)
        if binding.method:
            method = getattr(hook, binding.method)
        else:
            method = hook
        if self.offloaded:
            method = self.offloaded.method(binding, method)
        if planned.retry and not (self.offloaded and binding.beside):  # whose thread calls it again
            method = RetriedMethod(binding, method, planned.retry, self.on_retry)
        gate = self._gates.get(binding.id)
        if isinstance(hook, Hook) and (watch := hook.watches.get(binding.method)):
            method = WatchedMethod(getattr(hook, watch), method, gate)
            gate = None
        if gate is None and planned.on_error == "disable":
            gate = TriggerBase()
        due: Due | None = gate
        if binding.half == "exit":
            due = partial(self.arounds.is_open, binding)
        call = adapt(method, binding.takes, self.plan.points[binding.point].offers)
        if binding.half == "enter":
            generator: Callable[[Sequence[Any]], Any] = call
            call = partial(self.arounds.enter, binding, contextmanager(generator))
        elif binding.half == "exit":
            call = partial(self.arounds.leave, binding)
        asks = planned.ranks != "zero" and not {"control", "checkpoint"}.isdisjoint(binding.writes)
        announce = None
        if asks and self.plan.points.in_iteration(binding.point):
            announce = self.on_request
        return HookCall(binding, method, call, due, gate, announce)

    def call(self, point: str) -> Callable[..., None] | None:
        """Return the function that fires a point.

        It takes what the point offers after the run, and is None where nothing is bound.
        """
        return self._calls.get(point)

    def fire(self, point: str, *offered: Any) -> None:
        """Call every hook that is due at `point`.

        `offered` is what the point offers after the run itself.
        """
        call = self._calls.get(point)
        if call:
            call(*offered)

    def firings(self, point: str) -> tuple[HookCall, ...]:
        return self.dispatcher.at.get(point, ())

    def fire_own(self, point: str, *offered: Any) -> None:
        """Fire a point that the pipeline declares.

        Raises UserError for another, and for a wrong number of values.
        """
        offers = self._own.get(point)
        if offers is None or len(offered) != len(offers):
            raise UserError(self._make_firing_problem(point, len(offered)))
        if point in self.dispatcher.at:
            self.dispatcher.fire_within(point, *offered)

    def _make_firing_problem(self, point: str, given: int) -> Problem:
        """Return why a point cannot be fired with so many values."""
        offers = self._own.get(point)
        if offers is not None:
            names = ""
            if offers:
                names = f": {', '.join(offers)}"
            return Problem(
                f"{point} offers {len(offers)} beside the run{names}; it has been fired with"
                f" {given}"
            )
        if point in self.plan.points:
            return Problem(f"{point} cannot be fired by a hook: the run itself fires it")
        hint = nearest(point, self._own) or f"declare it: [points.{point}]"
        return Problem(f'this pipeline has no point "{point}" of its own', hint=hint)

    @property
    def current(self) -> Binding | None:
        """The binding that is being called; None outside of all hooks."""
        id_ = self.dispatcher.here.binding[0]
        if id_ == NO_BINDING:
            return None
        return self.plan.bindings[id_]

    def enter_again(self, point: str) -> None:
        """Run the first halves of the arounds at `point` that a resumed run was inside of.

        No other hook of the point is called.
        """
        self.dispatcher.fire(f"again {point}")
        self.arounds.resumed = frozenset()

    def leave(self, entered: int) -> None:
        """Run the second halves of all but the first `entered` open arounds, the latest first."""
        while len(self.arounds) > entered:
            closing = self._closings[around_key(self.arounds.open[-1][0])]
            self.dispatcher.call_within(closing, ())

    def state_dict(self) -> dict[str, Any]:
        """Return the hooks that a run resumed within an epoch enters again, and disabled ones."""
        disabled = {
            hook: [off.why, [*off.spared]] for hook, off in self.dispatcher.disabled.items()
        }
        return {
            "entered": self.arounds.list_entered("before_train_epoch"),
            "disabled": disabled,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Take back what `state_dict` returned.

        Returns the hooks that stay switched off, and why.
        """
        self.arounds.resumed = frozenset(state["entered"])
        known = {hook.name for hook in self.plan.hooks}
        disabled = {
            hook: DisabledReason(*off) for hook, off in state["disabled"].items() if hook in known
        }
        for hook, off in disabled.items():
            self.switch(hook, off)
        return {hook: off.why for hook, off in disabled.items()}

    def settle(self) -> None:
        """Wait for the offloaded hooks, and report what they have raised."""
        if self.offloaded:
            self.offloaded.settle()

    def cut(self, entered: int) -> None:
        """Leave the arounds of an epoch that is cut short, as `leave` does.

        A run that resumes within the epoch enters the same hooks again.
        """
        inside = frozenset(self.arounds.list_entered("before_train_epoch"))
        self.leave(entered)
        self.arounds.resumed = inside

    def throw_into_arounds(self, error: BaseException) -> None:
        """Throw an exception into all open arounds, the latest first.

        Exceptions of hooks are ignored from here on.
        """
        self.dispatcher.ending = True
        if isinstance(error, Exception | Rewind):  # the others end the run at once
            self.settle()
        traceback = error.__traceback__
        self.arounds.error = type(error), error, traceback
        self.leave(0)
        error.__traceback__ = traceback  # without the frames of the generators
