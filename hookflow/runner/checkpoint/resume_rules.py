"""The keys of its pipeline that a resumed run may change.

`docs/how-to/checkpoints.md` has the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.plan import Plan, difference
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap, as_toml


class ChangeRule(Enum):
    """Whether a key may change in a resumed run."""

    YES = "yes"
    ALLOWED = "with --allow-changed-hooks"
    NO = "no"


class Rule(NamedTuple):
    """Keys that are treated alike, in a list with commas, and why.

    `*` is one part of a key, and `**` is all that follows.
    """

    keys: str
    may: ChangeRule
    why: str


RULES = (
    Rule(
        "run.max_epochs, run.max_iters, run.min_epochs, run.min_iters",
        ChangeRule.YES,
        "the length; what depends on it changes with it",
    ),
    Rule(
        "run.val_every, run.val_at_start, run.test, run.sanity, run.limit_test, data.test.**,"
        " data.val.*.val_every",
        ChangeRule.YES,
        "what is measured",
    ),
    Rule(
        "run.device, run.threads, run.compile, run.deterministic, run.cudnn_benchmark,"
        " run.channels_last",
        ChangeRule.YES,
        "the machinery; the bits may differ from here on",
    ),
    Rule(
        "distributed.**, data.*.loader.workers, data.*.loader.multiprocessing_context,"
        " data.*.loader.prefetch_factor, data.*.*.loader.workers,"
        " data.*.*.loader.multiprocessing_context, data.*.*.loader.prefetch_factor",
        ChangeRule.YES,
        "the machinery",
    ),
    Rule(
        "run.on_nan, run.max_skipped_steps, run.detect_anomaly, hooks.*.on_error, hooks.*.retry",
        ChangeRule.YES,
        "what follows an error",
    ),
    Rule("run.inference_mode", ChangeRule.YES, "the machinery of evaluations"),
    Rule("writers.**", ChangeRule.YES, "where else the results are written"),
    Rule("notify.**", ChangeRule.YES, "who is notified"),
    Rule("run.dir", ChangeRule.YES, "where runs are looked for; this one stays in its directory"),
    Rule(
        "run.default_hooks, hooks.*.default, --shuffle",
        ChangeRule.YES,
        "the hooks and their order are compared themselves",
    ),
    Rule(
        "hooks.*.every, hooks.*.from, hooks.*.until, hooks.*.when, hooks.*.requires,"
        " hooks.*.ambiguous_with",
        ChangeRule.YES,
        "when a hook fires",
    ),
    Rule(
        "hooks.*.offload, hooks.*.queue, hooks.*.when_full, hooks.*.timeout",
        ChangeRule.YES,
        "in which thread a hook fires",
    ),
    Rule(
        "run.budget, hooks.*.budget, hooks.*.over_budget",
        ChangeRule.YES,
        "when a warning comes, or a firing is skipped",
    ),
    Rule(
        "hooks.**, points.**",
        ChangeRule.ALLOWED,
        "which hooks there are, their arguments and order",
    ),
    Rule("run.name", ChangeRule.NO, "the run's directory is named after it"),
    Rule("model.**", ChangeRule.NO, "a resumed run has the model of its checkpoint"),
    Rule("optimizer.**", ChangeRule.NO, "a resumed run has the optimizer of its checkpoint"),
    Rule("data.**, task.**", ChangeRule.NO, "the checkpoint was trained on something else"),
    Rule("**", ChangeRule.NO, "the checkpoint was trained in another way"),
)
"""The first rule that a key matches counts.

