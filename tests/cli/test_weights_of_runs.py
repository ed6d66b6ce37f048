"""`[model.weights] use`: weights that come from a checkpoint of another run, by its name."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from hookflow.errors import UserError, Where
from hookflow.events.initial_weights import read_recorded_weights
from hookflow.events.rundir import RunDir, all_runs
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.runner.builder.initial_weights import check_unchanged
from hookflow.service.weights import find_weights
from tests.conftest import hookflow_here, messages, run_here

PARTS = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.head = nn.Linear(3, classes)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(2, 3)
        self.classifier = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.classifier(self.backbone(inputs))


class Sizes(nn.Linear):
    def __init__(self):
        super().__init__(2, int(torch.ones(2).sum().item()))


def points():
    inputs = torch.arange(64.0).reshape(32, 2) / 64
    return TensorDataset(inputs, (inputs[:, 0] > 0.5).long())


def step(run, batch):
    return {"loss": cross_entropy(run.model(batch[0]), batch[1])}
"""
BODY = """
[optimizer]
use = "torch.optim:SGD"
args = {{ lr = {lr} }}
[task]
use = "./parts.py:step"
[data.train]
use = "./parts.py:points"
loader = {{ batch_size = 8 }}
"""
FIRST = """\
[run]
name = "first"
max_iters = 4
threads = 1
[model]
use = "./parts.py:Net"
[hooks.ema]
use = "ema"
args = { decay = 0.5 }
[hooks.checkpoint]
use = "checkpoint"
points = [{ at = "after_train_iter", every = "2it" }]
args = { keep = 9 }
"""
SECOND = """\
[run]
name = "second"
max_iters = 1
threads = 1
[model]
use = "./parts.py:Net"
[model.weights]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "first.toml").write_text(FIRST + BODY.format(lr=0.5))
    run_here("first.toml", cwd=tmp_path, code=0)
    return tmp_path


def first_of(project: Path) -> RunDir:
    return next(run for run in all_runs(project / "runs") if run.path.parent.name == "first")


def write_second(project: Path, weights: str, model: str = "Net") -> None:
    text = SECOND.replace(":Net", f":{model}") + weights + "\n" + BODY.format(lr=0.0)
    (project / "second.toml").write_text(text)


def trained(project: Path, *options: str, code: int = 0) -> RunDir:
    """Train the second pipeline, whose learning rate is 0,
    so that it ends with the weights that it began with.
    """
    run_here("second.toml", *options, cwd=project, code=code)
    return next(run for run in all_runs(project / "runs") if run.path.parent.name == "second")


@pytest.mark.parametrize(
    ("use", "checkpoint", "entry"),
    [
        ("first", "it00000004", "model"),
        ("first:last", "it00000004", "model"),
        ("first:it2", "it00000002", "model"),
        ("first:it00000002/ema", "it00000002", "model_ema"),
    ],
)
def test_run_begins_with_the_named_weights(
    project: Path, use: str, checkpoint: str, entry: str
) -> None:
    write_second(project, f'use = "{use}"')
    run_dir = trained(project)
    first = first_of(project)
    expected = read_weights(first.checkpoints / checkpoint, entry)
    end = read_weights(run_dir.checkpoints / "last", "model")
    assert end.keys() == expected.keys()
    assert all(torch.equal(end[name], expected[name]) for name in end)
    source = read_recorded_weights(run_dir)["model"]
    assert (source.run, source.checkpoint, source.entry) == (first.id, checkpoint, entry)
    assert source.it == int(checkpoint[2:])
    content = (first.checkpoints / checkpoint / f"{entry}.pt").read_bytes()
    assert source.sha256 == hashlib.sha256(content).hexdigest()
    assert [
        text
        for text in messages(run_dir, "info")
        if "4 weights loaded from" in text and first.id in text
    ]


def test_it_is_a_parent_and_shown(project: Path) -> None:
    write_second(project, 'use = "first:it2"')
    run_dir = trained(project)
    first = first_of(project)
    rows = json.loads(hookflow_here("runs", "--format", "json", cwd=project, code=0).stdout)
    parents = {row["id"]: row["parent"] for row in rows}
    assert parents == {run_dir.id: first.id, first.id: None}
    page = json.loads(
        hookflow_here("show", run_dir.id, "--format", "json", cwd=project, code=0).stdout
    )
    assert page["weights"]["model"]["checkpoint"] == "it00000002"


def test_include_exclude_and_rename(project: Path) -> None:
    weights = 'use = "first:it2"\ninclude = ["backbone.*"]\nrename = { "body." = "backbone." }'
    write_second(project, weights, "Probe")
    run_dir = trained(project)
    expected = read_weights(first_of(project).checkpoints / "it00000002", "model")
    end = read_weights(run_dir.checkpoints / "last", "model")
    assert torch.equal(end["backbone.weight"], expected["body.weight"])
    assert torch.equal(end["backbone.bias"], expected["body.bias"])
    (line,) = [text for text in messages(run_dir) if "2 weights loaded" in text]
    assert "left: 2 (head.bias, head.weight)" in line
    assert "excluded: 2 (classifier.bias, classifier.weight)" in line


@pytest.mark.parametrize(
    ("weights", "key"),
    [
        ('use = "frist:it2"', "use"),
        ('use = "first:it3"', "use"),
        ('use = "first:it2/emma"', "use"),
        ('use = "first:it2"\nfile = "x.pt"', ""),
        ("strict = false", ""),
        ('use = "first:it2"\ninclude = ["boddy.*"]', "include"),
    ],
)
def test_what_is_not_there_is_refused_at_its_line(project: Path, weights: str, key: str) -> None:
    write_second(project, weights)
    for command in ("check", "run"):
        done = hookflow_here(command, "second.toml", cwd=project, code=2)
        assert "second.toml:" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    lines = (project / "second.toml").read_text().splitlines()
    if key:
        place = next(
            k for k, line in enumerate(lines, 1) if line.startswith(f"{key} =") and "./" not in line
        )
        assert (
            f"second.toml:{place}:"
            in hookflow_here("check", "second.toml", cwd=project, code=2).stderr
        )


def test_check_looks_whether_they_fit(project: Path) -> None:
    write_second(project, 'use = "first:it2"', "Probe")
    done = hookflow_here("check", "second.toml", cwd=project, code=2)
    assert '"body.weight"' in done.stderr
    write_second(project, 'use = "first:it2"\nexclude = ["*"]', "Sizes")
    assert "unknown: model" in hookflow_here("check", "second.toml", cwd=project, code=0).stderr
    write_second(project, 'use = "first:it2"')
    hookflow_here("check", "second.toml", cwd=project, code=0)


def test_name_that_has_moved_is_compared_and_rerun_as_recorded(project: Path) -> None:
    write_second(project, 'use = "first:last"')
    before = trained(project)
    run_here("--resume", first_of(project).id, "--set", "run.max_iters=6", cwd=project, code=0)
    after = trained(project)
    assert [read_recorded_weights(run)["model"].it for run in (before, after)] == [4, 6]
    done = hookflow_here("compare", before.id, after.id, cwd=project, code=1)
    assert "amount to the same" not in done.stdout
    done = hookflow_here("rerun", before.id, "--at", "1", "--format", "json", cwd=project, code=0)
    assert json.loads(done.stdout)["compared"] > 0


def test_changed_file_is_refused(project: Path) -> None:
    source = find_weights("first:it2", project / "runs", "model")
    check_unchanged(source, Where("x"))
    state = torch.load(source.path, weights_only=True)
    torch.save({name: tensor + 1 for name, tensor in state.items()}, source.path)
    with pytest.raises(UserError, match="have changed since the run was started"):
        check_unchanged(source, Where("x"))
