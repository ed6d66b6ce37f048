"""A hook that is switched off on one rank keeps no other rank waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare
from tests.distributed.several import carry_out, printed
from tests.limits import LIMIT

HERE = Path(__file__).parent
BREAKS = 'hooks.breaks={use="./lonely.py:Breaks", on_error="disable", points=["%s"], %s}'


@pytest.mark.parametrize(
    "overrides",
    [
        (BREAKS % ("after_train_iter", 'writes=["control"]'),),
        (BREAKS % ("after_train_iter", 'when="loss > 0"'),),
        (BREAKS % ("before_train_iter", 'writes=["batch", "control"]'), "run.accumulate=2"),
        (BREAKS % ("before_train_iter", 'writes=["batch"], when="loss > 0"'), "run.accumulate=2"),
        (BREAKS % ("forward", 'modules=["head"], writes=["checkpoint"]'),),
        (BREAKS % ("forward", 'modules=["head"], when="loss > 0"'),),
        (BREAKS % ("around_train_iter", 'writes=["control"]'),),
    ],
)
def test_the_others_do_not_wait_for_it(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    loaded = load(HERE / "clouds.toml", (f"distributed.timeout={LIMIT}", *overrides))
    run_dir = RunDir.create(tmp_path, "clouds")
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
    assert carry_out(run_dir, 2) == [0, 0], printed(run_dir, 0)
    assert "is switched off" in run_dir.events_of(1).read_text()
