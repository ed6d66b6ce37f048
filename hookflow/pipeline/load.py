"""Load and validate a pipeline file, find what it names, and write it back as TOML."""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import tomli_w
from pydantic import ValidationError

from hookflow.errors import (
    Locate,
    Problem,
    UserError,
    Where,
    make_place_key,
    nearest,
    nearest_or_all,
)
from hookflow.events.initial_weights import WeightsSource
from hookflow.pipeline.attached import complete_attached, is_attached, no_loop
from hookflow.pipeline.base_removal import UNSET, merge_hint
from hookflow.pipeline.components import (
    DATA_SPLITS,
    Component,
    DataSection,
    DataSource,
    OptimizerSection,
)
from hookflow.pipeline.groups import GroupTable
from hookflow.pipeline.layers import (
    MOST_BYTES,
    TOO_LONG,
    Override,
    apply,
    extended,
    make_disabling_overrides,
    parse_toml,
    read,
    unknown_hooks,
)
from hookflow.pipeline.problems import explain, iter_errors_by_key
from hookflow.pipeline.references import (
    VariableFloat,
    VariableInt,
    find_secrets,
    interpolate,
    iter_environment_keys,
    public,
    with_texts_where_wanted,
)
from hookflow.pipeline.registry import HOOKS, Registry, missing_extra, registry_of
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import Key, SourceMap
from hookflow.pipeline.use import (
    LOOP_OBJECT,
    is_object,
    iter_bindings,
    locate,
    maker_of,
    module_file,
    parse_file,
)
from hookflow.text import mask, remove_masks

DEFAULT_HOOKS: dict[str, dict[str, Any]] = {
    "log": {"use": "log", "every": "0.5%"},
    "checkpoint": {"use": "checkpoint"},
}
"""The tables of the default hooks, by name.

Each curve has 200 points, however long the run is, and each epoch a checkpoint.
"""


def add_default_hooks(tree: dict[str, Any], places: SourceMap) -> None:
    """Add the default hooks to the tables of a pipeline, in place, which need not be valid.

    A table of a default hook's name that says no `use` changes the default hook. There is no
    default hook where the file declares another hook of its kind, be it switched off, or where its
    name stands for another hook.
    """
    hooks = tree.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        return
    run = tree.get("run")
    wanted = not isinstance(run, dict) or run.get("default_hooks", True) is not False
    uses = []
    for hook in hooks.values():
        if isinstance(hook, dict):
            uses.append(hook.get("use"))
    places_in_use = set()
    for use in uses:
        if isinstance(use, str):
            places_in_use.add(HOOKS.place(use))
    for name, default in DEFAULT_HOOKS.items():
        if name in hooks:
            if isinstance(hooks[name], dict) and "use" not in hooks[name]:
                hooks[name] = {**default, **hooks[name]}
        elif wanted and HOOKS.place(default["use"]) not in places_in_use:
            hooks[name] = {**default, "default": True}
            places.put(("hooks", name), Where("the default hooks"))


_COMPONENT_STUB = {"use": "builtins:print"}
_HOOK_STUB = {**_COMPONENT_STUB, "points": ["before_run"]}
"""Replaces an invalid hook, so that other hooks may name it."""

_SECTION_STUBS = {
    "run": {"name": "stub", "max_iters": 1},
    "model": _COMPONENT_STUB,
    "optimizer": _COMPONENT_STUB,
    "data": {"train": _COMPONENT_STUB},
}
_SECTION_DEPTHS = {
    "model": 2,
    "optimizer": 2,
    "task": 2,
    "data": 3,
    "writers": 2,
    "hooks": 3,
    "points": 2,
    "groups": 2,
}
"""The sections that hooks depend on; a fault is that of a key in so many parts."""


