"""Writers that the tests put into pipelines as "./own_writers.py:…"."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hookflow.writers import Writer


class Notes(Writer):
    """Writes every call down, with the thread that makes it;
    `forgets` says what `resume_at` answers.
    """

    def __init__(self, file: str, forgets: bool = False) -> None:
        self.file = Path(file)
        self.forgets = forgets
        self.note("made")

    def note(self, method: str, *args: Any) -> None:
        with self.file.open("a") as file:
            file.write(
                json.dumps([method, threading.current_thread().name, *args], default=str) + "\n"
            )

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        self.note("scalar", name, iteration, value, epoch)

    def write_image(
        self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float
    ) -> None:
        self.note("image", name, iteration, file, caption)

    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        self.note("text", name, iteration, text)

    def write_histogram(
        self,
        name: str,
        edges: Sequence[float],
        counts: Sequence[int],
        iteration: int,
        epoch: int,
        time: float,
    ) -> None:
        self.note("histogram", name, iteration, edges, counts)

    def write_config(self, config: Any) -> None:
        self.note("config", config["run"]["name"], config["run"]["max_epochs"])

    def close(self) -> None:
        self.note("close")

    def resume_at(self, iteration: int) -> bool:
        self.note("resume", iteration)
        return self.forgets


class Blocks(Notes):
    """Does not come back from its first scalar before `released` is set."""

    released = threading.Event()

    def write_scalar(
        self, name: str, value: float, iteration: int, epoch: int, time: float
    ) -> None:
        super().write_scalar(name, value, iteration, epoch, time)
        self.released.wait()
