"""The page of the built-in hooks: what each does, where it fires, what it touches and takes,
and how one writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markdown_tables import code, doc, rows_of_fields, slug, summary, table

from hookflow.graph.points import DEFAULT_POINTS
from hookflow.hooks.arguments import make_argument_model
from hookflow.hooks.inspect import Description
from hookflow.pipeline.load import DEFAULT_HOOKS
from hookflow.pipeline.registry import HOOKS
from hookflow.pipeline.use import resolve_use

INTRODUCTION = """\
# Hooks
<!-- Generated: edit the sentence where the thing is declared, then run `{renew}`. -->
The built-in hooks. `use` takes the short name. `hookflow explain NAME` prints the same. A hook
fires at each of its points *by default*, or at those that `points` in its table names. It *reads*
and *writes* [slots](reference.md#slots): at one point, the writers of a slot fire before its
readers. Every example is checked by the tests, and trained unless it needs images or several
ranks. A hook of your own: [the graph](../explanation/graph.md). Hooks of installed packages:
[entry points](reference.md#entry-points).
"""


def hooks_page(renew: str) -> str:
    """Return the whole page; `renew` is the command that writes it anew."""
    listed = table(
        ("hook", "what it does", "points"),
        ((f"[`{name}`](#{slug(name)})", _summary(name), _points(name)) for name in HOOKS.built_in),
    )
    page = "\n".join([INTRODUCTION.format(renew=renew), listed, *map(_one_hook, HOOKS.built_in)])
    return page.replace("](#amounts)", "](reference.md#amounts)")


def _summary(name: str) -> str:
    """Return what a hook does, and whether it is one of the default hooks."""
    if name in DEFAULT_HOOKS:
        return f"{summary(_hook(name))} (default)"
    return summary(_hook(name))


def _points(name: str) -> str:
    return ", ".join(map(code, Description(_hook(name), DEFAULT_POINTS).bound))


def _hook(name: str) -> Any:
    return resolve_use(HOOKS.built_in[name], Path(), None)


def _one_hook(name: str) -> str:
    hook = _hook(name)
    described = Description(hook, DEFAULT_POINTS)
    rows = (
        (
            code(method.name),
            " ".join(map(code, described.reads.get(method.name, ()))),
            " ".join(map(code, described.writes.get(method.name, ()))),
            "yes" if method.name in described.bound else described.elsewhere,
        )
        for method in described.methods
    )
    fires = table(("fires at", "reads", "writes", "by default"), rows)
    example = f"```toml\n{described.as_toml(name, name)}\n```\n"
    return f"## `{name}`\n{doc(hook)}\n\n{_place(described)}{fires}{_arguments(hook)}\n{example}"


def _place(described: Description) -> str:
    """Return how the class places itself among others, where it does."""
    places = "; ".join(f"{key} {code(value)}" for key, value in described.place.items())
    return f"{places[:1].upper()}{places[1:]}.\n\n" if places else ""


def _arguments(made: Any) -> str:
    """Return the arguments of a class or function as a table; nothing when it takes none."""
    model = make_argument_model(made)
    rows = [(code(key), *rest) for key, *rest in rows_of_fields(model, {}, {})]
    return "\n" + table(("argument", "type", "default", "meaning"), rows) if rows else ""
