"""The contract of tasks, and checks of the values that they return and hooks log."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import unwrap
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from hookflow.errors import Problem, UserError, Where, nearest, nearest_or_all
from hookflow.hooks.arguments import find_call_problem

Part = TypeVar("Part")

EVALUATE_HINT = "give it a method evaluate(run, batch)"


class Task(Protocol):
    """The task: how a batch becomes a loss.

    `step` and `evaluate` are given the run (`run.model`, or `run.models["generator"]`) and the
    batch. They return a dict: "loss", a tensor of no dimensions, averaged over the batch, without
    which `evaluate` may do; other single numbers, of which an evaluation gives the mean over all
    examples; and further values for hooks, as `outputs`. A class without `evaluate` is evaluated by
    its `step`, and so is a task that is a plain function.

    A task may have a method `predict(run, batch)` that `hookflow predict` calls in place of
    `evaluate`, with a batch that may lack targets; it returns a dict of tensors with a row for each
    example.

    A task may have a method `batch_size(batch)` that returns how many examples a batch has; it
    counts before what the source or the tensors of the batch say.

    A task may have a method `batch_weight(batch)` that returns what its numbers of a batch are
    means over, a number or a tensor of one element; without it they are means over the examples. A
    batch of weight 0 is left out.

    A task may have a method `batch_tokens(batch)` that returns how many tokens this rank's batch
    has, as an integer: for triggers such as `every = "1M tokens"`.

    A task may have a method `metrics(means)` that returns further metrics, from the means over a
    whole evaluation.

    Where there are several training sets, a task may have a method `step_NAME(run, batch)` for
    batches of the set NAME; its `step` has those of the sets without one.

    A task with `state_dict()` and `load_state_dict(state)` has its state in every checkpoint.

    A task that steps its optimizers itself says `steps_itself = True`; its `step` calls
    `run.backward` and `run.step`, and need return no loss.
    """

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        """Return the outputs of a training batch; the loss requires a gradient."""

    def evaluate(self, run: Any, batch: Any) -> dict[str, Any]:
        """Return the outputs of a validation or test batch.

        The model is in evaluation, and gradients are off.
        """


class FunctionTask:
    """A task that is a plain function.

    It returns the outputs for a batch, in training and in evaluation alike.
    """

    def __init__(self, function: Callable[[Any, Any], dict[str, Any]]) -> None:
        self.step = function


class NamedParts(dict[str, Part]):
    """Things by name: a wrong one is answered with the nearest."""

    def __init__(self, kind: str, parts: Mapping[str, Part]) -> None:
        super().__init__(parts)
        self._kind = kind

    def __missing__(self, name: str) -> Part:
        hint = nearest_or_all(name, self)
        raise UserError(Problem(f'there is no {self._kind} "{name}"', hint=hint))


def steps_itself(task: Any) -> bool:
    """Say whether a task calls `run.backward` and `run.step` itself."""
    return bool(getattr(task, "steps_itself", False))


def find_evaluation(task: Any) -> Callable[[Any, Any], Any]:
    """Return how a task evaluates: its `evaluate`, or its `step` where it has none."""
    evaluate: Callable[[Any, Any], Any] | None = getattr(task, "evaluate", None) or getattr(
        task, "step", None
    )
    return evaluate or _no_evaluation


def _no_evaluation(run: Any, batch: Any) -> Any:
    raise UserError(
        Problem(
            "the task has a step for each training set, and defines no evaluate()",
            hint=EVALUATE_HINT,
        )
    )


def training_step(task: Any, data: Mapping[str, Any]) -> Callable[[Any, Any], Any]:
    """Return the step of a training batch.

    It is that of its set, where the task has steps for some of several sets.
    """
    sets = getattr(data.get("train"), "sets", {})
    common_step: Callable[[Any, Any], Any] | None = getattr(task, "step", None)
    steps: dict[str, Any] = {name: getattr(task, step_of_set(name), common_step) for name in sets}
    if common_step is not None and all(step is common_step for step in steps.values()):
        return common_step

    def step_by_set(run: Any, batch: Any) -> Any:
        step = steps.get(run.batch_set, common_step)
        if step is None:
            message = (
                "the task has a step for each training set, and this batch is of none of them alone"
            )
            raise UserError(Problem(message, hint="give it a method step(run, batch), too"))
        return step(run, batch)

    return step_by_set


def step_of_set(name: str) -> str:
    """Return what the step for one of several training sets is called."""
    return f"step_{name}"


def find_prediction(task: Any) -> Callable[[Any, Any], Any]:
    """Return how a task predicts. Raises UserError where it does not say."""
    predict: Callable[[Any, Any], Any] | None = getattr(task, "predict", None)
    if predict is None:
        if isinstance(task, FunctionTask):
            name = "is a function, and"
        else:
            name = type(task).__name__
        message = f"the task {name} defines no predict()"
        hint = (
            "give it a method predict(run, batch) that returns a dict of tensors, with a row for"
            " each example"
        )
        raise UserError(Problem(message, hint=hint))
    return predict


def find_task_problem(
    task: Any, evaluated: bool, sets: Sequence[str] = ()
) -> tuple[str, str] | None:
    """Return what keeps an object from being a task, and a hint.

    `evaluated` says whether there are data for that.

    `sets` are the training sets for which it may have a step of its own.
    """
    kind = type(task).__name__
    own_steps = [step_of_set(name) for name in sets]
    fault = _find_step_problem(task, own_steps)
    if fault:
        return fault
    if not callable(getattr(task, "step", None)) and evaluated and not hasattr(task, "evaluate"):
        return (
            f"the task {kind} has a step for each training set, and defines no evaluate()",
            EVALUATE_HINT,
        )
    public = [
        name for name in dir(task) if not name.startswith("_") and callable(getattr(task, name))
    ]
    if not hasattr(task, "evaluate"):
        for name in public:
            near = nearest(name, ["evaluate"])
            if near:
                return f"the task {kind} has a method {name}", near
        if evaluated and steps_itself(task):
            return (
                f"the task {kind} steps its optimizers itself, and defines no evaluate()",
                EVALUATE_HINT,
            )
    lacking = _missing_half_of_state(task)
    if lacking:
        return f"the task {kind} {lacking}", "a resume needs both"
    for method in ("step", *own_steps, "evaluate", "predict"):
        call = getattr(task, method, None)
        if call is not None and find_call_problem(call, None, None):
            return f"the task's {method} must take the run and the batch: {method}(run, batch)", ""
    return None


def _missing_half_of_state(task: Any) -> str:
    """Return which of `state_dict` and `load_state_dict` a task has alone.

    It is empty where it has both or neither.
    """
    saves = hasattr(task, "state_dict")
    loads = hasattr(task, "load_state_dict")
    if saves and not loads:
        return "defines state_dict() and no load_state_dict()"
    if loads and not saves:
        return "defines load_state_dict() and no state_dict()"
    return ""


def _find_step_problem(task: Any, own_steps: Sequence[str]) -> tuple[str, str] | None:
    """Return which step a task lacks, or has misspelt.

    `own_steps` are those that it may have for training sets.
    """
    kind = type(task).__name__
    missing = [name for name in own_steps if not callable(getattr(task, name, None))]
    for name in dir(task):
        if name.startswith("step_") and name not in own_steps and (near := nearest(name, missing)):
            return f"the task {kind} has a method {name}", near
    if callable(getattr(task, "step", None)):
        return None
    if not own_steps or len(missing) == len(own_steps):
        return f"a task needs a method step(run, batch); {kind} has none", ""
    if missing:
        return (
            f"the task {kind} has no step for some training sets",
            f"give it {', '.join(missing)}, or step",
        )
    return None


def check_outputs(outputs: Any, task: Any, method: str, run: Any = None) -> None:
    """Raise UserError for a wrong result of the task's `method`, "step" or "evaluate".

    An evaluation needs no loss. Nor does a step of a task that steps its optimizers itself. The
    `run` knows the training set of the batch, which may have a step of its own.
    """
    trains = method == "step" and not steps_itself(task)
    wrong = _wrong_outputs(outputs, trains)
    if not wrong:
        return
    batch_set = getattr(run, "batch_set", None)
    called = getattr(task, "step", None)
    if method == "evaluate":
        called = find_evaluation(task)
    elif batch_set is not None and hasattr(task, step_of_set(batch_set)):
        method = step_of_set(batch_set)
        called = getattr(task, method)
    hint = 'return {"loss": loss, …} with the mean over the batch, a tensor of no dimensions'
    raise UserError(
        Problem(f"the task's {method} has returned {wrong}", _place_of_function(called), hint)
    )


def _wrong_outputs(outputs: Any, trains: bool) -> str:
    """Return what is wrong with a result; empty where it is right.

    One that `trains` needs a loss with gradients.
    """
    if outputs is None:
        return "None"
    if not isinstance(outputs, Mapping):
        return f"a {type(outputs).__name__}"
    if "loss" not in outputs:
        names = ", ".join(map(str, outputs)) or "nothing"
        return f'a dict without "loss" (it has {names})' if trains else ""
    loss = outputs["loss"]
    if not isinstance(loss, Tensor):
        return f"a loss that is a {type(loss).__name__}, expected a tensor"
    if loss.ndim:
        return f"a loss of shape {tuple(loss.shape)}"
    if trains and not loss.requires_grad:
        return (
            "a loss that does not depend on any parameter that trains (it does not require a"
            " gradient)"
        )
    return ""


def _place_of_function(called: Any) -> Where | None:
    """Return where a function of the user's is defined; None where it has no code in Python."""
    while isinstance(called, partial):  # a function with the arguments of the file
        called = called.func
    code = getattr(unwrap(called), "__code__", None) if called is not None else None
    if code is None:
        return None
    return Where(code.co_filename, code.co_firstlineno)


