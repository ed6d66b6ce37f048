"""A plan as a page that stands alone: the picture, and tables of the hooks, their firings and the edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from hookflow.errors import Problem
from hookflow.graph.plan import Plan
from hookflow.graph.render.svg import as_svg, escape
from hookflow.graph.render.text import KINDS, edges_that_gave_way, marks, place_of, plain, slots, title_of

_STYLE = """\
:root { --page: #ffffff; --ink: #1b1f24; --dim: #59616b; --edge: #c9cdd4; --mark: #fff1c2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181c; --ink: #e8eaed; --dim: #a6adb7; --edge: #444b55; --mark: #4a3f1a; }
}
@page { margin: 14mm; }
body { margin: 24px; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
.picture { margin: 0 -16px; overflow-x: auto; }
h2 { margin: 28px 0 8px; font-size: 15px; }
table { border-collapse: collapse; }
th, td { padding: 4px 18px 4px 0; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
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

_SCRIPT = """\
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
    """Draw every point that has bindings, of a run with what they took, and list hooks, firings and edges."""
    title = title or title_of(plan)
    hooks = (
        [hook.name, hook.about, f"{hook.use}({hook.written_args})", hook.phase, hook.on_error, hook.where]
        for hook in plan.hooks
    )
    firings = (
        [b.point, b.hook, f"{b.method}({', '.join(b.takes)})", ", ".join(marks(plan, b)), ", ".join(slots(b))]
        for b in plan.bindings
    )
    edges = ([edge.point, edge.first, edge.then, KINDS[edge.kind], place_of(edge)] for edge in plan.edges)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>\n{_STYLE}\n</style></head>",
            f'<body>\n<figure class="picture">\n{as_svg(plan, title, times)}\n</figure>',
            *_table("Hooks", "hook, what it is, made of, phase, on error, declared", {"hook": 0}, hooks),
            *_table("Firings, in their order", "point, hook, method, when, slots", {"hook": 1}, firings),
            *_table("Edges", "point, first, then, why, source", {"first": 1, "then": 2}, edges),
            *_list("Edges that gave way", edges_that_gave_way(plan)),
            *_list("Warnings", map(_warning, plan.warnings)),
            *_list("Notes", map(_warning, plan.notes)),
            f"<script>\n{_SCRIPT}\n</script>\n</body></html>",
        ]
    )


def _warning(warning: Problem) -> str:
    parts = (f"{warning.where}:" if warning.where else "", warning.message, f"({warning.hint})" if warning.hint else "")
    return plain(" ".join(parts))


def _table(name: str, heads: str, data: Mapping[str, int], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table, if it has rows; `data` are the columns that are attributes of a row, too, by their names."""
    body = []
    for row in rows:
        facts = "".join(f' data-{key}="{escape(row[column])}"' for key, column in data.items())
        body.append(f"<tr{facts}>{''.join(f'<td>{escape(plain(cell))}</td>' for cell in row)}</tr>")
    if body:
        yield f"<h2>{name}</h2>"
        yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads.split(', '))}</tr></thead>"
        yield from ("<tbody>", *body, "</tbody></table>")


def _list(name: str, texts: Iterable[str]) -> Iterator[str]:
    body = [f"<li>{escape(text)}</li>" for text in texts]
    if body:
        yield from (f"<h2>{name}</h2>", "<ul>", *body, "</ul>")
