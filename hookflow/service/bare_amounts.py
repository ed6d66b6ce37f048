"""Amounts without a unit that would mean several units at once.

Such is a hook's, at points that count different things.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from hookflow.errors import Problem
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Points
from hookflow.pipeline.amounts import Amount
from hookflow.pipeline.load import Loaded

COUNTED_UNITS = {"it": "iterations", "ep": "epochs", "firing": "firings"}
"""The unit of a bare number, by the counter of the point."""

WRITABLE_UNITS = {"it": "it", "ep": "ep"}
"""The units that an amount may be written in, by the counter; firings have none."""

AmountKey = Literal["every", "from", "until"]
AMOUNT_KEYS: tuple[AmountKey, ...] = ("every", "from", "until")


def find_mixed_amounts(loaded: Loaded, plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each number of a hook that would count different things at its points.

    `every = 1` is each time, whatever is counted.
    """
    for name, hook in loaded.pipeline.hooks.items():
        amounts = {"every": hook.every, "from": hook.from_, "until": hook.until}
        bindings = [
            binding for binding in plan.bindings if binding.hook == name and binding.half != "exit"
        ]
        for key in AMOUNT_KEYS:
            amount = amounts[key]
            if amount is None or amount.unit:
                continue
            if key == "every" and amount.value == 1:
                continue
            first_points: dict[str, str] = {}  # by what is counted: the first point that counts it
            for binding in bindings:
                if _find_amount(binding, key) == amount:
                    counter = _counter(plan.points, binding)
                    first_points.setdefault(counter, binding.point)
            if len(first_points) > 1:
                yield _ambiguous_amount(loaded, name, key, amount, first_points)


def _ambiguous_amount(
    loaded: Loaded, hook: str, key: AmountKey, amount: Amount, first_points: Mapping[str, str]
) -> Problem:
    """Return the problem of a number that counts different things at `first_points`."""
    meanings = [f"{COUNTED_UNITS[counter]} at {point}" for counter, point in first_points.items()]
    message = f'hook "{hook}": {key} = {amount.written} would be {" and ".join(meanings)}'
    with_units = []
    for counter in first_points:
        if counter in WRITABLE_UNITS:
            with_units.append(f'"{amount.written}{WRITABLE_UNITS[counter]}"')
    point = next(iter(first_points.values()))
    hint = f"write the unit: {key} = {' or '.join(with_units)}"
    hint += (
        f'\n    or say it at a point: points = [{{ at = "{point}", {key} = {amount.written} }}, …]'
    )
    return Problem(message, loaded.places.of(f"hooks.{hook}.{key}"), hint)


def _find_amount(binding: Binding, key: AmountKey) -> Amount | None:
    trigger = binding.trigger
    if key == "every":
        return trigger.every
    if key == "from":
        return trigger.since
    return trigger.until


def _counter(points: Points, binding: Binding) -> str:
    """Return what a number without a unit counts at the point of a binding."""
    unit = points[binding.point].unit
    if unit in WRITABLE_UNITS:
        return unit
    return "firing"
