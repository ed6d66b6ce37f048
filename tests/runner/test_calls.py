"""How many Python functions of hookflow's own an iteration calls: a figure that no busy machine
changes.

A call costs 0.05 to 0.4 µs. Counted is every call in the training thread of a function that
hookflow has written or generated, from one request for a batch to the next; each resumption of a
generator counts, and so does a property.

When it fails, the message lists the functions and how often each was called in an iteration. A
question that has the same answer all through the run belongs before the loop; one that is rarely
asked belongs behind the attention flag. Raise a bound only with a figure of `make bench` that says
what it buys.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch.nn import functional

import hookflow
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from hookflow.runner.process.launch import prepare

PACKAGE = str(Path(hookflow.__file__).parent)
WARM_UP, COUNTED, BARE = 20, 41, 12

PIPELINE = """
run.name = "calls"
run.default_hooks = false
run.max_epochs = 1
run.threads = 1
run.device = "cpu"
run.precision = "fp32"
model = { use = "torch.nn:Linear", args = { in_features = 4, out_features = 3 } }
task.use = "tests.runner.test_calls:step"
optimizer = { use = "torch.optim:SGD", args = { lr = 0.01 } }
data.train.use = "tests.runner.test_calls:Counted"
"""
TEN_HOOKS = "".join(f'[hooks.n{k}]\nuse = "tests.runner.test_calls:Nothing"\n' for k in range(10))


class Calls:
    """A profile function: counts the calls of hookflow's own functions,
    for each iteration apart.
    """

    def __init__(self) -> None:
        self.iterations: list[Counter[CodeType]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_ours(frame):
            self.iterations[-1][frame.f_code] += 1

    def median(self) -> float:
        return statistics.median(calls.total() for calls in self.iterations)

    def table(self) -> str:
        functions = {code for calls in self.iterations for code in calls}
        often = {
            code: statistics.median(calls[code] for calls in self.iterations) for code in functions
        }
        lines = sorted((-n, _name(code)) for code, n in often.items() if n)
        return "".join(f"\n  {-n:4.0f}  {name}" for n, name in lines)


def _is_ours(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "hookflow")
    return frame.f_code.co_filename.startswith(PACKAGE) or module.partition(".")[0] == "hookflow"


def _name(code: CodeType) -> str:
    return (
        f"{code.co_qualname} "
        f" ({code.co_filename.removeprefix(PACKAGE).lstrip('/')}:{code.co_firstlineno})"
    )


calls = Calls()


class Counted:
    """A source that hands out one batch again and again,
    and has the calls between two requests for it counted.
    """

    def __init__(self) -> None:
        self.batch = torch.ones(2, 4), torch.tensor([0, 2])
        size = {"examples": 2 * len(self), "batches": len(self), "batch_size": 2}
        self.info: dict[str, Any] = {
            "name": "one batch",
            **size,
            "synthetic": True,
            "note": "one batch",
        }

    def __len__(self) -> int:
        return WARM_UP + COUNTED + 1

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(WARM_UP):
            yield self.batch
        before = sys.getprofile()
        sys.setprofile(calls)
        try:
            for _ in range(COUNTED):
                calls.iterations.append(Counter())
                yield self.batch
        finally:
            sys.setprofile(before)
        yield self.batch  # the end of the epoch is no steady iteration


def step(run: Any, batch: Any) -> dict[str, torch.Tensor]:
    inputs, target = batch
    return {"loss": functional.cross_entropy(run.model(inputs), target)}


class Nothing:
    def after_train_iter(self, run: Any, outputs: Any) -> None: ...


def counted(
    hooks: str, tmp_path: Path, train_here: Callable[..., int], swap: tuple[str, str] = ("", "")
) -> Calls:
    """Train once with the hooks, and some of the pipeline swapped;
    return the calls of its iterations.
    """
    loaded = parse(PIPELINE.replace(*swap) + hooks, tmp_path / "calls.toml")
    run_dir = RunDir.create(tmp_path / "runs", "calls")
    prepare(loaded, compile_pipeline(loaded), run_dir, tmp_path)
    calls.iterations = []
    assert train_here(run_dir) == 0
    assert len(calls.iterations) == COUNTED
    return calls


def test_a_bare_iteration_calls_little_of_hookflows_own(
    tmp_path: Path, train_here: Callable[..., int]
) -> None:
    bare = counted("", tmp_path, train_here)
    often = bare.median()
    assert often <= BARE, f"{often:.0f} calls an iteration, at most {BARE} wanted:{bare.table()}"


IDLE_PROBES = "".join(
    f'[hooks.probe{k}]\nuse = "tests.runner.test_calls:{use}"\nmodules = ["[1-9]*"]\nevery = 1000\n'
    for k, use in enumerate(("Probe", "Probe"))
)
DEEP = (
    'use = "torch.nn:Linear", args = { in_features = 4, out_features = 3 }',
    'use = "tests.runner.test_calls:deep"',
)


class Probe:
    def forward(self, module: Any, input: Any, output: Any) -> None: ...  # noqa: A002

    def full_backward(self, module: Any, grad_input: Any, grad_output: Any) -> None: ...


def deep() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)), torch.nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("hooks", "net", "most"),
    [
        pytest.param(TEN_HOOKS, ("", ""), 12, id="ten"),
        # And for what asks each binding.
        pytest.param(IDLE_PROBES, DEEP, 6, id="idle, in any number of modules"),
    ],
)
def test_hooks_are_called_at_the_cost_of_little_more(
    tmp_path: Path, train_here: Callable[..., int], hooks: str, net: tuple[str, str], most: int
) -> None:
    bare = counted("", tmp_path, train_here, swap=net).median()
    hooked = counted(hooks, tmp_path, train_here, swap=net)
    more = hooked.median() - bare
    assert more <= most, (
        f"{more:.0f} calls an iteration more, at most {most} wanted; with hooks:{hooked.table()}"
    )
    if net == DEEP:
        due = counted(hooks.replace("1000", "1"), tmp_path, train_here, swap=net).median()
        assert due > bare + 4 * 20, "what is due is called at each module"
