"""Every pair of built-in hooks that touch the same tensors, in one training: right, ordered, or
named by `check`.

A new hook that touches weights or gradients inherits it: it needs a row in `INVARIANTS` or in
`WITHOUT_INVARIANT`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from hookflow.api.recorded import RecordedRun
from hookflow.events.rundir import RunDir
from hookflow.graph.why import find_ambiguities
from hookflow.hooks.base import Hook, Slots
from hookflow.pipeline.load import parse
from hookflow.service.pipelines import valid_plan
from tests.conftest import TOY, Trained, messages
from tests.runner.same import final_state
from tests.support.built_in_hooks import TOUCHING, hook_class, inline
from tests.support.plain_training import given_to_the_norm
from tests.support.toy import Net


@dataclass
class Seen:
    """What a training was at its points: weights by name, in the order of the iterations."""

    initial: dict[str, Tensor] = field(default_factory=dict)
    before_steps: list[dict[str, Tensor]] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    after_steps: list[dict[str, Tensor]] = field(default_factory=list)
    after_iterations: list[dict[str, Tensor]] = field(default_factory=list)
    validated: dict[str, Tensor] = field(default_factory=dict)
    validated_mean: Tensor | None = None
    """The running mean of the batch norm in the latest validation."""
    mean_of_inputs: Tensor | None = None
    """The mean of what the batch norm is given with the weights that are validated."""


SEEN = Seen()


def parameters(run: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


class Witness(Hook):
    """Keeps what a training is at its points, behind all others."""

    phase = "last"
    reads: ClassVar[Slots] = {
        "before_optimizer_step": ("model", "grads"),
        **dict.fromkeys(
            ("before_train", "after_optimizer_step", "after_train_iter", "before_val_iter"),
            ("model",),
        ),
    }

    def before_train(self, run: Any) -> None:
        SEEN.initial = parameters(run)

    def before_optimizer_step(self, run: Any) -> None:
        SEEN.before_steps.append(parameters(run))
        named = run.model.named_parameters()
        SEEN.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})

    def after_optimizer_step(self, run: Any) -> None:
        SEEN.after_steps.append(parameters(run))

    def after_train_iter(self, run: Any) -> None:
        SEEN.after_iterations.append(parameters(run))

    def before_val_iter(self, run: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            SEEN.validated = parameters(run)
            SEEN.validated_mean = run.model.body[1].running_mean.clone()
            SEEN.mean_of_inputs = given_to_the_norm(run.model, run.epoch, 2).mean(0)


PAIR_ARGS: dict[str, dict[str, Any]] = {
    "activation_checkpoint": {"match": ["body"]},
    "ema": {"decay": 0.9, "gamma": 0.0},
    "freeze": {"params": ["body.0.*"]},
    "grad_clip": {"max_norm": 0.05},
    "grad_norm": {},
    "precise_bn": {"batches": 2},
    "prune": {"params": ["head.weight"], "begin": 4, "end": 8, "every": 2},
    "sam": {"rho": 0.5},
    "spike_guard": {"window": 2, "sigmas": 1e-6, "patience": 100, "rollback": True},
    "swa": {"begin": 2, "every": 3},
}

WITHOUT_INVARIANT = {
    "activation_stats": "reads what modules return",
    "export": "reads a checkpoint",
    "lr_finder": "ends the run, and puts the first weights back",
    "param_stats": "logs what it reads at the end of an iteration",
    "sync_buffers": "acts over several ranks",
    "tta": "calls the model several times in an evaluation",
}
"""Hooks that change no weight or gradient that another one of these reads, and why."""

Final = dict[str, Any]


def pruned(pair: tuple[str, ...], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return where weights are not zero; everywhere without `prune`."""
    everywhere = {name: torch.ones_like(weight) for name, weight in weights.items()}
    if "prune" in pair:
        everywhere["head.weight"] = (weights["head.weight"] != 0).float()
    return everywhere


