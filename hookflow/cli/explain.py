"""`hookflow explain`: the keys of a pipeline, its points, and hooks."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.errors import Problem, UserError, nearest
from hookflow.graph.points import POINTS, Point
from hookflow.hooks.registry import BUILT_IN, HOOKS
from hookflow.pipeline.registry import COMPONENTS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hookflow.hooks.inspect import Description
    from hookflow.pipeline.json_schema import Declared
    from hookflow.service.pipelines import Target


WHAT = "A key, a hook, a point, `points`, `hooks`, or `schema`. Left out: the tables of a pipeline file."


def explain(
    what: Annotated[str, options.argument("WHAT", WHAT)] = "",
    pipeline: options.PipelineArgument = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Explain a key of a pipeline file, a hook, or the points.

    - `explain run.precision` and `explain hooks.*.every` show a key: its sentence, type and default. A `*` stands for
      any name.
    - `explain ema` shows a hook: its points, slots and arguments. So does `explain hooks.ema.args.decay`.
    - `explain points` lists the points where hooks can fire, `explain after_val` shows one of them, and `explain hooks`
      lists the available hooks.
    - `explain schema` prints the JSON Schema of a pipeline file, for editors.

    With a pipeline or a run, its own points and hooks are among them. Hooks are imported for it, unless `--no-import`;
    hooks of a run are never imported.
    """
    if what == "schema":
        echo_json(schema_of_pipelines())
        return
    from hookflow.pipeline.json_schema import all_keys
    from hookflow.service.pipelines import open_target

    target = None
    if pipeline is not None:
        target = open_target(pipeline, imports=not no_import, runs=dir)
    hooks = _Hooks(target, imports=not no_import and (target is None or target.imports))
    width = shutil.get_terminal_size().columns
    is_key = not what or "." in what or what in {key.split(".")[0] for key in all_keys()}
    argument = re.fullmatch(r"hooks\.([^.*]+)\.args\.[^.]+", what)
    points = target.plan.points if target else POINTS
    pairs = {f"around_{pair}": {f"before_{pair}", closing} for pair, closing in points.pairs.items()}
    if what == "points":
        lines = _points(target, width)
    elif chosen := [point for point in points if point.name in pairs.get(what, {what})]:
        lines = _rows(chosen, target, width)
    elif argument:
        lines = hooks.described(argument[1], width)
    elif what == "hooks":
        lines = hooks.listed(width)
    elif ":" in what or what in HOOKS.names() or (target and not is_key):
        lines = hooks.described(what, width)
    else:
        lines = _page(_declared(what), min(width, 100))
    echo("\n".join(lines))


def _declared(key: str) -> Declared:
    """Return the declaration of a key. Raises UserError with the nearest key, hook or point where there is none."""
    from hookflow.pipeline.json_schema import find_key

    try:
        return find_key(key)
    except UserError as error:
        if "." in key:
            raise
        hint = error.problems[0].hint
        if "did you mean" not in hint and f".{key}" not in hint:  # keys of this very name, in other tables
            hint = nearest(key, (*HOOKS.names(), *POINTS.names)) or hint
        raise UserError(Problem(f'"{key}" is neither a key, a hook nor a point', hint=hint)) from None


def _page(declared: Declared, width: int) -> Iterator[str]:
    from hookflow.pipeline.json_schema import find_key

    if declared.key:
        yield declared.key
    yield from textwrap.wrap(declared.about, width)
    yield ""
    if declared.key:
        kind = f"{declared.type}, required" if declared.required else declared.type
        facts = {"type": kind, "default": declared.default, "example": declared.example}
        yield from (f"  {name:<8} {text}" for name, text in facts.items() if text)
    if declared.keys:
        yield "" if declared.key else "The tables and keys of a pipeline file:"
        rows = [find_key(f"{declared.key}.{name}".lstrip(".")) for name in declared.keys]
        table = [(f"{row.key}{'  (required)' * row.required}", f"{row.type}: {row.about}") for row in rows]
        yield from columns(table, "  ", width)


