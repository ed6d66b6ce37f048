"""The record of the code that an attempt runs.

It has the project's files that this process has imported, and git's answer.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from threading import Thread
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hookflow.events.git_state import GitError, ask_git, ask_git_for_text
from hookflow.events.process_life import read_start_time
from hookflow.events.recorded_code import (
    MAX_DIFF,
    CodeFile,
    CodeSnapshot,
    GitState,
    RecordedCode,
    compare_code,
    compute_checksum,
    content_to_keep,
    describe_file,
    find_latest_code,
    write_code,
)
from hookflow.events.rundir import RunDir
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.source_map import walk
from hookflow.pipeline.use import find_neighbour_modules, list_pipeline_objects, list_run_files
from hookflow.user_code import is_own_file

Say = Callable[..., None]

GIT_WAIT = 30.0
"""Seconds that an attempt waits at its end for git's answer."""

MAX_REPORTED = 10
"""Changed files that an attempt reports one by one."""

SCRIPTS_FOLDER = f"{sysconfig.get_path('scripts')}/"
"""Where the commands of installed packages lie, `hookflow` and `torchrun` among them."""


def project_root(base: Path) -> Path:
    """Return the folder of the project of a pipeline in `base`.

    It is its git repository, or `base` itself.
    """
    folder = Path(os.path.realpath(base))
    for above in (folder, *folder.parents):
        if (above / ".git").exists():
            return above
    return folder


class CodeRecorder:
    """Records the code of an attempt in its run directory, and names what has changed since a
    checkpoint.

    `base` is the folder that the pipeline's own files are relative to.
    """

    def __init__(self, run_dir: RunDir, loaded: Loaded, base: Path, say: Say) -> None:
        self._run_dir = run_dir
        self._loaded = loaded
        copy = run_dir.describe().get("project_copy")
        self._copy = None if copy is None else Path(os.path.realpath(copy))
        self._root = project_root(self._original(Path(os.path.realpath(base))))
        self._say = say
        self._files: dict[str, CodeFile] = {}
        self._contents: dict[str, bytes] = {}
        self._recorded: RecordedCode | None = None
        self._git_thread: Thread | None = None
        self._git: GitState | None = None
        self._diff = b""

    def report_changes(self, then: RecordedCode, since: str) -> None:
        """Report each recorded file that is another one now.

        It is to be called before the files are imported.
        """
        changes = compare_code(then, then.on_disk(self._root))
        for change in changes[:MAX_REPORTED]:
            self._say(change.since(since), "warn")
        if len(changes) > MAX_REPORTED:
            self._say(
                f"{len(changes) - MAX_REPORTED:,} more files of the code changed since {since}",
                "warn",
            )

    def record(self, it: int, then: RecordedCode | None = None, since: str = "") -> None:
        """Record the files that this process has imported for the attempt.

        The attempt begins after iteration `it`. The record of the attempt before stays where
        nothing differs. Modules that are new since `then` are reported. A file that cannot be read
        or written is reported; the run goes on.
        """
        imported = self._imported()
        self._look(imported, late=False)
        now = CodeSnapshot(self._root, self._files)
        if then is not None:
            new = [change for change in compare_code(then, now) if change.kind == "new"]
            for change in new[:MAX_REPORTED]:
                self._say(change.since(since), "warn")
        for path in edited_since_import(imported):
            text = (
                f"{path} was edited since this process imported it: the import runs, and the edited"
                " file is recorded"
            )
            self._say(text, "warn")
        before = find_latest_code(self._run_dir)
        if before is not None and before.it <= it and not compare_code(before, now):
            self._keep(before)
            return
        self._write(it)
        if self._recorded is not None and self._copy is None and (self._root / ".git").exists():
            self._git_thread = Thread(target=self._ask_git, name="hookflow-git", daemon=True)
            self._git_thread.start()

    def record_again(self, it: int) -> None:
        """Record that an attempt after iteration `it` runs what was imported for the latest one.

        This process has imported it.
        """
        before = find_latest_code(self._run_dir)
        if before is None:
            return
        self._keep(before)
        if before.it > it:
            self._write(it)

    def _keep(self, before: RecordedCode) -> None:
        """Go on with the record of the attempt before, which has run the same code."""
        self._recorded = before
        self._git, self._diff = before.git, before.read_git_diff() or b""
        for path in before.files.keys() - self._files.keys():  # those that it has imported late
            self._files[path] = before.files[path]
            self._contents[path] = before.content(path) or b""

    def finish(self) -> None:
        """Add git's answer, and what has been imported since the attempt began."""
        recorded = self._recorded
        if recorded is None:
            return
        if self._git_thread is not None:
            self._git_thread.join(GIT_WAIT)
        known = len(self._files)
        self._look(self._imported(), late=True)
        if len(self._files) > known or self._git != recorded.git:
            self._write(recorded.it, recorded.number)

    def _write(self, it: int, number: int | None = None) -> None:
        diff = self._diff
        try:
            self._recorded = write_code(
                self._run_dir,
                self._root,
                self._files,
                self._contents,
                it=it,
                git=self._git,
                diff=diff,
                number=number,
            )
        except OSError as error:
            self._say(f"the code of the run cannot be recorded: {error.strerror or error}", "warn")

    def _ask_git(self) -> None:
        answer = read_git_state(self._root)
        if answer is not None:
            self._git, self._diff = answer

    def _look(self, imported: Mapping[Path, str], *, late: bool) -> None:
        """Read the imported files that are not known yet."""
        for path, module in imported.items():
            name = self._name_of(path)
            if name in self._files:
                continue
            try:
                self._files[name], self._contents[name] = describe_file(path, module, late=late)
            except OSError as error:
                self._say(
                    f"the code in {name} cannot be recorded: {error.strerror or error}", "warn"
                )
        cells = notebook_cells()
        if cells and not late:
            content = content_to_keep(cells.encode())
            self._files[NOTEBOOK_FILE_NAME] = CodeFile(
                compute_checksum(content), len(content), "__main__"
            )
            self._contents[NOTEBOOK_FILE_NAME] = content

    def _imported(self) -> dict[Path, str]:
        return project_files(self._loaded, self._root)

    def _original(self, path: Path) -> Path:
        """Return where a file of a rerun's copy of the project is in the project.

        Any other path is returned as it is.
        """
        if self._copy is not None and path.is_relative_to(self._copy):
            return Path("/") / path.relative_to(self._copy)
        return path

    def _name_of(self, path: Path) -> str:
        path = self._original(path)
        if path.is_relative_to(self._root):
            return path.relative_to(self._root).as_posix()
        return str(path)


