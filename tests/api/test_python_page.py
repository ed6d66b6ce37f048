"""The Python in docs/python.md works as it stands there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import hookflow

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.usefixtures("interpreters")
def test_the_code_blocks_run_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (pipeline,) = blocks("toml")
    Path("mine.toml").write_text(pipeline)
    Path("page.py").write_text("\n".join(blocks("python")))
    runpy.run_path("page.py", run_name="page")
    printed = capfd.readouterr().out
    assert 'overrides["hooks.log.evry"]: [hooks.log] has no key "evry"' in printed
    assert 'did you mean "every"?' in printed
    assert len(hookflow.runs(tmp_path / "runs")) == 4


def test_every_public_name_is_told_of() -> None:
    assert [name for name in hookflow.__all__ if not re.search(rf"`(?:hookflow\.)?{name}`", PAGE)] == ["__version__"]
