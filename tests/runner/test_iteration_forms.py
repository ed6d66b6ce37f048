"""The forms of an iteration do the same, a group of batches is one big batch,
and every point fires in its order.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from hookflow.events.rundir import RunDir
from hookflow.graph import points
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.runner.iteration.iteration import AccumulatedIteration, Iterate, choose_iteration
from hookflow.runner.loop import trainer
from hookflow.zoo.tasks import Classification
from tests.conftest import TESTS, TOY, NewRun, Train, Trained, messages, records, strikes
from tests.runner.same import assert_same_end, curve
from tests.support.common_hooks import POINTS as WATCHED
from tests.support.golden_files import FOLDER, check_golden
from tests.support.toy import Points

MAIN = "tests.runner.test_iteration_forms"
GAN = TESTS / "support" / "gan.toml"
ITERATIONS = ("max_epochs = 3", "max_iters = 7")
RAISES = 'hooks.raises={use="./common_hooks.py:Raises", args={at=3}, on_error="%s"}'
IN_MODULES = 'hooks.scales={use="./common_hooks.py:halves", points=["forward"], modules=["head"]}'
WHEN = 'hooks.told={use="./common_hooks.py:tells", points=["after_forward"], when="loss < 0.9"}'


def sees_logits(run: Any, outputs: dict[str, torch.Tensor]) -> None:
    run.say(f"logits {outputs['logits'].min().item()} to {outputs['logits'].max().item()}")


class Sees:
    def __init__(self, file: str) -> None:
        self.file = Path(file)


def _sees(point: str) -> Any:
    def method(self: Sees, run: Any) -> None:
        place = (
            f"{run.stage} iter={run.iter} epoch={run.epoch} batch={run.batch_idx}"
            f" size={run.batch_size}"
        )
        with self.file.open("a") as file:
            file.write(f"{point} {place} skipped={run.step_skipped} gradients={_gradients(run)}\n")

    return method


def _gradients(run: Any) -> int:
    return sum(parameter.grad is not None for parameter in run.model.parameters())


for _point in DEFAULT_POINTS:
    if not _point.nested:
        setattr(Sees, _point.name, _sees(_point.name))


class Enters:
    """Enters an iteration, its backward pass and its step, and leaves them."""

    def around_train_iter(self, run: Any) -> Iterator[None]:
        run.say(f"iteration: in at {run.iter}, {run.batch_idx}")
        yield
        run.say(f"iteration: out at {run.iter}, {run.batch_idx}")

    def around_backward(self) -> Iterator[None]:
        yield

    def around_optimizer_step(self, run: Any) -> Iterator[None]:
        run.say(f"step: in at {run.iter}, {run.batch_idx}")
        yield
        run.say(f"step: out at {run.iter}, {run.batch_idx}")


class Steering(Classification):
    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        if run.iter == 1:
            run.skip_step()
        if run.iter == 3:
            run.stop_epoch("as told")
        return super().step(run, batch)


class Wraps:
    """Counts the steps of the optimizer by a wrapper around it, as PyTorch's schedulers do."""

    def __init__(self) -> None:
        self.steps = 0

    def before_train(self, run: Any) -> None:
        step = run.optimizer.step

        def counted() -> None:
            self.steps += 1
            step()

        run.optimizer.step = counted

    def after_train(self, run: Any) -> None:
        run.say(f"{self.steps} steps in {run.iter} iterations")