def recover(tree: Mapping[str, Any], faulty: Iterable[Key]) -> Pipeline | None:
    """Return a pipeline of `tree` without what is `faulty`; None when nothing can be made.

    A faulty key is left out, and the whole table with its `use`; a hook with a faulty `use` or
    `points` becomes a stub.
    """
    left = deepcopy(
        {name: tree[name] for name in _SECTION_DEPTHS if isinstance(tree.get(name), dict)}
    )
    for key in faulty:
        *path, last = key[: _SECTION_DEPTHS.get(key[0], 1)]
        # A table in one of these sections may itself be called "use".
        named = key[0] in ("hooks", "writers", "points", "groups")
        if len(path) > named and (last == "use" or (last == "points" and key[0] == "hooks")):
            *path, last = path
        table: Any = left
        for name in path:
            if isinstance(table, dict):
                table = table.get(name)
            else:
                table = None
        if isinstance(table, dict) and path == ["hooks"]:
            table[last] = {**_HOOK_STUB}
        elif isinstance(table, dict):
            table.pop(last, None)
    left["data"] = {"train": _COMPONENT_STUB, **left.get("data", {})}
    for parts in (left, {name: left.get(name, {}) for name in ("hooks", "points", "groups")}):
        with suppress(ValidationError):
            return Pipeline.model_validate({**_SECTION_STUBS, **parts})
    return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid pipeline, the file it came from, and the place of each of its keys.

    The file is as the user named it.
    """

    pipeline: Pipeline
    source: Path
    places: SourceMap
    public: Pipeline
    """The pipeline as it is recorded and shown, with references in the place of the environment.

    Its strings are so written that `${…}` in them is a reference, and `$${` a plain `${`.
    """
    overrides: tuple[str, ...] = ()
    in_python: bool = False
    """Whether `overrides` were said in Python."""
    weights: Mapping[str, WeightsSource] = field(default_factory=dict)
    """The weights of other runs that its models begin with, by the names of the models."""

    @property
    def is_attached(self) -> bool:
        """Whether these are hooks for a loop of the user's own: there is no model and no data."""
        return is_attached(self.pipeline)


TABLES_FILE = Path("<dict>")
"""The name of a pipeline without a file."""

PipelineSource = Path | Mapping[str, Any]
"""A pipeline file, or the tables that one would hold."""

Said = str | Override
"""A `key=value`: of the option `--set`, or with the place where it was said."""


class UnsoundError(UserError):
    """The problems of a file; `rest` is its valid part, and stubs."""

    def __init__(self, problems: Iterable[Problem], rest: Loaded | None) -> None:
        super().__init__(sorted(problems, key=make_place_key))
        self.rest = rest


class Options(TypedDict, total=False):
    """How to load a pipeline."""

    without: Sequence[str]
    """Hooks to switch off."""
    only: Sequence[str]
    """The only hooks to leave on, if there are any."""
    recorded: bool
    """Whether `dump` has written the file: it includes its default hooks."""
    environment: bool
    """Whether to resolve references to the environment.

    To show or compare a pipeline they may stay what they are.
    """


def load(
    source: PipelineSource, overrides: Sequence[Said] = (), **options: Unpack[Options]
) -> Loaded:
    """Read a pipeline file, lay `key=value` overrides over it, fill in its `${…}`, and check it.

    Raises UserError.
    """
    if isinstance(source, Path):
        return parse(
            read(source, recorded=options.get("recorded", False)), source, overrides, **options
        )
    places = SourceMap.in_tables(source, str(TABLES_FILE))
    return _resolve(
        *extended(deepcopy(dict(source)), places, TABLES_FILE), TABLES_FILE, overrides, **options
    )


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect no garbage in this block.

    Searching the objects of a large plan takes as long as making it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@pause_garbage_collection()
def parse(
    text: str, source: Path, overrides: Sequence[Said] = (), **options: Unpack[Options]
) -> Loaded:
    """Do what `load` does with the text of a file.

    `source` is the name of the file in problems.
    """
    try:
        return _resolve(
            *extended(*parse_toml(text, str(source)), source), source, overrides, **options
        )
    except RecursionError:
        message = "its lists and tables are nested too deeply"
        raise UserError(Problem(message, Where(str(source)))) from None


