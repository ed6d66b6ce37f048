"""Offloaded hooks.

Each fires in a thread of its own, on copies of what it reads, while the training goes on.

A firing copies in the training thread and returns. Hooks that fire at one point share the copy of
the network, and each thread copies that once more. A hook's firings stay in their order; those of
several hooks run side by side. Errors come home at the next firing or safe point, and `settle`
waits until nothing is left to do. The thread of a hook that has a process sends the copies there,
and waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.offload import find_awaited_hooks
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.slots import root
from hookflow.hooks.tensors import is_sharded
from hookflow.offload.hook_thread import HookThread, QueuedFiring, Say
from hookflow.offload.model_copies import (
    ModelCopies,
    SharedCopy,
    copy_arguments,
    count_bytes,
    model_tensors,
)
from hookflow.runner.logging.background import BackgroundFiring, BackgroundSpan

SWITCH_INTERVAL = 20e-6
"""Seconds after which a computing Python thread lets another one go on.

It holds while hooks have threads. The training thread lets go of Python in each operation of torch,
and would get it back after Python's own 5 ms.
"""

Failed = Callable[[Binding, BaseException, int | None], None]


@dataclass(frozen=True)
class OffloadReports:
    """Reports of offloaded hooks to the run."""

    failed: Failed
    """Receives in the training thread what a firing has raised."""
    wake: Callable[[], None]
    """Is called in a hook's thread when a firing has raised: the run comes to a safe point."""
    say: Say


