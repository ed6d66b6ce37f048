"""The schema of a pipeline file: its sections, their keys, and a sentence for each key.

Keys are checked strictly: an unknown one is a mistake, and `"3"` is not `3`. The arguments in
`args` belong to what `use` names and are checked against its signature later. Paths in `args` and
`run.dir` are relative to the current directory; `"./file.py:Name"` in `use` and `modules`, and
files of `weights`, to the folder of the file that names them.
"""

from math import prod
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from hookflow.pipeline.by_epoch import CountByEpoch
from hookflow.pipeline.components import (
    Component,
    DataSection,
    ModelSection,
    NameOr,
    OneOrSeveral,
    OptimizerSection,
    Section,
    make_exclusion_validator,
    make_value_validator,
    shape,
)
from hookflow.pipeline.values import (
    ArgList,
    Args,
    BudgetField,
    ConditionField,
    Device,
    EpochLimit,
    FolderName,
    GroupName,
    HookName,
    Interval,
    Limit,
    SecondsField,
    TriggerAmount,
    ValEvery,
    validation_interval,
)


class RunSection(Section):
    """How long, where and how."""

    name: FolderName
    """The name of the run; runs are kept under `dir`, in a folder of this name."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Where every random generator starts."""
    fold: int | None = Field(default=None, ge=0, examples=[0])
    """The fold of a cross-validation, counted from 0, for which `${fold}` stands.

    `[sweep] folds` sets it.
    """
    max_epochs: EpochLimit | None = Field(default=None, examples=[8, "inf"])
    """The length of the training in passes over the training data.

    With `max_iters`, what is reached first ends it. "inf": until a hook, a command or a signal ends
    it.
    """
    max_iters: int | None = Field(default=None, ge=1)
    """The length of the training in iterations.

    Without `max_epochs` that is the iteration-based loop.
    """
    min_iters: int | None = Field(default=None, ge=1)
    """How many iterations are trained at least: until then a hook's request to stop waits."""
    min_epochs: int | None = Field(default=None, ge=1)
    """Epochs before which no hook ends the run.

    Its `run.stop` waits; signals, commands and time limits do not.
    """
    val_every: ValEvery = "1ep"
    """How often to validate: "500it", "2ep", "0.5ep", "10m".

    A bare number is epochs, or iterations without `max_epochs`. With 0 the training has no
    validation.
    """
    val_at_start: bool = False
    """Whether to validate before the first iteration, too."""
    accumulate: CountByEpoch = Field(
        default=1, validate_default=True, examples=[4, [[0, 1], ["3ep", 4]]]
    )
    """How many batches an iteration adds up the gradients of, before a step.

    Or several numbers with the epochs from which they hold.
    """
    scale_lr: Literal["linear", "sqrt"] | None = Field(default=None, examples=["linear"])
    """How the learning rates change where the batch size or `accumulate` does.

    They change by the same factor ("linear"), or by its square root ("sqrt").
    """
    test: bool = False
    """Whether to test once the training has finished; it needs `[data.test]`.

    It tests also where a hook has ended the training early.
    """
    limit_train: Limit | None = Field(default=None, examples=[100])
    """How many batches of the training data make an epoch; all if left out.

    It is a number (10), or a share ("10%").
    """
    limit_val: Limit | None = Field(default=None, examples=["10%"])
    """How many batches of the validation data a validation takes, as in `limit_train`."""
    limit_test: Limit | None = Field(default=None, examples=[100])
    """How many batches of the test data the test takes, as in `limit_train`."""
    overfit: Limit | None = Field(default=None, examples=[4])
    """Train on the first so many batches alone, and validate on them: a sanity check.

    It is a number, or a share ("1%"). They are the same ones in each epoch.
    """
    sanity: bool = True
    """Whether two batches are validated before the training.

    A mistake there then does not cost an epoch.
    """
    device: Device = "auto"
    """Where to compute: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best that is there."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "bf16-true", "fp16-true", "fp64"] = (
        "fp32"
    )
    """The precision of computation.

    "auto" is bf16 where the hardware computes in it, else fp32. fp16 scales the loss. With
    "bf16-true", "fp16-true" and "fp64" the weights have that precision, too.
    """
    compile: bool | Literal["default", "reduce-overhead", "max-autotune"] = False
    """Whether `torch.compile` compiles the networks, or in which of its modes."""
    deterministic: bool | Literal["warn"] = False
    """Whether only algorithms may be used that give the same bits each time.

    One that cannot ends the run. With "warn" it warns, and the run goes on.
    """
    cudnn_benchmark: bool = False
    """Whether cuDNN tries its algorithms out on each new shape and keeps the fastest."""
    on_nan: Literal["raise", "skip", "ignore"] = "raise"
    """The reaction to a loss that is not finite: end the run, leave that step out, or nothing."""
    max_skipped_steps: int = Field(default=25, ge=1)
    """How many steps in a row `on_nan = "skip"` leaves out before the run fails.

    Those of each optimizer are counted.
    """
    inference_mode: bool = False
    """Whether `evaluate` and `predict` run in PyTorch's inference mode.

    Training cannot use the tensors that they return.
    """
    budget: BudgetField | None = Field(default=None, examples=["5%"])
    """The budget of all hooks together, as `budget` of a hook."""
    detect_anomaly: bool = False
    """Whether autograd's anomaly mode names the operation whose gradient is NaN.

    It is one of the forward pass. The mode slows training down.
    """
    channels_last: bool = False
    """Whether images and weights use the channels_last memory format."""
    threads: int | None = Field(default=None, ge=1)
    """How many threads an operation on the CPU may use; PyTorch decides if left out."""
    default_hooks: bool = True
    """Whether `log` and `checkpoint` are there where the pipeline declares no hook of the kind."""
    dir: str = "runs"
    """The folder of all runs, relative to the current directory."""

    @property
    def epoch_limit(self) -> int | None:
        """After how many epochs the training ends; None where they do not end it."""
        if isinstance(self.max_epochs, int):
            return self.max_epochs
        return None

    @property
    def is_endless(self) -> bool:
        """Whether neither epochs nor iterations end the training."""
        return self.epoch_limit is None and self.max_iters is None

    @property
    def validates(self) -> Interval:
        """How often to validate, in whichever unit."""
        return self.interval(self.val_every)

    def interval(self, written: int | str) -> Interval:
        """Return how often to validate, as `val_every` or a set's own says it."""
        every = validation_interval(written)
        value = int(every.value) if every.value.denominator == 1 else every.value
        if every.unit == "s":
            return Interval(value, "s")
        return Interval(value, "ep" if (every.unit or self.unit) == "ep" else "it")

    @property
    def unit(self) -> str:
        """The unit of the loop: "ep" or "it"."""
        if self.max_epochs is None:
            return "it"
        return "ep"

    def scales_nothing(self, data: DataSection) -> bool:
        """Whether learning rates are to follow the batch size, and it never changes."""
        return (
            self.scale_lr is not None
            and not self.accumulate.changes
            and not data.changes_batch_size
        )

    _nothing_chosen_by_its_speed = make_value_validator(
        "deterministic",
        where=lambda deterministic, before: (
            deterministic and before.get("compile") == "max-autotune"
        ),
        message=(
            'compile = "max-autotune" chooses kernels by their speed, which differs from run to run'
        ),
    )
    _nothing_tried_out = make_exclusion_validator(
        "cudnn_benchmark",
        "deterministic",
        "a deterministic run tries nothing out; keep either deterministic or cudnn_benchmark",
    )

    _one_limit = make_exclusion_validator(
        "overfit", "limit_train", "overfit takes the place of limit_train; keep one of them"
    )
    _no_limit = make_exclusion_validator(
        "overfit", "limit_val", "overfit takes the place of limit_val; keep one of them"
    )

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.max_epochs is None and self.max_iters is None:
            raise ValueError("no length is given; write max_epochs = 8, or max_iters = 30_000")
        if self.min_epochs and self.max_epochs and self.min_epochs > self.max_epochs:
            raise ValueError(
                f"min_epochs = {self.min_epochs} is more than max_epochs = {self.max_epochs}"
            )
        if self.min_iters and self.max_iters and self.min_iters > self.max_iters:
            raise ValueError(
                f"min_iters = {self.min_iters} is more than max_iters = {self.max_iters}"
            )
        return self


