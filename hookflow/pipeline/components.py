"""The sections of a pipeline that name a class or function: models, optimizers, data, loaders.

The arguments in `args` belong to what `use` names and are checked against its signature later.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hookflow.pipeline.by_epoch import CountByEpoch
from hookflow.pipeline.values import Args, PartName, ValEvery


class Section(BaseModel):
    """A table of the file. Immutable, strict, and closed to keys that it does not know.

    The sentence below each field is its documentation. `hookflow.pipeline.json_schema` reads it
    where it is wanted, since pydantic would read all of them at each import.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def shape(value: Any, other: str = "<name>") -> str:
    """Return the tag of a table, a list, or of any other value."""
    if isinstance(value, dict | Section):
        return "<table>"
    if isinstance(value, list):
        return "<list>"
    return other


Short = TypeVar("Short")
Long = TypeVar("Long")

NameOr = Annotated[
    Annotated[Short, Tag("<name>")] | Annotated[Long, Tag("<table>")], Discriminator(shape)
]
"""A name, or a table that says more."""

Rule = Callable[[Any, dict[str, Any]], object]


def make_value_validator(*fields: str, where: Rule, message: str) -> Any:
    """Return a validator that refuses fields by their value and the fields declared before them."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if where(value, info.data):
            raise ValueError(message.format(field=info.field_name))
        return value

    return field_validator(*fields)(check)


def make_exclusion_validator(field: str, other: str, message: str) -> Any:
    """Return a validator that refuses a field where another one, declared before it, is set too."""
    return make_value_validator(
        field, where=lambda value, data: value and data.get(other), message=message
    )


class Component(Section):
    """Something to be made: a class or function, and the arguments to call it with."""

    use: str = Field(examples=["torch.optim:SGD"])
    """The class or function: a registered name, "package.module:Name" or "./file.py:Name"."""
    args: Args = {}
    """The arguments, by name."""


class WeightsSection(Section):
    """Weights to begin with, and how their names go with those of the model."""

    file: str | None = None
    """A file that `torch.save` has written, or a checkpoint's folder.

    It is relative to the pipeline's own folder.
    """
    use: str | None = Field(default=None, examples=["simclr:best", "ddpm:best/ema"])
    """In place of a file, weights of another run: RUN, RUN:CHECKPOINT or RUN:CHECKPOINT/ENTRY."""
    strict: bool = True
    """Whether every weight must fit.

    If not, what is missing, unexpected or of another shape is only reported.
    """
    rename: dict[str, str] = {}
    """Prefixes of names in the file, and what to put there instead: { "backbone." = "" }."""
    exclude: list[str] = []
    """Globs over the model's names that are neither loaded nor missed.

    ["head.*"] is for a new head.
    """
    include: list[str] = []
    """Globs over the model's names, if only these are to be loaded: ["body.*"].

    All others are neither loaded nor missed.
    """

    @model_validator(mode="after")
    def _check_single_origin(self) -> Self:
        if self.file is None and self.use is None:
            raise ValueError(
                'the weights are of a file, file = "weights.pt", or of a run, use = "RUN:best"'
            )
        if self.file is not None and self.use is not None:
            raise ValueError("file and use both say where the weights are; keep one of them")
        return self


Weights = NameOr[str, WeightsSection]
"""Weights to begin with; their file alone, where there is nothing else to say."""


class ModelSection(Component):
    """A network, and the weights that it begins with."""

    weights: Weights | None = Field(default=None, examples=["pretrained.pt"])
    """Weights to begin with; random ones if left out.

    It is a file with a `state_dict`, or a table with `file`.
    """
    frozen: bool = False
    """Whether the model is not trained: one of several, such as a teacher.

    No optimizer trains it, it is in eval mode, and checkpoints leave its parameters out.
    """

    @property
    def begins_with(self) -> WeightsSection | None:
        if isinstance(self.weights, str):
            return WeightsSection(file=self.weights)
        return self.weights


Patterns = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[list[str], Field(min_length=1), Tag("<list>")],
    Discriminator(shape),
]
"""One glob or several."""


class ParamGroup(Section):
    """Some of the parameters, with settings of their own."""

    match: Patterns = Field(examples=["*.bias", ["type:*Norm*", "*.bias"]])
    """Globs over parameters, or over the types of modules that hold them.

    The first group that matches takes a parameter.
    """
    args: Args = {}
    """Settings of the optimizer that differ for these parameters."""
    scale: dict[str, float] = Field(default={}, examples=[{"lr": 0.1, "weight_decay": 0.0}])
    """Factors by which the optimizer's own settings are multiplied for these parameters."""

    @property
    def patterns(self) -> list[str]:
        if isinstance(self.match, str):
            return [self.match]
        return self.match

    @field_validator("scale")
    @classmethod
    def _given_once(cls, scale: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        for name in scale.keys() & info.data.get("args", {}).keys():
            raise ValueError(f'"{name}" is given in args, too; keep one of them')
        return scale


class OptimizerSection(Component):
    """The optimizer, what it trains, and which parameters it treats differently."""

    model: str | None = None
    """Which of several models it trains; left out, the one of its own name, or all of them."""
    parameters: list[str] | None = Field(
        default=None, min_length=1, examples=[["blocks.*.weight"], ["type:Linear"]]
    )
    """Globs over the parameters that it trains, or over the types of their modules.

    It is for several optimizers of one model; one that leaves it out trains the rest.
    """
    groups: list[ParamGroup] = []
    """Parameter groups in the order of asking; what none of them matches forms the last group."""


OF_ONE = {"use", "args", "groups", "weights", "loader", "parameters"}
"""Keys of a component: no component of several is called so."""


def _one_or_several(table: Any) -> str:
    """Say whether a table is one component, or holds several by name: then it holds tables only."""
    if not isinstance(table, dict) or not table or table.keys() & OF_ONE:
        return "<one>"
    if all(isinstance(inner, dict | Component) for inner in table.values()):
        return "<several>"
    return "<one>"


OneOrSeveral = Annotated[
    Annotated[Long, Tag("<one>")] | Annotated[dict[PartName, Long], Tag("<several>")],
    Discriminator(_one_or_several),
]
"""One, as `[optimizer]`, or several by name.

Several are `[optimizer.generator]` and `[optimizer.discriminator]`, say.
"""

Named = NameOr[str, Component]
"""A component of which the name alone may be written: "./file.py:Name".

It is written so where it takes no arguments.
"""

NAMED_BY_LOADER = ("collate", "sampler", "batch_sampler", "augment", "worker_init_fn")
"""The keys of a `loader` that name a component."""


def names_component(key: Sequence[str]) -> bool:
    """Return whether a key of a pipeline names what makes a component.

    Such a key is a `use` outside `args`, or a part of a loader.
    """
    if key[:1] in (("hooks",), ("writers",)):  # such a table may be called "args"
        inner = key[2:]
    else:
        inner = key
    named = key[-1:] == ("use",) or (key[-2:-1] == ("loader",) and key[-1] in NAMED_BY_LOADER)
    return named and "args" not in inner


class LoaderSection(Section):
    """How a data set's examples become batches."""

    batch_size: CountByEpoch | None = Field(default=None, examples=[64, [[0, 64], ["3ep", 256]]])
    """Examples in a batch, of all processes together.

    It is required, unless a batch_sampler makes the batches. For the training it may be several
    numbers with the epochs from which they hold.
    """
    shuffle: bool | None = None
    """Whether each epoch has an order of its own.

    Left out: in training, and where there is no sampler.
    """
    drop_last: bool = False
    """Whether an epoch's last batch is left out when it is smaller than the others."""
    workers: int = Field(default=0, ge=0)
    """Processes that fetch examples beside the training; 0: the training fetches them itself."""
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] | None = None
    """How workers are started.

    Left out: "forkserver", or "fork" for data that cannot be pickled.
    """
    prefetch_factor: int | None = Field(default=None, ge=1, examples=[4])
    """Batches that each worker fetches ahead; PyTorch's 2 if left out."""
    worker_init_fn: Named | None = None
    """A function that each worker calls with its number before its first batch, as PyTorch's."""
    collate: Named | None = None
    """The function that collates a list of examples; PyTorch's own stacks them."""
    sampler: Named | None = None
    """The sampler of the examples of an epoch.

    Called with the data set, it gives their indices, one by one.
    """
    batch_sampler: Named | None = None
    """The sampler of the batches of an epoch.

    Called with the data set, it gives lists of indices, of any lengths.
    """
    on_device: bool = False
    """Whether the whole data set is collated once and kept on the device.

    Batches are taken out of it there.
    """
    augment: Named | None = None
    """The augmentation of a batch on the device: called with the batch and a generator there."""
    batches: int | None = Field(default=None, ge=1)
    """Batches of an epoch; all of them if left out.

    They are fewer than there are, or those of a stream without a length.
    """

    @model_validator(mode="after")
    def _check_batching(self) -> Self:
        if self.batch_sampler is None and self.batch_size is None:
            raise ValueError(
                "the key batch_size is required, unless a batch_sampler makes the batches"
            )
        for key in ("batch_size", "shuffle", "sampler", "drop_last"):
            if self.batch_sampler is not None and getattr(self, key):
                raise ValueError(
                    f"{key} and a batch_sampler both say which examples a batch has; keep one of"
                    " them"
                )
        return self

    @model_validator(mode="after")
    def _check_worker_keys(self) -> Self:
        if self.prefetch_factor is not None and not self.workers:
            raise ValueError("prefetch_factor is of workers, and workers is 0")
        if self.worker_init_fn is not None and not self.workers:
            raise ValueError("worker_init_fn is of workers, and workers is 0")
        return self

    def named(self) -> dict[str, Component]:
        """Return the components that it names, by key."""
        result = {key: getattr(self, key) for key in NAMED_BY_LOADER}
        return {
            key: Component(use=n) if isinstance(n, str) else n
            for key, n in result.items()
            if n is not None
        }

    _one_order = make_exclusion_validator(
        "sampler", "shuffle", "shuffle and a sampler both say the order; keep one of them"
    )

    _no_workers = make_exclusion_validator(
        "on_device", "workers", "data on the device are fetched by no workers; leave workers out"
    )