NOTEBOOK_FILE_NAME = "notebook_cells.py"
"""The name under which the cells of a notebook are recorded."""


def notebook_cells() -> str:
    """Return the cells of a notebook that have been run, in their order.

    There are none in any other program.
    """
    main = sys.modules.get("__main__")
    cells = getattr(main, "In", None)
    if getattr(main, "__file__", None) is not None or not isinstance(cells, list):
        return ""
    parts = []
    for number, cell in enumerate(cells):
        if isinstance(cell, str) and cell.strip():
            parts.append(f"# cell {number}\n{cell.rstrip()}\n")
    return "\n".join(parts)


def project_files(loaded: Loaded, root: Path) -> dict[Path, str]:
    """Return the user's files that this process has imported for a pipeline.

    The names of their modules are returned, too. The files are what the pipeline names and what
    such files import. In a process that does nothing but train it is every module below `root`,
    too; a program of the user's may have imported others for other pipelines. Links are followed.
    """
    modules = dict(sys.modules)
    main = modules.get("__main__")
    files = _files_of(_closure(_named_modules(loaded, modules), modules))
    if main is not None:
        files = _files_of([("__main__", main)]) | files
    if is_own_process(main):
        below = {
            path: name
            for path, name in _files_of(modules.items()).items()
            if path.is_relative_to(root)
        }
        files = below | files
    return files


def _files_of(modules: Iterable[tuple[str, ModuleType]]) -> dict[Path, str]:
    """Return the files of modules that are part of the user's project.

    The links in their paths are followed.
    """
    matches: dict[Path, str] = {}
    for name, module in modules:
        file = _file_of(module)
        if file is not None and is_project_file(file):
            matches.setdefault(_follow_links(file), name)
    return matches


@cache
def _follow_links(file: str) -> Path:
    """Return where the file of an imported module lies."""
    return Path(os.path.realpath(file))


def is_project_file(file: str) -> bool:
    """Say whether a file is part of the user's project.

    It is the user's own, and no command of an installed package.
    """
    return is_own_file(file) and not file.startswith(SCRIPTS_FOLDER)


def is_own_process(main: ModuleType | None) -> bool:
    """Say whether this process is one that trains and does nothing else."""
    spec = getattr(main, "__spec__", None)
    return spec is not None and str(spec.name).startswith("hookflow.runner")


