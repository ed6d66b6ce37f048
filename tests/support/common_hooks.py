"""Hooks that the tests put into pipelines: to see what fires, to raise where they are told to,
to change the course of a training, and to command it as a user does.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError
from hookflow.events.commands import send
from hookflow.events.rundir import RunDir
from hookflow.graph import points
from hookflow.zoo.tasks import Classification

POINTS = [point for point in points.DEFAULT_POINTS if point.kind not in ("global", "state", "comm")]
"""All but those that PyTorch comes to whoever computes, or over several ranks alone:
these have tests of their own.
"""


class Writes:
    """A base of hooks that append lines to a file."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def write(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")


def at_every_point(cls: type[Any]) -> type[Any]:
    for point in POINTS:
        setattr(cls, point.name, _visit(point.name))
    cls.modules, cls.parameters = ("head",), ("head.weight",)
    return cls


def _visit(point: str) -> Any:
    def method(self: Any, run: Any) -> None:
        self.visit(point, run)

    return method


@at_every_point
class OwnTracer(Writes):
    before_grow, after_densify, after_grow = map(
        _visit, ("before_grow", "after_densify", "after_grow")
    )

    def visit(self, point: str, run: Any) -> None:
        self.write(f"{point} iter={run.iter} epoch={run.epoch}")


class Tracer(OwnTracer):
    on_log = before_grow = after_densify = after_grow = None  # type: ignore[assignment]


class Nothing:
    def before_train_iter(self, batch: object) -> None: ...
    def after_forward(self, outputs: object) -> None: ...
    def after_backward(self, run: object) -> None: ...
    def after_train_iter(self) -> None: ...


class Raises:
    def __init__(self, at: int = 3, megabytes: int = 0) -> None:
        self.at = at
        self.message = "as told" + megabytes * 2**20 * "!"

    def after_backward(self, run: Any) -> None:
        if run.iter == self.at:
            raise RuntimeError(self.message)


class Around(Writes):
    """Marks in a file that it was entered and left around the training."""

    def around_train_epoch(self) -> Iterator[None]:
        self.write("entered")
        try:
            yield
        finally:
            self.write("left")


class AroundVal(Around):
    around_val = Around.around_train_epoch


@at_every_point
class Interrupts:
    """Sends its own process a signal, so many times; never twice for one mark.

    That is at the first firing from iteration `at` on: when a checkpoint is told of, only the disk
    knows.
    """

    def __init__(self, mark: str, at: int, number: int = 15, times: int = 1) -> None:
        self.mark, self.at, self.number, self.times = Path(mark), at, number, times

    def visit(self, point: str, run: Any) -> None:
        if run.iter >= self.at and not self.mark.exists():
            self.mark.touch()
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


class NoTextError(RuntimeError):
    def __str__(self) -> str:
        raise KeyError("no text")


class NoReprError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, self)

    def __repr__(self) -> str:
        raise ValueError("no repr")


class NoNotesError(LookupError):
    @property
    def __notes__(self) -> list[str]:
        raise OSError("no notes")


class OwnNotesError(UnicodeError):
    __notes__ = "mine"


KINDS: dict[str, Any] = {
    "NoTextError": NoTextError,
    "NoReprError": NoReprError,
    "NoNotesError": NoNotesError,
    "OwnNotesError": OwnNotesError,
    "RuntimeError": RuntimeError,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "UserError": lambda text: UserError(Problem(text)),
}


