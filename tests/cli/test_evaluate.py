"""`hookflow val`, `test` and `predict`: a checkpoint is evaluated, and its run is left as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.builtin.predict import WRITERS, Predictions
from tests.cli.conftest import invoke, refused
from tests.conftest import NewRun, records
from tests.golden_files import check_golden
from tests.runner.same import final_state
from tests.toy import Net, Points

Train = Callable[..., int]


def as_json(*arguments: str) -> dict[str, Any]:
    text = invoke(*arguments, "--format", "json")
    return json.loads(text, parse_constant=lambda constant: 1 / 0)  # type: ignore[no-any-return]


def everything(run: RunDir) -> dict[Path, bytes]:
    """Return the files of a run but for now.bin, which the end of its process removes."""
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path != run.now}


def test_the_metrics_are_those_of_the_run_itself(run: RunDir) -> None:
    before = everything(run)
    recorded = {record["split"]: record["v"] for record in records(run, "metrics")}
    by_run = as_json("val", run.id)
    assert by_run["metrics"] == recorded["val"], "of the average, which the hook swaps in by itself"
    assert (by_run["split"], by_run["it"], by_run["ep"]) == ("val", 10, 2)
    assert as_json("test", f"{run.id}:last")["metrics"] == recorded["test"]
    assert as_json("test", str(run.checkpoints / "it00000010"))["metrics"] == recorded["test"]
    assert as_json("val", str(run.path), "--set", "data.val.args.examples=8")["data"]["examples"] == 8
    assert everything(run) == before


def test_in_words(run: RunDir) -> None:
    head, on, *metrics = invoke("val", run.path).splitlines()
    assert head == f"val of toy {run.id}, it00000010 (iteration 10, epoch 2)"
    assert on == "on 16 examples of SYNTHETIC points"
    assert [line.split()[0] for line in metrics] == ["loss", "accuracy"]
    assert invoke("val", run.checkpoints / "it00000005").splitlines()[0].endswith("(iteration 5, epoch 1)")
    head, on, file = invoke("predict", run.path, "--out", "rows.npz", "--split", "val").splitlines()
    assert head == f"val of toy {run.id}, it00000010 (iteration 10, epoch 2)"
    assert file == "  rows.npz: logits 16 × 3, predicted 16"


def test_what_is_not_there(run: RunDir) -> None:
    assert 'has no checkpoint "lst"\n    did you mean "last"?' in refused("val", f"{run.id}:lst")
    assert 'no run "toyy"' in refused("val", "toyy")


def test_what_is_not_finite_is_null_and_data_that_are_missing_are_told(new_run: NewRun, train_here: Train) -> None:
    hook = '{use="tests.callables:puts", args={value=nan}, points=["after_val_epoch"]}'
    test = '[data.test]\nuse = "./toy.py:Points"\nargs = { split = 2, examples = 16 }\n'
    run_dir = new_run("run.max_epochs=1", f"hooks.puts={hook}", swap=(test, ""))
    assert train_here(run_dir) == 0
    assert as_json("val", str(run_dir.path))["metrics"]["put"] is None
    assert as_json("checkpoints", str(run_dir.path))
    hooks = {hook["name"]: hook for hook in as_json("graph", str(run_dir.path))["hooks"]}
    assert hooks["puts"]["args"] == {"value": None}, "the plan is read back"
    assert "the pipeline has no [data.test]" in refused("test", run_dir.path)


def test_the_trace(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    tracer = f'hooks.tracer={{use="./watchers.py:Tracer", phase="last", args={{file="{trace}"}}}}'
    run_dir = new_run(tracer, "run.max_epochs=1", "data.test.args={examples=8, split=2}")
    assert train_here(run_dir) == 0
    for command in ("val", "test", "predict"):
        trace.unlink()
        as_json(command, str(run_dir.path), *["--out", str(tmp_path / "rows.npz")] * (command == "predict"))
        check_golden(f"trace_{command}_only.txt", trace.read_text())


def test_a_hook_that_raises(run: RunDir) -> None:
    bad = 'hooks.bad={use="./watchers.py:Fails", args={place="after_test_iter"}}'
    invoke("test", run.path, "--set", bad, code=1)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose hooks look at outputs, and one of which doubles every batch; another is inside the network."""
    from tests.cli.conftest import train_toy

    keys = 'points=["forward"], modules=["head"], stages=["train", "val", "test"], enabled=false'
    halves = f'hooks.halves={{use="./module_watchers.py:halves", {keys}}}'
    doubles = 'hooks.doubles={use="./steerers.py:Doubles"}'
    return train_toy(tmp_path_factory.mktemp("doubled"), "run.max_epochs=1", doubles, halves)


def predicted(run: RunDir, out: Path, *options: str) -> dict[str, Any]:
    return as_json("predict", str(run.path), "--out", str(out), *options)


