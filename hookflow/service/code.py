"""The output of commands on the code of runs.

It is what differs, what a resume refuses, and the code that a rerun runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookflow.errors import Problem, UserError, Where
from hookflow.events.recorded_code import (
    DIFF_ENTRY,
    CodeChange,
    CodeFile,
    CodeSnapshot,
    RecordedCode,
    code_before,
    compare_code,
    describe_file,
    entry_name,
    find_latest_code,
)
from hookflow.events.rundir import RunDir, run_argument, short
from hookflow.service.code_comparison import CodeComparison
from hookflow.service.weights import compare_weights

if TYPE_CHECKING:
    from hookflow.service.pipelines import Target

NO_CODE = "its code was not recorded"


def code_changes(run: RunDir, checkpoint: Path, base: Path) -> list[CodeChange]:
    """Return what differs in a project from the code behind a checkpoint.

    The project's pipeline is in the folder `base`.
    """
    from hookflow.runner.checkpoint.manifest import read_manifest
    from hookflow.runner.process.code_recorder import project_root

    code = code_before(run, read_manifest(checkpoint)["it"])
    if code is None:
        return []
    return compare_code(code, code.on_disk(project_root(base)))


def check_code(run: RunDir, checkpoint: Path, now: Target) -> None:
    """Raise UserError for each file that has changed since a checkpoint of the run.

    It is raised, too, where no code is recorded.
    """
    from hookflow.pipeline.load import load

    # Loading the pipeline masks the values of the environment in the texts of the code, as the
    # record does.
    load(short(run.wanted().pipeline), recorded=True)
    if find_latest_code(run) is None:
        message = f"--strict compares the code with that of {checkpoint.name}, and {NO_CODE}"
        raise UserError(Problem(message, Where("--strict"), "leave --strict out"))
    changes = code_changes(run, checkpoint, now.base)
    if not changes:
        return
    problems = [_make_problem(change, checkpoint, now.base) for change in changes]
    known = run_argument(run)
    hint = (
        f"the recorded code: hookflow export {known} --code DIR\n    to go on with the code as it"
        " is: without --strict"
    )
    last = problems[-1]
    raise UserError([*problems[:-1], Problem(last.message, last.where, hint)])


def _make_problem(change: CodeChange, checkpoint: Path, base: Path) -> Problem:
    from hookflow.runner.process.code_recorder import project_root

    path = project_root(base) / change.path
    if change.kind == "changed" and change.line is not None:
        return Problem(
            f"the code changed since {checkpoint.name}", Where(str(short(path)), change.line)
        )
    return Problem(change.since(checkpoint.name))


def code_files(base: Path, uses: Sequence[str]) -> dict[str, CodeFile]:
    """Return the files that a pipeline in the folder `base` names, by the paths it gives them."""
    result = {}
    for use in uses:
        file, colon, _ = use.rpartition(".py:")
        if not colon:
            continue
        name = os.path.normpath(f"{file}.py")
        try:
            result[name], _ = describe_file(base / name)
        except OSError:
            continue
    return result


def compare_targets(old: Target, new: Target) -> CodeComparison:
    """Compare the code of two targets.

    A run has the code that it has recorded last, and a file the code on the disk.
    """
    from hookflow.runner.process.code_recorder import project_root

    weights: tuple[str, ...] = ()
    if old.run is not None and new.run is not None:
        weights = tuple(compare_weights(old.run, new.run))
    recorded = {
        target.name: find_latest_code(target.run) for target in (old, new) if target.run is not None
    }
    unknown = tuple(name for name, code in recorded.items() if code is None)
    if unknown:
        return CodeComparison(unknown=unknown, weights=weights)
    then = recorded.get(old.name)
    now = recorded.get(new.name)
    before: CodeSnapshot
    after: CodeSnapshot
    if then is not None and now is not None:
        before = then
        after = now
    elif then is not None:
        before = then
        after = then.on_disk(project_root(new.base))
    elif now is not None:
        before = now.on_disk(project_root(old.base))
        after = now
    else:
        before, after = (
            CodeSnapshot(each.base, code_files(each.base, _list_uses(each))) for each in (old, new)
        )
    return CodeComparison(tuple(compare_code(before, after)), weights=weights)


def _list_uses(target: Target) -> list[str]:
    from hookflow.pipeline.source_map import walk

    return [value for _, value in walk(target.loaded.public.model_dump()) if isinstance(value, str)]


def export_code(run: RunDir, code: RecordedCode, folder: Path) -> tuple[list[str], list[str]]:
    """Write the recorded files into a folder.

    Returns those that were written, and those whose text is not there.

    The pipeline as it was resolved is written where the run's own pipeline lay, so that it names
    the files. Files outside the project come below `elsewhere`. Raises UserError where the folder
    is not empty, and OSError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            Problem("it is not an empty folder", Where(f"--code {folder}"), "name another folder")
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    missing = []
    for path in code.files:
        content = code.content(path)
        if content is None:
            missing.append(path)
            continue
        target = folder / entry_name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        written.append(path)
    diff = code.read_git_diff()
    if diff:
        (folder / DIFF_ENTRY).write_bytes(diff)
    base = run.base()
    place = folder
    if base.is_relative_to(code.root):
        place = folder / base.relative_to(code.root)
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run.pipeline, place / "pipeline.toml")
    return written, missing


def code_as_data(run: RunDir) -> dict[str, Any] | None:
    """Return the facts of the code that a run's latest attempt has run.

    It is None where they were not recorded.
    """
    code = find_latest_code(run)
    if code is None:
        return None
    files = {path: asdict(file) for path, file in code.files.items()}
    if code.git is None:
        git = None
    else:
        git = asdict(code.git)
    return {"root": str(code.root), "since_iteration": code.it, "git": git, "files": files}
