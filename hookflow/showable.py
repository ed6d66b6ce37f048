"""Exceptions as they can be shown: one of the user's code may raise when it is asked for its text or its notes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


def showable(error: BaseException, *notes: str) -> BaseException:
    """Return an exception with these notes, or one in its place if it cannot be shown.

    That one is of the nearest built-in class, and comes from where the exception was raised.
    """
    try:
        for note in notes:
            error.add_note(note)
        str(error)
        traceback.format_exception(error)
    except (Exception, SystemExit) as raised:
        shown = _in_the_place_of(error, raised)
        for note in notes:
            shown.add_note(note)
        return shown
    return error


@contextmanager
def only_showable(*notes: str) -> Iterator[None]:
    """Let nothing through that cannot be shown; add the notes to what is raised."""
    try:
        yield
    except BaseException as error:
        if (shown := showable(error, *notes)) is not error:
            raise shown from None
        raise


def _in_the_place_of(error: BaseException, raised: BaseException) -> BaseException:
    said = f"{type(error).__name__}, which cannot be shown: that raises {type(raised).__name__}"
    for base in type(error).__mro__:
        if base.__module__ == "builtins" and issubclass(base, BaseException):
            try:
                shown = base(said).with_traceback(error.__traceback__)
            except TypeError:  # it takes more than a text
                continue
            # its context is the one that cannot be shown
            shown.__cause__ = None if error.__cause__ is None else showable(error.__cause__)
            return shown
    raise AssertionError("every exception is a BaseException")
