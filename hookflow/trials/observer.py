"""The observer: records the slots that each firing reads and writes.

A firing within a firing (a hook inside the network during another hook) is observed by itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookflow.graph.observation import ObservedBinding, Slots
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import ARGUMENT_SLOTS, Verb
from hookflow.runner.builder.components import RunComponents
from hookflow.runner.data.batches import iter_tensors
from hookflow.runner.device.random_state import random_state
from hookflow.runner.dispatch.dispatcher import Call
from hookflow.trials.run_tensors import (
    Note,
    RunTensors,
    TensorFingerprints,
    WatchedDict,
    WatchedRun,
    address,
    iter_held,
    mark,
)

OVERWRITING_OPERATORS = {
    "copy_",
    "fill_",
    "zero_",
    "normal_",
    "uniform_",
    "bernoulli_",
    "random_",
    "set_",
    "resize_",
    "_foreach_copy_",
    "_foreach_zero_",
}
"""Operators that write a tensor and do not look at what was in it."""

CONTENT_METHODS = {
    "numpy",
    "tolist",
    "__array__",
    "__reduce_ex__",
    "storage",
    "untyped_storage",
    "_typed_storage",
}
"""Methods that give the contents away without an operator."""


class _OperatorWatch(TorchDispatchMode):
    """Notes the memory that operators read and write, by its address."""

    def __init__(self, note: Callable[[Verb, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        provided = kwargs or {}
        for k, argument in enumerate(func._schema.arguments):
            if argument.kwarg_only or k >= len(args):
                value = provided.get(argument.name)
            else:
                value = args[k]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            _, _, operator = func._schema.name.partition("::")
            reads = not (writes and (argument.is_out or operator in OVERWRITING_OPERATORS))
            for tensor in iter_tensors(value):
                memory = address(tensor)
                if writes:
                    self._note("writes", memory)
                if reads:
                    self._note("reads", memory)
        return func(*args, **provided)


class _ContentWatch(TorchFunctionMode):
    """Notes the memory whose contents are taken out without an operator."""

    def __init__(self, note: Callable[[Verb, int], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in CONTENT_METHODS:
            for tensor in iter_tensors(args[:1]):
                self._note("reads", address(tensor))
        return func(*args, **(kwargs or {}))


KEYED_SLOTS = ("outputs", "metrics", "checkpoint")
"""The slots among a point's arguments that are mappings, whose keys are parts of the slot."""


@dataclass(slots=True)
class FiringFrame:
    """A firing that is under way.

    It has the slots at each address in memory, and how everything was marked before.
    """

    binding: Binding
    offered: Mapping[str, Any]
    at: dict[int, set[str]] = field(default_factory=dict)
    opaque: Set[int] = frozenset()
    before: dict[str, Hashable] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)
    """The objects at those addresses, kept alive so that the addresses stay unique."""


@dataclass(frozen=True, slots=True)
class WatchedMetrics:
    """Metrics of the run, their watched copy, and how hooks get it.

    They are kept alive so that their id stays unique.
    """

    original: Mapping[str, Any]
    watched: WatchedDict
    given: Mapping[str, Any]


