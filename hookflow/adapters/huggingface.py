"""Callbacks of Hugging Face's Trainer, unmodified.

Each is called as there, with its `args`, `state` and `control`.

`use = "huggingface:EarlyStoppingCallback"` names a callback of transformers; any other class with
`TrainerCallback` among its bases is adapted likewise. Source: `transformers.trainer_callback`,
version 5.24.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

from hookflow.adapters.huggingface_hook import HuggingFaceHook
from hookflow.adapters.huggingface_tables import (
    ALWAYS_BOUND,
    EVENT_POINTS,
    PASS_START_EVENTS,
    POINT_READS,
    PUSH_EVENT,
    REPLACEMENT_HINTS,
    TRAINER_ARGUMENT,
    TRAINER_METHODS,
    translate_events,
)
from hookflow.errors import Problem, UserError, Where, nearest
from hookflow.graph.plan import Nodes, Trigger
from hookflow.hooks.adapter import (
    AdaptedClasses,
    AdaptedClassSpec,
    FrameworkNames,
    HookAdapter,
    get_bases,
    get_module_name,
    list_own_names,
    read_adapted_capabilities,
)
from hookflow.pipeline.registry import missing_package

TRANSFORMERS_PACKAGE = "transformers"
CALLBACK_MODULES = ("transformers", "transformers.trainer_callback", "transformers.integrations")
"""Where transformers has callbacks."""


class HuggingFaceAdapter(HookAdapter):
    """Runs callbacks of the Hugging Face Trainer."""

    prefix = "huggingface"
    names: ClassVar = FrameworkNames(
        framework="the Hugging Face Trainer",
        packages=(TRANSFORMERS_PACKAGE,),
        base="TrainerCallback",
        arguments={"control": "run.stop()"},
        members=translate_events(),
    )

    def find(self, name: str, where: Where | None) -> type:
        """Return the callback of transformers that has this name.

        Raises UserError where there is none.
        """
        problem = missing_package(
            f'use = "huggingface:{name}"', TRANSFORMERS_PACKAGE, "huggingface", where
        )
        if problem is not None:
            raise UserError(problem)
        known: list[str] = []
        for module in map(import_module, CALLBACK_MODULES):
            kind: Any = getattr(module, name, None)
            if isinstance(kind, type) and self.claims(kind):
                return kind
            known += [each for each in dir(module) if each.endswith("Callback")]
        raise UserError(
            Problem(f'transformers has no callback "{name}"', where, nearest(name, known))
        )

    def claims(self, kind: type) -> bool:
        """Say whether a class is derived from `TrainerCallback`."""
        return any(is_callback_base(base) for base in get_bases(kind)[1:])

    def read(self, kind: type, where: Where | None) -> AdaptedClassSpec:
        """Read a callback class. Raises UserError for one that needs the Trainer itself."""
        _check_supported(kind, where)
        points = [*find_points(kind)]
        return AdaptedClassSpec(
            base=HuggingFaceHook,
            arguments={point: EVENT_POINTS[point].arguments for point in points},
            reads={point: POINT_READS[point] for point in points if point in POINT_READS},
            writes={},
            capabilities=read_adapted_capabilities(kind, HuggingFaceHook, TRANSFORMERS_PACKAGE, {}),
        )

    def problems(self, nodes: Nodes, hooks: AdaptedClasses) -> Iterator[Problem]:
        """Yield each callback whose bindings have triggers: it counts the steps itself."""
        for name in hooks:
            if name not in nodes:
                continue
            node = nodes[name]
            triggered = [bound for bound in node.bound if bound.trigger != Trigger()]
            if triggered:
                message = (
                    f"a TrainerCallback is called at each {triggered[0].point}, and decides itself"
                    " what it does"
                )
                yield Problem(message, node.where, "leave every, from, until and when out")


def is_callback_base(kind: type) -> bool:
    """Say whether a class is `TrainerCallback`, without importing transformers."""
    if type.__getattribute__(kind, "__name__") != "TrainerCallback":
        return False
    return get_module_name(kind).startswith(f"{TRANSFORMERS_PACKAGE}.")


def find_points(kind: type) -> Iterator[str]:
    """Yield the points at which a callback has something to do.

    Points that the trainer counts by are yielded, too.
    """
    own_names = list_own_names(kind, is_callback_base)
    for point, called in EVENT_POINTS.items():
        starts_pass = PASS_START_EVENTS.get(point) in own_names
        if point in ALWAYS_BOUND or starts_pass or not own_names.isdisjoint(called.events):
            yield point


def _check_supported(kind: type, where: Where | None) -> None:
    """Raise UserError for a callback that needs what hookflow has not."""
    name = kind.__name__
    if name in REPLACEMENT_HINTS and get_module_name(kind).startswith(f"{TRANSFORMERS_PACKAGE}."):
        raise UserError(
            Problem(f"{name} is a part of Hugging Face's Trainer", where, REPLACEMENT_HINTS[name])
        )
    own_names = list_own_names(kind, is_callback_base)
    if PUSH_EVENT in own_names:
        hint = (
            "a run pushes nothing to the Hub: copy_to of checkpoint copies, and export writes a"
            " file"
        )
        raise UserError(Problem(f"{name}.{PUSH_EVENT} has no point here", where, hint))
    parameters = inspect.signature(kind).parameters
    if TRAINER_ARGUMENT in parameters or not own_names.isdisjoint(TRAINER_METHODS):
        hint = (
            "what a callback is given here are args, state, control, and the model, the optimizer"
            " and the data"
        )
        raise UserError(Problem(f"{name} takes a Trainer, and there is none here", where, hint))
