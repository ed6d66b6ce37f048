"""Several models and optimizers, or several optimizers on one model,
and their groups of parameters.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import hookflow
from hookflow.errors import UserError, Where
from hookflow.events.rundir import RunDir
from hookflow.pipeline.components import ParamGroup
from hookflow.runner.model.selectors import param_groups, scale_groups
from tests.conftest import TESTS, TOY, NewRun, Trained, messages, reason, refusal
from tests.runner.same import assert_same, curve, final_state
from tests.support.gan import Adversarial, Discriminator, Generator
from tests.support.golden_files import check_golden
from tests.support.plain_training import NET, OFF, by_hand, sgd
from tests.support.toy import Net, Tied

GAN = (TOY.read_text(), (TESTS / "support" / "gan.toml").read_text())


class Clumsy(Adversarial):
    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        match self.mistake:
            case "name":
                run.step("genrator")
            case "one":
                run.optimizer.step()
            case "should_stop" | "model":
                setattr(run, self.mistake, True)
            case "by itself":
                for optimizer in run.optimizers.values():
                    optimizer.step()
                return {}
        return super().step(run, batch)


class NoEvaluation:
    steps_itself = True

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        raise AssertionError("nobody calls this")


class Steps:
    def after_train_iter(self, run: Any) -> None:
        run.step("generator")


class Norms:
    def before_optimizer_step(self, run: Any) -> None:
        whose = [name for name in run.models if run.model_being_updated(name) is not None]
        norms = {name: _norm(model) for name, model in run.models.items()}
        run.say(
            f"{run.iter} {' '.join(whose)} {' '.join(name for name, norm in norms.items() if norm)}"
        )


def _norm(model: nn.Module) -> float:
    return sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)


class Looks(Adversarial):
    def step(self, run: Any, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        before = self.judged(run, batch[0], 1.0)
        run.backward(before, "discriminator")
        run.step("discriminator")
        after = self.judged(run, batch[0], 1.0)
        # Later the steps are too small for bf16.
        assert run.iter or not torch.equal(before, after), "the old weights"
        return {}


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
        "discriminator_loss", "generator_loss", "grad_norm/generator", "lr/generator",
        "lr/discriminator", "told_apart",
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
    gan('task={use="tests.runner.test_optimizers:Looks"}', linear, *more)


def test_a_loss_reaches_the_parameters_of_its_optimizer_alone(gan: Trained) -> None:
    said = messages(
        gan(
            'hooks.norms={use="tests.runner.test_optimizers:Norms"}',
            "run.max_epochs=1",
            "hooks.clip.enabled=false",
        )
    )
    assert said[:4] == [
        "0 discriminator discriminator",
        "1 discriminator discriminator",
        # Whose gradients are those that its own step has used.
        "1 generator generator discriminator",
        "2 discriminator generator discriminator",
    ]


def test_the_trace(gan: Trained, tmp_path: Path) -> None:
    tracer = (
        'hooks.tracer={use="./common_hooks.py:Tracer", phase="last",'
        f' args={{file="{tmp_path / "trace"}"}}, '
    )
    picked = 'modules=["generator.1"], parameters=["generator.1.bias"]}'
    gan(tracer + picked, "data.train.args={examples=16}", "run.max_epochs=1")
    check_golden("trace_steps_itself.txt", (tmp_path / "trace").read_text())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            'task={use="tests.runner.test_optimizers:Clumsy", args={mistake="name"}}',
            'no optimizer "genrator"; did you mean "generator"?',
        ),
        (
            'task={use="tests.runner.test_optimizers:Clumsy", args={mistake="one"}}',
            "several optimizers, and run.optimizer means one",
        ),
        (
            'task={use="tests.runner.test_optimizers:Clumsy", args={mistake="should_stop"}}',
            "run.should_stop cannot be set",
        ),
        (
            'task={use="tests.runner.test_optimizers:Clumsy", args={mistake="model"}}',
            "run.model cannot be set",
        ),
        ('task={use="tests.runner.test_optimizers:NoEvaluation"}', "defines no evaluate"),
        (
            'hooks.steps={use="tests.runner.test_optimizers:Steps"}',
            "run.step is for the step of a task that steps its optimizers itself",
        ),
        (
            "run.accumulate=2",
            "run.accumulate says when the optimizers step, and this task steps them itself",
        ),
        (
            'hooks.clip.args.model="genrator"',
            'there is no model "genrator"; did you mean "generator"?',
        ),
        ('model.train={use="./gan.py:Generator"}', 'no model can be called "train"'),
        ('optimizer.generator.groups=[{match="*.weigth"}]', '"*.weigth" matches no parameter'),
    ],
)
def test_mistakes(gan: Trained, override: str, said: str) -> None:
    run_dir = gan(override, code=2)
    assert all(part in reason(run_dir) for part in said.split("; ")), (
        "the line that is at fault stands between them"
    )


def test_a_task_that_steps_without_the_run_is_a_warning(gan: Trained) -> None:
    lines = messages(
        gan('task={use="tests.runner.test_optimizers:Clumsy", args={mistake="by itself"}}'), "warn"
    )
    assert sum("not called run.step" in line for line in lines) == 1
    assert not any("run.step" in line for line in messages(gan(), "warn"))


def test_a_batch_may_be_none(tmp_path: Path) -> None:
    """A task that makes its own data is given nothing, and steps its optimizers itself."""
    net = nn.Linear(1, 1)

    class Steps:
        steps_itself = True

        def step(self, run: Any, batch: Any) -> dict[str, Any]:
            assert batch is None
            loss = run.model(torch.ones(2, 1)).square().mean()
            run.backward(loss)
            run.step()
            return {"loss": loss}

        def batch_size(self, batch: Any) -> int:
            return 2

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pipeline = {
        "run": {"name": "none", "max_iters": 3, "device": "cpu"},
        "model": {"use": net},
        "optimizer": {"use": lambda params: optimizer},
        "task": {"use": Steps()},
        "data": {"train": {"use": [None] * 3}},
    }
    before = net.weight.detach().clone()
    run = hookflow.train(pipeline, "none", runs=tmp_path)
    assert run.status == "finished"
    assert not torch.equal(net.weight, before), "the optimizer that exists has trained it"


def test_each_of_several_steps_has_norms_of_its_own(gan: Trained) -> None:
    both = 'hooks.clip={use="grad_clip", args={max_norm=0.5}}'
    logged = Counter(
        name for *_, name in curve(gan(both, 'hooks.norms={use="grad_norm"}', "run.max_epochs=1"))
    )
    for model in ("generator", "discriminator"):
        assert logged[f"grad_norm/{model}"] == logged[f"grad_norm/{model}.total"] > 0
    assert not {"grad_norm", "grad_norm/total"} & {*logged}


def test_one_optimizer_of_several_models_steps_them_together(trained: Trained) -> None:
    toy, text = GAN
    models, rest = text.split("[optimizer.generator]")
    data = rest[rest.index("[data.train]") : rest.index("[hooks.clip]")]
    one = (
        '[optimizer]\nuse = "torch.optim:SGD"\nargs = { lr = 0.01 }\n[task]\nuse ='
        ' "tests.support.gan:both"\n'
    )
    clip = '[hooks.clip]\nuse = "grad_clip"\nargs = { max_norm = 0.5 }\n'
    assert "grad_norm" in {
        name for *_, name in curve(trained(swap=(toy, models + one + data + clip)))
    }


ONE = '[optimizer]\nuse = "torch.optim:SGD"\nargs = { lr = 0.1, momentum = 0.9 }\n'
MUON = '[optimizer.muon]\nuse = "torch.optim:Muon"\nargs = {{ lr = 0.02 }}\n{}\n'
ADAMW = '[optimizer.adamw]\nuse = "torch.optim:AdamW"\nargs = {{ lr = 0.01 }}\n{}\n'
MATRICES = 'parameters = ["body.0.weight"]'


def muon_and_adamw(net: nn.Module) -> list[torch.optim.Optimizer]:
    parameters = dict(net.named_parameters())
    matrix = parameters.pop("body.0.weight")
    return [torch.optim.Muon([matrix], lr=0.02), torch.optim.AdamW([*parameters.values()], lr=0.01)]


def test_two_optimizers_share_a_model_as_in_pytorch(trained: Trained) -> None:
    swap = (ONE, MUON.format(MATRICES) + ADAMW.format(""))
    run_dir = trained(NET, "run.max_epochs=2", "hooks.clip.enabled=false", *OFF, swap=swap)
    assert_same(final_state(run_dir)["model"], by_hand(muon_and_adamw).state_dict())


@pytest.mark.parametrize(
    ("swap", "overrides"),
    [
        (GAN, []),
        ((ONE, MUON.format(MATRICES) + ADAMW.format("")), [NET, "hooks.schedule.enabled=false"]),
    ],
    ids=["of two models", "of one"],
)
def test_they_resume_to_the_bit(
    resumes_alike: NewRun, swap: tuple[str, str], overrides: list[str]
) -> None:
    resumes_alike(*overrides, point="after_train_iter", at=8, swap=swap)


@pytest.mark.parametrize(
    ("muon", "adamw", "message"),
    [
        (MATRICES, 'parameters = ["head.*"]', "no optimizer trains body."),
        (
            MATRICES,
            'parameters = ["*"]',
            r"\[optimizer.muon\] and \[optimizer.adamw\] both train body.0.weight",
        ),
        ('parameters = ["bodi.*"]', "", '"bodi.\\*" matches no parameter that trains'),
        ('parameters = ["type:Conv2d"]', "", '"type:Conv2d" matches no parameter that trains'),
    ],
)
def test_each_parameter_has_one_optimizer(
    trained: Trained, muon: str, adamw: str, message: str
) -> None:
    printed = reason(trained(NET, swap=(ONE, MUON.format(muon) + ADAMW.format(adamw)), code=2))
    assert re.search(message, printed), printed


@pytest.mark.parametrize(
    ("args", "clip"),
    [
        ("{clip_value=0.01}", lambda net: clip_grad_value_(net.parameters(), 0.01)),
        ("{max_norm=0.1, norm_type=1.0}", lambda net: clip_grad_norm_(net.parameters(), 0.1, 1.0)),
        (
            "{max_norm=0.05, norm_type=inf}",
            lambda net: clip_grad_norm_(net.parameters(), 0.05, float("inf")),
        ),
    ],
)
def test_gradients_are_bounded_as_by_pytorch(
    trained: Trained, args: str, clip: Callable[[nn.Module], object]
) -> None:
    run_dir = trained(NET, "run.max_epochs=2", f"hooks.clip.args={args}", *OFF)
    assert_same(final_state(run_dir)["model"], by_hand(sgd, clip).state_dict())


def test_a_bound_of_each_element_has_no_norm() -> None:
    assert (
        "norm_type belongs to max_norm"
        in refusal("hooks.clip.args={clip_value=1.0, norm_type=1.0}").message
    )


def names_of(*groups: dict[str, Any]) -> list[list[str]]:
    """Return the names of the parameters in each group of the toy net,
    and of those that are left.
    """
    net = Net()
    called = {id(p): name for name, p in net.named_parameters()}
    made, problems = param_groups([ParamGroup(**group) for group in groups], net, Where)
    assert not problems, problems
    return [[called[id(p)] for p in group["params"]] for group in made]


NORM, BODY = "body.1.weight body.1.bias", "body.0.weight body.0.bias"


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        *(
            ([{"match": match}], [NORM, f"{BODY} head.weight head.bias"])
            for match in (
                "type:BatchNorm1d",
                "type:_NormBase",
                "type:*Norm*",
                ["*.1.weight", "body.1.*"],
            )
        ),
        (
            [{"match": "type:Sequential"}, {"match": "*.bias"}],
            [f"{BODY} {NORM}", "head.bias", "head.weight"],
        ),
        (
            [{"match": ["type:*Norm*", "*.bias"]}],
            [f"{NORM} body.0.bias head.bias", "body.0.weight head.weight"],
        ),
    ],
)
def test_parameters_are_picked_by_name_and_by_type_of_modules(
    groups: list[dict[str, Any]], names: list[str]
) -> None:
    assert names_of(*groups) == [group.split() for group in names]


@pytest.mark.parametrize("match", ["head.*", "embed.*", "type:Linear"])
def test_tied_weights_are_picked_by_either_name_and_are_in_one_group(match: str) -> None:
    net = Tied()
    made, problems = param_groups([ParamGroup(match=match)], net, Where)
    assert not problems
    groups = [list(map(id, group["params"])) for group in made]
    tied, others = [id(net.head.weight)], [id(net.middle.weight), id(net.middle.bias)]
    assert groups == ([tied, others] if match != "type:Linear" else [tied + others])


def test_settings_are_scaled_before_a_schedule_sees_them(trained: Trained) -> None:
    groups = 'optimizer.groups=[{match=["type:*Norm*", "*.bias"], scale={lr=0.1, momentum=0.5}}]'
    run_dir = trained(groups, "run.max_epochs=1")
    state: Any = final_state(run_dir)["optimizer"]
    (first, last), begins = state["param_groups"], 0.1
    assert (first["initial_lr"], first["momentum"]) == (begins * 0.1, 0.45)
    assert (last["initial_lr"], last["momentum"]) == (begins, 0.9)
    assert first["lr"] == pytest.approx(last["lr"] * 0.1)


def test_what_no_group_can_scale_or_find_is_told_with_the_nearest(new_run: NewRun) -> None:
    groups = [ParamGroup(match="*.bias", scale={"momentun": 0.1})]
    optimizer = torch.optim.SGD(param_groups(groups, Net(), Where)[0], lr=0.5)
    with pytest.raises(UserError, match='SGD has no number "momentun" to scale') as raised:
        scale_groups(optimizer, groups, Where)
    assert raised.value.problems[0].where == Where("0.scale.momentun")
    assert 'did you mean "momentum"?' in raised.value.problems[0].hint
    with pytest.raises(UserError, match='"lr" is given in args, too'):
        new_run('optimizer.groups=[{match="*.bias", args={lr=1}, scale={lr=2}}]')
    _, (problem,) = param_groups([ParamGroup(match="type:BatchNorm2d")], Net(), Where)
    assert "matches no parameter that trains" in problem.message
    assert problem.where == Where("0.match")
    assert "BatchNorm1d" in problem.hint
