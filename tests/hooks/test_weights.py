"""Hooks on weights: `ema`, `swa`, `precise_bn`, `freeze`, `activation_checkpoint`,
`prune` and `sam`.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.graph.why import find_ambiguities
from hookflow.hooks.builtin import gradients
from hookflow.hooks.builtin.averaging import EMA, SWA, Average, PreciseBN
from hookflow.hooks.builtin.freeze import Freeze, Prune, frozen_norms, frozen_parameters
from hookflow.hooks.builtin.memory import ActivationCheckpoint, find_outermost_modules
from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.tensors import named_parameters
from hookflow.pipeline.by_epoch import EpochLengths
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.store import read
from hookflow.runner.iteration import update
from hookflow.zoo.tasks import Classification
from tests.conftest import TESTS, TOY, NewRun, Trained, messages, reason, records
from tests.hooks.stand_ins import StandIn
from tests.runner.same import assert_same, curve, final_state
from tests.support.data_loaders import a_list
from tests.support.plain_training import given_to_the_norm
from tests.support.toy import Net, Points, Tied


def trained(hook: Average, model: nn.Module, steps: int = 20) -> Iterator[Any]:
    """Let a hook watch a training of noise, and yield the run after each step."""
    torch.manual_seed(0)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.5), max_iters=steps)
    hook.name = "averaged"
    hook.before_train(run)
    for _ in range(steps):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor += torch.randn_like(tensor)
        if isinstance(hook, EMA):
            hook.after_optimizer_step(run)
        run.iter += 1
        if isinstance(hook, SWA):
            hook.after_train_iter(run)
        yield run


def floats(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.clone()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }


class TestEMA:
    @pytest.mark.parametrize(
        ("begin", "first", "gamma"), [(0, 0, 0.0), ("4it", 4, 3.0), ("1ep", 5, 3.0)]
    )
    def test_it_is_the_formula_from_begin_on(
        self, begin: int | str, first: int, gamma: float
    ) -> None:
        model, hook = Net(), EMA(decay=0.9, begin=begin, gamma=gamma)
        expected = floats(model) if first == 0 else {}
        updates = 0
        for run in trained(hook, model):
            if run.iter == first:
                expected = floats(model)
            elif run.iter > first:
                updates += 1
                share = max(0.1, gamma / (gamma + updates))
                expected = {
                    name: (1 - share) * expected[name] + share * new
                    for name, new in floats(model).items()
                }
            assert hook.average.keys() == expected.keys()
            torch.testing.assert_close(hook.average, expected)
        assert hook.updates == 20 - first

    def test_its_best_is_the_best_of_the_average_not_of_the_weights_before_it(self) -> None:
        EMA.check_arguments({"monitor": None})
        hook = EMA(begin=3, monitor="accuracy")
        for run, value in zip(
            trained(hook, Net(), 5), [0.9, 0.8, 0.5, float("nan"), 0.6], strict=True
        ):
            validation = hook.around_val(run)
            with torch.no_grad():
                next(validation)
                run.metrics = {"accuracy": value}
                list(validation)
                list(hook.around_val(run))  # a pass that was cut short has no metrics of its own
        assert run.saved == ["best-averaged", "best-averaged"]
        assert hook.best == 0.6

    def test_tied_weights_come_back_from_a_validation(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        hook = EMA(decay=0.5, gamma=0)
        (run,) = trained(hook, model, 1)
        kept, average = model[0].weight.clone(), hook.average["0.weight"].clone()
        inside = hook.around_val(run)
        with torch.no_grad():
            next(inside)
            assert torch.equal(model[1].weight, average)
            list(inside)
        assert torch.equal(model[0].weight, kept)
        checkpoint: dict[str, Any] = {}
        hook.before_save_checkpoint(run, checkpoint)
        assert all(
            torch.equal(checkpoint["model_averaged"][f"{k}.weight"], average) for k in (0, 1)
        )


class TestSWA:
    def test_the_mean_is_that_of_torch_to_the_bit(self) -> None:
        model, hook = Net(), SWA(begin="1ep", every="3it")
        # Which is torch's default on a GPU.
        oracle = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
        for run in trained(hook, model):
            if run.iter > 5 and run.iter % 3 == 0:
                oracle.update_parameters(run.model)
        state = oracle.module.state_dict()
        assert hook.updates == 5
        assert all(torch.equal(tensor, state[name]) for name, tensor in hook.average.items())
        assert hook.average.keys() == floats(model).keys()


class TestPreciseBN:
    @pytest.mark.parametrize("batches", [3, None])
    def test_the_statistics_are_the_moments_of_one_pass(self, batches: int | None) -> None:
        net = Net().train()
        points = Points(0, torch.device("cpu"))
        run: Any = StandIn(net, data={"train": points}, task=Classification(), batch_idx=0)
        before = net.body[1].num_batches_tracked.clone()
        random = torch.get_rng_state()
        with torch.no_grad():
            PreciseBN(batches).before_val(run)
        given = given_to_the_norm(net, 0, batches or len(points))
        torch.testing.assert_close(net.body[1].running_mean, given.mean(0))
        torch.testing.assert_close(net.body[1].running_var, given.var(0))
        assert net.body[1].num_batches_tracked == before
        assert net.training and net.body[3].training and torch.equal(torch.get_rng_state(), random)
        assert not net.body[1]._forward_pre_hooks

    def test_it_computes_in_the_precision_of_the_run(
        self, trained: Trained, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[torch.dtype] = []
        forward: Any = nn.BatchNorm1d.forward

        def kept(self: nn.BatchNorm1d, inputs: Tensor) -> Tensor:
            seen.append(inputs.dtype)
            return forward(self, inputs)  # type: ignore[no-any-return]

        monkeypatch.setattr(nn.BatchNorm1d, "forward", kept)
        trained('run.precision="bf16"', "run.max_epochs=1", 'hooks.precise={use="precise_bn"}')
        assert {*seen} == {torch.bfloat16}

    def test_images_have_their_moments_by_channel_and_frozen_norms_are_left_alone(self) -> None:
        norm = nn.BatchNorm2d(3).train()
        images = 2 + 3 * torch.randn(8, 3, 5, 5)
        data = type(
            "Data",
            (),
            {"epoch": lambda self, epoch: iter(images.split(3)), "__len__": lambda self: 3},
        )()
        task = type(
            "Task", (), {"evaluate": lambda self, run, batch: run.model(batch), "step": None}
        )()
        run: Any = StandIn(norm, data={"train": data}, task=task, batch_idx=0)
        with torch.no_grad():
            PreciseBN().before_val(run)
        torch.testing.assert_close(norm.running_mean, images.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, images.transpose(0, 1).flatten(1).var(1))
        net = Net().train()
        net.body[1].eval()
        mean = net.body[1].running_mean.clone()
        run: Any = StandIn(net, data={"train": Points(0, torch.device("cpu"))}, batch_idx=0)
        PreciseBN().before_val(run)
        assert torch.equal(net.body[1].running_mean, mean)

    def test_an_average_has_its_own_and_the_weights_are_trained_as_without_it(
        self, left_alone: RunDir, trained: Trained
    ) -> None:
        run_dir = trained('hooks.precise={use="precise_bn", args={batches=4}}')
        state: Any = final_state(run_dir)
        net = Net()
        net.load_state_dict(state["model_ema"])
        given = given_to_the_norm(net, 3, 4)
        torch.testing.assert_close(state["model_ema"]["body.1.running_mean"], given.mean(0))
        torch.testing.assert_close(state["model_ema"]["body.1.running_var"], given.var(0))
        assert not torch.equal(
            state["model"]["body.1.running_mean"], state["model_ema"]["body.1.running_mean"]
        )
        for part in ("optimizer", "random"):
            assert_same(state[part], final_state(left_alone)[part])

    def test_within_an_epoch_it_takes_no_batch_from_the_training(self, trained: Trained) -> None:
        common = "run.val_every='4it'", "run.max_epochs=1"
        runs = trained(*common, 'hooks.precise={use="precise_bn"}'), trained(*common)
        for part in ("optimizer", "random"):
            assert_same(*(final_state(run_dir)[part] for run_dir in runs))


def body_after(run_dir: RunDir, it: int) -> list[Any]:
    """Return the weights and statistics of the net's body in a checkpoint."""
    state: Any = read(run_dir.checkpoints / f"it{it:08d}")["model"]
    return [tensor for name, tensor in state.items() if name.startswith("body")]


