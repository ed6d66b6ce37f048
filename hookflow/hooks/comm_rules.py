"""What must hold of a hook at `ddp_comm`, which averages the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from hookflow.errors import Problem
from hookflow.graph.node import Nodes

POINT = "ddp_comm"


def wrong_comm_hooks(nodes: Nodes) -> Iterator[Problem]:
    """Yield what is wrong with the hooks at `ddp_comm`: a second one, and one that would not act on all ranks alike."""
    bound = [node for node in nodes.values() if any(one.point == POINT for one in node.bound)]
    for node in bound:
        hook = node.hook
        if node is not bound[0]:
            said = f'hook "{hook.name}" is at {POINT}, where "{bound[0].hook.name}" is: PyTorch takes one for a model'
            yield Problem(said, node.where, f'one hook there may call the other; or keep "{hook.name}" elsewhere')
        if hook.ranks == "zero":
            said = f'hook "{hook.name}" is at {POINT}, where all ranks must do the same, and fires on rank 0 alone'
            yield Problem(said, node.where, 'ranks = "all"')
        if hook.on_error != "raise":
            said = f'hook "{hook.name}" is at {POINT}, where the others wait for a rank that goes on after an error'
            yield Problem(said, node.where, 'on_error = "raise"')