The triggers of single points (`hooks.*.points`) are those of a hook.
"""


class RecordedChange(NamedTuple):
    """A change since a run was recorded.

    It has its key (empty where that is gone), whether it is allowed, and its text.
    """

    key: str
    may: ChangeRule
    text: str
    why: str = ""


def rule_of(key: str) -> Rule:
    """Return the first rule that a key matches; the last one matches every key."""
    for rule in RULES:
        patterns = rule.keys.split(", ")
        if any(_matches(pattern, key) for pattern in patterns):
            return rule
    raise LookupError(key)


def find_changes(
    then: tuple[Pipeline, Plan], now: tuple[Pipeline, Plan]
) -> Iterator[RecordedChange]:
    """Yield the differences between two pipelines with their plans."""
    result = difference(then, now)
    for hook in result.hooks_removed:
        yield RecordedChange(
            "", ChangeRule.ALLOWED, f'the hook "{hook}" is gone, and what it knew with it'
        )
    for hook in result.hooks_added:
        yield RecordedChange(
            f"hooks.{hook}", ChangeRule.ALLOWED, f'the hook "{hook}" is new: it starts anew'
        )
    for change in result.keys:
        rule = rule_of(change.key)
        may = rule.may
        if _is_trigger_change(change.key, then[1], now[1]):
            may = ChangeRule.YES
        text = f"{change.key} was {_format_value(change.old)}, and is {_format_value(change.new)}"
        yield RecordedChange(change.key, may, text, rule.why)
    for hook, points in result.unbound.items():
        yield RecordedChange(
            f"hooks.{hook}",
            ChangeRule.ALLOWED,
            f'the hook "{hook}" fires no more at {", ".join(points)}',
        )
    for hook, points in result.bound.items():
        yield RecordedChange(
            f"hooks.{hook}",
            ChangeRule.ALLOWED,
            f'the hook "{hook}" fires at {", ".join(points)}, too',
        )
    for turned in result.order:
        old = " → ".join(turned.old)
        new = " → ".join(turned.new)
        yield RecordedChange(
            "hooks", ChangeRule.ALLOWED, f"at {turned.point} the order was {old}, and is {new}"
        )


PLACE_OF_BINDING = attrgetter(
    "point", "half", "method", "modules", "parameters", "stages", "prepend", "always_call"
)
"""Returns where a binding fires; what is left of it is when."""


def _is_trigger_change(key: str, then: Plan, now: Plan) -> bool:
    """Return whether a key of a hook's points has changed and the hook fires at the same places."""
    match = re.match(r"hooks\.([^.]+)\.points\b", key)
    if match is None:
        return False
    return _list_places(match[1], then) == _list_places(match[1], now)


def _list_places(hook: str, plan: Plan) -> set[Any]:
    return {PLACE_OF_BINDING(binding) for binding in plan.bindings if binding.hook == hook}


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    return as_toml(value)


def _matches(pattern: str, key: str) -> bool:
    """Return whether a pattern matches a dotted key; `a.**` matches `a`, too."""
    expression = re.escape(pattern)
    expression = expression.replace(r"\.\*\*", r"(\..*)?")
    expression = expression.replace(r"\*\*", ".*")
    expression = expression.replace(r"\*", r"[^.]+")
    return re.fullmatch(expression, key) is not None


UNREADABLE_HOOKS_NOTE = (
    "what its hooks were cannot be read: another version of hookflow has saved it"
)


def find_changes_since(checkpoint: Path, pipeline: Pipeline, plan: Plan) -> list[RecordedChange]:
    """Return the changes of a recorded pipeline since a checkpoint was saved."""
    try:
        loaded, planned = read_recorded(checkpoint)
    except UserError:
        return [RecordedChange("hooks", ChangeRule.ALLOWED, UNREADABLE_HOOKS_NOTE)]
    return list(find_changes((loaded.pipeline, planned), (pipeline, plan)))


def read_recorded(folder: Path) -> tuple[Loaded, Plan]:
    """Return the pipeline and the plan that a run directory or a checkpoint holds.

    Raises UserError when another version of hookflow has written them.
    """
    loaded = load(folder / "pipeline.toml", recorded=True, environment=False)
    try:
        return loaded, Plan.from_json((folder / "plan.json").read_bytes())
    except (OSError, ValueError):
        message = "the plan cannot be read: perhaps another version of hookflow wrote it"
        raise UserError(Problem(message, Where(str(folder / "plan.json")))) from None


def changed_hooks(
    changes: Iterable[RecordedChange], since: str, places: SourceMap | None = None
) -> list[Problem]:
    """Return a problem for each change that takes `--allow-changed-hooks`.

    `since` names what it is compared with.
    """
    problems = []
    for change in changes:
        if change.may is not ChangeRule.ALLOWED:
            continue
        place = None
        if places is not None:
            place = places.of(change.key)
        problems.append(Problem(f"since {since}: {change.text}", place))
    if problems:
        hint = "to resume with the hooks as they are now: --allow-changed-hooks"
        problems[-1] = replace(problems[-1], hint=hint)
    return problems
