"""Every kind of bad pipeline here says what its golden file says.

HOOKFLOW_GOLDEN=write writes them anew.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from hookflow.cli.app import main

HERE = Path(__file__).parent
PIPELINES = sorted(path.name for path in HERE.glob("*.toml"))


@pytest.mark.parametrize("name", PIPELINES)
def test_it_says_what_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "argv", ["hookflow", "check", name])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    printed = captured.err.replace(str(HERE), "HERE")
    golden = Path(name).with_suffix(".txt")
    if os.environ.get("HOOKFLOW_GOLDEN") == "write":
        golden.write_text(printed, "utf-8")
    assert (ended.value.code, captured.out) == (2, "")
    assert printed == golden.read_text("utf-8")
    assert not re.search(r"pydantic|https?:|Traceback", printed)
