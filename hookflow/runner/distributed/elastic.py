"""The use of torch.distributed's launcher in the agent."""

from __future__ import annotations

import logging
import os
import secrets
import sys

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

PERIOD = 0.1
"""Seconds between looks at the ranks."""


def launch(nproc: int, *arguments: str) -> dict[int, int]:
    """Run `python -m hookflow.runner` with these arguments as `nproc` ranks, until all have ended.

    When one fails, the others get SIGTERM, and SIGKILL 30 seconds later. Returns the exit code of each rank that has
    failed, by its rank: the negative number of a signal if that killed it.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the agent says what has happened
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"read_timeout": 600},  # a busy machine is no failure
        local_addr="localhost",  # the machine's own name may lead nowhere
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # they print where the agent does
        max_restarts=0,  # the agent knows better when that helps
        monitor_interval=PERIOD,
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "hookflow.runner", *arguments)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}