class DistributedSection(Section):
    """How several processes train one model together.

    How many there are, the command that starts them says.
    """

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """The part of the model in each process.

    It is the whole model ("ddp"), or its share of every parameter ("fsdp").
    """
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """The backend of the process group; "auto" is nccl on CUDA, else gloo.

    By gloo ranks can share a GPU.
    """
    timeout: int = Field(default=600, ge=1)
    """Seconds that a process waits for the others before it gives them up."""
    units: list[str] | None = Field(default=None, examples=[["type:Block"], ["layers.*"]])
    """With "fsdp": modules that are gathered one by one, by name or class.

    Left out, they are the network's repeated block.
    """
    replicas: int = Field(default=1, ge=1)
    """With "fsdp": the number of copies of the model (hybrid sharding).

    Each is sharded over its share of the processes.
    """
    parallelize: str | None = Field(default=None, examples=["./net.py:plan"])
    """With "fsdp": a function of model and mesh that splits layers.

    The mesh is data × tensor. It splits them by torch's `parallelize_module`.
    """
    tensor_parallel: int = Field(default=1, ge=1, validate_default=True, examples=[2])
    """The processes over which `parallelize` splits layers.

    They compute the same examples together.
    """

    find_unused_parameters: bool = False
    """With "ddp": search each forward pass for parameters that get no gradient.

    Otherwise they are an error. The search takes time.
    """
    static_graph: bool = False
    """With "ddp": rely on the same graph in every iteration.

    Activation checkpointing may need it.
    """
    gradient_as_bucket_view: bool = False
    """With "ddp": let gradients be views of what is averaged.

    That saves memory of the size of all gradients.
    """
    sync_batch_norm: bool = False
    """Replace batch norms by `torch.nn.SyncBatchNorm`; requires a GPU.

    Its statistics are those of all processes.
    """

    _of_shares = make_value_validator(
        "units",
        where=lambda units, before: units and before.get("strategy") == "ddp",
        message='units are for strategy = "fsdp"; with "ddp" each process has the whole model',
    )
    _of_shards = make_value_validator(
        "replicas",
        where=lambda replicas, before: replicas > 1 and before.get("strategy") == "ddp",
        message=(
            'replicas are for strategy = "fsdp"; with "ddp" each process has a copy of the model'
        ),
    )
    _of_ddp = make_value_validator(
        *("find_unused_parameters", "static_graph", "gradient_as_bucket_view"),
        where=lambda wanted, before: wanted and before.get("strategy") == "fsdp",
        message='{field} is for strategy = "ddp"',
    )

    @field_validator("tensor_parallel")
    @classmethod
    def _of_a_plan(cls, tensor_parallel: int, info: ValidationInfo) -> int:
        if (tensor_parallel > 1) == (info.data.get("parallelize") is None):
            raise ValueError("tensor_parallel (2 or more) and parallelize need one another")
        if tensor_parallel > 1 and info.data.get("strategy") == "ddp":
            raise ValueError(
                'tensor_parallel is for strategy = "fsdp": DDP averages no gradients of split'
                " layers"
            )
        if tensor_parallel > 1 and info.data.get("replicas", 1) > 1:
            raise ValueError("tensor_parallel cannot be combined with replicas")
        return tensor_parallel


