"""The needs of hooks in a user's own loop.

Some cannot fire there, and others need calls of the loop.
"""

from collections.abc import Iterator, Mapping

from hookflow.errors import Problem
from hookflow.graph.plan import Node, Plan
from hookflow.hooks.table import HookTable
from hookflow.hooks.uses import Source, find_uses

CALLS_OF_POINTS = {
    "after_forward": "run.backward(loss)",
    "before_backward": "run.backward(loss)",
    "after_backward": "run.backward(loss)",
    "before_val": "run.validation()",
    "before_val_epoch": "run.validation()",
    "after_val_epoch": "run.validation()",
    "after_val": "run.validation()",
    "before_val_iter": "run.val(loader)",
    "after_val_iter": "run.val(loader)",
}
"""The call of the loop in which each point fires.

The others fire by themselves, or in `run.fire`.
"""

POINTS_OF_HOOKFLOW_LOOP = ("before_fetch", "ddp_comm")
"""The points, beside those of a test and of a prediction, that only hookflow's own loop has."""

CALLS_OF_HOOKFLOW_LOOP = {
    "loss": "run.loss computes the loss of a batch, and only the loop can",
    "evaluate": "run.evaluate computes the outputs of a batch, and only the loop can",
    "skip_batch": "run.skip_batch leaves a batch out, and only the loop can",
    "accumulate": "run.accumulate keeps gradients over iterations, and only the loop can",
}
"""Why hooks that surely make a call cannot fire in a loop of the user's own."""


def find_unattachable(
    tables: Mapping[str, HookTable],
    nodes: Mapping[str, Node],
    sources: Mapping[str, Mapping[str, Source | None]],
) -> Iterator[Problem]:
    """Yield each hook that cannot fire in a loop of the user's own, with the reason."""
    for name, node in nodes.items():
        table = tables[name]
        reason = table.capabilities.attach_blocker or _find_obstacle(node, sources[name])
        if reason:
            message = f"{table.called} cannot fire in a loop of one's own: {reason}"
            yield Problem(message, table.where, "leave it out, or train by hookflow run")


def _find_obstacle(node: Node, sources: Mapping[str, Source | None]) -> str:
    """Return why a hook cannot fire in a user's own loop, by its points and its source.

    It is "" if it can.
    """
    points = {bound.point for bound in node.bound}
    for point in POINTS_OF_HOOKFLOW_LOOP:
        if point in points:
            return f"only hookflow's own loop has the point {point}"
    if points and all("_test" in point or "_predict" in point for point in points):
        return f"only hookflow's own loop has the point {min(points)}"
    for bound in node.bound:
        for use in find_uses(sources.get(bound.method), CALLS_OF_HOOKFLOW_LOOP.keys()):
            if use.call is not None and use.is_certain:
                return CALLS_OF_HOOKFLOW_LOOP[use.name]
    return ""


def needs_of_loop(plan: Plan) -> dict[str, list[str]]:
    """Return the hooks that need each call of the loop, by the call."""
    needs: dict[str, dict[str, None]] = {}
    for binding in plan.bindings:
        for call in _iter_calls(binding.point, (*binding.takes, *binding.writes)):
            needs.setdefault(call, {})[binding.hook] = None
    return {call: list(hooks) for call, hooks in needs.items()}


def _iter_calls(point: str, touched: tuple[str, ...]) -> Iterator[str]:
    if point == "before_train_iter" and "batch" in touched:
        yield "run.batch(x, y)"
    if point in CALLS_OF_POINTS:
        yield CALLS_OF_POINTS[point]
    if point == "after_val_iter" and "outputs" in touched:
        yield "run.report(outputs)"
