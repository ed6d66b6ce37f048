"""Settings for the whole process, put back after a run; precision, types of weights,
and a memory that is full.
"""

import os
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load, parse
from hookflow.pipeline.schema import Pipeline
from hookflow.runner.builder.build import build
from hookflow.runner.device import precision
from hookflow.runner.device.precision import CUBLAS_VARIABLE, choose_precision
from hookflow.zoo.tasks import Classification
from tests.conftest import TESTS, TOY, NewRun, Train, Trained, messages, reason, records, refusal
from tests.runner.same import assert_same, final_state, logged
from tests.support.plain_training import NET, OFF, by_hand, sgd

SEES = ('hooks.sees={use="tests.runner.test_settings:Settings"}', "run.max_epochs=1")


class Loud(Classification):
    def step(self, run: Any, batch: Any) -> dict[str, torch.Tensor]:
        outputs = super().step(run, batch)
        outputs["loss"] = outputs["loss"] * 2.0**10
        return outputs


class Gradients:
    def before_optimizer_step(self, run: Any) -> None:
        run.log("seen_norm", torch.stack([p.grad.norm() for p in run.model.parameters()]).norm())


class Scale:
    def after_train_iter(self, run: Any) -> None:
        run.say(f"{run.iter}: scale {run._update.guard.state_dict()['scale'].item():.0f}")


def undecided(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
    return Classification().step(run, batch)


class Settings:
    def before_train(self, run: Any) -> None:
        run.say(
            f"threads {torch.get_num_threads()}, deterministic"
            f" {torch.are_deterministic_algorithms_enabled()} {torch.backends.cudnn.deterministic},"
            f" benchmark {torch.backends.cudnn.benchmark}, tf32"
            f" {torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}"
        )


class Sees:
    def after_train_iter(self, run: Any, outputs: dict[str, torch.Tensor]) -> None:
        run.say(f"{run.stage}: logits {outputs['logits'].dtype}, loss {outputs['loss'].dtype}")

    after_val_iter = after_train_iter


class SeesLayout:
    def after_train_iter(self, run: Any, batch: Any) -> None:
        tensors = batch[0], next(run.model.parameters())
        told = [tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors]
        run.say(f"batch {told[0]}, weights {told[1]}")


def now() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled(), os.environ.get(CUBLAS_VARIABLE)
    return torch.get_num_threads(), *deterministic, *cudnn, *tf32


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        (["run.deterministic=true"], "threads 1, deterministic True True, benchmark False"),
        (["run.cudnn_benchmark=true"], "threads 1, deterministic False False, benchmark True"),
        (['run.precision="fp32"'], "tf32 False False"),
        (['run.precision="tf32"'], "tf32 True True"),
    ],
)
def test_a_run_puts_them_back(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, keys: list[str], seen: str
) -> None:
    monkeypatch.delenv(CUBLAS_VARIABLE, raising=False)
    before = now()
    run_dir = trained(*SEES, *keys)
    assert any(seen in line for line in messages(run_dir)), messages(run_dir)
    assert now() == before
    warned = [line for line in messages(run_dir) if line.startswith("deterministic:")]
    assert len(warned) == ("run.deterministic=true" in keys), "it says what it cannot promise"
    assert all(
        "this machine" in line and "version of PyTorch" in line and "your own code" in line
        for line in warned
    )


@pytest.mark.filterwarnings("default:put_ does not have a deterministic")
def test_it_warns_of_one_where_it_may_only_warn(trained: Trained) -> None:
    before = now()
    run_dir = trained(
        'run.deterministic="warn"',
        'task.use="tests.runner.test_settings:undecided"',
        "run.max_epochs=1",
    )
    assert now() == before
    warned = [
        text
        for text in messages(run_dir, "warn")
        if "put_ does not have a deterministic implementation" in text
    ]
    assert warned


def test_an_operation_without_a_deterministic_form_is_named(trained: Trained) -> None:
    before = now()
    run_dir = trained(
        "run.deterministic=true", 'task.use="tests.runner.test_settings:undecided"', code=1
    )
    assert now() == before, "put back when the run has failed, too"
    reason = str(records(run_dir, "end")[0]["reason"])
    assert reason.startswith("NondeterministicError: put_ ")
    assert "run.deterministic" in reason and "warn_only" not in reason
    (error,) = records(run_dir, "error")
    assert "test_settings.py" in str(error["traceback"]), "where it stands"
    trained('task.use="tests.runner.test_settings:undecided"', "run.max_epochs=1")


def test_what_contradicts_it_is_the_users_mistake() -> None:
    for key, said in (
        ("run.cudnn_benchmark=true", "keep either deterministic or cudnn_benchmark"),
        ('run.compile="max-autotune"', "chooses kernels by their speed"),
    ):
        assert said in str(refusal("run.deterministic=true", key))


FP16 = 'run.precision="fp16"'
LOUD = 'task.use="tests.runner.test_settings:Loud"'
SCALE = 'hooks.scale={use="tests.runner.test_settings:Scale"}'


