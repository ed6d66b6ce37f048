"""What an observed run sees of hooks, and what it looks with: watched mappings and fingerprints."""

import copy
import json
import pickle
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli
import torch
from torch import nn

from hookflow.graph.observation import Method, ObservedBinding, Slots, find_unseen_slots, missing
from hookflow.graph.plan import Plan
from hookflow.pipeline.load import load
from hookflow.runner.builder.build import build
from hookflow.runner.device.precision import torch_settings
from hookflow.runner.loop.trainer import Trainer
from hookflow.service.pipelines import valid_plan
from hookflow.trials.observer import HookObserver
from hookflow.trials.run_tensors import Leaves, TensorFingerprints, WatchedDict
from hookflow.trials.temporary_run import ObservationResult, in_temporary_run, observe
from tests.conftest import TOY

NOTHING = Slots()


def logs(run: Any) -> None:
    run.log("mine", 1.0)


def clips_by_numpy(run: Any) -> None:
    for parameter in run.model.parameters():
        array = parameter.grad.numpy()
        np.clip(array, -0.01, 0.01, out=array)


def writes_by_data(run: Any) -> None:
    next(run.model.parameters()).data.mul_(0.99)


def replaces(run: Any) -> None:
    run.model.head.bias = torch.nn.Parameter(torch.zeros(3))


def trains_again(run: Any) -> None:
    """Take a step of its own, in the middle of everything."""
    run.model(torch.ones(8, 4)).sum().backward()
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter -= 0.1 * parameter.grad


def draws_torch(run: Any) -> None:
    torch.rand(1)


def draws_in_forward(run: Any, output: torch.Tensor) -> None:
    torch.rand(1)


def writes_when_logged(run: Any, name: str) -> None:
    with torch.no_grad():
        run.model.head.bias.mul_(1.0)


def leaves_a_note(run: Any) -> None:
    run._note = run.iter


def reads_the_note(run: Any) -> None:
    assert run._note >= 0


def looks_at_shapes(run: Any, batch: Any, outputs: Any) -> None:
    assert [p.shape for p in run.model.parameters()]
    assert len(batch) == 2


def looks_at_the_batch(batch: Any) -> None:
    assert batch[0].sum() < 1e9


def asks_for_its_size(run: Any) -> None:
    assert run.batch_size


def keeps_the_rate(run: Any) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = group["lr"]


def asks_for_a_metric(run: Any) -> None:
    assert run.metric("loss") < 1e9


def makes_a_metric(metrics: dict[str, Any]) -> None:
    metrics["mine"] = 1.0


def saves_all(run: Any) -> None:
    torch.save([run.model, run.optimizer.state_dict()], run.dir / "all.pt")


def stops(run: Any) -> None:
    run.stop("enough")


def halves_generator(run: Any) -> None:
    with torch.no_grad():
        for parameter in run.models["generator"].parameters():
            parameter.mul_(0.5)
    for group in run.optimizers["generator"].param_groups:
        group["lr"] *= 0.5


def decays(run: Any) -> None:
    for group in run.optimizer.param_groups:
        group["weight_decay"] = 0.1


def forgets_momentum(run: Any) -> None:
    run.optimizer.state.clear()


def scales_the_batch(batch: Any) -> None:
    batch[0].mul_(1.0)


def changes_the_loss(outputs: dict[str, Any]) -> None:
    outputs["loss"] = outputs["loss"] * 2


def adds_to_checkpoint(checkpoint: dict[str, Any]) -> None:
    checkpoint["extra"] = {"best": 1}


def reads_checkpoint(checkpoint: dict[str, Any]) -> None:
    assert checkpoint["position"]["iter"] >= 0


class Teacher:
    def after_train_iter(self, run: Any) -> None:
        run.hooks["plateau"].halved = 7


def fails(run: Any) -> None:
    raise RuntimeError("on purpose")


def leaves_a_file(run: Any) -> None:
    Path(run.dir / "mine.txt").write_text("mine")


