"""The page for beginners: its files and its commands, executed from top to bottom in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import hookflow, hookflow_here

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
FENCE = re.compile(r"```(?:python|toml)\n# ([\w.]+)(?:, continued)?\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^    hookflow (.*)\n()|^    \$ hookflow (.*)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)
TERMINAL = ("watch --replay", "--version")


def steps() -> list[tuple[str, ...]]:
    """Return the files and the commands of the page, in its order: (name, text), or (command line, output)."""
    page = PAGE.read_text("utf-8")
    matches = sorted([*FENCE.finditer(page), *COMMAND.finditer(page)], key=lambda match: match.start())
    return [tuple(group for group in match.groups() if group is not None) for match in matches]


def test_every_step_works_and_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    commands = 0
    for name, text in steps():
        if name.endswith((".py", ".toml")) and " " not in name:
            with (tmp_path / name).open("a") as file:
                file.write(f"{text}\n")
        elif not name.startswith(TERMINAL):
            commands += 1
            if name.startswith("run "):
                done = hookflow(*name.split(), "--ui", "plain", cwd=tmp_path)
            else:
                done = hookflow_here(*name.split(), cwd=tmp_path)
            assert done.returncode == 0, (name, done.stderr)
            expected = [line.strip() for line in text.splitlines() if line.strip()]
            assert [line.strip() for line in done.stdout.splitlines() if line.strip()] == expected or not expected, name
    assert commands == 10
