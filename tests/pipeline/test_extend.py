"""A pipeline built on another one: what is merged, what is replaced, and where each key of the whole is said."""

from __future__ import annotations

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


ON_BASE = 'extends = "../shared/base.toml"\n'


def test_tables_are_merged_and_anything_else_is_replaced(built_on: Load) -> None:
    child = (
        '[run]\nname = "child"\ndefault_hooks = false\n[model.args]\nwidth = 8\n[hooks.log]\npoints = ["after_val"]\n'
    )
    pipeline = built_on(ON_BASE + child + '[hooks.new]\nuse = "log"\n').pipeline
    assert (pipeline.run.name, pipeline.run.max_epochs) == ("child", 2)
    assert pipeline.model.args == {"width": 8, "depth": 2}
    assert pipeline.hooks["log"].points == ["after_val"]
    assert list(pipeline.hooks) == ["clip", "ema", "log", "new"], "the base's hooks first, in its order"


def test_what_uses_another_thing_replaces_the_whole_table(built_on: Load) -> None:
    child = '[optimizer]\nuse = "torch.optim:Adam"\n[hooks.ema]\nuse = "log"\n[hooks.clip]\nuse = "grad_clip"\n'
    pipeline = built_on(ON_BASE + child, "run.default_hooks=false").pipeline
    assert pipeline.optimizer.args == {}
    assert pipeline.hooks["ema"].after == []
    assert pipeline.hooks["clip"].args == {"max_norm": 1.0}, "what uses the same is merged"
    assert list(pipeline.hooks) == ["clip", "ema", "log"]


def test_files_of_the_base_are_found_from_the_child(built_on: Load) -> None:
    pipeline = built_on(ON_BASE + '[model]\nuse = "./../shared/net.py:Net"\nargs.width = 1\n').pipeline
    assert pipeline.data.train.use == "../shared/../data.py:batches"
    assert pipeline.model.args == {"width": 1, "depth": 2}, "the same file by another way"
    assert built_on('extends = "beside.toml"', **{"own/beside.toml": BASE}).pipeline.model.use == "./net.py:Net"


def test_a_base_of_a_base(built_on: Load) -> None:
    middle = ON_BASE + "[run]\nseed = 3\n[model.args]\ndepth = 5\n"
    middle = middle.replace("../", "../../")
    loaded = built_on('extends = "far/middle.toml"', **{"own/far/middle.toml": middle})
    assert loaded.pipeline.run.seed == 3
    assert loaded.pipeline.model.use == "far/../../shared/net.py:Net"
    assert loaded.places.of("model.args.depth") == Where("own/far/middle.toml", 5, 1)
    assert loaded.places.of("model.args.width") == Where("shared/base.toml", 7, 10)


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


def test_the_length_of_the_child_takes_the_place_of_the_bases(built_on: Load) -> None:
    run = built_on(ON_BASE + "[run]\nmax_iters = 100\n").pipeline.run
    assert (run.max_epochs, run.max_iters) == (None, 100)
    with pytest.raises(UserError, match="the length is given twice"):
        built_on(ON_BASE + "[run]\nmax_iters = 100\nmax_epochs = 1\n")


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


def test_a_reference_without_a_value_is_told_in_the_base(built_on: Load) -> None:
    with pytest.raises(UserError) as caught:
        built_on('extends = "b.toml"\n', **{"own/b.toml": BASE.replace("width = 4", 'width = "${task.x}"')})
    (problem,) = caught.value.problems
    assert problem.where == Where("own/b.toml", 7, 10)


def test_what_is_resolved_is_written_without_extends(built_on: Load) -> None:
    written = dump(built_on(ON_BASE + '[run]\nname = "child"\n').pipeline)
    assert "extends" not in written
    assert parse(written, Path("own/child.toml")).pipeline == built_on(ON_BASE + '[run]\nname = "child"\n').pipeline


def test_extends_is_not_for_the_command_line(built_on: Load) -> None:
    with pytest.raises(UserError, match=r"--set extends=x\.toml: extends cannot be set from the command line"):
        built_on(ON_BASE, "extends=x.toml")


def test_a_base_that_is_no_text_is_told(built_on: Load) -> None:
    with pytest.raises(UserError, match=r'own/child.toml:1:1: the file "shared" cannot be read: Is a directory'):
        built_on('extends = "../shared"')


def test_a_link_on_the_way_is_followed(built_on: Load, tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "link").symlink_to(tmp_path / "far" / "away")
    loaded = built_on('extends = "link/../base.toml"', **{"far/base.toml": BASE})
    assert loaded.places.of("run.name").source == "own/link/../base.toml"
    assert loaded.pipeline.model.use == "link/../net.py:Net"


EVERY_FILE = """\
[model.one]
use = "./net.py:Net"
args = { use = "./left.py:alone" }
weights = { file = "./w.pt" }

[model.two]
use = "./net.py:Net"
weights = "w.pt"

[task]
use = "./net.py:step"

[writers.w]
use = "./w.py:W"

[hooks.watch]
use = "./hook.py:Watch"
modules = ["type:./net.py:Block", "layer*", "type:Conv2d"]
points = [{ at = "forward", modules = ["type:./net.py:Block"] }, "after_run"]
"""


def test_every_file_of_a_base_is_found_from_the_child(built_on: Load) -> None:
    base = BASE.replace('[model]\nuse = "./net.py:Net"\nargs = { width = 4, depth = 2 }\n', "") + EVERY_FILE
    recorded = dump(built_on(ON_BASE, **{"shared/base.toml": base}).public)
    named = re.findall(r'"[^"]*\.(?:py|pt)[^"]*"', recorded)
    outside = [name for name in named if not re.match(r'"(type:)?\.\./shared/', name)]
    assert (len(named), outside) == (11, ['"./left.py:alone"'])


def test_every_key_that_speaks_of_a_file_beside_the_pipeline_is_marked() -> None:
    sections = [kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Section)]
    marked = {
        (section.__name__, name): "BesidePipeline" in repr(get_type_hints(section, include_extras=True)[name])
        for section in sections
        for name, sentence in sentences(section).items()
        if ".py" in sentence or "pipeline's own folder" in sentence
    }
    assert marked
    assert all(marked.values()), marked
