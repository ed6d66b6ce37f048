"""The arguments of PyTorch's own hooks, which it gives by position, whatever a hook calls them."""

from collections.abc import Mapping, Sequence
from inspect import Parameter

from hookflow.graph.points import Points

PYTORCH_ARGUMENTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "forward_pre": (("module", "input"), ("module", "args", "kwargs")),
    "forward": (("module", "input", "output"), ("module", "args", "kwargs", "output")),
    "full_backward_pre": (("module", "grad_output"),),
    "full_backward": (("module", "grad_input", "grad_output"),),
    "global_forward_pre": (("module", "input"),),
    "global_forward": (("module", "input", "output"), ("module", "args", "kwargs", "output")),
    "global_full_backward_pre": (("module", "grad_output"),),
    "global_full_backward": (("module", "grad_input", "grad_output"),),
    "parameter_grad": (("grad",),),
    "post_accumulate_grad": (("param",),),
    "optimizer_step_pre": (("optimizer", "args", "kwargs"),),
    "optimizer_step_post": (("optimizer", "args", "kwargs"),),
}
"""By point: the arguments of PyTorch's hooks in the order in which it gives them."""

SAME_ARGUMENTS = {"input": "args"}
"""Arguments that PyTorch's documentation calls by two names."""


def match_pytorch_order(
    parameters: Sequence[Parameter], names: Sequence[str], point: str, points: Points
) -> tuple[str, ...] | None:
    """Return the arguments that PyTorch gives a hook by position, for its arguments `names`.

    This holds where some of the names are offered by no point, and they are those of the first
    `parameters`. There must be as many as PyTorch gives, and each that any point offers must stand
    where PyTorch gives it. None otherwise.
    """
    offered: set[str] = set()
    for each in points:
        offered.update(each.offers)
    if offered.issuperset(names):
        return None
    first_parameters = parameters[: len(names)]
    positional = [each.name for each in first_parameters if each.kind is not each.KEYWORD_ONLY]
    if positional != list(names):
        return None
    for order in PYTORCH_ARGUMENTS.get(point, ()):
        if len(order) == len(names) and _is_compatible(names, order, offered):
            return order
    return None


def _is_compatible(names: Sequence[str], order: Sequence[str], offered: set[str]) -> bool:
    """Say whether each name that a point offers stands where PyTorch gives that argument."""
    for name, provided in zip(names, order, strict=True):
        if name not in offered:
            continue
        if SAME_ARGUMENTS.get(name, name) != SAME_ARGUMENTS.get(provided, provided):
            return False
    return True
