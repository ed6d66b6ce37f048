"""The observer: records the slots that each firing reads and writes.

A firing within a firing (a hook inside the network during another hook) is observed by itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookflow.graph.observation import Seen, Slots
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import OFFERED, Verb
from hookflow.runner.builder.components import Parts
from hookflow.runner.data.batches import tensors
from hookflow.runner.dispatch.dispatcher import Call
from hookflow.runner.random_state import random_state
from hookflow.runner.run_tensors import Fingerprints, Note, RunTensors, WatchedDict, WatchedRun, address, held, mark

OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "set_", "resize_",
             "_foreach_copy_", "_foreach_zero_"}  # fmt: skip
"""Operators that write a tensor and do not look at what was in it."""

TAKE_OUT = {"numpy", "tolist", "__array__", "__reduce_ex__", "storage", "untyped_storage", "_typed_storage"}
"""Methods that give the contents away without an operator."""


class _Operators(TorchDispatchMode):
    """Notes the memory that operators read and write, by its address."""

    def __init__(self, note: Callable[[Verb, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        provided = kwargs or {}
        for k, argument in enumerate(func._schema.arguments):
            value = provided.get(argument.name) if argument.kwarg_only or k >= len(args) else args[k]
            for tensor in tensors(value):
                at = address(tensor)
                writes = argument.alias_info is not None and argument.alias_info.is_write
                if writes:
                    self._note("writes", at)
                if not (writes and (argument.is_out or func._schema.name.partition("::")[2] in OVERWRITE)):
                    self._note("reads", at)
        return func(*args, **provided)


class _TakenOut(TorchFunctionMode):
    """Notes the memory whose contents are taken out without an operator."""

    def __init__(self, note: Callable[[Verb, int], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in TAKE_OUT:
            for tensor in tensors(args[:1]):
                self._note("reads", address(tensor))
        return func(*args, **(kwargs or {}))


KEYED = ("outputs", "metrics", "checkpoint")
"""The slots among a point's arguments that are mappings, whose keys are parts of the slot."""


@dataclass(slots=True)
class Frame:
    """A firing that is under way: the slots at each address in memory, and how everything was marked before."""

    binding: Binding
    offered: Mapping[str, Any]
    at: dict[int, set[str]] = field(default_factory=dict)
    opaque: Set[int] = frozenset()
    before: dict[str, Hashable] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)
    """The objects at those addresses, kept alive so that the addresses stay unique."""


