"""Requests that a thread makes while the loop grants others."""

import sys
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from hookflow.runner.iteration.requests import HookRequests
from hookflow.runner.loop.loop import SafePoint


def make_safe_point(*, epoch_is_over: bool) -> Any:
    """Return what `_accept_validations` needs of a safe point: a validation on "val.a" is due."""
    state = SimpleNamespace(
        epoch_is_over=epoch_is_over, attention=False, validated={}, validation_due=[], iter=3
    )
    nothing: Any = None
    requests = HookRequests(nothing, state, nothing, {}, nothing, several=False)  # type: ignore[arg-type]
    requests.validate_on(["val.a"])
    return SimpleNamespace(
        state=state,
        requests=requests,
        consensus=SimpleNamespace(all_gather_object=lambda mine: [mine]),
        context=SimpleNamespace(parts=SimpleNamespace(data={"val.a": [], "val.b": []})),
    )


def interrupted(code: CodeType, at: int, call: Callable[[], Any], thread: Callable[[], Any]) -> int:
    """Call a function, and let another one come in between at an instruction of `code`.

    Returns how many instructions there were.
    """
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if count == at:
                thread()
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("epoch_is_over", [False, True])
@pytest.mark.parametrize("is_cut", ["the loop", "the thread"])
def test_a_validation_that_a_clock_asks_for_is_not_lost(epoch_is_over: bool, is_cut: str) -> None:
    """Whichever of the two comes between two instructions of the other."""
    at = 0
    count = 1
    while at < count:
        safe_point = make_safe_point(epoch_is_over=epoch_is_over)
        requests = safe_point.requests

        def grant(safe_point: Any = safe_point) -> None:
            SafePoint._accept_validations(safe_point)

        def ask(requests: Any = requests) -> None:
            requests.validate_on(["val.b"])

        if is_cut == "the loop":
            count = interrupted(SafePoint._accept_validations.__code__, at, grant, ask)
        else:
            count = interrupted(HookRequests.validate_on.__code__, at, ask, grant)
        known = {*requests.validates, *safe_point.state.validation_due}
        assert known == {"val.a", "val.b"}, at
        assert safe_point.state.attention
        at += 1
    assert count > 10
