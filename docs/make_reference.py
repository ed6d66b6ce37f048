"""Makes the pages, and the tables in pages, that say what the code declares: `make docs-reference`.

`reference.md` and `hooks.md` are made as a whole. In other pages, what stands between `<!--
generated: NAME -->` and `<!-- /generated -->` is made from one of the PIECES.

Keys come from the pydantic models of a pipeline file, arguments from the signatures of the built-in
hooks, points and slots from their tables, commands from Typer. Nothing about one of them is written
here.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from annotated_screen import ANNOTATED, annotated_screen, annotation_table
from declared_tables import TABLES, changes_of_resume, fields, keys_of_dashboard, offered_by_run
from hooks_page import hooks_page
from markdown_tables import code, doc, rows_of_fields, sentence, slug, summary, table

from hookflow.cli.app import app
from hookflow.cli.explain import schema_of_pipelines
from hookflow.cli.output import as_json
from hookflow.graph import points
from hookflow.graph.slots import SLOT_DOCS
from hookflow.hooks.adapter_registry import ENTRY_POINT_GROUP
from hookflow.hooks.arguments import OFFERED_TO_WRITERS, make_argument_model
from hookflow.pipeline.components import Section
from hookflow.pipeline.json_schema import read_field_sentences
from hookflow.pipeline.registry import DATA_REGISTRY, HOOKS, REGISTRIES, WRITER_REGISTRY
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.use import resolve_use

FOLDER = Path(__file__).parent
PIECES: dict[str, Callable[[], str]] = {
    "run": offered_by_run,
    "keys": keys_of_dashboard,
    "allowed changes": changes_of_resume,
    "screen": annotation_table,
    **{f"fields of {record}": partial(fields, record) for record in TABLES},
}
GENERATED = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- /generated -->)", re.DOTALL)
RENEW = "make docs-reference"
UNITS = {"it": "iterations", "ep": "epochs", "firing": "firings of the point"}

INTRODUCTION = f"""\
# Reference
<!-- Generated: edit the sentence where the thing is declared, then run `{RENEW}`. -->
Every [key of a pipeline file](#the-pipeline-file), every [point](#points) and every
[command](#commands); the hooks have [a page of their own](hooks.md). In the terminal: `hookflow
explain points`, `hookflow explain NAME`, `hookflow COMMAND --help`. For editors: `hookflow explain
schema`.
"""
FILE = """\
## The pipeline file
A pipeline is a TOML file. Types are strict: `"3"` is not `3`. An unknown key is an error. Any
value may be a `${…}` reference; see [pipelines that build on others](../how-to/extending.md). A
*required* key may also come from the file that `extends` names. Paths in `args` and `run.dir` are
relative to the current directory; `"./file.py:Name"` in `use` and `modules`, and a file of
`weights`, are relative to the pipeline file that names them, also where another file extends it.
"""
AMOUNTS = """\
### Amounts
`every`, `from`, `until`, `val_every` and the like take an amount of training:

| written | means |
| --- | --- |
| `100` | the point's own unit: iterations, epochs or firings |
| `"100it"` | iterations |
| `"2ep"` | epochs |
| `"30s"`, `"10m"`, `"2h"` | seconds, minutes, hours |
| `"10%"` | a share of the whole run |
| `"50k samples"`, `"1M tokens"` | in triggers: in batches of all ranks; k, M, B: 10³, 10⁶, 10⁹ |
"""
HOOKS_ARE = """\
## Hooks
Every built-in hook is on [its own page](hooks.md).
"""
GROUPS = ", ".join(f"`{registry.group}`" for registry in REGISTRIES)
ENTRY_POINTS = f"""\
## Entry points
An installed package offers hooks by short names through the entry-point group `{HOOKS.group}`:
```toml
# pyproject.toml of the package
[project.entry-points."{HOOKS.group}"]
clip = "my_package.hooks:Clip"
```
A pipeline then writes `use = "clip"`, and `hookflow explain hooks` lists it with the package and
its version. A built-in hook of the same name takes precedence. A name that two packages offer is
ambiguous and is refused.

Models, data, tasks and writers have groups of their own: {GROUPS}.
There is none for optimizers, which are named as `"package.module:Name"`. Adapters of other
frameworks' hooks have `{ENTRY_POINT_GROUP}`: [an adapter of your
own](../how-to/coming-from.md#an-adapter-of-your-own).
"""


def reference() -> str:
    """Return the whole page."""
    parts = (
        INTRODUCTION,
        FILE,
        *_tables(),
        AMOUNTS,
        _data(),
        _writers(),
        HOOKS_ARE,
        _points(),
        _slots(),
        ENTRY_POINTS,
        _commands(),
    )
    return "\n".join(parts)


def _tables() -> Iterator[str]:
    """Yield a chapter for each table of the file, in the file's order."""
    tables: dict[type[Section], list[str]] = {Pipeline: ["The top level"]}
    for label, section in _inner(Pipeline, ""):
        if label not in (labels := tables.setdefault(section, [])):
            labels.append(label)
    anchors = {section.__name__: slug(_heading(labels)) for section, labels in tables.items()}
    for section, labels in tables.items():
        rows = (
            (code(key), *rest)
            for key, *rest in rows_of_fields(section, read_field_sentences(section), anchors)
        )
        keys = table(("key", "type", "default", "meaning"), rows)
        yield f"### {_heading(labels)}\n{inspect.getdoc(section)}\n\n{keys}"


def _heading(labels: list[str]) -> str:
    return ", ".join(label if " " in label else code(label) for label in labels)


def _inner(section: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    """Yield every table below one, depth first, as it is written: "[run]", "[model.NAME]",
    "[[hooks.NAME.points]]".

    A type that several keys of a table share (`train`, `val`, `test`) is described once.
    """
    seen: dict[type[Section], str] = {}
    for name, field in section.model_fields.items():
        for inner, suffix, listed in _sections(field.annotation):
            below = f"{path}{field.alias or name}{suffix}"
            yield f"[[{below}]]" if listed else f"[{below}]", inner
            if seen.setdefault(inner, name) == name:
                yield from _inner(inner, f"{below}.")


def _sections(
    annotation: Any, suffix: str = "", listed: bool = False
) -> Iterator[tuple[type[Section], str, bool]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, suffix, listed
    is_table = getattr(annotation, "__origin__", None) is dict
    for argument in get_args(annotation):
        inner = f"{suffix}.NAME" if is_table else suffix
        yield from _sections(
            argument, inner, listed or getattr(annotation, "__origin__", None) is list
        )


def _data() -> str:
    """Return the chapter on data sources that have a short name."""
    rows = (
        (code(name), code(use), summary(resolve_use(use, Path(), None)))
        for name, use in DATA_REGISTRY.built_in.items()
    )
    return f"### Data by a short name\n{table(('`use`', 'stands for', 'what it is'), rows)}"


def _writers() -> str:
    """Return the chapter on built-in writers."""
    made = {name: resolve_use(use, Path(), None) for name, use in WRITER_REGISTRY.built_in.items()}
    rows = ((code(name), summary(kind), _given(kind)) for name, kind in made.items())
    listed = table(("`use`", "what it writes", "arguments"), rows)
    return f"### Writers by a short name\n{listed}\nSee [writers](../how-to/writers.md).\n"


def _given(kind: Any) -> str:
    """Return the arguments that a pipeline may give to a writer, with their defaults."""
    rows = (
        row
        for row in rows_of_fields(make_argument_model(kind), {}, {})
        if row[0] not in OFFERED_TO_WRITERS
    )
    return ", ".join(
        f"{code(name)} ({default})" if default.strip("`") else code(name)
        for name, _, default, _ in rows
    )


def _points() -> str:
    """Return the chapter on points: the loop, which `hookflow.graph.points` draws,
    and a row for each.
    """
    drawn = next(block for block in doc(points).split("\n\n") if block.startswith("    before_run"))
    rows = (
        (
            code(p.name),
            " ".join(map(code, p.offers)),
            UNITS[p.unit],
            f"{sentence(p.about)}{KINDS.get(p.kind, '')}",
        )
        for p in points.DEFAULT_POINTS
    )
    pairs = ", ".join(code(f"around_{pair}") for pair in points.DEFAULT_POINTS.pairs)
    return (
        "## Points\nWhere hooks fire, in the order of a"
        f" run:\n```text\n{textwrap.dedent(drawn)}\n```\nA hook's method takes any of the arguments"
        " that its point *offers*. A bare number in `every` counts the point's"
        f" *unit*.\n\n{table(('point', 'offers', 'unit', 'what has happened'), rows)}\nA generator"
        f" that yields once may be bound around a pair of points: {pairs}. The counters at each"
        " point and which calls are allowed there: [loops](loops.md). A pipeline's own points:"
        " [the graph](../explanation/graph.md#where-a-hook-fires). The points that PyTorch comes"
        " to: [PyTorch's hooks](pytorch_hooks.md).\n"
    )


KINDS = {
    "module": " Inside the network, at the modules that `modules` picks.",
    "state": " At the modules that `modules` picks, whoever calls it.",
    "parameter": " At the parameters that `parameters` picks.",
    "global": " Also outside of the network.",
    "optimizer": " Of each optimizer.",
    "comm": " One hook at most, which returns a Future.",
}


def _slots() -> str:
    rows = ((code(name), sentence(about)) for name, about in SLOT_DOCS.items())
    return (
        "### Slots\nA *slot* is a piece of run state that a hook declares in `reads` or `writes`:"
        " at one point its writers fire before its readers. A hook may name slots of its"
        f" own.\n\n{table(('slot', 'what it is'), rows)}"
    )


def _commands() -> str:
    group = typer.main.get_command(app)
    return "\n".join(
        ["## Commands\nEvery command takes `--help`.\n", *_command(group, ("hookflow",))]
    )


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield a chapter for a command, and one for each below it."""
    inner = {
        name: below for name, below in getattr(command, "commands", {}).items() if not below.hidden
    }
    if len(path) > 1 and not inner:
        yield _one_command(command, path)
    elif own := [*_parameters(command)]:
        yield f"### `{' '.join(path)}`\n{table(('option', 'default', 'meaning'), own)}"
    for name, below in inner.items():
        yield from _command(below, (*path, name))


def _one_command(command: Any, path: tuple[str, ...]) -> str:
    usage = [" ".join(path), "[OPTIONS]"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown = parameter.metavar or parameter.name.upper()
            usage.append(shown if parameter.required else f"[{shown}]")
    rows = [*_parameters(command)]
    listed = "\n" + table(("argument or option", "default", "meaning"), rows) if rows else ""
    described = inspect.cleandoc(command.help or "")
    return f"### `{' '.join(path)}`\n```text\n{' '.join(usage)}\n```\n{described}\n{listed}"


def _parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what each argument and option of a command is written as,
    its default, and its sentence.
    """
    hints = get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    for parameter in command.params:
        if parameter.name not in hints or getattr(parameter, "hidden", False):
            continue  # Typer's own, as `--help` is
        written = parameter.metavar or parameter.name.strip("_").upper()
        if parameter.param_type_name != "argument":
            names = ", ".join((*parameter.opts, *parameter.secondary_opts))
            written = names if parameter.is_flag else f"{names} {written}"
        hint = hints[parameter.name]  # a choice may also be left out
        kinds = (kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal)
        choices = [code(choice) for kind in kinds for choice in get_args(kind)]
        sentence = " ".join((parameter.help or "").split()) + (
            f" One of {', '.join(choices)}." if choices else ""
        )
        yield (
            code(written),
            "**required**" if parameter.required else _default(parameter.default),
            sentence,
        )


def _default(value: Any) -> str:
    return "" if value is None or value is False or value == [] else code(str(value))


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every page that holds something made, with what it should be;
    and the schema for editors.
    """
    yield FOLDER.parent / "pipelines" / "schema.json", f"{as_json(schema_of_pipelines())}\n"
    yield ANNOTATED, annotated_screen()
    yield FOLDER / "reference" / "reference.md", reference()
    yield FOLDER / "reference" / "hooks.md", hooks_page(RENEW)
    for page in sorted(FOLDER.rglob("*.md")):
        text = page.read_text("utf-8")
        if GENERATED.search(text):
            yield (
                page,
                GENERATED.sub(lambda match: f"{match[1]}\n{PIECES[match[2]]()}\n{match[3]}", text),
            )


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text, "utf-8")
