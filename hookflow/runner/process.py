"""The training process: one attempt at a run, from its directory to its exit code."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from hookflow.errors import UserError
from hookflow.events.records import VERSION
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import Loaded, load
from hookflow.runner.build import Parts, build
from hookflow.runner.checkpoint import CheckpointStore
from hookflow.runner.control import Control, Stop
from hookflow.runner.device import describe
from hookflow.runner.recorder import Recorder
from hookflow.runner.runner import Runner


def train(run_dir: RunDir, *, resume: bool = False) -> int:
    """Carry out the run whose pipeline and plan stand in `run_dir`; return the exit code.

    0: finished or stopped as asked; 1: something raised; 2: the user's mistake; 130 and 143: interrupted.
    """
    control = Control()
    control.listen()
    run_dir.sign_process()
    recorder = Recorder(run_dir, control.ask)
    recorder.start()
    attempt = _Attempt(run_dir, recorder, control)
    try:
        stop = attempt.carry_out(resume=resume)
    except UserError as error:
        stop = Stop(str(error), "failed", 2, save=False)
    except KeyboardInterrupt as error:
        stop = Stop(f"{error} received twice: ended at once", "interrupted", _exit_code(control), save=False)
    except BaseException as error:
        traceback.print_exc()
        attempt.record_failure(error)
        stop = Stop(f"{type(error).__name__}: {error}", "failed", 1, save=False)
    finally:
        sys.stdout.flush()
    attempt.record_end(stop)
    recorder.close()
    return stop.exit


def _exit_code(control: Control) -> int:
    return control.stop.exit if control.stop else 130


class _Attempt:
    def __init__(self, run_dir: RunDir, recorder: Recorder, control: Control) -> None:
        self.dir = run_dir
        self.recorder = recorder
        self.control = control
        self.runner: Runner | None = None
        self.began = time.perf_counter()

    def carry_out(self, *, resume: bool) -> Stop:
        plan = Plan.from_json(json.loads(self.dir.plan.read_text("utf-8")))
        loaded = self._load()
        parts = build(loaded, plan, Path(self.dir.describe()["base"]), self._say)
        checkpoint = self._newest_checkpoint() if resume else None
        self._record_start(plan, parts, checkpoint)
        self.runner = Runner(parts, plan, self.dir, self.recorder, self.control)
        ended_early = self.runner.run(checkpoint, test=loaded.pipeline.run.test)
        return ended_early or Stop("every iteration is done", "finished", 0, save=False)

    def _load(self) -> Loaded:
        """Return the recorded pipeline; with the places of the user's own file, if that still says the same."""
        recorded = load(self.dir.pipeline)
        facts = self.dir.describe()
        try:
            written = load(Path(facts["source"]), facts["overrides"])
        except UserError:
            return recorded
        return written if written.pipeline == recorded.pipeline else recorded

    def _newest_checkpoint(self) -> Path | None:
        found, passed_over = CheckpointStore(self.dir.checkpoints).newest_good()
        for line in passed_over:
            self._say(line, "warn")
        if found is None:
            self._say("there is no checkpoint to resume from: starting at the beginning", "warn")
        return found

    def _say(self, text: str, level: str = "info") -> None:
        self.recorder.put("message", it=0, ep=0, level=level, source="hookflow", text=text)

    def _record_start(self, plan: Plan, parts: Parts, checkpoint: Path | None) -> None:
        iters_per_epoch = len(parts.data["train"])
        self.recorder.put(
            "run",
            version=VERSION,
            pipeline=plan.pipeline,
            pid=os.getpid(),
            host=socket.gethostname(),
            python=platform.python_version(),
            torch=torch.__version__,
            device=describe(parts.device),
            precision=parts.precision,
            model=type(parts.model).__name__,
            params=sum(p.numel() for p in parts.model.parameters()),
            seed=parts.section.seed,
            data={split: source.info for split, source in parts.data.items()},
            max_epochs=parts.section.max_epochs or 0,
            max_iters=parts.section.max_iters or (parts.section.max_epochs or 0) * iters_per_epoch,
            iters_per_epoch=iters_per_epoch,
            it=0,
            ep=0,
            resumed_from=checkpoint.name if checkpoint else None,
        )

    def _place(self) -> dict[str, Any]:
        return {"it": self.runner.iter, "ep": self.runner.epoch} if self.runner else {"it": 0, "ep": 0}

    def record_failure(self, error: BaseException) -> None:
        """Record what raised, unless a hook did: that has been recorded with the hook's name."""
        if any("raised by the hook" in note for note in getattr(error, "__notes__", ())):
            return
        self.recorder.put(
            "error",
            **self._place(),
            hook="",
            point="",
            type=type(error).__name__,
            text=str(error),
            traceback="".join(traceback.format_exception(error)),
            action="raise",
        )

    def record_end(self, stop: Stop) -> None:
        seconds = time.perf_counter() - self.began
        if self.runner is not None:
            self.runner.stage = "end"
        self.recorder.put(
            "end", **self._place(), status=stop.status, exit=stop.exit, reason=stop.reason, seconds=seconds
        )


def main() -> None:
    """`python -m hookflow.runner RUN_DIR [--resume]`: what `hookflow run` starts."""
    arguments = [a for a in sys.argv[1:] if a != "--resume"]
    raise SystemExit(train(RunDir(Path(arguments[0])), resume="--resume" in sys.argv))
