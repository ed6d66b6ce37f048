"""Metrics over several sets of validation data: set by a hook at `after_val`,
or a formula that a hook monitors.
"""

from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir, all_runs
from hookflow.metric_mode import choose_mode, is_formula
from hookflow.pipeline.condition import ConditionError, list_metrics, parse_formula
from hookflow.runner.checkpoint.manifest import read_links, read_manifest
from tests.conftest import hookflow_here, reason, records, run_here

PARTS = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


def points(shift=0.0):
    inputs = torch.arange(64.0).reshape(32, 2) / 64 + shift
    return TensorDataset(inputs, (inputs[:, 0] > 0.5 + shift).long())


def step(run, batch):
    return {"loss": cross_entropy(run.model(batch[0]), batch[1])}


class Combine:
    writes = ("metrics.combined",)

    def after_val(self, run, metrics):
        run.metrics["combined"] = metrics["near/loss"] - torch.tensor(2.0) * metrics["far/loss"]


class Text:
    writes = ("metrics.combined",)

    def after_val(self, run, metrics):
        metrics["combined"] = "much"


class Late:
    def after_train_epoch(self, run):
        run.metrics["late"] = 1.0
"""
PIPELINE = """\
[run]
name = "sets"
max_epochs = 4
threads = 1
[model]
use = "./parts.py:Net"
[optimizer]
use = "torch.optim:SGD"
args = { lr = 0.5 }
[task]
use = "./parts.py:step"
[data.train]
use = "./parts.py:points"
loader = { batch_size = 8 }
[data.val.near]
use = "./parts.py:points"
loader = { batch_size = 8 }
[data.val.far]
use = "./parts.py:points"
args = { shift = 1.0 }
loader = { batch_size = 8 }
"""
COMBINE = '[hooks.combine]\nuse = "./parts.py:Combine"\n'


def trained(folder: Path, hooks: str, *options: str, code: int = 0) -> RunDir:
    (folder / "parts.py").write_text(PARTS)
    (folder / "p.toml").write_text(PIPELINE + hooks)
    run_here(*(options or ("p.toml",)), cwd=folder, code=code)
    return all_runs(folder / "runs")[0]


def validations(run_dir: RunDir) -> list[dict[str, float]]:
    return [record["v"] for record in records(run_dir, "metrics")]  # type: ignore[misc]


def checkpoint(monitor: str) -> str:
    return f'[hooks.checkpoint]\nuse = "checkpoint"\nargs = {{ monitor = {monitor}, keep = 9 }}\n'


def test_hook_sets_a_metric_over_all_sets(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, COMBINE + checkpoint('"combined", mode = "max"'))
    found = validations(run_dir)
    assert len(found) == 4
    for metrics in found:
        assert metrics["combined"] == pytest.approx(
            metrics["near/loss"] - 2 * metrics["far/loss"], abs=1e-6
        )
    best = max(range(4), key=lambda k: found[k]["combined"])
    manifest = read_manifest(read_links(run_dir.checkpoints)["best"])
    assert manifest["it"] == 4 * (best + 1)
    assert manifest["metrics"]["combined"] == found[best]["combined"]


def test_formula_is_a_metric_by_which_the_best_is_kept(tmp_path: Path) -> None:
    formula = "near/loss - 2 * far/loss"
    run_dir = trained(tmp_path, checkpoint(f'"{formula}", mode = "max"'))
    found = validations(run_dir)
    for metrics in found:
        assert metrics[formula] == metrics["near/loss"] - 2 * metrics["far/loss"]
    best = max(range(4), key=lambda k: found[k][formula])
    assert read_manifest(read_links(run_dir.checkpoints)["best"])["it"] == 4 * (best + 1)


def test_formula_may_have_a_metric_of_a_hook(tmp_path: Path) -> None:
    run_dir = trained(tmp_path, COMBINE + checkpoint('{ "combined + near/loss" = "max" }'))
    for metrics in validations(run_dir):
        assert metrics["combined + near/loss"] == metrics["combined"] + metrics["near/loss"]


def test_several_best_have_names_of_files(tmp_path: Path) -> None:
    run_dir = trained(
        tmp_path, checkpoint('{ "near/loss + far/loss" = "min", "near/loss" = "min" }')
    )
    assert {"best-near_loss_far_loss", "best-near_loss"} <= read_links(run_dir.checkpoints).keys()


def test_early_stop_takes_a_formula(tmp_path: Path) -> None:
    hook = '[hooks.early_stop]\nuse = "early_stop"\n'
    # the formula never changes, so that nothing improves on the first validation
    formula = "near/loss - near/loss"
    run_dir = trained(
        tmp_path, f'{hook}args = {{ monitor = "{formula}", mode = "min", patience = 2 }}\n'
    )
    assert len(validations(run_dir)) == 3
    assert formula in reason(run_dir)


def test_resumed_run_goes_on_with_the_best(tmp_path: Path) -> None:
    hooks = checkpoint('"near/loss + far/loss", mode = "min"')
    whole = trained(tmp_path, hooks)
    trained(tmp_path, hooks, "p.toml", "--set", "run.max_epochs=2")
    cut = trained(tmp_path, hooks, "p.toml", "--resume", "--set", "run.max_epochs=4")
    assert cut.id != whole.id
    assert validations(cut) == validations(whole)
    best = [read_manifest(read_links(run.checkpoints)["best"])["it"] for run in (whole, cut)]
    assert best[0] == best[1]


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        (checkpoint('"near/loss - far/loss"'), 'mode = "min" or mode = "max"'),
        (checkpoint('"near/loss - fra/loss", mode = "min"'), 'did you mean "far/loss"?'),
        (checkpoint('"near/loss - * 2", mode = "min"'), "cannot be read"),
        (checkpoint('{ "near/loss - max(2)" = "min" }'), "max takes 2 numbers or more"),
        (checkpoint('"1 + 2", mode = "min"'), "made of no metric"),
    ],
)
def test_wrong_formula_is_refused_at_its_line(tmp_path: Path, hooks: str, words: str) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "p.toml").write_text(PIPELINE + hooks)
    done = run_here("p.toml", cwd=tmp_path, code=2)
    line = (PIPELINE + hooks).splitlines().index(hooks.splitlines()[2]) + 1
    assert f"p.toml:{line}:" in done.stderr
    assert words in done.stderr


def test_metric_that_is_no_number_raises(tmp_path: Path) -> None:
    trained(tmp_path, '[hooks.wrong]\nuse = "./parts.py:Text"\n', code=1)


def test_metric_at_another_point_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "p.toml").write_text(PIPELINE + '[hooks.wrong]\nuse = "./parts.py:Late"\n')
    run_here("p.toml", cwd=tmp_path, code=2)


def test_checked_alike(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "p.toml").write_text(PIPELINE + COMBINE + checkpoint('"combined", mode = "max"'))
    hookflow_here("check", "p.toml", cwd=tmp_path, code=0)
    order = hookflow_here("graph", "p.toml", cwd=tmp_path, code=0).stdout
    assert order.index("combine") < order.rindex("checkpoint")


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("cls/acc - 0.1 * reg/mae", ("cls/acc", "reg/mae"), 0.5 - 0.1 * 4.0),
        ("cls/acc / reg/mae", ("cls/acc", "reg/mae"), 0.5 / 4.0),
        ("max(cls/acc, reg/mae)", ("cls/acc", "reg/mae"), 4.0),
        ("acc@5 + 1", ("acc@5",), 1.25),
        ('value("cls/acc") * 2', ("cls/acc",), 1.0),
        ("-(cls/acc + metrics.plain)", ("cls/acc", "plain"), None),
    ],
)
def test_formulas(text: str, names: tuple[str, ...], value: float | None) -> None:
    numbers = {"cls/acc": 0.5, "reg/mae": 4.0, "acc@5": 0.25}
    formula = parse_formula(text)
    assert formula.names == names
    assert formula(numbers.get) == value


@pytest.mark.parametrize("name", ["accuracy", "cls/acc", "top-5", "val-loss", "acc@5", "f1 macro"])
def test_names_are_no_formulas(name: str) -> None:
    assert not is_formula(name)
    assert list_metrics(name) == (name,)


def test_mode_of_a_formula_is_never_guessed() -> None:
    with pytest.raises(UserError):
        choose_mode("1 - accuracy")
    assert choose_mode("1 - accuracy", "min") == "min"
    with pytest.raises(ConditionError):
        parse_formula("open('x') + 1")
