"""The machine, the facts of the run, and the layers of its model."""

from collections.abc import Iterator

from rich.text import Text

from hookflow.events.records import Run
from hookflow.monitor.process_watch import GpuState, MachineState
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import Part, text_of
from hookflow.monitor.summary import layer_rows
from hookflow.numbers import format_many, format_percent

GAUGE_WIDTH = 16
"""Cells of the bar of a load."""

LABEL_WIDTH = 12
"""Cells for the name of a fact."""


def list_machine_lines(store: RunStore) -> Iterator[Text]:
    """Yield the loads of the machine, or why they are not known; and what the monitoring costs."""
    machine = store.machine
    if machine is None:
        yield text_of((_find_machine_obstacle(store), "dim"))
    else:
        yield from load_lines(machine)
        yield fact_line("monitor", f"{machine.viewer:.1f} % of a core")
    yield fact_line("recorder", f"{format_percent(store.pace.recorder)} % of the training")


def _find_machine_obstacle(store: RunStore) -> str:
    if store.is_replay:
        return "a replay has no machine to look at"
    if store.health.over:
        return "the run is over: this machine is not looked at"
    if store.is_remote:
        return "the run is on another machine"
    return "looking at this machine …"


def load_lines(machine: MachineState) -> Iterator[Text]:
    """Yield the loads of the GPUs and of the CPU."""
    for gpu in machine.gpus:
        yield text_of(*_render_gauge(f"GPU {gpu.index}", gpu.busy), *_gpu_figures(gpu))
    figures = f"  load {machine.load:.1f}   RAM {machine.ram:.0f} %"
    yield text_of(*_render_gauge("CPU", machine.cpu), (figures, "dim"))


def _render_gauge(name: str, value: float | None) -> list[Part]:
    """Return a bar and the value in hundredths; a dash for a value that is not known."""
    label = f"{name:<{LABEL_WIDTH}}"
    if value is None:
        return [(label, "dim"), ("load –", "dim")]
    full = round(min(value, 100.0) / 100 * GAUGE_WIDTH)
    return [
        (label, "dim"),
        ("█" * full, "bar"),
        ("░" * (GAUGE_WIDTH - full), "rest"),
        f" {value:3.0f} %",
    ]


def _gpu_figures(gpu: GpuState) -> list[Part]:
    """Return the memory, the temperature and the power of a GPU, as far as the driver tells."""
    parts: list[Part] = []
    if gpu.used is not None and gpu.total is not None:
        parts.append(f"  {gpu.used / 2**30:.1f}/{gpu.total / 2**30:.0f} GB")
    if gpu.degrees is not None:
        parts.append((f"  {gpu.degrees}°C", "dim"))
    if gpu.watts is not None:
        parts.append((f"  {gpu.watts:.0f} W", "dim"))
    return parts


def fact_line(name: str, value: str, style: str = "") -> Text:
    """Return a fact with its name."""
    return text_of((f"{name:<{LABEL_WIDTH}}", "dim"), (value, style))


def run_lines(run: Run) -> Iterator[Text]:
    """Yield the facts of a run: its model, seed, device and versions."""
    if not run:
        yield text_of(("the run has not begun", "dim"))
        return
    if run["model"]:
        yield fact_line("model", f"{run['model']}, {format_many(run['params'])} parameters")
    yield fact_line("seed", str(run["seed"]))
    yield fact_line("device", f"{run['device']}, {run['precision']}")
    yield fact_line("process", f"{run['pid']} on {run['host']}")
    if run["world"] > 1:
        strategy = ""
        if run["strategy"]:
            strategy = f", {run['strategy']}"
        yield fact_line("ranks", f"{run['world']}{strategy}")
    yield fact_line("versions", f"torch {run['torch']}, python {run['python']}")


def data_lines(run: Run) -> Iterator[Text]:
    """Yield the data of each split; made-up data is called so."""
    for split, data in run.get("data", {}).items():
        facts = [data["name"]]
        if data["examples"]:
            facts.append(f"{data['examples']:,} examples")
        facts.append(f"{data['batches']:,} batches")
        if data["batch_size"]:
            facts.append(f"of {data['batch_size']}")
        text = "  ".join(facts)
        if data["synthetic"]:
            text = f"SYNTHETIC {text}"
        if data["note"]:
            text += f": {data['note']}"
        yield fact_line(split, text, "warn" if data["synthetic"] else "")


LAYER_COLUMNS = ("layer", "class", "shapes", "parameters", "size", "")
"""The headings of the table of layers."""


def layer_cells(run: Run) -> Iterator[tuple[Text, ...]]:
    """Yield each layer of the model: name, class, shapes, parameters, size,
    and what of it does not train.
    """
    for name, kind, shapes, parameters, memory, note in layer_rows(run.get("layers", [])):
        yield (
            text_of((name, "strong")),
            text_of(kind),
            text_of(shapes),
            text_of(f"{parameters:>14}"),
            text_of(f"{memory:>9}"),
            text_of((note, "warn")),
        )