def expected(run: RunDir, factor: float) -> torch.Tensor:
    """Return the logits of the averaged weights for the test's inputs times a factor."""
    net = Net()
    net.load_state_dict(final_state(run)["model_ema"])  # type: ignore[arg-type]
    points = Points(0, torch.device("cpu"), examples=16, split=2)
    with torch.no_grad():
        return net.eval()(factor * torch.cat([batch for batch, _ in points.epoch(0)]))  # type: ignore[no-any-return]


def test_the_averaged_weights_predict_every_example_in_order(doubled: RunDir, tmp_path: Path) -> None:
    logits = expected(doubled, 2)
    for ending in WRITERS:
        shown = predicted(doubled, tmp_path / "made" / f"rows{ending}")
        assert shown["shapes"] == {"logits": [16, 3], "predicted": [16]}
        assert (shown["split"], shown["it"], shown["data"]["examples"]) == ("test", 5, 16)
    with np.load(tmp_path / "made" / "rows.npz") as file:
        arrays = dict(file)
    torch.testing.assert_close(torch.from_numpy(arrays["logits"]), logits)
    assert arrays["predicted"].tolist() == logits.argmax(1).tolist()
    lines = [json.loads(line) for line in (tmp_path / "made" / "rows.jsonl").read_text().splitlines()]
    assert [line["predicted"] for line in lines] == logits.argmax(1).tolist()
    tensors = torch.load(tmp_path / "made" / "rows.pt", weights_only=True)
    assert torch.equal(tensors["logits"], torch.from_numpy(arrays["logits"]))


class Numbers:
    """Adds a column to the predictions, and writes down what it is called for."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def before_predict(self, run: Any) -> None:
        self.given = [f"{run.split}, predicting {run.is_predicting}, training {run.model.training}: "]

    def around_predict_iter(self, run: Any, batch: Any, batch_idx: int) -> Iterator[None]:
        self.given.append(f"{batch_idx}<")
        yield
        self.given.append(">")

    def after_predict_iter(self, outputs: Any, batch_idx: int) -> None:
        outputs["batch"] = torch.full((len(outputs["logits"]),), batch_idx)

    def after_predict(self) -> None:
        self.file.write_text("".join(self.given))

    def after_test_iter(self, outputs: Any) -> None:
        raise AssertionError


def test_hooks_see_what_is_predicted_and_may_add_to_it(doubled: RunDir, tmp_path: Path) -> None:
    hook = f'hooks.numbers={{use="{__file__}:Numbers", args={{file="{tmp_path / "file"}"}}}}'
    invoke("predict", doubled.path, "--out", tmp_path / "rows.pt", "--set", hook)
    assert (tmp_path / "file").read_text() == "test, predicting True, training False: 0<>1<>"
    rows = torch.load(tmp_path / "rows.pt", weights_only=True)
    assert rows["batch"].tolist() == [0] * 8 + [1] * 8
    torch.testing.assert_close(rows["logits"], expected(doubled, 2))


def test_hooks_inside_the_network_fire_in_their_stages(doubled: RunDir, tmp_path: Path) -> None:
    predicted(doubled, tmp_path / "rows.pt", "--set", "hooks.halves.enabled=true")
    logits = torch.load(tmp_path / "rows.pt", weights_only=True)["logits"]
    torch.testing.assert_close(logits, expected(doubled, 2) / 2)


def test_the_data_need_no_targets(doubled: RunDir, tmp_path: Path) -> None:
    shown = predicted(doubled, tmp_path / "rows.npz", "--split", "val", "--set", 'data.val.use="./toy.py:Unlabelled"')
    assert shown["shapes"]["predicted"] == [16]


def test_examples_of_a_loader_have_their_index_in_the_dataset(doubled: RunDir, tmp_path: Path) -> None:
    reversed_ = 'data.val={use="./loaders.py:dataset", loader={batch_size=5, sampler="./loaders.py:backwards"}}'
    predicted(doubled, tmp_path / "rows.pt", "--split", "val", "--set", reversed_)
    assert torch.load(tmp_path / "rows.pt", weights_only=True)["index"].tolist() == list(range(23, -1, -1))


def test_what_cannot_be_predicted(doubled: RunDir) -> None:
    assert 'unknown format ".txt"' in refused("predict", doubled.path, "--out", "rows.txt")
    step = 'task.use="./own_tasks.py:step"'
    wrong = refused("predict", doubled.path, "--set", step)
    assert "the task is a function, and defines no predict()" in wrong


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([torch.zeros(3)], "has returned a Tensor"),
        ([{}], "has returned nothing"),
        ([{"a": torch.zeros(())}], '"a", a Tensor without rows'),
        ([{"a": torch.zeros(3), "b": torch.zeros(2)}], '"a" of 3 rows and "b" of 2 rows'),
        ([{"a": torch.zeros(3)}, {"b": torch.zeros(3)}], "has returned b, and for a batch before a"),
    ],
)
def test_what_is_no_rows_is_told(batches: list[Any], wrong: str) -> None:
    rows = Predictions("the task's predict has returned")
    with pytest.raises(UserError) as raised:
        for batch in batches:
            rows.add(batch)
    assert wrong in str(raised.value)