def _resolve(
    tree: dict[str, Any],
    places: SourceMap,
    source: Path,
    overrides: Sequence[Said],
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    recorded: bool = False,
    environment: bool = True,
) -> Loaded:
    """Return the pipeline of a file's tables; `places` has the position of each of their keys."""
    changes = _as_overrides(overrides)
    problems = list(apply(changes, tree, places))
    if not recorded:
        problems += complete_attached(tree, places)
    interpolation = interpolate(tree, places, os.environ if environment else None)
    resolved = interpolation.resolved
    written = interpolation.written
    unresolved = interpolation.problems
    variables = interpolation.variables
    if environment:
        mask({name: os.environ[name] for name in variables if name in os.environ})
    if not recorded:
        add_default_hooks(resolved, places)
        add_default_hooks(written, places)
    hooks: list[str] = []
    if isinstance(resolved.get("hooks"), dict):
        hooks += resolved["hooks"]
    groups = GroupTable(resolved.get("groups"), hooks)
    problems += unknown_hooks(hooks, groups, without, only)
    switches: list[Override] = []
    if not problems:
        switches += make_disabling_overrides(hooks, groups, without, only)
    problems += apply(switches, resolved, places)
    list(apply(switches, written, places))
    problems += dict.fromkeys(unresolved.values())
    problems += _keys_of_files_alone(resolved, places)
    pipeline: Pipeline | None = None
    faulty = set(unresolved)
    try:
        pipeline, resolved = _validate(resolved)
    except ValidationError as error:
        result = explain(error, resolved, places, dict(iter_environment_keys(written)))
        problems += (
            _with_merge(key, problem, resolved, places)
            for key, problem in result
            if key not in unresolved
        )
        faulty.update(key for key, _ in result)
    understood = pipeline
    if faulty or pipeline is None:
        understood = recover(resolved, faulty)
    message = tuple(change.text for change in (*changes, *switches))
    of_python = any(change.in_python for change in changes)
    if problems or understood is None:
        rest = Loaded(understood, source, places, understood) if understood else None
        raise UnsoundError(problems, rest)
    shown = understood
    if not interpolation.is_public:
        shown = public(resolved, written)
    remove_masks(set(variables) - find_secrets(written))
    return Loaded(understood, source, places, shown, message, of_python)


def _as_overrides(stated: Sequence[Said]) -> list[Override]:
    """Return overrides, of which a text alone is one of the command line."""
    overrides = []
    for each in stated:
        if isinstance(each, Override):
            overrides.append(each)
        else:
            overrides.append(Override(each, Where(f"--set {each}")))
    return overrides


def _keys_of_files_alone(tree: Mapping[str, Any], places: SourceMap) -> Iterator[Problem]:
    """Yield the keys that the command line has set, and that only a file may have."""
    if "extends" in tree:
        message = (
            "extends cannot be set from the command line: what a file is built on stands in the"
            " file"
        )
        yield Problem(message, places.of("extends"))
    if UNSET in tree:
        message = "unset cannot be set from the command line: --set KEY=null takes a key away"
        yield Problem(message, places.of(UNSET))


def _with_merge(
    key: Key, problem: Problem, resolved: Mapping[str, Any], places: SourceMap
) -> Problem:
    """Return a problem with the way out where the keys of two files cannot be together."""
    way_out = merge_hint(key, problem.message, resolved, places)
    if not way_out:
        return problem
    if problem.hint:
        hints = [problem.hint, way_out]
    else:
        hints = [way_out]
    return replace(problem, hint="\n    ".join(hints))


def _validate(resolved: dict[str, Any]) -> tuple[Pipeline, dict[str, Any]]:
    """Return the pipeline of the tables, and these as they are valid. Raises ValidationError.

    Where a key takes a string, and a variable of the environment holds a number, it takes the
    variable's text.
    """
    try:
        return Pipeline.model_validate(resolved), resolved
    except ValidationError as error:
        keys = set()
        for key, details in iter_errors_by_key(error):
            if isinstance(details["input"], VariableInt | VariableFloat):
                keys.add(key)
        if not keys:
            raise
    with_texts = {
        name: with_texts_where_wanted(value, keys, (name,)) for name, value in resolved.items()
    }
    return Pipeline.model_validate(with_texts), with_texts


def dump(public: Pipeline, where: Where | None = None) -> str:
    """Return a recorded pipeline as TOML that parses to an equal one.

    Raises UserError when it is too long.
    """
    written = tomli_w.dumps(as_tables(public))
    if len(written.encode("utf-8", "replace")) > MOST_BYTES:
        message = f"once its references and lists are written out, this is {TOO_LONG}"
        raise UserError(Problem(message, where))
    return written


