"""Worker processes of a loader: their start, their errors, and their end."""

import gc
import io
import os
import pickle
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from multiprocessing import forkserver, queues, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import psutil
import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info
from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]

from hookflow.errors import Problem, UserError
from hookflow.events.run_lock import find_processor_limit
from hookflow.numbers import size
from hookflow.pipeline.use import import_file, list_run_files
from hookflow.runner.data.loader_parts import LoaderParts
from hookflow.runner.data.worker_share import this_worker, watch_worker_info
from hookflow.runner.process.launch import cores
from hookflow.runner.process.signals import END_SIGNALS, signals_blocked
from hookflow.user_code import FRAME_PATTERN

Result = TypeVar("Result")

# These patterns are PyTorch's messages about an exception in a worker, a worker that was killed,
# one that has left, one that is gone for an unknown reason, and an exception in the thread that
# pins memory.
CAUGHT_PATTERN = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal ")
KILLED_PATTERN = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)")
LEFT_PATTERN = re.compile(
    r"DataLoader worker \(pid (\d+)\) exited unexpectedly with exit code (\d+)"
)
GONE_PATTERN = re.compile(r"DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly")
PIN_THREAD_MESSAGE = "in pin memory thread"

EXIT_CODE_WAIT_SECONDS = 10.0
"""Seconds to wait for a worker's exit code.

PyTorch may have seen only that the worker's socket is gone.
"""

CRASH_REMEDY = (
    "a library crashed in it; with workers = 0 the training itself crashes, and shows where"
)
REMEDY_BY_SIGNAL = {
    "SIGKILL": "probably this machine was out of memory: use fewer workers, or smaller batches",
    "SIGBUS": (
        "probably shared memory ran out: enlarge /dev/shm (docker run --shm-size=8g), or use fewer"
        " workers"
    ),
    "SIGXCPU": "its limit of processor time (ulimit -t) is used up",
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"), CRASH_REMEDY),
}
"""Advice, by the signal that killed a worker."""


class WorkerError(Exception):
    """A worker of a loader has raised, or died. The worker's traceback is a note."""


def call_explaining_worker_errors(train: Callable[[], Result]) -> Result:
    """Call `train`.

    For what a worker of a loader has raised or died of, a WorkerError of one line is raised.
    PyTorch raises an exception about a killed worker wherever Python is when SIGCHLD arrives. That
    may be here, while another exception is being looked at.
    """
    try:
        return train()
    except Exception as error:
        try:
            explained = _make_worker_error(error)
        except RuntimeError as raised:
            explained = _make_worker_error(raised)
        if explained is None:
            raise
        raise explained from None


def _make_worker_error(error: Exception) -> WorkerError | None:
    """Return the error in one line; None where it is not about a worker."""
    text = str(error)
    killed = KILLED_PATTERN.search(f"{text}\n{error.__cause__}")
    if killed:
        return _in_the_place_of(error, _describe_death(*killed.groups()))
    left = LEFT_PATTERN.search(f"{text}\n{error.__cause__}")
    if left:
        return _in_the_place_of(error, _left(*left.groups()))
    gone = GONE_PATTERN.match(text)
    if gone or _is_cut_off(error):
        if gone:
            pids = {int(pid) for pid in gone[1].split(",")}
        else:
            pids = set[int]()
        owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        fetching = next((owner for owner in owners if getattr(owner, "_workers", None)), None)
        return _in_the_place_of(error, _end_of_one(fetching, pids))
    caught = CAUGHT_PATTERN.match(text)
    if caught:
        behind = FRAME_PATTERN.split(text.rstrip())[-1].splitlines()[
            1:
        ]  # the code of the last frame, what it raised, notes
        message = next(
            (line for line in behind if not line.startswith(" ")), behind[-1] if behind else ""
        )
        return _in_the_place_of(
            error, f"worker {caught[1]}: {message.strip()}", text[caught.end() :].rstrip()
        )
    return None


def _in_the_place_of(error: Exception, text: str, *notes: str) -> WorkerError:
    short = WorkerError(text)
    for note in (*notes, *getattr(error, "__notes__", ())):
        short.add_note(note)
    return short.with_traceback(error.__traceback__)


