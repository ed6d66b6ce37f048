"""`hookflow new`: create the files of a new pipeline or hook."""

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from hookflow.cli import options
from hookflow.cli.output import echo, write_file
from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.registry import HOOKS

TEMPLATE_FOLDER = files("hookflow.cli") / "templates"
"""A folder for each kind: its files, in which NAME and CLASS are placeholders."""
NEXT_STEPS = {
    "pipeline": (
        "train it with `hookflow run {name}.toml`;",
        "the model and the data in {name}.py are examples: put your own in their place",
    ),
    "hook": (
        "try it with `hookflow run {name}.toml`, test it with `pytest test_{name}.py`;",
        'in a pipeline of yours: [hooks.{name}] with use = "./{name}.py:{type_name}"',
    ),
}


def new(
    kind: Annotated[
        Literal["pipeline", "hook"], options.argument("pipeline|hook", "What to make.")
    ],
    name: Annotated[str, options.argument("NAME", "Its name, and that of its files.")],
) -> None:
    """Make a pipeline or a hook to begin with.

    NAME.toml and NAME.py, which train at once, are written into the current folder; no file is
    overwritten. A hook comes with its test, test_NAME.py.

    Example: `hookflow new pipeline spirals`
    """
    type_name = _type_name(name)
    _check_name(name)
    texts = _fill_templates(kind, name, type_name)
    existing = [path for path in texts if path.exists() or path.is_symlink()]
    if existing:
        message = "is there already, and is not overwritten"
        raise UserError([Problem(message, Where(str(path))) for path in existing])
    _check_name_is_free(kind, name)
    for path, text in texts.items():
        write_file(path, text)
    echo(f"wrote {', '.join(str(path) for path in texts)}")
    for line in NEXT_STEPS[kind]:
        echo(line.format(name=name, type_name=type_name))


def _type_name(name: str) -> str:
    """Return a name in snake case as that of a class."""
    words = name.split("_")
    return "".join(word[:1].upper() + word[1:] for word in words)


def _check_name(name: str) -> None:
    """Raise UserError where a Python file or a class cannot have this name."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        hint = "letters, digits and _, a letter first: it names a Python file and a class"
        raise UserError(Problem(f'"{name}" cannot be a name', Where("NAME"), hint))


def _check_name_is_free(kind: str, name: str) -> None:
    """Raise UserError where a new file or hook of this name would hide another."""
    where = Where("NAME")
    if kind == "hook" and name in HOOKS.built_in:
        raise UserError(Problem(f'"{name}" is a built-in hook', where, "choose another name"))
    module = find_spec(name)
    if module is not None and module.origin is not None:  # a mere folder hides nothing
        message = f'"{name}" is the name of a Python module: a file {name}.py here would hide it'
        raise UserError(Problem(message, where, "choose another name"))


def _fill_templates(kind: str, name: str, type_name: str) -> dict[Path, str]:
    """Return the text of each file to write, in the order of the templates' names."""
    values = {"NAME": name, "CLASS": type_name}
    texts = {}
    templates = sorted((TEMPLATE_FOLDER / kind).iterdir(), key=lambda template: template.name)
    for template in templates:
        file_name = template.name.removesuffix(".txt").replace("NAME", name)
        text = template.read_text("utf-8")
        texts[Path(file_name)] = re.sub("NAME|CLASS", lambda match: values[match[0]], text)
    return texts