def as_tables(pipeline: Pipeline) -> dict[str, Any]:
    """Return the pipeline as plain tables; `[run]` in full, else only what is no default."""
    return {
        "run": pipeline.run.model_dump(exclude_none=True),
        "task": pipeline.task.model_dump(exclude_defaults=True),
        **pipeline.model_dump(by_alias=True, exclude_defaults=True, exclude={"run", "task"}),
    }


def list_components(
    pipeline: Pipeline, splits: Iterable[str] = DATA_SPLITS
) -> dict[str, Component]:
    """Return all components but the hooks, by their key in the file ("model.net").

    Only the data of `splits` are among them.
    """
    parts: dict[str, Component] = {
        key_of("model", name): model for name, model in pipeline.models.items()
    }
    parts |= {
        key_of("optimizer", name): optimizer for name, optimizer in pipeline.optimizers.items()
    }
    parts["task"] = pipeline.task
    parts |= {f"data.{name}": source for name, source in pipeline.data.sources(splits).items()}
    return parts | {f"writers.{name}": writer for name, writer in pipeline.writers.items()}


def key_of(section: str, name: str) -> str:
    """Return where the file declares a model or an optimizer.

    One without a name has that of its section.
    """
    if name == section:
        return section
    return f"{section}.{name}"


def find_trained_model(pipeline: Pipeline, optimizer: str) -> str | None:
    """Return the name of the model that an optimizer trains; None when it trains all there are."""
    stated = pipeline.optimizers[optimizer].model
    if stated is not None or not isinstance(pipeline.optimizer, dict):
        return stated
    named = isinstance(pipeline.model, dict) and optimizer in pipeline.model
    if share_parameters(pipeline) and not named:
        return None
    return optimizer


def share_parameters(pipeline: Pipeline) -> bool:
    """Return whether optimizers share the parameters of a model by globs."""
    return any(section.parameters is not None for section in pipeline.optimizers.values())


def find_part_problems(loaded: Loaded) -> Iterator[Problem]:
    """Yield what does not fit together.

    It may be an optimizer of no model, a model with two, or a name of two things.
    """
    pipeline = loaded.pipeline
    place = loaded.places.of
    if isinstance(pipeline.model, dict):
        several = pipeline.model
    else:
        several = {}
    takers: dict[str, str] = {}
    for name, section in pipeline.optimizers.items():
        key = key_of("optimizer", name)
        model = find_trained_model(pipeline, name)
        if model is None:
            continue
        if not several:
            hint = "give it a name, [model.net], or write one [optimizer]"
            yield Problem(
                f'[{key}] trains a model "{model}", and [model] has no name', place(key), hint
            )
        elif model not in several:
            at = _find_model_place(section, key, place)
            hint = (
                nearest(model, several) or f'say which it trains: model = "{next(iter(several))}"'
            )
            yield Problem(f'[{key}] trains a model "{model}", and there is none', at, hint)
        elif model in takers and not share_parameters(pipeline):
            message = f'[{key}] and [optimizer.{takers[model]}] train the same model "{model}"'
            yield Problem(
                message, place(key), "two optimizers of one model share it by their `parameters`"
            )
        takers.setdefault(model, name)
    yield from _find_frozen_model_problems(pipeline, place)
    yield from _find_share_problems(pipeline.data, place)
    for name in several.keys() & pipeline.hooks.keys():
        message = (
            f'a model and a hook are both called "{name}", and a checkpoint could not tell their'
            " weights apart"
        )
        yield Problem(message, place(f"hooks.{name}"))


def _find_model_place(optimizer: OptimizerSection, key: str, place: Locate) -> Where:
    """Return where the table of an optimizer, whose key this is, says which model it trains."""
    if optimizer.model:
        return place(f"{key}.model")
    return place(key)


