"""Hooks that keep what a run has made: files that others can read, and read the same of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, records
from tests.runner.same import assert_same, final_state
from tests.toy import Net

Train = Callable[..., int]


def exported(run_dir: RunDir, pattern: str) -> Path:
    (path,) = (run_dir.path / "export").glob(pattern)
    return path


class TestExport:
    def test_the_weights_are_those_of_the_checkpoint_and_the_name_has_their_hash(
        self, new_run: NewRun, train_here: Train
    ) -> None:
        run_dir = new_run('hooks.export={use="export"}')
        assert train_here(run_dir) == 0
        path = exported(run_dir, "*")
        assert path.name == f"last-model-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pt"
        assert_same(torch.load(path, weights_only=True), dict(final_state(run_dir)["model"]))  # type: ignore[call-overload]
        assert any(str(path) in str(record["text"]) for record in records(run_dir, "message"))

    def test_the_average_of_the_best_goes_to_a_folder_of_ones_own(
        self, new_run: NewRun, train_here: Train, tmp_path: Path
    ) -> None:
        args = f'{{checkpoint="best", weights="model_ema", out_dir="{tmp_path / "mine"}"}}'
        for _ in range(2):
            run_dir = new_run(f'hooks.export={{use="export", args={args}}}')
            assert train_here(run_dir) == 0
        (path,) = (tmp_path / "mine").iterdir()  # the same weights twice
        assert path.name.startswith("best-model_ema-")
        best = torch.load(run_dir.checkpoints / "best" / "model_ema.pt", weights_only=True)
        assert_same(torch.load(path, weights_only=True), dict(best))

    def test_a_folder_that_cannot_be_made_is_refused_before_the_training(
        self, new_run: NewRun, train_here: Train, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        run_dir = new_run(f'hooks.export={{use="export", args={{out_dir="{tmp_path / "file" / "mine"}"}}}}')
        assert train_here(run_dir) == 2
        (end,) = records(run_dir, "end")
        assert "cannot be made: Not a directory" in str(end["reason"]) and end["it"] == 0

    def test_safetensors_read_back_the_same(self, new_run: NewRun, train_here: Train) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        run_dir = new_run('hooks.export={use="export", args={formats=["safetensors"]}}')
        assert train_here(run_dir) == 0
        found = safetensors.load_file(exported(run_dir, "last-model-*.safetensors"))
        expected = final_state(run_dir)["model"]
        assert found.keys() == expected.keys()  # type: ignore[attr-defined]
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())  # type: ignore[index]

    def test_an_exported_network_computes_the_same_for_a_batch_of_any_size(
        self, new_run: NewRun, train_here: Train
    ) -> None:
        looks = 'hooks.looks={use="activation_stats"}'  # bound inside the network
        run_dir = new_run('hooks.export={use="export", args={formats=["torch_export"]}}', looks, "run.max_epochs=1")
        assert train_here(run_dir) == 0, records(run_dir, "error")
        program = torch.export.load(exported(run_dir, "last-model-*.pt2")).module()
        net = Net().eval()
        net.load_state_dict(final_state(run_dir)["model"])  # type: ignore[arg-type]
        for size in (1, 3, 100):
            inputs = torch.randn(size, 4)
            assert torch.allclose(program(inputs), net(inputs), atol=1e-6)

    def test_weights_that_are_not_there_are_the_users_mistake(self, new_run: NewRun, train_here: Train) -> None:
        run_dir = new_run('hooks.export={use="export", args={weights="model_ena"}}')
        assert train_here(run_dir) == 2
        said = str(records(run_dir, "end")[-1]["reason"])
        assert 'has no weights "model_ena"' in said and "model_ema" in said

    def test_without_the_checkpoint_nothing_is_exported(self, new_run: NewRun, train_here: Train) -> None:
        run_dir = new_run('hooks.export={use="export", args={checkpoint="best-2"}}')
        assert train_here(run_dir) == 0
        assert any('no checkpoint "best-2"' in str(record["text"]) for record in records(run_dir, "message"))


def test_checkpoints_begin_with_their_trigger_and_what_was_better_before_is_no_best(
    new_run: NewRun, train_here: Train
) -> None:
    run_dir = new_run('hooks.checkpoint.args={monitor="loss", mode="max", keep=9}', 'hooks.checkpoint.from="2ep"')
    assert train_here(run_dir) == 0
    assert sorted(path.name for path in run_dir.checkpoints.glob("it*")) == ["it00000010", "it00000015"]
    losses = [record["v"]["loss"] for record in records(run_dir, "metrics")]  # type: ignore[index]
    assert losses[0] > max(losses[1:]), "the first would be the best"
    assert (run_dir.checkpoints / "best").resolve().name in ("it00000010", "it00000015")
