"""`hookflow explain`: the keys of a pipeline, its points, and hooks."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hookflow.cli import options
from hookflow.cli.output import columns, echo, echo_json
from hookflow.errors import Problem, UserError, nearest
from hookflow.graph.points import DEFAULT_POINTS, Point, Points
from hookflow.pipeline.registry import HOOKS, REGISTRIES

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hookflow.graph.plan import Binding
    from hookflow.hooks.inspect import Description
    from hookflow.pipeline.json_schema import DeclaredKey
    from hookflow.service.pipelines import Target


WHAT_HELP = (
    "A key, a hook, a point, `points`, `hooks`, or `schema`. Left out: the tables of a pipeline"
    " file."
)


def explain(
    what: Annotated[str, options.argument("WHAT", WHAT_HELP)] = "",
    pipeline: options.PipelineArgument = None,
    no_import: options.NoImport = False,
    dir: options.RunsFolder = Path("runs"),  # noqa: A002  # the option's name
) -> None:
    """Explain a key of a pipeline file, a hook, or the points.

    - `explain run.precision` and `explain hooks.*.every` show a key: its sentence, type and
      default. A `*` stands for any name.
    - `explain ema` shows a hook: its points, slots and arguments. So does `explain
      hooks.ema.args.decay`.
    - `explain points` lists the points where hooks can fire, `explain after_val` shows one of them,
      and `explain hooks` lists the available hooks.
    - `explain schema` prints the JSON Schema of a pipeline file, for editors.

    With a pipeline or a run, its own points and hooks are among them. Hooks are imported for it,
    unless `--no-import`; hooks of a run are never imported.
    """
    if what == "schema":
        echo_json(schema_of_pipelines())
        return
    from hookflow.pipeline.json_schema import all_keys
    from hookflow.service.pipelines import open_target

    target = None
    if pipeline is not None:
        target = open_target(pipeline, imports=not no_import, runs=dir)
    imports = not no_import
    points = DEFAULT_POINTS
    if target is not None:
        imports = imports and target.imports
        points = target.plan.points
    hooks = _HookPages(target, imports=imports)
    width = shutil.get_terminal_size().columns
    tables = {key.split(".")[0] for key in all_keys()}
    is_key = not what or "." in what or what in tables
    hook_argument = re.fullmatch(r"hooks\.([^.*]+)\.args\.[^.]+", what)
    chosen_points = _find_points(what, points)
    if what == "points":
        lines = _format_points(target, width)
    elif chosen_points:
        lines = _format_point_rows(chosen_points, target, width)
    elif hook_argument:
        lines = hooks.described(hook_argument[1], width)
    elif what == "hooks":
        lines = hooks.list_hooks_by_origin(width)
    elif ":" in what or what in HOOKS.names() or (target is not None and not is_key):
        lines = hooks.described(what, width)
    else:
        lines = _format_page(_find_declaration(what), min(width, 100))
    echo("\n".join(lines))


def _find_points(name: str, points: Points) -> list[Point]:
    """Return the point of a name, or both points of an operation such as `around_val`.

    Hooks stand around such an operation.
    """
    names = points.find_points_of_around(name) or (name,)
    return [point for point in points if point.name in names]


def _find_declaration(key: str) -> DeclaredKey:
    """Return the declaration of a key.

    Raises UserError with the nearest key, hook or point where there is none.
    """
    from hookflow.hooks.foreign_names import translate_point
    from hookflow.pipeline.json_schema import find_key

    try:
        return find_key(key)
    except UserError as error:
        if "." in key and not translate_point(key):
            raise
        hint = error.problems[0].hint
        # A hint with ".key" lists keys of this very name in other tables, and is kept.
        if "did you mean" not in hint and f".{key}" not in hint:
            hint = (
                translate_point(key)
                or nearest(key, (*HOOKS.names(), *DEFAULT_POINTS.names))
                or hint
            )
        raise UserError(
            Problem(f'"{key}" is neither a key, a hook nor a point', hint=hint)
        ) from None


def _format_page(declared: DeclaredKey, width: int) -> Iterator[str]:
    from hookflow.pipeline.json_schema import find_key

    if declared.key:
        yield declared.key
    yield from textwrap.wrap(declared.about, width)
    yield ""
    if declared.key:
        yield from _format_key_facts(declared)
    if not declared.keys:
        return
    if declared.key:
        yield ""
    else:
        yield "The tables and keys of a pipeline file:"
    rows = []
    for name in declared.keys:
        inner = find_key(f"{declared.key}.{name}".lstrip("."))
        label = inner.key
        if inner.required:
            label += "  (required)"
        rows.append((label, f"{inner.type}: {inner.about}"))
    yield from columns(rows, "  ", width)


def _format_key_facts(declared: DeclaredKey) -> Iterator[str]:
    """Yield a line each for a key's type, default and example, as far as it has them."""
    kind = declared.type
    if declared.required:
        kind += ", required"
    facts = {"type": kind, "default": declared.default, "example": declared.example}
    for name, text in facts.items():
        if text:
            yield f"  {name:<8} {text}"


