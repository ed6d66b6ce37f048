"""The folder for temporary files where Python finds none."""

import os
import tempfile
from pathlib import Path

import pytest

from hookflow.errors import UserError
from hookflow.events import temporary_files
from hookflow.events.temporary_files import find_temporary_folder


@pytest.fixture(autouse=True)
def nothing_else_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> list[str]:
        return [str(tmp_path / "absent")]

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", none)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))


def test_it_is_in_memory_where_no_other_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(temporary_files, "SHARED_MEMORY", str(tmp_path))
    assert find_temporary_folder() == str(tmp_path)
    assert (tempfile.gettempdir(), os.environ["TMPDIR"]) == (str(tmp_path), str(tmp_path))


def test_it_is_the_users_mistake_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(temporary_files, "SHARED_MEMORY", str(tmp_path / "absent"))
    with pytest.raises(UserError, match="temporary files need a folder") as refused:
        find_temporary_folder()
    assert "TMPDIR" in refused.value.problems[0].hint
