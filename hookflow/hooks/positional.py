"""Hooks that are written for PyTorch under names of their own, `def hook(m, x, y)`: they are called by position."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from inspect import Parameter

from hookflow.graph.points import Points

ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    point: tuple(tuple(order.split()) for order in orders)
    for point, *orders in (
        ("forward_pre", "module input", "module args kwargs"),
        ("forward", "module input output", "module args kwargs output"),
        ("full_backward_pre", "module grad_output"),
        ("full_backward", "module grad_input grad_output"),
        ("global_forward_pre", "module input"),
        ("global_forward", "module input output", "module args kwargs output"),
        ("global_full_backward_pre", "module grad_output"),
        ("global_full_backward", "module grad_input grad_output"),
        ("parameter_grad", "grad"),
        ("post_accumulate_grad", "param"),
        ("optimizer_step_pre", "optimizer args kwargs"),
        ("optimizer_step_post", "optimizer args kwargs"),
    )
}
"""The arguments of PyTorch's hooks in the order in which it gives them, by point."""

ALIASES = {"input": "args"}


def in_pytorch_s_order(
    parameters: Sequence[Parameter], names: Sequence[str], point: str, points: Points
) -> tuple[str, ...] | None:
    """Return what a hook is given for its arguments of these `names`, as PyTorch gives it: by position.

    That is for names some of which no point offers, of the first `parameters`. There must be as many as PyTorch gives,
    and each that any point offers must stand where PyTorch gives it; None where that is not so.
    """
    known = {name for each in points for name in each.offers}
    first = [p.name for p in parameters[: len(names)] if p.kind is not p.KEYWORD_ONLY]
    if known.issuperset(names) or first != list(names):
        return None
    for order in ORDERS.get(point, ()):
        if len(order) == len(names) and all(map(partial(_fits, known), names, order)):
            return order
    return None


def _fits(known: Collection[str], name: str, given: str) -> bool:
    return name not in known or ALIASES.get(name, name) == ALIASES.get(given, given)
