"""Offloaded hooks: each fires in a thread of its own, on copies of what it reads, while the training goes on.

A firing copies in the training thread and returns. Hooks that fire at one point share the copy of the network, and each
thread copies that once more. A hook's firings stay in their order; those of several hooks run side by side. Errors come
home at the next firing or safe point, and `settle` waits until nothing is left to do.
The thread of a hook that has a process sends the copies there, and waits for it.
"""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from threading import Condition
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hookflow.errors import Problem, UserError, Where
from hookflow.events.records import Level
from hookflow.graph.offload import awaited
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.graph.slots import root
from hookflow.hooks.tensors import is_sharded
from hookflow.numbers import lasting
from hookflow.runner.cuda import device_thread, record_stream

if TYPE_CHECKING:
    from threading import Thread

    from hookflow.runner.dispatch.hook_process import HookProcess

HEARS = 1.0
"""Seconds between the waits for a thread: Python handles a signal between them."""

SLOW_WAIT = 10.0
"""Seconds that the training waits for a hook before a message names it; another follows each time that has doubled."""

SWITCH = 20e-6
"""Seconds after which a thread that computes in Python lets another one go on, while hooks have threads. The training
thread lets go of Python in each operation of torch, and would get it back after Python's own 5 ms."""

PLAIN = (str, bytes, int, float, bool, type(None))

Failed = Callable[[Binding, BaseException, int | None], None]
Say = Callable[[str, Level], None]


@dataclass(slots=True)
class Job:
    """A firing that waits: what to call, and the network as it was then, if the hook reads it."""

    binding: Binding
    it: int
    call: Callable[[], object]
    shared: SharedCopy | None
    copied: torch.cuda.Event | None
    copies: Sequence[Tensor] = ()
    """The tensors among the arguments of `call`."""


