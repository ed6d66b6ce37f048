"""The thread of one offloaded hook, and the firings that wait for it."""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Condition
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hookflow.events.records import Level
from hookflow.graph.plan import Binding, PlannedHook
from hookflow.numbers import format_lasting
from hookflow.offload.model_copies import ModelCopies, SharedCopy
from hookflow.runner.device.cuda import device_thread, record_stream
from hookflow.runner.dispatch.dispatcher import call_with_retries
from hookflow.runner.logging.background import BackgroundFiring, BackgroundSpan, BackgroundWait

if TYPE_CHECKING:
    from threading import Thread

    from hookflow.offload.hook_process import HookProcess

SIGNAL_INTERVAL = 1.0
"""Seconds between the waits for a thread: Python handles a signal between them."""

SLOW_WAIT = 10.0
"""Seconds that the training waits for a hook before a message names it.

Another follows each time that has doubled.
"""

Say = Callable[[str, Level], None]


@dataclass(slots=True)
class QueuedFiring:
    """A firing that waits: what to call, and the network as it was then, if the hook reads it.

    `queued` is when its copies were made, by `perf_counter`.
    """

    binding: Binding
    it: int
    queued: float
    call: Callable[[], object]
    shared: SharedCopy | None
    copied: torch.cuda.Event | None
    copies: Sequence[Tensor] = ()
    """The tensors among the arguments of `call`."""


