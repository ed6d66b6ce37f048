"""Hooks that kill their own process: named by tests' pipelines as "./kill_hooks.py:Killer"."""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from hookflow.graph.points import DEFAULT_POINTS
from hookflow.runner.checkpoint import manifest
from hookflow.runner.checkpoint import store as checkpoint
from hookflow.runner.distributed import failures
from hookflow.runner.state import checkpoint_manager as manager

FILES = {str(module.__file__) for module in (checkpoint, manifest, manager)}


class Killer:
    """Kills the process once in each of the first `kills` attempts, wherever the lot falls.

    That is at some firing of some point, at some line of what writes a checkpoint, or at some
    moment. `folder` is where it counts the attempts: by a file each, whose name says what the
    process was doing when it was killed.
    """

    def __init__(self, folder: str, seed: int, kills: int) -> None:
        self.folder, self.seed, self.kills = Path(folder), seed, kills
        self.firings = self.lines = 0

    def before_run(self, run: Any) -> None:
        attempt = len(list(self.folder.iterdir()))
        if attempt < self.kills:
            self.draw(
                run, attempt, Random(f"{self.seed} {attempt}"), ["firing", "line", "line", "moment"]
            )

    def draw(self, run: Any, attempt: int, lot: Random, kinds: list[str]) -> None:
        """Let the lot fall: one of these kinds, and where."""
        self.run, self.kind = run, lot.choice(kinds)
        self.mark = self.folder / f"{attempt}"
        self.mark.touch()
        match self.kind:
            case "firing":
                self.firings = lot.randrange(1, 300)
            case "line":
                self.lines = lot.randrange(1, 800)
                threading.settrace(self.trace)
            case "moment":
                self.firings = 300  # at the latest: a fast machine would come to the end of the run
                moment = threading.Timer(lot.uniform(0.05, 0.4), self.kill)
                moment.daemon = True
                moment.start()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count the lines that other threads run of what writes a checkpoint."""
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.lines -= 1
            if self.lines == 0:
                self.kill()
        return self.trace

    def fired(self) -> None:
        self.firings -= 1
        if self.firings == 0:
            self.kill()

    def kill(self) -> None:
        doing = "save" if self.kind == "line" else self.run.stage
        self.mark.rename(f"{self.mark} {doing}")
        os.kill(os.getpid(), signal.SIGKILL)


class RankKiller(Killer):
    """Does so on one of two ranks.

    Which attempt it is stands in the file "attempt" of the folder.
    """

    def before_run(self, run: Any) -> None:
        failures.REPORT_WAIT_SECONDS = 0.0  # who is killed reports nothing
        attempt = int((self.folder / "attempt").read_text())
        lot = Random(f"{self.seed} {attempt}")
        if attempt < self.kills and lot.randrange(2) == run.rank:
            # Rank 0 alone writes.
            kinds = ["firing", "moment"] if run.rank else ["firing", "line", "moment"]
            self.draw(run, attempt, lot, kinds)


class KillsRankOneAtTheCheckpoint:
    """Kills rank 1 as soon as the state of the first checkpoint has been copied."""

    def before_run(self) -> None:
        failures.REPORT_WAIT_SECONDS = 0.0

    def after_copy_checkpoint(self, run: Any) -> None:
        if run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def each(run: Any) -> None:
    run.log("each", run.iter)


def when_killed(folder: Path) -> Counter[str]:
    """Return how often a killer has struck, by what the process was doing."""
    return Counter(mark.name.partition(" ")[2] for mark in folder.iterdir() if " " in mark.name)


for _point in DEFAULT_POINTS:
    if _point.kind in ("standard", "step") and _point.name != "before_run":
        setattr(Killer, _point.name, Killer.fired)