class Observer:
    """Watches the hooks of one run, in its process and thread. `begin` before they are called, `end` afterwards."""

    def __init__(self, plan: Plan, parts: Parts) -> None:
        self._plan = plan
        self._hooks = parts.hooks
        self._task = parts.task
        self._device = parts.device
        self._tensors = RunTensors(parts)
        self.by_content = self._tensors.by_content
        self._firings = Counter[int]()
        self._touched: dict[Verb, dict[int, set[str]]] = {"reads": defaultdict(set), "writes": defaultdict(set)}
        """The slots that the firings of each binding have touched so far."""
        self._frames: list[Frame] = []
        self._looking = False
        self._metrics: dict[int, tuple[Any, WatchedDict, Mapping[str, Any]]] = {}
        owners = (*parts.optimizers.values(), *parts.data.values(), *parts.hooks.values())
        self._opaque = frozenset(map(id, (parts, parts.task, *parts.model.modules(), *owners)))

    def end(self) -> None:
        """Leave the optimizers as they were."""
        self._tensors.unwatch_groups()

    def run(self, run: Any) -> WatchedRun:
        watched = WatchedRun(run, self)
        self._opaque |= {id(run), id(watched)}
        return watched

    def wrap(self, binding: Binding, call: Call) -> Call:
        names = self._plan.points[binding.point].offers

        def watched(offered: Sequence[Any]) -> object:
            provided = [
                self.watch(name, value)
                if name in KEYED and name in binding.takes and isinstance(value, dict | MappingProxyType)
                else value
                for name, value in zip(names, offered, strict=True)
            ]
            self._enter(Frame(binding, dict(zip(names, provided, strict=True))))
            try:
                if len(self._frames) > 1:
                    return call(provided)
                with _TakenOut(self._operated), _Operators(self._operated):
                    return call(provided)
            finally:
                self._leave()

        return watched

    def observed(self) -> list[Seen]:
        """Return what each binding has touched, in the order of the plan."""
        reads, writes = self._touched["reads"], self._touched["writes"]
        return [
            Seen(each, self._firings[each.id], Slots() | Slots(tuple(reads[each.id]), tuple(writes[each.id])))
            for each in self._plan.bindings
        ]

    def note(self, verb: Verb, slot: str) -> None:
        """Take that the hook that is being called has read or written a slot."""
        if self._frames:
            self._touched[verb][self._frames[-1].binding.id].add(slot)

    def watch(self, root: str, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a mapping that notes who touches it; of metrics the same for the same, since hooks compare them."""
        original = mapping if isinstance(mapping, dict) and root != "hook" else None
        _, inner, made = self._metrics.get(id(mapping), (mapping, None, None))
        if inner is None or made is None:
            inner = WatchedDict(mapping, self._noting(root), original)
            made = MappingProxyType(inner) if original is None else inner
        if root == "metrics":
            inner.take_over(mapping)
            self._metrics[id(mapping)] = mapping, inner, made
        return made

    def _noting(self, root: str) -> Note:
        def note(verb: Verb, key: str | None) -> None:
            for name in self._hooks if root == "hook" and key is None else [key]:
                if root != "hook" or (self._frames and name != self._frames[-1].binding.hook):
                    self.note(verb, root if name is None else f"{root}.{name}")

        return note

    def _operated(self, verb: Verb, at: int) -> None:
        if not self._looking and self._frames and at:
            for slot in self._frames[-1].at.get(at, ()):
                self.note(verb, slot)

    def _enter(self, frame: Frame) -> None:
        with self._look():
            if self._frames:
                self._settle(self._frames[-1])
            self._tensors.watch_groups(self.note)
            self._firings[frame.binding.id] += 1
            self._frames.append(frame)
            self._begin(frame)

    def _leave(self) -> None:
        with self._look():
            self._settle(self._frames.pop())
            if self._frames:
                self._begin(self._frames[-1])

    @contextmanager
    def _look(self) -> Iterator[None]:
        """Look at everything: what operators do meanwhile no hook has done."""
        self._looking = True
        yield
        self._looking = False

    def _begin(self, frame: Frame) -> None:
        """Learn where everything is, and how it is marked."""
        trained = [*self._tensors]
        frame.opaque = self._opaque | {address(tensor) for _, tensor in trained}
        offered = [each for each in self._given_tensors(frame) if address(each[1]) not in frame.opaque]
        frame.at, frame.held = defaultdict(set), [tensor for _, tensor in (*trained, *offered)]
        for slot, tensor in (*trained, *offered):
            frame.at[address(tensor)].add(slot)
        frame.before = dict(self._marks(frame))

    def _settle(self, frame: Frame) -> None:
        """Note what has changed since the firing has begun, or another one within it has ended."""
        now = dict(self._marks(frame))
        changed = {slot for slot in {**frame.before, **now} if frame.before.get(slot) != now.get(slot)}
        self._touched["writes"][frame.binding.id] |= changed

    def _marks(self, frame: Frame) -> Iterator[tuple[str, Hashable]]:
        for slot, marks in self._tensors.marks().items():
            yield slot, frozenset(marks.items())
        yield "rng", frozenset(Fingerprints().of(random_state(self._device)))
        for name, hook in self._hooks.items():
            if hasattr(hook, "__dict__"):
                yield f"hook.{name}", mark(vars(hook), frame.opaque)
        for name, value in getattr(self._task, "__dict__", {}).items():
            yield f"task.{name}", mark(value, frame.opaque)
        for slot, value in _arguments(frame):
            yield slot, mark(value, frame.opaque)

    def _given_tensors(self, frame: Frame) -> Iterator[tuple[str, Tensor]]:
        for slot, value in _arguments(frame):
            yield from ((slot, tensor) for tensor in _tensors_in(value))
        parameter, gradient = frame.offered.get("param"), frame.offered.get("grad")
        if isinstance(parameter, Tensor) and isinstance(gradient, Tensor):
            yield self._tensors.grads_of(parameter), gradient


def _arguments(frame: Frame) -> Iterator[tuple[str, Any]]:
    for name in OFFERED:
        if name in frame.offered and name in frame.binding.takes:
            value = frame.offered[name]
            if isinstance(value, WatchedDict):
                yield from ((f"{name}.{key}", inner) for key, inner in value.quietly().items())
            elif not isinstance(value, MappingProxyType):
                yield name, value


def _tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for _, item in held(value):
            yield from _tensors_in(item, depth - 1)