class Keeps(Classification):
    """Says in each iteration whether the outputs of the last one are still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.last: ref[Tensor] | None = None

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        assert self.last is None or self.last() is None, "in memory"
        outputs = super().step(run, batch)
        self.last = ref(outputs["logits"])
        return outputs


class Worsens(Classification):
    def step(self, run: Any, batch: Any) -> Any:
        return super().step(run, batch) if run.iter < 2 else None


class Nothings(Points):
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        yield from [None] * (len(self) - start)


class Makes(Classification):
    def batch_size(self, batch: None) -> int:
        return 8

    def step(self, run: Any, batch: None) -> dict[str, Any]:
        return super().step(run, (torch.rand(8, 4), torch.zeros(8, dtype=torch.int64)))

    evaluate = step


def forced(*parts: Any) -> Iterate:
    assert not isinstance(choose_iteration(*parts), AccumulatedIteration), (
        "the pipeline is none for the plain form"
    )
    return AccumulatedIteration(*parts)


def one_loss() -> str:
    text = GAN.read_text().replace("Adversarial", "both")
    return text[: text.index("[data.val]")] + text[text.index("[hooks.clip]") :]


def ended(
    new_run: NewRun, train: Train, trace: Path, text: str, override: str
) -> tuple[RunDir, str, list[object]]:
    """Train, and return the run, its trace, and how it ended."""
    see = f'hooks.sees={{use="{MAIN}:Sees", phase="last", args={{file="{trace}"}}}}'
    run_dir = new_run(see, override, swap=(TOY.read_text(), text))
    code = train(run_dir)
    (end,) = records(run_dir, "end")
    return run_dir, trace.read_text(), [code, end["status"], end["reason"]]


@pytest.mark.usefixtures("written_at_once")
@pytest.mark.parametrize(
    ("text", "override"),
    [
        pytest.param(TOY.read_text(), "run.val_every=1", id="epochs"),
        pytest.param(TOY.read_text().replace(*ITERATIONS), "run.val_every=2", id="iterations"),
        pytest.param(TOY.read_text(), 'run.precision="bf16"', id="bf16"),
        pytest.param(TOY.read_text(), 'run.on_nan="ignore"', id="a loss that nobody watches"),
        pytest.param(TOY.read_text(), f'task={{use="{MAIN}:Steering"}}', id="the task steers"),
        pytest.param(TOY.read_text(), RAISES % "raise", id="a hook raises"),
        pytest.param(TOY.read_text(), RAISES % "disable", id="a hook is switched off"),
        pytest.param(TOY.read_text(), f'hooks.enters={{use="{MAIN}:Enters"}}', id="a hook enters"),
        pytest.param(TOY.read_text(), IN_MODULES, id="hooks in modules"),
        pytest.param(TOY.read_text(), WHEN, id="a condition"),
        pytest.param(one_loss(), "run.val_every=1", id="two optimizers"),
    ],
)
def test_the_two_forms_do_the_same(
    new_run: NewRun,
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    override: str,
) -> None:
    plain, trace, end = ended(new_run, train_here, tmp_path / "plain", text, override)
    monkeypatch.setattr(trainer, "choose_iteration", forced)
    general, general_trace, general_end = ended(
        new_run, train_here, tmp_path / "general", text, override
    )
    assert trace == general_trace
    assert end == general_end
    assert curve(plain) == curve(general)
    assert messages(plain) == messages(general)
    if end[0] == 0:
        assert_same_end(plain, general)


def test_an_optimizer_that_a_hook_wraps_is_called_by_its_wrapper(trained: Trained) -> None:
    assert "15 steps in 15 iterations" in messages(trained(f'hooks.wraps={{use="{MAIN}:Wraps"}}'))


@pytest.mark.parametrize("form", [choose_iteration, forced])
def test_the_outputs_of_an_iteration_are_gone_when_the_next_one_is_computed(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, form: Callable[..., Iterate]
) -> None:
    monkeypatch.setattr(trainer, "choose_iteration", form)
    trained(f'task={{use="{MAIN}:Keeps"}}')


@pytest.mark.parametrize(
    "override",
    [
        WHEN,
        'hooks.sees={use="tests.runner.test_iteration_forms:sees_logits",'
        ' points=["after_forward"]}',
    ],
)
def test_a_task_that_returns_no_loss_later_on_is_told_so(trained: Trained, override: str) -> None:
    run_dir = trained(f'task={{use="{MAIN}:Worsens"}}', override, code=2)
    assert "step has returned None" in str(records(run_dir, "end"))


@pytest.mark.parametrize(
    "override", ["run.on_nan='raise'", "run.on_nan='skip'", "run.accumulate=2"]
)
def test_batches_of_none_are_for_a_task_that_makes_its_own(trained: Trained, override: str) -> None:
    data = ", ".join(f'{split}={{use="{MAIN}:Nothings"}}' for split in ("train", "val", "test"))
    run_dir = trained(
        f"data={{{data}}}", f'task={{use="{MAIN}:Makes"}}', "run.max_epochs=2", override
    )
    assert [record["v"]["loss"] > 0 for record in records(run_dir, "metrics")] == [True, True]


PLAIN = 'model={use="./own_tasks.py:Plain"}'  # batch norm and dropout see the small batches
EACH = 'hooks.log.points=["after_train_iter"]'


def one_of(run_dir: RunDir, name: str) -> dict[tuple[object, object, str], float]:
    return {key: value for key, value in curve(run_dir).items() if key[-1] == name}


@pytest.mark.parametrize(
    ("examples", "batch", "accumulate", "big"),
    [(48, 4, 4, 16), (40, 4, 4, 16), (46, 5, 3, 15)],
    ids=["even", "last group incomplete", "last batch smaller too"],
)
def test_it_is_one_big_batch(
    trained: Trained, examples: int, batch: int, accumulate: int, big: int
) -> None:
    data = "data.train.args={{examples={}, batch_size={}, whole=true}}".format
    small = trained(PLAIN, EACH, data(examples, batch), f"run.accumulate={accumulate}")
    large = trained(PLAIN, EACH, data(examples, big))
    assert curve(small).keys() == curve(large).keys()
    for name in ("loss", "grad_norm", "lr", "accuracy"):
        assert one_of(small, name) == pytest.approx(one_of(large, name), rel=2e-4), name
    assert (
        records(small, "run")[0]["iters_per_epoch"] == records(large, "run")[0]["iters_per_epoch"]
    )


def test_a_skipped_batch_counts_for_nothing(trained: Trained) -> None:
    """The first of five batches is left out; the step is that of the other four, as one batch."""
    args = '{call="skip_batch", point="before_train_iter", at=0}'
    steers = f'hooks.steers={{use="./common_hooks.py:Steers", args={args}, writes=["control"]}}'
    small = trained(PLAIN, EACH, steers, "run.accumulate=5", "run.max_epochs=1")
    rest = trained(
        PLAIN, EACH, "run.max_epochs=1", "data.train.args={batch_size=32, begin=8, whole=true}"
    )
    for name in ("loss", "grad_norm"):
        assert one_of(small, name) == pytest.approx(one_of(rest, name), rel=2e-4), name


IN_BACKWARD = 'hooks.bad={use="./common_hooks.py:Fails", args={place="full_backward"}}'
TRACED = 'hooks.tracer={use="./common_hooks.py:%s", phase="last", args={file="%s"}}'
SHORT = (
    "data.train.args={examples=16}",
    "data.val.args={examples=8,split=1}",
    "data.test.args={examples=8,split=2}",
)
GROUPS = ["run.accumulate=2", "data.train.args.examples=24", "data.val.args.examples=16"]
OFF = [f"hooks.{hook}.enabled=false" for hook in ("checkpoint", "throughput", "log")]
BY_EPOCHS, BY_ITERATIONS = "max_epochs = 2", "max_iters = 5"
OWN = (
    'points={before_grow={follows="after_optimizer_step"}, '
    'after_densify={follows="before_grow", offers=["count"]}, after_grow={follows="after_densify"}}'
)


@pytest.mark.usefixtures("written_at_once")
@pytest.mark.parametrize(
    ("name", "length", "overrides"),
    [
        ("trace_epochs", BY_EPOCHS, ["run.test=true"]),
        ("trace_iterations", BY_ITERATIONS, ["run.val_every=2"]),
        ("trace_accumulate", "max_epochs = 1", [*GROUPS, *OFF]),
        (
            "trace_exception",
            BY_EPOCHS,
            ['hooks.raises={use="./common_hooks.py:Raises", args={at=3}}'],
        ),
        ("trace_exception_in_module", BY_EPOCHS, [IN_BACKWARD]),
        ("trace_own", "max_epochs = 1", [OWN, 'hooks.densify={use="./common_hooks.py:Densifies"}']),
    ],
)
def test_the_trace_is_golden(
    trained: Trained, tmp_path: Path, name: str, length: str, overrides: list[str]
) -> None:
    tracer = TRACED % ("OwnTracer" if name == "trace_own" else "Tracer", tmp_path / "trace")
    trained(
        tracer,
        *SHORT,
        *overrides,
        swap=("max_epochs = 3", length),
        code=1 if "exception" in name else 0,
    )
    check_golden(f"{name}.txt", (tmp_path / "trace").read_text())


@pytest.mark.usefixtures("written_at_once")
@pytest.mark.parametrize(
    ("name", "length", "point", "at"),
    [
        ("trace_resumed_epochs", BY_EPOCHS, "after_backward", 2),
        ("trace_resumed_iterations", BY_ITERATIONS, "after_val_iter", 3),
    ],
)
def test_the_trace_of_a_run_that_was_interrupted_is_golden(
    trained: Trained, train_here: Train, tmp_path: Path, name: str, length: str, point: str, at: int
) -> None:
    tracer = TRACED % ("Tracer", tmp_path / "trace")
    more = [
        *strikes(tmp_path, 15, (point, at)),
        *(["run.val_every=3"] if length is BY_ITERATIONS else []),
    ]
    run_dir = trained(tracer, *SHORT, *more, swap=("max_epochs = 3", length), code=143)
    with (tmp_path / "trace").open("a") as file:
        file.write("--- resumed\n")
    assert train_here(run_dir, resume=True) == 0
    check_golden(f"{name}.txt", (tmp_path / "trace").read_text())


def trace(name: str) -> list[str]:
    return [line.split()[0] for line in (FOLDER / f"trace_{name}.txt").read_text().splitlines()]


def test_every_point_fires_in_the_listed_order_and_is_in_the_drawing() -> None:
    seen = {
        point
        for name in ("epochs", "exception", "resumed_epochs", "own", "predict_only")
        for point in trace(name)
    }
    assert seen - {"---"} == {point.name for point in WATCHED} | {
        "before_grow",
        "after_densify",
        "after_grow",
    }
    elsewhere = ("after_load_checkpoint", "on_exception", "on_log")
    listed = [
        point.name
        for point in WATCHED
        if point.name not in elsewhere and "predict" not in point.name
    ]
    assert list(dict.fromkeys(trace("epochs"))) == listed
    drawing = (
        str(points.__doc__).partition("This is the loop")[2].partition("What the counters say")[0]
    )
    drawn = re.findall(r"^ +((?:before|after|on)_\w+)", drawing, re.MULTILINE)
    assert drawn == [
        point.name for point in DEFAULT_POINTS if point.kind in ("standard", "step", "log")
    ]
