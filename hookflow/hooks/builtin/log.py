"""Hooks that record the training: scalars, learning rates, environment, throughput, profile."""

import json
import os
import platform
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.events.git_state import GitError, ask_git_for_text
from hookflow.events.rundir import of_rank
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.capabilities import HookCapabilities
from hookflow.hooks.run import Run
from hookflow.hooks.tensors import EpochSums, RankMeans, Weight, Window, on_device, weighted


@dataclass(eq=False)
class Log(Hook):
    """Logs the loss, every other single number among the task's outputs, and the learning rate.

    When it fires, it logs the newest value of each output since it last fired: not every iteration
    may return it.

    The rate is that of the last parameter group, which holds what the pipeline gives no group of
    its own; several optimizers have one each, `lr/<name>`.

    `window` and `mean` make means over iterations, of which none is left out, whatever `every` says
    of when they are logged. Each example counts alike, or what the task says that a batch weighs,
    with gradient accumulation and over several processes too. An epoch's mean is logged when the
    epoch is done, as `<name>_epoch`. A resumed run logs the means of one that was never
    interrupted.

    Where there are several training sets, each also has its own numbers, by the name of the set:
    `photos/loss`. An iteration that accumulates batches of several sets logs only the means over
    all of them.

    Numbers on the device are copied later by a thread that may wait; the training does not. Where
    several processes train together, an output is the mean over the examples of all of them.
    """

    phase = "late"
    points = ("after_train_iter",)
    reads: ClassVar[Slots] = {"after_train_iter": ("batch", "outputs", "lr")}
    watches: ClassVar[Mapping[str, str]] = {"after_train_iter": "add"}
    # A run that overfits a few batches is there to show whether the loss falls.
    capabilities = HookCapabilities(every_if_overfit="1ep")

    only: Annotated[
        list[str] | None, Field(description="the outputs to log; all single numbers if left out")
    ] = None
    window: Annotated[
        int | None, Field(ge=1, description="log the mean over so many iterations instead")
    ] = None
    mean: Annotated[
        Literal["epoch"] | None, Field(description='"epoch" also logs the mean over each epoch')
    ] = None

    def __post_init__(self) -> None:
        self.latest: Window | None = None
        if self.window:
            self.latest = Window(self.window)
        self.epoch: EpochSums | None = None
        if self.mean:
            self.epoch = EpochSums()
        self.iteration_means, self.epoch_means = RankMeans(), RankMeans()
        self.has_sets: bool | None = None
        """Whether the batches of the training are of several sets.

        It is None before the first iteration.
        """
        self.newest: dict[str, tuple[Any, Weight]] = {}
        """The newest value of each name since the last firing, and its weight."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        if args.get("mean"):
            return (*cls.points, "after_train_epoch")
        return cls.points

    def add(self, run: Run, outputs: dict[str, Any]) -> None:
        """Take in the outputs of an iteration, logged or not."""
        weight = run.batch_weight
        picked = self._pick(outputs)
        if self.has_sets is None:  # asked once, since it is the same in every iteration
            self.has_sets = hasattr(run.data["train"], "batch_set")
        if self.has_sets and run.batch_set is not None:
            for name, value in list(picked.items()):
                picked[f"{run.batch_set}/{name}"] = value
        for name, value in picked.items():
            if hasattr(value, "detach"):
                self.newest[name] = value.detach(), weight
            else:
                self.newest[name] = value, weight
        if self.latest or self.epoch:
            numbers = {name: on_device(value, run.device) for name, value in picked.items()}
            if self.latest:
                self.latest.add(run.iter, numbers, weight)
            if self.epoch:
                self.epoch.add(run.epoch, numbers, weight)

    def _pick(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs to log: those of `only`, or else all single numbers."""
        if self.only is not None:
            return {name: value for name, value in outputs.items() if name in self.only}
        return {name: value for name, value in outputs.items() if _is_single_number(value)}

    # This method does not use `outputs`: `add`, which is given the same arguments, does.
    def after_train_iter(self, run: Run, outputs: dict[str, Any]) -> None:
        for name, value in self._compute_means(run).items():
            run.log(name, value)
        self.newest = {}
        for name, optimizer in run.optimizers.items():
            label = "lr"
            if len(run.optimizers) > 1:
                label = f"lr/{name}"
            run.log(label, optimizer.param_groups[-1]["lr"])

    def after_train_epoch(self, run: Run) -> None:
        if self.epoch:
            for name, value in self.epoch_means.over_ranks(run, self.epoch.sums()).items():
                run.log(f"{name}_epoch", value)

    def _compute_means(self, run: Run) -> Mapping[str, Any]:
        """Return the number to log of each name that iterations gave since the last firing."""
        if self.latest:
            return self.iteration_means.over_ranks(run, self.latest.sums(self.newest))
        if run.world == 1:
            return {name: value for name, (value, _) in self.newest.items()}
        sums = {}
        for name, (value, weight) in self.newest.items():
            sums[name] = weighted(on_device(value, run.device), weight), weight
        return self.iteration_means.over_ranks(run, sums)

    def state_dict(self) -> dict[str, Any]:
        states = {name: item.state_dict() for name, item in self._collect_kept().items()}
        return {**states, "newest": {name: list(item) for name, item in self.newest.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, item in self._collect_kept().items():
            if name in state:
                item.load_state_dict(state[name])
        self.newest = {name: (value, weight) for name, (value, weight) in state["newest"].items()}

    def _collect_kept(self) -> dict[str, Window | EpochSums]:
        kept = {"window": self.latest, "epoch": self.epoch}
        return {name: item for name, item in kept.items() if item}


def _is_single_number(value: Any) -> bool:
    return getattr(value, "ndim", 1) == 0 or isinstance(value, (int, float))


Setting = Literal["momentum", "weight_decay"]


@dataclass(eq=False)
class LRMonitor(Hook):
    """Logs the learning rate of each parameter group.

    The names are `lr/0`, `lr/1` and so on, or `lr/` and the group's own `name`. Where there are
    several optimizers, the optimizer's name comes first: `lr/generator/0`. The names of `also` are
    logged likewise: `momentum/0`, `weight_decay/0`. The momentum of Adam and its kin is the first
    of their `betas`.
    """

    reads = ("lr", "optimizer")

    also: Annotated[
        tuple[Setting, ...], Field(description="further settings of each group to log")
    ] = ()

    def after_train_iter(self, run: Run) -> None:
        for name, optimizer in run.optimizers.items():
            prefix = ""
            if len(run.optimizers) > 1:
                prefix = f"{name}/"
            for k, group in enumerate(optimizer.param_groups):
                known = dict(group)
                if "betas" in group:
                    known["momentum"] = group["betas"][0]
                for setting in ("lr", *self.also):
                    if setting in known:  # plain SGD, say, has no momentum
                        run.log(f"{setting}/{prefix}{group.get('name', k)}", known[setting])


class EnvInfo(Hook):
    """Writes the git commit, the installed packages and the machine to a file.

    The file is `environment.json` in the run directory. The commit is that of the current
    directory's repository; `dirty` lists the files that differ from it, those that git does not
    track included. The same is logged as the text `environment`, without the packages. A resumed
    run writes the file anew.
    """

    ranks = "zero"

    def before_run(self, run: Run) -> None:
        reason = ""
        try:
            repository = read_git_state(Path.cwd())
        except GitError as error:
            repository = None
            reason = str(error)
        computer = describe_machine()
        result = {"git": repository, **computer, "packages": list_packages()}
        if reason:
            result["git_error"] = reason
        (run.dir / "environment.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        lines = {
            "git": f"not known: {reason}" if reason else _describe_repository(repository),
            **computer,
            "gpus": ", ".join(computer["gpus"]) or "none",
        }
        run.log_text("environment", "\n".join(f"{key:9} {value}" for key, value in lines.items()))


def _describe_repository(repository: dict[str, Any] | None) -> str:
    if repository is None:
        return "no repository"
    text = f"{repository['commit'][:12]} on {repository['branch']}"
    if repository["dirty"]:
        text += f", {len(repository['dirty'])} files differ from it"
    return text


def read_git_state(folder: Path) -> dict[str, Any] | None:
    """Return the `commit` and `branch` of a folder's repository, and what is `dirty`.

    It is None where there is none.

    Raises:
        GitError: There may be a repository, but git cannot say: it is not installed, it refuses the
        folder's owner, …
    """
    if ask_git_for_text(folder, "rev-parse", "--git-dir") is None:
        return None
    commit = ask_git_for_text(folder, "rev-parse", "HEAD")
    branch = ask_git_for_text(folder, "rev-parse", "--abbrev-ref", "HEAD")
    # Untracked files are listed, whatever the user's settings say.
    changes = ask_git_for_text(folder, "status", "--porcelain", "--untracked-files=normal") or ""
    return {
        "commit": commit,
        "branch": branch,
        "dirty": [line[3:] for line in changes.splitlines()],
    }


def list_packages() -> dict[str, str]:
    """Return the versions of the installed packages.

    Parsing their whole metadata would take seven times as long.
    """
    from importlib.metadata import distributions

    texts = (
        each.read_text("METADATA") or each.read_text("PKG-INFO") or "" for each in distributions()
    )
    facts = [
        dict(re.findall("^(Name|Version): (.*)", text.partition("\n\n")[0], re.M)) for text in texts
    ]
    whole = [each for each in facts if len(each) == 2]
    return {
        each["Name"]: each["Version"]
        for each in sorted(whole, key=lambda each: each["Name"].lower())
    }


def describe_machine() -> dict[str, Any]:
    """Return the versions of Python, torch and CUDA, the system, its processors, and the GPUs."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
    }


@dataclass(eq=False)
class Throughput(Hook):
    """Logs `samples_per_s`, of all ranks together, over the iterations since it last did.

    With `tokens_per_sample` also `tokens_per_s`, of all ranks together. With `flops_per_sample` and
    `peak_flops` also `mfu`, the model FLOPs utilization, from 0 to 1: the operations that the
    examples need by the model's definition, a second, by those that the devices could do (A.
    Chowdhery and others, *PaLM*, 2022). The forward and backward pass of a transformer need about 6
    operations for each token and parameter.

    A figure covers every iteration since the last one, over the ends of epochs too, whatever
    `every` says of when it is logged. A run shorter than `window` logs one figure, at its end. The
    time of validations, checkpoints and pauses is left out. Where the size of a batch is unknown,
    nothing is logged.
    """

    reads: ClassVar[Slots] = {"after_train_iter": ("batch",)}
    watches: ClassVar[Mapping[str, str]] = {"after_train_iter": "add"}

    window: Annotated[int, Field(ge=1, description="iterations that a figure covers at least")] = 20
    tokens_per_sample: Annotated[
        int | None, Field(ge=1, description="how many tokens an example has")
    ] = None
    flops_per_sample: Annotated[
        float | None, Field(gt=0, description="floating-point operations of an example")
    ] = None
    peak_flops: Annotated[
        float | None, Field(gt=0, description="operations a second that a device can do")
    ] = None

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        both = ("flops_per_sample", "peak_flops")
        for item, other in (both, both[::-1]):
            if args.get(item) is not None and args.get(other) is None:
                raise UserError(
                    Problem(f"{item} needs {other} too", hint="mfu is computed from both")
                )

    def before_train(self, run: Run) -> None:
        self.least = self.window
        if run.max_iters:
            self.least = min(self.window, max(run.max_iters - run.iter, 1))
        self.restart(run)

    def restart(self, run: Run) -> None:
        self.began = run.train_seconds
        self.samples = 0
        self.iterations = 0
        self.known = True

    def add(self, run: Run) -> None:
        """Count the examples of an iteration, logged or not."""
        size = run.batch_size
        self.samples += size
        self.known = self.known and size > 0
        self.iterations += 1

    def after_train_iter(self, run: Run) -> None:
        if self.iterations < self.least:
            return
        rate = self.samples / (run.train_seconds - self.began)
        total: Any = rate
        if run.world > 1:  # all ranks must call it, whatever each of them knows
            total = run.sum(rate)
        if self.known:
            for name, value in self.compute_figures(total, run.world).items():
                run.log(name, value)
        self.restart(run)

    def compute_figures(self, samples_per_s: Any, devices: int) -> dict[str, Any]:
        """Return what is logged when all devices together train on so many examples a second."""
        result = {"samples_per_s": samples_per_s}
        if self.tokens_per_sample is not None:
            result["tokens_per_s"] = samples_per_s * self.tokens_per_sample
        if self.flops_per_sample is not None and self.peak_flops is not None:
            result["mfu"] = samples_per_s * self.flops_per_sample / (devices * self.peak_flops)
        return result


@dataclass(eq=False)
class Profiler(Hook):
    """Traces a few iterations with PyTorch's profiler, into `profile/` of the run directory.

    It traces `active` iterations after `wait` and `warmup` ones, `repeat` times. A trace is named
    after the last iteration in it, counted as `run.iter` does, and a message says so: it is JSON in
    Chrome's trace format, which ui.perfetto.dev opens. It has the operators on the host and, where
    there is CUDA, the kernels on the device. In a `warmup` iteration the profiler runs already and
    keeps nothing. Waiting before a trace, and everything after the last one, costs next to nothing.
    A resumed run begins with `wait` again. Bound on all ranks (`ranks = "all"`), each writes its
    own.
    """

    phase = "last"
    ranks = "zero"
    capabilities = HookCapabilities(
        offload_blocker=(
            "PyTorch's profiler traces the thread that starts it, and counts every iteration"
        )
    )

    wait: Annotated[
        int, Field(ge=0, description="iterations before each trace in which nothing is traced")
    ] = 10
    warmup: Annotated[
        int, Field(ge=1, description="iterations that are traced and thrown away")
    ] = 2
    active: Annotated[int, Field(ge=1, description="iterations in a trace")] = 3
    repeat: Annotated[
        int, Field(ge=0, description="how many traces; 0 until the end of the run")
    ] = 1
    record_shapes: Annotated[
        bool, Field(description="keep the shapes of the operators' inputs")
    ] = False
    profile_memory: Annotated[bool, Field(description="keep what tensors allocate and free")] = (
        False
    )
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
            run.say(
                f"the trace up to iteration {run.iter} is {where} of the run directory: open it in"
                " ui.perfetto.dev"
            )

        kinds = [profiler.ProfilerActivity.CPU]
        if run.device.type == "cuda":
            kinds.append(profiler.ProfilerActivity.CUDA)
        self.profile = profiler.profile(
            activities=kinds,
            schedule=profiler.schedule(
                wait=self.wait, warmup=self.warmup, active=self.active, repeat=self.repeat
            ),
            on_trace_ready=keep,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
        )
        self.profile.start()

    def after_train_iter(self) -> None:
        profile = self.profile  # one that raises must not be stopped: that may kill the process
        self.profile = None
        if profile is not None:
            with warnings.catch_warnings():
                # PyTorch warns that it clears the events of a trace, which `keep` has written by
                # then.
                warnings.filterwarnings("ignore", "Warning: Profiler clears events")
                profile.step()
            self.profile = profile

    def after_train(self) -> None:
        profile = self.profile
        self.profile = None
        if profile is not None:
            profile.stop()

    on_exception = after_train
