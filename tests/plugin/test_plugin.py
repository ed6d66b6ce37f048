"""A package that offers one thing of each kind, installed by pip as a user's would be."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.pipeline.registry import MODEL_REGISTRY, TASK_REGISTRY, Registry, list_installed
from hookflow.runner.process.launch import prepare
from tests.conftest import records

PACKAGE = Path(__file__).parent
PIPELINE = """\
[run]
name = "spiral"
max_epochs = 2
device = "cpu"
threads = 1

[model]
use = "spiral_net"
args = { width = 8 }

[optimizer]
use = "torch.optim:Adam"

[task]
use = "which_spiral"

[data.train]
use = "spirals"
loader = { batch_size = 32 }

[hooks.count]
use = "count_points"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the package; pip builds it from a copy,
    and fetches nothing.
    """
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(
        PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "test_*")
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    pip += [
        "--disable-pip-version-check",
        "--no-compile",
        "--target",
        str(folder / "site"),
        str(folder / "source"),
    ]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def plugin(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let this process see the installed package,
    and return a pipeline that uses all of it by short names.
    """
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    list_installed.cache_clear()
    (tmp_path / "spiral.toml").write_text(PIPELINE)
    yield tmp_path / "spiral.toml"
    list_installed.cache_clear()
    sys.modules.pop("hookflow_spiral", None)


def hookflow(*arguments: str) -> str:
    """Return what a command says, in one line."""
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


def test_a_run_takes_each_kind_by_its_short_name(
    plugin: Path, train_here: Callable[..., int], tmp_path: Path
) -> None:
    loaded = parse(plugin.read_text(), plugin)
    run_dir = RunDir.create(tmp_path / "runs", "spiral")
    prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
    assert train_here(run_dir) == 0, records(run_dir, "error")
    (run,) = records(run_dir, "run")
    assert run["model"] == "SpiralNet"
    assert run["data"]["train"]["examples"] == 128  # type: ignore[index]
    registry = Registry(
        "task", TASK_REGISTRY.group, {"which_spiral": "hookflow.zoo.tasks:Regression"}
    )
    assert registry.find("which_spiral", Path(), None).__name__ == "Regression", (
        "what is built in takes precedence"
    )
    assert registry.clash(*registry.offered()).startswith("hidden by the built-in task")


def test_check_accepts_it_and_tells_the_nearest_of_a_wrong_name(plugin: Path) -> None:
    hookflow("check", "--strict", "spiral.toml")
    rights = {"model": "spiral_net", "task": "which_spiral", "data.train": "spirals"}
    for section, right in rights.items():
        with pytest.raises(UserError) as caught:
            hookflow("check", "spiral.toml", "--set", f"{section}.use={right}x")
        (problem,) = caught.value.problems
        assert problem.message == f'there is nothing called "{right}x"'
        assert problem.hint == f'did you mean "{right}"?'


def test_it_is_listed_with_its_package(plugin: Path) -> None:
    told = hookflow("explain", "hooks")
    package = "from installed packages"
    assert f"{package} count_points hookflow-spiral 0.3.1: Counts the points" in told
    for kind, name, what in (
        ("models", "spiral_net", "SpiralNet"),
        ("data sources", "spirals", "Spirals"),
        ("tasks", "which_spiral", "WhichSpiral"),
    ):
        assert f"{kind} {package} {name} hookflow-spiral 0.3.1: hookflow_spiral:{what}" in told
    assert "of = 0 int ≥ 0, ≤ 1: the spiral whose points count" in hookflow(
        "explain", "count_points"
    )


def test_a_name_that_two_packages_offer_is_refused_by_both_of_them(
    plugin: Path, site: Path
) -> None:
    second = site / "other-2.0.dist-info"
    second.mkdir()
    try:
        (second / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
        (second / "entry_points.txt").write_text("[hookflow.models]\nspiral_net = other:Net\n")
        list_installed.cache_clear()
        with pytest.raises(UserError) as caught:
            hookflow("check", "spiral.toml")
        message, *_, hint = str(caught.value).splitlines()
        assert message.startswith('spiral.toml:8:1: "spiral_net" is ambiguous')
        assert '"hookflow_spiral:SpiralNet" (hookflow-spiral 0.3.1)' in hint
        assert '"other:Net" (other 2.0)' in hint
        with pytest.raises(UserError, match='"spiral_net" is ambiguous'):
            MODEL_REGISTRY.find("spiral_net", Path(), None)
        assert "several packages offer that name" in hookflow("explain", "hooks")
    finally:
        shutil.rmtree(second)
