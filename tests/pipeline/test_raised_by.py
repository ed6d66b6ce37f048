"""A message points at the user's own file, however deep in PyTorch something was raised."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch

from hookflow.user_code import explained, innermost


def raised(call: object, *given: object) -> str:
    with pytest.raises(Exception, match="shapes cannot be multiplied") as caught:
        call(*given)  # type: ignore[operator]
    return innermost("".join(traceback.format_exception(caught.value)))


def test_of_what_pytorch_raises_the_line_that_called_it_is_named() -> None:
    def forward() -> None:
        torch.nn.Linear(2, 2)(torch.ones(1, 3))  # here

    at = raised(forward)
    file, _, line = at.rpartition(":")
    assert file == __file__
    assert Path(file).read_text().splitlines()[int(line) - 1].endswith("# here")


def test_where_no_frame_is_the_users_the_last_one_is_named() -> None:
    told = 'Traceback\n  File "/x/site-packages/a.py", line 3, in f\n  File "<frozen importlib>", line 7, in g\n'
    assert innermost(told) == "<frozen importlib>:7"
    assert innermost("nothing was raised") == ""


def test_of_a_worker_its_own_line_is_named() -> None:
    """A worker's traceback comes as a text, a note of the exception."""
    text = 'WorkerError: worker 0: no\nOriginal Traceback:\n  File "/home/me/data.py", line 9, in __getitem__\n    no\n'
    outer = 'Traceback\n  File "/x/lib/python3.11/site-packages/torch/utils.py", line 3, in reraise\n'
    assert innermost(outer + text) == "/home/me/data.py:9"


class OddError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("outer", "cause", "wanted"),
    [
        (OSError("a"), ValueError("b"), ["OSError: a", "caused by ValueError: b"]),
        (
            OddError(),
            ValueError("b"),
            ["Exception: OddError, which cannot be shown: that raises KeyError", "caused by"],
        ),
        (OSError("a"), None, ["OSError: a"]),
    ],
)
def test_an_exception_is_explained_by_its_causes(outer: Exception, cause: Exception | None, wanted: list[str]) -> None:
    try:
        try:
            raise LookupError("c")
        except LookupError:
            raise outer from cause
    except Exception as caught:
        if cause and caught.args:
            cause.__context__ = caught  # which closes a cycle
        said = [line for line in explained(caught) if not line.startswith("at ")]
    assert len(said) == len(wanted)
    assert all(map(str.startswith, said, wanted))


def test_what_was_being_handled_is_told_too() -> None:
    try:
        try:
            raise LookupError("c")
        except LookupError:
            torch.ones(2).reshape(3)
    except RuntimeError as caught:
        first, at, second, _ = explained(caught)
    assert first.startswith("RuntimeError: shape")
    assert (at.startswith(f"at {__file__}:"), second) == (True, "while handling LookupError: c")
