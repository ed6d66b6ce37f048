"""A pipeline built on another one: what is merged, what is replaced, and where each key of the whole is said."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

from hookflow.errors import UserError, Where
from hookflow.pipeline import schema
from hookflow.pipeline.json_schema import sentences
from hookflow.pipeline.load import Loaded, dump, load, parse

BASE = """\
[run]
name = "base"
max_epochs = 2

[model]
use = "./net.py:Net"
args = { width = 4, depth = 2 }

[optimizer]
use = "torch.optim:SGD"
args = { lr = 0.1, momentum = 0.9 }

[data.train]
use = "../data.py:batches"

[hooks.clip]
use = "grad_clip"
args = { max_norm = 1.0 }

[hooks.ema]
use = "ema"
after = ["clip"]

[hooks.log]
use = "log"
points = ["after_train_iter", "after_val"]
"""

Load = Callable[..., Loaded]


@pytest.fixture
def built_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a child of BASE, which lies in a folder beside it; other files may be given by name."""
    monkeypatch.chdir(tmp_path)

    def make(child: str, *overrides: str, **files: str) -> Loaded:
        for name, text in {"shared/base.toml": BASE, "own/child.toml": child, **files}.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        return load(Path("own/child.toml"), overrides)

    return make


BARE = {"shared/base.toml": BASE.replace("epochs = 2", "epochs = 2\nval_every = 2")}
ON_BASE = 'extends = "../shared/base.toml"\n'


def test_tables_are_merged_and_anything_else_is_replaced(built_on: Load) -> None:
    child = '[run]\nname = "child"\ndefault_hooks = false\n[hooks.log]\npoints = ["after_val"]\n'
    child += '[model]\nuse = "./../shared/net.py:Net"\nargs.width = 8\n[optimizer]\nuse = "torch.optim:Adam"\n'
    child += '[hooks.new]\nuse = "log"\n[hooks.ema]\nuse = "log"\n[hooks.clip]\nuse = "grad_clip"\n'
    loaded = built_on(ON_BASE + child)
    pipeline = loaded.pipeline
    assert (pipeline.run.name, pipeline.run.max_epochs) == ("child", 2)
    assert pipeline.model.args == {"width": 8, "depth": 2}, "the same file by another way"
    assert pipeline.hooks["log"].points == ["after_val"]
    assert list(pipeline.hooks) == ["clip", "ema", "log", "new"], "the base's hooks first, in its order"
    assert (pipeline.optimizer.args, pipeline.hooks["ema"].after) == ({}, []), "what uses another thing is replaced"
    assert pipeline.hooks["clip"].args == {"max_norm": 1.0}, "what uses the same is merged"
    written = dump(loaded.public)
    assert "extends" not in written
    assert parse(written, Path("own/child.toml"), recorded=True).pipeline == pipeline


def test_a_base_of_a_base_and_a_link_on_the_way(built_on: Load, tmp_path: Path) -> None:
    middle = 'extends = "../../shared/base.toml"\n[run]\nseed = 3\n[model.args]\ndepth = 5\n'
    loaded = built_on('extends = "far/middle.toml"', **{"own/far/middle.toml": middle})
    assert loaded.pipeline.run.seed == 3
    run = built_on(ON_BASE + "[run]\nmax_iters = 100\n").pipeline.run
    assert (run.max_epochs, run.max_iters) == (None, 100), "the length of the child takes the place of the base's"
    assert built_on(ON_BASE + "[run]\nmax_iters = 100\n", **BARE).pipeline.run.val_every == "2ep"
    assert built_on(ON_BASE + "[run]\nmax_iters = 9\nval_every = 3\n", **BARE).pipeline.run.val_every == 3
    assert loaded.pipeline.model.use == "far/../../shared/net.py:Net"
    assert loaded.places.of("model.args.depth") == Where("own/far/middle.toml", 5, 1)
    assert loaded.places.of("model.args.width") == Where("shared/base.toml", 7, 10)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "shared")
    linked = built_on('extends = "link/../base.toml"', **{"base.toml": BASE})
    assert linked.places.of("run.name").source == "own/link/../base.toml"
    assert linked.pipeline.model.use == "link/../net.py:Net"


