"""Reports as one page of HTML: they need no network, and a script only to show values below the pointer.

The report of a run is drawn here; `hookflow.cli.compare` draws that of several with the same parts.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hookflow.graph.render.svg import escape
from hookflow.monitor.charts import Axis, Scale
from hookflow.numbers import number, percent, strict_json
from hookflow.text import printable, printable_lines

TEMPLATE = Path(__file__).with_name("report.html")

Report = Mapping[str, Any]
"""The contents, from `hookflow.cli.report.collect`."""


def as_html(report: Report) -> str:
    title = f"{report['name']} {report['id']}: {report['condition']}"
    return page(title, "\n".join(_head(report)), _sections(report), report)


def page(title: str, head: str, sections: Mapping[str, str], report: Report) -> str:
    """Return a page with the parts that have something to show, each with its heading.

    It reads `made` and `command` of the report, and the keys that `curves` reads.
    """
    parts = {
        "title": escaped(title),
        "head": head,
        "body": "\n".join(_body({name: part for name, part in sections.items() if part})),
        "made": f"{escaped(report['made'])} by <code>{escaped(report['command'])}</code>",
        "data": _data(report),
    }
    return re.sub(r"<!--(\w+)-->", lambda part: parts[part[1]], TEMPLATE.read_text("utf-8"))


def _body(sections: Mapping[str, str]) -> Iterator[str]:
    links = (f'<a href="#{_anchor(title)}">{title}</a>' for title in sections)
    yield f'<nav aria-label="Parts">{" ".join(links)}</nav>'
    for title, part in sections.items():
        yield f'<section id="{_anchor(title)}"><h2>{title}</h2>\n{part}\n</section>'


def escaped(value: object) -> str:
    """Return a value as text of HTML, on one line."""
    return escape(printable(str(value)))


def _data(report: Report) -> str:
    """Return what the script reads: the points of the curves, without a character that could end its element."""
    curves = [curve["lines"] for curve in report["curves"]]
    facts = {"x": report["x"], "per_epoch": report["per_epoch"], "curves": curves}
    return strict_json(facts, number, separators=(",", ":")).replace("<", "\\u003c")


def _head(report: Report) -> Iterator[str]:
    """Yield the name, how the run is, why, and the figures that stand out."""
    state = f'<span class="state {report["tone"]}">{escaped(report["glyph"])} {escaped(report["condition"])}</span>'
    yield f'<h1>{escaped(report["name"])} {state}</h1><p class="dim">{escaped(report["id"])}</p>'
    if report["reason"]:
        first, *rest = map(escaped, report["reason"])
        lines = "".join(f"<p>{line}</p>" for line in (f"<strong>{first}</strong>", *rest))
        more = _details("Details", pre(report["detail"]), " open") if report["detail"] else ""
        yield f'<div class="notice {report["tone"]}">{lines}{more}</div>'
    yield from (f'<p class="notice {kind}">{escaped(sentence)}</p>' for kind, sentence in report["notices"])
    tiles = (
        f"<div><dt>{escaped(name)}</dt><dd><b>{escaped(value)}</b><small>{escaped(note)}</small></dd></div>"
        for name, value, note in report["tiles"]
    )
    yield f'<dl class="tiles">{"".join(tiles)}</dl>'


def _sections(report: Report) -> dict[str, str]:
    """Return the parts of the page by their headings; those that have nothing to show are empty."""
    pipeline = report["pipeline"]
    return {
        "Curves": curves(report),
        "Metrics": table(report["metrics"], right=(1, 2, 3, 4)),
        "Warnings and errors": "".join(map(_trouble, report["troubles"])),
        "Time": _costs(report),
        "The graph of hooks": pre("\n".join(report["graph"])) if report["graph"] else "",
        "Attempts": _facts(report["attempts"]),
        "Checkpoints": table(report["checkpoints"], right=(2, 3, 4)),
        "Events": _events(report["events"]),
        "Environment": _facts(report["environment"]),
        "Pipeline": _details("As it was run", pre(pipeline)) if pipeline else "",
    }


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def pre(lines: str) -> str:
    """Return lines as they stand, in a box."""
    return f"<pre>{escape(printable_lines(lines))}</pre>"


def _details(title: str, part: str, is_open: str = "") -> str:
    return f"<details{is_open}><summary>{title}</summary>{part}</details>"


def table(rows: Sequence[Sequence[object]], right: Iterable[int] = ()) -> str:
    """Return a table of texts, if there are any, which scrolls on a narrow screen.

    The first row has the headings, and the first column heads its row.
    """
    if len(rows) < 2:
        return ""
    sides = [' class="right"' if column in right else "" for column in range(len(rows[0]))]
    head = "".join(f'<th scope="col"{side}>{escaped(cell)}</th>' for cell, side in zip(rows[0], sides, strict=True))
    body = []
    for first, *rest in rows[1:]:
        cells = (f"<td{side}>{escaped(cell)}</td>" for cell, side in zip(rest, sides[1:], strict=True))
        body.append(f'<tr><th scope="row">{escaped(first)}</th>{"".join(cells)}</tr>')
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and texts; lines without a name go on with the one before."""
    items = []
    for name, text in facts:
        items.append(f"<dt>{escaped(name)}</dt>" * bool(name) + f"<dd>{escaped(text)}</dd>")
    return f'<dl class="facts">{"".join(items)}</dl>' if items else ""


