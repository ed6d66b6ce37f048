"""Runs of `clouds.toml`, which several ranks train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare

HERE = Path(__file__).parent

NewClouds = Callable[..., RunDir]


@pytest.fixture
def new_clouds(tmp_path: Path) -> NewClouds:
    """Make the directory of a new run of clouds.toml, with overrides."""

    def make(*overrides: str) -> RunDir:
        loaded = load(HERE / "clouds.toml", overrides)
        run_dir = RunDir.create(tmp_path / "runs", loaded.pipeline.run.name)
        prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
        return run_dir

    return make