def check_ema(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    expected = SEEN.initial
    for weights in SEEN.after_steps:
        expected = {name: 0.9 * expected[name] + 0.1 * weight for name, weight in weights.items()}
    masks = pruned(pair, SEEN.after_steps[-1])
    for name, value in expected.items():
        torch.testing.assert_close(
            final["model_ema"][name], value * masks[name], rtol=1e-4, atol=1e-6
        )


def check_swa(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    samples = SEEN.after_iterations[2::3]  # after the iterations 3, 6, 9, …
    masks = pruned(pair, SEEN.after_iterations[-1])
    for name, mask in masks.items():
        mean = torch.stack([sample[name] for sample in samples]).mean(0)
        torch.testing.assert_close(final["model_swa"][name], mean * mask, rtol=1e-4, atol=1e-6)


def check_freeze(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    for weights in (*SEEN.before_steps, *SEEN.after_iterations):
        for name in ("body.0.weight", "body.0.bias"):
            assert torch.equal(weights[name], SEEN.initial[name])


def check_prune(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    for name, state in final.items():
        if name == "model" or name.startswith("model_"):
            assert int((state["head.weight"] == 0).sum()) == 12, f"half of 24 weights of {name}"
    assert int((SEEN.validated["head.weight"] == 0).sum()) == 12
    for weights, gradients in zip(SEEN.before_steps[8:], SEEN.gradients[8:], strict=True):
        assert int((weights["head.weight"] == 0).sum()) == 12
        assert not gradients["head.weight"][weights["head.weight"] == 0].any()


def total_norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())


def check_grad_clip(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    assert max(map(total_norm, SEEN.gradients)) <= 0.05 * (1 + 1e-4)


def check_grad_norm(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    logged = RecordedRun(run_dir).scalars("grad_norm/total")["value"]
    assert logged == pytest.approx([*map(total_norm, SEEN.gradients)], rel=1e-4)


def check_precise_bn(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    torch.testing.assert_close(SEEN.validated_mean, SEEN.mean_of_inputs)


def check_nothing_more(pair: tuple[str, ...], run_dir: RunDir, final: Final) -> None:
    """What holds for every pair is all that holds."""


INVARIANTS: dict[str, Callable[[tuple[str, ...], RunDir, Final], None]] = {
    "activation_checkpoint": check_nothing_more,
    "ema": check_ema,
    "freeze": check_freeze,
    "grad_clip": check_grad_clip,
    "grad_norm": check_grad_norm,
    "precise_bn": check_precise_bn,
    "prune": check_prune,
    "sam": check_nothing_more,
    "spike_guard": check_nothing_more,
    "swa": check_swa,
}
"""What holds for a hook whatever other hook is there."""

OFF = [f"hooks.{name}.enabled=false" for name in ("clip", "ema", "throughput", "log", "early_stop")]


def tables(pair: tuple[str, ...]) -> list[str]:
    return [f'hooks.{name}={{use="{name}", args={inline(PAIR_ARGS[name])}}}' for name in pair]


def test_every_hook_on_weights_or_gradients_is_tried_beside_the_others() -> None:
    assert INVARIANTS.keys() | WITHOUT_INVARIANT.keys() == set(TOUCHING)
    assert INVARIANTS.keys() == PAIR_ARGS.keys()


@pytest.mark.parametrize("pair", [*combinations(sorted(INVARIANTS), 2)], ids="-".join)
def test_what_holds_for_each_of_two_hooks_holds_where_both_are(
    pair: tuple[str, str], trained: Trained
) -> None:
    global SEEN
    SEEN = Seen()
    watch = f'hooks.witness={{use="{__name__}:Witness"}}'
    run_dir = trained(*OFF, *tables(pair), watch)
    final: Any = final_state(run_dir)
    if "spike_guard" not in pair:  # which puts back older weights
        assert len(SEEN.after_steps) == 15
    after = [SEEN.initial, *SEEN.after_iterations]
    if len(SEEN.before_steps) == 15:
        for weights, left in zip(SEEN.before_steps, after[:-1], strict=True):
            for name, weight in weights.items():
                assert torch.equal(weight, left[name]), (
                    f"{name} is not what the iteration before has left"
                )
    for name in pair:
        INVARIANTS[name](pair, run_dir, final)


@pytest.mark.parametrize("pair", [*combinations(sorted(INVARIANTS), 2)], ids="-".join)
def test_the_order_of_two_hooks_is_not_that_of_the_file_unless_check_says_so(
    pair: tuple[str, str],
) -> None:
    orders = []
    for names in (pair, pair[::-1]):
        plan = valid_plan(parse(TOY.read_text(), TOY, [*OFF, *tables(names)]))
        if any({each.first.hook, each.then.hook} == set(pair) for each in find_ambiguities(plan)):
            return
        touching = {"model", "grads"}
        orders.append(
            {
                point.name: [each.hook for each in plan.at(point.name) if each.hook in pair]
                for point in plan.bound_points
                if all(
                    touching & {slot.partition(".")[0] for slot in (*each.reads, *each.writes)}
                    for each in plan.at(point.name)
                    if each.hook in pair
                )
            }
        )
    writes = {name: hook_class(name).writes for name in pair}
    if any(writes.values()):
        assert orders[0] == orders[1]


def test_an_average_beside_batch_norms_names_them_unless_their_statistics_are_computed(
    trained: Trained,
) -> None:
    swa = f'hooks.swa={{use="swa", args={inline(PAIR_ARGS["swa"])}}}'
    named = [text for text in messages(trained(*OFF, swa), "warn") if "body.1" in text]
    assert len(named) == 1
    precise = 'hooks.precise={use="precise_bn"}'
    assert not [text for text in messages(trained(*OFF, swa, precise), "warn") if "body.1" in text]


def test_the_trained_weights_beside_an_average_are_given_with_a_word(trained: Trained) -> None:
    run_dir = trained()
    best = RecordedRun(run_dir).checkpoint("best")
    with pytest.warns(UserWarning, match=r'load_into\(model, "ema"\)'):
        net = best.load_into(Net())
    assert torch.equal(net.head.weight, best.load_into(Net(), "model").head.weight)  # type: ignore[union-attr]


def warned(*overrides: str) -> list[str]:
    plan = valid_plan(parse(TOY.read_text(), TOY, overrides))
    return [str(each) for each in plan.warnings if "ranks checkpoints" in each.message]


def test_a_best_by_the_metrics_of_another_average_is_named_by_check() -> None:
    monitored = 'hooks.ema.args={decay=0.9, monitor="accuracy"}'
    other = 'hooks.swa={use="swa"}'
    (warning,) = warned(monitored, other)
    assert '"ema"' in warning and '"swa"' in warning
    assert not warned(monitored)
    assert not warned('hooks.swa={use="swa", args={monitor="accuracy"}}')
