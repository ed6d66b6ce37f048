"""A plan on a page that stands alone: the picture, and tables of its hooks, firings and edges."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from hookflow.errors import Problem
from hookflow.graph.plan import Plan
from hookflow.graph.render.svg import as_svg, escape
from hookflow.graph.render.text import (
    EDGE_KIND_TEXTS,
    edges_that_gave_way,
    format_edge_place,
    list_marks,
    list_slots,
    plain,
    title_of,
)

_PAGE_STYLE = """\
:root {
  --page: #ffffff; --ink: #1b1f24; --dim: #59616b; --edge: #c9cdd4; --mark: #fff1c2;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root { --page: #15181c; --ink: #e8eaed; --dim: #a6adb7; --edge: #444b55; --mark: #4a3f1a; }
}
@page { margin: 14mm; }
body {
  margin: 24px; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif;
}
.picture { margin: 0 -16px; overflow-x: auto; }
h2 { margin: 28px 0 8px; font-size: 15px; }
table { border-collapse: collapse; }
th, td {
  padding: 4px 18px 4px 0; border-bottom: 1px solid var(--edge);
  text-align: left; vertical-align: top;
}
th { font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; }
.plan .hook, .plan .around, tr[data-hook] { cursor: pointer; }
.plan.picked .edge { opacity: .12; }
.plan.picked .edge.on { opacity: 1; }
.plan .on .box { stroke-width: 2.6; }
.plan .on .line { stroke-width: 2.2; } .plan .on .line.class { stroke-width: 4.6; }
tr.on { background: var(--mark); }
@media print {
  :root { --page: #ffffff; --ink: #1b1f24; --dim: #59616b; --edge: #c9cdd4; color-scheme: light; }
  .picture { overflow: visible !important; }
  .picture svg { max-width: 100%; height: auto; }
  body { margin: 0; font-size: 11px; }
  .picture { margin: 0; }
  h2 { break-after: avoid; } tr { break-inside: avoid; }
}"""

_PAGE_SCRIPT = """\
const plan = document.querySelector("svg.plan");
let kept = null;
function show(hook) {
  plan.classList.toggle("picked", hook !== null);
  for (const part of document.querySelectorAll("[data-hook]"))
    part.classList.toggle("on", part.dataset.hook === hook);
  for (const edge of document.querySelectorAll("[data-first]"))
    edge.classList.toggle("on", [edge.dataset.first, edge.dataset.then].includes(hook));
}
for (const part of document.querySelectorAll("[data-hook]")) {
  part.addEventListener("mouseenter", () => show(part.dataset.hook));
  part.addEventListener("mouseleave", () => show(kept));
}
document.addEventListener("click", (event) => {
  const part = event.target.closest("[data-hook]");
  kept = part === null || part.dataset.hook === kept ? null : part.dataset.hook;
  show(kept);
});"""


def as_html(plan: Plan, title: str = "", times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Draw every point that has bindings, and list hooks, firings and edges.

    The firings of a run have what they took.
    """
    return "\n".join(_render_page(plan, title or title_of(plan), times))


def _render_page(plan: Plan, title: str, times: Mapping[int, str]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">'
    yield f'<head><meta charset="utf-8"/><title>{escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    yield f"<style>\n{_PAGE_STYLE}\n</style></head>"
    yield f'<body>\n<figure class="picture">\n{as_svg(plan, title, times)}\n</figure>'
    yield from _table(
        "Hooks",
        "hook, what it is, made of, phase, on error, declared",
        {"hook": 0},
        _hook_rows(plan),
    )
    yield from _table(
        "Firings, in their order",
        "point, hook, method, when, slots",
        {"hook": 1},
        _iter_firing_rows(plan),
    )
    yield from _table(
        "Edges", "point, first, then, why, source", {"first": 1, "then": 2}, _edge_rows(plan)
    )
    yield from _list("Edges that gave way", edges_that_gave_way(plan))
    yield from _list("Warnings", map(_describe_problem, plan.warnings))
    yield from _list("Notes", map(_describe_problem, plan.notes))
    yield f"<script>\n{_PAGE_SCRIPT}\n</script>\n</body></html>"


def _hook_rows(plan: Plan) -> Iterator[list[str]]:
    for hook in plan.hooks:
        call = f"{hook.use}({hook.written_args})"
        yield [hook.name, hook.about, call, hook.phase, hook.on_error, hook.where]


def _iter_firing_rows(plan: Plan) -> Iterator[list[str]]:
    for binding in plan.bindings:
        call = f"{binding.method}({', '.join(binding.takes)})"
        yield [
            binding.point,
            binding.hook,
            call,
            ", ".join(list_marks(plan, binding)),
            ", ".join(list_slots(binding)),
        ]


def _edge_rows(plan: Plan) -> Iterator[list[str]]:
    for edge in plan.edges:
        yield [
            edge.point,
            edge.first,
            edge.then,
            EDGE_KIND_TEXTS[edge.kind],
            format_edge_place(edge),
        ]


def _describe_problem(problem: Problem) -> str:
    parts = [problem.message]
    if problem.where:
        parts.insert(0, f"{problem.where}:")
    if problem.hint:
        parts.append(f"({problem.hint})")
    return plain(" ".join(parts))


def _table(
    name: str, heads: str, data: Mapping[str, int], rows: Iterable[Sequence[str]]
) -> Iterator[str]:
    """Yield a table, if it has rows.

    `data` are the columns that are attributes of a row, too, by their names.
    """
    body = []
    for row in rows:
        attributes = "".join(f' data-{key}="{escape(row[column])}"' for key, column in data.items())
        cells = "".join(f"<td>{escape(plain(cell))}</td>" for cell in row)
        body.append(f"<tr{attributes}>{cells}</tr>")
    if not body:
        return
    head = "".join(f"<th>{text}</th>" for text in heads.split(", "))
    yield f"<h2>{name}</h2>"
    yield f"<table><thead><tr>{head}</tr></thead>"
    yield "<tbody>"
    yield from body
    yield "</tbody></table>"


def _list(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield a list of texts, if there are any."""
    body = [f"<li>{escape(text)}</li>" for text in texts]
    if not body:
        return
    yield f"<h2>{name}</h2>"
    yield "<ul>"
    yield from body
    yield "</ul>"
