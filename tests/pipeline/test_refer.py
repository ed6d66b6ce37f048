"""What `use` names is found; what it does not name is told, with what was probably meant."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.use import import_file, imported_files, module_file, refer

HERE = Where("p.toml", 3)
SHORT = {"path": "pathlib:Path", "parts": "pathlib:PurePath.parts"}


def failure(use: str, base: Path = Path()) -> str:
    with pytest.raises(UserError) as caught:
        refer(use, base, HERE, SHORT)
    (problem,) = caught.value.problems
    assert problem.where == HERE
    return str(problem)


def test_a_name_of_each_form_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass  # which looks its module up\nclass A:\n    class B:\n        pass\n"
    )
    (tmp_path / "sub").mkdir()
    assert refer("path", tmp_path, None, SHORT) is Path
    assert refer("pathlib:Path", tmp_path, None) is Path
    assert refer("builtins:print", tmp_path, None) is print
    assert refer("./mine.py:A.B", tmp_path, None).__qualname__ == "A.B"
    assert refer("../mine.py:A", tmp_path / "sub", None) is refer("./mine.py:A", tmp_path, None), "imported once"


def test_a_folder_without_init_within_a_package_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "whole_package" / "models" / "net.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "whole_package" / "__init__.py").touch()
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert module_file("whole_package.models.net") == file
    assert "whole_package" not in sys.modules


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """Two pipelines have neighbours of one name; each gets its own, and both files of a folder the same."""
    for folder in ("one", "two"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "json.py").write_text("raise AssertionError('it takes the place of an installed module')")
        (tmp_path / folder / "neighbour.py").write_text(f"NAME = {folder!r}\nimport json\nclass Net: pass\n")
        (tmp_path / folder / "parts" / "__init__.py").write_text("")
        (tmp_path / folder / "parts" / "head.py").write_text(f"NAME = {folder!r}\n")
        for name in ("first", "second"):
            (tmp_path / folder / f"{name}.py").write_text(
                "import neighbour\nfrom parts.head import NAME\nNet = neighbour.Net\n"
                "def late():\n    import neighbour\n    return neighbour.Net\n"
            )
    path = list(sys.path)

    def referred(use: str, folder: str) -> Any:
        return refer(use, tmp_path / folder, None)

    assert referred("./first.py:NAME", "one") == "one"
    assert referred("./first.py:late", "one")() is referred("./first.py:Net", "one")
    assert referred("./first.py:NAME", "two") == "two"
    assert referred("./first.py:neighbour.NAME", "two") == "two"
    assert referred("./second.py:Net", "two") is referred("./first.py:Net", "two")
    assert referred("./second.py:Net", "one") is referred("./first.py:Net", "one")
    assert sys.path == [*path, str(tmp_path / "one"), str(tmp_path / "two")], "found last from now on"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (":Path", 'there is nothing called ":Path"'),
        ("pathlib:Path.exist", 'there is no "exist" in Path\n    did you mean "exists"?'),
        ("email.mine:X", 'there is no module "email.mine"\n    did you mean "email.mime"?'),
        ("hookflw.hooks:X", 'there is no module "hookflw"\n    did you mean "hookflow"?'),
        ("./mymod.py:X", 'did you mean "my_mod.py"?'),
        ("my_mod:Mine", 'for the file write "./my_mod.py:Mine"'),
        ("./my_mod.py", 'write "package.module:Name" or "./file.py:Name"'),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_the_nearest(use: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my_mod.py").write_text("class Mine: ...\ndef yours(run): ...\ndef _own(): ...\n")
    assert message in failure(use, tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a = 1\nb = c\n", "NameError: name 'c' is not defined", "2: b = c"),
        ("a = 1\n\nb = (\n", "SyntaxError: '(' was never closed", "3: b = ("),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'", "1: import no_such"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "2: sys.exit(3)"),
    ],
)
def test_a_file_that_raises_is_told_with_its_own_line(
    text: str, message: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(text)
    for _ in range(2):  # a module that failed is not there the second time either
        printed = failure("./mine.py:X", tmp_path)
        assert f'"./mine.py" cannot be imported: {message}' in printed
        assert re.search(rf"at .*mine\.py:{re.escape(line)}", printed)
    (tmp_path / "mine.py").rename(tmp_path / "broken_here.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert f'"broken_here" cannot be imported: {message}' in failure("broken_here:X"), "nor is it said to be missing"


def test_a_failed_import_is_shown_once_for_all_places_that_need_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("late = ImportError('install x')\nlate.add_note('or y')\nraise late\n")
    problems = []
    for line in (3, 5, 7):
        with pytest.raises(UserError) as caught:
            refer("./mine.py:X", tmp_path, Where("p.toml", line))
        problems += UserError(caught.value.problems).problems
    hint = f"or y\n    at {tmp_path}/mine.py:3: raise late\n    also used at p.toml:5, p.toml:7"
    shown = UserError([*problems, Problem("other"), Problem("other")])
    assert str(shown) == f'p.toml:3: "./mine.py" cannot be imported: ImportError: install x\n    {hint}\nother\nother'
    assert shown.to_json()[0]["hint"] == hint


def test_a_file_that_is_gone_is_left_out_of_what_other_processes_import(tmp_path: Path) -> None:
    (file := tmp_path / "gone.py").touch()
    import_file(file, str(file), None)
    assert str(file) in imported_files()
    file.unlink()
    assert str(file) not in imported_files()
