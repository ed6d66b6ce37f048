"""Initial weights: a `state_dict` file matched to the names of the model, and checked before it is copied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hookflow.errors import Problem, UserError, Where, first_few, nearest
from hookflow.events.rundir import short
from hookflow.hooks.checkpoint_files import METADATA, not_averages, read_tensors, read_weights, state_key
from hookflow.pipeline.components import WeightsSection
from hookflow.pipeline.layers import nearest_sibling
from hookflow.runner.distributed.parallel import load_model

ENTRIES = ("state_dict", "model_state_dict", "model")
"""Names of the checkpoint entry that holds the `state_dict` of the model, in training scripts and Lightning."""

WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""Prefixes that DDP, `torch.compile` and a LightningModule add to the names of a network."""

FEW = 3
"""The number of names reported of a kind."""


class Fit(NamedTuple):
    """The misfits of weights and a model, by their names; of other shapes, those of the weights and of the model."""

    reshaped: dict[str, tuple[Any, Any]]
    missing: list[str]
    unexpected: list[str]

    def __str__(self) -> str:
        shapes = [f"{name} {theirs} instead of {ours}" for name, (theirs, ours) in self.reshaped.items()]
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "of another shape": shapes}
        return "; ".join(f"{kind}: {len(names)} ({_few(names)})" for kind, names in kinds.items() if names)


def load_weights(
    model: nn.Module,
    section: WeightsSection,
    base: Path,
    name: str,
    place: Callable[[str], Where],
    say: Callable[..., None],
) -> dict[str, Any]:
    """Load the weights of a file (relative to `base`), or those of `name` in a checkpoint, into the model.

    Returns them by the model's names, without excluded ones. `place` is the place of a key of the section; `say` gets
    a summary. Raises UserError with the misfits and the nearest names.
    """
    where = place("file")
    path, beside = base / Path(section.file).expanduser(), ""
    if path.is_dir():
        beside = not_averages(path, key := state_key("model", name))
        path /= f"{key}.pt"
    if not path.is_file() and not (path.parent / METADATA).exists():
        raise UserError(Problem(f'there is no file "{path}"', where, nearest_sibling(path)))
    result = _renamed(_state_dict(path, where), section.rename, place)
    wanted = model.state_dict()
    result, prefixes = _unwrapped(result, wanted.keys())
    excluded = _excluded({**wanted, **result}, section.exclude, place)
    of_file_alone = [glob for glob in section.exclude if not any(fnmatchcase(key, glob) for key in wanted)]
    wanted, result = ({key: value for key, value in of.items() if key not in excluded} for of in (wanted, result))
    fit = compare_weights(wanted, result)
    misfits = [*misfits_of(fit, wanted, result, where)]
    if section.strict and misfits:
        raise UserError(misfits)
    loaded = {key: value for key, value in result.items() if key in wanted and key not in fit.reshaped}
    if not loaded:
        raise UserError([Problem(f"{path} has nothing that is to be loaded into the model", where), *misfits])
    load_model(model, loaded, strict=False)
    if of_file_alone:
        globs = ", ".join(f'"{glob}"' for glob in of_file_alone)
        say(
            f"exclude: {globs} matches names of {short(path)} alone, so no weights of the model are left out by it",
            "warn",
        )
    if prefixes or excluded or misfits or beside:
        lines = [f"{len(loaded)} weights loaded from {short(path)}"]
        lines += [f"without the prefix {''.join(prefixes)}"] if prefixes else []
        lines += [f"excluded: {len(excluded)} ({_few(sorted(excluded))})"] if excluded else []
        lines += [str(fit)] if misfits else []
        lines += [beside] if beside else []
        say("; ".join(lines), "warn" if misfits else "info")
    return result


def load_changes(model: nn.Module, weights: Mapping[str, Any], offered: Mapping[str, Any], where: Where) -> None:
    """Load what hooks have changed in `offered`, a copy of the initial `weights`. Raises UserError with the misfits."""

    def is_same(value: Any, other: Any) -> bool:
        if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
            return value is other
        return value.dtype == other.dtype and torch.equal(value, other)

    changed = {name: value for name, value in offered.items() if not is_same(value, weights.get(name))}
    wanted = {name: value for name, value in model.state_dict().items() if name in changed}
    if misfits := [*misfits_of(compare_weights(wanted, changed), wanted, changed, where)]:
        raise UserError(misfits)
    if changed:
        load_model(model, changed, strict=False)


