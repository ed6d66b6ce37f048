"""No text that hookflow prints controls the terminal: names, docstrings, values, metrics, paths,
exceptions, arguments.

Every registered command is called, with every option: one that is added is called, too.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from textual.pilot import Pilot

from hookflow.cli import options
from hookflow.cli.app import COMMAND_PLACES, app, function_of
from hookflow.cli.output import COLOUR_SEQUENCE, echo
from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp, list_bindings_by_page
from hookflow.text import CONTROL_CHARACTERS
from tests.conftest import circle, hookflow_here
from tests.monitor.shown import press, screen_text, visit
from tests.support.terminal import Terminal

EVIL = "ev\x1b[8mil\x1b]0;title\x07 \u202etxet\u2066 \x9b31m\u2028\x7f\r\ufeff\u061c"
RAW = ("\x1b[8m", "\x1b]0;", "\u202e", "\u2066", "\x9b", "\u2028", "\u061c")
"""What of it a terminal would heed, and nothing of ours writes."""
IN_TOML = json.dumps(EVIL).replace("\x7f", "\\u007f")
HOOKS = f"""
import os
EVIL = {EVIL!r}

class Mine:
    {EVIL!r}

    reads = (EVIL,)

    def __init__(self, text: str = {EVIL!r}): ...

    def after_val_epoch(self, run, metrics):
        run.log(EVIL, 1.0)
        metrics[EVIL] = 1.0
        if "PRINTS" in os.environ:
            print(EVIL)

    def after_opened(self, run): ...

    def after_run(self, run):
        error = ValueError(EVIL)
        error.add_note(EVIL)
        raise error
"""
PIPELINE = f"""\
{circle("max_epochs = 1", "threads = 1")}\
[data.val]
use = "circle"
args = {{ split = "val" }}
[points.after_opened]
follows = "after_val"
about = {IN_TOML}
[hooks.mine]
use = {IN_TOML[:-1].replace('"', '"./')}.py:Mine"
args = {{ text = {IN_TOML} }}
on_error = "disable"
[hooks.print]
use = "builtins:print"
args = {{ sep = {IN_TOML} }}
points = ["after_opened"]
writes = [{IN_TOML}]
[hooks.checkpoint]
use = "checkpoint"
args = {{ monitor = {IN_TOML}, mode = "max" }}
"""
FILE = f"{EVIL}.toml"
NAMES = {command: function_of(command) for command in COMMAND_PLACES}
ALONE = ("run", "fork", "rerun", "sweep")
"""Commands that are called with what is wrong alone: what else they do takes long.