POINT_SUFFIXES = {
    "step": " ·",
    "module": " ○",
    "state": " ○",
    "parameter": " ◇",
    "own": " +",
    "global": " ●",
    "optimizer": " ●",
    "comm": " ●",
}
"""The suffix of a point by its kind."""

LOOP_LEGEND = """\
· a step of one iteration   + the pipeline's own   PyTorch's hooks:
○ on what `modules` picks   ◇ on what `parameters` picks
● on everything: every module, optimizer or model
Every point offers run; what it offers beside that stands in brackets."""


def _format_points(target: Target | None, width: int) -> Iterator[str]:
    """Yield each point below its label, with its arguments and the pipeline's hooks in order."""
    from hookflow.service.pipelines import warn_unknown

    points = DEFAULT_POINTS
    if target is not None:
        points = target.plan.points
        warn_unknown(target.plan)
    yield from _format_point_rows(list(points), target, width)
    yield f"\n{LOOP_LEGEND}"
    pairs = ", ".join(f"around_{pair}" for pair in points.pairs)
    yield textwrap.fill(f"A generator that yields once can stand around a pair: {pairs}.", 80)


def _format_point_rows(points: Sequence[Point], target: Target | None, width: int) -> Iterator[str]:
    """Yield the points as two columns.

    The first has the label of each, and the second its sentence with the hooks of the pipeline
    below.
    """
    least_depth = min(point.depth for point in points)
    labels = []
    for point in points:
        indent = "  " * (point.depth - least_depth)
        suffix = POINT_SUFFIXES.get(point.kind, "")
        labels.append(f"{indent}{point.name}{suffix}")
    label_width = max(len(label) for label in labels) + 2
    text_width = max(width - label_width, 30)
    for label, point in zip(labels, points, strict=True):
        lines = _wrap_about(point, text_width)
        if target is not None:
            hooks = " → ".join(_describe_binding(binding) for binding in target.plan.at(point.name))
            lines += textwrap.wrap(hooks, text_width, initial_indent="▸ ", subsequent_indent="  ")
        if not lines:
            lines = [""]
        yield f"{label:<{label_width}}{lines[0]}".rstrip()
        indent = " " * label_width
        for line in lines[1:]:
            yield f"{indent}{line}".rstrip()


def _wrap_about(point: Point, width: int) -> list[str]:
    """Return the sentence of a point and what it offers.

    They are on one line if they fit, else each on lines of its own.
    """
    offers = ""
    if len(point.offers) > 1:
        offers = f"[{', '.join(point.offers[1:])}]"
    about = f"{point.about}  {offers}"
    if len(about) <= width:
        return textwrap.wrap(about, width)
    return [*textwrap.wrap(point.about, width), *textwrap.wrap(offers, width)]


def _describe_binding(binding: Binding) -> str:
    text = binding.hook
    if binding.half != "whole":
        text = f"{binding.half} {text}"
    trigger = str(binding.trigger)
    if trigger:
        text += f" ({trigger})"
    return text