def observed(
    hooks: Mapping[str, Any], file: Path = TOY, data: Mapping[str, Any] | None = None, **run: Any
) -> tuple[Plan, ObservationResult]:
    """Observe a pipeline with these hooks and no others,
    and with other tables of `data`, if given.
    """
    tables: dict[str, Any] = tomli.loads(file.read_text())
    tables["data"] |= data or {}
    tables["run"] |= {"default_hooks": False, "threads": 1, **run}
    if "max_iters" in run:
        del tables["run"]["max_epochs"]
    tables["hooks"] = hooks
    loaded = load(tables)
    plan = valid_plan(loaded, TOY.parent)
    return plan, observe(loaded, plan, TOY.parent, lambda *said: None)


def by_method(seen: Iterable[ObservedBinding]) -> dict[Method, Slots]:
    """Return what each method was seen to touch,
    at all of its points and in both halves of an `around`.
    """
    result: dict[Method, Slots] = {}
    for one in seen:
        method = one.binding.hook, one.binding.method
        result[method] = result.get(method, Slots()) | one.touched
    return result


TOUCHES = {
    # name of the function: where it stands, and what is seen
    "clips_by_numpy": ("after_backward", Slots(("grads",), ("grads",))),
    "writes_by_data": ("after_train_iter", Slots(("model",), ("model",))),
    "replaces": ("after_train_epoch", Slots((), ("grads", "model"))),
    "trains_again": ("before_train_epoch", Slots(("grads", "model"), ("grads", "model", "rng"))),
    "draws_torch": ("after_train_iter", Slots((), ("rng",))),
    "leaves_a_note": ("after_train_iter", Slots((), ("run._note",))),
    "reads_the_note": ("after_val", Slots(("run._note",))),
    "looks_at_shapes": ("after_train_iter", NOTHING),
    "looks_at_the_batch": ("after_train_iter", Slots(("batch",))),
    "asks_for_its_size": ("after_train_iter", Slots(("batch",))),
    "decays": ("before_optimizer_step", Slots((), ("optimizer",))),
    "keeps_the_rate": ("before_optimizer_step", Slots(("lr",), ("lr",))),
    "forgets_momentum": ("after_train_epoch", Slots((), ("optimizer",))),
    "scales_the_batch": ("before_train_iter", Slots(("batch",), ("batch",))),
    "changes_the_loss": ("after_forward", Slots(("outputs.loss",), ("outputs.loss",))),
    "adds_to_checkpoint": ("before_save_checkpoint", Slots((), ("checkpoint.extra",))),
    "reads_checkpoint": ("before_save_checkpoint", Slots(("checkpoint.position",))),
    "asks_for_a_metric": ("after_val", Slots(("metrics.loss",))),
    "makes_a_metric": ("after_val_epoch", Slots((), ("metrics.mine",))),
    "saves_all": ("after_train", Slots(("lr", "model", "optimizer"))),
    "logs": ("after_train_iter", Slots((), ("scalars.mine",))),
}


@pytest.fixture(scope="module")
def all_at_once() -> tuple[Plan, ObservationResult]:
    return observed(
        {name: {"use": f"{__name__}:{name}", "points": [at]} for name, (at, _) in TOUCHES.items()}
    )


@pytest.mark.parametrize("name", TOUCHES)
def test_what_a_hook_touches_is_seen_and_nothing_else(
    all_at_once: tuple[Plan, ObservationResult], name: str
) -> None:
    plan, result = all_at_once
    assert not [one for one in result.silent if one.hook == name]
    assert by_method(result.seen)[name, ""] == TOUCHES[name][1]
    alone = name in ("looks_at_shapes", "logs")
    assert missing(plan, result.seen).get((name, ""), NOTHING) == (
        NOTHING if alone else TOUCHES[name][1]
    )


