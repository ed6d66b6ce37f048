"""Runs of `clouds.toml`, which several ranks train."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare
from tests.conftest import Train
from tests.distributed.several import carry_out, printed
from tests.runner.same import curve, final_state

HERE = Path(__file__).parent
CLOUDS = HERE / "clouds.toml"

NewClouds = Callable[..., RunDir]
TrainBoth = Callable[..., tuple[RunDir, RunDir]]


@pytest.fixture
def split_layers(tmp_path: Path) -> list[str]:
    """Return overrides for the network of docs/how-to/distributed.md,
    with layers that are split over two ranks.
    """
    page = (HERE.parents[1] / "docs" / "how-to" / "distributed.md").read_text("utf-8")
    net = tmp_path / "net.py"
    net.write_text(page.partition("```python\n# net.py\n")[2].partition("```")[0])
    split = f'{{strategy="fsdp", parallelize="{net}:split", tensor_parallel=2}}'
    return [f'model.use="{net}:Net"', f"distributed={split}"]


@pytest.fixture
def new_clouds(tmp_path: Path) -> NewClouds:
    """Make the directory of a new run of clouds.toml, with overrides."""

    def make(*overrides: str) -> RunDir:
        loaded = load(CLOUDS, overrides)
        run_dir = RunDir.create(tmp_path / "runs", loaded.pipeline.run.name)
        prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
        return run_dir

    return make


@pytest.fixture
def ranks_trained(new_clouds: NewClouds) -> NewClouds:
    """Train a new run by two ranks, which end with these exit codes."""

    def train(*overrides: str, codes: Sequence[int] = (0, 0)) -> RunDir:
        run_dir = new_clouds(*overrides)
        assert carry_out(run_dir, 2) == [*codes], printed(run_dir, 0)
        return run_dir

    return train


@pytest.fixture
def train_both(new_clouds: NewClouds, train_here: Train) -> TrainBoth:
    """Train two runs with the same overrides, one in this process and one
    by so many ranks; return both.
    """

    def train(*overrides: str, world: int = 2) -> tuple[RunDir, RunDir]:
        alone, together = new_clouds(*overrides), new_clouds(*overrides)
        assert train_here(alone) == 0
        assert carry_out(together, world) == [0] * world, printed(together, 0)
        return alone, together

    return train


def strikes(mark: Path, at: int, number: int = signal.SIGTERM, name: str = "strikes") -> str:
    """Return an override for a hook that sends the process of rank 1 a
    signal in a backward pass, once.
    """
    args = f'rank=1, at={at}, number={int(number)}, mark="{mark}"'
    return f'hooks.{name}={{use="./actors.py:strikes", points=["after_backward"], args={{{args}}}}}'


def assert_alike(one: RunDir, other: RunDir, *weights: str) -> None:
    """Compare what two runs have logged, measured and saved last,
    up to the rounding of sums in another order.
    """
    first, second = curve(one), curve(other)
    assert first.keys() == second.keys()
    assert second == pytest.approx(first, rel=1e-4, abs=1e-5)
    for part in weights:
        torch.testing.assert_close(
            final_state(one)[part], final_state(other)[part], rtol=1e-4, atol=1e-5
        )
