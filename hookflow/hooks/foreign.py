"""Hooks of other frameworks: recognition, and their names translated.

Such a hook would fail in silence: an argument with a default keeps it, a method that no point is named like is never
called. `FRAMEWORKS` is data; whatever runs or converts such hooks can read it, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from types import CodeType, FunctionType
from typing import Any

from hookflow.graph.points import Points
from hookflow.hooks.arguments import parameters_of

ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    point: tuple(tuple(order.split()) for order in orders)
    for point, *orders in (
        ("forward_pre", "module input", "module args kwargs"),
        ("forward", "module input output", "module args kwargs output"),
        ("full_backward_pre", "module grad_output"),
        ("full_backward", "module grad_input grad_output"),
        ("global_forward_pre", "module input"),
        ("global_forward", "module input output", "module args kwargs output"),
        ("global_full_backward_pre", "module grad_output"),
        ("global_full_backward", "module grad_input grad_output"),
        ("parameter_grad", "grad"),
        ("post_accumulate_grad", "param"),
        ("optimizer_step_pre", "optimizer args kwargs"),
        ("optimizer_step_post", "optimizer args kwargs"),
    )
}
"""The arguments of PyTorch's hooks in the order in which it gives them, by point."""

ALIASES = {"input": "args"}


def in_pytorch_s_order(
    parameters: Sequence[Parameter], names: Sequence[str], point: str, points: Points
) -> tuple[str, ...] | None:
    """Return what a hook is given for its arguments of these `names`, as PyTorch gives it: by position.

    That is for names some of which no point offers, of the first `parameters`. There must be as many as PyTorch gives,
    and each that any point offers must stand where PyTorch gives it; None where that is not so.
    """
    known = {name for each in points for name in each.offers}
    first = [p.name for p in parameters[: len(names)] if p.kind is not p.KEYWORD_ONLY]
    if known.issuperset(names) or first != list(names):
        return None
    for order in ORDERS.get(point, ()):
        if len(order) == len(names) and all(map(partial(_fits, known), names, order)):
            return order
    return None


def _fits(known: Collection[str], name: str, provided: str) -> bool:
    return name not in known or ALIASES.get(name, name) == ALIASES.get(provided, provided)