def changed(run_dir: RunDir, first: int, then: int) -> list[bool]:
    pairs = zip(body_after(run_dir, first), body_after(run_dir, then), strict=True)
    return [not torch.equal(*pair) for pair in pairs]


def frozen_run(trained: Trained, args: str, *overrides: str) -> RunDir:
    """Return a run of 15 iterations of which every state is saved."""
    saves = "hooks.checkpoint.points=['after_train_iter']", "hooks.checkpoint.args.keep=99"
    return trained(f'hooks.freeze={{use="freeze", args={{{args}}}}}', *saves, *overrides)


class TestFreeze:
    @pytest.mark.parametrize(
        "optimizer",
        [[], ['optimizer={use="torch.optim:AdamW", args={lr=0.01, weight_decay=0.5}}']],
        ids=["SGD with momentum", "AdamW"],
    )
    def test_frozen_parameters_stay_and_train_afterwards(
        self, trained: Trained, optimizer: list[str]
    ) -> None:
        run_dir = frozen_run(trained, 'params=["body.*"], begin="1ep", end="10it"', *optimizer)
        assert any(changed(run_dir, 1, 5)) and not any(changed(run_dir, 5, 10))
        after = changed(run_dir, 10, 15)
        # The statistics too; a bias before a norm hardly matters.
        assert [after[0], *after[2:]] == [True] * 6
        assert [text for text in messages(run_dir) if "body.*" in text] == [
            "56 weights are frozen: body.*",
            "56 weights train again: body.*",
        ]

    def test_norms_may_go_on_counting(self, trained: Trained) -> None:
        run_dir = frozen_run(trained, 'params=["body.*"], end="50%", norms=false')
        # The mean, the variance, the number of batches.
        assert changed(run_dir, 1, 6) == [False] * 4 + [True] * 3
        layers: Any = records(run_dir, "run")[0]["layers"]
        assert [layer["trainable"] for layer in layers] == [0, 0, 27]

    def test_one_of_two_models_may_be_frozen_as_a_whole(self, trained: Trained) -> None:
        freeze = 'hooks.freeze={use="freeze", args={params=["discriminator.*"], begin=5, end=15}}'
        run_dir = trained(
            freeze, "hooks.checkpoint.args.keep=9", pipeline=TESTS / "support" / "gan.toml"
        )
        states: Any = [read(run_dir.checkpoints / f"it{it:08d}") for it in (5, 10, 20)]
        for state, other, trains in [(*states[:2], False), (*states[1:], True)]:
            pairs = [
                (state["model_discriminator"][n], weight)
                for n, weight in other["model_discriminator"].items()
            ]
            assert [not torch.equal(*pair) for pair in pairs] == [trains] * 4
        generators = [state["model_generator"]["0.weight"] for state in states]
        assert not torch.equal(*generators[:2])

    def test_several_unfreeze_a_net_part_by_part(self, trained: Trained) -> None:
        norm = 'hooks.norm={use="freeze", args={params=["body.1.*"], end="1ep"}}'
        run_dir = frozen_run(trained, 'params=["body.0.*"], end="2ep"', norm)
        loaded = load(run_dir.pipeline, recorded=True)
        assert not [
            a
            for a in find_ambiguities(compile_pipeline(loaded, TOY.parent))
            if {"freeze", "norm"} & {a.first.hook}
        ]
        for first, then, trains in [(1, 5, []), (5, 10, [2, 3]), (10, 15, [0, 2, 3])]:
            differs = changed(run_dir, first, then)
            assert [k for k in (0, 2, 3) if differs[k]] == trains

    def test_globs_pick_norms_with_all_they_have_and_parameters_by_any_name(self) -> None:
        net = Net()
        assert [*frozen_norms(net, ["body.*"])] == ["body.1"]
        assert [*frozen_norms(net, ["*.weight"])] == []
        assert [*frozen_norms(nn.Sequential(nn.BatchNorm1d(2, affine=False)), ["0.*"])] == ["0"]
        parameters = dict(Net().named_parameters())
        names = ["body.1.weight", "head.weight", "head.bias"]
        assert [*frozen_parameters(parameters, ["head.*", "*.1.weight"])] == names
        with pytest.raises(UserError, match='no parameter that trains matches "boddy'):
            frozen_parameters(parameters, ["boddy.*"])
        tied = named_parameters(Tied())
        assert frozen_parameters(tied, ["head.*"]) == {"head.weight": tied["embed.weight"]}
        for several, globs in [(parameters, ["*"]), (tied, ["head.*", "middle.*"])]:
            with pytest.raises(UserError, match="every parameter of the network would be frozen"):
                frozen_parameters(several, globs)

    def test_after_the_run_the_network_can_be_trained_by_others(self) -> None:
        net = Net()
        run: Any = StandIn(net, torch.optim.SGD(net.parameters(), 0.1))
        hook = Freeze(["body.*"])
        hook.before_train(run)
        assert not net.body[0].weight.requires_grad
        assert not net.body[1].training
        hook.after_run(run)
        assert all(parameter.requires_grad for parameter in net.parameters())
        assert net.body[1].training


