"""Several models and optimizers, and a task that steps them itself."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from tests.conftest import TESTS, TOY, Train, Trained, messages, reason, strike
from tests.gan import Discriminator, Generator
from tests.golden_files import check_golden
from tests.runner.same import assert_same_end, curve

GAN = (TOY.read_text(), (TESTS / "gan.toml").read_text())


@pytest.fixture
def gan(trained: Trained) -> Trained:
    """Train a new run of two models with optimizers of their own."""
    return partial(trained, swap=GAN)


def weights(run_dir: RunDir, name: str) -> dict[str, torch.Tensor]:
    return torch.load(run_dir.checkpoints / "last" / f"{name}.pt", weights_only=True)  # type: ignore[no-any-return]


def test_it_trains_and_each_model_has_a_file_of_its_own(gan: Trained) -> None:
    run_dir = gan()
    logged = {name for *_, name in curve(run_dir)}
    assert logged == {
        "discriminator_loss", "generator_loss", "grad_norm/generator", "lr/generator", "lr/discriminator", "told_apart",
    }  # fmt: skip
    Generator().load_state_dict(weights(run_dir, "model_generator"))
    Discriminator().load_state_dict(weights(run_dir, "model_discriminator"))
    Generator().load_state_dict(average := weights(run_dir, "model_ema"))
    assert not torch.equal(average["0.weight"], weights(run_dir, "model_generator")["0.weight"])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_step_is_seen_by_the_next_forward_pass(gan: Trained, precision: str) -> None:
    """What autocast keeps of the weights in half precision must not outlive a step."""
    linear = 'model.discriminator={use="torch.nn:Linear", args={in_features=4, out_features=1}}'
    more = f"run.precision='{precision}'", "run.device='cpu'", "optimizer.discriminator.args.lr=1.0"
    gan('task={use="./gan.py:Looks"}', linear, *more)


def test_it_resumes_to_the_bit(gan: Trained, train_here: Train, tmp_path: Path) -> None:
    often = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}]'
    alone, cut = gan(often), gan(often, strike(tmp_path, 8), code=143)
    assert train_here(cut, resume=True) == 0
    assert_same_end(alone, cut)


def test_a_loss_reaches_the_parameters_of_its_optimizer_alone(gan: Trained) -> None:
    said = messages(gan('hooks.norms={use="./gan.py:Norms"}', "run.max_epochs=1", "hooks.clip.enabled=false"))
    assert said[:4] == [
        "0 discriminator discriminator",
        "1 discriminator discriminator",
        "1 generator generator discriminator",  # whose gradients are those that its own step has used
        "2 discriminator generator discriminator",
    ]


def test_the_trace(gan: Trained, tmp_path: Path) -> None:
    tracer = f'hooks.tracer={{use="./watchers.py:Tracer", phase="last", args={{file="{tmp_path / "trace"}"}}, '
    picked = 'modules=["generator.1"], parameters=["generator.1.bias"]}'
    gan(tracer + picked, "data.train.args={examples=16}", "run.max_epochs=1")
    check_golden("trace_steps_itself.txt", (tmp_path / "trace").read_text())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('task={use="./gan.py:Clumsy", args={mistake="name"}}', 'no optimizer "genrator"; did you mean "generator"?'),
        ('task={use="./gan.py:Clumsy", args={mistake="one"}}', "several optimizers, and run.optimizer means one"),
        ('task={use="./gan.py:NoEvaluation"}', "defines no evaluate"),
        ('hooks.steps={use="./gan.py:Steps"}', "run.step is for the step of a task that steps its optimizers itself"),
        ("run.accumulate=2", "run.accumulate says when the optimizers step, and this task steps them itself"),
        ('hooks.clip.args.model="genrator"', 'there is no model "genrator"; did you mean "generator"?'),
        ('model.train={use="./gan.py:Generator"}', 'no model can be called "train"'),
        ('optimizer.generator.groups=[{match="*.weigth"}]', '"*.weigth" matches no parameter'),
    ],
)
def test_mistakes(gan: Trained, override: str, said: str) -> None:
    run_dir = gan(override, code=2)
    assert all(part in reason(run_dir) for part in said.split("; ")), "the line that is at fault stands between them"


def test_each_of_several_steps_has_norms_of_its_own(gan: Trained) -> None:
    both = 'hooks.clip={use="grad_clip", args={max_norm=0.5}}'
    logged = Counter(name for *_, name in curve(gan(both, 'hooks.norms={use="grad_norm"}', "run.max_epochs=1")))
    for model in ("generator", "discriminator"):
        assert logged[f"grad_norm/{model}"] == logged[f"grad_norm/{model}.total"] > 0
    assert not {"grad_norm", "grad_norm/total"} & {*logged}


def test_one_optimizer_of_several_models_steps_them_together(trained: Trained) -> None:
    toy, text = GAN
    models, rest = text.split("[optimizer.generator]")
    data = rest[rest.index("[data.train]") : rest.index("[hooks.clip]")]
    one = '[optimizer]\nuse = "torch.optim:SGD"\nargs = { lr = 0.01 }\n[task]\nuse = "./gan.py:both"\n'
    clip = '[hooks.clip]\nuse = "grad_clip"\nargs = { max_norm = 0.5 }\n'
    assert "grad_norm" in {name for *_, name in curve(trained(swap=(toy, models + one + data + clip)))}