def schema_of_pipelines() -> dict[str, Any]:
    """Return the JSON Schema of a pipeline file, with points and built-in hooks' arguments."""
    from hookflow.hooks.arguments import make_argument_model
    from hookflow.hooks.inspect import read_summary
    from hookflow.pipeline.json_schema import json_schema
    from hookflow.pipeline.use import resolve_use

    points = {point.name: point.about for point in DEFAULT_POINTS}
    pairs = {
        f"around_{pair}": f"from before_{pair} to {closing}"
        for pair, closing in DEFAULT_POINTS.pairs.items()
    }
    hooks: dict[str, type[BaseModel]] = {}
    for name, use in HOOKS.built_in.items():
        hook = resolve_use(use, Path(), None)
        hooks[name] = make_argument_model(hook, read_summary(hook))
    return json_schema(hooks, {**points, **pairs})


class _HookPages:
    """The hooks that can be named.

    These are built-in ones, those of installed packages, and those of a pipeline.
    """

    def __init__(self, target: Target | None, *, imports: bool) -> None:
        from hookflow.hooks.registry import find_hook, find_without_import

        self.target = target
        self._base = Path()
        if target is not None:
            self._base = target.base
        self._find = find_without_import
        if imports:
            self._find = find_hook

    def list_hooks_by_origin(self, width: int) -> Iterator[str]:
        """Yield the hooks by where they come from, and installed packages' other components."""
        sections = {
            "built in": self._list_built_in_rows(),
            "from installed packages": self._list_offered_rows(),
        }
        for registry in REGISTRIES:  # these are not imported: most of them would import torch
            rows = []
            for offer in registry.offered():
                use = registry.clash(offer) or offer.use
                rows.append((offer.name, f"{offer.package}: {use}"))
            sections[f"{registry.kind}s from installed packages"] = rows
        if self.target is not None:
            sections[f"used by {self.target.name}"] = self._list_used_rows(self.target)
        for title, rows in sections.items():
            if rows:
                yield title
                yield from columns(rows, "  ", width)
                yield ""
        yield "hookflow explain NAME describes one of them."

    def _list_built_in_rows(self) -> list[tuple[str, str]]:
        from hookflow.pipeline.load import DEFAULT_HOOKS

        rows = []
        for name, use in HOOKS.built_in.items():
            sentence = self._read_summary(use)
            if name in DEFAULT_HOOKS:
                sentence += " (default)"
            rows.append((name, sentence))
        return rows

    def _list_offered_rows(self) -> list[tuple[str, str]]:
        rows = []
        for offer in HOOKS.offered():
            sentence = HOOKS.clash(offer) or self._read_summary(offer.use)
            rows.append((offer.name, f"{offer.package}: {sentence}"))
        return rows

    def _list_used_rows(self, target: Target) -> list[tuple[str, str]]:
        planned = {hook.name: hook.written_args for hook in target.plan.hooks}
        rows = []
        for name, node in target.loaded.pipeline.hooks.items():
            if name in planned:
                rows.append((name, f"{node.use}({planned[name]})"))
            else:
                rows.append((name, f"{node.use}, switched off"))
        return rows

    def _read_summary(self, use: str) -> str:
        """Return the summary of a hook, or what is wrong with it.

        A broken hook does not hide the others.
        """
        from hookflow.hooks.inspect import read_summary
        from hookflow.hooks.inspection_errors import report_inspection_errors

        try:
            with report_inspection_errors(use):
                return read_summary(self._find(use, Path(), None))
        except UserError as error:
            return "; ".join(problem.message for problem in error.problems)

    def described(self, name: str, width: int) -> Iterator[str]:
        """Yield the page of a hook.

        It has summary, methods, slots, place, arguments, and an example.
        """
        from hookflow.hooks.inspect import Description, read_summary
        from hookflow.hooks.inspection_errors import report_inspection_errors
        from hookflow.hooks.registry import NotImported

        use = name
        table = ""
        points = DEFAULT_POINTS
        if self.target is not None:
            points = self.target.plan.points
            node = self.target.loaded.pipeline.hooks.get(name)
            if node is not None:
                use = node.use
                table = name
        with report_inspection_errors(use):
            hook = self._find(use, self._base, None)
            if hook is NotImported:
                yield use
                yield read_summary(hook)
                return
            description = Description(hook, points)
        if ":" in use:
            yield use
        else:
            yield f"{use}  ({hook.__module__}:{hook.__qualname__})"
        yield from _wrap(description.about, width)
        yield ""
        yield from _format_issues(description)
        yield from _format_methods(description)
        yield ""
        yield from _format_place_in_order(description)
        yield from _format_capabilities(description, width)
        if name == use:
            yield from _default_note(name, width)
        yield from _format_arguments(description, width)
        yield "in a pipeline"
        yield textwrap.indent(description.as_toml(table or _table_name(use), use), "  ")