def test_hooks_that_fire_within_a_hook_are_seen_on_their_own() -> None:
    hooks = {
        "outer": {
            "use": "tests.runner.test_observe:trains_again",
            "points": ["before_train_epoch"],
        },
        "inner": {
            "use": "tests.runner.test_observe:draws_in_forward",
            "points": ["forward"],
            "modules": ["head"],
        },
        "listens": {"use": "tests.runner.test_observe:writes_when_logged", "points": ["on_log"]},
        "logs": {"use": "tests.runner.test_observe:logs", "points": ["after_train_iter"]},
    }
    result = by_method(observed(hooks)[1].seen)
    assert result["outer", ""] == Slots(("grads", "model"), ("grads", "model", "rng"))
    assert result["inner", ""] == Slots((), ("rng",))
    assert result["listens", ""] == Slots(("model",), ("model",))
    assert result["logs", ""] == Slots((), ("scalars.mine",))


def test_hooks_that_monitor_a_metric_of_a_set_declare_all_that_they_touch() -> None:
    folder = TOY.parent
    sets = {
        name: {"use": f"{folder}/toy.py:Points", "args": {"split": 1, "examples": 8}}
        for name in ("clean", "ood")
    }
    hooks = {
        "stop": {"use": "early_stop", "args": {"monitor": "clean/loss"}},
        "checkpoint": {"use": "checkpoint", "args": {"monitor": "clean/loss"}},
    }
    plan, result = observed(hooks, data={"val": sets})
    assert not missing(plan, result.seen)
    assert by_method(result.seen)["stop", "after_val"].reads == ("metrics.clean/loss",)


def test_the_state_of_hooks_matters_once_another_touches_it() -> None:
    hooks = {
        "plateau": {"use": "./undeclared_hooks.py:Plateau"},
        "teacher": {"use": "tests.runner.test_observe:Teacher"},
        "alone": {"use": "./undeclared_hooks.py:SwappedAverage"},
    }
    plan, result = observed(hooks)
    lacking = missing(plan, result.seen)
    assert lacking["teacher", "after_train_iter"] == Slots(("hook.plateau",), ("hook.plateau",))
    assert lacking["plateau", "after_val"].writes == ("hook.plateau", "lr")
    assert not any(
        slot.startswith("hook.alone") for slots in lacking.values() for slot in slots.writes
    )


def test_what_is_declared_is_not_missing_and_what_is_not_seen_is_told() -> None:
    hooks = {
        "draws": {
            "use": "tests.runner.test_observe:draws_torch",
            "points": ["after_val"],
            "writes": ["rng", "model"],
        },
        "logs": {
            "use": "tests.runner.test_observe:logs",
            "points": ["after_test"],
            "reads": ["grads"],
        },
    }
    plan, result = observed(hooks)
    assert not missing(plan, result.seen)
    assert find_unseen_slots(result.seen) == {"draws": Slots(writes=("model",))}, (
        "logs has not fired"
    )
    assert [(one.hook, one.why) for one in result.silent] == [("logs", "run.test is off")]


def test_several_models_have_slots_of_their_own_and_any_length_is_observed() -> None:
    hooks = {
        "mine": {
            "use": "tests.runner.test_observe:halves_generator",
            "points": ["after_train_iter"],
        }
    }
    _, result = observed(hooks, TOY.with_name("gan.toml"))
    slots = ("lr.generator", "model.generator")
    assert by_method(result.seen)["mine", ""] == Slots(slots, slots)
    hooks = {"logs": {"use": "tests.runner.test_observe:logs", "points": ["after_train_iter"]}}
    assert observed(hooks, accumulate=2)[1].iters == 4
    assert observed(hooks, max_iters=3)[1].iters == 3


def test_what_a_hook_raises_ends_nothing_and_stops_are_not_obeyed() -> None:
    hooks = {
        "fails": {"use": "tests.runner.test_observe:fails", "points": ["after_train_iter"]},
        "stops": {
            "use": "tests.runner.test_observe:stops",
            "points": ["after_train_iter"],
            "writes": ["control"],
        },
    }
    _, result = observed(hooks)
    assert result.iters == 4
    assert [(one.hook, one.why) for one in result.silent] == [
        ("fails", "raised RuntimeError: on purpose")
    ]


