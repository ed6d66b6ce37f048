"""Build the components of a run from its pipeline: models, data, optimizers, task, hooks."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from hookflow.errors import Locate, Problem, UserError, Where, make_place_key, nearest_or_all
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.hooks.arguments import OFFERED_TO_DATA, as_annotated, find_call_problem, parameters_of
from hookflow.hooks.base import Hook
from hookflow.hooks.capabilities import ExportedWeights, HookCapabilities
from hookflow.hooks.checkpoint_files import state_key
from hookflow.hooks.registry import is_built_in
from hookflow.hooks.spec import HookSpec, find_specs
from hookflow.hooks.tensors import copy_expanded_buffers
from hookflow.pipeline.components import DATA_SPLITS
from hookflow.pipeline.load import Loaded, find_trained_model, key_of, share_parameters
from hookflow.pipeline.schema import DistributedSection
from hookflow.pipeline.use import PIPELINE_FOLDER, clear_imported_files
from hookflow.runner.builder.components import PARALLELIZE_KEY, Maker, RunComponents, find_makers
from hookflow.runner.data.batches import DataContext, is_for_training
from hookflow.runner.data.lengths import iter_sources
from hookflow.runner.data.loader_parts import LoaderParts, loader_parts
from hookflow.runner.data.mixed import MixedSource, context_of_set, mix_order
from hookflow.runner.data.source import Source, as_source, limit
from hookflow.runner.data.workers import leave_garbage_to_this_process
from hookflow.runner.device.precision import PARAM_DTYPES, choose_precision
from hookflow.runner.device.random_state import RNGStream, derive_seed, seed_everything
from hookflow.runner.distributed.parallel import (
    OF_DDP,
    DDPAtStepStrategy,
    DDPStrategy,
    ParallelStrategy,
)
from hookflow.runner.distributed.rendezvous import (
    SINGLE_RANK,
    RankLayout,
    compute_data_layout,
    device_of,
)
from hookflow.runner.model.selectors import (
    Picked,
    assign_parameters,
    find_parameter_problems,
    find_unmatched_units,
    param_groups,
    pick,
    scale_groups,
)
from hookflow.runner.model.task import FunctionTask, find_task_problem, steps_itself
from hookflow.user_code import describe_error
from hookflow.writers import Writer, as_writer

Made = TypeVar("Made")

TRAIN_SET = "train."
"""How the name of one of several training sets begins among the names of the data."""


def build(
    loaded: Loaded,
    plan: Plan,
    base: Path,
    say: Callable[..., None],
    splits: Sequence[str] | None = None,
    ranks: RankLayout = SINGLE_RANK,
    *,
    fresh: bool = True,
) -> RunComponents:
    """Build everything.

    Paths of the pipeline's own files are relative to `base`. `say` takes lines for people.

    `splits` names the data that are needed; left out, those of a training. A model that is not
    `fresh` gets no initial weights. Raises UserError with the place in the pipeline when something
    cannot be built.
    """
    unused: set[str] = set()
    if splits is None:
        if loaded.pipeline.run.test:
            splits = DATA_SPLITS
        else:
            splits = DATA_SPLITS[:2]
        unused = {*loaded.pipeline.val_intervals} - {*loaded.pipeline.validated_sets}
    return ComponentBuilder(loaded, base.absolute(), say, splits, ranks, fresh, unused).parts(plan)


@dataclass
class ComponentBuilder:
    """Makes the components that a pipeline names, and the objects of the hooks of its plan."""

    loaded: Loaded
    base: Path
    say: Callable[..., None]
    splits: Sequence[str]
    ranks: RankLayout
    fresh: bool
    unused: Collection[str] = ()
    """Sets of data that are not built: a training that does not validate on them."""

    def __post_init__(self) -> None:
        self.pipeline = self.loaded.pipeline
        self.places = self.loaded.places
        self.weights: dict[str, dict[str, Any]] = {}
        self.specs: dict[str, HookSpec] = {}
        """The hooks of the plan."""

    def parts(self, plan: Plan) -> RunComponents:
        section = self.pipeline.run
        leave_garbage_to_this_process()
        clear_imported_files()
        self.find_hooks(plan)
        makers = find_makers(self.loaded, self.base, self.splits)
        device = device_of(
            section.device, self.ranks, self.pipeline.distributed.backend, self.places.of
        )
        if device.type == "cuda" and device.index is not None:
            # Tensors that users put on "cuda", and pinned memory, then belong to the same device.
            torch.cuda.set_device(device)
        if section.compile:
            check_compiler(device, self.places.of("run.compile"))
        data_ranks = compute_data_layout(self.pipeline.distributed, self.ranks, self.places.of)
        rank = data_ranks.rank
        world = data_ranks.world
        context = DataContext(section.seed, device, section.channels_last, self.say, rank, world)
        loaders = self._make_loaders(context)
        seed_everything(section.seed)
        models = {name: self._model(makers, name, device) for name in self.pipeline.models}
        network = (
            nn.ModuleDict(models) if isinstance(self.pipeline.model, dict) else models["model"]
        )
        trained = {
            name: find_trained_model(self.pipeline, name) for name in self.pipeline.optimizers
        }
        trains = {name: network if of is None else models[of] for name, of in trained.items()}
        task = self._make_task(makers["task"])
        precision = choose_precision(section.precision, device, self.say)
        strategy = choose_strategy(
            self.pipeline.distributed,
            self.ranks,
            precision,
            self.places.of,
            self.say,
            makers.get(PARALLELIZE_KEY),
            own_steps=steps_itself(task),
        )
        # The optimizers are built after this, since FSDP replaces the parameters.
        strategy.parallelize(network, [*models.values()], device, self.places.of)
        for name, model in models.items():
            self._load_weights(name, model)
        groups, picked = self._match_parameters(network, trains, plan)
        closures = steps_itself(task) or bool(plan.at("optimizer_step_pre"))
        optimizers = {
            name: self._optimizer(makers, name, groups[name], closures) for name in trains
        }
        hooks = self.make_hooks(plan)
        parts = RunComponents(
            section=section,
            ranks=self.ranks,
            data_ranks=data_ranks,
            strategy=strategy,
            device=device,
            precision=precision,
            models=models,
            frozen_models=self.pipeline.frozen_models,
            optimizers=optimizers,
            trains=trains,
            model=network,
            task=task,
            hooks=hooks,
            capabilities=self.capabilities_of(hooks),
            writers=self.writers(makers),
            picked=picked,
            weights=self.weights if plan.at("after_load_checkpoint") else {},
            val_every=self.pipeline.val_intervals,
            place=self.places.of,
            # The data come last: they may take long, and mistakes elsewhere are found in no time.
            data=self._data(makers, loaders, context),
        )
        lengths = {split: len(source) for split, source in iter_sources(parts.data)}
        strategy.check_lengths(lengths, self.places.of)
        # All ranks have built the same. The random numbers of the training differ between shares of
        # a batch.
        if data_ranks.rank:
            seed_everything(derive_seed(section.seed, RNGStream.RANK, data_ranks.rank))
        return parts

    def _make_loaders(self, context: DataContext) -> dict[str, LoaderParts]:
        result: dict[str, LoaderParts] = {}
        problems: list[Problem] = []
        for split, source in self.pipeline.data.sources().items():
            if source.loader is None:
                continue
            section = source.loader
            training = is_for_training(split)
            key = f"data.{split}.loader"
            public = self.loaded.public.data.sources()[split].loader or section
            if training and self.pipeline.run.overfit is not None:
                section = section.model_copy(update={"shuffle": False, "augment": None})
            try:
                result[split] = loader_parts(
                    section,
                    key,
                    self.places,
                    self.base,
                    self._context_of(split, context),
                    public=public,
                    training=training,
                )
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError(sorted(problems, key=make_place_key))
        return result

    def _data(
        self, makers: Mapping[str, Maker], loaders: Mapping[str, LoaderParts], context: DataContext
    ) -> dict[str, Source]:
        provided = context.seed, context.device, self.say, context.rank, context.world, self.base
        offers = dict(zip(OFFERED_TO_DATA, provided, strict=True))
        result: dict[str, Source] = {}
        train_sets: dict[str, Source] = {}
        for split, source in self.pipeline.data.sources().items():
            if split in self.unused:
                continue
            make = makers.get(f"data.{split}")
            if make:
                takes = _select_taken(make, offers)
                made = self._call(make, takes | source.args, f"data.{split}")
                where = self.places.of(f"data.{split}.use")
                shards_itself = {"rank", "world"} <= takes.keys()
                made_source = as_source(
                    made,
                    where,
                    self._context_of(split, context),
                    loaders.get(split),
                    shards_itself=shards_itself,
                    evaluates=not is_for_training(split),
                )
                if split.startswith(TRAIN_SET):
                    train_sets[split.removeprefix(TRAIN_SET)] = made_source
                else:
                    result[split] = made_source
        if train_sets:
            result = {"train": self._make_mixed_source(train_sets), **result}
        return limit(result, self.pipeline, self.say)

    def _context_of(self, split: str, context: DataContext) -> DataContext:
        """Return the settings for the data of a split, or of one of several training sets."""
        if split.startswith(TRAIN_SET):
            return context_of_set(context, split.removeprefix(TRAIN_SET))
        return context

    def _make_mixed_source(self, sets: Mapping[str, Source]) -> MixedSource:
        """Return the source of all training sets."""
        data = self.pipeline.data
        order = mix_order(data.mix_order or "turns", data.shares, self.pipeline.run.seed)
        return MixedSource(sets, order, data.mix_epoch or "longest")

    def _model(self, makers: Mapping[str, Maker], name: str, device: torch.device) -> nn.Module:
        key = key_of("model", name)
        if key != "model" and hasattr(nn.ModuleDict, name):
            message = (
                f'no model can be called "{name}": PyTorch calls something of its own like that'
            )
            raise UserError(Problem(message, self.places.of(key)))
        section = self.pipeline.models[name]
        make = partial(self._call, makers[key], section.args, key)
        sharded = self.ranks.world > 1 and self.pipeline.distributed.strategy == "fsdp"
        if sharded and self.ranks.rank:
            # The import is here because a run of one process does not need it.
            from hookflow.runner.distributed.fsdp import without_weights

            make = partial(without_weights, make, self.say)
        made = self._checked(key, make(), nn.Module)
        if section.frozen:
            made.requires_grad_(False).eval()
        if self.ranks.world > 1 and self.pipeline.distributed.sync_batch_norm:
            made = with_sync_batch_norm(made, device, self.places.of("distributed.sync_batch_norm"))
        if self.pipeline.run.channels_last:
            layout = torch.channels_last
        else:
            layout = torch.preserve_format
        dtype = PARAM_DTYPES.get(self.pipeline.run.precision)
        where = None if sharded else device  # which has no room for the whole model
        model: nn.Module = made.to(device=where, dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
        copy_expanded_buffers(model)
        return model

    def _load_weights(self, name: str, model: nn.Module) -> None:
        key = key_of("model", name)
        section = self.pipeline.models[name]
        weights = section.begins_with
        declared = [spec.capabilities for spec in self.specs.values()]
        saved = [each.saved_checkpoints for each in declared if each.saved_checkpoints is not None]
        # A checkpoint hook may leave frozen weights out of its checkpoints, so they are loaded
        # again.
        frozen_again = any(each.leaves_frozen_out(section.frozen) for each in saved)
        if weights is not None and (self.fresh or frozen_again):
            from hookflow.runner.builder.initial_weights import load_weights  # which few runs need

            loaded = load_weights(
                model,
                weights,
                self.base,
                name,
                lambda at: self.places.of(f"{key}.weights.{at}"),
                self.say,
                self.loaded.weights.get(name),
            )
            if self.fresh:
                self.weights |= {name: loaded}

    def _match_parameters(
        self, network: nn.Module, trains: Mapping[str, nn.Module], plan: Plan
    ) -> tuple[dict[str, list[dict[str, Any]]], Picked]:
        """Return parameter groups by optimizer, and picked modules.

        Raises UserError with all that matches nothing.
        """
        groups: dict[str, list[dict[str, Any]]] = {}
        problems: list[Problem] = []
        share: dict[str, set[nn.Parameter]] = {}
        if share_parameters(self.pipeline):
            share, problems = assign_parameters(
                self.pipeline.optimizers, trains, network, self.places.of
            )
        for name, model in trains.items():
            groups[name], wrong = param_groups(
                self.pipeline.optimizers[name].groups,
                model,
                self._make_group_locator(name),
                share.get(name),
            )
            problems += wrong
        problems += find_unmatched_units(self.pipeline.distributed, network, self.places.of)
        return groups, self.pick_modules(network, plan, problems)

    def find_hooks(self, plan: Plan) -> None:
        """Find the classes and functions of the plan's hooks.

        Raises UserError for those that are not there.
        """
        self.specs = find_specs(self.loaded, [hook.name for hook in plan.hooks], self.base)

    def make_hooks(self, plan: Plan) -> dict[str, Any]:
        """Return the objects of the plan's hooks, by name."""
        return {hook.name: self._hook(hook, plan) for hook in plan.hooks}

    def capabilities_of(self, hooks: Mapping[str, Any]) -> dict[str, HookCapabilities]:
        """Return what each hook declares that it does."""
        return {name: self.specs[name].capabilities_of(hook) for name, hook in hooks.items()}

    def writers(
        self, makers: Mapping[str, Maker]
    ) -> dict[str, Callable[[Mapping[str, Any]], Writer]]:
        """Return the factory of each writer; none on any rank but the first."""
        if not self.ranks.first:
            return {}
        factories: dict[str, Callable[[Mapping[str, Any]], Writer]] = {}
        for name in self.pipeline.writers:
            factories[name] = partial(self._make_writer, name, makers[f"writers.{name}"])
        return factories

    def pick_modules(
        self, network: nn.Module, plan: Plan, problems: Sequence[Problem] = ()
    ) -> Picked:
        """Return the modules at which hooks inside the network fire.

        Raises UserError with the `problems` that are known already, and with all that matches
        nothing.
        """
        picked, wrong = pick(plan, network, partial(self._find_place_in_hook, "modules"))
        every = [*problems, *wrong]
        every += find_parameter_problems(
            plan, network, partial(self._find_place_in_hook, "parameters")
        )
        every += self._find_export_problems(plan)
        if every:
            raise UserError(sorted(every, key=make_place_key))
        return picked

    def _find_export_problems(self, plan: Plan) -> Iterator[Problem]:
        """Yield a problem for each export that has no weights or no checkpoint.

        No checkpoint has its weights, or no hook saves its checkpoint. A hook may add weights
        unnamed, and one that is not built in may save any checkpoint, unless it declares them.
        """
        exports: dict[str, ExportedWeights] = {}
        saved = ["last"]
        may_save_any = False
        for name, spec in self.specs.items():
            if spec.capabilities.exported_weights is not None:
                exports[name] = spec.capabilities.exported_weights
            if spec.capabilities.saved_checkpoints is not None:
                saved += spec.capabilities.saved_checkpoints.names
            elif not is_built_in(spec.make):
                may_save_any = True
        if not may_save_any:
            yield from self._find_exports_not_saved(exports, saved)
        yield from self._find_exports_without_weights(exports, plan)

    def _find_exports_not_saved(
        self, exports: Mapping[str, ExportedWeights], saved: Sequence[str]
    ) -> Iterator[Problem]:
        """Yield each export, by its hook, of a checkpoint that is not among the `saved` ones."""
        for name, exported in exports.items():
            wanted = exported.checkpoint
            if wanted not in saved:
                message = f'hook "{name}" exports a checkpoint "{wanted}", which no hook saves'
                place = self.places.of(f"hooks.{name}.args.checkpoint")
                yield Problem(message, place, nearest_or_all(wanted, saved))

    def _find_exports_without_weights(
        self, exports: Mapping[str, ExportedWeights], plan: Plan
    ) -> Iterator[Problem]:
        """Yield each export, by its hook, of weights that no model has and no hook adds."""
        adding = plan.at("before_save_checkpoint")
        named = {slot.removeprefix("checkpoint.") for binding in adding for slot in binding.writes}
        if "checkpoint" in named or any(
            "checkpoint" in binding.takes and not binding.writes for binding in adding
        ):
            return
        there = {state_key("model", name) for name in self.pipeline.models} | named
        for name, exported in exports.items():
            weights = exported.weights
            if weights not in there:
                message = (
                    f'hook "{name}" exports weights, and the checkpoints will have no weights'
                    f' "{weights}"'
                )
                hint = nearest_or_all(weights, sorted(there))
                yield Problem(message, self.places.of(f"hooks.{name}.args.weights"), hint)

    def _find_place_in_hook(
        self, key: Literal["modules", "parameters"], binding: Binding, entry: str
    ) -> Where:
        """Return where an entry of a key is written.

        It is beside its point, for the whole hook, or in the hook's class. Without an entry it is
        the place of the hook.
        """
        hook = self.pipeline.hooks[binding.hook]
        place = f"hooks.{binding.hook}"
        if not entry:
            return self.places.of(f"{place}.use")
        for k, item in enumerate(hook.points or ()):
            if isinstance(item, str) or item.at != binding.point:
                continue
            stated = getattr(item, key)
            if stated:
                return self.places.of(f"{place}.points.{k}.{key}.{stated.index(entry)}")
        stated = getattr(hook, key)
        if stated:
            return self.places.of(f"{place}.{key}.{stated.index(entry)}")
        return self.places.of(f"{place}.use")

    def _make_task(self, make: Maker) -> Any:
        """Return the task: what a class makes; a plain function is the step itself."""
        args = self.pipeline.task.args
        if isinstance(make, type):
            task = self._call(make, args, "task")
        else:
            task = FunctionTask(partial(make, **args))
        data = self.pipeline.data
        if steps_itself(task) and self.pipeline.run.accumulate.most > 1:
            message = (
                "run.accumulate says when the optimizers step, and this task steps them itself"
            )
            raise UserError(Problem(message, self.places.of("run.accumulate")))
        if data.mix_order == "together":
            sets = []
        else:
            sets = [*data.train_sets]
        fault = find_task_problem(
            task, bool(self.pipeline.validated_sets) or data.test is not None, sets
        )
        if fault:
            raise UserError(Problem(fault[0], self.places.of("task.use"), fault[1]))
        return task

    def _checked(self, key: str, made: Any, kind: type[Made]) -> Made:
        if not isinstance(made, kind):
            message = (
                f"{key} must be a {kind.__module__}.{kind.__qualname__}, and this makes a"
                f" {type(made).__name__}"
            )
            raise UserError(Problem(message, self.places.of(f"{key}.use")))
        return made

    def _optimizer(
        self, makers: Mapping[str, Maker], name: str, groups: list[dict[str, Any]], closures: bool
    ) -> torch.optim.Optimizer:
        """Return an optimizer.

        Raises UserError where its step needs a closure, and nothing here gives `closures`.
        """
        key = key_of("optimizer", name)
        made = self._call(
            makers[key], {"params": groups} | self.pipeline.optimizers[name].args, key
        )
        optimizer = self._checked(key, made, torch.optim.Optimizer)
        if not closures and find_call_problem(optimizer.step):
            message = (
                f"the step of {type(optimizer).__name__} needs a closure, and the task does not"
                " take the step itself"
            )
            hint = "docs/how-to/recipes/lbfgs.md has such a task"
            raise UserError(Problem(message, self.places.of(f"{key}.use"), hint))
        scale_groups(
            optimizer, self.pipeline.optimizers[name].groups, self._make_group_locator(name)
        )
        return optimizer

    def _make_group_locator(self, optimizer: str) -> Callable[[str], Where]:
        return lambda key: self.places.of(f"{key_of('optimizer', optimizer)}.groups.{key}")

    def _hook(self, planned: PlannedHook, plan: Plan) -> Any:
        """Make a hook's object; a plain function is called itself, with its args bound."""
        result = self.specs[planned.name].make
        args = self.specs[planned.name].args
        points = {binding.point for binding in plan.bindings if binding.hook == planned.name}
        if not isinstance(result, type):
            offered = {name for point in points for name in plan.points[point].offers}
            if not args:
                return result
            provided = as_annotated(result, args, offered)
            if isinstance(provided, Mapping):
                return partial(result, **provided)
            return partial(result, *provided)
        before = PIPELINE_FOLDER.set(self.base)
        try:
            hook = self._call(result, as_annotated(result, args), f"hooks.{planned.name}")
        except UserError as error:
            error.at(self.places.of(f"hooks.{planned.name}.args"))
            raise
        finally:
            PIPELINE_FOLDER.reset(before)
        if not getattr(hook, "name", ""):  # one that it has given itself is its own
            with suppress(AttributeError):  # its __slots__ have no room for one
                hook.name = planned.name
        if isinstance(hook, Hook):
            with suppress(AttributeError):  # it is a frozen dataclass
                hook.bound_points = frozenset(points)
        return hook

    def _make_writer(self, name: str, make: Maker, offers: Mapping[str, Any]) -> Writer:
        key = f"writers.{name}"
        args = self.pipeline.writers[name].args
        provided = as_annotated(make, args)
        assert isinstance(provided, Mapping)
        made = self._call(make, {**_select_taken(make, offers), **provided}, key)
        try:
            return as_writer(made)
        except TypeError as error:
            raise UserError(Problem(f"{key}: {error}", self.places.of(f"{key}.use"))) from None

    def _call(self, make: Maker, args: Mapping[str, Any] | Sequence[Any], key: str) -> Any:
        """Call `make`.

        A value that it refuses is the user's mistake, with its place in the pipeline.
        """
        try:
            if isinstance(args, Mapping):
                return make(**args)
            return make(*args)
        except (ValueError, TypeError) as error:
            hint = "\n    ".join(describe_error(error)[1:])
            raise UserError(
                Problem(f"{key}: {error}", self.places.of(f"{key}.args"), hint)
            ) from error


