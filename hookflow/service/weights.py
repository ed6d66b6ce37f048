"""The weights of `[model.weights] use = "RUN:CHECKPOINT/ENTRY"`.

They are found when a run is started, and recorded with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hookflow.errors import Problem, UserError, nearest_or_all
from hookflow.events.initial_weights import WeightsSource

if TYPE_CHECKING:
    from hookflow.events.rundir import RunDir
    from hookflow.pipeline.load import Loaded


def resolve_weights(loaded: Loaded) -> tuple[dict[str, WeightsSource], list[Problem]]:
    """Return the weights that a pipeline's models begin with, by name, and what is not found.

    Runs are looked for in `run.dir`. Weights of a file are left out.
    """
    from hookflow.pipeline.load import key_of

    sources = {}
    problems = []
    for name, model in loaded.pipeline.models.items():
        section = model.begins_with
        if section is None or section.use is None:
            continue
        where = loaded.places.of(f"{key_of('model', name)}.weights.use")
        try:
            sources[name] = find_weights(section.use, Path(loaded.pipeline.run.dir), name)
        except UserError as error:
            problems += [replace(problem, where=where) for problem in error.problems]
    return sources, problems


def find_weights(use: str, root: Path, model: str) -> WeightsSource:
    """Return the weights that a text like "simclr:best" or "ddpm:best/ema" means.

    They are for a model of that name. Without an entry they are those of the model itself. Raises
    UserError where there are none.
    """
    from hookflow.runner.checkpoint.manifest import read_manifest
    from hookflow.service.checkpoints import find_checkpoint

    run, colon, rest = use.rpartition(":")
    checkpoint, slash, entry_name = rest.partition("/")
    without_entry = use
    if colon:
        without_entry = f"{run}:{checkpoint}"
    run_dir, folder = find_checkpoint(without_entry, root)
    folder = folder.resolve()
    if colon and slash:
        entry = f"model_{entry_name}"
    elif model == "model":
        entry = "model"
    else:
        entry = f"model_{model}"
    manifest = read_manifest(folder)
    entries = [
        Path(file).stem
        for file in manifest["files"]
        if file.startswith("model") and file.endswith(".pt")
    ]
    is_sharded = ".metadata" in manifest["files"]
    if entry not in entries and len(entries) == 1 and not slash:
        entry = entries[0]  # a model that has a name here, and none there
    if entry not in entries and not is_sharded:
        known = [name.removeprefix("model_") for name in entries if name != "model"]
        wanted = entry.removeprefix("model_")
        message = f'the checkpoint {folder.name} of {run_dir.id} has no weights "{wanted}"'
        raise UserError(Problem(message, hint=nearest_or_all(wanted, known)))
    checksum = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    if entry in entries:
        checksum = manifest["files"][f"{entry}.pt"]["sha256"]
    name = run_dir.path.parent.name
    return WeightsSource(
        run_dir.id, name, folder.name, int(manifest["it"]), str(folder), entry, checksum
    )


def compare_weights(first: RunDir, other: RunDir) -> Iterator[str]:
    """Yield a line for each model that began with other weights in one of two runs."""
    from hookflow.events.initial_weights import read_recorded_weights

    first_sources = read_recorded_weights(first)
    other_sources = read_recorded_weights(other)
    for model in sorted(first_sources.keys() | other_sources.keys()):
        first_source = first_sources.get(model)
        other_source = other_sources.get(model)
        if _read_checksum(first_source) != _read_checksum(other_source):
            first_text = first_source or "no weights of a run"
            other_text = other_source or "no weights of a run"
            yield f"{model} begins with {first_text}, and with {other_text}"


def _read_checksum(source: WeightsSource | None) -> str:
    if source is None:
        return ""
    return source.sha256