class HookObserver:
    """Watches the hooks of one run, in its process and thread.

    `begin` before they are called, `end` afterwards.
    """

    def __init__(self, plan: Plan, parts: RunComponents) -> None:
        self._plan = plan
        self._hooks = parts.hooks
        self._task = parts.task
        self._device = parts.device
        self._tensors = RunTensors(parts)
        self.by_content = self._tensors.by_content
        self._firings = Counter[int]()
        self._touched: dict[Verb, dict[int, set[str]]] = {
            "reads": defaultdict(set),
            "writes": defaultdict(set),
        }
        """The slots that the firings of each binding have touched so far."""
        self._frames: list[FiringFrame] = []
        self._looking = False
        self._metrics: dict[int, WatchedMetrics] = {}
        """By the id of the run's mapping."""
        owners = (*parts.optimizers.values(), *parts.data.values(), *parts.hooks.values())
        opaque = (parts, parts.task, *parts.model.modules(), *owners)
        self._opaque = frozenset(id(item) for item in opaque)

    def end(self) -> None:
        """Leave the optimizers as they were."""
        self._tensors.remove_group_watches()

    def run(self, run: Any) -> WatchedRun:
        watched = WatchedRun(run, self)
        self._opaque |= {id(run), id(watched)}
        return watched

    def wrap(self, binding: Binding, call: Call) -> Call:
        names = self._plan.points[binding.point].offers

        def watched(offered: Sequence[Any]) -> object:
            provided = []
            for name, value in zip(names, offered, strict=True):
                if (
                    name in KEYED_SLOTS
                    and name in binding.takes
                    and isinstance(value, dict | MappingProxyType)
                ):
                    value = self.watch(name, value)
                provided.append(value)
            self._enter(FiringFrame(binding, dict(zip(names, provided, strict=True))))
            try:
                if len(self._frames) > 1:
                    return call(provided)
                with _ContentWatch(self._record_memory), _OperatorWatch(self._record_memory):
                    return call(provided)
            finally:
                self._leave()

        return watched

    def observed(self) -> list[ObservedBinding]:
        """Return what each binding has touched, in the order of the plan."""
        observed = []
        for binding in self._plan.bindings:
            reads = tuple(self._touched["reads"][binding.id])
            writes = tuple(self._touched["writes"][binding.id])
            slots = Slots() | Slots(reads, writes)
            observed.append(ObservedBinding(binding, self._firings[binding.id], slots))
        return observed

    def note(self, verb: Verb, slot: str) -> None:
        """Take that the hook that is being called has read or written a slot."""
        if self._frames:
            self._touched[verb][self._frames[-1].binding.id].add(slot)

    def watch(self, root: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a mapping that notes who touches it.

        For the same metrics it is the same, since hooks compare them.
        """
        known = self._metrics.get(id(mapping))
        if known is not None:
            if root == "metrics":
                known.watched.take_over(mapping)
            return known.given
        given: Mapping[str, Any]
        if isinstance(mapping, dict) and root != "hook":
            watched = WatchedDict(mapping, self._make_note(root), mapping)
            given = watched
        else:
            watched = WatchedDict(mapping, self._make_note(root))
            given = MappingProxyType(watched)
        if root == "metrics":
            self._metrics[id(mapping)] = WatchedMetrics(mapping, watched, given)
        return given

    def _make_note(self, root: str) -> Note:
        """Return what notes the keys of a mapping that are read or written."""

        def note(verb: Verb, key: str | None) -> None:
            if key is None:
                self.note(verb, root)
            else:
                self.note(verb, f"{root}.{key}")

        def note_other_hooks(verb: Verb, key: str | None) -> None:
            hooks: Iterable[str] = self._hooks
            if key is not None:
                hooks = [key]
            for hook in hooks:
                if self._frames and hook != self._frames[-1].binding.hook:
                    self.note(verb, f"hook.{hook}")

        if root == "hook":
            return note_other_hooks
        return note

    def _record_memory(self, verb: Verb, memory: int) -> None:
        """Note the slots at an address in memory that the current hook has read or written."""
        if not self._looking and self._frames and memory:
            for slot in self._frames[-1].at.get(memory, ()):
                self.note(verb, slot)

    def _enter(self, frame: FiringFrame) -> None:
        with self._ignore_operators():
            if self._frames:
                self._settle(self._frames[-1])
            self._tensors.watch_groups(self.note)
            self._firings[frame.binding.id] += 1
            self._frames.append(frame)
            self._begin(frame)

    def _leave(self) -> None:
        with self._ignore_operators():
            self._settle(self._frames.pop())
            if self._frames:
                self._begin(self._frames[-1])

    @contextmanager
    def _ignore_operators(self) -> Iterator[None]:
        """Look at everything: what operators do meanwhile no hook has done."""
        self._looking = True
        yield
        self._looking = False

    def _begin(self, frame: FiringFrame) -> None:
        """Learn where everything is, and how it is marked."""
        located = list(self._tensors)  # slots with their tensors
        frame.opaque = self._opaque | {address(tensor) for _, tensor in located}
        for slot, tensor in self._given_tensors(frame):
            if address(tensor) not in frame.opaque:
                located.append((slot, tensor))
        frame.held = [tensor for _, tensor in located]
        frame.at = defaultdict(set)
        for slot, tensor in located:
            frame.at[address(tensor)].add(slot)
        frame.before = dict(self._marks(frame))

    def _settle(self, frame: FiringFrame) -> None:
        """Note what has changed since the firing has begun, or another one within it has ended."""
        now = dict(self._marks(frame))
        written = self._touched["writes"][frame.binding.id]
        for slot in frame.before.keys() | now.keys():
            if frame.before.get(slot) != now.get(slot):
                written.add(slot)

    def _marks(self, frame: FiringFrame) -> Iterator[tuple[str, Hashable]]:
        for slot, marks in self._tensors.marks().items():
            yield slot, frozenset(marks.items())
        yield "rng", frozenset(TensorFingerprints().of(random_state(self._device)))
        for name, hook in self._hooks.items():
            if hasattr(hook, "__dict__"):
                yield f"hook.{name}", mark(vars(hook), frame.opaque)
        for name, value in getattr(self._task, "__dict__", {}).items():
            yield f"task.{name}", mark(value, frame.opaque)
        for slot, value in _iter_arguments(frame):
            yield slot, mark(value, frame.opaque)

    def _given_tensors(self, frame: FiringFrame) -> Iterator[tuple[str, Tensor]]:
        for slot, value in _iter_arguments(frame):
            for tensor in _iter_tensors(value):
                yield slot, tensor
        parameter = frame.offered.get("param")
        gradient = frame.offered.get("grad")
        if isinstance(parameter, Tensor) and isinstance(gradient, Tensor):
            yield self._tensors.find_grads_slot(parameter), gradient


def _iter_arguments(frame: FiringFrame) -> Iterator[tuple[str, Any]]:
    for name in ARGUMENT_SLOTS:
        if name not in frame.offered or name not in frame.binding.takes:
            continue
        value = frame.offered[name]
        if isinstance(value, WatchedDict):
            for key, item in value.copy_unwatched().items():
                yield f"{name}.{key}", item
        elif not isinstance(value, MappingProxyType):
            yield name, value


def _iter_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for _, item in iter_held(value):
            yield from _iter_tensors(item, depth - 1)