def test_a_run_that_is_observed_ends_with_the_bits_of_one_that_is_not() -> None:
    def ends(*, watched: bool) -> dict[str, torch.Tensor]:
        loaded = load(TOY, ["run.threads=1"])
        plan = valid_plan(loaded)
        with torch_settings(loaded.pipeline.run, lambda *said: None):
            parts = build(loaded, plan, TOY.parent, lambda *said: None)
            observer = HookObserver(plan, parts) if watched else None
            train = partial(Trainer.train_once, test=False, epochs=2, iters=2)
            in_temporary_run(loaded, parts, plan, train, lambda *said: None, observer=observer)
            if observer:
                observer.end()
        assert all(type(group) is dict for group in parts.optimizers["optimizer"].param_groups)
        return parts.model.state_dict()

    observed, unobserved = ends(watched=True), ends(watched=False)
    assert all(torch.equal(observed[name], unobserved[name]) for name in unobserved)


def test_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hooks = {
        "file": {"use": "tests.runner.test_observe:leaves_a_file", "points": ["after_train_iter"]}
    }
    observed(hooks, dir=str(tmp_path / "runs"))
    assert [*tmp_path.iterdir()] == []


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value


def prints(thing: Any) -> Leaves:
    return dict(TensorFingerprints().of(thing))


def optimizer(momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=momentum)


