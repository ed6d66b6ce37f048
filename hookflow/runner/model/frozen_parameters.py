"""The parameters that models were built with frozen, which checkpoints may leave out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from hookflow.hooks.checkpoint_files import mark_of, state_key, with_frozen

Marks = Mapping[str, str]
"""The marks of parameters, by their names."""


class FrozenParameters:
    """The parameters that models were built with frozen.

    Checkpoints leave them out, except those changed since then. With `only`, the models of these
    names have such parameters, and the others have none. Every change in place counts a version of
    the tensor up, by which it is looked for.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], only: Collection[str] | None = None
    ) -> None:
        self._by_model: dict[str, dict[str, nn.Parameter]] = {}
        self._marks: dict[int, tuple[str, int]] = {}
        """By the id of a parameter: its mark, and the version that it had then."""
        for name, model in models.items():
            frozen = {}
            for key, parameter in model.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad and (only is None or name in only):
                    frozen[key] = parameter
                    self._marks[id(parameter)] = (mark_of(parameter), parameter._version)
            self._by_model[name] = frozen

    def __bool__(self) -> bool:
        return bool(self._marks)

    def holds(self, parameter: nn.Parameter) -> bool:
        """Return whether a parameter was frozen as the models were built."""
        return id(parameter) in self._marks

    def without(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a captured state without them, and with their marks.

        These are of models, and of averages of models.
        """
        by_model = {
            name: self._find_unchanged(parameters) for name, parameters in self._by_model.items()
        }
        by_entry = {state_key("model", name): marks for name, marks in by_model.items()}
        result = dict(state)
        left_out = {}
        for entry, weights in state.items():
            if not entry.startswith("model"):
                continue
            if entry in by_entry:
                marks = by_entry[entry]
            else:
                marks = _find_average_marks(weights, by_model)
            if marks:
                result[entry] = {
                    name: value for name, value in weights.items() if name not in marks
                }
                left_out[entry] = dict(marks)
        result["frozen"] = left_out
        return result

    def _find_unchanged(self, parameters: Mapping[str, nn.Parameter]) -> Marks:
        """Return the marks of the parameters of a model that are as it was built with them."""
        return {
            name: self._marks[id(p)][0] for name, p in parameters.items() if self._is_unchanged(p)
        }

    def _is_unchanged(self, parameter: nn.Parameter) -> bool:
        mark, version = self._marks[id(parameter)]
        if parameter.requires_grad:
            return False
        if parameter._version != version and mark_of(parameter) != mark:
            return False
        self._marks[id(parameter)] = (mark, parameter._version)
        return True


def _find_average_marks(weights: Mapping[str, Any], by_model: Mapping[str, Marks]) -> Marks:
    """Return the marks of what these weights average, one model or all of them.

    There are none where it has no frozen ones. Several models may have the same names, as a teacher
    and its student: there the values have to be the same, too.
    """
    several = len(by_model) > 1
    candidates = [*by_model.values()]
    if several:
        candidates.append(
            {
                f"{name}.{key}": mark
                for name, marks in by_model.items()
                for key, mark in marks.items()
            }
        )
    for marks in candidates:
        if not marks or not marks.keys() <= weights.keys():
            continue
        if not several or _have_marks(weights, marks):
            return marks
    return {}


def _have_marks(weights: Mapping[str, Any], marks: Marks) -> bool:
    """Return whether the weights of these names have these marks."""
    return all(mark_of(weights[name]) == mark for name, mark in marks.items())


def with_frozen_parameters(
    state: Mapping[str, Any], models: Mapping[str, nn.Module]
) -> dict[str, Any]:
    """Return a saved state with the frozen parameters that it leaves out: those of the models.

    Raises UserError where these are others.
    """
    result = dict(state)
    by_entry = {state_key("model", name): model for name, model in models.items()}
    for entry, marks in result.pop("frozen", {}).items():
        model = by_entry[entry] if entry in by_entry else _find_averaged_model(marks, models)
        if model is not None:  # else it belongs to a model that a fork does not have
            result[entry] = with_frozen(result[entry], marks, model)
    return result


def _find_averaged_model(marks: Marks, models: Mapping[str, nn.Module]) -> nn.Module | None:
    """Return the model of which an average leaves out the parameters of these marks.

    It is None where no names fit. Where several have the names, it is the first that has the
    values, too.
    """
    candidates = [*models.values()]
    if len(models) > 1:
        candidates.append(nn.ModuleDict(dict(models)))
    fitting = [model for model in candidates if marks.keys() <= model.state_dict().keys()]
    for model in fitting:
        if _have_marks(model.state_dict(), marks):
            return model
    if fitting:
        return fitting[0]
    return None