@at_every_point
class Fails:
    """Raises at one place: a point, a half of an `around_X`, or a method of its state."""

    def __init__(self, place: str, kind: str = "RuntimeError") -> None:
        self.place, self.kind, self.trained = place, kind, 0

    def visit(self, place: str, run: Any = None) -> None:
        self.trained += place == "after_train_iter"
        if place == self.place:
            raise KINDS[self.kind]("as told")

    def around_val(self) -> Iterator[None]:
        self.visit("around_val first")
        yield
        self.visit("around_val second")

    def around_run(self) -> Iterator[None]:
        yield
        self.visit("around_run second")

    def state_dict(self) -> dict[str, Any]:
        first, _, method = self.place.partition(" iterations: ")
        return {
            "kinds": frozenset() if method == "state_dict" and self.trained >= int(first) else []
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.visit("load_state_dict")


class BadTask:
    """Returns what a task must not return."""

    def __init__(self, kind: str, method: str = "step") -> None:
        self.kind, self.method, self.task = kind, method, Classification()

    def step(self, run: Any, batch: Any) -> Any:
        return self.worse(self.task.step(run, batch), "step")

    def evaluate(self, run: Any, batch: Any) -> Any:
        return self.worse(self.task.evaluate(run, batch), "evaluate")

    def worse(self, outputs: dict[str, torch.Tensor], method: str) -> Any:
        if method != self.method:
            return outputs
        loss = outputs["loss"]
        match self.kind:
            case "raises":
                raise RuntimeError("the task cannot")
            case "NoTextError":
                raise NoTextError
            case "tuple":
                return loss, outputs
            case "no loss":
                return {"losses": loss}
            case "number":
                return {"loss": loss.item()}
            case "a loss each":
                return {"loss": loss.repeat(8)}
            case _:
                return {"loss": loss.detach()}


@at_every_point
class Asks:
    def __init__(self, point: str, by: str = "mine") -> None:
        self.point, self.by, self.asked = point, by, False

    def visit(self, point: str, run: Any) -> None:
        if point == self.point and not self.asked:
            self.asked = True
            run.save_checkpoint(self.by)


class Everywhere:
    def mine(self) -> None: ...

    def around_val(self) -> Iterator[None]:
        yield

    def around_train_epoch(self) -> Iterator[None]:
        yield


for _point in POINTS:
    setattr(Everywhere, _point.name, lambda self: None)


class Densifies:
    def __init__(self, point: str = "after_densify", offered: list[int] | None = None) -> None:
        self.point, self.offered = point, [12] if offered is None else offered

    def after_optimizer_step(self, run: Any) -> None:
        run.fire("before_grow")
        run.fire(self.point, *self.offered)
        run.fire("after_grow")


class Probes(Writes):
    """Notes in a file at which modules it fires, and in which iteration."""

    def note(self, run: Any, module: nn.Module, what: str) -> None:
        (name,) = [name for name, other in run.model.named_modules() if other is module]
        self.write(f"{what} {name or 'net'} {run.iter} {run.stage}")


def _notes(point: str) -> Any:
    return lambda self, run, module: self.note(run, module, point)


for _name in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
    setattr(Probes, _name, _notes(_name))


def logs_iter(run: Any) -> None:
    run.log("train/iter", run.iter)


def tells(run: Any) -> None:
    run.say("told")


class WaitsFor(Writes):
    def after_train_epoch(self) -> None:
        while not self.file.exists():
            time.sleep(0.01)


def slow(run: Any) -> None:
    time.sleep(0.02)


@at_every_point
class Steers:
    def __init__(self, call: str, point: str, at: int = 1) -> None:
        self.call, self.point, self.at = call, point, at

    def visit(self, point: str, run: Any) -> None:
        if point == self.point and run.iter == self.at:
            getattr(run, self.call)(*["as told"] * self.call.startswith("stop"))


class Skips:
    """Skips the step of one iteration, or of all."""

    writes = ("control",)

    def __init__(self, at: int | None = None) -> None:
        self.at = at

    def after_backward(self, run: Any) -> None:
        if self.at in (None, run.iter):
            run.skip_step()


class Removes:
    def __init__(self, hook: str, at: int) -> None:
        self.hook, self.at = hook, at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            run.handles[self.hook].remove()


def halves(output: Any) -> Any:
    return output / 2


class Commander:
    """Sends commands after these iterations, each once in a run, and waits until the run has
    received them.

    A command is its words in one string, and is sent in an attempt that `mark` has not seen it in.
    Several at one iteration are sent in their order. It fires on all ranks, so that they agree
    right after it, and rank 0 sends.
    """

    writes = ("control",)
    phase = "last"

    def __init__(self, script: list[tuple[int, str]], mark: str) -> None:
        self.script, self.mark = script, Path(mark)

    def after_train_iter(self, run: Any) -> None:
        due = [
            (k, text)
            for k, (it, text) in enumerate(self.script)
            if it == run.iter and run.rank == 0
        ]
        # An interpreter that imports this file for another hook may not find the tests.
        from tests.support.limits import LIMIT

        signals, until = run._log._on_command.__self__, time.monotonic() + LIMIT
        for k, text in due:
            mark = self.mark.with_name(f"{self.mark.name}.{k}")
            if not mark.exists():
                mark.touch()
                name, *args = text.split(" ")
                id_ = send(RunDir(run.dir), name, *args)
                while all(command["id"] != id_ for command in signals.commands):
                    assert time.monotonic() < until, f"{text} was not received"
                    time.sleep(0.005)
