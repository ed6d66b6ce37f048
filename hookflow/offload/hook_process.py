"""The process of a hook with `offload = "process"`, and the training's side of it.

The hook moves to the process with its first firing there. Its attributes are brought back before it
fires in the training thread and before its state is saved. Tensors go through a socket as bytes and
arrive on the CPU.
"""

import atexit
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any
from zlib import crc32

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from hookflow.pipeline.use import import_file, list_run_files
from hookflow.runner.device.random_state import RNGStream, derive_seed, seed_everything
from hookflow.runner.process.open_files import close_open_files
from hookflow.runner.process.signals import END_SIGNALS, signals_blocked

REPORTING_ATTRIBUTES = ("_log", "_media")
"""The attributes of a run by which a hook reports.

Their methods are called in the training's process.
"""

EXIT_CODE_TIMEOUT = 30.0
"""Seconds in which a process that has closed its connection has an exit code.

It is nice, and others may be busy.
"""

EXIT_SECONDS = 5.0
"""Seconds that a process has for its exit handlers.

In them it also writes the files that its hook has left open.
"""

SOCKET_BUFFER_BYTES = 1 << 20
"""Bytes that the socket holds, where the system allows that.

The sender then seldom waits for the receiver.
"""


class TensorChannel:
    """A connection over which any object that can be pickled is sent.

    Its tensors are sent without their graph. An object of `shared` is sent by its name, and arrives
    as the object of that name at the other end.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.shared: Mapping[str, object] = {}

    def send(self, value: object) -> None:
        """Send an object. Raises what pickling it raises, before anything is sent."""
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        _TensorPickler(out, self.shared, buffers.append).dump(value)
        contents = [each.raw() for each in buffers]
        self._connection.send([each.nbytes for each in contents])
        for part in (out.getbuffer(), *contents):
            self._connection.send_bytes(part)

    def receive(self) -> Any:
        """Wait for an object.

        Raises EOFError once the other end is gone, and what unpickling it raises.
        """
        buffers = [torch.empty(size, dtype=torch.uint8).numpy() for size in self._connection.recv()]
        pickled = self._connection.recv_bytes()
        for each in buffers:
            self._connection.recv_bytes_into(each)
        return _TensorUnpickler(io.BytesIO(pickled), self.shared, buffers).load()

    def close(self) -> None:
        self._connection.close()


class _TensorPickler(pickle.Pickler):
    """Leaves the contents of tensors and arrays to `take`."""

    def __init__(
        self,
        out: io.BytesIO,
        shared: Mapping[str, object],
        take: Callable[[pickle.PickleBuffer], None],
    ) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL, buffer_callback=take)
        self._shared = {id(end): name for name, end in shared.items()}

    def persistent_id(self, value: Any) -> Any:
        return self._shared.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if (
            type(value) not in (Tensor, nn.Parameter)
            or value.layout is not torch.strided
            or value.is_quantized
        ):
            return NotImplemented
        plain = value.detach().resolve_conj().resolve_neg().contiguous().cpu()
        contents = plain.view(-1).view(torch.uint8).numpy()
        trains = value.is_leaf and value.requires_grad
        grad = None
        if value.is_leaf:
            grad = value.grad
        return _tensor, (contents, value.dtype, value.shape, type(value), trains, grad)


def _tensor(
    contents: Any,
    dtype: torch.dtype,
    shape: torch.Size,
    kind: type[Tensor],
    trains: bool,
    grad: Any,
) -> Tensor:
    tensor = torch.from_numpy(contents).view(dtype).view(shape)
    if kind is nn.Parameter:
        tensor = nn.Parameter(tensor, trains)
    tensor.grad = grad
    return tensor


class _TensorUnpickler(pickle.Unpickler):
    def __init__(
        self, pickled: io.BytesIO, shared: Mapping[str, object], buffers: Sequence[Any]
    ) -> None:
        super().__init__(pickled, buffers=buffers)
        self._shared = shared

    def persistent_load(self, name: str) -> object:
        return self._shared[name]


class ProcessEndedError(Exception):
    """The process of a hook has ended in the middle of a firing."""


class HookProcess:
    """The process of one hook. It is used by one thread at a time, but for `kill`.

    A process that has ended is replaced at once; the hook then goes on with the attributes that
    were brought back last.
    """

    def __init__(self, name: str, hook: Any, seed: int) -> None:
        self._name = name
        self._hook = hook
        self._seed = seed
        self._is_away = False
        self._is_over = False
        self._is_idle = False
        """Whether the process has answered all that it was asked, and waits for a message."""
        self._lifetime = Lock()
        self._start()

    def _start(self) -> None:
        """Start the process, with the signals that end a run blocked until it ignores them."""
        ours, its = socket.socketpair()
        for each in (ours, its):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        command = [sys.executable, "-P", "-m", __name__, str(its.fileno())]
        with its, signals_blocked():
            self._process = subprocess.Popen(command, pass_fds=(its.fileno(),))
        self._channel = TensorChannel(Connection(ours.detach()))
        self._channel.send((sys.path, [*list_run_files()]))

    def check(self, run: Any, network: nn.Module | None) -> str:
        """Return why the hook or the run with its network cannot be sent to the process.

        The text is empty where they can.
        """
        self._channel.shared = {name: getattr(run, name) for name in REPORTING_ATTRIBUTES}
        code: list[Any] = []  # the functions and classes that the process has to import
        if isinstance(self._hook, FunctionType):
            code.append(self._hook)
        else:
            code.append(type(self._hook))
        if network is not None:
            code += [type(module) for module in network.modules()]
        for item in code:
            if item.__module__ == "__main__":
                reason = (
                    "is in the script that runs, which the process does not: it belongs in a module"
                    " of its own"
                )
                return f"{item.__name__} {reason}"
        try:
            returned = self._ask("check", self._hook, run)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if returned is not self._hook and not hasattr(self._hook, "__dict__"):
            return "it has no __dict__, by which its attributes could be brought back"
        return ""

    def fire(
        self,
        method: str,
        run: Any,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        place: tuple[str, int, int],
    ) -> None:
        """Call a method of the hook with copies, and return when that is done.

        A hook that is a function is called itself.

        `place` is the point, the iteration and the batch: the global random generators are seeded
        for it. Raises what the hook raises, with its traceback as a note.
        """
        self._channel.shared = {name: getattr(run, name) for name in REPORTING_ATTRIBUTES}
        point, iteration, batch = place
        hook_key = crc32(f"{self._name} at {point}".encode())
        seed = derive_seed(self._seed, RNGStream.BESIDE, hook_key, run.rank, iteration, batch)
        moved = []
        if not self._is_away:
            moved.append(self._hook)
        self._ask("fire", moved, method, arguments, named, seed)

    def restart(self) -> None:
        """Replace a process that has ended, and wait until the new one is there."""
        with self._lifetime:
            if self._is_over or self._is_away or self._process.poll() is None:
                return
            self._end()
            self._start()
        # A process that does not start is reported by the next firing, unless the run is over.
        with suppress(ProcessEndedError, OSError):
            self._ask("check", None, None)

    def return_hook(self) -> None:
        """Give the hook the attributes that it has in the process. Raises what keeps them there."""
        if self._is_away:
            returned = self._ask("return")
            self._is_away = False
            if returned is not self._hook:  # as a function is
                attributes = vars(self._hook)
                attributes.clear()
                attributes.update(vars(returned))

    def _ask(self, *message: Any) -> Any:
        """Send a message and return the answer; meanwhile make the calls that it reports."""
        self._is_idle = False
        try:
            self._channel.send(message)
            self._is_away |= message[0] == "fire"
            while True:
                kind, *answer = self._channel.receive()
                if kind == "report":
                    end, method, args, named = answer
                    getattr(self._channel.shared[end], method)(*args, **named)
                elif kind == "raised":
                    raise answer[0]
                else:
                    return answer[0]
        except (EOFError, ConnectionError):
            self._is_away = False
            raise ProcessEndedError(f"the process of the hook {self._describe_end()}") from None
        finally:
            self._is_idle = True

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(EXIT_CODE_TIMEOUT)
            if code < 0:
                return f"was killed by {signal.Signals(-code).name}"
            return f"ended with exit code {code}"
        return "has closed its connection"

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._is_away = False

    def close(self) -> None:
        """End the process, for good.

        If it waits for a message, it has EXIT_SECONDS to end by itself.
        """
        with self._lifetime:
            self._is_over = True
            if self._is_idle:
                with suppress(OSError, subprocess.TimeoutExpired):
                    self._channel.send(("end",))
                    self._process.wait(EXIT_SECONDS)
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()


class _ReportSender:
    """An object of the training's process, as its hook's process sees it.

    Calls are reported, and return None.
    """

    def __init__(self, name: str, channel: TensorChannel) -> None:
        self._name = name
        self._channel = channel

    def __getattr__(self, method: str) -> Callable[..., None]:
        def report(*args: Any, **named: Any) -> None:
            self._channel.send(("report", self._name, method, args, named))

        return report


def serve(channel: TensorChannel) -> None:
    """Fire a hook as the training asks, until it asks for the end or is gone."""
    hook: Any = None

    def fire(
        moved: Sequence[Any],
        method: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        seed: int,
    ) -> None:
        nonlocal hook
        if moved:
            hook = moved[0]
        seed_everything(seed)
        call = hook
        if method:
            call = getattr(hook, method)
        call(*arguments, **named)

    handlers: dict[str, Callable[..., object]] = {
        "check": lambda moved, run: moved,
        "fire": fire,
        "return": lambda: hook,
    }
    while True:
        try:
            kind, *message = channel.receive()
        except (EOFError, ConnectionError):
            return
        except Exception as error:  # what cannot be unpickled
            channel.send(("raised", _make_sendable_error(error)))
            continue
        if kind == "end":
            return
        try:
            result = handlers[kind](*message)
            del message
            channel.send(("done", result))
        except BaseException as error:
            channel.send(("raised", _make_sendable_error(error)))


def _make_sendable_error(error: BaseException) -> BaseException:
    """Return an exception that can be sent.

    Its traceback is a note, above which its own text stands.
    """
    own_text = "".join(traceback.format_exception_only(error))
    text = "".join(traceback.format_exception(error)).removesuffix(own_text)
    try:
        sent: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(text.rstrip())
    return sent


def main() -> None:
    """Serve the connection whose number is the argument."""
    atexit.register(close_open_files)
    mp._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
    for number in END_SIGNALS:
        signal.signal(number, lambda *_: None)  # what a hook starts would inherit SIG_IGN
    os.register_at_fork(
        after_in_child=lambda: [signal.signal(number, signal.SIG_DFL) for number in END_SIGNALS]
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    os.nice(19)  # the training goes first
    channel = TensorChannel(Connection(int(sys.argv[1])))
    sys.path[:], files = channel.receive()
    torch.set_num_threads(1)  # the others are the training's
    channel.shared = {name: _ReportSender(name, channel) for name in REPORTING_ATTRIBUTES}
    for file in files:
        import_file(Path(file), file, None)
    serve(channel)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    from hookflow.offload import hook_process

    hook_process.main()  # by its own name, under which the training finds what is pickled