def _argument_rows(hook: Description) -> list[tuple[str, str]]:
    """Return the arguments of a hook: each with its default, and its type and sentence."""
    rows = []
    for argument in hook.arguments:
        label = argument.name
        if argument.default is None:
            label += "  (required)"
        elif argument.default:
            label += f" = {argument.default}"
        rows.append((label, f"{argument.kind}: {argument.about}".rstrip(": ")))
    return rows


def _table_name(use: str) -> str:
    """Return the name of a class in snake case, for its table in an example."""
    class_name = use.rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()


def _format_capability(value: object) -> str:
    """Return the value of a capability in words."""
    if isinstance(value, str):
        return value
    if value is True:
        return "yes"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} ({mode})" for name, mode in value.items())
    if isinstance(value, Collection):
        return ", ".join(str(item) for item in value)
    return "by its arguments"


def _format_issues(description: Description) -> Iterator[str]:
    for message, hint in description.issues:
        if hint:
            yield f"wrong: {message}; {hint}\n"
        else:
            yield f"wrong: {message}\n"


def _format_place_in_order(description: Description) -> Iterator[str]:
    """Yield what a hook's class says of its place among others, if it says anything."""
    if description.place:
        for key, value in description.place.items():
            yield f"{key:<8}  {value}"
        yield ""


def _format_capabilities(description: Description, width: int) -> Iterator[str]:
    rows = []
    for key, value in description.capabilities.declared():
        rows.append((key, _format_capability(value)))
    if rows:
        yield "capabilities"
        yield from columns(rows, "  ", width)
        yield ""


def _default_note(name: str, width: int) -> Iterator[str]:
    """Yield how to be without a hook that a pipeline has by default."""
    from hookflow.pipeline.load import DEFAULT_HOOKS

    if name in DEFAULT_HOOKS:
        off = f"run.default_hooks = false, or [hooks.{name}] enabled = false"
        yield from _wrap(f"default: there unless the pipeline declares one, or says {off}", width)
        yield ""


def _format_arguments(description: Description, width: int) -> Iterator[str]:
    if description.arguments:
        yield "arguments"
        yield from columns(_argument_rows(description), "  ", width)
        yield ""


def _format_methods(hook: Description) -> list[str]:
    """Return the methods as a table: what they take, and the slots that they read and write."""
    if not hook.methods:
        line = "a plain function"
        if hook.fits:
            line += f": it fires where `points` says, e.g. {hook.fits}"
        return [line]
    rows = []
    for method in hook.methods:
        call = f"  {method.name}({', '.join(method.takes)})"
        reads = " ".join(hook.reads.get(method.name, ()))
        writes = " ".join(hook.writes.get(method.name, ()))
        elsewhere = hook.elsewhere
        if method.name in hook.bound:
            elsewhere = ""
        rows.append((call, reads, writes, elsewhere))
    filled = [k for k in range(4) if any(row[k] for row in rows)]
    heads = ("methods", "reads", "writes", "")
    return columns([[row[k] for k in filled] for row in (heads, *rows)])


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(max(width, 30), 100), break_on_hyphens=False)
