"""A run in this process whose directory is a temporary one: nothing of it is kept but what it has recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hookflow.errors import UserError
from hookflow.events.log import event_log
from hookflow.events.records import Level, Record
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.data.source import close
from hookflow.runner.data.worker_errors import explaining_worker_errors
from hookflow.runner.distributed.consensus import Alone
from hookflow.runner.parts import Parts
from hookflow.runner.recorder import Recorder
from hookflow.runner.signals import Signals
from hookflow.runner.state import RunState
from hookflow.runner.trainer import Trainer

if TYPE_CHECKING:
    from hookflow.runner.observe.observer import Observer

Found = TypeVar("Found")


def in_temporary_run(
    parts: Parts,
    plan: Plan,
    execute: Callable[[Trainer, CheckpointStore], Found],
    say: Callable[[str, Level], None],
    *,
    observer: Observer | None = None,
    prints_failure: bool = True,
) -> tuple[Found, list[Record]]:
    """Let `execute` use a trainer and the store of its checkpoints; return what comes of it, and what was recorded.

    `say` is given the messages; `observer`, if any, watches the hooks. The sources are closed. Whatever raises goes
    through, printed with its traceback where it is no mistake in the pipeline, unless `prints_failure` is off.
    """
    with tempfile.TemporaryDirectory(prefix="hookflow-") as folder:
        run_dir = RunDir(Path(folder))
        recorder = Recorder(run_dir, lambda command: None, prints_failure=prints_failure)
        recorder.start()
        try:
            state = RunState()
            store = CheckpointStore(run_dir.checkpoints)
            trainer = Trainer(parts, plan, run_dir, store, recorder, Signals(state), state, Alone(), observer)
            trainer.run.is_temporary = True
            found = explaining_worker_errors(partial(execute, trainer, store))
        except Exception as error:
            if recorder.reported is not error and not isinstance(error, UserError):
                recorder.failure(error)
            raise
        finally:
            recorder.close()
            for source in parts.data.values():
                close(source)
        recorded = event_log(run_dir.events).read_all()
    for record in recorded:
        if record["k"] == "message":
            say(record["text"], record["level"])
    return found, recorded
