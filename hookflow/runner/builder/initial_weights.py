"""Initial weights.

A `state_dict` file is matched to the names of the model, and checked before it is copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where, first_few, nearest
from hookflow.events.initial_weights import WeightsSource
from hookflow.events.rundir import short
from hookflow.hooks.checkpoint_files import (
    METADATA_FILE,
    not_averages,
    read_tensors,
    read_weights,
    state_key,
)
from hookflow.pipeline.components import WeightsSection
from hookflow.pipeline.layers import nearest_sibling
from hookflow.pipeline.load import Loaded, key_of
from hookflow.runner.builder.components import find_makers
from hookflow.runner.distributed.parallel import load_model

ENTRIES = ("state_dict", "model_state_dict", "model")
"""Names of the checkpoint entry that holds the `state_dict` of the model.

Training scripts and Lightning use them.
"""

WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
"""Prefixes that DDP, `torch.compile` and a LightningModule add to the names of a network."""

MAX_REPORTED_NAMES = 3
"""The number of names reported of a kind."""


class WeightMisfits(NamedTuple):
    """The misfits of weights and a model, by their names.

    Entries of other shapes come with the shapes in the weights and in the model.
    """

    reshaped: dict[str, tuple[Any, Any]]
    missing: list[str]
    unexpected: list[str]

    def __str__(self) -> str:
        parts = []
        if self.missing:
            parts.append(f"missing: {len(self.missing)} ({_format_first_few(self.missing)})")
        if self.unexpected:
            parts.append(
                f"unexpected: {len(self.unexpected)} ({_format_first_few(self.unexpected)})"
            )
        if self.reshaped:
            shapes = [
                f"{name} {theirs} instead of {ours}"
                for name, (theirs, ours) in self.reshaped.items()
            ]
            parts.append(f"of another shape: {len(shapes)} ({_format_first_few(shapes)})")
        return "; ".join(parts)


@dataclass(frozen=True)
class WeightsFile:
    """Where the weights of a model are.

    `path` is a file, or the name of the entry of a sharded checkpoint.
    """

    path: Path
    shown: str
    """Its name in messages."""
    note: str = ""
    """The other entries of the checkpoint."""


@dataclass(frozen=True)
class WeightsMatch:
    """Weights as they go with the names of a model."""

    given: dict[str, Any]
    """All that are to go into the model, by its names."""
    loaded: dict[str, Any]
    """The weights that fit."""
    excluded: set[str]
    prefixes: list[str]
    """The prefixes of wrappers that were taken off."""
    fit: WeightMisfits
    problems: list[Problem]
    """The weights that do not fit."""

    def summary(self, source: WeightsFile, model: Collection[str]) -> str:
        """Return one line: what was loaded, what was left, and what the model has besides."""
        parts = [f"{len(self.loaded)} weights loaded from {source.shown}"]
        if self.prefixes:
            parts.append(f"without the prefix {''.join(self.prefixes)}")
        left = sorted(self.excluded - set(model))
        if left:
            parts.append(f"left: {len(left)} ({_format_first_few(left)})")
        new = sorted(self.excluded & set(model))
        if new:
            parts.append(f"excluded: {len(new)} ({_format_first_few(new)})")
        if self.problems:
            parts.append(str(self.fit))
        if source.note:
            parts.append(source.note)
        return "; ".join(parts)


def load_weights(
    model: nn.Module,
    section: WeightsSection,
    base: Path,
    name: str,
    place: Callable[[str], Where],
    say: Callable[..., None],
    recorded: WeightsSource | None = None,
) -> dict[str, Any]:
    """Load weights into the model.

    They are those of a file (relative to `base`), or those of `name` in a checkpoint.

    `recorded` are those of another run, as the start of the run has found them. Returns them by the
    model's names, without excluded ones. `place` is the place of a key of the section; `say` gets a
    summary. Raises UserError with the misfits and the nearest names.
    """
    source = find_file(section, base, name, place, recorded)
    if recorded is not None:
        check_unchanged(recorded, place("use"))
    model_weights = model.state_dict()
    match = match_weights(section, source, model_weights, place)
    where = find_weights_place(section, place)
    if section.strict and match.problems:
        raise UserError(match.problems)
    if not match.loaded:
        raise UserError(
            [
                Problem(f"{source.shown} has nothing that is to be loaded into the model", where),
                *match.problems,
            ]
        )
    load_model(model, match.loaded, strict=False)

    unmatched = [
        glob for glob in section.exclude if not any(fnmatchcase(key, glob) for key in model_weights)
    ]
    if unmatched:
        globs = ", ".join(f'"{glob}"' for glob in unmatched)
        what = (
            f"matches names of {source.shown} alone, so no weights of the model are left out by it"
        )
        say(f"exclude: {globs} {what}", "warn")
    summary = match.summary(source, model_weights)
    if recorded is not None or ";" in summary:
        say(summary, "warn" if match.problems else "info")
    return match.given


def find_weights_place(section: WeightsSection, place: Callable[[str], Where]) -> Where:
    """Return where the pipeline says which weights they are."""
    return place("use" if section.file is None else "file")


def find_file(
    section: WeightsSection,
    base: Path,
    name: str,
    place: Callable[[str], Where],
    recorded: WeightsSource | None,
) -> WeightsFile:
    """Return where the weights of a section are. Raises UserError where there is no such file."""
    where = find_weights_place(section, place)
    if section.file is None:
        if recorded is None:
            raise UserError(
                Problem(f'"{section.use}" was not looked up when the run was started', where)
            )
        path = recorded.path
        note = not_averages(path.parent, recorded.entry)
        if not path.is_file() and not (path.parent / METADATA_FILE).exists():
            raise UserError(Problem(f"the weights {recorded} are gone: there is no {path}", where))
        return WeightsFile(path, str(recorded), note)
    path = base / Path(section.file).expanduser()
    note = ""
    if path.is_dir():
        entry = state_key("model", name)
        note = not_averages(path, entry)
        path /= f"{entry}.pt"
    if not path.is_file() and not (path.parent / METADATA_FILE).exists():
        raise UserError(Problem(f'there is no file "{path}"', where, nearest_sibling(path)))
    return WeightsFile(path, str(short(path)), note)


def check_unchanged(recorded: WeightsSource, where: Where) -> None:
    """Raise UserError where weights are not those that the start of the run has found."""
    path = recorded.path
    if not path.is_file():  # shards: the manifest has the checksums of all
        path = path.parent / "manifest.json"
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if checksum != recorded.sha256:
        raise UserError(
            Problem(f"the weights {recorded} have changed since the run was started", where)
        )


def match_weights(
    section: WeightsSection,
    source: WeightsFile,
    model_weights: Mapping[str, Any],
    place: Callable[[str], Where],
) -> WeightsMatch:
    """Return how the weights of a file go with those of a model.

    Raises UserError for what matches nothing.
    """
    where = find_weights_place(section, place)
    renamed = _rename_weights(_state_dict(source.path, where), section.rename, place)
    unwrapped, prefixes = _strip_wrappers(renamed, model_weights.keys())
    every = {**model_weights, **unwrapped}
    excluded = _matched(every, section.exclude, "exclude", place)
    if section.include:
        excluded |= every.keys() - _matched(every, section.include, "include", place)
    wanted = {key: value for key, value in model_weights.items() if key not in excluded}
    given = {key: value for key, value in unwrapped.items() if key not in excluded}
    fit = compare_weights(wanted, given)
    problems = list(find_misfits(fit, wanted, given, where))
    loaded = {
        key: value for key, value in given.items() if key in wanted and key not in fit.reshaped
    }
    return WeightsMatch(given, loaded, excluded, prefixes, fit, problems)


def check_fit(loaded: Loaded, base: Path) -> Iterator[str]:
    """Look whether the weights that models begin with fit them; nothing is loaded.

    The models are made without memory, on PyTorch's device "meta". Yields a line on each model that
    cannot be made so. Raises UserError with everything that does not fit.
    """
    problems: list[Problem] = []
    for name, model in loaded.pipeline.models.items():
        section = model.begins_with
        if section is None:
            continue
        key = key_of("model", name)

        def find_place(at: str, key: str = key) -> Where:
            return loaded.places.of(f"{key}.weights.{at}")

        maker = find_makers(loaded, base, ())[key]
        try:
            with torch.device("meta"):
                made = maker(**model.args)
            names = made.state_dict()
        except Exception as error:  # whatever the user's model raises without memory
            yield (
                f"{key}: not checked whether the weights fit: made without memory it raises"
                f" {type(error).__name__}"
            )
            continue
        try:
            source = find_file(section, base, name, find_place, loaded.weights.get(name))
            match = match_weights(section, source, names, find_place)
            if section.strict:
                problems += match.problems
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)


def load_changes(
    model: nn.Module, weights: Mapping[str, Any], offered: Mapping[str, Any], where: Where
) -> None:
    """Load what hooks have changed in `offered`, a copy of the initial `weights`.

    Raises UserError with the misfits.
    """

    changed = {
        name: value for name, value in offered.items() if not _is_same(value, weights.get(name))
    }
    if not changed:
        return
    wanted = {name: value for name, value in model.state_dict().items() if name in changed}
    misfits = list(find_misfits(compare_weights(wanted, changed), wanted, changed, where))
    if misfits:
        raise UserError(misfits)
    load_model(model, changed, strict=False)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.dtype == other.dtype and torch.equal(value, other)
    return value is other


def _state_dict(path: Path, where: Where) -> dict[str, Any]:
    """Return the `state_dict` in a file. Raises UserError where there is none."""
    try:
        if path.is_file():
            content = read_tensors(path)
        else:
            content = read_weights(path.parent, path.stem)
    except UserError as error:
        problems = [Problem(problem.message, where, problem.hint) for problem in error.problems]
        raise UserError(problems) from None
    weights = content
    if isinstance(content, Mapping):
        weights = _entry_with_weights(content)
        has_tensors = any(isinstance(value, torch.Tensor) for value in weights.values())
        if content and not has_tensors:
            hint = f"its entries are {', '.join(map(str, list(content)[:8]))}"
            text = (
                f"{path} holds no state_dict: no tensors, and none in {', '.join(ENTRIES[:-1])} or"
                f" {ENTRIES[-1]}"
            )
            raise UserError(Problem(text, where, hint))
    if not isinstance(weights, Mapping) or not all(isinstance(key, str) for key in weights):
        raise UserError(
            Problem(f"{path} holds no state_dict, but a {type(weights).__name__}", where)
        )
    return dict(weights)


def _entry_with_weights(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the entry of a checkpoint that is named like weights.

    It is the checkpoint itself where there is none.
    """
    for name in ENTRIES:
        entry = content.get(name)
        if isinstance(entry, Mapping):
            return entry
    return content


