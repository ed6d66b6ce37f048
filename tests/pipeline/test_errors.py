"""How a user's mistake is shown: place, line, hint; in colour only when asked for."""

from __future__ import annotations

from pathlib import Path

from hookflow.errors import Problem, UserError, Where, nearest


def test_a_problem_shows_the_line_that_the_user_wrote(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('a = 1\n  b = "x\u2028y"\nc = ' + "1" * 200 + "\n", "utf-8")
    place = str(path)
    assert str(Problem("bad", Where(place, 2), "mend it")) == f'{place}:2: bad\n    2 | b = "x\u2028y"\n    mend it'
    assert str(Problem("long", Where(place, 3))).split("\n")[1].endswith("1…")
    assert str(Problem("beyond", Where(place, 9))) == f"{place}:9: beyond"
    assert str(Problem("nowhere", Where("gone.toml", 1))) == "gone.toml:1: nowhere"
    assert str(Problem("no place")) == "no place"


def test_colour_is_shown_only_when_asked_for() -> None:
    problem = Problem("bad", Where("p.toml", 1), "mend it")
    assert "\x1b" not in problem.show()
    assert problem.show(colour=True).count("\x1b[0m") == 2


def test_several_problems_are_counted() -> None:
    assert UserError([Problem("a"), Problem("b")]).show() == "a\nb\n2 problems"
    assert UserError(Problem("a")).show() == "a"


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("ema", ["EMA", "swa"]) == 'did you mean "EMA"?'
    assert nearest("xyz", ["EMA", "swa"]) == ""
