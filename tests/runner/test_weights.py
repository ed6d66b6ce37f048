"""Weights alone: out of a checkpoint into PyTorch, out of a file into a run;
what is saved in part.
"""

import json
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.api.recorded import RecordedRun
from hookflow.cli.resume import PipelineChanges
from hookflow.cli.run import make_fork
from hookflow.errors import UserError, Where
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.pipeline.components import WeightsSection
from hookflow.runner.builder.initial_weights import load_weights
from hookflow.runner.checkpoint.store import CheckpointStore, read
from tests.cli.conftest import invoke, refused
from tests.conftest import NewRun, Train, Trained, messages, reason, records
from tests.runner.by_hand import weights as weights_of
from tests.runner.same import assert_same, final_state
from tests.support.checkpoint_files import Evil
from tests.support.overrides import commander
from tests.support.run_results import answers
from tests.support.toy import Counts, Frozen, Net

DOCS = (Path(__file__).parents[2] / "docs" / "how-to" / "checkpoints.md").read_text("utf-8")


@pytest.mark.parametrize("file", ["model.pt", "model_ema.pt"])
def test_two_lines_load_them_in_pytorch(
    undisturbed: Trained, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    run_dir = undisturbed("run.max_epochs=1")
    block, *_ = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2
    monkeypatch.chdir(run_dir.checkpoints / "last")
    model = Net()
    exec("\n".join(lines).replace("model.pt", file), {"torch": torch, "model": model})
    saved = torch.load(file, weights_only=True)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no file"),
        (b"", "is no file that torch.save has written"),
        (b"not a zip at all", "holds more than data"),
        (pickle.dumps(Evil(), protocol=2), "holds more than data"),
        ([1, 2], "holds no state_dict, but a list"),
        ({"a": Evil()}, "holds more than data"),
    ],
    ids=["missing", "empty", "text", "pickle", "list", "evil"],
)
def test_what_is_no_state_dict_is_refused_in_words(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: object,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({}, "wieghts.pt")
    if isinstance(content, bytes):
        Path("weights.pt").write_bytes(content)
    elif content is not None:
        torch.save(content, "weights.pt")
    run_dir = trained(f'model.weights="{tmp_path / "weights.pt"}"', code=2)
    assert expected in reason(run_dir)
    assert content is not None or 'did you mean "wieghts.pt"?' in reason(run_dir)
    assert not Path("pwned").exists(), "nothing of it has run"
    assert not records(run_dir, "error")


@pytest.fixture
def kept() -> dict[str, torch.Tensor]:
    """The weights of a network that is no run's own."""
    torch.manual_seed(3)
    return dict(Net().state_dict())


def begins(path: Path, content: object = None) -> tuple[str, ...]:
    """Return overrides for a run that begins with weights and leaves them as they are."""
    if content:
        torch.save(content, path)
    return f'model.weights="{path}"', "run.max_epochs=1", "optimizer.args={lr=0.0}"


def put_before(prefix: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in weights.items()}


def loaded(model: nn.Module, tmp_path: Path, content: object, **section: Any) -> list[str]:
    """Load weights into a model, and return the messages about it."""
    torch.save(content, tmp_path / "weights.pt")
    texts: list[str] = []
    load_weights(
        model,
        WeightsSection(file="weights.pt", **section),
        tmp_path,
        "model",
        lambda key: Where("p.toml", 1, 1),
        lambda text, level: texts.append(f"{level}: {text}"),
    )
    return texts


@pytest.mark.parametrize(
    ("entry", "prefix"),
    [
        ("state_dict", ""),
        ("model", ""),
        ("model_state_dict", ""),
        ("state_dict", "model."),  # Lightning
        ("", "module."),  # DDP
        ("model", "module._orig_mod."),  # compiled, under DDP
    ],
)
def test_usual_wrappings_are_recognised(
    tmp_path: Path, kept: dict[str, torch.Tensor], entry: str, prefix: str
) -> None:
    model, weights = Net(), put_before(prefix, kept)
    loaded(
        model,
        tmp_path,
        {entry: weights, "epoch": 3, "best": torch.tensor(0.9)} if entry else weights,
    )
    assert torch.equal(model.head.weight, kept["head.weight"])


def test_a_head_may_be_new_and_what_fits_is_taken_unless_strict(
    tmp_path: Path, kept: dict[str, torch.Tensor]
) -> None:
    body = {
        name: value for name, value in put_before("backbone.", kept).items() if "head" not in name
    }
    old, model = body | {"fc.weight": torch.zeros(10, 8), "fc.bias": torch.zeros(10)}, Net()
    (summary,) = loaded(
        model, tmp_path, old, rename={"backbone.": "", "fc.": "head."}, exclude=["head.*"]
    )
    assert torch.equal(model.body[0].weight, kept["body.0.weight"])
    assert model.head.weight.shape == (3, 8)
    assert summary.startswith("info: ") and summary.endswith("excluded: 2 (head.bias, head.weight)")
    said = loaded(Net(), tmp_path, kept | {"more": torch.zeros(1)}, exclude=["more*"])
    assert [line.partition(":")[0] for line in said] == [
        "warn",
        "info",
    ], "it leaves out no weights of the model"
    old = kept | {"head.weight": torch.zeros(10, 8), "more": torch.zeros(1)}
    del old["head.bias"]
    (summary,) = loaded(Net(), tmp_path, old, strict=False)
    assert summary.startswith("warn: ") and summary.endswith(
        "missing: 1 (head.bias); unexpected: 1 (more); of another shape: 1 (head.weight (10, 8)"
        " instead of (3, 8))"
    )


def test_what_a_module_says_beside_its_tensors_is_loaded_and_not_compared(tmp_path: Path) -> None:
    theirs, ours = (nn.Sequential(Counts(), nn.Linear(2, 2)) for _ in range(2))
    theirs[0].calls = 7
    assert loaded(ours, tmp_path, theirs.state_dict()) == []
    assert ours[0].calls == 7
    norm = nn.BatchNorm1d(1)
    # A number is no tensor without shape.
    with pytest.raises(UserError, match=r'"num_batches_tracked" in the shape'):
        loaded(norm, tmp_path, norm.state_dict() | {"num_batches_tracked": 3})
    with pytest.raises(UserError, match=r"1.weight\" in the shape \(3, 2\)"):
        loaded(ours, tmp_path, theirs.state_dict() | {"1.weight": torch.zeros(3, 2)})


class Holder(nn.Module):
    """A network whose own names begin like those of a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)


@pytest.mark.parametrize("prefix", ["", "module.model."])
def test_a_wrapper_is_found_though_the_network_has_such_names_itself(
    tmp_path: Path, prefix: str
) -> None:
    ours, theirs = Holder(), Holder().state_dict()
    content = put_before(prefix, theirs) | {"loss.weight": torch.ones(1)}
    (summary,) = loaded(ours, tmp_path, content, strict=False)
    assert torch.equal(ours.model.weight, theirs["model.weight"])
    without = [f"without the prefix {prefix}"] if prefix else []
    assert summary.split("; ")[1:] == [*without, "unexpected: 1 (loss.weight)"]


ONE = torch.ones(1)
MANY = {"weight": torch.ones(1, 1), "bias": ONE, **{f"block{k}.weight": ONE for k in range(100)}}


@pytest.mark.parametrize(
    ("content", "section", "expected"),
    [
        ({0: ONE}, {}, "holds no state_dict, but a dict"),
        ({f"n{k}": k for k in range(9)}, {}, "n6, n7"),
        ({"n": 1}, {}, "no tensors, and none in state_dict, model_state_dict or model\n"),
        ({"ema": {"weight": ONE}, "epoch": 3}, {}, "its entries are ema, epoch"),
        ({"zzz": ONE}, {}, 'the weights lack "weight", which the model has\nthey also have zzz'),
        (
            {"zzz": ONE},
            {},
            'the weights have "zzz", and the model does not\nthe model still needs weight, bias',
        ),
        ({"wieght": ONE, "bias": ONE}, {}, 'did you mean "weight"?'),
        ({"weight": torch.ones(2, 2), "bias": ONE}, {}, "1 of 2 fit; of another shape: 1 (weight"),
        ({"weight": torch.ones(1, 1), "bias": ONE, "x": ONE}, {}, "2 of 2 fit; unexpected: 1 (x)"),
        ({"weight": torch.ones(1, 1), "bias": 1}, {}, '"bias" in the shape'),
        ({"a1": ONE, "a2": ONE, "a3": ONE}, {}, "unexpected: 3 (a1, a2, a3)"),
        (MANY, {}, "2 of 2 fit; unexpected: 100 (block0.weight, block1.weight, block2.weight, …)"),
        (MANY, {}, 'exclude = ["block0.*"]'),
        ({"weight": ONE}, {"exclude": ["haed.*"]}, '"haed.*" matches no weights'),
        ({"weight": ONE}, {"rename": {"backbone.": ""}}, 'no name begins with "backbone."'),
        ({"weight": ONE}, {"exclude": ["*"]}, "has nothing that is to be loaded"),
        ({"else": ONE}, {"strict": False}, "has nothing that is to be loaded into the model"),
        # a prefix stays that would make two names one
        ({"weight": ONE, "module.weight": ONE}, {}, 'have "module.weight", and the model does not'),
    ],
)
def test_what_does_not_fit_in_words(
    tmp_path: Path, content: Any, section: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError) as refused:
        loaded(nn.Linear(1, 1), tmp_path, content, **section)
    lines = "\n".join(f"{problem.message}\n{problem.hint}" for problem in refused.value.problems)
    assert expected in lines
    assert "n8" not in lines and lines.count("and the model does not") <= 3, "the first are named"


class Sees:
    """Is offered the weights, and changes one of them in place and another one by name."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape

    def before_run(self, run: Any) -> None:
        run.log_text("before_run", f"{float(run.model.head.bias.detach().sum())}")
        run.model.body[0].bias.data.zero_()

    def after_load_checkpoint(self, run: Any, checkpoint: dict[str, Any]) -> None:
        run.log_text("offered", f"{sorted(checkpoint)} {sorted(checkpoint['model'])}")
        checkpoint["model"]["head.bias"].data.fill_(7.0)
        checkpoint["model"]["head.weight"] = torch.full(self.shape or (3, 8), 5.0)


SEES = 'hooks.sees={use="tests.runner.test_weights:Sees"%s}'


def test_weights_are_offered_to_hooks_and_what_these_change_is_copied_in(
    trained: Trained, tmp_path: Path, kept: dict[str, torch.Tensor]
) -> None:
    run_dir = trained(
        *begins(tmp_path / "weights.pt", kept),
        SEES % "",
        'hooks.guard={use="spike_guard",args={rollback=true}}',
    )
    reported = {record["name"]: record["text"] for record in records(run_dir, "text")}
    assert reported["before_run"] == str(float(kept["head.bias"].sum())), (
        "the model has them already"
    )
    assert reported["offered"] == f"['model'] {sorted(kept)}"
    weights = weights_of(run_dir)
    assert weights["head.bias"].tolist() == [7.0] * 3
    assert weights["head.weight"].unique().tolist() == [5.0]
    assert weights["body.0.bias"].unique().tolist() == [0.0], (
        "what no hook changes in them is not copied again"
    )
    fired = [record for record in records(run_dir, "text") if record["name"] == "offered"]
    assert len(fired) == 1


def test_what_a_hook_makes_of_weights_must_fit(
    trained: Trained, tmp_path: Path, kept: dict[str, torch.Tensor]
) -> None:
    run_dir = trained(*begins(tmp_path / "weights.pt", kept), SEES % ",args={shape=[2,8]}", code=2)
    assert 'have "head.weight" in the shape (2, 8)' in reason(run_dir)


def test_the_folder_of_a_checkpoint_may_be_named(undisturbed: Trained, trained: Trained) -> None:
    first = undisturbed("run.max_epochs=1")
    second = trained(*begins(first.checkpoints / "last"))
    assert torch.equal(weights_of(second)["head.weight"], weights_of(first)["head.weight"])
    kept = "model.pt; the weights that a hook validates are in model_ema.pt"
    assert any(text.endswith(kept) for text in messages(second)), (
        "its metrics are those of the average"
    )


@pytest.mark.parametrize("file", ["weights.pt", "~/weights.pt"])
def test_a_plain_file_is_what_a_run_begins_with(
    new_run: NewRun,
    train_here: Train,
    tmp_path: Path,
    kept: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    """It is relative to the pipeline, and not to the current directory;
    a resumed run has no need of it.
    """
    shutil.copy(Path(__file__).parents[1] / "support" / "toy.py", tmp_path)
    torch.save(kept, tmp_path / "weights.pt")
    monkeypatch.setenv("HOME", str(tmp_path))
    run_dir = new_run(*begins(Path(file)))
    run_dir.sign(base=str(tmp_path))
    assert train_here(run_dir) == 0, reason(run_dir)
    assert torch.equal(weights_of(run_dir)["head.weight"], kept["head.weight"])
    (tmp_path / "weights.pt").unlink()
    assert train_here(run_dir, resume=True) == 0


WEIGHTS = 'hooks.checkpoint.args={monitor={loss="min", accuracy="max"}, top=2, weights_only=true}'
WHOLE = 'hooks.checkpoint.args={monitor={loss="min", accuracy="max"}, top=2, keep="all"}'


def test_the_best_hold_the_weights_of_the_whole_ones(trained: Trained) -> None:
    run_dir, whole = trained(WEIGHTS), trained(WHOLE)
    names, others = (
        {name: path.name for name, path in CheckpointStore(each.checkpoints).names().items()}
        for each in (run_dir, whole)
    )
    assert {name: path.removeprefix("weights-") for name, path in names.items()} == others
    assert {name for name, path in names.items() if path.startswith("weights-")} == names.keys() - {
        "last"
    }
    there = {path.name for path in run_dir.checkpoints.iterdir() if not path.is_symlink()}
    assert there == {*names.values()}, "what has no name any more is removed"
    for name in names.keys() - {"last"}:
        state: Any = read(run_dir.checkpoints / names[name])
        full: Any = read(whole.checkpoints / others[name])
        assert not [key for key in state if key.startswith("optimizer")]
        for key in ("model", "model_ema"):
            assert all(torch.equal(full[key][item], value) for item, value in state[key].items())


def test_they_are_evaluated_loaded_and_forked(trained: Trained, train_here: Train) -> None:
    run_dir = trained(WEIGHTS)
    best = RecordedRun(run_dir).checkpoint("best-loss")
    net = best.load_into(Net(), "ema")
    assert all(
        torch.equal(value, read_weights(best.path, "model_ema")[name])
        for name, value in net.state_dict().items()
    )
    measured = {
        record["it"]: record["v"]
        for record in records(run_dir, "metrics")
        if record["split"] == "val"
    }  # type: ignore[index]
    assert (
        json.loads(invoke("val", best.path, "--format", "json"))["metrics"] == measured[best.iter]
    )
    (listed,) = [
        each
        for each in json.loads(invoke("checkpoints", run_dir.path, "--format", "json"))
        if "best-loss" in each["names"]
    ]
    assert Path(listed["path"]).name == best.path.name and not listed["damage"]
    fork = make_fork(str(best.path), None, PipelineChanges(("run.max_epochs=5",)))
    assert train_here(fork) == 0, reason(fork)
    assert any('no state of the optimizer "optimizer"' in text for text in messages(fork))
    assert records(fork, "end")[-1]["ep"] == 5


def test_no_run_resumes_from_them_which_are_for_the_best(
    trained: Trained, tmp_path: Path, new_run: NewRun
) -> None:
    run_dir = trained(WEIGHTS, commander(tmp_path / "mark", (9, "rewind best-loss")))
    ((_, _, ok, note),) = answers(run_dir)
    assert not ok and "no state of the optimizers" in note
    best = CheckpointStore(run_dir.checkpoints).names()["best-loss"]
    assert "is a checkpoint" in refused("run", "--resume", best)
    shutil.copy(Path(__file__).parents[1] / "support" / "toy.toml", tmp_path / "toy.toml")
    text = refused(
        "check", tmp_path / "toy.toml", "--set", "hooks.checkpoint.args={weights_only=true}"
    )
    assert "it needs monitor" in text


def test_a_run_that_saves_them_is_resumed_to_the_bit(
    new_run: NewRun, train_here: Train, resumes_alike: Any
) -> None:
    run_dir = resumes_alike(WEIGHTS, point="after_train_iter", at=12)
    state: Any = final_state(run_dir)
    assert state["hooks"]["checkpoint"]["best"]


APART = (
    "model.use=./toy.py:Frozen",
    'hooks.checkpoint.args={monitor="accuracy", frozen=false, restore_best=true}',
)


def test_what_is_frozen_is_left_out_and_comes_from_the_model(
    trained: Trained, train_here: Train
) -> None:
    whole, apart = trained(APART[0]), trained(*APART)
    full, last = (RecordedRun(each).checkpoint("last") for each in (whole, apart))
    for name in ("model", "model_ema"):
        left_out = set(read_weights(full.path, name)) - read_weights(last.path, name).keys()
        assert left_out == {name for name, p in Frozen().named_parameters() if not p.requires_grad}
    net, other = full.load_into(Frozen(), "model"), Frozen()
    permuted = {name: value.flip(0) for name, value in net.head.state_dict().items()}
    for head in (other.head.state_dict(), permuted):
        other.head.load_state_dict(head)
        with pytest.raises(UserError, match="this model has others"):
            last.load_into(other, "model")
    other.head.load_state_dict(net.head.state_dict())
    assert_same(dict(last.load_into(other, "model").state_dict()), dict(net.state_dict()))
    measured = {
        record["it"]: record["v"]
        for record in records(apart, "metrics")
        if record["split"] == "val"
    }  # type: ignore[index]
    best = RecordedRun(apart).checkpoint("best")
    assert (
        json.loads(invoke("val", best.path, "--format", "json"))["metrics"] == measured[best.iter]
    )
    fork = make_fork(
        str(best.path), None, PipelineChanges(("run.max_epochs=5", "optimizer.args.lr=0.05"))
    )
    assert train_here(fork) == 0, reason(fork)


def test_a_run_that_leaves_them_out_is_resumed_and_saves_what_trains(
    trained: Trained, resumes_alike: Any
) -> None:
    weights = trained(APART[0]).checkpoints / "last" / "model.pt"
    run_dir = resumes_alike(
        *APART, f'model.weights.file="{weights}"', point="after_train_iter", at=12
    )
    assert "head.weight" not in read_weights(run_dir.checkpoints / "last", "model")
    run_dir = trained(
        *APART, 'hooks.shift={use="tests.runner.test_weights:shift", points=["before_train_epoch"]}'
    )
    weights = read_weights(run_dir.checkpoints / "last", "model")
    assert "head.weight" in weights and "head.bias" not in weights


def shift(run: Any) -> None:
    with torch.no_grad():
        run.model.head.weight.add_(1)
