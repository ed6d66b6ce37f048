"""The keys of its pipeline that a resumed run may change; `docs/checkpoints.md` has the same table for the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Plan, difference
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap, as_toml


class May(Enum):
    """Whether a key may change in a resumed run."""

    YES = "yes"
    ALLOWED = "with --allow-changed-hooks"
    NO = "no"


class Rule(NamedTuple):
    """Keys that are treated alike, in a list with commas (`*` is one part of a key, `**` all that follows), and why."""

    keys: str
    may: May
    why: str


RULES = (
    Rule(
        "run.max_epochs, run.max_iters, run.min_epochs, run.min_iters",
        May.YES,
        "the length; what depends on it changes with it",
    ),
    Rule(
        "run.val_every, run.val_at_start, run.test, run.sanity, run.limit_test, data.test.**, data.val.*.val_every",
        May.YES,
        "what is measured",
    ),
    Rule(
        "run.device, run.threads, run.compile, run.deterministic, run.cudnn_benchmark, run.channels_last",
        May.YES,
        "the machinery; the bits may differ from here on",
    ),
    Rule(
        "distributed.**, data.*.loader.workers, data.*.loader.multiprocessing_context, data.*.loader.prefetch_factor, "
        "data.*.*.loader.workers, data.*.*.loader.multiprocessing_context, data.*.*.loader.prefetch_factor",
        May.YES,
        "the machinery",
    ),
    Rule("run.on_nan, run.max_skipped_steps, run.detect_anomaly, hooks.*.on_error", May.YES, "what follows an error"),
    Rule("run.inference_mode", May.YES, "the machinery of evaluations"),
    Rule("writers.**", May.YES, "where else the results are written"),
    Rule("notify.**", May.YES, "who is notified"),
    Rule("run.dir", May.YES, "where runs are looked for; this one stays in its directory"),
    Rule("run.default_hooks, hooks.*.default, --shuffle", May.YES, "the hooks and their order are compared themselves"),
    Rule(
        "hooks.*.every, hooks.*.from, hooks.*.until, hooks.*.when, hooks.*.requires, hooks.*.ambiguous_with",
        May.YES,
        "when a hook fires",
    ),
    Rule("hooks.*.offload, hooks.*.queue, hooks.*.when_full, hooks.*.timeout", May.YES, "in which thread a hook fires"),
    Rule("run.budget, hooks.*.budget, hooks.*.over_budget", May.YES, "when a warning comes, or a firing is skipped"),
    Rule("hooks.**, points.**", May.ALLOWED, "which hooks there are, their arguments and order"),
    Rule("run.name", May.NO, "the run's directory is named after it"),
    Rule("model.**", May.NO, "a resumed run has the model of its checkpoint"),
    Rule("optimizer.**", May.NO, "a resumed run has the optimizer of its checkpoint"),
    Rule("data.**, task.**", May.NO, "the checkpoint was trained on something else"),
    Rule("**", May.NO, "the checkpoint was trained in another way"),
)
"""The first rule that a key matches counts. The triggers of single points (`hooks.*.points`) are those of a hook."""


class Changed(NamedTuple):
    """A change since a run was recorded: its key (empty where that is gone), whether it may be, and its text."""

    key: str
    may: May
    text: str
    why: str = ""


def rule_of(key: str) -> Rule:
    return next(rule for rule in RULES if any(_matches(pattern, key) for pattern in rule.keys.split(", ")))


def changes_between(then: tuple[Pipeline, Plan], now: tuple[Pipeline, Plan]) -> Iterator[Changed]:
    """Yield the differences between two pipelines with their plans."""
    place = attrgetter("point", "half", "method", "modules", "parameters", "stages", "prepend", "always_call")

    def places(hook: str, plan: Plan) -> set[Any]:
        return {place(binding) for binding in plan.bindings if binding.hook == hook}

    def written(value: Any) -> str:
        return "not set" if value is None else as_toml(value)

    result = difference(then, now)
    for hook in result.hooks_removed:
        yield Changed("", May.ALLOWED, f'the hook "{hook}" is gone, and what it knew with it')
    for hook in result.hooks_added:
        yield Changed(f"hooks.{hook}", May.ALLOWED, f'the hook "{hook}" is new: it starts anew')
    for change in result.keys:
        rule = rule_of(change.key)
        match = re.match(r"hooks\.([^.]+)\.points\b", change.key)
        may = May.YES if match and places(match[1], then[1]) == places(match[1], now[1]) else rule.may
        text = f"{change.key} was {written(change.old)}, and is {written(change.new)}"
        yield Changed(change.key, may, text, rule.why)
    for hook, points in result.unbound.items():
        yield Changed(f"hooks.{hook}", May.ALLOWED, f'the hook "{hook}" fires no more at {", ".join(points)}')
    for hook, points in result.bound.items():
        yield Changed(f"hooks.{hook}", May.ALLOWED, f'the hook "{hook}" fires at {", ".join(points)}, too')
    for turned in result.order:
        old, new = " → ".join(turned.old), " → ".join(turned.new)
        yield Changed("hooks", May.ALLOWED, f"at {turned.point} the order was {old}, and is {new}")


def _matches(pattern: str, key: str) -> bool:
    """Return whether a pattern matches a dotted key; `a.**` matches `a`, too."""
    parts = re.escape(pattern).replace(r"\.\*\*", r"(\..*)?").replace(r"\*\*", ".*").replace(r"\*", r"[^.]+")
    return re.fullmatch(parts, key) is not None


UNREADABLE = "what its hooks were cannot be read: another version of hookflow has saved it"


def changes_since(checkpoint: Path, pipeline: Pipeline, plan: Plan) -> list[Changed]:
    """Return the changes of a recorded pipeline since a checkpoint was saved."""
    try:
        loaded, planned = recorded(checkpoint)
    except UserError:
        return [Changed("hooks", May.ALLOWED, UNREADABLE)]
    return list(changes_between((loaded.pipeline, planned), (pipeline, plan)))


def recorded(folder: Path) -> tuple[Loaded, Plan]:
    """Return the pipeline and the plan that a run directory or a checkpoint holds.

    Raises UserError when another version of hookflow has written them.
    """
    loaded = load(folder / "pipeline.toml", recorded=True, environment=False)
    try:
        return loaded, Plan.from_json((folder / "plan.json").read_bytes())
    except (OSError, ValueError):
        message = "the plan cannot be read: perhaps another version of hookflow wrote it"
        raise UserError(Problem(message, Where(str(folder / "plan.json")))) from None


def changed_hooks(changes: Iterable[Changed], since: str, places: SourceMap | None = None) -> list[Problem]:
    """Return a problem for each change that takes `--allow-changed-hooks`; `since` names what it is compared with."""
    result = [change for change in changes if change.may is May.ALLOWED]
    hints = [*[""] * (len(result) - 1), "to resume with the hooks as they are now: --allow-changed-hooks"]
    return [
        Problem(f"since {since}: {change.text}", places.of(change.key) if places else None, hint)
        for change, hint in zip(result, hints, strict=False)
    ]
