"""The hooks that a pipeline has where it declares none of the kind: `log` and `checkpoint`."""

from __future__ import annotations

from typing import Any

from hookflow.errors import Where
from hookflow.pipeline.source_map import SourceMap

DEFAULT_HOOKS: dict[str, dict[str, Any]] = {
    "log": {"use": "log", "every": "0.5%"},
    "checkpoint": {"use": "checkpoint"},
}
"""Their tables, by name: 200 points of each curve, however long the run is, and a checkpoint after each epoch."""

CLASSES = {"log": "hookflow.hooks.log:Log", "checkpoint": "hookflow.hooks.checkpoint:Checkpoint"}
"""The classes that the short names mean."""

WHERE = Where("the default hooks")


def add_default_hooks(tree: dict[str, Any], places: SourceMap) -> None:
    """Add the default hooks to the tables of a pipeline, in place, which need not be valid.

    A table of a default hook's name that says no `use` changes the default hook. There is no default hook where the
    file declares another hook of its kind, be it switched off, or where its name stands for another hook.
    """
    hooks = tree.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        return
    run = tree.get("run")
    wanted = not isinstance(run, dict) or run.get("default_hooks", True) is not False
    uses = [hook.get("use") for hook in hooks.values() if isinstance(hook, dict)]
    for name, default in DEFAULT_HOOKS.items():
        if name in hooks:
            if isinstance(hooks[name], dict) and "use" not in hooks[name]:
                hooks[name] = {**default, **hooks[name]}
        elif wanted and default["use"] not in uses and CLASSES[name] not in uses:
            hooks[name] = {**default, "default": True}
            places.put(("hooks", name), WHERE)
