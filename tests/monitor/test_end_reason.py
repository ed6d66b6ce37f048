"""Why a run ended, in a sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.log import Appender
from hookflow.events.rundir import RunDir
from hookflow.monitor.plain import follow
from hookflow.monitor.summary import print_summary
from tests.monitor.fake_run import BEGAN, make

TRACEBACK = """Traceback (most recent call last):
  File "hookflow/runner/dispatch/dispatcher.py", line 80, in fire
    call(**given)
  File "/home/somebody/my hooks.py", line 12, in after_backward
    run.batch["missing_key"]
KeyError: 'missing_key'
"""
ERROR = {"k": "error", "hook": "boom", "point": "after_backward", "type": "KeyError", "text": "'missing_key'"}
PLACE = {"t": BEGAN + 12, "it": 130, "ep": 1}


def ended(root: Path, status: str, reason: str, *before: dict[str, Any]) -> str:
    """Return the summary of a run that ended so."""
    run: RunDir = make(root, upto=40)
    log = Appender(run.events)
    end = {"status": status, "exit": int(status == "failed"), "reason": reason, "seconds": 12.0}
    log.append([*before, {"k": "end", **PLACE, **end}])
    log.close()
    out = io.StringIO()
    print_summary(run, out)
    return out.getvalue()


def test_a_failed_hook_is_named_with_its_point_its_iteration_and_its_line(tmp_path: Path) -> None:
    at = "/home/somebody/my hooks.py:12"
    causes = "caused by OSError: gone\nat /home/x.py:3: read()"
    error = {**ERROR, **PLACE, "traceback": TRACEBACK, "at": at, "causes": causes, "action": "raise"}
    told = ended(tmp_path, "failed", "KeyError: 'missing_key'", error)
    assert "failed: hook \"boom\" at after_backward, iteration 130: KeyError: 'missing_key'\n" in told
    assert "  at /home/somebody/my hooks.py:12\n  caused by OSError: gone\n  at /home/x.py:3: read()\n" in told
    assert "errors 1;" in told, "one mishap is one error"
    assert f"whole tracebacks and what the run printed: {tmp_path}" in told


def test_an_error_that_was_lived_with_is_not_why_the_run_failed(tmp_path: Path) -> None:
    error = {**ERROR, **PLACE, "traceback": TRACEBACK, "action": "ignore"}
    told = ended(tmp_path, "failed", "MemoryError: ", error)
    assert "failed: MemoryError" in told
    assert "boom" not in told


def test_of_an_error_of_many_lines_the_first_is_told(tmp_path: Path) -> None:
    error = {**ERROR, **PLACE, "text": "half a page\nfollows", "traceback": TRACEBACK, "action": "raise"}
    told = ended(tmp_path, "failed", "KeyError: half a page\nfollows", error)
    assert "iteration 130: KeyError: half a page …\n" in told
    lines = io.StringIO()
    follow(RunDir(next(tmp_path.glob("*/*"))), lines)
    assert "iteration 130, ends the run: KeyError: half a page …" in lines.getvalue()
    assert "iterations: KeyError: half a page …" in lines.getvalue()


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        ("finished", "loss has not improved on 0.42 for 5 validations", "  stopped early: loss has not improved on"),
        ("stopped", "stopped by somebody", "  stopped by somebody"),
        ("interrupted", "SIGTERM received", "  interrupted: SIGTERM received"),
    ],
)
def test_the_reason_is_given(tmp_path: Path, status: str, reason: str, told: str) -> None:
    assert told in ended(tmp_path, status, reason)


def test_a_run_that_did_all_it_was_to_do_needs_no_reason(whole: RunDir) -> None:
    text = whole.events.read_text().replace('"reason":""', '"reason":"every iteration is done"')
    whole.events.write_text(text)
    out = io.StringIO()
    print_summary(whole, out)
    assert "every iteration" not in out.getvalue()
    assert "early" not in out.getvalue()
