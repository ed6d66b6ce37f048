"""`hookflow rerun` writes nothing outside its own folder,
whatever the hooks of the run write elsewhere.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import Where
from hookflow.events.rundir import all_runs
from hookflow.hooks.registry import find_hook
from hookflow.hooks.spec import make_spec
from hookflow.pipeline.registry import HOOKS as HOOK_REGISTRY
from tests.cli.conftest import HEAD
from tests.conftest import hookflow_here, run_here
from tests.support.built_in_hooks import SAMPLES, inline

HOOKS = """
from pathlib import Path

from hookflow import Hook, HookCapabilities
from hookflow.hooks.builtin.checkpoint import Checkpoint, Export

class Copied(Checkpoint):
    pass

class Exported(Export):
    def __init__(self):
        super().__init__(out_dir="fixed")

class Elsewhere(Export):
    out_dir: str | None = "default"

    def __init__(self, out_dir="default"):
        super().__init__(out_dir=out_dir)

class Appends(Hook):
    capabilities = HookCapabilities(writes_outside=("file",))

    def __init__(self, every=1, file=None):
        self.file = file

    def after_train_iter(self, run):
        if self.file is not None:
            with open(self.file, "a") as file:
                file.write("x")

class Sends(Hook):
    capabilities = HookCapabilities(writes_outside=True)

    def after_train_iter(self, run):
        Path("sent.txt").write_text(str(run.iter))
        run.log("sent", run.iter)
"""

HOOKS_OF_THE_RUN = {
    "checkpoint": (
        'use = "checkpoint"\nargs = { out_dir = "kept", copy_to ='
        ' "{folder}/remote/{{run}}-{{name}}" }'
    ),
    "by_path": (
        'use = "hookflow.hooks.builtin.checkpoint:Checkpoint"\nargs = { copy_to ='
        ' "{folder}/other/{{name}}" }'
    ),
    "subclass": 'use = "./own.py:Copied"\nargs = { copy_to = "{folder}/third/{{name}}" }',
    "export": 'use = "export"\nargs = { out_dir = "exported" }',
    "fixed": 'use = "./own.py:Exported"',
    "default": 'use = "./own.py:Elsewhere"',
    "appends": 'use = "./own.py:Appends"\nargs = [1, "appended.txt"]',
    "sends": 'use = "./own.py:Sends"',
}

TOGETHER = sorted(
    SAMPLES.keys()
    # one of these excludes another, ends the run, or needs another network
    - {
        "checkpoint",
        "export",
        "images",
        "lr_finder",
        "mixup",
        "resize",
        "sam",
        "scheduler",
        "tta",
        "cutmix",
        "metrics",
    }
)
"""Built-in hooks that train together."""


@pytest.fixture
def folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("reruns")))
    Path("own.py").write_text(HOOKS)
    return here


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below a folder with its content, and the time of its last change."""
    result = {}
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            result[str(path)] = (path.read_bytes(), path.stat().st_mtime_ns)
    return result


def trained(hooks: str) -> str:
    Path("p.toml").write_text(f"{HEAD}{hooks}")
    run_here("p.toml", cwd=Path.cwd(), code=0)
    return all_runs(Path("runs"))[0].id