MARKS = {"step": " ·", "module": " ○", "state": " ○", "parameter": " ◇", "own": " +"}
MARKS |= dict.fromkeys(("global", "optimizer", "comm"), " ●")
"""The suffix of a point by its kind."""

LEGEND = """\
· a step of one iteration   + the pipeline's own   PyTorch's hooks:
○ on what `modules` picks   ◇ on what `parameters` picks
● on everything: every module, optimizer or model
Every point offers run; what it offers beside that stands in brackets."""


def _points(target: Target | None, width: int) -> Iterator[str]:
    """Yield each point below its label, with what it offers, and the hooks of a pipeline in their order."""
    from hookflow.service.pipelines import warn_unknown

    points = target.plan.points if target else POINTS
    if target:
        warn_unknown(target.plan)
    yield from _rows([*points], target, width)
    yield f"\n{LEGEND}"
    pairs = ", ".join(f"around_{pair}" for pair in points.pairs)
    yield textwrap.fill(f"A generator that yields once can stand around a pair: {pairs}.", 80)


def _rows(points: Sequence[Point], target: Target | None, width: int) -> Iterator[str]:
    least = min(point.depth for point in points)
    labels = {point.name: f"{'  ' * (point.depth - least)}{point.name}{MARKS.get(point.kind, '')}" for point in points}
    left = max(map(len, labels.values())) + 2
    right = max(width - left, 30)
    for point in points:
        offers = f"[{', '.join(point.offers[1:])}]" if point.offers[1:] else ""
        about = f"{point.about}  {offers}"
        sentences = [about] if len(about) <= right else [point.about, offers]
        lines = [part for text in sentences for part in textwrap.wrap(text, right)]
        if target:
            hooks = []
            for binding in target.plan.at(point.name):
                half = "" if binding.half == "whole" else f"{binding.half} "
                hooks.append(f"{half}{binding.hook}" + f" ({binding.trigger})" * bool(str(binding.trigger)))
            lines += textwrap.wrap(" → ".join(hooks), right, initial_indent="▸ ", subsequent_indent="  ")
        for label, line in zip_longest([labels[point.name]], lines or [""], fillvalue=""):
            yield f"{label:<{left}}{line}".rstrip()


def schema_of_pipelines() -> dict[str, Any]:
    """Return the JSON Schema of a pipeline file, with the points and the arguments of the built-in hooks."""
    from hookflow.pipeline.json_schema import json_schema
    from hookflow.pipeline.use import refer

    points = {point.name: point.about for point in POINTS}
    pairs = {f"around_{pair}": f"from before_{pair} to {closing}" for pair, closing in POINTS.pairs.items()}
    hooks = {name: arguments(refer(use, Path(), None)) for name, use in BUILT_IN.items()}
    return json_schema(hooks, {**points, **pairs})


def arguments(hook: Any) -> type[BaseModel]:
    """Return the arguments of a hook's class as the fields of a model."""
    import inspect
    import typing

    from pydantic import ConfigDict, create_model

    from hookflow.hooks.inspect import about

    hints = typing.get_type_hints(hook.__init__, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(hook).parameters.items()
    }
    return create_model(hook.__name__, __config__=ConfigDict(extra="forbid"), __doc__=about(hook), **fields)