TYPE_PREFIX = "type:"
"""How an entry of `modules` begins that is a class, and no glob over names."""

ModuleStage = Literal["train", "val", "test"]
"""A stage of the run in which hooks inside the network may fire."""


class WriterSection(Component):
    """A writer: it carries what the run logs to somewhere else."""

    use: str = Field(examples=["tensorboard"])
    """The class or function that creates it.

    It is a registered name, "package.module:Name" or "./file.py:Name".
    """


class SweepRange(Section):
    """A range of numbers, both ends included: integers where both ends are integers."""

    low: float | int
    """The least number."""
    high: float | int
    """The greatest number."""
    log: bool = False
    """Whether orders of magnitude are equally likely, as for a learning rate."""
    step: float | int | None = Field(default=None, gt=0, examples=[16])
    """The distance between the numbers; any number in between if left out."""

    @property
    def integers(self) -> bool:
        """Whether only integers are meant."""
        return all(isinstance(end, int) for end in (self.low, self.high, self.step or 1))

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log takes a low above zero, and no step")
        return self


FOLD_KEY = "run.fold"
"""The key that has the number of a fold."""

Choices = Annotated[ArgList, Field(min_length=1)]

Searched = dict[
    str,
    Annotated[
        Annotated[Choices, Tag("<list>")] | Annotated[SweepRange, Tag("<table>")],
        Discriminator(lambda value: shape(value, "<list>")),
    ],
]
"""The values that each key may have: a list of them, or a range."""


