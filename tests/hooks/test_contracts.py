"""What must hold for every registered hook; a new one inherits all of it by a row in SAMPLES."""

import functools
import inspect
import io
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hookflow.errors import Where
from hookflow.events.rundir import RunDir
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.graph.slots import SLOT_DOCS, root
from hookflow.hooks.arguments import argument_type, find_argument_problems
from hookflow.hooks.base import Hook
from hookflow.hooks.inspect import find_methods, read_slots, read_summary
from hookflow.hooks.slot_keys import fill_slots
from hookflow.pipeline.load import parse
from hookflow.pipeline.problems import type_words
from hookflow.pipeline.registry import HOOKS
from hookflow.runner.loop.trainer import Trainer
from hookflow.service.findings import Findings
from hookflow.service.pipelines import valid_plan
from tests.conftest import TOY, NewRun, Train, records
from tests.runner.same import assert_same_end, rest_of
from tests.support.built_in_hooks import NEEDS, SAMPLES, hook_class, inline
from tests.support.runner_snapshots import photograph

OTHERS = ("accuracy", "clip", "schedule", "ema", "throughput", "log", "early_stop", "checkpoint")
"""The hooks of the toy pipeline."""

TOUCHES_NOTHING = {"empty_cache", "env_info", "memory", "profiler"}
"""Hooks that neither read nor write any state of the run."""

INSTEAD_OF = {"scheduler": "schedule"}
"""The hook of the toy pipeline whose place another one takes: beside it, it would be a mistake."""


NEED_NOT_SURVIVE = {
    # Of the current window, which a resumed run begins.
    "throughput": {"began", "samples", "iterations"},
    "activation_stats": {"names"},  # by the ids of modules
    "profiler": {"profile"},
    "time_limit": {"end"},  # counted anew in each process
}
"""Attributes of hooks that may be others after a resume, and why."""

WAITS = {
    "lr_finder",  # the loss says where its sweep ends
    "spike_guard",  # it must know the loss before the step
}
"""Hooks that wait for the device within an iteration, and why."""

SAVED_AT = 12
"""Where a run is saved in the test of the state: within the last of its three epochs,
after two validations.
"""

HERE = Where("test")


