"""`hookflow explain`: keys in the usual words, every point,
every hook that can be used here and how.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli

from hookflow.errors import UserError
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.inspect import Description
from hookflow.hooks.registry import find_hook
from hookflow.pipeline.json_schema import all_keys, find_key
from hookflow.pipeline.load import parse
from hookflow.pipeline.registry import HOOKS, list_installed
from tests.cli.conftest import SMALL, invoke, refused
from tests.conftest import TOY
from tests.support.golden_files import check_cases, check_golden


def explain(*arguments: str, columns: int = 80) -> str:
    return invoke("explain", *arguments, columns=columns)


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
'''


KEYS = (
    *(
        "run.accumulate",
        "run.precision",
        "run.name",
        "hooks.*.every",
        "hooks.ema.args.decay",
        "hooks.ema.args",
    ),
    *(
        "hooks.mine.args",
        "optimizer.args.lr",
        "model.weights",
        "model.generator.weights",
        "optimizer.groups.*.match",
    ),
    "data.train.loader.batch_size",
)
MISSPELT = (
    "run.precison",
    "hooks.emma.args.decay",
    "precision",
    "batch_size",
    "run.seed.x",
    "emaa",
    "around_vl",
)


def test_a_key_is_explained_and_of_a_misspelt_one_the_nearest_is_named() -> None:
    told = {key: [explain(key)] for key in KEYS}
    check_cases("explain.txt", told | {key: [refused("explain", key)] for key in MISSPELT})
    assert all(
        key in explain("run")
        for key in ("run.name  (required)", "run.seed", "int ≥ 0, < 9.22337e+18: Where")
    )
    assert all(section in explain("") for section in ("hooks", "distributed"))


def test_every_key_is_explained_and_its_example_is_toml() -> None:
    for key in all_keys():
        declared = find_key(key)
        assert declared.about, key
        assert declared.type != "any value", key
        tomli.loads(f"key = {declared.example or 0}")


def test_a_hook_its_arguments_and_those_of_a_pipeline_are_described(here: Path) -> None:
    (here / "mine.py").write_text(MODULE)
    (here / "p.toml").write_text(
        f'{SMALL}[hooks.own]\nuse = "./mine.py:Shout"\nargs = {{ text = "x" }}\nmodules = ["*"]\n'
    )
    assert "text  (required)  str" in explain("hooks.own.args.text", "p.toml")
    assert explain("hooks.own.args.text", "p.toml", "--no-import").splitlines() == [
        "./mine.py:Shout",
        "Not imported.",
    ]
    (here / "mine.py").write_text(MODULE)
    check_golden("explain-hook.txt", hooks("./mine.py:Shout"))
    shown = hooks("./mine.py:whisper")
    assert "a plain function: it fires where `points` says, e.g. after_train_iter\n" in shown
    assert '  suffix = "."  any value\n' in shown
    assert shown.endswith('use = "./mine.py:whisper"\n  points = ["after_train_iter"]\n')
    (here / "mine.py").write_text(MODULE)
    use = '[hooks.quiet]\nuse = "./mine.py:whisper"\npoints = ["after_train_iter"]\n'
    (here / "p.toml").write_text(SMALL + use)
    assert hooks("p.toml").rpartition("used by p.toml\n")[2].split()[:2] == [
        "quiet",
        "./mine.py:whisper()",
    ]
    assert hooks("quiet", "p.toml").startswith("./mine.py:whisper\nSays the batch.\n")


def test_points_are_listed_and_explained_with_the_hooks_of_a_pipeline() -> None:
    drawn = explain("points")
    assert max(map(len, drawn.splitlines())) <= 80
    check_golden("points.txt", drawn)
    assert explain("after_val").startswith(
        "after_val  validation is done: metrics over all its sets  [metrics]\n"
    )
    assert [line.split()[0] for line in explain("around_val").splitlines()] == [
        "before_val",
        "after_val",
    ]
    assert "▸ exit ema → early_stop → checkpoint" in explain("after_val", str(TOY))
    lines = explain("points", str(TOY), columns=140).splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("after_train_iter"))
    assert lines[at + 1].strip() == "▸ throughput → log (every 2)"


def test_a_pipelines_own_points_are_among_them(here: Path) -> None:
    own = (
        '\n[points.after_dense]\nfollows = "after_train_iter"\noffers = ["count"]\nabout = "points'
        ' were split"\n'
    )
    (here / "p.toml").write_text(TOY.read_text() + own)
    (here / "toy.py").write_text("")
    assert "      after_dense +  " in explain("points", "p.toml", columns=140)
    assert "points were split  [count]\n" in explain("points", "p.toml", columns=140)


Install = Callable[..., None]


@pytest.fixture
def install(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a tiny package that offers hooks, as pip would: a module,
    and its metadata beside it.
    """
    site = here / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    list_installed.cache_clear()

    def make(package: str, text: str = MODULE, **entry_points: str) -> None:
        module = package.replace("-", "_")
        (site / f"{module}.py").write_text(text)
        info = site / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        offers = "\n".join(f"{name} = {use}" for name, use in entry_points.items())
        (info / "entry_points.txt").write_text(f"[hookflow.hooks]\n{offers}\n")
        list_installed.cache_clear()

    yield make
    list_installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("tiny_")]:
        del sys.modules[name]