PAIRS: dict[str, tuple[Any, Any]] = {
    "number": (1, 1.0),
    "bool": (True, 1),
    "string": ("a", "b"),
    "none": (None, 0),
    "path": (Path("a"), Path("b")),
    "tensor": (torch.zeros(3), torch.tensor([0.0, 0.0, -0.0])),
    "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "dtype": (torch.zeros(2, dtype=torch.int32), torch.zeros(2)),
    "half": (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    "sparse": (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
    "array": (np.arange(3), np.arange(3)[::-1]),
    "list": ([1, 2], [2, 1]),
    "nested": ([{"a": torch.ones(1)}], [{"a": torch.zeros(1)}]),
    "dict": ({"a": 1}, {"b": 1}),
    "ordered": (OrderedDict(a=1), OrderedDict(a=2)),
    "deque": (deque([1], 3), deque([2], 3)),
    "set": ({1, 2}, {1, 3}),
    "object": (Holds(1), Holds(2)),
    "module": (nn.Linear(2, 2), nn.Linear(2, 2)),
    "optimizer": (optimizer(0.5), optimizer(0.6)),
    "random": (random.Random(1), random.Random(2)),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "torch generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_has_another_fingerprint_and_a_copy_has_the_same(name: str) -> None:
    one, other = PAIRS[name]
    assert prints(Holds(one)) != prints(Holds(other))
    same = one if isinstance(one, torch.Generator) else deepcopy(one)
    assert prints(Holds(one)) == prints(Holds(same)) != {}


def test_an_object_that_holds_itself_ends_and_functions_and_threads_have_none() -> None:
    model, holder = nn.Linear(2, 2), Holds(None)
    holder.value = [holder, model, 3]
    assert {("value", "1", "weight"), ("value", "1", "bias"), ("value", "2")} < prints(
        holder
    ).keys()
    assert dict(TensorFingerprints([model]).of(holder)).keys() == {("value", "2")}
    assert not prints(Holds(print)) | prints(Holds(lambda: 1))


Operation = Callable[[Any], Any]
CONTENT = {"a": 1, "b": [2], "c": 3}
ALL = None
READS: dict[str, tuple[Operation, set[str | None]]] = {
    "by key": (lambda d: d["a"], {"a"}),
    "by a key that is not there": (lambda d: d["z"], {"z"}),
    "get": (lambda d: (d.get("a"), d.get("z"), d.get("z", 5)), {"a", "z"}),
    "in": (lambda d: ("a" in d, "z" in d), {"a", "z"}),
    "list": (lambda d: list(d), {ALL}),
    "keys": (lambda d: list(d.keys()), {ALL}),
    "values": (lambda d: list(d.values()), {ALL}),
    "items": (lambda d: list(d.items()), {ALL}),
    "copy": (lambda d: d.copy(), {ALL}),
    "copy.copy": (copy.copy, {ALL}),
    "deepcopy": (copy.deepcopy, {ALL}),
    "pickle": (lambda d: pickle.loads(pickle.dumps(d)), {ALL}),  # noqa: S301  # its own
    "json": (json.dumps, {ALL}),
    "equal": (lambda d: (d == CONTENT, d == {}), {ALL}),
    "unequal": (lambda d: (d != CONTENT, d != {}), {ALL}),
    "joined": (lambda d: d | {"e": 5}, {ALL}),
    "joined to another": (lambda d: {"e": 5} | d, {ALL, "a", "b", "c"}),
    "unpacked": (lambda d: {**d}, {ALL, "a", "b", "c"}),
    "as a dict": (dict, {ALL, "a", "b", "c"}),
    "backwards": (lambda d: list(reversed(d)), {ALL}),
    "shown": (repr, {ALL}),
}
WRITES: dict[str, tuple[Operation, set[str]]] = {
    "set": (lambda d: d.__setitem__("a", 9), {"a"}),
    "set anew": (lambda d: d.__setitem__("z", 9), {"z"}),
    "delete": (lambda d: d.__delitem__("a"), {"a"}),
    "delete what is not there": (lambda d: d.__delitem__("z"), set()),
    "update": (lambda d: d.update({"a": 9}, z=8), {"a", "z"}),
    "update by pairs": (lambda d: d.update([("a", 9)]), {"a"}),
    "joined in place": (lambda d: d.__ior__({"a": 9, "z": 8}), {"a", "z"}),
    "setdefault": (
        lambda d: (d.setdefault("a", 9), d.setdefault("z", 8), d.setdefault("y")),
        {"z", "y"},
    ),
    "pop": (lambda d: (d.pop("a"), d.pop("z", 7), d.pop("z", None)), {"a"}),
    "pop what is not there": (lambda d: d.pop("z"), set()),
    "popitem": (lambda d: d.popitem(), {"c"}),
    "popitem until it is empty": (lambda d: [d.popitem() for _ in range(4)], {"a", "b", "c"}),
    "clear": (lambda d: d.clear(), {"a", "b", "c"}),
}


def done(operation: Operation, on: Any) -> Any:
    """Return what comes of it, or the kind of the exception."""
    try:
        return operation(on)
    except Exception as error:
        return type(error)


def watched(
    content: Mapping[str, Any], original: Any = None
) -> tuple[WatchedDict, dict[str, set[str | None]]]:
    notes: dict[str, set[str | None]] = {"reads": set(), "writes": set()}
    return WatchedDict(content, lambda how, name: notes[how].add(name), original), notes


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_noted(name: str) -> None:
    operation, expected = READS[name]
    of, notes = watched(CONTENT)
    result = done(operation, of)
    assert result == done(operation, dict(CONTENT))
    assert type(result) is not WatchedDict, "what is made of it is nobody's to watch"
    assert notes == {"reads": expected, "writes": set()}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kept", [True, False], ids=["over an original", "alone"])
def test_what_is_written_is_noted_and_done_to_the_original(name: str, kept: bool) -> None:
    operation, expected = WRITES[name]
    original, plain = dict(CONTENT), dict(CONTENT)
    of, notes = watched(CONTENT, original if kept else None)
    result = done(operation, of)
    assert result == done(operation, plain)
    assert notes["writes"] == expected
    assert of.copy_unwatched() == plain
    assert list(of.copy_unwatched()) == list(plain), "in this order"
    assert original == (plain if kept else CONTENT)


def test_it_takes_over_what_others_have_written() -> None:
    original = dict(CONTENT)
    of, notes = watched(CONTENT, original)
    del original["a"]
    original["d"] = 4
    of.take_over(original)
    assert of.copy_unwatched() == original
    assert notes == {"reads": set(), "writes": set()}
