"""The slots that a pipeline file should declare for its hooks, after a run in which they were observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hookflow.graph.observation import Method, Slots
from hookflow.graph.plan import Plan
from hookflow.graph.slots import VERBS, Verb, widest
from hookflow.pipeline.load import Loaded
from hookflow.pipeline.problems import as_toml


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `[hooks.<hook>]` should say under `key`: slots of all its methods, or by method."""

    hook: str
    key: Verb
    value: list[str] | dict[str, list[str]]

    def __str__(self) -> str:
        return f"{self.key} = {as_toml(self.value)}"


def declarations(loaded: Loaded, plan: Plan, missing: Mapping[Method, Slots]) -> Iterator[Declaration]:
    """Yield what the file should say so that what is `missing` is declared, and what it or the class says stays."""
    for hook in plan.hooks:
        for verb in VERBS:
            more = {
                method: slots for (name, method), both in missing.items() if name == hook.name
                for slots in [both.of(verb)] if slots
            }  # fmt: skip
            if more:
                yield Declaration(hook.name, verb, _value(loaded, plan, hook.name, verb, more))


def _value(
    loaded: Loaded, plan: Plan, hook: str, verb: Verb, more: Mapping[str, Sequence[str]]
) -> list[str] | dict[str, list[str]]:
    """Return what the file should say: in a list if all methods touch the same, or the file has one already."""
    said = loaded.pipeline.hooks[hook]
    stated = said.reads if verb == "reads" else said.writes
    if isinstance(stated, list):
        added = [slot for slots in more.values() for slot in slots]
        return list(dict.fromkeys([*stated, *widest(added)]))
    slots = {
        binding.method: [*widest({*Slots(binding.reads, binding.writes).of(verb), *more.get(binding.method, ())})]
        for binding in plan.bindings
        if binding.hook == hook
    }
    one, *others = slots.values()
    if stated is None and all(other == one for other in others):
        return one
    return {**(stated or {}), **{method: slots[method] for method in more}}
