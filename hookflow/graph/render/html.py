"""A plan as a page: the picture, and below it every fact in tables. Nothing is loaded from elsewhere; it prints well.

A hook below the pointer, or one that is clicked on, shows its edges and where else it fires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hookflow.errors import Problem
from hookflow.graph.plan import Binding, Plan, PlannedHook
from hookflow.graph.render.lanes import lay_out
from hookflow.graph.render.svg import as_svg, escape
from hookflow.graph.render.words import KINDS, edges_that_gave_way, marks, place_of, plain, slots, title_of

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
  .picture svg { max-width: 100%; height: auto; max-height: 95vh; }
  body { margin: 0; font-size: 11px; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; }
  .picture.long { margin: 0; break-inside: auto; } .picture.long svg { max-height: none; }
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


def as_html(plan: Plan, title: str = "") -> str:
    """Draw every point that has bindings, and list hooks, firings and edges."""
    title = title or title_of(plan)
    look = "picture long" if lay_out(plan, top=0).goes_on else "picture"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<style>\n{_STYLE}\n</style></head>",
            f'<body>\n<figure class="{look}">\n{as_svg(plan, title)}\n</figure>',
            *_hooks(plan),
            *_firings(plan),
            *_edges(plan),
            *_list("Edges that gave way", edges_that_gave_way(plan)),
            *_list("Warnings", map(_warning, plan.warnings)),
            *_list("Notes", map(_warning, plan.notes)),
            f"<script>\n{_SCRIPT}\n</script>\n</body></html>",
        ]
    )


def _hooks(plan: Plan) -> Iterator[str]:
    rows = (_row(_hook(hook), {"hook": hook.name}) for hook in plan.hooks)
    yield from _table("Hooks", ("hook", "what it is", "made of", "phase", "on error", "declared"), rows)


def _hook(hook: PlannedHook) -> Sequence[str]:
    made = f"{plain(hook.use)}({plain(hook.written_args)})"
    return hook.name, plain(hook.about), made, hook.phase, hook.on_error, plain(hook.where)


def _firings(plan: Plan) -> Iterator[str]:
    rows = (_row(_firing(plan, binding), {"hook": binding.hook}) for binding in plan.bindings)
    yield from _table("Firings, in their order", ("point", "hook", "method", "when", "slots"), rows)


def _firing(plan: Plan, binding: Binding) -> Sequence[str]:
    call = f"{binding.method}({', '.join(binding.takes)})"
    return binding.point, binding.hook, call, ", ".join(marks(plan, binding)), ", ".join(slots(binding))


def _edges(plan: Plan) -> Iterator[str]:
    rows = (
        _row(
            (edge.point, edge.first, edge.then, KINDS[edge.kind], place_of(edge)),
            {"first": edge.first, "then": edge.then},
        )
        for edge in plan.every_edge()
    )
    yield from _table("Edges", ("point", "first", "then", "why", "source"), rows)


def _warning(warning: Problem) -> str:
    said = (f"{warning.where}:" if warning.where else "", warning.message, f"({warning.hint})" if warning.hint else "")
    return plain(" ".join(said))


def _table(name: str, heads: Iterable[str], rows: Iterable[str]) -> Iterator[str]:
    body = [*rows]
    if body:
        yield f"<h2>{name}</h2>"
        yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
        yield from ("<tbody>", *body, "</tbody></table>")


def _row(texts: Iterable[str], data: dict[str, str]) -> str:
    facts = "".join(f' data-{key}="{escape(value)}"' for key, value in data.items())
    return f"<tr{facts}>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


def _list(name: str, said: Iterable[str]) -> Iterator[str]:
    body = [f"<li>{escape(text)}</li>" for text in said]
    if body:
        yield from (f"<h2>{name}</h2>", "<ul>", *body, "</ul>")
