"""Files that hooks and tasks have left open.

The data that Python still holds back of them are written before a process ends.

Python writes it when it destroys a file object, which need not happen before a process ends. Where
a file object is part of a circle of objects, the garbage collector may close the file before its
text has been passed on. Versions of Python differ in that.
"""

import gc
import io
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

from hookflow.text import print_error

FILE_CLASS = io.TextIOWrapper.__mro__[-2]
"""The class of all file objects.

`io.IOBase` is slower: its check looks at attributes of every object.
"""


def flush_open_files() -> None:
    """Write what file objects hold back; they stay open.

    Files in the permanent generation of the garbage collector (`gc.freeze`) are left out: it does
    not collect them. A pipe, a socket or a terminal is left out: writing to it may wait for ever.
    An error is printed.
    """
    texts, in_python, buffers = _files_by_layer()
    for file in [*texts, *in_python, *buffers]:
        _do(file, file.flush)


def close_open_files() -> None:
    """Write what file objects hold back, of a process that ends.

    File objects that are written in Python are closed, since some of them write their last bytes
    only then, as gzip's. The same files are left out as by `flush_open_files`, but none of those in
    the permanent generation.
    """
    gc.unfreeze()
    texts, in_python, buffers = _files_by_layer()
    for file in texts:
        _do(file, file.flush)
    for file in in_python:
        _do(file, file.close)
    for file in buffers:
        _do(file, file.flush)


def _files_by_layer() -> tuple[list[Any], list[Any], list[Any]]:
    """Return the open files that hold something back.

    They are text files, those written in Python, and Python's buffers.

    Data that one of them passes on may arrive in one of a list that comes later.
    """
    texts = []
    in_python = []
    buffers = []
    standard = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    for file in gc.get_objects():
        if not issubclass(type(file), FILE_CLASS) or any(file is stream for stream in standard):
            continue
        if not _is_written(file):
            continue
        if isinstance(file, io.TextIOWrapper):
            texts.append(file)
        elif isinstance(file, io.BufferedWriter | io.BufferedRandom):
            buffers.append(file)
        elif not isinstance(file, io.RawIOBase | io.BytesIO | io.StringIO):
            in_python.append(file)
    return texts, in_python, buffers


def _is_written(file: Any) -> bool:
    """Say whether a file is open for writing, and is no pipe, socket or terminal."""
    try:
        if file.closed or not file.writable():
            return False
    except Exception:  # its buffer was detached, or it is a class of the user's
        return False
    try:
        number = file.fileno()
    except Exception:  # it has none: its contents go elsewhere
        return True
    try:
        mode = os.fstat(number).st_mode
    # The descriptor was closed, as all are where a process is detached from its parent's files.
    except OSError:
        return False
    return stat.S_ISREG(mode)


def _do(file: Any, write: Callable[[], object]) -> None:
    """Flush or close a file; print the error where that fails."""
    try:
        write()
    except Exception as error:
        name = getattr(file, "name", type(file).__name__)
        print_error(
            f"hookflow: a file that was left open cannot be written: {name}:"
            f" {type(error).__name__}: {error}"
        )
