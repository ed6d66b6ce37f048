"""Compile a loaded pipeline into its plan: find, inspect and check every hook, then order them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookflow.errors import Problem, UserError, Where, by_place
from hookflow.graph.compile import compile_plan
from hookflow.graph.order import Places
from hookflow.graph.plan import Node, Plan
from hookflow.graph.slots import doubts
from hookflow.hooks.dataflow import undeclared_slots, with_scalars
from hookflow.hooks.inspect import Inspected
from hookflow.hooks.module_keys import with_prepended_first
from hookflow.hooks.not_imported import find_without_import
from hookflow.hooks.registry import HOOKS
from hookflow.hooks.table import HookTable, own_points, wrong_comm_hooks
from hookflow.hooks.uses import undeclared_calls
from hookflow.pipeline.load import Loaded, uncollected
from hookflow.pipeline.schema import HookNode
from hookflow.user_code import explained, is_ctrl_c, is_ours


@contextmanager
def looking_at(use: str, where: Where | None = None, owner: str = "") -> Iterator[None]:
    """Raise UserError at `where` for what is raised by something that is only looked at; `whose` begins the message.

    UserError and KeyboardInterrupt propagate.
    """
    try:
        yield
    except BaseException as error:
        if is_ours(error) or is_ctrl_c(error):
            raise
        message, *chain = explained(error)
        raise UserError(Problem(f"{owner}looking at {use} raises {message}", where, "\n    ".join(chain))) from None


@uncollected()
def compile_pipeline(
    loaded: Loaded,
    base: Path | None = None,
    shuffle: int | None = None,
    wanted: Places | None = None,
    *,
    imports: bool = True,
) -> Plan:
    """Compile the pipeline's hooks into a plan.

    Files that the pipeline names are relative to `base`, which is its own folder if left out. `shuffle` is the seed of
    another order that the edges and phases allow; `wanted` says of every binding where it shall stand, likewise.
    Unless it `imports`, only the pipeline file's own words are known of the user's hooks.
    Raises UserError with everything that is wrong with the hooks: names, arguments, points, edges, cycles.
    """
    find = find_hook if imports else find_without_import
    nodes: dict[str, Node] = {}
    hooks: dict[str, Callable[..., Any]] = {}
    prepended: dict[str, Mapping[str, Where]] = {}
    points, problems = own_points(loaded)
    warnings: list[Problem] = []
    unknown: list[Problem] = []
    declared = loaded.pipeline.hooks
    folder = base or loaded.source.parent
    inspected = Inspected(lambda use, where: find(use, folder, where), points)
    disabled = [name for name, declaration in declared.items() if not declaration.enabled]
    disabled += _replaced_defaults(declared, inspected)
    for name, declaration in declared.items():
        if name not in disabled:
            try:
                with looking_at(declaration.use, loaded.places.of(f"hooks.{name}.use"), f'hook "{name}": '):
                    hook = HookTable(name, declaration, loaded, inspected, points)
                    nodes[name], hooks[name] = hook.node(), hook.hook
                    prepended[name] = hook.inside.prepended
                    problems += hook.problems
                    warnings += undeclared_calls(hook.hook, nodes[name])
                    unknown += hook.unknown()
            except UserError as error:
                problems += error.problems
    problems += wrong_comm_hooks(nodes)
    nodes, misspelt = with_scalars(nodes, hooks)
    try:
        ordered = with_prepended_first(nodes, prepended)
        plan = compile_plan(loaded.pipeline.run.name, ordered, disabled, points, shuffle, wanted)
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(sorted(problems, key=by_place))
    warnings += undeclared_slots(plan, nodes, hooks)
    in_epoch = loaded.pipeline.run.validates.unit == "it"
    doubtful, notes = doubts(plan, nodes, in_epoch)
    warnings = [*plan.warnings, *misspelt, *doubtful, *warnings]
    return replace(plan, warnings=tuple(warnings), notes=tuple(notes), unknown=tuple(unknown))


def _replaced_defaults(declared: Mapping[str, HookNode], inspected: Inspected) -> list[str]:
    """Return the default hooks that give way: another hook's class is theirs, or derived from it."""
    defaults = {name: inspected.find(hook.use, None) for name, hook in declared.items() if hook.default}
    others: list[Callable[..., Any]] = []
    for hook in declared.values() if defaults else ():
        if hook.enabled and not hook.default:
            with suppress(UserError):  # which the turn of that hook reports
                others.append(inspected.find(hook.use, None))
    classes = tuple(other for other in others if issubclass(type(other), type))  # whose looks may raise
    return [name for name, kind in defaults.items() if any(issubclass(item, kind) for item in classes)]  # type: ignore[arg-type]


def find_hook(use: str, base: Path, where: Where | None) -> Callable[..., Any]:
    """Return the class or function that `use` names. Raises UserError when there is none, or it cannot be called."""
    result = HOOKS.find(use, base, where)
    if not callable(result):
        raise UserError(Problem(f'"{use}" is no class or function, so it cannot be a hook', where))
    return result  # type: ignore[no-any-return]
