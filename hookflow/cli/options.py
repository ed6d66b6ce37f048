"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PipelineFile = Annotated[Path, typer.Argument(help="A pipeline file.", metavar="FILE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. run.seed=1. Repeatable."),
]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="HOOK", help="Switch a hook off. Repeatable.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="HOOK", help="Switch every other hook off. Repeatable.")
]
Shuffle = Annotated[
    int | None,
    typer.Option(metavar="SEED", help="Take another order that edges and phases allow, to find a forgotten edge."),
]
