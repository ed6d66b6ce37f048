"""However many hooks are of one class, it is looked into once. Counted, not timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.hooks.test_inspect_troubles import HEAD

LOOKS = {"inspect.methods": 1, "inspect.wrong_attributes": 1, "compile.Inspection": 1, "compile.find_hook": 1}
"""The functions that inspect a class, and how often they are called for one."""


def test_a_class_is_looked_into_once_however_many_hooks_are_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("class It:\n    reads = ('model',)\n    def after_train(self): ...\n")
    calls: list[str] = []

    def counted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(name)
            return plain(*args)

        return call

    for name in LOOKS:
        module = importlib.import_module(f"hookflow.hooks.{name.partition('.')[0]}")
        function = name.partition(".")[2]
        monkeypatch.setattr(module, function, counted(name, getattr(module, function)))
    hooks = "".join(f'[hooks.h{k}]\nuse = "./mine.py:It"\n' for k in range(50))
    plan = compile_pipeline(parse(HEAD + hooks, tmp_path / "p.toml"))
    assert len(plan.at("after_train")) == 50
    classes = len({hook.use for hook in plan.hooks})
    assert {name: calls.count(name) for name in LOOKS} == {name: often * classes for name, often in LOOKS.items()}
