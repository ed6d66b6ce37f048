"""The Python in docs/python.md works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import hookflow
from tests.limits import LIMIT

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_blocks_run_from_top_to_bottom(tmp_path: Path) -> None:
    (pipeline,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(pipeline)
    (tmp_path / "page.py").write_text("\n".join(blocks("python")))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'overrides["hooks.log.evry"]: [hooks.log] has no key "evry"' in done.stdout
    assert 'did you mean "every"?' in done.stdout
    assert len(hookflow.runs(tmp_path / "runs")) == 4


def test_every_public_name_is_told_of() -> None:
    assert [name for name in hookflow.__all__ if not re.search(rf"`(?:hookflow\.)?{name}`", PAGE)] == ["__version__"]