@pytest.fixture(autouse=True)
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Keep the trainers of a test, the latest last: they have the hooks that were trained with."""
    made: list[Trainer] = []
    make = Trainer.__init__

    def kept(self: Trainer, *args: Any) -> None:
        made.append(self)
        make(self, *args)

    monkeypatch.setattr(Trainer, "__init__", kept)
    return made


def attributes(name: str, trainer: Trainer) -> Any:
    """Return what the hook of a sample holds, but for what need not survive."""
    hook = trainer.run.hooks["sample"]
    return photograph(
        {
            key: value
            for key, value in vars(hook).items()
            if key not in NEED_NOT_SURVIVE.get(name, ())
        }
    )


@pytest.fixture
def alone(new_run: NewRun, train_here: Train) -> Callable[[str], RunDir]:
    """Train with one hook beside the accuracy, from the beginning to the end;
    a checkpoint from midway is kept.
    """

    def train(name: str) -> RunDir:
        off = [f"hooks.{other}.enabled=false" for other in OTHERS if other != "accuracy"]
        saves = f'points=[{{at="after_train_iter", every={SAVED_AT}}}], args={{keep=9}}'
        saved = f'hooks.saved={{use="checkpoint", {saves}}}'
        sample = f'hooks.sample={{use="{name}", args={inline(SAMPLES[name])}}}'
        run_dir = new_run(*off, saved, sample, *NEEDS.get(name, ()))
        assert train_here(run_dir) == 0, records(run_dir, "error")
        assert not records(run_dir, "error")
        return run_dir

    return train


def test_every_registered_hook_has_a_sample() -> None:
    assert SAMPLES.keys() == HOOKS.built_in.keys() - {"whiten", "comm_hook", "batch_size_finder"}


@pytest.mark.parametrize("name", HOOKS.built_in)
class TestEveryHook:
    def test_says_what_it_does_and_its_methods_and_arguments_are_in_order(self, name: str) -> None:
        sentence = read_summary(hook_class(name))
        assert re.fullmatch(r"[A-Z][a-z]+s [^.]+(\.\w[^.]*)*\.", sentence), (
            f"no sentence of what it does: {sentence!r}"
        )
        assert sum(read_summary(hook_class(other)) == sentence for other in HOOKS.built_in) == 1, (
            "another hook says the same"
        )
        result, problems = find_methods(hook_class(name), DEFAULT_POINTS)
        assert not problems
        assert result
        assert all(
            set(method.takes) <= set(DEFAULT_POINTS[method.point].offers) for method in result
        )
        hook = hook_class(name)
        for parameter in inspect.signature(hook).parameters:
            schema = argument_type(hook, parameter).json_schema()
            assert schema.get("description") and type_words(schema), f"{name}.{parameter}"

    def test_declares_its_slots(self, name: str) -> None:
        hook = hook_class(name)
        result = find_methods(hook, DEFAULT_POINTS)[0]
        reads, writes = (
            read_slots(hook, kind, {method.name for method in result})
            for kind in ("reads", "writes")
        )
        assert not [*reads[1], *writes[1]]
        declared = {
            slot
            for by_method, _ in (reads, writes)
            for of_one in by_method.values()
            for slot in of_one
        }
        assert {root(slot) for slot in declared} <= SLOT_DOCS.keys()
        for by_method, _ in (reads, writes):
            assert not [
                key for item in by_method.values() for key in fill_slots(item, hook, name, {})[1]
            ]
        assert bool(declared) == (name not in TOUCHES_NOTHING)
        for method in result:
            of_method = {*reads[0].get(method.name, ()), *writes[0].get(method.name, ())}
            assert SLOT_DOCS.keys() & set(method.takes) <= set(map(root, of_method)), (
                f"{method.name} is given what it does not declare"
            )


@pytest.mark.parametrize("name", SAMPLES)
class TestEverySample:
    def test_its_arguments_are_accepted_a_typo_is_not_and_its_state_executes_no_code(
        self, name: str
    ) -> None:
        make = hook_class(name)
        assert not list(find_argument_problems(make, SAMPLES[name], name, lambda key: HERE))
        (problem,) = find_argument_problems(
            make, {**SAMPLES[name], "no_such": 1}, name, lambda key: HERE
        )
        assert "no_such" in problem.message
        file = io.BytesIO()
        torch.save(hook_class(name)(**SAMPLES[name]).state_dict(), file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)

    def test_a_pipeline_with_it_gives_check_strict_nothing_to_warn_of(self, name: str) -> None:
        """Nor is its order beside the usual hooks ambiguous, or a call on the run undeclared."""
        given = [f'hooks.sample={{use="{name}", args={inline(SAMPLES[name])}}}']
        given += NEEDS.get(name, ())
        given += [
            f"hooks.{other}.enabled=false" for sample, other in INSTEAD_OF.items() if sample == name
        ]
        used = {hook.use for hook in parse(TOY.read_text(), TOY).pipeline.hooks.values()}
        loaded = parse(TOY.read_text(), TOY, () if name in used else given)
        result = Findings.of(loaded, valid_plan(loaded))
        assert not result.doubtful, "\n".join(result.lines(120))

    def test_never_waits_for_the_device_within_an_iteration_and_is_resumed_as_if_left_alone(
        self,
        name: str,
        alone: Callable[[str], RunDir],
        trainers: list[Trainer],
        train_here: Train,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And where it has a state, it would be noticed if it forgot that."""
        hook, fetched = hook_class(name), []

        class Fetches(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                # What item(), float() and bool() call.
                if func is torch.ops.aten._local_scalar_dense.default:
                    fetched.append("".join(traceback.format_stack(limit=8)))
                return func(*args, **(kwargs or {}))

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def call(*args: Any, **kwargs: Any) -> Any:
                with Fetches():
                    return method(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for method in find_methods(hook, DEFAULT_POINTS)[0]:
                if DEFAULT_POINTS.in_iteration(method.point):
                    patch.setattr(hook, method.name, watched(getattr(hook, method.name)))
            run_dir = alone(name)
        assert bool(fetched) == (name in WAITS), fetched[:1]
        assert_same_end(run_dir, rest_of(run_dir, SAVED_AT, tmp_path / "resumed", train_here))
        whole, resumed = (attributes(name, trainer) for trainer in trainers)
        assert whole == resumed
        if hook.state_dict is not Hook.state_dict:
            monkeypatch.setattr(hook, "load_state_dict", lambda self, state: None)
            forgetful = rest_of(run_dir, SAVED_AT, tmp_path / "forgetful", train_here)
            with pytest.raises(AssertionError):
                assert_same_end(run_dir, forgetful)


def test_no_hook_imports_torch_before_it_is_used() -> None:
    modules = [target.partition(":")[0] for target in HOOKS.built_in.values()]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hook_without_a_docstring_is_not_given_that_of_its_base() -> None:
    class Silent(Hook):
        def before_run(self) -> None: ...

    assert read_summary(Silent) == ""