def precision_of(run_dir: RunDir) -> object:
    return records(run_dir, "run")[-1]["precision"]


PRECISION_SEES = 'hooks.sees={use="tests.runner.test_settings:Sees"}'


@pytest.mark.parametrize(
    ("asked", "precision", "dtype"),
    [("fp16", "fp16", "float16"), ("bf16", "bf16", "bfloat16"), ("tf32", "fp32", "float32")],
)
def test_what_is_asked_for_is_computed_in_and_told(
    trained: Trained, asked: str, precision: str, dtype: str
) -> None:
    run_dir = trained(f"run.precision={asked!r}", "run.max_epochs=1", PRECISION_SEES)
    assert precision_of(run_dir) == precision
    for split in ("train", "val"):
        assert f"{split}: logits torch.{dtype}, loss torch.float32" in messages(run_dir)
    assert final_state(run_dir)["model"]["head.weight"].dtype is torch.float32  # type: ignore[index]
    differs = 'run.precision = "tf32" is for CUDA: on cpu this run computes in fp32' in messages(
        run_dir
    )
    assert differs == (asked == "tf32")


def test_a_scale_that_is_too_large_is_halved_and_its_step_left_out(trained: Trained) -> None:
    run_dir = trained(
        FP16, LOUD, SCALE, 'hooks.looks={use="./numeric_faults.py:Looks"}', "run.max_epochs=1"
    )
    scales = [int(line.split()[-1]) for line in messages(run_dir) if ": scale " in line]
    taken = ["taken" in line for line in messages(run_dir) if "weights=" in line]
    left_out = ["skipped=True" in line for line in messages(run_dir) if "weights=" in line]
    assert left_out == [not item for item in taken] and not taken[0], "it begins too large"
    for k, scale in enumerate(scales):
        before = scales[k - 1] if k else 2**16
        assert scale == (before if taken[k] else before // 2)
    assert [*logged(run_dir, "skipped_steps").values()][-1] == left_out.count(True)
    (said,) = (line for line in messages(run_dir) if line.startswith("iteration 1 takes no step"))
    assert "a gradient is not finite in float16" in said


def test_in_fp16_hooks_see_the_gradients_as_they_are_and_a_nan_is_no_matter_of_the_scale(
    trained: Trained,
) -> None:
    same = ("run.max_iters=1", "run.val_every=1", "hooks.clip.enabled=false", "model.args.width=64")
    seen = 'hooks.seen={use="tests.runner.test_settings:Gradients"}'
    swap = ("max_epochs = 3", "max_iters = 1")
    half, whole = (
        trained(*same, seen, f'run.precision="{kind}"', swap=swap) for kind in ("fp16", "fp32")
    )
    assert logged(half, "seen_norm") == pytest.approx(logged(whole, "seen_norm"), rel=0.01)
    run_dir = trained(FP16, 'task={use="./numeric_faults.py:Upset", args={batches=[2]}}', code=1)
    assert "the loss is NaN in iteration 3" in reason(run_dir)


@pytest.mark.parametrize("more", [(), ("run.accumulate=2",), ("optimizer.args.fused=true",)])
def test_a_resumed_run_goes_on_with_its_scale(resumes_alike: NewRun, more: tuple[str, ...]) -> None:
    run = (
        FP16,
        LOUD,
        "hooks.throughput.enabled=false",
        "hooks.log.points=['after_train_iter']",
        *more,
    )
    resumed = resumes_alike(*run, point="after_train_iter", at=2)
    assert final_state(resumed)["step_guard"] and logged(resumed, "skipped_steps")


def test_tasks_that_step_themselves_are_scaled_at_each_loss(trained: Trained) -> None:
    run_dir = trained(
        FP16, SCALE, swap=(TOY.read_text(), (TESTS / "support" / "gan.toml").read_text())
    )
    scale = int([line for line in messages(run_dir) if ": scale " in line][-1].split()[-1])
    assert scale * 2 ** len(logged(run_dir, "skipped_steps")) == 2**16, (
        "each step that is left out halves it"
    )
    assert all(
        weight.isfinite().all() for weight in final_state(run_dir)["model_generator"].values()
    )  # type: ignore[attr-defined]


def test_auto_is_what_the_processor_computes_in_and_left_out_it_is_fp32(
    trained: Trained, bf16: bool
) -> None:
    for settings, half in ((("run.precision='auto'", "run.device='cpu'"), bf16), ((), False)):
        run_dir = trained(*settings, "run.max_epochs=1", PRECISION_SEES)
        assert precision_of(run_dir) == ("bf16" if half else "fp32")
        assert (
            f"train: logits torch.{'bfloat16' if half else 'float32'}, loss torch.float32"
            in messages(run_dir)
        )
    # Which the processor is not.
    for asked, device, chosen in (("auto", "mps", "fp32"), ("tf32", "cuda", "tf32")):
        assert choose_precision(asked, torch.device(device), lambda *said: None) == chosen


def test_the_gpu_that_is_named_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[torch.device] = []
    device = torch.device("cuda", 1)
    monkeypatch.setattr("hookflow.runner.builder.build.device_of", lambda *asked: device)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    # So far it comes where there is none.
    monkeypatch.setattr(torch.nn.Module, "to", lambda *args, **more: 1 / 0)
    loaded = load(TOY)
    with pytest.raises(ZeroDivisionError):
        build(loaded, compile_pipeline(loaded), TOY.parent, lambda *said: None)
    assert made_current == [device]


def test_the_number_of_threads(trained: Trained) -> None:
    before = torch.get_num_threads()
    run_dir = trained(f"run.threads={before + 1}", "run.device='cpu'", "run.max_epochs=1")
    assert records(run_dir, "run")[0]["device"] == f"cpu ({before + 1} threads)"
    assert torch.get_num_threads() == before, "it is put back"


def test_pictures_with_the_channels_last(trained: Trained) -> None:
    seen = 'hooks.seen={use="tests.runner.test_settings:SeesLayout"}'
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    data = [f'data.{split}={{use="./data_loaders.py:images"}}' for split in ("train", "val")]
    net = 'model={use="./data_loaders.py:ConvNet"}'
    run_dir = trained(seen, *off, *data, net, "run.channels_last=true", "run.max_epochs=1")
    assert {record["text"] for record in records(run_dir, "message")} == {
        "batch True, weights True"
    }


TYPES = {"bf16-true": torch.bfloat16, "fp16-true": torch.float16, "fp64": torch.float64}


@pytest.mark.parametrize("name", TYPES)
def test_weights_and_batches_have_the_type_and_are_resumed(
    trained: Trained, name: str, resumes_alike: NewRun
) -> None:
    off = ("hooks.clip.enabled=false", *OFF)
    run_dir = trained(NET, f"run.precision='{name}'", "run.max_epochs=2", *off)
    state = final_state(run_dir)
    assert_same(state["model"], by_hand(sgd, dtype=TYPES[name]).state_dict())
    buffers = [item["momentum_buffer"] for item in state["optimizer"]["state"].values()]  # type: ignore[index]
    assert {buffer.dtype for buffer in buffers} == {TYPES[name]}
    resumes_alike(f"run.precision='{name}'", point="after_train_iter", at=7)


def test_mps_has_no_float64() -> None:
    with pytest.raises(UserError, match="MPS has no float64"):
        choose_precision("fp64", torch.device("mps"), print)


def full(kind: str) -> str:
    return f'hooks.full={{use="./numeric_faults.py:Full", args={{kind="{kind}"}}}}'


def advice(pipeline: Pipeline, error: BaseException) -> str:
    return precision.suggest_memory_savings(pipeline, error, saved=False)


@pytest.mark.parametrize(
    ("kind", "type_"),
    [("device", "OutOfMemoryError"), ("process", "MemoryError"), ("cpu", "RuntimeError")],
)
def test_the_last_words_say_what_to_change(trained: Trained, kind: str, type_: str) -> None:
    run_dir = trained(full(kind), "data.train.args.batch_size=8", "run.accumulate=2", code=1)
    text = reason(run_dir)
    assert text.startswith("OutOfMemoryError: out of memory")
    assert "batch_size = 4 (now 8) with run.accumulate = 4 (now 2)" in text
    assert "--resume" in text
    (error,) = records(run_dir, "error")
    assert "numeric_faults.py" in str(error["traceback"]) and error["hook"] == "full"
    assert f"{type_} with 0 gradients" in [record["text"] for record in records(run_dir, "message")]


def test_a_run_that_found_no_memory_goes_on_from_its_checkpoint(
    trained: Trained, train_here: Train
) -> None:
    run_dir = trained(
        full("device"),
        'hooks.asks={use="./common_hooks.py:Asks", args={point="after_train_iter"}}',
        code=1,
    )
    assert train_here(run_dir, resume=True) == 1, "it is as full as before"
    assert "Existing checkpoints are not affected; --resume" in reason(run_dir)
    assert "resumed from it" in str([record["text"] for record in records(run_dir, "message")])


def test_advice_is_of_batch_size_accumulation_and_data_where_they_are() -> None:
    source = 'data.train={use="./data_loaders.py:Cloud", loader={batch_size=512, on_device=true}}'
    text = advice(
        parse(TOY.read_text(), TOY, (source, 'run.precision="fp32"')).pipeline,
        torch.OutOfMemoryError(),
    )
    assert "batch_size = 256 (now 512) with run.accumulate = 2 (now 1)" in text
    assert "on_device = false" in text
    text = advice(parse(TOY.read_text(), TOY).pipeline, MemoryError())
    assert "affected" not in text and "batch_size" not in text and "torch.utils.checkpoint" in text
    gan = TESTS / "support" / "gan.toml"
    text = advice(
        parse(gan.read_text(), gan, ("data.train.args.batch_size=8",)).pipeline, MemoryError()
    )
    assert "batch_size = 4 (now 8); " in text and "accumulate" not in text
