"""Built-in hooks over two ranks: what they log is that of the whole batch and the full model, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare
from tests.conftest import records
from tests.distributed.several import carry_out, printed
from tests.runner.same import curve, final_state

HERE = Path(__file__).parent
HOOKS = [
    'hooks.rates={use="lr_monitor", args={also=["momentum"]}}',
    'hooks.norms={use="grad_norm"}',
    'hooks.params={use="param_stats", args={histogram=true}, every=4}',
    'hooks.activations={use="activation_stats"}',
    'hooks.confusion={use="confusion_matrix"}',
    'hooks.memory={use="memory"}',
    'hooks.env={use="env_info"}',
    'hooks.profiler={use="profiler", args={wait=1, warmup=1, active=1}}',
    'hooks.limit={use="time_limit", args={limit="1h"}}',
    'hooks.spikes={use="spike_guard", args={window=3}}',
    'task={use="../own_tasks.py:spikes", args={at=[7]}}',
    'hooks.empty={use="empty_cache"}',
    'hooks.export={use="export"}',
]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_record_what_one_does(tmp_path: Path, train_here: Callable[..., int], strategy: str) -> None:
    def new(folder: str) -> RunDir:
        loaded = load(HERE / "clouds.toml", (*HOOKS, "run.max_epochs=2", f'distributed.strategy="{strategy}"'))
        run_dir = RunDir.create(tmp_path / folder, loaded.pipeline.run.name)
        prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
        return run_dir

    alone, together = new("alone"), new("together")
    assert train_here(alone) == 0, records(alone, "error")
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    one, two = (_logged(run_dir) for run_dir in (alone, together))
    assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    assert {name.split("/")[0] for _, _, name in one} >= {"lr", "momentum", "grad_norm", "param"}
    for kind in ("text", "histogram"):
        assert _named(together, kind) == _named(alone, kind), kind
    assert _spikes(together) == _spikes(alone) == [7]
    (path,) = (together.path / "export").iterdir()
    exported = torch.load(path, weights_only=True)
    expected: Any = final_state(together)["model"]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in exported.items())
    assert len(list((together.path / "profile").iterdir())) == 1


def _logged(run_dir: RunDir) -> dict[Any, float]:
    """Return what was logged; the activations are those of a rank's share of the batch."""
    return {key: value for key, value in curve(run_dir).items() if not key[2].startswith("activation/")}


def _named(run_dir: RunDir, kind: str) -> list[Any]:
    return [
        (record["it"], record["name"], record.get("text"))
        for record in records(run_dir, kind)
        if record["name"] != "environment"
    ]


def _spikes(run_dir: RunDir) -> list[object]:
    return [record["it"] for record in records(run_dir, "message") if "has spiked" in str(record["text"])]
