"""Profiler: a trace of a few iterations, by `torch.profiler`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hookflow.events.rundir import of_rank
from hookflow.hooks.base import Hook

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


@dataclass(eq=False)
class Profiler(Hook):
    """Traces `active` iterations after `wait` and `warmup` ones, `repeat` times, into `profile/` of the run directory.

    A trace is named after the last iteration in it, counted as `run.iter` does, and a message says so: it is JSON in
    Chrome's trace format, which ui.perfetto.dev opens. It has the operators on the host and, where there is CUDA, the
    kernels on the device. In a `warmup` iteration the profiler runs already and keeps nothing. Waiting before a trace,
    and everything after the last one, costs next to nothing. A resumed run begins with `wait` again. Bound on all ranks
    (`ranks = "all"`), each writes its own.
    """

    phase = "last"
    ranks = "zero"

    wait: Annotated[int, Field(ge=0, description="iterations before each trace in which nothing is traced")] = 10
    warmup: Annotated[int, Field(ge=1, description="iterations that are traced and thrown away")] = 2
    active: Annotated[int, Field(ge=1, description="iterations in a trace")] = 3
    repeat: Annotated[int, Field(ge=0, description="how many traces; 0 until the end of the run")] = 1
    record_shapes: Annotated[bool, Field(description="keep the shapes of the operators' inputs")] = False
    profile_memory: Annotated[bool, Field(description="keep what tensors allocate and free")] = False
    with_stack: Annotated[bool, Field(description="record Python call stacks")] = False

    def __post_init__(self) -> None:
        self.profile: Any = None

    def before_train(self, run: Run) -> None:
        from torch import profiler

        def keep(profile: Any) -> None:
            path = of_rank(run.dir / "profile" / f"it{run.iter:08d}.json", run.rank)
            path.parent.mkdir(exist_ok=True)
            profile.export_chrome_trace(str(path))
            where = path.relative_to(run.dir)
            run.say(f"the trace up to iteration {run.iter} is {where} of the run directory: open it in ui.perfetto.dev")

        kinds = [profiler.ProfilerActivity.CPU]
        if run.device.type == "cuda":
            kinds.append(profiler.ProfilerActivity.CUDA)
        self.profile = profiler.profile(
            activities=kinds,
            schedule=profiler.schedule(wait=self.wait, warmup=self.warmup, active=self.active, repeat=self.repeat),
            on_trace_ready=keep,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
        )
        self.profile.start()

    def after_train_iter(self) -> None:
        profile, self.profile = self.profile, None  # one that raises must not be stopped: that may kill the process
        if profile is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning: Profiler clears events")  # each trace is kept before that
                profile.step()
            self.profile = profile

    def after_train(self) -> None:
        profile, self.profile = self.profile, None
        if profile is not None:
            profile.stop()

    on_exception = after_train