class OffloadExecutor:
    """The offloaded hooks of a run.

    `snapshot` returns the run as a hook sees it: at this moment, with this network.
    """

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
        self._plan = plan
        self._snapshot = snapshot
        self._failed = reports.failed
        self._place = place
        self._hooks = hooks
        self._seed = seed
        self.copies: dict[int, tuple[int, int]] = {}
        """By binding: the bytes that its first firing has copied, and the least ns of a copy."""
        self.keeps: list[Callable[[BackgroundSpan], None]] = []
        """Called with each firing and each wait of the training that is over.

        It is called while iterations are traced.
        """
        self._copies: dict[bool, ModelCopies] = {}
        self._on_cuda = any(tensor.is_cuda for tensor in model_tensors(model))
        self._workers: dict[str, HookThread] = {}
        for hook in plan.hooks:
            if hook.queue:
                models = self._models(hook.name, model)
                self._workers[hook.name] = HookThread(
                    hook, models, reports.wake, reports.say, self.keeps
                )

    def _models(self, hook: str, model: nn.Module) -> ModelCopies | None:
        """Return the copies of the network that a hook reads; None if it reads none."""
        reads: set[str] = set()
        for binding in self._plan.bindings:
            if binding.hook == hook and binding.beside:
                reads.update(root(slot) for slot in binding.reads)
        if reads.isdisjoint({"model", "grads"}):
            return None
        if any(is_sharded(tensor) for tensor in model_tensors(model)):
            message = f'hook "{hook}" cannot be offloaded: it reads a network that is sharded'
            raise UserError(Problem(message, self._place(f"hooks.{hook}.offload")))
        grads = "grads" in reads
        try:
            if grads not in self._copies:
                self._copies[grads] = ModelCopies(model, grads=grads)
            return self._copies[grads]
        except Exception as error:
            message = f'hook "{hook}" cannot be offloaded: the network cannot be copied'
            where = self._place(f"hooks.{hook}.offload")
            raise UserError(
                Problem(f"{message}: {type(error).__name__}: {error}", where)
            ) from error

    def method(self, binding: Binding, method: Callable[..., object]) -> Callable[..., object]:
        """Return what a binding calls.

        It is its method in the thread of its hook, or after the hooks that it waits for.
        """
        if binding.beside:
            worker = self._workers[binding.hook]
            if worker.hook.in_process and not worker.process:
                from hookflow.offload.hook_process import HookProcess  # takes 4 ms

                worker.process = HookProcess(binding.hook, self._hooks[binding.hook], self._seed)
            return self._make_offloaded_method(worker, binding, method)
        awaited_workers = [self._workers[hook] for hook in find_awaited_hooks(self._plan, binding)]
        if awaited_workers:
            return self._after(awaited_workers, method)
        return method

    def _after(
        self, workers: Sequence[HookThread], method: Callable[..., object]
    ) -> Callable[..., object]:
        """Return a method that waits for the firings of other hooks before it is called."""

        @wraps(method)
        def wait_and_call(*offered: Any, **named: Any) -> object:
            for worker in workers:
                worker.wait()
            return method(*offered, **named)

        return wait_and_call

    def _make_offloaded_method(
        self, worker: HookThread, binding: Binding, method: Callable[..., object]
    ) -> Callable[..., object]:
        """Return a method that queues a call of the hook's method for the hook's thread.

        It copies what that method takes.
        """
        writers = self._find_network_writers_before(binding)

        @wraps(method)
        def submit(*offered: Any, **named: Any) -> None:
            if not worker.make_room():
                return
            began = perf_counter_ns()
            run = self._snapshot(binding.hook, worker.twin)
            shared = None
            if worker.models:
                shared = worker.models.take((binding.point, run.iter, run.batch_idx, writers))
                run.network = worker.twin or shared.network
            arguments = []
            for name, value in zip(binding.takes, offered, strict=False):
                arguments.append(run if name == "run" else copy_arguments(value))
            by_name = {}
            for name, value in named.items():
                by_name[name] = run if name == "run" else copy_arguments(value)
            event = None
            if self._on_cuda:
                event = torch.cuda.current_stream().record_event()
            queued = perf_counter_ns()
            self._record_copy(binding, [arguments, by_name], shared, queued - began)

            call: Callable[[], object]
            if worker.process:
                run.device = torch.device("cpu")
                place = binding.point, run.iter, run.batch_idx
                call = partial(worker.process.fire, binding.method, run, arguments, by_name, place)
            else:
                call = partial(method, *arguments, **by_name)
            copies: list[Tensor] = []
            if event is not None:
                copies = [
                    leaf for leaf in tree_leaves([arguments, by_name]) if isinstance(leaf, Tensor)
                ]
            worker.put(
                QueuedFiring(binding, run.place[0], queued / 1e9, call, shared, event, copies)
            )

        return submit

    def _find_network_writers_before(self, binding: Binding) -> list[int]:
        """Return the ids of the bindings that fire before this one and write the network.

        They are at the same point.
        """
        writers = []
        for other in self._plan.at(binding.point):
            if other == binding:
                break
            roots = {root(slot) for slot in other.writes}
            if "model" in roots or "grads" in roots:
                writers.append(other.id)
        return writers

    def _record_copy(
        self, binding: Binding, arguments: Any, shared: SharedCopy | None, ns: int
    ) -> None:
        """Keep the bytes of a binding's first copy, and the least ns in which one was made."""
        known = self.copies.get(binding.id)
        if known is None:
            num_bytes = count_bytes(arguments)
            if shared is not None:
                num_bytes += count_bytes(shared.network)
            self.copies[binding.id] = num_bytes, ns
        else:
            num_bytes, least_ns = known
            self.copies[binding.id] = num_bytes, min(least_ns, ns)

    def raise_failures(self) -> None:
        """Report what has been raised beside the training.

        It is raised where the hook's `on_error` says so.
        """
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
            if not worker.process:
                continue
            network = None
            if worker.models:
                network = worker.models.pattern
            reason = worker.process.check(self._snapshot(hook, network), network)
            if reason:
                self.close()
                message = f'hook "{hook}" cannot be offloaded to a process: {reason}'
                raise UserError(Problem(message, self._place(f"hooks.{hook}.offload")))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the training thread have Python's lock soon where hooks have threads.

        All are closed in the end.
        """
        before = sys.getswitchinterval()
        if not all(worker.hook.in_process for worker in self._workers.values()):
            sys.setswitchinterval(min(before, SWITCH_INTERVAL))
        try:
            yield
        finally:
            sys.setswitchinterval(before)
            self.close()

    def close(self) -> None:
        """End the threads, and the processes with what they are doing."""
        for worker in self._workers.values():
            worker.close()

    def take_times(self) -> dict[str, list[int]]:
        """Return what each binding has done beside the training since the last time.

        See `HookThread.take_times`.
        """
        times = {}
        for worker in self._workers.values():
            times.update(worker.take_times())
        return times

    def unfinished(self, now: float) -> list[BackgroundFiring]:
        """Return the firings that run or wait, as if each ended `now`."""
        firings = []
        for worker in self._workers.values():
            firings += worker.unfinished(now)
        return firings
