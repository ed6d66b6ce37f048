"""What must hold of a hook at `ddp_comm`, which averages the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from hookflow.errors import Problem
from hookflow.graph.plan import Nodes

POINT = "ddp_comm"


def wrong_comm_hooks(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`: a second one, and one that would not act on all ranks alike."""
    bound = [node for node in nodes.values() if any(one.point == POINT for one in node.bound)]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            both = f'"{bound[0].hook.name}" and "{hook.name}" are both at {POINT}'
            said = f"{both}: PyTorch allows one communication hook per model"
            yield Problem(said, node.where, f'one hook there may call the other; or keep "{hook.name}" elsewhere')
        if hook.ranks == "zero":
            said = f'"{hook.name}" at {POINT} must run on every rank: ranks = "zero" is not allowed'
            yield Problem(said, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            said = f'"{hook.name}" at {POINT} needs on_error = "raise": after an error the other ranks would hang'
            yield Problem(said, node.where, 'on_error = "raise"')