class SweepSection(Section):
    """The trials of `hookflow sweep`; `hookflow run` ignores it.

    It has `grid`, `random`, `optuna`, or `folds`.
    """

    metric: str
    """The metric of the validation by which trials are compared, e.g. "accuracy".

    The best value of each run counts.
    """
    mode: Literal["max", "min"] | None = None
    """Whether more or less of the metric is better; its name says it if left out."""
    grid: dict[str, Choices] = Field(default={}, examples=[{"optimizer.args.lr": [0.01, 0.1]}])
    """The values of each key; every combination is a trial."""
    random: Searched = Field(
        default={}, examples=[{"optimizer.args.lr": {"low": 1e-4, "high": 0.1, "log": True}}]
    )
    """The values of each key, as a list or a range; trials draw from them."""
    optuna: Searched = Field(
        default={}, examples=[{"optimizer.args.lr": {"low": 1e-4, "high": 0.1, "log": True}}]
    )
    """As `random`; optuna chooses by the results of earlier trials."""
    pruner: Literal["median", "halving", "hyperband"] | None = None
    """With `optuna`: which of its pruners ends trials early; none if left out."""
    trials: int | None = Field(default=None, ge=1, examples=[20])
    """How many trials there are.

    A grid has as many as combinations. With `folds` each is one for each fold.
    """
    folds: int | None = Field(default=None, ge=2, examples=[5])
    """The folds of a cross-validation.

    Each setting is trained once for each of them, with its number as `${fold}`.
    """
    jobs: int = Field(default=1, ge=1)
    """How many trials train side by side on this machine; GPUs are shared out among them."""
    seed: int = Field(default=0, ge=0)
    """Where the drawing of values starts."""

    @property
    def searched(self) -> Searched:
        """The values of each key; the last one is that of the fold, if there are `folds`."""
        searched: Searched = dict(self.random or self.optuna or self.grid)
        if self.folds is not None:
            searched[FOLD_KEY] = list(range(self.folds))
        return searched

    @property
    def count(self) -> int:
        """How many trials there are."""
        num_settings = self.trials or prod(map(len, self.grid.values()))
        return num_settings * (self.folds or 1)

    @property
    def kind(self) -> str:
        """Which of the three tables has the values.

        It is a grid without keys where there are `folds` alone.
        """
        return next((name for name in ("grid", "random", "optuna") if getattr(self, name)), "grid")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("grid", "random", "optuna") if getattr(self, name)]
        if len(kinds) > 1 or (not kinds and self.folds is None):
            raise ValueError(
                "a sweep has one of the tables grid, random and optuna, and its keys are in quotes"
            )
        draws_values = kinds in (["random"], ["optuna"])
        if (self.trials is None) is draws_values:
            other = "say how many trials it has: trials = 20"
            raise ValueError(
                "a grid has a trial for each combination; leave trials out"
                if self.trials
                else other
            )
        if self.pruner and kinds != ["optuna"]:
            raise ValueError("pruner is for the table optuna")
        return self

    @model_validator(mode="after")
    def _check_folds(self) -> Self:
        if self.folds is None:
            return self
        if self.optuna:
            raise ValueError(
                "folds go with grid and random: optuna would take each fold for a trial of its own"
            )
        if FOLD_KEY in self.grid or FOLD_KEY in self.random:
            raise ValueError(
                f'folds = {self.folds} gives "{FOLD_KEY}" its values; leave one of the two out'
            )
        return self


Occasion = Literal["end", "failure", "stall", "best", "warning"]
"""Occasions of a notification."""


