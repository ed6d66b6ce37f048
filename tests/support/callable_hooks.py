"""All that can be a hook: what the tests of callables put into pipelines."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any


def tell(prefix: str, count: int, run: Any, suffix: str = "!") -> None:
    """Say what it is given."""
    run.say(f"{prefix} {count}{suffix}")


def skips(prefix: str, sep: str = ":", run: Any = None) -> None:
    """Take something that has a default, and the run behind it."""
    run.say(f"{prefix}{sep}{run.iter}")


def named(prefix: str, *, times: int = 1, run: Any) -> None:
    run.say(f"{prefix * times} at {run.iter}")


def last(run: Any, prefix: str, metrics: dict[str, float] | None = None, suffix: str = "!") -> None:
    """Take what is given between what is offered."""
    run.say(f"{prefix} {metrics is not None}{suffix}")


def wordy(run: Any, *words: str) -> None:
    """Can be given its words in their place alone."""


def typed(
    run: Any, out: Path, pair: tuple[int, int] = (0, 0), some: frozenset[int] = frozenset()
) -> None:
    run.say(f"{out.name} {pair} {sorted(some)}")


twice = partial(tell, "twice", 2)
"""A partial of a function whose first arguments are given."""


class Teller:
    def __call__(self, run: Any, prefix: str = "call") -> None:
        run.say(f"{prefix} {run.iter}")


teller = Teller()


class Counter:
    """Makes objects that are called, each with a state of its own."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, run: Any) -> None:
        self.count += 1
        run.say(f"call {self.count}")


class Listed:
    """Is made with a list of arguments; its methods take things in ways of their own."""

    def __init__(self, prefix: str, numbers: list[int], last: bool = False) -> None:
        self.said = f"{prefix} {numbers} {last}"

    def before_train(self, loud: bool = False, run: Any = None) -> None:
        run.say(f"{self.said} {loud}")

    def after_train(self, *, run: Any) -> None:
        run.say("after")

    def around_val(self, *, run: Any) -> Iterator[None]:
        run.say("in")
        yield
        run.say("out")


class SaysName:
    """Has the name that the pipeline gives it."""

    name: str

    def after_train(self, run: Any) -> None:
        run.say(self.name)


class HasName(SaysName):
    def __init__(self, name: str) -> None:
        self.name = name


class HasSlots:
    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said = "no name"

    def after_train(self, run: Any) -> None:
        run.say(self.said)


def says_from_a_thread(run: Any) -> None:
    thread = Thread(target=run.say, args=("from a thread",))
    thread.start()
    thread.join()


def puts(metrics: dict[str, float], value: float) -> None:
    metrics["put"] = value
