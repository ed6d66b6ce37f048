"""Hooks of other frameworks: recognition, and their names translated.

Such a hook would fail in silence: an argument with a default keeps it, a method that no point is named like is never
called.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from types import FunctionType
from typing import Any

from hookflow.graph.points import Points
from hookflow.hooks.arguments import parameters_of
from hookflow.hooks.lightning import CALLS, EPOCH_END

ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "forward_pre": (("module", "input"), ("module", "args", "kwargs")),
    "forward": (("module", "input", "output"), ("module", "args", "kwargs", "output")),
    "full_backward_pre": (("module", "grad_output"),),
    "full_backward": (("module", "grad_input", "grad_output"),),
    "global_forward_pre": (("module", "input"),),
    "global_forward": (("module", "input", "output"), ("module", "args", "kwargs", "output")),
    "global_full_backward_pre": (("module", "grad_output"),),
    "global_full_backward": (("module", "grad_input", "grad_output"),),
    "parameter_grad": (("grad",),),
    "post_accumulate_grad": (("param",),),
    "optimizer_step_pre": (("optimizer", "args", "kwargs"),),
    "optimizer_step_post": (("optimizer", "args", "kwargs"),),
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
        if len(order) == len(names) and all(
            name not in known or ALIASES.get(name, name) == ALIASES.get(provided, provided)
            for name, provided in zip(names, order, strict=True)
        ):
            return order
    return None


Issue = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework: its base class of hooks in its `packages`, and its names with ours; "" where hookflow has nothing.

    Arguments that go by the same name here are left out.
    """

    name: str
    packages: tuple[str, ...]
    base: str
    arguments: Mapping[str, str]
    members: Mapping[str, str] = field(default_factory=dict)
    """Methods and class attributes."""


FRAMEWORKS: tuple[Framework, ...] = (
    Framework(
        "MMEngine",
        ("mmengine", "mmcv"),
        "Hook",
        {"runner": "run", "data_batch": "batch"},
        {
            "priority": "phase",
            **{
                f"{prefix}{when}_{what}": ", ".join(f"{when}_{stage}_{what}" for stage in ("train", "val", "test"))
                for prefix in ("", "_")
                for when in ("before", "after")
                for what in ("epoch", "iter")
            },
        },
    ),
    Framework(
        "Lightning",
        ("lightning", "pytorch_lightning"),
        "Callback",
        {
            "trainer": "run",
            "pl_module": "run.model",
            "loss": 'outputs["loss"]',
            "optimizer": "run.optimizer",
            "dataloader_idx": "",
        },
        {
            **{name: at for at, (names, _) in CALLS.items() for name in names if name.startswith("on_") and name != at},
            EPOCH_END: "after_train_epoch",
            "on_before_zero_grad": "",
        },
    ),
    Framework("Pointrix", ("pointrix",), "Hook", {"trainner": "run"}),
    Framework(
        "Keras",
        ("keras", "tf_keras", "tensorflow"),
        "Callback",
        {},
        {
            "on_train_begin": "before_train",
            "on_train_end": "after_train",
            "on_epoch_begin": "before_train_epoch",
            "on_epoch_end": "after_val, after_train_epoch",
            **dict.fromkeys(("on_train_batch_begin", "on_batch_begin"), "before_train_iter"),
            **dict.fromkeys(("on_train_batch_end", "on_batch_end"), "after_train_iter"),
            "on_test_begin": "before_val, before_test",
            "on_test_end": "after_val, after_test",
            "on_test_batch_begin": "before_val_iter, before_test_iter",
            "on_test_batch_end": "after_val_iter, after_test_iter",
            "on_predict_begin": "before_predict",
            "on_predict_end": "after_predict",
            "on_predict_batch_begin": "before_predict_iter",
            "on_predict_batch_end": "after_predict_iter",
        },
    ),
    Framework(
        "the Hugging Face Trainer",
        ("transformers",),
        "TrainerCallback",
        {"control": "run.stop()"},
        {
            "on_init_end": "before_run",
            "on_train_begin": "before_train",
            "on_train_end": "after_train",
            "on_epoch_begin": "before_train_epoch",
            "on_epoch_end": "after_train_epoch",
            "on_step_begin": "before_train_iter",
            "on_pre_optimizer_step": "before_optimizer_step",
            "on_optimizer_step": "after_optimizer_step",
            "on_step_end": "after_train_iter",
            "on_evaluate": "after_val",
            "on_prediction_step": "after_val_iter",
            "on_predict": "after_predict",
            "on_save": "after_save_checkpoint",
        },
    ),
    Framework("Ignite", ("ignite",), "", {"engine": "run"}),
    Framework(
        "fastai",
        ("fastai",),
        "Callback",
        {"learn": "run"},
        {
            "before_fit": "before_train",
            "after_fit": "after_train",
            "before_epoch": "before_train_epoch",
            "after_epoch": "after_val",
            "before_validate": "before_val",
            "after_validate": "after_val",
            "before_batch": "before_train_iter, before_val_iter",
            "after_batch": "after_train_iter, after_val_iter",
            "after_pred": "after_forward",
            "after_loss": "after_forward",
            "before_step": "before_optimizer_step",
            "after_step": "after_optimizer_step",
            "after_cancel_fit": "after_train",
        },
    ),
)
UNMISTAKABLE = ("runner", "trainer", "trainner", "pl_module", "data_batch", "engine", "learn")
"""Arguments that a plain function hardly takes from the pipeline file."""