class SharedCopy:
    """A copy of the network that several hooks read, and none may change."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network


class ModelCopies:
    """Copies of a network; their memory is used again when no firing needs them."""

    def __init__(self, model: nn.Module, *, grads: bool) -> None:
        self._model, self._grads = model, grads
        self._spare = deque([copy.deepcopy(model)])  # before hooks are registered in it
        self._taken: Callable[[], SharedCopy | None] = lambda: None
        self._moment: object = None
        self.pattern = self._spare[0]

    def take(self, visit: object) -> SharedCopy:
        """Return a copy of the network as it is now: of one visit of a point the same one, unless it has changed."""
        tensors = [*_tensors(self._model)]
        tensors += [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        moment = visit, [(id(each), -1 if each.is_inference() else each._version) for each in tensors]
        if (shared := self._taken()) is None or moment != self._moment:
            network = self._spare.pop() if self._spare else copy.deepcopy(self.pattern)
            self.copy(self._model, network)
            shared, self._moment = SharedCopy(network), moment
            finalize(shared, self._spare.append, network)
            self._taken = ref(shared)
        return shared

    def copy(self, network: nn.Module, twin: nn.Module) -> None:
        """Give a twin the values and modes of a network, and its gradients where hooks read them."""
        with torch.no_grad():
            for mine, its in zip(_tensors(network), _tensors(twin), strict=True):
                its.copy_(mine, non_blocking=True)
                if self._grads:
                    its.grad = None if mine.grad is None else mine.grad.detach().clone()
        for here, there in zip(network.modules(), twin.modules(), strict=True):
            there.training = here.training


def _tensors(model: nn.Module) -> Sequence[Tensor]:
    return [*model.parameters(), *model.buffers()]


def copied(value: Any) -> Any:
    """Return a copy of what a point offers, without its graph; tensors stay on their device."""

    def leaf(each: Any) -> Any:
        if isinstance(each, Tensor):
            return each.detach().clone()
        return each if isinstance(each, PLAIN) else copy.deepcopy(each)

    return tree_map(leaf, value)


def _nbytes(copies: Any) -> int:
    """Return the bytes of all tensors; of a network, with their gradients."""
    tensors: Sequence[Any] = _tensors(copies) if isinstance(copies, nn.Module) else tree_leaves(copies)
    sizes = (
        each.nbytes + (each.grad.nbytes if each.grad is not None else 0) for each in tensors if isinstance(each, Tensor)
    )
    return sum(sizes)


class Worker:
    """The thread of one hook, and the firings that wait for it. `say` is told for how long the training waits."""

    def __init__(self, hook: PlannedHook, models: ModelCopies | None, failed: Callable[[], None], say: Say) -> None:
        self.hook, self.models = hook, models
        self._say = say
        self.process: HookProcess | None = None
        self.twin = copy.deepcopy(models.pattern) if models and not hook.in_process else None
        """The network that a hook in a thread is given, with the values of the firing."""
        self.failures: deque[tuple[Binding, int, BaseException]] = deque()
        self.dropped = 0
        self._failed = failed
        self._jobs: deque[Job | None] = deque()  # None: the thread ends
        self._changed = Condition()
        self._running: tuple[Job, float] | None = None
        """The firing that runs, and when it began."""
        self._latest: tuple[Binding, int] | None = None
        self._given_up = False
        """Whether that firing has taken longer than the hook's timeout."""
        self._thread: Thread | None = None
        self._stream: torch.cuda.Stream | None = None
        self._times: dict[int, list[int]] = {}  # by binding: firings, ns, longest ns

    def makes_room(self) -> bool:
        """Wait until there is room for a firing, or make it, as `when_full` says; return whether there is."""
        with self._changed:
            self._wait_while(self._waits_for_room)
            if self._is_full():
                self.dropped += 1
                if self._given_up or self.hook.when_full == "drop":
                    return False
                self._jobs.popleft()
            has_failed = bool(self.failures) and self.hook.on_error != "ignore"  # which ends the run, or the hook
            if has_failed:
                self.dropped += 1
        return not has_failed

    def _is_full(self) -> bool:
        return len(self._jobs) >= self.hook.queue or self._given_up

    def _waits_for_room(self) -> bool:
        if not self._is_full():
            return False
        if self._given_up:
            return self.process is not None  # which is ended, and its firing with it
        return self.hook.when_full == "wait"

    def _is_busy(self) -> bool:
        """Return whether a firing is not done, and will be: a thread that is given up may never end."""
        has_work = bool(self._jobs) or self._running is not None
        return has_work and (self.process is not None or not self._given_up)

    def _wait_while(self, is_held_up: Callable[[], bool]) -> None:
        """Let the training thread wait, and name the hook where that takes long: it may hang for ever."""
        began = monotonic()
        notice_after = SLOW_WAIT
        while is_held_up():
            self._changed.wait(HEARS)
            self.check_time()
            waited = monotonic() - began
            if waited >= notice_after and is_held_up():
                notice_after = 2 * waited
                self._say(self._wait_notice(waited), "warn")

    def _wait_notice(self, waited: float) -> str:
        text = f'the training has waited for {lasting(waited)} for the offloaded hook "{self.hook.name}"'
        if self._running:
            job, began = self._running
            taken = lasting(monotonic() - began)
            text += f": its firing at {job.binding.point} of iteration {job.it} has taken {taken} so far"
        if not self.hook.timeout:
            text += (
                f' (a firing that hangs holds up the run for ever; hooks.{self.hook.name}.timeout = "60s" gives it up)'
            )
        return text

    def put(self, job: Job) -> None:
        if self._thread is None:
            self._thread = device_thread(self._work, f"hookflow-{self.hook.name}")
            self._thread.start()
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until every firing is done, or given up; the hook then has the attributes that they have left it."""
        with self._changed:
            self._wait_while(self._is_busy)
            if self.process and self._latest:
                try:
                    self.process.bring_home()
                except Exception as error:
                    self.failures.append((*self._latest, error))

    def close(self) -> None:
        """End the thread, once its firing is done, and the process now."""
        with self._changed:
            self._jobs.append(None)
            self._changed.notify_all()
        if self.process:
            self.process.close()

    def check_time(self) -> None:
        """Give up the firing that runs if it has taken too long, and those that wait for it.

        Its thread cannot be ended: until it returns, the hook has no further firings, and its own error is ignored.
        """
        with self._changed:
            if not (self.hook.timeout and self._running) or self._given_up:
                return
            job, began = self._running
            if monotonic() - began > self.hook.timeout:
                self._given_up = True
                error = TimeoutError(f"a firing beside the training takes longer than {self.hook.timeout:g} s")
                if self.process:
                    self.process.kill()
                    error.add_note("its process is ended; the hook is as it was when it last came home")
                self._fail(job, error, goes_on=False)

    def _fail(self, job: Job, error: BaseException, *, goes_on: bool) -> None:
        """Report the error of a firing, and drop those that wait for it unless the hook `goes_on`."""
        with self._changed:
            self.failures.append((job.binding, job.it, error))
            if not goes_on:
                waiting = [*filter(None, self._jobs)]
                self.dropped += len(waiting)
                self._jobs = deque([None] * (len(self._jobs) - len(waiting)))
                self._changed.notify_all()
        self._failed()

    def take(self) -> dict[str, list[int]]:
        """Return by binding [firings, ns, longest ns, waiting now, dropped so far] since the last time."""
        self.check_time()
        with self._changed:
            times, self._times = self._times, {}
            return {str(id_): [*time, len(self._jobs), self.dropped] for id_, time in times.items()}

    def _work(self) -> None:
        if sys.platform == "linux" and not self.process:
            os.nice(19)  # of this thread alone: the training goes first
        torch.get_num_threads()  # sets those of a new thread: without it, MKL would take all processors
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                if (job := self._jobs.popleft()) is None:
                    return
                self._running, self._latest = (job, monotonic()), (job.binding, job.it)
                self._changed.notify_all()
            began = perf_counter_ns()
            try:
                self._call(job)
            except BaseException as error:
                if not self._given_up:
                    self._fail(job, error, goes_on=self.hook.on_error == "ignore")
            took = perf_counter_ns() - began
            with self._changed:
                count, total, longest = self._times.get(job.binding.id, (0, 0, 0))
                self._times[job.binding.id] = [count + 1, total + took, max(longest, took)]
                self._running, self._given_up = None, False
                self._changed.notify_all()
            del job  # the copies are free while it waits for the next
            if self.process:
                self.process.revive()  # now, since a timeout counts from the beginning of a firing

    def _call(self, job: Job) -> None:
        if job.copied is not None:
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_event(job.copied)
            for tensor in job.copies:  # the hook may keep one, and let go of it while this stream still reads it
                record_stream(tensor, self._stream)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            if job.shared and self.models and self.twin:
                self.models.copy(job.shared.network, self.twin)
            job.call()
        if self._stream:
            self._stream.synchronize()  # the memory of the copies goes back to the stream of the training


@dataclass(frozen=True)
class OffloadReports:
    """What offloaded hooks tell the run."""

    failed: Failed
    """Is told in the training thread of what a firing has raised."""
    wake: Callable[[], None]
    """Is called in a hook's thread when a firing has raised: the run comes to a safe point."""
    say: Say


