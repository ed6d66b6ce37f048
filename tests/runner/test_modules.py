"""Hooks inside the network: PyTorch's semantics, the plan's order, triggers, errors; gone when the run has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookflow.runner.dispatch.module_hooks import ModuleHooks
from tests.conftest import Trained, firings, reason, records

ONE_STEP = ("run.max_iters=1", "run.val_every=1", "hooks.clip.enabled=false", "hooks.log.points=['after_train_iter']")
SWAP = ("max_epochs = 3", "max_iters = 1")


def probes(tmp_path: Path, name: str = "probe", **keys: object) -> str:
    written = "".join(f", {key}={value}" for key, value in keys.items())
    args = f'{{file="{tmp_path / "notes"}", mark="{name} "}}'
    return f'hooks.{name}={{use="./watchers.py:Probes", args={args}{written}}}'


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def test_they_fire_around_the_modules_in_training_alone(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(probes(tmp_path, modules='["body.2", "head"]'), "run.val_every=1", swap=SWAP)
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
        ('["type:Linear"]', ["body.0", "head"]),
        ('["type:_BatchNorm", "head"]', ["body.1", "head"]),
        ('["type:*Norm1d"]', ["body.1"]),
        ('["type:torch.nn:Linear"]', ["body.0", "head"]),
        ('["type:torch.nn.modules.batchnorm:_NormBase"]', ["body.1"]),
        ('["type:./toy.py:Net"]', ["net"]),
    ],
)
def test_globs_and_classes_pick_modules(trained: Trained, tmp_path: Path, globs: str, names: list[str]) -> None:
    trained(probes(tmp_path, modules=globs, points='["forward_pre"]'), swap=SWAP)
    assert [line.split()[2] for line in notes(tmp_path)] == names


def test_a_glob_that_picks_nothing_is_told_with_its_place(trained: Trained, tmp_path: Path) -> None:
    points = '[{at="forward", modules=["hed", "body*"]}, {at="forward_pre", modules=["layer*"]}]'
    run_dir = trained(probes(tmp_path, points=points), "optimizer.groups=[{match='bodi*'}]", code=2)
    text = reason(run_dir)
    assert 'hook "probe" at forward: no module of the network matches "hed"\n    did you mean "head"?' in text
    assert 'hook "probe" at forward_pre: no module of the network matches "layer*"\n    there are body, body.0,' in text
    assert '"bodi*" matches no parameter' in text, "all that does not fit the model is told at once"


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
    trained: Trained, tmp_path: Path, entry: str, told: str
) -> None:
    run_dir = trained(probes(tmp_path, modules=f'["head", "{entry}"]'), code=2)
    text = reason(run_dir)
    assert "--set hooks.probe" in text
    assert told in text


def test_on_one_module_they_fire_in_the_plans_order(trained: Trained, tmp_path: Path) -> None:
    first = probes(tmp_path, "first", modules='["head"]', after='["second"]')
    second = probes(tmp_path, "second", modules='["head"]', points='["forward", "full_backward"]')
    trained(first, second, swap=SWAP)
    fired = [line.rsplit(" ", 3)[0] for line in notes(tmp_path)]
    assert fired.index("second forward") < fired.index("first forward")
    assert fired.index("second full_backward") < fired.index("first full_backward")


def test_a_trigger_is_asked_once_an_iteration_for_all_modules(trained: Trained, tmp_path: Path) -> None:
    probe = probes(tmp_path, modules='["body.*"]', points='["forward"]', every=4, when='"iter > 3"')
    trained(probe)
    fired = [line.split()[2:4] for line in notes(tmp_path)]
    assert fired == [[f"body.{k}", at] for at in ("4", "8", "12") for k in range(4)]


@pytest.mark.parametrize(("on_error", "exit_code", "errors"), [("raise", 1, 1), ("disable", 0, 1), ("ignore", 0, 15)])
def test_one_that_raises(
    trained: Trained, on_error: str, exit_code: int, errors: int, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = f'hooks.bad={{use="./watchers.py:Fails", args={{place="full_backward"}}, on_error="{on_error}"}}'
    run_dir = trained(bad, code=exit_code)
    told = records(run_dir, "error")
    assert [(error["hook"], error["point"], error["action"]) for error in told] == [
        ("bad", "full_backward", on_error)
    ] * errors
    assert "as told" in capfd.readouterr().err


def test_their_time_and_number_are_booked_to_them(trained: Trained, tmp_path: Path) -> None:
    run_dir = trained(probes(tmp_path, modules='["body.2", "head"]'))
    counts = {point: fired for (hook, point), fired in firings(run_dir).items() if hook == "probe"}
    assert counts == {"forward_pre": 30, "forward": 30, "full_backward_pre": 30, "full_backward": 30}


def test_the_network_is_left_without_them(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    attach = ModuleHooks.attach

    def looked_at(self: ModuleHooks, compiled: object) -> None:
        attach(self, None)
        head = self._engine.dispatcher.run.model.head  # type: ignore[attr-defined]
        seen.append((head, len(self._registrations), len(head._forward_hooks)))

    monkeypatch.setattr(ModuleHooks, "attach", looked_at)
    trained(probes(tmp_path, modules='["head"]'), swap=SWAP)
    ((head, handles, registered),) = seen
    assert (handles, registered) == (4, 1)
    assert not (head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks)
