"""`hookflow hooks`: what can be used here, from wherever it comes, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.graph.points import POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.describe import describe
from hookflow.hooks.registry import BUILT_IN, find_hook
from hookflow.pipeline.load import parse
from hookflow.pipeline.registry import installed

MODULE = '''\
"""Hooks of a package."""

class Shout:
    """Says the epoch aloud."""

    phase = "late"
    after = ("log?",)
    writes = {"after_train_epoch": ("metrics",)}

    def __init__(self, text: str, times: int = 2) -> None:
        pass

    def after_train_epoch(self, run): ...

    def forward(self, module, output): ...


def whisper(run, batch_idx, suffix="."):
    """Says the batch."""


def helper(model, other): ...


def _private(run): ...
'''

PIPELINE = """\
[run]
name = "p"
default_hooks = false
max_iters = 10
[model]
use = "torch.nn:Flatten"
[optimizer]
use = "torch.optim:SGD"
[data.train]
use = "cifar10"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a tiny package that offers hooks, as pip would: a module, and its metadata beside it."""
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    installed.cache_clear()

    def make(package: str, text: str = MODULE, **entry_points: str) -> None:
        module = package.replace("-", "_")
        (site / f"{module}.py").write_text(text)
        info = site / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        offers = "\n".join(f"{name} = {use}" for name, use in entry_points.items())
        (info / "entry_points.txt").write_text(f"[hookflow.hooks]\n{offers}\n")
        installed.cache_clear()

    yield make
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("tiny_")]:
        del sys.modules[name]


def hooks(*arguments: str) -> str:
    what = [] if arguments and not arguments[0].endswith(".toml") else ["hooks"]
    result = CliRunner().invoke(app, ["explain", *what, *arguments], env={"COLUMNS": "100"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_every_built_in_hook_is_listed_with_its_sentence() -> None:
    listed = hooks()
    assert all(f"\n  {name} " in listed for name in BUILT_IN)
    assert "Averages the weights" in listed


def test_one_hook_is_told_all_about() -> None:
    told = hooks("grad_clip")
    assert told.startswith("grad_clip  (hookflow.hooks.builtin.gradients:GradClip)\n")
    slots = "reads          writes\n  before_optimizer_step(run)  grads.{model}  grads.{model}\n"
    assert f"methods                       {slots}" in told
    assert "  max_norm  (required)  float > 0: the largest" in told
    assert told.endswith('  [hooks.grad_clip]\n  use = "grad_clip"\n  args = { max_norm = 1.0 }\n')


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_to_be_pasted_compiles(name: str, tmp_path: Path) -> None:
    table = describe(find_hook(name, tmp_path, None), POINTS).as_toml(name, name)
    assert [hook.name for hook in compile_pipeline(parse(f"{PIPELINE}{table}", tmp_path / "p.toml")).hooks] == [name]


def test_a_hook_is_described_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    assert hooks("./mine.py:Shout") == (
        "./mine.py:Shout\n"
        "Says the epoch aloud.\n"
        "\n"
        "methods                    writes\n"
        "  forward(module, output)\n"
        "  after_train_epoch(run)   metrics\n"
        "\n"
        "phase     late\n"
        "after     log?\n"
        "\n"
        "arguments\n"
        "  text  (required)  str\n"
        "  times = 2         int\n"
        "\n"
        "in a pipeline\n"
        "  [hooks.shout]\n"
        '  use = "./mine.py:Shout"\n'
        '  modules = ["*"]\n'
        '  args = { text = "…" }\n'
    )
    told = hooks("./mine.py:whisper")
    assert "a plain function: it fires where `points` says, e.g. after_train_iter\n" in told
    assert '  suffix = "."  any value\n' in told
    assert told.endswith('use = "./mine.py:whisper"\n  points = ["after_train_iter"]\n')


def test_a_pipelines_files_offer_hooks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    use = '[hooks.quiet]\nuse = "./mine.py:whisper"\npoints = ["after_train_iter"]\n'
    (tmp_path / "p.toml").write_text(PIPELINE + use)
    listed = hooks("p.toml")
    mine = listed[listed.index("in ./mine.py\n") :]
    assert [line.split()[0] for line in mine.splitlines()[1:3]] == ["./mine.py:Shout", "./mine.py:whisper"]
    assert "helper" not in listed
    assert "_private" not in listed
    assert hooks("quiet", "p.toml").startswith("./mine.py:whisper\nSays the batch.\n")


def test_installed_packages_offer_hooks(install: Install) -> None:
    install("tiny-one", shout="tiny_one:Shout")
    assert "from installed packages shout tiny-one 1.2: Says the epoch aloud." in " ".join(hooks().split())
    assert hooks("shout").startswith("shout  (tiny_one:Shout)\n")
    plan = compile_pipeline(parse(f'{PIPELINE}[hooks.s]\nuse = "shout"\nargs = {{ text = "x" }}\n', Path("p.toml"),
                                  ["hooks.s.points=['after_train_epoch']"]))  # fmt: skip
    assert plan.hook("s").about == "Says the epoch aloud."
    with pytest.raises(UserError, match='did you mean "shout"'):
        hooks("shuot")


def test_names_that_clash_are_told(install: Install) -> None:
    install("tiny-one", shout="tiny_one:Shout", ema="tiny_one:Shout")
    install("tiny-two", shout="tiny_two:Shout")
    listed = " ".join(hooks().split())
    assert 'ema tiny-one 1.2: hidden by the built-in hook of that name; write use = "tiny_one:Shout"' in listed
    assert 'shout tiny-two 1.2: several packages offer that name; write use = "tiny_two:Shout"' in listed
    assert hooks("ema").startswith("ema  (hookflow.hooks.builtin.averaging:EMA)\n")
    with pytest.raises(UserError) as caught:
        find_hook("shout", Path(), None)
    assert str(caught.value) == (
        '"shout" is ambiguous: 2 hooks of installed packages match\n'
        '    write "tiny_one:Shout" (tiny-one 1.2) or "tiny_two:Shout" (tiny-two 1.2)'
    )


def test_a_broken_package_keeps_nobody_from_the_others(install: Install) -> None:
    install("tiny-bad", "import nowhere_to_be_found", bad="tiny_bad:Hook", worse="no module at all", gone="tiny_gone:X")
    install("tiny-good", shout="tiny_good:Shout")
    listed = " ".join(hooks().split())
    assert 'bad tiny-bad 1.2: "tiny_bad" cannot be imported: ModuleNotFoundError: No module named \'nowhere' in listed
    assert 'gone tiny-bad 1.2: there is no module "tiny_gone"' in listed
    assert 'worse tiny-bad 1.2: there is nothing called "no module at all"' in listed
    assert "shout tiny-good 1.2: Says the epoch aloud." in listed
    with pytest.raises(UserError, match='"tiny_bad" cannot be imported'):
        hooks("bad")


def test_built_in_names_need_no_look_at_installed_packages(install: Install) -> None:
    install("tiny-one", shout="tiny_one:Shout")
    find_hook("ema", Path(), None)
    find_hook("hookflow.hooks.builtin.averaging:EMA", Path(), None)
    assert installed.cache_info().misses == 0


def test_what_can_be_no_hook_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class Nothing: ...\n")
    with pytest.raises(UserError, match="has no method named like a point"):
        hooks("./mine.py:Nothing")
    with pytest.raises(UserError, match='did you mean "ema"'):
        hooks("emma")