class HookThread:
    """The thread of one hook, and the firings that wait for it.

    `say` receives the time for which the training waits.

    `keeps` are called with each firing and each wait that is over, while iterations are traced.
    """

    def __init__(
        self,
        hook: PlannedHook,
        models: ModelCopies | None,
        failed: Callable[[], None],
        say: Say,
        keeps: Sequence[Callable[[BackgroundSpan], None]],
    ) -> None:
        self.hook = hook
        self._keeps = keeps
        self.models = models
        self._say = say
        self.process: HookProcess | None = None
        self.twin = None
        """The network that a hook in a thread is given, with the values of the firing."""
        if models and not hook.in_process:
            self.twin = copy.deepcopy(models.pattern)
        self.failures: deque[tuple[Binding, int, BaseException]] = deque()
        self.dropped = 0
        self._failed = failed
        self._jobs: deque[QueuedFiring | None] = deque()  # None: the thread ends
        self._changed = Condition()
        self._running: tuple[QueuedFiring, float] | None = None
        """The firing that runs, and when it began."""
        self._latest: tuple[Binding, int] | None = None
        self._given_up = False
        """Whether that firing has taken longer than the hook's timeout."""
        self._thread: Thread | None = None
        self._stream: torch.cuda.Stream | None = None
        self._times: dict[int, list[int]] = {}  # by binding: firings, ns, longest ns

    def make_room(self) -> bool:
        """Wait until there is room for a firing, or make it, as `when_full` says.

        Returns whether there is room.
        """
        with self._changed:
            self._wait_while(self._should_wait_for_room)
            if self._is_full():
                self.dropped += 1
                if self._given_up or self.hook.when_full == "drop":
                    return False
                self._jobs.popleft()
            # A failure ends the run, or the hook, so no further firing is taken.
            has_failed = bool(self.failures) and self.hook.on_error != "ignore"
            if has_failed:
                self.dropped += 1
        return not has_failed

    def _is_full(self) -> bool:
        return len(self._jobs) >= self.hook.queue or self._given_up

    def _should_wait_for_room(self) -> bool:
        if not self._is_full():
            return False
        if self._given_up:
            return self.process is not None  # which is ended, and its firing with it
        return self.hook.when_full == "wait"

    def _is_busy(self) -> bool:
        """Return whether a firing is not done, and will be.

        A thread that is given up may never end.
        """
        has_work = bool(self._jobs) or self._running is not None
        return has_work and (self.process is not None or not self._given_up)

    def _wait_while(self, is_held_up: Callable[[], bool]) -> None:
        """Let the training thread wait, and name the hook where that takes long.

        The hook may hang for ever.
        """
        if not is_held_up():
            return
        began = perf_counter()
        notice_after = SLOW_WAIT
        while is_held_up():
            self._changed.wait(SIGNAL_INTERVAL)
            self.check_time()
            waited = perf_counter() - began
            if waited >= notice_after and is_held_up():
                notice_after = 2 * waited
                self._say(self._wait_notice(waited), "warn")
        self._keep(BackgroundWait(self.hook.name, began, perf_counter()))

    def _keep(self, span: BackgroundSpan) -> None:
        for keep in [*self._keeps]:
            keep(span)

    def _wait_notice(self, waited: float) -> str:
        text = (
            f"the training has waited for {format_lasting(waited)} for the offloaded hook"
            f' "{self.hook.name}"'
        )
        if self._running:
            job, began = self._running
            taken = format_lasting(perf_counter() - began)
            text += (
                f": its firing at {job.binding.point} of iteration {job.it} has taken {taken}"
                " so far"
            )
        if not self.hook.timeout:
            text += (
                f" (a firing that hangs holds up the run for ever; hooks.{self.hook.name}.timeout ="
                ' "60s" gives it up)'
            )
        return text

    def put(self, job: QueuedFiring) -> None:
        if self._thread is None:
            self._thread = device_thread(self._run_jobs, f"hookflow-{self.hook.name}")
            self._thread.start()
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until every firing is done, or given up.

        The hook then has the attributes that they have left it.
        """
        with self._changed:
            self._wait_while(self._is_busy)
            if self.process and self._latest:
                try:
                    self.process.return_hook()
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

        Its thread cannot be ended: until it returns, the hook has no further firings, and its own
        error is ignored.
        """
        with self._changed:
            if not (self.hook.timeout and self._running) or self._given_up:
                return
            job, began = self._running
            if perf_counter() - began > self.hook.timeout:
                self._given_up = True
                error = TimeoutError(
                    f"a firing beside the training takes longer than {self.hook.timeout:g} s"
                )
                if self.process:
                    self.process.kill()
                    error.add_note(
                        "its process is ended; the hook has the attributes that were brought back"
                        " last"
                    )
                self._fail(job, error, goes_on=False)

    def _fail(self, job: QueuedFiring, error: BaseException, *, goes_on: bool) -> None:
        """Report the error of a firing.

        Firings that wait for it are dropped unless the hook `goes_on`.
        """
        with self._changed:
            self.failures.append((job.binding, job.it, error))
            if not goes_on:
                waiting = [*filter(None, self._jobs)]
                self.dropped += len(waiting)
                self._jobs = deque([None] * (len(self._jobs) - len(waiting)))
                self._changed.notify_all()
        self._failed()

    def take_times(self) -> dict[str, list[int]]:
        """Return by binding [firings, ns, longest ns, waiting now, dropped so far].

        The first three are since the last time.
        """
        self.check_time()
        with self._changed:
            times = self._times
            self._times = {}
            return {str(id_): [*time, len(self._jobs), self.dropped] for id_, time in times.items()}

    def unfinished(self, now: float) -> list[BackgroundFiring]:
        """Return the firing that runs and those that wait, as if each ended `now`."""
        with self._changed:
            running = self._running
            waiting = [job for job in self._jobs if job is not None]
        firings = []
        if running is not None:
            job, began = running
            firings.append(BackgroundFiring(job.binding.id, job.it, job.queued, began, now))
        for job in waiting:
            firings.append(BackgroundFiring(job.binding.id, job.it, job.queued, now, now))
        return firings

    def _run_jobs(self) -> None:
        if sys.platform == "linux" and not self.process:
            os.nice(19)  # of this thread alone: the training goes first
        # The call sets the number of threads of a new thread: without it, MKL would take all
        # processors.
        torch.get_num_threads()
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                job = self._jobs.popleft()
                if job is None:
                    return
                began = perf_counter()
                self._running = (job, began)
                self._latest = (job.binding, job.it)
                self._changed.notify_all()
            try:
                self._call_with_retries(job)
            except BaseException as error:
                if not self._given_up:
                    self._fail(job, error, goes_on=self.hook.on_error == "ignore")
            ended = perf_counter()
            took = round((ended - began) * 1e9)
            with self._changed:
                count, total, longest = self._times.get(job.binding.id, (0, 0, 0))
                self._times[job.binding.id] = [count + 1, total + took, max(longest, took)]
                self._keep(BackgroundFiring(job.binding.id, job.it, job.queued, began, ended))
                self._running = None
                self._given_up = False
                self._changed.notify_all()
            del job  # the copies are free while it waits for the next
            if self.process:
                self.process.restart()  # now, since a timeout counts from the beginning of a firing

    def _call_with_retries(self, job: QueuedFiring) -> None:
        """Call a firing, and again while it raises, as often as `retry` says.

        A firing that was given up is not called.
        """

        def report(error: Exception, text: str) -> None:
            if self._given_up:
                raise error
            if self.process:
                self.process.restart()  # it may have ended
            self._say(text, "warn")

        call_with_retries(lambda: self._call(job), self.hook.retry, job.binding, report)

    def _call(self, job: QueuedFiring) -> None:
        if job.copied is not None:
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_event(job.copied)
            # The hook may keep a copy, and let go of it while this stream still reads it.
            for tensor in job.copies:
                record_stream(tensor, self._stream)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            if job.shared and self.models and self.twin:
                self.models.copy(job.shared.network, self.twin)
            job.call()
        if self._stream:
            # The copies must be read by then, since their memory goes back to the stream of the
            # training.
            self._stream.synchronize()
