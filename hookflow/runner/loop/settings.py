"""Arguments of hooks that commands set during a run: checked as those of a file are, and part of every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookflow.errors import Where
from hookflow.graph.plan import Plan
from hookflow.hooks.arguments import as_annotated, first_names, parameters_of, wrong_arguments
from hookflow.pipeline.layers import read_value


class Settings:
    """The arguments that have been set: by hook and argument, as they were written."""

    def __init__(self, plan: Plan, hooks: Mapping[str, Any]) -> None:
        self._plan = plan
        self._hooks = hooks
        self._set: dict[str, dict[str, str]] = {}

    def set(self, hook: str, argument: str, text: str) -> str:
        """Set an attribute of the hook to a value written as in TOML, and return what it was in words.

        Raises UserError or ValueError for a wrong value.
        """
        made, value = self._hooks[hook], read_value(text)
        kind = type(made)
        names = [parameter.name for parameter in parameters_of(kind)]
        called = f'hook "{hook}"'
        if problem := next(wrong_arguments(kind, {argument: value}, called, lambda _: Where(""), filled=names), None):
            raise ValueError(f"{problem.message}; {problem.hint}".removesuffix("; "))
        if not hasattr(made, argument):
            raise ValueError(f'{called} has no attribute "{argument}"')
        if check := getattr(kind, "check_arguments", None):
            others = {name: read_value(written) for name, written in self._set.get(hook, {}).items()}
            check({**self._written(hook), **others, argument: value})
        before = getattr(made, argument)
        setattr(made, argument, dict(as_annotated(kind, {argument: value}))[argument])
        self._set.setdefault(hook, {})[argument] = text
        return f"it was {before!r}"

    def _written(self, hook: str) -> dict[str, Any]:
        """Return the arguments that the pipeline gives the hook, by name."""
        args = self._plan.hook(hook).args
        names = first_names(type(self._hooks[hook]), len(args))
        return dict(args) if isinstance(args, Mapping) else dict(zip(names, args, strict=False))

    def state_dict(self) -> dict[str, Any]:
        """Return what is set, each with the value that the pipeline has for it."""
        return {
            hook: {name: [text, self._written(hook).get(name)] for name, text in settings.items()}
            for hook, settings in self._set.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Iterator[str]:
        """Take back what `state_dict` returned, and yield a line on each setting.

        An argument that the pipeline has changed since then is left as the pipeline has it.
        """
        for hook, name, text, before in [(h, n, *each) for h, names in state.items() for n, each in names.items()]:
            setting = f"{hook}.{name}={text}"
            planned = next((each for each in self._plan.hooks if each.name == hook), None)
            if planned is None or name not in planned.settable:
                yield f"{setting}, set before this run was resumed, is dropped: the hook no longer declares it settable"
            elif self._written(hook).get(name) != before:
                yield f"{setting}, set before this run was resumed, is dropped: the pipeline has changed the argument"
            else:
                self.set(hook, name, text)
                yield f"{setting} stays set, as before this run was resumed"
