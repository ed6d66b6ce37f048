"""Hooks inside the network: PyTorch's semantics, the plan's order, triggers, errors; gone when the run has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.runner.dispatch.module_hooks import ModuleHooks
from tests.conftest import NewRun, records
from tests.toy import Net

Train = Callable[..., int]
ONE_STEP = ("run.max_iters=1", "run.val_every=1", "hooks.clip.enabled=false", "hooks.log.points=['after_train_iter']")
SWAP = ("max_epochs = 3", "max_iters = 1")


def probes(tmp_path: Path, name: str = "probe", **keys: object) -> str:
    written = "".join(f", {key}={value}" for key, value in keys.items())
    args = f'{{file="{tmp_path / "notes"}", mark="{name} "}}'
    return f'hooks.{name}={{use="./watchers.py:Probes", args={args}{written}}}'


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def trained(run_dir: RunDir) -> dict[str, torch.Tensor]:
    (path,) = run_dir.checkpoints.glob("it*/model.pt")
    return torch.load(path, weights_only=True)  # type: ignore[no-any-return]


def test_they_fire_around_the_modules_in_training_alone(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    run_dir = new_run(probes(tmp_path, modules='["body.2", "head"]'), "run.val_every=1", swap=SWAP)
    assert train_here(run_dir) == 0
    order = ["forward_pre body.2", "forward body.2", "forward_pre head", "forward head"]
    order += ["full_backward_pre head", "full_backward head", "full_backward_pre body.2", "full_backward body.2"]
    assert notes(tmp_path) == [f"probe {step} 0 train" for step in order]
    assert records(run_dir, "metrics"), "there was a validation, in which nothing fired"


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        ('["*"]', ["net", "body", "body.0", "body.1", "body.2", "body.3", "head"]),
        ('["body.?"]', ["body.0", "body.1", "body.2", "body.3"]),
        ('["head", "*.[02]"]', ["body.0", "body.2", "head"]),
        ('[""]', ["net"]),
        ('["type:Linear"]', ["body.0", "head"]),
        ('["type:_BatchNorm", "head"]', ["body.1", "head"]),
        ('["type:*Norm1d"]', ["body.1"]),
        ('["type:torch.nn:Linear"]', ["body.0", "head"]),
        ('["type:torch.nn.modules.batchnorm:_NormBase"]', ["body.1"]),
        ('["type:./toy.py:Net"]', ["net"]),
    ],
)
def test_globs_and_classes_pick_modules(
    new_run: NewRun, train_here: Train, tmp_path: Path, globs: str, names: list[str]
) -> None:
    run_dir = new_run(probes(tmp_path, modules=globs, points='["forward_pre"]'), swap=SWAP)
    assert train_here(run_dir) == 0
    assert [line.split()[2] for line in notes(tmp_path)] == names


def test_a_glob_that_picks_nothing_is_told_with_its_place(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    points = '[{at="forward", modules=["hed", "body*"]}, {at="forward_pre", modules=["layer*"]}]'
    run_dir = new_run(probes(tmp_path, points=points), "optimizer.groups=[{match='bodi*'}]")
    assert train_here(run_dir) == 2
    reason = str(records(run_dir, "end")[0]["reason"])
    assert 'hook "probe" at forward: no module of the network matches "hed"\n    did you mean "head"?' in reason
    assert (
        'hook "probe" at forward_pre: no module of the network matches "layer*"\n    there are body, body.0,' in reason
    )
    assert '"bodi*" matches no parameter' in reason, "all that does not fit the model is told at once"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("type:Liner", 'no module of the network is a "Liner"\n    did you mean "Linear"?'),
        (
            "type:Conv3d",
            'no module of the network is a "Conv3d"\n    there are Net, Sequential, Linear, BatchNorm1d, GELU',
        ),
        ("type:torch.nn:Conv2d", 'no module of the network is a "torch.nn:Conv2d"\n    there are Net, Sequential'),
        ("type:torch.nn:Linea", '"torch.nn:Linea": there is no "Linea" in torch.nn\n    did you mean "Linear"?'),
        ("type:torch:relu", '"torch:relu" is not a class'),
        ("type:./toys.py:Net", 'there is no file "./toys.py"'),
    ],
)
def test_a_class_that_picks_nothing_is_told_with_the_nearest(
    new_run: NewRun, train_here: Train, tmp_path: Path, entry: str, told: str
) -> None:
    run_dir = new_run(probes(tmp_path, modules=f'["head", "{entry}"]'))
    assert train_here(run_dir) == 2
    reason = str(records(run_dir, "end")[0]["reason"])
    assert "--set hooks.probe" in reason
    assert told in reason


def test_one_is_given_the_modules_name(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    notes_name = f'{{use="./module_watchers.py:Notes", args={{file="{tmp_path / "notes"}"}}, modules=["*"]}}'
    assert train_here(new_run(f"hooks.names={notes_name}", swap=SWAP)) == 0
    called = [line.split()[1] for line in notes(tmp_path)]
    assert called == ["body.0", "body.1", "body.2", "body.3", "body", "head", "net"]


def test_on_one_module_they_fire_in_the_plans_order(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    first = probes(tmp_path, "first", modules='["head"]', after='["second"]')
    second = probes(tmp_path, "second", modules='["head"]', points='["forward", "full_backward"]')
    run_dir = new_run(first, second, swap=SWAP)
    assert train_here(run_dir) == 0
    fired = [line.rsplit(" ", 3)[0] for line in notes(tmp_path)]
    assert fired.index("second forward") < fired.index("first forward")
    assert fired.index("second full_backward") < fired.index("first full_backward")


@pytest.mark.parametrize("point", ["forward_pre", "forward", "full_backward_pre", "full_backward"])
def test_what_they_return_replaces_as_in_pytorch(
    new_run: NewRun, train_here: Train, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The same training with the hook registered by hand, on the same module, ends with the same weights."""
    args = f'args={{by=0.5, points=["{point}"]}}'
    ours = new_run(f'hooks.scales={{use="./watchers.py:Scales", {args}, modules=["head"]}}', *ONE_STEP, swap=SWAP)
    assert train_here(ours) == 0
    plain = new_run(*ONE_STEP, swap=SWAP)
    monkeypatch.setattr(
        ModuleHooks,
        "attach",
        lambda self, compiled: by_hand(self._engine.dispatcher.run.model.head, point, self._state),
    )
    assert train_here(plain) == 0
    untouched = new_run(*ONE_STEP, swap=SWAP)
    monkeypatch.undo()
    assert train_here(untouched) == 0
    same = [torch.equal(trained(ours)[name], weight) for name, weight in trained(plain).items()]
    assert all(same)
    assert not all(torch.equal(trained(ours)[name], weight) for name, weight in trained(untouched).items())


