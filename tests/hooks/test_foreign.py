"""Hooks of other frameworks are refused in one sentence each, which says what their names are called here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookflow.errors import Problem, UserError
from hookflow.graph.points import POINTS
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.foreign import FRAMEWORKS
from hookflow.pipeline.load import load
from tests.conftest import circle, hookflow_here

PIPELINE = circle("max_epochs = 1", "default_hooks = false") + '[hooks.ported]\nuse = "./ported.py:Ported"\n'
LIGHTNING = "class Callback:\n" + "".join(
    f"    def {name}(self, trainer, pl_module): pass\n"
    for framework in FRAMEWORKS
    if framework.name == "Lightning"
    for name in framework.members
)
CASES = {
    "MMEngine": (
        "class Ported:\n    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None): pass\n",
        "Ported has names of MMEngine, which mean nothing here: runner, data_batch",
        ["runner → run", "data_batch → batch"],
    ),
    "Lightning": (
        "import lightning.pytorch as pl\nclass Ported(pl.Callback):\n"
        "    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): print(trainer)\n",
        "Ported is a hook of Lightning (lightning.pytorch.Callback)",
        ["on_train_batch_end → after_train_iter", "trainer → run", "pl_module → run.model"],
    ),
    "nothing of its own": (
        "import lightning.pytorch as pl\nclass Ported(pl.Callback):\n    pass\n",
        "Ported is a hook of Lightning (lightning.pytorch.Callback)",
        ["any class with methods named like points"],
    ),
}


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for packages that are not installed, found from the current folder."""
    for module, text in {"lightning.pytorch": LIGHTNING}.items():
        package = tmp_path.joinpath("packages", *module.split("."))
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        (package.parent / "__init__.py").touch()
        for name in (module, module.partition(".")[0]):
            monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(PIPELINE)


def problems(*, imports: bool) -> list[Problem]:
    with pytest.raises(UserError) as refused:
        compile_pipeline(load(Path("p.toml")), imports=imports)
    return refused.value.problems


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("case", CASES)
def test_a_ported_hook_is_refused_in_one_sentence_wherever_it_is_looked_at(case: str) -> None:
    source, said, hints = CASES[case]
    Path("ported.py").write_text(source)
    imported = problems(imports=True)
    assert [problem.message for problem in imported] == [said]
    assert all(hint in imported[0].hint for hint in hints)
    described = hookflow_here("explain", "./ported.py:Ported", cwd=Path.cwd())
    assert said in described.stdout + described.stderr
    assert hints[0] in described.stdout + described.stderr


def test_what_the_table_calls_a_point_is_one() -> None:
    members = {theirs: ours for framework in FRAMEWORKS for theirs, ours in framework.members.items()}
    assert {name for ours in members.values() for name in ours.split(", ") if name} - {"phase"} <= set(POINTS.names)
    assert not members.keys() & set(POINTS.names), "a name of ours needs no other"