Issue = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework: its base class of hooks, and its names with ours; an empty string where hookflow has nothing.

    `packages` are the top-level packages that hold it. Arguments that go by the same name here are left out.
    """

    name: str
    packages: tuple[str, ...]
    base: str
    methods: Mapping[str, str]
    arguments: Mapping[str, str]
    attributes: Mapping[str, tuple[str, Collection[Any]]] = field(default_factory=dict)
    """Class attributes: what they are called here, and the values by which they are known."""


def _regular(
    edges: Mapping[str, str], parts: Mapping[str, str], stages: Mapping[str, str], called: str
) -> dict[str, str]:
    """Return methods that are named by a pattern, with our points; a stage with an empty name has none here."""
    return {
        called.format(stage=stage, part=part, edge=edge): f"{our_edge}_{our_stage}{our_part}" if our_stage else ""
        for stage, our_stage in stages.items()
        for part, our_part in parts.items()
        for edge, our_edge in edges.items()
    }


def _around(name: str) -> str:
    """Return the three points that MMEngine fans out to one method: "_after_iter"."""
    when, what = name.strip("_").split("_")
    return ", ".join(f"{when}_{stage}_{what}" for stage in ("train", "val", "test"))


_STARTS = {"start": "before", "end": "after"}
_BEGINS = {"begin": "before", "end": "after"}
_PARTS = {"": "", "_batch": "_iter"}
_PATTERN = "on_{stage}{part}_{edge}"
_FANNED_OUT = tuple(
    f"{_}{when}_{what}" for _ in ("_", "") for when in ("before", "after") for what in ("epoch", "iter")
)
_PRIORITIES = ("HIGHEST", "VERY_HIGH", "HIGH", "ABOVE_NORMAL", "NORMAL", "BELOW_NORMAL", "LOW", "VERY_LOW", "LOWEST")

FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        "MMEngine",
        ("mmengine", "mmcv"),
        "Hook",
        {name: _around(name) for name in _FANNED_OUT},
        {"runner": "run", "data_batch": "batch"},
        {"priority": ("phase", (*range(101), *_PRIORITIES))},
    ),
    Framework(
        "Lightning",
        ("lightning", "pytorch_lightning"),
        "Callback",
        {
            **_regular(
                _STARTS,
                {"": "", "_epoch": "_epoch", "_batch": "_iter"},
                {"train": "train", "validation": "val", "test": "test", "predict": ""},
                _PATTERN,
            ),
            "on_fit_start": "before_train",
            "on_fit_end": "after_train",
            "on_sanity_check_start": "",
            "on_sanity_check_end": "",
            "on_save_checkpoint": "before_save_checkpoint",
            "on_load_checkpoint": "after_load_checkpoint",
            "on_before_backward": "before_backward",
            "on_after_backward": "after_backward",
            "on_before_optimizer_step": "before_optimizer_step",
            "on_before_zero_grad": "",
        },
        {
            "trainer": "run",
            "pl_module": "run.model",
            "loss": 'outputs["loss"]',
            "optimizer": "run.optimizer",
            "dataloader_idx": "",
        },
    ),
    Framework(
        "Keras",
        ("keras", "tf_keras", "tensorflow"),
        "Callback",
        {
            **_regular(_BEGINS, _PARTS, {"train": "train", "test": "val", "predict": ""}, _PATTERN),
            **_regular(_BEGINS, {"_epoch": "_epoch", "_batch": "_iter"}, {"": "train"}, "on{part}_{edge}"),
        },
        {"logs": "outputs or metrics", "epoch": "run.epoch"},
    ),
    Framework(
        "the Hugging Face Trainer",
        ("transformers",),
        "TrainerCallback",
        {
            "on_init_end": "before_run",
            "on_train_begin": "before_train",
            "on_train_end": "after_train",
            "on_epoch_begin": "before_train_epoch",
            "on_epoch_end": "after_train_epoch",
            "on_step_begin": "before_train_iter",
            "on_step_end": "after_train_iter",
            "on_substep_end": "after_backward",
            "on_pre_optimizer_step": "before_optimizer_step",
            "on_optimizer_step": "after_optimizer_step",
            "on_evaluate": "after_val",
            "on_predict": "after_test",
            "on_prediction_step": "after_val_iter",
            "on_save": "after_save_checkpoint",
            "on_push_begin": "",
        },
        {
            "args": "run",
            "state": "run",
            "control": "run.stop()",
            "logs": "outputs or metrics",
            "model": "run.model",
            "optimizer": "run.optimizer",
        },
    ),
    Framework("Ignite", ("ignite",), "", {}, {"engine": "run"}),
    Framework(
        "fastai",
        ("fastai",),
        "Callback",
        {
            "before_fit": "before_train",
            "after_fit": "after_train",
            "before_epoch": "before_train_epoch",
            "after_epoch": "after_val",
            "before_batch": "before_train_iter",
            "after_batch": "after_train_iter",
            "after_pred": "after_forward",
            "after_loss": "after_forward",
            "before_step": "before_optimizer_step",
            "after_step": "after_optimizer_step",
            "before_validate": "before_val",
            "after_validate": "after_val",
            "after_create": "before_run",
            **dict.fromkeys((f"after_cancel_{what}" for what in ("batch", "backward", "step", "epoch", "fit")), ""),
            **dict.fromkeys(("after_cancel_train", "after_cancel_validate"), ""),
        },
        {"learn": "run"},
    ),
    Framework("Pointrix", ("pointrix",), "Hook", {}, {"trainner": "run"}),
)
UNMISTAKABLE = ("runner", "trainer", "trainner", "pl_module", "data_batch", "engine", "learn")
"""Arguments that a plain function hardly takes from the pipeline file."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The names that a class has of another framework, with ours; its `methods` that need no check of their own."""

    names: Mapping[str, str]
    methods: Collection[str]
    issues: tuple[Issue, ...]