def rerun(run: str, *options: str) -> dict[str, Any]:
    done = hookflow_here(
        "rerun",
        run,
        "--at",
        "8",
        "--for",
        "4",
        "--format",
        "json",
        *options,
        cwd=Path.cwd(),
        code=0,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", HOOKS_OF_THE_RUN)
def test_what_a_hook_writes_elsewhere_stays_as_the_run_has_left_it(folder: Path, name: str) -> None:
    table = (
        HOOKS_OF_THE_RUN[name]
        .replace("{folder}", str(folder))
        .replace("{{", "{")
        .replace("}}", "}")
    )
    saves = (
        "" if "heckpoint" in table or name == "subclass" else '[hooks.saves]\nuse = "checkpoint"\n'
    )
    run = trained(f'[hooks.log]\nuse = "log"\nevery = 1\n[hooks.{name}]\n{table}\n{saves}')
    before = files(folder)
    outside = {
        path
        for path in before
        if Path(path).relative_to(folder).parts[0] not in ("runs", "p.toml", "own.py")
    }
    assert outside, "the run itself writes elsewhere"
    result = rerun(run)
    assert files(folder) == before
    assert result["unlike"] == []
    assert result["compared"] > 0
    left_out = [name] if name in ("fixed", "default", "sends") else []
    assert result["left_out"] == left_out
    assert result["silent"] == (["sent"] if name == "sends" else [])


def test_nobody_is_notified_of_a_rerun(folder: Path) -> None:
    command = json.dumps([sys.executable, "-c", "open('notified', 'a').write('x')"])
    run = trained(
        '[hooks.saves]\nuse = "checkpoint"\n[hooks.log]\nuse = "log"\n[notify]\ncommand ='
        f" {command}\n"
    )
    result = rerun(run)
    assert "notify" not in (Path(result["rerun"]) / "pipeline.toml").read_text()


@pytest.fixture
def opened() -> Iterator[Callable[[], set[Path]]]:
    """Note the files that this process opens to write, the folders that it makes,
    and the names that it changes.
    """
    noted: set[Path] = set()
    listening = [True]

    def listen(event: str, args: tuple[Any, ...]) -> None:
        if not listening[0]:
            return
        if event == "open":
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            # A `TemporaryFile` is opened by the name of a folder, and is in none.
            if (
                isinstance(args[0], str | bytes)
                and writes
                and not Path(os.fsdecode(args[0])).is_dir()
            ):
                note(args[0])
        elif event in ("os.mkdir", "os.remove"):
            if args[-1] == -1:  # else it is relative to a folder that is open
                note(args[0])
        elif event in ("os.rename", "os.link", "os.symlink"):
            note(args[1])

    def note(path: str | bytes) -> None:
        noted.add(Path(os.path.realpath(os.fsdecode(path))))

    sys.addaudithook(listen)
    yield lambda: noted
    listening[0] = False


def test_a_rerun_of_the_built_in_hooks_writes_into_its_folder_alone(
    folder: Path, opened: Callable[[], set[Path]]
) -> None:
    tables = [
        f'[hooks.{name}]\nuse = "{name}"\nargs = {inline(SAMPLES[name])}\n' for name in TOGETHER
    ]
    tables.append(
        '[hooks.checkpoint]\nuse = "checkpoint"\nargs = { out_dir = "kept", copy_to ='
        ' "remote/{name}" }\n'
    )
    tables.append('[hooks.export]\nuse = "export"\nargs = { out_dir = "exported" }\n')
    run = trained("".join(tables))
    before = files(folder)
    opened().clear()
    own = Path(rerun(run)["rerun"]).resolve()
    assert files(folder) == before
    system = ("/dev", "/proc")
    written = {
        path
        for path in opened()
        if "__pycache__" not in path.parts and not str(path).startswith(system)
    }
    assert any(path.is_relative_to(own) for path in written)
    assert [path for path in sorted(written) if not path.is_relative_to(own.parent.parent)] == []


PLACES = ("dir", "file", "folder", "path", "url", "copy_to")
IN_THE_RUN_DIRECTORY = {("predict", "file")}


@pytest.mark.parametrize("name", HOOK_REGISTRY.built_in)
def test_a_built_in_hook_declares_each_argument_that_names_a_place(name: str) -> None:
    hook = find_hook(name, Path(), None)
    annotations = getattr(hook, "__annotations__", {})
    named = {
        key for key in annotations if any(word in key.split("_") or key == word for word in PLACES)
    }
    outside = set(make_spec(name, hook, {}, Where("")).find_outside_arguments() or ())
    undeclared = {key for key in named if (name, key) not in IN_THE_RUN_DIRECTORY} - outside
    assert undeclared == set()