The world is made by a run.
"""
SERVES = ("--web",)
"""Options with which a command does not end."""
SHOWS_NONE = ("stop", "ctl", "now", "new")
"""Commands that have nothing to quote but what is wrong with the command line."""


@dataclass(frozen=True)
class World:
    """A folder with a pipeline and two runs of it, in which every text is hostile;
    `printed` is what the first told.
    """

    folder: Path
    run: RunDir
    copy: RunDir
    printed: str


def printed_by(folder: Path, *arguments: str) -> str:
    """Return what a command line prints in a folder, to both streams."""
    done = hookflow_here(*arguments, cwd=folder)
    assert done.returncode in (0, 1, 2), done
    return harmless(done.stdout + done.stderr, arguments)


def harmless(printed: str, what: object = "") -> str:
    result = CONTROL_CHARACTERS.search(COLOUR_SEQUENCE.sub("", printed).replace("\n", ""))
    assert not result, (what, result, printed)
    return printed


def poisoned(value: Any, key: str = "") -> Any:
    """Return JSON with the hostile text in every string that nothing else is known by."""
    match value:
        case dict():
            names = key in ("v", "args", "modes", "files", "metrics")
            return {name + EVIL * names: poisoned(item, name) for name, item in value.items()}
        case list():
            return [poisoned(item, key) for item in value]
        case str() if key not in FIXED:
            return value + EVIL
    return value


FIXED = (
    "k",
    "status",
    "stage",
    "level",
    "action",
    "split",
    "point",
    "half",
    "phase",
    "kind",
    "mode",
    "ranks",
)
FIXED += ("on_error",)
"""The keys of a record or a plan whose values are words of ours."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("hostile") / EVIL
    folder.mkdir()
    (folder / f"{EVIL}.py").write_text(HOOKS)
    (folder / FILE).write_text(PIPELINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRINTS", "1")
        printed = printed_by(folder, "run", FILE, "--ui=plain")
    run = RunDir(next((folder / "runs" / "p").iterdir()))
    copy = RunDir(folder / "runs" / EVIL / run.id)
    shutil.copytree(run.path, copy.path, symlinks=True)
    plan, identity = (json.loads(file.read_text()) for file in (copy.plan, copy.path / "run.json"))
    copy.plan.write_text(
        json.dumps({**poisoned(plan), "own": [point | {"about": EVIL} for point in plan["own"]]})
    )
    (copy.path / "run.json").write_text(json.dumps(poisoned(identity)))
    records = [
        json.dumps(poisoned(json.loads(line))) for line in run.events.read_text().splitlines()
    ]
    copy.events.write_text("\n".join(records) + "\n")
    copy.output.write_text(f"{EVIL}\n")
    (copy.checkpoints / f".it{EVIL}").mkdir()
    return World(folder, run, copy, printed)


def test_a_run_and_what_the_shell_is_offered_tell_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "ValueError" in world.printed
    assert "output     | " in world.printed
    # a word that a terminal cannot show is not offered
    ask = type("Asked", (), {"params": {"target": FILE, "pipeline": FILE}, "args": []})()
    monkeypatch.chdir(world.folder)
    for offered in (
        options.complete_hooks,
        options.complete_points,
        options.complete_runs,
        options.keys,
        options.complete_files_and_runs,
    ):
        words = offered(ask, "")
        assert words or offered is options.complete_files_and_runs
        assert not any(CONTROL_CHARACTERS.search("".join(word)) for word in words)


def _spare(run: RunDir) -> str:
    """Return the path of a copy of a run, which a command may remove."""
    path = run.path.with_name("spare")
    return str(path if path.exists() else shutil.copytree(run.path, path, symlinks=True))


def given(command: str, parameter: Any, world: World) -> list[str]:
    """Return what an argument or option of a command may be given,
    by what its help calls it, or by its type.
    """
    runs = [str(world.run.path), str(world.copy.path)]
    known = {
        "FILE": ["out.svg"] if "--out" in parameter.opts else [FILE],
        "FILE|RUN": [FILE, *runs],
        "RUN": runs,
        "RUN[:CHECKPOINT]": runs,
        "[FILE]": [FILE],
        "USE": ["grad_norm"],
        "FILE|SWEEP": [FILE],
        "RUN…": [_spare(world.copy)] if command == "rm" else [],
        "A B…": [runs[0], runs[1]],
        "CHECKPOINT": [f"{run}/checkpoints/it00000016" for run in runs],
        "A": ["mine"],
        "B": ["print"],
        "HOOK": ["mine"],
        "POINT": ["after_opened"],
        "KEY": ["hooks.mine.args.text", EVIL],
        "KEY,…": ["loss,hooks.mine.args.text", EVIL],
        "CONDITION": [f"hooks.mine.args.text == '{EVIL}'", EVIL],
        "TAG": ["tag", EVIL],
        "NOTE": ["note", EVIL],
        "[TAG]…": ["tag", EVIL],
        "[RUN]…": runs[::-1],
        "KEY=VALUE": [
            f"hooks.mine.args.text={IN_TOML}",
            f"hooks.mine.args.other={IN_TOML}",
            f"run.{EVIL}=1",
        ],
        "SEED": ["1"],
        "COMMAND": ["off"],
        "ARGS": ["mine"],
        "DIR": ["runs", f"runs/{EVIL}"],
        "WHAT": [
            "hooks.mine.args.text",
            "run.seed",
            "points",
            "hooks",
            "mine",
            "schema",
            f"./{EVIL}.py:Mine",
        ],
        "NAME": ["mine"],
        "SET": ["val"],
        "pipeline|hook": ["pipeline"],
        "N|auto": [],
        "N|median": ["median", EVIL],
        "N": [],
        "K": [],
        "GROUP": [EVIL],
        "SLOT": ["weights", EVIL],
        "SCRIPT": [],
    }
    if parameter.metavar:
        return known[parameter.metavar]
    kind = get_type_hints(NAMES[command])[parameter.name]
    choices = [get_args(hint) for hint in (kind, *get_args(kind)) if get_origin(hint) is Literal]
    return (
        [choice for choice in choices[0] if choice != "tui"]
        if choices
        else {bool: [""], float: ["1.0"]}[kind]
    )


def lines(command: str, world: World) -> Iterator[list[str]]:
    """Yield command lines: with every value of every argument and option,
    and with the hostile text for each.
    """
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    arguments = [item for item in parameters if item.param_type_name == "argument"]
    first = [given(command, item, world)[0] for item in arguments]
    first += [f"{option.opts[0]}=3" for option in parameters[len(arguments) :] if option.required]
    yield [EVIL] * len(arguments)
    yield [*first, EVIL]
    yield [*first, f"--{EVIL}"]
    for k in range(len(arguments)):
        yield [*first[:k], EVIL, *first[k + 1 :]]
    options = [option for option in parameters[len(arguments) :] if option.opts[0] not in SERVES]
    for option in options:
        flag = given(command, option, world) == [""]
        yield (
            [*first, option.opts[0]]
            if flag and command not in ALONE
            else [*first, option.opts[0], EVIL]
        )
    if command in ALONE:
        return
    for k, argument in enumerate(arguments):
        for value in given(command, argument, world):
            yield [*first[:k], value, *first[k + 1 :]]
    yield [*first[: sum(item.required for item in arguments)]]
    for option in options:
        for value in given(command, option, world):
            yield [*first, *([f"{option.opts[0]}={value}"] if value else [option.opts[0]])]


@pytest.mark.parametrize("command", NAMES)
def test_every_command(command: str, world: World) -> None:
    whole = "".join(printed_by(world.folder, command, *line) for line in lines(command, world))
    assert (
        command in SHOWS_NONE or "ev·[8m" in whole or r"ev\u001b[8m" in whole or "ev [8m" in whole
    ), whole


def test_every_page_of_the_dashboard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    pages = list_bindings_by_page()

    async def look(dashboard: MonitorApp, pilot: Pilot[Any]) -> None:
        for key in (
            *"1234567",
            "1",
            "enter",
            "escape",
            "5",
            "enter",
            "escape",
            "i",
            "escape",
            "w",
            "escape",
        ):
            await press(dashboard, pilot, key)
            seen.append(screen_text(dashboard))
            harmless(seen[-1], key)
        for digit, page in zip(
            "12356", ("overview", "hooks", "metrics", "log", "trace"), strict=True
        ):
            for key in (digit, *(key for binding in pages[page] for key in binding.key.split(","))):
                await press(dashboard, pilot, key)
                seen.append(screen_text(dashboard))
                harmless(seen[-1], f"{key} on {page}")

    monkeypatch.chdir(world.folder)
    visit(world.copy, look, readonly=True)
    assert "txet" in "".join(seen)


def test_in_a_terminal(world: World) -> None:
    command = (sys.executable, "-m", "hookflow", "watch", "--replay", str(world.copy.path))
    terminal = Terminal(*command, cwd=world.folder)
    try:
        terminal.wait_for("REPLAY")
        terminal.press("q")
        terminal.finish()
    finally:
        terminal.close()
    output = terminal.output.decode("utf-8", "replace")
    assert "txet" in output
    assert not [raw for raw in RAW if raw in output]


def test_our_own_colours_alone_come_through(capsys: pytest.CaptureFixture[str]) -> None:
    echo("\x1b[1mbold\x1b[0m \x1b[8mhidden", coloured=True)
    assert capsys.readouterr().out == "\x1b[1mbold\x1b[0m ·[8mhidden\n"