def _named_modules(loaded: Loaded, modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Return the modules that a pipeline names, and those of its objects."""
    result = {module.__name__: module for module in list_run_files().values()}
    names = []
    for _, value in walk(loaded.pipeline.model_dump()):
        if isinstance(value, str):
            names.append(value.partition(":")[0])
    for thing in list_pipeline_objects():
        names.append(str(getattr(thing, "__module__", "")))
        names.append(str(getattr(getattr(thing, "func", None), "__module__", "")))  # of a partial
    for name in names:
        if name in modules:
            result[name] = modules[name]
    return result


def _closure(
    named: Mapping[str, ModuleType], modules: Mapping[str, ModuleType]
) -> Iterator[tuple[str, ModuleType]]:
    """Yield modules and what they import, directly or by others, as far as they are the user's."""
    waiting = dict(named)
    seen: set[int] = set()
    while waiting:
        name, module = waiting.popitem()
        file = _file_of(module)
        if id(module) in seen or file is None or not is_own_file(file):
            continue
        seen.add(id(module))
        yield name, module
        beside = find_neighbour_modules(_follow_links(file).parent)
        for other in {*_imports(file, module), *_origins(module)}:
            matches = beside.get(other) or modules.get(other)
            if matches is not None and id(matches) not in seen:
                waiting[other] = matches


def _origins(module: ModuleType) -> Iterator[str]:
    """Yield the names of the modules that the global names of a module come from."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(value, type | FunctionType):
            yield str(value.__module__)


def _imports(file: str, module: ModuleType) -> Iterator[str]:
    """Yield the names of the modules that the source of a module may import, at any place in it."""
    package = str(getattr(module, "__package__", "") or "")
    for level, name, members in _import_statements(file, _time_of(file)):
        target = name
        if level:
            if level > 1:
                above = package.rsplit(".", level - 1)[0]
            else:
                above = package
            target = ".".join(filter(None, (above, name)))
        parts = target.split(".")
        for depth in range(1, len(parts) + 1):
            yield ".".join(parts[:depth])
        for member in members:
            yield f"{target}.{member}"


def _time_of(file: str) -> int:
    with contextlib.suppress(OSError):
        return Path(file).stat().st_mtime_ns
    return 0


@lru_cache(maxsize=4096)
def _import_statements(file: str, changed: int) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return the import statements of a file.

    Each has the level, the module, and the names that are taken from it.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    result: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            members = tuple(alias.name for alias in node.names)
            result.append((node.level, node.module or "", members))
    return tuple(result)


def _file_of(module: Any) -> str | None:
    """Return the file of a module.

    A lazy module, whose attributes load it, has the file that is known without that.
    """
    known = getattr(module, "__dict__", {})
    file = known.get("__file__")
    if not isinstance(file, str):
        return None
    return os.path.abspath(file)  # noqa: PTH100  # a Path is slow, and there are thousands


def edited_since_import(files: Mapping[Path, str]) -> Iterator[str]:
    """Yield the files whose functions differ from those that this process runs.

    They were edited since they were imported. That may be where a notebook, or a program that
    trains several times, has imported a file before it was edited. `files` has the name of the
    module of each.
    """
    began = read_start_time(os.getpid())
    if began is None:
        return
    for path, module_name in files.items():
        module = sys.modules.get(module_name)
        try:
            if module is None or path.suffix != ".py" or path.stat().st_mtime <= began:
                continue
            compiled = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            continue
        now = {_shape_of(code) for code in _codes_in(compiled)}
        if any(_shape_of(code) not in now for code in _running_codes(module)):
            yield str(path)


def _running_codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of the functions, and of the classes' methods, that a module has defined."""
    file = _file_of(module)
    for value in list(vars(module).values()):
        members = [value]
        if isinstance(value, type) and value.__module__ == module.__name__:
            members = list(vars(value).values())
        for member in members:
            code = getattr(member, "__code__", None)
            if isinstance(code, CodeType) and os.path.abspath(code.co_filename) == file:  # noqa: PTH100
                yield code


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes_in(value)


def _shape_of(code: CodeType) -> tuple[Any, ...]:
    """Return what tells the code of two functions apart.

    The name of the file, and constants that hold it, are left out.
    """
    constants = tuple(repr(value) for value in code.co_consts if not isinstance(value, CodeType))
    return code.co_qualname, code.co_code, code.co_names, code.co_varnames, constants


def read_git_state(root: Path) -> tuple[GitState, bytes] | None:
    """Return the commit of a folder's repository with what differs from it, and the difference.

    It is None without one.
    """
    try:
        commit = ask_git_for_text(root, "rev-parse", "HEAD")
        branch = ask_git_for_text(root, "rev-parse", "--abbrev-ref", "HEAD")
        names = ask_git_for_text(root, "diff", "HEAD", "--name-only", "-z", "--no-ext-diff")
        diff = ask_git(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    except GitError:
        return None
    if commit is None or branch is None:
        return None
    changed = tuple(name for name in (names or "").split("\0") if name)
    left_out = ""
    kept = content_to_keep(diff or b"")
    if len(kept) > MAX_DIFF:
        left_out = f"it has more than {MAX_DIFF // 1024} kB"
        kept = b""
    return GitState(commit, branch, changed, left_out), kept
