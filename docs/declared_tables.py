"""Tables made from classes whose fields have a sentence below them: what `run` offers,
the records of an event log.
"""

from __future__ import annotations

import ast
import inspect
import re
import string
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from markdown_tables import code, table, toml
from textual.binding import Binding
from textual.keys import _character_to_key

from hookflow.events import records
from hookflow.hooks.run import Run
from hookflow.monitor.app import list_bindings_by_page
from hookflow.monitor.bindings import REPLAY_KEYS, TRAINING_KEYS
from hookflow.runner.checkpoint.resume_rules import RULES
from hookflow.text import first_paragraph

RECORDS: dict[str, Any] = {
    get_args(get_type_hints(kind)["k"])[0]: kind for kind in get_args(records.Record)
}
NESTED = {"DataInfo": records.DataInfo, "Layer": records.Layer}
TABLES: dict[str, Any] = {**RECORDS, **NESTED, "command": records.CommandRecord}
STAMP = ("k", "t", "it", "ep")


def offered_by_run() -> str:
    """Return every attribute, property and method of what hooks and tasks are given as `run`."""
    rows = ((code(f"run.{written}"), _first(about)) for _, written, about in members(Run))
    return table(("", "meaning"), rows)


def changes_of_resume() -> str:
    """Return the keys of a pipeline by whether a resumed run may change them;
    the first row that matches applies.
    """
    rows = []
    for rule in RULES:
        keys = ", ".join(code(key) for key in rule.keys.split(", "))
        rows.append((keys, rule.may.value, rule.why))
    return table(("key", "may change", "why"), rows)


def keys_of_dashboard() -> str:
    """Return the actions of the dashboard with their keys,
    those of all pages and then those of each.
    """
    pages = list_bindings_by_page()
    of_all = [
        each for each in pages.pop("") if each not in TRAINING_KEYS and each not in REPLAY_KEYS
    ]
    sections = {
        "On every page": of_all,
        "On the training": [*TRAINING_KEYS],
        "In a replay": [*REPLAY_KEYS],
    }
    sections |= {f"On the page `{name}`": bindings for name, bindings in pages.items()}
    tables = []
    for title, bindings in sections.items():
        rows = (
            (code(str(each.id)), keys_of_binding(each), capital(each.tooltip)) for each in bindings
        )
        tables.append(f"{title}:\n\n{table(('action', 'keys', 'what it does'), rows)}")
    return "\n".join(tables)


def keys_of_binding(binding: Binding) -> str:
    """Return the keys of an action as `dashboard.toml` has them: characters by themselves,
    others by their names.
    """
    names = [key.strip() for key in binding.key.split(",")]
    characters = {_character_to_key(character): character for character in string.punctuation}
    return " ".join(code(characters.get(name, name)) for name in names)


def capital(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


def members(offering: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the way of writing, and the docstring of each public member of a class."""
    for member, below in pairwise([*_written(offering).body, ast.Pass()]):
        match member, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                yield name, name, text
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                yield name, name, ""
            case ast.FunctionDef(name=name), _ if not name.startswith("_"):
                called = name if member.decorator_list else f"{name}({_arguments(member.args)})"
                yield name, called, ast.get_docstring(member) or ""


def _written(kind: type) -> ast.ClassDef:
    (written,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(written, ast.ClassDef)
    return written


def _arguments(arguments: ast.arguments) -> str:
    """Return the arguments without their types, as one reads them in a call."""
    bare = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(argument.arg) for argument in arguments.args[1:]],
        vararg=arguments.vararg and ast.arg(arguments.vararg.arg),
        kwonlyargs=[ast.arg(argument.arg) for argument in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        defaults=arguments.defaults,
    )
    return ast.unparse(bare).replace("=...", "=…")


def _first(text: str) -> str:
    return first_paragraph(inspect.cleandoc(text))


def fields(record: str) -> str:
    """Return the fields of a record as a table, `k` and the stamp first."""
    kind = TABLES[record]
    sentences = {"k": f"Always `{toml(record)}`."}  # and of the stamp what is not described here
    sentences |= {
        name: " ".join(about.split())
        for base in (records.Stamp, *_bases(kind))
        for name, _, about in members(base)
        if about
    }
    hints = get_type_hints(kind)
    order = sorted(hints, key=lambda name: STAMP.index(name) if name in STAMP else len(STAMP))
    rows = ((code(name), _type(hints[name]), sentences.get(name, "")) for name in order)
    return f"{inspect.getdoc(kind)}\n\n{table(('field', 'type', 'meaning'), rows)}"


def _bases(kind: Any) -> Iterator[Any]:
    """Yield the TypedDicts that one is made of, and last itself;
    its `__mro__` does not keep them.
    """
    for base in _written(kind).bases:
        if isinstance(base, ast.Name) and is_typeddict(inner := getattr(records, base.id)):
            yield from _bases(inner)
    yield kind


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        values = get_args(hint)
        return (
            f"one of {', '.join(code(toml(value)) for value in values)}"
            if len(values) > 1
            else code("str")
        )
    plain = re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(hint)) if get_args(hint) else hint.__name__
    return " or ".join(
        code(name) for name in plain.replace("Mapping", "dict").replace("None", "null").split(" | ")
    )