class NotifySection(Section):
    """Where notifications of a run are sent, and about what: by a process that watches it."""

    to: list[str] = Field(default=[], examples=[["ntfys://ntfy.sh/${env:TOPIC}"]])
    """Addresses as apprise takes them; a secret is written as `${env:NAME}`."""
    command: list[str] | None = Field(
        default=None, min_length=1, examples=[["mail", "-s", "hookflow", "me"]]
    )
    """A program and its arguments: it reads the message from its standard input."""
    on: list[Occasion] = Field(
        default=["end", "failure", "stall"], min_length=1, examples=[["failure", "best"]]
    )
    """Occasions of a message: "end", "failure", "stall", "best" (a new best value), "warning"."""

    @model_validator(mode="after")
    def _check_destination(self) -> Self:
        if not self.to and self.command is None:
            raise ValueError(
                'nothing is sent anywhere; write to = ["ntfys://ntfy.sh/topic"], or a command'
            )
        return self


class Firing(Section):
    """The keys that a hook and each of its points share.

    They say when it fires, and in which parts of the network.
    """

    every: TriggerAmount | None = None
    """How often to fire.

    A bare number counts the point's own unit, and of a hook at several points iterations.
    """
    from_: TriggerAmount | None = Field(default=None, alias="from")
    """When to begin to fire."""
    until: TriggerAmount | None = None
    """When to cease to fire."""
    when: ConditionField | None = None
    """A condition over scalars of the run, e.g. "loss > 10 and epoch >= 1".

    It fires only where that holds.
    """
    once: bool | None = Field(default=None, examples=[True])
    """Whether to fire once in the whole run, also where it is resumed.

    It fires the first time that all the others hold.
    """
    modules: list[str] | None = Field(
        default=None, min_length=1, examples=[["layer*.conv?", "type:Conv2d"]]
    )
    """At module points: globs over the names of modules.

    Or over names of classes: "type:Conv2d".
    """
    parameters: list[str] | None = Field(default=None, min_length=1, examples=[["*.weight"]])
    """At parameter points: globs over the names of the network's parameters, e.g. ["*.weight"]."""
    stages: list[ModuleStage] | None = Field(
        default=None, min_length=1, examples=[["train", "val"]]
    )
    """At module points: in which stages of the run to fire; in "train" alone if left out."""
    prepend: bool | None = Field(default=None, examples=[True])
    """At module points: whether to fire before the hooks that the model has registered itself."""
    always_call: bool | None = Field(default=None, examples=[True])
    """At `forward`: whether to fire after an exception in the module, too.

    The output is None then.
    """


class _At(Section):
    at: str = Field(examples=["after_train_iter"])
    """The point, or `around_X` for both `before_X` and `after_X`."""


class BindingSpec(Firing, _At):
    """A hook at one point: when it fires there, and who stands before and after it."""

    after: list[str] = Field(default=[], examples=[["ema"]])
    """Hooks or groups ("group:NAME") that fire earlier at this point.

    "name?" if it may be missing.
    """
    before: list[str] = Field(default=[], examples=[["checkpoint?"]])
    """Hooks or groups ("group:NAME") that fire later at this point.

    "name?" if it may be missing.
    """
    offload: bool | Literal["auto", "process"] | None = None
    """Whether it fires in the thread or process of its hook here.

    As the hook's `offload` says if left out.
    """


PointItem = NameOr[str, BindingSpec]


class OwnPoint(Section):
    """A point of the pipeline's own.

    A task or a hook fires it: `run.fire("after_densify", count)`.
    """

    follows: str
    """The point behind which it belongs: it is listed and drawn there."""
    offers: list[str] = Field(default=[])
    """The arguments that it offers beside `run`, in the order in which `run.fire` is given them."""
    about: str = ""
    """The state of the run when it fires."""


Slots = Annotated[
    Annotated[list[str], Tag("<list>")] | Annotated[dict[str, list[str]], Tag("<table>")],
    Discriminator(lambda value: shape(value, "<list>")),
]
"""The slots that a hook touches, in all of its methods or by method."""

ArgsOrList = Annotated[
    Annotated[Args, Tag("<table>")] | Annotated[ArgList, Tag("<list>")],
    Discriminator(lambda value: shape(value, "<table>")),
]