def _find_frozen_model_problems(pipeline: Pipeline, place: Locate) -> Iterator[Problem]:
    """Yield the optimizers of a frozen model.

    Yields the first frozen model, too, where no other one is left to train.
    """
    frozen = pipeline.frozen_models
    for name, section in pipeline.optimizers.items():
        model = find_trained_model(pipeline, name)
        if model in frozen:
            key = key_of("optimizer", name)
            at = _find_model_place(section, key, place)
            message = f'[{key}] trains the model "{model}", which is frozen'
            yield Problem(message, at, "leave the optimizer out, or frozen = true")
    if frozen and len(frozen) == len(pipeline.models):
        key = key_of("model", frozen[0])
        message = f"[{key}] is frozen, and no other model is left to train"
        hint = "the hook freeze keeps a part of one model as it is"
        yield Problem(message, place(f"{key}.frozen"), hint)


def _find_share_problems(data: DataSection, place: Locate) -> Iterator[Problem]:
    """Yield the names in `data.mix` without a training set, and the training sets that it lacks."""
    if data.mix is None:
        return
    unknown = [name for name in data.mix if name not in data.train_sets]
    for name in unknown:
        hint = nearest_or_all(name, data.train_sets)
        message = f'data.mix has a share of "{name}", and no training set has that name'
        yield Problem(message, place(f"data.mix.{name}"), hint)
    left_out = [name for name in data.train_sets if name not in data.mix]
    if left_out and not unknown:
        message = f"data.mix says no share of {', '.join(left_out)}"
        yield Problem(message, place("data.mix"), "every training set has one, of 1 or more")


def missing_components(loaded: Loaded, base: Path) -> list[Problem]:
    """Return a problem for each component that is not there."""
    parts = _list_all_components(loaded.pipeline)
    place = loaded.places.of
    result = (
        missing(part.use, base, place(f"{key}.use"), registry_of(key))
        for key, part in parts.items()
    )
    return [*filter(None, result)]


def missing_objects(loaded: Loaded) -> list[Problem]:
    """Return a problem for each component and hook that was an object of another program."""
    if loaded.is_attached:
        return [no_loop(loaded.places.of("run"))]
    uses = {key: part.use for key, part in _list_all_components(loaded.pipeline).items()}
    uses |= {f"hooks.{name}": hook.use for name, hook in loaded.pipeline.hooks.items()}
    result = (_missing_object(use, loaded.places.of(f"{key}.use")) for key, use in uses.items())
    return [*filter(None, result)]


def _list_all_components(pipeline: Pipeline) -> dict[str, Component]:
    """Return all that is made but the hooks, parts of loaders included, by its key."""
    parts = list_components(pipeline)
    loaders = {}
    for key, part in parts.items():
        if isinstance(part, DataSource) and part.loader:
            loaders[key] = part.loader
    named = (
        (f"{key}.loader.{name}", part)
        for key, loader in loaders.items()
        for name, part in loader.named().items()
    )
    return parts | dict(named)


def missing(use: str, base: Path, where: Where | None, registry: Registry | None) -> Problem | None:
    """Return what keeps `use` from naming anything; None if nothing can be seen to.

    Nothing of it is imported.
    """
    if use == LOOP_OBJECT:
        return None
    if is_object(use):
        return _missing_object(use, where)
    problem = (registry and registry.find_ambiguity(use, where)) or missing_extra(
        registry, use, where
    )
    if problem:
        return problem
    try:
        module, name = locate(use, base, where, registry.short_names(use) if registry else {})
        file = base / module if module.endswith(".py") else module_file(module)
    except UserError as error:
        return error.problems[0]
    except ModuleNotFoundError as error:
        return Problem(f'there is no module "{error.name}"', where)
    names = None
    if file:
        names = _names(file)
    first = name.partition(".")[0]
    if names is None or first in names:
        return None
    message = f'"{use}": there is no "{first}" in {module}'
    return Problem(message, where, nearest(first, names))


def _missing_object(use: str, where: Where | None) -> Problem | None:
    try:
        _ = is_object(use) and maker_of(use, where)
    except UserError as error:
        return error.problems[0]
    return None


def _names(file: Path) -> set[str] | None:
    """Return what a module defines at its top level; None where only running it would tell."""
    try:
        names = {name for name, _ in iter_bindings(parse_file(file))}
    except (OSError, SyntaxError, RecursionError):
        return None  # what is wrong with it, importing it tells better
    if names & {"*", "__getattr__"}:
        return None
    return names
