"""What is said of bindings and edges in every drawing."""

from __future__ import annotations

import re

from hookflow.graph.plan import Binding, Edge


def marks(binding: Binding) -> list[str]:
    """Return what is out of the ordinary about a binding: the half of an `around`, the phase, the trigger."""
    half = f"{binding.method} {binding.half}" if binding.half != "whole" else ""
    phase = binding.phase if binding.phase != "normal" else ""
    return [mark for mark in (half, phase, str(binding.trigger)) if mark]


def place_of(edge: Edge) -> str:
    """Return where an edge comes from, briefly: the file without its folders, the slots, or the kind of place."""
    if edge.kind == "pair":
        return "last in, first out"
    if edge.kind == "flow":
        return " ".join(edge.slots)
    if edge.where.startswith("--set "):
        return "--set"
    return re.sub(r"^.*/", "", edge.where)
