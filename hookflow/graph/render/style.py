"""What the parts of a drawn plan look like, by class: attributes for any renderer, and a sheet for dark screens on top.

The light colours are attributes, since librsvg, Inkscape and others know nothing of variables in style sheets.
"""

from __future__ import annotations

LIGHT = {"page": "#ffffff", "lane": "#f4f5f7", "edge": "#c9cdd4", "box": "#ffffff", "ink": "#1b1f24", "dim": "#59616b"}
DARK = {"page": "#15181c", "lane": "#1e2228", "edge": "#444b55", "box": "#2a2f37", "ink": "#e8eaed", "dim": "#a6adb7"}

MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif"

LOOKS: dict[str, dict[str, str]] = {
    "plan": {"fill": "ink", "font-family": MONO, "font-size": "12"},
    "title": {"font-family": SANS, "font-size": "15", "font-weight": "bold"},
    "name": {"font-weight": "bold"},
    "note": {"fill": "dim", "font-size": "10"},
    "page": {"fill": "page"},
    "lane": {"fill": "lane", "stroke": "edge"},
    "box": {"fill": "box", "stroke": "ink"},
    "half": {},
    "tip": {},
    "knot": {},
    "line": {"fill": "none", "stroke": "ink", "stroke-width": "1.2"},
    "line class": {"fill": "none", "stroke": "ink", "stroke-width": "3.6"},
    "line flow": {"fill": "none", "stroke": "ink", "stroke-width": "1.2", "stroke-dasharray": "6 3"},
    "line pair": {"fill": "none", "stroke": "ink", "stroke-width": "1.2", "stroke-dasharray": "1.5 2.5"},
    "hollow": {"fill": "none", "stroke": "lane", "stroke-width": "1.4"},
    "hollow below": {"fill": "none", "stroke": "page", "stroke-width": "1.4"},
    "rail": {"fill": "none", "stroke": "dim", "stroke-width": "1.2"},
    "grab": {"fill": "none", "stroke-width": "8", "pointer-events": "stroke"},
}
"""Colours are named as in LIGHT and DARK. What has none is filled with ink, as all of the drawing is unless it says."""


def styled(look: str) -> str:
    """Return the class and its attributes, to be put into a tag."""
    facts = {"class": look} | {name: LIGHT.get(value, value) for name, value in LOOKS[look].items()}
    return "".join(f' {name}="{value}"' for name, value in facts.items())


def dark_sheet() -> str:
    """Return the style sheet: the dark colours, on a screen where the system is dark."""
    rules = []
    for look, facts in LOOKS.items():
        found = "; ".join(f"{name}: {DARK[value]}" for name, value in facts.items() if value in DARK)
        selector = "svg.plan" if look == "plan" else f".plan .{look.replace(' ', '.')}"
        rules += [f"  {selector} {{ {found}; }}"] if found else []
    return "\n".join(["@media screen and (prefers-color-scheme: dark) {", *rules, "}"])