class TestActivationCheckpoint:
    def test_a_run_ends_with_the_same_bits(self, left_alone: RunDir, trained: Trained) -> None:
        """The net has dropout and a batch norm."""
        other = trained('hooks.recompute={use="activation_checkpoint", args={match=["body"]}}')
        assert curve(left_alone) == curve(other)
        for part in ("model", "model_ema", "optimizer", "random"):
            assert_same(final_state(left_alone)[part], final_state(other)[part], part)

    def test_activations_are_computed_again_for_gradients_alone(self) -> None:
        calls: list[bool] = []
        net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1))
        net[0][0].register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        hook = ActivationCheckpoint(["0"])
        hook.before_run(StandIn(net))  # type: ignore[arg-type]
        net(torch.randn(8, 4)).square().mean().backward()
        with torch.no_grad():
            net(torch.randn(8, 4))
        hook.after_run()
        assert "forward" not in vars(net[0])
        assert calls == [True, True, False]

    def test_a_forward_pass_that_somebody_has_put_into_a_module_is_there_again_afterwards(
        self,
    ) -> None:
        net = nn.Sequential(nn.Linear(4, 4))

        def forward(inputs: Tensor) -> Tensor:
            return inputs + 1

        net[0].forward = forward  # type: ignore[method-assign]
        hook = ActivationCheckpoint(["0"])
        hook.before_run(StandIn(net))  # type: ignore[arg-type]
        assert net[0].forward is not forward
        assert torch.equal(net(torch.zeros(4)), torch.ones(4))
        hook.after_run()
        assert net[0].forward is forward

    def test_of_modules_inside_one_another_the_outermost_is_wrapped(self) -> None:
        net = Net()
        assert find_outermost_modules(net, ["body*"]) == [net.body]
        assert find_outermost_modules(net, ["body.?", "head"]) == [*net.body, net.head]
        with pytest.raises(UserError, match='no module of the network matches "boddy"'):
            find_outermost_modules(net, ["boddy"])