def by_hand(head: nn.Module, point: str, state: Any) -> list[Any]:
    def halve(what: Any) -> Any:
        return tuple(each * 0.5 for each in what) if state.stage == "train" else None

    match point:
        case "forward_pre":
            return [head.register_forward_pre_hook(lambda module, args: halve(args))]
        case "forward":
            return [head.register_forward_hook(lambda m, a, output: output * 0.5 if state.stage == "train" else None)]
        case "full_backward_pre":
            return [head.register_full_backward_pre_hook(lambda module, grad_output: halve(grad_output))]
    return [head.register_full_backward_hook(lambda module, grad_input, grad_output: halve(grad_input))]


class Named(Net):
    """Gives its head the inputs by name."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(input=self.body(inputs))  # type: ignore[no-any-return]


def test_arguments_with_names_are_had_by_who_takes_kwargs(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    here = Path(__file__)
    model = f'model.use="{here}:Named"'
    doubles = 'hooks.doubles={use="./watchers.py:scales_with_kwargs", points=["forward_pre"], modules=["head"]}'
    scaled, plain = new_run(model, doubles, *ONE_STEP, swap=SWAP), new_run(model, *ONE_STEP, swap=SWAP)
    assert train_here(scaled) == train_here(plain) == 0
    assert not torch.equal(trained(scaled)["head.weight"], trained(plain)["head.weight"])


def test_each_has_what_those_before_it_left(new_run: NewRun, train_here: Train) -> None:
    """(x + 1) * 0 is not x * 0 + 1: which logits there are tells who was first."""
    zero = (
        'hooks.zero={use="./watchers.py:Scales", args={by=0.0, points=["forward"]}, modules=["head"], after=["adds"]}'
    )
    adds = 'hooks.adds={use="./watchers.py:adds", points=["forward"], modules=["head"]}'
    sees = 'hooks.sees={use="./watchers.py:sees_logits", points=["after_forward"]}'
    run_dir = new_run(zero, adds, sees, *ONE_STEP, swap=SWAP)
    assert train_here(run_dir) == 0
    assert [r["text"] for r in records(run_dir, "message")] == ["logits 0.0 to 0.0"]


def test_a_trigger_is_asked_once_an_iteration_for_all_modules(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    probe = probes(tmp_path, modules='["body.*"]', points='["forward"]', every=4, when='"iter > 3"')
    run_dir = new_run(probe)
    assert train_here(run_dir) == 0
    fired = [line.split()[2:4] for line in notes(tmp_path)]
    assert fired == [[f"body.{k}", at] for at in ("4", "8", "12") for k in range(4)]


@pytest.mark.parametrize(("on_error", "exit_code", "errors"), [("raise", 1, 1), ("disable", 0, 1), ("ignore", 0, 15)])
def test_one_that_raises(
    new_run: NewRun, train_here: Train, on_error: str, exit_code: int, errors: int, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = f'hooks.bad={{use="./watchers.py:Fails", args={{place="full_backward"}}, on_error="{on_error}"}}'
    run_dir = new_run(bad)
    assert train_here(run_dir) == exit_code
    told = records(run_dir, "error")
    assert [(error["hook"], error["point"], error["action"]) for error in told] == [
        ("bad", "full_backward", on_error)
    ] * errors
    assert "as told" in capfd.readouterr().err


def test_their_time_and_number_are_booked_to_them(new_run: NewRun, train_here: Train, tmp_path: Path) -> None:
    run_dir = new_run(probes(tmp_path, modules='["body.2", "head"]'))
    assert train_here(run_dir) == 0
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    counts: dict[str, int] = {}
    for frame in records(run_dir, "frame"):
        for id_, (n, *_) in frame["hooks"].items():  # type: ignore[attr-defined]
            binding = plan.bindings[int(id_)]
            if binding.hook == "probe":
                counts[binding.point] = counts.get(binding.point, 0) + n
    assert counts == {"forward_pre": 30, "forward": 30, "full_backward_pre": 30, "full_backward": 30}


def test_the_network_is_left_without_them(
    new_run: NewRun, train_here: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    attach = ModuleHooks.attach

    def looked_at(self: ModuleHooks, compiled: object) -> None:
        attach(self, None)
        head = self._engine.dispatcher.run.model.head  # type: ignore[attr-defined]
        seen.append((head, len(self._registrations), len(head._forward_hooks)))

    monkeypatch.setattr(ModuleHooks, "attach", looked_at)
    assert train_here(new_run(probes(tmp_path, modules='["head"]'), swap=SWAP)) == 0
    ((head, handles, registered),) = seen
    assert (handles, registered) == (4, 1)
    assert not (head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks)
