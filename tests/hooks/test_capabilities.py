"""What hooks declare that they do: `HookCapabilities`,
of hookflow's hooks and of the user's alike.
"""

from pathlib import Path
from typing import Any

import pytest

from hookflow import ExportedWeights, Hook, HookCapabilities, SavedCheckpoints, UserError
from hookflow.errors import Where
from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.builtin.averaging import EMA
from hookflow.hooks.builtin.checkpoint import Checkpoint, Export
from hookflow.hooks.builtin.freeze import Freeze
from hookflow.hooks.builtin.scheduler import Scheduler
from hookflow.hooks.builtin.stops import EarlyStop
from hookflow.hooks.capabilities import FIELD_NAMES, NO_CAPABILITIES
from hookflow.hooks.inspect import Inspection
from hookflow.hooks.spec import HookSpec, make_spec


def spec_of(make: Any, args: Any = ()) -> HookSpec:
    return make_spec("it", make, args or {}, Where("p.toml", 1))


@pytest.mark.parametrize(
    ("make", "args", "field", "value"),
    [
        (EarlyStop, {}, "monitors", {"accuracy": "max"}),
        (EarlyStop, ["loss"], "monitors", {"loss": "min"}),
        (EMA, {}, "monitors", {}),
        (EMA, {"monitor": "score", "mode": "max"}, "monitors", {"score": "max"}),
        (
            Scheduler,
            {"chain": [{"use": "ReduceLROnPlateau"}], "metric": "loss"},
            "monitors",
            {"loss": "min"},
        ),
        (Checkpoint, {"monitor": {"a": "max", "b": "min"}}, "monitors", {"a": "max", "b": "min"}),
        (Freeze, {"params": ["body.*"]}, "frozen_at_start", ("body.*",)),
        (Freeze, {"params": ["body.*"], "begin": "1ep"}, "frozen_at_start", ()),
        (
            Export,
            {"weights": "model_ema"},
            "exported_weights",
            ExportedWeights(weights="model_ema"),
        ),
        (Checkpoint, {}, "saved_checkpoints", SavedCheckpoints()),
        (
            Checkpoint,
            {"keep": 3, "frozen": False},
            "saved_checkpoints",
            SavedCheckpoints(keep=3, with_frozen=False),
        ),
        (
            Checkpoint,
            {"trail": "2 MB"},
            "saved_checkpoints",
            SavedCheckpoints(trail_bytes=2_000_000),
        ),
        (
            Checkpoint,
            {"monitor": "val/loss", "top": 2, "weights_only": True},
            "saved_checkpoints",
            SavedCheckpoints(names=("last", "best", "best-2"), names_of_weights=("best", "best-2")),
        ),
        (
            Checkpoint,
            {"monitor": {"val/loss": "min", "acc": "max"}},
            "saved_checkpoints",
            SavedCheckpoints(names=("last", "best-val_loss", "best-acc")),
        ),
    ],
)
def test_what_a_built_in_hook_declares_by_its_arguments(
    make: Any, args: Any, field: str, value: object
) -> None:
    assert getattr(spec_of(make, args).capabilities, field) == value


def test_what_an_object_holds_counts_when_it_is_made() -> None:
    class Fixed(Checkpoint):
        def __init__(self) -> None:
            super().__init__(out_dir="elsewhere", monitor="loss")

    spec = spec_of(Fixed)
    made = spec.capabilities_of(Fixed())
    assert made.saved_checkpoints == SavedCheckpoints(names=("last", "best"), folder="elsewhere")
    assert spec.find_outside_arguments() is None


def test_a_hook_of_the_users_has_every_capability() -> None:
    class Sends:
        capabilities = HookCapabilities(
            accumulates=True, runs_backward_twice=True, writes_outside=("url",)
        )

        def __init__(self, url: str | None = None) -> None: ...

        def after_run(self) -> None: ...

    class Derived(Sends): ...

    def function(run: Any) -> None: ...

    function.capabilities = HookCapabilities(offload_blocker="it asks")  # type: ignore[attr-defined]
    assert spec_of(Derived).capabilities is Sends.capabilities
    assert spec_of(Derived).find_outside_arguments() == ("url",)
    assert spec_of(function).capabilities.offload_blocker == "it asks"
    assert spec_of(print).capabilities == NO_CAPABILITIES
    assert dict(Sends.capabilities.declared()).keys() == {
        "accumulates",
        "runs_backward_twice",
        "writes_outside",
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"writes_outsid": True}, 'did you mean "writes_outside"?'),
        ({"qqqq": True}, "it has writes_outside, "),
        *(
            ({"writes_outside": value}, "must be True or hold names")
            for value in (None, 3, "out_dir", [1])
        ),
        ({"saved_checkpoints": True}, "must be of the type SavedCheckpoints"),
        ({"exported_weights": "model"}, "must be of the type ExportedWeights"),
        ({"monitors": {"loss": "less"}}, 'must hold "min" or "max"'),
        ({"monitors": "loss"}, 'must hold "min" or "max"'),
        ({"accumulates": 1}, "must be True or False"),
        ({"frozen_at_start": "body.*"}, "must hold globs"),
        ({"every_if_overfit": 3}, "must be an amount"),
        ({"offload_blocker": None}, "must be a sentence"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError) as raised:
        HookCapabilities(**fields)
    assert told in str(raised.value)


class Listed(Hook):
    capabilities = {"accumulates": True}  # type: ignore[assignment]  # noqa: RUF012

    def after_run(self) -> None: ...


class Misspelt(Hook):
    capabilites = HookCapabilities(accumulates=True)

    def after_run(self) -> None: ...


class Outside(Hook):
    writes_outside = ("url",)

    def after_run(self) -> None: ...


class Twice(Hook):
    backward_twice = True

    def after_run(self) -> None: ...


@pytest.mark.parametrize(
    ("hook", "message", "hint"),
    [
        (
            Listed,
            "Listed.capabilities must be HookCapabilities, not dict",
            "HookCapabilities(accumulates=True)",
        ),
        (Misspelt, "Misspelt.capabilites holds capabilities", 'did you mean "capabilities"?'),
        (Outside, "Outside.writes_outside is a capability", "HookCapabilities(writes_outside=…)"),
        (Twice, "Twice.backward_twice is a capability", "HookCapabilities(runs_backward_twice=…)"),
    ],
)
def test_what_stands_in_the_wrong_place_is_refused(hook: type, message: str, hint: str) -> None:
    ((told, way_out),) = Inspection(hook, DEFAULT_POINTS).issues
    assert told.startswith(message)
    assert hint in way_out


def test_capabilities_by_arguments_must_be_capabilities() -> None:
    class Wrong(Hook):
        @classmethod
        def capabilities_for(cls, args: Any) -> Any:
            return {"accumulates": True}

    with pytest.raises(UserError) as raised:
        spec_of(Wrong)
    (problem,) = raised.value.problems
    assert problem.where == Where("p.toml", 1)
    assert "Wrong.capabilities_for must return HookCapabilities" in problem.message


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "capabilities.md").read_text()
    assert [name for name in FIELD_NAMES if f"`{name}`" not in page] == []