def _select_taken(make: Maker, offers: Mapping[str, Any]) -> dict[str, Any]:
    takes = {p.name for p in parameters_of(make)}
    return {name: value for name, value in offers.items() if name in takes}


def with_sync_batch_norm(model: nn.Module, device: torch.device, where: Where) -> nn.Module:
    """Return a model with `SyncBatchNorm` in place of its batch norms.

    Their parameters, buffers and names stay. Raises UserError where the device cannot compute it.
    """
    if device.type == "cpu":
        raise UserError(
            Problem("SyncBatchNorm requires a GPU", where, "leave out distributed.sync_batch_norm")
        )
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]


def choose_strategy(
    section: DistributedSection,
    ranks: RankLayout,
    precision: str,
    place: Locate,
    say: Callable[..., None],
    parallelize: Maker | None = None,
    *,
    own_steps: bool,
) -> ParallelStrategy:
    """Return the strategy of these ranks, by which `parallelize` may split layers of the model.

    `own_steps` says that the task steps its optimizers itself. Raises UserError when that excludes
    what the section asks for.
    """
    if ranks.world == 1:
        return ParallelStrategy()
    if own_steps:
        if section.strategy == "fsdp":
            message = "FSDP cannot train with a task that steps its optimizers itself"
            raise UserError(Problem(message, place("distributed.strategy"), 'strategy = "ddp" can'))
        key = next((key for key in OF_DDP if getattr(section, key)), "")
        if key:
            message = f"{key} has no effect with a task that steps its optimizers itself"
            raise UserError(Problem(message, place(f"distributed.{key}"), "leave it out"))
        return DDPAtStepStrategy()
    if section.strategy == "fsdp":
        from hookflow.runner.distributed.fsdp import FSDPStrategy  # which one process does without

        return FSDPStrategy(section, precision, say, parallelize)
    return DDPStrategy(section)


COMPILER_TOOLS = {"c": ("C", "CC", ("gcc", "clang")), "c++": ("C++", "CXX", ("g++", "clang++"))}
"""The build tools of PyTorch's compilers, on CUDA and elsewhere.

Each has a language, the variable that names one, and usual names.
"""


def check_compiler(device: torch.device, where: Where) -> None:
    """Raise UserError when nothing here could compile for the device.

    `where` is the place of the request.
    """
    without = "take run.compile out"
    if device.type == "cuda" and find_spec("triton") is None:
        raise UserError(
            Problem("run.compile needs Triton on CUDA, which is not installed", where, without)
        )
    language, variable, known = COMPILER_TOOLS["c" if device.type == "cuda" else "c++"]
    if not any(shutil.which(name) for name in (os.environ.get(variable, ""), *known)):
        message = f"run.compile needs a {language} compiler, and there is none here"
        raise UserError(
            Problem(message, where, f"install {known[0]} (or name one in {variable}), or {without}")
        )