SIGNS = {"◆": "checkpoint", "▲": "warning", "✗": "error", "↻": "resumed"}


def curves(report: Report) -> str:
    """Return the charts of a report, with its `curves` over `x`, its `marks`, and the names that are `left_out`."""
    if not report["curves"]:
        return ""
    charts = "".join(_chart(curve, place, report) for place, curve in enumerate(report["curves"]))
    signs = "".join(f"; {sign} {text}" for sign, text in SIGNS.items()) if report["marks"] else ""
    note = f"Below the axes: iterations{signs}. A band is from the least to the greatest value."
    if left_out := report["left_out"]:
        note += f" {len(left_out):,} more have no chart here: {', '.join(left_out[:20])}{', …' * (len(left_out) > 20)}"
    return f'<div class="charts">{charts}</div><p class="dim">{escaped(note)}</p>'


def _chart(curve: Report, place: int, report: Report) -> str:
    """Return one chart: its newest values; its lines in a linear scale, and above 0 in a logarithmic one, too."""
    x = Axis(*report["x"])
    every = [value for line in curve["lines"] for _, *values in line["points"] for value in values]
    finite = [value for value in every if math.isfinite(value)]
    fits = finite and math.isfinite(2 * max(finite) - 2 * min(finite))
    tight = [Scale.of(finite, log) for log in (False, True)] if fits else []
    scales = [Scale(scale.at(-0.04), scale.at(1.04), scale.log) for scale in tight]  # with some room above and below
    drawings = "".join(_drawing(curve, scale, x) for k, scale in enumerate(scales) if scale.log == bool(k))
    keys = []
    for k, line in enumerate(curve["lines"]):
        value = number(line["points"][-1][1]) if line["points"] else "none"
        keys.append(f'<span class="{line["style"]}" data-line="{k}">{escaped(line["label"])} <b>{value}</b></span>')
    if curve["best"]:
        it, best = curve["best"]
        keys.append(f'<span class="dim">best <b>{number(best)}</b> at {it:,}</span>')
    box = f'<input type="checkbox" id="log{place}"/><label for="log{place}">log</label>'
    marks = []
    for it, sign, text in report["marks"]:
        title = escaped(f"{it:,}: {text}")
        marks.append(f'<i class="{SIGNS[sign]}" style="left:{100 * x.place(it):.2f}%" title="{title}">{sign}</i>')
    ticks = (f'<i style="left:{100 * x.place(it):.2f}%">{it:,.0f}</i>' for it in _round_values(x.first, x.last, 7))
    return (
        f'<figure class="chart" data-curve="{place}">'
        f"<figcaption><h3>{escaped(curve['name'])}</h3><output></output></figcaption>"
        f'{box * (scales != [] and scales[1].log)}<div class="keys">{"".join(keys)}</div>'
        f'<div class="plot" tabindex="0">{drawings or "cannot be drawn"}<div class="cursor"></div></div>'
        f'<div class="marks">{"".join(marks)}</div>'
        f'<div class="ticks" aria-hidden="true">{"".join(ticks)}</div></figure>'
    )


