"""The components of a run, built or to be built: models, optimizers, data, hooks, writers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where, make_place_key
from hookflow.events.records import Layer
from hookflow.hooks.arguments import find_component_problems
from hookflow.hooks.capabilities import HookCapabilities, SavedCheckpoints
from hookflow.hooks.tensors import matching, named_parameters
from hookflow.numbers import format_count
from hookflow.pipeline.attached import no_loop
from hookflow.pipeline.by_epoch import ByEpoch, EpochLengths, batches_by_epoch, first_epochs
from hookflow.pipeline.load import Loaded, find_part_problems, list_components
from hookflow.pipeline.registry import missing_extra, registry_of
from hookflow.pipeline.schema import RunSection
from hookflow.pipeline.use import resolve_use
from hookflow.pipeline.values import Interval
from hookflow.runner.data.batches import batch_size_in
from hookflow.runner.data.source import LimitedSource
from hookflow.runner.distributed.parallel import ParallelStrategy
from hookflow.runner.distributed.rendezvous import RankLayout
from hookflow.runner.model.selectors import Picked
from hookflow.writers import Writer

Maker = Callable[..., Any]

PARALLELIZE_KEY = "distributed.parallelize"
"""The key of the function that splits the layers of a model."""


def find_makers(loaded: Loaded, base: Path, splits: Sequence[str]) -> dict[str, Maker]:
    """Return what each section names, by its key ("model.net"); of the data, those of `splits`.

    Raises UserError with all unknown names and wrong arguments, of all sections.
    """
    if loaded.is_attached:
        raise UserError(no_loop(loaded.places.of("run")))
    public = list_components(loaded.public, splits)
    makers: dict[str, Maker] = {}
    problems = list(find_part_problems(loaded))
    for key, part in list_components(loaded.pipeline, splits).items():
        try:
            makers[key] = _find_maker(loaded, key, part.use, base)
        except UserError as error:
            problems += error.problems
        else:
            problems += find_component_problems(
                makers[key], part, public[key], key, loaded.places.of
            )
    plan = loaded.pipeline.distributed.parallelize
    if plan:
        try:
            makers[PARALLELIZE_KEY] = resolve_use(plan, base, loaded.places.of(PARALLELIZE_KEY))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(sorted(problems, key=make_place_key))
    return makers


def _find_maker(loaded: Loaded, key: str, use: str, base: Path) -> Maker:
    """Return what `use` names in the section of a key.

    Raises UserError when there is no such thing.
    """
    registry = registry_of(key)
    where = loaded.places.of(f"{key}.use")
    missing = missing_extra(registry, use, where)
    if missing:
        raise UserError(missing)
    if registry:
        find: Callable[..., Maker] = registry.find
    else:
        find = resolve_use
    return find(use, base, where)


def find_writers(loaded: Loaded, base: Path) -> dict[str, Maker]:
    """Return what makes each writer of a pipeline of hooks alone, by its key.

    Raises UserError as `find_makers`.
    """
    places = loaded.places
    makers: dict[str, Maker] = {}
    problems: list[Problem] = []
    for name, part in loaded.pipeline.writers.items():
        key = f"writers.{name}"
        try:
            makers[key] = _find_maker(loaded, key, part.use, base)
        except UserError as error:
            problems += error.problems
        else:
            problems += find_component_problems(
                makers[key], part, loaded.public.writers[name], key, places.of
            )
    if problems:
        raise UserError(sorted(problems, key=make_place_key))
    return makers


@dataclass(frozen=True)
class RunComponents:
    """Everything that a runner is given."""

    section: RunSection
    ranks: RankLayout
    data_ranks: RankLayout
    """This process among those that share a batch.

    These are all of them, unless several compute a share together.
    """
    strategy: ParallelStrategy
    device: torch.device
    precision: str
    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    trains: Mapping[str, nn.Module]
    """The models of each optimizer: one of the models, or the whole network."""
    model: nn.Module
    """The one model, or all of them in an `nn.ModuleDict`."""
    task: Any
    data: Mapping[str, Any]
    hooks: Mapping[str, Any]
    capabilities: Mapping[str, HookCapabilities]
    """The capabilities of each hook."""
    writers: Mapping[str, Callable[[Mapping[str, Any]], Writer]]
    """The factory of each writer, called with the offered values.

    There are none on any rank but the first.
    """
    picked: Picked
    """The modules at which hooks inside the network fire."""
    weights: dict[str, dict[str, Any]]
    """The weights that models began with, by the model's name.

    They are kept where hooks are bound at `after_load_checkpoint`.
    """
    val_every: Mapping[str, Interval]
    """How often to validate on each set of validation data, by its name in `data`."""
    place: Callable[[str], Where]
    """The file and line of a key of the pipeline."""
    frozen_models: Sequence[str] = ()
    """The names of the models that the pipeline declares frozen."""
    is_attached: bool = False
    """Whether the loop is the user's own: model, optimizers and data are objects of its program."""

    @property
    def saved_checkpoints(self) -> list[SavedCheckpoints]:
        """The checkpoints that hooks save, of each hook that saves any."""
        return [
            each.saved_checkpoints
            for each in self.capabilities.values()
            if each.saved_checkpoints is not None
        ]

    @property
    def own_hooks(self) -> dict[str, Any]:
        """The hooks that the user has written."""
        own = {}
        for name, hook in self.hooks.items():
            module = type(hook).__module__ or ""  # a class may have taken it away
            if not module.startswith("hookflow."):
                own[name] = hook
        return own

    def frozen_lines(self) -> Iterator[str]:
        """Yield a line for each model that the pipeline declares frozen."""
        for name in self.frozen_models:
            num_weights = sum(parameter.numel() for parameter in self.models[name].parameters())
            kept = "checkpoints hold them"
            if self.leaves_frozen_out:
                kept = "checkpoints leave them out"
            yield (
                f'model "{name}" is frozen: its {num_weights:,} weights are not trained, it is in'
                f" eval mode, {kept}"
            )

    @property
    def leaves_frozen_out(self) -> bool:
        """Whether checkpoints leave out the parameters of models that are declared frozen."""
        is_sharded = self.strategy.host_mesh is not None
        return not is_sharded and any(
            each.leaves_frozen_out(declared=True) for each in self.saved_checkpoints
        )

    @property
    def limited(self) -> dict[str, int]:
        """The batches that an epoch of each split would have which is limited."""
        return {
            split: data.whole
            for split, data in self.data.items()
            if isinstance(data, LimitedSource)
        }

    @property
    def effective_batch(self) -> str:
        """The examples of an optimizer step in words.

        It is empty for one batch of one process, and where they are unknown.
        """
        if "train" in self.data:
            info = self.data["train"].info
        else:
            info = {}
        accumulates = self.section.accumulate
        accumulate = accumulates.at(0)
        world = self.data_ranks.world
        together = "ranks"
        if world < self.ranks.world:
            together = f"groups of {self.ranks.world // world} ranks"
        if not info.get("batch_size") or (
            accumulates.most == world == 1 and not self.batches_by_epoch.changes
        ):
            return ""
        if self.examples_by_epoch.changes:
            first, *later = self.examples_by_epoch.stages
            changes = [
                f"{examples:,} after {format_count(epoch, 'epoch')}" for epoch, examples in later
            ]
            return f"examples of an optimizer step: {', '.join([f'{first[1]:,}', *changes])}"
        step = info["batch_size"] * accumulate
        factors = ""
        if accumulate > 1:
            factors = f" × accumulate {accumulate} = {step:,}"
        shared = ""
        if world > 1:
            shared = f", {step / world:g} on each of {world} {together}"
        rest = min(info["examples"], info["batch_size"] * self.batches_by_epoch.at(0)) % step
        last = ""
        if rest:
            last = f"; the last of an epoch has {rest:,}"
        return f"examples of an optimizer step: {info['batch_size']:,}{factors}{shared}{last}"

    @property
    def examples_by_epoch(self) -> ByEpoch:
        """The examples of an optimizer step in each epoch, of all ranks.

        The number is 0 where batches are of unknown sizes.
        """
        accumulate = self.section.accumulate
        train = self.data["train"]
        stages = []
        for first in first_epochs(self.batches_by_epoch, accumulate):
            stages.append((first, batch_size_in(train, first) * accumulate.at(first)))
        return ByEpoch(tuple(stages))

    @property
    def epoch_lengths(self) -> EpochLengths:
        """The iterations of each epoch.

        The last one may have fewer batches than `accumulate`.
        """
        return EpochLengths.of(self.batches_by_epoch, self.section.accumulate)

    @property
    def batches_by_epoch(self) -> ByEpoch:
        """The batches of each epoch; 0 where the data for training have not been asked for."""
        if "train" in self.data:
            return batches_by_epoch(self.data["train"])
        return ByEpoch.constant(0)


def iter_layers(model: nn.Module, frozen: Sequence[str] = ()) -> Iterator[Layer]:
    """Yield the layers of a network in its order.

    Parameters that the globs of `frozen` match do not train.
    """
    seen = set[nn.Parameter]()
    held = {*matching(named_parameters(model), frozen).values()}
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if parameter not in seen]
        seen.update(own)
        if own:
            shapes = ", ".join("×".join(map(str, parameter.shape)) or "1" for parameter in own)
            trainable = sum(p.numel() for p in own if p.requires_grad and p not in held)
            count = sum(p.numel() for p in own)
            nbytes = sum(p.nbytes for p in own)
            yield {
                "name": name or "model",
                "kind": type(module).__name__,
                "shapes": shapes,
                "parameters": count,
                "trainable": trainable,
                "bytes": nbytes,
            }
