"""`--without HOOK` and `--only HOOK`: hooks switched off for one run, said as the overrides that do it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookflow.errors import Problem, Where, nearest
from hookflow.pipeline.overrides import Override
from hookflow.pipeline.source_map import dotted


def switched_off(hooks: Iterable[str], without: Sequence[str], only: Sequence[str]) -> list[Override]:
    """Return an override for each hook that is to be off: those in `without`, and, if `only` has any, all others."""
    off = {name: Where(f"--only {' --only '.join(only)}") for name in hooks if only and name not in only}
    off |= {name: Where(f"--without {name}") for name in without}
    return [Override(f"{dotted(('hooks', name, 'enabled'))}=false", where) for name, where in off.items()]


def unknown_hooks(hooks: Sequence[str], without: Sequence[str], only: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each name that is no hook's."""
    named = [("--without", name) for name in without] + [("--only", name) for name in only]
    for option, name in dict.fromkeys(named):
        if name not in hooks:
            hint = nearest(name, hooks) or (f"its hooks are {', '.join(hooks)}" if hooks else "it has no hooks")
            yield Problem(f'there is no hook "{name}" in this pipeline', Where(f"{option} {name}"), hint)


def hooks_of(tree: dict[str, Any]) -> list[str]:
    """Return the names of the hooks in the tables of a pipeline, which need not be valid."""
    hooks = tree.get("hooks")
    return list(hooks) if isinstance(hooks, dict) else []
