"""What is computed in: fp16 with its scale, which a resume must know; tf32 where there is none; what "auto" takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir, all_runs
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.builder.build import build
from hookflow.runner.numerics.precision import choose_precision
from tests.conftest import TESTS, TOY, NewRun, Trained, hookflow, messages, reason, records
from tests.processes import Training
from tests.runner.same import curve, final_state

FP16 = 'run.precision="fp16"'
LOUD = 'task.use="./upsets.py:Loud"'
SCALE = 'hooks.scale={use="./upsets.py:Scale"}'


def precision_of(run_dir: RunDir) -> object:
    return records(run_dir, "run")[-1]["precision"]


def logged(run_dir: RunDir, name: str) -> list[float]:
    return [value for (_, _, of), value in curve(run_dir).items() if of == name]


SEES = 'hooks.sees={use="./watchers.py:Sees"}'


@pytest.mark.parametrize(
    ("asked", "precision", "dtype"),
    [("fp16", "fp16", "float16"), ("bf16", "bf16", "bfloat16"), ("tf32", "fp32", "float32")],
)
def test_what_is_asked_for_is_computed_in_and_told(trained: Trained, asked: str, precision: str, dtype: str) -> None:
    run_dir = trained(f"run.precision={asked!r}", "run.max_epochs=1", SEES)
    assert precision_of(run_dir) == precision
    for split in ("train", "val"):
        assert f"{split}: logits torch.{dtype}, loss torch.float32" in messages(run_dir)
    assert final_state(run_dir)["model"]["head.weight"].dtype is torch.float32  # type: ignore[index]
    differs = 'run.precision = "tf32" is for CUDA: on cpu this run computes in fp32' in messages(run_dir)
    assert differs == (asked == "tf32")


def test_a_scale_that_is_too_large_is_halved_and_its_step_left_out(trained: Trained) -> None:
    run_dir = trained(FP16, LOUD, SCALE, 'hooks.looks={use="./upsets.py:Looks"}', "run.max_epochs=1")
    scales = [int(line.split()[-1]) for line in messages(run_dir) if ": scale " in line]
    taken = ["taken" in line for line in messages(run_dir) if "weights=" in line]
    left_out = ["skipped=True" in line for line in messages(run_dir) if "weights=" in line]
    assert left_out == [not one for one in taken] and not taken[0], "it begins too large"
    for k, scale in enumerate(scales):
        before = scales[k - 1] if k else 2**16
        assert scale == (before if taken[k] else before // 2)
    assert logged(run_dir, "skipped_steps")[-1] == left_out.count(True)
    (said,) = (line for line in messages(run_dir) if line.startswith("iteration 1 takes no step"))
    assert said.endswith("a gradient is not finite in float16: the loss is scaled by half as much")


def test_hooks_see_the_gradients_as_they_are(trained: Trained) -> None:
    same = ("run.max_iters=1", "run.val_every=1", "hooks.clip.enabled=false", "model.args.width=64")
    seen = 'hooks.seen={use="./upsets.py:Gradients"}'
    swap = ("max_epochs = 3", "max_iters = 1")
    half, whole = (trained(*same, seen, f'run.precision="{kind}"', swap=swap) for kind in ("fp16", "fp32"))
    assert logged(half, "seen_norm") == pytest.approx(logged(whole, "seen_norm"), rel=0.01)


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",), ("optimizer.args.fused=true",)])
def test_a_resumed_run_goes_on_with_its_scale(resumes_alike: NewRun, more: tuple[str, ...]) -> None:
    run = (FP16, LOUD, "hooks.throughput.enabled=false", "hooks.log.points=['after_train_iter']", *more)
    resumed = resumes_alike(*run, point="after_train_iter", at=2)
    assert final_state(resumed)["step_guard"] and logged(resumed, "skipped_steps")


def test_tasks_that_step_themselves_are_scaled_at_each_loss(trained: Trained) -> None:
    run_dir = trained(FP16, SCALE, swap=(TOY.read_text(), (TESTS / "gan.toml").read_text()))
    scale = int([line for line in messages(run_dir) if ": scale " in line][-1].split()[-1])
    assert scale * 2 ** len(logged(run_dir, "skipped_steps")) == 2**16, "each step that is left out halves it"
    assert all(weight.isfinite().all() for weight in final_state(run_dir)["model_generator"].values())  # type: ignore[attr-defined]


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(trained: Trained) -> None:
    run_dir = trained(FP16, 'task={use="./upsets.py:Upset", args={batches=[2]}}', code=1)
    assert "the loss is NaN in iteration 3" in reason(run_dir)


class TestAuto:
    AUTO = ("run.precision='auto'", "run.device='cpu'", "run.max_epochs=1")

    def test_it_is_what_the_processor_computes_in_and_left_out_it_is_fp32(self, trained: Trained, bf16: bool) -> None:
        for settings, half in ((self.AUTO, bf16), (("run.max_epochs=1",), False)):
            run_dir = trained(*settings, SEES)
            assert precision_of(run_dir) == ("bf16" if half else "fp32")
            assert f"train: logits torch.{'bfloat16' if half else 'float32'}, loss torch.float32" in messages(run_dir)

    def test_it_is_so_in_every_process(self, new_run: NewRun, tmp_path: Path, bf16: bool) -> None:
        forked = new_run(*self.AUTO)
        assert Training(forked).wait() == 0, reason(forked)
        (tmp_path / "by_command").mkdir()
        done = hookflow("run", str(TOY), *(f"--set={one}" for one in self.AUTO), cwd=tmp_path / "by_command")
        assert done.returncode == 0, done.stderr
        (started,) = all_runs(tmp_path / "by_command" / "runs")
        assert precision_of(forked) == precision_of(started) == ("bf16" if bf16 else "fp32")

    @pytest.mark.parametrize(("asked", "device", "chosen"), [("auto", "mps", "fp32"), ("tf32", "cuda", "tf32")])
    def test_no_other_device_is_judged_by_the_processor(self, bf16: bool, asked: Any, device: str, chosen: str) -> None:
        assert choose_precision(asked, torch.device(device), lambda *said: None) == chosen


def test_the_gpu_that_is_named_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[torch.device] = []
    device = torch.device("cuda", 1)
    monkeypatch.setattr("hookflow.runner.builder.build.device_of", lambda *asked: device)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    monkeypatch.setattr(torch.nn.Module, "to", lambda *args, **more: 1 / 0)  # so far it comes where there is none
    loaded = load(TOY)
    with pytest.raises(ZeroDivisionError):
        build(loaded, compile_pipeline(loaded), TESTS, lambda *said: None)
    assert made_current == [device]