def single_numbers(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers among a task's outputs, and the tensors of no dimensions.

    These stay on their device. Numbers of 16 bits become float32: they are to be summed, and a sum
    is soon beyond fp16, or too coarse in bf16.
    """
    result: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, int | float):
            result[name] = value
        elif isinstance(value, Tensor) and not value.ndim:
            if value.requires_grad:
                number = value.detach()
            else:
                number = value
            result[name] = (
                number.float() if number.dtype in (torch.float16, torch.bfloat16) else number
            )
    return result


def as_number(value: Any, called: str) -> float:
    """Return a number (or a tensor or an array of one element, waiting for its device) as a float.

    Raises TypeError, which names `called`, for anything else.
    """
    try:
        if hasattr(value, "item"):
            number = value.item()
        else:
            number = value
        if not hasattr(number, "__float__"):  # a string has none
            raise TypeError
        return float(number)
    except (TypeError, ValueError, RuntimeError):
        raise not_a_number(value, called) from None


def not_a_number(value: Any, called: str) -> TypeError:
    """Return the error of `called` for a value that is no number."""
    if hasattr(value, "shape"):
        shape = f"of shape {tuple(value.shape)}"
    else:
        shape = f"({value!r:.40})"
    return TypeError(
        f"{called} needs a number or a tensor of one element, not a {type(value).__name__} {shape}"
    )


def numbers(values: Any, called: str) -> Tensor:
    """Return a copy of a tensor, an array or a list of real numbers.

    The copy of a tensor stays on its device. Raises TypeError, which names `called`, for anything
    else.
    """
    try:
        if isinstance(values, Tensor):
            provided = values.detach().clone()
        else:
            provided = torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{called} needs numbers, not a {type(values).__name__} ({values!r:.40})"
        ) from None
    if provided.is_complex():
        raise TypeError(f"{called} needs real numbers, not {provided.dtype}")
    return provided


def scalar(value: Any, called: str) -> float | Tensor:
    """Return what may be logged: a float, or a copy of a tensor of one element.

    The tensor stays on its device. Raises TypeError, which names `called`, for anything else.
    """
    if not isinstance(value, torch.Tensor):
        return as_number(value, called)
    if value.numel() != 1 or value.is_complex():
        raise not_a_number(value, called)
    return value.detach().clone()