def _end_of_one(fetching: Any, gone: Collection[int]) -> str:
    """Wait until a worker of a loader's iterator has an exit code, and return it.

    PyTorch's exception may be lost. A worker that has given everything ends with 0, too; but none
    of those that PyTorch has found `gone`, or that it still waits for.
    """
    workers = getattr(fetching, "_workers", ())
    waits_for = getattr(fetching, "_workers_status", ())
    unfinished = {
        worker.pid for worker, waits in zip(workers, waits_for, strict=False) if waits
    }.union(gone)
    until = time.monotonic() + EXIT_CODE_WAIT_SECONDS
    while time.monotonic() < until:
        for worker in workers:
            code = worker.exitcode
            if code is None or (code == 0 and worker.pid not in unfinished):
                continue
            if code < 0:
                return _describe_death(worker.pid, signal.strsignal(-code) or str(-code))
            return _left(worker.pid, code)
        time.sleep(EXIT_CODE_WAIT_SECONDS / 50)
    return f"a DataLoader worker died without an exception: {REMEDY_BY_SIGNAL['SIGKILL']}"


def _is_cut_off(error: Exception) -> bool:
    """Say whether a worker's socket was gone while a batch of it was fetched or pinned.

    Tensors come over that socket.
    """
    if not isinstance(error, EOFError | ConnectionError | FileNotFoundError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return PIN_THREAD_MESSAGE in str(error) or any(
        frame.name == "_try_get_data" for frame in frames
    )


def _left(pid: object, code: object) -> str:
    text = f"a DataLoader worker (pid {pid}) ended with exit code {code}"
    if int(str(code)):
        return text
    return f"{text}: the dataset, or what it calls, has ended its process"


def _describe_death(pid: object, described: str) -> str:
    """Say which signal a worker died of, as the C library describes it, and what to try."""
    of = next(
        (Signal for Signal in signal.Signals if signal.strsignal(Signal) == described.strip()), None
    )
    if of is None:
        return f"a DataLoader worker (pid {pid}) died of a signal: {described.strip()}"
    remedy = ""
    if of.name in REMEDY_BY_SIGNAL:
        remedy = f": {REMEDY_BY_SIGNAL[of.name]}"
    if of == signal.SIGKILL and (limit := find_processor_limit()):
        remedy += f"; or {limit} is used up"
    return f"a DataLoader worker (pid {pid}) was killed by {of.name} (signal {of.value}){remedy}"


STOP_GRACE = 5.0
"""Seconds that all workers of a loader have to leave together; then they are killed."""

MAX_SENT = forkserver.MAXFDS_TO_SEND - 32
"""How many tensors a fork server hands to a worker, each as an open file.

The worker's queues need some, too.
"""

SHARED_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108
"""Where Linux keeps memory that processes share."""


def loader_options(fetches: "PickledWithImports", name: str, parts: LoaderParts) -> dict[str, Any]:
    """Return the arguments of a DataLoader over a dataset whose items are batches.

    Too many workers are warned of.
    """
    workers = parts.section.workers
    processors = cores()
    if workers > processors:
        parts.context.say(
            f"{workers} workers share {processors} processors, and the training needs one too",
            "warn",
        )
    return {
        "batch_size": None,
        "collate_fn": identity,
        "num_workers": workers,
        "prefetch_factor": parts.section.prefetch_factor,
        "pin_memory": parts.context.device.type == "cuda",
        "worker_init_fn": WorkerInit(parts.worker_init_fn),
        "multiprocessing_context": _start_method(fetches, name, parts),
        # PyTorch draws seeds of workers from this generator, and not from that of the training.
        "generator": torch.Generator(),
    }


def identity(batch: Any) -> Any:
    return batch


@contextmanager
def no_loader_warnings() -> Iterator[None]:
    """Suppress the warnings of a loader that no user can act on.

    Warnings that `loader_options` gives in its own words are suppressed, too.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it
        yield


@cache
def leave_garbage_to_this_process() -> None:
    """Let forked processes collect none of the garbage of this one.

    Its CUDA events and streams call CUDA as they are freed, which aborts a process that is forked.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def _start_method(fetches: "PickledWithImports", name: str, parts: LoaderParts) -> str | None:
    """Return the start method of a loader's workers; None where there are none.

    A fork of the training inherits the locks of its threads, and may hang; a fork server has none.
    In a script that calls `train()` the default stays PyTorch's "fork": any other method would run
    that script again in each worker. Raises UserError where the pipeline chooses a method that
    pickles the data, and they cannot be pickled.
    """
    chosen = parts.section.multiprocessing_context
    if not parts.section.workers:
        return None
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if chosen == "fork" or (
        chosen is None and (main is None or not main.name.startswith("hookflow."))
    ):
        return "fork"
    probe = _CountingPickler()
    why = probe.find_pickle_problem(fetches) or (chosen != "spawn" and probe.too_many())
    if why:
        if chosen:
            message = (
                f'"{chosen}" workers need data that can be pickled, and {name} cannot be: {why}'
            )
            raise UserError(
                Problem(message, parts.place("multiprocessing_context"), 'choose "fork"')
            )
        why = f"{name} cannot be pickled for its workers ({why})"
    elif not chosen and (why := probe.too_big(parts.section.workers)):
        why = f"{name} is too big for workers that are not forked: {why}"
    if why:
        parts.context.say(
            f'{why}; they are forked, which may hang (multiprocessing_context = "fork" accepts'
            " that)",
            "warn",
        )
        return "fork"
    probe.share_tensors()
    if chosen != "spawn":
        forkserver.set_forkserver_preload(["hookflow.runner.data.loader"])
        # The server must outlive a signal to all processes of a job, so it and its workers begin
        # with those blocked. Python unblocks them as it starts its resource tracker, which is
        # started first.
        resource_tracker.ensure_running()
        with signals_blocked():
            forkserver.ensure_running()
    return chosen or "forkserver"


class PickledWithImports:
    """Something that a new process can unpickle.

    It imports the user's files first, whose modules it would not know.
    """

    def __reduce__(self) -> Any:
        return _import_and_make, ([*list_run_files()], type(self)), self.__dict__


def _import_and_make(paths: list[str], cls: type[Any]) -> Any:
    for path in paths:
        import_file(Path(path), path, None)
    return object.__new__(cls)


class _CountingPickler(pickle.Pickler):
    """A pickler that counts what workers would need for tensors and arrays.

    It writes nowhere, and copies neither.
    """

    def __init__(self) -> None:
        self._out = _ByteCounter()
        self._tensors: list[Tensor] = []
        super().__init__(self._out, pickle.HIGHEST_PROTOCOL, buffer_callback=self._count)
        self.dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table

    def find_pickle_problem(self, value: Any) -> str:
        """Return why a value cannot be pickled for a new process.

        The text is empty where it can.
        """
        try:
            self.dump(value)
        except Exception as error:
            # A lock or a queue cannot be pickled otherwise, but a process may get one as it starts.
            shared = "through inheritance" in str(error)
            if shared:
                return ""
            return f"{type(error).__name__}: {error}"
        return ""

    def too_many(self) -> str:
        """Return why a fork server cannot hand a worker the tensors of what was pickled.

        The text is empty where it can.
        """
        count = len(self._tensors)
        if count <= MAX_SENT:
            return ""
        return (
            f"its {count:,} tensors are more than the {MAX_SENT} that a worker can be handed;"
            " stacked, they are few"
        )

    def too_big(self, workers: int) -> str:
        """Return why so many workers cannot have what was pickled; empty where they can."""
        unshared = (tensor for tensor in self._tensors if not tensor.is_shared())
        shared = sum(tensor.nbytes for tensor in unshared)
        if SHARED_MEMORY_FOLDER.exists() and shared > (
            free := shutil.disk_usage(SHARED_MEMORY_FOLDER).free
        ):
            return (
                f"its tensors ({size(shared)}) do not fit into {SHARED_MEMORY_FOLDER} ({size(free)}"
                " free)"
            )
        copied = self._out.bytes * workers
        free = psutil.virtual_memory().available
        if copied > free:
            return (
                f"{workers} copies of it ({size(copied)}) do not fit into memory ({size(free)}"
                " free)"
            )
        return ""

    def share_tensors(self) -> None:
        """Move the tensors to shared memory now.

        PyTorch does so in the first epoch, where they seem to change.
        """
        for tensor in self._tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                tensor.share_memory_()

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        self._tensors.append(value)
        return int, ()

    def _count(self, buffer: pickle.PickleBuffer) -> None:
        self._out.bytes += buffer.raw().nbytes


class _ByteCounter(io.RawIOBase):
    """A file that keeps of what is written how many `bytes` that was."""

    bytes = 0

    def write(self, provided: Any) -> int:
        self.bytes += len(provided)
        return len(provided)


SHARED_MEMORY = re.compile(r"shared memory|file </torch_|No space left on device")
"""PyTorch's message where it cannot put a tensor into shared memory."""


def is_out_of_shared_memory(error: BaseException) -> bool:
    """Say whether a worker had no room for a batch in the memory it shares with the training."""
    return (
        isinstance(error, OSError | RuntimeError) and SHARED_MEMORY.search(str(error)) is not None
    )


class SharedMemoryError(RuntimeError):
    """There is no room for a batch in the memory that a worker shares with the training."""


class UnsentBatchError(Exception):
    """A worker cannot send what it has made: a batch, or an exception."""


def send_errors_for_unsent_batches() -> None:
    """Have the workers of loaders answer with an error where what they have made cannot be pickled.

    Python prints a traceback in the worker and drops it, and the training would wait for it for
    ever.
    """
    queues.Queue._on_queue_feeder_error = _put_error  # type: ignore[attr-defined]


def _put_error(queue: Any, error: Exception, item: Any) -> None:
    """Put an error in the place of an item that a queue of a worker cannot send.

    Elsewhere the traceback is printed.
    """
    worker, _ = this_worker()
    is_of_a_loader = get_worker_info() is not None and isinstance(item, tuple) and len(item) == 2
    if not is_of_a_loader:
        traceback.print_exception(error)
        return
    index, data = item
    target = getattr(mp.current_process(), "_target", None)
    with_state = getattr(target, "__module__", "").startswith("torchdata")
    if hasattr(data, "initial_state"):  # torchdata's, as a worker begins
        queue.put(
            (
                index,
                replace(
                    data,
                    initial_state=_make_unsent_error(error, worker, "the state of the dataset"),
                ),
            )
        )
        return
    if with_state:
        batch = data[0]
    else:
        batch = data
    answer = _make_unsent_error(error, worker, "a batch")
    if isinstance(batch, ExceptionWrapper):
        answer.exc_msg = batch.exc_msg  # the exception cannot be pickled, its traceback can
    queue.put((index, (answer, worker, None) if with_state else answer))


def _make_unsent_error(error: Exception, worker: int, what: str) -> ExceptionWrapper:
    """Return an error as PyTorch's workers send it: `what` could not be sent."""
    text = f"{what} cannot be sent to the training: {type(error).__name__}: {error}"
    unsent: Exception = UnsentBatchError(text)
    if is_out_of_shared_memory(error):
        unsent = SharedMemoryError(f"{text}; {REMEDY_BY_SIGNAL['SIGBUS']}")
    return ExceptionWrapper((type(unsent), unsent, None), f"in DataLoader worker process {worker}")


class WorkerInit(PickledWithImports):
    """Begins a worker, and calls the user's function with its number, if there is one.

    A worker ignores Ctrl-C, and a SIGTERM to all processes of a job: the training may want some
    more batches. It is killed with the process that has forked it. The fork server ends once its
    pipe is closed, of which each worker has a copy.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        server: Any = forkserver._forkserver
        pipe = server._forkserver_alive_fd
        if pipe is not None:
            os.close(pipe)
            server._forkserver_alive_fd = None
        mp._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
        send_errors_for_unsent_batches()
        watch_worker_info(is_read=self._then is not None)
        if self._then:
            self._then(worker)


def allow_kill(batches: Any) -> None:
    """Have PyTorch, and Python at its exit, end workers that ignore SIGTERM by SIGKILL."""

    def kill(pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    for worker in getattr(batches, "_workers", ()):
        # A bound method would refer to the process, and keep it and its files alive.
        worker._popen.terminate = partial(kill, worker.pid)


def end_workers(batches: Any, name: str, say: Callable[..., None]) -> None:
    """End the workers of an iterator of a DataLoader.

    The threads that send them their indices are waited for. PyTorch gives each worker in turn some
    seconds; here all have STOP_GRACE together.
    """
    alive = {number: worker for number, worker in enumerate(batches._workers) if worker.is_alive()}
    if batches._worker_pids_set:  # else PyTorch raises for each worker that is killed
        _remove_worker_pids(id(batches))
        batches._worker_pids_set = False
    killer = Timer(STOP_GRACE, lambda: [worker.kill() for worker in alive.values()])
    killer.start()
    try:
        batches._shutdown_workers()
    finally:
        killer.cancel()
    for number, worker in alive.items():
        worker.join(STOP_GRACE)
        if worker.exitcode == -signal.SIGKILL:
            text = (
                f"worker {number} of {name} (pid {worker.pid}) did not leave within {STOP_GRACE:g}"
                " s and was killed"
            )
            say(f"{text} (SIGKILL): it hung in the dataset or in collate", "warn")
    for queue in getattr(batches, "_index_queues", ()):
        feeder = getattr(queue, "_thread", None)
        if feeder is not None:
            feeder.join(STOP_GRACE)