class _Node(Section):
    use: str = Field(examples=["ema"])
    """The hook: a registered name, "package.module:Name" or "./file.py:Name"."""
    args: ArgsOrList = Field(default={})
    """The arguments: by name, or in a list, which fills the first ones."""
    phase: Literal["first", "early", "normal", "late", "last"] | None = None
    """A place in the order that needs no neighbour's name; what the class says if left out."""
    after: list[str] = Field(default=[], examples=[["ema"]])
    """Hooks or groups ("group:NAME") that fire earlier wherever both are bound.

    "name?" if it may be missing.
    """
    before: list[str] = Field(default=[], examples=[["checkpoint?"]])
    """Hooks or groups ("group:NAME") that fire later wherever both are bound.

    "name?" if it may be missing.
    """
    requires: list[str] = Field(default=[])
    """Hooks that must be in the pipeline too."""
    reads: Slots | None = Field(default=None, examples=[["model"]])
    """The slots of run state that it reads, or those by method; what the class says if left out."""
    writes: Slots | None = Field(default=None, examples=[{"around_val": ["model"]}])
    """The slots of run state that it writes, or those by method.

    What the class says if left out.
    """
    ranks: Literal["zero", "all"] | None = None
    """On which of several processes to fire: on rank "zero" alone, or on "all".

    What the class says if left out.
    """
    ambiguous_with: list[str] = Field(default=[])
    """Hooks or groups that touch a slot with this one in whatever order.

    `check` does not report the pair.
    """
    points: list[PointItem] | None = Field(default=None, min_length=1)
    """Where to fire, as names of points or tables with `at`.

    Wherever the class has a method if left out.
    """


class HookNode(Firing, _Node):
    """A hook: what it is, where and when it fires, and what becomes of its errors."""

    enabled: bool = True
    """Whether the hook takes part at all."""
    default: bool = False
    """Whether it is a default hook, as recorded pipelines say.

    It gives way to another hook of its class.
    """
    on_error: Literal["raise", "disable", "ignore"] = "raise"
    """The reaction to an error inside the hook.

    The run ends, the hook is switched off, or the error is only recorded.
    """
    retry: int = Field(default=0, ge=0, examples=[2])
    """How often a firing that raises is called again, before `on_error` counts.

    It is called again at once, for a service that is at times out of reach. It is not for a hook
    that changes the run's own state.
    """
    budget: BudgetField | None = Field(default=None, examples=["1%", "0.2ms"])
    """How much of the iterations' time it may take before a warning.

    It is a share, or a time per iteration.
    """
    over_budget: Literal["warn", "throttle"] = "warn"
    """The consequence of taking more than the budget.

    It is a warning, or it skips firings until it is within its budget.
    """
    offload: bool | Literal["auto", "process"] = False
    """Whether it fires in a thread of its own, or in a "process".

    It fires on copies of what it reads. "auto": in a thread if it can.
    """
    queue: int = Field(default=2, ge=1)
    """The firings of an offloaded hook that may wait for its thread or process."""
    when_full: Literal["wait", "drop", "coalesce"] = "wait"
    """What becomes of a firing that finds the queue full.

    It waits, is dropped, or takes the place of the oldest one there.
    """
    timeout: SecondsField | None = Field(default=None, examples=["30s"])
    """How long a firing of an offloaded hook may take until it is given up.

    It is then treated as `on_error` says.
    """

    _over_a_budget = make_value_validator(
        "over_budget",
        where=lambda _, before: not before.get("budget"),
        message='there is no budget that the hook could be over; write budget = "1%"',
    )


class GroupSection(Section):
    """A group of hooks.

    In `after`, `before` and `ambiguous_with`, `group:NAME` means each of them.
    """

    hooks: list[str] = Field(min_length=1, examples=[["acc", "f1*"]])
    """Names of hooks, or globs over them; "name?" if it may be missing."""


def _is_beyond_folds(sweep: SweepSection | None, run: RunSection | None) -> bool:
    """Say whether `run.fold` is none of the folds of `[sweep]`."""
    if sweep is None or sweep.folds is None or run is None or run.fold is None:
        return False
    return run.fold >= sweep.folds