def theirs(model: nn.Sequential, scope: str, amount: float) -> None:
    places = [(model[0], "weight"), (model[2], "weight")]
    if scope == "global":
        prune.global_unstructured(places, prune.L1Unstructured, amount=amount)
    else:
        for module, name in places:
            prune.l1_unstructured(module, name, amount=amount)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_it_trains_what_pytorchs_pruning_trains(scope: Literal["global", "layer"]) -> None:
    torch.manual_seed(1)
    ours = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    other = deepcopy(ours)
    inputs, targets = torch.randn(16, 4), torch.randint(3, (16,))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (ours, other)]
    run: Any = StandIn(ours, optimizers[0])
    hook = Prune(params=["*.weight"], amount=0.4, begin=1, end=1, scope=scope)
    hook.before_train(run)
    for run.iter in range(6):
        for model, optimizer in zip((ours, other), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if model is ours:
                hook.after_backward()
            optimizer.step()
        hook.after_optimizer_step(run)
        if run.iter == 0:
            theirs(other, scope, 0.4)
    for layer in (0, 2):
        expected = other[layer].weight_orig * other[layer].weight_mask  # type: ignore[operator]
        assert torch.equal(expected == 0, ours[layer].weight == 0)  # type: ignore[arg-type]
        torch.testing.assert_close(ours[layer].weight, expected)
    assert [*ours.state_dict()] == ["0.weight", "0.bias", "2.weight", "2.bias"], (
        "they keep their names"
    )


def test_the_share_follows_the_cubic_schedule_and_what_is_pruned_stays_so() -> None:
    model = nn.Linear(50, 20)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = Prune(params=["weight"], amount=0.8, begin=4, end=12, every=4)
    hook.before_train(run)
    zeros, before = [], torch.zeros(20, 50, dtype=torch.bool)
    for run.iter in range(16):
        with torch.no_grad():
            model.weight += torch.randn(20, 50)
        hook.after_optimizer_step(run)
        assert not (before & (model.weight != 0)).any()
        before = model.weight == 0
        zeros.append(int(before.sum()))
    assert zeros == [0] * 7 + [round(800 * (1 - 0.5**3))] * 4 + [800] * 5


def test_an_end_before_the_beginning_and_a_glob_without_a_match_are_refused(
    trained: Trained,
) -> None:
    trained('hooks.prune={use="prune", args={params=["no.such"]}}', code=2)
    hook = Prune(params=["weight"], begin="80%", end="20%")
    hook.name = "thin"
    with pytest.raises(
        UserError, match='hook "thin" would end at iteration 4, before it begins at 16'
    ):
        hook.before_train(StandIn(nn.Linear(2, 2)))  # type: ignore[arg-type]


def normed() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


def cumulative() -> nn.Module:
    """Return the network with statistics that are the mean over all batches so far:
    the count of batches matters.
    """
    model = normed()
    model[1].momentum = None  # type: ignore[index, union-attr]
    return model


SAM = 'hooks.sam={use="sam", args={rho=0.3}}'
PLAIN = (
    'data.train.use="./data_loaders.py:a_list"',
    "hooks.schedule.enabled=false",
    "hooks.clip.enabled=false",
)


@pytest.mark.parametrize("network", [normed, cumulative])
def test_sharpness_aware_steps_are_those_of_a_plain_loop(
    network: Callable[[], nn.Module], trained: Trained
) -> None:
    """To the bit: with batch norms, whose statistics are those of the first pass, and momentum."""
    run_dir = trained(f'model={{use="{__file__}:{network.__name__}"}}', SAM, *PLAIN)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, target in a_list() * 3:
        functional.cross_entropy(model(inputs), target).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # type: ignore[union-attr]
        before = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad * (0.3 / (norm + 1e-12)))
        optimizer.zero_grad()
        statistics = deepcopy(model[1].state_dict())  # type: ignore[index]
        functional.cross_entropy(model(inputs), target).backward()
        with torch.no_grad():
            for p, value in zip(model.parameters(), before, strict=True):
                p.copy_(value)
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                model[1].get_buffer(name).copy_(statistics[name])  # type: ignore[index, union-attr, operator]
        optimizer.step()
        optimizer.zero_grad()
    ours, plain = final_state(run_dir)["model"], model.state_dict()
    for name in plain:
        assert torch.equal(ours[name], plain[name]), name  # type: ignore[index]