def _rename_weights(
    weights: Mapping[str, Any], rename: Mapping[str, str], place: Callable[[str], Where]
) -> dict[str, Any]:
    """Return weights with other prefixes; of those that a name begins with, the first applies."""
    problems = []
    for prefix in rename:
        if not any(name.startswith(prefix) for name in weights):
            hint = f"there are {_format_first_few(weights)}"
            problems.append(
                Problem(f'no name begins with "{prefix}"', place(f"rename.{prefix}"), hint)
            )
    if problems:
        raise UserError(problems)
    result = {}
    for name, value in weights.items():
        prefix = next((each for each in rename if name.startswith(each)), "")
        new_name = rename.get(prefix, "") + name.removeprefix(prefix)
        result[new_name] = value
    return result


def _strip_wrappers(
    weights: dict[str, Any], wanted: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the weights without the prefixes of wrappers, and these prefixes.

    A prefix is stripped as far as more names fit then.
    """
    best = weights
    best_prefixes = list[str]()
    current = weights
    prefixes = list[str]()
    while True:
        prefix = next(
            (each for each in WRAPPER_PREFIXES if any(name.startswith(each) for name in current)),
            "",
        )
        shorter = {name.removeprefix(prefix): value for name, value in current.items()}
        if not prefix or len(shorter) < len(current):  # two names would become one
            return best, best_prefixes
        current = shorter
        prefixes = [*prefixes, prefix]
        if len(current.keys() & wanted) > len(best.keys() & wanted):
            best = current
            best_prefixes = prefixes


def _matched(
    names: Collection[str], globs: Sequence[str], key: str, place: Callable[[str], Where]
) -> set[str]:
    """Return the names that a glob of a key matches. Raises UserError for globs that match none."""
    matched = set[str]()
    problems = []
    for k, glob in enumerate(globs):
        of_glob = {name for name in names if fnmatchcase(name, glob)}
        if not of_glob:
            hint = f"there are {_format_first_few(names)}"
            problems.append(Problem(f'"{glob}" matches no weights', place(f"{key}.{k}"), hint))
        matched |= of_glob
    if problems:
        raise UserError(problems)
    return matched


def compare_weights(wanted: Mapping[str, Any], weights: Mapping[str, Any]) -> WeightMisfits:
    """Return how weights fit those that a model wants, by their names and shapes."""
    reshaped = {}
    for name, tensor in wanted.items():
        # A value that is no tensor is the extra state of a module.
        if name in weights and isinstance(tensor, torch.Tensor):
            theirs = tuple(getattr(weights[name], "shape", ()))
            ours = tuple(tensor.shape)
            if not isinstance(weights[name], torch.Tensor) or theirs != ours:
                reshaped[name] = (theirs, ours)
    missing = [name for name in wanted if name not in weights]
    unexpected = [name for name in weights if name not in wanted]
    return WeightMisfits(reshaped, missing, unexpected)


def find_misfits(
    fit: WeightMisfits, wanted: Mapping[str, Any], weights: Mapping[str, Any], where: Where
) -> Iterator[Problem]:
    """Yield a problem for the first few misfits of each kind, and one that counts them all."""
    for name in fit.unexpected[:MAX_REPORTED_NAMES]:
        hint = nearest(name, fit.missing)
        if not hint and fit.missing:
            hint = f"the model still needs {_format_first_few(fit.missing)}"
        yield Problem(f'the weights have "{name}", and the model does not', where, hint)
    for name in fit.missing[:MAX_REPORTED_NAMES]:
        hint = nearest(name, fit.unexpected)
        if not hint and fit.unexpected:
            hint = f"they also have {_format_first_few(fit.unexpected)}"
        yield Problem(f'the weights lack "{name}", which the model has', where, hint)
    for name, (theirs, ours) in islice(fit.reshaped.items(), MAX_REPORTED_NAMES):
        yield Problem(
            f'the weights have "{name}" in the shape {theirs}, and the model in {ours}', where
        )
    names = [*fit.reshaped, *fit.missing, *fit.unexpected]
    if names:
        fitting = len(wanted.keys() & weights.keys()) - len(fit.reshaped)
        glob = f"{names[0].rpartition('.')[0]}.*".lstrip(".")
        hint = (
            f'to leave some out: weights = {{ file = "…", exclude = ["{glob}"] }}; or strict ='
            " false"
        )
        yield Problem(f"{fitting} of {len(wanted)} fit; {fit}", where, hint)


def _format_first_few(names: Iterable[str]) -> str:
    return first_few(names, MAX_REPORTED_NAMES)
