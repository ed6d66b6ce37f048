"""Checkpoints by the names that commands and pipelines give them.

These are RUN, RUN:CHECKPOINT, RUN:it300, or a folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hookflow.errors import Problem, UserError, Where, nearest_or_all
from hookflow.events.rundir import RunDir

ITERATION_PATTERN = re.compile(r"it(\d+)")


def find_checkpoint(
    named: str | None, root: Path, warn: Callable[[str], object] = lambda line: None
) -> tuple[RunDir, Path]:
    """Return a run and one of its checkpoints.

    It is the folder that is named, that of a RUN:NAME, or a run's newest good one.

    `warn` receives damaged ones that are skipped. The run of a copy that lies apart is a temporary
    directory, without checkpoints. Raises UserError when there is no such checkpoint, or it lacks
    files.
    """
    from hookflow.runner.checkpoint.manifest import find_damage
    from hookflow.service.restored import identity_of_copy, run_above
    from hookflow.service.runs import find_run, has_checkpoint

    if named and (Path(named) / "manifest.json").is_file():
        chosen = Path(named).resolve()
        run_dir = run_above(Path(named)) or identity_of_copy(chosen)
    else:
        run_name, colon, name = (named or "").partition(":")
        run_dir = find_run(run_name or None, root, having=has_checkpoint)
        if not colon:
            return run_dir, _find_newest_good_checkpoint(run_dir, warn)
        chosen = _checkpoint_named(run_dir, name)
    reason = find_damage(chosen, thorough=False)
    if reason:
        message = f"the checkpoint {chosen.name} of {run_dir.id} cannot be used: {reason}"
        raise UserError(Problem(message, Where("CHECKPOINT")))
    return run_dir, chosen


def _find_newest_good_checkpoint(run_dir: RunDir, warn: Callable[[str], object]) -> Path:
    """Return the newest checkpoint that is whole; a warning names each that is passed over."""
    from hookflow.runner.checkpoint.manifest import find_newest_good, list_checkpoints

    newest, passed_over = find_newest_good(list_checkpoints(run_dir.checkpoints))
    for line in passed_over:
        warn(line)
    if newest is None:
        raise UserError(Problem(f"the run {run_dir.id} has no checkpoint", Where("CHECKPOINT")))
    return newest


def _checkpoint_named(run_dir: RunDir, name: str) -> Path:
    from hookflow.runner.checkpoint.manifest import list_apart, list_checkpoints, read_links

    saved = [*list_checkpoints(run_dir.checkpoints), *list_apart(run_dir.checkpoints)]
    checkpoints = {path.name: path for path in saved}
    checkpoints.update(read_links(run_dir.checkpoints))
    found = checkpoints.get(name) or _find_by_iteration(name, checkpoints)
    if found is None:
        hint = nearest_or_all(name, checkpoints)
        raise UserError(
            Problem(f'the run {run_dir.id} has no checkpoint "{name}"', Where("CHECKPOINT"), hint)
        )
    return found


def _find_by_iteration(name: str, checkpoints: Mapping[str, Path]) -> Path | None:
    """Return the checkpoint of the iteration in a name like it300.

    The zeros in the checkpoint's own name do not count.
    """
    wanted = ITERATION_PATTERN.fullmatch(name)
    if wanted is None:
        return None
    for known, path in checkpoints.items():
        iteration = ITERATION_PATTERN.fullmatch(known)
        if iteration is not None and int(iteration[1]) == int(wanted[1]):
            return path
    return None
