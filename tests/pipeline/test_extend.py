"""What `extends` and `use` name: what is merged and where each key is from; what is found,
and what was meant.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.json_schema import all_keys, find_key
from hookflow.pipeline.layers import file_form
from hookflow.pipeline.load import Loaded, dump, load, parse
from hookflow.pipeline.use import import_file, list_run_files, module_file, resolve_use
from tests.support.golden_files import check_cases

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
    child += (
        '[model]\nuse = "./../shared/net.py:Net"\nargs.width = 8\n[optimizer]\nuse ='
        ' "torch.optim:Adam"\n'
    )
    child += '[hooks.new]\nuse = "log"\n[hooks.ema]\nuse = "log"\n[hooks.clip]\nuse = "grad_clip"\n'
    loaded = built_on(ON_BASE + child)
    pipeline = loaded.pipeline
    assert (pipeline.run.name, pipeline.run.max_epochs) == ("child", 2)
    assert pipeline.model.args == {"width": 8, "depth": 2}, "the same file by another way"
    assert pipeline.hooks["log"].points == ["after_val"]
    assert list(pipeline.hooks) == [
        "clip",
        "ema",
        "log",
        "new",
    ], "the base's hooks first, in its order"
    assert (pipeline.optimizer.args, pipeline.hooks["ema"].after) == (
        {},
        [],
    ), "what uses another thing is replaced"
    assert pipeline.hooks["clip"].args == {"max_norm": 1.0}, "what uses the same is merged"
    written = dump(loaded.public)
    assert "extends" not in written
    assert parse(written, Path("own/child.toml"), recorded=True).pipeline == pipeline


def test_a_base_of_a_base_and_a_link_on_the_way(built_on: Load, tmp_path: Path) -> None:
    middle = 'extends = "../../shared/base.toml"\n[run]\nseed = 3\n[model.args]\ndepth = 5\n'
    loaded = built_on('extends = "far/middle.toml"', **{"own/far/middle.toml": middle})
    assert loaded.pipeline.run.seed == 3
    run = built_on(ON_BASE + "[run]\nmax_iters = 100\n").pipeline.run
    assert (run.max_epochs, run.max_iters) == (
        None,
        100,
    ), "the length of the child takes the place of the base's"
    assert built_on(ON_BASE + "[run]\nmax_iters = 100\n", **BARE).pipeline.run.val_every == "2ep"
    assert (
        built_on(ON_BASE + "[run]\nmax_iters = 9\nval_every = 3\n", **BARE).pipeline.run.val_every
        == 3
    )
    assert loaded.pipeline.model.use == "far/../../shared/net.py:Net"
    assert loaded.places.of("model.args.depth") == Where("own/far/middle.toml", 5, 1)
    assert loaded.places.of("model.args.width") == Where("shared/base.toml", 7, 10)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "shared")
    linked = built_on('extends = "link/../base.toml"', **{"base.toml": BASE})
    assert linked.places.of("run.name").source == "own/link/../base.toml"
    assert linked.pipeline.model.use == "link/../net.py:Net"


def test_every_key_keeps_where_it_came_from(built_on: Load) -> None:
    loaded = built_on(
        ON_BASE
        + "[run]\nseed = 1\n[hooks.ema]\nargs.decay = 0.5\nafter = []\n[hooks.new]\nuse = 'log'\n",
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
        (
            ON_BASE,
            "extends=x.toml",
            r"--set extends=x\.toml: extends cannot be set from the command line",
        ),
        (
            'extends = "../shared"',
            "run.seed=1",
            r'own/child.toml:1:1: the file "shared" cannot be read: Is a dir',
        ),
        (
            'extends = "b.toml"',
            "run.seed=1",
            r'own/b.toml:7:10: \$\{task.x\}: the pipeline sets no key "task.x"',
        ),
    ],
)
def test_what_cannot_be_built_on_is_refused_at_its_place(
    built_on: Load, child: str, override: str, wrong: str
) -> None:
    with pytest.raises(UserError, match=wrong):
        built_on(
            child, override, **{"own/b.toml": BASE.replace("width = 4", 'width = "${task.x}"')}
        )


def test_a_base_may_refer_to_what_only_the_child_says(
    built_on: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKFLOW_EVERY", "7")
    base = BASE.replace(
        "args = { width = 4, depth = 2 }", 'args = { width = "${task.args.width}" }'
    )
    base += (
        'every = "${env:HOOKFLOW_EVERY}"\n[points.after_grow]\nfollows = "${run.dir}"\nabout ='
        ' "${run.name} grew"\n'
    )
    child = (
        'extends = "b.toml"\n[run]\nname = "child"\ndir = "after_val"\n[task]\nuse = "t:T"\nargs ='
        " { width = 3 }\n"
    )
    pipeline = built_on(child, **{"own/b.toml": base}).pipeline
    assert pipeline.model.args == {"width": 3}
    assert str(pipeline.hooks["log"].every) == "7"
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
    base = (
        BASE.replace('[model]\nuse = "./net.py:Net"\nargs = { width = 4, depth = 2 }\n', "")
        + EVERY_FILE
    )
    recorded = dump(built_on(ON_BASE, **{"shared/base.toml": base}).public)
    named = re.findall(r'"[^"]*\.(?:py|pt)[^"]*"', recorded)
    outside = [name for name in named if not name.startswith('"../shared/')]
    assert (len(named), outside) == (13, ['"./left.py:alone"', '"~/w.pt"', '"/w.pt"'])


def test_every_key_that_speaks_of_a_file_beside_the_pipeline_has_its_form() -> None:
    keys = [
        key
        for key in all_keys()
        if re.search(r"\.py|\.pt|pipeline's own folder", repr(find_key(key)))
    ]
    assert len(keys) > 20
    for key in keys:
        file = "w.pt" if "weights" in key else "./a.py:A"
        assert re.match(file_form(tuple(key.split("."))), file), key
    assert not any(
        re.match(file_form(key), "") for key in (("run", "name"), ("model", "args", "use"))
    )


HERE = Where("p.toml", 3)
SHORT = {"path": "pathlib:Path", "parts": "pathlib:PurePath.parts"}


def failure(use: str, base: Path = Path()) -> str:
    with pytest.raises(UserError) as caught:
        resolve_use(use, base, HERE, SHORT)
    (problem,) = caught.value.problems
    assert problem.where == HERE
    return str(problem)


def test_a_name_of_each_form_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass  # which looks its module up\nclass A:\n    class B:\n        pass\n"
    )
    (tmp_path / "sub").mkdir()
    assert resolve_use("path", tmp_path, None, SHORT) is Path
    assert resolve_use("pathlib:Path", tmp_path, None) is Path
    assert resolve_use("builtins:print", tmp_path, None) is print
    assert resolve_use("./mine.py:A.B", tmp_path, None).__qualname__ == "A.B"
    assert resolve_use("../mine.py:A", tmp_path / "sub", None) is resolve_use(
        "./mine.py:A", tmp_path, None
    ), "imported once"


def test_a_folder_without_init_within_a_package_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "whole_package" / "models" / "net.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "whole_package" / "__init__.py").touch()
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert module_file("whole_package.models.net") == file
    assert "whole_package" not in sys.modules


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """Two pipelines have neighbours of one name; each gets its own,
    and both files of a folder the same.
    """
    for folder in ("one", "two"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "json.py").write_text(
            "raise AssertionError('it takes the place of an installed module')"
        )
        (tmp_path / folder / "neighbour.py").write_text(
            f"NAME = {folder!r}\nimport json\nclass Net: pass\n"
        )
        (tmp_path / folder / "parts" / "__init__.py").write_text("")
        (tmp_path / folder / "parts" / "head.py").write_text(f"NAME = {folder!r}\n")
        for name in ("first", "second"):
            (tmp_path / folder / f"{name}.py").write_text(
                "import neighbour\nfrom parts.head import NAME\nNet = neighbour.Net\n"
                "def late():\n    import neighbour\n    return neighbour.Net\n"
            )
    path = list(sys.path)

    def referred(use: str, folder: str) -> Any:
        return resolve_use(use, tmp_path / folder, None)

    assert referred("./first.py:NAME", "one") == "one"
    assert referred("./first.py:late", "one")() is referred("./first.py:Net", "one")
    assert referred("./first.py:NAME", "two") == "two"
    assert referred("./first.py:neighbour.NAME", "two") == "two"
    assert referred("./second.py:Net", "two") is referred("./first.py:Net", "two")
    assert referred("./second.py:Net", "one") is referred("./first.py:Net", "one")
    assert sys.path == [
        *path,
        str(tmp_path / "one"),
        str(tmp_path / "two"),
    ], "found last from now on"


MISSING = (
    ":Path",
    "pathlib:Path.exist",
    "email.mine:X",
    "hookflw.hooks:X",
    "./mymod.py:X",
    "my_mod:Mine",
    "./my_mod.py",
)


def test_what_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "my_mod.py").write_text("class Mine: ...\ndef yours(run): ...\ndef _own(): ...\n")
    check_cases(
        "use-mistakes.txt",
        {use: [failure(use, tmp_path).replace(f"{tmp_path}/", "")] for use in MISSING},
    )


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a = 1\nb = c\n", "NameError: name 'c' is not defined", "2: b = c"),
        ("a = 1\n\nb = (\n", "SyntaxError: '(' was never closed", "3: b = ("),
        (
            "import no_such_package\n",
            "ModuleNotFoundError: No module named 'no_such_package'",
            "1: import no_such",
        ),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "2: sys.exit(3)"),
    ],
)
def test_a_file_that_raises_is_told_with_its_own_line(
    text: str, message: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(text)
    for _ in range(2):  # a module that failed is not there the second time either
        printed = failure("./mine.py:X", tmp_path)
        assert f'"./mine.py" cannot be imported: {message}' in printed
        assert re.search(rf"at .*mine\.py:{re.escape(line)}", printed)
    (tmp_path / "mine.py").rename(tmp_path / "broken_here.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert f'"broken_here" cannot be imported: {message}' in failure("broken_here:X"), (
        "nor is it said to be missing"
    )


def test_a_failed_import_is_shown_once_for_all_places_that_need_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "late = ImportError('install x')\nlate.add_note('or y')\nraise late\n"
    )
    problems = []
    for line in (3, 5, 7):
        with pytest.raises(UserError) as caught:
            resolve_use("./mine.py:X", tmp_path, Where("p.toml", line))
        problems += UserError(caught.value.problems).problems
    hint = f"or y\n    at {tmp_path}/mine.py:3: raise late"
    shown = UserError([*problems, Problem("other"), Problem("other")])
    assert (
        str(shown) == 'p.toml:3: "./mine.py" cannot be imported: ImportError: install x\n   '
        f" {hint}\nother\nother"
    )
    assert shown.to_json()[0]["hint"] == hint


def test_a_file_that_is_gone_is_left_out_of_what_other_processes_import(tmp_path: Path) -> None:
    (file := tmp_path / "gone.py").touch()
    import_file(file, str(file), None)
    assert str(file) in list_run_files()
    file.unlink()
    assert str(file) not in list_run_files()


def refused_merge(built_on: Load, child: str, **files: str) -> Problem:
    with pytest.raises(UserError) as refused:
        built_on(child, **files)
    (problem,) = refused.value.problems
    return problem


LOADER = (
    '[data.train]\nuse = "../data.py:batches"\nloader = { batch_size = 4, shuffle = true, workers ='
    " 2 }\n"
)
WITH_LOADER = {
    "shared/base.toml": BASE.replace('[data.train]\nuse = "../data.py:batches"\n', LOADER)
}


def test_keys_of_a_base_are_unset(built_on: Load) -> None:
    unset = (
        'unset = ["data.train.loader.batch_size", "data.train.loader.shuffle", "hooks.clip",'
        ' "model.args"]\n'
    )
    child = (
        ON_BASE
        + unset
        + '[data.train.loader]\nbatch_sampler = "./s.py:Sampler"\n[model.args]\nwide = 1\n'
    )
    child += "[hooks.ema]\nafter = []\n"
    pipeline = built_on(child, **WITH_LOADER).pipeline
    loader = pipeline.data.train.loader
    assert loader is not None
    assert (loader.batch_size, loader.shuffle, loader.workers) == (None, None, 2)
    assert "clip" not in pipeline.hooks
    assert pipeline.model.args == {"wide": 1}
    written = dump(built_on(child, **WITH_LOADER).public)
    assert "unset" not in written
    assert parse(written, Path("own/child.toml"), recorded=True).pipeline == pipeline


def test_each_file_unsets_keys_of_its_own_base(built_on: Load) -> None:
    middle = (
        'extends = "../shared/base.toml"\nunset = ["hooks.log"]\n[hooks.log]\nuse = "log"\nevery'
        " = 5\n"
    )
    loaded = built_on(
        'extends = "middle.toml"\nunset = ["hooks.log.every"]\n', **{"own/middle.toml": middle}
    )
    assert loaded.pipeline.hooks["log"].every is None
    assert loaded.pipeline.hooks["log"].points is None


def test_a_table_is_replaced(built_on: Load) -> None:
    child = (
        ON_BASE + '[data.train]\nloader = { replace = true, batch_sampler = "./s.py:Sampler" }\n'
    )
    loader = built_on(child, **WITH_LOADER).pipeline.data.train.loader
    assert loader is not None
    assert (loader.batch_size, loader.shuffle, loader.workers) == (None, None, 0)
    # of an argument it is the value
    args = built_on(ON_BASE + "[model.args]\nreplace = true\n").pipeline.model.args
    assert args == {"width": 4, "depth": 2, "replace": True}


@pytest.mark.parametrize(
    ("unset", "words", "column"),
    [
        ('["hooks.clap"]', 'has no "hooks.clap"', 10),
        ('["hooks.clip", "hooks.log.points.0"]', 'has no "hooks.log.points.0"', 24),
        ('["x y"]', "is no key", 10),
        ("[3]", "is no key", 10),
        ('"hooks.clip"', "must be a list", 1),
    ],
)
def test_what_cannot_be_unset_is_refused(
    built_on: Load, unset: str, words: str, column: int
) -> None:
    problem = refused_merge(built_on, f"{ON_BASE}unset = {unset}\n")
    assert words in problem.message
    assert problem.where == Where("own/child.toml", 2, column)
    assert problem.hint


def test_unset_needs_a_base(built_on: Load) -> None:
    problem = refused_merge(built_on, 'unset = ["run.seed"]\n' + BASE)
    assert problem.where == Where("own/child.toml", 1, 1)


def test_a_merge_that_cannot_be_names_both_files_and_the_way_out(built_on: Load) -> None:
    child = ON_BASE + '[data.train.loader]\nbatch_sampler = "./s.py:Sampler"\n'
    problem = refused_merge(built_on, child, **WITH_LOADER)
    line = WITH_LOADER["shared/base.toml"].splitlines().index(LOADER.splitlines()[2]) + 1
    assert f"shared/base.toml:{line}" in problem.hint
    assert "own/child.toml:3" in problem.hint
    assert 'unset = ["data.train.loader.batch_size"]' in problem.hint
    assert "loader = { replace = true, … }" in problem.hint
    way_out = 'unset = ["data.train.loader.batch_size", "data.train.loader.shuffle"]\n'
    built_on(
        ON_BASE + way_out + '[data.train.loader]\nbatch_sampler = "./s.py:Sampler"\n', **WITH_LOADER
    )