def _drawing(curve: Report, scale: Scale, axis: Axis) -> str:
    """Return the lines of a chart in one scale, 1,000 units wide and 100 high, and the labels of its grid."""

    def at(it: float, value: float) -> str:
        return f"{1000 * axis.place(it):.4g} {100 - 100 * scale.place(value):.4g}"

    values = _log_values(scale.low, scale.high) if scale.log else _round_values(scale.low, scale.high, 5)
    labels = "".join(f'<i style="top:{100 - 100 * scale.place(value):.2f}%">{value:.6g}</i>' for value in values)
    paths = [("grid", "".join(f"M{at(axis.first, value)}H1000" for value in values))]
    for line in curve["lines"][::-1]:
        style, points = line["style"], line["points"]
        parts = [[*part] for finite, part in groupby(points, lambda point: math.isfinite(point[1])) if finite]
        bands = ([(it, y[-1]) for it, *y in part] + [(it, y[:2][-1]) for it, *y in part[::-1]] for part in parts)
        paths.append((f"band {style}", "".join(f"M{'L'.join(at(*point) for point in band)}Z" for band in bands)))
        means = ("L".join(at(it, mean) for it, mean, *_ in part) for part in parts)
        paths.append((f"line {style}", "".join(f"M{mean}h0" for mean in means)))
        if len(points) <= DOTS:
            paths.append((f"dots {style}", "".join(f"M{at(it, mean)}h0" for part in parts for it, mean, *_ in part)))
    if curve["best"]:
        paths.append(("dots best", f"M{at(*curve['best'])}h0"))
    name = escaped(f"{curve['name']} over the iterations{', logarithmic' * scale.log}")
    drawn = "".join(f'<path class="{names}" d="{path}"/>' for names, path in paths)
    return (
        f'<div class="{"log" if scale.log else "linear"}"><div class="values" aria-hidden="true">{labels}</div>'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{name}">{drawn}</svg></div>'
    )


DOTS = 40
"""Points of a line that are marked, if there are no more."""


def _round_values(low: float, high: float, count: int) -> list[float]:
    """Return at most so many round values from `low` to `high`."""
    step = 10.0 ** math.floor(math.log10((high - low) / count))
    step *= next((digit for digit in (1, 2, 5) if (high - low) / (step * digit) < count), 10)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_values(low: float, high: float) -> list[float]:
    """Return a few round values from `low` to `high`, evenly apart by their logarithms."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        values = [value for decade in decades for digit in digits if low <= (value := digit * 10.0**decade) <= high]
        if len(values) <= 6:
            return values
    return values[:: math.ceil(len(values) / 5)]


def _costs(report: Report) -> str:
    """Return what an iteration is made of, and what each hook has taken."""
    if not report["phases"]:
        return ""
    stack = "".join(f'<i class="{name}" style="flex-grow:{share}"></i>' for name, _, share in report["phases"])
    phases = "".join(
        f'<li><i class="{name}"></i>{name} <b>{percent(share)} %</b> <span class="dim">{each}</span></li>'
        for name, each, share in report["phases"]
    )
    bar = f'<div class="stack" aria-hidden="true">{stack}</div><ul class="phases">{phases}</ul>'
    note = '<p class="dim">Of the last attempt</p>'
    return f"{bar}{note}{table(report['hooks'], right=(1, 2, 3))}"


def _trouble(trouble: Report) -> str:
    """Return a warning or an error, with its traceback folded."""
    times = f" ({trouble['times']:,} times)" * (trouble["times"] > 1)
    shown = f"<b>{trouble['glyph']} {escaped(trouble['source'])}</b> {escaped(trouble['text'])}{times}"
    more = _details("Details", pre(trouble["detail"])) if trouble["detail"] else ""
    where = f'<span class="dim">{trouble["where"]} {trouble["time"]}</span>'
    return f'<div class="trouble {trouble["kind"]}"><p>{shown} {where}</p>{more}</div>'


def _events(entries: Sequence[Report]) -> str:
    rows: list[tuple[str, ...]] = [("time", "iteration", "from", "event")]
    rows += [(each["time"], each["where"], each["source"], f"{each['glyph']} {each['text']}") for each in entries]
    return _details(f"The last {len(entries):,}", table(rows, right=(1,))) if entries else ""
