"""The machine, the run's facts, and what watching costs."""

from __future__ import annotations

from rich.cells import cell_len
from textual.strip import Strip

from hookflow.monitor.machine import Gpu
from hookflow.monitor.style import Part, boxed, row
from hookflow.monitor.view import Scene
from hookflow.numbers import many, percent


def system(scene: Scene, width: int, height: int) -> list[Strip]:
    inner = width - 2
    return boxed("[4] system", [*_machine(scene, inner), *_facts(scene, inner)], width, height, scene.view.focus == 4)


def _machine(scene: Scene, width: int) -> list[Strip]:
    machine = scene.machine
    if machine is None:
        why = "the run is on another machine" if scene.remote else "looking at this machine …"
        why = "a replay has no machine to look at" if scene.replay else why
        return [row(width, (f" {why}", "dim"))]
    rows = [_gpu(gpu, width) for gpu in machine.gpus]
    cpu: list[Part] = [(" CPU  ", "dim"), *_gauge(machine.cpu, width), (f" {machine.cpu:3.0f}%", "")]
    rows.append(row(width, *cpu, (f"  load {machine.load:.1f}   RAM {machine.ram:.0f}%", "dim")))
    recorder = percent(scene.pace.recorder)
    costs = f" cost recorder {recorder}%  monitor {machine.viewer:.1f}% of a core"
    return [*rows, row(width, (costs, "dim"))]


def _gpu(gpu: Gpu, width: int) -> Strip:
    memory = f"  {gpu.used / 2**30:.1f}/{gpu.total / 2**30:.0f} GB"
    rest = f"  {gpu.degrees}°C  {gpu.watts:.0f} W" if gpu.degrees else ""
    head: list[Part] = [(f" GPU{gpu.index} ", "dim"), *_gauge(gpu.busy, width), (f" {gpu.busy:3.0f}%", "")]
    return row(width, *head, (memory, ""), (rest, "dim"))


def _gauge(value: float, width: int) -> list[Part]:
    cells = 8 if width < 60 else 16
    full = round(min(value, 100) / 100 * cells)
    return [("█" * full, "bar"), ("░" * (cells - full), "rest")]


def _facts(scene: Scene, width: int) -> list[Strip]:
    run = scene.state.run
    if not run:
        return []
    facts = [run["model"], f"{many(run['params'])} parameters", f"seed {run['seed']}", run["device"], run["precision"]]
    rows = _packed([*facts, f"torch {run['torch']}", f"python {run['python']}"], width - 2)
    for split, data in run["data"].items():
        made_up = "SYNTHETIC " if data["synthetic"] else ""
        rows.append(f"{split:<5} {made_up}{data['name']}  {many(data['examples'])}, batch {data['batch_size']}")
    return [row(width, (f" {fact}", "warn" if "SYNTHETIC" in fact else "dim")) for fact in rows]


def _packed(facts: list[str], width: int) -> list[str]:
    """Return the facts in as few rows as they fit in, none of them broken."""
    rows = [""]
    for fact in filter(None, facts):
        joined = f"{rows[-1]}  {fact}".strip()
        rows = [*rows[:-1], joined] if cell_len(joined) <= width else [*rows, fact]
    return rows
