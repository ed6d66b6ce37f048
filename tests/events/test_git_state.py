"""Git is asked by a thread, while data workers are forked."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hookflow.events.git_state import ask_git
from tests.support.limits import LIMIT

Process = multiprocessing.get_context("fork").Process


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """Fork a worker as soon as there is a pipe, whose ends it keeps open."""
    begun: list[Process] = []
    real_pipe = os.pipe

    def make_pipe_and_fork() -> tuple[int, int]:
        ends = real_pipe()
        if not begun:  # a worker has a pipe of its own
            begun.append(Process(target=time.sleep, args=(10 * LIMIT,)))
            begun[0].start()
        return ends

    monkeypatch.setattr(os, "pipe", make_pipe_and_fork)
    yield begun
    for worker in begun:
        worker.kill()
        worker.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # which is what is tested
def test_a_worker_that_is_forked_meanwhile_does_not_keep_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: list[Process]
) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho an answer\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask_git, tmp_path, "status")
        try:
            assert asked.result(10) == b"an answer\n"
        finally:
            for worker in workers:  # else the thread would wait for them
                worker.kill()
