"""What must hold for every registered hook; a new one inherits all of it by a row in SAMPLES."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.errors import Where
from hookflow.graph.keyed import root
from hookflow.graph.points import POINTS
from hookflow.graph.slots import SLOTS
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.base import Hook
from hookflow.hooks.compile import find_hook
from hookflow.hooks.inspect import about, methods, slots
from hookflow.hooks.registry import BUILT_IN
from hookflow.hooks.slot_keys import filled
from tests.conftest import NewRun, records

SAMPLES: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "checkpoint": {"monitor": "accuracy"},
    "early_stop": {"monitor": "accuracy", "patience": 3},
    "ema": {"decay": 0.9},
    "grad_clip": {"max_norm": 1.0},
    "log": {},
    "lr_schedule": {"warmup": 0.1},
    "scheduler": {"chain": [{"use": "LinearLR", "length": "10%"}, {"use": "CosineAnnealingLR"}]},
    "throughput": {},
}
"""Arguments with which each built-in hook can be made; `whiten` belongs to one network and is tested with it."""

HERE = Where("test")


def inline(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)


def hook_class(name: str) -> type[Hook]:
    found = find_hook(BUILT_IN[name], Path(), None)
    assert isinstance(found, type)
    return found


def test_every_registered_hook_has_a_sample() -> None:
    assert SAMPLES.keys() == BUILT_IN.keys() - {"whiten"}


@pytest.mark.parametrize("name", BUILT_IN)
class TestEveryHook:
    def test_says_what_it_is_in_one_sentence(self, name: str) -> None:
        assert about(hook_class(name)).endswith((".", ":", ";")) or "." in (inspect.getdoc(hook_class(name)) or "")

    def test_its_methods_belong_to_points_and_take_what_those_offer(self, name: str) -> None:
        found, problems = methods(hook_class(name), POINTS)
        assert not problems
        assert found
        assert all(set(method.takes) <= set(POINTS[method.point].offers) for method in found)

    def test_declares_its_slots(self, name: str) -> None:
        hook = hook_class(name)
        names = {method.name for method in methods(hook, POINTS)[0]}
        touched = [slots(hook, kind, names) for kind in ("reads", "writes")]
        assert any(by_method for by_method, _ in touched)
        assert not any(faults for _, faults in touched)
        assert {root(slot) for by_method, _ in touched for one in by_method.values() for slot in one} <= SLOTS.keys()
        for by_method, _ in touched:
            assert not [filled(one, hook, name, {})[1] for one in by_method.values() if filled(one, hook, name, {})[1]]

    def test_every_argument_has_a_type_and_a_sentence(self, name: str) -> None:
        parameters = list(inspect.signature(hook_class(name)).parameters.values())
        for parameter in parameters:
            annotation = str(parameter.annotation)
            assert "description=" in annotation, f"{name}.{parameter.name} has no sentence"


@pytest.mark.parametrize("name", SAMPLES)
class TestEverySample:
    def test_its_arguments_are_accepted_and_a_typo_is_not(self, name: str) -> None:
        make = hook_class(name)
        assert not list(wrong_arguments(make, SAMPLES[name], name, lambda key: HERE))
        (problem,) = wrong_arguments(make, {**SAMPLES[name], "no_such": 1}, name, lambda key: HERE)
        assert "no_such" in problem.message

    def test_its_state_survives_a_file_that_executes_no_code(self, name: str) -> None:
        hook = hook_class(name)(**SAMPLES[name])
        file = io.BytesIO()
        torch.save(hook.state_dict(), file)
        file.seek(0)
        again = hook_class(name)(**SAMPLES[name])
        again.load_state_dict(torch.load(file, weights_only=True))
        assert again.state_dict() == hook.state_dict()

    def test_a_run_with_it_alone_finishes(self, name: str, new_run: NewRun, train_here) -> None:  # type: ignore[no-untyped-def]
        others = {"accuracy", "clip", "schedule", "ema", "throughput", "log", "early_stop", "checkpoint"}
        off = [f"hooks.{other}.enabled=false" for other in others - {"accuracy"}]
        run_dir = new_run(*off, f'hooks.sample={{use="{name}", args={inline(SAMPLES[name])}}}', "run.max_epochs=2")
        assert train_here(run_dir) == 0, records(run_dir, "error")
        assert not [record for record in records(run_dir) if record["k"] == "error"]


def test_no_hook_imports_torch_before_it_is_used() -> None:
    modules = [target.partition(":")[0] for target in BUILT_IN.values()]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hook_without_a_docstring_is_not_given_that_of_its_base() -> None:
    class Silent(Hook):
        def before_run(self) -> None: ...

    assert about(Silent) == ""