def foreign(hook: type, points: Points, helpers: Collection[str] = ()) -> list[Issue]:
    """Return that a class is a hook of another framework: by its base class, members and arguments.

    The names of its `helpers` say nothing.
    """
    for kind in hook.__mro__:
        for each in FRAMEWORKS:
            if kind.__name__ == each.base and _package(kind) in each.packages:
                bases = [base for base in hook.__mro__ if _package(base) not in each.packages]
                names = dict(
                    _names_in({name: item for base in bases for name, item in vars(base).items()}, each, points)
                )
                message = f"{hook.__name__} is a hook of {each.name} ({kind.__module__}.{kind.__name__})"
                plain = "a hook here is any class with methods named like points: hookflow explain points"
                return [(message, in_our_words(names) or plain)]
    public = {name: item for name, item in inspect.getmembers_static(hook) if not name.startswith("_")}
    public = {name: item for name, item in public.items() if name not in helpers}
    by_framework = [(each, dict(_names_in(public, each, points))) for each in FRAMEWORKS]
    likeliest, names = max(by_framework, key=lambda pair: len(pair[1]))
    return [(_has_names(hook.__name__, likeliest, names), in_our_words(names))] if names else []


def foreign_arguments(
    function: Callable[..., Any], called: str, filled: Collection[str] = (), *, required: bool = False
) -> list[Issue]:
    """Return that a plain function has arguments of another framework with a default, or `required` ones, too."""
    own = [p for p in parameters_of(function) if p.name in UNMISTAKABLE and p.name not in filled]
    names = {p.name: ours_for(p.name) for p in own if required or p.default is not p.empty}
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


def _names_in(own: Mapping[str, Any], framework: Framework, points: Points) -> Iterator[tuple[str, str]]:
    """Yield the framework's names among the members of a class, with ours."""
    for name, member in own.items():
        is_method, is_point = isinstance(member, FunctionType), name in points.names
        if name in framework.members and not is_point and (is_method or isinstance(member, int | str)):
            yield name, framework.members[name]
        elif not is_point or name in ORDERS:  # where PyTorch calls, arguments may have any names
            continue
        offers = points[name].offers if name in points else ("run",)
        for parameter in parameters_of(member)[1:] if is_method else ():
            if parameter.name in framework.arguments and parameter.name not in offers:
                yield parameter.name, framework.arguments[parameter.name]


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]