def hooks(*arguments: str) -> str:
    what = [] if arguments and not arguments[0].endswith(".toml") else ["hooks"]
    return explain(*what, *arguments, columns=100)


def test_built_in_hooks_are_listed_and_described() -> None:
    listed = hooks()
    assert all(f"\n  {name} " in listed for name in HOOKS.built_in)
    assert "Averages the weights" in listed
    shown = hooks("grad_clip")
    assert shown.startswith("grad_clip  (hookflow.hooks.builtin.gradients:GradClip)\n")
    assert shown.endswith('  [hooks.grad_clip]\n  use = "grad_clip"\n  args = { max_norm = 1.0 }\n')


@pytest.mark.parametrize("name", HOOKS.built_in)
def test_what_is_to_be_pasted_compiles(name: str, here: Path) -> None:
    table = Description(find_hook(name, here, None), DEFAULT_POINTS).as_toml(name, name)
    assert [
        hook.name for hook in compile_pipeline(parse(f"{SMALL}{table}", here / "p.toml")).hooks
    ] == [name]


def test_installed_packages_offer_hooks(install: Install) -> None:
    install("tiny-one", shout="tiny_one:Shout")
    find_hook("ema", Path(), None)
    find_hook("hookflow.hooks.builtin.averaging:EMA", Path(), None)
    assert list_installed.cache_info().misses == 0, "built-in names need no look at packages"
    from_packages = hooks().partition("from installed packages")[2]
    assert from_packages.split()[:3] == ["shout", "tiny-one", "1.2:"]
    assert hooks("shout").startswith("shout  (tiny_one:Shout)\n")
    plan = compile_pipeline(
        parse(
            f'{SMALL}[hooks.s]\nuse = "shout"\nargs = {{ text = "x" }}\n',
            Path("p.toml"),
            ["hooks.s.points=['after_train_epoch']"],
        )
    )
    assert plan.hook("s").about == "Says the epoch aloud."
    assert 'did you mean "shout"' in refused("explain", "shuot")


def test_names_that_clash_are_told(install: Install) -> None:
    install("tiny-one", shout="tiny_one:Shout", ema="tiny_one:Shout")
    install("tiny-two", shout="tiny_two:Shout")
    listed = " ".join(hooks().split())
    hidden = listed.partition("ema tiny-one 1.2: hidden")[2]
    assert 'use = "tiny_one:Shout"' in hidden
    several = listed.partition("shout tiny-two 1.2: several packages")[2]
    assert 'use = "tiny_two:Shout"' in several
    assert hooks("ema").startswith("ema  (hookflow.hooks.builtin.averaging:EMA)\n")
    with pytest.raises(UserError) as caught:
        find_hook("shout", Path(), None)
    (problem,) = caught.value.problems
    assert problem.message.startswith('"shout" is ambiguous: 2 hooks ')
    assert '"tiny_one:Shout" (tiny-one 1.2)' in problem.hint
    assert '"tiny_two:Shout" (tiny-two 1.2)' in problem.hint


def test_a_broken_package_keeps_nobody_from_the_others(install: Install) -> None:
    install(
        "tiny-bad",
        "import nowhere_to_be_found",
        bad="tiny_bad:Hook",
        worse="no module at all",
        gone="tiny_gone:X",
    )
    install("tiny-good", shout="tiny_good:Shout")
    listed = " ".join(hooks().split())
    assert 'bad tiny-bad 1.2: "tiny_bad" cannot be imported: ModuleNotFoundError' in listed
    assert 'there is no module "tiny_gone"' in listed
    assert 'there is nothing called "no module at all"' in listed
    assert "shout tiny-good 1.2: Says the epoch aloud." in listed
    assert '"tiny_bad" cannot be imported' in refused("explain", "bad")
