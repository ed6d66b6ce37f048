"""Looking at the user's code may raise anything: it is a problem in words, unless it is Ctrl-C that has come."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import circle, hookflow_here

PIPELINE = circle("max_epochs = 1") + '[hooks.odd]\nuse = "./%s:It"\npoints = ["after_val"]\n'
OF_CLASS = """
class Odd(type):
    def __getattribute__(cls, name):
        look()
        return type.__getattribute__(cls, name)

class It(metaclass=Odd):
    reads = ("model",)

    def after_val(self, run):
        run.log("x", 1.0)
"""
OF_OBJECT = """
class Odd:
    def __getattribute__(self, name):
        look()
        return object.__getattribute__(self, name)

    def __call__(self, run): ...

It = Odd()
"""
IN_CLASS = """
class Odd(type):
    reads = property(lambda cls: look())

class It(metaclass=Odd):
    def after_val(self): ...
"""
LOOKS = """
looks = 0
def look():
    global looks
    looks += 1
    if looks == %s:
        %s
"""
AT_ONCE = "look()\n"
RAISES = "raise KeyboardInterrupt", "raise SystemExit(0)", "sys.exit(7)", "raise GeneratorExit('no')"
COMES = "signal.raise_signal(signal.SIGINT)"


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let SIGINT do what it does in a process that nobody else has started otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def looked_at(folder: Path, code: str, at: int, does: str, *command: str) -> tuple[int, str, int]:
    """Run a command over a hook whose look number `at` does something; return its code, its errors, and the looks."""
    file = f"odd{len([*folder.iterdir()])}.py"
    (folder / file).write_text(f"import signal, sys\n{LOOKS % (at, does)}{code}")
    (folder / "p.toml").write_text(PIPELINE % file)
    told = hookflow_here(*(f"./{file}:It" if word == "IT" else word for word in command), cwd=folder)
    imported = [module for module in sys.modules.values() if getattr(module, "__file__", "") == str(folder / file)]
    return told.returncode, told.stderr, imported[0].looks if imported else 1


@pytest.mark.parametrize("does", RAISES)
@pytest.mark.parametrize("code", [OF_CLASS, OF_OBJECT, IN_CLASS, AT_ONCE], ids=["class", "object", "attribute", "file"])
def test_whatever_it_raises_is_a_problem(tmp_path: Path, code: str, does: str) -> None:
    status, told, _ = looked_at(tmp_path, code, 1, does, "check", "p.toml")
    kind = "KeyboardInterrupt" if "Keyboard" in does else "GeneratorExit" if "Generator" in does else "SystemExit"
    assert status == 2
    assert told.startswith("p.toml:11:")
    assert kind in told


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("does", RAISES[:2])
@pytest.mark.parametrize("command", [("check", "p.toml"), ("explain", "IT")], ids=["check", "explain"])
@pytest.mark.parametrize("code", [OF_CLASS, OF_OBJECT], ids=["class", "object"])
def test_at_whichever_look(tmp_path: Path, code: str, command: tuple[str, ...], does: str, step: int) -> None:
    for at in count(1, step):
        status, told, looks = looked_at(tmp_path, code, at, does, *command)
        if looks < at:
            break
        assert (status, "raises" in told) == (2, True), (at, status, told)
    assert at > 20, "it was looked at"
    assert status == 0


@pytest.mark.parametrize("code", [OF_CLASS, OF_OBJECT, AT_ONCE], ids=["class", "object", "file"])
def test_ctrl_c_is_still_the_end_of_it(tmp_path: Path, code: str) -> None:
    assert looked_at(tmp_path, code, 1, COMES, "check", "p.toml")[0] == 130
