"""What is said of a plan, its bindings and its edges in every drawing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from hookflow.graph.plan import Binding, Edge, EdgeKind, GivenWay, Plan
from hookflow.graph.why import bound_points
from hookflow.numbers import counted

KINDS: dict[EdgeKind, str] = {
    "file": "stated in the pipeline file",
    "class": "stated by the hook's class",
    "flow": "data flow: who writes a slot, before who reads it",
    "pair": "last in, first out",
}
"""What each kind of edge is, in a legend."""

_MIRRORED = {"first": "last", "early": "late", "normal": "normal", "late": "early", "last": "first"}
"""The phase in which the second half of an `around` fires, by that of the first."""

_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")
_WIDE = ("W", "F")


def title_of(plan: Plan, shown: str = "") -> str:
    """Return the heading of a drawing: what is `shown`, or the number of hooks and points; and whether by lot."""
    hooks, points = len(plan.hooks), len(bound_points(plan))
    shown = shown or f"{hooks} hook{'s' * (hooks != 1)} at {points} point{'s' * (points != 1)}"
    lot = "" if plan.shuffle is None else f", shuffled (seed {plan.shuffle})"
    return plain(f"{plan.pipeline}: {shown}{lot}")


def marks(plan: Plan, binding: Binding) -> list[str]:
    """Return what is out of the ordinary about a binding.

    That is the half of an `around`, phase, trigger, what it fires on and what is said of that, ranks, and whether its
    hook is a default one.
    """
    verb = {"whole": "", "enter": "enters", "exit": "leaves"}[binding.half]
    around = f"{verb} {binding.method}" if verb else ""
    globs = binding.modules or binding.parameters
    picked = f"on {', '.join(globs)}" if globs else ""
    ranks = "rank 0 alone" if plan.hook(binding.hook).ranks == "zero" else ""
    default = "default" if plan.hook(binding.hook).default else ""
    stages = f"in {', '.join(binding.stages)}" if binding.stages else ""
    inside = (picked, stages, "prepended" * binding.prepend, "always called" * binding.always_call)
    found = (around, _phase(plan, binding), str(binding.trigger), *inside, ranks, default)
    return [plain(mark) for mark in found if mark]


def _phase(plan: Plan, binding: Binding) -> str:
    """Return the phase, unless it is the normal one, and the one it was moved from, if an edge moved it."""
    own = plan.hook(binding.hook).phase
    meant = _MIRRORED[own] if binding.half == "exit" else own
    if binding.phase != meant:
        return f"{binding.phase} (moved from {meant})"
    return binding.phase if binding.phase != "normal" else ""


def place_of(edge: Edge) -> str:
    """Return where an edge comes from, briefly: the file without its folders, the slots, or the rule."""
    if edge.kind == "pair":
        return "last in, first out"
    if edge.kind == "flow":
        return f"writes {', '.join(map(plain, edge.slots))}"
    if edge.where.startswith("--set "):
        return "--set"
    return plain(re.sub(r"^.*/", "", edge.where))


def said(edge: Edge) -> str:
    """Return an edge as a sentence: "whiten before ema (writes model)"."""
    return f"{edge.first} before {edge.then} ({place_of(edge)})"


def edges_that_gave_way(plan: Plan) -> Iterator[str]:
    """Yield the edges of a plan that are not kept, with those that overruled them; a circle of flows is one sentence.

    Of each point the first are told one by one.
    """
    yield from dict.fromkeys(_gave_way(plan, given) for given in plan.given_way)
    for point, count in plan.gave_way_unexplained().items():
        yield f"at {point}, {counted(count, 'more flow')} gave way to others"


def _gave_way(plan: Plan, given: GivenWay) -> str:
    if circle := plan.circle(given):
        return f"at {given.edge.point}, a circle of flows, so none of them counts: {', '.join(map(said, circle))}"
    return f"at {given.edge.point}, {said(given.edge)} gave way to: {', '.join(map(said, given.against))}"


def slots(binding: Binding) -> list[str]:
    """Return what a binding reads and writes, in words."""
    both = {"reads": binding.reads, "writes": binding.writes}
    return [f"{verb} {', '.join(map(plain, names))}" for verb, names in both.items() if names]


def plain(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal or that XML has no place for."""
    return _NO_TEXT.sub("\ufffd", " ".join(text.split()))


def cells(text: str) -> int:
    """Return how many columns of a terminal a text fills."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(sign) in _WIDE else unicodedata.combining(sign) == 0 for sign in text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def wrapped(phrases: Iterable[str], width: int) -> list[str]:
    """Return the phrases, with commas between them, on lines of `width` columns; broken in two only at need."""
    lines = [""]
    for phrase in _with_commas(phrases):
        whole = cells(phrase) <= width
        for piece in [phrase] if whole else _pieces(phrase, width):
            if lines[-1] and cells(lines[-1]) + 1 + cells(piece) > width:
                lines.append("")
            lines[-1] += " " * bool(lines[-1]) + piece
    return lines


def _with_commas(phrases: Iterable[str]) -> list[str]:
    every = list(phrases)
    return [f"{phrase}," for phrase in every[:-1]] + every[-1:]


def _pieces(phrase: str, width: int) -> Iterator[str]:
    """Yield the words, and those wider than a line in parts."""
    for word in phrase.split(" "):
        part = ""
        for sign in word:
            if cells(part + sign) > width:
                yield part
                part = ""
            part += sign
        yield part
