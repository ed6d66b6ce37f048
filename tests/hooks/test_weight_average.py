"""The averages of the weights in public: `run.average`, `--average` of val, test and predict,
`export --weights`.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hookflow import Hook
from hookflow.events.rundir import RunDir
from tests.conftest import Done, Trained, hookflow_here, reason, records, train_toy
from tests.runner.same import assert_same, final_state, logged
from tests.support.own_tasks import StepOnly
from tests.support.toy import Net, Points

SWA = 'hooks.swa={use="swa", args={begin=0, every=1}, ambiguous_with=["ema"]}'
SAMPLES = 'hooks.samples={use="tests.hooks.test_weight_average:Samples", phase="last"}'


INPUTS = torch.linspace(-1, 1, 24).reshape(6, 4)


def output_of(model: torch.nn.Module, weights: dict[str, Tensor]) -> Tensor:
    """Return what another network of the same kind computes in evaluation, with these weights."""
    other = deepcopy(model)
    other.load_state_dict({**other.state_dict(), **weights})
    dtype = next(other.parameters()).dtype
    with torch.no_grad():
        return other.eval()(INPUTS.to(dtype))  # type: ignore[no-any-return]


def sampled(run: Any, name: str | None) -> Tensor:
    with run.average(name):
        assert not run.model.training
        return run.model(INPUTS.to(next(run.model.parameters()).dtype))  # type: ignore[no-any-return]


class Samples(Hook):
    """Looks at many points whether each average gives what a network with its tensors does;
    logs how often it has.
    """

    reads = ("model",)

    def __init__(self) -> None:
        self.tensors: dict[str | None, dict[str, Tensor]] = {}
        self.count = 0

    def _look(self, run: Any) -> None:
        outputs = {name: output_of(run.model, tensors) for name, tensors in self.tensors.items()}
        training = run.model.training
        for name, output in outputs.items():
            assert torch.equal(sampled(run, name), output), name
            with run.average("ema"), run.average(name):
                assert torch.equal(run.model(INPUTS.to(output.dtype)), output), "within another one"
        assert run.model.training == training
        self.count += 1

    def _remember(self, run: Any) -> None:
        """Copy the tensors of the averages and of the network,
        where all of them are in their own places.
        """
        averages = {
            name: hook.average for name, hook in run.hooks.items() if hasattr(hook, "has_average")
        }
        self.tensors = {None: run.model.state_dict(), **averages}
        for name, tensors in self.tensors.items():
            self.tensors[name] = {key: tensor.clone() for key, tensor in tensors.items()}

    def before_train_iter(self, run: Any) -> None:
        self._remember(run)
        self._look(run)

    def after_forward(self, run: Any) -> None:
        self._remember(run)  # a forward pass has changed the statistics of batch norms
        self._look(run)

    def before_backward(self, run: Any) -> None:
        self._look(run)

    def after_backward(self, run: Any) -> None:
        self._look(run)

    def after_train_iter(self, run: Any) -> None:
        self._remember(run)
        self._look(run)

    def before_val_iter(self, run: Any) -> None:
        self._look(run)

    def after_val_iter(self, run: Any) -> None:
        self._look(run)

    def after_val(self, run: Any) -> None:
        self._look(run)

    def after_run(self, run: Any) -> None:
        run.log("looked", self.count)


class SamplingTask(StepOnly):
    """Samples from the average between its forward pass and the backward pass."""

    def __init__(self, name: str = "ema") -> None:
        self.name = name

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        outputs = super().step(run, batch)
        if run.model.training:
            sampled(run, self.name)
        return outputs


def weights_of(run_dir: RunDir) -> dict[str, Any]:
    state = final_state(run_dir)
    return {name: state[name] for name in ("model", "model_ema", "optimizer")}


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_each_average_is_in_place_where_a_hook_wants_it(trained: Trained, precision: str) -> None:
    """The training goes on as if nothing had been, to the bit."""
    keys = (
        f"run.precision='{precision}'",
        "run.device='cpu'",
        "run.max_epochs=1",
        "run.sanity=false",
        SWA,
    )
    run_dir = trained(*keys, SAMPLES)
    (looked,) = logged(run_dir, "looked").values()
    assert looked == 5 * 5 + 2 * 2 + 1
    assert_same(weights_of(run_dir), weights_of(trained(*keys)))


def test_a_task_samples_between_its_passes(trained: Trained) -> None:
    keys = "run.max_epochs=1", "run.precision='bf16'"
    run_dir = trained('task={use="tests.hooks.test_weight_average:SamplingTask"}', *keys)
    assert_same(
        weights_of(run_dir), weights_of(trained('task={use="./own_tasks.py:StepOnly"}', *keys))
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hooks.ema.args.decay=0.9", 'there is no average "emma"; did you mean "ema"?'),
        ("hooks.ema.enabled=false", 'there is no average "emma"; no hook keeps one'),
    ],
)
def test_an_average_that_is_not_there_is_named(trained: Trained, override: str, said: str) -> None:
    task = 'task={use="tests.hooks.test_weight_average:SamplingTask", args={name="emma"}}'
    run_dir = trained(task, override, "run.sanity=false", code=2)
    assert all(part in reason(run_dir) for part in said.split("; "))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run with two averages, of which validations have that of `swa`: it is the inner one."""
    return train_toy(
        tmp_path_factory.mktemp("averages"), "run.max_epochs=2", "run.device='cpu'", SWA
    )


