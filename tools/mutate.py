"""Mutation testing: changes one operator at a time in a file, and runs its tests on the changed code.

A change that no test notices has survived: either a test is missing, or the change makes no difference. Each is tried
in a fork, and in memory alone: no file is written. Processes that tests start run the code as it stands; what only
these run is said to be run by no test.

    make mutate                                              # a sample of each file of the table below
    make mutate ARGS="hookflow/graph/order.py --sample 1000" # all of one file
    make mutate ARGS="hookflow/graph/order.py:106"           # those of one line
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from itertools import groupby
from math import inf
from pathlib import Path

from changes import mutants
from trials import survivors

ROOT = Path(__file__).parents[1]
RUNNER, CLI = "tests/runner/", "tests/cli/"
TESTS = {
    "hookflow/graph/render": ["tests/graph/render", "tests/graph/test_bundles.py", CLI + "test_graph.py"],
    "hookflow/graph": [
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/graph").glob("test_*.py")),
        *(CLI + f"test_{name}.py" for name in ("why_command", "diff_command", "points_command", "ranks_said", "check")),
        *(RUNNER + f"test_{name}.py" for name in ("triggers", "triggers_forecast", "forecast", "modes")),
    ],
    "hookflow/runner/checkpoint": [
        *(RUNNER + f"test_{name}.py" for name in ("weights", "snapshot", "checkpoint", "checkpoint_damage")),
        *(RUNNER + f"test_{name}.py" for name in ("checkpoint_saving", "checkpoint_out_dir", "hostile_checkpoints")),
        *(RUNNER + f"test_{name}.py" for name in ("last_checkpoint", "resume_changed", "resume", "hook_errors")),
        *(CLI + f"test_{name}.py" for name in ("checkpoints_command", "resume_file")),
    ],
}
"""The tests of each folder."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing of graph/ and runner/checkpoint/")
    parser.add_argument(
        "files", nargs="*", help="files to change, or lines (FILE:LINE); those of the table if left out"
    )
    parser.add_argument("--sample", type=int, default=5, help="how many changes of each file are tried")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at a time")
    parser.add_argument("--seconds", type=float, default=inf, help="of tests that a change gets, the quickest first")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import hypothesis
    import networkx  # noqa: F401  # what takes long is imported once, before the forks
    import pydantic  # noqa: F401
    import torch.utils.data  # noqa: F401
    import typer.testing  # noqa: F401

    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "mutate", deadline=None, suppress_health_check=slow, max_examples=25, derandomize=True, database=None
    )
    files = given.files or [str(file) for folder in TESTS for file in sorted(Path(folder).glob("*.py"))]
    for folder, those in groupby(files, lambda file: next(one for one in TESTS if Path(file).is_relative_to(one))):
        chosen = []
        for file in those:
            name, _, line = file.partition(":")
            every = [mutant for mutant in mutants(Path(name)) if not line or mutant.line == int(line)]
            chosen += random.Random(f"{given.seed} {file}").sample(every, min(given.sample, len(every)))
        left: Counter[Path] = Counter()
        for mutant, what in survivors(chosen, TESTS[folder], given.jobs, given.seconds):
            print(f"{what}: {mutant}", flush=True)
            left[mutant.file] += 1
        for file, tried in Counter(mutant.file for mutant in chosen).items():
            print(f"{file}: {tried - left[file]} of {tried} changes were noticed", flush=True)


if __name__ == "__main__":
    main()
