"""Permissions of files that hold for root, too."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

VERSION = 0x20080522
"""Of what `capget` and `capset` are given: two sets of 32 capabilities."""


OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root's way past the permissions of files."""


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Let the permissions of files hold for this thread, be it root's;
    the test is skipped where that cannot be.
    """
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads every file on this system")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    before = sets[0]
    sets[0] = before & ~OVERRIDE
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
