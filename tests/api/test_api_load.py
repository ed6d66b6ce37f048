"""`hookflow.load`, `runs` and `load_run`: files, dicts, overrides and mistakes;
what a run has recorded; all names.
"""

import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import hookflow
from hookflow.api.recorded import RecordedRun
from hookflow.events.rundir import RunDir
from tests.conftest import TOY
from tests.support.toy import Net


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the toy pipeline as a dict, and be where its files are."""
    monkeypatch.chdir(TOY.parent)
    return tomllib.loads(TOY.read_text())


def test_a_dict_is_what_its_file_is(toy: dict[str, Any]) -> None:
    assert str(hookflow.load(toy)) == str(hookflow.load(TOY))
    plan = hookflow.load(toy).plan
    assert plan.order == hookflow.load(str(TOY)).plan.order
    assert plan.order["after_val"] == ("ema", "early_stop", "checkpoint")
    assert "after_train_iter        throughput → log (every 2)" in str(plan).splitlines()
    run = hookflow.load({"extends": "toy.toml", "run": {"max_iters": 4}}).loaded.pipeline.run
    assert (run.name, run.max_iters, run.max_epochs) == ("toy", 4, None)


def test_the_graph_is_that_of_networkx_and_has_the_reasons(toy: dict[str, Any]) -> None:
    hooks = {
        "reader": {"reads": ["mine"]},
        "writer": {"writes": ["mine"], "after": ["reader"]},
        "maker": {"writes": ["theirs"]},
        "taker": {"reads": ["theirs"]},
    }
    function = {"use": "builtins:print", "points": ["after_train_iter"]}
    toy["hooks"] = {name: function | table for name, table in hooks.items()}
    toy["run"]["default_hooks"] = False
    pipeline = hookflow.load(toy)
    point = "after_train_iter"
    kept = pipeline.graph(point)
    names = dict(kept.nodes(data="hook"))
    edges = {(names[first], names[then]): edge for first, then, edge in kept.edges(data=True)}
    assert edges.keys() == {("reader", "writer"), ("maker", "taker")}
    stated, flow_edge = edges["reader", "writer"], edges["maker", "taker"]
    assert (stated["kind"], stated["reason"], stated["kept"]) == ("file", "stated", True)
    assert (flow_edge["kind"], flow_edge["source"], flow_edge["slots"]) == (
        "flow",
        "theirs",
        ("theirs",),
    )
    order = [names[node] for node in nx.lexicographical_topological_sort(kept)]
    assert tuple(order) == pipeline.plan.order[point]

    (lost,) = [
        edge
        for *_, edge in pipeline.graph(point, dropped=True).edges(data=True)
        if not edge["kept"]
    ]
    assert (lost["kind"], lost["slots"], lost["reason"]) == ("flow", ("mine",), "contradicted")
    assert [(edge.first, edge.then) for edge in lost["against"]] == [("reader", "writer")]
    assert kept.nodes[0].keys() == {"hook", "point", "half", "phase", "binding", "spec"}
    assert {
        node: at for node, at in pipeline.graph().nodes(data="point") if at == point
    } == dict.fromkeys(kept, point)
    with pytest.raises(hookflow.UserError, match="after_train_iter"):
        pipeline.graph("after_train_itr")


def test_overrides_go_over_a_file_and_over_a_dict(toy: dict[str, Any]) -> None:
    values = ['C:\\new "a" é 🙂\n\x7f', 1.5, float("inf"), {"b c": [True]}]
    over = {
        "run.max_iters": 7,
        "run.name": "a-b",
        "model.args": {"a b": values},
        "hooks.log.points": [{"at": "after_train_iter", "every": "2it"}],
        "hooks.clip.args": {"max_norm": 0.5},
        "run.deterministic": True,
    }
    for source in (TOY, toy):
        pipeline = hookflow.load(source, over).loaded.pipeline
        assert (pipeline.run.max_iters, pipeline.run.max_epochs) == (7, None)
        assert (pipeline.run.name, pipeline.run.deterministic) == ("a-b", True)
        assert pipeline.models["model"].args == {"a b": values}
        assert pipeline.hooks["clip"].args == {"max_norm": 0.5}
        (point,) = pipeline.hooks["log"].points or ()
        assert not isinstance(point, str)
        assert str(point.every) == "2it"
    assert toy["run"] == {"name": "toy", "max_epochs": 3}, "what was given is left alone"


def test_all_mistakes_are_told_with_the_part_of_the_dict_or_override_that_is_wrong(
    toy: dict[str, Any],
) -> None:
    toy["run"]["sed"] = 1
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy, {"run.max_epochs": "many"})
    assert '<dict>: [run] has no key "sed"' in str(error.value)
    assert 'overrides["run.max_epochs"]: run.max_epochs must be' in str(error.value)
    with pytest.raises(hookflow.UserError, match='overrides: "run max" is not a key'):
        hookflow.load(TOY, {"run max": 1})

    def nothing(run: Any) -> None: ...

    table = {"use": nothing, "points": ["after_run", "after_vall"]}
    with pytest.raises(hookflow.UserError) as error:
        _ = hookflow.load(TOY, {"hooks.f": table, "hooks.clip.args": {"max_nrm": 1.0}}).plan
    places = {problem.message: str(problem.where) for problem in error.value.problems}
    assert places['there is no point "after_vall"'] == 'overrides["hooks.f"]["points"][1]'
    assert (
        places['hook "clip" takes no argument "max_nrm"']
        == 'overrides["hooks.clip.args"]["max_nrm"]'
    )
    assert "object at 0x" not in str(error.value)
    assert "function" not in str(error.value)


def test_a_value_that_no_file_could_hold_is_refused(toy: dict[str, Any]) -> None:
    toy["model"]["args"] = {"width": object(), "root": Path("data")}
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy)
    assert [problem.message for problem in error.value.problems] == [
        "model.args.width cannot be of the type object",
        "model.args.root cannot be of the type PosixPath",
    ]


def test_check_raises_what_is_not_there_and_returns_what_is_doubtful(toy: dict[str, Any]) -> None:
    assert hookflow.load(toy).check() == []
    toy["hooks"]["late"] = {"use": "log", "when": "1 > 2"}
    toy["hooks"]["other"] = {"use": "ema"}
    pair = 'at before_{}, "ema" and "other" touch model, and no edge orders them'
    wanted = [
        'hook "late": the condition "1 > 2" never holds',
        pair.format("val"),
        pair.format("test"),
    ]
    assert [problem.message for problem in hookflow.load(toy).check()] == wanted
    toy["model"]["use"] = "./toy.py:Nett"
    toy["hooks"]["clip"]["after"] = ["nobody"]
    with pytest.raises(hookflow.UserError) as error:
        hookflow.load(toy).check()
    assert len(error.value.problems) == 2


NAMES = [
    "ExportedWeights",
    "Hook",
    "HookCapabilities",
    "Run",
    "SavedCheckpoints",
    "Source",
    "Task",
    "TrainingTerminatedError",
    "UserError",
    "Writer",
    "__version__",
    "attach",
    "callbacks",
    "load",
    "load_run",
    "runs",
    "train",
]


def test_these_are_the_public_names() -> None:
    assert NAMES == hookflow.__all__ == dir(hookflow)
    names: dict[str, object] = {}
    exec("from hookflow import *", names)
    assert {name: names[name] for name in NAMES} == {
        name: getattr(hookflow, name) for name in NAMES
    }
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        hookflow.tain  # noqa: B018


@pytest.fixture
def run(left_alone: RunDir) -> RecordedRun:
    return hookflow.load_run(left_alone.path)


def test_a_run_is_found_by_what_it_is_called(run: RecordedRun, tmp_path: Path) -> None:
    folder = run.dir.parent.parent
    for called in ("latest", run.id, run.id[-4:], "toy", run.dir):
        assert hookflow.load_run(called, folder).dir == run.dir
    (only,) = hookflow.runs(folder)
    assert repr(only) == f"<Run toy {run.id}: finished>"
    assert hookflow.runs(tmp_path / "none") == []
    with pytest.raises(hookflow.UserError, match=r'no run "tyo" in .*\n.*did you mean "toy"'):
        hookflow.load_run("tyo", folder)
    assert run.plan.order == hookflow.load(TOY).plan.order


def test_scalars_are_columns(run: RecordedRun) -> None:
    columns = run.scalars()
    assert [*columns] == ["iter", "epoch", "time", "name", "value"]
    assert len({len(column) for column in columns.values()}) == 1
    assert {"loss", "lr", "grad_norm", "val/accuracy", "val/loss"} <= {*columns["name"]}
    loss = run.scalars("loss")
    assert loss["iter"] == [2, 4, 6, 8, 10, 12, 14]
    assert loss["epoch"] == [0, 0, 1, 1, 1, 2, 2]
    assert all(isinstance(value, float) for value in loss["value"] + loss["time"])
    assert run.metrics["val"]["accuracy"] == run.scalars("val/accuracy")["value"][-1]
    for name, meant in (("losss", "loss"), ("accuracy", "val/accuracy")):
        with pytest.raises(
            hookflow.UserError, match=f'never logged "{name}"\n    did you mean "{meant}"'
        ):
            run.scalars("loss", name)


def test_checkpoints_are_listed_and_loaded(run: RecordedRun) -> None:
    last, *_ = run.checkpoints
    assert (last.iter, last.epoch) == (15, 3)
    assert "last" in last.names
    assert last.metrics == run.metrics["val"]
    assert run.checkpoint() == last == run.checkpoint(last.path.name)
    assert run.checkpoint("best").metrics["accuracy"] == max(run.scalars("val/accuracy")["value"])
    net = last.load_into(Net(), "model")
    assert torch.equal(
        net.head.weight, torch.load(last.path / "model.pt", weights_only=True)["head.weight"]
    )
    average = last.load_into(Net(), "ema")
    assert not torch.equal(average.head.weight, net.head.weight)


def test_what_cannot_be_loaded_is_told(run: RecordedRun, tmp_path: Path) -> None:
    with pytest.raises(
        hookflow.UserError, match=r'has no checkpoint "bets"\n.*did you mean "best"'
    ):
        run.checkpoint("bets")
    with pytest.raises(
        hookflow.UserError, match=r'has no weights "model_eam"\n.*did you mean "model_ema"'
    ):
        run.checkpoint().load_into(Net(), "eam")
    with pytest.raises(RuntimeError, match="size mismatch"):
        run.checkpoint().load_into(Net(16), "model")
    damaged = replace(
        run.checkpoint(), path=shutil.copytree(run.checkpoint().path, tmp_path / "damaged")
    )
    os.truncate(damaged.path / "model.pt", 10)
    with pytest.raises(hookflow.UserError, match=r"cannot be used: model\.pt has 10 bytes"):
        damaged.load_into(Net(), "model")
