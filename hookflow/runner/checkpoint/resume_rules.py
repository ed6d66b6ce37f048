"""The keys of its pipeline that a resumed run may change, and the checks of a difference.

Keys about the length, the schedule of validations and the machinery may change. Keys about the weights, the data and
the task may not: that would be another run. `docs/checkpoints.md` has the same table for the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from hookflow.errors import Problem, UserError, Where
from hookflow.events.reading import read_object
from hookflow.graph.difference import Difference, difference
from hookflow.graph.plan import Binding, Plan
from hookflow.pipeline.load import Loaded, load
from hookflow.pipeline.schema import Pipeline
from hookflow.pipeline.source_map import SourceMap


class May(Enum):
    """Whether a key may change in a resumed run."""

    YES = "yes"
    ALLOWED = "with --allow-changed-hooks"
    NO = "no"


class Rule(NamedTuple):
    """Keys that are treated alike (`*` is one part of a key, `**` all that follows), and why."""

    keys: tuple[str, ...]
    may: May
    why: str


RULES = (
    Rule(("run.max_epochs", "run.max_iters"), May.YES, "the length; what depends on it changes with it"),
    Rule(("run.val_every", "run.test", "run.sanity", "run.limit_test", "data.test.**"), May.YES, "what is measured"),
    Rule(
        ("run.device", "run.threads", "run.compile", "run.deterministic", "run.cudnn_benchmark", "run.channels_last"),
        May.YES,
        "the machinery; the bits may differ from here on",
    ),
    Rule(
        ("distributed.**", "data.*.loader.workers", "data.*.loader.multiprocessing_context"),
        May.YES,
        "the machinery",
    ),
    Rule(
        ("run.on_nan", "run.max_skipped_steps", "run.detect_anomaly", "hooks.*.on_error"),
        May.YES,
        "what follows an error",
    ),
    Rule(("writers.**",), May.YES, "where else the results are written"),
    Rule(("run.dir",), May.YES, "where runs are looked for; this one stays in its directory"),
    Rule(
        ("run.default_hooks", "hooks.*.default", "--shuffle"),
        May.YES,
        "the hooks and their order are compared themselves",
    ),
    Rule(
        tuple(f"hooks.*.{key}" for key in ("every", "from", "until", "when", "requires", "ambiguous_with")),
        May.YES,
        "when a hook fires",
    ),
    Rule(("hooks.**", "points.**"), May.ALLOWED, "which hooks there are, their arguments and order"),
    Rule(("run.name",), May.NO, "the run's directory is named after it"),
    Rule(("model.**",), May.NO, "a resumed run has the model of its checkpoint"),
    Rule(("optimizer.**",), May.NO, "a resumed run has the optimizer of its checkpoint"),
    Rule(("data.**", "task.**"), May.NO, "the checkpoint was trained on something else"),
    Rule(("**",), May.NO, "the checkpoint was trained in another way"),
)
"""The first rule that a key matches counts. The triggers of single points (`hooks.*.points`) are those of a hook."""


class Changed(NamedTuple):
    """A change since a run was recorded: its key (empty where that is gone), whether it may be, and what it is."""

    key: str
    may: May
    text: str
    why: str = ""


def rule_of(key: str) -> Rule:
    """Return the rule for a dotted key."""
    return next(rule for rule in RULES if any(_matches(pattern, key) for pattern in rule.keys))


def changes_between(then: tuple[Pipeline, Plan], now: tuple[Pipeline, Plan]) -> list[Changed]:
    """Return all that differs between what a run was and what it is to be."""
    return list(_changes(difference(then, now), then[1], now[1]))


def _changes(result: Difference, then: Plan, now: Plan) -> Iterator[Changed]:
    for hook in result.hooks_removed:
        yield Changed("", May.ALLOWED, f'the hook "{hook}" is gone, and what it knew with it')
    for hook in result.hooks_added:
        yield _of_hooks(hook, f'the hook "{hook}" is new: it starts anew')
    for change in result.keys:
        rule = rule_of(change.key)
        may = rule.may
        if (match := re.match(r"hooks\.([^.]+)\.points\b", change.key)) and _fires_alike(match[1], then, now):
            may = May.YES
        yield Changed(
            change.key, may, f"{change.key} was {_written(change.old)}, and is {_written(change.new)}", rule.why
        )
    for hook, points in result.unbound.items():
        yield _of_hooks(hook, f'the hook "{hook}" fires no more at {", ".join(points)}')
    for hook, points in result.bound.items():
        yield _of_hooks(hook, f'the hook "{hook}" fires at {", ".join(points)}, too')
    for turned in result.order:
        old, new = " → ".join(turned.old), " → ".join(turned.new)
        yield Changed("hooks", May.ALLOWED, f"at {turned.point} the order was {old}, and is {new}")


def _of_hooks(hook: str, text: str) -> Changed:
    return Changed(f"hooks.{hook}", May.ALLOWED, text)


def _fires_alike(hook: str, then: Plan, now: Plan) -> bool:
    """Say whether a hook is bound to the same points in both plans, whatever its triggers there."""
    before, after = ({_where(binding) for binding in plan.bindings if binding.hook == hook} for plan in (then, now))
    return before == after


def _where(binding: Binding) -> tuple[object, ...]:
    return (
        binding.point,
        binding.half,
        binding.method,
        binding.modules,
        binding.parameters,
        binding.stages,
        binding.prepend,
        binding.always_call,
    )


def _matches(pattern: str, key: str) -> bool:
    """Say whether a dotted key is one that a pattern means; `a.**` means `a`, too."""
    parts = re.escape(pattern).replace(r"\.\*\*", r"(\..*)?").replace(r"\*\*", ".*").replace(r"\*", r"[^.]+")
    return re.fullmatch(parts, key) is not None


def _written(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


UNREADABLE = "what its hooks were cannot be read: another version of hookflow has saved it"
HINT = "to resume with the hooks as they are now: --allow-changed-hooks"


def changes_since(checkpoint: Path, pipeline: Pipeline, plan: Plan) -> list[Changed]:
    """Return what has changed since a checkpoint was saved, of a pipeline as it is recorded."""
    try:
        loaded, planned = recorded(checkpoint)
    except UserError:
        return [Changed("hooks", May.ALLOWED, UNREADABLE)]
    return changes_between((loaded.pipeline, planned), (pipeline, plan))


def recorded(folder: Path) -> tuple[Loaded, Plan]:
    """Return the pipeline and the plan that a run directory or a checkpoint holds.

    Raises UserError when another version of hookflow has written them.
    """
    loaded = load(folder / "pipeline.toml", recorded=True, environment=False)
    try:
        return loaded, Plan.from_json(read_object((folder / "plan.json").read_bytes(), nan=True))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        message = "the plan cannot be read: perhaps another version of hookflow wrote it"
        raise UserError(Problem(message, Where(str(folder / "plan.json")))) from None


def changed_hooks(changes: Iterable[Changed], since: str, places: SourceMap | None = None) -> list[Problem]:
    """Return a problem for each change that takes `--allow-changed-hooks`; `since` names what it is compared with."""
    result = [change for change in changes if change.may is May.ALLOWED]
    hints = [*[""] * (len(result) - 1), HINT]
    return [
        Problem(f"since {since}: {change.text}", places.of(change.key) if places else None, hint)
        for change, hint in zip(result, hints, strict=False)
    ]