def command(run_dir: RunDir, name: str, *options: str, code: int = 0) -> Done:
    return hookflow_here(name, str(run_dir.path), *options, cwd=run_dir.path, code=code)


def measured(weights: dict[str, torch.Tensor], split: int) -> float:
    """Return the loss of the network with these weights, over all 16 examples of the split."""
    net = Net()
    net.load_state_dict(weights)
    points = Points(0, torch.device("cpu"), 16, 16, split)
    with torch.no_grad():
        return float(cross_entropy(net.eval()(points.inputs), points.target))


@pytest.mark.parametrize("name", ["val", "test"])
@pytest.mark.parametrize("average", ["none", "ema", "swa"])
def test_a_command_evaluates_the_average_that_it_names(
    run: RunDir, name: str, average: str
) -> None:
    printed = json.loads(command(run, name, "--average", average, "--format", "json").stdout)
    entry: Any = final_state(run)["model" if average == "none" else f"model_{average}"]
    assert printed["metrics"]["loss"] == pytest.approx(
        measured(entry, 1 if name == "val" else 2), rel=1e-6
    )


def test_without_the_option_it_is_as_in_the_training(run: RunDir) -> None:
    (*_, recorded) = [record["v"] for record in records(run, "metrics") if record["split"] == "val"]
    assert json.loads(command(run, "val", "--format", "json").stdout)["metrics"] == recorded


def test_a_prediction_has_the_average_that_it_names(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "rows.pt"
    command(run, "predict", "--average", "ema", "--out", str(out))
    net = Net()
    net.load_state_dict(final_state(run)["model_ema"])  # type: ignore[arg-type]
    points = Points(0, torch.device("cpu"), 16, 16, 2)
    with torch.no_grad():
        expected = net.eval()(torch.cat([inputs for inputs, _ in points.epoch(0)]))
    torch.testing.assert_close(torch.load(out, weights_only=True)["logits"], expected)


@pytest.mark.parametrize(
    ("average", "entry"), [(None, "model"), ("none", "model"), ("ema", "model_ema")]
)
@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_export_writes_the_weights_that_it_names(
    run: RunDir, tmp_path: Path, average: str | None, entry: str, ending: str
) -> None:
    file = tmp_path / f"weights{ending}"
    options = [] if average is None else ["--average", average]
    done = command(run, "export", "--weights", str(file), *options)
    if ending == ".pt":
        written = torch.load(file, weights_only=True)
    else:
        written = pytest.importorskip("safetensors.torch").load_file(file)
    assert_same(dict(written), dict(final_state(run)[entry]))  # type: ignore[call-overload]
    assert ("model_ema.pt" in done.stderr) == (average is None), (
        "what is validated is said where nothing is chosen"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["val", "--average", "emma"], 'there is no average "emma"\n    did you mean "ema"?'),
        (
            ["export", "--weights", "w.pt", "--average", "emma"],
            'has no average "emma"\n    did you mean "ema"?',
        ),
        (["export", "--weights", "w.onnx"], "use .pt or .safetensors"),
        (["export", "--weights", "nowhere/w.pt"], "cannot be written: No such file or directory"),
        (
            ["export", "--weights", "nowhere/w.safetensors"],
            "cannot be written: No such file or directory",
        ),
        (["export", "--weights", "w.pt", "--format", "csv"], "--weights writes a file of its own"),
        (["export", "--average", "ema"], "add --weights FILE"),
        (["export", "--weights", "none/w.pt"], "cannot be written: No such file"),
    ],
)
def test_mistakes(run: RunDir, arguments: list[str], said: str) -> None:
    name, *options = arguments
    assert said in command(run, name, *options, code=2).stderr


def test_an_average_that_has_not_begun_is_not_evaluated(trained: Trained) -> None:
    run_dir = trained("run.max_epochs=1", 'hooks.ema.args.begin="3ep"')
    assert 'has no average "ema"' in command(run_dir, "val", "--average", "ema", code=2).stderr
    command(run_dir, "val", "--average", "none")
