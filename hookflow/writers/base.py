"""The base class of writers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Writer(ABC):
    """Carries what a run logs to somewhere else: a file, a service. `[writers.NAME]` names one by `use`.

    It is made before the training. Its constructor is given `dir` (a folder of its own in the run directory),
    `run_name` and `run_id` where it takes them and the pipeline does not give them. All other calls come from one
    thread of its own, one at a time, in the order in which things were logged; so a slow writer delays no training and
    no other writer. With several ranks, rank 0 alone has writers. An exception that a call raises
    loses that call; `docs/writers.md` says what follows.

    `iteration` and `epoch` are how many were done, `time` is in seconds since 1970.
    """

    @abstractmethod
    def write_scalar(self, name: str, value: float, iteration: int, epoch: int, time: float) -> None:
        """Take a number of `run.log`, or a metric of a validation or test by its split: "val/accuracy"."""

    @abstractmethod
    def write_image(self, name: str, file: Path, caption: str, iteration: int, epoch: int, time: float) -> None:
        """Take an image of `run.log_image`: a PNG file in the run directory, which stays there."""

    def write_figure(self, name: str, file: Path, iteration: int, epoch: int, time: float) -> None:
        """Take a figure of `run.log_figure` as it was drawn, a PNG file; left out, it is an image without a caption."""
        self.write_image(name, file, "", iteration, epoch, time)

    @abstractmethod
    def write_text(self, name: str, text: str, iteration: int, epoch: int, time: float) -> None:
        """Take a text of `run.log_text`."""

    @abstractmethod
    def write_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], iteration: int, epoch: int, time: float
    ) -> None:
        """Take a histogram of `run.log_histogram`: the edges of its bins, and the counts, one fewer."""

    @abstractmethod
    def write_config(self, config: Mapping[str, Any]) -> None:
        """Take the resolved pipeline, as the tables of its TOML. Called once in the whole run, before all else."""

    @abstractmethod
    def close(self) -> None:
        """Finish. Called once at the end of each attempt, however it ends, unless the process is killed."""

    def flush(self) -> None:  # noqa: B027 (a writer that keeps nothing back needs none)
        """Bring to its place what is kept back. Called whenever nothing more is waiting to be written."""

    def resume_at(self, iteration: int) -> bool:
        """Forget what earlier attempts have written after `iteration`, and return whether it does.

        Called first in every attempt but the first that has the writer. The run resumes at that iteration or later:
        what the writer may lack up to there, as the process was killed, is written again then. A writer that cannot
        forget returns False, and is not asked again: what it was given before is passed over when the resumed run logs
        it again.
        """
        return False
