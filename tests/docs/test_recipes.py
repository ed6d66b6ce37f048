"""The recipes of docs/: their examples train, and what they say of a resume holds."""

import importlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import hookflow
from hookflow.events.rundir import RunDir
from hookflow.graph.points import POINTS
from hookflow.hooks.checkpoint_files import read_weights
from hookflow.hooks.run import Run
from hookflow.pipeline.schema import DistributedSection, RunSection
from hookflow.runner.random_state import seed_everything
from tests.conftest import NewRun, Train, reason, records
from tests.conftest import hookflow as command
from tests.docs.test_pages import files
from tests.docs.test_pages import page as page_of
from tests.end_to_end.test_run import only_run
from tests.runner.same import assert_same_end


def written(page: str, folder: Path) -> None:
    for name, text in files(page).items():
        (folder / name).write_text(text)


class Strike:
    """Sends SIGTERM to the training in one of its iterations."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_train_iter(self, run: Any) -> None:
        if run.iter == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


SHORT = ("data.train.args.episodes=6", "data.train.loader.batch_size=3", "data.val.args.episodes=1")
BUFFER = ("data.train.args={warm_up=20, batches=6, size=40}", "task.args={explore=8}", "data.val.args.episodes=1")


@pytest.mark.parametrize(("name", "less", "at"), [("reinforce", SHORT, 3), ("dqn", BUFFER, 9)])
def test_an_agent_is_trained_evaluated_and_resumed_in_the_same_episode(
    name: str, less: tuple[str, ...], at: int, tmp_path: Path, new_run: NewRun, train_here: Train
) -> None:
    pytest.importorskip("gymnasium", reason="needs gymnasium")
    written("rl.md", tmp_path)

    def begun(iteration: int) -> RunDir:
        strike = f'hooks.strike={{use="tests.docs.test_recipes:Strike", args={{at={iteration}}}}}'
        return new_run("run.max_epochs=2", *less, strike, pipeline=tmp_path / f"{name}.toml")

    alone, cut = begun(10**6), begun(at)
    assert train_here(alone) == 0, reason(alone)
    assert records(alone, "metrics")[-1]["v"].keys() == {"length"}  # type: ignore[attr-defined]
    assert (alone.checkpoints / "best").exists()
    assert train_here(cut) == 143, reason(cut)
    assert train_here(cut, resume=True) == 0, reason(cut)
    assert_same_end(alone, cut)


@pytest.mark.long
def test_a_model_of_transformers_is_trained_and_predicts_with_ids(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers, which takes 130 MB")
    written("transformers.md", tmp_path)
    command("run", "texts.toml", "--set", "run.threads=1", cwd=tmp_path, code=0)
    assert records(only_run(tmp_path), "metrics")[-1]["v"].keys() == {"loss", "accuracy"}  # type: ignore[attr-defined]
    command("predict", "--split", "val", "--out", "rows.npz", cwd=tmp_path, code=0)
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["index"].tolist() == rows["id"].tolist() == list(range(256))
        assert rows["logits"].shape == (256, 2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # peft asks transformers in its former words
def test_adapters_alone_are_saved_resumed_loaded_and_exported(
    tmp_path: Path, new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="needs peft and transformers")
    written("transformers.md", tmp_path)

    def begun(iteration: int) -> RunDir:
        strike = f'hooks.strike={{use="tests.docs.test_recipes:Strike", args={{at={iteration}}}}}'
        export = 'hooks.export={use="export", args={formats=["safetensors"]}}'
        return new_run("run.threads=1", "run.max_epochs=2", strike, export, pipeline=tmp_path / "lora.toml")

    alone, cut = begun(10**6), begun(11)
    assert train_here(alone) == 0, reason(alone)
    assert train_here(cut) == 143, reason(cut)
    assert train_here(cut, resume=True) == 0, reason(cut)
    assert_same_end(alone, cut)
    saved = read_weights(alone.checkpoints / "last", "model")
    assert saved and all("lora_" in name or "classifier" in name for name in saved)
    assert all(saved[name].any() for name in saved if "lora_B" in name), "they are zero at first"
    monkeypatch.syspath_prepend(tmp_path)
    adapted = importlib.import_module("lora").adapted
    last = hookflow.load_run(alone.path).checkpoint("last")
    with pytest.raises(hookflow.UserError, match="this model has others"):
        last.load_into(adapted())
    seed_everything(0)
    model = last.load_into(adapted())
    assert all(saved[name].equal(value) for name, value in model.state_dict().items() if name in saved)
    (exported,) = (alone.path / "export").glob("*.safetensors")
    assert load_file(exported).keys() == saved.keys()


@pytest.mark.parametrize("model", [pytest.param("timm:create_model", marks=pytest.mark.long), "tests.toy:Staged"])
def test_layers_are_fine_tuned_one_after_another(
    model: str, tmp_path: Path, new_run: NewRun, train_here: Train
) -> None:
    pytest.importorskip(model.partition(":")[0], reason="needs timm and torchvision")
    written("fine-tuning.md", tmp_path)
    keep = 'hooks.checkpoint={use="checkpoint", args={keep="all"}}'
    run = new_run("run.threads=1", keep, f'model.use="{model}"', pipeline=tmp_path / "fine.toml")
    assert train_here(run) == 0, reason(run)
    recorded = hookflow.load_run(run.path)
    for name, rate, begin in (("head", 1e-2, 0), ("last", 1e-3, 16), ("2", 1e-4, 32)):
        rates = recorded.scalars(f"lr/{name}")["value"]
        ramp = [min(max(step - begin + 1, 0) / 8, 1) * rate for step in range(48)]
        assert rates == pytest.approx(ramp)
    first, second = (read_weights(recorded.checkpoint(f"it{it:08}").path, "model") for it in (16, 32))
    changed = {name.partition(".")[0] for name, value in first.items() if not value.equal(second[name])}
    assert changed == {"fc", "layer4"}


def test_what_others_are_told_to_use_is_there() -> None:
    page = page_of("coming-from.md")
    keys = {*RunSection.model_fields, *vars(Run)}
    assert set(re.findall(r"`run\.(\w+)", page)) <= keys
    assert set(re.findall(r"`distributed\.(\w+)", page)) <= DistributedSection.model_fields.keys()
    points = {point.name for point in POINTS}
    rows = page.partition("## Points")[2].partition("\n## ")[0].splitlines()[4:]
    assert {point for row in rows for point in re.findall(r"`(\w+)`", row.split(" | ")[0])} <= points
    flags = page.partition("| Lightning | hookflow |\n")[2].partition("The other three")[0]
    assert len(re.findall(r"`\w+`", "".join(row.split(" | ")[0] for row in flags.splitlines()))) == 38
    table = page.partition("| MMEngine | hookflow | without")[2].partition("\n\n")[0].splitlines()[2:]
    covered, others = (" ".join(row.split("|")[k] for row in table) for k in (1, 3))
    assert [len(re.findall(r"`[a-z_]+`", cells)) for cells in (covered, others)] == [58, 4]
