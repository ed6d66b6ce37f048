"""Which modules of the network a binding fires at: those that its `modules` picks, by their names or by their classes.

"layer*.conv?"           a glob over the names of modules; the network itself has the empty name, which * matches
"type:Conv2d"            a glob over the names of classes; a module counts by those that its class is derived from, too
"type:./net.py:Block"    a class, as `use` names one, and those derived from it: what isinstance says
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from torch import nn

from hookflow.errors import Problem, UserError, Where, first_few, nearest
from hookflow.graph.plan import Binding, Plan
from hookflow.hooks.globs import class_names, no_match
from hookflow.pipeline.schema import TYPE
from hookflow.pipeline.use import refer

Picked = Mapping[int, Mapping[str, nn.Module]]
"""The modules that each binding inside the network fires at, by their names, by the binding's id."""


def pick(
    plan: Plan, model: nn.Module, base: Path, place: Callable[[Binding, str], Where]
) -> tuple[Picked, list[Problem]]:
    """Return what each binding picks, and what is wrong: a class that is not there, and all that picks nothing.

    Files are relative to `base`; `place` tells where an entry of a binding's `modules` stands.
    """
    found: dict[int, dict[str, nn.Module]] = {}
    problems: list[Problem] = []
    there = dict(model.named_modules())
    for binding in plan.bindings:
        if not binding.modules:
            continue
        names: set[str] = set()
        for entry in binding.modules:
            where = place(binding, entry)
            try:
                chosen = _picked_by(entry, there, base, where)
            except UserError as error:
                problems += error.problems
                continue
            if not chosen and (wrong := _nothing(entry, there)):
                said, hint = wrong
                problems.append(Problem(f'hook "{binding.hook}" at {binding.point}: {said}', where, hint))
            names.update(chosen)
        found[binding.id] = {name: module for name, module in there.items() if name in names}
    return found, problems


def _picked_by(entry: str, there: Mapping[str, nn.Module], base: Path, where: Where) -> list[str]:
    if not entry.startswith(TYPE):
        return [name for name in there if fnmatchcase(name, entry)]
    kind = entry.removeprefix(TYPE)
    if ":" not in kind:
        return [name for name, module in there.items() if any(fnmatchcase(one, kind) for one in class_names([module]))]
    wanted = refer(kind, base, where)
    if not isinstance(wanted, type):
        raise UserError(Problem(f'"{kind}" is not a class', where))
    return [name for name, module in there.items() if any(_is_same(one, wanted) for one in type(module).__mro__)]


def _is_same(one: type, wanted: type) -> bool:
    """Say whether two classes are one; a file that is both imported and named by its path makes two of each."""
    file = _file(wanted)
    return one is wanted or (file is not None and one.__qualname__ == wanted.__qualname__ and _file(one) == file)


def _file(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _nothing(entry: str, there: Mapping[str, nn.Module]) -> tuple[str, str] | None:
    """Return that an entry picks none of the modules, and a hint at what may be meant."""
    if not entry.startswith(TYPE):
        return no_match(entry, there, "module of the network")
    kind = entry.removeprefix(TYPE)
    own = dict.fromkeys(type(module).__name__ for module in there.values())
    hint = nearest(kind.rpartition(":")[2], class_names(there.values())) or f"there are {first_few(own)}"
    return f'no module of the network is a "{kind}"', hint