class Pipeline(Section):
    """A whole pipeline file."""

    extends: str | None = Field(default=None, examples=["base.toml"])
    """Another pipeline file that this one is built on, relative to this one.

    Keys given here override it.
    """
    unset: list[str] = Field(default=[], examples=[["data.train.loader.batch_size"]])
    """Keys of the file that this one `extends` which are taken away.

    Then the keys given here are laid over it.
    """
    run: RunSection
    """How long, where and how."""
    model: OneOrSeveral[ModelSection]
    """The network; called with `args`, it returns a `torch.nn.Module`.

    Several have names: `[model.generator]`.
    """
    optimizer: OneOrSeveral[OptimizerSection]
    """The optimizer; called with the parameters and `args`.

    Several have names: `[optimizer.generator]`.
    """
    task: Component = Component(use="hookflow.zoo.tasks:Classification")
    """The task, by which a batch becomes a loss.

    It is a class, or a function of the run and the batch.
    """
    data: DataSection
    """Where the batches come from."""
    distributed: DistributedSection = DistributedSection()
    """How several processes train together, where several are started."""
    points: dict[str, OwnPoint] = Field(default={})
    """Points of the pipeline's own, by name."""
    writers: dict[FolderName, WriterSection] = Field(default={})
    """Where else what the run logs is written, by name.

    `[writers.tb]` with `use = "tensorboard"` is one.
    """
    notify: NotifySection | None = None
    """Where notifications of the run are sent, and about what; nowhere if left out."""
    sweep: SweepSection | None = None
    """The trials of `hookflow sweep`; `hookflow run` ignores it.

    It has `grid`, `random`, `optuna`, or `folds`.
    """
    groups: dict[GroupName, GroupSection] = Field(default={})
    """Groups of hooks by name, which `group:NAME` means where hooks are named."""
    hooks: dict[HookName, HookNode] = Field(default={})
    """The hooks by name; their order here decides where nothing else does."""

    _test_has_data = make_value_validator(
        "data",
        where=lambda data, before: "run" in before and before["run"].test and data.test is None,
        message="run.test is on, but there is no [data.test]",
    )
    _fold_is_one_of_them = make_value_validator(
        "sweep",
        where=lambda sweep, before: _is_beyond_folds(sweep, before.get("run")),
        message="run.fold counts from 0, and has to be below sweep.folds",
    )
    _same_batches_in_each_epoch = make_value_validator(
        "data",
        where=lambda data, before: (
            "run" in before and before["run"].overfit is not None and data.changes_batch_size
        ),
        message=(
            "run.overfit trains on the same batches in each epoch, and batch_size changes; give it"
            " one number"
        ),
    )
    _rate_follows_a_change = make_value_validator(
        "data",
        where=lambda data, before: "run" in before and before["run"].scales_nothing(data),
        message="run.scale_lr is for a batch_size or run.accumulate that changes, and neither does",
    )
    _gathered_weights_serve_training = make_value_validator(
        "distributed",
        where=lambda section, before: (
            "run" in before and before["run"].inference_mode and section.strategy == "fsdp"
        ),
        message=(
            'with strategy = "fsdp" training uses what an evaluation gathers; leave'
            " run.inference_mode out"
        ),
    )

    @property
    def val_intervals(self) -> dict[str, Interval]:
        """How often to validate on each set of validation data, by its name in `data`.

        0 is never.
        """
        result = {}
        for name, source in self.data.sources(["val"]).items():
            if source.val_every is None:
                written = self.run.val_every
            else:
                written = source.val_every
            result[name] = self.run.interval(written)
        return result

    @property
    def validated_sets(self) -> list[str]:
        """The sets of validation data on which the training validates."""
        return [name for name, interval in self.val_intervals.items() if interval.value > 0]

    @property
    def models(self) -> dict[str, ModelSection]:
        """Every model by its name; one that has none is called "model"."""
        if isinstance(self.model, dict):
            return self.model
        return {"model": self.model}

    @property
    def frozen_models(self) -> list[str]:
        """The names of the models that are declared frozen."""
        return [name for name, model in self.models.items() if model.frozen]

    @property
    def optimizers(self) -> dict[str, OptimizerSection]:
        """Every optimizer by its name; one that has none is called "optimizer"."""
        if isinstance(self.optimizer, dict):
            return self.optimizer
        return {"optimizer": self.optimizer}