def _state_dict(path: Path, where: Where) -> dict[str, Any]:
    try:
        result = read_tensors(path) if path.is_file() else read_weights(path.parent, path.stem)
    except UserError as error:
        raise UserError([Problem(problem.message, where, problem.hint) for problem in error.problems]) from None
    if isinstance(result, Mapping):
        entry = next((result[key] for key in ENTRIES if isinstance(result.get(key), Mapping)), result)
        if result and not any(isinstance(value, torch.Tensor) for value in entry.values()):
            there = f"its entries are {', '.join(map(str, list(result)[:8]))}"
            text = f"{path} holds no state_dict: no tensors, and none in {', '.join(ENTRIES[:-1])} or {ENTRIES[-1]}"
            raise UserError(Problem(text, where, there))
        result = entry
    if not isinstance(result, Mapping) or not all(isinstance(key, str) for key in result):
        raise UserError(Problem(f"{path} holds no state_dict, but a {type(result).__name__}", where))
    return dict(result)


def _renamed(result: dict[str, Any], rename: Mapping[str, str], place: Callable[[str], Where]) -> dict[str, Any]:
    if unused := [prefix for prefix in rename if not any(name.startswith(prefix) for name in result)]:
        raise UserError(
            Problem(f'no name begins with "{prefix}"', place(f"rename.{prefix}"), f"there are {_few(result)}")
            for prefix in unused
        )
    prefixes = {name: next((prefix for prefix in rename if name.startswith(prefix)), "") for name in result}
    return {rename.get(prefix, "") + name.removeprefix(prefix): result[name] for name, prefix in prefixes.items()}


def _unwrapped(result: dict[str, Any], wanted: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the weights without the prefixes of wrappers, as far as more names fit then, and these prefixes."""
    versions: list[tuple[dict[str, Any], list[str]]] = [(result, [])]
    while prefix := next((item for item in WRAPPERS if any(name.startswith(item) for name in result)), ""):
        shorter = {name.removeprefix(prefix): value for name, value in result.items()}
        if len(shorter) < len(result):
            break  # two names would become one
        result = shorter
        versions.append((result, [*versions[-1][1], prefix]))
    return max(versions, key=lambda version: len(version[0].keys() & wanted))


def _excluded(names: Collection[str], globs: Sequence[str], place: Callable[[str], Where]) -> set[str]:
    result = [{name for name in names if fnmatchcase(name, glob)} for glob in globs]
    if unused := [k for k, matched in enumerate(result) if not matched]:
        raise UserError(
            Problem(f'"{globs[k]}" matches no weights', place(f"exclude.{k}"), f"there are {_few(names)}")
            for k in unused
        )
    return set().union(*result)


def compare_weights(wanted: Mapping[str, Any], result: Mapping[str, Any]) -> Fit:
    reshaped = {}
    for name, tensor in wanted.items():
        if name in result and isinstance(tensor, torch.Tensor):  # else it is the extra state of a module
            theirs, ours = tuple(getattr(result[name], "shape", ())), tuple(tensor.shape)
            if not isinstance(result[name], torch.Tensor) or theirs != ours:
                reshaped[name] = (theirs, ours)
    return Fit(reshaped, [n for n in wanted if n not in result], [n for n in result if n not in wanted])


def misfits_of(fit: Fit, wanted: Mapping[str, Any], result: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Yield a problem for the first few misfits of each kind, and one that counts them all."""
    for name in fit.unexpected[:FEW]:
        hint = nearest(name, fit.missing) or (f"the model still needs {_few(fit.missing)}" if fit.missing else "")
        yield Problem(f'the weights have "{name}", and the model does not', where, hint)
    for name in fit.missing[:FEW]:
        hint = nearest(name, fit.unexpected) or (f"they also have {_few(fit.unexpected)}" if fit.unexpected else "")
        yield Problem(f'the weights lack "{name}", which the model has', where, hint)
    for name, (theirs, ours) in islice(fit.reshaped.items(), FEW):
        yield Problem(f'the weights have "{name}" in the shape {theirs}, and the model in {ours}', where)
    if first := next(chain.from_iterable(fit), None):
        fitting = len(wanted.keys() & result.keys()) - len(fit.reshaped)
        glob = f"{first.rpartition('.')[0]}.*".lstrip(".")
        hint = f'to leave some out: weights = {{ file = "…", exclude = ["{glob}"] }}; or strict = false'
        yield Problem(f"{fitting} of {len(wanted)} fit; {fit}", where, hint)


def _few(names: Iterable[str]) -> str:
    return first_few(names, FEW)