def foreign(hook: type, points: Points) -> Foreign:
    """Return what a class has of another framework: by its base class, methods, arguments and attributes."""
    base, packages = next(
        (
            (kind, framework.packages)
            for kind in hook.__mro__
            for framework in FRAMEWORKS
            if kind.__name__ == framework.base and _package(kind) in framework.packages
        ),
        (None, ()),
    )
    members = dict(inspect.getmembers_static(hook))
    owners = {name: kind for kind in reversed(hook.__mro__) for name in vars(kind)}
    inherited = {name for name in members if packages and _package(owners.get(name, hook)) in packages}
    own = {name: member for name, member in members.items() if name not in inherited}
    functions = [inspect.unwrap(member) for member in own.values() if isinstance(member, FunctionType)]
    called = {name for function in functions for name in _called(function.__code__)}
    by_framework = {each.name: dict(_names_in(own, each, points, called)) for each in FRAMEWORKS}
    likeliest = sorted(FRAMEWORKS, key=lambda each: (each.packages != packages, -len(by_framework[each.name])))
    names: dict[str, str] = {}
    for each in likeliest:
        names |= {name: ours for name, ours in by_framework[each.name].items() if name not in names}
    if not base and not names:
        return Foreign({}, (), ())
    derived = f"{hook.__name__} is a hook of {likeliest[0].name} ({base.__module__}.{base.__name__})" if base else ""
    hint = in_our_words(names) or "a hook here is any class with methods named like points: hookflow explain points"
    message = derived or _has_names(hook.__name__, likeliest[0], names)
    return Foreign(names, {*inherited, *names}, ((message, hint),))


def foreign_arguments(
    function: Callable[..., Any], called: str, filled: Collection[str] = (), *, required: bool = False
) -> list[Issue]:
    """Return that a plain function has arguments of another framework with a default, or `required` ones, too."""
    arguments = [
        p.name for p in parameters_of(function) if p.name not in filled and (required or p.default is not p.empty)
    ]
    names = {name: ours_for(name) for name in arguments if name in UNMISTAKABLE}
    frameworks = (each for each in FRAMEWORKS if names.keys() & each.arguments.keys())
    return [(_has_names(called, next(frameworks), names), in_our_words(names))] if names else []


def _has_names(called: str, framework: Framework, names: Collection[str]) -> str:
    return f"{called} has names of {framework.name}, which mean nothing here: {', '.join(names)}"


def ours_for(argument: str) -> str:
    """Return what an argument of another framework is called here; empty where none has it."""
    return next((each.arguments[argument] for each in FRAMEWORKS if argument in each.arguments), "")


def in_our_words(names: Mapping[str, str]) -> str:
    """Return what each of these names is here; empty for none."""
    pairs = "; ".join(f"{name} → {ours or 'nothing'}" for name, ours in names.items())
    return f"in hookflow: {pairs}" if pairs else ""


def _names_in(
    own: Mapping[str, Any], framework: Framework, points: Points, called: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the framework's names among the members of a class, with ours; a helper is `called` by the class itself."""
    for name, member in own.items():
        ours, values = framework.attributes.get(name, ("", ()))
        if isinstance(member, int | str) and member in values:
            yield name, ours
        if not isinstance(member, FunctionType):
            continue
        is_point = name in points.names
        if name in framework.methods and not is_point and not (name.startswith("_") and name in called):
            yield name, framework.methods[name]
        elif not is_point or name in ORDERS:  # where PyTorch calls, arguments may have any names
            continue
        offers = points[name].offers if name in points else ("run",)
        for parameter in parameters_of(member)[1:]:
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.name in framework.arguments and parameter.name not in offers and not variadic:
                yield parameter.name, framework.arguments[parameter.name]


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _called(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, also within functions inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _called(inner)