DATA_SPLITS = ("train", "val", "test")


class DataSource(Component):
    """Something to be made that gives batches, or examples to make them of."""

    loader: LoaderSection | None = None
    """How batches are made, where `use` gives a data set; not for what gives batches already."""
    val_every: ValEvery | None = Field(default=None, examples=["5ep"])
    """How often to validate on it, as `run.val_every` says it for all.

    Only for a set such as `[data.val.ood]`.
    """

    @property
    def changes_batch_size(self) -> bool:
        """Whether its batches are of another size in later epochs."""
        return (
            self.loader is not None
            and self.loader.batch_size is not None
            and self.loader.batch_size.changes
        )


Share = Annotated[int, Field(ge=1)]


class DataSection(Section):
    """Where the batches come from."""

    train: OneOrSeveral[DataSource]
    """The training data. Several sets have names: `[data.train.photos]`."""
    mix: dict[PartName, Share] | None = Field(
        default=None, min_length=1, examples=[{"photos": 3, "drawings": 1}]
    )
    """The share of each of several training sets; all have the same if left out."""
    mix_order: Literal["turns", "random", "together"] | None = None
    """The order of several training sets; in turns if left out.

    So many batches of each in "turns", one drawn at "random" by the shares, or a batch of each in a
    step, "together".
    """
    mix_epoch: Literal["shortest", "longest"] | Share | None = Field(
        default=None, examples=["shortest", 500]
    )
    """The length of an epoch of several training sets; the longest if left out.

    Until the "shortest" or the "longest" is through, by its share, or so many steps.
    """
    val: OneOrSeveral[DataSource] | None = None
    """The validation data; without it there is no validation.

    Several sets have names: `[data.val.ood]`.
    """
    test: OneOrSeveral[DataSource] | None = None
    """The test data, used by `run.test` alone. Several sets have names: `[data.test.ood]`."""

    @model_validator(mode="after")
    def _check_val_every(self) -> Self:
        for name, source in self.sources().items():
            if source.val_every is not None and not name.startswith("val."):
                message = (
                    f"data.{name}: val_every is for one of several sets, [data.val.ood]; for all"
                    " run.val_every is"
                )
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _batch_size_changes_in_training(self) -> Self:
        for name, source in self.sources().items():
            if not source.changes_batch_size or name == "train":
                continue
            only = "a batch_size that changes is for the one training set, [data.train]"
            raise ValueError(f"data.{name}: {only}; give it one number")
        return self

    @property
    def changes_batch_size(self) -> bool:
        """Whether the batch size of the training changes from one epoch to another."""
        return any(source.changes_batch_size for source in self.sources(["train"]).values())

    _mixes_several = make_value_validator(
        *("mix", "mix_order", "mix_epoch"),
        where=lambda value, before: (
            value is not None and not isinstance(before.get("train", {}), dict)
        ),
        message="{field} is for several training sets, which have names: [data.train.NAME]",
    )
    _all_together = make_value_validator(
        "mix_order",
        where=lambda order, before: order == "together" and before.get("mix"),
        message='with "together" each step has one batch of every set; leave mix out',
    )

    @property
    def train_sets(self) -> dict[str, DataSource]:
        """The training sets by name; none where there is one without a name."""
        if isinstance(self.train, dict):
            return self.train
        return {}

    @property
    def shares(self) -> dict[str, int]:
        """The share of each of several training sets."""
        return {name: (self.mix or {}).get(name, 1) for name in self.train_sets}

    def sources(self, splits: Iterable[str] = DATA_SPLITS) -> dict[str, DataSource]:
        """Return the sources of some splits by name.

        The names are "train" and "val". A set with a name of its own is "val.ood".
        """
        result: dict[str, DataSource] = {}
        for split in splits:
            source = getattr(self, split)
            if isinstance(source, dict):
                result |= {f"{split}.{name}": each for name, each in source.items()}
            elif source is not None:
                result[split] = source
        return result