class _Hooks:
    """The hooks that can be named: built-in ones, those of installed packages, and those of a pipeline."""

    def __init__(self, target: Target | None, *, imports: bool) -> None:
        from hookflow.hooks.registry import find_hook, find_without_import

        self.target = target
        self._base = target.base if target else Path()
        self._find = find_hook if imports else find_without_import

    def listed(self, width: int) -> Iterator[str]:
        """Yield the hooks by where they come from, and the other components of installed packages."""
        from hookflow.pipeline.load import DEFAULT_HOOKS

        default = dict.fromkeys(DEFAULT_HOOKS, " (default)")
        sections = {
            "built in": [(name, self._sentence(use) + default.get(name, "")) for name, use in BUILT_IN.items()],
            "from installed packages": [
                (offered.name, f"{offered.package}: {HOOKS.clash(offered) or self._sentence(offered.use)}")
                for offered in HOOKS.offered()
            ],
        }
        for registry in COMPONENTS:  # these are not imported: most of them would import torch
            each = ((offer.name, offer.package, registry.clash(offer) or offer.use) for offer in registry.offered())
            rows = [(name, f"{package}: {use}") for name, package, use in each]
            sections[f"{registry.kind}s from installed packages"] = rows
        if self.target is not None:
            planned = {hook.name: hook.written_args for hook in self.target.plan.hooks}
            sections[f"used by {self.target.name}"] = [
                (name, f"{node.use}({planned[name]})" if name in planned else f"{node.use}, switched off")
                for name, node in self.target.loaded.pipeline.hooks.items()
            ]
        for title, rows in sections.items():
            if rows:
                yield from (title, *columns(rows, "  ", width), "")
        yield "hookflow explain NAME describes one of them."

    def _sentence(self, use: str) -> str:
        """Return the summary of a hook, or what is wrong with it: a broken hook does not hide the others."""
        from hookflow.hooks.compile import looking_at
        from hookflow.hooks.inspect import about

        try:
            with looking_at(use):
                return about(self._find(use, Path(), None))
        except UserError as error:
            return "; ".join(problem.message for problem in error.problems)

    def described(self, name: str, width: int) -> Iterator[str]:
        """Yield the page of a hook: its summary, methods, slots, place, arguments, and an example."""
        from hookflow.hooks.compile import looking_at
        from hookflow.hooks.inspect import Description, about
        from hookflow.hooks.registry import NotImported
        from hookflow.pipeline.load import DEFAULT_HOOKS

        declared = self.target.loaded.pipeline.hooks if self.target else {}
        use = declared[name].use if name in declared else name
        with looking_at(use):
            hook = self._find(use, self._base, None)
            if hook is NotImported:
                yield from (use, about(hook))
                return
            description = Description(hook, self.target.plan.points if self.target else POINTS)
        yield use if ":" in use else f"{use}  ({hook.__module__}:{hook.__qualname__})"
        yield from _wrap(description.about, width)
        yield ""
        yield from (f"wrong: {message}{f'; {hint}' * bool(hint)}\n" for message, hint in description.issues)
        yield from (*_methods(description), "")
        if description.place:
            yield from (*(f"{key:<8}  {value}" for key, value in description.place.items()), "")
        if name in DEFAULT_HOOKS and name == use:
            off = f"run.default_hooks = false, or [hooks.{name}] enabled = false"
            yield from (*_wrap(f"default: there unless the pipeline declares one, or says {off}", width), "")
        if description.arguments:
            yield "arguments"
            rows = []
            for item in description.arguments:
                default = "  (required)" if item.default is None else f" = {item.default}" * bool(item.default)
                rows.append((f"{item.name}{default}", f"{item.kind}: {item.about}".rstrip(": ")))
            yield from (*columns(rows, "  ", width), "")
        yield "in a pipeline"
        class_name = use.rpartition(":")[2].rpartition(".")[2]
        table = name if name in declared else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()
        yield textwrap.indent(description.as_toml(table, use), "  ")


def _methods(hook: Description) -> list[str]:
    """Return the methods as a table: what they take, and the slots that they read and write."""
    if not hook.methods:
        return ["a plain function" + f": it fires where `points` says, e.g. {hook.fits}" * bool(hook.fits)]
    rows = [("methods", "reads", "writes", "")]
    for method in hook.methods:
        reads, writes = (" ".join(slots.get(method.name, ())) for slots in (hook.reads, hook.writes))
        elsewhere = "" if method.name in hook.bound else hook.elsewhere
        rows.append((f"  {method.name}({', '.join(method.takes)})", reads, writes, elsewhere))
    shown = [k for k in range(4) if any(row[k] for row in rows[1:])]
    return columns([[row[k] for k in shown] for row in rows])


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(max(width, 30), 100), break_on_hyphens=False)