class Beside:
    """The offloaded hooks of a run. `snapshot` returns the run as a hook sees it: at this moment, with this network."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        snapshot: Callable[[str, nn.Module | None], Any],
        reports: OffloadReports,
        place: Callable[[str], Where],
        hooks: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._plan, self._snapshot, self._failed, self._place = plan, snapshot, reports.failed, place
        self._hooks, self._seed = hooks, seed
        self.copies: dict[int, tuple[int, int]] = {}
        """By binding: the bytes that its first firing has copied, and the least ns in which one has."""
        self._copies: dict[bool, ModelCopies] = {}
        self._on_cuda = any(tensor.is_cuda for tensor in _tensors(model))
        self._workers: dict[str, Worker] = {}
        for hook in plan.hooks:
            if hook.queue:
                models = self._models(hook.name, model)
                self._workers[hook.name] = Worker(hook, models, reports.wake, reports.say)

    def _models(self, hook: str, model: nn.Module) -> ModelCopies | None:
        bound = (binding for binding in self._plan.bindings if binding.hook == hook and binding.beside)
        reads = {root(slot) for binding in bound for slot in binding.reads}
        if reads.isdisjoint({"model", "grads"}):
            return None
        if any(is_sharded(tensor) for tensor in _tensors(model)):
            message = f'hook "{hook}" cannot be offloaded: it reads a network that is sharded'
            raise UserError(Problem(message, self._place(f"hooks.{hook}.offload")))
        grads = "grads" in reads
        try:
            return self._copies.get(grads) or self._copies.setdefault(grads, ModelCopies(model, grads=grads))
        except Exception as error:
            message = f'hook "{hook}" cannot be offloaded: the network cannot be copied'
            where = self._place(f"hooks.{hook}.offload")
            raise UserError(Problem(f"{message}: {type(error).__name__}: {error}", where)) from error

    def method(self, binding: Binding, method: Callable[..., object]) -> Callable[..., object]:
        """Return what a binding calls: its method in the thread of its hook, or after the hooks that it waits for."""
        if binding.beside:
            worker = self._workers[binding.hook]
            if worker.hook.in_process and not worker.process:
                from hookflow.runner.dispatch.hook_process import HookProcess  # takes 4 ms

                worker.process = HookProcess(binding.hook, self._hooks[binding.hook], self._seed)
            return self._offloaded(worker, binding, method)
        if before := [self._workers[hook] for hook in awaited(self._plan, binding)]:
            return self._after(before, method)
        return method

    def _after(self, before: Sequence[Worker], method: Callable[..., object]) -> Callable[..., object]:
        @wraps(method)
        def waiting(*offered: Any, **named: Any) -> object:
            for worker in before:
                worker.wait()
            return method(*offered, **named)

        return waiting

    def _offloaded(self, worker: Worker, binding: Binding, method: Callable[..., object]) -> Callable[..., object]:
        at_point = self._plan.at(binding.point)
        before = at_point[: at_point.index(binding)]
        writers = [each.id for each in before if not {"model", "grads"}.isdisjoint(map(root, each.writes))]

        @wraps(method)
        def submit(*offered: Any, **named: Any) -> None:
            if not worker.makes_room():
                return
            began = perf_counter_ns()
            run, shared = self._snapshot(binding.hook, worker.twin), None
            if worker.models:
                shared = worker.models.take((binding.point, run.iter, run.batch_idx, writers))
                run.network = worker.twin or shared.network
            pairs = zip(binding.takes, offered, strict=False)
            arguments = [run if name == "run" else copied(value) for name, value in pairs]
            by_name = {name: run if name == "run" else copied(value) for name, value in named.items()}
            event = torch.cuda.current_stream().record_event() if self._on_cuda else None
            took = perf_counter_ns() - began
            if (known := self.copies.get(binding.id)) is None:
                known = _nbytes([arguments, by_name]) + (_nbytes(shared.network) if shared else 0), took
            self.copies[binding.id] = known[0], min(known[1], took)
            call: Callable[[], object]
            if worker.process:
                run.device = torch.device("cpu")
                place = binding.point, run.iter, run.batch_idx
                call = partial(worker.process.fire, binding.method, run, arguments, by_name, place)
            else:
                call = partial(method, *arguments, **by_name)
            copies = [leaf for leaf in tree_leaves([arguments, by_name]) if isinstance(leaf, Tensor)] if event else []
            worker.put(Job(binding, run.place[0], call, shared, event, copies))

        return submit

    def raise_failures(self) -> None:
        """Report what has been raised beside the training; raises it where the hook's `on_error` says so."""
        for worker in self._workers.values():
            while worker.failures:
                binding, it, error = worker.failures.popleft()
                error.add_note(f"raised beside the training, in the firing of iteration {it}")
                self._failed(binding, error, it)

    def settle(self) -> None:
        """Wait until every firing is done, and report their failures."""
        for worker in self._workers.values():
            worker.wait()
        self.raise_failures()

    def check(self) -> None:
        """Raise UserError where a hook cannot be sent to its process."""
        for hook, worker in self._workers.items():
            network = worker.models.pattern if worker.models else None
            if worker.process and (why := worker.process.check(self._snapshot(hook, network), network)):
                self.close()
                message = f'hook "{hook}" cannot be offloaded to a process: {why}'
                raise UserError(Problem(message, self._place(f"hooks.{hook}.offload")))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the training thread have Python's lock soon where hooks have threads; close all in the end."""
        before = sys.getswitchinterval()
        if not all(worker.hook.in_process for worker in self._workers.values()):
            sys.setswitchinterval(min(before, SWITCH))
        try:
            yield
        finally:
            sys.setswitchinterval(before)
            self.close()

    def close(self) -> None:
        """End the threads, and the processes with what they are doing."""
        for worker in self._workers.values():
            worker.close()

    def take(self) -> dict[str, list[int]]:
        """Return what each binding has done beside the training since the last time: see `Worker.take`."""
        return {id_: figures for worker in self._workers.values() for id_, figures in worker.take().items()}
