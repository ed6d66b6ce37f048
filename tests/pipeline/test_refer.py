"""What `use` names is found; what it does not name is told, with what was probably meant."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import Problem, UserError, Where
from hookflow.pipeline.use import refer

HERE = Where("p.toml", 3)
SHORT = {"path": "pathlib:Path", "parts": "pathlib:PurePath.parts"}


def failure(use: str, base: Path = Path()) -> str:
    with pytest.raises(UserError) as caught:
        refer(use, base, HERE, SHORT)
    (problem,) = caught.value.problems
    assert problem.where == HERE
    return str(problem)


def test_a_name_of_each_form_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class A:\n    class B:\n        pass\n")
    assert refer("path", tmp_path, None, SHORT) is Path
    assert refer("pathlib:Path", tmp_path, None) is Path
    assert refer("builtins:print", tmp_path, None) is print
    assert refer("./mine.py:A.B", tmp_path, None).__qualname__ == "A.B"


def test_a_file_is_imported_once_and_known_to_what_looks_its_module_up(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    x: int\n@dataclass\nclass B:\n    a: A\n"
    )
    (tmp_path / "sub").mkdir()
    a, b = refer("./mine.py:A", tmp_path, None), refer("../mine.py:B", tmp_path / "sub", None)
    assert sys.modules[a.__module__] is sys.modules[b.__module__]


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"NAME = {folder!r}\n")
    assert [refer("./mine.py:NAME", tmp_path / folder, None) for folder in ("one", "two")] == ["one", "two"]


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """Two pipelines have neighbours of one name; each gets its own, and both files of a folder the same."""
    for folder in ("one", "two"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "neighbour.py").write_text(f"NAME = {folder!r}\nclass Net: pass\n")
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
    assert sys.modules["json"].__name__ == "json"


def test_what_lies_beside_a_file_takes_no_installed_modules_place(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "mine.py").write_text("import json\nNAME = json.dumps(1)\n")
    assert refer("./mine.py:NAME", tmp_path, None) == "1"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("pth", 'there is nothing called "pth"\n    did you mean "path"?'),
        ("resnet", 'or one of parts, path'),
        ("pathlib:", 'there is nothing called "pathlib:"'),
        (":Path", 'there is nothing called ":Path"'),
        ("pathlib:Pth", 'there is no "Pth" in pathlib\n    did you mean "Path"?'),
        ("pathlib:Path.exist", 'there is no "exist" in Path\n    did you mean "exists"?'),
        ("email.mine:X", 'there is no module "email.mine"\n    did you mean "email.mime"?'),
        ("hookflw.hooks:X", 'there is no module "hookflw"\n    did you mean "hookflow"?'),
        ("./min.py:X", 'there is no file "./min.py"'),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_the_nearest(use: str, said: str, tmp_path: Path) -> None:
    assert said in failure(use, tmp_path)


def test_a_file_named_like_a_module_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "my_hooks.py").write_text("X = 1\n")
    assert 'for the file write "./my_hooks.py:X"' in failure("my_hooks:X", tmp_path)
    assert 'did you mean "my_hooks.py"?' in failure("./myhooks.py:X", tmp_path)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a = 1\nb = c\n", "NameError: name 'c' is not defined", "2: b = c"),
        ("a = 1\n\nb = (\n", "SyntaxError: '(' was never closed", "3: b = ("),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'", "1: import no_such"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "2: sys.exit(3)"),
    ],
)
def test_a_file_that_raises_is_told_with_its_own_line(text: str, said: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    for _ in range(2):  # a module that failed is not there the second time either
        told = failure("./mine.py:X", tmp_path)
        assert f'"./mine.py" cannot be imported: {said}' in told
        assert re.search(rf"at .*mine\.py:{re.escape(line)}", told)


def test_the_causes_of_a_failed_import_are_shown_once_for_all_places(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    try:\n        raise KeyError('k')\n"
        "    except KeyError:\n        late = ImportError('install x')\n        late.add_note('or y')\n"
        "        raise late from error\n"
    )
    problems = []
    for line in (3, 5, 7):
        with pytest.raises(UserError) as caught:
            refer("./mine.py:X", tmp_path, Where("p.toml", line))
        problems += UserError(caught.value.problems).problems
    shown = UserError([*problems, Problem("other"), Problem("other")])
    at = f"at {tmp_path}/mine.py:"
    hint = f"""\
or y
    {at}9: raise late from error
    caused by ZeroDivisionError: division by zero
    {at}2: 1 / 0
    also used at p.toml:5, p.toml:7"""
    said = '"./mine.py" cannot be imported: ImportError: install x'
    assert str(shown) == f"p.toml:3: {said}\n    {hint}\nother\nother"
    assert shown.to_json()[0]["hint"] == hint


def test_a_module_that_lacks_another_one_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_here.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert '"broken_here" cannot be imported: ModuleNotFoundError' in failure("broken_here:X")


def test_a_file_without_a_name_is_told_with_the_names_that_are_in_it(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text("class Mine: ...\ndef yours(run): ...\ndef _own(): ...\n")
    (tmp_path / "broken.py").write_text("class")
    with pytest.raises(UserError, match=r'name what is in it: "\./h\.py:Mine", "\./h\.py:yours"$'):
        refer("./h.py", tmp_path, None)
    for other in ("./broken.py", "./missing.py"):
        with pytest.raises(UserError, match=r"write "):
            refer(other, tmp_path, None)
