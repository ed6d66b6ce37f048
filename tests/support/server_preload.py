"""What every process off the server would build first: the server builds it once,
and imports this module last.
"""

import gc
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import typer.main

from hookflow.cli.app import app
from hookflow.graph.plan import Plan
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.attempt import main

typer.main.get_command = cache(typer.main.get_command)  # type: ignore[assignment]
typer.main.get_command(app)
plan = compile_pipeline(load(Path(__file__).parents[2] / "pipelines" / "cifar.toml"))
Plan.from_json(json.loads(json.dumps(plan.to_json())))
# No process searches for garbage in what the server has, nor does a training that is done.
gc.freeze()
main.gc = SimpleNamespace(**{**vars(gc), "unfreeze": lambda: None})  # type: ignore[assignment]
