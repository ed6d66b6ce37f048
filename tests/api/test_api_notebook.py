"""A run in a notebook, in a real kernel."""

import asyncio
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.conftest import TOY
from tests.limits import LIMIT
from tests.processes import Spawned

LOAD = f"""
import hookflow, time
seen = []
def slowly(run):
    time.sleep(0.05)
    if run.iter == 10:
        print("ten")
pipeline = hookflow.load({{
    "extends": {str(TOY)!r},
    "run": {{"threads": 1, "max_epochs": 5}},
    "hooks": {{"slowly": {{"use": slowly, "points": ["after_train_iter"]}}}},
}})
"""
TRAIN = "run = hookflow.train(pipeline)"
LOOK = "print(run.status, run.metrics['val'].keys(), len(run.scalars('loss')['value']))"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs cells in a kernel and returns the outputs of each."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setattr("jupyter_client.launcher.Popen", Spawned)

    def execute(*cells: str, allow_errors: bool = False) -> tuple[list[list[Any]], list[str]]:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        drawn: list[str] = []

        class Client(nbclient.NotebookClient):
            def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
                if msg["msg_type"] == "update_display_data":
                    drawn.append(msg["content"]["data"]["text/plain"])
                return super().process_message(msg, cell, cell_index)

        where = {"metadata": {"path": str(tmp_path)}}
        limits = {"timeout": LIMIT, "startup_timeout": LIMIT, "iopub_timeout": LIMIT}
        client = Client(notebook, kernel_name="python3", resources=where, allow_errors=allow_errors, **limits)
        with asyncio.Runner() as runner:
            runner.run(client.async_execute())
        return [cell.outputs for cell in notebook.cells], drawn

    return execute


def test_a_run_is_a_line_that_moves_and_then_a_table_or_the_error_of_its_cell(executed: Any) -> None:
    failing = LOAD.replace('print("ten")', "1 / 0")
    interrupted = LOAD.replace('print("ten")', "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    looks = "print(*(run.status for run in hookflow.runs()), hookflow.load_run().checkpoint().iter)"
    cells = (LOAD, TRAIN, LOOK, failing, TRAIN, interrupted, TRAIN, looks)
    (loaded, trained, looked, _, failed, _, stopped, last), drawn = executed(*cells, allow_errors=True)
    assert loaded == []
    printed = [output.text for output in trained if output.output_type == "stream"]
    assert "".join(printed) == "ten\n", "a hook's own prints, and nothing else"
    line, table = (output.data for output in trained if output.output_type == "display_data")
    assert "finished" in line["text/plain"]
    assert "━" * 30 in line["text/plain"]
    assert "iteration 25/25" in line["text/plain"]
    assert len({text for text in drawn if "running" in text and "it/s" in text}) > 1
    assert "25 iterations in" in table["text/plain"]
    assert "val accuracy" in table["text/plain"]
    assert "val accuracy" in table["text/html"]
    assert looked[0].text.startswith("finished dict_keys(['loss', 'accuracy']) 12")
    assert [output.ename for output in failed if output.output_type == "error"] == ["ZeroDivisionError"]
    assert not [output for output in failed if output.output_type == "stream"], "its traceback is printed once"
    assert [output.ename for output in stopped if output.output_type == "error"] == ["KeyboardInterrupt"]
    assert last[0].text == "interrupted failed finished 10\n"
