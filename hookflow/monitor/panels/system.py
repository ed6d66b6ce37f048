"""The machine, the run's facts, and what watching costs."""

from __future__ import annotations

from functools import partial

from textual.strip import Strip

from hookflow.monitor.style import Part, boxed, row
from hookflow.monitor.view import Page, Scene, flip
from hookflow.numbers import many, percent
from hookflow.text import wrapped_phrases


def system(scene: Scene, width: int, height: int) -> list[Strip]:
    inner = width - 2
    return boxed("[4] system", [*_machine(scene, inner), *_facts(scene, inner)], width, height, scene.focus == 4)


def _machine(scene: Scene, width: int) -> list[Strip]:
    machine = scene.machine
    if machine is None:
        why = "the run is on another machine" if scene.remote else "looking at this machine …"
        why = "a replay has no machine to look at" if scene.replay else why
        return [row(width, (f" {why}", "dim"))]
    rows = []
    for gpu in machine.gpus:
        memory = f"  {gpu.used / 2**30:.1f}/{gpu.total / 2**30:.0f} GB"
        rest = f"  {gpu.degrees}°C  {gpu.watts:.0f} W" if gpu.degrees else ""
        rows.append(row(width, *_gauge(f"GPU{gpu.index}", gpu.busy, width), (memory, ""), (rest, "dim")))
    load = f"  load {machine.load:.1f}   RAM {machine.ram:.0f}%"
    costs = f" cost recorder {percent(scene.pace.recorder)}%  monitor {machine.viewer:.1f}% of a core"
    return [*rows, row(width, *_gauge("CPU ", machine.cpu, width), (load, "dim")), row(width, (costs, "dim"))]


def _gauge(name: str, value: float, width: int) -> list[Part]:
    room = 8 if width < 60 else 16
    full = round(min(value, 100) / 100 * room)
    return [(f" {name} ", "dim"), ("█" * full, "bar"), ("░" * (room - full), "rest"), (f" {value:3.0f}%", "")]


def _facts(scene: Scene, width: int) -> list[Strip]:
    run = scene.state.run
    if not run:
        return []
    facts = [run["model"], f"{many(run['params'])} parameters", f"seed {run['seed']}", run["device"], run["precision"]]
    facts += [f"torch {run['torch']}", f"python {run['python']}"]
    rows = wrapped_phrases([f"{fact} " for fact in facts if fact], width - 2)
    for split, data in run["data"].items():
        made_up = "SYNTHETIC " if data["synthetic"] else ""
        rows.append(f"{split:<5} {made_up}{data['name']}  {many(data['examples'])}, batch {data['batch_size']}")
    return [row(width, (f" {fact}", "warn" if "SYNTHETIC" in fact else "dim")) for fact in rows]


SYSTEM = Page("system", system, move=None, enter=partial(flip, "zoomed"))
