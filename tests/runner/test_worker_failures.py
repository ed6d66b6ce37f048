"""What a worker cannot send, or dies of, is an error in words; the training never waits for it."""

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookflow.errors import Where
from hookflow.events.rundir import RunDir
from hookflow.runner.data import workers
from hookflow.runner.data.loader import collate_examples
from hookflow.runner.data.source import Source, as_source, close
from hookflow.runner.data.workers import (
    SharedMemoryError,
    WorkerError,
    call_explaining_worker_errors,
)
from tests.support.data_loaders import context
from tests.support.data_sources import source


def raise_local() -> None:
    class LocalError(Exception):
        """No other process can import it."""

    raise LocalError("example 2 is broken")


class Bad(Dataset[Any]):
    """Its third example is one that `trouble` makes."""

    def __init__(self, trouble: Callable[[], Any]) -> None:
        self.trouble = trouble

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.trouble() if index == 2 else torch.tensor([float(index)])


class BadStream(IterableDataset[Any]):
    def __init__(self, trouble: Callable[[], Any]) -> None:
        self.examples = Bad(trouble)

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Any]:
        return (self.examples[index] for index in range(8))


class UnsavedStream(BadStream):
    """Its state cannot be pickled."""

    def state_dict(self) -> dict[str, Any]:
        return {"function": lambda: None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def as_it_is(examples: list[Any]) -> Any:
    return list(examples)


def by_index(trouble: Callable[[], Any]) -> Source:
    return source(
        Bad(trouble),
        workers=1,
        batch_size=2,
        shuffle=False,
        collate="../runner/test_worker_failures.py:as_it_is",
    )


def from_a_stream(trouble: Callable[[], Any]) -> Source:
    return source(
        BadStream(trouble),
        workers=1,
        batch_size=2,
        collate="../runner/test_worker_failures.py:as_it_is",
    )


def by_an_own_loader(trouble: Callable[[], Any]) -> Source:
    loader = DataLoader(
        Bad(trouble), 2, num_workers=1, collate_fn=as_it_is, multiprocessing_context="fork"
    )
    return as_source(loader, Where("test"), context())


def failure_of(made: Source) -> str:
    """Return what the training says of a worker's failure, with its notes."""
    with pytest.raises(WorkerError) as raised:
        call_explaining_worker_errors(lambda: list(made.epoch(0)))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    del raised
    close(made)
    gc.collect()  # what is left of a worker's socket goes here, where no warning of it matters
    return text


SOURCES = pytest.mark.parametrize("made", [by_index, from_a_stream, by_an_own_loader])


@SOURCES
def test_an_exception_that_cannot_be_pickled_is_told(made: Callable[..., Source]) -> None:
    assert "LocalError: example 2 is broken" in failure_of(made(raise_local))


@SOURCES
def test_a_batch_that_cannot_be_pickled_is_told(made: Callable[..., Source]) -> None:
    text = failure_of(made(lambda: lambda: None))
    assert "worker 0: " in text and "a batch cannot be sent" in text


def test_a_state_that_cannot_be_pickled_is_told() -> None:
    text = failure_of(source(UnsavedStream(lambda: torch.zeros(1)), workers=1, batch_size=2))
    assert "cannot be sent to the training" in text


# PyTorch opens temporary files where a worker's socket is gone, and leaves them open.
PYTORCH_LEAVES_FILES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@PYTORCH_LEAVES_FILES
@pytest.mark.parametrize("leave", [sys.exit, lambda: os._exit(0)])
@SOURCES
def test_a_worker_that_leaves_with_exit_code_0_is_told(
    made: Callable[..., Source], leave: Callable[[], Any]
) -> None:
    assert "ended with exit code 0" in failure_of(made(leave))


@PYTORCH_LEAVES_FILES
@SOURCES
def test_a_worker_over_its_processor_time_is_told(made: Callable[..., Source]) -> None:
    text = failure_of(made(lambda: os.kill(os.getpid(), signal.SIGXCPU)))
    assert "SIGXCPU" in text and "processor time" in text


NO_ROOM = (
    "unable to allocate shared memory(shm) for file </torch_7_9>: No space left on device (28)"
)


def no_room(examples: list[Any]) -> Any:
    raise RuntimeError(NO_ROOM)


def test_shared_memory_that_is_full_is_told_as_that() -> None:
    with pytest.raises(SharedMemoryError, match="shared memory ran out"):
        collate_examples([torch.zeros(1)] * 2, [0, 1], no_room, "train")
    made = source(
        Bad(lambda: torch.zeros(1)),
        workers=1,
        batch_size=2,
        collate="../runner/test_worker_failures.py:no_room",
    )
    text = failure_of(made)
    assert "a batch of [data.train]" in text and "shared memory ran out" in text


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 60])
def test_a_limit_of_processor_time_is_a_cause_of_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    is_limited = hard != resource.RLIM_INFINITY
    for text in (
        RunDir(tmp_path).ended_by(-signal.SIGKILL),
        workers._describe_death(1, signal.strsignal(signal.SIGKILL)),
    ):
        assert "memory" in text
        assert ("60 s (ulimit -t)" in text) == is_limited
    assert "processor time" in RunDir(tmp_path).ended_by(-signal.SIGXCPU)
