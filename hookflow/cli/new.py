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
from hookflow.hooks.registry import BUILT_IN

TEMPLATES = files("hookflow.cli") / "templates"
"""A folder for each kind: its files, in which NAME and CLASS are placeholders."""
NEXT = {
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
    kind: Annotated[Literal["pipeline", "hook"], options.argument("pipeline|hook", "What to make.")],
    name: Annotated[str, options.argument("NAME", "Its name, and that of its files.")],
) -> None:
    """Make a pipeline or a hook to begin with.

    NAME.toml and NAME.py, which train at once, are written into the current folder; no file is overwritten. A hook
    comes with its test, test_NAME.py.

    Example: `hookflow new pipeline spirals`
    """
    type_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    blanks = {"NAME": name, "CLASS": type_name}
    templates = sorted((TEMPLATES / kind).iterdir(), key=lambda template: template.name)
    texts = {Path(item.name.removesuffix(".txt").replace("NAME", name)): item.read_text("utf-8") for item in templates}
    where = Where("NAME")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        hint = "letters, digits and _, a letter first: it names a Python file and a class"
        raise UserError(Problem(f'"{name}" cannot be a name', where, hint))
    if there := [path for path in texts if path.exists() or path.is_symlink()]:
        raise UserError([Problem("is there already, and is not overwritten", Where(str(path))) for path in there])
    if kind == "hook" and name in BUILT_IN:
        raise UserError(Problem(f'"{name}" is a built-in hook', where, "choose another name"))
    if (module := find_spec(name)) is not None and module.origin is not None:  # a mere folder hides nothing
        message = f'"{name}" is the name of a Python module: a file {name}.py here would hide it'
        raise UserError(Problem(message, where, "choose another name"))
    for path, text in texts.items():
        write_file(path, re.sub("NAME|CLASS", lambda blank: blanks[blank[0]], text))
    echo(f"wrote {', '.join(map(str, texts))}")
    for line in NEXT[kind]:
        echo(line.format(name=name, type_name=type_name))