def test_where_no_batch_can_be_computed_twice_is_a_mistake(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = 'hooks.groups={use="accumulation_schedule", args={batches=[[0, 2]]}}'
    for override, why in (
        (groups, "another hook adds up those of several batches"),
        ('task.use="./own_tasks.py:Forgets"', "the task steps its optimizers itself"),
    ):
        run_dir = trained(SAM, override, code=2)
        assert why in reason(run_dir)
        assert records(run_dir, "end")[-1]["it"] == 0
    for fact, why in (
        ("is_recording_graphs", "CUDA graphs keep the outputs of one pass alone"),
        ("is_sharded", "FSDP has sharded them"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(update, fact, lambda *given: True)
            assert why in reason(trained(SAM, code=2))


def test_a_key_that_sharpness_aware_steps_refuse_is_found_by_check(new_run: NewRun) -> None:
    for override, why in (
        ("run.accumulate=2", "run.accumulate adds up those of several batches"),
        ('run.precision="fp16"', 'run.precision = "fp16" scales the loss'),
    ):
        with pytest.raises(
            UserError, match=f'hook "sam" computes the gradients of a batch twice, and {why}'
        ):
            new_run(SAM, override)


def test_sharpness_aware_steps_do_not_move_what_another_hook_freezes_over_several_ranks() -> None:
    """There frozen parameters have gradients, which `freeze` drops
    after this hook has used them.
    """
    model = normed()
    frozen: Any = model[0].weight  # type: ignore[index]
    places: list[Tensor] = []

    def loss(batch: Tensor) -> Tensor:
        places.append(frozen.detach().clone())
        return model(batch).square().mean()  # type: ignore[no-any-return]

    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1), world=2, loss=loss)
    freeze = Freeze(["0.*"])
    freeze.before_train(run)
    batch = torch.randn(8, 4)
    model(batch).square().mean().backward()
    gradients.SAM(rho=1.0).after_backward(run, batch)
    freeze.after_backward()
    assert torch.equal(places[0], frozen)
    assert frozen.grad is None


class Watched(nn.Module):
    """A network with a state of its own in buffers that a forward pass moves: one in place,
    one by another tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.replaced = self.replaced + 1
        return self.linear(inputs)  # type: ignore[no-any-return]


def test_the_average_of_a_module_that_a_hook_adds_begins_at_the_next_validation() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = EMA(decay=0.5, gamma=0.0)
    hook.before_train(run)
    model.add_module("added", nn.Linear(2, 2))
    first = model.get_parameter("added.weight").detach().clone()
    for _ in hook.around_test(run):
        assert torch.equal(model.get_parameter("added.weight"), first)
    with torch.no_grad():
        model.get_parameter("added.weight").add_(1.0)
    hook.after_optimizer_step(run)
    saved: dict[str, Any] = {}
    hook.name = "ema"
    hook.before_save_checkpoint(run, saved)
    torch.testing.assert_close(saved["model_ema"]["added.weight"], first + 0.5)
    model.add_module("last", nn.Linear(2, 2))
    hook.before_save_checkpoint(run, saved)
    assert torch.equal(saved["model_ema"]["last.weight"], model.get_parameter("last.weight"))


def test_an_average_follows_a_buffer_that_the_network_replaces() -> None:
    model = Watched()
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = EMA(decay=0.5, gamma=0.0)
    hook.before_train(run)
    for _ in range(3):
        model(torch.randn(2, 4))
        hook.after_optimizer_step(run)
        run.iter += 1
    expected = ((0 + 1) / 2 + 2) / 2  # the averages of 0 and 1, and of that and 2
    expected = (expected + 3) / 2
    assert hook.average["replaced"].tolist() == [expected, expected]
    assert hook.average["calls"].real.tolist() == [expected, expected]


def test_sharpness_aware_steps_leave_every_buffer_as_the_first_pass_has() -> None:
    model = Watched()
    batch = torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run: Any = StandIn(model, optimizer, loss=lambda given: model(given).square().mean())
    model(batch).square().mean().backward()
    gradients.SAM(rho=1.0).after_backward(run, batch)
    assert model.calls.tolist() == model.replaced.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [1, 3, 5, 7, 8]), (2, [3, 5, 7]), (3, [3, 7]), (5, [5])]
)
def test_an_average_moves_at_the_first_step_after_every_so_many_iterations(
    every: int, expected: list[int]
) -> None:
    """Also where gradients are accumulated over iterations, so that not every one has a step."""
    model = nn.Linear(1, 1)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    hook = EMA(every=every)
    hook.before_train(run)
    moved = []
    for step_at in (1, 3, 5, 7, 8):
        run.iter = step_at - 1
        before = hook.updates
        hook.after_optimizer_step(run)
        if hook.updates > before:
            moved.append(step_at)
    assert moved == expected


def test_a_resume_goes_on_counting_from_the_latest_update_of_an_average() -> None:
    model = nn.Linear(1, 1)
    run: Any = StandIn(model, torch.optim.SGD(model.parameters(), 0.1))
    first, resumed = EMA(every=4), EMA(every=4)
    first.before_train(run)
    run.iter = 4  # the step at iteration 4 was skipped: the one at 5 is the first that counts
    first.after_optimizer_step(run)
    run.iter = 5
    resumed.after_load_checkpoint({})
    resumed.load_state_dict(first.state_dict())
    resumed.before_train(run)
    assert (first.updates, resumed.moved_at) == (1, 5)
    older = EMA(every=4)
    older.load_state_dict({"updates": 1, "best": None})
    older.before_train(run)
    assert older.moved_at == 4, "as if the training had stepped at each iteration"


@pytest.mark.parametrize("momentum", [0.1, None])
def test_precise_statistics_do_not_hang_on_the_momentum(momentum: float | None) -> None:
    norm = nn.BatchNorm1d(3, momentum=momentum).train()
    points = 2 + 3 * torch.randn(32, 3)
    data = type(
        "Data", (), {"epoch": lambda self, epoch: iter(points.split(8)), "__len__": lambda self: 4}
    )()
    task = type("Task", (), {"evaluate": lambda self, run, batch: run.model(batch), "step": None})()
    run: Any = StandIn(norm, data={"train": data}, task=task, batch_idx=0)
    with torch.no_grad():
        PreciseBN().before_val(run)
    torch.testing.assert_close(norm.running_mean, points.mean(0))
    torch.testing.assert_close(norm.running_var, points.var(0))
    assert norm.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("every", "samples"), [("1ep", [8, 11, 14]), ("2ep", [8, 14]), (4, [8, 12])]
)
def test_samples_of_an_average_follow_epochs_of_different_lengths(
    every: int | str, samples: list[int]
) -> None:
    """Two epochs have four iterations each, and the others three."""
    lengths = EpochLengths(((0, 4), (2, 3)))
    net = nn.Linear(2, 1)
    run: Any = StandIn(net, epoch_lengths=lengths, max_iters=14)
    hook = SWA(begin="1ep", every=every)
    hook.name = "swa"
    hook.before_train(run)
    sampled = []
    for iteration in range(1, 15):
        run.iter = iteration
        before = hook.updates
        hook.after_train_iter(run)
        if hook.updates > before:
            sampled.append(iteration)
    assert sampled == samples