def test_every_key_keeps_where_it_came_from(built_on: Load) -> None:
    loaded = built_on(
        ON_BASE + "[run]\nseed = 1\n[hooks.ema]\nargs.decay = 0.5\nafter = []\n[hooks.new]\nuse = 'log'\n",
        "hooks.ema.args.every=3",
    )
    base, child = "shared/base.toml", "own/child.toml"
    said = {
        "run.name": Where(base, 2, 1),
        "run.seed": Where(child, 3, 1),
        "run": Where(base, 1, 2),
        "hooks.ema": Where(base, 20, 8),
        "hooks.ema.after": Where(child, 6, 1),
        "hooks.ema.after.0": Where(child, 6, 1),
        "hooks.ema.args.decay": Where(child, 5, 6),
        "hooks.ema.args.every": Where("--set hooks.ema.args.every=3"),
        "hooks.new.use": Where(child, 8, 1),
        "data.val": Where(base, 13, 2),
        "task": Where(child),
    }
    assert {key: loaded.places.of(key) for key in said} == said


@pytest.mark.parametrize(
    ("child", "override", "wrong"),
    [
        (ON_BASE, "extends=x.toml", r"--set extends=x\.toml: extends cannot be set from the command line"),
        ('extends = "../shared"', "run.seed=1", r'own/child.toml:1:1: the file "shared" cannot be read: Is a dir'),
        ('extends = "b.toml"', "run.seed=1", r'own/b.toml:7:10: \$\{task.x\}: the pipeline sets no key "task.x"'),
    ],
)
def test_what_cannot_be_built_on_is_refused_at_its_place(built_on: Load, child: str, override: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        built_on(child, override, **{"own/b.toml": BASE.replace("width = 4", 'width = "${task.x}"')})


def test_a_base_may_refer_to_what_only_the_child_says(built_on: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKFLOW_EVERY", "7")
    base = BASE.replace("args = { width = 4, depth = 2 }", 'args = { width = "${task.args.width}" }')
    base += 'every = "${env:HOOKFLOW_EVERY}"\n[points.after_grow]\nfollows = "${run.dir}"\nabout = "${run.name} grew"\n'
    child = 'extends = "b.toml"\n[run]\nname = "child"\ndir = "after_val"\n[task]\nuse = "t:T"\nargs = { width = 3 }\n'
    pipeline = built_on(child, **{"own/b.toml": base}).pipeline
    assert pipeline.model.args == {"width": 3}
    assert pipeline.hooks["log"].every == 7
    assert pipeline.points["after_grow"].follows == "after_val"
    assert pipeline.points["after_grow"].about == "child grew"


EVERY_FILE = """\
[model.one]
use = "./net.py:Net"
args = { use = "./left.py:alone" }
weights = { file = "./w.pt" }

[model.two]
use = "./net.py:Net"
weights = "w.pt"

[model.at_home]
use = "./net.py:Net"
weights = "~/w.pt"

[model.absolute]
use = "./net.py:Net"
weights = "/w.pt"

[task]
use = "./net.py:step"

[writers.w]
use = "./w.py:W"

[hooks.watch]
use = "./hook.py:Watch"
modules = ["layer*", "type:Conv2d"]
"""


def test_every_file_of_a_base_is_found_from_the_child(built_on: Load) -> None:
    base = BASE.replace('[model]\nuse = "./net.py:Net"\nargs = { width = 4, depth = 2 }\n', "") + EVERY_FILE
    recorded = dump(built_on(ON_BASE, **{"shared/base.toml": base}).public)
    named = re.findall(r'"[^"]*\.(?:py|pt)[^"]*"', recorded)
    outside = [name for name in named if not name.startswith('"../shared/')]
    assert (len(named), outside) == (13, ['"./left.py:alone"', '"~/w.pt"', '"/w.pt"'])


def test_every_key_that_speaks_of_a_file_beside_the_pipeline_is_marked() -> None:
    sections = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Section)]
    for section in sections:
        hints = get_type_hints(section, include_extras=True)
        for name, sentence in sentences(section).items():
            if ".py" in sentence or "pipeline's own folder" in sentence:
                assert "BesidePipeline" in repr(hints[name]), (section, name)
