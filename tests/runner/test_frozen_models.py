"""Models that the pipeline declares frozen, as a teacher beside its student."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hookflow.api.recorded import RecordedRun
from hookflow.events.rundir import RunDir
from hookflow.hooks.checkpoint_files import read_weights
from tests.cli.conftest import invoke, refused
from tests.conftest import TOY, NewRun, Trained, messages, records
from tests.runner.same import assert_same, logged
from tests.support.toy import Points


class Net(nn.Sequential):
    """With batch norms, whose statistics a model in eval mode keeps."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


PARAMETERS = {name for name, _ in Net().named_parameters()}
MODELS = (
    f'model={{teacher={{use="{__file__}:Net", frozen=true}}, student={{use="{__file__}:Net"}}}}',
    f'task.use="{__file__}:distilled"',
    "hooks.clip.enabled=false",
    "hooks.schedule.enabled=false",
)
"""A teacher that comes first, and whose parameters have the names of the student's."""


def distilled(run: Any, batch: Any) -> dict[str, Any]:
    return outputs_of(run.models, batch)


def outputs_of(models: Mapping[str, nn.Module], batch: Any) -> dict[str, Any]:
    inputs, target = batch
    logits = models["student"](inputs)
    loss = cross_entropy(logits, target) + (logits - models["teacher"](inputs)).square().mean()
    return {"loss": loss, "logits": logits, "target": target}


@pytest.fixture
def student(trained: Trained) -> RunDir:
    return trained(*MODELS, 'hooks.pupil={use="ema", args={model="student"}}')


def test_the_student_trains_as_in_a_plain_loop(student: RunDir) -> None:
    torch.manual_seed(0)
    models = {"teacher": Net(), "student": Net()}
    models["teacher"].requires_grad_(False).eval()
    optimizer = torch.optim.SGD(models["student"].parameters(), lr=0.1, momentum=0.9)
    data = Points(0, torch.device("cpu"))
    losses = {}
    for epoch in range(3):
        for step, batch in enumerate(data.epoch(epoch)):
            loss = outputs_of(models, batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[5 * epoch + step + 1] = loss.item()
    values = logged(student, "loss")
    assert len(values) > 5
    assert values == {it: loss for it, loss in losses.items() if it in values}
    saved = read_weights(student.checkpoints / "last", "model_student")
    assert_same(saved, dict(models["student"].state_dict()))
    statistics = read_weights(student.checkpoints / "last", "model_teacher")
    assert_same(statistics, dict(models["teacher"].named_buffers()))


def test_checkpoints_leave_the_teacher_out_and_nothing_of_the_student(student: RunDir) -> None:
    (line,) = [text for text in messages(student) if "is frozen" in text]
    assert f'"teacher" is frozen: its {sum(p.numel() for p in Net().parameters())} weights' in line
    for name in ("last", "best"):
        checkpoint = student.checkpoints / name
        for part in ("model_student", "model_pupil"):
            assert set(read_weights(checkpoint, part)) >= PARAMETERS
        assert not PARAMETERS & set(read_weights(checkpoint, "model_teacher"))
        of_all = set(read_weights(checkpoint, "model_ema"))
        assert of_all >= {f"student.{name}" for name in PARAMETERS}
        assert not of_all & {f"teacher.{name}" for name in PARAMETERS}
    layers: Any = records(student, "run")[0]["layers"]
    assert [layer["trainable"] > 0 for layer in layers] == [False] * 3 + [True] * 3


def test_a_checkpoint_without_the_teacher_is_evaluated_with_it(student: RunDir) -> None:
    best = RecordedRun(student).checkpoint("best")
    measured = {
        record["it"]: record["v"]
        for record in records(student, "metrics")
        if record["split"] == "val"
    }
    printed = invoke("val", best.path, "--format", "json")
    assert f'"accuracy": {measured[best.iter]["accuracy"]}' in printed  # type: ignore[index]


@pytest.mark.parametrize("frozen", [None, False, True])
def test_a_run_with_a_teacher_is_resumed_to_the_bit(
    resumes_alike: NewRun, frozen: bool | None
) -> None:
    argument = [] if frozen is None else [f"hooks.checkpoint.args.frozen={str(frozen).lower()}"]
    run_dir = resumes_alike(*MODELS, *argument, point="after_train_iter", at=8)
    there = PARAMETERS & set(read_weights(run_dir.checkpoints / "last", "model_teacher"))
    assert there == (PARAMETERS if frozen else set())
    assert set(read_weights(run_dir.checkpoints / "last", "model_student")) >= PARAMETERS


def test_what_a_hook_changes_in_it_is_saved_and_comes_back(resumes_alike: NewRun) -> None:
    follows = f'hooks.follows={{use="{__file__}:follow", points=["after_train_iter"]}}'
    run_dir = resumes_alike(*MODELS, follows, point="after_train_iter", at=8)
    assert set(read_weights(run_dir.checkpoints / "last", "model_teacher")) >= PARAMETERS


def follow(run: Any) -> None:
    """Let the teacher be an average of the student."""
    with torch.no_grad():
        for own, other in zip(
            run.models["teacher"].parameters(), run.models["student"].parameters(), strict=True
        ):
            own.lerp_(other, 0.1)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.frozen=true"], "[model] is frozen, and no other model is left to train"),
        (
            [MODELS[0].replace('Net"}', 'Net", frozen=true}')],
            "[model.teacher] is frozen, and no other",
        ),
        (
            [
                MODELS[0],
                'optimizer={teacher={use="torch.optim:SGD"}, student={use="torch.optim:SGD"}}',
            ],
            '[optimizer.teacher] trains the model "teacher", which is frozen',
        ),
    ],
)
def test_what_would_train_nothing_is_refused(overrides: list[str], expected: str) -> None:
    options = [part for override in overrides for part in ("--set", override)]
    text = refused("check", TOY, *options)
    assert expected in text
